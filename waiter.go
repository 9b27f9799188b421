package redlock

import (
	"container/list"
	"context"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// waiterState is what a waiter is.
//
//	outside -> joining -> queued, turn or polling
//	queued, polling -> turn; polling -> queued
//	joining, queued, turn, polling -> trying -> joining
//
// All but outside become joining when they leave a node's queue, and done in the end.
type waiterState uint8

const (
	outside waiterState = iota // too many of its process stand in the queue already
	joining                    // no node has confirmed its entry
	queued                     // a node has
	turn                       // the lock is reserved for it
	trying                     // its entry is an attempt's, which asks all nodes
	polling                    // between attempts that are out of turn, or in vain: others look after the queue
	done
)

// waiter is an Acquire that waits. Its fields belong to the Acquire's goroutine, but for those that
// say otherwise.
type waiter struct {
	of      *keyWaiters
	r       *resource
	came    int64         // when
	halfway int64         // when half of its time is over; 0: it has no deadline
	signal  chan struct{} // one token: look again

	// Guarded by queues.mu:
	state  waiterState
	place  *list.Element // among those outside, or else inside
	number int64         // of the permit that is reserved for it; 0: none
	sub    *subscription

	// What it has in the queue of a node. Its next attempt has the value that the entry ends with.
	node    int
	entry   string // empty: nothing
	ended   string // the entry of the attempt before, until it is known to be gone
	arrival int64  // on node; 0: not known, but it waited before, there or outside; -1: neither
	join    *round // under way; nil: none
	// joins are the requests that put the entry there: those that may still take effect, and the
	// latest, which a release of the entry takes back.
	joins []*lane.Call

	failures int    // failed claims since the node last said that it was not its turn
	failedAt int    // in whose queue it stood then
	door     string // the value under which it keeps others from sharing the lock; empty: it does not
}

// inVain reports whether two turns or more have failed.
func (w *waiter) inVain() bool { return w.failures >= 2 }

// poke makes it look again. It needs no mutex.
func (w *waiter) poke() {
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// enter has an Acquire wait until it may stand in the queue of its key.
func (qs *queues) enter(ctx context.Context, r *resource) (*waiter, error) {
	now := qs.set.clock.Now()
	w := &waiter{r: r, came: max(now.Mono, 1), signal: make(chan struct{}, 1), arrival: -1}
	if end, ok := ctx.Deadline(); ok {
		w.halfway = max(now.Mono+int64(end.Sub(now.Time)/2), 1)
	}
	qs.mu.Lock()
	w.of = qs.of(r)
	w.of.add(w)
	state := w.state
	if state == outside && w.class() == hurried {
		w.of.lookIn(now.Mono, w.of.throttled(lookPause)) // it may end outside, and its error shall name the holder
	}
	qs.mu.Unlock()
	var err error
	for state == outside && err == nil {
		state, err = w.sleep(ctx, nil)
	}
	return w, err
}

// leave ends what enter began, also where that failed; exactly once.
func (w *waiter) leave(served bool) {
	w.openDoor()
	w.withdraw()
	qs := w.of.queues
	now := qs.set.clock.Now().Mono
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.unsubscribe(w)
	w.of.remove(w, served, now)
}

// await joins the queue, or stays in it, and returns nil when it is time for an attempt. Its error is errNoQueue if
// no node keeps a queue for us; any other ends the Acquire. What it learns of the holder goes into last.
func (w *waiter) await(ctx context.Context, last *QuorumError) error {
	lookedAt := w.r.clock.Now().Mono
	for {
		a, err := w.ask(ctx)
		if err != nil {
			return err
		}
		if !a.ours || w.node != w.failedAt {
			w.failures = 0
		}
		if !a.ours {
			last.HolderTTL, last.Outcomes[w.node].Holder = max(a.ttl, 0), a.holder
		}
		next, err := w.look(ctx, a, last, &lookedAt)
		switch {
		case err != nil || next == tryNow:
			return err
		case next == askAgain:
			continue
		}
		if state, err := w.sleep(ctx, nil); state == turn || err != nil {
			return err
		}
	}
}

// move is what a waiter does next.
type move uint8

const (
	stay move = iota
	askAgain
	tryNow
)

// look takes in what the waiter was told, and finds out what the other nodes have where that is due.
func (w *waiter) look(ctx context.Context, a answer, last *QuorumError, lookedAt *int64) (move, error) {
	now := w.r.clock.Now().Mono
	// What is on the arbiter may be gone from the others: its clock was set back, another client
	// put a key there, or a holder that lost the majority renewed it. The first in the
	// queue, which overtakes none, finds out.
	due := !a.ours && a.ahead == 0 && now-*lookedAt >= int64(w.looksEvery())
	inVain := a.ours && w.inVain()
	if !a.ours && a.ahead == 0 && a.holder == protocol.SharedMarker {
		w.shutDoor()
	}
	switch {
	case inVain && w.mayGoHome(now):
		return askAgain, nil // the others of this process wait there
	case due:
		*lookedAt = now
	case !inVain && !w.of.mustLook():
		return w.stayOrTry(a), nil
	}
	free, all, err := w.r.whenFree(ctx, last)
	if inVain && anyShared(all) {
		w.shutDoor() // the arbiter would have us, and they go on without it
	}
	switch {
	case err != nil, due && free == 0:
		return tryNow, err
	case w.follow(all, inVain):
		return askAgain, nil
	case inVain:
		return tryNow, w.pauseInVain(ctx, last, free)
	}
	return w.stayOrTry(a), nil
}

func (w *waiter) stayOrTry(a answer) move {
	if a.ours || w.r.quorumGone() {
		return tryNow
	}
	return stay
}

// mayGoHome reports whether the queue is kept by another node than ours, and it is time to ask there.
func (w *waiter) mayGoHome(now int64) bool {
	k := w.of
	at := k.queues.arbiter(w.r, now, w.r.terms.JoinPatience())
	k.queues.mu.Lock()
	defer k.queues.mu.Unlock()
	if at < 0 || at == w.node || now-k.meeting.homeAt < int64(w.looksEvery()) {
		return false
	}
	k.meeting.homeAt = now
	return true
}

// pauseInVain pauses before an attempt that will hardly succeed, unless we are woken: another has won
// without the node, and its release wakes us again.
func (w *waiter) pauseInVain(ctx context.Context, last *QuorumError, free time.Duration) error {
	if at := &last.Outcomes[w.node]; at.Holder == w.value() {
		at.Holder = "" // reserved for us: we are not what stands in the way
	}
	return w.pause(ctx, min(w.r.backoff(w.failures, free), w.r.reservation()/2))
}

// stepAside has others look after the queue, unless it is our turn.
func (w *waiter) stepAside() {
	w.of.queues.mu.Lock()
	defer w.of.queues.mu.Unlock()
	if w.state != turn {
		w.state = polling
	}
}

// pause ends early when it is our turn.
func (w *waiter) pause(ctx context.Context, d time.Duration) error {
	over, stop := tick.After(w.r.clock, d)
	defer stop()
	for {
		state, err := w.sleep(ctx, over)
		if state == turn || err != nil {
			return err
		}
		select {
		case <-over:
			return nil
		default:
		}
	}
}

// sleep waits for a signal, or for over, and returns the state; with an error, done.
func (w *waiter) sleep(ctx context.Context, over <-chan struct{}) (waiterState, error) {
	select {
	case <-w.signal:
		if err := ctx.Err(); err != nil {
			return done, err
		}
		w.r.clock.Yield(w.came)
	case <-over:
	case <-ctx.Done():
		return done, ctx.Err()
	case <-w.r.life.closing:
		w.r.clock.Yield(w.came)
		return done, ErrClosed
	}
	w.of.queues.mu.Lock()
	defer w.of.queues.mu.Unlock()
	return w.state, nil
}

// looksEvery is how often the first in the queue looks at what the other nodes hold. A process that waits for over a
// hundred keys does so less often.
func (w *waiter) looksEvery() time.Duration {
	return max(w.r.reservation(), time.Duration(w.of.queues.awaited.Load())*4*perKey)
}

// shutDoor keeps newcomers from sharing the lock, since the first in line wants it alone. Sharers would otherwise
// come in for as long as others do, past the line: a majority of nodes does not keep it. It lasts until the next look
// shuts it again, which is later in a process that waits for hundreds of keys, and for half a reservation more.
func (w *waiter) shutDoor() {
	if w.r.terms.shared {
		return
	}
	half := w.r.reservation() / 2
	w.door = w.value()
	w.tellDoor(protocol.DoorRequest(&w.r.terms.Terms, w.r.naming.DoorKey(w.r.name), w.door, w.of.throttled(half)+half))
}

// openDoor lets newcomers in again. Where that does not arrive, it opens by itself.
func (w *waiter) openDoor() {
	if w.door != "" {
		w.tellDoor(protocol.OpenDoorRequest(&w.r.terms.Terms, w.r.naming.DoorKey(w.r.name), w.door))
		w.door = ""
	}
}

func (w *waiter) tellDoor(req *protocol.Request) {
	now := w.r.clock.Now().Mono
	for i := range w.r.names {
		w.r.lane(i).Enqueue(&lane.Call{Req: req, Index: int16(i), Deadline: now + int64(req.Timeout)}, now)
	}
}
