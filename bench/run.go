package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/bench/results"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// scenario is one question that the bench answers.
type scenario struct {
	title string
	run   func(context.Context, *bench) error
}

var scenarios = []scenario{
	{"free keys: every goroutine locks and releases a key of its own", runFreeKeys},
	{"number of nodes", runNodes},
	{"nodes that are hung, refuse or are slow", runFaults},
	{"round trip time", runRoundTrips},
	{"many held locks that are renewed", runRenewal},
	{"one hot key", runHotKey},
	{"soak: memory over many cycles", runSoak},
	{"other places for locks: PostgreSQL, etcd, ZooKeeper, SQLite", runOthers},
}

func scenarioList() string {
	var b strings.Builder
	b.WriteString("Scenarios:\n")
	for i, s := range scenarios {
		fmt.Fprintf(&b, "  %d  %s\n", i+1, s.title)
	}
	return b.String()
}

// bench is one run.
type bench struct {
	*config
	servers []*realredis.Server
	others  target // where scenario 8 has its locks
	report  report
	err     io.Writer // progress
}

const nodeCount = 5

func runAll(ctx context.Context, c *config, stdout, stderr io.Writer) error {
	b := &bench{config: c, err: stderr}
	began := time.Now()
	b.progress("starting %d redis-servers", nodeCount)
	var err error
	if b.servers, err = b.launch(ctx, nodeCount); err != nil {
		return err
	}
	defer closeServers(b.servers)
	version, err := serverVersion(ctx, b.servers[0].Addr())
	if err != nil {
		return err
	}
	valkey, err := valkeyVersion(ctx, b.servers[0].Addr())
	if err != nil {
		return err
	}
	b.report.Meta = results.Meta{
		Valkey: valkey,
		Date:   began.Format(time.DateOnly), Quick: c.quick,
		Go: runtime.Version(), OS: runtime.GOOS + "/" + runtime.GOARCH, CPUs: runtime.NumCPU(), Redis: version,
		Rounds: c.rounds, Window: c.window, Modules: moduleVersions(),
	}

	for _, n := range inOrder(c.scenarios) {
		s := scenarios[n-1]
		b.progress("scenario %d: %s", n, s.title)
		if err := s.run(ctx, b); err != nil {
			return fmt.Errorf("scenario %d (%s): %w", n, s.title, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	b.report.Meta.Took = time.Since(began)
	b.report.print(stdout)
	if c.json != "" {
		if err := b.report.Write(c.json); err != nil {
			return err
		}
	}
	if len(b.report.Problems) > 0 {
		return errors.New("there were problems:\n  " + strings.Join(b.report.Problems, "\n  "))
	}
	return nil
}

// launch starts servers and waits until they have remembered for as long as a lease: grants of
// nodes that are younger are judged, which costs, and is over after a while in any program.
func (b *bench) launch(ctx context.Context, n int) ([]*realredis.Server, error) {
	servers, err := realredis.LaunchN(ctx, n)
	if err != nil || b.quick {
		return servers, err
	}
	// Their memory begins with the mark that the first client leaves.
	c, err := openByName(ctx, "redlock", b.target(addrsOf(servers)))
	if err == nil {
		w := c.worker("bench:first")
		if err = w.acquire(ctx); err == nil {
			err = w.release(ctx)
		}
		c.close()
	}
	if err != nil {
		closeServers(servers)
		return nil, err
	}
	b.progress("  waiting until they are as old as a lease")
	sleep(ctx, lease)
	return servers, nil
}

// inOrder puts the soak first: it looks at the heap of this process, in which clients
// of the other scenarios would leave things.
func inOrder(numbers []int) []int {
	const soak = 7
	order := slices.DeleteFunc(slices.Sorted(slices.Values(numbers)), func(n int) bool { return n == soak })
	order = slices.Compact(order)
	if slices.Contains(numbers, soak) {
		order = slices.Insert(order, 0, soak)
	}
	return order
}

func (b *bench) progress(format string, args ...any) {
	fmt.Fprintf(b.err, format+"\n", args...)
}

// problem notes what makes the run fail in the end.
func (b *bench) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	b.progress("PROBLEM: %s", text)
	b.report.Problems = append(b.report.Problems, text)
}

// mustWork notes what makes the run fail whichever candidate it is about, since its figures would be
// worth nothing, except in a smoke run: there an etcd that is given a moment on a busy machine may
// say that a request timed out.
func (b *bench) mustWork(candidate, format string, args ...any) {
	if b.quick {
		b.shortcoming(candidate, format, args...)
		return
	}
	b.problem(format, args...)
}

// shortcoming notes what makes the run fail if it is this library's. A peer's is a result.
func (b *bench) shortcoming(candidate, format string, args ...any) {
	if candidate == "redlock" {
		b.problem(format, args...)
		return
	}
	b.progress("  NOTE: "+format, args...)
}
