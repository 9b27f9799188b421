package redlock

import (
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// Locks that were acquired within a moment fall due together, and so do all whose process stood
// still. None waits behind so many others that its timeout per node is over before it is sent.
// A hook that does not return holds up none either.
func TestLocksThatFallDueTogetherAreAllRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const (
			locks = 6 * mostRenewals
			lease = time.Second
			each  = 6 * time.Microsecond // so that all take the node longer than its timeout
		)
		var renewed, failed atomic.Int64
		done := make(chan struct{})
		o, err := (&Options{TTL: lease, Hooks: &Hooks{Extended: func(i ExtendInfo) {
			if i.Err != nil {
				failed.Add(1)
			}
			renewed.Add(1)
			<-done
		}}}).withDefaults()
		require.NoError(t, err)
		require.Greater(t, locks*each, o.nodeTimeout(lease))
		w := newScriptedWire()
		w.takes, w.each = 100*time.Microsecond, each
		rl := assemble([]string{"one"}, []wire{w}, o, newSystemClock())
		var g errgroup.Group
		g.SetLimit(mostInBatch)
		for i := range locks {
			g.Go(func() error {
				_, err := rl.Mutex(fmt.Sprint("key", i), WithRenewal()).TryAcquire(t.Context())
				return err
			})
		}
		require.NoError(t, g.Wait())
		// As if the process had stood still: all are due when it goes on.
		rl.renewer.mu.Lock()
		require.Len(t, rl.renewer.due, locks)
		for _, r := range rl.renewer.due {
			r.at = 0
		}
		rl.renewer.mu.Unlock()
		<-time.After(lease / 3)
		require.EqualValues(t, locks, renewed.Load())
		require.Zero(t, failed.Load())
		close(done)
		require.NoError(t, rl.Close())
	})
}
