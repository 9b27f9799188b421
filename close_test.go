package redlock_test

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// Scenario 71.
func TestCloseEndsWaiters(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.each([]int{0, 1}, taken)
		var waiting []<-chan result
		for range 5 {
			waiting = append(waiting, later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(b.Context()) }))
		}
		b.pass(time.Second)
		b.takes(0, func() { require.NoError(b, b.rl.Close()) })
		for _, w := range waiting {
			err := (<-w).err
			assert.ErrorIs(b, err, redlock.ErrClosed)
			assert.ErrorIs(b, err, redlock.ErrHeld, "and what the nodes said last")
			b.quorumError(err)
		}
		b.on(2)
	})
}

func TestCloseTakesBackWhatIsUnderWay(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		require.NoError(b, redlock.LoadScripts(b.rl))
		for _, n := range b.cluster.Nodes() {
			n.Delay(20 * time.Millisecond)
		}
		under := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).TryAcquire(b.Context()) })
		b.pass(30 * time.Millisecond) // set, and nobody knows
		b.on(3)
		b.takes(50*time.Millisecond, func() { require.NoError(b, b.rl.Close()) })
		require.ErrorIs(b, (<-under).err, redlock.ErrClosed)
		b.on(0)
	})
}

func TestCloseFlushesReleases(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		lock := b.lock()
		b.cluster.Node(0).Delay(50 * time.Millisecond)
		require.NoError(b, lock.Release(b.Context()))
		b.takes(100*time.Millisecond, func() { require.NoError(b, b.rl.Close()) })
		b.on(0)
	})
}

func TestCloseIsBoundedWhenNodesHang(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		extended := b.lockOf("extended")
		b.each([]int{0, 1, 2}, hang)
		released := later(func() (*redlock.Lock, error) { return nil, lock.Release(b.Context()) })
		under := later(func() (*redlock.Lock, error) { return b.rl.Mutex("other").TryAcquire(b.Context()) })
		extending := later(func() (*redlock.Lock, error) { return nil, extended.Extend(b.Context(), ttl) })
		looking := later(func() (*redlock.Lock, error) { _, err := b.rl.Mutex(key).Inspect(b.Context()); return nil, err })
		b.takes(nodeTimeout, func() { require.NoError(b, b.rl.Close()) })
		for _, done := range []<-chan result{released, under, extending, looking} {
			require.ErrorIs(b, (<-done).err, redlock.ErrClosed)
		}
		b.pass(40 * time.Second) // the longest that a connection is kept waiting
		buf := make([]byte, 1<<20)
		assert.NotContains(b, string(buf[:runtime.Stack(buf, true)]), "lane", "no goroutine of ours is left")
	})
}

func (b *bed) lockOf(key string) *redlock.Lock {
	b.Helper()
	lock, err := b.rl.Mutex(key).TryAcquire(b.Context())
	require.NoError(b, err)
	return lock
}

// Held locks stay until their TTL, and are not renewed.
func TestCloseLeavesHeldLocksAlone(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithRenewal())
		ctx := lock.Context()
		b.pass(5 * time.Second)
		require.NoError(b, b.rl.Close())
		left := lock.Validity()
		b.on(3)
		assert.Greater(b, left, ttl/2)
		b.takes(left, func() { <-ctx.Done() })
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrExpired)
		b.pass(ttl)
		b.on(0)
	})
}

func TestCallsAfterClose(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		require.NoError(b, b.rl.Close())
		b.cluster.ResetCommands()
		for name, call := range every {
			err := call(b.rl.Mutex(key), b.Context())
			require.ErrorIs(b, err, redlock.ErrClosed, name)
			assert.ErrorContains(b, err, key)
		}
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrClosed)
		assert.Greater(b, lock.Validity(), time.Duration(0), "not lost by that")
		b.takes(0, func() { require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrClosed) })
		require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrClosed)
		assert.ErrorIs(b, context.Cause(lock.Context()), redlock.ErrReleased)
		b.pass(time.Second)
		assert.Zero(b, b.cluster.Commands())
		require.NoError(b, b.rl.Close())
	})
}

// Everything at once, while Close comes in between: an error or a lock, and nothing of
// what was not granted is left.
func TestCloseInTheMiddleOfEverything(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		for i, n := range b.cluster.Nodes() {
			n.Delay(time.Duration(i+1) * time.Millisecond)
		}
		var all sync.WaitGroup
		stop := make(chan struct{})
		for i := range 20 {
			all.Go(func() {
				k := string(rune('a' + i%5))
				for {
					select {
					case <-stop:
						return
					default:
					}
					lock, err := b.rl.Mutex(k, redlock.WithRenewal()).TryAcquire(b.Context())
					if err == nil {
						lock.Context()
						_ = lock.Extend(b.Context(), ttl)
						_ = lock.Release(b.Context())
					}
					time.Sleep(time.Duration(i+1) * 100 * time.Microsecond)
				}
			})
		}
		b.pass(200 * time.Millisecond)
		require.NoError(b, b.rl.Close())
		close(stop)
		all.Wait()
		b.pass(ttl)
		for _, n := range b.cluster.Nodes() {
			assert.Empty(b, keysOf(n))
		}
	})
}

func TestCloseOfAHungClusterThatWakesLater(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		b.each([]int{0, 1, 2}, hang)
		b.try()
		require.NoError(b, b.rl.Close())
		b.each([]int{0, 1, 2}, resume)
		b.pass(ttl + time.Second)
		b.on(0)
		b.each([]int{0}, func(n *redlocktest.Node) { assert.Equal(b, 2, n.Commands("SET")) })
	})
}
