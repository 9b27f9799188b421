package realtest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// Stories in which a fleet's first use was inferred from the nodes seen so far: each left two holders, or
// no lock at all, while never more than one node forgot within the guard's period.

// storyOptions keep the lease of the first holder until a newcomer was told no.
var storyOptions = redlock.Options{TTL: 4 * time.Second, NodeTimeout: 800 * time.Millisecond}

// storyHold has the client hold the key on these servers and no others, for the TTL of all.
func storyHold(t *testing.T, p *convPath, rl *redlock.Redlock, nodes ...int) *redlock.Lock {
	t.Helper()
	p.refuse(p.fleet.others(nodes)...)
	lock, _ := convTry(t, rl.Mutex(convKey))
	for i, v := range p.fleet.held(convKey) {
		require.Equal(t, v != "", i == nodes[0] || i == nodes[1], "node %d", i)
	}
	return lock
}

// storyNewcomer is a client that has met no node. It hears of node 0 first, and of node 2 last.
func storyNewcomer(t *testing.T, f *convFleet) *redlock.Mutex {
	t.Helper()
	p := f.path(t)
	p.proxies[1].Delay(5*time.Millisecond, 5*time.Millisecond)
	p.proxies[2].Delay(50*time.Millisecond, 50*time.Millisecond)
	return p.users(t, storyOptions).Mutex(convKey)
}

// storyEnds has the newcomer try while the first lease lasts, and get the lock when the guard lets it.
func storyEnds(t *testing.T, first *redlock.Lock, m *redlock.Mutex) {
	t.Helper()
	var says error
	for first.Validity() > 0 {
		second, err := m.TryAcquire(t.Context())
		if left := first.Validity(); err == nil && left > 0 {
			require.Fail(t, "two holders", "with %v and %v left; the votes: %v", left, second.Validity(), second.Outcomes())
		}
		if says == nil {
			says = err
		}
	}
	t.Log(says)
	_, _ = convTry(t, m)
}

func TestNewcomerAfterAMarkWasDeletedAndANodeFlushed(t *testing.T) {
	t.Parallel()
	f := convStart(t, 3)
	p := f.path(t)
	holder := p.open(t, storyOptions)
	convWarm(t, f, holder)
	convAge(t, storyOptions.TTL, f.admins...) // and with the servers the marks
	m := storyNewcomer(t, f)
	first := storyHold(t, p, holder, 0, 1)
	require.NoError(t, f.admins[0].Del(t.Context(), "redlock:memory").Err())
	require.NoError(t, f.admins[1].FlushAll(t.Context()).Err())
	storyEnds(t, first, m)
}

func TestNewcomerBeforeTheThirdNodeAnswers(t *testing.T) {
	t.Parallel()
	f := convStart(t, 3)
	p := f.path(t)
	holder := p.open(t, storyOptions)
	convWarm(t, f, holder)
	p.refuse(0)
	require.NoError(t, f.servers[0].Restart())
	convAge(t, storyOptions.TTL, f.admins...)
	m := storyNewcomer(t, f)
	first := storyHold(t, p, holder, 1, 2)
	require.NoError(t, f.admins[1].FlushAll(t.Context()).Err())
	storyEnds(t, first, m)
}

// With a TTL shorter than the second in which a server tells its age, servers that are restarted one after
// the other look as if they had been started together.
func TestNodesRestartedOneAtATimeWithAShortTTL(t *testing.T) {
	t.Parallel()
	o := redlock.Options{TTL: 500 * time.Millisecond, NodeTimeout: 100 * time.Millisecond}
	for _, apart := range []time.Duration{550 * time.Millisecond, 2050 * time.Millisecond} {
		t.Run(fmt.Sprint(apart), func(t *testing.T) {
			t.Parallel()
			f := convStart(t, 3)
			for round := range 2 {
				p := f.path(t)
				holder := p.open(t, o)
				convAge(t, 2*time.Second, f.admins...)
				convWarm(t, f, holder)
				p.refuse(0)
				require.NoError(t, f.servers[0].Restart())
				convPause(apart)
				require.NoError(t, f.servers[1].Restart())
				restarted := time.Now()
				var first *redlock.Lock
				for first == nil && time.Since(restarted) < apart+o.TTL/4 {
					first, _ = holder.Mutex(convKey).TryAcquire(t.Context())
				}
				if first == nil {
					continue // no holder, none that could be a second one
				}
				convPause(time.Until(restarted.Add(apart)))
				require.NoError(t, f.servers[2].Restart())
				newcomer := f.path(t).users(t, o).Mutex(convKey)
				for first.Validity() > 0 {
					second, err := newcomer.TryAcquire(t.Context())
					if left := first.Validity(); err == nil && left > 0 {
						require.Fail(t, "two holders", "round %d, with %v and %v left; the votes: %v", round, left, second.Validity(), second.Outcomes())
					}
				}
			}
		})
	}
}

// A server draws a replication id when its first replica comes, and another one some time after the last has
// gone. A client that was idle meanwhile hears of neither, and finds a mark that another one bound to the
// first.
func TestReplicationIDIsDrawnTwiceWhileAClientIsIdle(t *testing.T) {
	t.Parallel()
	o := convGuarded
	f := convStart(t, 3, realredis.Args("repl-backlog-ttl", "1", "repl-diskless-sync-delay", "0"))
	idle, other := f.direct().open(t, o), f.direct().open(t, o)
	convWarm(t, f, idle)
	convWarm(t, f, other)
	convAge(t, o.TTL, f.admins...)
	id := func(i int) string { return convInfo(f.admins[i], "replication", "master_replid") }
	var replicas []*realredis.Server
	var first []string
	for i := range 2 {
		before := id(i)
		replicas = append(replicas, realredis.Start(t, realredis.ReplicaOf(f.servers[i])))
		first = append(first, id(i))
		require.NotEqual(t, before, first[i])
		convDisconnect(t, f.admins[i])
	}
	convEventually(t, func() bool {
		if lock, err := other.Mutex("other").TryAcquire(context.Background()); err == nil {
			_ = lock.Release(context.Background())
		}
		bound := func(i int) bool {
			return slices.Contains(strings.Fields(f.admins[i].Get(context.Background(), "redlock:memory").Val()), first[i])
		}
		return bound(0) && bound(1)
	}, "the marks are not bound to the new ids")
	for i, replica := range replicas {
		replica.Kill()
		convEventually(t, func() bool { return id(i) != first[i] }, "no second id is drawn")
		convDisconnect(t, f.admins[i])
	}
	start := time.Now()
	for {
		_, err := idle.Mutex(convKey).TryAcquire(t.Context())
		if err == nil {
			break
		}
		require.Less(t, time.Since(start), 20*time.Second, "no lock with all nodes up: %v", err)
		convPause(20 * time.Millisecond)
	}
	t.Log(time.Since(start))
}

// convDisconnect ends all connections of clients but this one.
func convDisconnect(t *testing.T, admin *redis.Client) {
	t.Helper()
	require.NoError(t, admin.Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Err())
}

// Servers that have just been started know no script, and attempts of other keys keep the lanes busy, so what an attempt that was
// barred has set is gone a moment later than the next one comes. That refuses nobody: at a first use one attempt is enough.
func TestFirstAttemptsOnANewFleetAreNotRefusedByTheirOwnKeys(t *testing.T) {
	t.Parallel()
	f := convStart(t, 3)
	p := f.path(t)
	for _, proxy := range p.proxies {
		proxy.Delay(2*time.Millisecond, 2*time.Millisecond)
	}
	for round := range 5 {
		for _, c := range f.admins {
			require.NoError(t, c.FlushAll(t.Context()).Err())
			require.NoError(t, c.ScriptFlush(t.Context()).Err())
		}
		rl, err := newOf(p.clients(t), &redlock.Options{TTL: time.Minute, NodeTimeout: 10 * time.Second})
		require.NoError(t, err)
		var group errgroup.Group
		for n := range 8 {
			group.Go(func() error {
				time.Sleep(time.Duration(n) * 500 * time.Microsecond) // so that the lanes are busy
				_, err := rl.Mutex(fmt.Sprint("key-", n)).TryAcquire(t.Context())
				return err
			})
		}
		require.NoError(t, group.Wait(), "round %d", round)
		require.NoError(t, rl.Close())
	}
}

// One attempt that reaches all nodes starts a new fleet, whatever becomes of its call: this one is refused at once. Otherwise
// the nodes would vote a guard's time later for those that come next.
func TestFleetStartsThoughItsFirstCallHasGivenUp(t *testing.T) {
	t.Parallel()
	f := convStart(t, 3)
	for _, c := range f.admins {
		require.NoError(t, c.FlushAll(t.Context()).Err())
		require.NoError(t, c.Set(t.Context(), convKey, "of another", time.Minute).Err())
	}
	rl, err := newOf(f.path(t).clients(t), &redlock.Options{TTL: time.Minute, NodeTimeout: 10 * time.Second})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	_, err = rl.Mutex(convKey).TryAcquire(t.Context())
	require.ErrorIs(t, err, redlock.ErrHeld)
	convEventually(t, func() bool {
		return !slices.ContainsFunc(f.admins, func(c *redis.Client) bool {
			return !strings.Contains(c.Get(context.Background(), "redlock:memory").Val(), "all3")
		})
	}, "the nodes were not told that all of them are new")
}
