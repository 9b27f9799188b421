package realtest_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/child"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/stretchr/testify/require"
)

// lineLoad is what one process of the measurement reports.
type lineLoad struct {
	Waits  []time.Duration // of each acquire
	Cycles []int           // of each goroutine
	Tries  int
}

// cycle acquires and releases one key from many goroutines until the time is over.
func cycle(tb testing.TB, rl *redlock.Redlock, key string, goroutines int, start, end time.Time) (l lineLoad) {
	m := rl.Mutex(key)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			var waits []time.Duration
			n := 0
			for {
				t0 := time.Now()
				if t0.After(end) {
					break
				}
				lock, err := m.Acquire(tb.Context())
				if err != nil {
					tb.Error(err)
					return
				}
				if t1 := time.Now(); t0.After(start) && t1.Before(end) {
					waits = append(waits, t1.Sub(t0))
					n++
				}
				if err := lock.Release(tb.Context()); err != nil {
					tb.Error(err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			l.Waits, l.Cycles = append(l.Waits, waits...), append(l.Cycles, n)
		})
	}
	wg.Wait()
	return l
}

// TestMeasuredProcess is no test of its own: it is one of the processes that TestLineMeasure
// measures.
func TestMeasuredProcess(t *testing.T) {
	var j job
	parent := child.Of(t, &j)
	tries := 0
	var mu sync.Mutex
	rl := j.open(t, &redlock.Options{Hooks: &redlock.Hooks{Acquired: func(_ context.Context, i redlock.AcquireInfo) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.After(j.Start) && now.Before(j.End) {
			tries += i.Attempts
		}
	}}})
	l := cycle(t, rl, "hot", j.Goroutines, j.Start, j.End)
	l.Tries = tries
	parent.Say(t, l)
}

// TestNextProcess is no test of its own: it says when it was served.
func TestNextProcess(t *testing.T) {
	var j job
	parent := child.Of(t, &j)
	m := j.open(t, nil).Mutex("hot")
	for parent.Hear() != "" {
		l, err := m.Acquire(t.Context())
		at := time.Now()
		require.NoError(t, err)
		require.NoError(t, l.Release(t.Context()))
		parent.Say(t, at)
	}
}

// latency measures how long it takes from calling Release here until Acquire returns in
// another process, and what a round trip takes.
func latency(t *testing.T, servers []*realredis.Server) {
	s := &site{servers: servers}
	k := child.Start(t, "TestNextProcess", job{Addrs: addrsOf(servers)})
	rl, err := openOn(t.Context(), addrsOf(servers), nil)
	require.NoError(t, err)
	defer rl.Close()
	s.m = rl.Mutex("hot")
	var took, trips []time.Duration
	ping := servers[0].Client(t)
	for range 300 {
		l := s.acquire(t)
		k.Tell(t, "wait")
		s.waiting(t, 1)
		t0 := time.Now()
		require.NoError(t, ping.Ping(t.Context()).Err())
		trips = append(trips, time.Since(t0))
		t0 = time.Now()
		require.NoError(t, l.Release(t.Context()))
		var at time.Time
		k.Hear(t, &at)
		took = append(took, at.Sub(t0))
	}
	k.Wait(t)
	slices.Sort(took)
	slices.Sort(trips)
	t.Logf("handover to another process p50 %v p90 %v; a round trip p50 %v p90 %v", took[150], took[270], trips[150], trips[270])
}

// TestLineMeasure prints how one hot key fares. It asserts nothing:
//
//	REDLOCK_MEASURE=4s go test -run LineMeasure -v ./internal/testing/realtest
func TestLineMeasure(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("REDLOCK_MEASURE"))
	if err != nil {
		t.Skip("set REDLOCK_MEASURE to a duration")
	}
	servers := realredis.StartN(t, 5)
	latency(t, servers)
	for _, c := range [][2]int{{1, 2}, {1, 128}, {4, 1}, {4, 8}, {8, 16}} {
		start := time.Now().Add(time.Second)
		end := start.Add(length)
		var all lineLoad
		var kids []*child.Process
		for range c[0] {
			kids = append(kids, child.Start(t, "TestMeasuredProcess", job{Addrs: addrsOf(servers), Goroutines: c[1], Start: start, End: end}))
		}
		time.Sleep(time.Until(start)) // real time: the children start together
		for _, s := range servers {
			require.NoError(t, s.Client(t).ConfigResetStat(t.Context()).Err())
		}
		for _, k := range kids {
			var l lineLoad
			k.Hear(t, &l)
			all.Waits, all.Cycles = append(all.Waits, l.Waits...), append(all.Cycles, l.Cycles...)
			all.Tries += l.Tries
		}
		for _, k := range kids {
			k.Wait(t)
		}
		commands := 0
		for _, s := range servers {
			info := s.Client(t).Info(t.Context(), "commandstats").Val()
			for l := range strings.Lines(info) {
				var calls int
				name, rest, _ := strings.Cut(strings.TrimSpace(l), ":")
				if _, err := fmt.Sscanf(rest, "calls=%d,", &calls); err == nil && (name == "cmdstat_evalsha" || name == "cmdstat_eval") {
					commands += calls
				}
				if name == "cmdstat_set" {
					commands += calls // those within scripts too
				}
			}
		}
		slices.Sort(all.Waits)
		n := len(all.Waits)
		if n == 0 {
			t.Log(c, "too short to measure")
			continue
		}
		q := func(f float64) time.Duration { return all.Waits[int(f*float64(n-1))].Round(10 * time.Microsecond) }
		least, most := slices.Min(all.Cycles), slices.Max(all.Cycles)
		t.Logf("%dx%-3d %6.0f/s  wait p50 %v p99 %v max %v  cycles %d/%d=%.2f  attempts/acquire %.3f  commands/acquire about %.1f",
			c[0], c[1], float64(n)/length.Seconds(), q(.5), q(.99), q(1), least, most, float64(least)/float64(most),
			float64(all.Tries)/float64(n), float64(commands)/float64(n))
	}
}
