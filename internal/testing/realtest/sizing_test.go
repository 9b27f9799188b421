package realtest_test

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/stretchr/testify/require"
)

// sizingEnv names the environment variable that, set to a number of client processes, runs
// the measurement of what each of them costs one node.
const sizingEnv = "REDLOCK_SIZING"

// sizing is what a server says of its work and its memory.
type sizing struct {
	cpu      time.Duration
	commands int
	memory   int
	at       time.Time
}

func (f *convFleet) sizing(t *testing.T) (s sizing) {
	t.Helper()
	all, err := f.admins[0].Info(context.Background(), "everything").Result()
	require.NoError(t, err)
	field := func(name string) float64 {
		_, rest, _ := strings.Cut(all, "\n"+name+":")
		v, _, _ := strings.Cut(rest, "\r")
		n, err := strconv.ParseFloat(v, 64)
		require.NoError(t, err, name)
		return n
	}
	cpu := field("used_cpu_user") + field("used_cpu_sys")
	return sizing{time.Duration(cpu * float64(time.Second)), int(field("total_commands_processed")), int(field("used_memory")), time.Now()}
}

// measure prints what f costs the server, for each of n things that f does.
func (f *convFleet) measure(t *testing.T, what, each string, n int, do func()) {
	t.Helper()
	before := f.sizing(t)
	do()
	after := f.sizing(t)
	per := func(v float64) float64 { return v / float64(n) }
	t.Logf("%-48s %6d %-8s in %5.1f s: CPU %7.2f us, %6.2f commands, %6.0f bytes for each", what, n, each, after.at.Sub(before.at).Seconds(),
		per(float64((after.cpu-before.cpu).Nanoseconds())/1e3), per(float64(after.commands-before.commands)), per(float64(after.memory-before.memory)))
}

// TestSizing measures what client processes cost one node, for "Sizing" in
// docs/sizing.md. Each Redlock has connections of its own, as a process has. It asserts
// nothing, and runs only when it is asked for:
//
//	REDLOCK_SIZING=500 go test -run TestSizing -v ./internal/testing/realtest
func TestSizing(t *testing.T) {
	n, _ := strconv.Atoi(os.Getenv(sizingEnv))
	if n == 0 {
		t.Skipf("%s=500 runs it, with 500 processes", sizingEnv)
	}
	const seconds = 10
	for _, guard := range []bool{true, false} {
		f := convStart(t, 1)
		o := redlock.Options{TTL: 10 * time.Second, NodeTimeout: 2 * time.Second, NoRestartGuard: !guard}
		name := map[bool]string{true: ", guard on", false: ", guard off"}[guard]
		rls := make([]*redlock.Redlock, n)
		f.measure(t, "open"+name, "process", n, func() {
			for i := range rls {
				rls[i] = f.direct().open(t, o)
			}
		})
		f.measure(t, "idle"+name, "seconds", n*seconds, func() { convPause(seconds * time.Second) })
		// The first lock of each loads nothing and asks nothing any more that is asked once.
		sizingEach(rls, 1, 0, func(i int, rl *redlock.Redlock) { sizingCycle(t, rl, i) })
		for _, rate := range []int{1, 10} {
			f.measure(t, fmt.Sprintf("acquire and release, %d/s for each process%s", rate, name), "cycles", n*rate*seconds, func() {
				sizingEach(rls, rate*seconds, time.Second/time.Duration(rate), func(i int, rl *redlock.Redlock) { sizingCycle(t, rl, i) })
			})
		}
		if !guard {
			return
		}
		f.measureWaiting(t, rls, seconds)
		f.measureHolding(t, rls, seconds)
		f.measureKeys(t)
	}
}

// sizingEach has all Redlocks do something again and again, one after the other within the
// interval.
func sizingEach(rls []*redlock.Redlock, times int, every time.Duration, do func(i int, rl *redlock.Redlock)) {
	var all sync.WaitGroup
	begin := time.Now()
	for i, rl := range rls {
		all.Go(func() {
			for k := range times {
				at := begin.Add(time.Duration(k)*every + every*time.Duration(i)/time.Duration(len(rls)))
				convPause(time.Until(at))
				do(i, rl)
			}
		})
	}
	all.Wait()
}

func sizingCycle(t *testing.T, rl *redlock.Redlock, i int) {
	lock, err := rl.Mutex(fmt.Sprint("own:", i)).TryAcquire(context.Background())
	if err != nil {
		t.Errorf("TryAcquire: %v", err)
		return
	}
	_ = lock.Release(context.Background())
}

// measureWaiting has each process wait for a key of its own, and then all for one.
func (f *convFleet) measureWaiting(t *testing.T, rls []*redlock.Redlock, seconds int) {
	holder := f.direct().open(t, redlock.Options{TTL: 10 * time.Minute, NoRestartGuard: true})
	for _, one := range []bool{false, true} {
		key := func(i int) string {
			if one {
				return "one"
			}
			return fmt.Sprint("waited:", i)
		}
		var held []*redlock.Lock
		for i := range rls {
			if one && i > 0 {
				break
			}
			lock, err := holder.Mutex(key(i)).TryAcquire(t.Context())
			require.NoError(t, err)
			held = append(held, lock)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		what := map[bool]string{false: "keys of their own", true: "one key"}[one]
		f.measure(t, "begin to wait, "+what, "process", len(rls), func() {
			for i, rl := range rls {
				all.Go(func() { _, _ = rl.Mutex(key(i)).Acquire(ctx) })
			}
			convPause(3 * time.Second)
		})
		f.measure(t, "wait, "+what, "seconds", len(rls)*seconds, func() { convPause(time.Duration(seconds) * time.Second) })
		cancel()
		all.Wait()
		for _, lock := range held {
			_ = lock.Release(t.Context())
		}
	}
	f.measureHandover(t, rls)
}

// measureHandover passes one key from process to process.
func (f *convFleet) measureHandover(t *testing.T, rls []*redlock.Redlock) {
	turns := 10 * len(rls)
	f.measure(t, "handover, one key", "turns", turns, func() {
		sizingEach(rls, 10, 0, func(_ int, rl *redlock.Redlock) {
			if lock, err := rl.Mutex("passed").Acquire(t.Context()); err == nil {
				_ = lock.Release(t.Context())
			}
		})
	})
}

// measureHolding has each process hold a lock that it renews.
func (f *convFleet) measureHolding(t *testing.T, rls []*redlock.Redlock, seconds int) {
	held := make([]*redlock.Lock, len(rls))
	for i, rl := range rls {
		var err error
		held[i], err = rl.Mutex(fmt.Sprint("held:", i), redlock.WithRenewal()).TryAcquire(t.Context())
		require.NoError(t, err)
	}
	f.measure(t, "hold a lock and renew it, TTL 10 s", "seconds", len(rls)*seconds, func() { convPause(time.Duration(seconds) * time.Second) })
	for _, lock := range held {
		_ = lock.Release(t.Context())
	}
}

// measureKeys holds many locks.
func (f *convFleet) measureKeys(t *testing.T) {
	const locks = 20_000
	rl := f.direct().open(t, redlock.Options{TTL: 10 * time.Minute, NodeTimeout: 10 * time.Second})
	acquire := func(key string, opts ...redlock.LockOption) {
		var all sync.WaitGroup
		for part := range 100 {
			all.Go(func() {
				for i := range locks / 100 {
					if _, err := rl.Mutex(fmt.Sprint(key, part, ":", i), opts...).TryAcquire(t.Context()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		all.Wait()
	}
	f.measure(t, "locks from one process, 100 goroutines", "locks", locks, func() { acquire("many:") })
	f.measure(t, "the same with fencing", "locks", locks, func() { acquire("fenced:", redlock.WithFencing()) })
}
