package jepsen

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/history"
	"github.com/quorumlock/redlock/internal/testing/leaktest"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/proof/linear"
)

func TestMain(m *testing.M) {
	ClientMain() // a client's process is this binary, too
	// Runs mostly wait, for servers to grow old and for leases to end.
	if err := flag.Set("test.parallel", "5"); err != nil {
		panic(err)
	}
	leaktest.Main(m)
}

// short is a run of few clients with leases so short that many of them end within seconds.
func short(t *testing.T, faults ...string) Config {
	t.Helper()
	realredis.Need(t)
	return Config{
		For: 5 * time.Second, Out: t.TempDir(), Plain: true, Fenced: true, Seed: 1, TTL: 500 * time.Millisecond, Clients: 4, Nodes: 5, Counters: 1,
		Faults: faults, Progress: t.Output(),
	}
}

func run(t *testing.T, c Config) *Report {
	t.Helper()
	r, err := Run(t.Context(), c)
	require.NoError(t, err)
	text, err := r.Text()
	require.NoError(t, err)
	t.Log(text)
	return r
}

// Whatever breaks, nobody is told anything that is not so, and fenced writes lose nothing.
func TestNothingIsLostWhateverBreaks(t *testing.T) {
	t.Parallel()
	c := short(t, AllFaults...)
	c.TTL = time.Second
	r := run(t, c)
	require.True(t, r.OK, r.Err())
	require.NotEmpty(t, r.Events)
	require.Positive(t, r.Plain.Written)
	require.Positive(t, r.Fenced.Written)

	ops, err := readHistory(filepath.Join(c.Out, HistoryFile))
	require.NoError(t, err)
	require.Len(t, ops, len(r.history))
	require.NoError(t, linear.Check(ops, time.Minute))

	f, err := os.Open(filepath.Join(c.Out, TimelineFile))
	require.NoError(t, err)
	defer f.Close()
	d := xml.NewDecoder(f)
	for err == nil {
		_, err = d.Token()
	}
	require.True(t, errors.Is(err, io.EOF), "the picture is not well-formed: %v", err)
}

// Where no client is stopped past its lease, locks alone are enough.
func TestPlainLocksLoseNothingWithoutPauses(t *testing.T) {
	t.Parallel()
	c := short(t, Kills, Nodes, Amnesia, Network)
	c.TTL = time.Second
	r := run(t, c)
	require.True(t, r.OK, r.Err())
	require.Zero(t, r.Plain.Lost, r.Lost)
}

// Locks that are held in all ways: never a writer beside a reader, nor more permits than there are, nor a gap where one is adopted.
func TestMixedLocksAreHeldAsTheyShouldBe(t *testing.T) {
	t.Parallel()
	c := short(t, AllFaults...)
	c.Plain, c.Fenced, c.Mixed = false, false, true
	c.TTL = time.Second
	r := run(t, c)
	require.True(t, r.OK, r.Err())
	require.Positive(t, min(r.Mixed.Alone, r.Mixed.Shared, r.Mixed.Permits), "grants of each kind")
}

// Clients are replaced by those of another version while they work. Here both are of this version, the older one without what it could not know.
func TestClientsOfTwoVersionsTakeTurns(t *testing.T) {
	t.Parallel()
	c := short(t, Network)
	c.For, c.Mixed, c.TTL = 8*time.Second, true, time.Second
	var err error
	c.Old, err = os.Executable()
	require.NoError(t, err)
	r := run(t, c)
	require.True(t, r.OK, r.Err())
	require.Len(t, r.Versions, 2)
	require.Greater(t, r.Versions[0].Lives, c.Clients, "processes of the older version: some are back")
	require.Equal(t, c.Clients, r.Versions[1].Lives)
	older, ours := r.Versions[0].Plain, r.Versions[1].Plain
	require.Positive(t, min(older.Alone, ours.Alone, ours.Shared, ours.Permits), "all ways to hold the locks that both versions use")
}

// Whoever breaks them is found.
func TestSabotageOfMixedLocksIsFound(t *testing.T) {
	t.Parallel()
	c := short(t)
	c.Plain, c.Fenced, c.Mixed, c.Sabotage = false, false, true, noCompare
	r := sabotaged(t, c)
	require.ErrorIs(t, r.Err(), ErrViolation)
	require.Positive(t, min(len(r.Exclusion), len(r.Linear)), r.Reasons)
	require.Empty(t, r.Trouble)
}

// A lock that does nothing, in whatever way, must not pass.
func TestSabotageIsFound(t *testing.T) {
	for _, c := range []struct {
		sabotage string
		found    func(*Report) int
	}{
		{noLock, func(r *Report) int { return min(r.Plain.Unexplain, len(r.Exclusion), len(r.Linear)) }},
		{noCompare, func(r *Report) int { return min(len(r.Exclusion), len(r.Linear)) }},
		{overstay, func(r *Report) int { return len(r.Exclusion) }},
		{noGuard, func(r *Report) int { return len(r.Exclusion) }},
		{noFence, func(r *Report) int { return r.Fenced.Lost }},
	} {
		t.Run(c.sabotage, func(t *testing.T) {
			t.Parallel()
			cfg := short(t, Pauses)
			cfg.Sabotage = c.sabotage
			if c.sabotage == noGuard {
				cfg.Faults, cfg.TTL, cfg.Counters, cfg.For = []string{Amnesia}, time.Second, 2, 8*time.Second
			}
			if c.sabotage == noFence {
				// It shows only where a client is stopped right before a fenced write, and another writes meanwhile.
				cfg.Plain, cfg.For = false, 8*time.Second
			}
			r := sabotaged(t, cfg)
			require.ErrorIs(t, r.Err(), ErrViolation)
			require.Positive(t, c.found(r), r.Reasons)
			require.Empty(t, r.Trouble)
		})
	}
}

// sabotaged runs until a violation is found: on a busy machine clients have too few turns for a seed to show it.
func sabotaged(t *testing.T, c Config) (r *Report) {
	t.Helper()
	for range 8 {
		var err error
		c.Out = t.TempDir()
		r, err = Run(t.Context(), c)
		require.NoError(t, err)
		if r.Err() != nil {
			return r
		}
		c.Seed++
	}
	return r
}

func TestConfigurationIsChecked(t *testing.T) {
	_, err := Run(t.Context(), Config{Nodes: 99, Faults: []string{"rain"}, Sabotage: "tea"})
	for _, text := range []string{"must be above 0", "neither plain nor fenced", "TTL is 0s", "0 clients", "99 nodes", "0 counters", `"rain"`, `"tea"`} {
		require.ErrorContains(t, err, text)
	}
}

func readHistory(name string) (ops []history.Op, err error) {
	err = readFile(name, func(f io.Reader) (err error) {
		ops, err = history.Read(f)
		return err
	})
	return ops, err
}
