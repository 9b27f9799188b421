package redlock_test

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"testing"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/realredis"
	"github.com/redis/go-redis/v9"
)

// BenchmarkCycle acquires and releases locks of different keys on five real servers.
func BenchmarkCycle(b *testing.B) {
	addrs := fiveServers(b)
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
	unguarded, err := redlock.New(clients, &redlock.Options{NoRestartGuard: true})
	if err != nil {
		b.Fatal(err)
	}
	defer unguarded.Close()
	b.Run("New without a guard", func(b *testing.B) { cycles(b, unguarded) })
}

// BenchmarkHooks is what it costs to be told of every cycle.
func BenchmarkHooks(b *testing.B) {
	addrs := fiveServers(b)
	nothing := &redlock.Hooks{
		Acquired: func(context.Context, redlock.AcquireInfo) {}, Extended: func(context.Context, redlock.ExtendInfo) {}, Released: func(context.Context, redlock.ReleaseInfo) {},
		Lost: func(context.Context, redlock.LostInfo) {}, NodeDown: func(redlock.NodeInfo) {}, NodeUp: func(redlock.NodeInfo) {},
		Degraded: func(redlock.DegradedInfo) {},
	}
	quiet := slog.New(slog.DiscardHandler)
	for _, c := range []struct {
		name  string
		hooks *redlock.Hooks
	}{{"nil", nil}, {"set", nothing}, {"logger at another level", redlock.LogHooks(quiet)}} {
		b.Run(c.name, func(b *testing.B) {
			rl, err := redlock.Open(b.Context(), addrs, &redlock.Options{Hooks: c.hooks})
			if err != nil {
				b.Fatal(err)
			}
			defer rl.Close()
			cycles(b, rl)
		})
	}
}

func fiveServers(b *testing.B) (addrs []string) {
	servers, err := realredis.LaunchN(b.Context(), 5)
	if err != nil {
		b.Skip(err)
	}
	for _, s := range servers {
		b.Cleanup(func() { _ = s.Close() })
		addrs = append(addrs, s.Addr())
	}
	return addrs
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
