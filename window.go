package redlock

import "container/list"

// mostInside is how many waiters of a process for one key, of those with a deadline and of those
// without one, stand in the queue of a node at a time. As many come in at once when a phase of those
// who share the lock begins, and as many joins fit into a batch.
const mostInside = 64

// window is which waiters of a key stand in the queue of a node. The others wait in the process, in order, and cost
// no request: neither while they wait, nor if they give up. When one of the window leaves, the next takes its place
// and brings its arrival along, so the order across processes is nearly what it would be if all stood in the queue.
//
// Without an end, an overload would feed on itself: the lock is reserved for waiters whose deadline has passed, which
// takes the time that the next ones have. So the room for those with a deadline is halved when one of them gives up
// in the queue, and grows by one with each that is served; and those found past half of their time while it is not
// whole come last. It is like TCP's rule, but counts waiters instead of round trips. queues.mu guards it.
type window struct {
	inside list.List    // of *waiter, in the order in which they came in
	count  [2]int       // of them, by class
	wait   [2]list.List // outside, first come first
	late   list.List    // outside, those that come last
	room   [2]int       // for each class
	most   int
}

// classes of waiters: those without a deadline are served in the end, whatever others do.
const (
	patient = iota
	hurried
)

func (w *waiter) class() int {
	if w.halfway != 0 {
		return hurried
	}
	return patient
}

// len is how many there are, in the queue or not yet.
func (g *window) len() int {
	return g.inside.Len() + g.wait[patient].Len() + g.wait[hurried].Len() + g.late.Len()
}

// admit lets a waiter in.
func (g *window) admit(w *waiter) {
	g.count[w.class()]++
	w.state, w.place = joining, g.inside.PushBack(w)
}

// add lets a waiter in if there is room, and else has it wait outside.
func (k *keyWaiters) add(w *waiter) {
	g, c := &k.window, w.class()
	if g.len() == 0 {
		k.queues.awaited.Add(1)
	}
	if g.count[c] < g.room[c] {
		g.admit(w)
	} else {
		w.place, w.arrival = g.wait[c].PushBack(w), 0
	}
}

// remove is for a waiter that is done; served: it has the lock.
func (k *keyWaiters) remove(w *waiter, served bool, now int64) {
	g, c := &k.window, w.class()
	for _, l := range []*list.List{&g.inside, &g.wait[c], &g.late} {
		l.Remove(w.place) // where it is
	}
	if g.len() == 0 {
		k.queues.awaited.Add(-1)
	}
	if w.state == outside {
		return
	}
	w.state = done
	if k.holding.at.Mono >= w.came { // it was told to wait, or another was meanwhile
		k.refusedAt = now
	}
	g.count[c]--
	switch {
	case c == patient:
	case served:
		g.room[c] = min(g.room[c]+1, g.most)
	default:
		g.room[c] = max(g.room[c]/2, 1)
	}
	for c := range g.count {
		for g.count[c] < g.room[c] {
			next := g.next(c, now)
			if next == nil {
				break
			}
			g.admit(next)
			next.poke()
		}
	}
}

// next takes out the waiter that comes in next, nil if none waits.
func (g *window) next(class int, now int64) *waiter {
	all := class == patient || g.room[class] == g.most
	for at := g.wait[class].Front(); at != nil; at = g.wait[class].Front() {
		w := g.wait[class].Remove(at).(*waiter)
		if all || now < w.halfway {
			return w
		}
		w.place = g.late.PushBack(w)
	}
	if class == hurried && g.late.Len() > 0 {
		return g.late.Remove(g.late.Back()).(*waiter) // as a rule it has the most time left
	}
	return nil
}

// tellOutside adds to the error of a waiter that was not let in what a node told another of
// this process meanwhile.
func (w *waiter) tellOutside(last *QuorumError) {
	k := w.of
	k.queues.mu.Lock()
	defer k.queues.mu.Unlock()
	if h := &k.holding; k.node >= 0 && h.at.Mono >= w.came-int64(lookPause) {
		last.HolderTTL = max(h.ttl-w.r.clock.Now().Since(h.at), 0)
		last.Outcomes[h.node].Holder = h.holder
	}
}
