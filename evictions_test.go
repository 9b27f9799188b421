package redlock_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// Hooks.Degraded is told once per spell of evictions, and again each hour that one lasts. Nothing is
// barred for it.
func TestEvictionIsTold(t *testing.T) {
	hooks, said := told()
	inBubble(t, 3, &redlock.Options{Hooks: hooks}, func(b *bed) {
		node := b.cluster.Node(1)
		look := func(d time.Duration) { b.pass(d); b.cycle() }
		evict := func() { node.Set("x", "1", 0); node.Evict("x") }
		b.cycle()
		look(2 * time.Second)
		require.Empty(b, said(), "nothing was evicted")

		evict()
		evict()
		look(2 * time.Second)
		require.Len(b, said(), 1)
		first := said()[0]
		assert.Equal(b, b.rl.Nodes()[1], first.Node)
		assert.EqualValues(b, 2, first.Evicted)
		assert.Contains(b, first.Lacks, "evicts keys")
		assert.ErrorContains(b, first.Err, "noeviction")
		assert.Empty(b, first.Key)

		for range 110 { // it goes on for just below an hour
			evict()
			look(30 * time.Second)
		}
		require.Len(b, said(), 1, "one spell")
		for range 20 {
			evict()
			look(30 * time.Second)
		}
		require.Len(b, said(), 2, "it goes on after an hour")
		look(time.Hour)
		require.Len(b, said(), 2, "it was over")
		evict()
		look(2 * time.Second)
		require.Len(b, said(), 3, "another spell")

		node.Stop()
		node.Restart(redlocktest.KeepKeys)
		look(time.Minute)
		look(time.Minute)
		require.Len(b, said(), 3, "a new process counts from zero")
		evict()
		look(2 * time.Second)
		require.Len(b, said(), 4)
		assert.EqualValues(b, 1, said()[3].Evicted)

		lock := b.lock()
		b.pass(time.Second)
		assert.Equal(b, redlock.VoteGranted, lock.Outcomes()[1].Vote, "it does not bar")
		require.NoError(b, lock.Release(b.Context()))
	})
}

// What had been evicted before the process came is no growth, however many there are.
func TestEvictionsOfThePastAreNotTold(t *testing.T) {
	hooks, said := told()
	inBubble(t, 3, nil, func(b *bed) {
		for _, n := range b.cluster.Nodes() {
			n.Set("x", "1", 0)
			n.Evict("x")
		}
		rl := b.another(&redlock.Options{Hooks: hooks})
		for range 5 {
			b.pass(2 * time.Second)
			require.NoError(b, rl.Mutex(key).Do(b.Context(), func(context.Context, *redlock.Lock) error { return nil }))
		}
		require.Empty(b, said())
	})
}

// The question goes along with locks, once a second at most, in the same round trip as the others.
func TestEvictionsAreAskedForInTheBatch(t *testing.T) {
	const trip = 2 * time.Millisecond
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.Delay(trip / 2) })
		asked := func() (stats []int) {
			for _, n := range b.cluster.Nodes() {
				count := 0
				for _, c := range n.Log() {
					if len(c.Args) == 2 && c.Args[0] == "INFO" && c.Args[1] == "stats" {
						count++
					}
				}
				stats = append(stats, count)
			}
			return stats
		}
		for range 5 {
			b.pass(1500 * time.Millisecond)
			for i, want := range [][]int{{1, 1, 1}, {0, 0, 0}} {
				b.cluster.ResetCommands()
				var lock *redlock.Lock
				b.takes(trip, func() {
					var err error
					lock, err = b.rl.Mutex(key).TryAcquire(b.Context())
					require.NoError(b, err)
				})
				b.pass(10 * time.Millisecond)
				assert.Equal(b, want, asked(), "%d", i)
				require.NoError(b, lock.Release(b.Context()))
				b.pass(10 * time.Millisecond)
			}
		}
	})
}
