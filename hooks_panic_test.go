package redlock_test

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// leaves are the ways in which a hook may leave its goroutine.
var leaves = map[string]func(){
	"panic":  func() { panic("the hook's") },
	"goexit": runtime.Goexit,
}

// survive calls f as a server calls its handlers, which may panic.
func survive(f func()) (recovered any) {
	done := make(chan any)
	go func() {
		defer func() { done <- recover() }()
		f()
	}()
	return <-done
}

// Scenario 85: the caller never gets the lock, so nobody would release it, and it would be
// renewed for as long as the process lives.
func TestLockWhoseHookPanicsIsReleased(t *testing.T) {
	for name, leave := range leaves {
		t.Run(name, func(t *testing.T) {
			var released atomic.Int32
			inBubble(t, 3, &redlock.Options{Hooks: &redlock.Hooks{
				Acquired: func(redlock.AcquireInfo) { leave() },
				Released: func(redlock.ReleaseInfo) { released.Add(1) },
			}}, func(b *bed) {
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				defer cancel()
				for what, acquire := range map[string]func(){
					"TryAcquire": func() { _, _ = b.rl.Mutex(key, redlock.WithRenewal()).TryAcquire(ctx) },
					"Acquire":    func() { _, _ = b.rl.Mutex(key, redlock.WithRenewal()).Acquire(ctx) },
					"Do": func() {
						_ = b.rl.Mutex(key).Do(ctx, func(context.Context, *redlock.Lock) error {
							b.Error("called without its lock")
							return nil
						})
					},
				} {
					before := released.Load()
					got := survive(acquire)
					assert.Equal(b, name == "panic", got == "the hook's", "%s: %v", what, got)
					b.on(0)
					assert.Equal(b, before+1, released.Load(), what)
				}
				b.cluster.ResetCommands()
				b.pass(time.Hour)
				assert.Zero(b, b.cluster.Commands(), "nothing is renewed")
			})
		})
	}
}

// A Lost or Released hook that panics while Do ends its lock leaves nothing behind either.
func TestDoReleasesWhenAHookPanics(t *testing.T) {
	for name, leave := range leaves {
		t.Run(name, func(t *testing.T) {
			for _, hooks := range []*redlock.Hooks{
				{Released: func(redlock.ReleaseInfo) { leave() }},
				{Extended: func(redlock.ExtendInfo) { leave() }},
			} {
				inBubble(t, 3, &redlock.Options{Hooks: hooks}, func(b *bed) {
					var inner context.Context
					survive(func() {
						_ = b.rl.Mutex(key).Do(b.Context(), func(ctx context.Context, l *redlock.Lock) error {
							inner = ctx
							return l.Extend(ctx, ttl)
						})
					})
					synctest.Wait()
					b.on(0)
					require.Error(b, inner.Err())
					b.cluster.ResetCommands()
					b.pass(time.Hour)
					assert.Zero(b, b.cluster.Commands())
				})
			}
		})
	}
}

// Do finds out itself that its lock is over where no timer came round to it.
func TestDoReleasesWhenItsLostHookPanics(t *testing.T) {
	for name, leave := range leaves {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				clock := redlock.NewFakeClock()
				rl, err := redlock.NewWithClock(b.cluster.Clients(), &redlock.Options{Hooks: &redlock.Hooks{
					Lost: func(redlock.LostInfo) { leave() },
				}}, clock)
				require.NoError(b, err)
				b.Cleanup(func() { _ = rl.Close() })
				var inner context.Context
				got := survive(func() {
					_ = rl.Mutex(key).Do(b.Context(), func(ctx context.Context, _ *redlock.Lock) error {
						inner = ctx
						clock.Stun(valid)
						return nil
					})
				})
				assert.Equal(b, name == "panic", got == "the hook's", "%v", got)
				b.on(0)
				assert.Error(b, inner.Err())
			})
		})
	}
}

// A NodeDown hook that ends its goroutine must not keep later changes from being told.
func TestNodeHookThatEndsItsGoroutine(t *testing.T) {
	var downs, ups atomic.Int32
	inBubble(t, 1, &redlock.Options{RestartGuard: -1, Hooks: &redlock.Hooks{
		NodeDown: func(redlock.NodeInfo) { downs.Add(1); runtime.Goexit() },
		NodeUp:   func(redlock.NodeInfo) { ups.Add(1) },
	}}, func(b *bed) {
		b.cycle()
		b.cluster.Node(0).Stop()
		_, err := b.rl.Mutex(key).TryAcquire(b.Context())
		require.Error(b, err)
		b.cluster.Node(0).Restart(redlocktest.KeepKeys)
		b.pass(time.Second)
		b.cycle()
		assert.Equal(b, int32(1), downs.Load())
		assert.Equal(b, int32(1), ups.Load())
	})
}

// Scenario 86: many contexts end when a machine wakes up. A hook that is told of the first
// loss, and takes its time, must not let the others' holders go on.
func TestSlowLostHookDelaysNoOtherContext(t *testing.T) {
	const locks = 20
	var told atomic.Int32
	inBubble(t, 3, nil, func(b *bed) {
		clock := redlock.NewFakeClock()
		rl, err := redlock.NewWithClock(b.cluster.Clients(), &redlock.Options{Hooks: &redlock.Hooks{
			Lost: func(redlock.LostInfo) { time.Sleep(200 * time.Millisecond); told.Add(1) },
		}}, clock)
		require.NoError(b, err)
		b.Cleanup(func() { _ = rl.Close() })
		var contexts []context.Context
		for i := range locks {
			lock, err := rl.Mutex(string(rune('a' + i))).TryAcquire(b.Context())
			require.NoError(b, err)
			contexts = append(contexts, lock.Context())
		}
		clock.Suspend(time.Hour)
		clock.Advance(250 * time.Millisecond)
		synctest.Wait() // in no time: the hooks are asleep
		for i, ctx := range contexts {
			assert.ErrorIs(b, context.Cause(ctx), redlock.ErrExpired, "lock %d", i)
		}
		b.pass(time.Second)
		assert.Equal(b, int32(locks), told.Load())
	})
}
