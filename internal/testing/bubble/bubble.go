// Package bubble runs tests over simulated nodes in virtual time.
package bubble

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorumlock/redlock/redlocktest"
)

// Run runs a test in a synctest bubble, with a cluster of n nodes. Time stands still in it
// as long as anything runs, and then leaps to where something happens next.
func Run(t *testing.T, n int, test func(t *testing.T, c *redlocktest.Cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		// The last of the cleanups. Virtual time stops with the test, and go-redis goes on
		// dialing for a while after a client was closed.
		t.Cleanup(func() { time.Sleep(time.Hour) })
		test(t, redlocktest.NewCluster(t, n))
	})
}
