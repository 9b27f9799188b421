package redlocktest_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// A bubble ends with its test, so a goroutine that a client leaves behind ends the test binary.
func TestLockInABubbleWhileNodesFail(t *testing.T) {
	stop, hang := (*redlocktest.Node).Stop, (*redlocktest.Node).Hang
	cutOff := func(n *redlocktest.Node) { n.Partition(redlocktest.Blackhole) }
	for _, c := range []struct {
		name   string
		nodes  int
		fail   func(*redlocktest.Node)
		during bool // they fail when the lock is held
	}{
		{name: "none fails"},
		{name: "one hangs", nodes: 1, fail: hang},
		{name: "two are stopped", nodes: 2, fail: stop},
		{name: "two are cut off", nodes: 2, fail: cutOff},
		{name: "three hang and the lock is lost", nodes: 3, fail: hang, during: true},
		{name: "three are stopped and the lock is lost", nodes: 3, fail: stop, during: true},
		{name: "all are cut off and the lock is lost", nodes: 5, fail: cutOff, during: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cluster := redlocktest.NewCluster(t, 5)
				fail := func() {
					for _, n := range cluster.Nodes()[:c.nodes] {
						c.fail(n)
					}
				}
				rl, err := redlock.New(cluster.Clients(), nil)
				require.NoError(t, err)
				if !c.during {
					fail()
				}
				err = rl.Mutex("job").Do(t.Context(), func(ctx context.Context, _ *redlock.Lock) error {
					if c.during {
						fail()
						<-ctx.Done()
						return nil
					}
					time.Sleep(time.Second)
					return ctx.Err()
				})
				if c.during {
					require.ErrorIs(t, err, redlock.ErrLost)
				} else {
					require.NoError(t, err)
				}
				require.NoError(t, rl.Close())
			})
		})
	}
}
