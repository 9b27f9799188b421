package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/redlock/bench/results"
)

// runFreeKeys is scenario 1.
func runFreeKeys(ctx context.Context, b *bench) error {
	l, err := b.open(ctx, addrsOf(b.servers),
		"redlock", "redlock-fenced", "redsync", "redsync-failfast", "rueidislock-1", "rueidislock-3", "bsm", bareName, bareRESPName)
	if err != nil {
		return err
	}
	defer l.close()
	for _, g := range b.goroutines {
		if err := b.compare(ctx, 1, goroutines(g), float64(g), l, b.servers, g, b.rounds); err != nil {
			return err
		}
	}
	return b.redisBenchmark(ctx)
}

func goroutines(n int) string {
	if n == 1 {
		return "1 goroutine"
	}
	return fmt.Sprintf("%d goroutines", n)
}

// redisBenchmark asks Redis' own tool, where it is installed, what one server can do
// with the commands of a cycle.
func (b *bench) redisBenchmark(ctx context.Context) error {
	bin, err := exec.LookPath("redis-benchmark")
	if err != nil {
		b.progress("  redis-benchmark is not installed")
		return nil
	}
	host, port, _ := strings.Cut(b.servers[0].Addr(), ":")
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, command := range [][]string{
		{"SET", "bench:__rand_int__", "token", "NX", "PX", "10"},
		{"EVAL", bareScript, "1", "bench:__rand_int__", "token"},
	} {
		for _, how := range []results.Benchmark{{Connections: 1, Pipeline: 1}, {Connections: 16, Pipeline: 1}, {Connections: 1, Pipeline: 64}} {
			count := 5_000 * how.Connections
			if how.Pipeline > 1 {
				count = 200_000
			}
			if b.quick {
				count /= 10
			}
			args := append([]string{
				"-h", host, "-p", port, "--csv", "-r", "1000000", "-n", strconv.Itoa(count),
				"-c", strconv.Itoa(how.Connections), "-P", strconv.Itoa(how.Pipeline),
			}, command...)
			out, err := exec.CommandContext(ctx, bin, args...).Output()
			if err != nil {
				return fmt.Errorf("redis-benchmark: %w", err)
			}
			how.Command = command[0]
			if how.PerSecond, err = benchmarkRate(string(out)); err != nil {
				return fmt.Errorf("redis-benchmark: %w:\n%s", err, out)
			}
			b.report.Benchmark = append(b.report.Benchmark, how)
		}
	}
	return nil
}

// benchmarkRate reads the requests per second: the second word of the last line.
func benchmarkRate(out string) (float64, error) {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	r := csv.NewReader(strings.NewReader(lines[len(lines)-1]))
	r.LazyQuotes = true
	words, err := r.Read()
	if err != nil || len(words) < 2 {
		return 0, errors.Join(errors.New("unknown output"), err)
	}
	// The first word is the command, whose quotes and commas are not escaped.
	for _, w := range words[1:] {
		if v, err := strconv.ParseFloat(strings.Trim(w, `" `), 64); err == nil {
			return v, nil
		}
	}
	return 0, errors.New("unknown output")
}
