package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/examples/internal/left"
	"github.com/quorumlock/redlock/examples/internal/nodes"
	"github.com/quorumlock/redlock/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestLeadershipIsHandedOver(t *testing.T) {
	for name, fault := range map[string]func(*nodes.Nodes){
		"all nodes well": func(*nodes.Nodes) {},
		"a node is down": func(n *nodes.Nodes) { n.Cluster.Node(3).Stop() },
		"a node hangs":   func(n *nodes.Nodes) { n.Cluster.Node(0).Hang() }, // until the outage is over
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, err := nodes.Embedded()
			require.NoError(t, err)
			defer n.Close()
			fault(n)
			var out bytes.Buffer
			require.NoError(t, run(t.Context(), &out, n, 0), "%s", &out)
			left.Check(t, n)
			assert.GreaterOrEqual(t, strings.Count(out.String(), "leads, term"), 3, "%s", &out)
			assert.Contains(t, out.String(), "steps down: redlock: lock lost")
		})
	}
}

func TestTheJournalRefusesAStaleLeader(t *testing.T) {
	var j journal
	require.NoError(t, j.write(5, "a"))
	require.NoError(t, j.write(7, "b"))
	assert.ErrorContains(t, j.write(5, "a"), "term 5 is over")
	assert.ErrorContains(t, j.write(7, "a"), "two leaders in term 7")
	assert.Equal(t, []term{{5, "a", 1}, {7, "b", 1}}, j.terms)
}
