package sim_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
)

// Each rule of the checker is seen to fail once, for a history made by hand, and not to fail for
// the same history without its fault.

// handMade is a world in which nothing happens but what a case puts there.
type handMade struct {
	*simWorld
	t   *testing.T
	bad bool // the history has the fault
}

const (
	msec    = int64(time.Millisecond)
	allLong = 1000 * msec
)

// is a value: one letter for a token.
func is(letter string) string { return strings.Repeat(letter, tokenLength) + "@" + letter }

// either is the wrong value where the history has the fault.
func either[T any](h *handMade, wrong, right T) T {
	if h.bad {
		return wrong
	}
	return right
}

// at is a time in milliseconds.
func (h *handMade) at(wrong, right int64) int64 { return either(h, wrong, right) * msec }

// grant is a lock of k0 that is relied on from ret to until, neither released nor lost.
func (h *handMade) grant(proc int, letter string, ret, until int64) *simGrant {
	g := &simGrant{
		proc: h.procs[proc], key: "k0", value: is(letter), call: ret - msec, ret: ret,
		promises: []simPromise{{at: ret, until: until}}, lostAt: never, brokenAt: never, relCalled: never,
	}
	h.grants = append(h.grants, g)
	h.byToken[g.value[:tokenLength]] = g
	return g
}

// ownEntry is that of a waiter of the first process.
func (h *handMade) ownEntry(letter string) string {
	return lineEntry(h.procs[0].name, "", is(letter))
}

// loseLine has node 0 lose a queue in which a waiter stood that goes on waiting; after is what stands in it
// then, and when the checker looks.
func (h *handMade) loseLine(before map[string]float64, waits string, after map[string]float64) {
	n := h.nodes[0]
	h.procs[0].parts.HasWaiter = func(token string) bool { return token == is(waits)[:tokenLength] }
	n.mu.Lock()
	n.store.Keys["{k0}:line"] = &fakenode.Key{Zset: before}
	n.losesLine("k0")
	n.store.Keys["{k0}:line"] = &fakenode.Key{Zset: after}
	n.mu.Unlock()
	h.sleep(3000*msec, 0)
}

// releasedAt notes that a release was called at a time, and what it came to.
func (g *simGrant) releasedAt(at int64, err error) *simGrant {
	g.relCalled, g.relRet, g.relErr, g.told = at, at+msec, err, simReleased{at + msec, err}
	return g
}

// on has the first nodes keep a value of k0 for a time.
func (h *handMade) on(nodes int, letter string, from, to int64) (holds []*simHold) {
	for _, n := range h.nodes[:nodes] {
		hold := &simHold{value: is(letter), from: from, to: to, expire: 1}
		n.holds["k0"] = append(n.holds["k0"], hold)
		holds = append(holds, hold)
	}
	return holds
}

// gone has all that was on the nodes be gone from then on.
func (h *handMade) gone(at int64) {
	for _, n := range h.nodes {
		for _, hold := range n.holds["k0"] {
			hold.to = at
		}
	}
}

func (h *handMade) client() *simClient {
	return &simClient{w: h.simWorld, p: h.procs[0], done: make(chan struct{})}
}

// lock is one that the first process really has.
func (h *handMade) lock(opts ...redlock.LockOption) *redlock.Lock { return h.lockOf("k0", opts...) }

func (h *handMade) lockOf(key string, opts ...redlock.LockOption) *redlock.Lock {
	l, err := h.procs[0].rl.Mutex(key, opts...).TryAcquire(context.Background())
	require.NoError(h.t, err)
	return l
}

func (h *handMade) waitsFor(to int64) {
	h.waits["k0"] = append(h.waits["k0"], simWait{proc: 0, client: 0, from: 0, to: to})
}

func diesAtFirstUse(p *simPlan) {
	calmPlan(p)
	p.RestartGuard = 0
	p.Faults = []simFault{{Kind: faultKill, At: 20 * time.Millisecond}}
}

// toldAllNew has the first nodes be told at a time that all were new, and somebody wait for four seconds.
func (h *handMade) toldAllNew(nodes int, at int64) {
	for _, n := range h.nodes {
		n.marked = 10 * msec
	}
	for _, n := range h.nodes[:nodes] {
		n.saysAll = at
	}
	h.waitsFor(4000 * msec)
	h.checkProgress("k0", nil)
}

// entries puts waiters into the queue of the first node, told ones until a second from now.
func (h *handMade) entries(told string, each ...string) *simNode {
	n := h.nodes[0]
	n.mu.Lock() // timers of the plan's faults look at it
	defer n.mu.Unlock()
	for i, e := range each {
		n.store.Zadd("{k0}:line", float64(i+1), e)
		if told[i] == '1' {
			n.store.Zadd("{k0}:line", -float64(n.store.Micros()+1e6), "woken "+e)
		}
	}
	return n
}

// locked has the first node's key be held by another, alone or shared with those listed.
func (h *handMade) locked(value string, listed ...string) {
	h.nodes[0].mu.Lock()
	defer h.nodes[0].mu.Unlock()
	s := h.nodes[0].store
	s.Keys["k0"] = &fakenode.Key{Str: value}
	for i, v := range listed {
		s.Zadd("{k0}:shared", float64((s.Millis()+1000)*fakenode.Numbers+int64(i+1)), v)
	}
}

func joins(entry string) *protocol.Request {
	return &protocol.Request{Op: protocol.OpJoin, Script: protocol.JoinScript, Key: "k0", Value: fakenode.ValueIn(entry), Queue: &protocol.QueueArgs{Key: "{k0}:line", Entry: entry}}
}

func calmPlan(p *simPlan)   { p.Calm, p.Strict = true, true }
func strictPlan(p *simPlan) { p.Strict = true }

func sharedCalmPlan(p *simPlan) {
	calmPlan(p)
	p.Kinds = []int{2}
}

type simRule struct {
	rule string
	plan func(p *simPlan)
	make func(h *handMade)
}

// simRules has a history for each of the checker's rules, which are named by how they begin.
var simRules = append([]simRule{
	{"I1: two holders of %s: ", nil, func(h *handMade) {
		h.grant(0, "a", 10*msec, 100*msec)
		h.grant(1, "b", either(h, 50*msec, 100*msec), 200*msec)
		h.checkExclusion(h.grants)
	}},
	{"I1: two holders of %s: ", func(p *simPlan) {
		p.Faults = []simFault{{Kind: faultAhead, Node: 0, At: time.Duration(30 * msec), By: time.Hour}}
	}, func(h *handMade) { // a clock takes one key, and a majority is left or not
		h.grant(0, "a", 10*msec, 100*msec)
		cut := h.on(either(h, 3, 2), "a", 5*msec, 110*msec)[0]
		cut.whole, cut.to = cut.to, 30*msec
		h.grant(1, "b", 50*msec, 200*msec)
		h.checkBroken()
		h.checkExclusion(h.grants)
	}},
	{"I1: two holders of %s: ", evicting, func(h *handMade) { // a node evicts a permit that went by another number before, and a majority is left or not
		h.grant(0, "a", 10*msec, 100*msec)
		h.nodes[0].holds["k0"] = []*simHold{{value: is("a"), number: 1, to: 5 * msec, whole: allLong, evicted: true}}
		hold := h.on(either(h, 3, 2), "a", 5*msec, 110*msec)[0]
		hold.evicted, hold.to = true, 30*msec
		h.grant(1, "b", 50*msec, 200*msec)
		h.checkBroken()
		h.checkExclusion(h.grants)
	}},
	{"I1: two holders of %s, of whom one has it alone", nil, func(h *handMade) {
		h.grant(0, "a", 10*msec, 100*msec).shared = true
		h.grant(1, "b", 50*msec, 200*msec).shared = !h.bad
		h.checkSharing(h.grants)
	}},
	{"I1: permit %d of %s twice", nil, func(h *handMade) {
		for i, letter := range []string{"a", "b"} {
			g := h.grant(i, letter, int64(10+i)*msec, 100*msec)
			g.shared, g.permits, g.number = true, 3, either(h, 1, int64(i+1))
		}
		h.checkSharing(h.grants)
	}},
	{"I1: %d permits of %s are held", nil, func(h *handMade) {
		for i, letter := range []string{"a", "b", "c"} {
			g := h.grant(0, letter, int64(10+i)*msec, 100*msec)
			g.shared, g.permits, g.number = true, either(h, int64(2), 3), int64(i+1)
		}
		h.checkSharing(h.grants)
	}},
	{"I2: %v, but only %d nodes have it", nil, func(h *handMade) {
		l := h.lock()
		if h.bad {
			clear(h.nodes[0].holds)
			clear(h.nodes[1].holds)
		}
		h.granted(h.procs[0], 0, "k0", 0, l)
	}},
	{"I2: %v and relied on until", nil, func(h *handMade) {
		g := h.grant(0, "a", 10*msec, 100*msec)
		h.on(2, "a", 5*msec, 110*msec)[1].to = h.at(60, 100)
		h.checkMajority(g)
	}},
	{"I3: %s of %.6s changed the TTL", nil, func(h *handMade) {
		op := &fakenode.Op{Req: &protocol.Request{Op: protocol.OpExtend}, Value: is(either(h, "b", "a"))}
		h.nodes[0].Prolonged("k0", is("a"), fakenode.Epoch/msec+1000, op)
	}},
	{"I3: %s of %.6s removed", nil, func(h *handMade) {
		h.nodes[0].Removed("k0", is("a"), &fakenode.Op{Req: &protocol.Request{Op: protocol.OpRelease}, Value: is(either(h, "b", "a"))})
	}},
	{"I3: %s of %.6s listed", nil, func(h *handMade) {
		op := &fakenode.Op{Req: &protocol.Request{Op: protocol.OpAcquireShared}, Value: is(either(h, "b", "a"))}
		h.nodes[0].Listed("k0", is("a"), 1, fakenode.Epoch/msec+1000, op)
	}},
	{"I3: %s of %.6s struck", nil, func(h *handMade) {
		h.nodes[0].Struck("k0", is("a"), &fakenode.Op{Req: &protocol.Request{Op: protocol.OpRelease}, Value: is(either(h, "b", "a"))})
	}},
	{"I4: an extend or claim made the lease", nil, func(h *handMade) {
		op := &fakenode.Op{Req: &protocol.Request{Op: protocol.OpExtend}, Value: is("a")}
		h.nodes[0].Put("k0", is("a"), fakenode.Epoch/msec+1000, op)
		h.nodes[0].Prolonged("k0", is("a"), fakenode.Epoch/msec+either(h, int64(900), 1100), op)
	}},
	{"I4: %s made the lease", nil, func(h *handMade) {
		op := &fakenode.Op{Req: &protocol.Request{Op: protocol.OpExtend}, Value: is("a")}
		h.nodes[0].Listed("k0", is("a"), 1, fakenode.Epoch/msec+1000, op)
		h.nodes[0].Listed("k0", is("a"), 1, fakenode.Epoch/msec+either(h, int64(900), 1100), op)
	}},
	{"I5: node %d had %.6s of %s until", strictPlan, func(h *handMade) {
		h.grant(0, "a", 10*msec, 9000*msec).releasedAt(50*msec, nil)
		h.sentBy[is("a")] = simSender{h.procs[0], 5 * msec}
		h.on(1, "a", 5*msec, either(h, 5000*msec, 55*msec))
		h.checkLeftBehind()
	}},
	{"I5: node %d has %s, %.6s, although everybody has gone", strictPlan, (*handMade).settledBesideAKey},
	{"I5: node %d has %s, %.6s, %s", strictPlan, (*handMade).settledBesideAKey},
	{"I7: a newcomer does not get", strictPlan, (*handMade).settledBesideAKey},
	{"I6: release of %v succeeded", nil, func(h *handMade) {
		g := h.grant(0, "a", 10*msec, 100*msec).releasedAt(50*msec, nil)
		h.on(2, "a", 5*msec, h.at(200, 50))
		h.checkRelease(g)
	}},
	{"I6: release of %v said that it was not held", nil, func(h *handMade) { // a node lost it after the release, or before, and then everything
		g := h.grant(0, "a", 10*msec, 300*msec).releasedAt(120*msec, redlock.ErrNotHeld)
		for _, hold := range h.on(3, "a", 5*msec, 200*msec) {
			hold.forgotten = h.at(0, 50)
		}
		h.sleep(150*msec, 0)
		for _, n := range h.nodes {
			n.lose(faultFlush)
		}
		h.checkRelease(g)
	}},
	{"I6: release of %v said that it was not held", nil, func(h *handMade) {
		g := h.grant(0, "a", 10*msec, 100*msec).releasedAt(50*msec, redlock.ErrNotHeld)
		h.on(2, "a", 5*msec, h.at(200, 40))
		h.checkRelease(g)
	}},
	{"I6: release of %v said that it was not held", nil, func(h *handMade) { // a request that came twice sets it again meanwhile
		g := h.grant(0, "a", 10*msec, 100*msec).releasedAt(50*msec, redlock.ErrNotHeld)
		h.on(2, "a", 5*msec, h.at(200, 40))
		h.on(2, "a", 50*msec+msec/2, 200*msec)
		h.checkRelease(g)
	}},
	{"I6: the release of %v is confirmed", nil, func(h *handMade) {
		g := h.grant(0, "a", 10*msec, 100*msec).releasedAt(50*msec, nil)
		for _, hold := range h.on(3, "a", 5*msec, 50*msec) {
			hold.released = !h.bad
		}
		h.checkByWhoseHand(g)
	}},
	{"I6: the release of %v says that it was not held", nil, func(h *handMade) {
		g := h.grant(0, "a", 10*msec, 100*msec).releasedAt(50*msec, redlock.ErrNotHeld)
		for _, hold := range h.on(3, "a", 5*msec, 50*msec) {
			hold.released = h.bad
		}
		h.checkByWhoseHand(g)
	}},
	{"I6: an attempt for %s said that it is held", nil, func(h *handMade) {
		h.on(either(h, 1, 2), "b", 5*msec, 50*msec)
		h.checkHeld(h.procs[0], "k0", 10*msec, 20*msec)
	}},
	{"I6: an attempt for %s said that it is held", nil, func(h *handMade) { // by leases that are not over any more, or would not be
		for i, hold := range h.on(2, "b", 5*msec, 50*msec) {
			hold.shared = true
			h.nodes[i].hand.steps = []simStep{{55 * msec, -h.at(5, 20)}}
		}
		h.checkHeld(h.procs[0], "k0", 60*msec, 70*msec)
	}},
	{"I6: an acquire failed with an error that is none of ours", nil, func(h *handMade) {
		h.client().failed(context.Background(), either(h, errors.New("EOF"), redlock.ErrNoQuorum))
	}},
	{"I6: Adopt failed with an error that is none of its own", nil, func(h *handMade) {
		h.client().adoptFailed(either(h, redlock.ErrHeld, redlock.ErrNotHeld))
	}},
	{"I6: %v did not change hands", nil, func(h *handMade) {
		h.on(either(h, 2, 1), "a", 0, allLong)
		h.checkNotHeld(h.procs[0], h.grant(0, "a", 10*msec, 100*msec), is("a"))
	}},
	{"I7: client %d.%d waits for ever", nil, func(h *handMade) {
		c := h.client()
		patience := closedTime
		if !h.bad {
			close(c.done)
			patience = nil
		}
		h.await([]*simClient{c}, patience)
	}},
	{"I7: %s by process %d took", nil, func(h *handMade) {
		h.sleep(100*msec, 0)
		h.took(h.procs[0], "TryAcquire", 0, time.Duration(h.at(50, 100)))
	}},
	{"I7: nobody had %s for", calmPlan, func(h *handMade) {
		h.grant(1, "a", 10*msec, 100*msec).releasedAt(50*msec, nil)
		h.waitsFor(h.at(600, 500))
		h.checkProgress("k0", h.grants)
	}},
	{"I7: client %d.%d could have had", sharedCalmPlan, func(h *handMade) { // one of two permits
		g := h.grant(1, "a", 10*msec, 900*msec)
		g.shared, g.permits, g.number = true, 2, 1
		h.waits["k0"] = []simWait{{to: h.at(600, 500), mode: 2}}
		h.checkShareProgress("k0", h.grants)
	}},
	{"I7: client %d.%d could have had", sharedCalmPlan, func(h *handMade) { // both are held until it has one
		for i, letter := range []string{"a", "b"} {
			g := h.grant(1, letter, 10*msec, h.at(100, 900))
			g.shared, g.permits, g.number = true, 2, int64(i+1)
		}
		h.waits["k0"] = []simWait{{to: 800 * msec, mode: 2}}
		h.checkShareProgress("k0", h.grants)
	}},
	{"I7: client %d.%d could have had", sharedCalmPlan, func(h *handMade) { // a reader beside readers, or behind a writer
		h.grant(1, "a", 10*msec, 900*msec).shared = true
		h.waits["k0"] = []simWait{{to: 800 * msec}}
		h.wants["k0"] = []*simWait{{from: 20 * msec, to: h.at(30, 700), mode: -1}}
		h.checkShareProgress("k0", h.grants)
	}},
	{"I8: an attempt on a context that was over", nil, func(h *handMade) {
		h.checkStillborn(nil, either(h, redlock.ErrHeld, context.Canceled), false)
	}},
	{"I8: neither a lock nor an error", nil, func(h *handMade) {
		h.checkAnswered(nil, either(h, nil, redlock.ErrHeld))
	}},
	{"I9: %s", nil, func(h *handMade) { // a SET whose answer was lost
		set := []*lane.Call{{Req: &protocol.Request{Op: protocol.OpAcquire, Value: is("a")}}}
		h.sends(h.procs[0], 0, set)
		h.sets[simSent{0, is("a")}] = either(h, heardNothing, heardRefused)
		h.sends(h.procs[0], 0, set)
	}},
	{"R7: %v was extended after its validity had ended", nil, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock())
		h.sleep(h.at(1100, 500), 0)
		g.promised()
	}},
	{"R7: %v, when its validity was over", nil, func(h *handMade) {
		l := h.lock()
		if h.bad {
			h.sleep(int64(2*h.plan.TTL), 0) // to its end
		}
		h.granted(h.procs[0], 0, "k0", 0, l)
	}},
	{"foreign: node %d", nil, func(h *handMade) {
		n := h.nodes[0]
		n.occupy(simFault{Kind: faultForeign, Of: ofLine, Ever: true})
		if h.bad {
			n.store.ExpireIn("{k0}:line", 1000, nil)
		}
		n.checkForeign()
	}},
	{"fence: %v has token", nil, func(h *handMade) {
		h.grant(0, "a", 10*msec, 20*msec).fence = 2
		h.grant(1, "b", 30*msec, 40*msec).fence = either(h, uint64(2), 3)
		h.checkFences(h.grants)
	}},
	{"fence: %v has token", evicting, func(h *handMade) { // a counter is evicted, and a majority is left or not
		h.grant(0, "a", 10*msec, 20*msec).fence = 2
		h.grant(1, "b", 30*msec, 40*msec).fence = 1
		for _, n := range h.nodes[:either(h, 3, 2)] {
			n.counts["{k0}:fence"] = []simCounter{{value: 2, at: 5 * msec}}
		}
		h.nodes[0].counts["{k0}:fence"][0].gone = 25 * msec
		h.checkFences(h.grants)
	}},
	{"order: %v was granted before", calmPlan, func(h *handMade) {
		for i, came := range either(h, []int64{2, 1}, []int64{1, 2}) {
			g := h.grant(i, string(rune('a'+i)), int64(i+1)*10*msec, int64(i+2)*10*msec)
			g.call = 0
			h.places[g.value] = simPlace{came: came, since: came, arrival: came}
		}
		h.checkTurns(h.grants)
	}},
	{"order: %v was granted before", calmPlan, func(h *handMade) { // it joined later, and had not or had waited in another queue before
		for i, letter := range []string{"a", "b"} {
			g := h.grant(i, letter, int64(i+1)*10*msec, int64(i+2)*10*msec)
			g.call = 0
			h.places[g.value] = simPlace{came: int64(2-i) * msec, since: int64(2-i) * msec, arrival: int64(2 - i)}
		}
		if a := h.grants[0]; !h.bad {
			h.places[a.value] = simPlace{came: 2 * msec, since: msec / 2, arrival: 0}
		}
		h.checkTurns(h.grants)
	}},
	{"order: %v stands in the queue since", calmPlan, func(h *handMade) {
		g := h.grant(0, "a", 100*msec, 200*msec)
		g.call = 50 * msec
		h.places[g.value] = simPlace{came: 60 * msec, since: h.at(40, 50)}
		h.checkTurns(h.grants)
	}},
	{"order: %v waits since", calmPlan, func(h *handMade) { // its process let it wait outside, and not as the first there
		g := h.grant(0, "a", 900*msec, 950*msec)
		g.call = 0
		h.places[g.value] = simPlace{came: 800 * msec, since: h.at(800, 20)}
		h.checkTurns(h.grants)
	}},
	{"wake-up: %v had to wait for", calmPlan, func(h *handMade) {
		h.grant(0, "a", 10*msec, 900*msec).releasedAt(50*msec, nil)
		g := h.grant(1, "b", h.at(120, 110), 900*msec)
		g.call = 0
		h.places[g.value] = simPlace{came: 1}
		h.checkOrder(h.grants)
	}},
	{"wake-up: %v had to wait for", unheardPlan, func(h *handMade) { // since its process hears what the node publishes again
		h.grant(0, "a", 10*msec, 900*msec).releasedAt(50*msec, nil)
		g := h.grant(1, "b", h.at(160, 150), 900*msec)
		g.call = 0
		h.places[g.value] = simPlace{came: 1}
		sub := &simSub{proc: h.procs[1]}
		h.nodes[0].heard = []simHeardBy{{sub, msec, 40 * msec}, {sub, 90 * msec, 0}}
		h.checkOrder(h.grants)
	}},
	{"wake-up: %v had to wait for", unheardPlan, func(h *handMade) { // since it hears again, also where the notice was on its way
		h.plan.Delay, h.plan.Jitter = time.Millisecond, 0
		h.grant(0, "a", 10*msec, 900*msec).releasedAt(50*msec, nil)
		g := h.grant(1, "b", 150*msec, 900*msec)
		g.call = 0
		h.places[g.value] = simPlace{came: 1}
		sub := &simSub{proc: h.procs[1]}
		h.nodes[0].heard = []simHeardBy{{sub, msec, h.at(55, 53)}, {sub, 90 * msec, 0}}
		h.checkOrder(h.grants)
	}},
	{"wake-up: %v was told", calmPlan, func(h *handMade) {
		g := h.grant(0, "a", h.at(120, 110), 900*msec)
		h.nodes[0].toldAt[g.value] = 50 * msec
		h.checkToldInTime(h.grants)
	}},
	{"loss: %v was said to have expired", nil, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock())
		h.sleep(h.at(500, 1100), 0)
		h.checkLoss(g, redlock.ErrExpired)
	}},
	{"loss: %v was extended since the failure", nil, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock())
		h.sleep(1100*msec, 0)
		g.longer = h.bad
		h.checkLoss(g, fmt.Errorf("%w: %w%s: %w", redlock.ErrLost, redlock.ErrExpired, simLastTry, redlock.ErrNoQuorum))
	}},
	{"renewal: %v ran out", nil, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithRenewal()))
		last := g.promises[0]
		for _, n := range h.nodes[:2] {
			n.holds["k0"][0].to = either(h, allLong, last.until-msec)
		}
		h.checkRanOut(g, last)
	}},
	{"renewal: %v ran out", nil, func(h *handMade) { // it could be reached until shortly before
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithRenewal()))
		last := g.promises[0]
		synctest.Wait() // what is under way reads the plan
		for i := range either(h, 1, 2) {
			h.plan.Faults = append(h.plan.Faults, simFault{Kind: faultHang, Node: i, At: 500 * time.Millisecond, For: time.Second})
		}
		h.checkRanOut(g, last)
	}},
	{"renewal: %v ran out", nil, func(h *handMade) { // connections went silent three node timeouts before, or less than two
		h.sleep(400*msec, 0)
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithRenewal()))
		last := g.promises[0]
		synctest.Wait()
		from := time.Duration(max(last.at, last.until-h.takesToRelease()-250*msec))
		for i := range 2 {
			h.plan.Faults = append(h.plan.Faults, simFault{Kind: faultMute, Node: i, At: from - either(h, 150*time.Millisecond, 90*time.Millisecond)})
		}
		h.checkRanOut(g, last)
	}},
	{"renewal: %v ran out", nil, func(h *handMade) { // of so many nodes, long before, where a timeout is more than half of the TTL
		h.sleep(3000*msec, 0)
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithRenewal()))
		last := g.promises[0]
		synctest.Wait()
		h.plan.NodeTimeout = 3 * h.plan.TTL / 5
		for i := range either(h, 1, 2) {
			h.plan.Faults = append(h.plan.Faults, simFault{Kind: faultMute, Node: i, At: time.Millisecond})
		}
		h.checkRanOut(g, last)
	}},
	{"renewal: %v was not renewed for", nil, func(h *handMade) { // since the grant
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithRenewal()))
		h.checkRenewedInTime(g, inside.StateOf(g.lock).GrantedAt.Mono+h.at(345, 335), 0)
	}},
	{"renewal: %v was not renewed for", nil, func(h *handMade) { // since one that failed
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithRenewal()))
		h.renewals.note(g.value[:tokenLength], simRenewal{inside.StateOf(g.lock).GrantedAt.Mono + 300*msec, true})
		h.checkRenewedInTime(g, inside.StateOf(g.lock).GrantedAt.Mono+h.at(375, 365), 0)
	}},
	{"renewal: %v was not renewed for", func(p *simPlan) { // its time is over by the wall clock
		p.Faults = []simFault{{Kind: faultWall, At: 100 * time.Millisecond, By: 450 * time.Millisecond}}
	}, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithRenewal(), redlock.WithMaxHold(either(h, 900*time.Millisecond, 600*time.Millisecond))))
		h.checkRenewedInTime(g, inside.StateOf(g.lock).GrantedAt.Mono+400*msec, 0)
	}},
	{"loss: Do does not say that %v was lost", nil, func(h *handMade) { // its release found out
		h.checkDoTells(h.grant(0, "a", 10*msec, 900*msec).releasedAt(50*msec, either(h, redlock.ErrNotHeld, nil)), nil)
	}},
	{"loss: Do does not say that %v was lost", nil, func(h *handMade) { // while its function ran
		g := h.grant(0, "a", 10*msec, 900*msec).releasedAt(50*msec, nil)
		g.lostAt = h.at(40, 60)
		h.checkDoTells(g, nil)
	}},
	{"loss: Do says that %v was lost", nil, func(h *handMade) {
		h.checkDoTells(h.grant(0, "a", 10*msec, 900*msec).releasedAt(50*msec, nil), either(h, redlock.ErrLost, nil))
	}},
	{"R7: %v is over, and valid for", nil, func(h *handMade) {
		h.checkValid(h.grant(0, "a", 10*msec, 100*msec), true, either(h, time.Second, -time.Second), false)
	}},
	{"R7: %v is over, and valid for", nil, func(h *handMade) { // an acquire inside of it
		h.checkValid(h.grant(0, "a", 10*msec, 100*msec), true, -time.Second, h.bad)
	}},
	{"I6: client %d.%d gave up", nil, func(h *handMade) {
		err := &redlock.QuorumError{Outcomes: make([]redlock.Outcome, 3)}
		for i := range either(h, 1, 2) {
			err.Outcomes[i].Err = fakenode.Error("NOAUTH Authentication required.")
		}
		h.client().checkGaveUp(context.Background(), &redlock.Mutex{}, errors.Join(err, redlock.ErrNoQuorum))
	}},
	{"I6: client %d.%d gave up", nil, func(h *handMade) { // for a majority that came too late
		ctx := either(h, context.Background(), canceledContext)
		h.client().checkGaveUp(ctx, h.procs[0].rl.Mutex("k0"), redlock.ErrExpired)
	}},
	{"fence: %v has token %d, and the clocks", nil, func(h *handMade) {
		g := h.grant(0, "a", 10*msec, 20*msec)
		g.fence = uint64(fakenode.Epoch/1000) + either(h, uint64(1_100_000), 900_000)
		h.checkFenceOfTime(g)
	}},
	{"fence: %v has token %d, and the clocks", nil, func(h *handMade) { // of a client a second behind, and clocks that were set back meanwhile
		g := h.grant(0, "a", 400*msec, 500*msec)
		g.call = 10 * msec
		for _, n := range h.nodes {
			n.hand.steps = []simStep{{200 * msec, -300 * msec}}
		}
		g.fence = uint64(fakenode.Epoch/1000) - either(h, uint64(1_150_000), 1_050_000)
		h.checkFenceOfTime(g)
	}},
	{"I5: node %d had %.6s of %s until", strictPlan, func(h *handMade) { // kept for longer than WithMinHold
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithMinHold(200*time.Millisecond)))
		g.releasedAt(h.simWorld.t()+10*msec, nil).keeps = true
		h.gone(h.simWorld.t() + h.at(5000, 210))
		h.checkLeftBehind()
	}},
	{"I5: node %d had %.6s of %s until", func(p *simPlan) { // and its process was suspended while it held it, or after that
		p.Strict, p.Faults = true, []simFault{{Kind: faultSuspend, At: 100 * time.Millisecond, For: 3 * time.Second}}
	}, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithMinHold(200*time.Millisecond)))
		g.releasedAt(h.simWorld.t()+h.at(50, 3110), nil).keeps = true
		h.gone(h.simWorld.t() + h.at(4100, 3950))
		h.checkLeftBehind()
	}},
	{"extend: %v was extended for", nil, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock())
		g.checkExtended(redlock.ExtendInfo{TTL: time.Duration(h.at(1100, 1000))})
	}},
	{"loss: %v was said to be lost", nil, func(h *handMade) {
		g := h.grant(0, "a", 10*msec, 900*msec)
		h.on(either(h, 2, 1), "a", 0, allLong)
		h.sleep(100*msec, 0)
		h.checkLoss(g, redlock.ErrNotHeld)
	}},
	{"extend: %v was not extended", calmPlan, func(h *handMade) {
		h.checkExtend(h.granted(h.procs[0], 0, "k0", 0, h.lock()), either(h, redlock.ErrNoQuorum, nil))
	}},
	{"min hold: %v, although", nil, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithMinHold(200*time.Millisecond)))
		g.releasedAt(h.simWorld.t()+10*msec, nil).keeps = true
		h.grant(1, "b", h.simWorld.t()+h.at(150, 250), 900*msec)
		h.checkMinHold(g, h.grants)
	}},
	{"min hold: %v, although", evicting, func(h *handMade) { // evictions leave it on a majority, or not
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithMinHold(200*time.Millisecond)))
		g.releasedAt(h.simWorld.t()+10*msec, nil).keeps = true
		for _, n := range h.nodes[:either(h, 1, 2)] {
			hold := n.holds["k0"][0]
			hold.to, hold.evicted = h.simWorld.t()+100*msec, true
		}
		h.grant(1, "b", h.simWorld.t()+150*msec, 900*msec)
		h.checkMinHold(g, h.grants)
	}},
	{"min hold: %v, although", evicting, func(h *handMade) { // it was told late of a lock that had been evicted already, or had not
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithMinHold(200*time.Millisecond)))
		g.releasedAt(h.simWorld.t()+10*msec, nil).keeps = true
		o := h.grant(1, "b", h.simWorld.t()+150*msec, 900*msec)
		o.brokenAt = either(h, never, o.ret)
		h.checkMinHold(g, h.grants)
	}},
	{"context: that of %v says that it was released", nil, func(h *handMade) {
		h.contextEnds(h.granted(h.procs[0], 0, "k0", 0, h.lock()).releasedAt(either(h, never, msec), nil), redlock.ErrReleased)
	}},
	{"context: that of %v ended by %v, which says nothing", nil, func(h *handMade) {
		h.contextEnds(h.granted(h.procs[0], 0, "k0", 0, h.lock()), either(h, context.Canceled, redlock.ErrLost))
	}},
	{"context: that of %v ended, although neither", nil, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock())
		h.sleep(h.at(500, 1100), 0)
		h.contextEnds(g, fmt.Errorf("%w: %w", redlock.ErrLost, redlock.ErrExpired))
	}},
	{"context: that of %v ended, although neither", nil, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithMaxHold(200*time.Millisecond)))
		h.sleep(h.at(150, 250), 0)
		h.contextEnds(g, fmt.Errorf("%w: %w", redlock.ErrLost, redlock.ErrExpired))
	}},
	{"context: that of %v ended by a loss", nil, func(h *handMade) {
		g := h.grant(0, "a", 10*msec, 900*msec)
		g.contexts = []*simContext{{lost: true}}
		g.lostAt = either(h, never, 50*msec)
		h.checkContexts(g)
	}},
	{"context: %v is lost, and valid for", contextPlan, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock())
		g.lostAt = either(h, h.simWorld.t(), never)
		h.lookAtContexts(g)
	}},
	{"context: that of %v goes on, and that of its caller", contextPlan, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock())
		g.contexts = []*simContext{{Context: context.Background(), caller: either(h, canceledContext, context.Background())}}
		h.lookAtContexts(g)
	}},
	{"context: that of %v goes on, although", contextPlan, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock())
		g.contexts = []*simContext{{Context: context.Background()}}
		h.sleep(h.at(1300, 1200), 0)
		h.lookAtContexts(g)
	}},
	{"context: %v is renewed, although", nil, func(h *handMade) {
		g := h.granted(h.procs[0], 0, "k0", 0, h.lock(redlock.WithMaxHold(200*time.Millisecond)))
		h.sleep(h.at(250, 190), 0)
		h.checkRenewal(g, redlock.ExtendInfo{Renewal: true})
	}},
	{"renewal: %v is renewed", nil, func(h *handMade) {
		h.sleep(100*msec, 0)
		h.checkRenewal(h.grant(0, "a", 10*msec, 900*msec).releasedAt(h.at(90, 100), nil), redlock.ExtendInfo{Renewal: true, Err: redlock.ErrReleased})
	}},
	{"context: the extend of %v was given up", nil, func(h *handMade) {
		h.checkGivenUp(h.grant(0, "a", 10*msec, 900*msec), context.Canceled, !h.bad)
	}},
	{"secret: a notice tells", nil, func(h *handMade) {
		h.nodes[0].publish("redlock:"+either(h, "p0.", "p1"), "0 "+is("a")[:tokenLength])
	}},
	{"well: the release of", wellPlan, func(h *handMade) {
		g := h.grant(0, "a", h.wellFrom(), h.wellFrom()+msec)
		g.releasedAt(g.ret, either(h, redlock.ErrNoQuorum, nil))
		h.checkWell("k0", h.grants)
	}},
	{"well: node %d had no part", wellPlan, func(h *handMade) {
		for i := range int64(10) {
			letter := fmt.Sprint(i)
			at := h.wellFrom() + i*msec
			h.grant(0, letter, at, at+msec/2).releasedAt(at+1, nil)
			h.on(either(h, 2, 3), letter, at-1, at+2)
		}
		h.checkWell("k0", h.grants)
	}},
	{"well: client %d.%d was overtaken", wellPlan, func(h *handMade) {
		for i := range either(h, int64(5), 4) {
			g := h.grant(1, "a", h.wellFrom()+(10+i)*msec, 0)
			g.call = g.ret - msec/2
		}
		h.waits["k0"] = []simWait{{from: h.wellFrom(), to: h.wellFrom() + 100*msec}}
		h.checkWell("k0", h.grants)
	}},
	{"well: client %d.%d has no lock", wellPlan, func(h *handMade) {
		h.client().mustSucceed(h.wellFrom(), either(h, redlock.ErrNoQuorum, nil))
	}},
	{"votes: acquires of process", func(p *simPlan) { p.RestartGuard = 0 }, func(h *handMade) {
		p := h.procs[0]
		h.sleep(msec, 0)
		for range 20 {
			h.sleep(90*msec, 0)
			p.metVote(1, false, h.simWorld.t())
			if !h.bad {
				p.voteTold(redlock.VoteInfo{Node: p.rl.Nodes()[1], Err: redlock.ErrHeld}, true)
			}
		}
	}},
	{"votes: acquires of process", func(p *simPlan) { p.RestartGuard = 0 }, func(h *handMade) { // it votes again
		p := h.procs[0]
		p.voteTold(redlock.VoteInfo{Node: p.rl.Nodes()[1], Err: redlock.ErrHeld}, true)
		for range 20 {
			h.sleep(either(h, 90*msec, 710*msec), 0) // what was between two of them is not known
			p.metVote(1, true, h.simWorld.t())
		}
	}},
	{"votes: process %d is told of node", nil, func(h *handMade) {
		p := h.procs[0]
		p.voteTold(redlock.VoteInfo{Node: p.rl.Nodes()[1], Err: redlock.ErrHeld}, true)
		p.voteTold(redlock.VoteInfo{Node: p.rl.Nodes()[1], Err: either(h, redlock.ErrHeld, nil)}, false)
	}},
	{"close: process %d: %v, and then", nil, func(h *handMade) {
		h.checkClosed(h.procs[0], nil, either(h, redlock.ErrClosed, nil))
	}},
	{"close: %s of process %d ended with ErrClosed", nil, func(h *handMade) {
		h.procs[0].closing.called.Store(either(h, int64(0), 1))
		h.cameToAnEnd(h.procs[0], "an acquire", 0, redlock.ErrClosed)
	}},
	{"close: %s of process %d after Close", nil, func(h *handMade) {
		h.closed(10*msec, 20*msec)
		h.cameToAnEnd(h.procs[0], "an acquire", h.at(20, 19), redlock.ErrHeld)
	}},
	{"I7: %s by process %d took", nil, func(h *handMade) { // it was under way when the Redlock was closed
		h.closed(10*msec, 20*msec)
		h.sleep(either(h, 12*msec, 11*msec), 0)
		h.endedByClose(h.procs[0], "an acquire", 0, redlock.ErrClosed)
	}},
	{"close: calls of process %d after Close", nil, func(h *handMade) {
		h.checkSilent(h.procs[0], either(h, 1, 0), 0)
	}},
	{"close: process %d sends node", nil, func(h *handMade) {
		h.closed(0, msec)
		h.sleep(either(h, 3*msec, 2*msec), 0)
		h.procs[0].examineClosed(0, []*lane.Call{{Req: &protocol.Request{Op: protocol.OpExtend}}})
	}},
	{"close: %v is renewed", nil, func(h *handMade) {
		h.closed(h.at(10, 20), 30*msec)
		h.sleep(20*msec, 0)
		h.checkClosedRenewal(h.grant(0, "a", 0, 900*msec), redlock.ExtendInfo{Renewal: true})
	}},
	{"I5: node %d had %.6s of %s until", strictPlan, func(h *handMade) { // released before Close, or never again after it
		h.grant(0, "a", 10*msec, 9000*msec).releasedAt(h.at(1000, 1100), nil)
		h.sentBy[is("a")] = simSender{h.procs[0], 5 * msec}
		h.closed(1050*msec, 1060*msec)
		h.on(1, "a", 5*msec, 5000*msec)
		h.checkLeftBehind()
	}},
	{"I5: node %d had %.6s of %s until", strictPlan, func(h *handMade) { // its node failed the release, and is back by Close, or not
		h.plan.Faults = []simFault{{Kind: faultErr, At: 900 * time.Millisecond, For: time.Duration(h.at(100, 200))}}
		h.grant(0, "a", 10*msec, 9000*msec).releasedAt(950*msec, nil)
		h.sentBy[is("a")] = simSender{h.procs[0], 5 * msec}
		h.closed(1050*msec, 1060*msec)
		h.on(1, "a", 5*msec, 5000*msec)
		h.checkLeftBehind()
	}},
	{"O8: %.6s of process", strictPlan, func(h *handMade) { // Close takes it out of the queue
		h.entries("0", lineEntry(h.procs[0].name, "", is("a")))
		h.wants["k0"] = []*simWait{{to: h.at(1000, 1900)}}
		h.closed(1000*msec, 1010*msec)
		h.sleep(2500*msec, 0)
		h.checkAllGone()
	}},
	{"I1: two holders of %s: ", forcePlan, func(h *handMade) { // one was released by force, from a majority or not; its turn, with another number, was evicted before
		h.grant(0, "a", 10*msec, 100*msec)
		for _, turn := range h.on(2, "a", 2*msec, 4*msec) {
			turn.number, turn.evicted, turn.whole = 1, true, 90*msec
		}
		for _, hold := range h.on(3, "a", 5*msec, 110*msec)[:either(h, 1, 2)] {
			hold.to, hold.forced = 40*msec, true
		}
		h.grant(1, "b", 50*msec, 200*msec)
		h.sleep(200*msec, 0)
		h.checkBroken()
		h.checkExclusion(h.grants)
	}},
	{"I1: two holders of %s: ", forcePlan, func(h *handMade) { // from one node by force, and evicted from another, or not
		h.grant(0, "a", 10*msec, 100*msec)
		hold := h.on(3, "a", 5*msec, 110*msec)
		hold[0].to, hold[0].forced = 45*msec, true
		hold[1].to = 40 * msec
		hold[2].to, hold[2].evicted = 40*msec, !h.bad
		h.grant(1, "b", 50*msec, 200*msec)
		h.sleep(200*msec, 0)
		h.checkBroken()
		h.checkExclusion(h.grants)
	}},
	{"I1: two holders of %s: ", forcePlan, func(h *handMade) { // by force or not, after it had been evicted and set again
		h.grant(0, "a", 10*msec, 100*msec)
		for _, hold := range h.on(2, "a", 5*msec, 8*msec) {
			hold.evicted = true
		}
		for _, hold := range h.on(2, "a", 9*msec, 40*msec) {
			hold.forced = !h.bad
		}
		h.grant(1, "b", 50*msec, 200*msec)
		h.sleep(200*msec, 0)
		h.checkBroken()
		h.checkExclusion(h.grants)
	}},
	{"force: %s was released, but", nil, func(h *handMade) {
		for _, hold := range h.on(2, "a", 5*msec, 50*msec) {
			hold.forced = !h.bad
		}
		h.checkForced(h.procs[0], &simForce{key: "k0", from: 40 * msec, to: 60 * msec}, nil)
	}},
	{"force: %s was released, but", nil, func(h *handMade) { // on a minority
		h.on(3, "a", 5*msec, allLong)
		for _, n := range h.nodes[:either(h, 1, 2)] {
			n.holds["k0"][0].to, n.holds["k0"][0].forced = 50*msec, true
		}
		h.checkForced(h.procs[0], &simForce{key: "k0", from: 40 * msec, to: 60 * msec}, nil)
	}},
	{"force: %s was released, but", nil, func(h *handMade) { // a key is there, or only the marker of what was evicted
		h.on(1, "a", 5*msec, 50*msec)[0].forced = true
		for _, n := range h.nodes[1:] {
			n.holds["k0"] = []*simHold{{value: either(h, is("b"), fakenode.Marker), from: 5 * msec, to: allLong}}
		}
		h.checkForced(h.procs[0], &simForce{key: "k0", from: 40 * msec, to: 60 * msec}, nil)
	}},
	{"force: %s was not held, but", nil, func(h *handMade) {
		h.on(either(h, 2, 1), "a", 5*msec, allLong)
		h.checkForced(h.procs[0], &simForce{key: "k0", from: 40 * msec, to: 60 * msec}, redlock.ErrNotHeld)
	}},
	{"force: ForceRelease failed", nil, func(h *handMade) {
		h.checkForced(h.procs[0], &simForce{key: "k0", to: msec}, either(h, redlock.ErrLost, redlock.ErrNotHeld))
	}},
	{"extend: %v was confirmed, but", nil, func(h *handMade) { // it was released by force shortly before, or meanwhile
		g := h.grant(0, "a", 10*msec, 900*msec)
		h.on(2, "a", 5*msec, 90*msec)
		h.sleep(100*msec, 0)
		h.checkConfirmed(g, redlock.ExtendInfo{Elapsed: time.Duration(h.at(5, 15))})
	}},
	{"adopt: %v was adopted by %.6s, and then", nil, func(h *handMade) {
		g := h.grant(0, "a", 10*msec, 100*msec)
		h.checkAdoptedAgain(g, h.grant(1, "b", 20*msec, 100*msec), h.lockOf("k1"), either(h, nil, redlock.ErrNotHeld))
	}},
	{"adopt: %v was adopted by %v, but only", nil, func(h *handMade) {
		g := h.detached()
		h.on(either(h, 1, 2), "a", 5*msec, allLong)
		h.checkAdopted(g, h.grant(1, "b", 70*msec, 200*msec))
	}},
	{"adopt: %v was detached, and its handle", nil, func(h *handMade) {
		h.checkDetached(h.detached(), is("a")[:tokenLength], true, simDetached{good: h.bad, cause: redlock.ErrReleased})
	}},
	{"adopt: %v was held, and Detach", nil, func(h *handMade) {
		h.checkDetached(h.detached(), "", true, simDetached{over: !h.bad, cause: redlock.ErrLost})
	}},
	{"adopt: %v was detached as %q", nil, func(h *handMade) {
		h.checkDetached(h.detached(), is("a")[:tokenLength], !h.bad, simDetached{cause: redlock.ErrReleased})
	}},
	{"adopt: %v was detached as %q", nil, func(h *handMade) {
		h.checkDetached(h.detached(), is(either(h, "b", "a"))[:tokenLength], true, simDetached{cause: redlock.ErrReleased})
	}},
	{"adopt: %v was detached, and not released", nil, func(h *handMade) {
		h.checkDetached(h.detached(), is("a")[:tokenLength], true, simDetached{cause: either(h, redlock.ErrLost, redlock.ErrReleased)})
	}},
	{"O1: the lock is free", nil, func(h *handMade) {
		e := lineEntry("p", "", is("a"))
		n := h.entries("0", e)
		if !h.bad {
			h.locked(is("x"))
		}
		n.checkLine(joins(e), simLine{}, nil)
	}},
	{"O1: %.6s waits, and only", nil, func(h *handMade) {
		e := lineEntry("p", either(h, "s2", "s1"), is("a"))
		n := h.entries("0", e)
		h.locked(fakenode.Marker, is("x"))
		n.checkLine(joins(e), simLine{}, nil)
	}},
	{"O11: %.6s is in the way", nil, func(h *handMade) {
		e, dead := lineEntry("p", "s1", is("a")), lineEntry("q", "", is("b"))
		n := h.entries("00", dead, e)
		n.backBy["k0 q"] = n.store.Micros() + int64(either(h, -1, 1))
		h.locked(fakenode.Marker, is("x"))
		n.checkLine(joins(e), simLine{}, nil)
	}},
	{"O2: %.6s came at", nil, func(h *handMade) {
		e := lineEntry("p", "s5", is("a"))
		n := h.entries(either(h, "0", "1"), e)
		n.store.Zadd("{k0}:line", -9, "told")
		h.locked(fakenode.Marker, is("a"))
		n.checkLine(&protocol.Request{Op: protocol.OpRelease, Key: "k0", Script: protocol.QueueReleaseScript, Queue: &protocol.QueueArgs{As: protocol.AsPasser}}, simLine{}, nil)
	}},
	{"O3: %.6s was told", nil, func(h *handMade) {
		e := lineEntry("p", "s5", is("a"))
		n := h.entries("1", e)
		h.locked(fakenode.Marker, is(either(h, "x", "a")))
		n.checkLine(joins(e), simLine{}, nil)
	}},
	{"O4: %.6s was told before", nil, func(h *handMade) {
		a, b := lineEntry("p", "", is("a")), lineEntry("q", "", is("b"))
		n := h.entries(either(h, "01", "10"), a, b)
		h.locked(is("x"))
		n.checkLine(joins(a), simLine{}, nil)
	}},
	{"O5: %.6s was not named", nil, func(h *handMade) {
		e := lineEntry("p", "s5", is("a"))
		n := h.entries("1", e)
		h.locked(fakenode.Marker, is("a"))
		val := make([]any, 8)
		val[7] = either(h, "", "1 "+is("a")[:tokenLength])
		n.checkLine(joins(e), simLine{entries: []simEntry{{member: e}}}, val)
	}},
	{"O6: %.6s is listed after", nil, func(h *handMade) {
		h.locked(fakenode.Marker, is(either(h, "a", "x")))
		r := &protocol.Request{Op: protocol.OpRelease, Key: "k0", Value: is("a"), Script: protocol.QueueReleaseScript, Queue: &protocol.QueueArgs{Entry: lineEntry("p", "s5", is("a"))}}
		h.nodes[0].checkLine(r, simLine{}, nil)
	}},
	{"O7: %.6s passed the door", nil, func(h *handMade) {
		h.locked(fakenode.Marker, is("a"))
		h.nodes[0].checkLine(&protocol.Request{Op: protocol.OpAcquireShared, Key: "k0", Value: is("a"), Script: protocol.SharedClaimScript}, simLine{door: h.bad}, nil)
	}},
	{"O9: %.6s finds the door", nil, func(h *handMade) {
		h.findsDoor(h.at(300, 900), "")
	}},
	{"O9: %.6s finds the door", nil, func(h *handMade) { // or others use its name
		h.findsDoor(300*msec, either(h, ofShared, ofDoor))
	}},
	{"O9: %.6s passed", calmPlan, func(h *handMade) {
		n := h.nodes[0]
		n.doors["k0"] = is("d")
		before := simLine{entries: []simEntry{{value: is(either(h, "d", "e"))}}}
		n.checkDoor(&protocol.Request{Op: protocol.OpAcquireShared, Key: "k0", Value: is("a")}, before, simLine{holders: map[string]simListed{is("a"): {}}})
	}},
	{"O10: %.6s of process", nil, func(h *handMade) {
		a := h.ownEntry("a")
		h.loseLine(map[string]float64{a: 1000}, "a", either(h, nil, map[string]float64{a: 1000}))
	}},
	{"O10: %.6s of process", nil, func(h *handMade) { // a younger or an older one of its process stands in the new queue
		h.loseLine(map[string]float64{h.ownEntry("a"): 1000}, "a", map[string]float64{h.ownEntry("b"): either(h, 1001., 999.)})
	}},
	{"O10: %.6s of process", nil, func(h *handMade) { // the first of its process joined again by itself, or is a newcomer
		first := h.ownEntry("a")
		h.loseLine(map[string]float64{first: 999, h.ownEntry("b"): 1000}, "b", map[string]float64{either(h, first, h.ownEntry("c")): 999})
	}},
	{"O8: %.6s of process", strictPlan, func(h *handMade) { // its process wants the lock no more
		h.entries("0", lineEntry(h.procs[0].name, "", is("a")))
		h.wants["k0"] = []*simWait{{to: h.at(100, 1900)}, {to: 50 * msec}}
		h.sleep(2000*msec, 0)
		h.checkAllGone()
	}},
	{"O8: %.6s of process", strictPlan, func(h *handMade) { // it released the lock that it got
		h.entries("0", lineEntry(h.procs[0].name, "", is("a")))
		h.wants["k0"] = []*simWait{{to: 100 * msec}}
		h.grant(0, "a", 100*msec, 9000*msec).relCalled = either(h, 200*msec, never)
		h.sleep(2000*msec, 0)
		h.checkAllGone()
	}},
}, connectRules...)

// Excuses: each history has the fault, and what excuses it or what nearly does.

// simExcused has histories of the same kind for excuses of the rules.
var simExcused = []struct {
	excuse string
	simRule
}{
	{exFirstUse, simRule{"I7: %s by process %d took", func(p *simPlan) { p.RestartGuard = 0 }, func(h *handMade) {
		h.nodes[0].marked = either(h, 10*msec, 5000*msec)
		h.sleep(5300*msec, 0)
		h.took(h.procs[0], "TryAcquire", 5000*msec, 260*time.Millisecond)
	}}},
	{exBroken, simRule{"fence: %v has token", nil, func(h *handMade) { // between the two locks, or after them
		h.grant(0, "a", 10*msec, 20*msec).fence = 2
		h.grant(1, "b", 30*msec, 40*msec).fence = 1
		h.allNew.at = []int64{h.at(35, 25)}
		h.checkFences(h.grants)
	}}},
	{exBroken, simRule{"I1: two holders of %s: ", nil, func(h *handMade) { // during the first lock, or while it was waited for
		h.grant(0, "a", 10*msec, 100*msec).call = msec
		h.on(2, "a", 8*msec, 110*msec)
		h.allNew.at = []int64{h.at(5, 30)}
		h.grant(1, "b", 50*msec, 200*msec)
		h.checkBroken()
		h.checkExclusion(h.grants)
	}}},
	{exToldBack, simRule{"O1: %.6s waits, and only", func(p *simPlan) {
		p.Faults = []simFault{{Kind: faultBack, At: 10 * time.Millisecond, By: -2 * time.Second}}
	}, func(h *handMade) { // one before it was told before that, or since
		h.sleep(30*msec, 0)
		h.nodes[0].toldAt[is("b")] = h.at(20, 5)
		e, before := lineEntry("p", "s3", is("a")), lineEntry("q", "", is("b"))
		n := h.entries("10", before, e)
		h.locked(fakenode.Marker, is("x"))
		n.checkLine(joins(e), simLine{entries: []simEntry{{member: before, told: 1}}}, nil)
	}}},
	{exToldBack, simRule{"O3: %.6s was told", func(p *simPlan) {
		p.Faults = []simFault{{Kind: faultBack, At: 10 * time.Millisecond, By: -2 * time.Second}}
	}, func(h *handMade) { // since it was told, or before
		h.sleep(30*msec, 0)
		h.nodes[0].toldAt[is("a")] = h.at(20, 5)
		h.toldAndNotListed()
	}}},
	{exToldBack, simRule{"O3: %.6s was told", func(p *simPlan) {
		p.Faults = []simFault{{Kind: faultBack, At: 10 * time.Millisecond, By: -2 * time.Second}, {Kind: faultBack, Node: 1, At: 10 * time.Millisecond, By: -2 * time.Second}}
	}, func(h *handMade) { // its turn would be over without that, or not
		h.sleep(30*msec, 0)
		h.nodes[0].toldAt[is("a")] = 5 * msec
		if h.bad {
			h.nodes[0].hand.steps[0].by = -int64(500 * time.Millisecond)
		}
		h.toldAndNotListed()
	}}},
	{exStruck, simRule{"O3: %.6s was told", nil, func(h *handMade) { // it has the lock, or another has
		h.grant(0, either(h, "b", "a"), 10*msec, 900*msec)
		h.toldAndNotListed()
	}}},
	{exStruck, simRule{"O3: %.6s was told", nil, func(h *handMade) {
		h.on(1, "a", 5*msec, 10*msec)[0].evicted = !h.bad
		h.toldAndNotListed()
	}}},
	{exStruck, simRule{"O3: %.6s was told", nil, func(h *handMade) { // another's place
		h.on(1, either(h, "b", "a"), 5*msec, 10*msec)[0].evicted = true
		h.toldAndNotListed()
	}}},
	{exStruck, simRule{"O3: %.6s was told", forcePlan, func(h *handMade) {
		h.on(1, either(h, "b", "a"), 5*msec, 10*msec)[0].forced = true
		h.toldAndNotListed()
	}}},
	{exBarred, simRule{"I7: nobody had %s for", diesAtFirstUse, func(h *handMade) { // its writer died between two nodes
		h.toldAllNew(either(h, 2, 1), 19*msec)
	}}},
	{exBarred, simRule{"I7: nobody had %s for", diesAtFirstUse, func(h *handMade) { // the others were told at once, or long after
		for _, n := range h.nodes[1:] {
			n.saysAll = h.at(25, 5000)
		}
		h.toldAllNew(1, 19*msec)
	}}},
	{exLeftOver, simRule{"I5: node %d has", func(p *simPlan) {
		p.Faults = []simFault{{Kind: faultBack, At: 10 * time.Millisecond, By: -2 * time.Second}}
	}, func(h *handMade) { // it was detached, and the node's clock was set back before the grant, or since
		h.sleep(200*msec, 0)
		g := h.grant(0, "a", h.at(20, 5), 100*msec).releasedAt(25*msec, nil)
		g.stopped, g.leftUntil = true, 100*msec
		if n := h.nodes[0]; !n.left(g.value) {
			h.violated("I5: node %d has %s, %.6s, although everybody has gone", n.i, "k0", g.value)
		}
	}}},
	{exStrays, simRule{"I7: nobody had %s for", func(p *simPlan) { p.Torn, p.NoPublish = 49, true }, func(h *handMade) { // waiters poll
		h.waitsFor(h.at(45_000, 30_000))
		h.checkProgress("k0", nil)
	}}},
	{exBarred, simRule{"I7: nobody had %s for", diesAtFirstUse, func(h *handMade) { // and long before it wrote
		h.toldAllNew(1, h.at(900, 19))
	}}},
	{exForeign, simRule{"O1: the lock is free", nil, func(h *handMade) { // under the list's name, or the door's
		e := lineEntry("p", "s5", is("a"))
		n := h.entries("0", e)
		n.occupy(simFault{Kind: faultForeign, Of: either(h, ofDoor, ofShared), Ever: true})
		n.checkLine(joins(e), simLine{}, nil)
	}}},
	{exForeign, simRule{"O1: the lock is free", nil, func(h *handMade) { // it wants the lock alone, and needs no list
		e := lineEntry("p", either(h, "", "s5"), is("a"))
		n := h.entries("0", e)
		n.occupy(simFault{Kind: faultForeign, Of: ofShared, Ever: true})
		n.checkLine(joins(e), simLine{}, nil)
	}}},
	{exForeign, simRule{"O1: the lock is free", nil, func(h *handMade) { // but one that was told, stands before it and shares does
		first, e := lineEntry("p", either(h, "", "s5"), is("a")), lineEntry("q", "", is("b"))
		h.on(1, "a", 5*msec, 10*msec)[0].evicted = true
		n := h.entries("10", first, e)
		n.occupy(simFault{Kind: faultForeign, Of: ofShared, Ever: true})
		n.checkLine(joins(e), simLine{}, nil)
	}}},
	{exForeign, simRule{"I5: node %d has", strictPlan, func(h *handMade) { // the list of those that shared it is gone, and others have its name
		n := h.nodes[0]
		n.occupy(simFault{Kind: faultForeign, Of: either(h, ofDoor, ofShared), For: time.Second})
		n.store.Set("k0", fakenode.Marker, 5000, nil)
		h.settle(context.Background())
	}}},
	{exForeign, simRule{"O8: %.6s of process", strictPlan, func(h *handMade) { // others had the lock's key when another was to leave, or it
		n := h.entries("0", h.ownEntry("a"))
		h.wants["k0"] = []*simWait{{to: 100 * msec}}
		n.occupy(simFault{Kind: faultForeign, Of: ofLock, For: time.Second})
		r := joins(h.ownEntry(either(h, "b", "a")))
		r.Op, r.Script, r.Whole = protocol.OpRelease, protocol.QueueReleaseScript, true
		n.mu.Lock()
		_, err := n.do(r)
		n.mu.Unlock()
		require.ErrorContains(h.t, err, "WRONGTYPE")
		h.sleep(2000*msec, 0)
		h.checkAllGone()
	}}},
	{exStruck, simRule{"O1: %.6s waits, and only", nil, func(h *handMade) { // it wants the lock alone, or shares it
		e, before := lineEntry("p", "s3", is("a")), lineEntry("q", either(h, "s0", ""), is("b"))
		n := h.entries("10", before, e)
		h.on(1, "b", 5*msec, 10*msec)[0].forced = true
		h.locked(fakenode.Marker, is("x"), is("y"))
		n.checkLine(joins(e), simLine{entries: []simEntry{{member: before, told: 1}}}, nil)
	}}},
	{exStruck, simRule{"O1: %.6s waits, and only", nil, func(h *handMade) { // it wants one of fewer, or of as many
		e, before := lineEntry("p", "s3", is("a")), lineEntry("q", either(h, "s3", "s2"), is("b"))
		n := h.entries("10", before, e)
		h.on(1, "b", 5*msec, 10*msec)[0].evicted = true
		h.locked(fakenode.Marker, is("x"), is("y"))
		n.checkLine(joins(e), simLine{entries: []simEntry{{member: before, told: 1}}}, nil)
	}}},
	{exDoor, simRule{"I6: an attempt for %s said that it is held", nil, func(h *handMade) { // shut until the call, or after it
		h.on(1, "b", 5*msec, 50*msec)
		h.nodes[1].doorUntil["k0"] = h.at(10, 15)
		h.checkHeld(h.procs[0], "k0", 10*msec, 20*msec)
	}}},
	{exNeverHad, simRule{"I6: the release of %v is confirmed", nil, func(h *handMade) { // one node removed it, and the others never had it, or still do
		g := h.grant(0, "a", 10*msec, 100*msec).releasedAt(50*msec, nil)
		h.on(either(h, 3, 1), "a", 5*msec, 90*msec)[0].to = 50 * msec
		h.nodes[0].holds["k0"][0].released = true
		h.checkByWhoseHand(g)
	}}},
	{exKeptByHand, simRule{"I6: the release of %v is confirmed", nil, func(h *handMade) {
		g := h.grant(0, "a", 10*msec, 100*msec).releasedAt(50*msec, nil)
		g.keeps = !h.bad
		h.on(3, "a", 5*msec, 90*msec)
		h.checkByWhoseHand(g)
	}}},
}

// toldAndNotListed has a waiter that shares be told that it is its turn, and not be listed.
func (h *handMade) toldAndNotListed() {
	e := lineEntry("p", "s5", is("a"))
	n := h.entries("1", e)
	h.locked(fakenode.Marker, is("x"))
	n.checkLine(joins(e), simLine{entries: []simEntry{{member: e, told: 1}}}, nil)
}

// An excuse is used where it applies, and what is nearly like it is none.
func TestSimExcusesExcuseNoMore(t *testing.T) {
	for _, c := range simExcused {
		broken, said := byHand(t, c.plan, true, c.make)
		require.True(t, slices.ContainsFunc(broken, func(f string) bool { return strings.HasPrefix(f, c.rule) }), "%s excuses more than it is for: %v", c.excuse, said)
		used := 0
		_, said = byHand(t, c.plan, false, func(h *handMade) {
			c.make(h)
			used = h.tallies.of[c.excuse]
		})
		require.Empty(t, said, "%s does not excuse", c.excuse)
		require.Positive(t, used, "%s is not used", c.excuse)
	}
}

// findsDoor has a newcomer find a door that a waiter shut which has gone since, and others take a name; "": none.
func (h *handMade) findsDoor(gone int64, taken string) {
	n := h.nodes[0]
	n.doors["k0"] = strings.Repeat("d", tokenLength) + "@process-0"
	h.wants["k0"] = []*simWait{{to: gone, mode: -1}}
	h.sleep(1000*msec, 0)
	if taken != "" {
		n.occupy(simFault{Kind: faultForeign, Of: taken, Ever: true})
	}
	n.checkDoor(&protocol.Request{Op: protocol.OpAcquireShared, Key: "k0", Value: is("a")}, simLine{door: true}, simLine{})
}

func evicting(p *simPlan) { p.Faults = []simFault{{Kind: faultEvict, Of: ofLock}} }

func unheardPlan(p *simPlan) {
	calmPlan(p)
	p.Faults = []simFault{{Kind: faultUnheard, At: 40 * time.Millisecond, For: 40 * time.Millisecond}}
}

func wellPlan(p *simPlan) { p.Regime, p.Until = simWell, time.Second }

func contextPlan(p *simPlan) { p.Contexts = true }

func forcePlan(p *simPlan) { p.Force = true }

// closed has the first process's Redlock be closed.
func (h *handMade) closed(called, returned int64) {
	h.procs[0].closing.called.Store(called)
	h.procs[0].closing.returned.Store(returned)
}

// contextEnds is the end of a context of a lock.
func (h *handMade) contextEnds(g *simGrant, cause error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	h.contextEnded(g, &simContext{Context: ctx})
}

// detached is a lock that was detached.
func (h *handMade) detached() *simGrant {
	g := h.grant(0, "a", 10*msec, 100*msec)
	g.relCalled, g.stopped, g.detaching = 50*msec, true, true
	return g
}

// settledBesideAKey is the end of a run with a key on all nodes that nothing will take away.
func (h *handMade) settledBesideAKey() {
	if h.bad {
		for _, n := range h.nodes {
			n.store.Keys["k0"] = &fakenode.Key{Str: is("x")}
		}
	}
	h.settle(context.Background())
}

// byHand makes a history, and returns the rules that it breaks and what is said of them.
func byHand(t *testing.T, plan func(p *simPlan), bad bool, history func(h *handMade)) (broken, said []string) {
	synctest.Test(t, func(t *testing.T) {
		p := &simPlan{
			Seed: 1, TTL: time.Second, NodeTimeout: 50 * time.Millisecond, RestartGuard: -1,
			Delay: 100 * time.Microsecond, Jitter: 100 * time.Microsecond,
			Nodes: make([]simNodePlan, 3), Fenced: make([]bool, 1), Processes: make([]simProcessPlan, 2),
		}
		for i := range p.Processes {
			p.Processes[i].Clients = make([]simClientPlan, 1)
		}
		if plan != nil {
			plan(p)
		}
		w := newSimWorld(p, nil)
		history(&handMade{w, t, bad})
		w.mu.Lock()
		broken, said = w.broken, w.bad
		w.mu.Unlock()
		w.end(func() {})
	})
	return broken, said
}

func TestSimCheckerSeesEachFault(t *testing.T) {
	for _, c := range simRules {
		broken, said := byHand(t, c.plan, true, c.make)
		require.True(t, slices.ContainsFunc(broken, func(f string) bool { return strings.HasPrefix(f, c.rule) }), "%s: a history with that fault passes: %v", c.rule, said)
		_, said = byHand(t, c.plan, false, c.make)
		require.Empty(t, said, "%s: the history without the fault", c.rule)
	}
}

// A rule that is added to the checker needs a history above.
func TestSimCheckerHasAHistoryForEachRule(t *testing.T) {
	rules, kinds := explained(t), make(map[string]bool)
	found := named(t, `\b(?:violated|bad)\("([^"]+)"`)
	for _, format := range found {
		require.True(t, slices.ContainsFunc(simRules, func(c simRule) bool { return strings.HasPrefix(format, c.rule) }), "no history shows that this rule can fail: %s", format)
		kind, _, _ := strings.Cut(format, ":")
		kind = strings.TrimSuffix(kind, " of process %d on node %d hits connection %d of process %d, which is in use")
		require.Contains(t, rules, kind, "rules.txt does not explain %s", format)
		kinds[kind] = true
	}
	require.Greater(t, len(found), 60)
	require.Len(t, kinds, len(rules), "rules.txt has %v, the checker %v", rules, kinds)
}

// explained are the paragraphs of rules.txt, by the rule.
func explained(t *testing.T) map[string]string {
	text, err := os.ReadFile("rules.txt")
	require.NoError(t, err)
	rules := make(map[string]string)
	for _, p := range regexp.MustCompile(`(?m)^(\w[^:\n]*): (.*\n(?:    .*\n)*)`).FindAllStringSubmatch(string(text), -1) {
		if strings.Contains(p[2], "\n    killed") {
			rules[strings.TrimSpace(p[1])] = p[2]
		}
	}
	return rules
}

// Each excuse is explained beside its rule, with what it might hide and what shows that it does not.
func TestSimExcusesAreExplained(t *testing.T) {
	source, err := os.ReadFile("rules_test.go")
	require.NoError(t, err)
	named := make(map[string]bool)
	for rule, text := range explained(t) {
		excuses := regexp.MustCompile(`\bex[A-Z]\w*`).FindAllString(text, -1)
		require.Equal(t, len(excuses) > 0, strings.Contains(text, "\n    hides "), rule)
		for _, name := range excuses {
			named[name] = true
		}
	}
	declared := regexp.MustCompile(`(?m)^\t(ex[A-Z]\w*) += "`).FindAllStringSubmatch(string(source), -1)
	require.NotEmpty(t, declared)
	for _, d := range declared {
		require.Contains(t, named, d[1])
		delete(named, d[1])
	}
	require.Empty(t, named, "there are no such excuses")
}
