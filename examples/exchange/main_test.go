package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/examples/internal/left"
	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestNothingIsOversold(t *testing.T) {
	left.Run(t, run, func(t *testing.T, out string) {
		assert.Contains(t, out, "with the lock:    sold 12, refused 28, oversold 0\n")
	})
}
