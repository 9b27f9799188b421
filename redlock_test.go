package redlock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/bubble"
	"github.com/quorumlock/redlock/redlocktest"
)

// What every user relies on first; internal/promises has the tests of all promises.

func newClient(t *testing.T, c *redlocktest.Cluster) *redlock.Redlock {
	rl, err := redlock.New(c.Clients(), &redlock.Options{TTL: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { _ = rl.Close() })
	return rl
}

func TestALockHasOneHolder(t *testing.T) {
	bubble.Run(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
		a, b := newClient(t, c).Mutex("k"), newClient(t, c).Mutex("k")
		start := time.Now()
		held, err := a.TryAcquire(t.Context())
		require.NoError(t, err)
		assert.Equal(t, start.Add(10*time.Second-102*time.Millisecond).UnixNano(), held.Until().UnixNano(), "the TTL less the drift allowance")

		_, err = b.TryAcquire(t.Context())
		require.ErrorIs(t, err, redlock.ErrHeld)
		require.NoError(t, held.Extend(t.Context(), 10*time.Second))
		require.NoError(t, held.Release(t.Context()))
		require.ErrorIs(t, held.Extend(t.Context(), time.Second), redlock.ErrReleased)

		next, err := b.TryAcquire(t.Context())
		require.NoError(t, err)
		assert.NotEqual(t, held.Token(), next.Token())
		require.NoError(t, next.Release(t.Context()))
	})
}

func TestAWaiterGetsTheLockWhenItIsReleased(t *testing.T) {
	bubble.Run(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
		held, err := newClient(t, c).Mutex("k").TryAcquire(t.Context())
		require.NoError(t, err)
		time.AfterFunc(time.Second, func() { _ = held.Release(t.Context()) })
		next, err := newClient(t, c).Mutex("k").Acquire(t.Context())
		require.NoError(t, err)
		assert.LessOrEqual(t, held.Validity(), time.Duration(0))
		require.NoError(t, next.Release(t.Context()))
	})
}

func TestAMajorityDecides(t *testing.T) {
	bubble.Run(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
		m := newClient(t, c).Mutex("k")
		c.Node(3).Stop()
		c.Node(4).Hang()
		start := time.Now()
		held, err := m.TryAcquire(t.Context())
		require.NoError(t, err)
		assert.Equal(t, start, time.Now(), "no call waits for a minority")
		require.NoError(t, held.Release(t.Context()))

		c.Node(2).SetError("LOADING Redis is loading the dataset in memory")
		_, err = m.TryAcquire(t.Context())
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		var q *redlock.QuorumError
		require.ErrorAs(t, err, &q)
		assert.Equal(t, 3, q.Need)
		assert.Equal(t, redlock.VoteFailed, q.Outcomes[2].Vote)
	})
}

func TestBadInputIsRefusedBeforeAnyRequest(t *testing.T) {
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		_, err := redlock.New([]redis.UniversalClient{}, nil)
		require.ErrorIs(t, err, redlock.ErrInvalid)
		rl := newClient(t, c)
		c.ResetCommands()
		_, err = rl.Mutex("").TryAcquire(t.Context())
		require.ErrorIs(t, err, redlock.ErrInvalid)
		_, err = rl.Mutex("k", redlock.WithTTL(-time.Second)).TryAcquire(t.Context())
		require.ErrorIs(t, err, redlock.ErrInvalid)
		assert.ErrorContains(t, err, "-1s")
		assert.Zero(t, c.Commands())
	})
}
