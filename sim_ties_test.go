package redlock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// In a plan of ties all clients ask once for one key at the same moment, and again when it
// is free again, over links whose delay varies. One of them shall get it, nearly always.

const (
	// tieWarmUp is how many rounds are not counted: connections are made, and a node that
	// hangs is noticed.
	tieWarmUp = 3
	// Of the rounds of one plan so many per cent may end with nobody, and of those of many
	// plans.
	tieLimitOfOne, tieLimitOfMany = 30, 2
	// tieLeast is how many rounds it takes to judge many plans.
	tieLeast = 500
)

// drawTies makes a plan of ties.
func drawTies(seed uint64) *simPlan {
	r := rand.New(rand.NewPCG(seed, 0x71e))
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	oneIn := func(n int) bool { return r.IntN(n) == 0 }

	p := &simPlan{Seed: seed, Strict: true, Met: true, Ties: 25}
	nodes := []int{2, 3, 3, 4, 5, 5, 5, 7}[r.IntN(8)]
	p.NodeTimeout = in(40*time.Millisecond, 200*time.Millisecond)
	p.TTL = (p.NodeTimeout * time.Duration(20+r.IntN(30))).Truncate(time.Millisecond)
	p.Delay = in(10*time.Microsecond, 100*time.Microsecond)
	p.Jitter = p.Delay
	if !oneIn(3) {
		p.Delay, p.Jitter = in(50*time.Microsecond, time.Millisecond), in(500*time.Microsecond, 2*time.Millisecond)
	}
	p.Fenced = []bool{oneIn(3)}
	ppm := func() int64 { return r.Int64N(9900) - 4950 }
	for range nodes {
		p.Nodes = append(p.Nodes, simNodePlan{PPM: ppm(), Offset: in(-450*time.Millisecond, 450*time.Millisecond)})
	}
	clients, each := []int{2, 2, 4, 8, 16}[r.IntN(5)], 1
	if clients > 2 && oneIn(3) {
		each = 2
	}
	for range clients / each {
		proc := simProcessPlan{PPM: ppm()}
		for range each {
			proc.Clients = append(proc.Clients, simClientPlan{Ops: p.Ties})
		}
		p.Processes = append(p.Processes, proc)
	}
	p.Until = time.Duration(p.Ties+1) * p.tiePeriod()
	if nodes > 2 && oneIn(4) {
		p.Faults = []simFault{{Kind: faultHang, Node: r.IntN(nodes), For: p.Until}}
	}
	return p
}

// tiePeriod is the time of one round: asking, holding until nobody asks any more, and
// releasing.
func (p *simPlan) tiePeriod() time.Duration { return 6*p.NodeTimeout + 16*(p.Delay+p.Jitter) }

// tie is one round of a client.
func (c *simClient) tie(ctx context.Context, round int) {
	w, p := c.w, c.p
	begin := time.Duration(round+1) * w.plan.tiePeriod()
	c.pause(begin - time.Duration(w.t()) + c.within(round, 40, 2*w.plan.Delay))
	var opts []LockOption
	if w.plan.Fenced[0] {
		opts = append(opts, WithFencing())
	}
	m := p.rl.Mutex("k0", opts...)
	m.err = nil // as in once
	call := w.t()
	lock, err := m.TryAcquire(ctx)
	w.took(p, "TryAcquire", call, attemptLimit(m))
	if err != nil {
		if errors.Is(err, ErrHeld) {
			w.checkHeld(p, "k0", call, w.t())
		}
		c.failed(ctx, err)
		return
	}
	g := w.granted(p, c.i, "k0", call, lock)
	if g == nil {
		return
	}
	w.mu.Lock()
	w.ties[round]++
	w.mu.Unlock()
	c.pause(begin + w.plan.tiePeriod()/2 - time.Duration(w.t()))
	c.release(g, round)
}

// checkTies counts the rounds in which nobody got the lock. That nobody else held it then
// is known of the plan, and checkExclusion sees to it that one did at most.
func (w *simWorld) checkTies() {
	if w.plan.Ties == 0 {
		return
	}
	w.count.Ties = w.plan.Ties - tieWarmUp
	for round := tieWarmUp; round < w.plan.Ties; round++ {
		switch got := w.ties[round]; {
		case got == 0:
			w.count.Nobody++
		case got > 1:
			w.violated("tie: %d clients got the lock in round %d, and none had released it", got, round)
		}
	}
	if w.count.Nobody*100 > w.count.Ties*tieLimitOfOne {
		w.violated("tie: nobody got a free lock in %d of %d rounds", w.count.Nobody, w.count.Ties)
	}
}

// tooManyTies judges many plans.
func (c simCount) tooManyTies() string {
	if c.Ties < tieLeast || c.Nobody*100 <= c.Ties*tieLimitOfMany {
		return ""
	}
	return fmt.Sprintf("tie: nobody got a free lock in %d of %d rounds of all plans", c.Nobody, c.Ties)
}
