package promises_test

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
			"Lock.Context": func(f func(ctx context.Context)) error {
				lock := b.lock()
				f(lock.Context())
				return lock.Release(b.Context())
			},
			"Lock.Within": func(f func(ctx context.Context)) error {
				lock := b.lock()
				ctx, cancel := lock.Within(b.Context())
				defer cancel()
				f(ctx)
				return lock.Release(b.Context())
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
					assert.NotErrorIs(b, err, redlock.ErrHeld, "a bug of the caller is not routine")
					assert.EqualError(b, err, "redlock: acquire \""+key+"\": held by the caller's own context", what)
					_, err = m.Acquire(deeper)
					assert.ErrorIs(b, err, redlock.ErrNested, what)
					assert.ErrorContains(b, err, key)
					err = m.Do(deeper, mustNotRun)
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

func mustNotRun(context.Context, *redlock.Lock) error { panic("called") }

// Do inside of its own lock, with WithReentry, runs its function with the outer lock.
func TestReentry(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		inner := b.rl.Mutex(key, redlock.WithReentry(), redlock.WithFencing())
		require.NoError(b, b.rl.Mutex(key, redlock.WithFencing()).Do(b.Context(), func(ctx context.Context, outer *redlock.Lock) error {
			synctest.Wait()
			asked := b.cluster.Commands()
			called := 0
			err := inner.Do(ctx, func(ctx context.Context, lock *redlock.Lock) error {
				called++
				assert.Same(b, outer, lock)
				return inner.Do(ctx, func(ctx context.Context, lock *redlock.Lock) error { // and deeper
					called++
					assert.Same(b, outer, lock)
					assert.NoError(b, ctx.Err())
					return errGaveUp
				})
			})
			assert.Equal(b, errGaveUp, err, "it is the function's own")
			assert.Equal(b, 2, called)
			assert.Positive(b, outer.Validity(), "its end ends nothing else")
			assert.NoError(b, ctx.Err())

			_, err = inner.Acquire(ctx)
			assert.ErrorIs(b, err, redlock.ErrNested)
			_, err = inner.TryAcquire(ctx)
			assert.ErrorIs(b, err, redlock.ErrNested)
			assert.Equal(b, asked, b.cluster.Commands(), "no node was asked")
			b.on(3)
			return nil
		}))
		b.on(0)

		// Outside it is a Mutex like any other.
		lock, err := inner.TryAcquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
		b.on(0)
	})
}

func TestReentryWhereTheOuterLockCovers(t *testing.T) {
	type mutex func(rl *redlock.Redlock, opts ...redlock.LockOption) locker
	exclusive := func(rl *redlock.Redlock, opts ...redlock.LockOption) locker { return rl.Mutex(key, opts...) }
	fenced := func(rl *redlock.Redlock, opts ...redlock.LockOption) locker {
		return rl.Mutex(key, append(opts, redlock.WithFencing())...)
	}
	shared := func(rl *redlock.Redlock, opts ...redlock.LockOption) locker {
		return rl.Mutex(key, opts...).Shared()
	}
	permits := func(n int) mutex {
		return func(rl *redlock.Redlock, opts ...redlock.LockOption) locker {
			return rl.Semaphore(key, n, opts...)
		}
	}
	for name, c := range map[string]struct {
		outer, inner mutex
		covers       bool
	}{
		"exclusive, exclusive":  {exclusive, exclusive, true},
		"exclusive, shared":     {exclusive, shared, true},
		"exclusive, permit":     {exclusive, permits(3), true},
		"exclusive, fenced":     {exclusive, fenced, false},
		"fenced, exclusive":     {fenced, exclusive, true},
		"fenced, fenced":        {fenced, fenced, true},
		"fenced, shared":        {fenced, shared, true},
		"shared, shared":        {shared, shared, true},
		"shared, exclusive":     {shared, exclusive, false},
		"shared, permit":        {shared, permits(3), false},
		"permit, same permit":   {permits(3), permits(3), true},
		"permit, one of others": {permits(3), permits(4), false},
		"permit, shared":        {permits(3), shared, false},
		"permit, exclusive":     {permits(3), exclusive, false},
		"of one, of one":        {permits(1), permits(1), true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				lock, err := c.outer(b.rl).TryAcquire(b.Context())
				require.NoError(b, err)
				synctest.Wait()
				asked := b.cluster.Commands()
				var with *redlock.Lock
				err = c.inner(b.rl, redlock.WithReentry()).Do(lock.Context(), func(_ context.Context, lock *redlock.Lock) error {
					with = lock
					return nil
				})
				if c.covers {
					require.NoError(b, err)
					assert.Same(b, lock, with)
				} else {
					require.ErrorIs(b, err, redlock.ErrNested)
					assert.Nil(b, with)
				}
				assert.Equal(b, asked, b.cluster.Commands(), "no node was asked")
			})
		})
	}
}

// What is inside of a lock ends with it, also where its context does not come to an end with it.
func TestReentryEndsWithTheOuterLock(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		inner := b.rl.Mutex(key, redlock.WithReentry())
		err := b.rl.Mutex(key).Do(b.Context(), func(ctx context.Context, _ *redlock.Lock) error {
			err := inner.Do(context.WithoutCancel(ctx), func(ctx context.Context, lock *redlock.Lock) error {
				synctest.Wait()
				b.each([]int{0, 1}, func(n *redlocktest.Node) { n.Del(key) })
				<-ctx.Done()
				assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
				return errGaveUp
			})
			assert.ErrorIs(b, err, redlock.ErrLost, "the inner Do says so as well")
			assert.ErrorIs(b, err, errGaveUp)
			return nil
		})
		assert.ErrorIs(b, err, redlock.ErrLost)
	})
}

func TestHeld(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		_, ok := redlock.Held(b.Context(), key)
		assert.False(b, ok)
		lock := b.lock()
		ctx := context.WithoutCancel(context.WithValue(lock.Context(), ctxKey{}, 1))
		held, ok := redlock.Held(ctx, key)
		assert.True(b, ok)
		assert.Same(b, lock, held)
		_, ok = redlock.Held(ctx, "another")
		assert.False(b, ok)

		require.NoError(b, b.rl.Mutex("inside").Do(ctx, func(ctx context.Context, inside *redlock.Lock) error {
			for key, want := range map[string]*redlock.Lock{key: lock, "inside": inside} {
				held, ok := redlock.Held(ctx, key)
				assert.True(b, ok)
				assert.Same(b, want, held)
			}
			return nil
		}))

		require.NoError(b, lock.Release(b.Context()))
		held, ok = redlock.Held(ctx, key)
		assert.False(b, ok, "it is over")
		assert.Nil(b, held)
	})
}
