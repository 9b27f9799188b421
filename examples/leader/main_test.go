package main

import (
	"context"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/examples/internal/left"
	"github.com/quorumlock/redlock/examples/internal/nodes"
	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestLeadershipIsHandedOver(t *testing.T) {
	left.RunWithOutage(t, func(ctx context.Context, out io.Writer, n *nodes.Nodes) error { return run(ctx, out, n, 0) }, func(t *testing.T, out string) {
		assert.GreaterOrEqual(t, strings.Count(out, "leads, term"), 3, out)
		assert.Contains(t, out, "steps down: redlock: lock lost")
	})
}

func TestTheJournalRefusesAStaleLeader(t *testing.T) {
	var j journal
	require.NoError(t, j.write(5, "a"))
	require.NoError(t, j.write(7, "b"))
	assert.ErrorContains(t, j.write(5, "a"), "term 5 is over")
	assert.ErrorContains(t, j.write(7, "a"), "two leaders in term 7")
	assert.Equal(t, []term{{5, "a", 1}, {7, "b", 1}}, j.terms)
}
