package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/history"
	"github.com/quorumlock/redlock/proof/linear"
)

var simulated = flag.Int("seeds", 300, "how many runs of the simulation TestHistoriesOfTheSimulation checks")

// The simulation checks itself while it runs, with all that it knows of its servers. Here its
// histories are checked by what clients were told alone.
func TestHistoriesOfTheSimulation(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-run=^TestSimSeeds$", "./internal/testing/sim",
		fmt.Sprintf("-sim.seeds=%d", *simulated), "-sim.history="+dir)
	cmd.Dir = ".."
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	files, err := filepath.Glob(filepath.Join(dir, "*.jsonl"))
	require.NoError(t, err)
	require.Len(t, files, *simulated)
	calls, grants := 0, 0
	for _, name := range files {
		f, err := os.Open(name)
		require.NoError(t, err)
		ops, err := history.Read(f)
		require.NoError(t, err, name)
		require.NoError(t, f.Close())
		assert.NoError(t, linear.Check(ops, time.Minute), name)
		calls += len(ops)
		for _, op := range ops {
			if op.Kind == history.Acquire && op.Outcome == history.OK {
				grants++
			}
		}
	}
	assert.Greater(t, grants, *simulated, "grants")
	t.Logf("%d histories, %d calls, %d of them grants", len(files), calls, grants)
}
