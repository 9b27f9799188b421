package realtest_test

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What goes over the wire, counted between clients and real servers.

// retrying is what would make go-redis send things again.
func retrying(o *redis.Options) { o.MaxRetries, o.MinRetryBackoff = 10, time.Millisecond }

// toRelease are the commands by which nodes are asked to release; the last two are of Valkey 9 and
// Redis 8.4.
var toRelease = []string{"EVALSHA", "EVAL", "DELIFEQ", "DELEX"}

// releases are how often each node was asked to release; each conversation begins with a trial, which is a script, too.
func (f *fleet) releases() (counts []int) {
	for _, p := range f.proxies {
		n := 0
		for _, c := range p.Commands() {
			if slices.Contains(toRelease, c.Name()) && !slices.Contains(c.Args, protocol.TrialKey) {
				n++
			}
		}
		counts = append(counts, n)
	}
	return counts
}

// deleted is how often a server has deleted a lock, or compared and deleted, by its own count.
func (f *fleet) deleted(i int) int {
	return f.executed(i, "del") + f.executed(i, "delifeq") + f.executed(i, "delex")
}

// byScripts has servers release by scripts only.
func (f *fleet) byScripts() {
	for _, c := range f.admins {
		for _, own := range []string{"-delifeq", "-delex"} {
			_ = c.Do(context.Background(), "ACL", "SETUSER", "default", own).Err() // most have no such command
		}
	}
}

// deletesItself reports whether a server has a command that compares and deletes.
func deletesItself(t *testing.T, c *redis.Client) bool {
	t.Helper()
	known, err := c.Do(t.Context(), "COMMAND", "INFO", "DELIFEQ", "DELEX").Slice()
	require.NoError(t, err)
	return slices.ContainsFunc(known, func(command any) bool { return command != nil })
}

// requireReleases waits for one of these lists of numbers on the first nodes, and then for so long
// that more would be seen.
func (f *fleet) requireReleases(t *testing.T, wants ...[]int) {
	t.Helper()
	reached := func() bool {
		got := f.releases()
		return slices.ContainsFunc(wants, func(want []int) bool { return slices.Equal(got[:len(want)], want) })
	}
	eventually(t, reached, "the releases do not come to what they should be")
	require.Never(t, func() bool { return !reached() }, 100*time.Millisecond, 10*time.Millisecond)
}

func TestWireOfAnUndisturbedLock(t *testing.T) {
	t.Parallel() // 23, and one command per node for each step
	startFleet(t, 5).eachWay(t, patient, func(t *testing.T, f *fleet, rl *redlock.Redlock) {
		f.warm(t, rl)
		each := func(n int) []int { return []int{n, n, n, n, n} }

		f.resetLogs()
		lock := requireLock(t, rl)
		waitForVotes(t, lock)
		require.Equal(t, each(1), f.counts("SET"))
		require.Equal(t, each(1), f.counts(), "and nothing else")

		f.resetLogs()
		require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
		require.Never(t, func() bool { return slices.Max(f.counts()) > 1 }, 50*time.Millisecond, 5*time.Millisecond,
			"what was refused needs no release")

		f.resetLogs()
		require.NoError(t, lock.Extend(t.Context(), time.Minute))
		f.requireReleases(t, each(1))
		require.Equal(t, each(1), f.counts())

		f.resetLogs()
		require.NoError(t, lock.Release(t.Context()))
		f.requireReleases(t, each(1))
		require.Equal(t, each(1), f.counts())
		require.NoError(t, lock.Release(t.Context()))
		require.Equal(t, each(1), f.counts(), "a second call sends nothing")
	})
}

func TestEachAttemptHasAValueOfItsOwn(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	rl := f.open(t, patient)
	f.do(t, []int{0, 1}, "SET", unlined, "x")
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	_, err := rl.Mutex(unlined).Acquire(ctx)
	require.ErrorIs(t, err, redlock.ErrHeld)
	for i, p := range f.proxies {
		// A node that refused may be asked up to twice more, to settle a tie. One that granted
		// is not, and after a release none is.
		most := 3
		if i == 2 {
			most = 1
		}
		seen, released := make(map[string]int), make(map[string]bool)
		for _, c := range p.Commands() {
			switch c.Name() {
			case "SET":
				require.Equal(t, []string{"SET", unlined, c.Args[2], "NX", "PX", "60000"}, c.Args)
				require.False(t, released[c.Args[2]], "sent after its release")
				seen[c.Args[2]]++
				require.LessOrEqual(t, seen[c.Args[2]], most, "sent too often to node %d", i)
			case "EVAL", "EVALSHA", "DELIFEQ", "DELEX":
				for _, a := range c.Args {
					released[a] = true
				}
			}
		}
		require.Greater(t, len(seen), 2)
	}
}

func TestWireOfALostReply(t *testing.T) {
	t.Parallel() // 22 to 24
	o := redlock.Options{TTL: 2 * time.Second, NodeTimeout: 400 * time.Millisecond}
	for name, how := range losses {
		t.Run("SET "+name, func(t *testing.T) {
			t.Parallel()
			f, rl := warmFleet(t, 3, o, retrying)
			f.resetLogs()
			for _, p := range f.proxies[:2] {
				p.DropReply(1, how, faultproxy.Named("SET"))
			}
			requireNoQuorum(t, try(t, rl))
			// The SET's connection is broken, so the release goes over another, and once
			// more since the SET may arrive after it. Here the SET had arrived, and the
			// first one deletes it.
			// The third may have been spared both, when the answer was clear before its turn.
			f.requireReleases(t, []int{1, 1})
			require.Equal(t, []int{1, 1}, f.counts("SET")[:2])
			require.LessOrEqual(t, f.counts("SET")[2], 1)
			f.requireGone(t, resource)
		})
		t.Run("release "+name, func(t *testing.T) {
			t.Parallel()
			f, rl := warmFleet(t, 3, o, retrying)
			lock := requireLock(t, rl)
			waitForVotes(t, lock)
			f.resetLogs()
			f.proxies[0].DropReply(1, how, faultproxy.Named(toRelease...))
			require.NoError(t, lock.Release(t.Context()))
			if how == faultproxy.DropSilent {
				// By the time that this is noticed the key is gone anyway.
				f.requireReleases(t, []int{1, 1, 1})
			} else if deletesItself(t, f.admins[0]) { // its command finds nothing, and a script may follow, to say why
				f.requireReleases(t, []int{2, 1, 1}, []int{3, 1, 1})
			} else {
				f.requireReleases(t, []int{2, 1, 1})
			}
			require.Equal(t, []int{0, 0, 0}, f.counts("SET"))
		})
	}
	t.Run("extend", func(t *testing.T) {
		f, rl := warmFleet(t, 3, o, retrying)
		lock := requireLock(t, rl)
		waitForVotes(t, lock)
		f.resetLogs()
		for _, p := range f.proxies[:2] {
			p.DropReply(1, faultproxy.DropCut, faultproxy.Named("EVALSHA", "EVAL"))
		}
		requireNoQuorum(t, lock.Extend(t.Context(), 2*time.Second))
		f.requireReleases(t, []int{1, 1, 1})
	})
}

func TestWireOfACancelledAttempt(t *testing.T) {
	t.Parallel()
	f, rl := warmFleet(t, 3, unhurried, retrying)
	f.resetLogs()
	for _, p := range f.proxies {
		p.Delay(500*time.Millisecond, 500*time.Millisecond)
	}
	ctx, cancel := context.WithCancel(t.Context())
	failed := background(func() error { _, err := rl.Mutex(resource).Acquire(ctx); return err })
	eventually(t, func() bool { return slices.Equal(f.counts("SET"), []int{1, 1, 1}) }, "not sent")
	cancel()
	require.ErrorIs(t, await(t, failed), context.Canceled)
	f.requireReleases(t, []int{1, 1, 1})
	require.Equal(t, []int{1, 1, 1}, f.counts("SET"))
	f.requireGone(t, resource)
}

func TestWireOfAFailedAttempt(t *testing.T) {
	t.Parallel()
	startFleet(t, 5).eachWay(t, patient, func(t *testing.T, f *fleet, rl *redlock.Redlock) {
		f.warm(t, rl)
		f.resetLogs()
		f.plant(t, "x", time.Minute, 0, 1, 2)
		require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
		// Where it was refused there is nothing to release. Where it was not sent yet when
		// the answer was clear, it may still be, or not at all; if it is, it is taken back.
		f.requireOnly(t, "x")
		var releases, sets []int
		eventually(t, func() bool {
			// In this order: in between, a SET and its release may go out.
			releases, sets = f.releases(), f.counts("SET")
			return slices.Equal(releases[3:], sets[3:])
		}, "what was granted is not taken back")
		require.Equal(t, []int{0, 0, 0}, releases[:3])
		// The tie-breaker may have granted: then those that refused are asked up to twice more.
		require.LessOrEqual(t, slices.Max(sets[:3]), 3)
		require.LessOrEqual(t, slices.Max(sets[3:]), 1)
		f.do(t, f.all(), "DEL", resource)
	})
}

func TestCancelledAttemptThatStillWaitsInLineIsNotSent(t *testing.T) {
	t.Parallel()
	f, rl := warmFleet(t, 1, unhurried)
	f.resetLogs()
	f.proxies[0].Delay(0, 4*time.Second)
	first := background(func() error { _, err := rl.Mutex("first").TryAcquire(context.Background()); return err })
	eventually(t, func() bool { return f.proxies[0].Count("SET") == 1 }, "not sent")
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	_, err := rl.Mutex("first").TryAcquire(ctx) // a key is never on its way twice
	require.ErrorIs(t, err, context.DeadlineExceeded)
	f.proxies[0].Delay(0, 0)
	require.NoError(t, await(t, first))
	f.warm(t, rl)
	sets := f.proxies[0].CountFunc(func(c faultproxy.Command) bool {
		return c.Name() == "SET" && slices.Contains(c.Args, "first")
	})
	assert.Equal(t, 1, sets)
}

func TestRefusedNodeIsNotDialedForEachAttempt(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 2)
	var dials atomic.Int64
	refused := defaultClient(t, "192.0.2.1:6379", func(o *redis.Options) {
		o.PoolSize, o.DialerRetries = 1000, 1
		o.Dialer = func(_ context.Context, network, _ string) (net.Conn, error) {
			dials.Add(1)
			return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
		}
	})
	rl := newOn(t, patient, defaultClient(t, f.addrs()[0]), defaultClient(t, f.addrs()[1]), refused)
	for range 500 {
		require.NoError(t, requireLock(t, rl).Release(t.Context()))
	}
	assert.Less(t, dials.Load(), int64(100))
}

// A refused node accumulates nothing: no goroutine, no connection, and nothing that it
// is sent when it is back.
func TestRefusedNodesAccumulateNothing(t *testing.T) {
	f := startFleet(t, 3)
	for _, way := range []string{"one node", "all nodes"} {
		t.Run(way, func(t *testing.T) {
			rl := f.open(t, brisk)
			f.warm(t, rl)
			refusing := f.proxies
			if way == "one node" {
				refusing = f.proxies[:1]
			}
			for _, p := range refusing {
				p.Refuse()
			}
			before := ownGoroutines()
			const workers, attempts = 20, 500
			var done sync.WaitGroup
			for w := range workers {
				done.Go(func() {
					for i := range attempts {
						lock, err := rl.Mutex(fmt.Sprint(w, "-", i)).TryAcquire(context.Background())
						if err == nil {
							_ = lock.Release(context.Background())
						}
						if (err == nil) != (way == "one node") {
							assert.NoError(t, err, way)
						}
					}
				})
			}
			done.Wait()
			requireNoGoroutinesLeft(t, before)

			for _, p := range refusing {
				p.Reset()
				p.Heal()
			}
			attemptsNow := 0
			eventually(t, func() bool {
				lock, err := rl.Mutex(resource).TryAcquire(context.Background())
				attemptsNow++
				if err != nil {
					return false
				}
				defer lock.Release(context.Background())
				return !slices.Contains(votesOf(lock.Outcomes()), redlock.VoteNotSent)
			}, "the nodes are not used again")
			f.requireGone(t, resource)
			for _, p := range refusing {
				assert.LessOrEqual(t, p.Count("SET"), attemptsNow)
				assert.LessOrEqual(t, p.Count(toRelease...), 2*attemptsNow, "%v", p.Commands())
				assert.LessOrEqual(t, p.Stats().Conns, uint64(3))
			}
		})
	}
}

// A hung node accumulates nothing either: what it is not asked, it need not be told.
func TestHungNodeIsSentNoBurstWhenItWakes(t *testing.T) {
	t.Parallel()
	f, rl := warmFleet(t, 3, brisk)
	f.resetLogs()
	require.NoError(t, f.servers[0].Pause())
	asked := 0
	for i := range 500 {
		lock, err := rl.Mutex(fmt.Sprint("key-", i)).TryAcquire(t.Context())
		require.NoError(t, err)
		if i == 0 {
			eventually(t, func() bool { return lock.Outcomes()[0].Vote == redlock.VoteUnknown }, "not overdue")
		} else if lock.Outcomes()[0].Vote != redlock.VoteNotSent {
			asked++
		}
		require.NoError(t, lock.Release(t.Context()))
	}
	assert.Less(t, asked, 10, "from then on it is asked only to see whether it is back")
	require.NoError(t, f.servers[0].Resume())
	eventually(t, func() bool { return f.deleted(0) == 2 }, "the first SET is not taken back")
	f.warm(t, rl)
	assert.Less(t, f.proxies[0].Count("SET"), 10)
	assert.Less(t, f.proxies[0].Count(toRelease...), 20)
	assert.Empty(t, leftKeys(f.admins[0]))
}
