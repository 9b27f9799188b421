//go:build unix

package main

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
)

// A lock that was taken away while the command ran is no success, though nothing was noticed
// before the release. What the command says of itself otherwise counts.
func TestRunWhoseLockWasTakenAway(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for code, end := range map[string]int{"exit 0": exitLost, "exit 7": 7} {
		for _, form := range []string{"--json", "--json=false"} {
			in, out, err := os.Pipe()
			require.NoError(t, err)
			p := s.startWith(t, in, "run", "k", form, "--ttl", "1h", "--", "sh", "-c", "echo ready; read x; "+code)
			require.NoError(t, in.Close())
			require.Equal(t, "ready", p.line(t))
			s.takeAway(t, "k")
			require.NoError(t, out.Close())
			assert.Equal(t, end, p.end(t), p.errs.String())
			said := p.errs.String()
			assert.Contains(t, said, "lost")
			assert.NotContains(t, said, "ends by itself")
			if form == "--json" {
				assert.Contains(t, p.event(t, "lost").Error, redlock.ErrLost.Error())
			}
		}
	}
	// So it is where there is no command, and with --keep.
	p := s.start(t, "run", "k", "--json", "--ttl", "1h")
	p.event(t, "holding")
	s.takeAway(t, "k")
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	assert.Equal(t, exitLost, p.end(t), p.errs.String())

	in, out, err := os.Pipe()
	require.NoError(t, err)
	p = s.startWith(t, in, "run", "k", "--json", "--keep", "1h", "--", "sh", "-c", "echo ready; read x; exit 0")
	require.NoError(t, in.Close())
	require.Equal(t, "ready", p.line(t))
	s.takeAway(t, "k")
	require.NoError(t, out.Close())
	assert.Equal(t, exitLost, p.end(t), p.errs.String())
	assert.NotContains(t, names(p.events(t)), "kept")
}
