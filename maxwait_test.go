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

const most = 300 * time.Millisecond

// Whatever way there is to wait for a lock, WithMaxWait bounds it, leaves nothing behind, and
// says that another holds it.
func TestMaxWaitBoundsEachWayOfWaiting(t *testing.T) {
	limit := redlock.WithMaxWait(most)
	neverCalled := func(context.Context, *redlock.Lock) error { panic("without a lock") }
	for name, wait := range map[string]func(ctx context.Context, rl *redlock.Redlock) error{
		"Acquire": func(ctx context.Context, rl *redlock.Redlock) error {
			_, err := rl.Mutex(key, limit).Acquire(ctx)
			return err
		},
		"Do": func(ctx context.Context, rl *redlock.Redlock) error { return rl.Mutex(key, limit).Do(ctx, neverCalled) },
		"Lead": func(ctx context.Context, rl *redlock.Redlock) error {
			return rl.Mutex(key, limit).Lead(ctx, neverCalled)
		},
		"Shared": func(ctx context.Context, rl *redlock.Redlock) error {
			return rl.Mutex(key, limit).Shared().Do(ctx, neverCalled)
		},
		"Semaphore": func(ctx context.Context, rl *redlock.Redlock) error {
			return rl.Semaphore(key, 2, limit).Do(ctx, neverCalled)
		},
		"All, the least of several": func(ctx context.Context, rl *redlock.Redlock) error {
			_, err := redlock.All(rl.Mutex("a", redlock.WithMaxWait(time.Hour)), rl.Mutex("z", limit), rl.Mutex(key)).Acquire(ctx)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				held := b.lock(redlock.WithRenewal())
				waiter := b.another(nil)
				b.takes(most, func() {
					err := wait(b.Context(), waiter)
					assert.ErrorIs(b, err, redlock.ErrHeld)
					assert.ErrorIs(b, err, context.DeadlineExceeded)
					assert.ErrorContains(b, err, ": held by another: gave up after 300ms (WithMaxWait) (")
				})
				assert.NoError(b, b.Context().Err(), "the caller's own context goes on")
				require.NoError(b, held.Release(b.Context()))
				b.pass(time.Second)
				b.on(0)
				for _, n := range b.cluster.Nodes() {
					for _, k := range n.Redis().Keys() {
						assert.Equal(b, "redlock:memory", k, "no queue either")
					}
				}
			})
		})
	}
}

// What is bounded is the wait and not the work, nor the lock.
func TestMaxWaitDoesNotBoundTheWork(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		held := b.lock()
		time.AfterFunc(most/2, func() { _ = held.Release(context.WithoutCancel(b.Context())) })
		m := b.another(nil).Mutex(key, redlock.WithMaxWait(most))
		start := time.Now()
		require.NoError(b, m.Do(b.Context(), func(ctx context.Context, lock *redlock.Lock) error {
			assert.Less(b, time.Since(start), most)
			_, has := ctx.Deadline()
			assert.False(b, has)
			b.pass(time.Minute)
			assert.NoError(b, lock.Context().Err())
			return ctx.Err()
		}))
		b.on(0)
	})
}

// A set that is refused one lock gives up in time, also while it asks for the others.
func TestMaxWaitOfASetWhoseLocksAreAlwaysBusy(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		a, z := b.takeBy(b.rl, "a"), b.takeBy(b.rl, "z")
		time.AfterFunc(most/2, func() { _ = a.Release(context.WithoutCancel(b.Context())) })
		b.takes(most, func() {
			rl := b.another(nil)
			_, err := redlock.All(rl.Mutex("z"), rl.Mutex("a", redlock.WithMaxWait(most))).Acquire(b.Context())
			assert.ErrorIs(b, err, redlock.ErrHeld)
			assert.ErrorIs(b, err, context.DeadlineExceeded)
		})
		b.isFree(true, "a")
		require.NoError(b, z.Release(b.Context()))
	})
}

// Nor does it forget that it was refused, where the time is over while it asks again.
func TestMaxWaitThatIsOverWhileASetAsksForTheRest(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		z := b.takeBy(b.rl, "z")
		rl := b.another(&redlock.Options{Hooks: &redlock.Hooks{Acquired: func(i redlock.AcquireInfo) {
			if i.Key == "z" && i.Err == nil { // and next it asks for "a"
				b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.DelayCommand("SET", 1, most) })
			}
		}}})
		time.AfterFunc(most/2, func() { _ = z.Release(context.WithoutCancel(b.Context())) })
		b.takes(most, func() {
			_, err := redlock.All(rl.Mutex("a", redlock.WithMaxWait(most)), rl.Mutex("z")).Acquire(b.Context())
			assert.ErrorIs(b, err, redlock.ErrHeld)
			assert.ErrorIs(b, err, context.DeadlineExceeded)
		})
		b.pass(time.Second)
		b.isFree(true, "a", "z")
	})
}

// The wait for nodes is bounded as that for a holder is, with another reason.
func TestMaxWaitInAnOutage(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.each([]int{0, 1}, stop)
		b.takes(time.Second, func() {
			_, err := b.rl.Mutex(key, redlock.WithMaxWait(time.Second)).Acquire(b.Context())
			assert.ErrorIs(b, err, redlock.ErrNoQuorum)
			assert.ErrorIs(b, err, context.DeadlineExceeded)
			assert.NotErrorIs(b, err, redlock.ErrHeld)
		})
	})
}

// A leader that lost its term waits no longer for the next one than for the first.
func TestMaxWaitOfLeadIsThatOfEachTerm(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		terms := 0
		err := b.rl.Mutex(key, redlock.WithMaxWait(most)).Lead(b.Context(), func(ctx context.Context, lock *redlock.Lock) error {
			terms++
			b.pass(time.Minute)
			b.each([]int{0, 1, 2}, taken)
			require.ErrorIs(b, lock.Extend(ctx, ttl), redlock.ErrLost)
			return nil
		})
		assert.ErrorIs(b, err, redlock.ErrHeld)
		assert.ErrorIs(b, err, context.DeadlineExceeded)
		assert.Equal(b, 1, terms)
	})
}

// The caller's own deadline may be the earlier one, and is told as what it is.
func TestMaxWaitAndTheCallersDeadline(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.lock(redlock.WithRenewal())
		m := b.another(nil).Mutex(key, redlock.WithMaxWait(time.Hour))
		ctx, cancel := context.WithTimeout(b.Context(), most)
		defer cancel()
		b.takes(most, func() {
			_, err := m.Acquire(ctx)
			assert.ErrorIs(b, err, redlock.ErrHeld)
			assert.ErrorIs(b, err, context.DeadlineExceeded)
			assert.NotContains(b, err.Error(), "WithMaxWait")
		})
		b.takes(0, func() { // it never waits
			_, err := m.TryAcquire(b.Context())
			assert.ErrorIs(b, err, redlock.ErrHeld)
			assert.NotErrorIs(b, err, context.DeadlineExceeded)
		})
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.DelayCommand("SET", 1, time.Millisecond) })
		rl := b.another(nil)
		set, err := redlock.All(rl.Mutex("a", redlock.WithMaxWait(1)), rl.Mutex("z")).TryAcquire(b.Context())
		require.NoError(b, err, "nor does this")
		require.NoError(b, set.Release(b.Context()))
	})
}

// Hooks are told the caller's context, which has not ended, and the wait.
func TestHooksOfABoundedWait(t *testing.T) {
	var told []redlock.AcquireInfo
	opts := &redlock.Options{Hooks: &redlock.Hooks{Acquired: func(i redlock.AcquireInfo) { told = append(told, i) }}}
	inBubble(t, 3, nil, func(b *bed) {
		b.lock(redlock.WithRenewal())
		_, err := b.another(opts).Mutex(key, redlock.WithMaxWait(most)).Acquire(b.Context())
		require.Error(b, err)
		synctest.Wait()
		require.Len(b, told, 1)
		assert.NoError(b, told[0].Context.Err())
		assert.Equal(b, most, told[0].Waited)
	})
}
