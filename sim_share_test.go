package redlock

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/quorumlock/redlock/internal/history"
)

// Locks that several hold, in the simulation: keys that are shared and semaphores.

// manyShare is the kind of a key that is held alone and shared.
const manyShare = -1

// drawKinds makes some keys shared or semaphores, in plans in which no set is wanted and no lock
// is handed over: those are of locks that are held alone. It draws from a source of its own.
func (p *simPlan) drawKinds() {
	r := rand.New(rand.NewPCG(p.Seed, 0x54a3))
	if r.IntN(3) > 0 || p.Sets || p.HandOvers {
		return
	}
	for _, fenced := range p.Fenced {
		kind := []int{0, manyShare, manyShare, 1, 2, 2, 3, 4}[r.IntN(8)]
		if fenced && kind > 0 {
			kind = manyShare
		}
		p.Kinds = append(p.Kinds, kind)
	}
	// More clients, or hardly any two would share.
	for i := range p.Processes {
		proc := &p.Processes[i]
		for range r.IntN(3) {
			proc.Clients = append(proc.Clients, simClientPlan{Key: r.IntN(len(p.Fenced)), Ops: 1 + r.IntN(4)})
		}
	}
}

// kind is that of a key.
func (p *simPlan) kind(key string) int {
	var i int
	if _, err := fmt.Sscanf(key, "k%d", &i); err != nil || i >= len(p.Kinds) {
		return 0
	}
	return p.Kinds[i]
}

// mutex is what a client asks for: of a shared key one time in five alone, and of a
// semaphore's now and then alone or with a permit less.
func (c *simClient) mutex(op int, opts []LockOption) *Mutex {
	key := fmt.Sprint("k", c.plan.Key)
	roll := c.roll(op, 50)
	switch kind := c.w.plan.kind(key); {
	case kind == manyShare && roll%5 > 0:
		// The methods refuse a fence that nobody has.
		m := c.p.rl.Mutex(key, opts...).Shared()
		m.terms.fencing = false
		return m
	case kind > 0 && roll%12 > 0:
		permits := kind
		if roll>>8%8 == 0 {
			permits = max(1, kind-1)
		}
		return c.p.rl.Semaphore(key, permits, opts...)
	default:
		return c.p.rl.Mutex(key, opts...)
	}
}

// downgrade goes on sharing a lock that is held alone.
func (c *simClient) downgrade(op int, i uint64, g *simGrant) {
	if c.w.plan.kind(g.key) != manyShare || g.shared || g.downgrade != never || c.roll(op, int(60+i))%3 > 0 {
		return
	}
	g.downgrade = c.w.t()
	_ = g.lock.Downgrade(context.Background())
	if !c.w.dead(c.p) {
		g.downgraded = c.w.t()
		c.w.reached("a lock is downgraded", true)
	}
	c.w.took(c.p, "Downgrade", g.downgrade, c.w.plan.NodeTimeout)
}

// mode is how it was acquired, for a checker of histories.
func (g *simGrant) mode() string {
	switch {
	case g.permits > 0:
		return history.Permit
	case g.shared:
		return history.Shared
	default:
		return history.Alone
	}
}

// checkSharing is I1 for locks that several may hold: nobody beside one who holds it alone, no
// number twice, and no more than there are permits.
func (w *simWorld) checkSharing(grants []*simGrant) {
	type claim struct {
		*simGrant
		from, to int64
		alone    bool
	}
	var claims []claim
	for _, g := range grants {
		end := g.end()
		c := claim{g, g.ret, end, !g.shared}
		if g.downgrade < end {
			claims = append(claims, claim{g, g.ret, g.downgrade, true})
			c.from, c.alone = g.downgrade, false
		}
		if c.to > c.from {
			claims = append(claims, c)
		}
	}
	slices.SortStableFunc(claims, func(a, b claim) int { return int(a.from - b.from) })
	var held []claim
	for _, c := range claims {
		held = slices.DeleteFunc(held, func(h claim) bool { return h.to <= c.from })
		most, permits := c.permits, int64(0)
		for _, h := range append(held, c) {
			if h.number > 0 {
				most, permits = max(most, h.permits), permits+1
			}
		}
		for _, h := range held {
			switch {
			case h.alone || c.alone:
				w.violated("I1: two holders of %s, of whom one has it alone: %v, while %v held until %.6f ms", c.key, c.simGrant, h.simGrant, ms(h.to))
			case c.number > 0 && h.number == c.number:
				w.violated("I1: permit %d of %s twice: %v, while %v held until %.6f ms", c.number, c.key, c.simGrant, h.simGrant, ms(h.to))
			}
		}
		if permits > most {
			w.violated("I1: %d permits of %s are held with %v, and there are %d", permits, c.key, c.simGrant, most)
		}
		if held = append(held, c); len(held) > 1 {
			w.count.Shared++
			w.reached("a permit is held beside another", c.permits > 0)
			w.reached("readers share a lock", c.permits == 0)
		}
	}
}
