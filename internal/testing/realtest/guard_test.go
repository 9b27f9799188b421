package realtest_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What restarted servers may and may not do, shown on real ones.

// guarded options have leases that outlast a test and timeouts that a busy machine keeps.
func guarded(period time.Duration) redlock.Options {
	o := redlock.Options{TTL: 2 * time.Minute, NodeTimeout: 3 * time.Second, RestartGuard: max(period, 0), NoRestartGuard: period < 0}
	if period > 0 { // which the TTL must not be longer than, or it takes its place
		o.TTL, o.NodeTimeout = min(o.TTL, period), min(o.NodeTimeout, period/4)
	}
	return o
}

// aged waits until all servers say that they are that old.
func (f *fleet) aged(t *testing.T, d time.Duration) {
	t.Helper()
	for _, c := range f.admins {
		eventually(t, func() bool { return uptime(c) >= d+2*time.Second }, "the servers do not grow older")
	}
}

func uptime(c *redis.Client) time.Duration {
	for line := range strings.Lines(c.Info(context.Background(), "server").Val()) {
		if v, ok := strings.CutPrefix(line, "uptime_in_seconds:"); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(v))
			return time.Duration(n) * time.Second
		}
	}
	return -1
}

// holdOnThree has another client hold the resource on the first three of five nodes.
func (f *fleet) holdOnThree(t *testing.T) *redlock.Lock {
	t.Helper()
	holder := f.open(t, guarded(-1))
	f.proxies[3].Refuse()
	f.proxies[4].Refuse()
	lock := requireLock(t, holder)
	eventually(t, func() bool {
		h := f.holders(resource)
		return h[0] != "" && h[1] != "" && h[2] != ""
	}, "the holder does not hold three nodes")
	f.proxies[3].Heal()
	f.proxies[4].Heal()
	return lock
}

func (f *fleet) restart(t *testing.T, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		require.NoError(t, f.servers[i].Restart()) // by kill -9
	}
}

// granted tries until it is granted; the errors on the way are returned.
func granted(t *testing.T, m *redlock.Mutex) (lock *redlock.Lock, errs []error) {
	t.Helper()
	eventually(t, func() bool {
		var err error
		if lock, err = m.TryAcquire(context.Background()); err != nil {
			errs = append(errs, err)
		}
		return err == nil
	}, "never granted")
	return lock, errs
}

// barred tries until the node's vote is barred for its restart. It must not be granted.
func barred(t *testing.T, m *redlock.Mutex, node int) (err error) {
	t.Helper()
	eventually(t, func() bool {
		var lock *redlock.Lock
		if lock, err = m.TryAcquire(context.Background()); err == nil {
			t.Errorf("granted: %v", lock.Outcomes())
			return true
		}
		return says(outcomes(t, err)[node], "votes count from")
	}, "the restart is not noticed")
	return err
}

// barredFor is for how long yet the node is barred.
func barredFor(o redlock.Outcome) time.Duration {
	var b guard.BarredError
	_ = errors.As(o.Err, &b)
	return b.Left
}

func says(o redlock.Outcome, text string) bool {
	return o.Vote == redlock.VoteBarred && o.Err != nil && strings.Contains(o.Err.Error(), text)
}

// bothWays is a client of the library's own and one of a user's, on the servers directly.
func (f *fleet) bothWays(t *testing.T, o redlock.Options, test func(t *testing.T, rl *redlock.Redlock)) {
	t.Run("Open", func(t *testing.T) { test(t, f.direct(t, o)) })
	t.Run("New", func(t *testing.T) { test(t, f.ofUsers(t, o)) })
}

func (f *fleet) ofUsers(t *testing.T, o redlock.Options) *redlock.Redlock {
	t.Helper()
	var clients []redis.UniversalClient
	for _, s := range f.servers {
		clients = append(clients, defaultClient(t, s.Addr()))
	}
	return newOn(t, o, clients...)
}

// Without the guard, a holder's node that forgets makes two holders. This is what the
// guard is for.
func TestWithoutTheGuardARestartGrantsTwice(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	other := f.direct(t, guarded(-1))
	f.warm(t, other)
	first := f.holdOnThree(t)
	require.ErrorIs(t, try(t, other), redlock.ErrHeld)
	f.restart(t, 2)
	second, _ := granted(t, other.Mutex(resource))
	require.Positive(t, first.Validity(), "both hold it")
	require.Positive(t, second.Validity(), "both hold it")
}

// With it, the node is barred for the guard's time, to the clients that saw it before,
// and for no longer.
func TestRestartedNodeIsBarredForTheGuardsTime(t *testing.T) {
	t.Parallel()
	const period = 8 * time.Second
	for _, way := range []string{"Open", "New"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 5)
			f.aged(t, period)
			other := f.direct
			if way == "New" {
				other = f.ofUsers
			}
			rl := other(t, guarded(period))
			f.warmWith(t, rl, period)
			f.holdOnThree(t)
			f.restart(t, 2)
			before := time.Now()
			err := barred(t, rl.Mutex(resource), 2)
			require.ErrorIs(t, err, redlock.ErrNoQuorum)
			require.NotErrorIs(t, err, redlock.ErrHeld)
			require.InDelta(t, 7500*time.Millisecond, barredFor(outcomes(t, err)[2]), float64(time.Second), "the time left is told")
			lock, _ := granted(t, rl.Mutex(resource)) // the guard is shorter than the lease
			require.GreaterOrEqual(t, time.Since(before), period)
			require.Equal(t, redlock.VoteGranted, waitForVotes(t, lock)[2])
		})
	}
}

func TestClientThatStartsAfterTheRestart(t *testing.T) {
	t.Parallel()
	const period = 8 * time.Second
	f := startFleet(t, 5)
	f.aged(t, period)
	f.holdOnThree(t)
	f.restart(t, 2)
	before := time.Now()
	rl, users := f.direct(t, guarded(period)), f.ofUsers(t, guarded(period))
	barred(t, rl.Mutex(resource), 2)
	barred(t, users.Mutex(resource), 2)
	_, _ = granted(t, rl.Mutex(resource))
	// The server is up to a moment older than the restart's return.
	require.GreaterOrEqual(t, time.Since(before), period-500*time.Millisecond)
}

// The default guard is the newcomer's own TTL. It must not be shorter than the holder's,
// and a longer one bars nodes for itself alone.
func TestDefaultGuardIsTheLocksOwnTTL(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	f.aged(t, 2*time.Second)
	rl := f.direct(t, guarded(0))
	f.warm(t, rl)
	f.restart(t, 2)
	short := rl.Mutex("short", redlock.WithTTL(12*time.Second+time.Millisecond))
	for _, ttl := range []time.Duration{24 * time.Hour, time.Hour} {
		eventually(t, func() bool {
			lock, err := rl.Mutex("long", redlock.WithTTL(ttl)).TryAcquire(context.Background())
			if err != nil {
				return false
			}
			defer lock.Release(context.Background())
			waitForVotes(t, lock)
			left := barredFor(lock.Outcomes()[2])
			return left > ttl-time.Minute && left <= ttl
		}, "not barred for the long one")
	}
	eventually(t, func() bool {
		lock, err := short.TryAcquire(context.Background())
		if err != nil {
			return false
		}
		defer lock.Release(context.Background())
		return waitForVotes(t, lock)[2] == redlock.VoteGranted
	}, "the short lock's time does not come")
}

// A set of nodes that starts for the first time grants at once, unless the guard is
// fixed.
func TestFirstStartOfAllNodes(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	f.bothWays(t, guarded(0), func(t *testing.T, rl *redlock.Redlock) {
		lock := requireLock(t, rl)
		require.NotContains(t, waitForVotes(t, lock), redlock.VoteBarred)
		require.NoError(t, lock.Release(t.Context()))
		f.requireGone(t, resource)
	})
	f.bothWays(t, guarded(time.Hour), func(t *testing.T, rl *redlock.Redlock) {
		err := try(t, rl)
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		votes := outcomes(t, err) // of which those that came after the decision may be pending
		first := slices.IndexFunc(votes, func(o redlock.Outcome) bool { return o.Vote == redlock.VoteBarred })
		require.GreaterOrEqual(t, first, 0)
		require.InDelta(t, time.Hour, barredFor(votes[first]), float64(time.Minute))
		f.requireGone(t, resource) // what was granted and not counted is taken back
	})
}

func TestThreeOfFiveRestartedWhileTwoAreOld(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	o := guarded(0)
	o.TTL = 4 * time.Second
	o.NodeTimeout = time.Second
	f.warm(t, f.direct(t, o))
	f.aged(t, o.TTL)
	before := time.Now()
	f.restart(t, 0, 1, 2)
	f.bothWays(t, o, func(t *testing.T, rl *redlock.Redlock) {
		require.ErrorIs(t, barred(t, rl.Mutex(resource), 0), redlock.ErrNoQuorum)
	})
	rl := f.ofUsers(t, o)
	_, _ = granted(t, rl.Mutex(resource))
	require.GreaterOrEqual(t, time.Since(before), o.TTL-time.Second)
}

// A node that kept its keys says so by refusing, which counts at once; its grants wait,
// because nothing tells how much it kept.
func TestRestartWithAppendOnlyFile(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5, realredis.AOF("always"))
	f.aged(t, time.Second)
	rl := f.direct(t, guarded(time.Hour))
	users := f.direct(t, guarded(-1))
	first := f.holdOnThree(t)
	f.restart(t, 2)
	eventually(t, func() bool {
		lock, err := users.Mutex(resource).TryAcquire(context.Background())
		require.Nil(t, lock)
		return votesOf(outcomes(t, err))[2] == redlock.VoteRefused
	}, "the key is lost")
	require.Positive(t, first.Validity())
	_ = rl
}

// A replica that is promoted behind the same address may lack the latest locks, and is
// old.
func TestPromotedReplicaIsBarred(t *testing.T) {
	t.Parallel()
	const period = 8 * time.Second
	for _, way := range []string{"Open", "New"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 5)
			other := realredis.Start(t)
			f.aged(t, period)
			admin := other.Client(t, impatient)
			eventually(t, func() bool { return uptime(admin) > period+2*time.Second }, "not old enough")
			rl := f.open(t, guarded(period))
			if way == "New" {
				rl = f.byDefault(t, guarded(period))
			}
			f.warmWith(t, rl, period)
			f.holdOnThree(t)
			f.proxies[2].SetUpstream(func(ctx context.Context) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "tcp", other.Addr())
			})
			f.proxies[2].Cut()
			before := time.Now()
			barred(t, rl.Mutex(resource), 2)
			_, _ = granted(t, rl.Mutex(resource))
			require.GreaterOrEqual(t, time.Since(before), period)
		})
	}
}

// A node that restarts again and again is barred all the time, and the others go on.
func TestFlappingNode(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]func(*fleet, *testing.T, redlock.Options) *redlock.Redlock{
		"Open": func(f *fleet, t *testing.T, o redlock.Options) *redlock.Redlock { return f.direct(t, o) }, "New": (*fleet).ofUsers,
	} {
		t.Run(name, func(t *testing.T) {
			f := startFleet(t, 5) // of its own: who comes later finds the node's mark
			rl := way(f, t, guarded(0))
			f.warm(t, rl)
			for range 3 {
				f.restart(t, 2)
				eventually(t, func() bool {
					lock, err := rl.Mutex(resource).TryAcquire(context.Background())
					require.NoError(t, err)
					defer lock.Release(context.Background())
					return waitForVotes(t, lock)[2] == redlock.VoteBarred && says(lock.Outcomes()[2], "votes count from")
				}, "the restart is not noticed")
			}
		})
	}
}

// A restart bars grants alone: a held lock is extended and released.
func TestExtendAndReleaseGoOnAtABarredNode(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	rl := f.direct(t, guarded(0))
	f.warm(t, rl)
	lock := requireLock(t, rl)
	waitForVotes(t, lock)
	f.restart(t, 0)
	eventually(t, func() bool {
		require.NoError(t, lock.Extend(t.Context(), time.Minute))
		return f.holders(resource)[0] != ""
	}, "the key is not put back")
	require.NoError(t, lock.Release(t.Context()))
	f.requireGone(t, resource)
}

// New does no I/O, so the same server twice is found out by the first attempts. Its second
// name has no vote, and here the first alone is no quorum.
func TestNewRefusesTheSameServerTwiceOnceSeen(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 1)
	rl := newOn(t, guarded(0), defaultClient(t, f.servers[0].Addr()), defaultClient(t, "localhost:"+port(t, f.servers[0].Addr())))
	eventually(t, func() bool {
		lock, err := rl.Mutex(resource).TryAcquire(context.Background())
		if err == nil {
			_ = lock.Release(context.Background())
			return false
		}
		// The first of the two that is asked may refuse what the second has just been given,
		// before it is known who the second is.
		return errors.Is(err, redlock.ErrDuplicateNode) || !assert.ErrorIs(t, err, redlock.ErrHeld)
	}, "not found out")
	_, err := rl.Mutex(resource).Acquire(t.Context())
	require.ErrorIs(t, err, redlock.ErrDuplicateNode, "no waiting mends it")
	f.requireGone(t, resource)
}

func port(t *testing.T, addr string) string {
	_, p, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	return p
}

// A user's pool of one connection is never kept from the user.
func TestGuardLeavesAPoolOfOneAlone(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	var clients []redis.UniversalClient
	for _, s := range f.servers {
		clients = append(clients, defaultClient(t, s.Addr(), func(o *redis.Options) { o.PoolSize = 1 }))
	}
	rl := newOn(t, guarded(0), clients...)
	f.warm(t, rl)
	for range 3 {
		lock := promptLock(t, rl)
		for _, c := range clients {
			require.NoError(t, promptly(t, func() error { return c.Set(context.Background(), "a", 1, 0).Err() }))
		}
		require.NoError(t, lock.Release(t.Context()))
		f.requireGone(t, resource)
	}
	// The user's own blocking command takes the connection.
	block := background(func() error { return clients[0].BLPop(context.Background(), 0, "list").Err() })
	eventually(t, func() bool { return clients[0].(*redis.Client).PoolStats().IdleConns == 0 }, "not blocked")
	lock := promptLock(t, rl)
	require.NoError(t, lock.Release(t.Context()))
	require.NoError(t, f.admins[0].RPush(t.Context(), "list", 1).Err())
	require.NoError(t, await(t, block))
}

// INFO goes over each connection ahead of its first request, and then no more often than a node is
// looked at.
func TestInfoIsReadOncePerConnection(t *testing.T) {
	t.Parallel()
	startFleet(t, 3).eachWay(t, guarded(0), func(t *testing.T, f *fleet, rl *redlock.Redlock) {
		f.warm(t, rl)
		f.resetLogs()
		before := time.Now()
		for range 20 {
			lock := requireLock(t, rl)
			require.NoError(t, lock.Release(t.Context()))
		}
		infos, fresh := f.counts("INFO"), f.counts("TIME") // a busy machine makes it connect again
		looks := 1 + int(time.Since(before)/time.Second)
		for i, n := range infos {
			require.LessOrEqual(t, n, 2*looks+3*fresh[i], "with %d looks and %d connections", looks, fresh[i])
		}
	})
}

// Scenario 36: two of the three nodes that a lock rests on lose it. The guard keeps them
// from voting until it is over.
func TestTwoOfThreeHoldingNodesRestart(t *testing.T) {
	t.Parallel()
	o := redlock.Options{TTL: 4 * time.Second, NodeTimeout: time.Second}
	f := startFleet(t, 5)
	f.aged(t, o.TTL)
	rl := f.direct(t, o)
	f.warm(t, rl)
	holder := f.open(t, o)
	f.warm(t, holder)
	f.proxies[3].Refuse()
	f.proxies[4].Refuse()
	lock := requireLock(t, holder)
	waitForVotes(t, lock)
	f.restart(t, 1, 2)
	_, refused := granted(t, rl.Mutex(resource))
	require.LessOrEqual(t, lock.Validity(), time.Duration(0), "never two at a time")
	require.NotEmpty(t, refused)
}
