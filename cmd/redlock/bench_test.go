//go:build unix

package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// benched reads what --json printed.
func benched(t *testing.T, out string) (r struct {
	Nodes       []string `json:"nodes"`
	Embedded    bool     `json:"embedded"`
	Interrupted bool     `json:"interrupted"`
	Keys        int      `json:"keys"`
	Cycles      int64    `json:"cycles"`
	PerSecond   float64  `json:"cycles_per_second"`
	Acquire     figs     `json:"acquire"`
	Release     figs     `json:"release"`
	Errors      []benchError
	LeftOn      []string `json:"keys_left_on"`
}) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(out), &r), "%s", out)
	return r
}

type figs struct {
	Count     int64
	P50       float64 `json:"p50_ms"`
	P90       float64 `json:"p90_ms"`
	P99       float64 `json:"p99_ms"`
	P999      float64 `json:"p999_ms"`
	Max       float64 `json:"max_ms"`
	Histogram []struct {
		Most  float64 `json:"most_ms"`
		Count int64
	}
}

func (f figs) plausible(t *testing.T) {
	t.Helper()
	assert.Positive(t, f.P50)
	assert.IsNonDecreasing(t, []float64{f.P50, f.P90, f.P99, f.P999, f.Max})
	var sum int64
	last := 0.0
	for _, b := range f.Histogram {
		sum += b.Count
		assert.Greater(t, b.Most, last)
		last = b.Most
	}
	assert.Equal(t, f.Count, sum)
	assert.GreaterOrEqual(t, last, f.Max*0.999) // three digits
}

// slow checks that the exit status tells of errors, and allows only those of a machine that
// is too busy to answer in time.
func slow(t *testing.T, errs []benchError, code int) {
	t.Helper()
	for _, e := range errs {
		assert.Contains(t, []string{"no quorum", "timeout", "expired"}, e.Kind, e.Example)
	}
	assert.Equal(t, len(errs) > 0, code == exitFailed, "%v, %d", errs, code)
}

func (s *site) empty(t *testing.T) {
	t.Helper()
	for _, x := range s.servers {
		keys, err := x.Client(t).Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		assert.Empty(t, withoutMark(keys))
	}
}

func TestBench(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	prefixed := func(prefix string) string {
		file := filepath.Join(t.TempDir(), "redlock.json")
		text, err := json.Marshal(config{Addrs: s.addrs, KeyPrefix: prefix})
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, text, 0o600))
		return file
	}
	addrs := "--addrs=" + strings.Join(s.addrs, ",")
	for _, c := range []struct {
		name string
		keys int
		args []string
	}{
		{"a lock each", 4, []string{addrs}},
		{"one hot lock", 1, []string{addrs, "--keys", "1"}},
		{"fenced", 4, []string{addrs, "--fencing"}},
		{"fenced and shared", 2, []string{addrs, "--fencing", "--keys", "2"}},
		{"behind a prefix", 1, []string{"--config", prefixed("app:"), "--fencing", "--keys", "1"}},
		{"behind a hash tag", 1, []string{"--config", prefixed("{app}:"), "--fencing", "--keys", "1"}},
		{"behind a brace", 1, []string{"--config", prefixed("a}b:"), "--fencing", "--keys", "1"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			args := append([]string{"bench", "--json", "--goroutines", "4", "--duration", "300ms"}, c.args...)
			r := run(t, t.Context(), args...)
			b := benched(t, r.out)
			slow(t, b.Errors, r.code)
			assert.NotContains(t, r.errOut, "cycles/s", "no bar where nobody looks")
			assert.Equal(t, c.keys, b.Keys)
			assert.False(t, b.Embedded || b.Interrupted)
			assert.Len(t, b.Nodes, 3)
			assert.Positive(t, b.Cycles)
			assert.Positive(t, b.PerSecond)
			assert.Empty(t, b.LeftOn)
			b.Acquire.plausible(t)
			b.Release.plausible(t)
			s.empty(t)
		})
	}
	t.Run("in text", func(t *testing.T) {
		r := run(t, t.Context(), "bench", addrs, "--goroutines", "2", "--duration", "200ms")
		for _, want := range []string{"3 of 3 nodes grant, 2 needed; 2 goroutines, a lock each, TTL 10s", "  errors    ", "p99.9", "ACQUIRE", "RELEASE", "#"} {
			assert.Contains(t, r.out, want)
		}
		assert.NotContains(t, r.out, "\x1b")
		for line := range strings.Lines(r.out) {
			assert.LessOrEqual(t, len(line), 90)
		}
	})
}

// Ctrl-C, or the end of its terminal, shows the figures so far, and leaves nothing behind.
func TestBenchIsInterrupted(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGHUP} {
		p := s.start(t, "bench", "--json", "--fencing", "--duration", "10m")
		// The trial may have had the first token that we see of a lock, a cycle the second; with
		// the third that cycle is over, and counted.
		server, counter, last, tokens := s.servers[0].Client(t), "", "", 0
		require.Eventually(t, func() bool {
			if counter == "" {
				keys, err := server.Keys(t.Context(), "*redlock-bench:*:fence").Result()
				if err != nil || len(keys) == 0 {
					return false
				}
				counter = keys[0]
			}
			if now, err := server.Get(t.Context(), counter).Result(); err == nil && now != last {
				last = now
				tokens++
			}
			return tokens == 3
		}, 20*time.Second, time.Millisecond)
		require.NoError(t, p.Process.Signal(sig))
		b := benched(t, p.line(t))
		slow(t, b.Errors, p.end(t))
		assert.True(t, b.Interrupted)
		assert.Positive(t, b.Cycles)
		s.empty(t)
	}
}

func TestBenchCountsErrorsByKind(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	b := &bench{benchFlags: benchFlags{duration: time.Hour, goroutines: 2}, rl: s.rl, names: []string{"a", "b"}, acquired: newLatencies(), released: newLatencies()}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan struct{})
	go func() { defer close(done); b.load(ctx, os.Stderr) }()
	require.Eventually(t, func() bool { return b.cycles.Load() > 10 }, 20*time.Second, time.Millisecond)
	// Somebody takes the locks away from under their holders.
	require.Eventually(t, func() bool {
		_, _ = s.nodes.ForceRelease(t.Context(), "a", admin.Anything())
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.errs) > 0
	}, 20*time.Second, time.Millisecond)
	cancel()
	<-done
	r := b.result(s.rl.Nodes())
	require.Len(t, r.Errors, 1)
	assert.Equal(t, "release", r.Errors[0].Op)
	assert.Equal(t, "not held", r.Errors[0].Kind)
	assert.Positive(t, r.Errors[0].Count)
	assert.Contains(t, r.text(new(strings.Builder)), "release: not held\n            for example: ")
}

func TestBenchWithoutNodes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		code int
		says string
		args []string
	}{
		{exitUsage, "or --demo for embedded nodes", []string{"--addrs="}},
		{exitUsage, "--goroutines is 0: must be from 1 to 4096", []string{"--demo", "--goroutines", "0"}},
		{exitUsage, "--keys is 17: must be from 0 to --goroutines, which is 16", []string{"--demo", "--keys", "17"}},
		{exitUsage, "--duration is 11m0s: must be from 100ms to 10m; --ttl is 1ms", []string{"--demo", "--duration", "11m", "--ttl", "1ms"}},
		{exitUsage, "--demo has nodes of its own", []string{"--demo", "--addrs", "a:1"}},
		{exitUsage, "unexpected argument", []string{"--demo", "k"}},
		{exitFailed, "no quorum", []string{"--addrs", "127.0.0.1:1"}},
	} {
		r := run(t, t.Context(), append([]string{"bench"}, c.args...)...)
		assert.Equal(t, c.code, r.code, "%v", c.args)
		assert.Contains(t, r.errOut, c.says)
		assert.Empty(t, r.out)
	}
	r := run(t, t.Context(), "bench", "--demo", "--duration", "200ms", "--goroutines", "2", "--json")
	b := benched(t, r.out)
	slow(t, b.Errors, r.code)
	assert.True(t, b.Embedded)
}

// Nodes that grant nothing are told of at once, not after the time is up.
func TestBenchIsRefused(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	s := realredis.Start(t, realredis.User("poor", "pw", "~redlock:memory", "~redlock:trial", "+@all"))
	r := run(t, t.Context(), "bench", "--duration", "10m", "--config", func() string {
		file := filepath.Join(t.TempDir(), "c.json")
		require.NoError(t, os.WriteFile(file, []byte(`{"addrs":["redis://poor:pw@`+s.Addr()+`"]}`), 0o600))
		return file
	}())
	assert.Equal(t, exitFailed, r.code)
	assert.Contains(t, r.errOut, "NOPERM")
	assert.Contains(t, r.errOut, "may be left on")
	assert.NotContains(t, r.errOut, "pw@")
}

func TestHistogramInSteps(t *testing.T) {
	l := newLatencies()
	for _, d := range []time.Duration{1500 * time.Nanosecond, 3 * time.Microsecond, 4 * time.Microsecond, 150 * time.Millisecond, time.Hour} {
		l.record(d)
	}
	f := l.figures()
	assert.EqualValues(t, 5, f.Count, "what is too long counts as the longest")
	assert.InEpsilon(t, float64(mostLatency), float64(f.Max), 0.001)
	var most []time.Duration
	var counts []int64
	for _, b := range f.Buckets {
		most, counts = append(most, time.Duration(b.Most)), append(counts, b.Count)
	}
	assert.Equal(t, []int64{1, 2, 1, 1}, counts)
	assert.Equal(t, []time.Duration{2 * time.Microsecond, 5 * time.Microsecond, 200 * time.Millisecond, 1000 * time.Second}, most)
	assert.InEpsilon(t, float64(mostLatency), float64(f.P999), 0.001)
}
