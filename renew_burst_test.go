package redlock

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
)

// Locks that were acquired within a moment fall due together, and so do all whose process stood
// still. None waits behind so many others that its timeout per node is over before it is sent. On
// a long link as many are under way as it takes. A hook that does not return holds up nothing.
func TestLocksThatFallDueTogetherAreAllRenewed(t *testing.T) {
	for name, c := range map[string]struct {
		locks       int
		lease       time.Duration
		nodeTimeout time.Duration
		takes, each time.Duration // of a batch, and of every request in it
	}{
		// The node needs 36 ms for all, and the timeout per node is 20 ms.
		"more than a node renews within a timeout": {locks: 6000, lease: time.Second, takes: 100 * time.Microsecond, each: 6 * time.Microsecond},
		// One batch per round trip would renew 6,656 before the first lease ends.
		"a long link": {locks: 7000, lease: 2 * time.Second, takes: 100 * time.Millisecond, nodeTimeout: 400 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var renewed sync.Map
				var failed atomic.Int64
				done := make(chan struct{})
				o, err := (&Options{TTL: c.lease, NodeTimeout: c.nodeTimeout, Hooks: &Hooks{Extended: func(i ExtendInfo) {
					if i.Err != nil {
						failed.Add(1)
					}
					renewed.Store(i.Key, true)
					<-done
				}}}).withDefaults()
				require.NoError(t, err)
				w := newScriptedWire()
				w.takes, w.each = c.takes, c.each
				rl := assemble([]string{"one"}, []wire{w}, o, newSystemClock())
				began := time.Now()
				cycle(t, rl, 1, 3) // learns what link it is
				var g errgroup.Group
				g.SetLimit(mostOut * mostInBatch)
				for i := range c.locks {
					g.Go(func() error {
						_, err := rl.Mutex(fmt.Sprint("key", i), WithRenewal()).TryAcquire(t.Context())
						return err
					})
				}
				require.NoError(t, g.Wait())
				rl.renewer.mu.Lock()
				require.Len(t, rl.renewer.due, c.locks)
				for _, r := range rl.renewer.due {
					r.at = 0 // when the first falls due, so do all
				}
				rl.renewer.mu.Unlock()
				<-time.After(time.Until(began.Add(c.lease - c.lease/50))) // the first leases end
				keys := 0
				renewed.Range(func(any, any) bool { keys++; return true })
				assert.Equal(t, c.locks, keys)
				assert.Zero(t, failed.Load())
				close(done)
				require.NoError(t, rl.Close())
			})
		})
	}
}
