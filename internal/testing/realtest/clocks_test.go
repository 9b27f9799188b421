package realtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/clockshim"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// shim returns what starts a server under a clock that can be set, and what sets it.
func shim(t *testing.T) (realredis.Option, func(time.Duration)) {
	t.Helper()
	realredis.Need(t)
	s, err := clockshim.Compile(t.Context(), t.TempDir())
	if err != nil {
		t.Skip("cannot shift a server's clock: ", err)
	}
	return realredis.Env(s.Env()...), func(d time.Duration) { require.NoError(t, s.Step(d)) }
}

// stepped waits until a server's clock is off by about d.
func stepped(t *testing.T, c *redis.Client, d time.Duration) {
	t.Helper()
	eventually(t, func() bool {
		now, err := c.Time(context.Background()).Result()
		off := time.Until(now) - d
		return err == nil && off.Abs() < time.Minute
	}, "the shim does not step the clock")
}

// A node whose clock is set is not one that was restarted, and one that was restarted is
// not let off because its clock makes it look old.
func TestClockStepsOfANodeAreNoRestarts(t *testing.T) {
	t.Parallel()
	env, step := shim(t)
	f := startFleet(t, 3, env) // the same step for all
	o := guarded(0)
	o.TTL, o.NodeTimeout = 4*time.Second, time.Second
	f.aged(t, o.TTL)
	rl := f.byDefault(t, o)
	f.warm(t, rl)
	for _, d := range []time.Duration{time.Hour, -time.Hour} {
		step(d)
		for i := range f.servers {
			stepped(t, f.admins[i], d)
			f.proxies[i].Cut() // so that INFO is read again
		}
		eventually(t, func() bool {
			lock, err := rl.Mutex(resource).TryAcquire(context.Background())
			if err != nil {
				require.NotContains(t, err.Error(), "votes count from")
				return false
			}
			waitForVotes(t, lock)
			_ = lock.Release(context.Background())
			return !says(lock.Outcomes()[0], "votes count from")
		}, "no lock after the step")
	}
	step(0)
	f.restart(t, 0)
	step(time.Hour)
	stepped(t, f.admins[0], time.Hour)
	require.Greater(t, uptime(f.admins[0]), time.Minute)
	eventually(t, func() bool {
		lock, err := rl.Mutex(resource).TryAcquire(context.Background())
		if err != nil {
			return false
		}
		waitForVotes(t, lock)
		_ = lock.Release(context.Background())
		return says(lock.Outcomes()[0], "votes count from")
	}, "the restart is not noticed behind the step")
}

// Scenario 6: a node whose clock jumps forward loses its keys early. One of them is a
// minority, which changes nothing; a majority at once is an assumption.
func TestNodeWhoseClockJumpsForward(t *testing.T) {
	t.Parallel()
	env, step := shim(t)
	f := startFleet(t, 2)
	odd := realredis.Start(t, env)
	f.servers = append(f.servers, odd)
	f.proxies = append(f.proxies, proxyFor(t, odd))
	f.admins = append(f.admins, odd.Client(t, impatient))
	rl := f.direct(t, guarded(0))
	lock := requireLock(t, rl)
	waitForVotes(t, lock)
	step(time.Hour)
	eventually(t, func() bool { return f.holders(resource)[2] == "" }, "the key outlives the step")
	require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
	require.NoError(t, lock.Extend(t.Context(), time.Minute))
	f.requireOn(t, lock)
	require.NoError(t, lock.Release(t.Context()))
	f.requireGone(t, resource)
}

// Scenario 7: a node whose clock is set back keeps a key for too long, and holds nobody
// up.
func TestNodeWhoseClockIsSetBack(t *testing.T) {
	t.Parallel()
	env, step := shim(t)
	f := startFleet(t, 2)
	odd := realredis.Start(t, env)
	f.servers = append(f.servers, odd)
	f.admins = append(f.admins, odd.Client(t, impatient))
	o := guarded(0)
	o.TTL, o.NodeTimeout = 2*time.Second, 500*time.Millisecond
	f.plant(t, "another", o.TTL, 0, 1, 2)
	step(-time.Hour)
	stepped(t, f.admins[2], -time.Hour)
	rl := f.direct(t, o)
	lock := requireAcquire(t, rl)
	require.Greater(t, f.admins[2].PTTL(t.Context(), resource).Val(), 50*time.Minute, "the planted key is still there")
	require.NoError(t, lock.Release(t.Context()))
}

// Scenario 6, and why it is an assumption: where a majority of clocks jumps at once, keys
// are gone before their time, nobody can see it, and there are two holders until the
// first one asks.
func TestMajorityOfClocksThatJumpsEndsLeasesEarly(t *testing.T) {
	t.Parallel()
	env, step := shim(t)
	f := startFleet(t, 3, env)
	first := requireLock(t, f.direct(t, patient))
	waitForVotes(t, first)
	rl := f.direct(t, patient)
	require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
	step(time.Hour)
	for _, admin := range f.admins {
		stepped(t, admin, time.Hour)
	}
	second := requireAcquire(t, rl)
	require.Positive(t, first.Validity(), "it cannot know")
	require.ErrorIs(t, first.Extend(t.Context(), time.Minute), redlock.ErrLost)
	require.ErrorIs(t, first.Release(t.Context()), redlock.ErrNotHeld)
	f.requireOn(t, second)
	require.NoError(t, second.Release(t.Context()))
}

// Scenario 10, on real servers: clocks that are six seconds off change nothing of a
// lease of five.
func TestServersWhoseClocksAreOffKeepTheLease(t *testing.T) {
	t.Parallel()
	env, step := shim(t)
	f := startFleet(t, 3, env)
	o := redlock.Options{TTL: 5 * time.Second, NodeTimeout: time.Second, NoRestartGuard: true}
	a, b := f.direct(t, o), f.direct(t, o)
	for _, off := range []time.Duration{6 * time.Second, -6 * time.Second} {
		step(off)
		for _, admin := range f.admins {
			eventually(t, func() bool {
				now, err := admin.Time(context.Background()).Result()
				return err == nil && (time.Until(now)-off).Abs() < time.Second
			}, "the shim does not step the clock")
		}
		lock := requireAcquire(t, a)
		waitForVotes(t, lock)
		for _, admin := range f.admins {
			left := admin.PTTL(t.Context(), resource).Val()
			require.LessOrEqual(t, left, o.TTL)
			require.GreaterOrEqual(t, left, lock.Validity())
		}
		require.ErrorIs(t, try(t, b), redlock.ErrHeld)
		require.NoError(t, lock.Extend(t.Context(), o.TTL))
		require.ErrorIs(t, try(t, b), redlock.ErrHeld)
		require.NoError(t, lock.Release(t.Context()))
		f.requireGone(t, resource)
	}
}
