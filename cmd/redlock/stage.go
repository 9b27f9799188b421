package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/cmd/redlock/internal/web"
	"github.com/quorumlock/redlock/redlocktest"
)

// pace is how fast the workers of a stage are.
type pace struct {
	work, idle span
	look       time.Duration // how often the nodes are looked at while somebody watches
}

type span struct{ min, max time.Duration }

// watchable is slow enough for people to follow.
var watchable = pace{
	work: span{1500 * time.Millisecond, 2500 * time.Millisecond},
	idle: span{time.Second, 3 * time.Second},
	look: 100 * time.Millisecond,
}

// stage is the demo for those who watch it in a browser: embedded nodes, workers who add to
// a counter under a lock on these nodes, and twins of theirs without a lock. It goes on until
// somebody ends it, and the faults are the viewers' to make.
type stage struct {
	pace
	ttl      time.Duration
	key      string
	quorum   int
	cluster  *redlocktest.Cluster
	addrs    []string
	observer *admin.Nodes
	hub      *web.Hub
	server   *web.Server
	counter  counter // under the lock
	control  counter // without it

	deeds sync.Mutex // one at a time; taken before mu

	mu        sync.Mutex
	props     []prop
	cast      []*actor
	line      []string // who waits, by name, as the nodes have it
	pauseNext bool     // whoever gets the lock next
}

// prop is what a node of the stage is to those who watch.
type prop struct {
	gone deed // kill, hang or isolate; empty while it is up
	// forgetful: its data was lost, and its grants do not count before mayVote, which is known
	// once a worker has written a new memory mark.
	forgetful bool
	mayVote   time.Time
	vote      redlock.Vote // on the latest lock; 0: none yet
	holder    string       // whose key it has, and until when
	until     time.Time
}

// useful tells whether the node can be reached and may vote. A key on any other is of no use to
// its holder.
func (p *prop) useful() bool { return p.gone == "" && !p.forgetful }

// newStage starts the nodes, and opens the page at the address, where nobody is answered yet.
// The caller runs the stage.
func newStage(workers int, ttl time.Duration, p pace, listen string) (*stage, error) {
	s := &stage{pace: p, ttl: ttl, key: "redlock-demo:" + randomHex(), hub: web.NewHub(), props: make([]prop, demoNodes), quorum: demoNodes/2 + 1}
	for i := range workers {
		s.cast = append(s.cast, &actor{stage: s, name: fmt.Sprintf("worker %d", i+1)})
	}
	var err error
	if s.server, err = web.Listen(listen, "demo", s.hub, s.do); err != nil {
		return nil, err
	}
	if s.cluster, s.addrs, err = startCluster(len(s.props)); err != nil {
		s.server.Close()
		return nil, err
	}
	s.cluster.Record(false) // or it would remember every command
	return s, nil
}

// run lets the workers loose, and serves the page, until ctx ends.
func (s *stage) run(ctx context.Context) error {
	defer s.cluster.Close()
	defer s.server.Close()
	observer, err := observe(s.addrs, s.ttl)
	if err != nil {
		return err
	}
	defer observer.Close()
	s.observer = observer // of whom show alone asks anything
	s.tell("", false, "%d workers take turns to add 1 to a counter. Each needs the lock for that, which is a key on %d of %d nodes.",
		len(s.cast), s.quorum, len(s.props))
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return s.server.Serve(running) })
	group.Go(func() error { s.show(running); return nil })
	for _, a := range s.cast {
		group.Go(func() error { return a.run(running) })
		group.Go(func() error { a.careless(running); return nil })
	}
	if err := group.Wait(); ctx.Err() == nil {
		return err
	}
	return nil // whoever could not go on at the end
}

// open connects, as soon as a majority of the nodes lets it: viewers may be quicker.
func (s *stage) open(ctx context.Context, owner string) (*redlock.Redlock, error) {
	for {
		rl, err := redlock.Open(ctx, s.addrs, &redlock.Options{TTL: s.ttl, Owner: owner})
		if err == nil || !errors.Is(err, redlock.ErrNoQuorum) || !sleep(ctx, 100*time.Millisecond) {
			return rl, err
		}
	}
}

func (s *stage) tell(tone string, aloud bool, format string, args ...any) {
	s.hub.Tell(web.News{Tone: tone, Aloud: aloud, Text: sentence(fmt.Sprintf(format, args...))})
}

// sentence begins with a capital.
func sentence(text string) string { return strings.ToUpper(text[:1]) + text[1:] }

const (
	good = "good"
	bad  = "bad"
	odd  = "odd"
)

// do carries out what a viewer asks for.
func (s *stage) do(r web.Request) error {
	s.deeds.Lock()
	defer s.deeds.Unlock()
	if r.Do == "pause" {
		s.pauseHolder()
		return nil
	}
	if r.Node < 0 || r.Node >= len(s.props) {
		return fmt.Errorf("there is no node %d", r.Node)
	}
	s.mu.Lock()
	gone := s.props[r.Node].gone
	s.mu.Unlock()
	node, name := s.cluster.Node(r.Node), nodeName(r.Node)
	var what deed
	switch deed(r.Do) {
	case kill, hang, isolate, flush:
		if gone != "" {
			return web.Refused(fmt.Sprintf("%s %s. Bring it back first.", sentence(name), awayBecause[gone]))
		}
		what = deed(r.Do)
	case bringBack:
		if gone == "" {
			return web.Refused(sentence(name) + " is there already.")
		}
		what = map[deed]deed{kill: restartEmpty, hang: resume, isolate: heal}[gone]
	default:
		return fmt.Errorf("there is no deed %q", r.Do)
	}
	what.do(node)
	s.befell(r.Node, what)
	return nil
}

var awayBecause = map[deed]string{kill: "is dead", hang: "hangs", isolate: "is cut off"}

// befell notes what happened to a node, and tells it.
func (s *stage) befell(i int, what deed) {
	s.mu.Lock()
	p := &s.props[i]
	switch what {
	case kill, hang, isolate:
		p.gone = what
	case restartEmpty, flush:
		p.gone, p.forgetful, p.mayVote = "", true, time.Time{}
	default:
		p.gone = ""
	}
	away := s.away()
	s.mu.Unlock()

	name, guarded := nodeName(i), leaseText(s.ttl)
	switch what {
	case kill:
		s.tell(bad, true, "%s is killed. It refuses connections, and forgets every key that it had.", name)
	case hang:
		s.tell(bad, true, "%s hangs. It takes what it is sent, and answers nothing.", name)
	case isolate:
		s.tell(bad, true, "%s is cut off. It runs, but nothing gets through to it or back.", name)
	case flush:
		s.tell(odd, true, "%s is flushed. It may have forgotten a lock, so it may not vote for %s.", name, guarded)
	case restartEmpty:
		s.tell(odd, true, "%s is back, without its keys. It may have forgotten a lock, so it may not vote for %s.", name, guarded)
	case resume:
		s.tell(good, true, "%s goes on, and works off what it was sent. It has kept its keys.", name)
	case heal:
		s.tell(good, true, "%s is connected again. It has kept its keys.", name)
	}
	if (what == kill || what == hang || what == isolate) && away == s.spare()+1 {
		s.tell(bad, true, "%d of %d nodes are away, so there is no majority. Nobody can get the lock until one is back. That is safe: nobody writes.", away, len(s.props))
	}
}

// away is how many nodes are; the caller holds mu.
func (s *stage) away() (n int) {
	for _, p := range s.props {
		if p.gone != "" {
			n++
		}
	}
	return n
}

// spare is how many nodes may be away.
func (s *stage) spare() int { return len(s.props) - s.quorum }

// pauseHolder stops whoever holds the lock, or gets it next, for two leases.
func (s *stage) pauseHolder() {
	s.mu.Lock()
	now := time.Now()
	for _, a := range s.cast {
		if a.role == holding && now.Before(a.until) {
			a.fallAsleep()
			s.mu.Unlock()
			a.tellPause()
			return
		}
	}
	s.pauseNext = true
	s.mu.Unlock()
	s.tell("", true, "nobody has the lock at this moment. Whoever gets it next will be paused.")
}

// pauseTime is long enough for the lease to end, and for others to go on.
func (s *stage) pauseTime() time.Duration { return 2 * s.ttl }

// show publishes what there is to see. It looks at nothing while nobody watches.
func (s *stage) show(ctx context.Context) {
	for ctx.Err() == nil {
		watched, arrival := s.hub.Watched()
		if !watched {
			select {
			case <-arrival:
			case <-ctx.Done():
			}
			continue
		}
		s.look(ctx)
		s.hub.Show(s.scene())
		sleep(ctx, s.pace.look)
	}
}

// look reads the nodes' memory, which no fault hides, and asks the nodes who waits in line.
func (s *stage) look(ctx context.Context) {
	status, err := s.observer.Inspect(ctx, s.key)
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.props {
		p, node := &s.props[i], s.cluster.Node(i)
		_, owner, _ := strings.Cut(node.Get(s.key), "@")
		until := now.Add(node.TTL(s.key))
		// A TTL is read in whole milliseconds; the lease has not moved for that.
		if owner != p.holder || until.Sub(p.until).Abs() > 50*time.Millisecond {
			p.holder, p.until = owner, until
		}
		if p.forgetful && p.gone == "" {
			s.remembering(i, now)
		}
	}
	if err != nil {
		return // the line is not known
	}
	s.line = s.line[:0]
	for _, w := range status.Waiters {
		s.line = append(s.line, w.Owner)
	}
}

// markKey is that of the nodes' memory marks.
const markKey = "redlock:memory"

// remembering looks whether a node that has forgotten locks may vote again; the caller holds mu.
func (s *stage) remembering(i int, now time.Time) {
	p := &s.props[i]
	switch {
	case p.mayVote.IsZero() && s.cluster.Node(i).Get(markKey) != "":
		p.mayVote = now.Add(s.ttl)
	case !p.mayVote.IsZero() && now.After(p.mayVote):
		p.forgetful = false
		s.tell(good, true, "%s may vote again: every lease that it may have forgotten is over.", nodeName(i))
	}
}

// voted notes the votes on a lock; the caller holds mu.
func (s *stage) voted(outcomes []redlock.Outcome) {
	for i, o := range outcomes {
		s.props[i].vote = o.Vote
	}
}

// scene is a state of the page. Times are by the hub's clock.
type scene struct {
	Quorum  int           `json:"quorum"`
	TTL     int64         `json:"ttl"`
	Verdict verdict       `json:"verdict"`
	Nodes   []sceneNode   `json:"nodes"`
	Workers []sceneWorker `json:"workers"`
	With    sceneCounter  `json:"with"`
	Without sceneCounter  `json:"without"`
}

type verdict struct {
	Tone string `json:"tone"`
	Text string `json:"text"`
}

type sceneNode struct {
	State   string `json:"state"` // "up", "barred", "kill", "hang", "cut off"
	Words   string `json:"words"`
	MayVote int64  `json:"mayVote"` // not before, if it is barred; 0: not known yet
	Vote    string `json:"vote"`    // on the lock that is held
	Holder  int    `json:"holder"`  // number of the worker; 0: none
	Until   int64  `json:"until"`   // of the holder's key
}

type sceneWorker struct {
	State string `json:"state"` // "idle", "waiting", "holding", "paused", "late"
	Place int    `json:"place"` // in line, from 1; 0: none
	Since int64  `json:"since"`
	Until int64  `json:"until"` // end of its lease, while it holds the lock
	Wakes int64  `json:"wakes"`
}

type sceneCounter struct {
	Made  int64 `json:"made"`
	Value int64 `json:"value"`
	Lost  int64 `json:"lost"`
}

func sceneOf(c *counter) sceneCounter {
	made, value := c.read()
	return sceneCounter{made, value, made - value}
}

func (s *stage) scene() scene {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	v := scene{Quorum: s.quorum, TTL: s.ttl.Milliseconds(), With: sceneOf(&s.counter), Without: sceneOf(&s.control)}
	var holder *actor
	for _, a := range s.cast {
		w := sceneWorker{State: a.role.String(), Since: s.hub.At(a.since)}
		w.Place = 1 + slices.Index(s.line, a.name)
		switch {
		case a.role == inLine:
		case a.role == resting:
			w.Place = 0
		default:
			w.Place, w.Until, w.Wakes = 0, s.hub.At(a.until), s.hub.At(a.wakes)
			if now.Before(a.until) {
				holder = a
			} else if a.role == paused {
				w.State = "late"
			}
		}
		v.Workers = append(v.Workers, w)
	}
	have := 0
	for _, p := range s.props {
		n := sceneNode{State: cmp.Or(string(p.gone), "up"), Words: cmp.Or(stateWords[p.gone], "up")}
		if p.forgetful && p.gone == "" {
			n.State, n.MayVote, n.Words = "barred", s.hub.At(p.mayVote), "no vote yet"
		}
		if p.holder != "" {
			n.Holder, n.Until = s.number(p.holder), s.hub.At(p.until)
		}
		if holder != nil {
			n.Vote = p.vote.String()
			if p.holder == holder.name && p.useful() {
				have++
			}
		}
		v.Nodes = append(v.Nodes, n)
	}
	v.Verdict = s.verdict(holder, have)
	return v
}

var stateWords = map[deed]string{kill: "dead", hang: "hangs", isolate: "cut off"}

// number is the worker's, from 1.
func (s *stage) number(name string) int {
	return 1 + slices.IndexFunc(s.cast, func(a *actor) bool { return a.name == name })
}

// verdict says in one sentence how things are; the caller holds mu.
func (s *stage) verdict(holder *actor, have int) verdict {
	useful := 0
	for _, p := range s.props {
		if p.useful() {
			useful++
		}
	}
	switch {
	case holder != nil && holder.role == paused:
		return verdict{odd, fmt.Sprintf("%s sleeps with the lock in its hand. The others wait until its lease is over.", sentence(holder.name))}
	case holder != nil && useful < s.quorum:
		return verdict{odd, fmt.Sprintf("%s still has the lock, but only %d of %d nodes can renew it, and %d are needed.", sentence(holder.name), useful, len(s.props), s.quorum)}
	case holder != nil:
		return verdict{good, fmt.Sprintf("%s has the lock: %d of %d nodes hold its key, and %d are enough.", sentence(holder.name), have, len(s.props), s.quorum)}
	case useful < s.quorum:
		return verdict{bad, fmt.Sprintf("No majority: %d of %d nodes can vote, and %d are needed. Nobody gets the lock, so nobody writes.", useful, len(s.props), s.quorum)}
	default:
		return verdict{"", "Nobody has the lock at this moment."}
	}
}

func nodeName(i int) string { return fmt.Sprintf("node %d", i+1) }

// nodeNames lists nodes in words.
func nodeNames(nodes []int) string {
	switch len(nodes) {
	case 0:
		return "no node"
	case 1:
		return nodeName(nodes[0])
	}
	var b strings.Builder
	b.WriteString("nodes ")
	for i, n := range nodes {
		switch i {
		case 0:
		case len(nodes) - 1:
			b.WriteString(" and ")
		default:
			b.WriteString(", ")
		}
		fmt.Fprint(&b, n+1)
	}
	return b.String()
}

// leaseText is a time in words, as short as it can be read.
func leaseText(d time.Duration) string {
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// votesText says how the nodes voted, those that granted first.
func votesText(outcomes []redlock.Outcome) string {
	of := make(map[string][]int)
	for i, o := range outcomes {
		switch o.Vote {
		case redlock.VoteGranted:
			of["yes"] = append(of["yes"], i)
		case redlock.VoteBarred:
			of["barred"] = append(of["barred"], i)
		case redlock.VoteRefused:
			of["no"] = append(of["no"], i)
		default:
			of["silent"] = append(of["silent"], i)
		}
	}
	does := func(nodes []int, one, many string) string {
		if len(nodes) == 1 {
			return nodeNames(nodes) + " " + one
		}
		return nodeNames(nodes) + " " + many
	}
	parts := []string{does(of["yes"], "said yes", "said yes")}
	if n := of["silent"]; n != nil {
		parts = append(parts, does(n, "did not answer", "did not answer"))
	}
	if n := of["barred"]; n != nil {
		parts = append(parts, does(n, "may not vote yet", "may not vote yet"))
	}
	if n := of["no"]; n != nil {
		parts = append(parts, does(n, "said no", "said no"))
	}
	return strings.Join(parts, ", ")
}

// lossText says why a lock was lost.
func lossText(err error) string {
	if errors.Is(err, redlock.ErrExpired) {
		return "its lease is over"
	}
	return "a majority of the nodes has its key no longer"
}
