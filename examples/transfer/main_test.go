package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/examples/internal/left"
	"github.com/quorumlock/redlock/examples/internal/nodes"
	"github.com/quorumlock/redlock/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestNoMoneyIsLost(t *testing.T) {
	for name, fault := range map[string]func(*nodes.Nodes){
		"all nodes well": func(*nodes.Nodes) {},
		"a node is down": func(n *nodes.Nodes) { n.Cluster.Node(1).Stop() },
		"two nodes hang": func(n *nodes.Nodes) { n.Cluster.Node(0).Hang(); n.Cluster.Node(4).Hang() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := nodes.Embedded()
			require.NoError(t, err)
			defer n.Close()
			fault(n)
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), &out, n), "%s", &out)
			left.Check(t, n)
			assert.Contains(t, out.String(), "with locks:    4000 in all\n")
		})
	}
}
