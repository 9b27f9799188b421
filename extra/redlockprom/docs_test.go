package redlockprom_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/doccheck"
)

// The examples of the pages that use this module; the root module compiles most others.
func TestExamplesOfThePagesCompile(t *testing.T) {
	c := doccheck.Compiler{
		Dir: ".",
		Imports: []string{
			"context", "github.com/quorumlock/redlock", "github.com/quorumlock/redlock/extra/redlockprom", "github.com/prometheus/client_golang/prometheus",
		},
		Params: "ctx context.Context, addrs []string",
	}
	require.NoError(t, c.Load())
	pages, err := filepath.Glob("../../docs/*.md")
	require.NoError(t, err)
	compiled := 0
	for _, page := range pages {
		blocks, err := doccheck.Blocks(page)
		require.NoError(t, err)
		for _, b := range blocks {
			if b.Info == "go redlockprom" {
				compiled++
				assert.NoError(t, c.Compile(b), "%v", b)
			}
		}
	}
	assert.NotZero(t, compiled)
}
