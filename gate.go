package redlock

import (
	"container/heap"
	"context"
	"time"

	"github.com/quorumlock/redlock/internal/tick"
)

const (
	// leastPace is the least time that a turn is expected to take.
	leastPace = 500 * time.Microsecond
	// mostPaces bounds what one turn tells of the next ones: however long it took, it counts as
	// so many of those before. One long hold is no reason to expect others.
	mostPaces = 8
)

// gate keeps waiters of a key out of the queue that would be gone before their turn.
//
// Without it an overload feeds on itself: the lock is reserved for waiters whose deadline
// has passed, which takes the time that the next ones have. So one with a deadline goes
// into the queue only if it can expect its turn in half of the time that it has left, or if
// no other of its process with a deadline is there, so that a free lock is always had. The
// others are parked in the process, without a request, and the one with the most time left
// goes in first. A waiter without a deadline is always served in the end, and never parked.
//
// Each process judges by its own waiters and how often one of them has its turn: where
// several processes wait, each has a share of both. queues.mu guards all of it.
type gate struct {
	withoutDeadline int // waiters without a deadline
	inside          int // those with one that are in the queue; some are if any are parked
	parked          parking
	pace            time.Duration // from one turn of ours to the next, while there are waiters
	turnAt          int64         // when the last one began, or the first waiter came
}

// gated is where a waiter is at the gate. queues.mu guards it.
type gated struct {
	end      time.Time // its deadline; zero: it has none, and is never kept out
	inside   bool      // the gate let it in, which has a deadline
	parkedAt int       // in the heap of those that wait at the gate
	hadTurn  bool
}

func (w *gated) hasDeadline() bool { return !w.end.IsZero() }

// enter waits at the gate, until ctx ends or the Redlock is closed.
func (w *waiter) enter(ctx context.Context) error {
	qs := w.queues
	qs.mu.Lock()
	if w.of != nil {
		qs.mu.Unlock()
		return nil
	}
	w.of = qs.of(w.resource)
	w.end, _ = ctx.Deadline()
	now, g := w.clock.Now(), &w.of.gate
	if g.waiters() == 0 {
		g.turnAt = now.Mono
	}
	parked := false
	switch {
	case !w.hasDeadline():
		g.withoutDeadline++
	case !g.letIn(w, now):
		parked = true
		heap.Push(&g.parked, w)
		w.of.lookIn(now.Mono, w.of.throttled(lookPause)) // it asks no node, so another does
	}
	qs.mu.Unlock()
	for parked {
		select {
		case <-w.signal:
			w.clock.Yield(w.id)
		case <-ctx.Done():
			return ctx.Err()
		case <-w.life.closing:
			w.clock.Yield(w.id)
			return ErrClosed
		}
		qs.mu.Lock()
		parked = !w.inside
		qs.mu.Unlock()
	}
	return nil
}

// letIn counts the waiter as one in the queue if it may go there.
func (g *gate) letIn(w *waiter, now tick.Instant) bool {
	if g.inside > 0 && g.wait(now.Mono) >= w.end.Sub(now.Time)/2 {
		return false
	}
	g.inside++
	w.inside = true
	return true
}

// waiters is how many there are, in the queue or not yet.
func (g *gate) waiters() int { return g.withoutDeadline + g.inside + len(g.parked) }

// wait is how long a newcomer can expect to wait: a turn for each that is there, and for the
// present one as long again as it has taken.
func (g *gate) wait(now int64) time.Duration {
	pace := max(g.pace, leastPace)
	return time.Duration(g.withoutDeadline+g.inside)*pace + max(pace, time.Duration(now-g.turnAt))
}

// letOthersIn has as many go into the queue as may.
func (g *gate) letOthersIn(now tick.Instant) {
	for len(g.parked) > 0 && g.letIn(g.parked[0], now) {
		heap.Pop(&g.parked).(*waiter).poke()
	}
}

// leave is for a waiter that is done, one way or another.
func (g *gate) leave(w *waiter, now tick.Instant) {
	switch {
	case !w.hasDeadline():
		g.withoutDeadline--
	case w.inside:
		g.inside--
	default:
		heap.Remove(&g.parked, w.parkedAt)
	}
	g.letOthersIn(now)
}

// turn notes that one of our waiters has its turn.
func (g *gate) turn(now int64) {
	took := min(time.Duration(now-g.turnAt), mostPaces*max(g.pace, leastPace))
	g.pace += (took - g.pace) / 8
	g.turnAt = now
}

// tellParked adds to the error of a waiter that was not let in what a node told another of
// this process meanwhile.
func (w *waiter) tellParked(last *QuorumError) {
	w.queues.mu.Lock()
	defer w.queues.mu.Unlock()
	if h := &w.of.holding; w.of.node >= 0 && h.at.Mono >= w.id-int64(lookPause) {
		last.HolderTTL = max(h.ttl-w.clock.Now().Since(h.at), 0)
		last.Outcomes[w.of.node].Holder = h.holder
	}
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
