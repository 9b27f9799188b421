package realtest_test

import (
	"context"
	"net"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Failures of other lock libraries that were measured or read in their code. Each test
// names the library, and in its first line what was seen there. RS is redsync v4.18,
// RU rueidislock v1.0, B bsm/redislock v0.9.

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
	ctx, cancel := context.WithTimeout(t.Context(), 2*brisk.NodeTimeout) // in which a whole attempt fails
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
		p.Delay(time.Second, 0)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	acquired := background(func() error { _, err := rl.Mutex(resource).Acquire(ctx); return err })
	eventually(t, func() bool { return slices.Equal(f.counts("SET"), []int{1, 1, 1}) }, "the SETs were not sent")
	cancel()
	require.ErrorIs(t, await(t, acquired), context.Canceled)

	eventually(t, func() bool {
		return f.deleted(0) >= 2 && f.deleted(1) >= 2 && f.deleted(2) >= 2
	},
		"the SETs were not taken back") // once by the warm-up
	f.requireGone(t, resource)
	assert.Equal(t, []int{1, 1, 1}, f.counts("SET"))
}

func TestPeerRS5_ReleaseWithADeadContextReleases(t *testing.T) {
	// redsync: UnlockContext(cancelled) released nothing; PTTL 8 s.
	t.Parallel()
	f := startFleet(t, 3)
	lock := requireLock(t, f.byDefault(t, unhurried))
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, lock.Release(dead))
	f.requireGone(t, resource)
}

func TestPeerRS7_AcquireOutlivesACrashedHolder(t *testing.T) {
	// redsync: its 32 tries end after 4.35 s, the default lease after 8 s.
	t.Parallel()
	bubble.Run(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
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
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
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
			synctest.Wait() // the third node has it, too: its request would come after what takes it away
			takeAway(t, rl, resource)
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
			bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
				test(t, c, clientOf(t, c, redlock.Options{TTL: time.Second}))
			})
		})
	}
}

func TestPeerRS10_ErrorsTellHeldFromOutageFromCancelled(t *testing.T) {
	// redsync: ErrFailed for a cancelled ctx and without its error; "lock already taken" from Unlock.
	t.Parallel()
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
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

	before := ownGoroutines()
	for range 300 {
		require.NoError(t, promptLock(t, rl).Release(t.Context()))
	}
	requireNoGoroutinesLeft(t, before)
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
			f, rl := warmFleet(t, 1, redlock.Options{TTL: 2 * time.Second, NodeTimeout: 500 * time.Millisecond})
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
	bubble.Run(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
		rl := clientOf(t, c, redlock.Options{TTL: time.Second})
		warm(t, rl, time.Minute)

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
			assert.LessOrEqual(t, n.Commands(), 2, "the SET, and the look at the mark behind it: %v", n.Log())
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
		p.DelayRequest(1, late, faultproxy.Named(toRelease...))
	}
	f.plant(t, "x", time.Minute, 2, 3, 4)
	for _, p := range f.proxies[2:] { // their refusals decide the attempt, and then nothing more of it is sent
		p.Freeze()
	}
	first := background(func() error {
		_, err := a.Mutex(resource).TryAcquire(t.Context())
		return err
	})
	eventually(t, func() bool { return f.proxies[0].Count("SET") == 1 && f.proxies[1].Count("SET") == 1 }, "attempt 1 was not sent")
	for _, p := range f.proxies[2:] {
		p.Resume()
	}
	require.ErrorIs(t, await(t, first), redlock.ErrHeld)
	eventually(t, func() bool { return f.proxies[0].Count(toRelease...) == 1 && f.proxies[1].Count(toRelease...) == 1 },
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
