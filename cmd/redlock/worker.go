package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock"
)

const (
	workMin = 40 * time.Millisecond
	workMax = 120 * time.Millisecond
	idleMin = 40 * time.Millisecond
	idleMax = 160 * time.Millisecond
)

func workTime() time.Duration { return workMin + rand.N(workMax-workMin) }
func idleTime() time.Duration { return idleMin + rand.N(idleMax-idleMin) }

// counter is what the lock protects. Increments that overlap overwrite each other.
type counter struct {
	value      atomic.Int64 // atomic to read and to write, but not from the one to the other
	increments atomic.Int64
}

// increment reads, works and writes, unless the lease is over by then. Without a
// lock it always writes.
func (c *counter) increment(lease context.Context, lock *redlock.Lock) (int64, error) {
	v := c.value.Load() + 1
	if !sleep(lease, workTime()) || lock != nil && lock.Validity() <= 0 {
		return 0, fmt.Errorf("not written: %w", redlock.ErrLost)
	}
	c.value.Store(v)
	c.increments.Add(1)
	return v, nil
}

func (c *counter) read() (increments, value int64) { return c.increments.Load(), c.value.Load() }

// doer is what keeps the workers apart: a *redlock.Mutex.
type doer interface {
	Do(ctx context.Context, fn func(ctx context.Context, lock *redlock.Lock) error) error
}

// unlocked keeps nobody from anything.
type unlocked struct{}

func (unlocked) Do(ctx context.Context, fn func(context.Context, *redlock.Lock) error) error {
	return fn(ctx, nil)
}

// guard is the lock that the workers use. Tests replace it by one that is broken.
var guard = func(m *redlock.Mutex) doer { return m }

// worker stands for a process.
type worker struct {
	*demo
	name     string
	attempts atomic.Int64 // of the latest acquire
}

// run works until ctx ends, from the start again after a crash. It returns errors
// that no waiting mends.
func (w *worker) run(ctx context.Context) error {
	for {
		crashed, err := w.live(ctx)
		if err != nil || !crashed || !sleep(ctx, w.crashTTL()*5/4) {
			return err
		}
		w.out.emit(&restarted{Worker: w.name})
	}
}

// live is one life of the process.
func (w *worker) live(ctx context.Context) (crashed bool, err error) {
	rl, err := redlock.Open(ctx, w.addrs, &redlock.Options{
		TTL: w.ttl, Owner: w.name,
		Hooks: &redlock.Hooks{Acquired: func(_ context.Context, i redlock.AcquireInfo) { w.attempts.Store(int64(i.Attempts)) }},
	})
	switch {
	case ctx.Err() != nil:
		err = nil
		if rl != nil {
			err = rl.Close()
		}
		return false, err
	case err != nil:
		return false, fmt.Errorf("%s: %w", w.name, err)
	}
	defer rl.Close() // of connections that may be broken; what it says of them is no news
	lock := guard(rl.Mutex(w.key))
	for ctx.Err() == nil {
		select {
		case <-w.crash:
			return w.acquireAndCrash(ctx, rl)
		default:
		}
		if err := w.turn(ctx, lock); err != nil {
			return false, err
		}
		sleep(ctx, idleTime())
	}
	return false, nil
}

// turn waits for the lock and increments the counter under it. Nothing is printed
// while the lock is held: a terminal may keep us waiting.
func (w *worker) turn(ctx context.Context, lock doer) error {
	var (
		start            = time.Now()
		e                = &increment{Worker: w.name}
		called, finished time.Time
		lost             error
		printed          sync.WaitGroup
	)
	granted := func(outcomes []redlock.Outcome) {
		if w.granted(start, called, outcomes) {
			printed.Go(func() { w.out.emit(w.leaseOver()) })
		}
	}
	err := lock.Do(ctx, func(_ context.Context, l *redlock.Lock) error {
		called = time.Now()
		// The end of the demo does not end the work, the end of the lease does.
		lease := context.Background()
		if l != nil {
			lease = l.Context()
			granted(l.Outcomes())
		} else {
			granted(nil)
		}
		e.Counter, lost = w.counter.increment(lease, l)
		if l != nil {
			e.votes = l.Outcomes() // by now all have answered that will
		}
		finished = time.Now()
		return lost
	})
	end := time.Now()
	printed.Wait()

	if called.IsZero() {
		if ctx.Err() != nil {
			w.gaveUp(start, end)
			return nil
		}
		return fmt.Errorf("%s: %w", w.name, err)
	}
	e.Votes = w.ballots(e.votes)
	w.noteVotes(e.votes)
	e.Attempts = w.attempts.Load()
	e.Waited, e.Held, e.Release = ms(called.Sub(start)), ms(finished.Sub(called)), ms(end.Sub(finished))
	if v, ok := voteTime(e.votes, w.quorum); ok {
		e.Vote = ms(v)
	}
	if lost == nil {
		w.out.emit(e)
	}
	switch {
	case errors.Is(err, redlock.ErrLost):
		w.lostLease()
		w.out.emit(&leaseLost{Worker: w.name, Written: lost == nil, Held: e.Held})
	case err != nil:
		return fmt.Errorf("%s: %w", w.name, err)
	}
	return nil
}

// acquireAndCrash takes the lock and dies, so that nobody releases or renews it.
func (w *worker) acquireAndCrash(ctx context.Context, rl *redlock.Redlock) (crashed bool, err error) {
	start := time.Now()
	lock, err := rl.Mutex(w.key, redlock.WithTTL(w.crashTTL())).Acquire(ctx)
	now := time.Now()
	switch {
	case err != nil && ctx.Err() != nil:
		w.gaveUp(start, now)
		return false, nil
	case err != nil:
		return false, fmt.Errorf("%s: %w", w.name, err)
	}
	until, outcomes := lock.Until(), lock.Outcomes()
	w.granted(start, now, outcomes)
	w.mu.Lock()
	w.crashed = &crash{worker: w.name, at: now, until: until}
	w.mu.Unlock()
	e := &crashes{Worker: w.name, Votes: w.ballots(outcomes), Waited: ms(now.Sub(start)), Lease: ms(w.crashTTL())}
	if v, ok := voteTime(outcomes, w.quorum); ok {
		e.Vote = ms(v)
	}
	w.out.emit(e)
	return true, nil
}

func (w *worker) leaseOver() *leaseOver {
	w.mu.Lock()
	defer w.mu.Unlock()
	return &leaseOver{Worker: w.name, Crashed: w.crashed.worker, After: ms(w.crashed.next)}
}
