package promises_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/redlocktest"
)

// Scenario 15, as far as a test can: the end comes by this process' own timer.
func TestContextEndsAtUntil(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		ctx := lock.Context()
		assert.Same(b, ctx, lock.Context())
		b.each([]int{0, 1, 2}, hang)
		b.takes(valid, func() { <-ctx.Done() })
		assert.ErrorIs(b, ctx.Err(), context.Canceled)
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrExpired)
		assert.NotErrorIs(b, context.Cause(ctx), redlock.ErrReleased)
		assert.ErrorContains(b, context.Cause(ctx), key)
		assert.Zero(b, lock.Validity())
	})
}

func TestContextMovesWithExtends(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		ctx := lock.Context()
		for range 5 {
			b.pass(9 * time.Second)
			require.NoError(b, lock.Extend(b.Context(), ttl))
		}
		require.NoError(b, ctx.Err())
		b.takes(valid, func() { <-ctx.Done() })
	})
}

func TestContextEndsWithTheRelease(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		ctx := lock.Context()
		b.each([]int{0, 1, 2}, hang)
		released := later(func() (*redlock.Lock, error) { return nil, lock.Release(b.Context()) })
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrReleased, "before the nodes confirm it")
		assert.NotErrorIs(b, context.Cause(ctx), redlock.ErrLost)
		<-released
	})
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		require.NoError(b, lock.Release(b.Context()))
		assert.ErrorIs(b, context.Cause(lock.Context()), redlock.ErrReleased, "made afterwards")
	})
	for name, first := range map[string]func(*redlock.Lock, *bed) context.Context{
		"Context": func(l *redlock.Lock, _ *bed) context.Context { return l.Context() },
		"Within":  func(l *redlock.Lock, b *bed) context.Context { ctx, _ := l.Within(b.Context()); return ctx },
	} {
		inBubble(t, 3, nil, func(b *bed) {
			lock := b.lock()
			b.pass(ttl)
			// A holder that was paused asks whether it may still work, and does not wait for timers.
			assert.ErrorIs(b, context.Cause(first(lock, b)), redlock.ErrExpired, name+" first called after the end")
		})
	}
}

func TestContextHasTheValuesOfAcquiresButNotItsEnd(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		ctx, cancel := context.WithTimeout(context.WithValue(b.Context(), ctxKey{}, "value"), time.Second)
		lock, err := b.rl.Mutex(key).Acquire(ctx)
		require.NoError(b, err)
		cancel()
		b.pass(2 * time.Second)
		assert.Equal(b, "value", lock.Context().Value(ctxKey{}))
		assert.NoError(b, lock.Context().Err())
		_, hasDeadline := lock.Context().Deadline()
		assert.False(b, hasDeadline, "it may be extended")
		require.NoError(b, lock.Release(b.Context()))
	})
}

// Scenario 4, R8: monotonic time stands still while the machine sleeps.
func TestSuspendedMachine(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		rl, clock := b.withClock()
		lock, err := rl.Mutex(key).TryAcquire(b.Context())
		require.NoError(b, err)
		other, err := rl.Mutex("other", redlock.WithTTL(time.Hour)).TryAcquire(b.Context())
		require.NoError(b, err)
		ctx, otherCtx := lock.Context(), other.Context()
		clock.Advance(time.Second)
		synctest.Wait() // or a look of that second would see the next
		clock.Suspend(20 * time.Second)
		assert.Equal(b, valid-21*time.Second, lock.Validity(), "right before anything has run")
		assert.NoError(b, ctx.Err())
		for range 5 {
			clock.Advance(50 * time.Millisecond)
			synctest.Wait()
		}
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrExpired, "within 250ms")
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrLost)
		assert.NoError(b, otherCtx.Err())

		clock.Suspend(2 * time.Hour)
		clock.Advance(250 * time.Millisecond)
		synctest.Wait()
		assert.ErrorIs(b, context.Cause(otherCtx), redlock.ErrExpired, "still watched when the first was gone")

		again, err := rl.Mutex("again").TryAcquire(b.Context())
		require.NoError(b, err)
		ctx = again.Context()
		clock.Suspend(time.Hour)
		clock.Advance(250 * time.Millisecond)
		synctest.Wait()
		assert.Error(b, ctx.Err(), "watching begins anew")
	})
}

// What nodes said before our machine slept tells nothing of a fleet's first use when it is read.
func TestSuspendedMachineReadsOldAnswers(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		nodes, asleep := b.cluster.Nodes(), ttl+6*time.Second
		b.each([]int{0, 1, 2}, (*redlocktest.Node).FlushAll)
		nodes[2].Stop()
		marked := func(n *redlocktest.Node) {
			for n.Get(protocol.MarkKey) == "" { // an attempt may be hopeless before it asks all nodes
				b.try()
				b.pass(time.Millisecond)
			}
		}
		b.each([]int{0, 1}, marked)
		rl, clock := b.withClock()
		for _, n := range nodes[:2] {
			n.DelayCommand("EVALSHA", 1, asleep) // the last question
		}
		done := later(func() (*redlock.Lock, error) { return rl.Mutex(key).TryAcquire(b.Context()) })
		b.pass(time.Millisecond)
		clock.Suspend(asleep)

		nodes[2].Restart(redlocktest.LoseKeys)
		b.pass(2 * time.Second)
		marked(nodes[2])
		b.pass(ttl)
		nodes[1].Set(key, "somebody@else", time.Second)
		held := b.lock()
		b.pass(time.Second)
		nodes[2].Restart(redlocktest.LoseKeys)
		b.pass(3 * time.Second)

		refused := func(attempt <-chan result) {
			for range 2 * nodeTimeout / time.Millisecond {
				clock.Advance(time.Millisecond)
				b.pass(time.Millisecond)
			}
			require.Error(b, (<-attempt).err)
		}
		refused(done)
		refused(later(func() (*redlock.Lock, error) { return rl.Mutex(key).TryAcquire(b.Context()) }))
		require.Positive(b, held.Validity())
	})
}

func TestSuspendedMachineDoesNotRenew(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		rl, clock := b.withClock()
		lock, err := rl.Mutex(key, redlock.WithRenewal()).TryAcquire(b.Context())
		require.NoError(b, err)
		clock.Advance(ttl / 3)
		synctest.Wait()
		require.Greater(b, lock.Validity(), 9*time.Second)
		clock.Suspend(time.Minute)
		clock.Advance(ttl / 3)
		synctest.Wait()
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrExpired)
	})
}

// Scenario 5.
func TestWallClockThatJumps(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		rl, clock := b.withClock()
		lock, err := rl.Mutex(key).TryAcquire(b.Context())
		require.NoError(b, err)
		ctx := lock.Context()
		clock.SetWall(-24 * time.Hour)
		assert.Equal(b, valid, lock.Validity(), "back: monotonic time decides")
		clock.Advance(valid - 1)
		synctest.Wait()
		assert.NoError(b, ctx.Err())
		clock.Advance(1)
		synctest.Wait()
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrExpired)
	})
}

// A lock that a clock has ended stays over when that clock is set back.
func TestWallClockThereAndBackGivesALostLockNoTime(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		rl, clock := b.withClock()
		lock, err := rl.Mutex(key).TryAcquire(b.Context())
		require.NoError(b, err)
		ctx := lock.Context()
		clock.SetWall(2 * ttl)
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrExpired)
		require.ErrorIs(b, context.Cause(ctx), redlock.ErrExpired)
		clock.SetWall(-2 * ttl)
		assert.LessOrEqual(b, lock.Validity(), time.Duration(0))
	})
}

// A timer that fires early, or for an end that has moved, ends nothing.
func TestContextTimerThatFiresTooEarly(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		rl, clock := b.withClock()
		lock, err := rl.Mutex(key).TryAcquire(b.Context())
		require.NoError(b, err)
		ctx := lock.Context()
		clock.Stun(valid - 1) // the timer of the watch is overdue, the end not
		clock.Advance(0)
		synctest.Wait()
		require.NoError(b, ctx.Err())
		clock.Advance(1)
		synctest.Wait()
		require.Error(b, ctx.Err())
	})
}

// A context of several locks ends with the first of them, or with the caller's.
func TestContextWithinLocks(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		takeBoth := func() (one, two *redlock.Lock) {
			one, err := b.rl.Mutex("a").TryAcquire(b.Context())
			require.NoError(b, err)
			two, err = b.rl.Mutex("b").TryAcquire(b.Context())
			require.NoError(b, err)
			return one, two
		}
		for name, end := range map[string]func(one, two *redlock.Lock, cancel func()) error{
			"the first is released":  func(one, _ *redlock.Lock, _ func()) error { _ = one.Release(b.Context()); return redlock.ErrReleased },
			"the second is released": func(_, two *redlock.Lock, _ func()) error { _ = two.Release(b.Context()); return redlock.ErrReleased },
			"a lease runs out":       func(_, _ *redlock.Lock, _ func()) error { b.pass(ttl); return redlock.ErrLost },
			"the caller's ends":      func(_, _ *redlock.Lock, cancel func()) error { cancel(); return context.Canceled },
		} {
			one, two := takeBoth()
			ctx, cancel := context.WithCancel(context.WithValue(b.Context(), ctxKey{}, "value"))
			inner, stop := one.Within(ctx)
			inner, stopBoth := two.Within(inner)
			require.NoError(b, inner.Err())
			assert.Equal(b, "value", inner.Value(ctxKey{}))
			for _, l := range []*redlock.Lock{one, two} {
				held, ok := redlock.Held(inner, l.Key())
				assert.True(b, ok)
				assert.Same(b, l, held)
			}
			_, err := b.rl.Mutex("b").TryAcquire(inner)
			require.ErrorIs(b, err, redlock.ErrNested)
			why := end(one, two, cancel)
			<-inner.Done()
			assert.ErrorIs(b, context.Cause(inner), why, name)
			stopBoth()
			stop()
			cancel()
			_ = one.Release(b.Context())
			_ = two.Release(b.Context())
			synctest.Wait()
		}
	})
}
