package redlock

import (
	"container/list"
	"context"
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
	outside [2]list.List // of *entrant, first come first
	late    list.List    // of *entrant, outside, that come last
	most    int          // of each class inside
	lacks   int          // of that, for those with a deadline
}

// classes of waiters: those without a deadline are served in the end, whatever others do.
const (
	patient = iota
	hurried
)

// entrant is an Acquire that has a place in the window, or waits for one. queues.mu guards it, but for signal.
type entrant struct {
	of      *keyWaiters
	id      int64         // for Clock.Yield: when it came
	signal  chan struct{} // one token: look again
	halfway int64         // when half of its time is over; 0: it has no deadline
	outside *list.Element // where it waits; nil: inside
	waited  bool          // outside
	hadTurn bool
}

// poke makes it look again. It needs no mutex.
func (e *entrant) poke() {
	select {
	case e.signal <- struct{}{}:
	default:
	}
}

func (e *entrant) class() int {
	if e.halfway != 0 {
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
func (g *window) come(e *entrant) {
	if c := e.class(); g.inside[c] < g.room(c) {
		g.inside[c]++
	} else {
		e.outside, e.waited = g.outside[c].PushBack(e), true
	}
}

// leave is for a waiter that is done, one way or another.
func (g *window) leave(e *entrant, now int64) {
	c := e.class()
	if e.outside != nil {
		for _, l := range []*list.List{&g.outside[c], &g.late} {
			l.Remove(e.outside) // where it is
		}
		return
	}
	g.inside[c]--
	switch {
	case c == patient:
	case e.hadTurn:
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
			next.outside = nil
			next.poke()
		}
	}
}

// next takes out the waiter that comes in next, nil if none waits.
func (g *window) next(class int, now int64) *entrant {
	for at := g.outside[class].Front(); at != nil; at = g.outside[class].Front() {
		e := g.outside[class].Remove(at).(*entrant)
		if class == patient || g.lacks == 0 || now < e.halfway {
			return e
		}
		e.outside = g.late.PushBack(e)
	}
	if class == hurried && g.late.Len() > 0 {
		return g.late.Remove(g.late.Back()).(*entrant) // as a rule it has the most time left
	}
	return nil
}

// enter has an Acquire wait for a place in the window until it is inside, ctx ends or the Redlock is closed.
func (qs *queues) enter(ctx context.Context, r *resource) (*entrant, error) {
	now := qs.set.clock.Now()
	e := &entrant{id: now.Mono, signal: make(chan struct{}, 1)}
	if end, ok := ctx.Deadline(); ok {
		e.halfway = max(now.Mono+int64(end.Sub(now.Time)/2), 1)
	}
	qs.mu.Lock()
	k := qs.of(r)
	e.of = k
	k.window.come(e)
	if e.waited && e.class() == hurried {
		k.lookIn(now.Mono, k.throttled(lookPause)) // it may end without having asked a node
	}
	qs.mu.Unlock()
	if !e.waited {
		return e, nil
	}
	return e, qs.waitOutside(ctx, e)
}

// waitOutside waits until an entrant is inside, ctx ends or the Redlock is closed.
func (qs *queues) waitOutside(ctx context.Context, e *entrant) error {
	for inside := false; !inside; {
		select {
		case <-e.signal:
			if err := ctx.Err(); err != nil {
				return err
			}
			qs.set.clock.Yield(e.id)
		case <-ctx.Done():
			return ctx.Err()
		case <-qs.set.life.closing:
			qs.set.clock.Yield(e.id)
			return ErrClosed
		}
		qs.mu.Lock()
		inside = e.outside == nil
		qs.mu.Unlock()
	}
	return nil
}

// tellOutside adds to the error of a waiter that was not let in what a node told another of
// this process meanwhile.
func (qs *queues) tellOutside(e *entrant, last *QuorumError) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if h := &e.of.holding; e.of.node >= 0 && h.at.Mono >= e.id-int64(lookPause) {
		last.HolderTTL = max(h.ttl-qs.set.clock.Now().Since(h.at), 0)
		last.Outcomes[e.of.node].Holder = h.holder
	}
}
