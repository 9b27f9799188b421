//go:build unix

package main

import (
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/child"
)

// leavesNobody: all that the command started, and that has its output, is dead.
func (p *process) leavesNobody(t *testing.T) {
	t.Helper()
	over := make(chan struct{})
	go func() { defer close(over); _, _ = io.Copy(io.Discard, p.out) }()
	select {
	case <-over:
	case <-time.After(30 * time.Second):
		require.FailNow(t, "somebody is alive", "%s", processes())
	}
}

func processes() string {
	out, _ := exec.Command("ps", "-e", "-o", "pid,ppid,pgid,stat,args").Output()
	return string(out)
}

// Killed with a signal that it cannot handle, redlock takes with it all that its command
// started, in whatever state that is. The lease is so long that it has no part in it.
func TestKilledRunTakesTheWholeGroupWithIt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	kill := func(t *testing.T, p *process, _ int) { require.NoError(t, p.Process.Kill()) }
	for name, c := range map[string]struct {
		command string
		kill    func(t *testing.T, p *process, group int)
	}{
		"grandchildren":            {"sleep 300 & echo $$; sleep 300", kill},
		"deaf":                     {"trap '' TERM INT HUP; (sleep 300) & echo $$; sleep 300", kill},
		"the command itself ended": {"sleep 300 & echo $$", kill},
		// exec, for a shell that waits in vfork(2) for a child that is stopped cannot be stopped.
		"stopped": {"sleep 300 & echo $$; exec sleep 300", func(t *testing.T, p *process, group int) {
			require.NoError(t, syscall.Kill(-group, syscall.SIGSTOP))
			stateBecomes(t, group, "T")
			kill(t, p, group)
		}},
		"redlock stopped": {"sleep 300 & echo $$; sleep 300", func(t *testing.T, p *process, group int) {
			require.NoError(t, p.Process.Signal(syscall.SIGSTOP))
			stateBecomes(t, p.Process.Pid, "T")
			kill(t, p, group)
		}},
		"with all of its own group": {"sleep 300 & echo $$; sleep 300", func(t *testing.T, p *process, _ int) {
			require.NoError(t, syscall.Kill(-p.Process.Pid, syscall.SIGKILL))
		}},
		"after its watchdog was asked to end": {"sleep 300 & echo $$; sleep 300", func(t *testing.T, p *process, group int) {
			for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
				require.NoError(t, syscall.Kill(watchdogOf(t, p.Process.Pid), sig))
			}
			kill(t, p, group)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := s.startInGroup(t, "run", name, "--ttl", "1h", "--", "sh", "-c", c.command)
			group, err := strconv.Atoi(p.line(t))
			require.NoError(t, err)
			t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) })
			c.kill(t, p, group)
			p.leavesNobody(t)
			assert.Equal(t, -1, p.end(t))
		})
	}
}

// startInGroup is start in a process group of its own.
func (s *site) startInGroup(t *testing.T, args ...string) *process {
	t.Helper()
	p := s.prepare(t, args...)
	p.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.launch(t)
	return p
}

// watchdogOf is the process that watches redlock.
func watchdogOf(t *testing.T, redlock int) (pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		for line := range strings.Lines(processes()) {
			if f := strings.Fields(line); len(f) > 6 && f[1] == strconv.Itoa(redlock) && f[4] == watchdogName {
				pid, _ = strconv.Atoi(f[0])
			}
		}
		return pid != 0
	}, 20*time.Second, 5*time.Millisecond, "%s", lazily(processes))
	return pid
}

// Between the grant and the command's first step there is no moment at which the death of
// redlock leaves a process behind.
func TestKilledRunLeavesNoCommandThatJustStarts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for i := range 30 {
		p := s.start(t, "run", "k"+strconv.Itoa(i), "--json", "--ttl", "1h", "--", "sh", "-c", "sleep 300 & sleep 300")
		p.event(t, "acquired")
		time.Sleep(time.Duration(i) * 300 * time.Microsecond) // not for something, but to meet another moment
		require.NoError(t, p.Process.Kill())
		p.leavesNobody(t)
		p.end(t)
	}
}

// starter is a starter of a command, not yet started; what redlock tells it is written to starts. Why it failed
// comes to fails once failed, which is its end of that pipe, is closed here.
func starter(t *testing.T) (cmd *exec.Cmd, starts, fails, failed *os.File) {
	t.Helper()
	start, starts, err := os.Pipe()
	require.NoError(t, err)
	fails, failed, err = os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, f := range []*os.File{start, fails, failed} {
			_ = f.Close()
		}
	})
	cmd = child.Command(asProgram)
	cmd.Args = []string{starterName, "3", "4", "/bin/sh", "sh", "-c", "echo ran"}
	cmd.ExtraFiles = []*os.File{start, failed}
	return cmd, starts, fails, failed
}

// A starter that nobody tells to start never executes the command.
func TestStarterWithoutRedlockStartsNothing(t *testing.T) {
	t.Parallel()
	cmd, starts, _, _ := starter(t)
	require.NoError(t, starts.Close())
	out, err := cmd.Output()
	require.Error(t, err)
	assert.Empty(t, string(out))
	assert.Equal(t, exitRunFailed, cmd.ProcessState.ExitCode())
}

// When all is over the watchdog is over, too, and has killed nobody.
func TestWatchdogEndsWithRun(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	in, out, err := os.Pipe()
	require.NoError(t, err)
	p := s.startWith(t, in, "run", "k", "--", "sh", "-c", "echo ready; read x; exit 3")
	require.NoError(t, in.Close())
	require.Equal(t, "ready", p.line(t))
	dog := watchdogOf(t, p.Process.Pid)
	require.NoError(t, out.Close())
	assert.Equal(t, 3, p.end(t))
	assert.ErrorIs(t, syscall.Kill(dog, 0), syscall.ESRCH)
}

// A job that was stopped at its terminal ends with redlock, too.
func TestKilledRunTakesASuspendedJobWithIt(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.shell(t)
	x.typed(t, `"$REDLOCK" run k --ttl 1h -- bash -c 'exec 3<>$FIFO; echo pid=$$.; while :; do `+idle+`; done'`+"\n")
	x.expect(t, "\n")
	pid := s.pidOf(t, x)
	x.typed(t, ctrlZ)
	x.expect(t, "Stopped")
	x.expect(t, prompt)
	stateBecomes(t, pid, "T")
	x.typed(t, "kill -9 %1; wait; echo killed\n")
	x.expect(t, "\nkilled")
	gone(t, pid)
}
