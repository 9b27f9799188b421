package realtest_test

import (
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/stretchr/testify/require"
)

// Scenario 108, with a minority of nodes that does not answer.
func TestAdoptOnNodesOfWhichAMinorityIsBroken(t *testing.T) {
	t.Parallel()
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 5)
			rl, other := f.open(t, unhurried), f.open(t, unhurried)
			f.warm(t, rl)
			f.warm(t, other)
			lock := requireLock(t, rl, redlock.WithFencing())
			waitForVotes(t, lock)
			fence := lock.Fence()
			for _, i := range []int{1, 4} {
				fault.begin(t, f, i)
			}
			for range 3 { // there and back again
				var err error
				next := promptly(t, func() *redlock.Lock {
					var next *redlock.Lock
					next, err = other.Mutex(resource, redlock.WithFencing()).Adopt(t.Context(), lock.Detach())
					return next
				})
				require.NoError(t, err)
				require.Greater(t, next.Fence(), fence)
				require.NoError(t, lock.Release(t.Context()), "ends nothing")
				require.Error(t, try(t, rl))
				lock, fence = next, next.Fence()
				rl, other = other, rl
			}
			require.NoError(t, promptly(t, func() error { return lock.Release(t.Context()) }))
			promptLock(t, rl)
		})
	}
}

// A holder that was paused, and believed to be dead: what it sends when it wakes has no
// effect, and the fence is greater.
func TestPausedHolderWhoseLockWasAdopted(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	former, next := f.open(t, patient), f.open(t, patient)
	lock := requireLock(t, former, redlock.WithFencing())
	adopted, err := next.Mutex(resource, redlock.WithFencing(), redlock.WithTTL(time.Minute)).Adopt(t.Context(), lock.Token())
	require.NoError(t, err)
	require.Greater(t, adopted.Fence(), lock.Fence())
	require.ErrorIs(t, lock.Extend(t.Context(), time.Minute), redlock.ErrNotHeld)
	require.ErrorIs(t, lock.Release(t.Context()), redlock.ErrNotHeld)
	require.NoError(t, adopted.Extend(t.Context(), time.Minute))
	require.NoError(t, adopted.Release(t.Context()))
	f.requireGone(t, resource)
}
