package promises_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

var alone = &redlock.Options{NoRestartGuard: true, NoQueue: true}

// With neither guard nor queue, all that is sent names the lock's key alone, whatever is done with an exclusive lock.
func TestWithoutGuardAndQueueOnlyTheLocksKeyIsTouched(t *testing.T) {
	inHall(t, func(h hall) {
		for _, n := range h.cluster.Nodes() {
			n.Deny("PUBLISH", "SUBSCRIBE", "ZADD", "ZREM", "ZSCORE", "ZCOUNT", "ZRANGEBYSCORE", "TIME")
		}
		hooks, said := told()
		mine, others := *alone, *alone
		mine.Hooks, others.Hooks = hooks, hooks
		m, other := h.process(&mine).Mutex(key), h.process(&others).Mutex(key)
		for range 3 {
			l := h.acquire(m)
			v := visit(h.Context(), other)
			time.Sleep(time.Second)
			require.True(h, v.waits())
			require.NoError(h, l.Extend(h.Context(), ttl))
			h.release(l)
			h.served(v)
			adopted, err := m.Adopt(h.Context(), v.lock.Detach())
			require.NoError(h, err)
			h.release(adopted)
		}
		h.cluster.Node(0).Stop()
		l := h.acquire(m)
		token := l.Detach()
		h.cluster.Node(0).Restart(redlocktest.KeepKeys)
		h.cluster.Node(1).Stop()
		adopted, err := m.Adopt(h.Context(), token)
		require.NoError(h, err)
		h.release(adopted) // and the former value where Adopt did not come
		h.cluster.Node(1).Restart(redlocktest.KeepKeys)
		time.Sleep(time.Minute)
		h.empty()
		assert.Empty(h, said())
		for _, n := range h.cluster.Nodes() {
			for _, c := range n.Log() {
				assert.False(h, slices.Contains([]string{"PUBLISH", "SUBSCRIBE"}, c.Args[0]), "%q", c.Args)
				for _, a := range c.Args[1:] {
					assert.False(h, strings.Contains(a, key) && a != key, "%q", c.Args)
				}
			}
		}
	})
}

// A server that tells nothing of itself has no vote, which Open and each acquire say at once, with what helps.
func TestPlainMiniredis(t *testing.T) {
	var addrs []string
	for range 3 {
		addrs = append(addrs, miniredis.RunT(t).Addr())
	}
	var clients []redis.UniversalClient
	for _, a := range addrs {
		c := redis.NewClient(&redis.Options{Addr: a})
		defer c.Close()
		clients = append(clients, c)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	rl, err := redlock.New(clients, nil)
	require.NoError(t, err)
	defer rl.Close()
	_, ofAcquire := rl.Mutex(key).Acquire(ctx)
	_, ofOpen := redlock.Open(ctx, addrs, nil)
	require.NoError(t, ctx.Err())
	for _, err := range []error{ofAcquire, ofOpen} {
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		for _, word := range []string{"section", "Options.NoRestartGuard", "redlocktest"} {
			require.ErrorContains(t, err, word)
		}
	}
	without, err := redlock.Open(ctx, addrs, alone)
	require.NoError(t, err)
	defer without.Close()
	for range 3 {
		require.NoError(t, without.Mutex(key).Do(ctx, func(context.Context, *redlock.Lock) error { return nil }))
	}
}

// Clients of one key need not agree about the queue: those that use it keep their order, and each of the two kinds is
// served while the other kind is.
func TestClientsWithAndWithoutAQueue(t *testing.T) {
	inHall(t, func(h hall) {
		without, queues := h.process(&redlock.Options{NoQueue: true}).Mutex(key), func() *redlock.Mutex { return h.process(nil).Mutex(key) }
		h.acquire(without).Detach()
		h.pass(ttl)
		for range 5 {
			// One that is released without a word is found by a look.
			l := h.acquire(without)
			first := visit(h.Context(), queues())
			second := visit(h.Context(), queues())
			h.pass(3 * time.Second)
			require.True(h, first.waits() && second.waits())
			h.release(l)
			assert.Less(h, h.served(first), 500*time.Millisecond)
			require.True(h, second.waits(), "in its order")

			// The release of a client that queues leaves the lock to the next in the queue, at one node of five.
			v := visit(h.Context(), without)
			h.pass(time.Second)
			h.release(first.lock)
			h.served(second)
			require.True(h, v.waits())
			h.release(second.lock)
			assert.Less(h, h.served(v), time.Second, "its pauses are of up to RetryMax")
			h.release(v.lock)
			synctest.Wait()
		}
		h.empty()
	})
}

// What keeps an acquire out of all queues for good is its error, at once, and says what to do: permissions, or an
// option. Calls that do not wait need neither.
func TestQueueThatIsDenied(t *testing.T) {
	for says, deny := range map[string][]string{"'zadd'": {"ZADD"}, "'zscore'": {"ZSCORE"}, "'zcount'": {"ZCOUNT", "ZADD", "ZSCORE"}} {
		t.Run(says, func(t *testing.T) {
			inHall(t, func(h hall) {
				hooks, said := told()
				rl := h.process(&redlock.Options{KeyPrefix: "app:", Hooks: hooks})
				m := rl.Mutex(key)
				l := h.acquire(m)
				deniedAt := func(n int) {
					for _, node := range h.cluster.Nodes()[:n] {
						node.Deny(deny...)
					}
				}
				deniedAt(5)
				for range 3 {
					start := time.Now()
					ctx, cancel := context.WithTimeout(h.Context(), time.Minute)
					_, err := m.Acquire(ctx)
					cancel()
					assert.Less(h, time.Since(start), 5*time.Second)
					require.ErrorIs(h, err, redlock.ErrNoQuorum)
					require.NotErrorIs(h, err, redlock.ErrHeld)
					for _, word := range []string{"NOPERM", "'z", "ACL SETUSER", "~{app:*}:line", "+zadd", "Options.NoQueue"} {
						require.ErrorContains(h, err, word)
					}
					_, err = m.TryAcquire(h.Context())
					require.ErrorIs(h, err, redlock.ErrHeld)
				}
				require.NoError(h, l.Extend(h.Context(), ttl))

				// One that has all the time in the world waits for permissions, too.
				done := later(func() (*redlock.Lock, error) {
					return nil, m.Lead(h.Context(), func(context.Context, *redlock.Lock) error { return nil })
				})
				h.pass(2 * time.Second)
				h.pending(done)
				h.release(l)
				require.NoError(h, (<-done).err)

				// A node that keeps one is enough.
				for _, n := range h.cluster.Nodes()[2:] {
					n.Allow(deny...)
				}
				h.pass(time.Minute)
				l = h.acquire(m)
				v := visit(h.Context(), m)
				h.pass(time.Second)
				require.True(h, v.waits())
				h.release(l)
				h.served(v)
				h.release(v.lock)
				for _, i := range said() {
					assert.Equal(h, redlock.DegradedAccess, i.Kind)
					assert.Contains(h, i.Lacks, "queue")
				}
			})
		})
	}
}
