package realtest_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The rest of the failures of other lock libraries, see peers_test.go.

func TestPeerRU1_PartitionedHolderStopsBeforeAnotherStarts(t *testing.T) {
	// rueidislock: B acquired at +5.02 s, A's context was cancelled at +7.50 s.
	t.Parallel()
	bubble.Run(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
		o := redlock.Options{TTL: 5 * time.Second}
		a, network := separable(t, c, o)
		b := clientOf(t, c, o)
		lock := requireLock(t, a, redlock.WithRenewal())
		held := lock.Context()
		pass(7 * time.Second)
		require.NoError(t, held.Err(), "renewal keeps it")
		for _, p := range network {
			p.Blackhole()
		}

		other, err := b.Mutex(resource).Acquire(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, context.Cause(held), redlock.ErrLost)
		require.ErrorIs(t, context.Cause(held), redlock.ErrExpired)
		assert.Less(t, lock.Validity(), time.Duration(0))

		for _, p := range network {
			p.Heal()
		}
		pass(time.Second)
		require.ErrorIs(t, lock.Extend(t.Context(), time.Second), redlock.ErrLost)
		require.ErrorIs(t, lock.Release(t.Context()), redlock.ErrNotHeld)
		assert.NoError(t, other.Release(t.Context()), "and it was not disturbed")
	})
}

func TestPeerRU2_ClocksThatAreWrongHaveNoSay(t *testing.T) {
	// rueidislock: server clocks 6 s ahead, validity 5 s: two holders. It sends PXAT.
	t.Parallel()
	for _, skew := range []time.Duration{6 * time.Second, -6 * time.Second, 24 * time.Hour} {
		bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
			for _, n := range c.Nodes() {
				n.ShiftClock(skew)
			}
			a, b := clientOf(t, c, redlock.Options{TTL: 5 * time.Second}), clientOf(t, c, redlock.Options{TTL: 5 * time.Second})
			lock := requireLock(t, a)
			pass(3 * time.Second)
			require.ErrorIs(t, try(t, b), redlock.ErrHeld)
			require.NoError(t, lock.Extend(t.Context(), 5*time.Second))
			pass(4 * time.Second)
			require.ErrorIs(t, try(t, b), redlock.ErrHeld)
			require.Positive(t, lock.Validity())
			pass(time.Second)
			requireLock(t, b)
			for _, n := range c.Nodes() {
				for _, cmd := range n.Log() {
					require.NotContains(t, cmd.Args, "PXAT")
				}
			}
		})
	}
}

func TestPeerRU3_WaiterIsNeverStuckOnAFreeLock(t *testing.T) {
	t.Parallel()
	t.Run("started in an outage", func(t *testing.T) {
		// rueidislock: still blocked 32 s after the servers were back.
		bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
			for _, n := range c.Nodes() {
				n.Stop()
			}
			rl := clientOf(t, c, redlock.Options{TTL: time.Minute})
			waiter := background(func() error { _, err := rl.Mutex(resource).Acquire(t.Context()); return err })
			pass(8 * time.Second)
			for _, n := range c.Nodes() {
				n.Restart(redlocktest.LoseKeys)
			}
			start := time.Now()
			require.NoError(t, <-waiter)
			assert.Less(t, time.Since(start), 5*time.Second)
		})
	})
	t.Run("a round trip of 25 ms", func(t *testing.T) {
		// rueidislock: never acquired with its defaults.
		bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
			for _, n := range c.Nodes() {
				n.Delay(12500 * time.Microsecond)
			}
			assert.NoError(t, requireLock(t, clientOf(t, c, redlock.Options{})).Release(t.Context()))
		})
	})
	t.Run("not allowed", func(t *testing.T) {
		// rueidislock: NOPERM is swallowed, and the caller waits for ever.
		bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
			c.Node(0).Deny("SET")
			c.Node(2).Deny("SET")
			_, err := clientOf(t, c, redlock.Options{}).Mutex(resource).Acquire(t.Context())
			requireNoQuorum(t, err)
			assert.ErrorContains(t, err, "NOPERM")
		})
	})
}

func TestPeerRU4_LostReplyLeavesNoOrphan(t *testing.T) {
	// rueidislock: own key reported as another's and orphaned for 4.9 s, the next waiter 4.99 s.
	t.Parallel()
	f, rl := warmFleet(t, 3, brisk)
	for _, p := range f.proxies {
		p.DropReply(1, faultproxy.DropCut, faultproxy.Named("SET"))
	}
	requireNoQuorum(t, try(t, rl))
	lock := requireAcquire(t, rl) // the keys' minute is longer than its patience
	assert.NoError(t, lock.Release(t.Context()))
	f.requireGone(t, resource)
}

func TestPeerRU5_StuckKeyOnOneNodeIsTolerated(t *testing.T) {
	// rueidislock: a stuck key 0 or 1 of 3 vetoes; only key 2 is tolerated.
	t.Parallel()
	f := startFleet(t, 3)
	for stuck := range 3 {
		rl := f.direct(t, brisk)
		f.plant(t, "stuck", 0, stuck)
		lock := requireLock(t, rl)
		assert.Equal(t, redlock.VoteRefused, waitForVotes(t, lock)[stuck])
		require.NoError(t, lock.Extend(t.Context(), time.Minute))
		require.NoError(t, lock.Release(t.Context()))
		assert.Equal(t, "stuck", f.holders(resource)[stuck])
		f.do(t, f.all(), "FLUSHALL")
	}
}

func TestPeerRU7_ReleaseIsBoundedAndSaysWhatItKnows(t *testing.T) {
	// rueidislock: cancel took 5.0 s on a hung server and returns nothing; loss has no cause.
	t.Parallel()
	f := startFleet(t, 3)
	rl := f.byDefault(t, brisk)
	released := requireAcquire(t, rl)
	lost, err := rl.Mutex("another", redlock.WithTTL(4*time.Second)).Acquire(t.Context())
	require.NoError(t, err)
	held := lost.Context()
	for _, s := range f.servers {
		require.NoError(t, s.Pause())
	}
	err = promptly(t, func() error { return released.Release(t.Context()) })
	requireNoQuorum(t, err)
	assert.NotContains(t, votesOf(outcomes(t, err)), redlock.VoteGranted)
	assert.NotContains(t, votesOf(outcomes(t, err)), redlock.VoteRefused)

	<-held.Done()
	assert.ErrorIs(t, context.Cause(held), redlock.ErrLost)
	assert.ErrorIs(t, context.Cause(held), redlock.ErrExpired)
	assert.ErrorContains(t, context.Cause(held), "another")
}

func TestPeerB1_TokensAreComparedWhole(t *testing.T) {
	// redislock: "worker-10" held; Obtain with the token "worker-1" succeeded.
	t.Parallel()
	f := startFleet(t, 3)
	rl := f.direct(t, brisk)
	lock := requireLock(t, rl)
	f.requireOn(t, lock)
	ours := f.holders(resource)[0]
	nodes := operator(t, rl)
	for _, token := range []string{lock.Token()[:31], lock.Token() + "0", "@", ours + "1"} {
		_, err := nodes.ForceRelease(t.Context(), resource, admin.HeldBy(token))
		require.ErrorIs(t, err, redlock.ErrNotHeld, "%q", token)
	}
	f.requireOn(t, lock)
	for _, like := range []string{ours[:len(ours)-1], ours + "1", lock.Token(), lock.Token() + "@"} {
		f.plant(t, like, time.Minute, f.all()...)
		lock := lock
		require.ErrorIs(t, lock.Extend(t.Context(), time.Minute), redlock.ErrLost)
		require.ErrorIs(t, lock.Release(t.Context()), redlock.ErrNotHeld)
		assert.Equal(t, []string{like, like, like}, f.holders(resource))
	}
}

func TestPeerB2_TinyTTLIsRefused(t *testing.T) {
	// redislock: a TTL below 1 ms "obtains" nothing, Refresh(0) deletes the key and returns nil.
	t.Parallel()
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		rl := clientOf(t, c, redlock.Options{})
		for _, ttl := range []time.Duration{0, 1, time.Microsecond, 999 * time.Microsecond, -time.Second} {
			_, err := rl.Mutex(resource, redlock.WithTTL(ttl)).TryAcquire(t.Context())
			require.ErrorIs(t, err, redlock.ErrInvalid)
			require.ErrorContains(t, err, ttl.String())
		}
		require.Zero(t, c.Commands())
		lock := requireLock(t, rl)
		for _, ttl := range []time.Duration{0, time.Microsecond, -1} {
			require.ErrorIs(t, lock.Extend(t.Context(), ttl), redlock.ErrInvalid)
		}
		synctest.Wait()
		assert.False(t, slices.ContainsFunc(c.Holders(resource), not(lock)))
		require.NoError(t, lock.Extend(t.Context(), 10*time.Second))
	})
}

func TestPeerB3_FailedAcquireLeavesNothing(t *testing.T) {
	// redislock: ctx 100 ms against 300 ms of latency: an error, and the key lived for 9m59s.
	t.Parallel()
	f, rl := warmFleet(t, 1, unhurried)
	f.resetLogs()
	f.proxies[0].Delay(0, time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	acquired := background(func() error {
		lock, err := rl.Mutex(resource).TryAcquire(ctx)
		assert.Nil(t, lock)
		return err
	})
	eventually(t, func() bool { return f.proxies[0].Count("SET") == 1 }, "the SET was not sent")
	cancel()
	require.ErrorIs(t, await(t, acquired), context.Canceled)
	eventually(t, func() bool { return f.deleted(0) == 2 }, "the SET was not taken back")
	f.requireGone(t, resource)
}

func TestPeerB4_EachAcquireStartsItsBackoffAnew(t *testing.T) {
	// redislock: the first Obtain retried 5 times, the second with the same options never.
	t.Parallel()
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		rl := clientOf(t, c, redlock.Options{TTL: 10 * time.Minute})
		_, err := rl.Mutex(unlined).TryAcquire(t.Context())
		require.NoError(t, err)
		m := clientOf(t, c, redlock.Options{}).Mutex(unlined)
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			c.ResetCommands()
			start := time.Now()
			_, err := m.Acquire(ctx)
			cancel()
			require.ErrorIs(t, err, redlock.ErrHeld)
			soon := 0
			for _, cmd := range c.Node(0).Log() {
				if cmd.Args[0] == "SET" && cmd.At.Sub(start) < 50*time.Millisecond {
					soon++
				}
			}
			assert.Greater(t, soon, 2, "attempts in the first 50 ms")
			assert.Greater(t, c.Node(0).Commands("SET"), 100, "attempts in a minute")
		}
	})
}

func TestPeerI_OrphanEndsWhenAHungNodeWakes(t *testing.T) {
	// A SET to a hung node, given up by a deadline and released once: the key lives for its full TTL.
	t.Parallel()
	for name, test := range map[string]struct {
		hung int
		lock func(t *testing.T, rl *redlock.Redlock)
	}{
		"after a release":        {1, func(t *testing.T, rl *redlock.Redlock) { require.NoError(t, promptLock(t, rl).Release(t.Context())) }},
		"after a failed attempt": {3, func(t *testing.T, rl *redlock.Redlock) { requireNoQuorum(t, try(t, rl)) }},
	} {
		t.Run(name, func(t *testing.T) {
			f, rl := warmFleet(t, 5, brisk)
			before := f.executed(0, "set")
			for _, s := range f.servers[:test.hung] {
				require.NoError(t, s.Pause())
			}
			test.lock(t, rl)
			for _, s := range f.servers[:test.hung] {
				require.NoError(t, s.Resume())
			}
			eventually(t, func() bool { return f.executed(0, "set") == before+1 }, "the SET did not arrive")
			f.requireGone(t, resource)
		})
	}
}
