package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/quorumlock/redlock"
)

func (s span) draw() time.Duration { return s.min + rand.N(s.max-s.min+1) }

// role is what an actor does at the moment.
type role uint8

const (
	resting role = iota
	inLine
	holding
	paused // with a lock, whose lease may be over by now
	finishing
)

func (r role) String() string {
	return [...]string{"idle", "waiting", "holding", "paused", "holding"}[r]
}

// actor is a worker of a stage: as if it were a process of its own, which can be paused as a
// whole. So it renews its lock itself: the library's renewal would go on.
type actor struct {
	*stage
	name string

	// Guarded by stage.mu.
	role  role
	since time.Time // it has that role
	until time.Time // end of its lease, as it knows it; zero without one
	wakes time.Time // it is paused until then
}

// become changes the role.
func (a *actor) become(r role, until time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.role, a.since, a.until = r, time.Now(), until
}

// fallAsleep stops the actor where it is, in the midst of its turn; the caller holds mu.
func (a *actor) fallAsleep() { a.role, a.wakes = paused, time.Now().Add(a.pauseTime()) }

func (a *actor) tellPause() {
	a.tell(bad, true, "%s has the lock and is paused for %s, longer than its lease. It cannot renew it.", a.name, leaseText(a.pauseTime()))
}

// awake waits while the actor is paused, and says whether it was.
func (a *actor) awake(ctx context.Context) (slept bool) {
	a.mu.Lock()
	asleep, left := a.role == paused, time.Until(a.wakes)
	a.mu.Unlock()
	if !asleep || !sleep(ctx, left) {
		return asleep
	}
	a.mu.Lock()
	a.role, a.wakes = holding, time.Time{}
	a.mu.Unlock()
	a.tell(odd, true, "%s wakes up after %s.", a.name, leaseText(a.pauseTime()))
	return true
}

// finish says whether the turn is at its end: nobody can pause the actor any more. False: it
// is paused.
func (a *actor) finish() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.role == paused {
		return false
	}
	a.role = finishing
	return true
}

// run works until ctx ends.
func (a *actor) run(ctx context.Context) error {
	a.become(resting, time.Time{})
	rl, err := a.open(ctx, a.name)
	if err != nil {
		return err
	}
	defer rl.Close()
	for sleep(ctx, a.idle.draw()) {
		if err := a.turn(ctx, rl.Mutex(a.key)); err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
	}
	return nil
}

// turn waits for the lock and adds one to the counter under it.
func (a *actor) turn(ctx context.Context, m *redlock.Mutex) error {
	a.become(inLine, time.Time{})
	start := time.Now()
	lock, err := m.Acquire(ctx)
	if err != nil {
		return err
	}
	a.granted(lock)
	waited := time.Since(start)
	value := a.counter.value.Load() + 1
	work := a.work.draw()
	told := false
	for begun := time.Now(); time.Since(begun) < work && err == nil; {
		sleep(ctx, min(work, 100*time.Millisecond))
		if !told { // by now the nodes have answered that will
			told = true
			a.tellGrant(lock, waited)
		}
		if a.awake(ctx) || ctx.Err() != nil {
			break // it means to write, as it did before
		}
		err = a.renew(ctx, lock)
	}
	for !a.finish() && ctx.Err() == nil {
		a.awake(ctx)
	}
	a.write(lock, value, err)
	_ = lock.Release(ctx) // of a lock that was lost, or without a majority: that was told
	a.become(resting, time.Time{})
	return nil
}

func (a *actor) granted(lock *redlock.Lock) {
	a.become(holding, lock.Until())
	a.mu.Lock()
	a.voted(lock.Outcomes())
	pause := a.pauseNext && a.role == holding
	if pause {
		a.pauseNext = false
		a.fallAsleep()
	}
	a.mu.Unlock()
	if pause {
		a.tellPause()
	}
}

func (a *actor) tellGrant(lock *redlock.Lock, waited time.Duration) {
	outcomes := lock.Outcomes()
	a.mu.Lock()
	a.voted(outcomes)
	a.mu.Unlock()
	after := ""
	if waited > 200*time.Millisecond {
		after = " after " + leaseText(waited)
	}
	a.tell("", false, "%s got the lock%s: %s.", a.name, after, votesText(outcomes))
}

// renew makes the lease longer once a third of it is over. It returns an error if the lock is
// lost; a majority that does not answer may do so next time.
func (a *actor) renew(ctx context.Context, lock *redlock.Lock) error {
	if lock.Validity() > a.ttl*2/3 {
		return nil
	}
	err := lock.Extend(ctx, a.ttl)
	a.mu.Lock()
	a.until = lock.Until()
	a.mu.Unlock()
	if errors.Is(err, redlock.ErrLost) {
		return err
	}
	return nil
}

// write is the end of a turn: the counter is written only if the lock still holds.
func (a *actor) write(lock *redlock.Lock, value int64, err error) {
	if err == nil && lock.Validity() <= 0 {
		err = redlock.ErrExpired
	}
	if err != nil {
		a.tell(odd, true, "%s sees that %s, and does not write. Nothing is lost.", a.name, lossText(err))
		return
	}
	a.counter.value.Store(value)
	a.counter.increments.Add(1)
	a.tell("", false, "%s writes %d and gives the lock back.", a.name, value)
}

// careless does the same without a lock.
func (a *actor) careless(ctx context.Context) {
	for sleep(ctx, a.idle.draw()) {
		value := a.control.value.Load() + 1
		if !sleep(ctx, a.work.draw()) {
			return
		}
		a.control.value.Store(value)
		a.control.increments.Add(1)
	}
}
