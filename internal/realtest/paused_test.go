package realtest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/child"
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
