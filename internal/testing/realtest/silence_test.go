package realtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Flows that a firewall, a NAT gateway or a load balancer has forgotten: what is sent on
// them is lost and nobody is told, while new connections work at once.

// convSilent options make a batch that is not answered cost fifteen seconds if it is read for
// as long as a lease lasts.
var convSilent = redlock.Options{TTL: 15 * time.Second, NodeTimeout: 600 * time.Millisecond, NoRestartGuard: true}

// forget makes all flows of some nodes silent.
func (p *convPath) forget(t *testing.T, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		require.NotZero(t, p.proxies[i].Forget(), "there was no flow to node %d", i)
	}
}

// convSoon is more than seven node timeouts of convSilent. Two and a round trip are promised
// to clients of Open, one more for each dead idle connection to those of New.
const convSoon = 4500 * time.Millisecond

// Row 73: the service is back at once, and the lock that renews itself is kept. Without
// that, batches are read for as long as a lease lasts before their connections are given up.
func TestFlowsThatWentSilentAreReplaced(t *testing.T) {
	t.Parallel()
	convEachWay(t, func(t *testing.T, way convWay) {
		_, p, rl := way.warm(t, 5, convSilent)
		p.forget(t, 0, 1, 2, 3, 4)
		_, took := convTry(t, rl.Mutex("other"))
		t.Logf("the next lock after %v", took)
		require.Less(t, took, convSoon)
	})
}

// Row 73: each idle connection of a user's pool may be as dead as the one that was in use,
// and costs a node timeout at most to find that out.
func TestDeadIdleConnectionsOfAUsersPoolAreGotRidOf(t *testing.T) {
	t.Parallel()
	const idle = 5
	f := convStart(t, 5)
	p := f.path(t)
	clients := p.clients(t)
	rl, err := newOf(clients, &convSilent)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	convWarm(t, f, rl)
	for _, c := range clients {
		var taken []*redis.Conn
		for range idle {
			taken = append(taken, c.(*redis.Client).Conn())
			require.NoError(t, taken[len(taken)-1].Ping(t.Context()).Err())
		}
		for _, conn := range taken {
			require.NoError(t, conn.Close())
		}
	}
	p.forget(t, 0, 1, 2, 3, 4)
	_, took := convTry(t, rl.Mutex("other"))
	t.Logf("the next lock after %v", took)
	require.Less(t, took, convSoon+idle*convSilent.NodeTimeout)
}

// Row 73: a lock that renews itself is kept.
func TestRenewedLockSurvivesSilentFlows(t *testing.T) {
	t.Parallel()
	convEachWay(t, func(t *testing.T, way convWay) {
		_, p, rl := way.warm(t, 5, convSilent)
		lock, err := rl.Mutex(convKey, redlock.WithRenewal()).TryAcquire(t.Context())
		require.NoError(t, err)
		granted := lock.Until()
		p.forget(t, 0, 1, 2, 3, 4)
		convEventually(t, func() bool { return lock.Until().After(granted) || lock.Context().Err() != nil },
			"neither renewed nor lost")
		require.NoError(t, context.Cause(lock.Context()), "the lock is lost")
		require.NoError(t, lock.Release(t.Context()))
	})
}

// Row 73: a waiter hears of a release although the connection on which it would have been
// told is silent, too.
func TestWaiterOutlivesSilentFlows(t *testing.T) {
	t.Parallel()
	convEachWay(t, func(t *testing.T, way convWay) {
		f, p, rl := way.warm(t, 5, convSilent)
		holder := way.make(f.path(t), t, convSilent)
		lock, err := holder.Mutex(convKey, redlock.WithTTL(time.Minute)).TryAcquire(t.Context())
		require.NoError(t, err)

		m := rl.Mutex(convKey)
		served := make(chan error, 1)
		go func() {
			lock, err := m.Acquire(t.Context())
			if err == nil {
				err = lock.Release(t.Context())
			}
			served <- err
		}()
		convEventually(t, func() bool {
			s, err := operator(t, holder).Inspect(context.Background(), convKey)
			return err == nil && len(s.Waiters) == 1
		}, "the waiter is not in line")
		p.forget(t, 0, 1, 2, 3, 4)
		require.NoError(t, lock.Release(t.Context()))
		begin := time.Now()
		require.NoError(t, <-served)
		t.Logf("served after %v", time.Since(begin))
		// Nobody can tell it: it finds out by timers, of joins that may take longer than others.
		require.Less(t, time.Since(begin), 2*convSoon)
	})
}

// Row 74: where one flow of five is silent, nobody feels it, and the node votes again
// soon.
func TestOneSilentFlowIsNotFelt(t *testing.T) {
	t.Parallel()
	convEachWay(t, func(t *testing.T, way convWay) {
		_, p, rl := way.warm(t, 5, convSilent)
		held, err := rl.Mutex("held", redlock.WithRenewal()).TryAcquire(t.Context())
		require.NoError(t, err)
		p.forget(t, 2)
		begin := time.Now()
		m := rl.Mutex(convKey)
		for {
			cycle := time.Now()
			lock, err := m.TryAcquire(t.Context())
			require.NoError(t, err)
			require.Less(t, time.Since(cycle), convSoon, "an acquire waited for the silent node")
			vote := convVotes(lock)[2]
			require.NoError(t, lock.Release(t.Context()))
			if vote == redlock.VoteGranted {
				break
			}
			require.Less(t, time.Since(begin), convSoon, "node 2 does not vote")
		}
		t.Logf("node 2 votes after %v", time.Since(begin))
		require.NoError(t, held.Context().Err())
		require.NoError(t, held.Release(t.Context()))
	})
}

// Row 73: connections that the servers have closed cost nothing: the next attempt succeeds,
// without another one.
func TestConnectionsClosedByTheServers(t *testing.T) {
	t.Parallel()
	convEachWay(t, func(t *testing.T, way convWay) {
		f := convStart(t, 5)
		o := redlock.Options{TTL: time.Minute, NodeTimeout: 10 * time.Second, NoRestartGuard: true}
		rl := way.make(f.direct(), t, o) // a proxy would pass the end on a little later
		convWarm(t, f, rl)
		rounds, idle := 10, 110*time.Millisecond // for longer than a health check may be spared
		if way.name == "New" {
			// A user's connection that was in use within the last second is kept out of its
			// pool, and nobody can see that it was closed.
			rounds, idle = 4, 1200*time.Millisecond
		}
		for round := range rounds {
			for _, c := range f.admins {
				require.NoError(t, c.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
			}
			if round%2 == 1 || way.name == "New" {
				convPause(idle)
			}
			lock, err := rl.Mutex(convKey).TryAcquire(t.Context())
			require.NoError(t, err, "round %d", round)
			require.NoError(t, lock.Release(t.Context()))
		}
	})
}
