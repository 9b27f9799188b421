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
// Each process judges by what it sees itself: how many wait before a newcomer, how long a
// turn takes. queues.mu guards all of it.
type gate struct {
	inside  int // with a deadline, in the queue
	parked  parking
	pace    time.Duration // of turns
	others  int           // waiters of other processes, as the last of ours to join saw it
	retryAt int64         // whatever it looks like, one may go in then if nobody is inside
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
	now := w.clock.now()
	parked := w.hurries && !w.of.letIn(w, now)
	if parked {
		heap.Push(&w.of.gate.parked, w)
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
	places := time.Duration(k.waiters.Len() + g.others + 1)
	inTime := places*max(g.pace, leastPace) < w.end.Sub(now.time)/2
	if !inTime && (g.inside > 0 || now.mono < g.retryAt) {
		return false
	}
	g.inside++
	w.inside = true
	return true
}

// joined takes note of what the queue told one of ours; the caller holds mu.
func (k *keyWaiters) joined(w *waiter, a answer, now instant) {
	if a.fresh && !w.joined {
		k.gate.others = max(int(a.ahead)-k.waiters.Len()+1, 0)
		w.joinedAt, w.ahead = now.mono, a.ahead
	}
	k.letOthersIn(now)
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
	case w.inside:
		g.inside--
		w.inside = false
	default:
		heap.Remove(&g.parked, w.parkedAt)
	}
	if w.joinedAt > 0 { // it left before its turn, so turns take at least this long
		if took := w.perPlace(now); took > g.pace {
			g.learn(took)
		}
		if w.hurries {
			wait := time.Duration(k.waiters.Len()+g.others+1) * max(g.pace, leastPace)
			g.retryAt = now.mono + int64(min(wait, longestRetry))
		}
	}
	k.letOthersIn(now)
}

// learn takes note of how long a turn took.
func (g *gate) learn(took time.Duration) { g.pace += (took - g.pace) / 8 }

// perPlace is what each place in the queue took the waiter since it joined.
func (w *waiter) perPlace(now instant) time.Duration {
	return time.Duration(now.mono-w.joinedAt) / time.Duration(w.ahead+1)
}

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
