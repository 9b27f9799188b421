package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/quorumlock/redlock/bench/results"
)

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
			if err := b.hot(ctx, name, shape[0], shape[1], 0); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
	}
	if err := b.hotWithHungNodes(ctx, shapes[len(shapes)-1]); err != nil {
		return err
	}
	for _, link := range []time.Duration{0, time.Millisecond} {
		if err := b.handovers(ctx, names, link); err != nil {
			return err
		}
	}
	return nil
}

// hotWithHungNodes is the last shape again for redlock, with nodes that accept connections
// and answer nothing. They hang once the contenders are ready, as a failure would find them.
func (b *bench) hotWithHungNodes(ctx context.Context, shape [2]int) error {
	if !b.wants("redlock") {
		return nil
	}
	for _, n := range []int{1, 2} {
		if b.quick && n == 1 {
			continue // two of five say more
		}
		b.progress("  %d x %s, %d of %d nodes hung", shape[0], goroutines(shape[1]), n, len(b.servers))
		if err := b.hot(ctx, "redlock", shape[0], shape[1], n); err != nil {
			return fmt.Errorf("%d nodes hung: %w", n, err)
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

func (b *bench) checkHot(r *results.Hot) {
	point := fmt.Sprintf("scenario 6, %d processes with %s each, %d nodes hung: %s", r.Processes, goroutines(r.Goroutines), r.Down, r.Candidate)
	if r.Violations > 0 || r.Lost != 0 {
		b.problem("%s broke mutual exclusion: %d times two were inside, %d increments lost", point, r.Violations, r.Lost)
	}
	// A smoke run waits longer for a node than it measures.
	if r.Handovers == 0 && (!b.quick || r.Down == 0) {
		b.mustWork(r.Candidate, "%s made no cycles", point)
	}
	if r.Errors > 0 {
		b.shortcoming(r.Candidate, "%s had %d errors, the first: %s", point, r.Errors, r.FirstError)
	}
}

// hot adds one candidate's row, for which the first nodes may hang.
func (b *bench) hot(ctx context.Context, name string, processes, goroutines, hung int) error {
	row, err := b.hotRow(ctx, name, processes, goroutines, hung)
	if err != nil {
		return err
	}
	b.report.Hot = append(b.report.Hot, row)
	return nil
}

func (b *bench) hotRow(ctx context.Context, name string, processes, goroutines, hung int) (row results.Hot, err error) {
	row = results.Hot{Candidate: name, Processes: processes, Goroutines: goroutines, Down: hung}
	res, err := b.contest(ctx, addrsOf(b.servers), processes, hung, contest{Candidate: name, Goroutines: goroutines, Window: b.hotWindow})
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
	b.checkHot(&row)
	return row, nil
}

func (b *bench) handover(ctx context.Context, name string, addrs []string, trip time.Duration) error {
	window := b.hotWindow + b.hotWindow/2
	if b.quick {
		window = time.Second
	}
	res, err := b.contest(ctx, addrs, 2, 0, contest{Candidate: name, Goroutines: 1, Window: window, Handover: true})
	if err != nil {
		return err
	}
	row := results.Handover{Candidate: name, RoundTrip: trip}
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
		b.mustWork(name, "scenario 6: %s made no handover between two processes", name)
	}
	if row.Errors > 0 {
		b.shortcoming(name, "scenario 6, handovers: %s had %d errors, the first: %s", name, row.Errors, row.FirstError)
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

// contest runs the contenders, each in a process of its own, while the first nodes hang.
func (b *bench) contest(ctx context.Context, addrs []string, processes, hung int, job contest) (res contestResult, err error) {
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
	job.Key = fmt.Sprintf("bench:hot:%s:%d:%d:%d:%v", job.Candidate, processes, job.Goroutines, hung, job.Handover)
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
	alive := b.servers[hung:]
	traffic0, err := trafficOf(ctx, alive)
	if err != nil {
		return res, err
	}
	defer func() { err = errors.Join(err, resume(ctx, b, nil, hung)) }()
	if err := hang(ctx, b, nil, hung); err != nil {
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
	traffic1, err := trafficOf(ctx, alive)
	if err != nil {
		return res, err
	}
	res.serverCPU, res.traffic = cpu1-cpu0, traffic1.minus(traffic0)
	res.violations, res.count = mem.violations.Load(), mem.count.Load()
	return res, nil
}
