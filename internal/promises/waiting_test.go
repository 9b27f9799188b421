package promises_test

import (
	"context"
	"strings"
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
		assert.Zero(b, first.Waited)
		w.mu.Lock()
		assert.Equal(b, "trace", w.ctx.Value(word{}))
		w.mu.Unlock()
		assert.Equal(b, -1, first.Ahead, "it has not joined yet")
		assert.NotZero(b, first.WaitID)

		b.pass(100 * time.Second)
		told, ended := w.take()
		assert.Empty(b, ended)
		for i, at := range []time.Duration{1, 2, 4, 8, 16, 32, 64} {
			now := told[i]
			assert.Equal(b, at*time.Second, now.Waited)
			assert.Equal(b, first.WaitID, now.WaitID)
			assert.Equal(b, first.WaitStart, now.WaitStart)
			assert.Zero(b, now.Ahead)
			assert.True(b, strings.HasPrefix(now.Holder, held.Token()+"@"), now.Holder)
			assert.WithinDuration(b, start.Add(now.Waited), now.AsOf, ttl)
			assert.InDelta(b, ttl.Seconds(), now.HolderTTL.Seconds(), ttl.Seconds()/3+1, "it is renewed")
		}
		assert.Len(b, told, 7)
		require.NoError(b, held.Release(b.Context()))
		require.NoError(b, (<-done).err)
		told, ended = w.take()
		assert.Empty(b, told)
		require.Len(b, ended, 1)
		assert.Equal(b, first.WaitID, ended[0].WaitID)
		assert.Equal(b, first.WaitStart, ended[0].WaitStart)
		b.pass(5 * time.Minute)
		told, _ = w.take()
		assert.Empty(b, told, "it is over")
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

// Each waiter of a process hears of the holder what the first in line was told.
func TestWaitersOfAProcessTellOfTheSameHolder(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		var w waits
		rl := b.another(w.options())
		held := b.lock(redlock.WithRenewal())
		var all []<-chan result
		for range 3 {
			all = append(all, later(func() (*redlock.Lock, error) { return rl.Mutex(key).Acquire(b.Context()) }))
			b.pass(20 * time.Millisecond)
		}
		w.take()
		b.pass(17 * time.Second) // the lease has been renewed
		told, _ := w.take()
		last := make(map[uint64]redlock.WaitInfo)
		for _, i := range told {
			last[i.WaitID] = i
		}
		require.Len(b, last, 3)
		ahead := make(map[int]bool)
		for _, i := range last {
			ahead[i.Ahead] = true
			assert.True(b, strings.HasPrefix(i.Holder, held.Token()))
			assert.WithinDuration(b, time.Now(), i.AsOf, ttl)
		}
		assert.Equal(b, map[int]bool{0: true, 1: true, 2: true}, ahead)
		require.NoError(b, held.Release(b.Context()))
		for _, done := range all {
			require.NoError(b, (<-done).lock.Release(b.Context()))
		}
	})
}

func TestWaitThatPollsIsTold(t *testing.T) {
	var w waits
	inBubble(t, 3, nil, func(b *bed) {
		const noQueue = "a}b" // no second key can share its slot
		held, err := b.rl.Mutex(noQueue).TryAcquire(b.Context())
		require.NoError(b, err)
		rl := b.another(w.options())
		done := later(func() (*redlock.Lock, error) { return rl.Semaphore(noQueue, 2).Acquire(b.Context()) })
		b.pass(3 * time.Second)
		told, _ := w.take()
		require.Len(b, told, 3)
		now := told[2]
		assert.Equal(b, redlock.ModePermit, now.Mode)
		assert.Equal(b, -1, now.Ahead)
		assert.Greater(b, now.Attempts, 1)
		assert.True(b, strings.HasPrefix(now.Holder, held.Token()), now.Holder)
		assert.InDelta(b, 8, now.HolderTTL.Seconds(), 0.01, "what is left at that moment")
		require.NoError(b, held.Release(b.Context()))
		require.NoError(b, (<-done).err)

		one, err := rl.Mutex("shared").Shared().Acquire(b.Context())
		require.NoError(b, err)
		w.take()
		done = later(func() (*redlock.Lock, error) { return rl.Mutex("shared").Acquire(b.Context()) })
		b.pass(1500 * time.Millisecond)
		told, _ = w.take()
		require.Len(b, told, 2)
		assert.Empty(b, told[1].Holder, "no marker")
		require.NoError(b, one.Release(b.Context()))
		require.NoError(b, (<-done).err)
	})
}

func TestWaitInAnOutageIsTold(t *testing.T) {
	var w waits
	inBubble(t, 3, w.options(), func(b *bed) {
		b.each([]int{0, 1}, stop)
		_, err := b.rl.Mutex(key).Acquire(deadline(b, 5*time.Second))
		require.Error(b, err)
		told, ended := w.take()
		require.Len(b, told, 4)
		for _, i := range told {
			assert.Equal(b, redlock.ErrNoQuorum, i.Err)
			assert.Empty(b, i.Holder)
		}
		assert.Equal(b, told[0].WaitID, ended[0].WaitID)
	})
}

func TestWaitOfDaysIsToldOnceAnHour(t *testing.T) {
	var w waits
	opts := w.options()
	opts.RetryMin, opts.RetryMax = time.Hour, time.Hour
	inBubble(t, 3, opts, func(b *bed) {
		b.each([]int{0, 1, 2}, stop)
		done := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(deadline(b, 48*time.Hour)) })
		b.pass(24 * time.Hour)
		w.take()
		b.pass(12 * time.Hour)
		told, _ := w.take()
		assert.Len(b, told, 12)
		require.Error(b, (<-done).err)
	})
}

// Who counts waits must not hear of one that is over already.
func TestWaitIsNotToldAfterItsEnd(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		var w waits
		opts := w.options()
		telling, goOn := make(chan struct{}), make(chan struct{})
		opts.Hooks = redlock.JoinHooks(&redlock.Hooks{Waiting: func(_ context.Context, i redlock.WaitInfo) {
			if i.Waited > 0 {
				close(telling)
				<-goOn
			}
		}}, opts.Hooks)
		held := b.lock()
		rl := b.another(opts)
		done := later(func() (*redlock.Lock, error) { return rl.Mutex(key).Acquire(b.Context()) })
		<-telling
		require.NoError(b, held.Release(b.Context()))
		b.pending(done)
		_, ended := w.take()
		assert.Empty(b, ended)
		close(goOn)
		require.NoError(b, (<-done).err)
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
