package promises_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// Nodes that answer, and only later than they are waited for, are no outage: the error names the option.
func TestErrorOfFarNodesNamesNodeTimeout(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		for _, n := range b.cluster.Nodes() {
			n.Delay(150 * time.Millisecond) // each way
		}
		var err error
		for range 5 {
			_, err = b.rl.Mutex(key).TryAcquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrNoQuorum)
			b.pass(5 * time.Second)
		}
		assert.Contains(b, err.Error(), "longer than NodeTimeout")
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.Delay(0); n.Hang() })
		b.pass(time.Minute)
		_, err = b.rl.Mutex(key).TryAcquire(b.Context())
		assert.NotContains(b, err.Error(), "longer than NodeTimeout", "they do not answer at all")
	})
}

// No node was asked, so there are no outcomes.
func TestExtendThatAskedNoNodeHasNoOutcomes(t *testing.T) {
	var got []redlock.ExtendInfo
	inBubble(t, 3, &redlock.Options{Hooks: &redlock.Hooks{Extended: func(_ context.Context, i redlock.ExtendInfo) { got = append(got, i) }}}, func(b *bed) {
		lock := b.lock()
		require.NoError(b, lock.Release(b.Context()))
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrReleased)
		require.Len(b, got, 1)
		assert.Nil(b, got[0].Outcomes)
	})
}

// Degraded is called for one event after the other, and not for what happens after Close.
func TestDegradedIsToldInOrder(t *testing.T) {
	var mu sync.Mutex
	var lacks []string
	running := 0
	o := &redlock.Options{Hooks: &redlock.Hooks{Degraded: func(i redlock.DegradedInfo) {
		mu.Lock()
		running++
		assert.Equal(t, 1, running, "at the same time as another one")
		lacks = append(lacks, i.Lacks)
		mu.Unlock()
		time.Sleep(time.Second)
		mu.Lock()
		running--
		mu.Unlock()
	}}}
	inBubble(t, 3, o, func(b *bed) {
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.Deny("SUBSCRIBE"); n.Deny("PUBLISH") })
		lock := b.lock()
		_, err := b.rl.Mutex(key, redlock.WithMaxWait(time.Second)).Acquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
		require.NoError(b, lock.Release(b.Context()))
		b.pass(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		assert.GreaterOrEqual(b, len(lacks), 2, strings.Join(lacks, "\n"))
	})
}
