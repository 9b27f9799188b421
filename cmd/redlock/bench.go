package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/conn"
)

const (
	benchPatience = 5 * time.Second       // for one acquire
	benchPause    = 10 * time.Millisecond // after an error, so that a refusal is not asked for at full speed
	benchTidyMost = 3 * time.Second

	mostGoroutines = 4096
)

type benchFlags struct {
	duration   time.Duration
	goroutines int
	keys       int
	ttl        time.Duration
	fencing    bool
	demo       bool
	json       bool
}

func benchCommand() *cobra.Command {
	var f benchFlags
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "How fast your nodes grant and release locks: a quick load test",
		Long: `How fast your nodes grant and release locks: a quick load test.

Goroutines acquire and release as fast as they can, each a lock of its own unless
--keys is smaller. With --keys 1 all of them wait in one queue, and the time of an acquire is
mostly that wait. What is measured is this machine, the network and the nodes together.

It is a load on the nodes while it lasts. The keys begin with "redlock-bench:" and a
random name, behind the key_prefix of --config, and are removed at the end, on Ctrl-C, too.

Exit status: 0 if all went well or it was interrupted, 1 if there were errors, 2 for a
fault in the command line.`,
		Example: `  redlock bench --addrs 10.0.0.1:6379,10.0.0.2:6379,10.0.0.3:6379
  redlock bench --goroutines 128 --keys 1 --duration 30s
  redlock bench --demo
  redlock bench --json | jq .acquire.p99_ms`,
		Args: noArgs, ValidArgsFunction: cobra.NoFileCompletions,
	}
	s := connectFlags(cmd)
	fl := cmd.Flags()
	fl.DurationVar(&f.duration, "duration", 10*time.Second, "how long, from 100ms to 10m")
	fl.IntVar(&f.goroutines, "goroutines", 16, fmt.Sprintf("how many acquire and release at a time, from 1 to %d", mostGoroutines))
	fl.IntVar(&f.keys, "keys", 0, "how many locks they share, 1 for one hot lock; 0 for one each")
	fl.DurationVar(&f.ttl, "ttl", 10*time.Second, "the lease, from 100ms to 1h")
	fl.BoolVar(&f.fencing, "fencing", false, "with fencing tokens")
	fl.BoolVar(&f.demo, "demo", false, fmt.Sprintf("against %d embedded nodes, to see what it shows; the figures are not those of Redis", demoNodes))
	fl.BoolVar(&f.json, "json", false, "one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.check(cmd); err != nil {
			return &usageError{err}
		}
		return runBench(cmd, s, f)
	}
	return cmd
}

// check reports every broken rule, with the value that breaks it.
func (f *benchFlags) check(cmd *cobra.Command) error {
	var broken []string
	bad := func(format string, args ...any) { broken = append(broken, fmt.Sprintf(format, args...)) }
	if f.duration < 100*time.Millisecond || f.duration > 10*time.Minute {
		bad("--duration is %v: must be from 100ms to 10m", f.duration)
	}
	if f.goroutines < 1 || f.goroutines > mostGoroutines {
		bad("--goroutines is %d: must be from 1 to %d", f.goroutines, mostGoroutines)
	} else if f.keys < 0 || f.keys > f.goroutines {
		bad("--keys is %d: must be from 0 to --goroutines, which is %d", f.keys, f.goroutines)
	}
	if f.ttl < 100*time.Millisecond || f.ttl > time.Hour {
		bad("--ttl is %v: must be from 100ms to 1h", f.ttl)
	}
	if f.demo && (cmd.Flags().Changed("addrs") || cmd.Flags().Changed("config")) {
		bad("--demo has nodes of its own: it excludes --addrs and --config")
	}
	if broken == nil {
		return nil
	}
	return errors.New(strings.Join(broken, "; "))
}

func runBench(cmd *cobra.Command, s settings, f benchFlags) error {
	var (
		addrs []string
		c     config
		err   error
	)
	if f.demo {
		cluster, own, err := startCluster(demoNodes)
		if err != nil {
			return err
		}
		defer cluster.Close()
		addrs = own
	} else if addrs, c, err = s.nodes(); err != nil {
		if errors.Is(err, errNoNodes) {
			err = fmt.Errorf("%w; or --demo for embedded nodes", err)
		}
		return &usageError{err}
	}
	rl, err := redlock.Open(cmd.Context(), addrs, &redlock.Options{TTL: f.ttl, KeyPrefix: c.KeyPrefix, Owner: "redlock bench", TLS: c.tls})
	if err != nil {
		return failure(cmd, f.json, "", err)
	}
	b := &bench{benchFlags: f, rl: rl, acquired: newLatencies(), released: newLatencies()}
	name := "redlock-bench:" + randomHex() + ":"
	for i := range max(f.keys, 1) {
		b.names = append(b.names, name+strconv.Itoa(i))
	}
	for i := len(b.names); f.keys == 0 && i < f.goroutines; i++ {
		b.names = append(b.names, name+strconv.Itoa(i))
	}
	nodes := rl.Nodes()
	// The answers that come after a lock was granted count, too.
	votes := 0
	if looked, err := admin.Open(addrs, &admin.Options{TTL: f.ttl, KeyPrefix: c.KeyPrefix, TLS: c.tls}); err == nil {
		votes = askHealth(cmd.Context(), looked).votes
		_ = looked.Close()
	}
	err = b.tryOnce(cmd.Context())
	if err == nil {
		b.load(cmd.Context(), cmd.ErrOrStderr())
	}
	_ = rl.Close() // what it says of releases shows in what tidy finds
	leftOn := tidyBench(cmd.Context(), addrs, nodes, c, b.names)
	if err != nil {
		if len(leftOn) > 0 {
			err = fmt.Errorf("%w; keys named %s... may be left on %s", err, c.KeyPrefix+name, strings.Join(leftOn, ", "))
		}
		return failure(cmd, f.json, "", err)
	}
	r := b.result(nodes)
	r.Votes = votes
	r.LeftOn, r.Interrupted = leftOn, cmd.Context().Err() != nil
	if f.json {
		err = json.NewEncoder(cmd.OutOrStdout()).Encode(r)
	} else {
		_, err = io.WriteString(cmd.OutOrStdout(), r.text(cmd.OutOrStdout()))
	}
	if err == nil && len(r.Errors) > 0 {
		err = errors.New("there were errors")
	}
	return err
}

// bench is one load test.
type bench struct {
	benchFlags
	rl                 *redlock.Redlock
	names              []string
	acquired, released *latencies
	cycles             atomic.Int64
	took               time.Duration

	mu         sync.Mutex
	errs       []*benchError
	unfinished unfinished
}

// unfinished are the acquires that the end cut short.
type unfinished struct {
	Count   int `json:"count"`
	Longest ms  `json:"longest_ms"`
}

// benchError is one kind of error.
type benchError struct {
	Op      string `json:"op"`
	Kind    string `json:"kind"`
	Count   int    `json:"count"`
	Example string `json:"example"`
}

// latencies is a histogram for many goroutines.
type latencies struct {
	mu sync.Mutex
	h  *hdrhistogram.Histogram
}

// The library bounds every operation well below what is the most here.
const mostLatency = 10 * time.Minute

func newLatencies() *latencies {
	return &latencies{h: hdrhistogram.New(int64(time.Microsecond), int64(mostLatency), 3)}
}

func (l *latencies) record(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_ = l.h.RecordValue(int64(min(d, mostLatency))) // fails above mostLatency
}

func (b *bench) mutex(i int) *redlock.Mutex {
	var opts []redlock.LockOption
	if b.fencing {
		opts = append(opts, redlock.WithFencing())
	}
	return b.rl.Mutex(b.names[i%len(b.names)], opts...)
}

// tryOnce finds out whether the nodes grant anything at all.
func (b *bench) tryOnce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, benchPatience)
	defer cancel()
	lock, err := b.mutex(0).Acquire(ctx)
	if err != nil {
		return err
	}
	_ = lock.Release(ctx) // if that goes wrong again it is counted
	return nil
}

// load keeps the goroutines going until the time is up or ctx ends.
func (b *bench) load(ctx context.Context, progress io.Writer) {
	start := time.Now()
	timed, cancel := context.WithTimeout(ctx, b.duration)
	defer cancel()
	var all sync.WaitGroup
	for i := range b.goroutines {
		m := b.mutex(i)
		all.Go(func() {
			for timed.Err() == nil {
				if !b.cycle(timed, m) {
					sleep(timed, benchPause)
				}
			}
		})
	}
	b.show(timed, start, progress)
	all.Wait()
	b.took = time.Since(start)
}

// cycle is one acquire and one release; it returns false after an error.
func (b *bench) cycle(ctx context.Context, m *redlock.Mutex) bool {
	patient, cancel := context.WithTimeout(ctx, benchPatience)
	defer cancel()
	start := time.Now()
	lock, err := m.Acquire(patient)
	got := time.Now()
	if err != nil {
		if ctx.Err() != nil {
			b.cutShort(got.Sub(start))
		} else {
			b.failed("acquire", err)
		}
		return false
	}
	b.acquired.record(got.Sub(start))
	err = lock.Release(ctx)
	b.released.record(time.Since(got))
	if err != nil {
		b.failed("release", err)
		return false
	}
	b.cycles.Add(1)
	return true
}

func (b *bench) cutShort(waited time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unfinished.Count++
	b.unfinished.Longest = max(b.unfinished.Longest, ms(waited))
}

func (b *bench) failed(op string, err error) {
	kind := "other"
	for _, k := range []struct {
		is   error
		name string
	}{
		{redlock.ErrNotHeld, "not held"}, {redlock.ErrExpired, "expired"}, {redlock.ErrHeld, "held by another"},
		{redlock.ErrNoQuorum, "no quorum"}, {context.DeadlineExceeded, "timeout"},
	} {
		if errors.Is(err, k.is) {
			kind = k.name
			break
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.errs {
		if e.Op == op && e.Kind == kind {
			e.Count++
			return
		}
	}
	b.errs = append(b.errs, &benchError{Op: op, Kind: kind, Count: 1, Example: oneLine(err)})
}

// show draws how far the test is until ctx ends, if somebody can see it.
func (b *bench) show(ctx context.Context, start time.Time, w io.Writer) {
	if !isTerminal(w) {
		<-ctx.Done()
		return
	}
	full, rest := "#", "."
	if showsUnicode() {
		full, rest = "█", "░"
	}
	for last := int64(0); sleep(ctx, 100*time.Millisecond); {
		n := b.cycles.Load()
		width, _ := sizeOf(w)
		length := min(max(width-20, 0), 30)
		done := min(int(time.Duration(length)*time.Since(start)/b.duration), length)
		line := fmt.Sprintf("%8d cycles/s  %s%s", (n-last)*10, strings.Repeat(full, done), strings.Repeat(rest, length-done))
		// A bar that cannot be drawn is no reason to stop.
		_, _ = fmt.Fprintf(w, "\r%s\x1b[K", cut(line, width-1))
		last = n
	}
	_, _ = fmt.Fprint(w, "\r\x1b[K")
}

// tidyBench removes the keys from all nodes, and returns the nodes that do not confirm it.
// Locks are released by then; what is left are the counters of fencing tokens, and keys
// whose release got lost.
func tidyBench(ctx context.Context, addrs, nodes []string, c config, names []string) (leftOn []string) {
	prefix := c.KeyPrefix
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), benchTidyMost)
	defer cancel()
	format := []string{"%s", "{%s}:line", "{%s}:fence"}
	if strings.ContainsAny(prefix, "{}") {
		format = []string{"%s", "%s:line:", "%s:fence:"}
	}
	failed := make([]bool, len(addrs))
	var all sync.WaitGroup
	for i, addr := range addrs {
		all.Go(func() {
			o, err := optionsFor(addr, c.tls)
			if err != nil {
				failed[i] = true
				return
			}
			conn.Bound(o)
			client := redis.NewClient(o)
			defer client.Close()
			for part := range slices.Chunk(names, 512) {
				_, err := client.Pipelined(ctx, func(p redis.Pipeliner) error {
					for _, name := range part {
						for _, f := range format {
							p.Del(ctx, fmt.Sprintf(f, prefix+name))
						}
					}
					return nil
				})
				failed[i] = failed[i] || err != nil
			}
		})
	}
	all.Wait()
	leftOn = []string{}
	for i, bad := range failed {
		if bad {
			leftOn = append(leftOn, nodes[i])
		}
	}
	return leftOn
}

// benchResult is what --json prints.
type benchResult struct {
	Version     string        `json:"version"`
	Nodes       []string      `json:"nodes"`
	Quorum      int           `json:"quorum"`
	Votes       int           `json:"votes"` // nodes that can grant locks, at the beginning
	Embedded    bool          `json:"embedded"`
	Goroutines  int           `json:"goroutines"`
	Keys        int           `json:"keys"`
	TTL         ms            `json:"ttl_ms"`
	Fencing     bool          `json:"fencing"`
	Duration    ms            `json:"duration_ms"` // it took
	Interrupted bool          `json:"interrupted"`
	Cycles      int64         `json:"cycles"`
	PerSecond   float64       `json:"cycles_per_second"`
	Acquire     latencyFigs   `json:"acquire"`
	Release     latencyFigs   `json:"release"`
	Errors      []*benchError `json:"errors"`
	Unfinished  unfinished    `json:"unfinished"`
	LeftOn      []string      `json:"keys_left_on"` // nodes
}

// latencyFigs is a histogram in figures.
type latencyFigs struct {
	Count   int64    `json:"count"`
	P50     ms       `json:"p50_ms"`
	P90     ms       `json:"p90_ms"`
	P99     ms       `json:"p99_ms"`
	P999    ms       `json:"p999_ms"`
	Max     ms       `json:"max_ms"`
	Buckets []bucket `json:"histogram"`
}

// bucket counts what took no longer than Most, and longer than the bucket before.
type bucket struct {
	Most  ms    `json:"most_ms"`
	Count int64 `json:"count"`
}

func (b *bench) result(nodes []string) *benchResult {
	r := &benchResult{
		Version: version(), Nodes: nodes, Quorum: len(nodes)/2 + 1, Embedded: b.demo,
		Goroutines: b.goroutines, Keys: len(b.names), TTL: ms(b.ttl), Fencing: b.fencing,
		Duration: ms(b.took), Cycles: b.cycles.Load(),
		PerSecond: float64(int64(float64(b.cycles.Load())/b.took.Seconds()*10)) / 10,
		Acquire:   b.acquired.figures(), Release: b.released.figures(),
		Errors: b.errs, Unfinished: b.unfinished,
	}
	if r.Errors == nil {
		r.Errors = []*benchError{}
	}
	return r
}

func (l *latencies) figures() latencyFigs {
	h := l.h
	at := func(p float64) ms { return ms(h.ValueAtPercentile(p)) }
	f := latencyFigs{
		Count: h.TotalCount(), P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: ms(h.Max()),
		Buckets: []bucket{},
	}
	limit, step := time.Microsecond, 0
	for _, bar := range h.Distribution() {
		if bar.Count == 0 {
			continue
		}
		for time.Duration(bar.To) > limit {
			if limit *= 2; step%3 == 1 {
				limit = limit / 4 * 5 // 1, 2, 5, 10
			}
			step++
		}
		if n := len(f.Buckets); n > 0 && f.Buckets[n-1].Most == ms(limit) {
			f.Buckets[n-1].Count += bar.Count
		} else {
			f.Buckets = append(f.Buckets, bucket{ms(limit), bar.Count})
		}
	}
	return f
}

// text is the result for people, to be written to w.
func (r *benchResult) text(w io.Writer) string {
	var b strings.Builder
	paint := paletteFor(w)
	bar := "#"
	if isTerminal(w) && showsUnicode() {
		bar = "█"
	}
	head := fmt.Sprintf("redlock bench: %d of %d nodes grant, %d needed; %d goroutines, ", r.Votes, len(r.Nodes), r.Quorum, r.Goroutines)
	switch r.Keys {
	case 1:
		head += "one lock"
	case r.Goroutines:
		head += "a lock each"
	default:
		head += fmt.Sprintf("%d locks", r.Keys)
	}
	head += fmt.Sprintf(", TTL %v", time.Duration(r.TTL))
	if r.Fencing {
		head += ", fencing"
	}
	if r.Interrupted {
		head += " (interrupted)"
	}
	b.WriteString(paint.bold(head) + "\n")
	if r.Embedded {
		b.WriteString("The nodes run inside this program: the figures are not those of Redis.\n")
	}
	fmt.Fprintf(&b, "\n  cycles    %d in %v, %.1f per second; one acquire and one release each\n", r.Cycles, r.Duration, r.PerSecond)
	if len(r.Errors) == 0 {
		fmt.Fprintf(&b, "  errors    none\n")
	}
	for _, e := range r.Errors {
		b.WriteString(paint.bad(fmt.Sprintf("  errors    %d, %s: %s", e.Count, e.Op, e.Kind)) + "\n" +
			"            for example: " + printable(e.Example) + "\n")
	}
	if u := r.Unfinished; u.Count > 0 {
		fmt.Fprintf(&b, "  cut off   %d still waited at the end, %v at most\n", u.Count, u.Longest)
	}
	if len(r.LeftOn) > 0 {
		b.WriteString(paint.odd("  left      keys may be left on "+strings.Join(r.LeftOn, ", ")+" until they expire") + "\n")
	}
	b.WriteString("\n" + paint.bold(fmt.Sprintf("  %-8s%9s%9s%9s%9s%9s", "LATENCY", "p50", "p90", "p99", "p99.9", "max")) + "\n")
	for _, l := range []struct {
		name string
		f    latencyFigs
	}{{"acquire", r.Acquire}, {"release", r.Release}} {
		fmt.Fprintf(&b, "  %-8s%9s%9s%9s%9s%9s\n", l.name, l.f.P50, l.f.P90, l.f.P99, l.f.P999, l.f.Max)
	}
	width := min(max(widthOf(w)-22, 8), 40)
	for _, l := range []struct {
		name string
		f    latencyFigs
	}{{"acquire", r.Acquire}, {"release", r.Release}} {
		most := int64(0)
		for _, x := range l.f.Buckets {
			most = max(most, x.Count)
		}
		if most > 0 {
			b.WriteString("\n  " + paint.bold(strings.ToUpper(l.name)) + "\n")
		}
		for _, x := range l.f.Buckets {
			// Rounded up: a bucket that is not empty has a bar.
			n := int((x.Count*int64(width) + most - 1) / most)
			fmt.Fprintf(&b, "  <= %6s  %s%s %6.2f%%\n", roundly(time.Duration(x.Most)),
				paint.good(strings.Repeat(bar, n)), strings.Repeat(" ", width-n), float64(x.Count)/float64(l.f.Count)*100)
		}
	}
	return b.String()
}

// roundly writes the ends of buckets, which are whole numbers of a unit.
func roundly(d time.Duration) string { return strings.Replace(d.String(), "µs", "us", 1) }
