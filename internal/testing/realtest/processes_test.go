package realtest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/child"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// afterwards is what a process finds of its lock when the lease is over.
type afterwards struct{ NotValid, ContextLost, ExtendLost, ReleaseNotHeld bool }

// allOver is how it must find it.
var allOver = afterwards{true, true, true, true}

// look finds out, and asks for the validity first, which needs no goroutine to have run.
func look(t *testing.T, lock *redlock.Lock, ctx context.Context) (found afterwards) {
	found.NotValid = lock.Validity() <= 0
	<-ctx.Done()
	cause := context.Cause(ctx)
	found.ContextLost = errors.Is(cause, redlock.ErrLost) && errors.Is(cause, redlock.ErrExpired)
	found.ExtendLost = errors.Is(lock.Extend(t.Context(), childTTL), redlock.ErrLost)
	found.ReleaseNotHeld = errors.Is(lock.Release(t.Context()), redlock.ErrNotHeld)
	return found
}

// TestPausedProcess is no test of its own: it is the process that is paused in the next
// one. It says what it knows of its lock when it is asked to.
func TestPausedProcess(t *testing.T) {
	var addrs []string
	parent := child.Of(t, &addrs)
	rl := openAt(t, addrs, redlock.Options{TTL: childTTL, NodeTimeout: childTTL / 4})
	lock, err := rl.Mutex(resource, redlock.WithRenewal()).Acquire(t.Context())
	require.NoError(t, err)
	ctx := lock.Context()
	parent.Say(t, "held")
	parent.Hear()
	parent.Say(t, look(t, lock, ctx))
}

// Scenario 1: a process that is paused past its lease knows so when it wakes, and does
// no harm to whoever holds the lock by then.
func TestPausedHolderKnowsThatItsLockIsOver(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	holder := child.Start(t, "TestPausedProcess", f.addrs())
	holder.Hear(t, new(string))

	rl := f.direct(t, patient)
	require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
	holder.Pause(t)
	f.requireGone(t, resource) // nobody renews the child's any more
	ours := requireAcquire(t, rl)
	holder.Resume(t)
	holder.Tell(t, "look")
	var found afterwards
	holder.Hear(t, &found)
	require.Equal(t, allOver, found)
	f.requireOn(t, ours)
	require.NoError(t, ours.Extend(t.Context(), patient.TTL))
	require.NoError(t, ours.Release(t.Context()))
}

// childTTL is the lease of locks whose holders are paused or killed.
const childTTL = 700 * time.Millisecond

// TestHolderProcess is no test of its own: it is the process that is killed in the next
// one.
func TestHolderProcess(t *testing.T) {
	var addrs []string
	parent := child.Of(t, &addrs)
	rl, err := openOn(t.Context(), addrs, &redlock.Options{TTL: childTTL, NodeTimeout: childTTL / 4})
	require.NoError(t, err)
	_, err = rl.Mutex(resource, redlock.WithRenewal()).Acquire(t.Context())
	require.NoError(t, err)
	parent.Say(t, "held")
	for i := 0; ; i++ {
		busy, err := rl.Mutex(fmt.Sprint("busy-", i%10)).TryAcquire(t.Context())
		if err == nil {
			_ = busy.Release(t.Context())
		}
	}
}

func TestKilledProcessHoldsForTheTTLAtMost(t *testing.T) {
	t.Parallel() // 65
	f := startFleet(t, 5)
	holder := child.Start(t, "TestHolderProcess", f.addrs())
	holder.Hear(t, new(string))
	rl := f.direct(t, brisk)
	eventually(t, func() bool { return f.executed(0, "set") > 50 }, "the child does nothing") // in the middle of attempts
	require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
	holder.Kill(t)

	require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
	require.NoError(t, requireAcquire(t, rl).Release(t.Context()))
	eventually(t, func() bool {
		return !slices.ContainsFunc(f.admins, func(c *redis.Client) bool { return len(leftKeys(c)) > 0 })
	}, "keys are left")
}

// TestBusyProcess is no test of its own: it is the process of the next one. It computes
// for longer than its lease lasts, without a point at which the scheduler could run
// anything else.
func TestBusyProcess(t *testing.T) {
	var addrs []string
	parent := child.Of(t, &addrs)
	rl := openAt(t, addrs, redlock.Options{TTL: childTTL, NodeTimeout: childTTL / 4, NoRestartGuard: true})
	const sample = 1 << 26
	began := time.Now()
	compute(sample)
	rounds := int(2 * childTTL * sample / max(time.Since(began), time.Microsecond))

	lock, err := rl.Mutex(resource, redlock.WithRenewal()).Acquire(t.Context())
	require.NoError(t, err)
	ctx := lock.Context()
	parent.Say(t, "held")
	for range 2 {
		compute(rounds)
	}
	parent.Say(t, look(t, lock, ctx))
}

// computed keeps the work from being optimised away.
var computed int

func compute(rounds int) {
	x := 1
	for i := range rounds {
		x = x*31 + i
	}
	computed = x
}

// Scenario 15 in a real process with one processor.
func TestBusyHolderKnowsThatItsLockIsOver(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	busy := child.Start(t, "TestBusyProcess", addrsOf(f.servers), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	busy.Hear(t, new(string))
	ours := requireAcquire(t, f.direct(t, patient))
	var found afterwards
	busy.Hear(t, &found)
	require.Equal(t, allOver, found)
	// The busy one's keys end one after another, so a server may still have refused us.
	require.GreaterOrEqual(t, len(slices.DeleteFunc(f.holders(resource), not(ours))), 2, "the busy one took it from a server")
	require.NoError(t, ours.Release(t.Context()))
}
