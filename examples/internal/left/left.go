// Package left is for tests of the examples: what is on the nodes after one has run.
package left

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/examples/internal/nodes"
)

// Check fails the test unless README.md is right about what an example leaves on a node. It
// looks at the third node, which no test of the examples stops or hangs for good.
func Check(t *testing.T, n *nodes.Nodes) {
	t.Helper()
	client := n.Cluster.Client(2, nil)
	keys, err := client.Keys(t.Context(), "*").Result()
	require.NoError(t, err)
	assert.Contains(t, keys, "redlock:memory")
	for _, key := range keys {
		if key == "redlock:memory" {
			continue
		}
		assert.True(t, strings.HasPrefix(strings.TrimPrefix(key, "{"), "example-"), key)
		ttl, err := client.PTTL(t.Context(), key).Result()
		require.NoError(t, err)
		assert.NotEqual(t, time.Duration(-1), ttl, "%s does not expire", key)
	}
}
