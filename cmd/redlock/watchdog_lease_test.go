//go:build unix

package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/child"
)

// stepping is a command that adds a line to a file again and again.
const stepping = `echo $$; while :; do echo first >>"$0"; sleep 0.02; done`

// steps are the lines of the file.
func steps(t *testing.T, file string) []string {
	t.Helper()
	text, err := os.ReadFile(file)
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	return strings.Fields(string(text))
}

// overtaken stops redlock under a command that adds steps, and returns when another command has the
// lock, which it holds till the end of the test.
func (s *site) overtaken(t *testing.T, stop func(p *process, group int)) (p *process, group int, file string) {
	t.Helper()
	key, file := t.Name(), filepath.Join(t.TempDir(), "steps")
	p = s.startInGroup(t, "run", key, "--json", "--ttl", "2s", "--", "sh", "-c", stepping, file)
	group, err := strconv.Atoi(p.line(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) })
	require.Eventually(t, func() bool { return len(steps(t, file)) > 0 }, 20*time.Second, time.Millisecond)
	stop(p, group)
	in, out, err := os.Pipe()
	require.NoError(t, err)
	t.Cleanup(func() { _, _ = in.Close(), out.Close() })
	another := s.startWith(t, in, "run", key, "--", "sh", "-c", `echo second >>"$0"; echo got; read x`, file)
	require.Equal(t, "got", another.line(t), another.errs.String())
	return p, group, file
}

func stopProcess(t *testing.T, pid int) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	stateBecomes(t, pid, "T")
}

// endedByWatchdog goes on with redlock, which knows by then what became of its command.
func (p *process) endedByWatchdog(t *testing.T, why string) {
	t.Helper()
	killed := p.event(t, "killed")
	assert.Equal(t, watchdogName, killed.KilledBy)
	assert.Contains(t, killed.Error, why)
	assert.NotContains(t, names(p.events(t)), "lost", "redlock is stopped")
	require.NoError(t, p.Process.Signal(syscall.SIGCONT))
	assert.Equal(t, exitLost, p.end(t), p.errs.String())
	assert.Equal(t, watchdogName, p.event(t, "lost").KilledBy)
}

// Whatever stops redlock, its command is dead before another one gets the lock.
func TestStoppedRunLetsNoOtherCommandRunBesideItsOwn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for name, stop := range map[string]func(t *testing.T, p *process, group int){
		"redlock": func(t *testing.T, p *process, _ int) { stopProcess(t, p.Process.Pid) },
		"redlock and then its command": func(t *testing.T, p *process, group int) {
			stopProcess(t, p.Process.Pid)
			require.NoError(t, syscall.Kill(-group, syscall.SIGSTOP))
		},
		"the command and then redlock": func(t *testing.T, p *process, group int) {
			// The shell itself may be in vfork(2) for a child that is stopped, and so is "D" and not "T".
			require.NoError(t, syscall.Kill(-group, syscall.SIGSTOP))
			stopProcess(t, p.Process.Pid)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, group, file := s.overtaken(t, func(p *process, group int) { stop(t, p, group) })
			assert.True(t, ended(group), "the command is %q", state(group))
			_ = syscall.Kill(-group, syscall.SIGCONT)
			p.endedByWatchdog(t, "the lease is over")
			all := steps(t, file)
			assert.Equal(t, "second", all[len(all)-1])
		})
	}
}

// Where the watchdog is stopped, too, the lease alone protects others: what has the command's
// effects as its result needs fencing. The command ends as soon as either goes on.
func TestStoppedRunWithStoppedWatchdog(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	dog := 0
	p, group, _ := s.overtaken(t, func(p *process, _ int) {
		dog = watchdogOf(t, p.Process.Pid)
		stopProcess(t, p.Process.Pid) // first, or it continues the other
		stopProcess(t, dog)
	})
	t.Cleanup(func() { _ = syscall.Kill(dog, syscall.SIGKILL) })
	assert.False(t, ended(group), "nothing is there that could kill it")
	require.NoError(t, syscall.Kill(dog, syscall.SIGCONT))
	require.Eventually(t, func() bool { return ended(group) }, 20*time.Second, 5*time.Millisecond)
	p.endedByWatchdog(t, "the lease is over")
}

// A watchdog that is stopped goes on at once, and has told all when the command has ended.
func TestStoppedWatchdogIsContinued(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	in, out, err := os.Pipe()
	require.NoError(t, err)
	p := s.startWith(t, in, "run", "k", "--json", "--ttl", "1s", "--", "sh", "-c", "echo ready; read x; exit 3")
	require.NoError(t, in.Close())
	require.Equal(t, "ready", p.line(t))
	dog := watchdogOf(t, p.Process.Pid)
	for range 20 {
		require.NoError(t, syscall.Kill(dog, syscall.SIGSTOP))
	}
	first := p.event(t, "acquired").Until
	require.Eventually(t, func() bool { return time.Since(*first) > time.Second }, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, syscall.Kill(dog, syscall.SIGSTOP))
	require.NoError(t, out.Close())
	assert.Equal(t, 3, p.end(t), p.errs.String())
	assert.NotContains(t, names(p.events(t)), "killed")
	assert.ErrorIs(t, syscall.Kill(dog, 0), syscall.ESRCH)
}

// A watchdog that did not run for longer than a lease finds the renewals that it missed.
func TestWatchdogFindsRenewalsThatItMissed(t *testing.T) {
	t.Parallel()
	dog := child.Command(asProgram)
	dog.Args = []string{watchdogName, "of", "1", "3", "4", "5", "6"}
	var ours [4]*os.File
	for i := range ours {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		if i%2 == 1 {
			r, w = w, r
		}
		ours[i], dog.ExtraFiles = w, append(dog.ExtraFiles, r)
		t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	}
	said, err := dog.StdoutPipe()
	require.NoError(t, err)
	line, err := json.Marshal(order{&runLog{keys: []string{"k"}}, "/bin/sh", []string{"sh", "-c", "echo ran; exec sleep 300"}})
	require.NoError(t, err)
	now := bootTime()
	_, err = fmt.Fprintf(ours[0], "%s\n%s %d\n%s %d\n", line, toldUntil, now-time.Second, toldUntil, now+time.Hour)
	require.NoError(t, err)
	_, err = fmt.Fprintln(ours[2], int64(now+time.Hour))
	require.NoError(t, err)
	require.NoError(t, dog.Start())
	for _, f := range dog.ExtraFiles {
		require.NoError(t, f.Close())
	}
	news, command := bufio.NewReader(ours[1]), bufio.NewReader(said)
	first, err := news.ReadString('\n')
	require.NoError(t, err)
	assert.Contains(t, first, saidStarted)
	ran, err := command.ReadString('\n')
	require.NoError(t, err)
	assert.Equal(t, "ran\n", ran)

	_, err = fmt.Fprintln(ours[0], toldEnd)
	require.NoError(t, err)
	for _, want := range []string{saidEnds, saidStatus, saidNone} {
		got, err := news.ReadString('\n')
		require.NoError(t, err)
		assert.Contains(t, got, want)
	}
	require.NoError(t, ours[0].Close())
	require.NoError(t, dog.Wait())
}

// Killed with a signal that it cannot handle, redlock says nothing; its watchdog does.
func TestWatchdogOfAKilledRunSaysSo(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "--json", "--ttl", "1h", "--", "sh", "-c", "echo ready; sleep 300")
	require.Equal(t, "ready", p.line(t))
	require.NoError(t, p.Process.Kill())
	p.leavesNobody(t)
	killed := p.event(t, "killed")
	assert.Equal(t, "k", killed.Key)
	assert.Contains(t, killed.Error, "redlock ended")
	assert.Equal(t, -1, p.end(t))
}

// late has redlock ask for a renewal that nodes answer only when resume is called, with a third of the lease
// left.
func late(t *testing.T) (s *site, p *process, resume func()) {
	t.Helper()
	s = newSite(t)
	p = s.start(t, "run", "k", "--json", "--ttl", "6s", "--", "sh", "-c", "trap 'echo TERM' TERM; echo ready; while :; do sleep 0.05; done")
	require.Equal(t, "ready", p.line(t))
	for _, x := range s.servers {
		require.NoError(t, x.Pause())
	}
	require.Equal(t, "TERM", p.line(t), "a third of the lease is left")
	return s, p, func() {
		for _, x := range s.servers {
			require.NoError(t, x.Resume())
		}
	}
}

// Renewals that are answered too late find the command dead, by redlock, which is first to kill it.
func TestRunWhoseRenewalsAreAnsweredTooLate(t *testing.T) {
	t.Parallel()
	_, p, resume := late(t)
	lost := p.event(t, "lost")
	resume()
	assert.Equal(t, "redlock", lost.KilledBy)
	assert.Equal(t, exitLost, p.end(t))
	assert.NotContains(t, names(p.events(t)), "killed")
}

// Renewals that are answered late, but in time, are told to the watchdog. On a busy machine redlock itself
// may be late, and then ends its command rightly; a watchdog that is not told ends it each time.
func TestRunWhoseRenewalsAreAnsweredLate(t *testing.T) {
	t.Parallel()
	const most = 4
	for range most {
		s, p, resume := late(t)
		resume()
		first, ended := p.event(t, "acquired").Until, func() bool {
			return len(names(p.events(t))) != len([]string{"waiting", "acquired", "started", "signal"})
		}
		for !ended() && time.Since(*first) < time.Second {
			time.Sleep(20 * time.Millisecond)
		}
		over := ended()
		if !over {
			assert.False(t, s.free(t))
		}
		_ = p.Process.Kill()
		p.leavesNobody(t)
		p.end(t)
		if !over {
			return
		}
	}
	assert.Fail(t, "each command was ended", "%d of them", most)
}

// A starter whose lease is over executes nothing.
func TestStarterAfterTheEndOfTheLeaseStartsNothing(t *testing.T) {
	t.Parallel()
	cmd, starts, fails, failed := starter(t)
	_, err := fmt.Fprintln(starts, int64(bootTime()))
	require.NoError(t, err)
	require.NoError(t, starts.Close())
	out, err := cmd.Output()
	require.Error(t, err)
	assert.Empty(t, string(out))
	require.NoError(t, failed.Close())
	why, err := io.ReadAll(fails)
	require.NoError(t, err)
	assert.Equal(t, "0", string(why))
}
