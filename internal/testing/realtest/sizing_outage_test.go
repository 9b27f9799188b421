//go:build unix

package realtest_test

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"
)

// sizingLines counts the lines of a log.
type sizingLines struct {
	mu sync.Mutex
	n  int
}

func (l *sizingLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.n += bytes.Count(b, []byte("\n"))
	return len(b), nil
}

func (l *sizingLines) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.n
}

// TestSizingOfOutages measures what a client costs its own machine while one node is down,
// and while all are and ten thousand wait, and what it writes into its logs. It asserts
// nothing, and runs only when it is asked for, as TestSizing.
func TestSizingOfOutages(t *testing.T) {
	if os.Getenv(sizingEnv) == "" {
		t.Skipf("%s=1 runs it", sizingEnv)
	}
	const period = time.Minute
	f := convStart(t, 5)
	var lines sizingLines
	theirs := new(convLog)
	redis.SetLogger(theirs)
	defer logging.Disable()
	log := slog.New(slog.NewTextHandler(&lines, nil))
	rl := f.direct().open(t, redlock.Options{NoRestartGuard: true, Hooks: redlock.LogHooks(log)})
	convWarm(t, f, rl)
	measure := func(what string, do func()) {
		begin, before, logged := time.Now(), sizingCPU(t), lines.count()
		do()
		took := time.Since(begin).Seconds()
		theirs.mu.Lock()
		n := len(theirs.lines)
		theirs.mu.Unlock()
		t.Logf("%-40s %4.0f s: CPU %5.2f %% of a core, %d lines of LogHooks, %d lines of go-redis since the start",
			what, took, 100*(sizingCPU(t)-before).Seconds()/took, lines.count()-logged, n)
	}
	cycles := func(d time.Duration) func() {
		return func() {
			sizingEach([]*redlock.Redlock{rl}, int(d/(10*time.Millisecond)), 10*time.Millisecond, func(i int, rl *redlock.Redlock) {
				if lock, err := rl.Mutex(convKey).TryAcquire(context.Background()); err == nil {
					_ = lock.Release(context.Background())
				}
			})
		}
	}
	measure("100 locks/s, all nodes up", cycles(period/4))
	f.servers[4].Kill()
	measure("100 locks/s, one node of five down", cycles(period))

	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, s := range f.servers[:4] {
		s.Kill()
	}
	m := rl.Mutex(convKey)
	measure("10,000 begin to wait, all nodes down", func() {
		for range 10_000 {
			all.Go(func() { _, _ = m.Acquire(ctx) })
		}
		convPause(5 * time.Second)
	})
	measure("10,000 wait, all nodes down", func() { convPause(period) })
	cancel()
	all.Wait()
}

// sizingCPU is what this process has used.
func sizingCPU(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
