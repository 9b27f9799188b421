package main

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// BenchmarkFreeKeys is scenario 1 for benchstat: a cycle is a lock and a release of a
// key of the goroutine's own.
func BenchmarkFreeKeys(b *testing.B) {
	servers := commonServers(b)
	for _, e := range entries {
		if e.name == "redsync-5ms" {
			continue // differs from redsync in waiting only
		}
		for _, g := range []int{1, 16, 128} {
			b.Run(fmt.Sprintf("candidate=%s/goroutines=%d", e.name, g), func(b *testing.B) {
				c, err := e.open(b.Context(), target{Addrs: addrsOf(servers)})
				require.NoError(b, err)
				defer c.close()
				cycle(b, c, g, int64(g)) // connections and scripts
				b.ReportAllocs()
				before, err := usageNow(servers)
				require.NoError(b, err)
				b.ResetTimer()
				cycle(b, c, g, int64(b.N))
				b.StopTimer()
				after, err := usageNow(servers)
				require.NoError(b, err)
				used := after.minus(before)
				b.ReportMetric(float64(used.client.Microseconds())/float64(b.N), "client-us/op")
				b.ReportMetric(float64(used.server.Microseconds())/float64(b.N), "server-us/op")
			})
		}
	}
}

func cycle(b *testing.B, c candidate, goroutines int, n int64) {
	var left, failed atomic.Int64
	left.Store(n)
	var wg sync.WaitGroup
	for i := range goroutines {
		w := c.worker(fmt.Sprintf("bench:%s:%d", c.name(), i))
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				err := w.acquire(b.Context())
				if err == nil {
					err = w.release(b.Context())
				}
				if err != nil && failed.Add(1) == 1 {
					b.Errorf("%s: %v", c.name(), err)
				}
			}
		})
	}
	wg.Wait()
	if n := failed.Load(); n > 0 {
		b.Fatalf("%d of %d cycles failed", n, b.N)
	}
}
