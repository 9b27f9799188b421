package faultproxy_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/faultproxy"
)

func TestForgottenFlowsAreSilentAndNewOnesWork(t *testing.T) {
	bothWays(t, func(r *rig) {
		old := r.client(short)
		require.NoError(r, old.Set(ctx, "k", "1", 0).Err())
		require.Equal(r, 1, r.p.Forget())
		require.Zero(r, r.p.Forget(77), "there is no such flow")

		assert.True(r, isTimeout(old.Set(ctx, "k", "2", 0).Err()))
		require.NoError(r, old.Close())
		assert.Equal(r, "1", r.client(long).Get(ctx, "k").Val(), "the request was delivered")
		assert.Equal(r, 2, r.m.CurrentConnectionCount(), "the server was told of the end of the connection")
		r.p.Heal()
		assert.Equal(r, 2, r.m.CurrentConnectionCount())
		r.p.Cut()
		r.eventually(func() bool { return r.m.CurrentConnectionCount() == 0 }, "the flows end")
	})
}

func TestForgetsOneFlowOfSeveral(t *testing.T) {
	bothWays(t, func(r *rig) {
		a, b := r.client(short), r.client(long)
		require.NoError(r, a.Set(ctx, "k", "a", 0).Err())
		require.NoError(r, b.Set(ctx, "k", "b", 0).Err())
		first := r.p.Commands()[0].Conn
		require.Equal(r, 1, r.p.Forget(first))
		assert.True(r, isTimeout(a.Get(ctx, "k").Err()))
		assert.Equal(r, "b", b.Get(ctx, "k").Val())
	})
}

func TestHeldRequestsArriveAfterTheClientIsGone(t *testing.T) {
	bothWays(t, func(r *rig) {
		c := r.client(long)
		require.NoError(r, c.Ping(ctx).Err())
		require.Equal(r, 1, r.p.Hold())
		result := make(chan error, 1)
		go func() { result <- c.Set(ctx, "k", "late", 0).Err() }()
		r.eventually(func() bool { return r.p.Count("SET") == 1 }, "the SET enters the proxy")
		require.Equal(r, 1, r.p.HangUp())
		require.Error(r, <-result)
		assert.ErrorIs(r, c.Get(ctx, "k").Err(), redis.Nil, "a new connection is not held")

		require.Equal(r, 1, r.p.LetGo())
		r.eventually(func() bool { return c.Get(ctx, "k").Val() == "late" }, "the SET lands")
		require.Zero(r, r.p.LetGo())
	})
}

func TestHeldRequestsAreLostIfTheServerEndsTheConnection(t *testing.T) {
	inBubble(t, func(r *rig) {
		c := r.client(short)
		require.NoError(r, c.Ping(ctx).Err())
		require.Equal(r, 1, r.p.Hold())
		require.True(r, isTimeout(c.Set(ctx, "k", "late", 0).Err()))
		r.p.Cut()
		assert.Zero(r, r.p.LetGo())
		assert.ErrorIs(r, c.Get(ctx, "k").Err(), redis.Nil)
	})
}

func TestJitterVariesAndKeepsOrder(t *testing.T) {
	inBubble(t, func(r *rig) {
		const most = 10 * time.Millisecond
		r.p.Jitter(most)
		c := r.client(long)
		require.NoError(r, c.Ping(ctx).Err())
		seen := make(map[time.Duration]bool)
		for range 20 {
			begin := time.Now() // of a bubble: nothing but the jitter takes time
			require.NoError(r, c.Ping(ctx).Err())
			took := time.Since(begin)
			require.Less(r, took, 2*most)
			seen[took] = true
		}
		assert.Greater(r, len(seen), 10)
		r.p.Clear()
		begin := time.Now()
		require.NoError(r, c.Ping(ctx).Err())
		assert.Zero(r, time.Since(begin))
	})
}

func TestFlowsOfAClosedProxy(t *testing.T) {
	p := faultproxy.New(nil)
	p.Close()
	assert.Zero(t, p.Forget()+p.Hold()+p.HangUp()+p.LetGo())
}
