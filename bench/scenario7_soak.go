package main

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/bench/results"
)

const soakGoroutines = 128

// runSoak is scenario 7: redlock alone.
func runSoak(ctx context.Context, b *bench) error {
	l, err := b.open(ctx, addrsOf(b.servers), "redlock")
	if err != nil {
		return err
	}
	defer l.close()
	if len(l) == 0 {
		return nil
	}
	if err := b.warmUp(ctx, l, soakGoroutines); err != nil {
		return err
	}
	const parts = 20
	per := max(b.soak/parts, 1)
	for i := range int64(parts) {
		row, err := soakPart(ctx, l[0], i, per)
		if err != nil {
			return err
		}
		if row.Errors > 0 {
			b.problem("scenario 7, between %d and %d cycles: %d errors, the first: %s", i*per, (i+1)*per, row.Errors, row.FirstError)
		}
		row.Cycles = (i + 1) * per
		b.report.Soak = append(b.report.Soak, row)
		if i%5 == 4 {
			b.progress("  %d of %d cycles", row.Cycles, b.soak)
		}
	}
	return nil
}

// soakPart makes so many cycles, with keys that are new in each part.
func soakPart(ctx context.Context, c candidate, part, cycles int64) (row results.Soak, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute+time.Duration(cycles)*time.Millisecond)
	defer cancel()
	before, err := usageNow(nil)
	if err != nil {
		return row, err
	}
	began := time.Now()
	var left atomic.Int64
	left.Store(cycles)
	var failed atomic.Int64
	var first atomic.Pointer[string]
	var wg sync.WaitGroup
	for i := range soakGoroutines {
		w := c.worker(fmt.Sprintf("bench:soak:%d:%d", part, i))
		wg.Go(func() {
			for left.Add(-1) >= 0 && ctx.Err() == nil {
				op, err := "acquire", w.acquire(ctx)
				if err == nil {
					op, err = "release", w.release(ctx)
				}
				if err != nil {
					failed.Add(1)
					text := op + ": " + err.Error()
					first.CompareAndSwap(nil, &text)
				}
			}
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return row, err
	}
	if row.Errors = failed.Load(); row.Errors > 0 {
		row.FirstError = *first.Load()
	}
	row.PerSecond = float64(cycles) / time.Since(began).Seconds()
	after, err := usageNow(nil)
	if err != nil {
		return row, err
	}
	used := after.minus(before)
	row.Allocs, row.ClientCPU = float64(used.allocs)/float64(cycles), used.client/time.Duration(cycles)
	time.Sleep(20 * time.Millisecond) // releases behind the quorum end
	row.LiveHeap, row.Goroutines = liveHeap(), runtime.NumGoroutine()
	return row, nil
}
