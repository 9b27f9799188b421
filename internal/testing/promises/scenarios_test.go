package promises_test

import (
	"context"
	"fmt"
	"strings"
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

// Scenarios of docs/safety-tests.md that no file of another subject shows. The page says which
// test shows which.

// Scenario 7: keys of clocks that were set back seem to last for another hour; a waiter
// does not sleep for that long, and is there when the clocks are right again.
func TestWaiterDoesNotSleepForAsLongAsAWrongClockSays(t *testing.T) {
	for name, k := range map[string]string{"in line": key, "polling": unlined} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				holder := b.another(nil)
				_, err := holder.Mutex(k).TryAcquire(b.Context())
				require.NoError(b, err)
				b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.ShiftClock(-time.Hour) })
				done := later(func() (*redlock.Lock, error) { return b.rl.Mutex(k).Acquire(b.Context()) })
				b.pass(time.Minute)
				b.pending(done)
				b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.ShiftClock(time.Hour) })
				right := time.Now()
				r := <-done
				require.NoError(b, r.err)
				assert.LessOrEqual(b, r.at.Sub(right), 2*time.Second)
			})
		})
	}
}

// Scenario 8: nodes whose clocks run faster than the holder's by all that DriftFactor
// allows still have the key when the holder's time is over. Without the allowance they
// would not.
func TestNodesThatRunFastKeepTheKeyForAsLongAsItIsHeld(t *testing.T) {
	for _, c := range []struct {
		allowed  float64
		excludes bool
	}{{0.01, true}, {0.0001, false}} {
		t.Run(fmt.Sprint(c.allowed), func(t *testing.T) {
			inBubble(t, 5, &redlock.Options{DriftFactor: c.allowed}, func(b *bed) {
				other := b.another(nil)
				lock := b.lock()
				const step = 10 * time.Millisecond
				for lock.Validity() > step {
					b.pass(step)
					for _, n := range b.cluster.Nodes() {
						n.ShiftClock(step / 100)
					}
				}
				_, err := other.Mutex(key).TryAcquire(b.Context())
				require.Positive(b, lock.Validity())
				if c.excludes {
					require.ErrorIs(b, err, redlock.ErrHeld)
				} else {
					require.NoError(b, err, "two holders")
				}
			})
		})
	}
}

// Scenario 9: what the nodes take to answer is not the holder's to use.
func TestSlowNodesCostValidity(t *testing.T) {
	const slow = 400 * time.Millisecond
	inBubble(t, 3, &redlock.Options{NodeTimeout: ttl / 4, RestartGuard: 2 * ttl}, func(b *bed) {
		known := b.lock() // and with it the scripts
		require.NoError(b, known.Extend(b.Context(), ttl))
		require.NoError(b, known.Release(b.Context()))
		synctest.Wait()
		for _, n := range b.cluster.Nodes() {
			n.Delay(slow)
		}
		var lock *redlock.Lock
		b.takes(2*slow, func() {
			var err error
			lock, err = b.rl.Mutex(key).TryAcquire(b.Context())
			require.NoError(b, err)
		})
		assert.Equal(b, valid-2*slow, lock.Validity())
		asked := time.Now()
		require.NoError(b, lock.Extend(b.Context(), 2*ttl))
		assert.Equal(b, 2*ttl-202*time.Millisecond, lock.Until().Sub(asked), "the same for extends")
	})
}

// Scenario 15: a lock that nobody came round to renew, or to declare lost, does not claim
// to be held.
func TestValidityNeedsNoGoroutine(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		rl, clock := b.withClock()
		lock, err := rl.Mutex(key, redlock.WithRenewal()).TryAcquire(b.Context())
		require.NoError(b, err)
		ctx := lock.Context()
		synctest.Wait()
		b.cluster.ResetCommands()
		clock.Stun(valid)
		assert.LessOrEqual(b, lock.Validity(), time.Duration(0))
		assert.NoError(b, ctx.Err(), "its timer had no processor yet")
		err = lock.Extend(b.Context(), ttl)
		require.ErrorIs(b, err, redlock.ErrLost)
		require.ErrorIs(b, err, redlock.ErrExpired)
		synctest.Wait()
		assert.Zero(b, b.cluster.Commands())
		clock.Advance(0)
		synctest.Wait()
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
	})
}

// Scenarios 7 and 48: a key that outlives its lease on one node holds nobody up, be it the
// node that keeps the line, and the first in that of a process that died.
func TestKeyThatStaysOnAnyNodeHoldsNobodyUp(t *testing.T) {
	for name, stay := range map[string]func(*redlocktest.Node){
		"clock set back":   func(n *redlocktest.Node) { n.ShiftClock(-time.Hour) },
		"another for ever": func(n *redlocktest.Node) { n.Set(key, "stuck", 0) },
	} {
		for odd := range 3 {
			t.Run(fmt.Sprint(name, odd), func(t *testing.T) {
				inBubble(t, 3, nil, func(b *bed) {
					b.lock()
					ends := time.Now().Add(ttl)
					stay(b.cluster.Node(odd))
					m := b.rl.Mutex(key)
					_, err := hall{b}.arbiter(m).Redis().ZAdd(queueKey(m.Key()), 1, "of-the-dead 800 "+strings.Repeat("0", 32)) // is first for ever
					require.NoError(b, err)
					var waiting []<-chan result
					ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
					defer cancel()
					for range 3 {
						waiting = append(waiting, later(func() (*redlock.Lock, error) { return m.Acquire(ctx) }))
					}
					for _, w := range waiting {
						r := <-w
						require.NoError(b, r.err)
						assert.Less(b, r.at.Sub(ends), 2*time.Second)
						ends = time.Now()
						require.NoError(b, r.lock.Release(b.Context()))
					}
				})
			})
		}
	}
}

// While too few nodes answer, an attempt of each of many who wait would tell nobody
// anything: one of them asks, and all go on when the nodes are back.
func TestOutageIsAskedAboutByOneAtATime(t *testing.T) {
	t.Parallel()
	const waiters = 200
	inHall(t, func(h hall) {
		h.cluster.Record(false)
		var attempts atomic.Int64
		rl := h.process(&redlock.Options{NoRestartGuard: true, Hooks: &redlock.Hooks{Acquired: func(_ context.Context, i redlock.AcquireInfo) {
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
		rl := h.process(&redlock.Options{NoRestartGuard: true, RetryMin: 5 * time.Minute, RetryMax: 5 * time.Minute})
		l := h.acquire(h.process(&redlock.Options{NoRestartGuard: true}).Mutex("k", redlock.WithTTL(time.Hour)))
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
