package redlock

import (
	"container/list"
	"context"

	"github.com/quorumlock/redlock/internal/tick"
)

// mostInside is how many waiters of a process for one key, of those with a deadline and of those
// without one, stand in the queue of a node at a time. As many come in at once when a phase of those
// who share the lock begins, and as many joins fit into a batch.
const mostInside = 64

// window is which waiters of a key stand in the queue of a node. The others wait in the process, in
// order, and cost no request: neither while they wait, nor if they give up. When one of the window
// leaves, the next takes its place and brings its arrival along, so the order across processes is what
// it would be if all stood in the queue.
//
// Without an end, an overload would feed on itself: the lock is reserved for waiters whose deadline
// has passed, which takes the time that the next ones have. So the room for those with a deadline is
// halved when one of them gives up in the queue, and grows by one with each turn; and while it is
// not whole, those that have used up half of their time come last. It is the rule by which TCP finds
// out how much a link carries. queues.mu guards it.
type window struct {
	inside  [2]int       // by class: those that stand in the queue, or are about to
	outside [2]list.List // of *waiter, first come first
	late    list.List    // of *waiter, outside, that come last
	most    int          // of each class inside
	lacks   int          // of that, for those with a deadline
}

// classes of waiters: those without a deadline are served in the end, whatever others do.
const (
	patient = iota
	hurried
)

// windowed is where a waiter is. queues.mu guards it.
type windowed struct {
	halfway int64 // when half of its time is over; 0: it has no deadline
	inside  bool
	hadTurn bool
}

func (w *windowed) class() int {
	if w.halfway != 0 {
		return hurried
	}
	return patient
}

// room is how many of a class may be inside.
func (g *window) room(class int) int {
	if class == hurried {
		return g.most - g.lacks
	}
	return g.most
}

// waiters is how many there are, in the queue or not yet.
func (g *window) waiters() int { return g.inside[patient] + g.inside[hurried] + g.waitOutside() }

func (g *window) waitOutside() int {
	return g.outside[patient].Len() + g.outside[hurried].Len() + g.late.Len()
}

// come lets a waiter in if there is room, and else has it wait outside.
func (g *window) come(w *waiter) {
	if c := w.class(); g.inside[c] < g.room(c) {
		g.inside[c]++
		w.inside = true
	} else {
		w.place = g.outside[c].PushBack(w)
	}
}

// leave is for a waiter that is done, one way or another.
func (g *window) leave(w *waiter, now int64) {
	c := w.class()
	if !w.inside {
		for _, l := range []*list.List{&g.outside[c], &g.late} {
			l.Remove(w.place) // where it is
		}
		return
	}
	g.inside[c]--
	switch {
	case c == patient:
	case w.hadTurn:
		g.lacks = max(g.lacks-1, 0)
	default:
		g.lacks = g.most - max(g.room(hurried)/2, 1)
	}
	for c := range g.inside {
		for g.inside[c] < g.room(c) {
			next := g.next(c, now)
			if next == nil {
				break
			}
			g.inside[c]++
			next.place, next.inside = nil, true
			next.poke()
		}
	}
}

// next takes out the waiter that comes in next, nil if none waits.
func (g *window) next(class int, now int64) *waiter {
	for e := g.outside[class].Front(); e != nil; e = g.outside[class].Front() {
		w := g.outside[class].Remove(e).(*waiter)
		if class == patient || g.lacks == 0 || now < w.halfway {
			return w
		}
		w.place = g.late.PushBack(w)
	}
	if class == hurried && g.late.Len() > 0 {
		return g.late.Remove(g.late.Back()).(*waiter) // as a rule it has the most time left
	}
	return nil
}

// enter waits outside of the window, until ctx ends or the Redlock is closed.
func (w *waiter) enter(ctx context.Context) error {
	qs := w.queues
	qs.mu.Lock()
	if w.of != nil {
		qs.mu.Unlock()
		return nil
	}
	k, now := qs.of(w.resource), w.clock.Now()
	w.of = k
	if end, ok := ctx.Deadline(); ok {
		w.halfway = max(now.Mono+int64(end.Sub(now.Time)/2), 1)
	}
	k.window.come(w)
	inside := w.inside
	if !inside {
		w.since = tick.Instant{Mono: max(now.Mono, 1)} // all that Since needs
		if w.class() == hurried {
			k.lookIn(now.Mono, k.throttled(lookPause)) // it may end without having asked a node
		}
	}
	qs.mu.Unlock()
	for !inside {
		select {
		case <-w.signal:
			if err := ctx.Err(); err != nil {
				return err
			}
			w.clock.Yield(w.id)
		case <-ctx.Done():
			return ctx.Err()
		case <-w.life.closing:
			w.clock.Yield(w.id)
			return ErrClosed
		}
		qs.mu.Lock()
		inside = w.inside
		qs.mu.Unlock()
	}
	return nil
}

// tellOutside adds to the error of a waiter that was not let in what a node told another of
// this process meanwhile.
func (w *waiter) tellOutside(last *QuorumError) {
	w.queues.mu.Lock()
	defer w.queues.mu.Unlock()
	if h := &w.of.holding; w.of.node >= 0 && h.at.Mono >= w.id-int64(lookPause) {
		last.HolderTTL = max(h.ttl-w.clock.Now().Since(h.at), 0)
		last.Outcomes[w.of.node].Holder = h.holder
	}
}
