package main

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/bench/results"
	"golang.org/x/sync/errgroup"
)

// runRenewal is scenario 5.
func runRenewal(ctx context.Context, b *bench) error {
	names := []string{"redlock", "redsync", "rueidislock-3"}
	if b.quick {
		names = names[:1] // it takes a third of a lease until the first renewal
	}
	for _, name := range names {
		if err := b.renew(ctx, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

func (b *bench) renew(ctx context.Context, name string) error {
	l, err := b.open(ctx, addrsOf(b.servers), name)
	if err != nil {
		return err
	}
	defer l.close()
	if len(l) == 0 {
		return nil
	}
	c := l[0].(holder)
	b.progress("  %s: %d locks of %v", name, b.held, lease)

	heap := liveHeap()
	locks, err := holdMany(ctx, c, name, b.held)
	if err != nil {
		b.shortcoming(name, "scenario 5: %s got only %d of %d locks: %v", name, len(locks), b.held, err)
	}
	row := results.Renewal{Candidate: name, Held: len(locks), Latest: lease}
	sleep(ctx, 100*time.Millisecond) // answers behind the quorum come in
	row.HeapPerLock = float64(int64(liveHeap()-heap)) / float64(max(len(locks), 1))
	servers := b.servers
	before, err := usageNow(servers)
	if err != nil {
		return err
	}
	traffic0, err := trafficOf(ctx, servers)
	if err != nil {
		return err
	}
	began := time.Now()
	watch := watchRenewals(locks, c.validFor(), &row)
	for tick := time.Second; time.Since(began) < b.heldFor; {
		sleep(ctx, min(tick, b.heldFor-time.Since(began)))
		if ctx.Err() != nil {
			return ctx.Err()
		}
		watch()
	}
	row.For = time.Since(began)
	after, err := usageNow(servers)
	if err != nil {
		return err
	}
	traffic1, err := trafficOf(ctx, servers)
	if err != nil {
		return err
	}
	used, sent, seconds := after.minus(before), traffic1.minus(traffic0), row.For.Seconds()
	row.ClientCPU, row.ServerCPU = used.client.Seconds()/seconds, used.server.Seconds()/seconds
	row.PerSecond.Commands = float64(sent.Commands) / seconds
	row.PerSecond.Batches = float64(sent.Reads) / seconds
	row.PerSecond.Bytes = float64(sent.Bytes) / seconds
	for _, h := range locks {
		if h.lost() {
			row.Lost++
		}
	}
	row.Errors = letGo(ctx, locks)
	if row.ToldByTheLibrary && row.Renewals == 0 {
		b.problem("scenario 5: %s renewed nothing", name)
	}
	if row.Lost+row.Errors > 0 {
		b.shortcoming(name, "scenario 5: %s lost %d locks and failed to release %d", name, row.Lost, row.Errors)
	}
	b.report.Renewal = append(b.report.Renewal, row)
	return nil
}

// liveHeap is what is left after a collection.
func liveHeap() uint64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// holdMany takes n locks, or as many as can be had in time; then err tells why there
// are not more.
func holdMany(ctx context.Context, c holder, name string, n int) ([]held, error) {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	locks := make([]held, n)
	var g errgroup.Group
	g.SetLimit(128)
	for i := range locks {
		g.Go(func() (err error) {
			locks[i], err = c.hold(ctx, fmt.Sprintf("bench:held:%s:%d", name, i))
			return err
		})
	}
	err := g.Wait()
	return slices.DeleteFunc(locks, func(h held) bool { return h == nil }), err
}

// letGo releases all and returns how many could not be.
func letGo(ctx context.Context, locks []held) int64 {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var failed atomic.Int64
	var wg sync.WaitGroup
	todo := make(chan held)
	for range 128 {
		wg.Go(func() {
			for h := range todo {
				if h.release(ctx) != nil {
					failed.Add(1)
				}
			}
		})
	}
	for _, h := range locks {
		todo <- h
	}
	close(todo)
	wg.Wait()
	return failed.Load()
}

// watchRenewals returns a function that looks for renewals. Called more often than
// locks are renewed it misses none: the end of validity tells when the renewal that set
// it began, and the end before it what was left at that time.
func watchRenewals(locks []held, validFor time.Duration, row *results.Renewal) func() {
	ends := make([]time.Time, len(locks))
	for i, h := range locks {
		ends[i] = h.until()
		row.ToldByTheLibrary = row.ToldByTheLibrary || !ends[i].IsZero()
	}
	return func() {
		for i, h := range locks {
			end := h.until()
			if end.Equal(ends[i]) {
				continue
			}
			left := ends[i].Sub(end.Add(-validFor))
			ends[i] = end
			row.Renewals++
			row.Latest = min(row.Latest, left)
			if left < lease/2 {
				row.Late++
			}
		}
	}
}
