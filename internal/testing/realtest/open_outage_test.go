package realtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A program that starts while two of three nodes hang starts when they are back.
func TestOpenWaitsOutAnOutage(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	pause(t, f, 0, 1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var rl *redlock.Redlock
	opened := background(func() (err error) {
		rl, err = openOn(ctx, f.addrs(), &brisk)
		return err
	})
	// It has given up on the first answers, and asks again.
	require.Eventually(t, func() bool { return f.proxies[0].Stats().Conns > 1 && f.proxies[1].Stats().Conns > 1 }, 30*time.Second, time.Millisecond)
	require.NoError(t, f.servers[0].Resume())
	require.NoError(t, f.servers[1].Resume())
	require.NoError(t, await(t, opened))
	defer rl.Close()
	lock, err := rl.Mutex(resource).Acquire(t.Context())
	require.NoError(t, err)
	assert.NoError(t, lock.Release(t.Context()))
}

// Without an end in sight it gives up, and says what is wrong; the caller's context has not ended.
func TestOpenGivesUpInALongOutage(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	pause(t, f, 0, 1)
	start := time.Now()
	_, err := redlock.Open(t.Context(), f.addrs(), &brisk)
	requireNoQuorum(t, err)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	assert.GreaterOrEqual(t, time.Since(start), 4*time.Second, "it has five seconds")
}

func pause(t *testing.T, f *fleet, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		require.NoError(t, f.servers[i].Pause())
		t.Cleanup(func() { _ = f.servers[i].Resume() })
	}
}
