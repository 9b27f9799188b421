package redlock_test

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// Scenario 71.
func TestCloseEndsWaiters(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.each([]int{0, 1}, taken)
		var waiting []<-chan result
		for range 5 {
			waiting = append(waiting, later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(b.Context()) }))
		}
		b.pass(time.Second)
		b.takes(0, func() { require.NoError(b, b.rl.Close()) })
		for _, w := range waiting {
			err := (<-w).err
			assert.ErrorIs(b, err, redlock.ErrClosed)
			assert.ErrorIs(b, err, redlock.ErrHeld, "and what the nodes said last")
			b.quorumError(err)
		}
		b.on(2)
	})
}

func TestCloseTakesBackWhatIsUnderWay(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		require.NoError(b, redlock.LoadScripts(b.rl))
		for _, n := range b.cluster.Nodes() {
			n.Delay(20 * time.Millisecond)
		}
		under := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).TryAcquire(b.Context()) })
		b.pass(30 * time.Millisecond) // set, and nobody knows
		b.on(3)
		b.takes(50*time.Millisecond, func() { require.NoError(b, b.rl.Close()) })
		require.ErrorIs(b, (<-under).err, redlock.ErrClosed)
		b.on(0)
	})
}

func TestCloseFlushesReleases(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		lock := b.lock()
		b.cluster.Node(0).Delay(50 * time.Millisecond)
		require.NoError(b, lock.Release(b.Context()))
		b.takes(100*time.Millisecond, func() { require.NoError(b, b.rl.Close()) })
		b.on(0)
	})
}

func TestCloseIsBoundedWhenNodesHang(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		extended := b.lockOf("extended")
		b.each([]int{0, 1, 2}, hang)
		released := later(func() (*redlock.Lock, error) { return nil, lock.Release(b.Context()) })
		under := later(func() (*redlock.Lock, error) { return b.rl.Mutex("other").TryAcquire(b.Context()) })
		extending := later(func() (*redlock.Lock, error) { return nil, extended.Extend(b.Context(), ttl) })
		looking := later(func() (*redlock.Lock, error) { _, err := b.rl.Mutex(key).Inspect(b.Context()); return nil, err })
		b.takes(nodeTimeout, func() { require.NoError(b, b.rl.Close()) })
		for _, done := range []<-chan result{released, under, extending, looking} {
			require.ErrorIs(b, (<-done).err, redlock.ErrClosed)
		}
		b.pass(40 * time.Second) // the longest that a connection is kept waiting
		buf := make([]byte, 1<<20)
		assert.NotContains(b, string(buf[:runtime.Stack(buf, true)]), "lane", "no goroutine of ours is left")
	})
}

func (b *bed) lockOf(key string) *redlock.Lock {
	b.Helper()
	lock, err := b.rl.Mutex(key).TryAcquire(b.Context())
	require.NoError(b, err)
	return lock
}

// Held locks stay until their TTL, and are not renewed.
func TestCloseLeavesHeldLocksAlone(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithRenewal())
		ctx := lock.Context()
		b.pass(5 * time.Second)
		require.NoError(b, b.rl.Close())
		left := lock.Validity()
		b.on(3)
		assert.Greater(b, left, ttl/2)
		b.takes(left, func() { <-ctx.Done() })
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrExpired)
		b.pass(ttl)
		b.on(0)
	})
}

func TestCallsAfterClose(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		require.NoError(b, b.rl.Close())
		b.cluster.ResetCommands()
		for name, call := range every {
			err := call(b.rl.Mutex(key), b.Context())
			require.ErrorIs(b, err, redlock.ErrClosed, name)
			assert.ErrorContains(b, err, key)
		}
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrClosed)
		assert.Greater(b, lock.Validity(), time.Duration(0), "not lost by that")
		b.takes(0, func() { require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrClosed) })
		require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrClosed)
		assert.ErrorIs(b, context.Cause(lock.Context()), redlock.ErrReleased)
		b.pass(time.Second)
		assert.Zero(b, b.cluster.Commands())
		require.NoError(b, b.rl.Close())
	})
}

// Everything at once, while Close comes in between: an error or a lock, and nothing of
// what was not granted is left.
func TestCloseInTheMiddleOfEverything(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		for i, n := range b.cluster.Nodes() {
			n.Delay(time.Duration(i+1) * time.Millisecond)
		}
		var all sync.WaitGroup
		stop := make(chan struct{})
		for i := range 20 {
			all.Go(func() {
				k := string(rune('a' + i%5))
				for {
					select {
					case <-stop:
						return
					default:
					}
					lock, err := b.rl.Mutex(k, redlock.WithRenewal()).TryAcquire(b.Context())
					if err == nil {
						lock.Context()
						_ = lock.Extend(b.Context(), ttl)
						_ = lock.Release(b.Context())
					}
					time.Sleep(time.Duration(i+1) * 100 * time.Microsecond)
				}
			})
		}
		b.pass(200 * time.Millisecond)
		require.NoError(b, b.rl.Close())
		close(stop)
		all.Wait()
		b.pass(ttl)
		for _, n := range b.cluster.Nodes() {
			assert.Empty(b, keysOf(n))
		}
	})
}

func TestCloseOfAHungClusterThatWakesLater(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		b.each([]int{0, 1, 2}, hang)
		b.try()
		require.NoError(b, b.rl.Close())
		b.each([]int{0, 1, 2}, resume)
		b.pass(ttl + time.Second)
		b.on(0)
		b.each([]int{0}, func(n *redlocktest.Node) { assert.Equal(b, 2, n.Commands("SET")) })
	})
}

// wrapped is a client of a type of the user's own, which gets the commands itself.
type wrapped struct{ redis.UniversalClient }

func (b *bed) wrapped() (clients []redis.UniversalClient) {
	for _, c := range b.cluster.Clients() {
		clients = append(clients, wrapped{c})
	}
	return clients
}

// Scenario 90: a client is closed for good, so an Acquire that waited for such clients would
// wait for ever.
func TestClosedClientsEndAcquires(t *testing.T) {
	for name, c := range map[string]struct {
		held bool // by another process, so that the Acquire waits in the queue
		late bool // the clients are closed while it waits
	}{
		"before": {}, "before, and held": {held: true}, "while it waits": {held: true, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				if c.held {
					_, err := b.rl.Mutex(key, redlock.WithRenewal()).TryAcquire(b.Context())
					require.NoError(b, err)
				}
				clients := b.wrapped()
				rl, err := redlock.New(clients, nil)
				require.NoError(b, err)
				b.Cleanup(func() { _ = rl.Close() })
				closeMost := func() {
					for _, c := range clients[:3] {
						require.NoError(b, c.Close())
					}
				}
				if !c.late {
					closeMost()
				}
				done := later(func() (*redlock.Lock, error) { return rl.Mutex(key).Acquire(b.Context()) })
				if c.late {
					b.pending(done)
					closeMost()
				}
				select {
				case r := <-done:
					q := b.quorumError(r.err)
					assert.ErrorIs(b, q, redlock.ErrNoQuorum)
					assert.NotErrorIs(b, q, redlock.ErrClosed, "the Redlock is not")
					for _, o := range q.Outcomes[:3] {
						assert.Equal(b, redlock.VoteNotSent, o.Vote)
						assert.ErrorIs(b, o.Err, redis.ErrClosed)
						assert.ErrorContains(b, o.Err, "its owner closed it")
					}
				case <-time.After(time.Minute):
					b.Fatal("waits for ever")
				}
			})
		})
	}
}

// crowd is twenty that wait for a lock that is held, in a process with clients of its own.
func (b *bed) crowd() (clients []redis.UniversalClient, rl *redlock.Redlock, waiters []<-chan result) {
	b.Helper()
	_, err := b.rl.Mutex(key, redlock.WithRenewal()).TryAcquire(b.Context())
	require.NoError(b, err)
	clients = b.wrapped()
	rl, err = redlock.New(clients, nil)
	require.NoError(b, err)
	b.Cleanup(func() { _ = rl.Close() })
	for range 20 {
		waiters = append(waiters, later(func() (*redlock.Lock, error) { return rl.Mutex(key).Acquire(b.Context()) }))
	}
	return clients, rl, waiters
}

// They all end as soon as one of them has found out, also where the node that keeps their
// queue is there.
func TestClosedClientsEndAllWaitersAtOnce(t *testing.T) {
	for _, all := range []bool{true, false} {
		t.Run(fmt.Sprint(all), func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				clients, _, waiters := b.crowd()
				for i, c := range clients {
					if all || !b.cluster.Node(i).Redis().Exists("{"+key+"}:line") {
						require.NoError(b, c.Close())
					}
				}
				var ends []time.Time
				for _, w := range waiters {
					r := <-w
					require.ErrorIs(b, r.err, redlock.ErrNoQuorum)
					ends = append(ends, r.at)
				}
				slices.SortFunc(ends, time.Time.Compare)
				assert.Less(b, ends[len(ends)-1].Sub(ends[0]), 100*time.Millisecond)
			})
		})
	}
}

// Nobody need wait in the queue to find that out: an attempt that fails for it tells all waiters.
func TestClosedClientsEndAllWaitersWithAnAttempt(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		clients, rl, waiters := b.crowd()
		for _, c := range clients {
			require.NoError(b, c.Close())
		}
		_, err := rl.Mutex(key).TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrNoQuorum)
		found := time.Now()
		for _, w := range waiters {
			r := <-w
			require.ErrorIs(b, r.err, redlock.ErrNoQuorum)
			require.Zero(b, r.at.Sub(found))
		}
	})
}

// A minority of them is like nodes that are down.
func TestAMinorityOfClosedClientsChangesNothing(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		clients := b.wrapped()
		rl, err := redlock.New(clients, nil)
		require.NoError(b, err)
		b.Cleanup(func() { _ = rl.Close() })
		lock, err := rl.Mutex(key, redlock.WithTTL(time.Hour)).Acquire(b.Context())
		require.NoError(b, err)
		for _, c := range clients[:2] {
			require.NoError(b, c.Close())
		}
		b.takes(0, func() { require.NoError(b, lock.Extend(b.Context(), time.Hour)) })
		b.takes(0, func() { require.NoError(b, lock.Release(b.Context())) })
		lock, err = rl.Mutex(key).Acquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
		time.Sleep(time.Minute) // the lane learns at its next try that the client is closed
		_, kept := redlock.LaneLoad(rl, 0)
		assert.Zero(b, kept, "no release waits for a client that is closed for good")
	})
}
