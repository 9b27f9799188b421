package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/bench/results"
	"github.com/quorumlock/redlock/bench/services"
)

// otherPlaces are the candidates of scenario 8, in the order of the tables.
var otherPlaces = []string{"redlock", "redsync", "bsm", "postgres-lock", "postgres-row", "postgres-version", "etcd", "zookeeper", "sqlite"}

// others are the servers of scenario 8, by the name of their kind. Those that are not
// installed are left out.
type others map[string]*services.Cluster

func (o others) close() {
	for _, c := range o {
		c.Close()
	}
}

func (b *bench) startOthers(ctx context.Context) (others, error) {
	o := make(others)
	for _, kind := range []struct {
		name  string
		start func(context.Context) (*services.Cluster, error)
	}{
		{"PostgreSQL", services.Postgres},
		{"etcd", func(ctx context.Context) (*services.Cluster, error) { return services.Etcd(ctx, 3) }},
		{"ZooKeeper", func(ctx context.Context) (*services.Cluster, error) { return services.ZooKeeper(ctx, 3) }},
	} {
		c, err := kind.start(ctx)
		if errors.Is(err, services.ErrMissing) {
			b.progress("  NOTE: without %s: %v", kind.name, err)
			continue
		}
		if err != nil {
			o.close()
			return nil, err
		}
		o[kind.name] = c
	}
	return o, nil
}

// runOthers is scenario 8.
func runOthers(ctx context.Context, b *bench) error {
	o, err := b.startOthers(ctx)
	if err != nil {
		return err
	}
	defer o.close()
	dir, err := os.MkdirTemp("", "redlock-sqlite-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	places := slices.Clone(otherPlaces)
	without := func(prefix ...string) {
		places = slices.DeleteFunc(places, func(name string) bool { return slices.Contains(prefix, name) })
	}
	b.others.SQLite = filepath.Join(dir, "locks")
	if b.report.Meta.Fsync, err = fsyncTime(dir); err != nil {
		return err
	}
	b.report.Meta.Servers = make(map[string]string)
	for kind, c := range maps.All(o) {
		b.report.Meta.Servers[kind] = c.Version
	}
	if c := o["PostgreSQL"]; c != nil {
		b.others.Postgres = c.Addrs[0]
	} else {
		without("postgres-lock", "postgres-row", "postgres-version")
	}
	if c := o["etcd"]; c != nil {
		b.others.Etcd = c.Addrs
	} else {
		without("etcd")
	}
	if c := o["ZooKeeper"]; c != nil {
		b.others.ZooKeeper = c.Addrs
	} else {
		without("zookeeper")
	}
	places = slices.DeleteFunc(places, func(name string) bool { return !b.wants(name) })
	for _, measure := range []func(context.Context, *bench, others, []string) error{freeElsewhere, hotElsewhere, endedHolders, outages} {
		if err := measure(ctx, b, o, places); err != nil {
			return err
		}
	}
	return nil
}

// freeElsewhere: lock and release of free keys. The CPU of the servers is not counted, for
// not all of them tell.
func freeElsewhere(ctx context.Context, b *bench, _ others, places []string) error {
	counts := []int{1, 16, 128}
	if b.quick {
		counts = counts[:2]
	}
	l, err := b.open(ctx, addrsOf(b.servers), places...)
	if err != nil {
		return err
	}
	defer l.close()
	for _, n := range counts {
		if err := b.compare(ctx, 8, goroutines(n), float64(n), l, nil, n, min(b.rounds, 3)); err != nil {
			return err
		}
	}
	return nil
}

// hotElsewhere: one key for four processes of eight.
func hotElsewhere(ctx context.Context, b *bench, _ others, places []string) error {
	b.progress("  one key, 4 x 8 goroutines")
	for _, name := range places {
		row, err := b.hotRow(ctx, name, 4, 8, 0)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		b.report.Others = append(b.report.Others, row)
	}
	return nil
}

// endedHolders: a process has the lock and is killed, or stopped. Another waits. All
// candidates at once, since all of them only wait.
func endedHolders(ctx context.Context, b *bench, _ others, places []string) error {
	for _, how := range []string{"killed", "stopped"} {
		b.progress("  a holder is %s", how)
		rows := make([]results.Ended, len(places))
		var wg sync.WaitGroup
		for i, name := range places {
			if name == "postgres-version" {
				continue // has no holders
			}
			wg.Go(func() {
				rows[i] = results.Ended{Candidate: name, How: how, Limit: 2*lease + lease/2}
				if b.quick {
					rows[i].Limit = time.Second
				}
				if err := b.endedHolder(ctx, &rows[i]); err != nil {
					rows[i].Error = err.Error()
				}
			})
		}
		wg.Wait()
		for _, row := range rows {
			if row.Error != "" {
				b.mustWork(row.Candidate, "scenario 8, a holder %s: %s: %s", how, row.Candidate, row.Error)
			}
			if row.Candidate != "" {
				b.report.Ended = append(b.report.Ended, row)
			}
		}
	}
	return ctx.Err()
}

func (b *bench) endedHolder(ctx context.Context, row *results.Ended) error {
	job := contest{Candidate: row.Candidate, Target: b.target(addrsOf(b.servers)), Key: "bench:ended:" + row.How + ":" + row.Candidate}
	c, err := openByName(ctx, job.Candidate, job.Target)
	if err != nil {
		return err
	}
	defer c.close()
	holder, err := startChild(ctx, "holder", job)
	if err != nil {
		return err
	}
	defer holder.close()
	var held outcome
	if err := holder.hear(10*time.Second, &held); err != nil {
		return err
	}
	if held.Error != "" {
		return errors.New(held.Error)
	}
	if err := holder.end(row.How == "killed"); err != nil {
		return err
	}
	began := time.Now()
	wait, cancel := context.WithTimeout(ctx, row.Limit)
	defer cancel()
	w := c.worker(job.Key)
	err = w.acquire(wait)
	switch took := time.Since(began); {
	case err == nil:
		row.After = took
		return w.release(context.WithoutCancel(ctx))
	case wait.Err() == nil:
		row.GaveUp = took
	}
	return nil
}

// outages: a server is killed while clients lock free keys, and comes back. That is done three times, and
// the time that is neither the longest nor the shortest counts: how soon a leader is elected is a draw.
func outages(ctx context.Context, b *bench, o others, places []string) error {
	times := 3
	if b.quick {
		times = 1
	}
	for _, name := range places {
		var (
			servers = 1
			s       lossy
		)
		switch name {
		case "sqlite", "postgres-row", "postgres-version":
			continue // it has no server, or the same as postgres-lock
		case "redlock", "redsync":
			servers, s = len(b.servers), redisOutage{b, 0}
		case "bsm":
			s = redisOutage{b, 0}
		case "postgres-lock":
			s = &otherOutage{o["PostgreSQL"], 0}
		case "etcd":
			servers, s = o["etcd"].Len(), &otherOutage{o["etcd"], 0}
		case "zookeeper":
			servers, s = o["ZooKeeper"].Len(), &otherOutage{o["ZooKeeper"], 0}
		}
		b.progress("  %s loses a server of %d", name, servers)
		var rows []results.Outage
		for i := range times {
			if i > 0 {
				sleep(ctx, lease) // until the server that came back votes again
			}
			row, err := b.outage(ctx, name, s)
			if err != nil {
				return fmt.Errorf("%s loses a server: %w", name, err)
			}
			row.Servers = servers
			rows = append(rows, row)
		}
		slices.SortFunc(rows, func(x, y results.Outage) int { return cmp.Compare(x.Pause, y.Pause) })
		b.report.Outages = append(b.report.Outages, rows[times/2])
	}
	return nil
}

// lossy is a set of servers of which one can be lost.
type lossy interface {
	lose(context.Context) error
	restore() error
}

type redisOutage struct {
	b *bench
	i int
}

func (r redisOutage) lose(context.Context) error { r.b.servers[r.i].Kill(); return nil }
func (r redisOutage) restore() error             { return r.b.servers[r.i].Restart() }

type otherOutage struct {
	c *services.Cluster
	i int
}

func (r *otherOutage) lose(ctx context.Context) (err error) {
	r.i, err = r.c.Kill(ctx)
	return err
}

func (r *otherOutage) restore() error { return r.c.Restart(r.i) }

func (b *bench) outage(ctx context.Context, name string, s lossy) (row results.Outage, err error) {
	healthy, down := time.Second, 3*time.Second
	if b.quick {
		healthy, down = 300*time.Millisecond, 700*time.Millisecond
	}
	c, err := openByName(ctx, name, b.target(addrsOf(b.servers)))
	if err != nil {
		return row, err
	}
	defer c.close()
	p := startPulse(ctx, c, faultGoroutines)
	defer p.stop()
	row = results.Outage{Candidate: name, Down: down}
	row.Before = p.rate(ctx, healthy)
	p.longest.Store(0)
	if err := s.lose(ctx); err != nil {
		return row, err
	}
	row.During = p.rate(ctx, down)
	if err := s.restore(); err != nil {
		return row, err
	}
	row.After = p.rate(ctx, down)
	p.stop()
	row.Pause = time.Duration(p.longest.Load())
	row.Errors = p.errs.Load()
	if first := p.first.Load(); first != nil {
		row.FirstError = *first
	}
	return row, awaitAll(ctx, b.servers)
}

// pulse locks free keys without end, and notes the longest time in which no one could.
type pulse struct {
	cycles, errs  atomic.Int64
	last, longest atomic.Int64 // nanoseconds
	first         atomic.Pointer[string]
	cancel        context.CancelFunc
	done          sync.WaitGroup
}

func startPulse(ctx context.Context, c candidate, n int) *pulse {
	ctx, cancel := context.WithCancel(ctx)
	p := &pulse{cancel: cancel}
	p.last.Store(time.Now().UnixNano())
	for i := range n {
		w := c.worker(fmt.Sprintf("bench:pulse:%s:%d:%d", c.name(), os.Getpid(), i))
		p.done.Go(func() {
			for ctx.Err() == nil {
				err := w.acquire(ctx)
				if err == nil {
					err = w.release(ctx)
				}
				switch {
				case err == nil:
					p.beat()
				case ctx.Err() == nil:
					p.errs.Add(1)
					text := err.Error()
					p.first.CompareAndSwap(nil, &text)
					sleep(ctx, 20*time.Millisecond) // as a program would, and not to starve a server that starts
				}
			}
		})
	}
	return p
}

func (p *pulse) beat() {
	p.cycles.Add(1)
	now := time.Now().UnixNano()
	p.noteGap(now - p.last.Swap(now))
}

func (p *pulse) noteGap(gap int64) {
	for {
		longest := p.longest.Load()
		if gap <= longest || p.longest.CompareAndSwap(longest, gap) {
			return
		}
	}
}

// rate is that of the time from now on.
func (p *pulse) rate(ctx context.Context, d time.Duration) float64 {
	before, began := p.cycles.Load(), time.Now()
	sleep(ctx, d)
	return float64(p.cycles.Load()-before) / time.Since(began).Seconds()
}

// stop ends all; a gap that lasts until then counts.
func (p *pulse) stop() {
	p.noteGap(time.Now().UnixNano() - p.last.Load())
	p.cancel()
	p.done.Wait()
}

// fsyncTime is the median time of a small write that is to survive a loss of power: what
// these servers wait for where Redis does not.
func fsyncTime(dir string) (time.Duration, error) {
	f, err := os.Create(filepath.Join(dir, "fsync"))
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var all []float64
	for range 51 {
		began := time.Now()
		if _, err := f.Write(make([]byte, 512)); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		all = append(all, float64(time.Since(began)))
	}
	return time.Duration(results.Median(all)), nil
}
