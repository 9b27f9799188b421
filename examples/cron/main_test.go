package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/examples/internal/left"
	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestEachTickIsDoneOnce(t *testing.T) {
	left.Run(t, run, func(t *testing.T, out string) {
		assert.Contains(t, out, "each done exactly once\n")
		assert.Equal(t, ticks, strings.Count(out, "  done\n"))
		assert.Contains(t, out, "failed: disk full\n")
	})
}
