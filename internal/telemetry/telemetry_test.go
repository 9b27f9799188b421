package telemetry_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/telemetry"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/lockset"
	"github.com/quorumlock/redlock/redlocktest"
)

func TestReason(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{errors.New("x"), "other"},
		{redlock.ErrHeld, "held"},
		{redlock.ErrReleased, "released"},
		{redlock.ErrClosed, "closed"},
		{redlock.ErrInvalid, "invalid"},
		{redlock.ErrLost, "lost"},
		{context.Canceled, "canceled"},
		{fmt.Errorf("%w: %w", context.DeadlineExceeded, redlock.ErrHeld), "held"},
		{fmt.Errorf("%w: %w", context.DeadlineExceeded, redlock.ErrNoQuorum), "no_quorum"},
		{fmt.Errorf("%w: %w", redlock.ErrLost, redlock.ErrExpired), "expired"},
		{fmt.Errorf("%w: %w", redlock.ErrLost, redlock.ErrNotHeld), "not_held"},
		{context.DeadlineExceeded, "timeout"},
		{fmt.Errorf("%w: %w", redlock.ErrNoQuorum, redlock.ErrDuplicateNode), "duplicate_node"},
	} {
		assert.Equal(t, c.want, telemetry.Reason(c.err), "%v", c.err)
	}
}

// bed is a Redlock over three fake nodes whose state is kept, in virtual time.
func bed(t *testing.T, test func(t *testing.T, s *telemetry.State, rl *redlock.Redlock, c *redlocktest.Cluster)) {
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		var s telemetry.State
		rl, err := redlock.New(c.Clients(), &redlock.Options{Hooks: s.Hooks()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = rl.Close() })
		test(t, &s, rl, c)
	})
}

func TestHeldLocksAreCounted(t *testing.T) {
	bed(t, func(t *testing.T, s *telemetry.State, rl *redlock.Redlock, c *redlocktest.Cluster) {
		lock := func(key string, opts ...redlock.LockOption) *redlock.Lock {
			l, err := rl.Mutex(key, opts...).TryAcquire(t.Context())
			require.NoError(t, err)
			return l
		}
		assert.Empty(t, s.Held())
		released, renewed, lost, _ := lock("a"), lock("b", redlock.WithRenewal()), lock("c"), lock("forgotten")
		_, err := rl.Mutex("a").TryAcquire(t.Context())
		require.Error(t, err)
		assert.Equal(t, map[string]int{"exclusive": 4}, s.Held())
		require.NoError(t, released.Release(t.Context()))
		assert.Equal(t, map[string]int{"exclusive": 3}, s.Held())
		for _, n := range c.Nodes() {
			n.Del("c")
		}
		require.ErrorIs(t, lost.Extend(t.Context(), 10*time.Second), redlock.ErrLost)
		assert.Equal(t, map[string]int{"exclusive": 2}, s.Held())
		require.Error(t, lost.Release(t.Context()))
		assert.Equal(t, map[string]int{"exclusive": 2}, s.Held(), "not twice")
		time.Sleep(11 * time.Second)
		assert.Equal(t, map[string]int{"exclusive": 1}, s.Held(), "what is renewed goes on, and what nobody released is over")
		require.NoError(t, renewed.Release(t.Context()))
		assert.Empty(t, s.Held())
	})
}

// A program that never releases, and whose metrics nobody reads, must not fill its memory.
func TestForgottenLocksAreSweptOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s telemetry.State
		h := s.Hooks()
		const live = 100 // at any time
		for i := range 100_000 {
			h.Acquired(t.Context(), redlock.AcquireInfo{Mode: "exclusive", Token: fmt.Sprint(i), Until: time.Now().Add(live * time.Millisecond)})
			time.Sleep(time.Millisecond)
		}
		assert.Less(t, telemetry.Kept(&s), 3000)
		assert.Equal(t, map[string]int{"exclusive": live - 1}, s.Held())
	})
}

func TestHeldLocksAreCountedByMode(t *testing.T) {
	bed(t, func(t *testing.T, s *telemetry.State, rl *redlock.Redlock, _ *redlocktest.Cluster) {
		acquire := func(m lockset.Member) *redlock.Lock {
			l, err := m.TryAcquire(t.Context())
			require.NoError(t, err)
			synctest.Wait()
			return l
		}
		one, two := acquire(rl.Semaphore("s", 3)), acquire(rl.Semaphore("s", 3))
		writer := acquire(rl.Mutex("a"))
		acquire(rl.Mutex("b").Shared())
		assert.Equal(t, map[string]int{"permit": 2, "exclusive": 1, "shared": 1}, s.Held())
		require.NoError(t, writer.Release(t.Context()))
		require.NoError(t, one.Release(t.Context()))
		assert.Equal(t, map[string]int{"permit": 1, "shared": 1}, s.Held())
		require.NoError(t, two.Release(t.Context()))
		time.Sleep(11 * time.Second)
		assert.Empty(t, s.Held())
	})
}

func TestWaitsAreCounted(t *testing.T) {
	bed(t, func(t *testing.T, s *telemetry.State, rl *redlock.Redlock, _ *redlocktest.Cluster) {
		held, err := rl.Mutex("a", redlock.WithRenewal()).TryAcquire(t.Context())
		require.NoError(t, err)
		assert.Empty(t, s.Waiting())
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		wait := func(ctx context.Context, m lockset.Member) {
			all.Go(func() { _ = lockset.New(m).Do(ctx, func(context.Context, lockset.Locks) error { return nil }) })
			synctest.Wait()
		}
		wait(ctx, rl.Mutex("a"))
		time.Sleep(time.Minute)
		wait(t.Context(), rl.Mutex("a"))
		wait(t.Context(), rl.Mutex("a").Shared())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(t, map[string]telemetry.Waits{
			"exclusive": {Count: 2, Oldest: 61 * time.Second}, "shared": {Count: 1, Oldest: time.Second},
		}, s.Waiting())
		cancel()
		synctest.Wait()
		assert.Equal(t, telemetry.Waits{Count: 1, Oldest: time.Second}, s.Waiting()["exclusive"])
		require.NoError(t, held.Release(t.Context()))
		all.Wait()
		assert.Empty(t, s.Waiting())
	})
}

func TestNodesAreUpOrDown(t *testing.T) {
	bed(t, func(t *testing.T, s *telemetry.State, rl *redlock.Redlock, c *redlocktest.Cluster) {
		assert.Empty(t, s.Nodes())
		cycle := func() {
			l, err := rl.Mutex("a").TryAcquire(t.Context())
			require.NoError(t, err)
			require.NoError(t, l.Release(t.Context()))
			time.Sleep(time.Second)
		}
		up := func() (up []bool) {
			for i, n := range s.Nodes() {
				assert.Equal(t, rl.Nodes()[i], n.Name)
				up = append(up, n.Up)
			}
			return up
		}
		cycle()
		assert.Equal(t, []bool{true, true, true}, up())
		c.Node(1).Stop()
		cycle()
		assert.Equal(t, []bool{true, false, true}, up())
		c.Node(1).Restart(redlocktest.KeepKeys)
		cycle()
		cycle()
		assert.Equal(t, []bool{true, true, true}, up())
		votes := func() (votes []bool) {
			for _, n := range s.Nodes() {
				votes = append(votes, n.Votes)
			}
			return votes
		}
		time.Sleep(time.Minute) // it restarted
		cycle()
		assert.Equal(t, []bool{true, true, true}, votes())
		c.Node(0).FlushAll()
		cycle()
		cycle()
		assert.Equal(t, []bool{false, true, true}, votes())
		assert.Equal(t, []bool{true, true, true}, up(), "it answers")
		time.Sleep(10 * time.Second)
		assert.Equal(t, []bool{true, true, true}, votes())
		assert.False(t, s.Nodes()[2].Degraded)
		s.Hooks().Degraded(redlock.DegradedInfo{Node: rl.Nodes()[2]})
		assert.True(t, s.Nodes()[2].Degraded)
		s.Hooks().Degraded(redlock.DegradedInfo{Kind: redlock.DegradedTTL, Key: "k", Lacks: "one TTL"})
		assert.False(t, s.Nodes()[1].Degraded, "it denies nothing")
		assert.Len(t, s.Nodes(), 3, "a key is no node")
		assert.Equal(t, []bool{true, true, true}, up())
	})
}

func TestPerVote(t *testing.T) {
	var made atomic.Int64
	p := telemetry.PerVote[*telemetry.Vote]{Make: func(v telemetry.Vote) *telemetry.Vote { made.Add(1); return &v }}
	const rounds = 1000
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range rounds {
				want := telemetry.Vote{Node: fmt.Sprint(i % 5), Operation: "acquire", Vote: redlock.Vote(i % 3)}
				assert.Equal(t, want, *p.Get(want))
			}
		})
	}
	all.Wait()
	assert.LessOrEqual(t, made.Load(), int64(4*15))
	first := p.Get(telemetry.Vote{Node: "1"})
	assert.Same(t, first, p.Get(telemetry.Vote{Node: "1"}))
}
