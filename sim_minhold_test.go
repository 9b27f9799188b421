package redlock

import (
	"math/rand/v2"
	"time"

	"github.com/quorumlock/redlock/internal/fakenode"
	"github.com/quorumlock/redlock/internal/protocol"
)

// Locks that others shall not have for a while after the grant.

// drawMinHold makes some plans such that locks are kept for a while. It has randomness of its
// own, so that the other plans are what they were.
func (p *simPlan) drawMinHold() {
	r := rand.New(rand.NewPCG(p.Seed, 0x317))
	if r.IntN(6) == 0 {
		p.MinHold = minTTL + time.Duration(r.Int64N(int64(p.TTL-minTTL)))
	}
}

// minHold is the option that this use has, if any.
func (c *simClient) minHold(op int) (opts []LockOption) {
	p := c.w.plan
	if p.MinHold > 0 && (len(p.Kinds) == 0 || p.Kinds[c.plan.Key] == 0) && c.roll(op, 95)%2 == 0 {
		opts = append(opts, WithMinHold(p.MinHold))
	}
	return opts
}

// keeps reports whether a release now keeps the lock, and notes for how long it may be on the
// nodes then.
func (w *simWorld) keeps(g *simGrant) bool {
	l := g.lock
	l.mu.Lock()
	over := l.over != nil
	l.mu.Unlock()
	d := l.terms.minHold
	g.keeps = d > 0 && !over && g.proc.Now().Mono < l.grantedAt.Mono+int64(d)
	if g.keeps {
		w.leaves(g, max(d, w.plan.TTL))
	}
	return g.keeps
}

// keptUnder notes the value to which the key of a lock goes that is kept or handed over.
func (w *simWorld) keptUnder(value string, op *fakenode.Op) {
	if op.Req.Script != protocol.KeepScript && op.Req.Op != protocol.OpMove {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if g := w.byToken[op.Value[:tokenLen]]; g != nil && op.Req.Script == protocol.KeepScript {
		g.kept = value
		w.byToken[value[:tokenLen]] = g
	}
	if g := w.byToken[op.Ended]; g != nil && op.Req.Op == protocol.OpMove {
		g.ticket = value
		w.byToken[value[:tokenLen]] = g
		w.sentBy[value] = simSender{g.proc, w.t()}
	}
}

// checkMinHold: nobody gets a lock before its time is over, although it was released. A lock that
// is lost before its release is not kept: its end is true by another rule.
func (w *simWorld) checkMinHold(g *simGrant, grants []*simGrant) {
	if !g.keeps || g.told.at == 0 || g.told.err != nil || g.proc.killedAt <= g.told.at || w.excused(exLostBefore, g.lostAt <= g.told.at) {
		return
	}
	until := g.ret + g.proc.mono.lasts(int64(g.lock.terms.minHold)) - simMoment
	for _, o := range grants {
		if o.ret > g.relCalled && o.ret < until {
			w.violated("min hold: %v, although %v was to be kept until %.6f ms", o, g, ms(until))
		}
	}
}
