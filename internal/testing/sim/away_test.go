package sim_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/protocol"
)

// Plans in which a minority of the nodes is away again and again while the others go on, so that nodes are
// missing when a lock changes hands, when it is to be kept for a time, and shortly before Close; and leases
// last for minutes, so that what such a node keeps, or gets when it is back, shows.

const simAway = "away"

// simAwayPause bounds how long the clients of such a plan do nothing, and how long they hold a lock.
const simAwayPause = 100 * time.Millisecond

// drawAwayAgain makes such a plan.
func (p *simPlan) drawAwayAgain(r *rand.Rand) {
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	p.Regime = simAway
	p.TTL = in(time.Minute, 2*time.Minute).Truncate(time.Millisecond)
	p.NodeTimeout = in(20*time.Millisecond, 100*time.Millisecond)
	p.Until = in(3*time.Second, 6*time.Second)
	p.Fenced = nil
	for range 1 + r.IntN(3) {
		p.Fenced = append(p.Fenced, r.IntN(4) == 0)
	}
	for range 2 + r.IntN(2) {
		var clients []simClientPlan
		for range 1 + r.IntN(2) {
			clients = append(clients, simClientPlan{Key: r.IntN(len(p.Fenced)), Ops: 20 + r.IntN(20)})
		}
		p.Processes = append(p.Processes, simProcessPlan{PPM: r.Int64N(9900) - 4950, Clients: clients})
	}
	use, longest := r.IntN(4), 2*time.Second
	kinds := []string{faultErr, faultErr, faultCrash, faultHang}
	switch use {
	case 0:
		p.HandOvers = true
	case 1: // a node that is late by more than a release may take
		p.MinHold, p.NodeTimeout = in(leastTTL, 4*time.Second), p.NodeTimeout/2
		p.Until, longest = 2*p.Until, 4*time.Second
		kinds = []string{faultErr, faultCrash, faultHang, faultHang}
	case 3: // a node that was away gives other numbers than the rest
		p.Fenced = make([]bool, len(p.Fenced))
		for range p.Fenced {
			p.Kinds = append(p.Kinds, 2+r.IntN(3))
		}
	}
	n := len(p.Nodes)
	for _, node := range r.Perm(n)[:1+r.IntN(n-quorumOf(n))] {
		for at := in(0, time.Second); at < p.Until; at += in(0, time.Second) {
			f := simFault{Kind: kinds[r.IntN(4)], Node: node, At: at, For: in(0, longest)}
			p.Faults = append(p.Faults, f)
			at += f.For
		}
	}
	if use == 2 { // a process is closed when a node is back
		for i := range p.Processes {
			back := p.Faults[r.IntN(len(p.Faults))]
			p.Faults = append(p.Faults, simFault{Kind: faultClose, Proc: i, At: back.At + back.For + in(0, 20*time.Millisecond)})
		}
	}
	p.Users = r.IntN(3) == 0
	slices.SortFunc(p.Faults, func(a, b simFault) int { return int(a.At - b.At) })
}

// longestHold is for how long locks of such a plan are held at most.
func (p *simPlan) longestHold() time.Duration {
	if len(p.Kinds) > 0 { // for longer than a wrong number may stay
		return 3 * time.Second
	}
	return simAwayPause
}

// longestPause is for how long clients do nothing at most.
func (p *simPlan) longestPause() time.Duration {
	if p.Regime == simAway || p.Regime == simLines {
		return simAwayPause
	}
	return min(p.TTL, simLongPause)
}

// drawAllLose has all nodes but one lose their keys at nearly the same time, while leases run that are longer
// than it takes: in any way that is noticed, also by nodes that have just been started.
func (p *simPlan) drawAllLose(r *rand.Rand) {
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	p.Regime, p.Strict, p.RestartGuard = simLease, false, 0
	p.TTL = in(2*time.Second, 5*time.Second).Truncate(time.Millisecond)
	p.Young = r.IntN(2) == 0
	p.Until = 8 * p.TTL
	period := p.TTL
	if p.Fenced[0] {
		period = max(period, guard.FencedGuard)
	}
	kind := []string{faultResync, faultResync, faultFlush, faultForget, faultSwap}[r.IntN(5)]
	for at := in(p.TTL/4, p.TTL); at < p.Until; at += in(2*period, 3*period) {
		for node := range p.Nodes {
			p.Faults = append(p.Faults, simFault{Kind: kind, Node: node, At: at + in(0, p.TTL/32), For: in(0, p.TTL/32) + noticed[kind]})
		}
	}
	slices.SortFunc(p.Faults, func(a, b simFault) int { return int(a.At - b.At) })
}

// Queues that are lost while many wait.

const simLines = "lines"

// simLinesHold is how long locks of such a plan are held at most: for longer than it takes to find out.
const simLinesHold = 6 * time.Second

// drawLostLines has the node that keeps the queue evict it, again and again.
func (p *simPlan) drawLostLines(r *rand.Rand) {
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	p.Regime = simLines
	p.TTL = in(time.Minute, 2*time.Minute).Truncate(time.Millisecond)
	p.NodeTimeout = in(20*time.Millisecond, 150*time.Millisecond)
	p.Until = in(4*time.Second, 12*time.Second)
	if r.IntN(3) == 0 {
		p.Fenced = []bool{false}
		p.Kinds = []int{[]int{manyShare, 1, 2}[r.IntN(3)]}
	}
	for range 1 + r.IntN(2) {
		p.Processes = append(p.Processes, simProcessPlan{PPM: r.Int64N(9900) - 4950, Clients: make([]simClientPlan, 3+r.IntN(4))})
	}
	for i := range p.Processes {
		for j := range p.Processes[i].Clients {
			p.Processes[i].Clients[j].Ops = 1 + r.IntN(3)
		}
	}
	for at := in(0, time.Second); at < p.Until; at += in(3*time.Second, 5*time.Second) {
		for node := range p.Nodes { // one of them has it
			p.Faults = append(p.Faults, simFault{Kind: faultEvict, Node: node, At: at, For: 1, Of: ofLine})
		}
	}
}

// losesLine has those that stood in a queue looked for when its node has lost it; the caller holds mu.
func (n *simNode) losesLine(key string) {
	w := n.w
	if w.plan.Slow+w.plan.Torn+w.plan.Reset+w.plan.Late+w.plan.Lost+w.plan.Twice > 0 {
		return
	}
	at, lost := w.t(), n.lineOf(key).entries
	n.lineLost[key] = at
	w.reached("a queue of several is lost", len(lost) > 1)
	w.after(w.takesToRejoin(), uint64(n.i), func() {
		for _, e := range lost {
			w.checkRejoined(n, key, e, lost, at)
		}
	})
}

// takesToRejoin is how soon all that wait are in a queue again that was lost. The first of a process looks
// every half of a reservation, and may have gone by then, so that the next one looks; and all are sent there
// no more often than that.
func (w *simWorld) takesToRejoin() int64 {
	return 3*int64(max(protocol.LeastReservation, 4*w.plan.NodeTimeout)) + w.takesToRelease()
}

// checkRejoined: one that waits by what stood in a queue that was lost has joined it again, or has its turn.
func (w *simWorld) checkRejoined(n *simNode, key string, e simEntry, all []simEntry, lost int64) {
	i := slices.IndexFunc(w.procs, func(p *simProcess) bool { return p.name == e.process })
	if i < 0 || len(w.procs[i].asleep) > 0 || w.dead(w.procs[i]) || w.procs[i].closes() {
		return
	}
	p, lasts := w.procs[i], w.takesToRejoin()
	if from := max(lost-lasts, 0); n.reachable(p, from, lost+lasts-from) > from {
		return
	}
	waits := p.parts.HasWaiter(e.value[:tokenLength])
	n.mu.Lock()
	line, again := n.lineOf(key), n.lineLost[key] != lost
	// A first waiter that has its turn again and again in vain joins anew each time, and finds nothing lost.
	again = again || slices.ContainsFunc(n.holds[key], func(h *simHold) bool {
		return h.from > lost && strings.HasSuffix(h.value, fmt.Sprintf("@process-%d", p.i))
	})
	n.mu.Unlock()
	_, listed := line.holders[e.value]
	stands := slices.ContainsFunc(line.entries, func(o simEntry) bool { return o.value == e.value })
	// The first waiter of a process looks for all of them. One that has come since finds nothing lost, and the others
	// join again when it goes: in the places that they had, since places are by the time for which they have waited.
	older := false
	for _, o := range line.entries {
		if o.process == e.process && o.arrival < e.arrival {
			older = !slices.ContainsFunc(all, func(a simEntry) bool { return a.value == o.value })
			break
		}
	}
	if waits && !again && !stands && !listed && line.lock != e.value && !w.excused(exOlderFirst, older) {
		w.violated("O10: %.6s of process %d stood in the queue of %s on node %d, which lost it at %.6f ms, and has not joined it again", e.value, p.i, key, n.i, ms(lost))
	}
}

// Subscriptions that break by themselves: what a server published meanwhile was not heard.

// faultUnheard: Node ends all subscriptions, and takes none until it is over.
const faultUnheard = "unheard"

// drawUnheard has that happen in some calm plans. It has randomness of its own, so that the other plans are
// what they were.
func (p *simPlan) drawUnheard() {
	r := rand.New(rand.NewPCG(p.Seed, 0x04ea2d))
	if p.Deaf > 0 || p.NoPublish || p.Regime != "" || r.IntN(4) > 0 {
		return
	}
	for at := time.Duration(0); at < p.Until; at += 100*time.Millisecond + time.Duration(r.Int64N(int64(p.TTL))) {
		lasts := time.Duration(r.Int64N(int64(100 * time.Millisecond)))
		for node := range p.Nodes {
			p.Faults = append(p.Faults, simFault{Kind: faultUnheard, Node: node, At: at, For: lasts})
		}
	}
}

// unhear is CLIENT KILL TYPE pubsub.
func (n *simNode) unhear() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.w.reached("subscriptions break", len(n.subs) > 0)
	for _, s := range n.subs {
		s.breakOff()
	}
	n.subs = nil
}

// simHeardBy is a time in which a process had a subscription, as far as it knows; to is 0 until it ends.
type simHeardBy struct {
	sub      *simSub
	from, to int64
}

// listens notes that a subscription was confirmed, or is over.
func (n *simNode) listens(sub *simSub, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if on {
		n.heard = append(n.heard, simHeardBy{sub, n.w.t(), 0})
		return
	}
	for i := range n.heard {
		if n.heard[i].sub == sub {
			n.heard[i].to = n.w.t()
		}
	}
}

// heardFrom is the first time from t on at which a process had a subscription that the node did not end before
// it heard of a release that was sent at that time, for a second time where the node has to be given the script
// first: t itself where none was.
func (n *simNode) heardFrom(p *simProcess, t int64) int64 {
	if !slices.ContainsFunc(n.w.plan.Faults, func(f simFault) bool { return f.Kind == faultUnheard }) {
		return t
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	next, arrives := never, 4*int64(n.w.plan.Delay+n.w.plan.Jitter)
	for _, h := range n.heard {
		switch {
		case h.sub.proc != p:
		case h.from <= t && (h.to == 0 || t+arrives < h.to):
			return t
		case h.from > t:
			next = min(next, h.from)
		}
	}
	if next == never {
		return t
	}
	return next
}
