package sim_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
	"github.com/quorumlock/redlock/internal/testing/history"
	"github.com/quorumlock/redlock/internal/tick"
)

// simGrant is a lock that a client got, and what it may rely on by it.
type simGrant struct {
	proc      *simProcess
	client    int
	key       string
	lock      *redlock.Lock
	within    context.Context // of the function of a Do
	value     string
	fence     uint64 // 0: none
	shared    bool   // with others
	number    int64  // of a permit, from 1
	permits   int64  // how many there are
	call, ret int64
	promises  []simPromise
	lostAt    int64 // when the library said that it is lost
	brokenAt  int64 // when the nodes broke what the lock assumes of them, see brokenBy
	relCalled int64
	relRet    int64
	relErr    error
	told      simReleased // what Hooks.Released said of it, also where no caller is told
	mu        sync.Mutex  // of promises and longer
	longer    bool        // the last extend that was told has succeeded
	mostUntil int64       // when its contexts end by WithMaxHold
	renewed   bool        // its holder was promised that it is
	abandoned bool        // never released
	keptAt    int64       // when a release that keeps the lock returned; 0: there was none
	detaching bool        // Detach was called, with the lock held
	heir      *simGrant   // which went on with it; nil: none did
	stopped   bool        // its holder stopped, and told nobody
	leftUntil int64       // when what nobody holds is gone; 0: it was given up in no such way
	bridge    int64       // when another process went on with it, without a gap; 0: none did
	keeps     bool        // others are to be kept from it after its release
	contexts  []*simContext
}

// simPromise is an end of validity that was promised at some time, in true time.
type simPromise struct {
	at, until int64
	told      tick.Instant // the same end, in the process's clocks
}

// released notes when a release was called, which hooks of renewals and queues ask for.
func (g *simGrant) released(at int64) {
	g.proc.w.mu.Lock()
	defer g.proc.w.mu.Unlock()
	g.relCalled = at
}

// end is when the holder ceased to rely on the lock.
func (g *simGrant) end() int64 {
	return min(g.promises[len(g.promises)-1].until, g.lostAt, g.relCalled, g.proc.killedAt, g.brokenAt)
}

// claimed is until when nobody else may have had the lock.
func (g *simGrant) claimed() int64 {
	if g.brokenAt < never {
		return g.end()
	}
	return max(g.end(), g.bridge)
}

func (g *simGrant) String() string {
	return fmt.Sprintf("%.6s of client %d.%d, granted at %.6f ms", g.value, g.proc.i, g.client, ms(g.ret))
}

// isOver is R8 in the checker's own words.
func isOver(end, now tick.Instant) bool { return now.Mono >= end.Mono || now.Wall >= end.Wall }

// notedExtend notes what an extend came to.
func (g *simGrant) notedExtend(i redlock.ExtendInfo) {
	g.mu.Lock()
	g.longer = i.Err == nil
	g.mu.Unlock()
	if i.Err == nil {
		g.promised()
		g.checkExtended(i)
	}
}

// checkExtended: a lock that is extended is valid for as long as was asked for, but for what clocks
// may differ. That it is so for no less long than before, the lock looks at itself.
func (g *simGrant) checkExtended(i redlock.ExtendInfo) {
	lock := inside.StateOf(g.lock)
	now := g.proc.Now()
	if lock.Over || g.proc.w.dead(g.proc) {
		return
	}
	// Where the wall clock was set ahead meanwhile, or went on while the machine slept, the former end may be the
	// later one by both clocks.
	t := g.proc.w.t()
	from := t - int64(i.Elapsed*102/100)
	set := slices.ContainsFunc(g.proc.wall.steps, func(s simStep) bool { return s.by > 0 && s.at <= t && s.at > from }) ||
		slices.ContainsFunc(g.proc.asleep, func(f simFault) bool { return f.Kind == faultSuspend && int64(f.At) <= t && int64(f.At+f.For) > from })
	if left := time.Duration(lock.Until.Mono-now.Mono) + i.Elapsed; left < i.TTL*98/100-5*time.Millisecond && !g.proc.w.excused(exSetMeanwhile, set) {
		g.proc.w.violated("extend: %v was extended for %v, and is valid for %v", g, i.TTL, left)
	}
}

// promised notes what the lock promises now.
func (g *simGrant) promised() {
	g.mu.Lock() // a renewal and its holder may both have extended
	defer g.mu.Unlock()
	told := inside.StateOf(g.lock).Until
	until := g.proc.trueEnd(told)
	t := g.proc.w.t()
	// A clock that was set past the end, and back before anybody looked, has ended nothing.
	if n := len(g.promises); n > 0 && g.promises[n-1].until <= t && !g.proc.w.excused(exClockThereAndBack, !isOver(g.promises[n-1].told, g.proc.Now())) {
		g.proc.w.violated("R7: %v was extended after its validity had ended at %.6f ms", g, ms(g.promises[n-1].until))
	}
	g.promises = append(g.promises, simPromise{t, until, told})
}

// The hooks of a process.

func (p *simProcess) extended(_ context.Context, i redlock.ExtendInfo) {
	w := p.w
	w.mu.Lock()
	g := w.byToken[i.Token]
	w.mu.Unlock()
	if g != nil {
		g.notedExtend(i)
		w.checkRenewal(g, i)
		w.checkClosedRenewal(g, i)
		w.checkConfirmed(g, i)
		w.reached("an extend finds a lock that was released by force", errors.Is(i.Err, redlock.ErrNotHeld) && w.forced(g))
	}
	if i.Renewal {
		p.renewed(g, i)
	}
	w.reached("an extend is confirmed after Until", errors.Is(i.Err, redlock.ErrExpired))
	w.reached("an extend finds the lock lost", errors.Is(i.Err, redlock.ErrNotHeld))
	w.reached("an extend finds no quorum", errors.Is(i.Err, redlock.ErrNoQuorum))
}

func (p *simProcess) lost(_ context.Context, i redlock.LostInfo) {
	w := p.w
	w.mu.Lock()
	g := w.byToken[i.Token]
	first := g != nil && g.lostAt == never
	if first {
		g.lostAt = w.t()
	}
	w.mu.Unlock()
	if first {
		w.reached("a lock is lost", true)
		w.checkLoss(g, i.Err)
		if errors.Is(i.Err, redlock.ErrExpired) {
			g.mu.Lock()
			over := g.promises[len(g.promises)-1].until // by either clock
			g.mu.Unlock()
			w.checkRenewedInTime(g, min(p.Now().Mono, p.mono.at(over)), w.plan.NodeTimeout)
		}
	}
}

// granted registers a lock and checks what can be seen at this moment.
func (w *simWorld) granted(p *simProcess, client int, key string, call int64, l *redlock.Lock) *simGrant {
	t, lock := w.t(), inside.StateOf(l)
	g := &simGrant{
		proc: p, client: client, key: key, lock: l, value: lock.Value, call: call, ret: t,
		lostAt: never, brokenAt: never, relCalled: never, mostUntil: never, renewed: inside.TermsOf(l).Renew, shared: inside.TermsOf(l).Shared, number: int64(lock.Number), permits: int64(inside.TermsOf(l).Permits),
	}
	if inside.TermsOf(l).Fencing {
		g.fence = l.Fence()
		w.checkFenceOfTime(g)
	}
	if most := inside.TermsOf(l).MaxHold; most > 0 {
		g.mostUntil = p.trueEnd(inside.StateOf(l).GrantedAt.Add(most))
	}
	if t < p.killedAt {
		g.promised()
		holders := 0
		for _, n := range w.nodes {
			n.mu.Lock()
			if n.had(key, g.value, g.number, t) {
				holders++
			}
			n.mu.Unlock()
		}
		switch {
		case isOver(lock.Until, p.Now()):
			w.violated("R7: %v, when its validity was over", g)
		case holders < p.quorum() && !w.brokenNow(g):
			w.violated("I2: %v, but only %d nodes have it", g, holders)
		}
	}
	w.mu.Lock()
	if w.ended || t >= p.killedAt {
		w.mu.Unlock()
		return nil
	}
	w.reached("a grant", true)
	w.grantedIn(g)
	w.grants = append(w.grants, g)
	w.byToken[l.Token()] = g
	w.mu.Unlock()
	g.mu.Lock()
	until := g.promises[0].until
	g.mu.Unlock()
	w.happened(func() string {
		return fmt.Sprintf("client %d.%d has %s by %.6s until %.6f ms", p.i, client, key, g.value, ms(until))
	},
		1, hashOf(g.value), uint64(until), g.fence)
	return g
}

// check looks at the whole run when it is over.
func (w *simWorld) check() {
	for _, g := range w.grants {
		g.mu.Lock() // whatever was noted of it comes before
		//lint:ignore SA2001 the race detector learns the order from it
		g.mu.Unlock()
	}
	w.checkBroken()
	w.checkConnects()
	w.checkLeftBehind()
	w.checkAllGone()
	byKey := make(map[string][]*simGrant)
	for _, g := range w.grants {
		byKey[g.key] = append(byKey[g.key], g)
	}
	for _, key := range slices.Sorted(maps.Keys(byKey)) {
		grants := byKey[key]
		slices.SortFunc(grants, func(a, b *simGrant) int { return int(a.ret - b.ret) })
		if w.plan.kind(key) == 0 {
			w.checkExclusion(grants)
		} else {
			w.checkSharing(grants)
		}
		w.checkProgress(key, grants)
		w.checkShareProgress(key, grants)
		w.checkFences(grants)
		w.checkWell(key, grants)
		// With names of their own processes make several lines, and what somebody holds who is
		// dead or cut off lapses at a time that whoever looks then finds out first.
		// What is handed over is not free.
		if w.plan.Calm && !w.plan.Names && !w.plan.HandOvers && w.plan.MinHold == 0 && !w.disturbed() {
			if w.plan.kind(key) == 0 {
				w.checkOrder(grants)
			} else {
				w.checkToldInTime(grants)
			}
		}
		for _, g := range grants {
			w.checkMajority(g)
			w.checkRelease(g)
			w.checkByWhoseHand(g)
			w.checkMinHold(g, grants)
			w.checkContexts(g)
		}
	}
}

// checkExclusion is I1.
func (w *simWorld) checkExclusion(grants []*simGrant) {
	var last *simGrant
	for _, g := range grants {
		if g.end() <= g.ret {
			continue
		}
		if last != nil && g.ret < last.claimed() {
			w.violated("I1: two holders of %s: %v, while %v held until %.6f ms", g.key, g, last, ms(last.claimed()))
		}
		if last == nil || g.claimed() > last.claimed() {
			last = g
		}
	}
}

// checkMajority is I2: at every moment on which the holder relies, a majority of nodes has
// its value, or would have it had it not forgotten.
func (w *simWorld) checkMajority(g *simGrant) {
	type edge struct {
		at         int64
		by, really int
	}
	var edges []edge
	end := g.end()
	if end <= g.ret {
		return
	}
	for _, n := range w.nodes {
		for _, h := range n.holds[g.key] {
			if h.value == g.value && h.number == g.number && h.from < end && h.to > g.ret {
				from, to := max(h.from, g.ret), min(h.to, end)
				edges = append(edges, edge{from, 1, 1})
				if h.forgotten > 0 && h.forgotten < to {
					edges = append(edges, edge{max(h.forgotten, from), 0, -1}, edge{to, -1, 0})
				} else {
					edges = append(edges, edge{to, -1, -1})
				}
			}
		}
	}
	edges = append(edges, edge{g.ret, 0, 0}, edge{end, 0, 0})
	slices.SortFunc(edges, func(a, b edge) int { return int(a.at-b.at)*4 - a.by + b.by })
	holders, really, forgot := 0, 0, false
	for i, e := range edges {
		holders += e.by
		really += e.really
		if i+1 == len(edges) || edges[i+1].at == e.at || e.at >= end {
			continue
		}
		if holders < g.proc.quorum() {
			w.violated("I2: %v and relied on until %.6f ms, but from %.6f ms on only %d nodes had it", g, ms(end), ms(e.at), holders)
			return
		}
		forgot = forgot || really < g.proc.quorum()
	}
	w.excused(exForgot, forgot)
}

// checkFences: a later grant has a greater token. One of which a clock, or an eviction, took the majority
// before its client was told may come after that of the next holder; resources refuse it. Where counters
// are evicted, see uncounted. A fleet that looks new waits for nothing, so where all nodes lost their counters
// the next token is that of a clock.
func (w *simWorld) checkFences(grants []*simGrant) {
	var last *simGrant
	for _, g := range grants {
		if g.fence == 0 {
			continue
		}
		if last != nil && g.fence <= last.fence &&
			(w.excused(exBroken, g.brokenAt <= g.ret || w.newBetween(last.call, g.ret)) || w.excused(exCounter, w.uncounted(last, g))) {
			continue
		}
		if last != nil && g.fence <= last.fence {
			w.violated("fence: %v has token %d, after %v had %d", g, g.fence, last, last.fence)
		}
		last = g
	}
}

// simPlace is when a waiter joined the queue, in true time, since when it stands there, which is earlier if it
// waited in its process or in another node's queue before, and the node that kept it last, with its arrival there.
type simPlace struct {
	came, since int64
	node        int
	arrival     int64 // by the node's clock
}

// setsBack reports whether the clock of a server or process is set back.
func (w *simWorld) setsBack() bool {
	return slices.ContainsFunc(w.plan.Faults, func(f simFault) bool { return f.Kind == faultBack })
}

// checkOrder: in a run without faults the line is served in order, and at once.
func (w *simWorld) checkOrder(grants []*simGrant) {
	w.checkTurns(grants)
	trip := int64(w.plan.Delay + w.plan.Jitter)
	// Newcomers may split the votes, which costs some round trips and short pauses. A timer
	// that stands in for a lost notice takes a quarter of the grace or more.
	limit := 24*trip + int64(60*time.Millisecond)
	if limit > int64(protocol.LeastReservation)/4 || len(w.nodes) < 3 || w.disturbed() {
		return
	}
	usual := limit
	if w.plan.NoPublish || w.plan.Deaf > 0 { // a waiter whose turn came to nothing is not told of the release that it waits for
		limit += int64(max(protocol.LeastReservation, 4*w.plan.NodeTimeout)) / 2
	}
	for i, g := range grants {
		if i == 0 || w.places[g.value].came == 0 {
			continue
		}
		free := min(grants[i-1].relCalled, grants[i-1].end())
		if took := g.ret - w.nodes[w.places[g.value].node].heardFrom(g.proc, max(free, g.call)); took > usual && free == grants[i-1].relCalled && !w.excused(exNoNotices, took <= limit) {
			w.violated("wake-up: %v had to wait for %.3f ms after a release, %.3f ms is enough", g, ms(took), ms(limit))
		}
	}
}

// takesToJoin is how long it takes until a waiter that was just called stands in a queue, or waits
// for a place there. In a fleet's first use it tries for as long as it waits for a node before it asks for one.
func (w *simWorld) takesToJoin(call int64) int64 {
	takes := 24*int64(w.plan.Delay+w.plan.Jitter) + int64(60*time.Millisecond)
	if slices.ContainsFunc(w.nodes, func(n *simNode) bool { return n.saysAll > call }) {
		takes += int64(w.plan.NodeTimeout)
	}
	return takes
}

// checkTurns: of two waiters of one queue the one that joined first and has waited for longer is granted first,
// none has waited since before it was called, and each brings along the time that it has waited.
func (w *simWorld) checkTurns(grants []*simGrant) {
	var last *simGrant
	for _, g := range grants {
		at := w.places[g.value]
		if at.came == 0 {
			continue // it did not wait
		}
		if last != nil && at.node != w.places[last.value].node {
			return
		}
		if most := 4*int64(w.plan.Delay+w.plan.Jitter) + (at.came-at.since)/50; at.since < g.call-most {
			w.violated("order: %v stands in the queue since %.6f ms, before it was called", g, ms(at.since))
		} else if at.since > g.call+w.takesToJoin(g.call) {
			w.violated("order: %v waits since %.6f ms, and stands in the queue since %.6f ms", g, ms(g.call), ms(at.since))
		}
		if last != nil && at.came < w.places[last.value].came && at.arrival < w.places[last.value].arrival {
			w.violated("order: %v was granted before %v, who stood in line already when it came", last, g)
		}
		last = g
	}
}

// checkProgress: once nothing goes wrong any more, a lock that nobody has is soon had by one
// of those who wait for it.
func (w *simWorld) checkProgress(key string, grants []*simGrant) {
	quiet := w.quiet()
	for _, g := range w.waits[key] {
		// The lock was free from the end of the grant before this one's end, or of the wait.
		free, left := g.from, int64(0)
		for _, o := range grants {
			if o.ret < g.to {
				free = max(free, min(o.end(), g.to), min(o.relRet, g.to))
				left = max(left, min(w.freeFromLeft(o), g.to))
			}
		}
		cutOff := w.plan.Calm && w.cutOff(g.proc) // it cannot have the lock
		free, limit := w.freeFor(quiet, g.to, free, cutOff, simExcuse{exBarred, w.barredUntil(key)}, simExcuse{exLeftOver, left})
		if g.to-free > limit {
			w.violated("I7: nobody had %s for %.3f ms while client %d.%d waited for it until %.6f ms", key, ms(g.to-free), g.proc, g.client, ms(g.to))
		}
	}
}

func (w *simWorld) cutOff(proc int) bool {
	return slices.ContainsFunc(w.plan.Faults, func(f simFault) bool { return f.Kind == faultCut && f.Proc == proc })
}

// disturbed reports whether one of a calm plan's processes died, or was cut off.
func (w *simWorld) disturbed() bool {
	return slices.ContainsFunc(w.plan.Faults, func(f simFault) bool { return f.Kind != faultBack && f.Kind != faultUnheard })
}

// simWait is an Acquire that waited, whatever became of it.
type simWait struct {
	proc, client int
	from, to     int64
	mode         int64 // how it wants the lock, see wayOf
}

// checkRelease is I6 for releases.
func (w *simWorld) checkRelease(g *simGrant) {
	if g.relCalled == never || g.relRet == 0 || g.relRet >= g.proc.killedAt {
		return
	}
	free := 0
	for _, n := range w.nodes {
		deleted, lacked := false, false
		for _, h := range n.holds[g.key] {
			deleted = deleted || h.value == g.value && (h.released && h.to <= g.relRet || h.shortened > 0 && h.shortened <= g.relRet+w.minHoldLeft(g.value))
			// A request that came twice can set it again after a release that found nothing.
			lacked = lacked || h.value == g.value && h.from > g.relCalled && h.from <= g.relRet && !n.has(g.key, g.value, h.from-1)
		}
		if deleted || lacked && errors.Is(g.relErr, redlock.ErrNotHeld) || !n.has(g.key, g.value, g.relRet) {
			free++
		}
	}
	need := w.needsFree(g)
	switch {
	case g.relErr == nil && free < need:
		w.violated("I6: release of %v succeeded, but only %d nodes were free of it", g, free)
	case errors.Is(g.relErr, redlock.ErrNotHeld) && free < need:
		w.violated("I6: release of %v said that it was not held, but only %d nodes were free of it", g, free)
	}
}

// needsFree is how many nodes must be free of a lock for what its release said.
func (w *simWorld) needsFree(g *simGrant) int {
	switch quorum := g.proc.quorum(); {
	case g.relErr == nil:
		return quorum
	case errors.Is(g.relErr, redlock.ErrNotHeld):
		return len(w.nodes) - quorum + 1
	default:
		return 0
	}
}

// checkHeld is I6 for one round that failed with ErrHeld.
func (w *simWorld) checkHeld(p *simProcess, key string, call, ret int64) {
	taken, doors := 0, 0
	for _, n := range w.nodes {
		n.mu.Lock()
		switch {
		case slices.ContainsFunc(n.holds[key], func(h *simHold) bool {
			// An entry of the list outlives its lease, which is not over any more where the clock is set back.
			return h.from <= ret && (h.to > call || h.shared && h.expire > 0 && h.to+n.setBackBetween(h.to, call) > call)
		}):
			taken++
		case n.doorUntil[key] > call:
			doors++
		}
		n.mu.Unlock()
	}
	if need := len(w.nodes) - p.quorum() + 1; taken < need && !w.excused(exDoor, taken+doors >= need) {
		w.violated("I6: an attempt for %s said that it is held, but only %d nodes had it meanwhile", key, taken)
	}
}

// took checks that an operation returned in time: limit, and whatever the process slept.
func (w *simWorld) took(p *simProcess, what string, from int64, limit time.Duration) {
	t := w.t()
	slept := int64(0)
	for _, f := range p.asleep {
		slept += max(0, min(t, int64(f.At+f.For)+2000)-max(from, int64(f.At)))
	}
	limit += limit/100 + 100*time.Microsecond + 8*(w.plan.Delay+w.plan.Jitter)
	w.excused(exSlept, t < p.killedAt && t-from > int64(limit) && t-from-slept <= int64(limit))
	over := t - from - slept
	first := what == "TryAcquire" && over > int64(limit) && over <= int64(limit+w.plan.NodeTimeout) && w.wasNew(from)
	if over > int64(limit) && t < p.killedAt && !w.excused(exFirstUse, first) {
		w.violated("I7: %s by process %d took %.3f ms, which is more than %v", what, p.i, ms(over), limit)
	}
}

// wasNew reports whether the fleet was new at a time, or less than FirstUse before.
func (w *simWorld) wasNew(at int64) bool {
	if w.plan.RestartGuard < 0 {
		return false
	}
	if slices.ContainsFunc(w.allNew.times(), func(t int64) bool { return t > at-int64(guard.FirstUse) }) {
		return true
	}
	return !slices.ContainsFunc(w.nodes, func(n *simNode) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.marked > 0 && n.marked < at-int64(guard.FirstUse)
	})
}

// leftBehind checks what is on the nodes when everybody has gone and time has passed.
func (w *simWorld) leftBehind(when string) {
	for _, n := range w.nodes {
		n.mu.Lock()
		for _, key := range slices.Sorted(maps.Keys(n.store.Keys)) {
			k := n.store.Get(key)
			if k == nil || k.Other != "" || k.Zset == nil && !n.isLock(key) && !n.isDoor(key) {
				continue
			}
			w.violated("I5: node %d has %s, %.6s, %s", n.i, key, k.Str, when)
		}
		n.mu.Unlock()
	}
}

// history is the run for a checker of histories.
func (w *simWorld) history(hw *history.Writer) error {
	var errs []error
	write := func(op history.Op) { errs = append(errs, hw.Write(op)) }
	for _, g := range w.grants {
		over := min(g.lostAt, g.proc.killedAt, g.brokenAt)
		if g.leftUntil != 0 { // handed over: from then on another has it
			over = min(over, g.relCalled)
		}
		until := min(g.promises[0].until, over)
		write(history.Op{
			Client: g.proc.i*100 + g.client, Kind: history.Acquire, Key: g.key, Token: g.lock.Token(),
			Call: g.call, Return: g.ret, Outcome: history.OK, Until: until, Fence: g.fence,
			Mode: g.mode(), Permit: int(g.number), Permits: int(g.permits), From: inside.StateOf(g.lock).AdoptedFrom,
		})
		for i, p := range g.promises[1:] {
			if p.until > g.promises[i].until && p.at < over {
				write(history.Op{
					Client: g.proc.i*100 + g.client, Kind: history.Extend, Key: g.key, Token: g.lock.Token(),
					Call: p.at - 1, Return: p.at, Outcome: history.OK, Until: min(p.until, over),
				})
			}
		}
		op := history.Op{
			Client: g.proc.i*100 + g.client, Kind: history.Release, Key: g.key, Token: g.lock.Token(),
			Call: g.relCalled, Return: g.relRet, Outcome: history.OK,
		}
		switch {
		case g.relCalled == never || g.relRet == 0:
			continue
		case errors.Is(g.relErr, redlock.ErrNotHeld):
			op.Outcome = history.NotHeld
		case g.relErr != nil:
			op.Outcome = history.Unknown
		}
		write(op)
	}
	return errors.Join(errs...)
}

// simClient is a user: it takes locks and gives them back, and what it does in between is
// up to the seed.
type simClient struct {
	w    *simWorld
	p    *simProcess
	i    int
	plan simClientPlan
	done chan struct{}
	// began is when its call began, or its term ended.
	began int64
}

func (c *simClient) roll(op, salt int) uint64 {
	return c.w.mix('c', uint64(c.p.i), uint64(c.i), uint64(op), uint64(salt))
}

func (c *simClient) within(op, salt int, d time.Duration) time.Duration {
	return time.Duration(c.roll(op, salt) % uint64(d+1))
}

func (c *simClient) pause(d time.Duration) {
	c.w.sleep(int64(d), uint64(c.p.i*64+c.i))
	c.p.gate()
}

func (c *simClient) run(ctx context.Context) {
	defer close(c.done)
	if start := c.w.plan.Processes[c.p.i].Start; start > 0 {
		c.pause(start)
		c.w.reached("a process starts while others run", c.p.killedAt == never)
	}
	for op := range c.plan.Ops {
		if c.plan.Every > 0 {
			c.idles(ctx, op)
			continue
		}
		c.pause(c.within(op, 0, c.w.plan.longestPause()))
		if ctx.Err() != nil || c.over() {
			return
		}
		if c.p.closedAt() != never {
			c.afterClose(ctx)
			return
		}
		c.began = c.w.t()
		c.begins("an acquire")
		c.once(ctx, op)
	}
}

func (c *simClient) once(ctx context.Context, op int) {
	w, p := c.w, c.p
	if w.plan.Pairs && c.roll(op, 60)%3 == 0 {
		c.pair(ctx, op)
		return
	}
	if w.plan.Force && c.roll(op, 300)%3 == 0 {
		c.force(ctx, op)
		return
	}
	key, opts := c.key(), c.lockOptions()
	renews := c.roll(op, 1)%3 == 0
	if renews {
		opts = append(opts, redlock.WithRenewal())
	}
	opts = append(append(append(opts, c.minHold(op)...), c.maxHold(op)...), c.ownTTL(op)...)
	m := c.mutex(op, opts)
	inside.Allow(m) // a NodeTimeout above a quarter of the TTL, which makes rare things frequent
	kind := c.roll(op, 2) % 6
	if w.plan.Calm || w.isWell(p, w.t()) {
		kind = 2 + kind%2
	}
	call := w.t()
	over := w.wanted(c.p, m)
	limit := attemptLimit(m)
	var (
		lock  *redlock.Lock
		err   error
		dying = ctx
		ends  = never
	)
	switch kind {
	case 0, 1: // one round, which may be given up in the middle
		stop := func() {}
		if kind == 1 {
			longest := w.plan.NodeTimeout
			if c.roll(op, 10)%2 == 0 { // about when the votes come
				longest = 4 * (w.plan.Delay + w.plan.Jitter)
			}
			dying, stop, ends = c.dies(ctx, c.within(op, 3, longest))
		}
		if c.roll(op, 9)%6 == 0 {
			dying = canceledContext
		}
		asked := p.requests()
		lock, err = m.TryAcquire(dying)
		stop()
		if dying == canceledContext {
			w.checkStillborn(lock, err, w.t() != call || p.requests() != asked)
		}
		w.took(p, "TryAcquire", call, limit)
		if errors.Is(err, redlock.ErrHeld) {
			w.checkHeld(p, key, call, w.t())
		}
	case 2, 3:
		lock, err = m.Acquire(ctx)
		w.waited(p, c.i, m, call)
		c.mustSucceed(call, err)
		c.checkGaveUp(ctx, m, err)
	case 4: // until some time
		var stop func()
		d := c.within(op, 3, 3*w.plan.TTL)
		dying, stop, ends = c.dies(ctx, d)
		if c.roll(op, 11)%2 == 0 {
			dying = deadline{dying, p.Now().Add(d).Time}
		}
		lock, err = m.Acquire(dying)
		stop()
	default:
		c.do(ctx, m, op, key, over)
		return
	}
	over()
	if t := w.t(); t > ends && err != nil {
		w.took(p, "an acquire whose context had ended", ends, 0)
	}
	if !w.checkAnswered(lock, err) {
		return
	}
	if err != nil {
		c.failed(ctx, err)
		return
	}
	g := w.granted(p, c.i, key, call, lock)
	if g == nil {
		return
	}
	c.watchOwn(g, op)
	c.hold(lock, op, g)
	if c.handsOver(g, op) {
		c.handOver(ctx, g, op)
		return
	}
	if !w.plan.Strict && !inside.StateOf(lock).Renews && c.roll(op, 4)%16 == 0 {
		g.abandoned = true
		return
	}
	c.release(g, op)
}

// checkStillborn is I8 for an attempt on a context that was over: it asks nobody.
func (w *simWorld) checkStillborn(lock *redlock.Lock, err error, asked bool) {
	if lock != nil || !errors.Is(err, context.Canceled) || asked {
		w.violated("I8: an attempt on a context that was over: %v, %v", lock, err)
	}
}

// checkAnswered is I8 for an acquire that returned.
func (w *simWorld) checkAnswered(lock *redlock.Lock, err error) bool {
	if lock == nil && err == nil {
		w.violated("I8: neither a lock nor an error")
		return false
	}
	return true
}

// attemptLimit is how long one attempt may take: the SETs, the same again where the
// tie-breaker granted them, and raising the counters.
func attemptLimit(m locker) time.Duration {
	if inside.TermsOf(m).Fencing {
		return 3 * inside.TermsOf(m).NodeTimeout
	}
	return 2 * inside.TermsOf(m).NodeTimeout
}

// hold works for a while, and extends.
func (c *simClient) hold(lock *redlock.Lock, op int, g *simGrant) {
	w := c.w
	if w.plan.Regime == simLease {
		c.holdLease(lock, op, g)
		return
	}
	longest := min(w.plan.TTL/4, simLongPause)
	switch {
	case w.plan.Regime == simAway:
		longest = w.plan.longestHold()
	case w.plan.Regime == simLines:
		longest = simLinesHold
	case w.plan.Regime == "" && !w.plan.Calm && c.roll(op, 5)%3 == 0:
		longest = 2 * w.plan.TTL
	}
	total := c.within(op, 6, longest)
	early := w.plan.Early && c.roll(op, 9)%2 == 0
	for i := range 1 + c.roll(op, 7)%4 {
		if !early || i > 0 {
			c.pause(total / 4)
		}
		w.checkValidity(g)
		w.lookAtContexts(g)
		if lock.Validity() <= 0 && c.roll(op, int(10+i))%2 == 0 {
			break
		}
		if early && i == 0 || c.roll(op, int(20+i))%2 == 0 {
			ttl := max(leastTTL, w.plan.TTL/2+c.within(op, int(30+i), w.plan.TTL/2))
			if w.plan.Longer && c.roll(op, int(290+i))%3 == 0 {
				ttl = w.allowed(lock, w.plan.TTL+c.within(op, int(300+i), w.plan.TTL))
			}
			c.begins("an extend")
			from := w.t()
			err := c.extendWithin(g, op, int(i), ttl) // as Extend, but for the same rule
			w.took(c.p, "Extend", from, w.plan.NodeTimeout)
			w.cameToAnEnd(c.p, "an extend", from, err)
			w.checkExtend(g, err)
		}
	}
}

func (c *simClient) release(g *simGrant, op int) {
	w := c.w
	if g.lock.Validity() > 0 {
		w.checkRenewedInTime(g, c.p.Now().Mono, w.plan.NodeTimeout)
	}
	ctx := context.Background()
	if c.roll(op, 8)%3 == 0 {
		ctx = canceledContext
	}
	c.begins("a release")
	g.released(w.t())
	keeps := w.keeps(g)
	g.relErr = g.lock.Release(ctx)
	g.relRet = w.t()
	if keeps {
		g.keptAt = g.relRet // what arrives later is taken back
	}
	w.took(c.p, "Release", g.relCalled, w.plan.NodeTimeout)
	w.cameToAnEnd(c.p, "a release", g.relCalled, g.relErr)
	w.happened(func() string { return fmt.Sprintf("client %d.%d released %.6s: %v", c.p.i, c.i, g.value, g.relErr) },
		2, hashOf(g.value), uint64(fakenode.Truth(g.relErr == nil)))
}

var canceledContext = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

var errDoTellsNot = errors.New("whether a release was confirmed is no error of Do")

func (c *simClient) do(ctx context.Context, m locker, op int, key string, over func()) {
	w := c.w
	call := w.t()
	var g *simGrant
	within, stop, ends := c.doWithin(ctx, op)
	defer stop()
	err := m.Do(within, func(ctx context.Context, lock *redlock.Lock) error {
		over()
		if g = w.granted(c.p, c.i, key, call, lock); g == nil {
			return nil
		}
		g.renewed = true
		if w.plan.Contexts {
			w.watch(g, ctx, within)
		}
		g.within = ctx
		c.hold(lock, op, g)
		g.released(w.t())
		w.keeps(g)
		return nil
	})
	over()
	if g == nil && err != nil {
		c.endedInTime(ends, err)
		c.checkGaveUp(within, m, err)
		c.failed(ctx, err)
	}
	if g != nil {
		w.checkDoTells(g, err)
		g.relErr, g.relRet = errDoTellsNot, w.t()
		w.happened(func() string { return fmt.Sprintf("client %d.%d is done with %.6s: %v", c.p.i, c.i, g.value, err) },
			3, hashOf(g.value), uint64(fakenode.Truth(err == nil)))
	}
}

func (w *simWorld) waited(p *simProcess, client int, m locker, from int64) {
	if w.t() >= p.killedAt {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waits[m.Key()] = append(w.waits[m.Key()], simWait{p.i, client, from, w.t(), wayOf(m)})
}

// failed looks at why there is no lock.
func (c *simClient) failed(ctx context.Context, err error) {
	w := c.w
	w.endedByClose(c.p, "an acquire", c.began, err)
	known := false
	w.reached("an acquire finds no quorum", errors.Is(err, redlock.ErrNoQuorum))
	w.reached("a grant comes too late", errors.Is(err, redlock.ErrExpired))
	for _, e := range []error{redlock.ErrHeld, redlock.ErrNoQuorum, redlock.ErrExpired, context.Canceled, context.DeadlineExceeded, redlock.ErrClosed} {
		known = known || errors.Is(err, e)
	}
	if !known {
		w.violated("I6: an acquire failed with an error that is none of ours: %v", err)
	}
	w.happened(func() string { return fmt.Sprintf("client %d.%d has no lock: %v", c.p.i, c.i, err) },
		4, uint64(c.p.i), uint64(c.i), uint64(fakenode.Truth(errors.Is(err, redlock.ErrHeld))))
}

// requests counts what waits in the process's lanes.
func (p *simProcess) requests() (n int) {
	for _, l := range p.parts.Lanes {
		l.Mu.Lock()
		for range l.Queue.All() {
			n++
		}
		l.Mu.Unlock()
	}
	return n
}

// dies is a context that ends after d, by cancellation.
func (c *simClient) dies(ctx context.Context, d time.Duration) (context.Context, func(), int64) {
	ctx, cancel := context.WithCancel(ctx)
	t := c.w.after(int64(d), uint64(c.p.i*64+c.i), cancel)
	return ctx, func() { t.Stop(); cancel() }, c.w.t() + int64(d)
}
