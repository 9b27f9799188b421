package realtest_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/longtest"
)

// Very many goroutines of one process wait: on one key, on as many keys, or for a key that is free. What the
// process holds is renewed meanwhile, the nodes have a window of the waiters only, and one that waits
// outside of it costs its goroutine and little more.

// crowdSizes is how many wait for one key, for as many keys, how many locks are renewed beside them, and their lease.
func crowdSizes() (one, keys, renewed int, lease time.Duration) {
	if longtest.On() {
		return 50_000, 20_000, 1000, 10 * time.Second
	}
	return 5_000, 1_000, 100, 3 * time.Second
}

// crowdRenewed are locks that are renewed; lost counts those that are not any more.
func crowdRenewed(t *testing.T, rl *redlock.Redlock, n int) (lost *atomic.Int64) {
	t.Helper()
	lost = new(atomic.Int64)
	for i := range n {
		lock, err := rl.Mutex(fmt.Sprint("renewed-", i), redlock.WithRenewal()).Acquire(t.Context())
		require.NoError(t, err)
		context.AfterFunc(lock.Context(), func() { lost.Add(1) })
	}
	return lost
}

// crowdHeld has another hold keys on all servers.
func crowdHeld(t *testing.T, f *convFleet, keys ...string) {
	t.Helper()
	for _, c := range f.admins {
		_, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
			for _, k := range keys {
				p.Set(t.Context(), k, "another", time.Hour)
			}
			return nil
		})
		require.NoError(t, err)
	}
}

func crowdMemory() (mb float64) {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapInuse+m.StackInuse) / (1 << 20)
}

func TestCrowdThatWaitsCostsNoRenewedLock(t *testing.T) {
	one, keys, renewed, lease := crowdSizes()
	f := convStart(t, 5)
	rl := f.direct().open(t, redlock.Options{NoRestartGuard: true, TTL: lease})
	convWarm(t, f, rl)
	lost := crowdRenewed(t, rl, renewed)
	held := []string{"crowd"}
	for i := range keys {
		held = append(held, fmt.Sprint("crowd-", i))
	}
	crowdHeld(t, f, held...)
	before := crowdMemory()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	var had atomic.Int64
	wait := func(key string) {
		all.Go(func() {
			if _, err := rl.Mutex(key).Acquire(ctx); err == nil {
				had.Add(1)
			}
		})
	}
	for range one {
		wait("crowd")
	}
	pass(time.Second)
	memory := crowdMemory() - before
	for _, key := range held[1:] {
		wait(key)
	}
	pass(2 * lease)
	inQueues := int64(0)
	for _, c := range f.admins {
		n, err := c.ZCount(t.Context(), "{crowd}:line", "0", "+inf").Result()
		require.NoError(t, err)
		inQueues += n
	}
	t.Logf("%d wait for one key: %.1f MB, %d entries on the nodes; %d for as many keys; %d renewed locks, of which %d are lost",
		one, memory, inQueues, keys, renewed, lost.Load())
	cancel()
	all.Wait()
	assert.LessOrEqual(t, inQueues, int64(64))
	assert.Less(t, memory/float64(one)*1024, 10.0, "KB for one that waits, most of it for its goroutine")
	assert.Zero(t, had.Load(), "locks that another holds")
	assert.Zero(t, lost.Load(), "renewed locks lost")
}

// All have their turn when the key is free, also where the node of the queue forgets it meanwhile.
func TestCrowdOnAFreeKeyHasItsTurns(t *testing.T) {
	n := 1000
	if longtest.On() {
		n = 5000
	}
	f := convStart(t, 5)
	rl := f.direct().open(t, redlock.Options{NoRestartGuard: true, TTL: 2 * time.Second})
	other := f.direct().open(t, redlock.Options{NoRestartGuard: true, TTL: 2 * time.Second})
	convWarm(t, f, rl)
	lost := crowdRenewed(t, rl, 50)
	var all, others sync.WaitGroup
	var turns, othersTurns, holders atomic.Int64
	turn := func(m *redlock.Mutex, turns *atomic.Int64) {
		lock, err := m.Acquire(t.Context())
		if !assert.NoError(t, err) {
			return
		}
		assert.EqualValues(t, 1, holders.Add(1), "holders at a time")
		holders.Add(-1)
		turns.Add(1)
		_ = lock.Release(context.Background())
	}
	start := time.Now()
	for range n {
		all.Go(func() { turn(rl.Mutex("crowd"), &turns) })
	}
	ctx, cancel := context.WithCancel(t.Context())
	for range 16 {
		others.Go(func() {
			for ctx.Err() == nil {
				turn(other.Mutex("crowd"), &othersTurns)
			}
		})
	}
	eventually(t, func() bool { return turns.Load() > int64(n/3) }, "a third has its turn")
	for _, c := range f.admins { // wherever the queue is
		require.NoError(t, c.Del(t.Context(), "{crowd}:line").Err())
	}
	all.Wait()
	t.Logf("%d turns in %v, and %d of 16 in another process; %d renewed locks are lost", n, time.Since(start).Round(time.Millisecond), othersTurns.Load(), lost.Load())
	cancel()
	others.Wait()
	assert.Positive(t, othersTurns.Load())
	assert.Zero(t, lost.Load(), "renewed locks lost")
}

// A key for each that asks, all at once: each is granted, all are held at the same time, and nothing is left.
// One processor has to do, too, where as many clients as a fleet may have share the keys.
func TestVeryManyKeysAtOnce(t *testing.T) {
	for _, c := range []struct{ keys, clients, processors int }{{20_000, 1, runtime.GOMAXPROCS(0)}, {2_000, 200, 1}} {
		t.Run(fmt.Sprintf("%d by %d", c.keys, c.clients), func(t *testing.T) {
			f := convStart(t, 3)
			way, o := f.direct(), redlock.Options{TTL: 5 * time.Minute, NodeTimeout: time.Minute, NoRestartGuard: true}
			for i := range way.addrs {
				way.addrs[i] = "redis://" + way.addrs[i] + "?dial_timeout=1m"
			}
			var rls []*redlock.Redlock
			for range c.clients {
				rls = append(rls, way.open(t, o))
			}
			convWarm(t, f, rls[0])
			before := runtime.NumGoroutine()
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(c.processors))
			locks, start := make([]*redlock.Lock, c.keys), time.Now()
			each := func(do func(i int) error) {
				var all sync.WaitGroup
				var failed atomic.Int64
				for i := range locks {
					all.Go(func() {
						if err := do(i); err != nil && failed.Add(1) == 1 {
							t.Error(err)
						}
					})
				}
				all.Wait()
				require.Zero(t, failed.Load(), "calls failed")
			}
			each(func(i int) (err error) {
				locks[i], err = rls[i%c.clients].Mutex(fmt.Sprint("key-", i)).Acquire(t.Context())
				return err
			})
			granted := time.Since(start)
			for i, lock := range locks {
				require.Positive(t, lock.Validity(), "lock %d", i)
			}
			each(func(i int) error { return locks[i].Release(t.Context()) })
			t.Logf("%d keys by %d clients and %d processors: granted in %v, released in %v",
				c.keys, c.clients, c.processors, granted.Round(time.Millisecond), (time.Since(start) - granted).Round(time.Millisecond))
			for _, a := range f.admins {
				eventually(t, func() bool { return len(leftKeys(a)) == 0 }, "keys are left")
			}
			eventually(t, func() bool { return runtime.NumGoroutine() <= before+10 }, "goroutines are left")
		})
	}
}
