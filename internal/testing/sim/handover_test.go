package sim_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
)

// Locks that another process goes on with.

// drawHandOvers makes some plans such that locks are handed over. It has randomness of its
// own, so that the other plans are what they were.
func (p *simPlan) drawHandOvers() {
	p.HandOvers = rand.New(rand.NewPCG(p.Seed, 0xad07)).IntN(3) == 0
}

// handsOver reports whether this use ends with a hand-over. Only keys of locks that are always
// held alone have any.
func (c *simClient) handsOver(g *simGrant, op int) bool {
	return c.w.plan.HandOvers && c.p.closedAt() == never && c.w.plan.kind(g.key) == 0 && c.roll(op, 80)%3 == 0
}

// handOver leaves a lock to a process that goes on with it, or to nobody. Some holders detach it, and some were
// killed, as far as the others know, and do not stop to send.
func (c *simClient) handOver(ctx context.Context, g *simGrant, op int) {
	w := c.w
	token := g.lock.Token()
	switch {
	case c.roll(op, 81)%4 > 0:
		if c.holdToTheEnd(g, op); !c.detach(g) {
			c.release(g, op)
			return
		}
	case inside.StateOf(g.lock).Renews:
		c.release(g, op)
		return
	default:
		g.released(w.t()) // it stops, and nobody is told
	}
	g.stopped = true
	longest := inside.StateOf(g.lock).Longest
	w.leaves(g, longest)
	g.abandoned = true
	if w.dead(c.p) {
		return
	}
	longest = []time.Duration{w.plan.TTL / 4, 3 * w.plan.TTL}[c.roll(op, 84)%2]
	if w.plan.Regime == simAway { // where what is adopted by nobody would last for minutes
		longest = simAwayPause
	}
	c.pause(c.besideALoss(op, c.within(op, 83, longest)))
	if c.roll(op, 85)%8 == 0 && w.plan.Regime != simAway {
		return
	}
	next := c.adopts(ctx, g, token, op)
	if c.roll(op, 86)%2 == 0 { // what the former holder still sends has no effect
		_ = g.lock.Release(ctx)
	}
	if next == nil {
		return
	}
	if c.roll(op, 87)%3 == 0 { // twice: the token is good for nothing any more
		again, err := adoptAnyway(ctx, c.heir(op+1).rl.Mutex(g.key, c.lockOptions()...), token)
		w.checkAdoptedAgain(g, next, again, err)
	}
	heir := &simClient{w: w, p: next.proc, i: c.i, plan: c.plan}
	heir.hold(next.lock, op, next)
	heir.release(next, op)
}

// besideALoss is for how long a lock that was handed over is not adopted: now and then until shortly after
// a node has lost its keys, or has gone, and else for as long as is given.
func (c *simClient) besideALoss(op int, otherwise time.Duration) time.Duration {
	w, t := c.w, c.w.t()
	if c.roll(op, 91)%8 == 0 {
		return otherwise
	}
	for _, f := range w.plan.Faults {
		at, lasts := f.losesAt(), w.plan.TTL/16
		if f.Kind == faultCrash || f.Kind == faultErr {
			at, lasts = int64(f.At), min(f.For, lasts)
		}
		if at > t && at < t+int64(w.plan.TTL) {
			return time.Duration(at-t) + c.within(op, 92, lasts)
		}
	}
	return otherwise
}

// holdToTheEnd holds some locks until their validity is nearly over, so that it is by the time that the nodes
// have answered a hand-over, or not.
func (c *simClient) holdToTheEnd(g *simGrant, op int) {
	if p := c.w.plan; inside.StateOf(g.lock).Renews || p.TTL > simLongPause || c.roll(op, 91)%6 > 0 {
		return
	}
	left := c.within(op, 92, 3*(c.w.plan.Delay+c.w.plan.Jitter))
	for range 3 { // clocks differ
		c.pause(max(0, g.lock.Validity()-left) * 99 / 100)
	}
}

func (w *simWorld) checkAdoptedAgain(g, next *simGrant, again *redlock.Lock, err error) {
	if err == nil {
		w.violated("adopt: %v was adopted by %.6s, and then by %.6s", g, next.value, again.Token())
	}
}

// adoptAnyway is Adopt with a NodeTimeout above a quarter of the TTL.
func adoptAnyway(ctx context.Context, m *redlock.Mutex, token string) (*redlock.Lock, error) {
	inside.Allow(m)
	return m.Adopt(ctx, token)
}

// leaves notes how long what nobody holds may be on the nodes.
func (w *simWorld) leaves(g *simGrant, ttl time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g.leftUntil = w.t() + int64(ttl*102/100)
}

// left reports whether a value is there because its holder stopped, and nobody went on with the lock; or because
// it is kept: its release may come at the end of the lease, and leaves the key for what was left then.
func (n *simNode) left(value string) bool {
	w := n.w
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.grantOf(value)
	if g == nil || !g.stopped && !g.keeps {
		return false
	}
	until := g.leftUntil + n.setBackBetween(g.call, w.t()) // extends only prolong
	if g.keeps {
		until = g.relCalled + int64((inside.TermsOf(g.lock).TTL+inside.TermsOf(g.lock).MinHold)*104/100)
	}
	for _, f := range w.plan.Faults { // what was sent before, and waited at a server that hung
		if f.Kind == faultHang && f.Node == n.i && int64(f.At) < g.relCalled && g.relCalled < int64(f.At+f.For) {
			until = max(until, int64(f.At+f.For)+int64(inside.TermsOf(g.lock).TTL*104/100))
		}
	}
	return w.excused(exLeftOver, w.t() < until)
}

// markedFor reports whether a value is the marker of those that shared a lock, and others have, or had, the name of
// their list: a release that finds their data changes nothing, and the marker goes with the longest lease.
func (n *simNode) markedFor(key, value string) bool {
	return value == fakenode.Marker && slices.ContainsFunc(n.foreign, func(f *simForeign) bool { return f.name == n.beside(key).shared })
}

func (n *simNode) setBackBetween(from, to int64) (by int64) {
	for _, s := range n.hand.steps {
		if s.at >= from && s.at < to {
			by -= min(s.by, 0) // a step forward makes nothing last longer
		}
	}
	return by
}

// freeFromLeft is when others can have the key of what was handed over, and adopted by nobody.
// A node whose clock is set back keeps it for longer than its TTL, so what the nodes really
// held counts there.
func (w *simWorld) freeFromLeft(g *simGrant) int64 {
	if g.leftUntil == 0 || !w.setsBack() {
		return g.leftUntil
	}
	var ends []int64
	for _, n := range w.nodes {
		end := int64(0)
		for _, h := range n.holds[g.key] {
			if h.value == g.value {
				end = max(end, h.to)
			}
		}
		ends = append(ends, end)
	}
	slices.Sort(ends)
	// From then on a majority is without it.
	return max(g.leftUntil, ends[quorumOf(len(ends))-1])
}

func (w *simWorld) dead(p *simProcess) bool { return w.t() >= p.killedAt }

// detach is Detach, with what must hold when it returns: the handle is over, and there is a token if and only if the
// lock was held.
func (c *simClient) detach(g *simGrant) bool {
	w, l := c.w, g.lock
	held := l.Context()
	spent := func() bool {
		return inside.TermsOf(l).MaxHold > 0 && errors.Is(context.Cause(held), redlock.ErrExpired)
	}
	before := l.Validity() > 0 && (held.Err() == nil || spent())
	call := w.t()
	w.mu.Lock()
	g.detaching = before
	w.mu.Unlock()
	token := l.Detach()
	w.took(c.p, "Detach", call, 0)
	if token != "" {
		g.released(call)
	}
	if w.dead(c.p) {
		return token != ""
	}
	w.happened(func() string { return fmt.Sprintf("client %d.%d detaches %.6s: %q", c.p.i, c.i, g.value, token) }, 7, hashOf(g.value), uint64(fakenode.Truth(token != "")))
	w.checkDetached(g, token, before, simDetached{
		good: l.Validity() > 0 || held.Err() == nil, cause: context.Cause(held), spent: spent(), over: isOver(g.lastEnd(), c.p.Now()),
	})
	return token != ""
}

// simDetached is what is left of a handle after Detach.
type simDetached struct {
	good  bool  // it is still valid
	cause error // of its context's end
	spent bool  // it ended by WithMaxHold
	over  bool  // its validity is over
}

// checkDetached looks at a lock that was detached, and was held before or not.
func (w *simWorld) checkDetached(g *simGrant, token string, before bool, after simDetached) {
	switch {
	case after.good:
		w.violated("adopt: %v was detached, and its handle is still good for something", g)
	case token == "" && before && !after.over:
		w.violated("adopt: %v was held, and Detach says that it was not", g)
	case token != "" && (token != g.value[:tokenLength] || !before):
		w.violated("adopt: %v was detached as %q, held before: %v", g, token, before)
	case token != "" && !errors.Is(after.cause, redlock.ErrReleased) && !after.spent:
		w.violated("adopt: %v was detached, and not released: %v", g, after.cause)
	}
}

// checkAdopted: Adopt is granted by a majority of nodes that had the former holder's value. Nobody else had the lock
// since if a majority had that from a time before its lease ended.
func (w *simWorld) checkAdopted(g, next *simGrant) {
	g.mu.Lock()
	over := g.promises[len(g.promises)-1].until
	g.mu.Unlock()
	from := g.value
	w.mu.Lock()
	g.heir = next
	w.mu.Unlock()
	had, before := 0, 0
	w.reached("a lock is adopted", true)
	w.reached("a lock is adopted that was detached", g.detaching)
	w.reached("a lock is adopted from a holder that stopped", !g.detaching)
	w.reached("a lock is adopted while a node is down", w.down(next.proc) > 0)
	for _, n := range w.nodes {
		n.mu.Lock()
		there, old := false, false // a node that forgot it may have had it put back
		for _, h := range n.holds[g.key] {
			w.reached("a lock is adopted after a node forgot it", h.value == from && h.forgotten > 0 && h.forgotten <= next.call)
			if h.value == from && h.to >= next.call {
				there = there || h.forgotten == 0 || h.forgotten > next.call
				old = old || h.from < over
			}
		}
		had += int(fakenode.Truth(there))
		before += int(fakenode.Truth(old))
		n.mu.Unlock()
	}
	if quorum := g.proc.quorum(); had < quorum {
		w.violated("adopt: %v was adopted by %v, but only %d nodes had it", g, next, had)
	} else if before >= quorum {
		w.mu.Lock()
		g.bridge = next.ret
		w.mu.Unlock()
	}
}

// heir is the process that goes on with a lock: any that lives to the end, or this one.
func (c *simClient) heir(op int) *simProcess {
	living := slices.DeleteFunc(slices.Clone(c.w.procs), func(p *simProcess) bool {
		return p.killedAt != never || len(p.asleep) > 0 || p.closedAt() != never || p.closes() && !p.closesDuring("an Adopt")
	})
	if len(living) == 0 {
		return c.p
	}
	return living[c.roll(op, 88)%uint64(len(living))]
}

// adopts goes on with a lock, as another process.
func (c *simClient) adopts(ctx context.Context, g *simGrant, token string, op int) *simGrant {
	w, p := c.w, c.heir(op)
	m := p.rl.Mutex(g.key, c.lockOptions()...)
	p.begins("an Adopt", uint64(c.i))
	call := w.t()
	dying, stop, ends := ctx, func() {}, never
	if c.roll(op, 89)%6 == 0 {
		dying, stop, ends = c.dies(ctx, c.within(op, 90, w.plan.NodeTimeout))
	}
	lock, err := adoptAnyway(dying, m, token)
	stop()
	w.took(p, "Adopt", call, attemptLimit(m))
	c.endedInTime(ends, err)
	if errors.Is(err, redlock.ErrNotHeld) {
		w.checkNotHeld(p, g, g.value)
	}
	if err != nil {
		w.cameToAnEnd(p, "an Adopt", call, err)
		c.adoptFailed(err)
		return nil
	}
	next := w.granted(p, c.i, g.key, call, lock)
	if next != nil {
		w.checkAdopted(g, next)
	}
	return next
}

func (c *simClient) adoptFailed(err error) {
	known := false
	for _, e := range []error{redlock.ErrNotHeld, redlock.ErrNoQuorum, redlock.ErrExpired, redlock.ErrClosed, context.Canceled} {
		known = known || errors.Is(err, e)
	}
	if !known || errors.Is(err, redlock.ErrHeld) {
		c.w.violated("I6: Adopt failed with an error that is none of its own: %v", err)
	}
	c.w.happened(func() string { return fmt.Sprintf("client %d.%d does not adopt: %v", c.p.i, c.i, err) },
		8, uint64(c.p.i), uint64(c.i), uint64(fakenode.Truth(errors.Is(err, redlock.ErrNotHeld))))
}

// checkNotHeld is I6 for an Adopt of a value that failed with ErrNotHeld.
func (w *simWorld) checkNotHeld(p *simProcess, g *simGrant, value string) {
	t, without := w.t(), 0
	for _, n := range w.nodes {
		n.mu.Lock()
		without += int(fakenode.Truth(!n.has(g.key, value, t)))
		n.mu.Unlock()
	}
	if need := len(w.nodes) - p.quorum() + 1; without < need {
		w.violated("I6: %v did not change hands, for it is not held, but only %d nodes were without it", g, without)
	}
}

// silentUntil is until when a process may not know that its flow to a node went silent while the
// node hung. It has one that is fresh by then, and waits for that one for as long again as for
// those before together, and for a first time.
func (n *simNode) silentUntil(p *simProcess) (until int64) {
	faults := n.w.plan.Faults
	for _, mute := range faults {
		for _, hang := range faults {
			if mute.Kind == faultMute && mute.Proc == p.i && mute.Node == n.i && hang.Kind == faultHang && hang.Node == n.i &&
				mute.At >= hang.At && mute.At <= hang.At+hang.For {
				until = max(until, int64(mute.At+min(conn.LastRedial, mute.At-hang.At+max(conn.FirstRedial, 2*n.w.plan.NodeTimeout))))
			}
		}
	}
	return until
}

// Leases that are as long as the guard lets them be, beside nodes that forget one after the other.

const simLease = "lease"

// drawLease has nodes that forget in turns, so that a minority of them forgets within the guard's
// time, and nodes that are cut off now and then, so that a lock is on a bare majority. A lease that is
// longer than the guard's time does not survive that.
func (p *simPlan) drawLease(r *rand.Rand) {
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	p.Strict, p.HandOvers, p.RestartGuard = false, r.IntN(2) == 0, 0
	if r.IntN(2) == 0 {
		p.RestartGuard = in(p.TTL, 3*p.TTL)
		p.Mixed = r.IntN(8) > 0
	}
	period := max(p.TTL, p.RestartGuard)
	if p.Fenced[0] {
		period = max(period, guard.FencedGuard)
	}
	p.Until = 8 * period
	n := len(p.Nodes)
	first, lost := r.IntN(n), 1+r.IntN(n-quorumOf(n))
	kinds := []string{faultFlush, faultSwap, faultForget}
	kind := kinds[r.IntN(len(kinds))]
	for at, turn := in(0, period), 0; at < p.Until; turn++ {
		down := in(0, p.TTL/4)
		for i := range lost {
			// One stays, since all nodes that are young are taken for a fleet that starts.
			node := (first + (turn*lost+i)%(n-1)) % n
			p.Faults = append(p.Faults, simFault{Kind: kind, Node: node, At: at, For: down})
		}
		if r.IntN(2) == 0 {
			away := simFault{Kind: faultCut, Node: r.IntN(n), At: max(0, at-in(0, period)), For: in(0, p.TTL/2)}
			for away.Proc = range 4 {
				p.Faults = append(p.Faults, away)
			}
		}
		at += down + period*103/100 + in(0, period/2)
	}
}

// ownTTL is the option of a use whose TTL is not that of the others.
func (c *simClient) ownTTL(op int) (opts []redlock.LockOption) {
	if p := c.w.plan; p.Mixed {
		opts = append(opts, redlock.WithTTL(p.TTL/2+c.within(op, 140, p.RestartGuard-p.TTL/2)))
	}
	return opts
}

// allowed is the lease that a client asks for that wants one of ttl: what the library refuses is cut
// down to the longest that it may be.
func (w *simWorld) allowed(lock *redlock.Lock, ttl time.Duration) time.Duration {
	if w.plan.RestartGuard < 0 {
		return ttl
	}
	return min(ttl, max(inside.TermsOf(lock).TTL, w.plan.RestartGuard))
}

// holdLease asks for leases up to the limit and beyond it, and relies on them to the end.
func (c *simClient) holdLease(lock *redlock.Lock, op int, g *simGrant) {
	w := c.w
	most := max(inside.TermsOf(lock).TTL, w.plan.RestartGuard)
	for i := range 1 + c.roll(op, 141)%3 {
		c.pause(c.within(op, 142+int(i), most/8))
		ttl := w.allowed(lock, most/2+c.within(op, 145+int(i), 4*most))
		from := w.t()
		err := inside.Extend(lock, context.Background(), ttl)
		w.took(c.p, "Extend", from, w.plan.NodeTimeout)
		w.checkExtend(g, err)
	}
	c.pause(c.within(op, 148, 2*most))
}

// Locks that others shall not have for a while after the grant.

// drawMinHold makes some plans such that locks are kept for a while. It has randomness of its
// own, so that the other plans are what they were.
func (p *simPlan) drawMinHold() {
	r := rand.New(rand.NewPCG(p.Seed, 0x317))
	if r.IntN(6) == 0 {
		p.MinHold = leastTTL + time.Duration(r.Int64N(int64(p.TTL-leastTTL)))
	}
}

// minHold is the option that this use has, if any.
func (c *simClient) minHold(op int) (opts []redlock.LockOption) {
	p := c.w.plan
	if p.MinHold > 0 && p.kind(fmt.Sprint("k", c.plan.Key)) == 0 && c.roll(op, 95)%2 == 0 {
		opts = append(opts, redlock.WithMinHold(p.MinHold))
	}
	return opts
}

// keeps reports whether a release now keeps the lock, and notes for how long it may be on the
// nodes then.
func (w *simWorld) keeps(g *simGrant) bool {
	l := g.lock
	over := inside.StateOf(l).Over
	d := inside.TermsOf(l).MinHold
	g.keeps = d > 0 && !over && g.proc.Now().Mono < inside.StateOf(l).GrantedAt.Mono+int64(d)
	if g.keeps {
		w.leaves(g, max(d, w.plan.TTL))
	}
	return g.keeps
}

// checkMinHold: nobody gets a lock before its time is over, although it was released. A lock that
// is lost before its release is not kept: its end is true by another rule.
func (w *simWorld) checkMinHold(g *simGrant, grants []*simGrant) {
	if !g.keeps || g.told.at == 0 || g.told.err != nil || g.proc.killedAt <= g.told.at || w.excused(exLostBefore, g.lostAt <= g.told.at) {
		return
	}
	until := g.ret + g.proc.mono.lasts(int64(inside.TermsOf(g.lock).MinHold)) - simMoment
	for _, o := range grants {
		// One that came before may be told now, when nodes have lost it.
		if o.ret > g.relCalled && o.ret < until && !w.excused(exBroken, o.brokenAt <= o.ret || w.brokenBy(g, o.ret) < never) {
			w.violated("min hold: %v, although %v was to be kept until %.6f ms", o, g, ms(until))
		}
	}
}
