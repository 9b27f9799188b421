package admin_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/realredis"
	"github.com/quorumlock/redlock/redlocktest"
)

// What a user's client does beside leading to its server is not done again by a copy of it.
func TestClientThatWantsNotificationsIsAskedWithoutThem(t *testing.T) {
	c := redis.NewClient(&redis.Options{
		Addr: realredis.Start(t).Addr(), Protocol: 3,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeEnabled},
	})
	defer c.Close()
	nodes, err := admin.New([]redis.UniversalClient{c}, nil)
	require.NoError(t, err)
	_, err = nodes.Clients(t.Context())
	require.NoError(t, err)
	report, err := nodes.Check(t.Context())
	require.NoError(t, err)
	assert.NoError(t, report.Nodes[0].Err)
}

// hung is a node that takes connections and says nothing, and a client that waits for it for ever.
func hung(t *testing.T) redis.UniversalClient {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	c := redis.NewClient(&redis.Options{Addr: listener.Addr().String(), ReadTimeout: -1, DisableIdentity: true})
	t.Cleanup(func() {
		_ = c.Close()
		_ = listener.Close()
	})
	return c
}

// A hung node is waited for as long as Options say, whatever its client does, and was not searched.
func TestHungNodeIsNotWaitedForByTheSearchForLocks(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 2)
	rl, err := redlock.Open(t.Context(), cluster.Addrs(), &redlock.Options{TTL: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { _ = rl.Close() })
	for i := range 40 { // more than there is time for, one after the other
		_, err := rl.Mutex(fmt.Sprint("shared", i)).Shared().Acquire(t.Context())
		require.NoError(t, err)
	}
	_, err = rl.Mutex("fenced", redlock.WithFencing()).Acquire(t.Context())
	require.NoError(t, err)
	clients := append(cluster.Clients(), hung(t))
	nodes, err := admin.New(clients, &admin.Options{Timeout: 100 * time.Millisecond})
	require.NoError(t, err)

	found, err := nodes.List(t.Context(), "", 1000)
	require.NoError(t, err)
	assert.Len(t, found.Locks, 41)
	for _, l := range found.Locks {
		assert.Equal(t, l.Shared, len(l.Holders) == 1, l.Key)
	}
	assert.Error(t, found.Nodes[2].Err)
	sight, err := nodes.Search().Look(t.Context(), []string{"fenced"})
	require.NoError(t, err)
	assert.Len(t, sight.Keys, 41)
	assert.NotEmpty(t, sight.Fences)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = nodes.Search().Look(ctx, nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	nodes, err = admin.New([]redis.UniversalClient{hung(t)}, &admin.Options{Timeout: 100 * time.Millisecond})
	require.NoError(t, err)
	_, err = nodes.List(t.Context(), "", 1)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
}
