package redsync_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/extra/redsync"
	"github.com/quorumlock/redlock/extra/redsync/redis/goredis/v9"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/redlocktest"
)

const name = "orders:42"

// open is New with a Close at the end of the test.
func open(t *testing.T, clients ...redis.UniversalClient) *redsync.Redsync {
	rs := redsync.New(clients...)
	t.Cleanup(func() { assert.NoError(t, rs.Close()) })
	return rs
}

// run runs a test in virtual time, on nodes that two programs use.
func run(t *testing.T, nodes int, test func(t *testing.T, c *redlocktest.Cluster, a, b *redsync.Redsync)) {
	t.Parallel()
	bubble.Run(t, nodes, func(t *testing.T, c *redlocktest.Cluster) {
		test(t, c, open(t, c.Clients()...), open(t, c.Clients()...))
	})
}

func requireUnlocked(t *testing.T, m *redsync.Mutex) {
	t.Helper()
	ok, err := m.Unlock()
	require.NoError(t, err)
	require.True(t, ok)
}

// requireTaken returns the nodes of an *ErrTaken.
func requireTaken(t *testing.T, err error) []int {
	t.Helper()
	var taken *redsync.ErrTaken
	require.ErrorAs(t, err, &taken)
	return taken.Nodes
}

// nodesThatFailed are those of all *RedisErrors in an error.
func nodesThatFailed(err error) (nodes []int) {
	several, _ := err.(interface{ Unwrap() []error })
	for _, one := range several.Unwrap() {
		var failed *redsync.RedisError
		if errors.As(one, &failed) {
			nodes = append(nodes, failed.Node)
		}
	}
	return nodes
}

func TestLockAndUnlock(t *testing.T) {
	run(t, 3, func(t *testing.T, c *redlocktest.Cluster, a, _ *redsync.Redsync) {
		m := a.NewMutex(name, redsync.WithFailFast(true), redsync.WithShufflePools(true),
			redsync.WithDriftFactor(0.01), redsync.WithTimeoutFactor(0.05)) // redsync's own defaults
		assert.Equal(t, name, m.Name())
		assert.Empty(t, m.Value())
		assert.Zero(t, m.Until())
		ok, err := m.Valid()
		require.NoError(t, err)
		assert.False(t, ok, "not locked yet")
		_, err = m.Unlock()
		require.ErrorIs(t, err, redsync.ErrLockAlreadyExpired)
		_, err = m.Extend()
		require.ErrorIs(t, err, redsync.ErrExtendFailed)

		for range 2 {
			before := time.Now()
			require.NoError(t, m.Lock())
			synctest.Wait()
			assert.Equal(t, []string{m.Value(), m.Value(), m.Value()}, c.Holders(name))
			assert.WithinRange(t, m.Until(), before.Add(7*time.Second), before.Add(8*time.Second))
			ok, err = m.Valid()
			require.NoError(t, err)
			assert.True(t, ok)

			requireUnlocked(t, m)
			synctest.Wait()
			assert.Equal(t, []string{"", "", ""}, c.Holders(name))
			assert.False(t, m.Until().After(time.Now()))
			ok, err = m.Valid()
			require.NoError(t, err)
			assert.False(t, ok)
			_, err = m.Unlock()
			require.ErrorIs(t, err, redsync.ErrLockAlreadyExpired, "a second time")
			_, err = m.Extend()
			require.ErrorIs(t, err, redsync.ErrExtendFailed)
		}
	})
}

func TestOneOfManyHasTheLock(t *testing.T) {
	run(t, 3, func(t *testing.T, _ *redlocktest.Cluster, a, b *redsync.Redsync) {
		holder, other := a.NewMutex(name), b.NewMutex(name)
		require.NoError(t, holder.TryLock())
		err := other.TryLock()
		assert.GreaterOrEqual(t, len(requireTaken(t, err)), 2)
		require.ErrorIs(t, err, redlock.ErrHeld)
		require.NotErrorIs(t, err, redsync.ErrFailed)
		require.NotErrorIs(t, err, redlock.ErrNoQuorum)
		assert.Empty(t, other.Value())

		locked := make(chan error)
		go func() { locked <- other.Lock() }()
		time.Sleep(time.Second) // in the bubble: until the waiter is in the queue
		requireUnlocked(t, holder)
		unlocked := time.Now()
		require.NoError(t, <-locked)
		assert.Less(t, time.Since(unlocked), 50*time.Millisecond, "the waiter was not notified")
		requireTaken(t, holder.TryLock())
	})
}

// Goroutines of two programs add to a counter. None has a turn beside another's.
func TestTurns(t *testing.T) {
	run(t, 3, func(t *testing.T, _ *redlocktest.Cluster, a, b *redsync.Redsync) {
		n, done := 0, make(chan error)
		turns := func(rs *redsync.Redsync) (err error) {
			m := rs.NewMutex(name)
			for range 5 {
				if err = m.Lock(); err != nil {
					return err
				}
				was := n
				time.Sleep(10 * time.Millisecond)
				n = was + 1
				if _, err = m.Unlock(); err != nil {
					return err
				}
			}
			return nil
		}
		for range 4 {
			go func() { done <- turns(a) }()
			go func() { done <- turns(b) }()
		}
		for range 8 {
			require.NoError(t, <-done)
		}
		assert.Equal(t, 40, n)
	})
}

// Lock waits for as long as the tries of redsync would take.
func TestTriesAndDelays(t *testing.T) {
	run(t, 3, func(t *testing.T, c *redlocktest.Cluster, a, b *redsync.Redsync) {
		require.NoError(t, a.NewMutex(name, redsync.WithExpiry(time.Hour)).Lock())
		var asked []int
		for _, row := range []struct {
			opts     []redsync.Option
			min, max time.Duration
		}{
			{nil, 31 * 50 * time.Millisecond, 31*250*time.Millisecond + time.Second},
			{[]redsync.Option{redsync.WithTries(5), redsync.WithRetryDelay(time.Second)}, 4400 * time.Millisecond, 4500 * time.Millisecond},
			{[]redsync.Option{redsync.WithTries(1), redsync.WithRetryDelay(time.Hour)}, 0, time.Second},
			{[]redsync.Option{redsync.WithTries(4), redsync.WithRetryDelayFunc(func(i int) time.Duration {
				asked = append(asked, i)
				return time.Duration(i) * time.Second
			})}, 6400 * time.Millisecond, 6500 * time.Millisecond},
			{[]redsync.Option{redsync.WithTries(2001), redsync.WithRetryDelay(0)}, 2400 * time.Millisecond, 2500 * time.Millisecond},
		} {
			m, before := b.NewMutex(name, row.opts...), time.Now()
			err := m.Lock()
			took := time.Since(before)
			assert.True(t, row.min <= took && took <= row.max, "%v: from %v to %v", took, row.min, row.max)
			assert.GreaterOrEqual(t, len(requireTaken(t, err)), 2)
			require.ErrorIs(t, err, redlock.ErrHeld)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "no context has ended")
			require.NotErrorIs(t, err, redsync.ErrFailed)
		}
		assert.Equal(t, []int{1, 2, 3}, asked)

		synctest.Wait() // until all have heard that the waiter has gone
		c.ResetCommands()
		require.Equal(t, redsync.ErrFailed, b.NewMutex(name, redsync.WithTries(0)).Lock())
		assert.Zero(t, c.Commands())

		for _, n := range c.Nodes() {
			n.Delay(50 * time.Millisecond)
		}
		require.NoError(t, b.NewMutex("free", redsync.WithTries(2), redsync.WithRetryDelay(0)).Lock(), "the pauses are shorter than one try")
		requireTaken(t, b.NewMutex(name, redsync.WithTries(2)).Lock()) // not every node has said in time who has it
	})
}

// A waiter with very many tries gets the lock of a holder that died.
func TestTriesWithoutEnd(t *testing.T) {
	run(t, 3, func(t *testing.T, _ *redlocktest.Cluster, a, b *redsync.Redsync) {
		died := a.NewMutex(name, redsync.WithExpiry(time.Minute))
		require.NoError(t, died.Lock())
		before := time.Now()
		require.NoError(t, b.NewMutex(name, redsync.WithTries(math.MaxInt), redsync.WithRetryDelay(math.MaxInt64)).Lock())
		assert.WithinRange(t, time.Now(), died.Until(), before.Add(61*time.Second))
	})
}

func TestExtend(t *testing.T) {
	run(t, 3, func(t *testing.T, c *redlocktest.Cluster, a, b *redsync.Redsync) {
		m := a.NewMutex(name)
		require.NoError(t, m.Lock())
		for range 3 {
			time.Sleep(5 * time.Second)
			before := time.Now()
			c.Node(1).Del(name) // as after a restart
			ok, err := m.Extend()
			require.NoError(t, err)
			require.True(t, ok)
			assert.WithinRange(t, m.Until(), before.Add(7*time.Second), before.Add(8*time.Second))
			synctest.Wait()
			assert.Equal(t, []string{m.Value(), m.Value(), m.Value()}, c.Holders(name))
			for _, left := range c.TTLs(name) {
				assert.Greater(t, left, 7*time.Second)
			}
		}

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ok, err := m.ExtendContext(ctx)
		assert.False(t, ok)
		require.ErrorIs(t, err, context.Canceled)
		require.NotErrorIs(t, err, redsync.ErrExtendFailed, "the lock is still held")

		time.Sleep(8 * time.Second)
		other := b.NewMutex(name)
		require.NoError(t, other.Lock())
		ok, err = m.Extend()
		assert.False(t, ok)
		require.ErrorIs(t, err, redsync.ErrExtendFailed)
		require.ErrorIs(t, err, redlock.ErrLost)
		requireUnlocked(t, other)

		require.NoError(t, m.Lock())
		for i := range 3 { // an operator, or an eviction, and then another program
			c.Node(i).Set(name, "another", time.Minute)
		}
		ok, err = m.Extend()
		assert.False(t, ok)
		require.ErrorIs(t, err, redsync.ErrExtendFailed)
		requireTaken(t, err)
		assert.Equal(t, []string{"another", "another", "another"}, c.Holders(name))
	})
}

func TestExpiry(t *testing.T) {
	run(t, 3, func(t *testing.T, c *redlocktest.Cluster, a, b *redsync.Redsync) {
		m := a.NewMutex(name, redsync.WithExpiry(500*time.Millisecond))
		require.NoError(t, m.Lock())
		time.Sleep(time.Until(m.Until()) + time.Millisecond)
		valid, err := m.Valid()
		require.NoError(t, err)
		assert.False(t, valid)
		assert.Equal(t, m.Value(), c.Holders(name)[0], "the drift allowance is over")
		time.Sleep(time.Second)
		ok, err := m.Unlock()
		assert.False(t, ok)
		require.ErrorIs(t, err, redsync.ErrLockAlreadyExpired)

		require.NoError(t, m.Lock())
		time.Sleep(time.Second)
		other := b.NewMutex(name)
		require.NoError(t, other.Lock())
		synctest.Wait() // until the last node has it, too
		ok, err = m.Unlock()
		assert.False(t, ok)
		requireTaken(t, err)
		require.NotErrorIs(t, err, redsync.ErrLockAlreadyExpired)
		synctest.Wait()
		assert.Equal(t, []string{other.Value(), other.Value(), other.Value()}, c.Holders(name))

		c.Node(0).Del(name)
		c.Node(2).Del(name)
		valid, err = other.Valid()
		require.NoError(t, err)
		assert.False(t, valid, "two of three nodes lost the key")
	})
}

func TestNodesThatAreDown(t *testing.T) {
	run(t, 5, func(t *testing.T, c *redlocktest.Cluster, a, b *redsync.Redsync) {
		c.Node(0).Stop()
		c.Node(3).Hang()
		m := a.NewMutex(name)
		require.NoError(t, m.Lock())
		requireTaken(t, b.NewMutex(name).TryLock())
		ok, err := m.Extend()
		require.NoError(t, err)
		require.True(t, ok)
		ok, err = m.Valid()
		require.NoError(t, err)
		require.True(t, ok)
		requireUnlocked(t, m)

		require.NoError(t, m.Lock())
		c.Node(4).Stop()
		until := m.Until()
		_, err = m.Extend()
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		require.NotErrorIs(t, err, redsync.ErrExtendFailed)
		assert.Equal(t, until, m.Until(), "the lock is held as before")
		_, err = m.Valid()
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		ok, err = m.Unlock()
		assert.False(t, ok)
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		require.NotErrorIs(t, err, redsync.ErrLockAlreadyExpired)
		assert.Equal(t, []int{0, 3, 4}, nodesThatFailed(err))

		before := time.Now()
		err = b.NewMutex(name, redsync.WithTries(3), redsync.WithRetryDelay(time.Second)).Lock()
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		assert.Equal(t, []int{0, 3, 4}, nodesThatFailed(err))
		assert.WithinRange(t, time.Now(), before.Add(2*time.Second), before.Add(3*time.Second))
		var taken *redsync.ErrTaken
		assert.False(t, errors.As(err, &taken))

		c.Node(3).Resume()
		// Program b sees node 3 for the first time, which may have forgotten locks of 8 seconds.
		require.NoError(t, b.NewMutex(name, redsync.WithTries(100)).Lock(), "an outage is waited out")
	})
}

func TestContextThatEnds(t *testing.T) {
	run(t, 3, func(t *testing.T, c *redlocktest.Cluster, a, b *redsync.Redsync) {
		holder := a.NewMutex(name, redsync.WithExpiry(time.Hour))
		require.NoError(t, holder.Lock())
		synctest.Wait() // until the last node has it, too

		c.ResetCommands()
		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(net.ErrClosed)
		for _, lock := range []func(context.Context) error{b.NewMutex(name).LockContext, b.NewMutex(name).TryLockContext} {
			err := lock(ctx)
			require.ErrorIs(t, err, redsync.ErrFailed)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, net.ErrClosed)
		}
		assert.Zero(t, c.Commands())

		before := time.Now()
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		err := b.NewMutex(name, redsync.WithTries(math.MaxInt)).LockContext(ctx)
		require.ErrorIs(t, err, redsync.ErrFailed)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, redlock.ErrHeld, "what it waited for")
		requireTaken(t, err)
		assert.WithinRange(t, time.Now(), before.Add(time.Second), before.Add(2*time.Second))

		ok, err := holder.UnlockContext(ctx)
		require.NoError(t, err, "an unlock does not end with its context")
		require.True(t, ok)
		synctest.Wait()
		assert.Equal(t, []string{"", "", ""}, c.Holders(name))

		var none context.Context // redsync allows nil
		require.NoError(t, holder.LockContext(none))
		_, err = holder.ExtendContext(none)
		require.NoError(t, err)
		_, err = holder.ValidContext(none)
		require.NoError(t, err)
		_, err = holder.UnlockContext(none)
		require.NoError(t, err)
	})
}

func TestOptionsThatAreRefused(t *testing.T) {
	run(t, 3, func(t *testing.T, c *redlocktest.Cluster, a, _ *redsync.Redsync) {
		c.ResetCommands()
		for option, opt := range map[string]redsync.Option{
			"WithSetNXOnExtend":        redsync.WithSetNXOnExtend(),
			"WithGenValueFunc":         redsync.WithGenValueFunc(func() (string, error) { return "mine", nil }),
			"WithTimeoutFactor(-0.05)": redsync.WithTimeoutFactor(-0.05),
			"WithTimeoutFactor(NaN)":   redsync.WithTimeoutFactor(math.NaN()),
			"WithDriftFactor(0.02)":    redsync.WithDriftFactor(0.02),
			"WithDriftFactor(-1)":      redsync.WithDriftFactor(-1),
			"WithDriftFactor(NaN)":     redsync.WithDriftFactor(math.NaN()),
			"WithRetryDelay(-1ns)":     redsync.WithRetryDelay(-1),
			"WithRetryDelayFunc(nil)":  redsync.WithRetryDelayFunc(nil),
			"number 1 of NewMutex":     nil,
			"WithExpiry(9ms)":          redsync.WithExpiry(9 * time.Millisecond),
			"WithExpiry(24h0m1s)":      redsync.WithExpiry(24*time.Hour + time.Second),
			`WithValue("worker-1"...)`: redsync.WithValue("worker-1-of-a-program"),
			`WithValue("01234567"...)`: redsync.WithValue("0123456789@label"),
		} {
			m := a.NewMutex(name, opt)
			for method, call := range map[string]func() error{
				"Lock":    m.Lock,
				"TryLock": m.TryLock,
				"Unlock":  func() error { _, err := m.Unlock(); return err },
				"Extend":  func() error { _, err := m.Extend(); return err },
				"Valid":   func() error { _, err := m.Valid(); return err },
			} {
				err := call()
				require.ErrorIs(t, err, redlock.ErrInvalid, "%s, %s", option, method)
				require.ErrorContains(t, err, "redsync: invalid option: "+option)
				require.NotErrorIs(t, err, redsync.ErrFailed)
			}
		}
		assert.Zero(t, c.Commands())

		err := a.NewMutex(name, redsync.WithSetNXOnExtend(), redsync.WithTimeoutFactor(-1)).Lock()
		require.ErrorContains(t, err, "WithSetNXOnExtend")
		require.ErrorContains(t, err, "WithTimeoutFactor", "each is named")
	})
}

func TestSettingsOfAllMutexes(t *testing.T) {
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		rs := redsync.NewWith(redlock.Options{TTL: 10 * time.Second, DriftFactor: 0.1, Owner: "a label"}, c.Clients()...)
		m, before := rs.NewMutex(name, redsync.WithDriftFactor(0.1)), time.Now()
		require.NoError(t, m.Lock())
		synctest.Wait()
		assert.Equal(t, m.Value(), c.Holders(name)[0])
		assert.Contains(t, m.Value(), "@a label")
		assert.WithinRange(t, m.Until(), before.Add(8*time.Second), before.Add(9*time.Second))
		require.NoError(t, rs.Close())
		_, err := m.Unlock()
		require.ErrorIs(t, err, redlock.ErrClosed)
		require.NotErrorIs(t, err, redsync.ErrLockAlreadyExpired)
		err = m.Lock()
		require.ErrorIs(t, err, redlock.ErrClosed)
		require.ErrorIs(t, err, redsync.ErrFailed)
	})
}

// What another process has locked is unlocked by its value.
func TestValueOfAnother(t *testing.T) {
	run(t, 3, func(t *testing.T, c *redlocktest.Cluster, a, b *redsync.Redsync) {
		m := a.NewMutex(name)
		require.NoError(t, m.Lock())
		synctest.Wait() // until the last node has it, too
		elsewhere := b.NewMutex(name, redsync.WithValue(m.Value()))
		assert.Equal(t, m.Value(), elsewhere.Value())
		ok, err := elsewhere.Valid()
		require.NoError(t, err)
		assert.True(t, ok)
		_, err = elsewhere.Extend()
		require.ErrorIs(t, err, redlock.ErrInvalid)
		require.ErrorContains(t, err, "WithValue")
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		ok, err = elsewhere.UnlockContext(ctx)
		require.NoError(t, err)
		assert.True(t, ok)
		synctest.Wait()
		assert.Equal(t, []string{"", "", ""}, c.Holders(name))
		ok, err = elsewhere.Unlock()
		assert.False(t, ok)
		require.ErrorIs(t, err, redsync.ErrLockAlreadyExpired)

		const ofRedsync = "Y2hhcmdlIHRoZSBjYXJkLg=="
		for i := range 3 {
			c.Node(i).Set(name, ofRedsync, time.Minute)
		}
		_, err = elsewhere.Unlock()
		requireTaken(t, err)
		requireUnlocked(t, b.NewMutex(name, redsync.WithValue(ofRedsync)))

		require.NoError(t, elsewhere.Lock())
		assert.NotEqual(t, m.Value(), elsewhere.Value())
		requireUnlocked(t, elsewhere)
		_, err = b.NewMutex(name, redsync.WithValue("")).Unlock()
		require.ErrorIs(t, err, redsync.ErrLockAlreadyExpired)
	})
}

func TestPoolsThatBreakARule(t *testing.T) {
	bubble.Run(t, 1, func(t *testing.T, c *redlocktest.Cluster) {
		client := c.Clients()[0]
		for want, rs := range map[error]*redsync.Redsync{
			redlock.ErrInvalid:       redsync.New(),
			redlock.ErrDuplicateNode: redsync.New(client, client),
		} {
			m := rs.NewMutex(name)
			require.ErrorIs(t, m.Lock(), want)
			_, err := m.Unlock()
			require.ErrorIs(t, err, want)
			_, err = m.Extend()
			require.ErrorIs(t, err, want)
			_, err = m.Valid()
			require.ErrorIs(t, err, want)
			require.NoError(t, rs.Close())
		}
		require.ErrorIs(t, redsync.New(nil).NewMutex(name).Lock(), redlock.ErrInvalid)
		own := struct{ redis.UniversalClient }{client}
		require.ErrorContains(t, redsync.New(goredis.NewPool(own)).NewMutex(name).Lock(), "must be a *redis.Client")
		require.ErrorIs(t, open(t, client).NewMutex(name, redsync.OptionFunc(nil)).Lock(), redlock.ErrInvalid)
		for _, m := range []*redsync.Mutex{{}, new(redsync.Redsync).NewMutex(name)} {
			require.ErrorIs(t, m.Lock(), redlock.ErrInvalid)
			require.ErrorIs(t, m.TryLock(), redlock.ErrInvalid)
			for _, call := range []func() (bool, error){m.Unlock, m.Extend, m.Valid} {
				_, err := call()
				require.ErrorIs(t, err, redlock.ErrInvalid)
			}
			assert.Empty(t, m.Value())
			assert.Zero(t, m.Until())
		}
		require.NoError(t, new(redsync.Redsync).Close())
		err := open(t, client).NewMutex("").Lock()
		require.ErrorIs(t, err, redlock.ErrInvalid)
		require.NotErrorIs(t, err, redsync.ErrFailed)
	})
}

func TestOnRealServers(t *testing.T) {
	t.Parallel()
	var clients []redis.UniversalClient
	for _, server := range realredis.StartN(t, 3) {
		clients = append(clients, goredis.NewPool(server.Client(t)))
	}
	mutex := func() *redsync.Mutex {
		rs := redsync.NewWith(redlock.Options{TTL: time.Minute, NodeTimeout: 10 * time.Second}, clients...) // the machine may be busy
		t.Cleanup(func() { assert.NoError(t, rs.Close()) })
		return rs.NewMutex(name, redsync.WithTries(1000))
	}
	a, b := mutex(), mutex()
	require.NoError(t, a.LockContext(t.Context()))
	requireTaken(t, b.TryLockContext(t.Context()))
	ok, err := a.ExtendContext(t.Context())
	require.NoError(t, err)
	require.True(t, ok)
	has := 0
	for _, c := range clients {
		if value, _ := c.Get(t.Context(), name).Result(); value == a.Value() {
			has++
		}
	}
	assert.GreaterOrEqual(t, has, 2)
	locked := make(chan error)
	go func() { locked <- b.LockContext(t.Context()) }()
	requireUnlocked(t, a)
	require.NoError(t, <-locked)
	ok, err = a.Valid()
	require.NoError(t, err)
	assert.False(t, ok)
	requireUnlocked(t, b)
}

// A call that asked no node knows of no holder.
func TestEndedContextSaysNothingOfHolders(t *testing.T) {
	run(t, 3, func(t *testing.T, _ *redlocktest.Cluster, a, _ *redsync.Redsync) {
		ctx, cancel := context.WithCancel(t.Context())
		m := a.NewMutex(name)
		require.NoError(t, m.Lock())
		cancel()
		_, err := m.ExtendContext(ctx)
		require.ErrorIs(t, err, context.Canceled)
		assert.False(t, errors.As(err, new(*redsync.ErrTaken)))
		err = a.NewMutex("free").LockContext(ctx)
		require.ErrorIs(t, err, context.Canceled)
		assert.False(t, errors.As(err, new(*redsync.ErrTaken)))
		requireUnlocked(t, m)
	})
}

// That another lock was lost, which ended the context, says nothing of this one.
func TestContextOfALostLockLosesNoOther(t *testing.T) {
	run(t, 3, func(t *testing.T, _ *redlocktest.Cluster, a, _ *redsync.Redsync) {
		ctx, cancel := context.WithCancelCause(t.Context())
		m := a.NewMutex(name)
		require.NoError(t, m.Lock())
		cancel(fmt.Errorf("outer: %w", redlock.ErrLost))
		_, err := m.ExtendContext(ctx)
		require.ErrorIs(t, err, context.Canceled)
		assert.NotErrorIs(t, err, redlock.ErrLost)
		requireUnlocked(t, m)
	})
}
