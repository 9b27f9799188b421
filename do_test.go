package redlock_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
)

func TestDoHoldsTheLockWhileFnRuns(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		outer := context.WithValue(b.Context(), ctxKey{}, "value")
		var inner context.Context
		err := b.rl.Mutex(key).Do(outer, func(ctx context.Context, lock *redlock.Lock) error {
			inner = ctx
			assert.Equal(b, "value", ctx.Value(ctxKey{}))
			b.on(3)
			b.pass(time.Minute)
			assert.NoError(b, ctx.Err(), "renewed")
			assert.Greater(b, lock.Validity(), ttl/2)
			require.ErrorIs(b, b.try(), redlock.ErrHeld)
			return errGaveUp
		})
		assert.Equal(b, errGaveUp, err, "fn's own error, as it is")
		b.on(0)
		assert.ErrorIs(b, context.Cause(inner), redlock.ErrReleased)
		assert.NoError(b, b.rl.Mutex(key).Do(outer, func(context.Context, *redlock.Lock) error { return nil }))
	})
}

func TestDoEndsFnsContext(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		ctx, cancel := context.WithCancelCause(b.Context())
		err := b.rl.Mutex(key).Do(ctx, func(ctx context.Context, lock *redlock.Lock) error {
			cancel(errGaveUp)
			<-ctx.Done()
			assert.ErrorIs(b, context.Cause(ctx), errGaveUp)
			assert.NoError(b, lock.Context().Err(), "the lock is still held")
			return nil
		})
		assert.NoError(b, err)
		b.on(0) // with the dead context

		for _, returned := range []error{nil, errGaveUp} {
			err = b.rl.Mutex(key).Do(b.Context(), func(ctx context.Context, _ *redlock.Lock) error {
				synctest.Wait()
				b.each([]int{0, 1, 2}, gone)
				<-ctx.Done()
				assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
				return returned
			})
			assert.ErrorIs(b, err, redlock.ErrLost)
			if returned != nil {
				assert.ErrorIs(b, err, returned)
			}
		}

		err = b.rl.Mutex(key).Do(b.Context(), func(ctx context.Context, _ *redlock.Lock) error {
			synctest.Wait()
			b.each([]int{0, 1, 2}, gone)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		assert.ErrorIs(b, err, redlock.ErrLost)
		assert.NotContains(b, err.Error(), "\n", "said once")
	})
}

// Nobody may have noticed before the release does.
func TestDoFindsOutAtTheEndThatTheLockWasLost(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		err := b.rl.Mutex(key).Do(b.Context(), func(context.Context, *redlock.Lock) error {
			synctest.Wait()
			b.each([]int{0, 1, 2}, gone)
			return nil
		})
		assert.ErrorIs(b, err, redlock.ErrLost)
		assert.ErrorIs(b, err, redlock.ErrNotHeld)

		err = b.rl.Mutex(key).Do(b.Context(), func(context.Context, *redlock.Lock) error {
			b.each([]int{0, 1, 2}, hang)
			return nil
		})
		assert.NoError(b, err, "unconfirmed is not lost")
		b.each([]int{0, 1, 2}, resume)
		b.on(0)
	})
	inBubble(t, 3, nil, func(b *bed) {
		rl, clock := b.withClock()
		err := rl.Mutex(key).Do(b.Context(), func(context.Context, *redlock.Lock) error {
			clock.Stun(time.Minute)
			return nil
		})
		assert.ErrorIs(b, err, redlock.ErrExpired, "no timer has noticed")
		assert.ErrorIs(b, err, redlock.ErrLost)
		b.on(0)
	})
}

// Scenario 64.
func TestDoReleasesWhenFnPanics(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		assert.PanicsWithValue(b, "ouch", func() {
			_ = b.rl.Mutex(key).Do(b.Context(), func(context.Context, *redlock.Lock) error { panic("ouch") })
		})
		b.on(0)

		done := make(chan bool)
		go func() {
			defer close(done)
			_ = b.rl.Mutex(key).Do(b.Context(), func(context.Context, *redlock.Lock) error {
				runtime.Goexit()
				return nil
			})
			b.Error("Goexit went on")
		}()
		<-done
		b.on(0)
	})
}

func TestDoWithoutALockDoesNotCallFn(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.each([]int{0, 1}, taken)
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		err := b.rl.Mutex(key).Do(ctx, func(context.Context, *redlock.Lock) error {
			b.Error("called")
			return nil
		})
		assert.ErrorIs(b, err, context.DeadlineExceeded)
		assert.ErrorIs(b, err, redlock.ErrHeld)
	})
}

func TestFnMayReleaseByItself(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		err := b.rl.Mutex(key).Do(b.Context(), func(ctx context.Context, lock *redlock.Lock) error {
			require.NoError(b, lock.Release(ctx))
			synctest.Wait()
			assert.ErrorIs(b, context.Cause(ctx), redlock.ErrReleased)
			return nil
		})
		assert.NoError(b, err)
	})
}

func TestDoWithMaxHold(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		m := b.rl.Mutex(key, redlock.WithMaxHold(15*time.Second))
		b.takes(15*time.Second, func() {
			err := m.Do(b.Context(), func(ctx context.Context, _ *redlock.Lock) error {
				<-ctx.Done()
				return context.Cause(ctx)
			})
			assert.ErrorIs(b, err, redlock.ErrLost)
		})
		b.on(0)
	})
}
