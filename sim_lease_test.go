package redlock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/quorumlock/redlock/internal/guard"
)

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
		p.Mixed = r.IntN(2) == 0
	}
	period := max(p.TTL, p.RestartGuard)
	if p.Fenced[0] {
		period = max(period, guard.FencedGuard)
	}
	p.Until = 8 * period
	n := len(p.Nodes)
	first, lost := r.IntN(n), 1+r.IntN(n-majority(n))
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
func (c *simClient) ownTTL(op int) (opts []LockOption) {
	if p := c.w.plan; p.Mixed {
		opts = append(opts, WithTTL(p.TTL/2+c.within(op, 140, p.RestartGuard-p.TTL/2)))
	}
	return opts
}

// longestAsked is how long a lease clients ask for when they hand over, allowed or not.
func (w *simWorld) longestAsked() time.Duration {
	if w.plan.Regime == simLease {
		return 4 * max(w.plan.TTL, w.plan.RestartGuard)
	}
	return 2 * w.plan.TTL
}

// allowed is the lease that a client asks for that wants one of ttl: what the library refuses is cut
// down to the longest that it may be.
func (l *Lock) allowed(ttl time.Duration) time.Duration {
	if l.beyondGuard(ttl) == "" {
		return ttl
	}
	return max(l.terms.TTL, l.opts.RestartGuard)
}

// holdLease asks for leases up to the limit and beyond it, and relies on them to the end.
func (c *simClient) holdLease(lock *Lock, op int, g *simGrant) {
	w := c.w
	most := max(lock.terms.TTL, w.plan.RestartGuard)
	for i := range 1 + c.roll(op, 141)%3 {
		c.pause(c.within(op, 142+int(i), most/8))
		ttl := lock.allowed(most/2 + c.within(op, 145+int(i), 4*most))
		from := w.t()
		err := lock.extend(context.Background(), ttl)
		w.took(c.p, "Extend", from, w.plan.NodeTimeout)
		w.checkExtend(g, err)
	}
	c.pause(c.within(op, 148, 2*most))
}
