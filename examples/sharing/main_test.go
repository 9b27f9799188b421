package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/examples/internal/left"
	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestSharing(t *testing.T) {
	left.Run(t, run, func(t *testing.T, out string) {
		assert.Contains(t, out, "24 reads beside 4 rebuilds, 0 torn\n")
		assert.Contains(t, out, "ids made twice: 0\n")
	})
}
