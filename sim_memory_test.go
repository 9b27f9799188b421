package redlock

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/fakenode"
	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/longtest"
	"github.com/quorumlock/redlock/internal/protocol"
)

// How simulated servers lose what they know, and what they tell of themselves.

// losesAt is when a fault takes a node's keys away; 0: it does not.
func (f simFault) losesAt() int64 {
	switch f.Kind {
	case faultForget, faultSwap, faultPromote, faultFlush:
		return max(int64(f.At), 1)
	case faultResync:
		return max(int64(f.At+f.For), 1)
	default:
		return 0
	}
}

// drawLosses adds losses that are no restarts to some plans. It draws from a source of its
// own, so that what a seed had before it still has.
func (p *simPlan) drawLosses(steady int) {
	r := rand.New(rand.NewPCG(p.Seed, 0x105e))
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	back := slices.ContainsFunc(p.Faults, func(f simFault) bool { return f.Kind == faultBack }) // then clocks keep the order of fences
	if p.Strict || p.RestartGuard < 0 || len(p.Nodes) == 1 || back || r.IntN(2) > 0 {
		return
	}
	kinds := []string{faultFlush, faultPromote, faultResync}
	for range 1 + r.IntN(4) {
		f := simFault{Kind: kinds[r.IntN(3)], Node: r.IntN(len(p.Nodes)), At: in(0, p.Until), For: in(0, p.TTL/4)}
		f.For += noticed[f.Kind]
		if f.Node != steady {
			p.Faults = append(p.Faults, f)
		}
	}
	if r.IntN(2) > 0 {
		return
	}
	// Many at a time, or whoever holds the lock still has a majority.
	at, kind := in(0, p.Until), kinds[r.IntN(3)]
	for i := range p.Nodes {
		if i != steady && r.IntN(4) > 0 {
			p.Faults = append(p.Faults, simFault{Kind: kind, Node: i, At: at + in(0, p.TTL/4), For: in(0, p.TTL/8) + noticed[kind]})
		}
	}
}

// noticed is how long a loss must take that is noticed by the role alone, which is not
// asked with each batch.
var noticed = map[string]time.Duration{faultResync: conn.RoleEvery * 102 / 100}

// generation counts the server's starts before t.
func (n *simNode) generation(t int64) (g int, since int64) {
	if !n.w.plan.Young {
		since = -int64(time.Hour)
	}
	for _, f := range n.w.plan.Faults {
		if f.Node != n.i || int64(f.At) > t {
			continue
		}
		switch f.Kind {
		case faultCrash, faultForget:
			g++
			since = max(since, int64(f.At+f.For))
		case faultSwap, faultPromote:
			g++
		}
	}
	return g, since
}

// replication counts the times that the server drew a replication id before t.
func (n *simNode) replication(t int64) (count int, former bool) {
	for _, f := range n.w.plan.Faults {
		if f.Node != n.i || f.losesAt() == 0 || f.losesAt() > t {
			continue
		}
		if f.Kind != faultFlush {
			count++
			former = f.Kind == faultPromote || f.Kind == faultResync
		}
	}
	return count, former
}

// simName is what a server calls its nth run, or replication.
type simName struct {
	what string
	nth  int
}

// called makes a name, once. The caller holds mu.
func (n *simNode) called(what string, nth int) string {
	name, known := n.calls[simName{what, nth}]
	if !known {
		name = fmt.Sprintf("%s-%d-of-node-%d", what, nth, n.i)
		n.calls[simName{what, nth}] = name
	}
	return name
}

// report is what the server that runs at t, which is now unless nobody looks at the mark,
// tells of itself. The caller holds mu.
func (n *simNode) sighting(t int64) protocol.ServerReport {
	gen, since := n.generation(t)
	replication, former := n.replication(t)
	s := protocol.ServerReport{
		Asked: true, RunID: n.called("run", gen), Role: "master", FormerID: "0",
		ReplID: n.called("replication", replication),
		Uptime: time.Duration((n.hand.at(t) - n.hand.at(since)) / int64(time.Second) * int64(time.Second)),
	}
	if former {
		s.FormerID = "another"
	}
	if n.w.plan.Native && n.i%3 > 0 {
		s.Native = protocol.DelIfEq
	}
	if _, follows := n.w.faultAt(t, -1, n.i, faultResync); follows {
		s.Role, s.ReplID = "slave", "another"
	}
	text, ok, err := n.store.Text(protocol.MarkKey)
	switch _, loading := n.w.faultAt(t, -1, n.i, faultErr); {
	case loading:
		s.Mark = protocol.UnreadMark(errSimLoading)
	case err != nil:
		s.Mark = protocol.UnreadMark(err)
	default:
		s.Mark = protocol.ReadMark(text, ok, time.Duration(n.store.Now()))
	}
	return s
}

const (
	errSimLoading  = fakenode.Error("LOADING Redis is loading the dataset in memory")
	errSimReadOnly = fakenode.Error("READONLY You can't write against a read only replica.")
)

// denies is what the server answers to all requests at t; nil: it does as it is asked.
func (n *simNode) denies(t int64) error {
	if _, loading := n.w.faultAt(t, -1, n.i, faultErr); loading {
		return errSimLoading
	}
	if _, follows := n.w.faultAt(t, -1, n.i, faultResync); follows {
		n.w.reached("a replica is asked", true)
		return errSimReadOnly
	}
	return nil
}

// ask is the answer to the full question, now.
func (n *simNode) ask() protocol.ServerReport {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.sighting(n.w.t())
}

// writeMark does what a guard wants, now, and tells what is there then.
func (n *simNode) writeMark(w *protocol.MarkWrite) protocol.ServerReport {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.sighting(n.w.t())
	if err := n.denies(n.w.t()); err != nil {
		s.Mark = protocol.UnreadMark(err)
		return s
	}
	argv := make([]string, 0, 4)
	for _, a := range w.Args() {
		argv = append(argv, fakenode.Argument(a))
	}
	s.Mark = protocol.ReadWritten(n.store.Mark(protocol.MarkKey, argv, &fakenode.Op{}))
	if n.marked == 0 {
		n.marked = n.w.t()
	}
	if w.IsRedated() && n.redated == 0 {
		n.redated = n.w.t()
		n.w.reached("a mark is given the present date", true)
	}
	return s
}

// barredUntil is until when a process may find too few of two nodes that vote. Both marks are
// of the first use, but one node's clock was set back, so for who comes then they are further
// apart than those of a first use, or one is from the future, was given another date, and is
// none of the first use any more. Then neither node votes before its mark is as old as the
// guard's period: with two nodes, none can be spared.
func (w *simWorld) barredUntil(proc int, keys ...string) (until int64) {
	if len(w.nodes) != 2 || w.plan.RestartGuard < 0 {
		return 0
	}
	period := w.plan.TTL
	if w.plan.RestartGuard > 0 {
		period = w.plan.RestartGuard
	}
	if slices.ContainsFunc(keys, func(key string) bool { return w.plan.Fenced[fakenode.Number(key[1:])] }) {
		period = max(period, guard.FencedGuard)
	}
	for i, n := range w.nodes {
		other := w.nodes[1-i]
		met := n.met[proc]
		by := n.setBackBetween(n.marked, met)
		age := max(0, met-n.marked-by)
		if by > 0 && (n.redated > 0 || met-other.marked-age > int64(guard.FirstUse*98/100)) {
			until = max(until, max(n.redated, other.marked)+int64(period*102/100))
		}
	}
	return until
}

// lose is the moment of a loss.
func (n *simNode) lose(kind string) {
	if kind == faultForget || kind == faultSwap || kind == faultPromote {
		n.disconnect()
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := n.store.Keys[protocol.MarkKey]
	clear(n.store.Keys)
	if kept != nil && (kind == faultPromote || kind == faultResync) {
		n.store.Keys[protocol.MarkKey] = kept
	}
	for _, hs := range n.holds {
		for _, h := range hs {
			if h.expire > 0 { // it counts as held for as long as it would have been
				h.expire, h.forgotten = 0, n.w.t()
			}
		}
	}
}

// disconnect is what a process that dies leaves behind.
func (n *simNode) disconnect() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.store.Scripts)
	for _, s := range n.subs {
		s.breakOff()
	}
	n.subs = nil
}

// drawFlows draws what happens to connections, from a source of its own.
func (p *simPlan) drawFlows() {
	r := rand.New(rand.NewPCG(p.Seed, 0xf10))
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	p.Users, p.Native = r.IntN(3) == 0, mix(p.Seed, 'd')%3 == 0
	if !p.Strict {
		p.NoID, p.NoKill = r.IntN(12) == 0, r.IntN(12) == 0
	}
	// What stops a process or a server keeps a kill from being in time.
	stops := slices.ContainsFunc(p.Faults, func(f simFault) bool { return f.Kind != faultWall })
	if p.Torn > 0 && r.IntN(2) == 0 && !(p.Strict && (stops || p.Users)) {
		p.TornFor = in(0, 2*p.TTL)
	}
	if r.IntN(3) > 0 {
		return
	}
	for range 1 + r.IntN(3) {
		f := simFault{Kind: faultMute, At: in(0, p.Until), Proc: r.IntN(len(p.Processes))}
		each := r.IntN(2) == 0
		for i := range p.Nodes {
			if f.Node = i; each || r.IntN(3) == 0 {
				p.Faults = append(p.Faults, f)
			}
		}
	}
}

// A fleet of a thousand processes: half of them have keys of their own, the others wait for
// one of five. Meanwhile a node hangs, another loses its keys, and a third one's connections
// go silent for one process.
func TestSimFleet(t *testing.T) {
	processes := 100
	if longtest.On() {
		processes = 1000
	}
	plan := &simPlan{
		Seed: 7, TTL: time.Second, NodeTimeout: 100 * time.Millisecond, Until: 30 * time.Second,
		Nodes: make([]simNodePlan, 5), Fenced: make([]bool, processes+5),
		Delay: 200 * time.Microsecond, Jitter: 200 * time.Microsecond,
		Faults: []simFault{
			{Kind: faultHang, Node: 1, At: 2 * time.Second, For: 2 * time.Second},
			{Kind: faultForget, Node: 3, At: 6 * time.Second, For: time.Second},
			{Kind: faultMute, Node: 2, Proc: 3, At: time.Second, For: 10 * time.Second},
		},
	}
	for i := range processes {
		key := i
		if i%2 == 0 {
			key = processes + i/2%5
		}
		plan.Processes = append(plan.Processes, simProcessPlan{Clients: []simClientPlan{{Key: key, Ops: 2}}})
	}
	res := simulate(t, plan, nil)
	require.Empty(t, res.bad)
	require.GreaterOrEqual(t, res.count.Grants, processes)
	t.Logf("%d processes: %+v", processes, res.count)
}

// Two names of one server.

// drawTwins has names lead to other nodes' servers for a while. It has randomness of its own, so that
// plans without it are what they were. Without a guard nobody looks at who answers.
func (p *simPlan) drawTwins() {
	r := rand.New(rand.NewPCG(p.Seed, 0x7417))
	nodes := len(p.Nodes)
	if r.IntN(12) > 0 || p.Strict || p.RestartGuard < 0 || nodes < 2 {
		return
	}
	f := simFault{Kind: faultTwin}
	each := r.IntN(2) == 0
	for range 1 + r.IntN(nodes) {
		f.Node = r.IntN(nodes)
		f.To = (f.Node + 1 + r.IntN(nodes-1)) % nodes
		f.At = time.Duration(r.Int64N(int64(p.Until))) * time.Duration(r.IntN(4)) / 3
		f.For = time.Duration(r.Int64N(int64(p.Until)))
		for f.Proc = range p.Processes {
			if each || r.IntN(2) == 0 {
				p.Faults = append(p.Faults, f)
			}
		}
	}
}

// led is the node whose server answers a process by this node's name now.
func (n *simNode) led(p *simProcess) *simNode {
	t := n.w.t()
	for _, f := range n.w.plan.Faults {
		if f.Kind == faultTwin && f.Node == n.i && f.Proc == p.i && t >= int64(f.At) && t < int64(f.At+f.For) {
			return n.w.nodes[f.To]
		}
	}
	return n
}
