// Package left is for tests of the examples: it runs one, and looks at what is on the nodes after that.
package left

import (
	"bytes"
	"context"
	"io"
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

// Run runs an example with all nodes well, with one down, and with two that hang, and hands what it wrote to check.
func Run(t *testing.T, run func(context.Context, io.Writer, *nodes.Nodes) error, check func(t *testing.T, out string)) {
	runWith(t, map[string]func(*nodes.Nodes){
		"all nodes well": func(*nodes.Nodes) {},
		"a node is down": func(n *nodes.Nodes) { n.Cluster.Node(1).Stop() },
		"two nodes hang": func(n *nodes.Nodes) { n.Cluster.Node(0).Hang(); n.Cluster.Node(4).Hang() },
	}, run, check)
}

// RunWithOutage is Run for an example that has the first three nodes hang itself, for a while.
func RunWithOutage(t *testing.T, run func(context.Context, io.Writer, *nodes.Nodes) error, check func(t *testing.T, out string)) {
	runWith(t, map[string]func(*nodes.Nodes){
		"all nodes well": func(*nodes.Nodes) {},
		"a node is down": func(n *nodes.Nodes) { n.Cluster.Node(3).Stop() },
		"a node hangs":   func(n *nodes.Nodes) { n.Cluster.Node(0).Hang() }, // until the outage is over
	}, run, check)
}

func runWith(t *testing.T, faults map[string]func(*nodes.Nodes), run func(context.Context, io.Writer, *nodes.Nodes) error, check func(t *testing.T, out string)) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := nodes.Embedded()
			require.NoError(t, err)
			defer n.Close()
			fault(n)
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), &out, n), "%s", &out)
			Check(t, n)
			check(t, out.String())
		})
	}
}
