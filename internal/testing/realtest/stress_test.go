package realtest_test

import (
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/longtest"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// stressEnv names the environment variable that says for how long the stress test
// runs, such as 10m; 10s if it is not set.
const stressEnv = "REDLOCK_STRESS_DURATION"

// A thousand goroutines of four clients count under one lock while two of five servers
// at a time are killed, paused and restarted with their keys.
func TestStressNoUpdateIsLostAndNothingIsLeft(t *testing.T) {
	realredis.Need(t)
	duration := 3 * time.Second
	if longtest.On() {
		duration = 10 * time.Second
	}
	if s := os.Getenv(stressEnv); s != "" {
		var err error
		duration, err = time.ParseDuration(s)
		require.NoError(t, err, stressEnv)
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d, %v", seed, duration)

	const workers, clients = 1000, 4
	f := startFleet(t, 5, realredis.AOF("no")) // or a kill could bring back waiters that have left
	connections := f.connections(t)
	goroutines := runtime.NumGoroutine()

	var (
		counter, inside  atomic.Int64 // the counter is read and written, never added to
		increments, lost atomic.Int64
		done             sync.WaitGroup
		rls              [clients]*redlock.Redlock
	)
	o := redlock.Options{TTL: 2 * time.Second, NodeTimeout: 250 * time.Millisecond, RetryMin: 100 * time.Millisecond, RetryMax: 4 * time.Second}
	for i := range rls {
		if i%2 == 0 {
			rls[i] = f.direct(t, o)
		} else {
			rls[i] = openAt(t, addrsOf(f.servers), o)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	increment := func(held *redlock.Lock) {
		if !assert.EqualValues(t, 1, inside.Add(1), "holders at a time") {
			cancel()
		}
		v := counter.Load()
		runtime.Gosched()
		if held.Validity() > 0 {
			counter.Store(v + 1)
			increments.Add(1)
		} else {
			lost.Add(1)
		}
		inside.Add(-1)
	}
	for w := range workers {
		m := rls[w%clients].Mutex(resource)
		done.Go(func() {
			for ctx.Err() == nil {
				if w%3 == 0 {
					_ = m.Do(ctx, func(_ context.Context, lock *redlock.Lock) error { increment(lock); return nil })
				} else if lock, err := m.Acquire(ctx); err == nil {
					increment(lock)
					_ = lock.Release(ctx)
				}
			}
		})
	}
	f.torment(ctx, t, rand.New(rand.NewPCG(seed, 0)))
	done.Wait()

	t.Logf("%d increments, %d holders were too late", increments.Load(), lost.Load())
	assert.Equal(t, increments.Load(), counter.Load(), "updates were lost")
	assert.Positive(t, increments.Load(), "it did not run")

	if !assert.Eventually(t, func() bool { return f.keys() == 0 }, 20*time.Second, 5*time.Millisecond, "keys are left") {
		for _, c := range f.admins {
			t.Log(leftKeys(c))
		}
	}
	for _, rl := range rls {
		require.NoError(t, rl.Close())
	}
	eventually(t, func() bool { return slices.Equal(f.connections(t), connections) }, "connections are left")
	eventually(t, func() bool { return runtime.NumGoroutine() <= goroutines+2 }, "goroutines are left")
}

// torment makes trouble on at most two of five servers at a time until the context ends,
// and leaves them all well.
func (f *fleet) torment(ctx context.Context, t *testing.T, random *rand.Rand) {
	for ctx.Err() == nil {
		var begun []func()
		for _, i := range random.Perm(len(f.servers))[:1+random.IntN(2)] {
			s := f.servers[i]
			if random.IntN(2) == 0 {
				s.Kill()
				begun = append(begun, func() { require.NoError(t, s.Restart()) })
			} else {
				require.NoError(t, s.Pause())
				begun = append(begun, func() { require.NoError(t, s.Resume()) })
			}
		}
		rest(ctx, time.Duration(random.IntN(400))*time.Millisecond)
		for _, end := range begun {
			end()
		}
		rest(ctx, time.Duration(random.IntN(200))*time.Millisecond)
	}
}

func rest(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// connections is how many each server has, by its own list.
func (f *fleet) connections(t *testing.T) []int {
	t.Helper()
	var counts []int
	for _, c := range f.admins {
		counts = append(counts, strings.Count(c.ClientList(context.Background()).Val(), "\n"))
	}
	return counts
}

// keys is how many keys all servers have together, but for the memory marks.
func (f *fleet) keys() (n int) {
	for _, c := range f.admins {
		n += len(leftKeys(c))
	}
	return n
}
