package redlock_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A program that only looks leaves nothing on the nodes, reads what others left, and can hold nothing.
func TestReadOnlyWritesNothing(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 3)
	addrs, ctx := cluster.Addrs(), t.Context()
	readOnly := &redlock.Options{ReadOnly: true, NodeTimeout: 2 * time.Second}
	for name, open := range map[string]func() (*redlock.Redlock, error){
		"Open": func() (*redlock.Redlock, error) { return redlock.Open(ctx, addrs, readOnly) },
		"New":  func() (*redlock.Redlock, error) { return redlock.New(cluster.Clients(), readOnly) },
	} {
		t.Run(name, func(t *testing.T) {
			rl, err := open()
			require.NoError(t, err)
			defer rl.Close()
			s, err := rl.Mutex(key).Inspect(ctx)
			require.NoError(t, err)
			assert.False(t, s.Held())
			_, err = rl.Check(ctx)
			require.NoError(t, err)
			m := rl.Mutex(key)
			for what, f := range map[string]func() error{
				"Acquire":      func() error { _, err := m.Acquire(ctx); return err },
				"TryAcquire":   func() error { _, err := m.TryAcquire(ctx); return err },
				"Do":           func() error { return m.Do(ctx, func(context.Context, *redlock.Lock) error { panic("without a lock") }) },
				"Semaphore":    func() error { _, err := rl.Semaphore(key, 2).Acquire(ctx); return err },
				"All":          func() error { _, err := redlock.All(m, rl.Mutex("b")).Acquire(ctx); return err },
				"Adopt":        func() error { _, err := m.Adopt(ctx, "0123456789abcdef0123456789abcdef"); return err },
				"ForceRelease": func() error { return m.ForceRelease(ctx, "") },
			} {
				err := f()
				require.ErrorIs(t, err, redlock.ErrInvalid, what)
				assert.ErrorContains(t, err, "ReadOnly", what)
			}
			for _, n := range cluster.Nodes() {
				assert.Empty(t, n.Redis().Keys())
			}
		})
	}

	// The marks of others are read: since when a node remembers.
	rl, err := redlock.Open(ctx, addrs, nil)
	require.NoError(t, err)
	lock, err := rl.Mutex(key).Acquire(ctx)
	require.NoError(t, err)
	for _, n := range cluster.Nodes() { // Acquire waits for a majority only
		require.Eventually(t, func() bool { return slices.Contains(n.Redis().Keys(), memoryMark) }, 30*time.Second, time.Millisecond)
	}
	looks, err := redlock.Open(ctx, addrs, readOnly)
	require.NoError(t, err)
	defer looks.Close()
	s, err := looks.Mutex(key).Inspect(ctx)
	require.NoError(t, err)
	assert.Equal(t, lock.Token(), s.Token)
	for _, n := range s.Nodes {
		assert.False(t, n.RemembersSince.IsZero(), n.Node)
	}
	require.NoError(t, lock.Release(ctx))
	require.NoError(t, rl.Close())
}
