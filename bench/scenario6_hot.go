package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"
)

// hotRow is one candidate on the hot key.
type hotRow struct {
	Candidate  string
	Processes  int
	Goroutines int // in each
	Handovers  int64
	PerSecond  float64
	Wait       spread // those that were in vain included
	Least      int64  // cycles of the goroutine that was served least
	Most       int64
	Unserved   int64
	Errors     int64
	FirstError string        `json:",omitempty"`
	Commands   float64       // per handover, executed by all servers
	ClientCPU  time.Duration // per handover, over all processes
	ServerCPU  time.Duration
	Violations int64 // of mutual exclusion
	Lost       int64 // increments of the counter that the lock guards
}

// handoverRow is the time from the call of Release in one process to the return of
// Acquire in another, the only one that waits.
type handoverRow struct {
	Candidate  string
	RoundTrip  time.Duration // of a PING
	Latency    spread
	Errors     int64
	FirstError string `json:",omitempty"`
}

// runHotKey is scenario 6.
func runHotKey(ctx context.Context, b *bench) error {
	names := []string{"redlock", "redsync", "redsync-5ms", "rueidislock-3", "bsm"}
	shapes := [][2]int{{1, 16}, {1, 128}, {2, 16}, {4, 1}, {4, 8}, {8, 16}}
	if b.quick {
		shapes = [][2]int{{1, 16}, {2, 8}}
	}
	for _, shape := range shapes {
		b.progress("  %d x %s", shape[0], goroutines(shape[1]))
		for _, name := range names {
			if !b.wants(name) {
				continue
			}
			row, err := b.hot(ctx, name, shape[0], shape[1])
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			b.report.Hot = append(b.report.Hot, row)
			b.checkHot(&row)
		}
	}
	for _, link := range []time.Duration{0, time.Millisecond} {
		if err := b.handovers(ctx, names, link); err != nil {
			return err
		}
	}
	return nil
}

// handovers measures those between two processes, over links that delay if link is not 0.
func (b *bench) handovers(ctx context.Context, names []string, link time.Duration) error {
	addrs := addrsOf(b.servers)
	if link > 0 {
		k, err := startLinks(ctx, addrs)
		if err != nil {
			return err
		}
		defer k.close()
		if err := k.delay(len(k.addrs), link); err != nil {
			return err
		}
		addrs = k.addrs
	}
	trip, err := roundTrip(ctx, addrs[0])
	if err != nil {
		return err
	}
	b.progress("  handovers between two processes; a PING takes %v", trip)
	for _, name := range names {
		if !b.wants(name) {
			continue
		}
		if err := b.handover(ctx, name, addrs, trip); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (b *bench) checkHot(r *hotRow) {
	point := fmt.Sprintf("scenario 6, %d processes with %s each: %s", r.Processes, goroutines(r.Goroutines), r.Candidate)
	if r.Violations > 0 || r.Lost != 0 {
		b.problem("%s broke mutual exclusion: %d times two were inside, %d increments lost", point, r.Violations, r.Lost)
	}
	if r.Handovers == 0 {
		b.problem("%s made no cycles", point)
	}
	if r.Errors > 0 && (b.quick || r.Candidate == "redlock") {
		b.problem("%s had %d errors, the first: %s", point, r.Errors, r.FirstError)
	}
}

func (b *bench) hot(ctx context.Context, name string, processes, goroutines int) (row hotRow, err error) {
	row = hotRow{Candidate: name, Processes: processes, Goroutines: goroutines}
	res, err := b.contest(ctx, addrsOf(b.servers), processes, contest{Candidate: name, Goroutines: goroutines, Window: b.hotWindow})
	if err != nil {
		return row, err
	}
	hist := newHistogram()
	var served []int64
	var cpu time.Duration
	for i := range res.outcomes {
		o := &res.outcomes[i]
		h, err := o.histogram()
		if err != nil {
			return row, err
		}
		hist.Merge(h)
		served = append(served, o.Served...)
		cpu += o.CPU
		row.Unserved += o.Unserved
		row.Errors += o.Errors
		if row.FirstError == "" {
			row.FirstError = o.FirstError
		}
	}
	for _, n := range served {
		row.Handovers += n
	}
	row.Least, row.Most = slices.Min(served), slices.Max(served)
	row.PerSecond = float64(row.Handovers) / b.hotWindow.Seconds()
	row.Wait = spreadOf(hist)
	row.Violations = res.violations
	// A visit is counted as served only if its release went well.
	row.Lost = max(row.Handovers-res.count, 0)
	if n := row.Handovers; n > 0 {
		row.Commands = float64(res.traffic.Commands) / float64(n)
		row.ClientCPU, row.ServerCPU = cpu/time.Duration(n), res.serverCPU/time.Duration(n)
	}
	return row, nil
}

func (b *bench) handover(ctx context.Context, name string, addrs []string, trip time.Duration) error {
	window := b.hotWindow + b.hotWindow/2
	if b.quick {
		window = time.Second
	}
	res, err := b.contest(ctx, addrs, 2, contest{Candidate: name, Goroutines: 1, Window: window, Handover: true})
	if err != nil {
		return err
	}
	row := handoverRow{Candidate: name, RoundTrip: trip}
	hist := newHistogram()
	for i := range res.outcomes {
		o := &res.outcomes[i]
		h, err := o.histogram()
		if err != nil {
			return err
		}
		hist.Merge(h)
		row.Errors += o.Errors
		if row.FirstError == "" {
			row.FirstError = o.FirstError
		}
	}
	row.Latency = spreadOf(hist)
	b.report.Handovers = append(b.report.Handovers, row)
	if res.violations > 0 {
		b.problem("scenario 6, handovers: %s broke mutual exclusion", name)
	}
	if row.Latency.Count == 0 {
		b.problem("scenario 6: %s made no handover between two processes", name)
	}
	if row.Errors > 0 && (b.quick || name == "redlock") {
		b.problem("scenario 6, handovers: %s had %d errors, the first: %s", name, row.Errors, row.FirstError)
	}
	return nil
}

type contestResult struct {
	outcomes   []outcome
	traffic    traffic
	serverCPU  time.Duration
	violations int64
	count      int64
}

// contest runs the contenders, each in a process of its own.
func (b *bench) contest(ctx context.Context, addrs []string, processes int, job contest) (res contestResult, err error) {
	dir, err := os.MkdirTemp("", "redlock-bench-")
	if err != nil {
		return res, err
	}
	defer os.RemoveAll(dir)
	path, mem, err := newShared(dir)
	if err != nil {
		return res, err
	}
	defer mem.close()

	job.Target, job.Shared = b.target(addrs), path
	job.Key = fmt.Sprintf("bench:hot:%s:%d:%d:%v", job.Candidate, processes, job.Goroutines, job.Handover)
	var children []*child
	defer func() {
		for _, c := range children {
			c.close()
		}
	}()
	for i := range processes {
		job.Process = i
		c, err := startChild(ctx, "contender", job)
		if err != nil {
			return res, err
		}
		children = append(children, c)
	}
	for _, c := range children {
		var ready outcome
		if err := c.hear(30*time.Second, &ready); err != nil {
			return res, err
		}
		if ready.Error != "" {
			return res, errors.New(ready.Error)
		}
	}
	traffic0, err := trafficOf(ctx, b.servers)
	if err != nil {
		return res, err
	}
	cpu0, err := cpuOf(b.servers)
	if err != nil {
		return res, err
	}
	for _, c := range children {
		if err := c.tell(true); err != nil {
			return res, err
		}
	}
	for _, c := range children {
		var o outcome
		if err := c.hear(job.Window+time.Minute, &o); err != nil {
			return res, err
		}
		if o.Error != "" {
			return res, errors.New(o.Error)
		}
		res.outcomes = append(res.outcomes, o)
	}
	cpu1, err := cpuOf(b.servers)
	if err != nil {
		return res, err
	}
	traffic1, err := trafficOf(ctx, b.servers)
	if err != nil {
		return res, err
	}
	res.serverCPU, res.traffic = cpu1-cpu0, traffic1.minus(traffic0)
	res.violations, res.count = mem.violations.Load(), mem.count.Load()
	return res, nil
}
