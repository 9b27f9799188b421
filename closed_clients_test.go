package redlock_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
)

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
