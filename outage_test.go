package redlock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// While too few nodes answer, an attempt of each of many who wait would tell nobody
// anything: one of them asks, and all go on when the nodes are back.
func TestOutageIsAskedAboutByOneAtATime(t *testing.T) {
	t.Parallel()
	const waiters = 200
	inHall(t, func(h hall) {
		h.cluster.Record(false)
		var attempts atomic.Int64
		rl := h.process(&redlock.Options{RestartGuard: -1, Hooks: &redlock.Hooks{Acquired: func(i redlock.AcquireInfo) {
			attempts.Add(int64(i.Attempts))
		}}})
		for _, n := range h.cluster.Nodes()[:3] {
			n.Stop()
		}
		var all sync.WaitGroup
		var held atomic.Int64
		for i := range waiters {
			m := rl.Mutex([]string{"k", "l", "m"}[i%3])
			all.Go(func() {
				assert.NoError(t, m.Do(h.Context(), func(context.Context, *redlock.Lock) error {
					held.Add(1)
					return nil
				}))
			})
		}
		time.Sleep(time.Minute)
		require.Zero(t, held.Load())
		h.cluster.Node(0).Restart(redlocktest.KeepKeys)
		all.Wait()
		assert.Less(t, attempts.Load(), int64(10*waiters), "each on its own made some 240")
	})
}

// The first of a process's waiters for a key looks after the others, but not while it
// pauses because no node keeps the queue for it.
func TestWaiterBehindOneThatFoundNoQueue(t *testing.T) {
	inHall(t, func(h hall) {
		for _, n := range h.cluster.Nodes() {
			n.Deny("SUBSCRIBE") // or a notice would wake it
		}
		rl := h.process(&redlock.Options{RestartGuard: -1, RetryMin: 5 * time.Minute, RetryMax: 5 * time.Minute})
		l := h.acquire(h.process(&redlock.Options{RestartGuard: -1}).Mutex("k", redlock.WithTTL(time.Hour)))
		ctx, cancel := context.WithCancel(h.Context())
		first := visit(ctx, rl.Mutex("k"))
		second := visit(h.Context(), rl.Mutex("k"))
		for _, n := range h.cluster.Nodes() {
			n.SetError("BUSY Redis is busy running a script")
		}
		h.cluster.ResetCommands()
		for h.cluster.Commands("EVALSHA") < 5 { // the first looks, is turned away, and pauses for minutes
			time.Sleep(time.Millisecond)
		}
		for _, n := range h.cluster.Nodes() {
			n.SetError("")
		}
		time.Sleep(time.Second)
		h.release(l)
		assert.Less(t, h.served(second), 2*time.Second)
		require.True(t, first.waits())
		cancel()
		<-first.done
		h.release(second.lock)
		synctest.Wait()
	})
}
