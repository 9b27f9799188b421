package promises_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/redlocktest"
)

// at are the times at which a node got one of the commands.
func at(n *redlocktest.Node, since time.Time, names ...string) (ds []time.Duration) {
	for _, c := range n.Log() {
		if slices.Contains(names, strings.ToUpper(c.Args[0])) && !slices.Contains(c.Args, protocol.TrialKey) {
			ds = append(ds, c.At.Sub(since))
		}
	}
	return ds
}

func TestRenewalComesAtAThirdOfTheTTL(t *testing.T) {
	for _, lease := range []time.Duration{100 * time.Millisecond, time.Second, ttl, time.Hour} {
		inBubble(t, 3, nil, func(b *bed) {
			b.cycle()
			synctest.Wait()
			start := time.Now()
			b.cluster.ResetCommands()
			lock := b.lock(redlock.WithTTL(lease), redlock.WithRenewal())
			grid := min(50*time.Millisecond, lease/20)
			for range 30 {
				b.pass(lease / 10)
				require.Greater(b, lock.Validity(), lease/2)
			}
			due := at(b.cluster.Node(0), start, evalsha)
			require.GreaterOrEqual(b, len(due), 8)
			last := time.Duration(0)
			for _, d := range due {
				assert.LessOrEqual(b, d-last, lease/3)
				assert.GreaterOrEqual(b, d-last, lease/3-grid)
				last = d
			}
			require.NoError(b, lock.Release(b.Context()))
			synctest.Wait()
			b.cluster.ResetCommands()
			b.pass(10 * lease)
			assert.Zero(b, b.cluster.Commands(), "scenario 16: none after the release")
		})
	}
}

// Renewals of many locks fall due together, so that they share batches.
func TestRenewalsAreOnAGrid(t *testing.T) {
	inBubble(t, 1, nil, func(b *bed) {
		start := time.Now()
		for i := range 20 {
			_, err := b.rl.Mutex(string(rune('a'+i)), redlock.WithRenewal()).TryAcquire(b.Context())
			require.NoError(b, err)
			b.pass(2 * time.Millisecond)
		}
		b.cluster.ResetCommands()
		b.pass(3500 * time.Millisecond)
		due := at(b.cluster.Node(0), start, evalsha, eval)
		slices.Sort(due)
		assert.LessOrEqual(b, len(slices.Compact(due)), 2, "instants at which 20 locks were renewed")
	})
}

func TestNoRenewalUnlessAskedFor(t *testing.T) {
	inBubble(t, 1, nil, func(b *bed) {
		b.cycle() // writes the memory mark, by a script
		b.cluster.ResetCommands()
		lock := b.lock()
		b.pass(ttl)
		assert.Zero(b, b.cluster.Commands(evalsha, eval))
		assert.Less(b, lock.Validity(), time.Duration(0))
	})
}

func TestRenewalGoesOnThroughFailures(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock(redlock.WithRenewal())
		b.pass(2 * time.Second)
		b.each([]int{0, 1, 2}, answers("BUSY Redis is busy running a script"))
		b.pass(5 * time.Second)
		assert.NoError(b, lock.Context().Err())
		tries := b.cluster.Node(0).Commands(evalsha, eval)
		assert.Greater(b, tries, 3, "it is tried again before the next third")
		assert.Less(b, tries, 12)
		b.each([]int{0, 1, 2}, answers(""))
		b.pass(time.Minute)
		assert.Greater(b, lock.Validity(), ttl/2)
		require.NoError(b, lock.Release(b.Context()))
	})
}

func TestRenewalEndsWithTheValidity(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock(redlock.WithRenewal())
		b.each([]int{0, 1, 2}, answers("BUSY Redis is busy running a script"))
		b.pass(valid + time.Second)
		b.each([]int{0, 1, 2}, answers(""))
		b.cluster.ResetCommands()
		b.pass(time.Minute)
		assert.Zero(b, b.cluster.Commands())
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrExpired)
		b.on(0)
	})
}

// Scenario 38: the holder learns of it at the next renewal.
func TestRenewalFindsOutThatTheLockIsLost(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock(redlock.WithRenewal())
		ctx := lock.Context()
		b.each([]int{0, 1, 2}, gone)
		start := time.Now()
		<-ctx.Done()
		assert.LessOrEqual(b, time.Since(start), ttl/3)
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrNotHeld)
		assert.NotErrorIs(b, context.Cause(ctx), redlock.ErrExpired)
		synctest.Wait()
		b.cluster.ResetCommands()
		b.pass(time.Minute)
		assert.Zero(b, b.cluster.Commands(evalsha, eval))
	})
}

func TestMaxHoldEndsRenewalAndContext(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithRenewal(), redlock.WithMaxHold(25*time.Second))
		ctx := lock.Context()
		b.takes(25*time.Second, func() { <-ctx.Done() })
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrExpired)
		assert.ErrorContains(b, context.Cause(ctx), "25s")
		assert.Greater(b, lock.Validity(), time.Duration(0), "the lease itself runs on")
		b.pass(ttl)
		b.on(0)
		assert.Less(b, lock.Validity(), time.Duration(0))
	})
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithRenewal(), redlock.WithMaxHold(1<<63-1))
		ctx := lock.Context()
		b.pass(time.Minute)
		assert.NoError(b, ctx.Err(), "for ever is allowed")
		require.NoError(b, lock.Release(b.Context()))
	})
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithMaxHold(time.Hour))
		b.takes(valid, func() { <-lock.Context().Done() })
	})
	inBubble(t, 3, nil, func(b *bed) { // also after the wall clock was set back
		rl, clock := b.withClock()
		lock, err := rl.Mutex(key, redlock.WithMaxHold(5*time.Second)).TryAcquire(b.Context())
		require.NoError(b, err)
		ctx := lock.Context()
		clock.Advance(time.Second)
		clock.SetWall(-time.Hour)
		require.NoError(b, lock.Extend(b.Context(), ttl))
		clock.Advance(4*time.Second - 1)
		synctest.Wait()
		assert.NoError(b, ctx.Err())
		clock.Advance(1)
		synctest.Wait()
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
	})
}

// An extend by hand and the renewals do not disturb each other.
func TestRenewalBesideExtend(t *testing.T) {
	inBubble(t, 3, &redlock.Options{RestartGuard: 5 * time.Minute}, func(b *bed) {
		lock := b.lock(redlock.WithRenewal())
		b.pass(time.Second)
		require.NoError(b, lock.Extend(b.Context(), 5*time.Minute))
		until := lock.Until()
		b.pass(time.Minute)
		assert.Equal(b, until, lock.Until(), "never shortened")
		b.pass(7 * time.Minute)
		assert.Greater(b, lock.Validity(), ttl/2)
		require.NoError(b, lock.Release(b.Context()))
	})
}

func TestManyLocksAreRenewed(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		var locks []*redlock.Lock
		for i := range 30 {
			lease := time.Duration(100+i%7*300) * time.Millisecond
			lock, err := b.rl.Mutex(strings.Repeat("k", i+1), redlock.WithTTL(lease), redlock.WithRenewal()).TryAcquire(b.Context())
			require.NoError(b, err)
			locks = append(locks, lock)
			if i%3 == 0 {
				lock.Context()
			}
		}
		b.pass(2 * time.Second)
		for i, lock := range locks {
			require.Greater(b, lock.Validity(), time.Duration(0))
			if i%2 == 0 {
				require.NoError(b, lock.Release(b.Context()))
			}
		}
		b.pass(2 * time.Second)
		for i, lock := range locks {
			require.Equal(b, i%2 == 1, lock.Validity() > 0, i)
		}
	})
}

// Scenario 16: a release that meets a renewal in the middle wins; the renewal neither
// brings the key back nor reports a loss.
func TestReleaseInTheMiddleOfARenewal(t *testing.T) {
	for _, empty := range []bool{false, true} {
		inBubble(t, 3, nil, func(b *bed) {
			lock := b.lock(redlock.WithRenewal())
			lost := lock.Context()
			b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.Delay(20 * time.Millisecond) })
			if empty {
				b.each([]int{2}, func(n *redlocktest.Node) { n.FlushAll() }) // to be repaired
			}
			b.pass(ttl/3 + 10*time.Millisecond) // the renewal is on its way
			require.NoError(b, lock.Release(b.Context()))
			require.ErrorIs(b, context.Cause(lost), redlock.ErrReleased)
			require.NotErrorIs(b, context.Cause(lost), redlock.ErrLost)
			b.pass(ttl)
			b.on(0)
		})
	}
}

// Whoever loses a lock in an outage is told which nodes were away.
func TestLossInAnOutageNamesTheNodes(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithRenewal())
		b.each([]int{0, 2}, (*redlocktest.Node).Hang)
		<-lock.Context().Done()
		err := context.Cause(lock.Context())
		require.ErrorIs(b, err, redlock.ErrLost)
		require.ErrorIs(b, err, redlock.ErrExpired)
		require.NotErrorIs(b, err, redlock.ErrNoQuorum, "it was had")
		var q *redlock.QuorumError
		require.ErrorAs(b, err, &q)
		assert.Equal(b, "extend", q.Op)
		assert.Equal(b, 1, strings.Count(err.Error(), "redlock:"))
		assert.ErrorContains(b, err, `lease of "orders:42" not extended in time; the last try: extend "orders:42": no quorum (`)
		assert.ErrorContains(b, err, b.cluster.Node(2).Name()+"/0 not sent (the node has not answered earlier requests in time)")
	})
}

// A failure after which the lease was extended has no part in its end.
func TestLossNamesNoFailureBeforeTheLastExtend(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		b.each([]int{0, 2}, (*redlocktest.Node).Hang)
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrNoQuorum)
		b.each([]int{0, 2}, (*redlocktest.Node).Resume)
		b.pass(time.Second)
		require.NoError(b, lock.Extend(b.Context(), ttl))
		<-lock.Context().Done()
		assert.NotContains(b, context.Cause(lock.Context()).Error(), "the last try")
	})
}

// A lock that was acquired without WithRenewal is renewed from the call on, also where less than a third
// of its lease is left.
func TestRenewBeginsLater(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		for _, after := range []time.Duration{0, 2 * time.Second, ttl - time.Second} {
			lock := b.lock()
			b.pass(after)
			lock.Renew()
			lock.Renew()
			extends := b.cluster.Commands(evalsha, eval)
			b.pass(time.Second)
			if after > 2*ttl/3 {
				assert.Greater(b, lock.Validity(), ttl/2, "at once, where little is left")
			} else {
				assert.Equal(b, extends, b.cluster.Commands(evalsha, eval), "not before a third of the TTL")
			}
			b.pass(time.Hour)
			assert.Greater(b, lock.Validity(), ttl/2, "after %v", after)
			require.NoError(b, lock.Release(b.Context()))
			lock.Renew()
			b.pass(time.Hour)
			assert.LessOrEqual(b, lock.Validity(), time.Duration(0))
			b.on(0)
		}
	})
}
