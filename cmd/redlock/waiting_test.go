//go:build unix

package main

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Who waits is told for what, on a terminal in one line that changes in place and never is
// wider than the terminal.
func TestRunTellsAtTheTerminalWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lock := s.hold(t)
	x := s.shell(t)
	for _, width := range []int{80, 60, 30} {
		require.NoError(t, pty.Setsize(x.File, &pty.Winsize{Rows: 24, Cols: uint16(width)}))
		x.typed(t, `"$REDLOCK" run k -- echo ran`+"\n")
		x.expect(t, "\n")
		line := ""
		for range 2 {
			begin := "redlock: waiting "
			if width < 80 {
				begin = "redlock: k, "
			}
			x.expect(t, "\r"+begin)
			line = begin + x.expect(t, "\x1b[K")
			assert.Less(t, len(line), width)
		}
		if width == 80 {
			assert.Regexp(t, `^redlock: waiting \d+s for k: next in queue, held by the test, lease \d+s$`, line)
		}
		if width == 60 {
			assert.Regexp(t, `^redlock: k, \d+s: next in queue, held by the test, lease \d+s$`, line)
		}
		x.typed(t, ctrlC)
		x.expect(t, "\r\x1b[K") // nothing is left of it
		x.expect(t, prompt)
	}
	require.NoError(t, lock.Release(t.Context()))
}

// Elsewhere it says so if it was asked to, as text or as JSON.
func TestRunTellsWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lock := s.hold(t)
	silent := s.start(t, "run", "k", "--", "echo", "ran")
	s.oneWaits(t)
	talks := s.start(t, "run", "k", "--json", "--", "echo", "ran")
	e := talks.event(t, "still_waiting")
	assert.Equal(t, "the test", e.Holder)
	assert.Equal(t, lock.Token()[:8], e.HolderToken, "the whole token is a secret, and logs are read by many")
	assert.Positive(t, *e.Lease)
	assert.Equal(t, 2, e.Place)
	assert.Equal(t, 2, e.Waiting)
	verbose := s.start(t, "run", "k", "--verbose", "--", "echo", "ran")
	require.Eventually(t, func() bool { return strings.Contains(verbose.errs.String(), "3rd of 3 in queue, held by the test") },
		20*time.Second, 5*time.Millisecond, "%s", lazily(verbose.errs.String))

	for _, x := range s.servers[:2] {
		require.NoError(t, x.Pause())
	}
	require.Eventually(t, func() bool {
		return strings.Contains(verbose.errs.String(), "no quorum, 1 of 3 nodes answers, 2 needed")
	},
		30*time.Second, 5*time.Millisecond, "%s", lazily(verbose.errs.String))
	require.Eventually(t, func() bool {
		return strings.Contains(silent.errs.String(), "for k: no quorum, 1 of 3 nodes answers, 2 needed")
	},
		60*time.Second, 5*time.Millisecond, "an outage that lasts is said by the one, too")
	for _, x := range s.servers[:2] {
		require.NoError(t, x.Resume())
	}
	require.NoError(t, lock.Release(t.Context()))
	for _, p := range []*process{silent, talks, verbose} {
		assert.Equal(t, "ran", p.line(t))
		assert.Equal(t, 0, p.end(t))
	}
	assert.Equal(t, 1, strings.Count(silent.errs.String(), "\n"), "and nothing else")
	assert.Contains(t, verbose.errs.String(), "redlock: got k after ")
	assert.Contains(t, verbose.errs.String(), "redlock: released k")
}

// Without a command it holds the lock until a signal, or until the lock is lost.
func TestRunWithoutACommand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p := s.start(t, "run", "k", "--json")
		p.event(t, "holding")
		assert.False(t, s.free(t))
		require.NoError(t, p.Process.Signal(sig))
		assert.Equal(t, 0, p.end(t), p.errs.String())
		assert.True(t, s.free(t))
	}
	p := s.start(t, "run", "k", "--ttl", "3s")
	require.Eventually(t, func() bool { return !s.free(t) }, 20*time.Second, 5*time.Millisecond)
	s.takeAway(t, "k")
	assert.Equal(t, exitLost, p.end(t))
	assert.Contains(t, p.errs.String(), "lost")
}

// With --keep the lock is not free when the command has ended, and nobody has to stay for that.
func TestRunKeepsTheLock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "--json", "--keep", "4s", "--", "sh", "-c", "exit 3")
	require.Equal(t, 3, p.end(t))
	e := p.event(t, "kept")
	assert.Empty(t, e.Error)
	assert.False(t, s.free(t))
	assert.Equal(t, exitBusy, s.start(t, "run", "k", "-n", "--", "true").end(t))
	s.endsWithin(t, 4*time.Second)

	// What never ran is not kept.
	bad := t.TempDir() + "/bad"
	require.NoError(t, os.WriteFile(bad, []byte("#!/no/such/interpreter\n"), 0o700))
	assert.Equal(t, exitNotFound, s.start(t, "run", "k", "--keep", "1h", "--", bad).end(t))
	assert.True(t, s.free(t))
}

// A job that starts while two of three nodes hang starts its command when they are back.
func TestRunWaitsOutAnOutageAtItsStart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, x := range s.servers[:2] {
		require.NoError(t, x.Pause())
	}
	hurried := s.start(t, "run", "k", "--timeout", "2500ms", "--json", "--", "echo", "ran")
	timed := s.start(t, "run", "a", "--timeout", "5m", "--json", "--", "echo", "ran")
	endless := s.start(t, "run", "b", "--verbose", "--", "echo", "ran")
	mute := s.start(t, "run", "c", "--", "echo", "ran")
	assert.Contains(t, timed.event(t, "still_waiting").Error, "no quorum")
	require.Eventually(t, func() bool {
		return strings.Contains(endless.errs.String(), "for b: no quorum, too few of the nodes answer or serve us")
	},
		20*time.Second, 5*time.Millisecond, "%s", lazily(endless.errs.String))
	require.Eventually(t, func() bool { return strings.Contains(mute.errs.String(), "for c: no quorum") }, 30*time.Second, 5*time.Millisecond)
	assert.Equal(t, exitNoQuorum, hurried.end(t), hurried.errs.String())
	for _, x := range s.servers[:2] {
		require.NoError(t, x.Resume())
	}
	for _, p := range []*process{timed, endless, mute} {
		assert.Equal(t, "ran", p.line(t))
		assert.Equal(t, 0, p.end(t), p.errs.String())
	}
}
