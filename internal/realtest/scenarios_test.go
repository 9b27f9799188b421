package realtest_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/child"
	"github.com/quorumlock/redlock/internal/realredis"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
	o := redlock.Options{TTL: 5 * time.Second, NodeTimeout: time.Second, RestartGuard: -1}
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

// TestBusyProcess is no test of its own: it is the process of the next one. It computes
// for longer than its lease lasts, without a point at which the scheduler could run
// anything else.
func TestBusyProcess(t *testing.T) {
	var addrs []string
	parent := child.Of(t, &addrs)
	rl := openAt(t, addrs, redlock.Options{TTL: childTTL, NodeTimeout: childTTL / 4, RestartGuard: -1})
	const sample = 1 << 26
	began := time.Now()
	compute(sample)
	rounds := int(2 * childTTL * sample / max(time.Since(began), time.Microsecond))

	lock, err := rl.Mutex(resource, redlock.WithRenewal()).Acquire(t.Context())
	require.NoError(t, err)
	ctx := lock.Context()
	parent.Say(t, "held")
	for range 2 {
		compute(rounds)
	}
	parent.Say(t, look(t, lock, ctx))
}

// computed keeps the work from being optimised away.
var computed int

func compute(rounds int) {
	x := 1
	for i := range rounds {
		x = x*31 + i
	}
	computed = x
}

// Scenario 15 in a real process with one processor.
func TestBusyHolderKnowsThatItsLockIsOver(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	busy := child.Start(t, "TestBusyProcess", addrsOf(f.servers), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	busy.Hear(t, new(string))
	ours := requireAcquire(t, f.direct(t, patient))
	var found afterwards
	busy.Hear(t, &found)
	require.Equal(t, allOver, found)
	f.requireOn(t, ours)
	require.NoError(t, ours.Release(t.Context()))
}

// Scenario 34: a TLS handshake that nobody answers is a node that is down, no more.
func TestStalledTLSHandshakeIsLikeAHungNode(t *testing.T) {
	t.Parallel()
	hung := hangingListener(t)
	servers := realredis.StartN(t, 2)
	addrs := append(addrsOf(servers), "rediss://"+hung.Addr().String()+"?skip_verify=true")
	rl, err := redlock.Open(t.Context(), addrs, &unhurried)
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

// Scenario 39: servers that evict keys take locks away. Check says so beforehand, and the
// holder learns of it when it extends.
func TestEvictedLockIsLearntAtTheNextExtend(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, realredis.Args("maxmemory", "3mb", "maxmemory-policy", "allkeys-random"))
	rl := f.direct(t, patient)
	report := check(t, rl)
	for i := range f.servers {
		require.Contains(t, codes(report, i), "critical eviction")
	}
	lock := requireLock(t, rl)
	waitForVotes(t, lock)
	filler := strings.Repeat("x", 1024)
	for _, admin := range f.admins[:2] {
		for i := 0; admin.Exists(t.Context(), resource).Val() > 0; i++ {
			require.Less(t, i, 1000, "the key outlives a million others")
			p := admin.Pipeline()
			for j := range 1000 {
				p.Set(t.Context(), fmt.Sprint("filler-", i, "-", j), filler, 0)
			}
			_, err := p.Exec(t.Context())
			require.NoError(t, err)
		}
	}
	require.Positive(t, lock.Validity(), "nothing has told it")
	err := lock.Extend(t.Context(), time.Minute)
	require.ErrorIs(t, err, redlock.ErrLost)
	require.ErrorIs(t, err, redlock.ErrNotHeld)
}

// Scenario 62, without a line that would put them in order: contenders that ask different
// nodes first split the votes, give back what they have, and come again at different
// times. All are served, after a bounded number of attempts.
func TestSplitVotesAreSettled(t *testing.T) {
	for _, contenders := range []int{5, 20, 50} {
		t.Run(fmt.Sprint(contenders), func(t *testing.T) {
			simulated(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
				var clients []*redlock.Redlock
				for i := range contenders {
					rl, network := separable(t, c, redlock.Options{})
					warm(t, rl)
					for j, p := range network {
						p.Delay(time.Duration((i+j)%5)*time.Millisecond, 0)
					}
					clients = append(clients, rl)
				}
				synctest.Wait()
				c.ResetCommands()
				const hold = 10 * time.Millisecond
				var all sync.WaitGroup
				inside := make(chan struct{}, 1)
				start := time.Now()
				for _, rl := range clients {
					all.Go(func() {
						lock, err := rl.Mutex(unlined).Acquire(t.Context())
						if !assert.NoError(t, err) {
							return
						}
						select {
						case inside <- struct{}{}:
						default:
							t.Error("two holders at once")
						}
						time.Sleep(hold)
						<-inside
						assert.NoError(t, lock.Release(t.Context()))
					})
				}
				all.Wait()
				attempts := float64(c.Commands("SET")) / 5 / float64(contenders)
				t.Logf("%v, %.1f attempts for each grant", time.Since(start), attempts)
				assert.Less(t, time.Since(start), time.Duration(contenders)*10*hold+10*time.Second)
				assert.Less(t, attempts, 30.)
			})
		})
	}
}
