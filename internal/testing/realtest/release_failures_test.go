package realtest_test

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// convHoldMany acquires that many locks and returns them when nearly all are on each node:
// on a busy machine a node may miss some.
func convHoldMany(t *testing.T, f *convFleet, rl *redlock.Redlock, n int) (locks []*redlock.Lock) {
	t.Helper()
	for i := range n {
		locks = append(locks, requireAcquireOf(t, rl, fmt.Sprint("orders:", i)))
	}
	enough := func() bool {
		return !slices.ContainsFunc(f.admins, func(c *redis.Client) bool { return convLocks(c) < n*9/10 })
	}
	convEventually(t, func() bool {
		if enough() {
			return true
		}
		for _, lock := range locks {
			_ = lock.Extend(t.Context(), convManyLocks.TTL) // also where a busy node was late
		}
		return false
	}, "too few locks are on a node")
	return locks
}

// convLocks is how many locks of convHoldMany a server has; -1 if it does not say.
func convLocks(c *redis.Client) int {
	keys, err := c.Keys(context.Background(), "orders:*").Result()
	if err != nil {
		return -1
	}
	return len(keys)
}

// convReleaseAll releases some at a time. On a busy machine some may not be confirmed in time;
// they are done in the background.
func convReleaseAll(locks []*redlock.Lock) {
	for some := range slices.Chunk(locks, 100) {
		var all sync.WaitGroup
		for _, lock := range some {
			all.Go(func() { _ = lock.Release(context.Background()) })
		}
		all.Wait()
	}
}

// convManyLocks options keep releases that are not confirmed for a minute.
var convManyLocks = redlock.Options{TTL: time.Minute, NodeTimeout: 500 * time.Millisecond, NoRestartGuard: true}

// Row 88, R2: a node that fails releases for the time being is not asked to do each of them
// again and again. When it is well, they are done.
func TestReleasesThatANodeFailsAreSentSeldom(t *testing.T) {
	type failure struct {
		name string
		make func(t *testing.T, f *convFleet) (end func())
	}
	do := func(t *testing.T, f *convFleet, args ...any) {
		t.Helper()
		require.NoError(t, f.admins[2].Do(context.Background(), args...).Err(), args)
	}
	cases := []failure{
		{"READONLY", func(t *testing.T, f *convFleet) func() {
			do(t, f, "REPLICAOF", "127.0.0.1", "1")
			return func() { do(t, f, "REPLICAOF", "NO", "ONE") }
		}},
		{"MISCONF", func(t *testing.T, f *convFleet) func() {
			dir := f.admins[2].ConfigGet(t.Context(), "dir").Val()["dir"]
			do(t, f, "CONFIG", "SET", "dir", "/proc") // where no snapshot can be written
			do(t, f, "CONFIG", "SET", "save", "3600 1000000")
			do(t, f, "BGSAVE")
			convEventually(t, func() bool { return convInfo(f.admins[2], "persistence", "rdb_last_bgsave_status") == "err" },
				"the snapshot does not fail")
			return func() {
				do(t, f, "CONFIG", "SET", "dir", dir)
				do(t, f, "CONFIG", "SET", "save", "")
			}
		}},
		{"BUSY", func(t *testing.T, f *convFleet) func() { return f.slowScript(t, 2) }},
	}
	t.Parallel()
	opts := []realredis.Option{convImpatiently}
	if realredis.Major(t) >= 7 { // before, CONFIG SET dir is always allowed
		opts = append(opts, realredis.Args("enable-protected-configs", "yes"))
	}
	convTogether(t, cases, func(c failure) string { return c.name }, func(t *testing.T, c failure) {
		const locks = 300
		f := convStart(t, 3, opts...)
		p := f.path(t)
		rl := p.open(t, convManyLocks)
		held := convHoldMany(t, f, rl, locks)
		end := c.make(t, f)
		convReleaseAll(held)
		convSettles(t, "commands", 100, func(pause func()) uint64 {
			p.proxies[2].Reset()
			pause()
			return uint64(p.proxies[2].Count())
		})
		end()
		convEventually(t, func() bool { return convLocks(f.admins[2]) == 0 }, "locks are left on the node")
	})
}

// Row 88, R3: releases that wait for a node that is away do not make the client dial more
// often than one does, however many they are.
func TestReleasesForANodeThatIsAwayDialSeldom(t *testing.T) {
	t.Parallel()
	const locks = 2000 // more than there are in a batch
	f := convStart(t, 3)
	p := f.path(t)
	var dials atomic.Int64
	rl := p.users(t, convManyLocks, func(o *redis.Options) {
		if o.Addr != f.servers[2].Addr() {
			return
		}
		dial := o.Dialer
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return dial(ctx, network, addr)
		}
		o.MaxRetries, o.DialerRetries = -1, 1
	})
	held := convHoldMany(t, f, rl, locks)
	p.refuse(2)
	convReleaseAll(held)
	convSettles(t, "dials", 40, func(pause func()) uint64 {
		dials.Store(0)
		pause()
		return uint64(dials.Load())
	})
	p.heal()
	convEventually(t, func() bool { return convLocks(f.admins[2]) == 0 }, "locks are left on the node")
}

// Row 88, R3: nor do they cost more than a few: nobody works on thousands of them again and
// again while it is known that the node is away. What that takes is counted in allocations,
// of the whole process, so nothing else runs meanwhile.
func TestReleasesForANodeThatIsAwayCostNothing(t *testing.T) {
	const locks = 5000
	f := convStart(t, 3)
	p := f.path(t)
	for _, proxy := range p.proxies {
		proxy.Record(false)
	}
	rl := p.open(t, convManyLocks)
	held := convHoldMany(t, f, rl, locks)
	p.refuse(2)
	convReleaseAll(held)
	convSettles(t, "allocations", 2*locks, func(pause func()) uint64 {
		objects, _ := convAllocated(pause)
		return objects
	})
	p.heal()
	convEventually(t, func() bool { return convLocks(f.admins[2]) == 0 }, "locks are left on the node")
}

// convAllocated is how much this process allocates while f runs.
func convAllocated(f func()) (objects, bytes uint64) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.Mallocs - before.Mallocs, after.TotalAlloc - before.TotalAlloc
}
