package redlock_test

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/leaktest"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/redlocktest"
)

// TestMain fails the run if tests leave goroutines behind, and keeps go-redis from
// reporting every failed dial.
func TestMain(m *testing.M) {
	logging.Disable()
	leaktest.Main(m)
}

// What every user relies on first; internal/testing/promises has the tests of all promises.

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

// BenchmarkCycle acquires and releases locks of different keys on five real servers.
func BenchmarkCycle(b *testing.B) {
	addrs := fiveServers(b)
	var clients []redis.UniversalClient
	for _, addr := range addrs {
		c := redis.NewClient(&redis.Options{Addr: addr})
		defer c.Close()
		clients = append(clients, c)
	}
	ours, err := redlock.Open(b.Context(), addrs, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer ours.Close()
	users, err := redlock.New(clients, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer users.Close()
	b.Run("Open", func(b *testing.B) { cycles(b, ours) })
	b.Run("New", func(b *testing.B) { cycles(b, users) })
	unguarded, err := redlock.New(clients, &redlock.Options{NoRestartGuard: true})
	if err != nil {
		b.Fatal(err)
	}
	defer unguarded.Close()
	b.Run("New without a guard", func(b *testing.B) { cycles(b, unguarded) })
}

// BenchmarkHooks is what it costs to be told of every cycle.
func BenchmarkHooks(b *testing.B) {
	addrs := fiveServers(b)
	nothing := &redlock.Hooks{
		Acquired: func(context.Context, redlock.AcquireInfo) {}, Extended: func(context.Context, redlock.ExtendInfo) {}, Released: func(context.Context, redlock.ReleaseInfo) {},
		Lost: func(context.Context, redlock.LostInfo) {}, NodeDown: func(redlock.NodeInfo) {}, NodeUp: func(redlock.NodeInfo) {},
		NodeBarred: func(redlock.VoteInfo) {}, NodeVotes: func(redlock.VoteInfo) {}, Degraded: func(redlock.DegradedInfo) {},
	}
	quiet := slog.New(slog.DiscardHandler)
	for _, c := range []struct {
		name  string
		hooks *redlock.Hooks
	}{{"nil", nil}, {"set", nothing}, {"logger at another level", redlock.LogHooks(quiet)}} {
		b.Run(c.name, func(b *testing.B) {
			rl, err := redlock.Open(b.Context(), addrs, &redlock.Options{Hooks: c.hooks})
			if err != nil {
				b.Fatal(err)
			}
			defer rl.Close()
			cycles(b, rl)
		})
	}
}

func fiveServers(b *testing.B) (addrs []string) {
	servers, err := realredis.LaunchN(b.Context(), 5)
	if err != nil {
		b.Skip(err)
	}
	for _, s := range servers {
		b.Cleanup(func() { _ = s.Close() })
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

func cycles(b *testing.B, rl *redlock.Redlock) {
	for _, goroutines := range []int{1, 16, 128} {
		b.Run(strconv.Itoa(goroutines), func(b *testing.B) {
			b.ReportAllocs()
			var wg sync.WaitGroup
			for g := range goroutines {
				wg.Go(func() {
					m := rl.Mutex("bench:" + strconv.Itoa(g))
					for range (b.N + goroutines - 1) / goroutines {
						lock, err := m.TryAcquire(b.Context())
						if err != nil {
							b.Error(err)
							return
						}
						_ = lock.Release(b.Context())
					}
				})
			}
			wg.Wait()
		})
	}
}
