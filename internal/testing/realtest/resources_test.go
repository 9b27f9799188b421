package realtest_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"weak"

	"github.com/quorumlock/redlock"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// convCargo is what a caller's context carries.
type convCargo [1 << 10]byte

type convCargoKey struct{}

// Row 87, R1: nothing that is used again keeps a lock that was released, or the context
// that it was acquired with, and all that it carries.
func TestReleasedLocksAndTheirContextsAreCollected(t *testing.T) {
	t.Parallel()
	convEachWay(t, func(t *testing.T, way convWay) {
		const rounds, together = 10, 30
		f := convStart(t, 3)
		rl := way.make(f.direct(), t, redlock.Options{TTL: time.Minute, NodeTimeout: 10 * time.Second, NoRestartGuard: true})
		convWarm(t, f, rl)
		var mu sync.Mutex
		var cargo []weak.Pointer[convCargo]
		var locks []weak.Pointer[redlock.Lock]
		for range rounds {
			var all sync.WaitGroup
			for i := range together {
				all.Go(func() {
					c := new(convCargo)
					ctx := context.WithValue(context.Background(), convCargoKey{}, c)
					lock, err := rl.Mutex(fmt.Sprint("orders:", i)).TryAcquire(ctx)
					if !assert.NoError(t, err) {
						return
					}
					assert.NoError(t, lock.Release(ctx))
					mu.Lock()
					defer mu.Unlock()
					cargo, locks = append(cargo, weak.Make(c)), append(locks, weak.Make(lock))
				})
			}
			all.Wait()
		}
		convWarm(t, f, rl) // the last batches may be kept until the next ones
		kept := 0
		for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); convPause(20 * time.Millisecond) {
			runtime.GC()
			if kept = convAlive(cargo) + convAlive(locks); kept == 0 {
				break
			}
		}
		assert.Zero(t, convAlive(cargo), "contexts of %d are kept", len(cargo))
		assert.Zero(t, convAlive(locks), "locks of %d are kept", len(locks))
	})
}

func convAlive[T any](all []weak.Pointer[T]) (n int) {
	for _, p := range all {
		if p.Value() != nil {
			n++
		}
	}
	return n
}

// Row 89, R4: while no majority answers, those who wait cost next to nothing, however many
// they are: the answer of one is the answer of all. It is counted in bytes that this
// process allocates, so nothing else runs meanwhile. Each node is told of once.
func TestOutageWithManyWaitersCostsLittle(t *testing.T) {
	const waiters = 2000
	f := convStart(t, 5)
	p := f.path(t)
	var downs atomic.Int64
	o := redlock.Options{NoRestartGuard: true, Hooks: &redlock.Hooks{NodeDown: func(redlock.NodeInfo) { downs.Add(1) }}}
	rl := p.open(t, o)
	convWarm(t, f, rl)
	p.refuse(0, 1, 2, 3, 4)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var all sync.WaitGroup
	var served atomic.Int64
	m := rl.Mutex(convKey)
	for range waiters {
		all.Go(func() {
			lock, err := m.Acquire(ctx)
			if err == nil {
				served.Add(1)
				_ = lock.Release(context.Background())
			}
		})
	}
	convSettles(t, "bytes for all waiters", 2*1000*waiters, func(pause func()) uint64 {
		_, bytes := convAllocated(pause)
		return bytes
	})
	assert.EqualValues(t, 5, downs.Load(), "Hooks.NodeDown")

	p.heal()
	convEventually(t, func() bool { return served.Load() > 0 }, "nobody is served after the outage")
	cancel()
	all.Wait()
}

// Row 90, E1: New has connections of its own, so the clients may be closed. What waits goes on.
func TestClosingTheClientsDoesNotEndTheRedlock(t *testing.T) {
	t.Parallel()
	f := convStart(t, 3)
	clients := f.direct().clients(t)
	rl, err := newOf(clients, &redlock.Options{NoRestartGuard: true, TTL: time.Minute, NodeTimeout: 5 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	m := rl.Mutex(convKey)
	held, err := m.TryAcquire(t.Context())
	require.NoError(t, err)
	type result struct {
		lock *redlock.Lock
		err  error
	}
	next := make(chan result, 1)
	go func() {
		lock, err := m.Acquire(context.Background())
		next <- result{lock, err}
	}()
	convEventually(t, func() bool {
		s, err := operator(t, rl).Inspect(context.Background(), convKey)
		return err == nil && len(s.Waiters) == 1
	}, "it is not in the queue")
	for _, c := range clients {
		require.NoError(t, c.Close())
	}
	require.NoError(t, held.Extend(t.Context(), time.Minute))
	require.NoError(t, held.Release(t.Context()))
	got := <-next
	require.NoError(t, got.err)
	require.NoError(t, got.lock.Release(t.Context()))
	_, err = operator(t, rl).Check(t.Context())
	require.NoError(t, err)
}

// Row 90: a Redlock that is not closed keeps no connection for ever, and nothing of it runs when
// it is garbage. It counts what the whole process has, so nothing else runs meanwhile.
func TestRedlockThatIsNotClosedLeavesNothing(t *testing.T) {
	f := convStart(t, 1)
	connections := func() int {
		return len(strings.Split(strings.TrimSpace(f.admins[0].ClientList(context.Background()).Val()), "\n"))
	}
	for _, way := range []string{"Open", "New"} {
		t.Run(way, func(t *testing.T) {
			before, goroutines := connections(), ownGoroutines()
			gone := make(chan struct{})
			func() {
				o := &redlock.Options{NoRestartGuard: true}
				rl, err := openOn(t.Context(), f.direct().addrs, o)
				if way == "New" {
					require.NoError(t, rl.Close())
					rl, err = newOf(f.direct().clients(t, func(o *redis.Options) { o.ConnMaxIdleTime = 50 * time.Millisecond }), o)
				}
				require.NoError(t, err)
				runtime.AddCleanup(rl, func(gone chan struct{}) { close(gone) }, gone)
				convWarm(t, f, rl)
				require.Greater(t, connections(), before)
				nodes := operator(t, rl)
				_, err = nodes.Check(t.Context())
				require.NoError(t, err)
				require.NoError(t, nodes.Close())
				if way == "New" {
					convEventually(t, func() bool { return connections() == before }, "an idle connection stays")
					convWarm(t, f, rl)
				}
			}()
			convEventually(t, func() bool {
				runtime.GC()
				select {
				case <-gone:
					return connections() == before && ownGoroutines() <= goroutines
				default:
					return false
				}
			}, "something of it stays")
		})
	}
}

// What waits for the end of a node's bar holds neither the connections of a Redlock that was dropped without Close nor
// its hooks.
func TestBarredRedlockThatIsNotClosedLeavesNothing(t *testing.T) {
	f := convStart(t, 1)
	connections := func() int {
		return len(strings.Split(strings.TrimSpace(f.admins[0].ClientList(context.Background()).Val()), "\n"))
	}
	before := connections()
	gone := make(chan struct{})
	func() {
		held := new([1000]byte) // by its hooks
		runtime.AddCleanup(held, func(gone chan struct{}) { close(gone) }, gone)
		told := make(chan redlock.VoteInfo, 10)
		rl, err := redlock.Open(t.Context(), f.direct().addrs, &redlock.Options{
			RestartGuard: time.Hour,
			Hooks:        &redlock.Hooks{NodeBarred: func(i redlock.VoteInfo) { held[0]++; told <- i }},
		})
		require.NoError(t, err)
		_, err = rl.Mutex("k").TryAcquire(t.Context())
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		require.Greater(t, time.Until((<-told).Until), 50*time.Minute)
	}()
	convEventually(t, func() bool {
		runtime.GC()
		select {
		case <-gone:
			return connections() == before
		default:
			return false
		}
	}, "something of it stays")
}

// convLog is a log of go-redis.
type convLog struct {
	mu    sync.Mutex
	lines []string
}

func (l *convLog) Printf(_ context.Context, format string, v ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, v...))
}

// Row 89: clients of our own write nothing into go-redis' log when a node is down, hangs, or
// comes and goes. The log belongs to the whole process, so nothing else runs meanwhile.
func TestNothingIsLoggedForANodeThatIsDown(t *testing.T) {
	f := convStart(t, 3)
	p := f.path(t)
	o := redlock.Options{TTL: 5 * time.Second, NoRestartGuard: true}
	log := new(convLog)
	redis.SetLogger(log)
	defer logging.Disable()
	p.refuse(2)
	rl := p.open(t, o)
	m := rl.Mutex(convKey)
	cycles := func(d time.Duration) {
		for end := time.Now().Add(d); time.Now().Before(end); convPause(10 * time.Millisecond) {
			if lock, err := m.TryAcquire(t.Context()); err == nil {
				_ = lock.Release(t.Context())
			}
		}
	}
	cycles(500 * time.Millisecond)
	p.heal()
	cycles(500 * time.Millisecond)
	p.refuse(0, 1, 2) // an outage
	cycles(500 * time.Millisecond)
	p.heal()
	require.NoError(t, f.servers[1].Restart())
	cycles(500 * time.Millisecond)
	log.mu.Lock()
	defer log.mu.Unlock()
	t.Logf("%d lines", len(log.lines))
	if len(log.lines) > 0 {
		assert.Empty(t, log.lines[0], "the first of %d lines", len(log.lines))
	}
}
