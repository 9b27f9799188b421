package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/examples/internal/left"
	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestNobodyGetsTheLockInBetween(t *testing.T) {
	left.Run(t, run, func(t *testing.T, out string) {
		assert.Contains(t, out, "60 items, each done once, and nobody got the lock in between\n")
	})
}
