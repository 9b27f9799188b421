package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/quorumlock/redlock/internal/realredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The smoke run measures everything a little. It asserts that all candidates work, not
// how fast.
func TestSmokeRun(t *testing.T) {
	realredis.Need(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "out", "bench.json")
	var out, progress bytes.Buffer
	cmd := rootCommand()
	cmd.SetArgs([]string{"--quick", "--json", file, "--svg", filepath.Join(dir, "svg")})
	cmd.SetOut(&out)
	cmd.SetErr(&progress)
	err := cmd.ExecuteContext(t.Context())
	t.Log(progress.String(), out.String())
	require.NoError(t, err)

	var r report
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &r))
	for s := 1; s <= 4; s++ {
		assert.True(t, slices.ContainsFunc(r.Cycles, func(row *cycleRow) bool {
			return row.Scenario == s && row.Candidate == "redlock" && row.Cycles > 0
		}), "scenario %d", s)
	}
	assert.NotEmpty(t, r.Renewal)
	assert.NotEmpty(t, r.Hot)
	assert.NotEmpty(t, r.Handovers)
	assert.NotEmpty(t, r.Soak)

	plots, err := filepath.Glob(filepath.Join(dir, "svg", "*.svg"))
	require.NoError(t, err)
	assert.Len(t, plots, 9)
}

func TestFlagsAreChecked(t *testing.T) {
	for _, args := range [][]string{
		{"--scenario", "8"}, {"--candidate", "nobody"}, {"--rounds", "0"}, {"--goroutines", "0"}, {"more"},
	} {
		cmd := rootCommand()
		cmd.SetArgs(args)
		cmd.SetOut(new(bytes.Buffer))
		cmd.SetErr(new(bytes.Buffer))
		assert.Error(t, cmd.ExecuteContext(t.Context()), "%v", args)
	}
}
