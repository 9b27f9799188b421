package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
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
	return c.w.plan.HandOvers && c.w.plan.kind(g.key) == 0 && c.roll(op, 80)%3 == 0
}

// handOver gives a lock to a process that goes on with it, or to nobody. Some former holders
// do not stop to send, and some were killed, as far as the others know.
func (c *simClient) handOver(ctx context.Context, g *simGrant, op int) {
	w := c.w
	token := g.lock.token
	if c.roll(op, 81)%4 > 0 {
		ttl := max(minTTL, w.plan.TTL/4+c.within(op, 82, 2*w.plan.TTL))
		from := w.t()
		var err error
		token, err = c.tryHandOver(g, ttl)
		w.took(c.p, "HandOver", from, w.plan.NodeTimeout)
		if err != nil {
			c.release(g, op)
			return
		}
	} else {
		if g.lock.renews {
			c.release(g, op)
			return
		}
		g.relCalled = w.t() // it stops, and nobody is told
		g.stopped = true
		w.leaves(g, w.plan.TTL)
	}
	g.abandoned = true
	if w.dead(c.p) {
		return
	}
	c.pause(c.within(op, 83, []time.Duration{w.plan.TTL / 4, 3 * w.plan.TTL}[c.roll(op, 84)%2]))
	if c.roll(op, 85)%8 == 0 {
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
		if again, err := c.heir(op+1).rl.Mutex(g.key, c.adoptOptions()...).adoptAnyway(ctx, token); err == nil {
			w.violated("adopt: %v was adopted by %.6s, and then by %.6s", g, next.value, again.value)
		}
	}
	heir := &simClient{w: w, p: next.proc, i: c.i, plan: c.plan}
	heir.hold(next.lock, op, next)
	heir.release(next, op)
}

// adoptAnyway is Adopt with a NodeTimeout above a quarter of the TTL.
func (m *Mutex) adoptAnyway(ctx context.Context, token string) (*Lock, error) {
	m.err = nil
	return m.Adopt(ctx, token)
}

func (c *simClient) adoptOptions() (opts []LockOption) {
	if c.w.plan.Fenced[c.plan.Key] {
		opts = append(opts, WithFencing())
	}
	return opts
}

// leaves notes how long what nobody holds may be on the nodes.
func (w *simWorld) leaves(g *simGrant, ttl time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	g.leftUntil = w.t() + int64(max(ttl, w.plan.TTL)*102/100)
}

// left reports whether a value is there because it was handed over to nobody yet. A clock that
// was set back since the acquire makes it last for that much longer. Of a holder that stopped
// nobody takes back what a server that hung got late. And a server that is not told for how long
// a lock is kept has it for the lease.
func (n *simNode) left(value string) bool {
	w := n.w
	w.mu.Lock()
	defer w.mu.Unlock()
	g := w.byToken[value[:min(len(value), tokenLen)]]
	if g == nil {
		return false
	}
	until := g.leftUntil
	switch h := n.last(g.key, value); {
	case g.stopped && h != nil:
		until = max(until, h.from+int64(w.plan.TTL*102/100))
	case !g.keeps && h != nil && h.extended > g.handedAt: // it hung when the lock was handed over
		until = max(until, h.extended+int64(g.lease*102/100))
	case g.keeps && value == g.value:
		since := g.relCalled
		if h != nil {
			since = max(since, h.extended) // it hung before the release, and then did the last extend
		}
		until = max(until, since+int64(g.lease*102/100))
	}
	return w.t() < until+n.setBack(g.call)
}

// setBack is by how much a server's clock was set back from a time on.
func (n *simNode) setBack(from int64) int64 { return n.setBackBetween(from, never) }

func (n *simNode) setBackBetween(from, to int64) (by int64) {
	for _, s := range n.hand.steps {
		if s.at >= from && s.at < to {
			by -= s.by
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
			if h.value == g.value || h.value == g.kept {
				end = max(end, h.to)
			}
		}
		ends = append(ends, end)
	}
	slices.Sort(ends)
	// From then on a majority is without it.
	return max(g.leftUntil, ends[majority(len(ends))-1])
}

func (w *simWorld) dead(p *simProcess) bool { return w.t() >= p.killedAt }

// tryHandOver is HandOver, with what must hold when it returns.
func (c *simClient) tryHandOver(g *simGrant, ttl time.Duration) (token string, err error) {
	w, l := c.w, g.lock
	token, err = l.handOver(context.Background(), ttl) // as HandOver, but for the rule about NodeTimeout
	if err != nil {
		return "", err
	}
	t := w.t()
	g.relCalled = t
	w.leaves(g, ttl)
	g.handedAt = t
	l.mu.Lock()
	g.lease = l.longest
	l.mu.Unlock()
	if w.dead(c.p) {
		return token, nil
	}
	lasting := 0
	for _, n := range w.nodes {
		n.mu.Lock()
		if n.had(g.key, g.value, g.number, t) {
			lasting++
		}
		n.mu.Unlock()
	}
	if lasting < c.p.rl.quorum {
		w.violated("adopt: %v was handed over, but only %d nodes have it", g, lasting)
	}
	if l.Validity() > 0 || l.Release(context.Background()) != nil || !errors.Is(l.extend(context.Background(), w.plan.TTL), ErrReleased) {
		w.violated("adopt: %v was handed over, and its handle is still good for something", g)
	}
	w.happened(func() string { return fmt.Sprintf("client %d.%d hands over %.6s", c.p.i, c.i, g.value) }, 7, fnv1a(g.value))
	return token, nil
}

// checkAdopted: Adopt is granted by a majority of nodes that had the former value. If a majority
// had one that was set before the former lease ended, nobody else had the lock in between.
func (w *simWorld) checkAdopted(g, next *simGrant) {
	g.mu.Lock()
	over := g.promises[len(g.promises)-1].until
	g.mu.Unlock()
	had, before := 0, 0
	for _, n := range w.nodes {
		n.mu.Lock()
		there, old := false, false // a node that forgot it may have had it put back
		for _, h := range n.holds[g.key] {
			if h.value == g.value && h.to >= next.call {
				there = there || h.forgotten == 0 || h.forgotten > next.call
				old = old || h.from < over
			}
		}
		had += int(truth(there))
		before += int(truth(old))
		n.mu.Unlock()
	}
	if quorum := g.proc.rl.quorum; had < quorum {
		w.violated("adopt: %v was adopted by %v, but only %d nodes had it", g, next, had)
	} else if before >= quorum {
		w.mu.Lock()
		g.bridge = next.ret
		w.mu.Unlock()
	}
}

// heir is the process that goes on with a lock: any that lives to the end, or this one.
func (c *simClient) heir(op int) *simProcess {
	living := slices.DeleteFunc(slices.Clone(c.w.procs), func(p *simProcess) bool { return p.killedAt != never || len(p.asleep) > 0 })
	if len(living) == 0 {
		return c.p
	}
	return living[c.roll(op, 88)%uint64(len(living))]
}

// adopts goes on with a lock, as another process.
func (c *simClient) adopts(ctx context.Context, g *simGrant, token string, op int) *simGrant {
	w, p := c.w, c.heir(op)
	m := p.rl.Mutex(g.key, c.adoptOptions()...)
	call := w.t()
	dying, stop, ends := ctx, func() {}, never
	if c.roll(op, 89)%6 == 0 {
		dying, stop, ends = c.dies(ctx, c.within(op, 90, w.plan.NodeTimeout))
	}
	lock, err := m.adoptAnyway(dying, token)
	stop()
	w.took(p, "Adopt", call, attemptLimit(m))
	c.endedInTime(ends, err)
	if errors.Is(err, ErrNotHeld) {
		w.checkNotHeld(p, g, call)
	}
	if err != nil {
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
	for _, e := range []error{ErrNotHeld, ErrNoQuorum, ErrExpired, context.Canceled} {
		known = known || errors.Is(err, e)
	}
	if !known || errors.Is(err, ErrHeld) {
		c.w.violated("I6: Adopt failed with an error that is none of its own: %v", err)
	}
	c.w.happened(func() string { return fmt.Sprintf("client %d.%d does not adopt: %v", c.p.i, c.i, err) },
		8, uint64(c.p.i), uint64(c.i), uint64(truth(errors.Is(err, ErrNotHeld))))
}

// checkNotHeld is I6 for an Adopt that failed with ErrNotHeld.
func (w *simWorld) checkNotHeld(p *simProcess, g *simGrant, call int64) {
	t, without := w.t(), 0
	for _, n := range w.nodes {
		n.mu.Lock()
		if !n.has(g.key, g.value, call) || !n.has(g.key, g.value, t) {
			without++
		}
		n.mu.Unlock()
	}
	if need := len(w.nodes) - p.rl.quorum + 1; without < need {
		w.violated("I6: Adopt of %v said that it is not held, but only %d nodes were without it", g, without)
	}
}

// checkHandedOver: what arrives after a hand-over is taken back, and not left to its TTL, unless
// the process that would take it back stood still meanwhile.
func (w *simWorld) checkHandedOver(g *simGrant) {
	if !w.plan.Strict || g.handedAt == 0 || g.proc.killedAt != never {
		return
	}
	for _, n := range w.nodes {
		for _, h := range n.holds[g.key] {
			if h.value == g.value && h.from > g.handedAt && h.expire > 0 && h.forgotten == 0 && !g.proc.sleptBetween(h.from, h.to) && !n.couldNotTakeBack(h, g) {
				w.violated("I5: node %d got %v after it was handed over at %.6f ms, and kept it until %.6f ms", n.i, g, ms(g.handedAt), ms(h.to))
			}
		}
	}
}

// couldNotTakeBack reports whether what a node has late had to end by itself.
func (n *simNode) couldNotTakeBack(h *simHold, g *simGrant) bool {
	// A turn that comes before the entry is taken out of the line: the value may be the key that
	// was handed over, so nobody deletes it. And a join that lands after all of that: whoever is
	// in line and does not come has the lock reserved once.
	if h.turn && (n.withdrawn[h.value] > h.from || n.joined[h.value] > g.handedAt) {
		return true
	}
	// A release is sent again a node timeout after the first, behind a batch that may be silent
	// for another one, and may take half as long again. Options wants TTLs above that.
	takes := int64(4 * n.w.plan.NodeTimeout)
	return h.to-h.from <= takes || h.to <= n.silentUntil(g.proc)+takes
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
				until = max(until, int64(mute.At+min(lastRedial, mute.At-hang.At+max(firstRedial, 2*n.w.plan.NodeTimeout))))
			}
		}
	}
	return until
}
