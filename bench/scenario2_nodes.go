package main

import (
	"context"
	"fmt"
)

const nodesGoroutines = 64

// runNodes is scenario 2.
func runNodes(ctx context.Context, b *bench) error {
	counts := []int{1, 3, 5, 7, 9}
	if b.quick {
		counts = []int{1, 3, 7}
	}
	// Servers of its own: a fleet of another size may not vote by their marks, and later scenarios could not by its.
	servers, err := b.launch(ctx, counts[len(counts)-1])
	if err != nil {
		return err
	}
	defer closeServers(servers)
	for _, n := range counts {
		err := func() error {
			if err := flush(ctx, servers[:n]); err != nil {
				return err
			}
			l, err := b.open(ctx, addrsOf(servers[:n]), "redlock", "redsync", bareName, bareRESPName)
			if err != nil {
				return err
			}
			defer l.close()
			point := fmt.Sprintf("%d nodes, %s", n, goroutines(nodesGoroutines))
			if n == 1 {
				point = "1 node, " + goroutines(nodesGoroutines)
			}
			return b.compare(ctx, 2, point, float64(n), l, servers[:n], nodesGoroutines, b.rounds)
		}()
		if err != nil {
			return err
		}
	}
	return nil
}
