package realtest_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/child"
	"github.com/quorumlock/redlock/internal/faultproxy"
	"github.com/quorumlock/redlock/internal/realredis"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The numbers in comments are those of the catalogue of failures in docs/safety.md.

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
	"slow":                onProxy(func(p *faultproxy.Proxy) { p.Delay(time.Second/2, time.Second/2) }),        // 21
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
			startFleet(t, 3).eachWay(t, redlock.Options{TTL: time.Second, NodeTimeout: 200 * time.Millisecond}, func(t *testing.T, f *fleet, rl *redlock.Redlock) {
				f.warm(t, rl)
				for range 2 {
					lock := requireAcquire(t, rl)
					waitForVotes(t, lock)
					// They do not fail at once: the first is asked again before the others are heard.
					for i, p := range f.proxies {
						p.DropReply(1, how, faultproxy.Named("EVALSHA"))
						p.DelayRequest(1, time.Duration(i)*30*time.Millisecond, faultproxy.Named("EVALSHA"))
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
	before := runtime.NumGoroutine()
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
	most = runtime.NumGoroutine()
	promptly(t, func() error { done.Wait(); return nil })
	assert.LessOrEqual(t, most, before+callers+20)
	eventually(t, func() bool { return runtime.NumGoroutine() <= before+20 }, "goroutines are left")
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
	o.RestartGuard = -1 // which has tests of its own
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

func TestServersThatAnswerWithAnErrorAreWaitedForAndNamed(t *testing.T) {
	t.Parallel()
	set := func(args ...any) func(*testing.T, *fleet, []int) {
		return func(t *testing.T, f *fleet, nodes []int) { f.do(t, nodes, args...) }
	}
	for name, test := range map[string]struct {
		begin, end func(t *testing.T, f *fleet, nodes []int)
		says       string
	}{
		"out of memory": {set("CONFIG", "SET", "maxmemory", "1"), set("CONFIG", "SET", "maxmemory", "0"), "OOM"}, // 40
		"too few replicas": {
			set("CONFIG", "SET", "min-replicas-to-write", "1"), set("CONFIG", "SET", "min-replicas-to-write", "0"), "NOREPLICAS"},
		"busy with a script": {runaway, set("SCRIPT", "KILL"), "BUSY"}, // 43
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			startFleet(t, 3, realredis.Args("lua-time-limit", "5")).eachWay(t, brisk, func(t *testing.T, f *fleet, rl *redlock.Redlock) {
				f.warm(t, rl)
				// The others still make a quorum.
				test.begin(t, f, []int{1})
				lock := requireAcquire(t, rl)
				assert.Equal(t, redlock.VoteFailed, waitForVotes(t, lock)[1])
				assert.ErrorContains(t, lock.Outcomes()[1].Err, test.says)
				require.NoError(t, lock.Release(t.Context()))

				test.begin(t, f, []int{2})
				f.resetLogs()
				err := try(t, rl)
				requireNoQuorum(t, err)
				assert.ErrorContains(t, err, test.says)
				assert.ErrorContains(t, err, rl.Nodes()[2])
				assert.LessOrEqual(t, slices.Max(f.counts("SET")), 1)

				waiter := background(func() error { _, err := rl.Mutex(resource).Acquire(context.Background()); return err })
				test.end(t, f, []int{1, 2})
				require.NoError(t, await(t, waiter))
				require.NoError(t, rl.Mutex(resource).ForceRelease(t.Context(), ""))
			})
		})
	}
}

// runaway keeps servers busy with a script that does not end by itself.
func runaway(t *testing.T, f *fleet, nodes []int) {
	for _, i := range nodes {
		stuck := f.servers[i].Client(t, impatient, func(o *redis.Options) { o.ReadTimeout = time.Minute })
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			stuck.Eval(context.Background(), "while true do end", nil)
		}()
		t.Cleanup(func() { <-ended })
		eventually(t, func() bool {
			err := f.admins[i].Ping(context.Background()).Err()
			return err != nil && strings.HasPrefix(err.Error(), "BUSY")
		}, "the server is not busy")
	}
}

func TestLoadingServersAreWaitedFor(t *testing.T) {
	t.Parallel() // 42
	simulated(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		rl := clientOf(t, c, redlock.Options{})
		for _, n := range c.Nodes()[:2] {
			n.SetError("LOADING Redis is loading the dataset in memory")
		}
		err := try(t, rl)
		requireNoQuorum(t, err)
		assert.ErrorContains(t, err, "LOADING")
		waiter := background(func() error { _, err := rl.Mutex(resource).Acquire(t.Context()); return err })
		pass(5 * time.Second)
		for _, n := range c.Nodes() {
			n.SetError("")
		}
		assert.NoError(t, <-waiter)
	})
}

func TestClientPauseIsLikeAHungNode(t *testing.T) {
	t.Parallel() // 43
	f, rl := warmFleet(t, 3, brisk)
	f.do(t, []int{0, 1}, "CLIENT", "PAUSE", "60000", "WRITE")
	requireNoQuorum(t, promptly(t, func() error { return try(t, rl) }))
	f.do(t, []int{0, 1}, "CLIENT", "UNPAUSE")
	eventually(t, func() bool { return f.executed(0, "set") == 2 && f.executed(1, "set") == 2 }, "the SETs did not arrive")
	f.requireGone(t, resource)
	require.NoError(t, requireAcquire(t, rl).Release(t.Context()))
}

func TestReplicaInTheListIsNamed(t *testing.T) {
	t.Parallel() // 41
	f := startFleet(t, 2)
	replica := proxyFor(t, realredis.Start(t, realredis.ReplicaOf(f.servers[0])))
	second := proxyFor(t, realredis.Start(t, realredis.ReplicaOf(f.servers[1])))
	client := func(p *faultproxy.Proxy) redis.UniversalClient {
		addr, err := p.Listen()
		require.NoError(t, err)
		return defaultClient(t, addr)
	}
	a, b := client(f.proxies[0]), client(f.proxies[1])

	lock := requireLock(t, newOn(t, brisk, a, b, client(second)))
	assert.Equal(t, redlock.VoteFailed, waitForVotes(t, lock)[2])
	require.NoError(t, lock.Release(t.Context()))

	err := try(t, newOn(t, brisk, a, client(replica), client(second)))
	requireNoQuorum(t, err)
	assert.ErrorContains(t, err, "this is a replica, and a quorum needs independent masters")
	assert.Equal(t, 1, replica.Count("SET"), "go-redis retries READONLY by default")
	f.requireGone(t, resource)
}

func TestForgottenScriptsAreSentOnce(t *testing.T) {
	t.Parallel() // 44
	startFleet(t, 3).eachWay(t, brisk, func(t *testing.T, f *fleet, rl *redlock.Redlock) {
		f.warm(t, rl)
		lock := requireLock(t, rl)
		waitForVotes(t, lock)
		f.do(t, []int{1}, "SCRIPT", "FLUSH")
		f.resetLogs()
		require.NoError(t, lock.Release(t.Context()))
		f.requireGone(t, resource)
		eventually(t, func() bool { return slices.Equal(f.counts("EVALSHA"), []int{1, 1, 1}) }, "not sent")
		assert.Equal(t, []int{0, 1, 0}, f.counts("EVAL"))

		require.NoError(t, requireLock(t, rl).Release(t.Context()))
		f.requireGone(t, resource)
		assert.Equal(t, []int{0, 1, 0}, f.counts("EVAL"), "it knows the script again")
	})
}

func TestErrorsThatNoWaitingMendsAreReturnedAtOnce(t *testing.T) {
	t.Parallel() // 45, 46, 47
	locked := realredis.Password("secret")
	as := func(user, password string) func(*redis.Options) {
		return func(o *redis.Options) { o.Username, o.Password = user, password }
	}
	for name, test := range map[string]struct {
		server realredis.Option
		client func(*redis.Options)
		plant  []any
		reason error
		says   string
	}{
		"no password":        {locked, as("", ""), nil, redlock.ErrNoQuorum, "NOAUTH"},
		"wrong password":     {locked, as("", "guess"), nil, redlock.ErrNoQuorum, "WRONGPASS"},
		"unknown user":       {locked, as("nobody", "secret"), nil, redlock.ErrNoQuorum, "WRONGPASS"},
		"command not in ACL": {realredis.User("app", "pw", "~*", "+get"), as("app", "pw"), nil, redlock.ErrNoQuorum, "NOPERM"},
		"key not in ACL":     {realredis.User("app", "pw", "~jobs:*", "+@all"), as("app", "pw"), nil, redlock.ErrNoQuorum, "NOPERM"},
		"no such database":   {realredis.DBs(1), func(o *redis.Options) { o.DB = 3 }, nil, redlock.ErrNoQuorum, "DB index is out of range"},
		"node of a cluster":  {realredis.Cluster(), as("", ""), nil, redlock.ErrNoQuorum, "a quorum needs independent masters"},
		"key is a list":      {realredis.DBs(1), as("", ""), []any{"RPUSH", resource, "x"}, redlock.ErrHeld, "the key holds a list, which is no lock"},
		"key is a hash":      {realredis.DBs(1), as("", ""), []any{"HSET", resource, "x", 1}, redlock.ErrHeld, "the key holds a hash, which is no lock"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 3, test.server)
			if test.plant != nil {
				f.do(t, []int{0, 1}, test.plant...)
			}
			rl := f.byDefault(t, brisk, test.client)
			err := promptly(t, func() error { _, err := rl.Mutex(resource).Acquire(context.Background()); return err })
			require.ErrorIs(t, err, test.reason)
			require.ErrorContains(t, err, test.says)
			require.NotContains(t, err.Error(), "secret")
			for _, n := range f.counts("SET") {
				assert.Less(t, n, 10)
			}
		})
	}
}

func TestOpenTellsWhyAMajorityRefusesUs(t *testing.T) {
	t.Parallel() // 45
	f := startFleet(t, 3, realredis.Password("secret"))
	var addrs []string
	for _, addr := range f.addrs() {
		addrs = append(addrs, "redis://:hunter2@"+addr)
	}
	_, err := redlock.Open(t.Context(), addrs, nil)
	requireNoQuorum(t, err)
	assert.ErrorContains(t, err, "WRONGPASS")
	assert.NotContains(t, err.Error(), "hunter2")
	for _, addr := range f.addrs() {
		assert.ErrorContains(t, err, addr)
	}
}

func TestKeyOfAnotherTypeIsNeitherOursNorDeleted(t *testing.T) {
	t.Parallel() // 47
	f := startFleet(t, 3)
	lock := requireLock(t, f.direct(t, brisk))
	waitForVotes(t, lock)
	f.do(t, f.all(), "DEL", resource)
	f.do(t, f.all(), "RPUSH", resource, "x")
	require.ErrorIs(t, lock.Extend(t.Context(), time.Minute), redlock.ErrLost)
	require.ErrorIs(t, lock.Release(t.Context()), redlock.ErrNotHeld)
	for _, c := range f.admins {
		assert.EqualValues(t, 1, c.LLen(t.Context(), resource).Val())
	}
}

func TestKeyWithoutTTL(t *testing.T) {
	t.Parallel() // 48
	f := startFleet(t, 3)
	rl := f.direct(t, brisk)
	t.Run("a waiter polls", func(t *testing.T) {
		f.plant(t, "by an operator", 0, f.all()...)
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		_, err := rl.Mutex(resource).Acquire(ctx)
		require.ErrorIs(t, err, redlock.ErrHeld)
		assert.ErrorContains(t, err, "by an operator")
		waiter := background(func() error {
			lock, err := rl.Mutex(resource).Acquire(context.Background())
			if err == nil {
				err = lock.Release(context.Background())
			}
			return err
		})
		f.do(t, f.all(), "DEL", resource)
		require.NoError(t, await(t, waiter))
	})
	t.Run("an extend repairs our own", func(t *testing.T) {
		lock := requireAcquire(t, rl)
		waitForVotes(t, lock)
		f.do(t, f.all(), "PERSIST", resource)
		require.NoError(t, lock.Extend(t.Context(), time.Minute))
		eventually(t, func() bool {
			return !slices.ContainsFunc(f.admins, func(c *redis.Client) bool {
				return c.PTTL(context.Background(), resource).Val() <= 0
			})
		}, "a key has no TTL")
		require.NoError(t, lock.Release(t.Context()))
	})
}

func TestGarbageIsNeverAGrant(t *testing.T) {
	t.Parallel() // 49
	for _, garbage := range []string{
		"!!!\r\n", "\x00\x01\x02\x03", ":1\r\n", "$5\r\nhello\r\n", "$-1\r\n", "*1\r\n:1\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n", "$99999999\r\n", "-ERR nonsense\r\n", "\r\n",
	} {
		t.Run(fmt.Sprintf("%q", garbage), func(t *testing.T) {
			t.Parallel()
			startFleet(t, 1).eachWay(t, redlock.Options{TTL: time.Second, NodeTimeout: 250 * time.Millisecond}, func(t *testing.T, f *fleet, rl *redlock.Redlock) {
				f.warm(t, rl)
				f.plant(t, "x", 0, 0)
				for range 5 {
					f.proxies[0].Garbage([]byte(garbage))
					try(t, rl)
					try(t, rl)
				}
				f.do(t, f.all(), "DEL", resource)
				lock := requireAcquire(t, rl)
				f.proxies[0].Garbage([]byte(garbage))
				_ = lock.Release(t.Context()) // garbage may look like an answer, so whatever
				f.requireGone(t, resource)
			})
		})
	}
}

func TestSameServerTwiceIsRefused(t *testing.T) {
	t.Parallel() // 51
	f := startFleet(t, 3, realredis.UnixSocket())
	a, b, c := f.servers[0].Addr(), f.servers[1].Addr(), f.servers[2].Addr()
	_, port, err := net.SplitHostPort(a)
	require.NoError(t, err)
	for name, addrs := range map[string][]string{
		"same address":        {a, a, b},
		"not next to another": {a, b, a},
		"another database":    {a, b, "redis://" + a + "/1"},
		"another name":        {a, b, "localhost:" + port},
		"through a proxy":     {a, b, f.addrs()[0]},
		"unix socket":         {a, b, "unix://" + f.servers[0].SocketPath()},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := redlock.Open(t.Context(), addrs, nil)
			require.ErrorIs(t, err, redlock.ErrDuplicateNode)
			require.NotErrorIs(t, err, redlock.ErrNoQuorum)
		})
	}
	t.Run("different ones are not", func(t *testing.T) {
		openAt(t, []string{a, b, c}, brisk)
	})
	t.Run("same client", func(t *testing.T) {
		x, y := defaultClient(t, a), defaultClient(t, b)
		_, err := redlock.New([]redis.UniversalClient{x, y, x}, nil)
		require.ErrorIs(t, err, redlock.ErrDuplicateNode)
	})
}

func TestNumbersOfNodes(t *testing.T) {
	t.Parallel() // 53
	for _, test := range []struct{ nodes, quorum, tolerates int }{
		{1, 1, 0}, {2, 2, 0}, {3, 2, 1}, {4, 3, 1}, {7, 4, 3},
	} {
		t.Run(fmt.Sprint(test.nodes), func(t *testing.T) {
			f := startFleet(t, test.nodes)
			rl := f.direct(t, brisk)
			require.Equal(t, test.quorum, rl.Quorum())
			for i := range test.nodes {
				if i == test.tolerates {
					lock := requireAcquire(t, rl)
					require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
					require.NoError(t, lock.Release(t.Context()))
				}
				f.servers[i].Kill()
				if i >= test.tolerates {
					requireNoQuorum(t, try(t, rl))
				}
			}
		})
	}
}

func TestCancellingAnAcquireReturnsAtOnceAndLeavesNothing(t *testing.T) {
	t.Parallel() // 55
	f, rl := warmFleet(t, 5, unhurried)
	for _, s := range f.servers[:3] {
		require.NoError(t, s.Pause())
	}
	ctx, cancel := context.WithCancel(t.Context())
	acquiring := background(func() error { _, err := rl.Mutex(resource).Acquire(ctx); return err })
	eventually(t, func() bool { return slices.Equal(f.counts("SET"), []int{2, 2, 2, 2, 2}) }, "not asked")
	cancel()
	err := promptly(t, func() error { return <-acquiring })
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, redlock.ErrHeld)
	f.mend()
	eventually(t, func() bool { return f.executed(0, "set") == 2 }, "the SET did not arrive")
	f.requireGone(t, resource)
	require.NoError(t, requireAcquire(t, rl).Release(t.Context()))
}

func TestDeadContextSendsNothing(t *testing.T) {
	t.Parallel() // 56
	f := startFleet(t, 3)
	rl := f.open(t, brisk)
	lock := requireLock(t, rl)
	waitForVotes(t, lock)
	f.resetLogs()
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	m := rl.Mutex("another")
	for name, call := range map[string]func() error{
		"TryAcquire":   func() error { _, err := m.TryAcquire(dead); return err },
		"Acquire":      func() error { _, err := m.Acquire(dead); return err },
		"Do":           func() error { return m.Do(dead, func(context.Context, *redlock.Lock) error { panic("called") }) },
		"Inspect":      func() error { _, err := m.Inspect(dead); return err },
		"ForceRelease": func() error { return m.ForceRelease(dead, "") },
		"Extend":       func() error { return lock.Extend(dead, time.Minute) },
	} {
		require.ErrorIs(t, call(), context.Canceled, name)
	}
	assert.Equal(t, []int{0, 0, 0}, f.counts())
	require.NoError(t, lock.Release(dead), "this one is sent all the same") // 60
	f.requireGone(t, resource)
}

func TestReleaseAfterTheEndLeavesTheNextHolderAlone(t *testing.T) {
	t.Parallel() // 58
	f := startFleet(t, 3)
	rl := f.direct(t, redlock.Options{TTL: time.Second, NodeTimeout: 250 * time.Millisecond})
	late := requireAcquire(t, rl)
	next := requireAcquire(t, f.direct(t, brisk))
	err := late.Release(t.Context())
	require.ErrorIs(t, err, redlock.ErrNotHeld)
	require.NotContains(t, err.Error(), "held by another")
	f.requireOn(t, next)
	require.NoError(t, next.Release(t.Context()))
}

// childTTL is the lease of locks whose holders are paused or killed.
const childTTL = 700 * time.Millisecond

// TestHolderProcess is no test of its own: it is the process that is killed in the next
// one.
func TestHolderProcess(t *testing.T) {
	var addrs []string
	parent := child.Of(t, &addrs)
	rl, err := redlock.Open(t.Context(), addrs, &redlock.Options{TTL: childTTL, NodeTimeout: childTTL / 4})
	require.NoError(t, err)
	_, err = rl.Mutex(resource, redlock.WithRenewal()).Acquire(t.Context())
	require.NoError(t, err)
	parent.Say(t, "held")
	for i := 0; ; i++ {
		busy, err := rl.Mutex(fmt.Sprint("busy-", i%10)).TryAcquire(t.Context())
		if err == nil {
			_ = busy.Release(t.Context())
		}
	}
}

func TestKilledProcessHoldsForTheTTLAtMost(t *testing.T) {
	t.Parallel() // 65
	f := startFleet(t, 5)
	holder := child.Start(t, "TestHolderProcess", f.addrs())
	holder.Hear(t, new(string))
	rl := f.direct(t, brisk)
	eventually(t, func() bool { return f.executed(0, "set") > 50 }, "the child does nothing") // in the middle of attempts
	require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
	holder.Kill(t)

	require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
	require.NoError(t, requireAcquire(t, rl).Release(t.Context()))
	eventually(t, func() bool {
		return !slices.ContainsFunc(f.admins, func(c *redis.Client) bool { return c.DBSize(context.Background()).Val() != 0 })
	}, "keys are left")
}

func TestKeysOfAnyBytesPassUnchanged(t *testing.T) {
	t.Parallel() // 68
	f := startFleet(t, 3)
	long := strings.Repeat("0123456789abcdef", 1<<16)
	for name, key := range map[string]string{
		"NUL": "a\x00b\x00", "braces": "{a}{b}}", "spaces": " a  b ", "line ends": "a\r\nb\n", "not UTF-8": "\xff\xfe\x80",
		"quotes": `"'\`, "percent": "%s%d%!", "1 MiB": long, "unicode": "Schloß\u2028🔒", "like a command": "*1\r\n$4\r\nPING\r\n",
	} {
		for _, prefix := range []string{"", "p:\x00{"} {
			t.Run(name+prefix, func(t *testing.T) {
				o := brisk
				o.KeyPrefix, o.NodeTimeout = prefix, 5*time.Second
				rl := f.direct(t, o)
				lock, err := rl.Mutex(key).TryAcquire(t.Context())
				require.NoError(t, err)
				waitForVotes(t, lock)
				require.Equal(t, key, lock.Key())
				require.False(t, slices.ContainsFunc(f.holders(prefix+key), not(lock)))
				_, err = rl.Mutex(key).TryAcquire(t.Context())
				require.ErrorIs(t, err, redlock.ErrHeld)
				require.Less(t, len(err.Error()), 2000)
				require.NotContains(t, err.Error(), "\n")
				require.NoError(t, lock.Extend(t.Context(), time.Minute))
				s, err := rl.Mutex(key).Inspect(t.Context())
				require.NoError(t, err)
				require.Equal(t, lock.Token(), s.Token)
				require.NoError(t, lock.Release(t.Context()))
				f.requireGone(t, prefix+key)
			})
		}
	}
}

func TestOtherRedlockClientsAndWeExcludeEachOther(t *testing.T) {
	t.Parallel() // 69
	f := startFleet(t, 5)
	rl := f.direct(t, brisk)

	lock := requireLock(t, rl)
	waitForVotes(t, lock)
	for _, c := range f.admins {
		require.False(t, c.SetNX(t.Context(), resource, "theirs", time.Minute).Val())
	}
	require.NoError(t, lock.Release(t.Context()))
	f.requireGone(t, resource)

	for _, nodes := range [][]int{{0, 1, 2}, {1, 3, 4}, f.all()} {
		f.plant(t, "theirs", time.Minute, nodes...)
		require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
		s, err := rl.Mutex(resource).Inspect(t.Context())
		require.NoError(t, err)
		assert.True(t, s.Held())
		for i, v := range f.holders(resource) {
			if slices.Contains(nodes, i) {
				assert.Equal(t, "theirs", v)
			}
		}
		f.requireOnly(t, "theirs")
		f.do(t, f.all(), "DEL", resource)
	}
	f.plant(t, "theirs", time.Minute, 0, 4)
	lock = requireLock(t, rl) // a minority is not a lock, theirs neither
	require.NoError(t, lock.Release(t.Context()))
	f.requireOnly(t, "theirs")
}

// requireOnly waits until the servers hold nothing else under the resource.
func (f *fleet) requireOnly(t *testing.T, value string) {
	t.Helper()
	eventually(t, func() bool {
		return !slices.ContainsFunc(f.holders(resource), func(v string) bool { return v != "" && v != value })
	}, "something of ours is left")
}

// leastRights are the ACL rules that the library needs: what it sends (SET, EVALSHA
// and EVAL; PING and INFO once by Open, where INFO may be missing) and what its scripts
// call. HELLO and AUTH need no right; go-redis sends SELECT and CLIENT too, and
// bears their refusal except for SELECT with a database other than 0.
var leastRights = []string{"~orders:*", "+set", "+evalsha", "+eval", "+get", "+del", "+pttl", "+pexpire", "+type", "+ping"}

func TestEveryKindOfConnection(t *testing.T) {
	t.Parallel()
	urls := func(servers []*realredis.Server, format string) (urls []string) {
		for _, s := range servers {
			urls = append(urls, fmt.Sprintf(format, s.Addr()))
		}
		return urls
	}
	clients := func(t *testing.T, servers []*realredis.Server, change func(*redis.Options)) (all []redis.UniversalClient) {
		for _, s := range servers {
			all = append(all, s.Client(t, change))
		}
		return all
	}
	for name, connect := range map[string]func(t *testing.T) *redlock.Redlock{
		"go-redis defaults": func(t *testing.T) *redlock.Redlock {
			return startFleet(t, 3).byDefault(t, brisk)
		},
		"pool of one": func(t *testing.T) *redlock.Redlock {
			return startFleet(t, 3).byDefault(t, brisk, func(o *redis.Options) { o.PoolSize, o.PipelinePoolSize = 1, -1 })
		},
		"many retries": func(t *testing.T) *redlock.Redlock {
			return startFleet(t, 3).byDefault(t, brisk, func(o *redis.Options) { o.MaxRetries, o.ContextTimeoutEnabled = 10, true })
		},
		"RESP2": func(t *testing.T) *redlock.Redlock {
			return startFleet(t, 3).byDefault(t, brisk, func(o *redis.Options) { o.Protocol = 2 })
		},
		"RESP3 by URL": func(t *testing.T) *redlock.Redlock {
			return openAt(t, urls(realredis.StartN(t, 3), "redis://%s?protocol=3"), brisk)
		},
		"addresses": func(t *testing.T) *redlock.Redlock {
			return openAt(t, addrsOf(realredis.StartN(t, 3)), brisk)
		},
		"password by URL": func(t *testing.T) *redlock.Redlock {
			return openAt(t, urls(realredis.StartN(t, 3, realredis.Password("s e/cret")), "redis://:s%%20e%%2Fcret@%s"), brisk)
		},
		"ACL user with least rights by URL": func(t *testing.T) *redlock.Redlock {
			return openAt(t, urls(realredis.StartN(t, 3, realredis.User("app", "pw", leastRights...)), "redis://app:pw@%s"), brisk)
		},
		"ACL user with least rights by client": func(t *testing.T) *redlock.Redlock {
			servers := realredis.StartN(t, 3, realredis.User("app", "pw", leastRights...))
			var all []redis.UniversalClient
			for _, s := range servers {
				all = append(all, defaultClient(t, s.Addr(), func(o *redis.Options) { o.Username, o.Password = "app", "pw" }))
			}
			return newOn(t, brisk, all...)
		},
		"database by URL": func(t *testing.T) *redlock.Redlock {
			return openAt(t, urls(realredis.StartN(t, 3), "redis://%s/9"), brisk)
		},
		"database by client": func(t *testing.T) *redlock.Redlock {
			return newOn(t, brisk, clients(t, realredis.StartN(t, 3), func(o *redis.Options) { o.DB = 9 })...)
		},
		"TLS by URL": func(t *testing.T) *redlock.Redlock {
			servers := realredis.StartN(t, 3, realredis.TLS(), realredis.Args("tls-auth-clients", "no"))
			return openAt(t, urls(servers, "rediss://%s?skip_verify=true"), brisk)
		},
		"TLS with client certificates": func(t *testing.T) *redlock.Redlock {
			servers := realredis.StartN(t, 3, realredis.TLS())
			return newOn(t, brisk, clients(t, servers, func(o *redis.Options) { o.TLSConfig.MinVersion = tls.VersionTLS12 })...)
		},
		"unix sockets by URL": func(t *testing.T) *redlock.Redlock {
			var all []string
			for _, s := range realredis.StartN(t, 3, realredis.UnixSocket()) {
				all = append(all, "unix://"+s.SocketPath()+"?db=2")
			}
			return openAt(t, all, brisk)
		},
		"unix sockets by client": func(t *testing.T) *redlock.Redlock {
			return newOn(t, brisk, clients(t, realredis.StartN(t, 3, realredis.UnixSocket()), func(*redis.Options) {})...)
		},
		"all kinds together": func(t *testing.T) *redlock.Redlock {
			plain, secret := realredis.StartN(t, 2, realredis.UnixSocket()), realredis.Start(t, realredis.Password("pw"))
			return openAt(t, []string{plain[0].Addr(), "unix://" + plain[1].SocketPath(), "redis://:pw@" + secret.Addr() + "/1"}, brisk)
		},
		"Sentinel": func(t *testing.T) *redlock.Redlock {
			var all []redis.UniversalClient
			for _, master := range realredis.StartN(t, 3) {
				sentinel := realredis.StartSentinel(t, master, "m")
				c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{sentinel.Addr()}})
				t.Cleanup(func() { _ = c.Close() })
				all = append(all, c)
			}
			rl := newOn(t, brisk, all...)
			names := rl.Nodes()
			slices.Sort(names)
			require.Len(t, slices.Compact(names), 3, "they all report one address")
			return rl
		},
		"a cluster as one node": func(t *testing.T) *redlock.Redlock {
			s := realredis.Start(t, realredis.Cluster())
			require.NoError(t, s.Client(t).ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
			c := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{s.Addr()}})
			t.Cleanup(func() { _ = c.Close() })
			eventually(t, func() bool { return c.Set(context.Background(), "up", 1, time.Millisecond).Err() == nil }, "the cluster is down")
			return newOn(t, brisk, c)
		},
		"a ring as one node": func(t *testing.T) *redlock.Redlock {
			servers := realredis.StartN(t, 2)
			c := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": servers[0].Addr(), "b": servers[1].Addr()}})
			t.Cleanup(func() { _ = c.Close() })
			return newOn(t, brisk, c)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			realredis.Need(t)
			useFully(t, connect(t))
		})
	}
}

// useFully does everything that a lock can do.
func useFully(t *testing.T, rl *redlock.Redlock) {
	t.Helper()
	ctx := t.Context()
	m := rl.Mutex(resource)
	for range 2 { // the second time with the scripts known
		lock, err := m.TryAcquire(ctx)
		require.NoError(t, err)
		for _, v := range waitForVotes(t, lock) {
			require.Equal(t, redlock.VoteGranted, v, "%v", lock.Outcomes())
		}
		require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
		require.NoError(t, lock.Extend(ctx, 2*time.Minute))
		s, err := m.Inspect(ctx)
		require.NoError(t, err)
		require.Equal(t, lock.Token(), s.Token)
		require.Greater(t, s.TTL, time.Minute)

		waiting := background(func() error { return m.Do(ctx, func(context.Context, *redlock.Lock) error { return nil }) })
		require.NoError(t, lock.Release(ctx))
		require.NoError(t, await(t, waiting))
	}
	lock := requireAcquire(t, rl)
	require.NoError(t, m.ForceRelease(ctx, lock.Token()))
	require.ErrorIs(t, lock.Release(ctx), redlock.ErrNotHeld)
	eventually(t, func() bool {
		s, err := m.Inspect(context.Background())
		return err == nil && !slices.ContainsFunc(s.Nodes, func(n redlock.NodeStatus) bool { return n.Value != "" })
	}, "keys are left")
}
