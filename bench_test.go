package redlock_test

import (
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/realredis"
)

// BenchmarkCycle acquires and releases locks of different keys on five real servers.
func BenchmarkCycle(b *testing.B) {
	servers, err := realredis.LaunchN(b.Context(), 5)
	if err != nil {
		b.Skip(err)
	}
	var addrs []string
	for _, s := range servers {
		defer s.Close()
		addrs = append(addrs, s.Addr())
	}
	rl, err := redlock.Open(b.Context(), addrs, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer rl.Close()
	var keys atomic.Int64
	b.SetParallelism(64)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		m := rl.Mutex("bench:" + strconv.FormatInt(keys.Add(1), 10))
		for pb.Next() {
			lock, err := m.TryAcquire(b.Context())
			if err != nil {
				b.Error(err)
				return
			}
			_ = lock.Release(b.Context())
		}
	})
}
