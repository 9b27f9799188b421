package redlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// Waiting where something of the line does not work: rights, nodes, notices, or the first
// of those who wait.

// Who may not touch lines polls, with the plain requests that everybody may send.
func TestWithoutRightsToTheLineAllNodesAreAskedPlainly(t *testing.T) {
	for _, nodes := range []int{1, 2, 3, 5} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			inBubble(t, nodes, nil, func(b *bed) {
				for _, n := range b.cluster.Nodes() {
					n.Deny("ZADD", "ZREM", "ZSCORE", "ZRANGEBYSCORE", "ZREVRANGE", "ZCOUNT")
				}
				l := b.lock()
				other := b.another(nil)
				done := later(func() (*redlock.Lock, error) { return other.Mutex(key).Acquire(b.Context()) })
				time.Sleep(time.Second)
				require.NoError(b, l.Release(b.Context()))
				r := <-done
				require.NoError(b, r.err)
				b.pass(time.Second)
				b.on(nodes)
			})
		})
	}
}

// The node that keeps the line is lost soon after somebody came, or late: all who wait move
// at once, and not each when its turn would be.
func TestAllWaitersMoveWhenTheLineIsLost(t *testing.T) {
	for _, after := range []time.Duration{100 * time.Millisecond, 2 * time.Second} {
		inHall(t, func(h hall) {
			l := h.acquire(h.process(nil).Mutex("k", redlock.WithTTL(time.Minute)))
			m := h.process(nil).Mutex("k")
			var waiters sync.WaitGroup
			for range 50 {
				waiters.Go(func() {
					assert.NoError(t, m.Do(h.Context(), func(context.Context, *redlock.Lock) error {
						time.Sleep(time.Millisecond)
						return nil
					}))
				})
			}
			time.Sleep(after)
			h.arbiter(m).Stop()
			time.Sleep(4 * time.Second)
			assert.Len(t, h.entries(h.cluster.Node(m.NodeOrder()[1]), m), 50, "lost after %v", after)
			_ = l.Release(h.Context()) // one node does not answer
			start := time.Now()
			waiters.Wait()
			assert.Less(t, time.Since(start), 2*time.Second, "lost after %v", after)
		})
	}
}

// A longer line on a node that does not let us in is none to follow, again and again.
func TestLineThatLetsNobodyInIsNotFollowedWithoutPause(t *testing.T) {
	inHall(t, func(h hall) {
		m := h.process(nil).Mutex("k")
		order := m.NodeOrder()
		for _, n := range h.cluster.Nodes() {
			n.Delay(200 * time.Microsecond)
		}
		for _, i := range order[1:] { // somebody holds the lock without the arbiter
			h.cluster.Node(i).Set("k", "somebody@else", time.Hour)
		}
		closed := h.cluster.Node(order[1])
		for i := range 5 {
			_, err := closed.Redis().ZAdd(m.Line(), float64(time.Now().UnixMicro()), fmt.Sprintf("process%d 800 value%d@x", i, i))
			require.NoError(t, err)
		}
		closed.Deny("ZADD")
		ctx, cancel := context.WithCancel(h.Context())
		v := visit(ctx, m)
		time.Sleep(2 * time.Second)
		h.cluster.ResetCommands()
		time.Sleep(10 * time.Second)
		assert.Less(t, h.cluster.Commands("SET"), 500)
		cancel()
		<-v.done
	})
}

// The first of a process's waiters for a key looks after the others. When it gives its turn
// up, since the restart guard leaves it no quorum, the next one does.
func TestWaiterBehindOneThatGaveItsTurnUp(t *testing.T) {
	inHall(t, func(h hall) {
		h.cluster.SetUptime(24 * time.Hour)
		for _, n := range h.cluster.Nodes() {
			n.Deny("SUBSCRIBE") // or a notice would wake it
		}
		rl := h.process(nil)
		l := h.acquire(h.process(nil).Mutex("k", redlock.WithTTL(time.Minute)))
		long, short := rl.Mutex("k", redlock.WithTTL(10*time.Minute)), rl.Mutex("k")
		ctx, cancel := context.WithCancel(h.Context())
		first := visit(ctx, long) // restarted nodes are barred for ten minutes
		second := visit(h.Context(), short)
		synctest.Wait()
		for _, i := range long.NodeOrder()[2:] {
			h.cluster.Node(i).Restart(redlocktest.KeepKeys)
		}
		time.Sleep(15 * time.Second)
		require.True(t, second.waits())
		_ = l.Release(h.Context())
		assert.Less(t, h.served(second), 10*time.Second)
		require.True(t, first.waits())
		cancel()
		<-first.done
		h.release(second.lock)
	})
}

// What once was contended is forgotten, and slows nobody down.
func TestKeysThatNobodyWaitsForAnyMore(t *testing.T) {
	t.Parallel()
	const burst = 1000
	inHall(t, func(h hall) {
		h.cluster.Record(false)
		for _, n := range h.cluster.Nodes() {
			n.Deny("SUBSCRIBE") // timers are all there is
		}
		holder, rl := h.process(nil), h.process(nil)
		var locks []*redlock.Lock
		for i := range burst {
			locks = append(locks, h.acquire(holder.Mutex(fmt.Sprint("burst", i), redlock.WithTTL(time.Minute))))
		}
		ctx, cancel := context.WithTimeout(h.Context(), time.Second)
		defer cancel()
		var waiters sync.WaitGroup
		for i := range burst {
			waiters.Go(func() {
				_, err := rl.Mutex(fmt.Sprint("burst", i)).Acquire(ctx)
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
		waiters.Wait()
		for _, l := range locks {
			h.release(l)
		}
		time.Sleep(3 * time.Second)
		for range 3 {
			l := h.acquire(holder.Mutex("k"))
			v := visit(h.Context(), rl.Mutex("k"))
			time.Sleep(3 * time.Second)
			h.release(l)
			assert.Less(t, h.served(v), 500*time.Millisecond)
			h.release(v.lock)
		}
		assert.LessOrEqual(t, rl.Queues(), 1, "keys that are remembered")
	})
}

// A process that was refused once does not go to the line first for ever.
func TestProcessThatWasRefusedOnce(t *testing.T) {
	inHall(t, func(h hall) {
		rl := h.process(nil)
		require.NoError(t, redlock.LoadScripts(rl))
		m := rl.Mutex("k")
		l := h.acquire(h.process(nil).Mutex("k"))
		v := visit(h.Context(), m)
		time.Sleep(time.Second)
		h.release(l)
		h.served(v)
		h.release(v.lock)
		again := func(times int) {
			for range times {
				time.Sleep(900 * time.Millisecond)
				l := h.acquire(m)
				synctest.Wait() // or what was not sent yet would never be
				h.release(l)
				synctest.Wait()
			}
		}
		again(5)
		h.cluster.ResetCommands()
		again(10)
		assert.Equal(t, 50, h.cluster.Commands("SET"), "a round each")
		assert.Equal(t, 50, h.cluster.Commands("EVALSHA"), "and its release")
	})
}

// A hook that takes its time does not put off the next renewal.
func TestSlowExtendedHookLosesNoLock(t *testing.T) {
	inHall(t, func(h hall) {
		rl := h.process(&redlock.Options{TTL: 3 * time.Second, Hooks: &redlock.Hooks{
			Extended: func(redlock.ExtendInfo) { time.Sleep(2500 * time.Millisecond) },
		}})
		require.NoError(t, rl.Mutex("k").Do(h.Context(), func(ctx context.Context, l *redlock.Lock) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Minute):
				return nil
			}
		}))
		time.Sleep(10 * time.Second) // of the hooks
	})
}
