package redlockprom_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/doccheck"
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
	require.NoError(t, c.CompileAll("../../docs/*.md", "go redlockprom"))
}
