package redlock

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/history"
)

// Locks that several hold, in the simulation: keys that are shared and semaphores.

// manyShare is the kind of a key that is held alone and shared.
const manyShare = -1

// drawKinds makes some keys shared or semaphores, in plans in which no set is wanted, which have
// drawSetKinds, and no lock is handed over. It draws from a source of its own.
func (p *simPlan) drawKinds() {
	r := rand.New(rand.NewPCG(p.Seed, 0x54a3))
	if r.IntN(3) > 0 || p.Sets || p.HandOvers {
		return
	}
	p.drawKindsFrom(r)
	// More clients, or hardly any two would share.
	for i := range p.Processes {
		proc := &p.Processes[i]
		for range r.IntN(3) {
			proc.Clients = append(proc.Clients, simClientPlan{Key: r.IntN(len(p.Fenced)), Ops: 1 + r.IntN(4)})
		}
	}
}

// drawSetKinds does the same where sets are wanted, also of locks that are held in different ways.
// Only locks that are held alone are handed over there.
func (p *simPlan) drawSetKinds() {
	r := rand.New(rand.NewPCG(p.Seed, 0x5e7b))
	if p.Sets && r.IntN(2) == 0 {
		p.drawKindsFrom(r)
	}
}

func (p *simPlan) drawKindsFrom(r *rand.Rand) {
	for _, fenced := range p.Fenced {
		kind := []int{0, manyShare, manyShare, 1, 2, 2, 3, 4}[r.IntN(8)]
		if fenced && kind > 0 {
			kind = manyShare
		}
		p.Kinds = append(p.Kinds, kind)
	}
}

// kind is that of a key.
func (p *simPlan) kind(key string) int {
	i, err := strconv.Atoi(strings.TrimPrefix(key, "k"))
	if err != nil || i >= len(p.Kinds) {
		return 0
	}
	return p.Kinds[i]
}

// mutex is what a client asks for: of a shared key one time in five alone, and of a
// semaphore's now and then alone or with a permit less.
func (c *simClient) mutex(op int, opts []LockOption) *Mutex {
	return c.mutexOf(c.plan.Key, c.roll(op, 50), opts)
}

func (c *simClient) mutexOf(i int, roll uint64, opts []LockOption) *Mutex {
	key := fmt.Sprint("k", i)
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

// inTheWay is until when, before the end of a wait, the way in which it wants the lock was not to be
// had: others held as much as there is, or one that is served before it waited for more than that.
func (w *simWorld) inTheWay(wait simWait, key string, grants []*simGrant) (until int64) {
	type change struct {
		at int64
		by int64
	}
	var changes []change
	for _, g := range grants {
		if g.ret >= wait.to {
			continue
		}
		end := min(max(g.end(), g.relRet), wait.to)
		from := g.ret
		if g.mode() == history.Alone {
			if from = end; g.downgraded > 0 {
				from = min(end, g.downgraded)
			}
			until = max(until, from)
		}
		if from < end {
			changes = append(changes, change{from, 1}, change{end, -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	held := int64(0)
	for i, c := range changes {
		held += c.by
		if wait.mode > 0 && held >= wait.mode && i+1 < len(changes) {
			until = max(until, changes[i+1].at)
		}
	}
	before := wait.to
	if w.plan.Calm && !w.plan.Names && !w.setsBack() { // it came before; how soon it joined the queue is not known
		before = min(before, wait.from+24*int64(w.plan.Delay+w.plan.Jitter)+int64(60*time.Millisecond))
	}
	for _, o := range w.wants[key] {
		if o.from < before && (o.mode < 0 || o.mode > 0 && o.mode < wait.mode) {
			until = max(until, min(o.to, wait.to))
		}
	}
	return until
}

// wayOf is how a lock is wanted: alone, which is below 0; shared, which is 0; or one of so many permits.
func wayOf(m *Mutex) int64 {
	if !m.terms.shared {
		return -1
	}
	return int64(m.terms.permits)
}

// wanted notes that a client wants a lock, until the function that it returns is called.
func (w *simWorld) wanted(m *Mutex) (over func()) {
	if w.plan.kind(m.key) == 0 {
		return func() {}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := &simWait{from: w.t(), to: never, mode: wayOf(m)}
	w.wants[m.key] = append(w.wants[m.key], wait)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		wait.to = min(wait.to, w.t())
	}
}

// checkShareProgress: a permit that is free, and a shared lock that nobody has alone, is had in the
// time in which a lock is had that nobody has.
func (w *simWorld) checkShareProgress(key string, grants []*simGrant) {
	quiet := w.quiet()
	for _, g := range w.waits[key] {
		if g.mode < 0 || w.plan.kind(key) == 0 {
			continue
		}
		left := int64(0)
		for _, o := range grants {
			if o.ret < g.to {
				left = max(left, min(w.freeFromLeft(o), g.to))
			}
		}
		free, limit := w.freeFor(quiet, g.to, max(g.from, w.inTheWay(g, key, grants)), w.plan.Calm && w.cutOff(g.proc),
			simExcuse{exPart, w.heldAsPartUntil(key, g.to)}, simExcuse{exBarred, w.barredUntil(g.proc, key)}, simExcuse{exLeftOver, left})
		if g.to-free > limit {
			w.violated("I7: client %d.%d could have had %s with others for %.3f ms, and waited for it until %.6f ms", g.proc, g.client, key, ms(g.to-free), ms(g.to))
		}
	}
}
