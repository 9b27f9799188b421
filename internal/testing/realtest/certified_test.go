package realtest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a program finds that did nothing while all nodes were restarted, one after the other.

// certify waits as redlock check --settle does: a client leaves the marks that are missing, and the operator's tool says
// when each node may vote.
func certify(t *testing.T, client func() *redlock.Redlock) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; pass(time.Second) {
		rl := client()
		if lock, err := rl.Mutex("certified").TryAcquire(t.Context()); err == nil {
			waitForVotes(t, lock)
			_ = lock.Release(t.Context())
		}
		report := check(t, rl)
		require.NoError(t, rl.Close())
		settled := true
		for _, n := range report.Nodes {
			settled = settled && n.Err == nil && n.BarredFor == 0 && !n.RemembersSince.IsZero()
		}
		if settled {
			return
		}
		require.True(t, time.Now().Before(end), "%v", report)
	}
}

// A rolling restart of which each step was certified keeps nothing from a program that was idle meanwhile: all nodes
// vote at its first call. Of two nodes that were restarted with no such wait it counts neither.
func TestIdleProgramAfterARollingRestart(t *testing.T) {
	t.Parallel()
	for how, restart := range map[string]func(*redlocktest.Node){
		"empty":    func(n *redlocktest.Node) { n.Restart(redlocktest.LoseKeys) },
		"kept":     func(n *redlocktest.Node) { n.Restart(redlocktest.KeepKeys) },
		"replaced": func(n *redlocktest.Node) { n.Failover() },
	} {
		for _, later := range []time.Duration{0, 5 * time.Hour} {
			t.Run(fmt.Sprint(how, " ", later), func(t *testing.T) {
				t.Parallel()
				bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
					o := redlock.Options{TTL: 10 * time.Second}
					idle := clientOf(t, c, o)
					use(t, idle)
					pass(time.Minute)
					for _, n := range c.Nodes() {
						restart(n)
						certify(t, func() *redlock.Redlock { return clientOf(t, c, o) })
					}
					pass(later)
					lock := requireLock(t, idle)
					assert.NotContains(t, waitForVotes(t, lock), redlock.VoteBarred, "%v", lock.Outcomes())
					require.NoError(t, lock.Release(t.Context()))

					pass(later)
					restart(c.Node(0))
					restart(c.Node(1))
					_, err := clientOf(t, c, o).Mutex("certified").TryAcquire(t.Context()) // leaves marks
					require.Error(t, err)
					pass(5 * time.Second)
					requireNoQuorum(t, try(t, idle))
				})
			})
		}
	}
}
