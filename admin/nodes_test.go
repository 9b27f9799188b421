package admin_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/realredis"
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

// A hung node is waited for as long as Options say, whatever its client does, and was not searched.
func TestHungNodeIsNotWaitedForByTheSearchForLocks(t *testing.T) {
	bubble.Run(t, 3, func(t *testing.T, cluster *redlocktest.Cluster) {
		rl, err := redlock.New(cluster.Clients(), &redlock.Options{TTL: time.Hour})
		require.NoError(t, err)
		t.Cleanup(func() { _ = rl.Close() })
		for i := range 40 { // more than there is time for, one after the other
			_, err := rl.Mutex(fmt.Sprint("shared", i)).Shared().Acquire(t.Context())
			require.NoError(t, err)
		}
		_, err = rl.Mutex("fenced", redlock.WithFencing()).Acquire(t.Context())
		require.NoError(t, err)
		clients := cluster.Clients()
		clients[2] = cluster.Client(2, func(o *redis.Options) { o.ReadTimeout = -1 })
		cluster.Node(2).Hang()
		nodes, err := admin.New(clients, nil)
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

		nodes, err = admin.New(clients[2:], nil)
		require.NoError(t, err)
		_, err = nodes.List(t.Context(), "", 1)
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
	})
}

// A search that ends at its limit has found other locks on each node.
func TestHeldIsTrueOfLocksThatWereFoundOnOneNode(t *testing.T) {
	clients := make([]redis.UniversalClient, 3)
	for i := range clients {
		clients[i] = realredis.Start(t).Client(t)
		_, err := clients[i].Pipelined(t.Context(), func(p redis.Pipeliner) error {
			for k := range 5000 {
				p.Set(t.Context(), fmt.Sprint("lock", k), strings.Repeat("0f", 16)+"@", time.Hour)
			}
			return nil
		})
		require.NoError(t, err)
	}
	nodes, err := admin.New(clients, nil)
	require.NoError(t, err)
	found, err := nodes.List(t.Context(), "", 100)
	require.NoError(t, err)
	assert.True(t, found.More)
	assert.Greater(t, len(found.Locks), 500)
	for _, l := range found.Locks {
		require.True(t, l.Held, l.Key)
	}
}

// What a check that was cut short says of its nodes is true of each.
func TestCheckThatIsCutShort(t *testing.T) {
	bubble.Run(t, 3, func(t *testing.T, cluster *redlocktest.Cluster) {
		nodes, err := admin.New(cluster.Clients(), nil)
		require.NoError(t, err)
		cluster.Node(0).Hang()
		cluster.Node(1).Stop()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err = nodes.Check(ctx)
		var e *admin.Error
		require.ErrorAs(t, err, &e)
		assert.EqualError(t, e.Nodes[0].Err, "no answer in time")
		assert.Equal(t, 100*time.Millisecond, e.Nodes[0].Elapsed)
		assert.Less(t, e.Nodes[1].Elapsed, 100*time.Millisecond)
		assert.Less(t, e.Nodes[2].Elapsed, 100*time.Millisecond)
		_, err = nodes.Check(ctx)
		require.EqualError(t, err, "redlock: check: context deadline exceeded")
	})
}

// A release that is sent again finds that there is nothing to release. go-redis sends what has no answer up to three
// times more by default.
func TestForceReleaseIsSentOnce(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 1)
	node := cluster.Node(0)
	node.Set("k", "theirs", time.Hour)
	client := cluster.Client(0, func(o *redis.Options) { o.MaxRetries = 3 })
	nodes, err := admin.New([]redis.UniversalClient{client}, nil)
	require.NoError(t, err)
	node.DropReply("EVAL", 1)
	cluster.ResetCommands()
	_, err = nodes.ForceRelease(t.Context(), "k", admin.Anything())
	require.ErrorIs(t, err, redlock.ErrNoQuorum, "what became of it is not known")
	assert.Empty(t, node.Get("k"))
	assert.Equal(t, 1, node.Commands("EVAL"))
}

// A node whose client panics is a node that did not answer.
func TestPanicOfAClientIsItsNodesError(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 3)
	clients := cluster.Clients()
	clients[0] = cluster.Client(0, func(o *redis.Options) {
		o.CredentialsProvider = func() (string, string) { panic("of the user") }
	})
	nodes, err := admin.New(clients, nil)
	require.NoError(t, err)
	status, err := nodes.Inspect(t.Context(), "k")
	require.NoError(t, err)
	assert.ErrorContains(t, status.Nodes[0].Err, "of the user")
	list, err := nodes.List(t.Context(), "", 1)
	require.NoError(t, err)
	assert.ErrorContains(t, list.Nodes[0].Err, "of the user")
	sight, err := nodes.Search().Look(t.Context(), nil)
	require.NoError(t, err)
	assert.ErrorContains(t, sight.Nodes[0].Err, "of the user")
	connected, _ := nodes.Clients(t.Context())
	assert.ErrorContains(t, connected.Nodes[0].Err, "of the user")
	report, err := nodes.Check(t.Context())
	require.NoError(t, err)
	assert.ErrorContains(t, report.Nodes[0].Err, "of the user")
}

// The connections of Nodes that are not closed end when they were idle for a minute, and none is opened for each call.
func TestIdleConnectionsOfNewEnd(t *testing.T) {
	bubble.Run(t, 1, func(t *testing.T, cluster *redlocktest.Cluster) {
		var open, dials atomic.Int64
		c := cluster.Client(0, func(o *redis.Options) {
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := dial(ctx, network, addr)
				open.Add(1)
				dials.Add(1)
				return &counted{c, &open}, err
			}
		})
		nodes, err := admin.New([]redis.UniversalClient{c}, nil)
		require.NoError(t, err)
		for range 3 {
			_, err = nodes.Inspect(t.Context(), "k")
			require.NoError(t, err)
			time.Sleep(59 * time.Second)
			assert.EqualValues(t, 1, open.Load())
		}
		assert.EqualValues(t, 1, dials.Load())
		time.Sleep(2 * time.Second)
		assert.Zero(t, open.Load())
		_, err = nodes.Inspect(t.Context(), "k")
		require.NoError(t, err)
		assert.EqualValues(t, 1, open.Load())
		require.NoError(t, nodes.Close())
		assert.Zero(t, open.Load())
		_, err = nodes.Inspect(t.Context(), "k")
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		assert.EqualValues(t, 2, dials.Load())
		require.NoError(t, c.Ping(t.Context()).Err(), "it is the caller's")
	})
}

// counted is a connection that is counted while it is open.
type counted struct {
	net.Conn
	open *atomic.Int64
}

func (c *counted) Close() error { c.open.Add(-1); return c.Conn.Close() }

// Close tells what its connections say, once, and keeps no call waiting while one of them takes its time.
func TestCloseOfNodes(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 3)
	clients, closing, goOn := cluster.Clients(), make(chan bool), make(chan bool)
	for i, end := range []func(net.Conn) error{
		func(c net.Conn) error { _ = c.Close(); return errors.New("it says no") },
		func(c net.Conn) error { _ = c.Close(); panic("of the user") },
		func(c net.Conn) error { closing <- true; <-goOn; return c.Close() },
	} {
		clients[i] = cluster.Client(i, func(o *redis.Options) {
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := dial(ctx, network, addr)
				return &ending{c, sync.OnceValue(func() error { return end(c) })}, err
			}
		})
	}
	nodes, err := admin.New(clients, nil)
	require.NoError(t, err)
	_, err = nodes.Inspect(t.Context(), "k")
	require.NoError(t, err)
	closed := make(chan error, 1)
	go func() { closed <- nodes.Close() }()
	<-closing
	_, err = nodes.Inspect(t.Context(), "k")
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NoError(t, nodes.Close())
	close(goOn)
	err = <-closed
	assert.ErrorContains(t, err, "it says no")
	assert.ErrorContains(t, err, "of the user")
	require.NoError(t, nodes.Close())
}

// ending is a connection that ends in a way of its own.
type ending struct {
	net.Conn
	end func() error
}

func (e *ending) Close() error { return e.end() }
