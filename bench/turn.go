package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// load is what a candidate is given to do in one turn.
type load struct {
	goroutines int
	window     time.Duration
	// limit bounds a turn whose calls do not return; default 2 seconds. Their context
	// then ends, and heal, if any, removes what else they wait for.
	limit time.Duration
	heal  func()
}

// healed is how long calls may take to return once nothing stands in their way.
const healed = 45 * time.Second

// turn is what came of it.
type turn struct {
	cycles     int64
	perSecond  float64
	errors     int64
	firstError string
	cut        int64 // goroutines whose call lasted until the limit
	used       usage
	took       time.Duration
	acquire    *hdrhistogram.Histogram
	release    *hdrhistogram.Histogram
}

// turns makes the keys of each turn new ones, so that what one leaves behind does not
// stand in the way of the next.
var turns atomic.Int64

// take lets a candidate lock and release free keys, one for each goroutine.
//
// Cycles per second are those of the window, in which all goroutines are busy, unless
// cycles are so long that the window holds few of them: then they are counted until the
// last goroutine is done. What was consumed is divided by all cycles.
func take(ctx context.Context, c candidate, servers []*realredis.Server, l load) (turn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type counter struct {
		atomic.Int64
		_ [56]byte
	}
	var (
		cycles     = make([]counter, l.goroutines)
		errs       atomic.Int64
		firstError atomic.Pointer[string]
		acquire    = newLatencies()
		release    = newLatencies()
		stop       atomic.Bool
		wg         sync.WaitGroup
		start      = make(chan struct{})
		running    atomic.Int64
	)
	total := func() (n int64) {
		for i := range cycles {
			n += cycles[i].Load()
		}
		return n
	}
	fail := func(op string, err error) {
		if ctx.Err() != nil {
			return // counted as cut
		}
		errs.Add(1)
		if firstError.Load() == nil {
			text := op + ": " + err.Error()
			firstError.CompareAndSwap(nil, &text)
		}
		time.Sleep(time.Millisecond) // do not measure how fast one can fail
	}
	running.Store(int64(l.goroutines))
	number := turns.Add(1)
	for i := range l.goroutines {
		w := c.worker(fmt.Sprintf("bench:%s:%d:%d:%d", c.name(), os.Getpid(), number, i))
		wg.Go(func() {
			defer running.Add(-1)
			<-start
			for !stop.Load() && ctx.Err() == nil {
				began := time.Now()
				err := w.acquire(ctx)
				granted := time.Now()
				acquire.record(i, granted.Sub(began))
				if err != nil {
					fail("acquire", err)
					continue
				}
				err = w.release(ctx)
				release.record(i, time.Since(granted))
				if err != nil {
					fail("release", err)
					continue
				}
				cycles[i].Add(1)
			}
		})
	}
	runtime.GC()
	before, err := usageNow(servers)
	if err != nil {
		return turn{}, err
	}
	began := time.Now()
	close(start)
	sleep(ctx, l.window)
	inWindow, window := total(), time.Since(began)
	stop.Store(true)

	done := make(chan struct{})
	go func() {
		wg.Wait()
		close(done)
	}()
	var t turn
	if l.limit == 0 {
		l.limit = 2 * time.Second
	}
	if !within(done, l.limit) {
		t.cut = running.Load()
	}
	t.cycles, t.took = total(), time.Since(began)
	if t.cut > 0 {
		cancel()
		if l.heal != nil {
			l.heal()
		}
		if !within(done, healed) {
			return turn{}, fmt.Errorf("%s: calls did not return within %v after %v", c.name(), healed, t.took.Round(time.Second))
		}
	}
	after, err := usageNow(servers)
	if err != nil {
		return turn{}, err
	}
	t.used = after.minus(before)
	t.perSecond = float64(t.cycles) / t.took.Seconds()
	if inWindow >= 3*int64(l.goroutines) {
		t.perSecond = float64(inWindow) / window.Seconds()
	}
	t.errors = errs.Load()
	if p := firstError.Load(); p != nil {
		t.firstError = *p
	}
	t.acquire, t.release = acquire.merged(), release.merged()
	return t, nil
}

// within reports whether done is closed before the time is over.
func within(done <-chan struct{}, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
