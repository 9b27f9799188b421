package redlock

import (
	"container/heap"
	"context"
	"time"
)

const (
	// leastPace is the least time that a turn is expected to take.
	leastPace = 500 * time.Microsecond
	// longestRetry is after what time at the latest one that is parked tries its luck.
	longestRetry = time.Second
)

// gate keeps waiters of a key out of the queue that would be gone before their turn.
//
// Without it an overload feeds on itself: the lock is reserved for waiters whose deadline
// has passed, which takes the time that the next ones have. So one with a deadline goes
// into the queue only if it can expect its turn in half of the time that it has left. The
// others are parked in the process, without a request, and the one with the most time left
// goes in first. Who has no deadline is always served in the end, and never parked.
//
// Each process judges by its own waiters and how often one of them has its turn: where
// several processes wait, each has a share of both. queues.mu guards all of it.
type gate struct {
	patient int // waiters without a deadline
	hurried int // those with one that are in the queue
	parked  parking
	pace    time.Duration // from one turn of ours to the next, while somebody waits
	turnAt  int64         // when the last one began, or the first waiter came
	retryAt int64         // whatever it looks like, one may go in then if no other with a deadline has
}

// enter waits at the gate, until ctx ends or the Redlock is closed.
func (w *waiter) enter(ctx context.Context) error {
	qs := w.queues
	qs.mu.Lock()
	if w.of != nil {
		qs.mu.Unlock()
		return nil
	}
	w.of = qs.of(w.resource)
	w.end, w.hurries = ctx.Deadline()
	now, g := w.clock.now(), &w.of.gate
	if g.waiters() == 0 {
		g.turnAt = now.mono
	}
	parked := false
	switch {
	case !w.hurries:
		g.patient++
	case !w.of.letIn(w, now):
		parked = true
		heap.Push(&g.parked, w)
		w.of.lookIn(now.mono, w.of.interval())
	}
	qs.mu.Unlock()
	for parked {
		select {
		case <-w.signal:
			w.clock.yield(w.id)
		case <-ctx.Done():
			return ctx.Err()
		case <-w.life.closing:
			return ErrClosed
		}
		qs.mu.Lock()
		parked = !w.inside
		qs.mu.Unlock()
	}
	return nil
}

// letIn counts the waiter as one in the queue if it can expect its turn in time; the caller
// holds mu.
func (k *keyWaiters) letIn(w *waiter, now instant) bool {
	g := &k.gate
	inTime := g.wait() < w.end.Sub(now.time)/2
	if !inTime && (g.hurried > 0 || now.mono < g.retryAt) {
		return false
	}
	g.hurried++
	w.inside = true
	return true
}

// waiters is how many there are, in the queue or not yet.
func (g *gate) waiters() int { return g.patient + g.hurried + len(g.parked) }

// wait is how long a newcomer can expect to wait.
func (g *gate) wait() time.Duration {
	return time.Duration(g.patient+g.hurried+1) * max(g.pace, leastPace)
}

// letOthersIn has as many go into the queue as can expect their turn; the caller holds mu.
func (k *keyWaiters) letOthersIn(now instant) {
	for g := &k.gate; len(g.parked) > 0 && k.letIn(g.parked[0], now); {
		w := heap.Pop(&g.parked).(*waiter)
		w.poke()
	}
}

// leaveGate is for a waiter that is done, one way or another; the caller holds mu.
func (k *keyWaiters) leaveGate(w *waiter, now instant) {
	g := &k.gate
	switch {
	case !w.hurries:
		g.patient--
	case w.inside:
		g.hurried--
	default:
		heap.Remove(&g.parked, w.parkedAt)
	}
	if w.inside && !w.hadTurn {
		if idle := time.Duration(now.mono - g.turnAt); idle > g.pace {
			g.learn(idle) // nobody had a turn for so long
		}
		g.retryAt = now.mono + int64(min(g.wait(), longestRetry))
	}
	k.letOthersIn(now)
}

// turn notes that one of our waiters has its turn.
func (g *gate) turn(now int64) {
	g.learn(time.Duration(now - g.turnAt))
	g.turnAt = now
}

// learn takes note of the time from one turn to the next.
func (g *gate) learn(took time.Duration) { g.pace += (took - g.pace) / 8 }

// parking is a heap of parked waiters, the one with the most time left first.
type parking []*waiter

func (p parking) Len() int           { return len(p) }
func (p parking) Less(i, j int) bool { return p[i].end.After(p[j].end) }
func (p parking) Swap(i, j int) {
	p[i], p[j] = p[j], p[i]
	p[i].parkedAt, p[j].parkedAt = i, j
}
func (p *parking) Push(w any) {
	w.(*waiter).parkedAt = len(*p)
	*p = append(*p, w.(*waiter))
}

func (p *parking) Pop() any {
	last := len(*p) - 1
	w := (*p)[last]
	(*p)[last] = nil
	*p = (*p)[:last]
	return w
}
