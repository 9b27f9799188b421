package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

const (
	// checkPatience bounds how long Check waits for a node.
	checkPatience = 3 * time.Second
	// clockPatience is by how much the nodes' clocks may differ.
	clockPatience = time.Second
	// clockSamples is how often a node is asked for its time; the quickest answer counts.
	clockSamples = 3
)

// Check asks every node what could break locks, and says what each finding means and what
// to do: nodes that are down or refuse us, the same server under two names, replicas,
// nodes of a cluster, eviction, persistence, replicas that a failover would promote, clocks
// that differ, answers slower than Options.NodeTimeout, old versions, and rights that the
// library needs and the user lacks. What a node does not let us read is a finding, too.
//
// All nodes are asked at once. It ends when each has answered, after three seconds, when
// ctx ends or when the Redlock is closed; what was learnt until then is in the Report in
// any case. The error is the one of ctx, ErrClosed, or ErrNoQuorum if no majority of nodes
// serves us, along with a *QuorumError. Findings of whatever severity are no error; see
// Report.Worst.
//
// Nothing is written that stays. Rights are tested with commands that a user who has them
// is answered with an error, or that meet a key which does not exist; those that are denied
// show in the server's ACL LOG. Which keys a user may touch is tested with one random key
// behind Options.KeyPrefix only. Behind a cluster or ring client there are several servers,
// of which Check only learns whether they answer at all.
func (rl *Redlock) Check(ctx context.Context) (Report, error) {
	if rl.isClosed() {
		return Report{}, fmt.Errorf("redlock: check: %w", ErrClosed)
	}
	if ctx.Err() != nil {
		return Report{}, &QuorumError{Op: "check", Need: rl.quorum, reasons: ended(ctx)}
	}
	probe, err := rl.newValue()
	if err != nil {
		return Report{}, err
	}
	probe = probe[:tokenLen]

	start := rl.clock.now()
	asking, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	// go-redis does not look at a context while it reads, so a hung node's goroutine is
	// left to end by the read's own timeout.
	news := make([]chan facts, len(rl.clients))
	for i, c := range rl.clients {
		e := examiner{clock: rl.clock, prefix: rl.opts.KeyPrefix, probe: probe, news: make(chan facts, examinerSteps)}
		e.NodeReport.Node = rl.names[i]
		news[i] = e.news
		go e.examine(asking, c)
	}
	all := make([]facts, len(news))
	closed := false
	for i := range news {
		var c bool
		all[i], c = lastOf(asking, rl.closing, news[i], rl.names[i])
		closed = closed || c
	}
	if end, ok := ctx.Deadline(); ok && !rl.clock.now().time.Before(end) {
		<-ctx.Done() // connections time out a little earlier than their context
	}

	report := Report{Quorum: rl.quorum, Findings: judge(all, rl.setup())}
	outcomes := make([]Outcome, len(all))
	serving := 0
	for i, f := range all {
		report.Nodes = append(report.Nodes, f.NodeReport)
		outcomes[i] = Outcome{Node: f.Node, Vote: VoteGranted, Err: f.Err, Elapsed: rl.clock.now().since(start)}
		switch {
		case f.Err == nil:
			serving++
			outcomes[i].Elapsed = f.Latency
		case f.Reachable:
			outcomes[i].Vote = VoteFailed
		default:
			outcomes[i].Vote = VoteBarred
		}
	}
	fail := func(reasons ...error) error {
		return &QuorumError{Op: "check", Need: rl.quorum, Outcomes: outcomes, reasons: reasons}
	}
	switch {
	case ctx.Err() != nil:
		return report, fail(ended(ctx)...)
	case closed:
		return report, fail(ErrClosed)
	case serving < rl.quorum:
		return report, fail(ErrNoQuorum)
	default:
		return report, nil
	}
}

// lastOf returns the last that was heard of a node when its examination or our patience ends.
func lastOf(asking context.Context, closing <-chan struct{}, news <-chan facts, name string) (last facts, closed bool) {
	last.NodeReport = NodeReport{Node: name, Err: fmt.Errorf("no answer within %v", checkPatience)}
	for {
		// What has come is taken even if the time is over.
		select {
		case f, more := <-news:
			if !more {
				return last, false
			}
			last = f
			continue
		default:
		}
		select {
		case f, more := <-news:
			if !more {
				return last, false
			}
			last = f
		case <-asking.Done():
			last.cut = true
			return last, false
		case <-closing:
			last.cut = true
			return last, true
		}
	}
}

// facts are what is known of a node, to be judged.
type facts struct {
	NodeReport
	many   bool // a cluster or ring client: several servers
	cut    bool // time was over before all was asked
	unread []unread
	lacks  []denial
	// masked: the probe's key was refused, so nothing is known of rights to keys;
	// lineMasked: that of its line.
	masked, lineMasked bool
}

type unread struct{ what, means, err string }

type denial struct {
	need need
	what string
	err  string
}

// need is what a right is for.
type need uint8

const (
	forLocks need = iota + 1
	forLines
	forNotices
)

// examiner asks one node.
type examiner struct {
	facts
	clock         clock
	prefix, probe string
	news          chan facts
}

// examinerSteps is how often tell is called at most.
const examinerSteps = 8

// tell hands over what is known so far. The slices are cut off, so that later appends do
// not reach what was handed over.
func (e *examiner) tell() {
	e.unread, e.lacks, e.Unread = slices.Clip(e.unread), slices.Clip(e.lacks), slices.Clip(e.Unread)
	e.news <- e.facts
}

// processor is what go-redis' clients have in common.
type processor interface {
	Process(ctx context.Context, cmd redis.Cmder) error
}

func (e *examiner) examine(ctx context.Context, c redis.UniversalClient) {
	defer close(e.news)
	switch single := c.(type) {
	case *redis.ClusterClient, *redis.Ring:
		e.many = true
	case *redis.Client:
		c = single.WithTimeout(checkPatience)
	}
	if !e.ping(ctx, c) || e.many {
		if e.many {
			e.Unread = []string{"all but PING: there are several servers behind this client"}
		}
		e.tell()
		return
	}
	e.time(ctx, c)
	e.tell()
	e.read(ctx, c)
	e.tell()
	e.rights(ctx, c)
	e.tell()
	e.subscribe(ctx, c)
	e.tell()
}

// ping reports whether the node serves us.
func (e *examiner) ping(ctx context.Context, c processor) bool {
	err := e.run(ctx, c, redis.NewStatusCmd(ctx, "PING"))
	if err == nil || !isServerError(err) && !neverSent(err) {
		// The first one may have had to connect, or found that a connection had broken.
		err = e.run(ctx, c, redis.NewStatusCmd(ctx, "PING"))
	}
	e.Reachable = err == nil || isServerError(err)
	if e.Reachable && err != nil && strings.HasPrefix(err.Error(), "NOPERM") {
		err = nil // nothing needs PING
	}
	e.Err = explained(err)
	return err == nil
}

// run runs one command and keeps the time if it was the shortest.
func (e *examiner) run(ctx context.Context, c processor, cmd redis.Cmder) error {
	start := e.clock.now()
	err := c.Process(ctx, cmd)
	if d := e.clock.now().since(start); (err == nil || isServerError(err)) && (e.Latency == 0 || d < e.Latency) {
		e.Latency = max(d, 1)
	}
	return err
}

// time compares the node's clock with ours: the quickest answer leaves the least doubt.
func (e *examiner) time(ctx context.Context, c processor) {
	for range clockSamples {
		cmd := redis.NewTimeCmd(ctx, "TIME")
		start := e.clock.now()
		if err := e.run(ctx, c, cmd); err != nil {
			e.cannot("TIME", "how far its clock is off", err)
			return
		}
		trip := e.clock.now().since(start)
		if margin := trip / 2; !e.timed || margin < e.ClockMargin {
			e.timed = true
			e.ClockOffset, e.ClockMargin = time.Duration(cmd.Val().UnixNano()-start.wall)-margin, margin
		}
	}
}

// cannot notes that something could not be read.
func (e *examiner) cannot(what, means string, err error) {
	e.unread = append(e.unread, unread{what, means, oneLine(err.Error())})
	e.Unread = append(e.Unread, what+": "+oneLine(err.Error()))
}

// read asks the node about itself, in one pipeline.
func (e *examiner) read(ctx context.Context, c redis.UniversalClient) {
	sections := []struct{ name, means string }{
		{"server", "whether two names lead to one server, its version and when it was started (nor can restarts be noticed without it)"},
		{"replication", "whether it is a master and has replicas"},
		{"memory", "whether it may evict locks"},
		{"persistence", "whether a restart forgets locks"},
		{"cluster", "whether it belongs to a cluster"},
	}
	settings := []string{"appendonly", "appendfsync", "maxmemory", "maxmemory-policy"}
	pipe := c.Pipeline()
	var infos []*redis.StringCmd
	for _, s := range sections {
		cmd := redis.NewStringCmd(ctx, "INFO", s.name)
		infos = append(infos, cmd)
		_ = pipe.Process(ctx, cmd)
	}
	role := redis.NewSliceCmd(ctx, "ROLE")
	_ = pipe.Process(ctx, role)
	var configs []*redis.MapStringStringCmd
	for _, s := range settings { // one by one: several at once are new in Redis 7
		cmd := redis.NewMapStringStringCmd(ctx, "CONFIG", "GET", s)
		configs = append(configs, cmd)
		_ = pipe.Process(ctx, cmd)
	}
	_, failure := pipe.Exec(ctx)
	errOf := func(cmd redis.Cmder) error {
		if err := cmd.Err(); err != nil {
			return err
		}
		if failure != nil && !isServerError(failure) {
			return failure
		}
		return nil
	}

	var server error
	for i, s := range sections {
		if err := errOf(infos[i]); err != nil {
			if s.name == "server" {
				server = err
			}
			continue
		}
		e.readInfo(infos[i].Val())
	}
	if errOf(role) == nil && e.Role == "" {
		e.readRole(role.Val())
	}
	var denied error
	for i, s := range settings {
		if err := errOf(configs[i]); err != nil {
			denied = err
		} else {
			e.readSetting(s, configs[i].Val()[s])
		}
	}
	if denied == nil {
		denied = errors.New("the server does not tell")
	}

	// Only what no other answer told is missing.
	for i, s := range sections {
		err := errOf(infos[i])
		if err == nil {
			err = denied
		}
		switch {
		case s.name == "server" && (server != nil || e.RunID == ""),
			s.name == "replication" && e.Role == "",
			s.name == "memory" && e.MaxMemoryPolicy == "",
			s.name == "persistence" && e.AppendOnly == "",
			s.name == "cluster" && e.Mode == "":
			e.cannot("INFO "+s.name, s.means, err)
		}
	}
	if e.AppendOnly == "yes" && e.AppendFsync == "" {
		e.cannot("CONFIG GET appendfsync", "how many of the last writes a restart forgets", denied)
	}
}

// readInfo takes what it knows from sections of INFO.
func (n *NodeReport) readInfo(text string) {
	redisVersion, valkeyVersion := "", ""
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		switch name {
		case "redis_version":
			redisVersion = value
		case "valkey_version":
			valkeyVersion = value
		case "run_id":
			n.RunID = value
		case "redis_mode", "server_mode":
			n.Mode = value
		case "cluster_enabled":
			if value == "1" {
				n.Mode = "cluster"
			} else if n.Mode == "" {
				n.Mode = "standalone"
			}
		case "uptime_in_seconds":
			if s, err := strconv.ParseInt(value, 10, 32); err == nil {
				n.Uptime, n.aged = time.Duration(s)*time.Second, true
			}
		case "role":
			n.Role = value
		case "connected_slaves":
			n.Replicas, _ = strconv.Atoi(value)
		case "maxmemory":
			n.MaxMemory, _ = strconv.ParseInt(value, 10, 64)
		case "maxmemory_policy":
			n.MaxMemoryPolicy = value
		case "aof_enabled":
			n.AppendOnly = "no"
			if value == "1" {
				n.AppendOnly = "yes"
			}
		}
	}
	switch {
	case valkeyVersion != "":
		n.Version = "valkey " + valkeyVersion
	case redisVersion != "":
		n.Version = "redis " + redisVersion
	}
}

// readRole takes the answer to ROLE.
func (n *NodeReport) readRole(answer []any) {
	if len(answer) == 0 {
		return
	}
	n.Role, _ = answer[0].(string)
	if n.Role == "master" && len(answer) > 2 {
		replicas, _ := answer[2].([]any)
		n.Replicas = len(replicas)
	}
}

func (n *NodeReport) readSetting(name, value string) {
	if value == "" {
		return
	}
	switch name {
	case "appendonly":
		n.AppendOnly = value
	case "appendfsync":
		n.AppendFsync = value
	case "maxmemory":
		if bytes, err := strconv.ParseInt(value, 10, 64); err == nil {
			n.MaxMemory = bytes
		}
	case "maxmemory-policy":
		n.MaxMemoryPolicy = value
	}
}

// probe is a command that shows whether a right is there without doing anything: a server
// looks at rights before it looks at arguments other than their number and keys.
type probe struct {
	need need
	args []any
}

// probesFor tests what a user must be allowed. Neither key exists.
func probesFor(key, line, channel string) []probe {
	return []probe{
		{forLocks, []any{"SET", key, "", "NOTHING"}}, // no such option
		{forLocks, []any{"GET", key}},
		{forLocks, []any{"DEL", key}},
		{forLocks, []any{"PTTL", key}},
		{forLocks, []any{"PEXPIRE", key, 1}},
		{forLocks, []any{"TYPE", key}},
		{forLocks, []any{"EVAL", "no script", 0}}, // does not compile, so it is not kept either
		{forLocks, []any{"EVALSHA", strings.Repeat("0", 40), 0}},
		{forLines, []any{"TIME"}},
		{forLines, []any{"TYPE", line}},
		{forLines, []any{"ZADD", line, "nan?", ""}}, // no number
		{forLines, []any{"ZREM", line, ""}},
		{forLines, []any{"ZSCORE", line, ""}},
		{forLines, []any{"ZRANGEBYSCORE", line, 0, 0}},
		{forLines, []any{"ZREVRANGE", line, 0, 0}},
		{forLines, []any{"ZCOUNT", line, 0, 0}},
		{forNotices, []any{"PUBLISH", channel, ""}},
	}
}

// rights runs the probes, in one pipeline.
func (e *examiner) rights(ctx context.Context, c redis.UniversalClient) {
	key := e.prefix + "redlock-check-" + e.probe
	line := lineNaming(key).of(key)
	if line == "" {
		line = key // with such a prefix no lock has a line
	}
	pipe := c.Pipeline()
	probes := probesFor(key, line, "redlock:"+e.probe)
	var cmds []*redis.Cmd
	for _, p := range probes {
		cmd := redis.NewCmd(ctx, p.args...)
		cmds = append(cmds, cmd)
		_ = pipe.Process(ctx, cmd)
	}
	_, failure := pipe.Exec(ctx)
	if failure != nil && !isServerError(failure) && !errors.Is(failure, redis.Nil) {
		e.cannot("rights", "whether this user may do all that locks need", failure)
		return
	}
	for i, p := range probes {
		e.refused(p.need, fmt.Sprint(p.args[0]), cmds[i].Err())
	}
}

// refused notes a right that is missing, if that is what the error says.
func (e *examiner) refused(n need, what string, err error) {
	if err == nil || !isServerError(err) {
		return
	}
	switch text := err.Error(); {
	case strings.HasPrefix(text, "NOPERM") && !strings.Contains(text, "to run the") && strings.Contains(text, "key"):
		// Commands come before keys, so this one is allowed.
		e.masked = e.masked || n == forLocks
		if n == forLines && !e.masked && !e.lineMasked {
			e.lineMasked = true
			e.lacks = append(e.lacks, denial{n, "the keys {...}:line", oneLine(text)})
		}
	case strings.HasPrefix(text, "NOPERM"), strings.Contains(text, "unknown command"):
		e.lacks = append(e.lacks, denial{n, what, oneLine(text)})
	}
}

// subscribe tests the right to listen for releases, on a connection of its own.
func (e *examiner) subscribe(ctx context.Context, c redis.UniversalClient) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	confirmed := false
	err := (&redisWire{client: c}).listen(ctx, "redlock:"+e.probe, func() { confirmed = true; done() }, func(string) {})
	switch {
	case confirmed:
	case isServerError(err):
		e.refused(forNotices, "SUBSCRIBE", err)
	default:
		e.cannot("SUBSCRIBE", "whether waiters can be told of a release", err)
	}
}

// setup is what findings depend on besides the nodes.
type setup struct {
	ttl, nodeTimeout time.Duration
	quorum           int
	guard            time.Duration // for how long a restarted node is barred; 0: not at all
}

func (rl *Redlock) setup() setup {
	s := setup{ttl: rl.opts.TTL, nodeTimeout: rl.opts.nodeTimeout(rl.opts.TTL), quorum: rl.quorum}
	if rl.guard != nil {
		s.guard = rl.guard.period(&terms{ttl: rl.opts.TTL})
	}
	return s
}

// judge turns facts into findings, the worst first.
func judge(all []facts, s setup) []Finding {
	found := []Finding{}
	add := func(node string, severity Severity, code, message, advice string) {
		found = append(found, Finding{Node: node, Severity: severity, Code: code, Message: message, Advice: advice})
	}
	for _, f := range all {
		judgeNode(f, s, func(severity Severity, code, message, advice string) {
			add(f.Node, severity, code, message, advice)
		})
	}
	judgeTwins(all, add)
	judgeAges(all, s, add)
	judgeClocks(all, add)
	judgeNumber(all, s, add)
	slices.SortStableFunc(found, func(a, b Finding) int { return cmp.Compare(b.Severity, a.Severity) })
	return found
}

// judgeNode looks at a node by itself.
func judgeNode(f facts, s setup, add func(severity Severity, code, message, advice string)) {
	switch {
	case !f.Reachable:
		add(SeverityWarning, "unreachable", fmt.Sprintf("cannot be reached: %v", f.Err),
			"bring the node back, or mend the way to it; until then one failure fewer is tolerated")
		return
	case f.Err != nil:
		severity := SeverityWarning
		if incurable(f.Err) {
			severity = SeverityCritical
		}
		add(severity, "refused", fmt.Sprintf("the server answers, but does not serve us: %v", f.Err),
			"mend what the error says: password, user, or a server that is still loading")
		return
	case f.many:
		add(SeverityWarning, "many-servers", "a cluster or ring client: several servers that count as one node; "+
			"a failover among them may lose locks, and their settings, clocks and our rights there cannot be checked from here",
			"use one independent master per node, or check each server with a client of its own")
		return
	}

	switch f.Role {
	case "slave":
		add(SeverityCritical, "replica", "this is a replica: it grants nothing", "use its master, or promote it; a quorum needs independent masters")
	case "sentinel":
		add(SeverityCritical, "sentinel", "this is a Sentinel: it holds no keys", "use a failover client, which asks it for the master")
	}
	if f.Mode == "cluster" {
		add(SeverityCritical, "cluster-node", "the node runs in cluster mode: it answers MOVED for most keys",
			"use a server with cluster-enabled no")
	}
	if f.Role == "master" && f.Replicas > 0 {
		add(SeverityWarning, "replicas", fmt.Sprintf("%s attached: one that is promoted may lack the latest locks, and grant them again", plural(f.Replicas, "replica")),
			"do not promote a replica within the longest TTL of a failure, or run the node without automatic failover")
	}
	judgePersistence(f, s, add)
	if f.MaxMemoryPolicy != "" && f.MaxMemoryPolicy != "noeviction" {
		if f.MaxMemory > 0 {
			add(SeverityCritical, "eviction", fmt.Sprintf("maxmemory-policy %s with maxmemory %d: the server throws away locks when it is full", f.MaxMemoryPolicy, f.MaxMemory),
				"set maxmemory-policy noeviction")
		} else {
			add(SeverityWarning, "eviction", fmt.Sprintf("maxmemory-policy %s would throw away locks; only the missing maxmemory prevents it", f.MaxMemoryPolicy),
				"set maxmemory-policy noeviction")
		}
	}
	switch {
	case f.Latency >= s.nodeTimeout:
		add(SeverityCritical, "slow", fmt.Sprintf("the quickest answer took %v, and NodeTimeout is %v: the node never votes in time", rounded(f.Latency), s.nodeTimeout),
			"use nearer nodes, or a longer TTL or NodeTimeout")
	case f.Latency >= s.nodeTimeout/2:
		add(SeverityWarning, "slow", fmt.Sprintf("the quickest answer took %v of the NodeTimeout of %v", rounded(f.Latency), s.nodeTimeout),
			"use nearer nodes, or a longer TTL or NodeTimeout")
	}
	if outdated(f.Version) {
		add(SeverityWarning, "version", f.Version+" is older than Redis 6.2, which is the oldest that is supported", "upgrade the server")
	}
	judgeRights(f, add)
	for _, u := range f.unread {
		add(SeverityInfo, "unread", fmt.Sprintf("%s cannot be read (%s), so it is not known %s", u.what, u.err, u.means),
			"look it up in the server's configuration, or check as a user who may read it")
	}
	if f.cut {
		add(SeverityWarning, "incomplete", "time was over before the node had answered all questions", "check again, with more time")
	}
}

func judgePersistence(f facts, s setup, add func(severity Severity, code, message, advice string)) {
	// What a restart forgets is only as bad as nobody noticing it.
	severity, advice := SeverityWarning, fmt.Sprintf(
		"set appendonly yes and appendfsync always, or keep a crashed node down for the longest TTL in use (here at least %v)", s.ttl)
	if s.guard > 0 {
		severity, advice = SeverityInfo, fmt.Sprintf("nothing, as long as no client uses a TTL above the restart guard of %v", s.guard)
	}
	switch {
	case f.AppendOnly == "no":
		add(severity, "persistence", "appendonly no: a restart forgets the locks that the node granted", advice)
	case f.AppendOnly == "yes" && f.AppendFsync == "everysec":
		add(severity, "persistence", "appendfsync everysec: a crash of the machine forgets the locks of about the last second", advice)
	case f.AppendOnly == "yes" && f.AppendFsync == "no":
		add(severity, "persistence", "appendfsync no: a crash of the machine forgets the locks that the system had not written yet, some 30s as a rule", advice)
	}
}

func judgeRights(f facts, add func(severity Severity, code, message, advice string)) {
	of := make(map[need][]string)
	said := make(map[need]string)
	for _, d := range f.lacks {
		of[d.need], said[d.need] = append(of[d.need], d.what), d.err
	}
	for _, r := range []struct {
		need     need
		severity Severity
		code     string
		means    string
	}{
		{forLocks, SeverityCritical, "rights", "locks cannot be acquired, extended or released on this node"},
		{forLines, SeverityWarning, "rights-line", "waiters poll, in no order"},
		{forNotices, SeverityWarning, "rights-notify", "waiters find a release by timers, some time later"},
	} {
		if what := slices.Compact(of[r.need]); len(what) > 0 {
			add(r.severity, r.code, fmt.Sprintf("this user lacks %s (%s): %s", strings.Join(what, ", "), said[r.need], r.means), "grant it to the user by ACL SETUSER")
		}
	}
	if f.masked {
		add(SeverityInfo, "rights-keys", "this user may not touch every key, so it is not known whether it may touch those of your locks",
			"see that the user's key patterns cover each lock's key and its line, {key}:line")
	}
}

// judgeTwins finds servers that were given twice.
func judgeTwins(all []facts, add func(node string, severity Severity, code, message, advice string)) {
	first := make(map[string]string)
	for _, f := range all {
		if f.RunID == "" {
			continue
		}
		if twin, ok := first[f.RunID]; ok {
			add(f.Node, SeverityCritical, "same-server", fmt.Sprintf("the same server as %s (run id %s): it votes twice, and two lost votes are one failure", twin, f.RunID),
				"give each server once; a database or a second name does not make another node")
			continue
		}
		first[f.RunID] = f.Node
	}
}

// judgeAges finds nodes that were started so lately that they may have forgotten locks.
func judgeAges(all []facts, s setup, add func(node string, severity Severity, code, message, advice string)) {
	limit := s.ttl
	if s.guard > 0 {
		limit = s.guard
	}
	left := func(f facts) time.Duration { return limit - (f.Uptime - time.Second) } // INFO is up to a second ahead
	young := func(f facts) bool { return f.aged && left(f) > 0 }
	everybody := !slices.ContainsFunc(all, func(f facts) bool { return !young(f) })
	for _, f := range all {
		switch {
		case !young(f):
		case everybody:
			add(f.Node, SeverityInfo, "young", fmt.Sprintf("started %v ago, as all nodes were lately: taken for a first start, with nothing to forget", f.Uptime),
				"nothing, if it was one")
		case s.guard > 0:
			add(f.Node, SeverityInfo, "young", fmt.Sprintf("started %v ago: the restart guard bars its grants for %v more", f.Uptime, left(f)),
				"restart no other node before that")
		case f.AppendOnly == "yes" && f.AppendFsync == "always":
		default:
			add(f.Node, SeverityWarning, "young", fmt.Sprintf("started %v ago, less than the TTL of %v: it may have forgotten locks that are still held", f.Uptime, limit),
				"keep a restarted node down for the longest TTL, and restart one node at a time")
		}
	}
}

// judgeClocks compares the nodes' clocks with each other and with ours.
func judgeClocks(all []facts, add func(node string, severity Severity, code, message, advice string)) {
	var early, late *facts
	for i := range all {
		f := &all[i]
		if !f.timed {
			continue
		}
		if early == nil || f.ClockOffset+f.ClockMargin < early.ClockOffset+early.ClockMargin {
			early = f
		}
		if late == nil || f.ClockOffset-f.ClockMargin > late.ClockOffset-late.ClockMargin {
			late = f
		}
		if off := f.ClockOffset; max(off, -off)-f.ClockMargin > clockPatience {
			add(f.Node, SeverityInfo, "clock-local", fmt.Sprintf("its clock differs from this machine's by %v; locks do not depend on that", rounded(off)),
				"synchronize the clocks, of this machine too, so that logs and times can be compared")
		}
	}
	if early == nil {
		return
	}
	if apart := (late.ClockOffset - late.ClockMargin) - (early.ClockOffset + early.ClockMargin); apart > clockPatience {
		add("", SeverityWarning, "clocks-apart", fmt.Sprintf("the clock of %s is %v ahead of that of %s: fencing tokens may lose their order when counters are lost, and times in lines are off",
			late.Node, rounded(late.ClockOffset-early.ClockOffset), early.Node), "synchronize the nodes' clocks")
	}
}

// judgeNumber looks at what the set tolerates.
func judgeNumber(all []facts, s setup, add func(node string, severity Severity, code, message, advice string)) {
	serving := 0
	for _, f := range all {
		if f.Err == nil {
			serving++
		}
	}
	if serving < s.quorum {
		add("", SeverityCritical, "no-quorum", fmt.Sprintf("%d of %d nodes serve us, and %d are needed: no lock can be acquired or extended", serving, len(all), s.quorum),
			"bring nodes back before anything else; do not point clients at other nodes")
	}
	switch n := len(all); {
	case n == 1:
		add("", SeverityInfo, "single-node", "there is one node, so its failure is the failure of all locks", "use three or five independent nodes if that is not enough")
	case n%2 == 0:
		add("", SeverityInfo, "even-number", fmt.Sprintf("%d nodes tolerate %s, no more than %d nodes do", n, plural(n-s.quorum, "failure"), n-1), "use an odd number of nodes")
	}
}

// outdated reports a Redis below 6.2; what cannot be read is none.
func outdated(version string) bool {
	number, ok := strings.CutPrefix(version, "redis ")
	if !ok {
		return false
	}
	parts := strings.SplitN(number, ".", 3)
	major, err := strconv.Atoi(parts[0])
	if err != nil || len(parts) < 2 {
		return false
	}
	minor, err := strconv.Atoi(parts[1])
	return err == nil && (major < 6 || major == 6 && minor < 2)
}

func plural(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func rounded(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }
