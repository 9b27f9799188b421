package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/quorumlock/redlock/bench/results"
	failures "github.com/quorumlock/redlock/bench/scenarios"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The smoke run measures everything a little. It asserts that this library fails nowhere, and that
// the others go round; not how fast.
func TestSmokeRun(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "out", "bench.json")
	var out, progress bytes.Buffer
	cmd := rootCommand()
	cmd.SetArgs([]string{"--quick", "--json", file})
	cmd.SetOut(&out)
	cmd.SetErr(&progress)
	err := cmd.ExecuteContext(t.Context())
	t.Log(progress.String(), out.String())
	require.NoError(t, err)

	r, err := results.Read(file)
	require.NoError(t, err)
	for s := 1; s <= 4; s++ {
		assert.True(t, slices.ContainsFunc(r.Cycles, func(row *results.Cycle) bool {
			return row.Scenario == s && row.Candidate == "redlock" && row.Cycles > 0
		}), "scenario %d", s)
	}
	cycles := make(map[string]int64)
	for _, row := range r.Cycles {
		cycles[row.Candidate] += row.Cycles
	}
	for name, n := range cycles {
		assert.Positive(t, n, name)
	}
	assert.NotEmpty(t, r.Renewal)
	assert.NotEmpty(t, r.Hot)
	assert.NotEmpty(t, r.Handovers)
	assert.NotEmpty(t, r.Soak)
}

// A few of the failures that are played to other libraries, too. It asserts what this one
// does, and that the others were played to.
func TestSmokeRunOfScenarios(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	file := filepath.Join(t.TempDir(), "scenarios.json")
	var out bytes.Buffer
	cmd := rootCommand()
	cmd.SetArgs([]string{"scenarios", "18", "56", "60", "--json", file})
	cmd.SetOut(&out)
	err := cmd.ExecuteContext(t.Context())
	t.Log(out.String())
	require.NoError(t, err)

	var r failures.Report
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(b, &r))
	require.Len(t, r.Results, 3*len(failures.Libraries()))
	facts := make(map[int]map[string]string)
	for _, x := range r.Results {
		assert.NotEmpty(t, x.Facts, "%d %s", x.Number, x.Library)
		if x.Library != "redlock" {
			continue
		}
		facts[x.Number] = make(map[string]string)
		for _, f := range x.Facts {
			facts[x.Number][f.Name] = f.String()
		}
	}
	assert.Equal(t, "ok", facts[18]["lock says"])
	assert.Equal(t, "ok", facts[18]["unlock says"])
	assert.Equal(t, "0", facts[18]["keys left"])
	assert.Equal(t, "0", facts[56]["commands sent"])
	assert.Contains(t, facts[56]["says"], "context canceled")
	assert.Equal(t, "ok", facts[60]["unlock says"])
	assert.Equal(t, "0", facts[60]["keys left"])

	out.Reset()
	cmd = rootCommand()
	cmd.SetArgs([]string{"scenarios"})
	cmd.SetOut(&out)
	require.NoError(t, cmd.ExecuteContext(t.Context()))
	assert.Contains(t, out.String(), " 18  ", "without a number it is a list")
}

func TestFlagsAreChecked(t *testing.T) {
	for _, args := range [][]string{
		{"--scenario", "9"}, {"--candidate", "nobody"}, {"--rounds", "0"}, {"--goroutines", "0"}, {"more"},
		{"scenarios", "3"}, {"scenarios", "x"}, {"scenarios", "all", "18"}, {"scenarios", "18", "--library", "nobody"},
	} {
		cmd := rootCommand()
		cmd.SetArgs(args)
		cmd.SetOut(new(bytes.Buffer))
		cmd.SetErr(new(bytes.Buffer))
		assert.Error(t, cmd.ExecuteContext(t.Context()), "%v", args)
	}
}
