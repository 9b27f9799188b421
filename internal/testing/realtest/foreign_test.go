package realtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// What others put under the names of ours stays there. Locks that are held alone do not need
// these keys, and work; shared ones fail with an error that names the key.
func TestKeysOfOthersUnderNamesOfOurs(t *testing.T) {
	t.Parallel()
	var addrs []string
	for range 3 {
		c := realredis.Start(t).Client(t)
		addrs = append(addrs, c.Options().Addr)
		require.NoError(t, c.HSet(t.Context(), "{game}:shared", "theirs", "1").Err())
		require.NoError(t, c.ZAdd(t.Context(), "{game}:line", redis.Z{Score: 7, Member: "theirs"}).Err())
		require.NoError(t, c.LPush(t.Context(), "redlock:memory", "theirs").Err())
		t.Cleanup(func() {
			ctx := context.Background()
			assert.Equal(t, "1", c.HGet(ctx, "{game}:shared", "theirs").Val())
			assert.Equal(t, []string{"theirs"}, c.ZRange(ctx, "{game}:line", 0, -1).Val())
			assert.Equal(t, int64(-1), int64(c.TTL(ctx, "{game}:line").Val()))
			assert.Equal(t, []string{"theirs"}, c.LRange(ctx, "redlock:memory", 0, -1).Val())
		})
	}
	_, err := openOn(t.Context(), addrs, nil)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.ErrorContains(t, err, "redlock:memory")
	require.ErrorContains(t, err, "WRONGTYPE")
	unguarded, err := openOn(t.Context(), addrs, &redlock.Options{NoRestartGuard: true})
	require.NoError(t, err)
	t.Cleanup(func() { _ = unguarded.Close() })
	m := unguarded.Mutex("game")
	for range 3 {
		lock, err := m.Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, lock.Extend(t.Context(), 10*time.Second))
		require.NoError(t, lock.Release(t.Context()))
	}
	for _, try := range []func(context.Context) (*redlock.Lock, error){m.Shared().TryAcquire, m.Shared().Acquire, unguarded.Semaphore("game", 3).Acquire} {
		_, err = try(t.Context())
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		assert.ErrorContains(t, err, "{game}:shared")
	}
	of, err := admin.Open(addrs, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = of.Close() })
	report, err := of.Check(t.Context())
	require.NoError(t, err)
	found := 0
	for _, f := range report.Findings {
		if f.Code == "memory-mark" {
			found++
			assert.Equal(t, admin.SeverityCritical, f.Severity)
			assert.Contains(t, f.Message, "redlock:memory")
		}
	}
	assert.Equal(t, 3, found)
}

// What others keep under the name of the list of holders, or of the counter, says nothing of the lock's key:
// a lock that cannot be shared, or adopted, is still held.
func TestKeysOfOthersEndNoLock(t *testing.T) {
	t.Parallel()
	var addrs []string
	var clients []*redis.Client
	for range 3 {
		c := realredis.Start(t).Client(t)
		clients, addrs = append(clients, c), append(addrs, c.Options().Addr)
	}
	rl, err := openOn(t.Context(), addrs, nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = rl.Close() })
	alone, err := rl.Mutex("game").Acquire(t.Context())
	require.NoError(t, err)
	left, err := rl.Mutex("prize", redlock.WithFencing()).Acquire(t.Context())
	require.NoError(t, err)
	for _, c := range clients { // not only the majority that granted
		eventually(t, func() bool { return c.Exists(t.Context(), "game", "prize").Val() == 2 }, "a SET has not arrived")
	}
	token := left.Detach()
	for _, c := range clients[:2] {
		require.NoError(t, c.HSet(t.Context(), "{game}:shared", "theirs", "1").Err())
		require.NoError(t, c.Del(t.Context(), "{prize}:fence").Err())
		require.NoError(t, c.LPush(t.Context(), "{prize}:fence", "theirs").Err())
	}

	require.Positive(t, alone.Validity())
	require.NoError(t, alone.Release(t.Context()), "a majority has it")

	_, err = rl.Mutex("prize", redlock.WithFencing()).Adopt(t.Context(), token)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.ErrorContains(t, err, "{prize}:fence")
	require.NotErrorIs(t, err, redlock.ErrNotHeld)
	for _, c := range clients[:2] {
		require.NoError(t, c.Del(t.Context(), "{prize}:fence").Err())
	}
	heir, err := rl.Mutex("prize", redlock.WithFencing()).Adopt(t.Context(), token)
	require.NoError(t, err)
	require.NoError(t, heir.Release(t.Context()))
}
