package redlock_test

import (
	"strconv"
	"sync"
	"testing"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/realredis"
	"github.com/redis/go-redis/v9"
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
	var clients []redis.UniversalClient
	for _, addr := range addrs {
		c := redis.NewClient(&redis.Options{Addr: addr})
		defer c.Close()
		clients = append(clients, c)
	}
	ours, err := redlock.Open(b.Context(), addrs, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer ours.Close()
	users, err := redlock.New(clients, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer users.Close()
	b.Run("Open", func(b *testing.B) { cycles(b, ours) })
	b.Run("New", func(b *testing.B) { cycles(b, users) })
	unguarded, err := redlock.New(clients, &redlock.Options{RestartGuard: -1})
	if err != nil {
		b.Fatal(err)
	}
	defer unguarded.Close()
	b.Run("New without a guard", func(b *testing.B) { cycles(b, unguarded) })
}

func cycles(b *testing.B, rl *redlock.Redlock) {
	for _, goroutines := range []int{1, 16, 128} {
		b.Run(strconv.Itoa(goroutines), func(b *testing.B) {
			b.ReportAllocs()
			var wg sync.WaitGroup
			for g := range goroutines {
				wg.Go(func() {
					m := rl.Mutex("bench:" + strconv.Itoa(g))
					for range (b.N + goroutines - 1) / goroutines {
						lock, err := m.TryAcquire(b.Context())
						if err != nil {
							b.Error(err)
							return
						}
						_ = lock.Release(b.Context())
					}
				})
			}
			wg.Wait()
		})
	}
}
