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
)

// A set takes a lock of each kind: one shared, a permit, one alone.
func TestSetOfLocksOfAllKinds(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		set := func(alone string) *redlock.Mutexes {
			return redlock.All(b.rl.Mutex("db").Shared(), b.rl.Semaphore("calls", 2), b.rl.Mutex(alone, redlock.WithFencing()))
		}
		b.cycle()
		for _, n := range b.cluster.Nodes() {
			n.Delay(10 * time.Millisecond)
		}
		var first redlock.Locks
		held, err := set("one").TryAcquire(b.Context()) // the servers know the scripts then
		require.NoError(b, err)
		require.NoError(b, held.Release(b.Context()))
		b.pass(time.Second)
		b.takes(20*time.Millisecond, func() {
			first, err = set("one").TryAcquire(b.Context())
			require.NoError(b, err)
		})
		b.pass(time.Second)
		for _, n := range b.cluster.Nodes() {
			n.Delay(0)
		}
		busy := b.takeBy(b.rl, "z")
		_, err = set("z").TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
		require.NoError(b, busy.Release(b.Context()))
		synctest.Wait()
		second, err := set("two").TryAcquire(b.Context())
		require.NoError(b, err, "what the one before had of them it gave back")
		assert.NotEqual(b, first[1].Permit(), second[1].Permit())
		assert.Positive(b, first[2].Fence())
		assert.Panics(b, func() { first[0].Permit() })

		_, err = set("three").TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld, "there are two permits")
		b.isFree(true, "three")
		_, err = b.rl.Mutex("db").TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)

		b.pass(30 * time.Second)
		assert.Positive(b, first.Validity(), "all of them are renewed")
		third := later(func() (*redlock.Lock, error) {
			held, err := set("three").Acquire(b.Context())
			if err != nil {
				return nil, err
			}
			return held[1], held.Release(b.Context())
		})
		b.pass(time.Second)
		b.pending(third)
		require.NoError(b, second.Release(b.Context()))
		r := <-third
		require.NoError(b, r.err)
		assert.Equal(b, second[1].Permit(), r.lock.Permit())
		require.NoError(b, first.Release(b.Context()))
		b.isFree(true, "db", "calls", "one", "two", "three")
	})
}

// Sets are named in all orders, of all kinds, and each has its turns. Nobody is beside one who
// has a lock alone, and no more permits are held than there are.
func TestSetsOfAllKindsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, nil, func(b *bed) {
		for _, n := range b.cluster.Nodes() {
			n.Delay(time.Millisecond)
		}
		type want struct {
			key  string
			kind int // 0: alone; -1: shared; above: of so many permits
		}
		sets := [][]want{
			{{"a", -1}, {"b", 2}, {"c", 0}}, {{"c", 0}, {"b", 2}, {"a", -1}}, {{"b", 2}, {"a", -1}},
			{{"a", 0}, {"c", 0}}, {{"c", 0}, {"b", 0}, {"a", -1}}, {{"b", 2}, {"c", 0}},
		}
		var mu sync.Mutex
		alone, others := make(map[string]int), make(map[string]int)
		count := func(set []want, by int) {
			mu.Lock()
			defer mu.Unlock()
			for _, w := range set {
				if w.kind == 0 {
					alone[w.key] += by
				} else {
					others[w.key] += by
				}
				assert.True(b, alone[w.key] == 0 || alone[w.key] == 1 && others[w.key] == 0, "%s: %d alone, %d others", w.key, alone[w.key], others[w.key])
				assert.True(b, w.kind <= 0 || others[w.key] <= w.kind)
			}
		}
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for _, set := range sets {
			rl := b.another(nil)
			var ms []*redlock.Mutex
			for _, w := range set {
				switch m := rl.Mutex(w.key); {
				case w.kind > 0:
					ms = append(ms, rl.Semaphore(w.key, w.kind))
				case w.kind < 0:
					ms = append(ms, m.Shared())
				default:
					ms = append(ms, m)
				}
			}
			all.Go(func() {
				for range 10 {
					err := redlock.All(ms...).Do(ctx, func(ctx context.Context, held redlock.Locks) error {
						count(set, 1)
						time.Sleep(5 * time.Millisecond)
						count(set, -1)
						return ctx.Err()
					})
					if !assert.NoError(b, err, fmt.Sprint(set)) {
						return
					}
				}
			})
		}
		all.Wait()
		b.isFree(true, "a", "b", "c")
	})
}

// The same key twice, in two kinds, is a wait for oneself.
func TestOneKeyInTwoKindsIsNoSet(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		asked := b.cluster.Commands()
		m := b.rl.Mutex("a")
		for text, s := range map[string]*redlock.Mutexes{
			`"a" is there twice`:                    redlock.All(m, m.Shared()),
			`"a" is there twice: keys must differ`:  redlock.All(b.rl.Semaphore("a", 2), m),
			"permits is 0":                          redlock.All(m, b.rl.Semaphore("b", 0)),
			"WithFencing is for locks that are hel": redlock.All(m, b.rl.Mutex("b", redlock.WithFencing()).Shared()),
		} {
			_, err := s.TryAcquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrInvalid)
			assert.ErrorContains(b, err, text)
		}
		assert.Equal(b, asked, b.cluster.Commands())
	})
}

// A set whose context ends while it waits for a permit leaves nothing.
func TestSetThatWaitsForAPermitEndsWithItsContext(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		busy, err := b.another(nil).Semaphore("b", 1).TryAcquire(b.Context())
		require.NoError(b, err)
		ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
		defer cancel()
		go func() { // so that the holder does not end by its lease
			for ctx.Err() == nil {
				_ = busy.Extend(ctx, ttl)
				time.Sleep(time.Second)
			}
		}()
		_, err = redlock.All(b.rl.Mutex("a").Shared(), b.rl.Semaphore("b", 1), b.rl.Mutex("c")).Acquire(ctx)
		require.ErrorIs(b, err, context.DeadlineExceeded)
		require.ErrorIs(b, err, redlock.ErrHeld)
		synctest.Wait()
		b.isFree(true, "a", "c")
		require.NoError(b, busy.Release(b.Context()))
		b.isFree(true, "b")
	})
}
