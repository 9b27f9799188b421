package realtest_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The numbers in comments are those of the catalogue of failures in docs/safety-tests.md.

// fault is something that keeps a node from answering, and how it ends.
type fault struct {
	begin, end func(t *testing.T, f *fleet, i int)
}

func onProxy(begin func(*faultproxy.Proxy)) fault {
	return fault{
		func(_ *testing.T, f *fleet, i int) { begin(f.proxies[i]) },
		func(_ *testing.T, f *fleet, i int) { f.proxies[i].Clear() },
	}
}

var faults = map[string]fault{
	"refuses connections": onProxy((*faultproxy.Proxy).Refuse),                                                 // 18
	"cut off":             onProxy((*faultproxy.Proxy).Blackhole),                                              // 20
	"slow":                onProxy(func(p *faultproxy.Proxy) { p.Delay(time.Second, time.Second) }),            // 21
	"replies get lost":    onProxy((*faultproxy.Proxy).DropReplies),                                            // 28
	"requests get lost":   onProxy((*faultproxy.Proxy).DropRequests),                                           // 28
	"breaks connections":  onProxy(func(p *faultproxy.Proxy) { p.DropReply(-1, faultproxy.DropReset, anyOf) }), // 22
	"hung": { // 19
		func(t *testing.T, f *fleet, i int) { require.NoError(t, f.servers[i].Pause()) },
		func(t *testing.T, f *fleet, i int) { require.NoError(t, f.servers[i].Resume()) },
	},
	"dead": { // 33, 35
		func(_ *testing.T, f *fleet, i int) { f.servers[i].Kill() },
		func(t *testing.T, f *fleet, i int) { require.NoError(t, f.servers[i].Restart()) },
	},
}

func anyOf([]string) bool { return true }

func TestAMinorityOfBrokenNodesChangesNothing(t *testing.T) {
	t.Parallel()
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			startFleet(t, 5).eachWay(t, unhurried, func(t *testing.T, f *fleet, rl *redlock.Redlock) {
				f.warm(t, rl)
				broken := []int{0, 3}
				for _, i := range broken {
					fault.begin(t, f, i)
				}
				for range 3 {
					lock := promptLock(t, rl)
					require.NoError(t, promptly(t, func() error { return lock.Extend(t.Context(), time.Minute) }))
					require.NoError(t, promptly(t, func() error { return lock.Release(t.Context()) }))
				}
				for _, i := range broken {
					fault.end(t, f, i)
				}
				f.requireGone(t, resource)
				f.warm(t, rl) // they are used again
			})
		})
	}
}

func TestAMajorityOfBrokenNodesIsAnOutageThatAcquireWaitsOut(t *testing.T) {
	t.Parallel() // 54 and 18 to 22
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			startFleet(t, 5).eachWay(t, brisk, func(t *testing.T, f *fleet, rl *redlock.Redlock) {
				f.warm(t, rl)
				for i := range 3 {
					fault.begin(t, f, i)
				}
				err := promptly(t, func() error { _, err := rl.Mutex(resource).TryAcquire(t.Context()); return err })
				requireNoQuorum(t, err)
				for _, name := range rl.Nodes() {
					require.ErrorContains(t, err, name)
				}
				waiter := background(func() error {
					lock, err := rl.Mutex(resource).Acquire(context.Background())
					if err == nil {
						err = lock.Release(context.Background())
					}
					return err
				})
				for i := range 3 {
					fault.end(t, f, i)
				}
				require.NoError(t, await(t, waiter))
				f.requireGone(t, resource)
			})
		})
	}
}

func TestStalledDialIsLikeAHungNode(t *testing.T) {
	t.Parallel() // 20, 34
	f := startFleet(t, 3)
	clients := func(stalled int) (all []redis.UniversalClient) {
		for i, addr := range addrsOf(f.servers) {
			if i < stalled {
				all = append(all, defaultClient(t, addr, stuckDialer))
			} else {
				all = append(all, defaultClient(t, addr))
			}
		}
		return all
	}
	t.Run("minority", func(t *testing.T) {
		rl := newOn(t, unhurried, clients(1)...)
		for range 10 {
			require.NoError(t, promptly(t, func() error { return promptLock(t, rl).Release(t.Context()) }))
		}
	})
	t.Run("majority", func(t *testing.T) {
		rl := newOn(t, brisk, clients(2)...)
		for range 3 {
			requireNoQuorum(t, promptly(t, func() error { return try(t, rl) }))
		}
		f.requireGone(t, resource)
	})
}

func TestReleaseWhoseReplyIsLostIsNotTakenForALoss(t *testing.T) {
	t.Parallel() // 24
	for name, how := range losses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			startFleet(t, 3).eachWay(t, redlock.Options{TTL: 2 * time.Second, NodeTimeout: 500 * time.Millisecond}, func(t *testing.T, f *fleet, rl *redlock.Redlock) {
				f.warm(t, rl)
				for range 2 {
					lock := requireAcquire(t, rl)
					waitForVotes(t, lock)
					// The round before may still be sending releases.
					ours := func(args []string) bool {
						return slices.Contains(toRelease, args[0]) && slices.ContainsFunc(args, func(arg string) bool { return strings.HasPrefix(arg, lock.Token()) })
					}
					// They do not fail at once: the first is asked again before the others are heard.
					for i, p := range f.proxies {
						p.DropReply(1, how, ours)
						p.DelayRequest(1, time.Duration(i)*30*time.Millisecond, ours)
					}
					err := lock.Release(t.Context())
					require.NotErrorIs(t, err, redlock.ErrNotHeld)
					requireNoQuorum(t, err)
					f.requireGone(t, resource)
				}
			})
		})
	}
}

func TestHolderThatIsCutOffLosesItsLockInTime(t *testing.T) {
	t.Parallel() // 29
	f := startFleet(t, 5)
	rl := f.byDefault(t, redlock.Options{TTL: time.Second, NodeTimeout: 250 * time.Millisecond})
	lock := requireAcquire(t, rl)
	held, until := lock.Context(), lock.Until()
	for _, p := range f.proxies[:3] {
		p.Blackhole()
	}
	err := lock.Extend(t.Context(), time.Second)
	requireNoQuorum(t, err)
	require.NotErrorIs(t, err, redlock.ErrLost)
	require.Equal(t, until, lock.Until())
	require.NoError(t, held.Err(), "it is still ours")

	<-held.Done()
	require.ErrorIs(t, context.Cause(held), redlock.ErrLost)
	require.ErrorIs(t, context.Cause(held), redlock.ErrExpired)
	require.ErrorIs(t, lock.Extend(t.Context(), time.Second), redlock.ErrLost)
	requireNoQuorum(t, promptly(t, func() error { return lock.Release(t.Context()) }))
	other := requireAcquire(t, f.direct(t, brisk))
	f.mend()
	require.NoError(t, other.Extend(t.Context(), time.Minute), "late releases leave it alone")
	require.NoError(t, other.Release(t.Context()))
}

func TestOnlyTheSideWithTheMajorityLocks(t *testing.T) {
	t.Parallel() // 30
	f := startFleet(t, 5)
	other := &fleet{servers: f.servers, admins: f.admins}
	for _, s := range f.servers {
		other.proxies = append(other.proxies, proxyFor(t, s))
	}
	a, b := f.byDefault(t, brisk), other.byDefault(t, brisk)
	for i := range 5 {
		if i < 2 {
			other.proxies[i].Refuse()
		} else {
			f.proxies[i].Refuse()
		}
	}
	for range 5 {
		requireNoQuorum(t, try(t, a))
		lock := requireAcquire(t, b)
		requireNoQuorum(t, try(t, a))
		require.NoError(t, lock.Release(t.Context()))
	}
}

func TestHungListenerDoesNotPileUpGoroutines(t *testing.T) {
	// 32
	f := startFleet(t, 5)
	var hung []*listener
	clients := make([]redis.UniversalClient, 5)
	for i, addr := range f.addrs() {
		if i < 2 {
			hung = append(hung, hangingListener(t))
			addr = hung[i].Addr().String()
		}
		clients[i] = defaultClient(t, addr, func(o *redis.Options) { o.PoolSize = 5 })
	}
	rl := newOn(t, unhurried, clients...)
	for _, l := range hung {
		t.Cleanup(l.end)
	}
	require.NoError(t, promptly(t, func() error { return promptLock(t, rl).Release(t.Context()) }))

	const callers = 1000
	before := ownGoroutines()
	var done sync.WaitGroup
	var most int
	for i := range callers {
		done.Go(func() {
			lock, err := rl.Mutex(fmt.Sprint("key-", i)).TryAcquire(context.Background())
			if assert.NoError(t, err) {
				assert.NoError(t, lock.Release(context.Background()))
			}
		})
	}
	most = ownGoroutines()
	promptly(t, func() error { done.Wait(); return nil })
	assert.LessOrEqual(t, most, before+callers+20)
	requireNoGoroutinesLeft(t, before)
	for _, l := range hung {
		assert.LessOrEqual(t, l.accepted(), 5)
	}
}

// listener accepts connections and never says anything.
type listener struct {
	net.Listener
	done  chan struct{}
	mu    sync.Mutex
	conns []net.Conn
}

func hangingListener(t *testing.T) *listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	hung := &listener{Listener: l, done: make(chan struct{})}
	go hung.serve()
	t.Cleanup(hung.end)
	return hung
}

func (l *listener) serve() {
	defer close(l.done)
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		l.conns = append(l.conns, c)
		l.mu.Unlock()
	}
}

func (l *listener) end() {
	l.Close()
	<-l.done
	for _, c := range l.conns {
		c.Close()
	}
}

func (l *listener) accepted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.conns)
}

func TestRestartedNodesAreUsedAgain(t *testing.T) {
	t.Parallel() // 33
	o := brisk
	o.NoRestartGuard = true // which has tests of its own
	startFleet(t, 3).eachWay(t, o, func(t *testing.T, f *fleet, rl *redlock.Redlock) {
		for i := range 3 {
			f.warm(t, rl)
			f.servers[i].Kill()
			require.NoError(t, f.servers[i].Restart())
			// Its connections are stale, and it has none of the scripts.
			require.NoError(t, requireAcquire(t, rl).Release(t.Context()))
		}
		f.warm(t, rl)
	})
}

func TestFlushedNodes(t *testing.T) {
	t.Parallel() // 38
	t.Run("a majority: the loss is noticed at the next extend", func(t *testing.T) {
		f := startFleet(t, 5)
		lock := requireLock(t, f.direct(t, brisk))
		waitForVotes(t, lock)
		held := lock.Context()
		f.do(t, []int{0, 2, 4}, "FLUSHALL")
		err := lock.Extend(t.Context(), time.Minute)
		require.ErrorIs(t, err, redlock.ErrLost)
		require.ErrorIs(t, err, redlock.ErrNotHeld)
		require.ErrorIs(t, context.Cause(held), redlock.ErrLost)
		require.NotErrorIs(t, context.Cause(held), redlock.ErrExpired)
		require.ErrorIs(t, lock.Release(t.Context()), redlock.ErrNotHeld)
		f.requireGone(t, resource)
	})
	t.Run("a minority: an extend repairs it", func(t *testing.T) {
		f := startFleet(t, 5)
		lock := requireLock(t, f.direct(t, brisk))
		waitForVotes(t, lock)
		f.do(t, []int{0, 2}, "FLUSHALL")
		require.NoError(t, lock.Extend(t.Context(), time.Minute))
		f.requireOn(t, lock)
		require.NoError(t, lock.Release(t.Context()))
		f.requireGone(t, resource)
	})
}

// Scenario 34: a TLS handshake that nobody answers is a node that is down, no more.
func TestStalledTLSHandshakeIsLikeAHungNode(t *testing.T) {
	t.Parallel()
	hung := hangingListener(t)
	servers := realredis.StartN(t, 2)
	addrs := append(addrsOf(servers), "rediss://"+hung.Addr().String()+"?skip_verify=true")
	rl, err := openOn(t.Context(), addrs, &unhurried)
	require.NoError(t, err)
	t.Cleanup(func() {
		hung.end()
		require.NoError(t, rl.Close())
	})
	for range 10 {
		lock := promptLock(t, rl)
		require.NoError(t, promptly(t, func() error { return lock.Release(t.Context()) }))
	}
}
