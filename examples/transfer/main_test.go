package main

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/examples/internal/left"
	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestNoMoneyIsLost(t *testing.T) {
	left.Run(t, run, func(t *testing.T, out string) {
		assert.Contains(t, out, "with locks:    4000 in all\n")
	})
}
