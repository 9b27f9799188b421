package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

const (
	faultGoroutines = 16
	slowBy          = 5 * time.Millisecond
)

// fault is something wrong with the first nodes. begin and end take the nodes
// concerned; an end must also work when there is nothing to end.
type fault struct {
	name       string
	nodes      int
	begin, end func(ctx context.Context, b *bench, k *links, n int) error
	linked     bool // the nodes concerned are behind links
}

var faults = []fault{
	{"hung", 1, hang, resume, false}, {"hung", 2, hang, resume, false},
	{"refusing", 1, kill, restart, false}, {"refusing", 2, kill, restart, false},
	{"slow by 5 ms", 1, slow, unslow, true}, {"slow by 5 ms", 2, slow, unslow, true},
}

func hang(_ context.Context, b *bench, _ *links, n int) (err error) {
	for _, s := range b.servers[:n] {
		err = errors.Join(err, s.Pause())
	}
	return err
}

func resume(_ context.Context, b *bench, _ *links, n int) (err error) {
	for _, s := range b.servers[:n] {
		err = errors.Join(err, s.Resume())
	}
	return err
}

func kill(_ context.Context, b *bench, _ *links, n int) error {
	for _, s := range b.servers[:n] {
		s.Kill()
	}
	return nil
}

func restart(_ context.Context, b *bench, _ *links, n int) (err error) {
	for _, s := range b.servers[:n] {
		err = errors.Join(err, s.Restart())
	}
	return err
}

func slow(_ context.Context, _ *bench, k *links, n int) error {
	return k.delay(n, slowBy)
}

func unslow(_ context.Context, _ *bench, k *links, n int) error {
	return k.delay(n, 0)
}

// reach returns the addresses by which the nodes are reached, and the links that lead to those
// concerned; nil: none do.
func (f fault) reach(ctx context.Context, addrs []string) (*links, []string, error) {
	if !f.linked {
		return nil, addrs, nil
	}
	k, err := startLinks(ctx, addrs[:f.nodes])
	if err != nil {
		return nil, nil, err
	}
	return k, append(slices.Clone(k.addrs), addrs[f.nodes:]...), nil
}

// runFaults is scenario 3. In each round every candidate first has a turn with all
// nodes healthy, then one with the fault.
func runFaults(ctx context.Context, b *bench) error {
	for _, f := range faults {
		if b.quick && f.nodes == 1 {
			continue // two of five say more
		}
		if err := b.runFault(ctx, f); err != nil {
			return fmt.Errorf("%d of %d nodes %s: %w", f.nodes, len(b.servers), f.name, err)
		}
	}
	return nil
}

func (b *bench) runFault(ctx context.Context, f fault) (err error) {
	point := fmt.Sprintf("%d of %d nodes %s, %s", f.nodes, len(b.servers), f.name, goroutines(faultGoroutines))
	b.progress("  %s", point)
	k, addrs, err := f.reach(ctx, addrsOf(b.servers))
	if err != nil {
		return err
	}
	if k != nil {
		defer k.close()
	}
	l, err := b.open(ctx, addrs, "redlock", "redsync", "redsync-failfast")
	if err != nil {
		return err
	}
	defer l.close()
	defer func() { err = errors.Join(err, f.end(ctx, b, k, f.nodes), awaitAll(ctx, b.servers)) }()

	if err := b.warmUp(ctx, l, faultGoroutines); err != nil {
		return err
	}
	limit := 6 * time.Second
	if b.quick {
		limit = time.Second
	}
	healthy := make(map[string][]float64)
	stuck := make(map[string]bool)
	all, err := inTurns(l, min(b.rounds, 3), func(round int, c candidate) (turn, error) {
		if stuck[c.name()] {
			return turn{}, nil // once is enough to know, and costs seconds
		}
		ok, err := take(ctx, c, b.servers, load{goroutines: faultGoroutines, window: b.window})
		if err != nil {
			return turn{}, err
		}
		healthy[c.name()] = append(healthy[c.name()], ok.perSecond)
		if err := f.begin(ctx, b, k, f.nodes); err != nil {
			return turn{}, err
		}
		ended := false
		end := func() {
			if !ended {
				ended = true
				err = errors.Join(f.end(ctx, b, k, f.nodes), awaitAll(ctx, b.servers))
			}
		}
		// Servers that are gone have no CPU time to ask for, so it is not counted here.
		t, terr := take(ctx, c, nil, load{goroutines: faultGoroutines, window: b.window, limit: limit, heal: end})
		end()
		if err = errors.Join(terr, err); err != nil {
			return turn{}, err
		}
		stuck[c.name()] = t.cut > 0
		// Let it notice that all is well again.
		_, err = take(ctx, c, nil, load{goroutines: faultGoroutines, window: b.window / 3})
		return t, err
	})
	if err != nil {
		return err
	}
	for _, row := range b.addCycles(3, point, float64(f.nodes), faultGoroutines, all, false) {
		row.Healthy = healthy[row.Candidate]
	}
	return nil
}
