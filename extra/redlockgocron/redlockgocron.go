// Package redlockgocron lets schedulers of github.com/go-co-op/gocron/v2 on many machines share
// their jobs by locks of github.com/quorumlock/redlock.
//
//	locker := redlockgocron.NewLocker(rl, time.Minute)
//	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
//
// With a [Locker] each run of a job takes place on one of the machines, not always the same. With
// an [Elector] all jobs run on one machine, the leader.
package redlockgocron

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/quorumlock/redlock"
)

// Locker is a gocron.Locker. A job's name is the key of its lock.
type Locker struct {
	rl   *redlock.Redlock
	opts []redlock.LockOption
}

// NewLocker makes a Locker of locks that are renewed while their job runs, and are not free earlier
// than minHold after the job began. The clocks of the machines, and the moments at which their
// schedulers start the same run, must differ by less than minHold, which must be less than the time
// between two runs. Then each run takes place once. minHold is from 10 milliseconds to 24 hours;
// the lock's TTL is minHold, but at least 10 seconds, unless opts have another one. If minHold or
// opts break a rule, as does a minHold above the TTL of opts and redlock.Options.RestartGuard, every
// Lock fails with redlock.ErrInvalid, and no job runs.
//
// A run is left out if no majority of the nodes answers when it is due, and a job that loses its lock
// is not stopped, because gocron's job has the context of the scheduler. A job that must stop then, or
// wait out an outage, uses Mutex.Do by itself.
func NewLocker(rl *redlock.Redlock, minHold time.Duration, opts ...redlock.LockOption) *Locker {
	all := []redlock.LockOption{redlock.WithRenewal(), redlock.WithTTL(max(minHold, 10*time.Second)), redlock.WithMinHold(minHold)}
	return &Locker{rl: rl, opts: append(all, opts...)}
}

// Lock asks once, as Mutex.TryAcquire does. For any error gocron leaves the run out on this machine;
// errors.Is tells redlock.ErrHeld (another machine does it) from redlock.ErrNoQuorum and others.
func (l *Locker) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	lock, err := l.rl.Mutex(key, l.opts...).TryAcquire(ctx)
	if err != nil {
		return nil, err
	}
	return held{lock}, nil
}

type held struct{ lock *redlock.Lock }

// Unlock works with a context that has ended, too.
func (h held) Unlock(ctx context.Context) error { return h.lock.Release(ctx) }

// ErrNotLeader is in the error of Elector.IsLeader in a process that is not the leader.
var ErrNotLeader = errors.New("redlockgocron: not the leader")

// Elector is a gocron.Elector: the process that holds a lock is the leader. Only NewElector makes one; the
// zero Elector never is the leader, and its Close does nothing.
type Elector struct {
	term atomic.Pointer[redlock.Lock] // nil: another leads, or none
	end  context.CancelFunc
	done chan struct{} // closed once err is what Lead returned
	err  error
}

// NewElector stands for election, by Mutex.Lead, until Close, or until Lead fails: IsLeader and Close
// return why. With WithMaxWait it gives up for good after that time. All machines give a Mutex of the
// same key.
func NewElector(m *redlock.Mutex) *Elector {
	ctx, end := context.WithCancel(context.Background())
	e := &Elector{end: end, done: make(chan struct{})}
	go func() {
		defer close(e.done)
		e.err = m.Lead(ctx, func(ctx context.Context, lock *redlock.Lock) error {
			e.term.Store(lock)
			defer e.term.Store(nil)
			<-ctx.Done()
			return ctx.Err()
		})
	}()
	return e
}

// IsLeader returns nil while this process is the leader: its lease is valid at that moment. What is
// left of it may be short, so a job that takes longer may overlap with the next leader's after an
// outage. Otherwise it returns an error for which errors.Is finds ErrNotLeader, and why the election
// ended, if it did. It asks no node.
func (e *Elector) IsLeader(context.Context) error {
	if lock := e.term.Load(); lock != nil && lock.Validity() > 0 {
		return nil
	}
	select {
	case <-e.done:
		if e.err != nil {
			return fmt.Errorf("%w: %w", ErrNotLeader, e.err)
		}
	default:
	}
	return ErrNotLeader
}

// Close steps down, so that another process leads at once, and waits for that. It returns nil, or why
// the election had ended before. A second call does nothing.
func (e *Elector) Close() error {
	if e.end == nil {
		return nil
	}
	e.end()
	<-e.done
	if errors.Is(e.err, context.Canceled) {
		return nil
	}
	return e.err
}
