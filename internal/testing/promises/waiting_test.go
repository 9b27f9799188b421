package promises_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
)

// waits keeps what Hooks.Waiting and Hooks.Acquired are told.
type waits struct {
	mu    sync.Mutex
	told  []redlock.WaitInfo
	ctx   context.Context // that was told last
	ended []redlock.AcquireInfo
}

func (w *waits) options() *redlock.Options {
	return &redlock.Options{Hooks: &redlock.Hooks{
		Waiting: func(ctx context.Context, i redlock.WaitInfo) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.told, w.ctx = append(w.told, i), ctx
		},
		Acquired: func(_ context.Context, i redlock.AcquireInfo) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.ended = append(w.ended, i)
		},
	}}
}

// take returns what was told since the last take.
func (w *waits) take() (told []redlock.WaitInfo, ended []redlock.AcquireInfo) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	told, ended, w.told, w.ended = w.told, w.ended, nil, nil
	return told, ended
}

func TestWaitIsTold(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		var w waits
		held := b.lock(redlock.WithRenewal())
		rl := b.another(w.options())
		start := time.Now()
		type word struct{}
		ctx := context.WithValue(b.Context(), word{}, "trace")
		done := later(func() (*redlock.Lock, error) { return rl.Mutex(key).Acquire(ctx) })
		told, _ := w.take()
		require.Len(b, told, 1)
		first := told[0]
		assert.Equal(b, key, first.Key)
		assert.Equal(b, redlock.ModeExclusive, first.Mode)
		assert.Equal(b, 1, first.Attempts)
		assert.Equal(b, redlock.ErrHeld, first.Err)
		assert.Equal(b, start, first.WaitStart)
		assert.Equal(b, start, first.Start)
		w.mu.Lock()
		assert.Equal(b, "trace", w.ctx.Value(word{}))
		w.mu.Unlock()
		assert.NotZero(b, first.WaitID)

		b.pass(100 * time.Second)
		told, ended := w.take()
		assert.Empty(b, told, "once")
		assert.Empty(b, ended)
		require.NoError(b, held.Release(b.Context()))
		require.NoError(b, (<-done).err)
		told, ended = w.take()
		assert.Empty(b, told)
		require.Len(b, ended, 1)
		assert.Equal(b, first.WaitID, ended[0].WaitID)
		assert.Equal(b, first.WaitStart, ended[0].WaitStart)
	})
}

func TestWhoDoesNotWaitIsNotTold(t *testing.T) {
	var w waits
	inBubble(t, 3, w.options(), func(b *bed) {
		lock := b.lock()
		b.try()
		require.NoError(b, lock.Release(b.Context()))
		require.NoError(b, b.rl.Mutex(key).Do(b.Context(), func(context.Context, *redlock.Lock) error { return nil }))
		b.pass(time.Minute)
		told, ended := w.take()
		assert.Empty(b, told)
		assert.Len(b, ended, 3)
		for _, i := range ended {
			assert.Zero(b, i.WaitID)
		}
	})
}

func TestWaitInAnOutageIsTold(t *testing.T) {
	var w waits
	inBubble(t, 3, w.options(), func(b *bed) {
		b.each([]int{0, 1}, stop)
		_, err := b.rl.Mutex(key).Acquire(deadline(b, 5*time.Second))
		require.Error(b, err)
		told, ended := w.take()
		require.Len(b, told, 1)
		assert.Equal(b, redlock.ErrNoQuorum, told[0].Err)
		assert.Equal(b, told[0].WaitID, ended[0].WaitID)
	})
}

func TestWaitWhoseHookPanics(t *testing.T) {
	for name, leave := range leaves {
		t.Run(name, func(t *testing.T) {
			var w waits
			opts := w.options()
			opts.Hooks = redlock.JoinHooks(opts.Hooks, &redlock.Hooks{Waiting: func(context.Context, redlock.WaitInfo) { leave() }})
			inBubble(t, 3, nil, func(b *bed) {
				held := b.lock()
				rl := b.another(opts)
				got := survive(func() { _, _ = rl.Mutex(key).Acquire(b.Context()) })
				assert.Equal(b, name == "panic", got == "the hook's", "%v", got)
				told, ended := w.take()
				require.Len(b, ended, 1)
				assert.ErrorIs(b, ended[0].Err, redlock.ErrInvalid)
				assert.ErrorContains(b, ended[0].Err, "Hooks.Waiting")
				assert.Equal(b, told[0].WaitID, ended[0].WaitID)
				b.pass(time.Minute)
				told, _ = w.take()
				assert.Empty(b, told)
				_ = held.Release(b.Context())
				b.on(0)
				assert.Empty(b, b.status().Waiters)
			})
		})
	}
}
