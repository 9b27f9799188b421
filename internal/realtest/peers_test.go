package realtest_test

import (
	"context"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/faultproxy"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Failures of other lock libraries that were measured or read in their code. Each test
// names the library, and in its first line what was seen there. RS is redsync v4.18,
// RU rueidislock v1.0, B bsm/redislock v0.9.

// simulated runs a test with simulated nodes in virtual time.
func simulated(t *testing.T, n int, test func(t *testing.T, c *redlocktest.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// Last of all: go-redis goes on dialing for a while after a client was closed.
		t.Cleanup(func() { pass(time.Minute) })
		test(t, redlocktest.NewCluster(t, n))
	})
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// clientOf is a client of a simulated cluster.
func clientOf(t *testing.T, c *redlocktest.Cluster, o redlock.Options) *redlock.Redlock {
	t.Helper()
	return newOn(t, o, c.Clients()...)
}

// separable is a client of a simulated cluster that can be cut off by itself.
func separable(t *testing.T, c *redlocktest.Cluster, o redlock.Options) (*redlock.Redlock, []*faultproxy.Proxy) {
	t.Helper()
	var proxies []*faultproxy.Proxy
	var clients []redis.UniversalClient
	for i := range c.Len() {
		clients = append(clients, c.Client(i, func(o *redis.Options) {
			dial := o.Dialer
			p := faultproxy.New(func(ctx context.Context) (net.Conn, error) { return dial(ctx, "", "") })
			t.Cleanup(p.Close)
			proxies = append(proxies, p)
			o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) { return p.DialContext(ctx) }
		}))
	}
	return newOn(t, o, clients...), proxies
}

// outages are two ways for a node not to answer at all.
var outages = map[string]func(t *testing.T, f *fleet, node int){
	"hung":    func(t *testing.T, f *fleet, node int) { require.NoError(t, f.servers[node].Pause()) },
	"cut off": func(_ *testing.T, f *fleet, node int) { f.proxies[node].Blackhole() },
}

func TestPeerRS1_HungNodeDoesNotDelayRelease(t *testing.T) {
	// redsync: Unlock 101.7 s with one of three nodes cut off, 3.0 s with one hung.
	t.Parallel()
	for name, breakNode := range outages {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, 3)
			rl := f.byDefault(t, unhurried)
			lock := requireLock(t, rl)
			f.requireOn(t, lock)
			breakNode(t, f, 0)

			require.NoError(t, promptly(t, func() error { return lock.Release(t.Context()) }))
			assert.NoError(t, promptLock(t, rl).Release(t.Context()))
		})
	}
}

func TestPeerRS2_HungNodeDoesNotLoseTheLockOnExtend(t *testing.T) {
	// redsync: Extend took 12.08 s, longer than the lease of 8 s, and reported the lock lost.
	t.Parallel()
	f := startFleet(t, 3)
	rl := f.byDefault(t, unhurried)
	lock := requireLock(t, rl)
	f.requireOn(t, lock)
	require.NoError(t, f.servers[1].Pause())

	for range 3 {
		before := lock.Until()
		require.NoError(t, promptly(t, func() error { return lock.Extend(t.Context(), time.Minute) }))
		assert.True(t, lock.Until().After(before))
	}
	assert.NoError(t, lock.Context().Err())
	assert.NoError(t, promptly(t, func() error { return lock.Release(t.Context()) }))
}

func TestPeerRS3_NodeTimeoutWorksWithDefaultClients(t *testing.T) {
	// redsync: 400 ms became 3.0 s with a default go-redis client, 6.0 s when contended.
	t.Parallel()
	f, rl := warmFleet(t, 3, brisk)
	require.NoError(t, f.servers[0].Pause())
	require.NoError(t, f.servers[1].Pause())

	m := rl.Mutex(resource)
	requireNoQuorum(t, promptly(t, func() error { _, err := m.TryAcquire(context.Background()); return err }))
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	err := promptly(t, func() error { _, err := m.Acquire(ctx); return err })
	require.ErrorIs(t, err, context.DeadlineExceeded)
	requireNoQuorum(t, err)
}

func TestPeerRS4_ContextEndingMidAcquireLeavesNoKeys(t *testing.T) {
	// redsync: two of three slow, ctx 150 ms: all three nodes kept the key for the full 8 s.
	t.Parallel()
	f, rl := warmFleet(t, 3, unhurried)
	f.resetLogs()
	for _, p := range f.proxies[:2] {
		p.Delay(300*time.Millisecond, 0)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := rl.Mutex(resource).Acquire(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	eventually(t, func() bool {
		return f.executed(0, "del") >= 2 && f.executed(1, "del") >= 2 && f.executed(2, "del") >= 2
	},
		"the SETs were not taken back") // once by the warm-up
	f.requireGone(t, resource)
	assert.Equal(t, []int{1, 1, 1}, f.counts("SET"))
}

func TestPeerRS5_ReleaseWithADeadContextReleases(t *testing.T) {
	// redsync: UnlockContext(cancelled) released nothing; PTTL 8 s.
	t.Parallel()
	f := startFleet(t, 3)
	lock := requireLock(t, f.byDefault(t, brisk))
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, lock.Release(dead))
	f.requireGone(t, resource)
}

func TestPeerRS6_LateSetIsTakenBack(t *testing.T) {
	// redsync: SET delayed 900 ms, TryLock failed at 402 ms; the node kept the key for 7.3 s.
	t.Parallel()
	t.Run("slow connection", func(t *testing.T) {
		f, rl := warmFleet(t, 3, brisk)
		for _, p := range f.proxies[:2] {
			p.DelayRequest(1, 400*time.Millisecond, faultproxy.Named("SET"))
		}
		requireNoQuorum(t, try(t, rl))
		eventually(t, func() bool { return f.executed(0, "set") == 2 && f.executed(1, "set") == 2 },
			"the late SETs did not arrive")
		f.requireGone(t, resource)
	})
	t.Run("broken connection", func(t *testing.T) {
		// The SET overtakes nothing: it arrives after the release that went over a new
		// connection.
		f := startFleet(t, 1)
		o := brisk
		o.NodeTimeout = 500 * time.Millisecond
		var conns connections
		rl := f.byDefault(t, o, conns.keep)
		f.warm(t, rl)
		deletions := f.executed(0, "del")
		f.proxies[0].DelayRequest(1, 300*time.Millisecond, faultproxy.Named("SET"))
		failed := background(func() error { _, err := rl.Mutex(resource).TryAcquire(context.Background()); return err })
		eventually(t, func() bool { return f.proxies[0].Count("SET") == 2 }, "the SET was not sent")
		conns.close()

		requireNoQuorum(t, await(t, failed))
		eventually(t, func() bool { return f.executed(0, "set") == 2 }, "the late SET did not arrive")
		eventually(t, func() bool { return f.executed(0, "del") == deletions+1 }, "the late SET was not taken back")
		f.requireGone(t, resource)
	})
}

// connections are those of a client, to be broken at its end.
type connections struct {
	mu   sync.Mutex
	open []net.Conn
}

func (c *connections) keep(o *redis.Options) {
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.open = append(c.open, conn)
		}
		return conn, err
	}
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.open {
		conn.Close()
	}
	c.open = nil
}

func TestPeerRS7_AcquireOutlivesACrashedHolder(t *testing.T) {
	// redsync: its 32 tries end after 4.35 s, the default lease after 8 s.
	t.Parallel()
	simulated(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
		crashed := clientOf(t, c, redlock.Options{TTL: time.Minute})
		requireLock(t, crashed)
		require.NoError(t, crashed.Close())

		start := time.Now()
		lock, err := clientOf(t, c, redlock.Options{TTL: time.Minute}).Mutex(resource).Acquire(t.Context())
		require.NoError(t, err)
		assert.InDelta(t, time.Minute, time.Since(start), float64(time.Second))
		assert.NoError(t, lock.Release(t.Context()))
	})
}

func TestPeerRS8_SharedMutexKeepsOwnershipApart(t *testing.T) {
	// redsync: A overran, B locked the same *Mutex, A's Unlock deleted B's lock and said ok.
	t.Parallel()
	simulated(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		m := clientOf(t, c, redlock.Options{TTL: time.Second}).Mutex(resource)
		a, err := m.TryAcquire(t.Context())
		require.NoError(t, err)
		pass(2 * time.Second)
		b, err := m.TryAcquire(t.Context())
		require.NoError(t, err)

		require.ErrorIs(t, a.Release(t.Context()), redlock.ErrNotHeld)
		synctest.Wait()
		assert.False(t, slices.ContainsFunc(c.Holders(resource), not(b)), "%v", c.Holders(resource))
		require.NoError(t, b.Extend(t.Context(), time.Second))
		require.NoError(t, b.Release(t.Context()))
	})
}

func TestPeerRS9_ExtendNeverRevivesALostLock(t *testing.T) {
	// redsync WithSetNXOnExtend: A expired, B locked, worked and unlocked, A.Extend said ok.
	t.Parallel()
	for name, test := range map[string]func(t *testing.T, c *redlocktest.Cluster, rl *redlock.Redlock){
		"after its end": func(t *testing.T, c *redlocktest.Cluster, rl *redlock.Redlock) {
			a := requireLock(t, rl)
			pass(2 * time.Second)
			require.NoError(t, requireLock(t, rl).Release(t.Context()))
			err := a.Extend(t.Context(), time.Second)
			require.ErrorIs(t, err, redlock.ErrLost)
			require.ErrorIs(t, err, redlock.ErrExpired)
			synctest.Wait()
			assert.Equal(t, []string{"", "", ""}, c.Holders(resource))
		},
		"deleted meanwhile": func(t *testing.T, c *redlocktest.Cluster, rl *redlock.Redlock) {
			a := requireLock(t, rl)
			require.NoError(t, rl.Mutex(resource).ForceRelease(t.Context(), ""))
			err := a.Extend(t.Context(), time.Second)
			require.ErrorIs(t, err, redlock.ErrLost)
			require.ErrorIs(t, err, redlock.ErrNotHeld)
			synctest.Wait()
			assert.Equal(t, []string{"", "", ""}, c.Holders(resource))
		},
		"no majority left": func(t *testing.T, c *redlocktest.Cluster, rl *redlock.Redlock) {
			a := requireLock(t, rl)
			synctest.Wait()
			c.Node(0).Del(resource)
			c.Node(1).Del(resource)
			require.ErrorIs(t, a.Extend(t.Context(), time.Second), redlock.ErrLost)
			pass(100 * time.Millisecond)
			assert.Equal(t, []string{"", ""}, c.Holders(resource)[:2], "a failed extend put keys back")
			assert.ErrorIs(t, a.Release(t.Context()), redlock.ErrNotHeld)
		},
	} {
		t.Run(name, func(t *testing.T) {
			simulated(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
				test(t, c, clientOf(t, c, redlock.Options{TTL: time.Second}))
			})
		})
	}
}

func TestPeerRS10_ErrorsTellHeldFromOutageFromCancelled(t *testing.T) {
	// redsync: ErrFailed for a cancelled ctx and without its error; "lock already taken" from Unlock.
	t.Parallel()
	simulated(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		rl := newOn(t, redlock.Options{TTL: time.Minute}, c.Client(0, impatient), c.Client(1, impatient), c.Client(2, impatient))
		holder := requireLock(t, rl)
		m := rl.Mutex(resource)

		err := try(t, rl)
		require.ErrorIs(t, err, redlock.ErrHeld)
		require.NotErrorIs(t, err, redlock.ErrNoQuorum)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err = m.Acquire(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, redlock.ErrHeld, "why it was waiting")
		assert.Len(t, outcomes(t, err), 3)

		ctx, stop := context.WithCancelCause(t.Context())
		stop(net.ErrClosed)
		_, err = m.Acquire(ctx)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, net.ErrClosed, "the cause")

		c.Node(0).Stop()
		require.ErrorIs(t, try(t, rl), redlock.ErrHeld, "two of three say so")
		c.Node(1).Stop()
		err = try(t, rl)
		requireNoQuorum(t, err)
		assert.ErrorContains(t, err, c.Node(0).Name())
		assert.ErrorContains(t, err, "connection refused")

		err = holder.Release(t.Context())
		requireNoQuorum(t, err)
		assert.NotContains(t, err.Error(), "held by another")
	})
}

func TestPeerRS11_GrantsReachEveryHealthyNode(t *testing.T) {
	// redsync WithFailFast: 9 and 18 of 200 locks were left on fewer than all of 5 healthy nodes.
	t.Parallel()
	f := startFleet(t, 5)
	rl := f.direct(t, brisk)
	locks := make([]*redlock.Lock, 200)
	for i := range locks {
		var err error
		locks[i], err = rl.Mutex(resource + string(rune('A'+i))).TryAcquire(t.Context())
		require.NoError(t, err)
	}
	for _, lock := range locks {
		f.requireOn(t, lock)
		require.NoError(t, lock.Release(t.Context()))
	}
	for _, lock := range locks {
		f.requireGone(t, lock.Key())
	}
}

func TestPeerRS11_DeadNodePilesUpNoGoroutines(t *testing.T) {
	// redsync: 300 cycles with one powered-off node left 319 goroutines behind, each for 100 s.
	f := startFleet(t, 3)
	var clients []redis.UniversalClient
	for _, addr := range f.addrs()[:2] {
		clients = append(clients, defaultClient(t, addr))
	}
	clients = append(clients, defaultClient(t, "192.0.2.1:6379", stuckDialer))
	rl := newOn(t, unhurried, clients...)
	require.NoError(t, requireLock(t, rl).Release(t.Context()))

	before := runtime.NumGoroutine()
	for range 300 {
		require.NoError(t, promptLock(t, rl).Release(t.Context()))
	}
	eventually(t, func() bool { return runtime.NumGoroutine() <= before+5 }, "goroutines are left")
}

// stuckDialer is what a client sees of a machine that is switched off, of a DNS server
// that does not answer, and of a TLS handshake that gets stuck.
func stuckDialer(o *redis.Options) {
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		<-ctx.Done()
		return nil, &net.OpError{Op: "dial", Net: network, Err: ctx.Err()}
	}
	o.DialTimeout, o.DialerRetries = time.Second, 1
}

// losses are the ways to lose a reply.
var losses = map[string]faultproxy.Drop{"EOF": faultproxy.DropCut, "RST": faultproxy.DropReset, "silence": faultproxy.DropSilent}

func TestPeerRS12_LostSetReplyIsNoHolder(t *testing.T) {
	// redsync: SETNX was sent again, found its own key, and a free lock was "taken".
	t.Parallel()
	for name, how := range losses {
		t.Run(name, func(t *testing.T) {
			f, rl := warmFleet(t, 1, redlock.Options{TTL: time.Second, NodeTimeout: 200 * time.Millisecond})
			f.resetLogs()
			f.proxies[0].DropReply(1, how, faultproxy.Named("SET"))

			err := try(t, rl)
			requireNoQuorum(t, err)
			assert.Equal(t, []redlock.Vote{redlock.VoteUnknown}, votesOf(outcomes(t, err)))
			assert.Equal(t, []int{1}, f.counts("SET"))
			f.requireGone(t, resource)
			assert.NoError(t, requireAcquire(t, rl).Release(t.Context()))
		})
	}
}

func TestPeerRS13_SmallThings(t *testing.T) {
	t.Parallel()
	simulated(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
		rl := clientOf(t, c, redlock.Options{TTL: time.Second})
		warm(t, rl)

		// redsync: a context that was over before the call still cost a full round.
		c.ResetCommands()
		dead, cancel := context.WithCancel(t.Context())
		cancel()
		for _, call := range []func() error{
			func() error { _, err := rl.Mutex(resource).TryAcquire(dead); return err },
			func() error { _, err := rl.Mutex(resource).Acquire(dead); return err },
			func() error { return rl.Mutex(resource).Do(dead, nil2) },
		} {
			require.ErrorIs(t, call(), context.Canceled)
		}
		synctest.Wait()
		require.Zero(t, c.Commands())

		// redsync: 2N commands for an attempt that is refused.
		lock := requireLock(t, rl)
		synctest.Wait()
		c.ResetCommands()
		require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
		synctest.Wait()
		for _, n := range c.Nodes() {
			assert.LessOrEqual(t, n.Commands(), 1, "%v", n.Log())
		}

		// redsync: Valid() says true after the lease.
		held := lock.Context()
		pass(time.Second)
		assert.LessOrEqual(t, lock.Validity(), time.Duration(0))
		assert.ErrorIs(t, context.Cause(held), redlock.ErrLost)

		// redsync: no pools at all are accepted.
		_, err := redlock.New(nil, nil)
		assert.ErrorIs(t, err, redlock.ErrInvalid)
	})
}

func nil2(context.Context, *redlock.Lock) error { panic("called without a lock") }

func TestPeerRU1_PartitionedHolderStopsBeforeAnotherStarts(t *testing.T) {
	// rueidislock: B acquired at +5.02 s, A's context was cancelled at +7.50 s.
	t.Parallel()
	simulated(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
		o := redlock.Options{TTL: 5 * time.Second}
		a, network := separable(t, c, o)
		b := clientOf(t, c, o)
		lock := requireLock(t, a, redlock.WithRenewal())
		held := lock.Context()
		pass(7 * time.Second)
		require.NoError(t, held.Err(), "renewal keeps it")
		for _, p := range network {
			p.Blackhole()
		}

		other, err := b.Mutex(resource).Acquire(t.Context())
		require.NoError(t, err)
		require.ErrorIs(t, context.Cause(held), redlock.ErrLost)
		require.ErrorIs(t, context.Cause(held), redlock.ErrExpired)
		assert.Less(t, lock.Validity(), time.Duration(0))

		for _, p := range network {
			p.Heal()
		}
		pass(time.Second)
		require.ErrorIs(t, lock.Extend(t.Context(), time.Second), redlock.ErrLost)
		require.ErrorIs(t, lock.Release(t.Context()), redlock.ErrNotHeld)
		assert.NoError(t, other.Release(t.Context()), "and it was not disturbed")
	})
}

func TestPeerRU2_ClocksThatAreWrongHaveNoSay(t *testing.T) {
	// rueidislock: server clocks 6 s ahead, validity 5 s: two holders. It sends PXAT.
	t.Parallel()
	for _, skew := range []time.Duration{6 * time.Second, -6 * time.Second, 24 * time.Hour} {
		simulated(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
			for _, n := range c.Nodes() {
				n.ShiftClock(skew)
			}
			a, b := clientOf(t, c, redlock.Options{TTL: 5 * time.Second}), clientOf(t, c, redlock.Options{TTL: 5 * time.Second})
			lock := requireLock(t, a)
			pass(3 * time.Second)
			require.ErrorIs(t, try(t, b), redlock.ErrHeld)
			require.NoError(t, lock.Extend(t.Context(), 5*time.Second))
			pass(4 * time.Second)
			require.ErrorIs(t, try(t, b), redlock.ErrHeld)
			require.Positive(t, lock.Validity())
			pass(time.Second)
			requireLock(t, b)
			for _, n := range c.Nodes() {
				for _, cmd := range n.Log() {
					require.NotContains(t, cmd.Args, "PXAT")
				}
			}
		})
	}
}

func TestPeerRU3_WaiterIsNeverStuckOnAFreeLock(t *testing.T) {
	t.Parallel()
	t.Run("started in an outage", func(t *testing.T) {
		// rueidislock: still blocked 32 s after the servers were back.
		simulated(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
			for _, n := range c.Nodes() {
				n.Stop()
			}
			rl := clientOf(t, c, redlock.Options{TTL: time.Minute})
			waiter := background(func() error { _, err := rl.Mutex(resource).Acquire(t.Context()); return err })
			pass(8 * time.Second)
			for _, n := range c.Nodes() {
				n.Restart(redlocktest.LoseKeys)
			}
			start := time.Now()
			require.NoError(t, <-waiter)
			assert.Less(t, time.Since(start), 5*time.Second)
		})
	})
	t.Run("a round trip of 25 ms", func(t *testing.T) {
		// rueidislock: never acquired with its defaults.
		simulated(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
			for _, n := range c.Nodes() {
				n.Delay(12500 * time.Microsecond)
			}
			assert.NoError(t, requireLock(t, clientOf(t, c, redlock.Options{})).Release(t.Context()))
		})
	})
	t.Run("not allowed", func(t *testing.T) {
		// rueidislock: NOPERM is swallowed, and the caller waits for ever.
		simulated(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
			c.Node(0).Deny("SET")
			c.Node(2).Deny("SET")
			_, err := clientOf(t, c, redlock.Options{}).Mutex(resource).Acquire(t.Context())
			requireNoQuorum(t, err)
			assert.ErrorContains(t, err, "NOPERM")
		})
	})
}

func TestPeerRU4_LostReplyLeavesNoOrphan(t *testing.T) {
	// rueidislock: own key reported as another's and orphaned for 4.9 s, the next waiter 4.99 s.
	t.Parallel()
	f, rl := warmFleet(t, 3, brisk)
	for _, p := range f.proxies {
		p.DropReply(1, faultproxy.DropCut, faultproxy.Named("SET"))
	}
	requireNoQuorum(t, try(t, rl))
	lock := requireAcquire(t, rl) // the keys' minute is longer than its patience
	assert.NoError(t, lock.Release(t.Context()))
	f.requireGone(t, resource)
}

func TestPeerRU5_StuckKeyOnOneNodeIsTolerated(t *testing.T) {
	// rueidislock: a stuck key 0 or 1 of 3 vetoes; only key 2 is tolerated.
	t.Parallel()
	f := startFleet(t, 3)
	for stuck := range 3 {
		rl := f.direct(t, brisk)
		f.plant(t, "stuck", 0, stuck)
		lock := requireLock(t, rl)
		assert.Equal(t, redlock.VoteRefused, waitForVotes(t, lock)[stuck])
		require.NoError(t, lock.Extend(t.Context(), time.Minute))
		require.NoError(t, lock.Release(t.Context()))
		assert.Equal(t, "stuck", f.holders(resource)[stuck])
		f.do(t, f.all(), "FLUSHALL")
	}
}

// waitForVotes returns the votes when none is pending any more.
func waitForVotes(t *testing.T, lock *redlock.Lock) []redlock.Vote {
	t.Helper()
	eventually(t, func() bool { return !slices.Contains(votesOf(lock.Outcomes()), redlock.VotePending) }, "votes are pending")
	return votesOf(lock.Outcomes())
}

func TestPeerRU7_ReleaseIsBoundedAndSaysWhatItKnows(t *testing.T) {
	// rueidislock: cancel took 5.0 s on a hung server and returns nothing; loss has no cause.
	t.Parallel()
	f := startFleet(t, 3)
	rl := f.byDefault(t, redlock.Options{TTL: 2 * time.Second, NodeTimeout: 100 * time.Millisecond})
	released, lost := requireLock(t, rl), requireAcquireOf(t, rl, "another")
	f.requireOn(t, released)
	f.requireOn(t, lost)
	held := lost.Context()
	for _, s := range f.servers {
		require.NoError(t, s.Pause())
	}
	err := promptly(t, func() error { return released.Release(t.Context()) })
	requireNoQuorum(t, err)
	assert.NotContains(t, votesOf(outcomes(t, err)), redlock.VoteGranted)
	assert.NotContains(t, votesOf(outcomes(t, err)), redlock.VoteRefused)

	<-held.Done()
	assert.ErrorIs(t, context.Cause(held), redlock.ErrLost)
	assert.ErrorIs(t, context.Cause(held), redlock.ErrExpired)
	assert.ErrorContains(t, context.Cause(held), "another")
}

func requireAcquireOf(t *testing.T, rl *redlock.Redlock, key string) *redlock.Lock {
	t.Helper()
	lock, err := rl.Mutex(key).TryAcquire(t.Context())
	require.NoError(t, err)
	return lock
}

func TestPeerB1_TokensAreComparedWhole(t *testing.T) {
	// redislock: "worker-10" held; Obtain with the token "worker-1" succeeded.
	t.Parallel()
	f := startFleet(t, 3)
	rl := f.direct(t, brisk)
	lock := requireLock(t, rl)
	ours := f.holders(resource)[0]
	m := rl.Mutex(resource)
	for _, token := range []string{lock.Token()[:31], lock.Token() + "0", "@", ours + "1"} {
		require.ErrorIs(t, m.ForceRelease(t.Context(), token), redlock.ErrNotHeld, "%q", token)
	}
	f.requireOn(t, lock)
	for _, like := range []string{ours[:len(ours)-1], ours + "1", lock.Token(), lock.Token() + "@"} {
		f.plant(t, like, time.Minute, f.all()...)
		lock := lock
		require.ErrorIs(t, lock.Extend(t.Context(), time.Minute), redlock.ErrLost)
		require.ErrorIs(t, lock.Release(t.Context()), redlock.ErrNotHeld)
		assert.Equal(t, []string{like, like, like}, f.holders(resource))
	}
}

func TestPeerB2_TinyTTLIsRefused(t *testing.T) {
	// redislock: a TTL below 1 ms "obtains" nothing, Refresh(0) deletes the key and returns nil.
	t.Parallel()
	simulated(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		rl := clientOf(t, c, redlock.Options{})
		for _, ttl := range []time.Duration{0, 1, time.Microsecond, 999 * time.Microsecond, -time.Second} {
			_, err := rl.Mutex(resource, redlock.WithTTL(ttl)).TryAcquire(t.Context())
			require.ErrorIs(t, err, redlock.ErrInvalid)
			require.ErrorContains(t, err, ttl.String())
		}
		require.Zero(t, c.Commands())
		lock := requireLock(t, rl)
		for _, ttl := range []time.Duration{0, time.Microsecond, -1} {
			require.ErrorIs(t, lock.Extend(t.Context(), ttl), redlock.ErrInvalid)
		}
		synctest.Wait()
		assert.False(t, slices.ContainsFunc(c.Holders(resource), not(lock)))
		require.NoError(t, lock.Extend(t.Context(), 10*time.Second))
	})
}

func TestPeerB3_FailedAcquireLeavesNothing(t *testing.T) {
	// redislock: ctx 100 ms against 300 ms of latency: an error, and the key lived for 9m59s.
	t.Parallel()
	f, rl := warmFleet(t, 1, unhurried)
	f.proxies[0].Delay(0, 300*time.Millisecond)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	lock, err := rl.Mutex(resource).TryAcquire(ctx)
	require.Nil(t, lock)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	eventually(t, func() bool { return f.executed(0, "del") == 2 }, "the SET was not taken back")
	f.requireGone(t, resource)
}

func TestPeerB4_EachAcquireStartsItsBackoffAnew(t *testing.T) {
	// redislock: the first Obtain retried 5 times, the second with the same options never.
	t.Parallel()
	simulated(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		rl := clientOf(t, c, redlock.Options{TTL: 10 * time.Minute})
		_, err := rl.Mutex(unlined).TryAcquire(t.Context())
		require.NoError(t, err)
		m := clientOf(t, c, redlock.Options{}).Mutex(unlined)
		for range 3 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			c.ResetCommands()
			start := time.Now()
			_, err := m.Acquire(ctx)
			cancel()
			require.ErrorIs(t, err, redlock.ErrHeld)
			soon := 0
			for _, cmd := range c.Node(0).Log() {
				if cmd.Args[0] == "SET" && cmd.At.Sub(start) < 50*time.Millisecond {
					soon++
				}
			}
			assert.Greater(t, soon, 2, "attempts in the first 50 ms")
			assert.Greater(t, c.Node(0).Commands("SET"), 100, "attempts in a minute")
		}
	})
}

func TestPeerH_LateReleaseGrantsNothingTwice(t *testing.T) {
	// redsync: A's late release of attempt 1 deleted the keys of its attempt 2, which had the
	// same token; B locked while A was valid for 3.36 s more. 3 of 3 runs.
	t.Parallel()
	f := startFleet(t, 5)
	a, b := f.byDefault(t, brisk), f.direct(t, brisk)
	f.warm(t, a)
	f.resetLogs()
	const late = 300 * time.Millisecond
	for _, p := range f.proxies[:2] {
		p.DelayRequest(1, late, faultproxy.Named("EVALSHA"))
	}
	f.plant(t, "x", time.Minute, 2, 3, 4)
	require.ErrorIs(t, try(t, a), redlock.ErrHeld)
	eventually(t, func() bool { return f.proxies[0].Count("EVALSHA") == 1 && f.proxies[1].Count("EVALSHA") == 1 },
		"attempt 1 was not taken back")
	attempt1 := f.proxies[0].Commands()
	f.do(t, []int{2, 3, 4}, "DEL", resource) // x unlocks
	lock := requireAcquire(t, a)
	require.ErrorIs(t, try(t, b), redlock.ErrHeld)
	waitForVotes(t, lock)

	// And what a network repeats, or delivers over another connection, changes nothing,
	// wherever it goes.
	for _, c := range attempt1 {
		args := make([]any, len(c.Args))
		for j, a := range c.Args {
			args[j] = a
		}
		for _, admin := range f.admins {
			admin.Do(t.Context(), args...)
		}
	}
	held := f.holders(resource)
	assert.False(t, slices.ContainsFunc(held[2:], not(lock)), "%v", held)
	require.ErrorIs(t, try(t, b), redlock.ErrHeld)
	require.NoError(t, lock.Extend(t.Context(), time.Minute))
	require.NoError(t, lock.Release(t.Context()))
}

func TestPeerI_OrphanEndsWhenAHungNodeWakes(t *testing.T) {
	// A SET to a hung node, given up by a deadline and released once: the key lives for its full TTL.
	t.Parallel()
	for name, test := range map[string]struct {
		hung int
		lock func(t *testing.T, rl *redlock.Redlock)
	}{
		"after a release":        {1, func(t *testing.T, rl *redlock.Redlock) { require.NoError(t, promptLock(t, rl).Release(t.Context())) }},
		"after a failed attempt": {3, func(t *testing.T, rl *redlock.Redlock) { requireNoQuorum(t, try(t, rl)) }},
	} {
		t.Run(name, func(t *testing.T) {
			f, rl := warmFleet(t, 5, brisk)
			before := f.executed(0, "set")
			for _, s := range f.servers[:test.hung] {
				require.NoError(t, s.Pause())
			}
			test.lock(t, rl)
			for _, s := range f.servers[:test.hung] {
				require.NoError(t, s.Resume())
			}
			eventually(t, func() bool { return f.executed(0, "set") == before+1 }, "the SET did not arrive")
			f.requireGone(t, resource)
		})
	}
}
