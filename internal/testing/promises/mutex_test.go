package promises_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
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

func TestLeadStandsInLineAgainAfterALoss(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		m, terms, last := b.rl.Mutex(key, redlock.WithFencing()), 0, uint64(0)
		err := m.Lead(b.Context(), func(ctx context.Context, lock *redlock.Lock) error {
			assert.Greater(b, lock.Fence(), last, "each term has a greater number")
			last = lock.Fence()
			if terms++; terms == 3 {
				return errGaveUp // resigns
			}
			synctest.Wait()
			b.each([]int{0, 1}, gone)
			<-ctx.Done()
			assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
			return context.Cause(ctx)
		})
		assert.Equal(b, errGaveUp, err)
		assert.Equal(b, 3, terms)
		b.on(0)
		require.NoError(b, m.Lead(b.Context(), func(context.Context, *redlock.Lock) error { return nil }))
		require.EqualError(b, m.Lead(b.Context(), nil), "redlock: lead: invalid fn: it is nil")
	})
}

// pauseOfLead is that between two terms: Options.RetryMin, by default.
const pauseOfLead = 5 * time.Millisecond

func TestLeadStandsInLineAgainAfterItsTerm(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		m, terms := b.rl.Mutex(key, redlock.WithMaxHold(15*time.Second)), 0
		b.takes(3*(15*time.Second+pauseOfLead), func() {
			require.NoError(b, m.Lead(b.Context(), func(ctx context.Context, _ *redlock.Lock) error {
				if terms++; terms <= 3 {
					<-ctx.Done()
				}
				return nil // the fourth resigns
			}))
		})
		assert.Equal(b, 4, terms)
		b.on(0)
	})
}

// An error says nothing of this lock because it says something of another.
func TestLeadResignsWithTheLossOfAnotherLock(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		other, err := b.rl.Mutex("other").TryAcquire(b.Context())
		require.NoError(b, err)
		b.pass(time.Millisecond)
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.Del("other") })
		lost := other.Extend(b.Context(), ttl)
		require.ErrorIs(b, lost, redlock.ErrLost)
		for _, returned := range []error{lost, redlock.ErrLost, errors.Join(errGaveUp, lost)} {
			terms := 0
			err := b.rl.Mutex(key).Lead(b.Context(), func(context.Context, *redlock.Lock) error {
				if terms++; terms > 3 {
					return nil
				}
				return returned
			})
			assert.Equal(b, returned, err, "as it is")
			assert.Equal(b, 1, terms)
			b.on(0)
		}
	})
}

// A lock that is lost again and again costs the nodes a term every now and then, not as many as
// they can take.
func TestLeadPausesBetweenTerms(t *testing.T) {
	inBubble(t, 3, &redlock.Options{RetryMin: 40 * time.Millisecond}, func(b *bed) {
		terms := 0
		b.takes(3*40*time.Millisecond, func() {
			require.NoError(b, b.rl.Mutex(key).Lead(b.Context(), func(context.Context, *redlock.Lock) error {
				if terms++; terms <= 3 {
					synctest.Wait()
					b.each([]int{0, 1, 2}, gone)
				}
				return nil
			}))
		})
		assert.Equal(b, 4, terms)

		ctx, cancel := context.WithTimeout(b.Context(), 60*time.Millisecond)
		defer cancel()
		b.takes(60*time.Millisecond, func() {
			assert.ErrorIs(b, b.rl.Mutex(key).Lead(ctx, func(context.Context, *redlock.Lock) error {
				if terms++; terms < 10 {
					synctest.Wait()
					b.each([]int{0, 1, 2}, gone)
				}
				return nil
			}), context.DeadlineExceeded, "also of a pause")
		})
	})
}

func TestLeadEndsWithItsContextAndWhereNoWaitingHelps(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		leads := func(context.Context, *redlock.Lock) error { panic("leads") }
		busy := b.lock(redlock.WithTTL(time.Hour))
		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		b.takes(time.Second, func() {
			assert.ErrorIs(b, b.rl.Mutex(key).Lead(ctx, leads), context.DeadlineExceeded)
		})
		require.NoError(b, busy.Release(b.Context()))

		ctx, cancel = context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		terms := 0
		err := b.rl.Mutex(key).Lead(ctx, func(ctx context.Context, _ *redlock.Lock) error {
			terms++
			<-ctx.Done()
			return ctx.Err()
		})
		assert.ErrorIs(b, err, context.DeadlineExceeded)
		assert.Equal(b, 1, terms)
		b.on(0)

		assert.ErrorIs(b, b.rl.Mutex("").Lead(b.Context(), leads), redlock.ErrInvalid)
		require.NoError(b, b.rl.Close())
		assert.ErrorIs(b, b.rl.Mutex(key).Lead(b.Context(), leads), redlock.ErrClosed)
	})
}

func TestOwnerOfOneLock(t *testing.T) {
	inBubble(t, 3, &redlock.Options{Owner: "host"}, func(b *bed) {
		lock := b.lock(redlock.WithOwner("job 7 @ host"))
		waiting := later(func() (*redlock.Lock, error) {
			return b.rl.Mutex(key, redlock.WithOwner("job 8")).Acquire(b.Context())
		})
		status := b.status()
		assert.Equal(b, "job 7 @ host", status.Owner)
		assert.Equal(b, lock.Token(), status.Token)
		waiters := status.Waiters
		require.Len(b, waiters, 1)
		assert.Equal(b, "job 8", waiters[0].Owner)
		require.NoError(b, lock.Release(b.Context()))
		r := <-waiting
		require.NoError(b, r.err)
		synctest.Wait() // a majority has decided, and a release may be on its way to the others
		for _, h := range b.cluster.Holders(key) {
			assert.True(b, h == "" || strings.HasSuffix(h, "@job 8"), h)
		}
		require.NoError(b, r.lock.Release(b.Context()))
		plain := b.lock()
		assert.True(b, strings.HasSuffix(b.cluster.Holders(key)[0], "@host"))
		require.NoError(b, plain.Release(b.Context()))

		for _, owner := range []string{"", strings.Repeat("x", 257)} {
			_, err := b.rl.Mutex(key, redlock.WithOwner(owner)).TryAcquire(b.Context())
			assert.ErrorIs(b, err, redlock.ErrInvalid)
			assert.ErrorContains(b, err, "WithOwner")
		}
	})
}
