//go:build unix

package main

import (
	"io"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

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

// A lock that is lost while redlock waits for a reader of its log is the watchdog's to know.
func TestLostRunWhoseLogIsNotRead(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	said, says, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = said.Close(), says.Close() })
	p := s.prepare(t, "run", "k", "--json", "--ttl", "20s", "--", "sh", "-c", "exec 2>/dev/null; trap 'echo USR1' USR1; echo $$; while :; do sleep 0.02; done")
	p.Stderr = says
	p.launch(t)
	command, err := strconv.Atoi(p.line(t))
	require.NoError(t, err)
	fd := int(says.Fd())
	require.NoError(t, unix.SetNonblock(fd, true))
	for _, n := range []int{4096, 1} {
		for err = nil; err == nil; _, err = unix.Write(fd, make([]byte, n)) {
		}
		require.ErrorIs(t, err, syscall.EAGAIN)
	}
	require.NoError(t, unix.SetNonblock(fd, false))       // of redlock's own end, too
	require.NoError(t, p.Process.Signal(syscall.SIGUSR1)) // of which it wants to say something
	require.Equal(t, "USR1", p.line(t))
	s.takeAway(t, "k")
	require.Eventually(t, func() bool { return ended(command) }, 40*time.Second, 5*time.Millisecond)
	require.NoError(t, says.Close())
	text, err := io.ReadAll(said)
	require.NoError(t, err)
	assert.NotContains(t, string(text), "the lease is over")
	assert.Contains(t, string(text), `"killed_by":"redlock"`)
	assert.Equal(t, exitLost, p.end(t))
}
