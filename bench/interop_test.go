package main

import (
	"context"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What docs/migrating.md says of a rolling update: clients of the old library and ours
// exclude each other.
func TestOldAndNewExcludeEachOther(t *testing.T) {
	t.Parallel()
	const key = "orders:42"
	type free func()
	for name, c := range map[string]struct {
		nodes  int
		prefix string
		// start returns the old library's try: nil if somebody else holds the lock.
		start func(t *testing.T, clients []redis.UniversalClient, addrs []string) func() free
	}{
		"redsync": {nodes: 3, start: func(t *testing.T, clients []redis.UniversalClient, _ []string) func() free {
			var pools []redsyncredis.Pool
			for _, c := range clients {
				pools = append(pools, goredis.NewPool(c))
			}
			rs := redsync.New(pools...)
			return func() free {
				m := rs.NewMutex(key)
				if err := m.TryLock(); err != nil {
					var taken *redsync.ErrTaken
					require.ErrorAs(t, err, &taken)
					return nil
				}
				return func() {
					ok, err := m.Unlock()
					require.NoError(t, err)
					require.True(t, ok)
				}
			}
		}},
		"bsm": {nodes: 1, start: func(t *testing.T, clients []redis.UniversalClient, _ []string) func() free {
			locker := redislock.New(clients[0])
			return func() free {
				l, err := locker.Obtain(t.Context(), key, 10*time.Second, nil)
				if err != nil {
					require.ErrorIs(t, err, redislock.ErrNotObtained)
					return nil
				}
				return func() { require.NoError(t, l.Release(t.Context())) }
			}
		}},
		"rueidislock with a majority of 1": {nodes: 1, prefix: "rueidislock:0:", start: func(t *testing.T, _ []redis.UniversalClient, addrs []string) func() free {
			locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
				ClientOption: rueidis.ClientOption{InitAddress: addrs},
				KeyMajority:  1,
				TryNextAfter: 5 * time.Second, // on a busy machine
			})
			require.NoError(t, err)
			t.Cleanup(locker.Close)
			return func() free {
				_, cancel, err := locker.TryWithContext(t.Context(), key)
				if err != nil {
					require.ErrorIs(t, err, rueidislock.ErrNotLocked)
					return nil
				}
				return func() { cancel() }
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			var clients []redis.UniversalClient
			var addrs []string
			for _, s := range realredis.StartN(t, c.nodes) {
				clients = append(clients, s.Client(t))
				addrs = append(addrs, s.Addr())
			}
			old := c.start(t, clients, addrs)
			rl, err := redlock.New(clients, &redlock.Options{TTL: time.Minute, NodeTimeout: time.Second, KeyPrefix: c.prefix})
			require.NoError(t, err)
			defer rl.Close()
			m := rl.Mutex(key)
			nodes, err := admin.New(clients, &admin.Options{KeyPrefix: c.prefix})
			require.NoError(t, err)

			release := old()
			require.NotNil(t, release)
			_, err = m.TryAcquire(t.Context())
			require.ErrorIs(t, err, redlock.ErrHeld)

			// One that waits in line finds the release of a client that knows no line.
			got := make(chan *redlock.Lock, 1)
			go func() {
				lock, err := m.Acquire(t.Context())
				assert.NoError(t, err)
				got <- lock
			}()
			require.Eventually(t, func() bool {
				s, err := nodes.Inspect(context.Background(), key)
				return err == nil && len(s.Waiters) == 1
			}, 10*time.Second, 5*time.Millisecond)
			assert.Nil(t, old(), "held by the old library")
			release()
			lock := <-got
			require.NotNil(t, lock)

			assert.Nil(t, old(), "held by us")
			require.NoError(t, lock.Release(t.Context()))
			require.Eventually(t, func() bool {
				again := old()
				if again != nil {
					again()
				}
				return again != nil
			}, 10*time.Second, 5*time.Millisecond, "free")
		})
	}
}
