package redlock

import (
	"container/list"
	"context"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// waiter is an Acquire that waits. Its fields belong to the Acquire's goroutine, except
// those that say that queues.mu guards them.
type waiter struct {
	*resource
	*entrant
	queues *queues
	order  []int        // of nodes, the arbiter first
	since  tick.Instant // when it first joined anywhere
	door   string       // the value under which it keeps others from sharing the lock; empty: it does not
	standing
	vain

	// Guarded by queues.mu:
	sub         *subscription
	place       *list.Element // in the waiters of its key; nil: not in a queue
	woken       bool          // the lock is reserved for it
	wokenNumber int64         // the number of the permit that is; 0: none
	aside       bool          // it polls, and looks after no others
}

// standing is what a waiter has in the queue of a node: an entry, with the value of its next attempt.
type standing struct {
	node         int
	entry, value string // empty if there is nothing
	ended        string // the entry of the attempt before, until it is known to be gone
	arrival      int64  // on node
	joined       bool   // node has confirmed the entry
	number       int64  // of the permit that is reserved for us; 0: none
	join         *round // under way; nil: none
	// joins are the requests that put the entry there: those that may still take effect, and the
	// latest, which a release of the entry takes back.
	joins []*lane.Call
	// refusedUntil is until when nodes are not asked that have something else under a name of the lock: to
	// ask one again we would have to leave the queue of another, and lose our turn there.
	refusedUntil map[int]int64
}

// vain is what a waiter knows of turns that came to nothing.
type vain struct {
	failures     int      // attempts in a row that were our turn and failed
	failedAt     int      // with the queue of this node
	home         int      // where we asked last to be let in since; -1: nowhere
	homeAt       int64    // when we did
	rivalHolders []string // that held the lock without our node meanwhile; guarded by queues.mu
}

func newWaiter(qs *queues, r *resource, e *entrant) *waiter {
	w := &waiter{resource: r, entrant: e, vain: vain{home: -1}, queues: qs, order: r.nodeOrder()}
	if e.waited {
		w.since = tick.Instant{Mono: max(e.id, 1)} // all that Since needs
	}
	return w
}

// await joins the queue, or stays in it, and returns nil when it is time for an attempt.
// It returns errNoQueue if no node keeps a queue for us, ctx's error, or ErrClosed. What
// it learns of the holder goes into last.
func (w *waiter) await(ctx context.Context, last *QuorumError) error {
	lookedAt := w.clock.Now().Mono
	for {
		a, err := w.ask(ctx)
		if err != nil {
			return err
		}
		if w.node != w.failedAt {
			w.failures = 0
		}
		if !a.ours {
			w.failures = 0
			if ready, err := w.waitForTurn(ctx, a, last, &lookedAt); ready || err != nil {
				return err
			}
			continue
		}
		var again bool
		switch {
		case w.failures >= 2:
			again, err = w.afterVainTurns(ctx, last)
		case w.queues.mustLook(w.of): // one that is let in at once would never look otherwise
			var all []inspection
			if _, all, err = w.whenFree(ctx, last); err == nil {
				again = w.queues.follow(w, all, false)
			}
		}
		if !again {
			return err
		}
	}
}

// waitForTurn sleeps until the waiter is to look again, or ready for an attempt.
func (w *waiter) waitForTurn(ctx context.Context, a answer, last *QuorumError, lookedAt *int64) (ready bool, err error) {
	last.HolderTTL = max(a.ttl, 0)
	last.Outcomes[w.node].Holder = a.holder
	// What is on the arbiter may be gone from the others: its clock was set back, another client
	// put a key there, or a holder that lost the majority renewed it. The first in the
	// queue, which overtakes none, finds out.
	if a.ahead == 0 && a.holder == protocol.SharedMarker && !w.terms.shared {
		w.shutDoor()
	}
	now := w.clock.Now().Mono
	due := a.ahead == 0 && now-*lookedAt >= int64(w.looksEvery())
	if due {
		*lookedAt = now
	}
	if due || w.queues.mustLook(w.of) {
		free, all, err := w.whenFree(ctx, last)
		if free == 0 && due || err != nil {
			return true, err
		}
		if w.queues.follow(w, all, false) {
			return false, nil
		}
	}
	if w.quorumGone() {
		return true, nil
	}
	return w.sleep(ctx, nil)
}

// stepAside tells whether we pause before an attempt that is out of turn. Meanwhile the next
// waiter looks after the others.
func (w *waiter) stepAside(aside bool) {
	w.queues.mu.Lock()
	w.aside = aside
	w.queues.mu.Unlock()
}

// pauseUnlessWoken pauses, and ends early when it is our turn.
func (w *waiter) pauseUnlessWoken(ctx context.Context, d time.Duration) error {
	over, stop := tick.After(w.clock, d)
	defer stop()
	for {
		woken, err := w.sleep(ctx, over)
		if woken || err != nil {
			return err
		}
		select {
		case <-over:
			return nil
		default:
		}
	}
}

// looksEvery is how often the first in the queue looks at what the other nodes hold. A
// process that waits for thousands of keys does so less often.
func (w *waiter) looksEvery() time.Duration {
	return max(w.reservation(), time.Duration(w.queues.awaited.Load())*4*perKey)
}

// backIn is in what time at most this process will have looked at the key's queue again. A node
// that has not heard of it by then passes its waiters over.
func (w *waiter) backIn() time.Duration { return 2 * w.of.throttled(w.reservation()/2) }

// sleep waits for a signal, or for over, and tells whether it is our turn.
func (w *waiter) sleep(ctx context.Context, over <-chan struct{}) (woken bool, err error) {
	select {
	case <-w.signal:
		if err := ctx.Err(); err != nil {
			return false, err
		}
		w.clock.Yield(w.id)
	case <-over:
	case <-ctx.Done():
		return false, ctx.Err()
	case <-w.life.closing:
		w.clock.Yield(w.id)
		return false, ErrClosed
	}
	w.queues.mu.Lock()
	defer w.queues.mu.Unlock()
	if woken, w.woken = w.woken, false; woken {
		w.number = w.wokenNumber
	}
	return woken, nil
}

// wake tells the waiter that the lock is reserved for it; the caller holds queues.mu.
func (w *waiter) wake(number int64) {
	w.woken, w.wokenNumber = true, number
	w.rivalHolders = nil
	w.poke()
}

// giveUpTurn leaves the queue, so that a waiter which cannot reach enough nodes does not
// keep one of them from the others.
func (w *waiter) giveUpTurn() {
	w.withdraw()
	w.failures = 0
}

// claim hands the entry over to an attempt, which sets its value. The attempt ends, and
// with it the value: it is never registered again.
func (w *waiter) claim() (had standing) {
	qs := w.queues
	qs.mu.Lock()
	delete(qs.byName, nameOf(w.value))
	w.woken = false
	w.hadTurn, w.of.turnAt = true, w.clock.Now().Mono
	qs.mu.Unlock()
	had = w.standing
	w.ended, w.entry, w.value, w.number, w.joins = w.entry, "", "", 0, nil
	return had
}

// rejoin takes the old place with a new entry, after an attempt that failed. It is sent
// before anything of the attempt is taken back, so that the arbiter finds us first in the
// queue still.
func (w *waiter) rejoin() {
	w.failures++
	w.failedAt = w.node
	if w.register(context.Background(), w.node) == nil {
		w.send()
	}
}

// withdraw takes the entry out of the queue it is in, and passes the turn on if it was
// ours. It has nothing to do with the caller's context, and is sent again by the lane
// until the node has answered.
func (w *waiter) withdraw() {
	if w.entry == "" {
		return
	}
	q := w.queueArgs(w.entry, protocol.AsWaiter)
	req := protocol.QueueReleaseRequest(&w.terms.Terms, w.name, w.value, q)
	if w.terms.shared {
		req = protocol.SharedReleaseRequest(&w.terms.Terms, w.name, w.value, w.shareArgs(0), q)
	}
	req.KeepFor = max(req.KeepFor, protocol.QueueLife)
	if n := len(w.joins); n > 0 {
		l, last := w.lane(w.node), w.joins[n-1]
		if len(l.MayLand(w.joins[:n-1])) > 0 {
			l.Doubt(last)
		}
		l.TakeBack(&lane.Call{Req: &req, Undoes: last, When: lane.Unconditional}, w.clock.Now().Mono)
	}
	qs := w.queues
	qs.mu.Lock()
	delete(qs.byName, nameOf(w.value))
	qs.mu.Unlock()
	w.entry, w.value, w.ended, w.joins, w.join, w.joined = "", "", "", nil, nil, false
}

// leave is for an Acquire that does not wait any more. Its waiter, if it has become one, leaves the queue that it is in.
func (qs *queues) leave(e *entrant, w *waiter) {
	if w != nil {
		w.openDoor()
		w.withdraw()
	}
	now := qs.set.clock.Now()
	qs.mu.Lock()
	defer qs.mu.Unlock()
	k := e.of
	if w != nil {
		k.remove(w, now.Mono)
		qs.unsubscribe(w)
	}
	if k.window.leave(e, now.Mono); k.window.waiters() == 0 {
		k.rest(now.Mono)
		k.alarm.Stop()
	}
	qs.forget(now.Mono)
}

// shutDoor keeps newcomers from sharing the lock, since the first in line wants it alone.
// Sharers would otherwise come in for as long as others do, past the line: a
// majority of nodes does not keep it. It lasts until the next look shuts it again, which is
// later in a process that waits for thousands of keys, and for half a reservation more.
func (w *waiter) shutDoor() {
	half := w.reservation() / 2
	w.door = w.value
	w.tellDoor(protocol.DoorRequest(&w.terms.Terms, w.naming.DoorKey(w.name), w.door, w.of.throttled(half)+half))
}

// openDoor lets newcomers in again. Where that does not arrive, it opens by itself.
func (w *waiter) openDoor() {
	if w.door != "" {
		w.tellDoor(protocol.OpenDoorRequest(&w.terms.Terms, w.naming.DoorKey(w.name), w.door))
		w.door = ""
	}
}

func (w *waiter) tellDoor(req *protocol.Request) {
	now := w.clock.Now().Mono
	for i := range w.names {
		w.lane(i).Enqueue(&lane.Call{Req: req, Index: int16(i), Deadline: now + int64(req.Timeout)}, now)
	}
}
