package redlock_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
)

// A node that forgot a lease is kept from voting for the lock's TTL or RestartGuard, so no lease
// may be made longer than that.
func TestNoLeaseOutlivesTheGuard(t *testing.T) {
	const second = time.Second
	for _, c := range []struct {
		name                string
		guard, ttl, longest time.Duration
		says                []string
	}{
		{"the TTL", 0, 2 * second, 2 * second, []string{"TTL is 2s", "RestartGuard is not set", "at most 2s"}},
		{"RestartGuard above the TTL", 30 * second, 2 * second, 30 * second, []string{"TTL is 2s", "RestartGuard is 30s", "at most 30s"}},
		{"RestartGuard below the TTL", second, 20 * second, 20 * second, []string{"TTL is 20s", "RestartGuard is 1s", "at most 20s"}},
		{"no guard", -1, 2 * second, 24 * time.Hour, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, 3, &redlock.Options{TTL: c.ttl, RestartGuard: c.guard}, func(b *bed) {
				set, err := redlock.All(b.rl.Mutex("a"), b.rl.Mutex("b").Shared()).TryAcquire(b.Context())
				require.NoError(b, err)
				lock := b.lock()
				ways := map[string]func(ttl time.Duration) error{
					"Extend":       func(ttl time.Duration) error { return lock.Extend(b.Context(), ttl) },
					"Locks.Extend": func(ttl time.Duration) error { return set.Extend(b.Context(), ttl) },
					"HandOver":     func(ttl time.Duration) error { _, err := lock.HandOver(b.Context(), ttl); return err },
				}
				for name, lasts := range ways {
					if c.says == nil {
						break
					}
					until, asked := lock.Until(), b.cluster.Commands()
					err := lasts(c.longest + 1)
					require.ErrorIs(b, err, redlock.ErrInvalid, name)
					for _, text := range append(c.says, "ttl is "+(c.longest+1).String(), "WithTTL") {
						assert.ErrorContains(b, err, text, name)
					}
					assert.Equal(b, asked, b.cluster.Commands(), "%s asked a node", name)
					assert.Equal(b, until, lock.Until())
				}
				for _, name := range []string{"Extend", "Locks.Extend", "HandOver"} {
					require.NoError(b, ways[name](c.longest), name)
				}
				synctest.Wait()
				for _, left := range b.cluster.TTLs(key) {
					assert.Equal(b, c.longest, left)
				}
				require.NoError(b, set.Release(b.Context()))
			})
		})
	}
}

// The limit is that of the lock's own Mutex, whatever Options.TTL is.
func TestLimitOfALeaseIsThatOfItsMutex(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		long, short := b.rl.Mutex("long", redlock.WithTTL(time.Minute)), b.rl.Mutex("short", redlock.WithTTL(time.Second))
		for m, longest := range map[*redlock.Mutex]time.Duration{long: time.Minute, short: time.Second} {
			lock, err := m.TryAcquire(b.Context())
			require.NoError(b, err)
			require.ErrorIs(b, lock.Extend(b.Context(), longest+1), redlock.ErrInvalid)
			require.NoError(b, lock.Extend(b.Context(), longest))
			require.NoError(b, lock.Release(b.Context()))
		}
		lock, err := short.TryAcquire(b.Context())
		require.NoError(b, err)
		synctest.Wait()
		adopted, err := b.rl.Mutex("short", redlock.WithTTL(time.Minute)).Adopt(b.Context(), lock.Token())
		require.NoError(b, err)
		require.NoError(b, adopted.Extend(b.Context(), time.Minute), "who adopts it has terms of its own")
	})
}

// A holder whose lease is longer than its TTL and the guard of the one that waits allow: clients of the
// key use different TTLs, and the one that waits says so, once per key.
func TestLongerLeaseOfAHolderIsTold(t *testing.T) {
	waits := func(b *bed, m *redlock.Mutex, d time.Duration) {
		b.Helper()
		ctx, cancel := context.WithTimeout(b.Context(), d)
		defer cancel()
		_, err := m.Acquire(ctx)
		require.ErrorIs(b, err, context.DeadlineExceeded)
	}
	for name, ask := range map[string]func(*redlock.Redlock, string) *redlock.Mutex{
		"alone":  func(rl *redlock.Redlock, key string) *redlock.Mutex { return rl.Mutex(key) },
		"shared": func(rl *redlock.Redlock, key string) *redlock.Mutex { return rl.Mutex(key).Shared() },
	} {
		t.Run(name, func(t *testing.T) {
			hooks, said := told()
			inBubble(t, 5, nil, func(b *bed) {
				rl := b.another(&redlock.Options{Hooks: hooks})
				for _, key := range []string{"a", "b"} {
					_, err := b.another(nil).Mutex(key, redlock.WithTTL(time.Minute)).TryAcquire(b.Context())
					require.NoError(b, err)
				}
				for range 3 {
					waits(b, ask(rl, "a"), 3*time.Second)
				}
				synctest.Wait()
				require.Len(b, said(), 1)
				i := said()[0]
				assert.Equal(b, "a", i.Key)
				assert.Empty(b, i.Node)
				assert.Contains(b, i.Lacks, "one TTL for all clients of the key")
				for _, text := range []string{"the TTL is 10s", "RestartGuard is not set", "goes on for 5"} {
					assert.ErrorContains(b, i.Err, text)
				}
				waits(b, ask(rl, "b"), 3*time.Second)
				synctest.Wait()
				require.Len(b, said(), 2, "once per key")
			})
		})
	}
}

// Nothing is told where the lease is as long as the TTL or RestartGuard, where there is no guard, of
// what WithMinHold keeps, and of a node whose clock was set back, which keeps each key for longer.
func TestLeaseThatIsCoveredIsNotTold(t *testing.T) {
	minute := redlock.WithTTL(time.Minute)
	for name, c := range map[string]struct {
		holder, waiter []redlock.LockOption
		opts           redlock.Options
		clock          time.Duration
	}{
		"the same TTL":              {},
		"a longer TTL of its own":   {waiter: []redlock.LockOption{minute}},
		"covered by RestartGuard":   {holder: []redlock.LockOption{minute}, opts: redlock.Options{RestartGuard: time.Minute}},
		"no guard":                  {holder: []redlock.LockOption{minute}, opts: redlock.Options{RestartGuard: -1}},
		"WithMinHold":               {holder: []redlock.LockOption{redlock.WithMinHold(ttl)}},
		"a clock that was set back": {clock: -time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			hooks, said := told()
			inBubble(t, 3, nil, func(b *bed) {
				c.opts.Hooks = hooks
				rl := b.another(&c.opts)
				lock := b.lock(c.holder...)
				if name == "WithMinHold" {
					require.NoError(b, lock.Release(b.Context()))
				}
				if c.clock != 0 {
					b.cluster.Node(0).ShiftClock(c.clock)
				}
				ctx, cancel := context.WithTimeout(b.Context(), 4*time.Second)
				defer cancel()
				_, err := rl.Mutex(key, c.waiter...).Acquire(ctx)
				require.ErrorIs(b, err, context.DeadlineExceeded)
				synctest.Wait()
				assert.Empty(b, said())
			})
		})
	}
}

// What is kept for "once per key" is bounded. Below a thousand keys each is told once.
func TestLongerLeasesAreToldOfAThousandKeys(t *testing.T) {
	hooks, said := told()
	inBubble(t, 1, &redlock.Options{Hooks: hooks}, func(b *bed) {
		for range 2 {
			for i := range 1100 {
				b.rl.Mutex(fmt.Sprint("k", i)).SeeLease(time.Hour)
			}
		}
		synctest.Wait()
		require.Equal(b, 1000, len(said()))
		keys := make(map[string]bool)
		for _, i := range said() {
			keys[i.Key] = true
		}
		assert.Len(b, keys, 1000)
	})
}
