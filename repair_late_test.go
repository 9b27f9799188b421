package redlock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/redlocktest"
)

// Scenario 91: a node says after Until that it lost the key. What would be put back there
// is nobody's, although nobody has noticed yet that the lock is over.
func TestNoRepairBeginsAfterUntil(t *testing.T) {
	for name, answered := range map[string]time.Duration{"before Until": valid - time.Second, "after Until": valid + 50*time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				lock := b.lock()
				require.NoError(b, lock.Extend(b.Context(), ttl))
				synctest.Wait()
				b.cluster.Node(0).FlushAll()
				b.cluster.Node(0).Hang()
				b.cluster.ResetCommands()
				require.NoError(b, lock.Extend(b.Context(), ttl))
				b.pass(answered)
				b.cluster.Node(0).Resume()
				synctest.Wait()
				sent := 0
				if name == "before Until" {
					sent = 1
				}
				assert.Equal(b, sent, b.cluster.Node(0).Commands("SET"))
				b.each([]int{0}, (*redlocktest.Node).FlushAll)
			})
		})
	}
}
