package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/quorumlock/redlock/bench/results"
	"github.com/redis/go-redis/v9"
)

// runRoundTrips is scenario 4: all nodes behind links that delay.
func runRoundTrips(ctx context.Context, b *bench) error {
	trips := []time.Duration{250 * time.Microsecond, time.Millisecond, 5 * time.Millisecond}
	counts := []int{1, 16, 64}
	if b.quick {
		trips, counts = trips[1:2], counts[:2]
	}
	k, err := startLinks(ctx, addrsOf(b.servers))
	if err != nil {
		return err
	}
	defer k.close()
	for _, trip := range trips {
		err := func() error {
			if err := k.delay(len(k.addrs), trip); err != nil {
				return err
			}
			measured, err := roundTrip(ctx, k.addrs[0])
			if err != nil {
				return err
			}
			b.progress("  link of %v: a PING takes %v", trip, measured)
			b.report.Links = append(b.report.Links, results.Link{Asked: trip, Measured: measured})
			l, err := b.open(ctx, k.addrs, "redlock", "redsync", bareName, bareRESPName)
			if err != nil {
				return err
			}
			defer l.close()
			for _, g := range counts {
				point := fmt.Sprintf("link of %v (PING %v), %s", trip, measured.Round(10*time.Microsecond), goroutines(g))
				if err := b.compare(ctx, 4, point, float64(g), l, b.servers, g, min(b.rounds, 3)); err != nil {
					return err
				}
			}
			return nil
		}()
		if err != nil {
			return err
		}
	}
	return nil
}

// roundTrip is the median time of a PING.
func roundTrip(ctx context.Context, addr string) (time.Duration, error) {
	return once(ctx, addr, func(ctx context.Context, c *redis.Client) (time.Duration, error) {
		var all []time.Duration
		for range 101 {
			began := time.Now()
			if err := c.Ping(ctx).Err(); err != nil {
				return 0, err
			}
			all = append(all, time.Since(began))
		}
		slices.Sort(all)
		return all[len(all)/2], nil
	})
}
