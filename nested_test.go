package redlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

func TestAcquireInsideOfItsOwnLockIsRefusedWithoutIO(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		other := b.another(nil)
		for what, inside := range map[string]func(f func(ctx context.Context)) error{
			"Do": func(f func(ctx context.Context)) error {
				return b.rl.Mutex(key).Do(b.Context(), func(ctx context.Context, _ *redlock.Lock) error { f(ctx); return nil })
			},
			"All": func(f func(ctx context.Context)) error {
				return allOf(b.rl, "a", key).Do(b.Context(), func(ctx context.Context, _ redlock.Locks) error { f(ctx); return nil })
			},
			"Lock.Context": func(f func(ctx context.Context)) error {
				lock := b.lock()
				f(lock.Context())
				return lock.Release(b.Context())
			},
			"Locks.Context": func(f func(ctx context.Context)) error {
				held, err := allOf(b.rl, "a", key).TryAcquire(b.Context())
				require.NoError(b, err)
				f(held.Context())
				return held.Release(b.Context())
			},
		} {
			require.NoError(b, inside(func(ctx context.Context) {
				synctest.Wait()
				deeper, cancel := context.WithTimeout(context.WithValue(ctx, ctxKey{}, 1), time.Minute)
				defer cancel()
				asked := b.cluster.Commands()
				m := b.rl.Mutex(key)
				b.takes(0, func() {
					_, err := m.TryAcquire(ctx)
					assert.ErrorIs(b, err, redlock.ErrNested, what)
					assert.ErrorIs(b, err, redlock.ErrHeld, what)
					assert.EqualError(b, err, "redlock: acquire \""+key+"\": held by the caller's own context", what)
					_, err = m.Acquire(deeper)
					assert.ErrorIs(b, err, redlock.ErrNested, what)
					assert.ErrorContains(b, err, key)
					err = m.Do(deeper, func(context.Context, *redlock.Lock) error { panic("called") })
					assert.ErrorIs(b, err, redlock.ErrNested, what)
					_, err = redlock.All(b.rl.Mutex("z"), b.rl.Mutex(key, redlock.WithReentry())).Acquire(deeper)
					assert.ErrorIs(b, err, redlock.ErrNested, what)
				})
				assert.Equal(b, asked, b.cluster.Commands(), what)

				// What is not nested is as ever.
				lock, err := b.rl.Mutex("another").TryAcquire(ctx)
				require.NoError(b, err, what)
				require.NoError(b, lock.Release(ctx))
				_, err = other.Mutex(key).TryAcquire(ctx)
				assert.ErrorIs(b, err, redlock.ErrHeld, "another process knows nothing of ours")
				assert.NotErrorIs(b, err, redlock.ErrNested)
				_, err = m.TryAcquire(b.Context())
				assert.ErrorIs(b, err, redlock.ErrHeld)
				assert.NotErrorIs(b, err, redlock.ErrNested)
			}), what)
		}
	})
}

func TestContextOfALockThatIsOverIsNotNested(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		ctx := context.WithoutCancel(lock.Context())
		require.NoError(b, lock.Release(b.Context()))
		next, err := b.rl.Mutex(key).TryAcquire(ctx)
		require.NoError(b, err)
		require.NoError(b, next.Release(ctx))
	})
}

func TestReentry(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		inner := b.rl.Mutex(key, redlock.WithReentry(), redlock.WithFencing())
		require.NoError(b, b.rl.Mutex(key, redlock.WithFencing()).Do(b.Context(), func(ctx context.Context, outer *redlock.Lock) error {
			synctest.Wait()
			asked := b.cluster.Commands()
			lock, err := inner.Acquire(ctx)
			require.NoError(b, err)
			assert.Equal(b, outer.Token(), lock.Token())
			assert.Equal(b, outer.Fence(), lock.Fence())
			assert.Equal(b, outer.Until(), lock.Until())
			assert.Equal(b, outer.Validity(), lock.Validity())
			assert.Equal(b, outer.Outcomes(), lock.Outcomes())
			assert.Equal(b, key, lock.Key())
			inside := lock.Context()
			_, err = lock.HandOver(ctx, time.Minute)
			assert.ErrorIs(b, err, redlock.ErrInvalid)
			require.NoError(b, lock.Release(ctx))
			require.NoError(b, lock.Release(ctx), "again")
			assert.Equal(b, asked, b.cluster.Commands(), "no node was asked")

			assert.LessOrEqual(b, lock.Validity(), time.Duration(0))
			assert.ErrorIs(b, context.Cause(inside), redlock.ErrReleased)
			assert.ErrorIs(b, lock.Extend(ctx, time.Hour), redlock.ErrReleased)
			assert.Positive(b, outer.Validity(), "ends nothing else")
			assert.NoError(b, ctx.Err())
			b.on(3)

			return inner.Do(ctx, func(ctx context.Context, lock *redlock.Lock) error {
				return inner.Do(ctx, func(ctx context.Context, lock *redlock.Lock) error { // and deeper
					require.NoError(b, lock.Extend(ctx, time.Hour))
					assert.Greater(b, outer.Validity(), 30*time.Minute)
					return ctx.Err()
				})
			})
		}))
		b.on(0)

		// Outside it is a Mutex like any other.
		lock, err := inner.TryAcquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
		b.on(0)

		_, err = inner.TryAcquire(b.lock().Context())
		require.ErrorIs(b, err, redlock.ErrInvalid, "the outer lock is not fenced")
	})
}

func TestInnerLockEndsWithTheOuterOne(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		inner := b.rl.Mutex(key, redlock.WithReentry())
		outer := b.lock()
		lock, err := inner.TryAcquire(outer.Context())
		require.NoError(b, err)
		require.NoError(b, outer.Release(b.Context()))
		assert.ErrorIs(b, context.Cause(lock.Context()), redlock.ErrReleased)
		assert.LessOrEqual(b, lock.Validity(), time.Duration(0))

		err = b.rl.Mutex(key).Do(b.Context(), func(ctx context.Context, _ *redlock.Lock) error {
			err := inner.Do(ctx, func(ctx context.Context, lock *redlock.Lock) error {
				synctest.Wait()
				b.each([]int{0, 1}, func(n *redlocktest.Node) { n.Del(key) })
				<-ctx.Done()
				assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
				return nil
			})
			assert.ErrorIs(b, err, redlock.ErrLost, "the inner one is lost as well")
			return nil
		})
		assert.ErrorIs(b, err, redlock.ErrLost)
	})
}
