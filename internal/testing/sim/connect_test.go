package sim_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
)

// What must hold of connections: those that it takes to reach a node count neither as that node's silence nor against
// the caller, and a node that says no, or is slow, is not flooded with them.

// simConnects is what processes did to reach nodes.
type simConnects struct {
	mu          sync.Mutex
	begun, made map[simWay][]int64   // connections, and when; those that were begun came to the node's address
	open        map[simWay]int       // now
	written     map[simWritten]int64 // when a request was written last
	asked       map[int][]int64      // by process: calls
}

// simWay is one from a process to a node.
type simWay struct{ proc, node int }

// simWritten is a kind of requests of a process about a key, to a node.
type simWritten struct {
	simWay
	key string
	op  protocol.Op
}

// note adds a time to a list of the way.
func (c *simConnects) note(list *map[simWay][]int64, p *simProcess, n *simNode, t int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *list == nil {
		*list = make(map[simWay][]int64)
	}
	way := simWay{p.i, n.i}
	(*list)[way] = append((*list)[way], t)
}

// opened notes that a connection is there.
func (c *simConnects) opened(f *simFlow) {
	p, w := f.d.p, f.d.p.w
	c.note(&c.made, p, f.d.n, w.t())
	c.mu.Lock()
	if c.open == nil {
		c.open = make(map[simWay]int)
	}
	way := simWay{p.i, f.d.n.i}
	if f.links.isOpen = !f.isClosed(); f.links.isOpen {
		c.open[way]++
	}
	many := c.open[way]
	c.mu.Unlock()
	w.checkPiled(way, many)
}

// Of connections that are open to a node a process has so many at most: as many as batches are out on a long link, one that
// is tried meanwhile, and those that are overdue.
const mostOpen = 2 * lane.MostOut

func (w *simWorld) checkPiled(way simWay, many int) {
	if many > mostOpen {
		w.violated("connect: process %d has %d connections to node %d open", way.proc, many, way.node)
	}
}

// closed notes that one is not any more.
func (c *simConnects) closed(f *simFlow) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f.links.isOpen {
		f.links.isOpen = false
		c.open[simWay{f.d.p.i, f.d.n.i}]--
	}
}

// wrote notes that requests are written to a connection.
func (c *simConnects) wrote(p *simProcess, n *simNode, batch []*lane.Call) {
	if p.w.plan.Links == nil {
		return
	}
	t := p.w.t()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.written == nil {
		c.written = make(map[simWritten]int64)
	}
	for _, call := range batch {
		c.written[simWritten{simWay{p.i, n.i}, call.Req.Key, call.Req.Op}] = t
	}
}

// wroteSince reports whether a request was written since a time.
func (c *simConnects) wroteSince(p *simProcess, node int, key string, op protocol.Op, t int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, ever := c.written[simWritten{simWay{p.i, node}, key, op}]
	return ever && at >= t
}

// idles is one use of a lock by a program that does nothing else for long.
func (c *simClient) idles(ctx context.Context, op int) {
	w, p := c.w, c.p
	every := c.plan.Every
	if op == 0 {
		c.pause(c.within(op, 0, min(every, time.Second)))
	} else {
		c.pause(every*9/10 + c.within(op, 0, every/5))
	}
	if ctx.Err() != nil || p.closedAt() != never {
		return
	}
	m := p.rl.Mutex(c.key())
	inside.Allow(m)
	c.began = w.t()
	w.conns.asks(p, c.began)
	lock, err := m.TryAcquire(ctx)
	w.took(p, "TryAcquire", c.began, attemptLimit(m)+w.plan.connecting())
	if !w.checkAnswered(lock, err) {
		return
	}
	c.checkReached("TryAcquire", protocol.OpAcquire, c.began, err)
	if err != nil {
		c.failed(ctx, err)
		return
	}
	w.reached("a grant to a program that was idle for a minute", every > 70*time.Second)
	g := w.granted(p, c.i, c.key(), c.began, lock)
	if g == nil {
		return
	}
	if g.renewed = c.plan.Renews; g.renewed {
		lock.Renew()
	}
	c.pause(c.plan.Hold)
	if c.plan.Hold > 0 && !g.renewed {
		from := w.t()
		err := inside.Extend(lock, context.Background(), w.plan.TTL)
		w.took(p, "Extend", from, w.plan.NodeTimeout+w.plan.connecting())
		w.checkExtend(g, err)
		c.checkReached("Extend", protocol.OpExtend, from, err)
	}
	c.release(g, op)
	c.checkReached("Release", protocol.OpRelease, g.relCalled, g.relErr)
}

// asks notes a call.
func (c *simConnects) asks(p *simProcess, t int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asked == nil {
		c.asked = make(map[int][]int64)
	}
	c.asked[p.i] = append(c.asked[p.i], t)
}

// connecting is how long a call may wait for connections, before its node timeout begins.
func (p *simPlan) connecting() time.Duration {
	return min(max(min(time.Second, p.TTL/4), 5*p.NodeTimeout), p.TTL/2)
}

// simRecovers is how long after a fault a node counts as out of reach.
const simRecovers = 10 * time.Second

// reachCost is how long go-redis would take to be connected to a node, beside an address of its name that is dead: the
// trips, its greeting and that of ours, and the handshakes of all that begin with it.
func (w *simWorld) reachCost(node int, t int64, crowd int) (cost time.Duration) {
	for i := range w.plan.Faults {
		f := &w.plan.Faults[i]
		if f.Node != node || t < int64(f.At) || t >= int64(f.At+f.For) {
			continue
		}
		switch f.Kind {
		case linkLookup, linkSentinel:
			cost += f.By
		case linkDead:
			cost += usersDialTimeout / 2
		case linkDead6:
			cost += beside
		}
	}
	l := w.plan.Links
	return cost + time.Duration(2+l.TLS)*w.longestTrip(t) + time.Duration(crowd)*l.Handshake
}

// longestTrip is how long a message and its answer take at most.
func (w *simWorld) longestTrip(t int64) time.Duration {
	d := w.plan.Delay + w.plan.Jitter
	if t < int64(w.plan.Until) {
		d += w.plan.Links.Late
	}
	return 2 * d
}

// isLate reports whether answers come later than they are waited for.
func (w *simWorld) isLate(t int64) bool { return w.longestTrip(t) > w.plan.NodeTimeout*9/10 }

// isUp reports whether nothing is wrong with a node, nor was shortly before, but for what it costs to reach.
func (w *simWorld) isUp(node int, from, to int64) bool {
	return !slices.ContainsFunc(w.plan.Faults, func(f simFault) bool {
		switch f.Kind {
		case linkLookup, linkDead, linkDead6, linkSentinel, linkMoved:
			return false
		}
		return f.Node == node && int64(f.At) <= to && int64(f.At+f.For+simRecovers) > from
	})
}

// within is how many nodes can be reached in the time that a call may take for that.
func (w *simWorld) withinReach(from, to int64) (n int) {
	if w.isLate(from - int64(simRecovers)) {
		return 0 // no answer is in time
	}
	for i := range w.nodes {
		crowd := 1
		if from < int64(simRecovers) { // all start
			crowd = len(w.procs)
		}
		if w.isUp(i, from, to) && w.reachCost(i, from, crowd) <= w.plan.connecting() {
			n++
		}
	}
	return n
}

// checkReached looks at the error of a call on a lock that no other wants.
func (c *simClient) checkReached(what string, op protocol.Op, from int64, err error) {
	w, p := c.w, c.p
	if err == nil || w.dead(p) || len(p.asleep) > 0 {
		return
	}
	if n := w.withinReach(from, w.t()); n >= p.quorum() && !errors.Is(err, redlock.ErrHeld) {
		w.violated("connect: %s of client %d.%d failed, on a lock that no other wants, with %d of %d nodes to be reached: %v", what, p.i, c.i, n, len(w.nodes), err)
	}
	if q := (*redlock.QuorumError)(nil); errors.As(err, &q) {
		for i, o := range q.Outcomes {
			if o.Vote == redlock.VoteUnknown && !w.conns.wroteSince(p, i, c.key(), op, from) {
				w.violated("connect: %s of client %d.%d may be known to node %d, it is said, and was not sent there: %v", what, p.i, c.i, i, err)
			}
		}
	}
}

// checkConnects looks at all connections of the run.
func (w *simWorld) checkConnects() {
	if w.plan.Links == nil {
		return
	}
	for _, p := range w.procs {
		for _, n := range w.nodes {
			w.checkFlood(simWay{p.i, n.i})
			w.checkFound(simWay{p.i, n.i})
		}
	}
}

// Of connections to a node that says no, or is late, a process begins so many in a second at most, after the first.
const mostDials = 2

// checkFlood counts connections that were begun within a second.
func (w *simWorld) checkFlood(way simWay) {
	dials := w.conns.begun[way]
	for i := mostDials; i < len(dials); i++ {
		if dials[i]-dials[i-mostDials] < int64(time.Second) && w.saysNo(way, dials[i-mostDials], dials[i]) {
			w.violated("connect: process %d began %d connections to node %d within a second, until %.3f ms, although it says no or is late", way.proc, mostDials+1, way.node, ms(dials[i]))
			return
		}
	}
}

// saysNo reports whether a node is not to be had by more connections: for a second or more something was wrong with
// it, or until shortly before, or its answers take longer than is waited for.
func (w *simWorld) saysNo(way simWay, from, to int64) bool {
	if from >= int64(w.plan.startOf(way.proc)+time.Second) && w.isLate(from) {
		return true
	}
	return slices.ContainsFunc(w.plan.Faults, func(f simFault) bool {
		switch f.Kind {
		case linkLookup, linkDead, linkDead6, linkSentinel, linkMoved:
			return false
		}
		after := time.Duration(0)
		if f.Kind == faultHang {
			after = simRecovers
		}
		return f.Node == way.node && from >= int64(f.At+time.Second) && to < int64(f.At+f.For+after)
	})
}

// mostAge is how old a connection may be that is used: a minute, a fifth more or less, and what a successor takes.
const mostAge = time.Minute*6/5 + conn.LastRedial

// checkMoved looks at a connection over which requests are sent. Nothing but its age tells that a name leads elsewhere,
// which here is the same server, since only the way matters.
func (f *simFlow) checkMoved() {
	w := f.d.p.w
	if w.plan.Links == nil {
		return
	}
	for _, m := range w.plan.Faults {
		if t := w.t(); m.Kind == linkMoved && m.Node == f.d.n.i && f.born < int64(m.At) && t > int64(m.At+mostAge) {
			w.violated("connect: process %d asks node %d over a connection to where its name led until %.3f ms", f.d.p.i, f.d.n.i, ms(int64(m.At)))
		}
	}
}

// startOf is when a process begins.
func (p *simPlan) startOf(proc int) time.Duration {
	if proc < len(p.Processes) {
		return p.Processes[proc].Start
	}
	return 0
}

// checkFound: a node to which go-redis would be connected in some time is connected to in twice that, and two seconds,
// from the first call on. That is looked at where its name, or the Dialer, is the difficulty.
func (w *simWorld) checkFound(way simWay) {
	for _, f := range w.plan.Faults {
		from := f.At
		switch f.Kind {
		case linkLookup, linkDead, linkDead6, linkSentinel:
		case linkHang:
			from += f.For + usersDialTimeout // one that was begun before
		default:
			continue
		}
		asked := w.conns.asked[way.proc]
		i, _ := slices.BinarySearch(asked, int64(from))
		if f.Node != way.node || i == len(asked) {
			continue
		}
		cost := w.reachCost(way.node, asked[i], len(w.procs))
		until := asked[i] + int64(2*cost+2*time.Second)
		made := w.conns.made[way]
		if until > asked[len(asked)-1] || slices.ContainsFunc(made, func(t int64) bool { return t <= until }) {
			continue
		}
		w.violated("connect: process %d has no connection to node %d, to which others would have one in %v, from %.3f to %.3f ms", way.proc, way.node, cost, ms(asked[i]), ms(until))
	}
}
