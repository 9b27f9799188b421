package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/lockset"
)

// wayToHold is one way to hold a lock: acquire takes it under a key that
// nobody else has, and returns what releases it.
type wayToHold struct {
	name    string
	acquire func(ctx context.Context, rl *redlock.Redlock, key string) (release func(context.Context) error, err error)
}

var waysToHold = []wayToHold{
	{"alone", func(ctx context.Context, rl *redlock.Redlock, key string) (func(context.Context) error, error) {
		return releaser(rl.Mutex(key).TryAcquire(ctx))
	}},
	{"shared", func(ctx context.Context, rl *redlock.Redlock, key string) (func(context.Context) error, error) {
		return releaser(rl.Mutex(key).Shared().TryAcquire(ctx))
	}},
	{"a permit of 5", func(ctx context.Context, rl *redlock.Redlock, key string) (func(context.Context) error, error) {
		return releaser(rl.Semaphore(key, 5).TryAcquire(ctx))
	}},
	{"all of three keys", func(ctx context.Context, rl *redlock.Redlock, key string) (func(context.Context) error, error) {
		held, err := lockset.New(rl.Mutex(key+"a"), rl.Mutex(key+"b"), rl.Mutex(key+"c")).TryAcquire(ctx)
		if err != nil {
			return nil, err
		}
		return held.Release, nil
	}},
	{"detached and adopted", func(ctx context.Context, rl *redlock.Redlock, key string) (func(context.Context) error, error) {
		lock, err := rl.Mutex(key).TryAcquire(ctx)
		if err != nil {
			return nil, err
		}
		return releaser(rl.Mutex(key).Adopt(ctx, lock.Detach()))
	}},
}

func releaser(lock *redlock.Lock, err error) (func(context.Context) error, error) {
	if err != nil {
		return nil, err
	}
	return lock.Release, nil
}

// minorityAway measures what an acquire takes while one and two of five nodes hang, are gone, or
// are slow, beside what it takes right before with all of them.
func (p *primitives) minorityAway(ctx context.Context) error {
	fmt.Fprint(p.out, "\n| median acquire | five nodes |")
	cells := make([][]string, len(waysToHold))
	healthy := make([][]time.Duration, len(waysToHold))
	for _, f := range faults {
		fmt.Fprintf(p.out, " %d %s |", f.nodes, f.name)
		ratios, before, err := p.whileAway(ctx, f)
		if err != nil {
			return fmt.Errorf("%d %s: %w", f.nodes, f.name, err)
		}
		for i := range waysToHold {
			slices.Sort(ratios[i])
			cells[i] = append(cells[i], fmt.Sprintf("%.0f %%", 100*ratios[i][len(ratios[i])/2]))
			healthy[i] = append(healthy[i], before[i]...)
		}
	}
	fmt.Fprintln(p.out, "\n|---|"+strings.Repeat("---|", 1+len(faults)))
	for i, way := range waysToHold {
		slices.Sort(healthy[i])
		fmt.Fprintf(p.out, "| %s | %.2f ms | %s |\n", way.name, healthy[i][len(healthy[i])/2].Seconds()*1000, strings.Join(cells[i], " | "))
	}
	return nil
}

// whileAway returns, for each way to hold a lock, the median with the fault divided by the one
// before it, and the one before it, of each round.
func (p *primitives) whileAway(ctx context.Context, f fault) (ratios [][]float64, healthy [][]time.Duration, err error) {
	b := &bench{servers: p.servers}
	k, addrs, err := f.reach(ctx, addrsOf(p.servers))
	if err != nil {
		return nil, nil, err
	}
	if k != nil {
		defer k.close()
	}
	rl, err := redlock.Open(ctx, addrs, &redlock.Options{NodeTimeout: time.Second, NoRestartGuard: true})
	if err != nil {
		return nil, nil, err
	}
	defer rl.Close()
	defer func() { err = errors.Join(err, f.end(ctx, b, k, f.nodes), awaitAll(ctx, p.servers)) }()
	ratios, healthy = make([][]float64, len(waysToHold)), make([][]time.Duration, len(waysToHold))
	for round := range max(p.waits/6, 1) {
		well, err := p.acquires(ctx, rl, fmt.Sprint(f.name, f.nodes, "well", round))
		if err != nil {
			return nil, nil, err
		}
		if err := f.begin(ctx, b, k, f.nodes); err != nil {
			return nil, nil, err
		}
		ill, err := p.acquires(ctx, rl, fmt.Sprint(f.name, f.nodes, "ill", round))
		if err := errors.Join(err, f.end(ctx, b, k, f.nodes), awaitAll(ctx, p.servers)); err != nil {
			return nil, nil, err
		}
		for i := range waysToHold {
			ratios[i] = append(ratios[i], ill[i].Seconds()/well[i].Seconds())
			healthy[i] = append(healthy[i], well[i])
		}
		// Until all nodes are used again.
		if _, err := p.acquires(ctx, rl, fmt.Sprint(f.name, f.nodes, "again", round)); err != nil {
			return nil, nil, err
		}
	}
	return ratios, healthy, nil
}

// acquires returns the median of each way to hold a lock. They take turns.
func (p *primitives) acquires(ctx context.Context, rl *redlock.Redlock, prefix string) (medians []time.Duration, err error) {
	took := make([][]time.Duration, len(waysToHold))
	for n := range max(p.cycles/10, 10) {
		for i, way := range waysToHold {
			start := time.Now()
			release, err := way.acquire(ctx, rl, fmt.Sprint("away-", prefix, i, "-", n))
			if err != nil {
				return nil, fmt.Errorf("%s: %w", way.name, err)
			}
			took[i] = append(took[i], time.Since(start))
			if err := release(ctx); err != nil {
				return nil, fmt.Errorf("%s: release: %w", way.name, err)
			}
		}
	}
	for _, all := range took {
		slices.Sort(all)
		medians = append(medians, all[len(all)/2])
	}
	return medians, nil
}
