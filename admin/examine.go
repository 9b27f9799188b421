package admin

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// checkPatience is how long a check waits for a node, in timeouts.
const checkPatience = 3

// clockSamples is how many times a node is asked for its time; the quickest answer counts.
const clockSamples = 3

// questions are what nodes are asked about, besides themselves: what this user may do with keys like
// those of locks.
type questions struct {
	Key, Line, Holders, Door string // of a random lock, none of which exists
	Channel                  string
	Mark                     string // the key of the memory mark; empty: there is none
}

// examiner asks one node, on a goroutine of its own.
type examiner struct {
	facts
	start        tick.Instant
	clock        tick.Clock
	ask          questions
	updates      chan facts
	lineMasked   bool // the key of the probe's line was refused
	sharedMasked bool // and those of shared locks
}

// examinerSteps is how often update is called at most. The channel has room for as many, so
// an examiner ends even if its updates are not received any more.
const examinerSteps = 8

// examineAll asks all nodes at once, and returns what is known of each when it has answered or when
// waiting is over: after checkPatience, or when ctx ends. Each node is asked on a goroutine of its own. Nothing is
// written on the nodes.
func (n *Nodes) examineAll(ctx context.Context, ask questions) (all []facts) {
	asking, cancel := context.WithTimeout(ctx, checkPatience*n.opts.Timeout)
	defer cancel()
	clients, done := n.open()
	defer done()
	// go-redis does not look at a context while it reads, so a hung node's goroutine is
	// left to end by the read's own timeout.
	start, updates := n.clock.Now(), make([]chan facts, len(n.clients))
	for i, c := range clients {
		updates[i] = make(chan facts, examinerSteps)
		e := examiner{start: start, clock: n.clock, ask: ask, updates: updates[i]}
		e.Node = n.names[i]
		go e.examine(asking, n, n.clients[i], c)
	}
	for i := range updates {
		all = append(all, latest(asking, updates[i]))
		if f := &all[i]; f.elapsed == 0 {
			f.Node, f.Err, f.elapsed = n.names[i], protocol.ErrTimeout, n.clock.Now().Since(start)
		}
	}
	return all
}

// examine asks step by step, and updates after each: a node that hangs later has been
// examined so far. It closes updates at its end. of leads to the node, and c is the client to ask.
func (e *examiner) examine(ctx context.Context, n *Nodes, of, c *redis.Client) {
	defer close(e.updates)
	if err := conn.NoPanic(func() { e.steps(ctx, n, of, c) }); err != nil {
		e.Err = err
		e.update()
	}
}

func (e *examiner) steps(ctx context.Context, n *Nodes, of, c *redis.Client) {
	if !e.ping(ctx, c) {
		e.update()
		return
	}
	e.time(ctx, c)
	e.update()
	e.read(ctx, c)
	e.try(ctx, c)
	e.update()
	e.rights(ctx, c)
	e.update()
	e.subscribe(ctx, of)
	e.update()
	e.connections(ctx, n, of)
	e.update()
}

// latest returns the last update about a node: when its examiner is done, or when waiting for it is over.
func latest(asking context.Context, updates <-chan facts) (last facts) {
	for {
		// Updates come first: one that is there is taken even if waiting is over.
		select {
		case f, more := <-updates:
			if !more {
				return last
			}
			last = f
			continue
		default:
		}
		select {
		case f, more := <-updates:
			if !more {
				return last
			}
			last = f
		case <-asking.Done():
			last.cut = true
			return last
		}
	}
}

// update hands over what is known so far. The slices are clipped, so that later appends do
// not reach what was handed over.
func (e *examiner) update() {
	e.unread, e.lacks, e.Unread = slices.Clip(e.unread), slices.Clip(e.lacks), slices.Clip(e.Unread)
	e.elapsed = max(e.clock.Now().Since(e.start), 1)
	e.updates <- e.facts
}

// ping reports whether the node serves us.
func (e *examiner) ping(ctx context.Context, c *redis.Client) bool {
	err := e.run(ctx, c, redis.NewStatusCmd(ctx, "PING"))
	if err == nil || !protocol.IsServerError(err) && !neverSent(err) {
		// The first PING may have had to connect, or may have used a connection that was dead.
		err = e.run(ctx, c, redis.NewStatusCmd(ctx, "PING"))
	}
	e.Reachable = err == nil || protocol.IsServerError(err)
	if e.Reachable && err != nil && strings.HasPrefix(err.Error(), "NOPERM") {
		err = nil // nothing needs PING
	}
	if late := net.Error(nil); errors.As(err, &late) && late.Timeout() {
		err = protocol.ErrTimeout // as other errors say it
	}
	e.Err = protocol.Hinted(c, err)
	return err == nil
}

// neverSent recognizes errors that come before a connection is there to write to.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed)
}

// run sends one command and keeps the time that its answer took, if that is the shortest.
func (e *examiner) run(ctx context.Context, c *redis.Client, cmd redis.Cmder) error {
	start := e.clock.Now()
	err := c.Process(ctx, cmd)
	if d := e.clock.Now().Since(start); (err == nil || protocol.IsServerError(err)) && (e.Latency == 0 || d < e.Latency) {
		e.Latency = max(d, 1)
	}
	return err
}

// time compares the node's clock with ours. The quickest answer counts, since it leaves the
// smallest margin.
func (e *examiner) time(ctx context.Context, c *redis.Client) {
	for range clockSamples {
		cmd := redis.NewTimeCmd(ctx, "TIME")
		start := e.clock.Now()
		if err := e.run(ctx, c, cmd); err != nil {
			e.noTime = err
			e.cannot("TIME", "how far its clock is off", err)
			return
		}
		trip := e.clock.Now().Since(start)
		if margin := trip / 2; !e.timed || margin < e.ClockMargin {
			e.timed = true
			e.ClockOffset, e.ClockMargin = time.Duration(cmd.Val().UnixNano()-start.Wall)-margin, margin
		}
	}
}

// cannot notes that something could not be read. means is what is not known for that reason.
func (e *examiner) cannot(what, means string, err error) {
	e.unread = append(e.unread, unread{what, means, protocol.ServerText(protocol.OneLine(err.Error()))})
	e.Unread = append(e.Unread, what+": "+protocol.ServerText(protocol.OneLine(err.Error())))
}

// enquiry are commands that go in one pipeline. Each of them may be answered with an error
// of its own; if the pipeline itself fails, none has an answer.
type enquiry struct {
	pipe    redis.Pipeliner
	failure error
}

func (q *enquiry) add(ctx context.Context, cmd redis.Cmder) { _ = q.pipe.Process(ctx, cmd) } // only queues it

func (q *enquiry) send(ctx context.Context) {
	if _, err := q.pipe.Exec(ctx); !protocol.IsServerError(err) { // a server's error is that of one command
		q.failure = err
	}
}

// errOf returns why a command has no answer, nil if it has one.
func (q *enquiry) errOf(cmd redis.Cmder) error { return cmp.Or(cmd.Err(), q.failure) }

// sections are the sections of INFO that Check asks for: the name, what is not known without
// the section, and whether that is known, from this or any other answer.
var sections = []struct {
	name, means string
	known       func(n *NodeReport) bool
}{
	{"server", "whether two names lead to one server, its version and when it was started",
		func(n *NodeReport) bool { return n.RunID != "" }},
	{"replication", "whether it is a master and has replicas", func(n *NodeReport) bool { return n.Role != "" }},
	{"commandstats", "", func(*NodeReport) bool { return true }}, // what is not known without it the guard says
	{"memory", "whether it may evict locks", func(n *NodeReport) bool { return n.MaxMemoryPolicy != "" }},
	{"persistence", "whether a restart forgets locks", func(n *NodeReport) bool { return n.AppendOnly != "" }},
	{"stats", "whether it has evicted keys", func(n *NodeReport) bool { return n.counted }},
	{"cluster", "whether it belongs to a cluster", func(n *NodeReport) bool { return n.Mode != "" }},
}

// settings are asked for one by one, since CONFIG GET takes several only from Redis 7 on.
var settings = []string{"appendonly", "appendfsync", "maxmemory", "maxmemory-policy"}

// read asks the node about itself. It asks for most things twice, by INFO and by ROLE or
// CONFIG, since a user may lack the right to one of these, and services often deny CONFIG.
func (e *examiner) read(ctx context.Context, c *redis.Client) {
	q := enquiry{pipe: c.Pipeline()}
	infos := make([]*redis.StringCmd, len(sections))
	for i, s := range sections {
		infos[i] = redis.NewStringCmd(ctx, "INFO", s.name)
		q.add(ctx, infos[i])
	}
	role := redis.NewCmd(ctx, "ROLE") // a SliceCmd would take a number for a length, and make room for it
	q.add(ctx, role)
	configs := make([]*redis.MapStringStringCmd, len(settings))
	for i, s := range settings {
		configs[i] = redis.NewMapStringStringCmd(ctx, "CONFIG", "GET", s)
		q.add(ctx, configs[i])
	}
	var text *redis.StringCmd
	if e.ask.Mark != "" {
		text = redis.NewStringCmd(ctx, "GET", e.ask.Mark)
		q.add(ctx, text)
	}
	q.send(ctx)

	denials := make([]error, len(sections))
	for i, cmd := range infos {
		if denials[i] = q.errOf(cmd); denials[i] == nil {
			e.readInfo(cmd.Val())
		}
	}
	if words, ok := role.Val().([]any); ok && q.errOf(role) == nil && e.Role == "" {
		e.readRole(words)
	}
	denied := errors.New("the server does not tell")
	for i, cmd := range configs {
		if err := q.errOf(cmd); err != nil {
			denied = err
		} else {
			e.readSetting(settings[i], cmd.Val()[settings[i]])
		}
	}
	e.noteUnread(denials, denied)
	e.readMemory(&q, infos, text)
}

// readMemory keeps what tells since when the node remembers: its ids and its mark. text is
// nil where there are no marks.
func (e *examiner) readMemory(q *enquiry, infos []*redis.StringCmd, text *redis.StringCmd) {
	if text == nil {
		return
	}
	for i, cmd := range infos {
		e.seen.Err = cmp.Or(e.seen.Err, e.seen.ReadInfo(sections[i].name, cmd.Val(), q.errOf(cmd)))
	}
	e.Puts = e.seen.Puts
	if !e.timed {
		e.seen.Err = cmp.Or(e.seen.Err, protocol.Unanswered("TIME", e.noTime))
	}
	err := q.errOf(text)
	if err == nil || errors.Is(err, redis.Nil) {
		e.seen.Mark = protocol.ReadMark(text.Val(), err == nil, 0)
		return
	}
	e.seen.Mark = protocol.MarkOfError(err)
	e.seen.Err = cmp.Or(e.seen.Err, protocol.Unanswered("GET "+e.ask.Mark, e.seen.Mark.Err))
	switch {
	case strings.HasPrefix(err.Error(), "NOPERM"): // the probes find that, and say what it costs
		e.Unread = append(e.Unread, "GET "+e.ask.Mark+": "+protocol.ServerText(protocol.OneLine(err.Error())))
	case protocol.OtherType(err):
		e.noMark = e.ask.Mark
	default:
		e.cannot("GET "+e.ask.Mark, "since when it remembers", err)
	}
}

// try runs the trial of a lock's commands that a client's vote rests on, unless there is none without it. It leaves the
// script in the server's cache, as each client does.
func (e *examiner) try(ctx context.Context, c *redis.Client) {
	if e.ask.Mark == "" || e.seen.Err != nil || e.Role == "slave" {
		return
	}
	key := protocol.TrialKeyOf(e.ask.Mark)
	run := func(whole bool) (any, error) {
		var args []any
		for _, w := range protocol.TryScript.Words(key, whole) {
			args = append(args, w)
		}
		cmd := redis.NewCmd(ctx, args...)
		err := c.Process(ctx, cmd)
		return cmd.Val(), err
	}
	command := "EVALSHA"
	val, err := run(false)
	if protocol.WantsSource(err) {
		command = "EVAL"
		val, err = run(true)
	}
	e.seen.Err = protocol.TrialFails(command, key, val, err)
}

// noteUnread notes what is still not known. denials has the error of each section of INFO,
// and denied is why CONFIG did not help.
func (e *examiner) noteUnread(denials []error, denied error) {
	for i, s := range sections {
		// The restart guard sends INFO server, so that one matters by itself.
		if !s.known(&e.NodeReport) || s.name == "server" && denials[i] != nil {
			e.cannot("INFO "+s.name, s.means, cmp.Or(denials[i], denied))
		}
	}
	if e.AppendOnly == "yes" && e.AppendFsync == "" {
		e.cannot("CONFIG GET appendfsync", "how many of the last writes a restart forgets", denied)
	}
}
