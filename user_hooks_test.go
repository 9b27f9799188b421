package redlock_test

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// userHook is a hook of a user's client around its pipelines.
type userHook func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error

func (userHook) DialHook(next redis.DialHook) redis.DialHook {
	return func(ctx context.Context, network, addr string) (net.Conn, error) { return next(ctx, network, addr) }
}
func (userHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h userHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error { return h(ctx, cmds, next) }
}

// hooked is a Redlock on clients with a hook: rings of one server each, since a ring's hooks
// see what the library sends. go-redis forgets those of a *redis.Client in WithTimeout.
func (b *bed) hooked(h userHook) *redlock.Redlock {
	b.Helper()
	var clients []redis.UniversalClient
	for i, n := range b.cluster.Nodes() {
		ring := redis.NewRing(&redis.RingOptions{
			Addrs:     map[string]string{"only": n.Name()},
			NewClient: func(*redis.Options) *redis.Client { return b.cluster.Client(i, nil) },
		})
		b.Cleanup(func() { _ = ring.Close() })
		ring.AddHook(h)
		clients = append(clients, ring)
	}
	rl, err := redlock.New(clients, nil)
	require.NoError(b, err)
	b.Cleanup(func() { _ = rl.Close() })
	return rl
}

// again is a hook that retries, as long as on is set.
func again(on *atomic.Bool, if_ func(error) bool) userHook {
	return func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
		err := next(ctx, cmds)
		if on.Load() && if_(err) {
			for _, c := range cmds {
				c.SetErr(nil)
			}
			err = next(ctx, cmds)
		}
		return err
	}
}

func always(error) bool { return true }

// Scenario 91: a SET NX that a hook sends a second time finds its own key. That is no
// refusal, and the key must not stay.
func TestHookThatSendsTwiceIsNotBelieved(t *testing.T) {
	for _, fenced := range []bool{false, true} {
		t.Run(fmt.Sprint("fenced ", fenced), func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				on := new(atomic.Bool)
				rl := b.hooked(again(on, always))
				m := rl.Mutex(key)
				if fenced {
					m = rl.Mutex(key, redlock.WithFencing())
				}
				lock, err := m.TryAcquire(b.Context())
				require.NoError(b, err)
				require.NoError(b, lock.Release(b.Context()))
				synctest.Wait()

				on.Store(true)
				_, err = m.TryAcquire(b.Context())
				q := b.quorumError(err)
				assert.ErrorIs(b, q, redlock.ErrNoQuorum)
				assert.NotErrorIs(b, q, redlock.ErrHeld)
				unknown := 0
				for _, o := range q.Outcomes {
					if o.Vote == redlock.VoteUnknown {
						unknown++
						assert.ErrorContains(b, o.Err, "sent more than once")
					}
				}
				assert.GreaterOrEqual(b, unknown, 2, q)
				on.Store(false)
				b.pass(time.Second)
				b.on(0)
				_, kept := redlock.LaneLoad(rl, 0)
				assert.Zero(b, kept)

				lock, err = m.TryAcquire(b.Context())
				require.NoError(b, err)
				synctest.Wait()
				on.Store(true)
				require.NoError(b, lock.Extend(b.Context(), time.Minute), "which comes to the same twice")
				assert.NotErrorIs(b, lock.Release(b.Context()), redlock.ErrNotHeld, "it was ours")
				b.on(0)
				b.cluster.ResetCommands()
				b.pass(time.Minute)
				assert.Zero(b, b.cluster.Commands(evalsha, eval, "SET"), "and no release is sent for ever")
			})
		})
	}
}

// What a node answered without doing anything may be asked again.
func TestHookThatRetriesWhatHadNoEffect(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		on := new(atomic.Bool)
		on.Store(true)
		rl := b.hooked(func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			return again(on, func(err error) bool {
				b.each([]int{0, 1, 2}, answers(""))
				return err != nil
			})(ctx, cmds, next)
		})
		b.each([]int{0, 1, 2}, answers("LOADING Redis is loading the dataset in memory"))
		lock, err := rl.Mutex(key).TryAcquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
	})
}

// A reply is lost, and the hook asks again: whether the key is of the first or of the second
// SET, or may still come, nobody knows.
func TestHookThatRetriesAfterALostReply(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		on := new(atomic.Bool)
		on.Store(true)
		rl := b.hooked(again(on, func(err error) bool { return err != nil }))
		lock, err := rl.Mutex(key).TryAcquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
		synctest.Wait()
		b.each([]int{0, 1}, func(n *redlocktest.Node) { n.DropReply("SET", 1) })
		_, err = rl.Mutex(key).TryAcquire(b.Context())
		assert.NotErrorIs(b, err, redlock.ErrHeld)
		assert.ErrorIs(b, err, redlock.ErrNoQuorum)
		b.pass(time.Second)
		b.on(0)
	})
}

// Hooks that only look, as those for traces and logs do, change nothing.
func TestHookThatLooksAtCommandsChangesNothing(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		var set atomic.Value
		look := func(cmds []redis.Cmder) {
			for _, c := range cmds {
				_, _ = c.Args(), c.String()
				if c.Name() == "set" {
					set.Store(fmt.Sprint(c.Args()) + c.String())
				}
			}
		}
		rl := b.hooked(func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			look(cmds)
			err := next(ctx, cmds)
			for _, c := range cmds {
				c.SetErr(c.Err())
			}
			look(cmds)
			return err
		})
		for _, m := range []*redlock.Mutex{rl.Mutex(key, redlock.WithFencing()), rl.Mutex(key)} {
			lock, err := m.TryAcquire(b.Context())
			require.NoError(b, err)
			synctest.Wait()
			assert.Equal(b, "granted granted granted", votes(lock.Outcomes()))
			require.NoError(b, lock.Extend(b.Context(), ttl))
			require.NoError(b, lock.Release(b.Context()))
			synctest.Wait()
			if set.Load() != nil {
				shown := fmt.Sprintf("SET %s %s@", key, lock.Token())
				assert.Contains(b, set.Load(), "["+shown, "a hook sees what is sent")
				assert.Contains(b, set.Load(), "]"+shown)
			}
		}
		assert.NotNil(b, set.Load())
	})
}

// A hook of a *redis.Client never sees what the library sends, since go-redis forgets it in
// WithTimeout. If this fails, go-redis has mended that: then what goes over such a client
// has to be counted, too, as manyServers does.
func TestHooksOfASingleClientAreForgotten(t *testing.T) {
	inBubble(t, 1, nil, func(b *bed) {
		var seen atomic.Int32
		clients := b.cluster.Clients()
		clients[0].AddHook(userHook(func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
			for _, c := range cmds {
				if c.Name() == "set" {
					seen.Add(1)
				}
			}
			return next(ctx, cmds)
		}))
		rl, err := redlock.New(clients, nil)
		require.NoError(b, err)
		b.Cleanup(func() { _ = rl.Close() })
		lock, err := rl.Mutex(key).TryAcquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
		assert.Zero(b, seen.Load())
	})
}
