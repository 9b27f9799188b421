package redlock

import (
	"slices"
	"time"

	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/tick"
)

const (
	// returnEvery is when waiters that moved to another queue go back to their own.
	returnEvery = 5 * time.Second
	// returnPause is how long they stay there at least, since clocks differ.
	returnPause = 100 * time.Millisecond
	// lookPause is the least time between two looks for queues on other nodes.
	lookPause = 20 * time.Millisecond
)

// meeting is where this process waits for a key, if that is not at the first node in order
// that it reaches. queues.mu guards it.
//
// Clients that know the nodes by different names, or cannot reach the same ones, make
// queues of one key on several nodes. Each queue reserves its node for its own first
// waiter, so that they take turns in vain, or only those of one queue are ever served.
// So they have to meet:
//
// A release tells its holder, and the first in a queue that the holder does not serve, that
// the other is there. Waiters move to the queue whose first has waited longest. Every process
// that looks chooses the same queue, because a waiter that is overtaken becomes the oldest. If a queue is there still when a
// release sees it again, its waiters cannot come here, so we go there, unless we moved
// already. The same is true if our turns come to nothing: the queue whose waiters have the
// lock instead stays younger than ours, since it is served. And if they come to nothing
// although no waiter is elsewhere, a process that does not see our queue takes the lock again and
// again; then we go where it is seen.
type meeting struct {
	at    int   // the node whose queue they moved to
	until int64 // until when it comes first, whatever the order

	elsewhere bool  // others seem to wait in the queue of another node
	lookedAt  int64 // when one of ours last looked for such a queue
	seen      int   // the node where it was; -1: none
	seenAt    int64 // when it was seen there first

	homeAt int64    // when one of ours whose turns came to nothing last asked the arbiter to let it in
	rivals []string // that held the lock without our node while turns of ours came to nothing
}

func newMeeting() meeting {
	return meeting{until: guard.LongAgo, lookedAt: guard.LongAgo, homeAt: guard.LongAgo, seen: -1}
}

// moved reports whether this process waits elsewhere.
func (m *meeting) moved(now int64) bool { return m.until > now }

// movedTo is the node whose queue the waiters of this process for the key moved to.
func (qs *queues) movedTo(r *resource, now int64) (node int, ok bool) {
	if qs.keys.Load() == 0 {
		return 0, false
	}
	qs.mu.Lock()
	defer qs.mu.Unlock()
	k := qs.byKey[r.name]
	if k == nil || !k.meeting.moved(now) {
		return 0, false
	}
	return k.meeting.at, true
}

// nodes is all nodes in the order in which they are asked to keep the queue.
func (k *keyWaiters) nodes() []int {
	now := k.queues.set.clock.Now().Mono
	k.queues.mu.Lock()
	defer k.queues.mu.Unlock()
	if !k.meeting.moved(now) {
		return k.order
	}
	at := slices.Index(k.order, k.meeting.at)
	return append([]int{k.meeting.at}, slices.Delete(slices.Clone(k.order), at, at+1)...)
}

// othersWait notes what a release was told: there are waiters in the queue that our releases serve, so
// an acquire of this process must not overtake them.
func (qs *queues) othersWait(r *resource) {
	now := qs.set.clock.Now().Mono
	qs.mu.Lock()
	defer qs.mu.Unlock()
	k := qs.contended(r, now)
	k.leftLine(now)
	if s := qs.subs[k.node]; s != nil && s.publishDenied {
		k.pokeFirst() // it may be the turn of one of ours
	}
}

// othersWaitAt is othersWait for waiters at a node whose queue our releases do not serve; -1: it is not
// known at which, so the next of our waiters looks. Seen for the second time, that queue is followed.
func (qs *queues) othersWaitAt(r *resource, node int) {
	now := qs.set.clock.Now()
	qs.mu.Lock()
	defer qs.mu.Unlock()
	k := qs.contended(r, now.Mono)
	if node >= 0 && !k.meeting.moved(now.Mono) && k.meeting.saw(node, now.Mono) {
		k.moveTo(node, now)
	} else {
		k.meeting.elsewhere = true
	}
	k.pokeFirst()
}

// contended is the waiters of a key that is known to be waited for; the
// caller holds mu.
func (qs *queues) contended(r *resource, now int64) *keyWaiters {
	k := qs.of(r)
	k.refusedAt = now
	return k
}

// mustLook reports whether one of the key's waiters is to look at the queues of all nodes,
// and counts it as done.
func (k *keyWaiters) mustLook() bool {
	now := k.queues.set.clock.Now().Mono
	k.queues.mu.Lock()
	defer k.queues.mu.Unlock()
	m := &k.meeting
	if !m.elsewhere || now-m.lookedAt < int64(lookPause) {
		return false
	}
	m.elsewhere, m.lookedAt = false, now
	return true
}

// follow has all waiters of this process for the key move to the queue of another node, if
// that is better, and reports whether it did. inVain: the waiter's turns come to nothing.
func (w *waiter) follow(all []inspection, inVain bool) bool {
	k, qs := w.of, w.of.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	now := qs.set.clock.Now()
	moved := k.meeting.moved(now.Mono)
	if moved && k.meeting.at != w.node {
		return false // the other did not let us in
	}
	to := qs.oldest(all, w.node, now.Mono)
	switch {
	case to >= 0:
		again := k.meeting.saw(to, now.Mono) // a release that finds it again follows
		if !all[to].waitedLonger(&all[w.node]) && !(inVain && again) {
			return false
		}
	case inVain:
		if to = w.rivalHolderNode(all); to < 0 {
			return false
		}
	default:
		return false
	}
	return k.moveTo(to, now)
}

// saw notes that others wait in the queue of a node, and reports whether they did so
// before; the caller holds mu.
func (m *meeting) saw(node int, now int64) (again bool) {
	if m.seen != node {
		m.seen, m.seenAt = node, now
		return false
	}
	return now-m.seenAt >= int64(lookPause)
}

// moveTo has all waiters of this process for the key, and those to come, go to the queue of
// a node, if they may: the caller the first, whose answer sends the others. The caller holds mu.
func (k *keyWaiters) moveTo(node int, now tick.Instant) bool {
	m := &k.meeting
	if !m.moved(now.Mono) && now.Mono-m.until < int64(returnPause) {
		return false // others may be on their way back, too
	}
	m.seen, m.seenAt = node, now.Mono
	m.at, m.until = node, nextReturn(now)
	k.lookIn(now.Mono, time.Duration(m.until-now.Mono))
	return true
}

// nextReturn is when all processes return together to the first node in order: at multiples of returnEvery of the
// wall clock, which is about the same everywhere. One that returned alone would have to leave again.
func nextReturn(now tick.Instant) int64 {
	return now.Mono + int64(returnEvery) - now.Wall%int64(returnEvery)
}

// oldest is the node, other than ours, with the queue whose first waiter is another
// process's and has waited longest; -1 if there is none. The caller holds mu.
func (qs *queues) oldest(all []inspection, ours int, now int64) int {
	best := -1
	for i := range all {
		n := &all[i]
		if i == ours || len(n.Waiters) == 0 || n.Waiters[0].Process == qs.process || now < qs.denials[i].until {
			continue
		}
		if best < 0 || n.waitedLonger(&all[best]) {
			best = i
		}
	}
	return best
}

// rivalHolderNode is the first node in order, other than ours, that has the value of a holder that has
// the lock without our node, if that is already the second to do so while our turns came to nothing,
// and the release of neither woke one of us; -1 otherwise. The caller holds queues.mu.
func (w *waiter) rivalHolderNode(all []inspection) int {
	m := &w.of.meeting
	first, node := len(m.rivals) == 0, -1
	here := all[w.node].held()
	for _, i := range w.of.order {
		for _, v := range all[i].held() {
			if slices.Contains(here, v) || slices.Contains(m.rivals, v) {
				continue
			}
			if m.rivals = append(m.rivals, v); node < 0 {
				node = i
			}
		}
	}
	if first {
		return -1
	}
	return node
}

// held is the values of the lock's holders at a node.
func (n *inspection) held() (all []string) {
	if n.Kind != "string" {
		return nil
	}
	if !n.Shared {
		return []string{n.Value}
	}
	for _, h := range n.Holders {
		all = append(all, h.Value)
	}
	return all
}
