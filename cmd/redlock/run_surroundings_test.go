//go:build linux

package main

import (
	"fmt"
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

// startThrough starts redlock by way of a program that makes its surroundings, where that is permitted.
func (s *site) startThrough(t *testing.T, program []string, args ...string) *process {
	t.Helper()
	probe := exec.Command(program[0], append(program[1:len(program):len(program)], "true")...)
	if out, err := probe.CombinedOutput(); err != nil {
		t.Skipf("%s is not for this user: %v, %s", program[0], err, out)
	}
	p := s.prepare(t, args...)
	p.Args = append(append(probe.Args[:len(probe.Args)-1:len(probe.Args)-1], p.Path), p.Args[1:]...)
	p.Path = probe.Path
	p.launch(t)
	return p
}

// withAnotherUser starts a command that ends, and leaves a process of another user in its group, which
// redlock may not signal.
func (s *site) withAnotherUser(t *testing.T, key string) (p *process, pid int) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root has processes of other users")
	}
	p = s.startThrough(t, []string{"setpriv", "--bounding-set", "-kill"}, "run", key, "--json", "--ttl", "3s", "--",
		"sh", "-c", "setpriv --reuid 65534 --clear-groups sh -c 'echo $$; exec sleep 300 >/dev/null 2>&1' &")
	pid, err := strconv.Atoi(p.line(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
	command, err := syscall.Getpgid(pid)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return syscall.Kill(command, 0) != nil }, 20*time.Second, time.Millisecond, "the command itself has ended")
	return p, pid
}

func TestRunWaitsForAProcessOfAnotherUser(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p, pid := s.withAnotherUser(t, "k")
	require.Never(t, func() bool { return s.free(t) }, 300*time.Millisecond, 20*time.Millisecond)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	assert.Equal(t, 0, p.end(t), p.errs.String())
	assert.True(t, s.free(t))
}

// What cannot be killed when the lock is lost is not called killed, and it is said at once.
func TestRunSaysThatAProcessOfAnotherUserCannotBeKilled(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p, pid := s.withAnotherUser(t, "k")
	s.takeAway(t, "k")
	lost := p.event(t, "lost")
	assert.Regexp(t, fmt.Sprintf(`cannot be killed: process %d \(sleep\) runs as another user`, pid), lost.Error)
	assert.Empty(t, lost.KilledBy)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL), "it is alive")
	assert.Equal(t, exitLost, p.end(t), p.errs.String())
	assert.Equal(t, 1, strings.Count(strings.Join(names(p.events(t)), " "), "lost"))

	p, pid = s.withAnotherUser(t, "another")
	stopProcess(t, p.Process.Pid)
	lost = p.event(t, "lost")
	assert.Regexp(t, fmt.Sprintf(`the watchdog cannot kill the command: process %d \(sleep\) runs as another user`, pid), lost.Error)
	assert.NotContains(t, names(p.events(t)), "killed")
}

// Where processes cannot be looked at, what left the group is said to be there, and is waited for.
func TestRunSaysThatThereIsWhatItCannotSee(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	token := fmt.Sprintf("300.4712%d", os.Getpid())
	p := s.startThrough(t, []string{"unshare", "--pid", "--fork", "--kill-child"}, "run", "k", "--json", "--ttl", "3s", "--",
		"sh", "-c", "setsid sleep "+token+" & exec sleep 300")
	daemon := func() (pid int) {
		for _, found := range with(token) {
			if strings.HasPrefix(found.args, "sleep "+token) {
				pid = found.pid
			}
		}
		return pid
	}
	require.Eventually(t, func() bool { return daemon() != 0 }, 20*time.Second, 5*time.Millisecond)
	s.takeAway(t, "k")
	assert.Contains(t, p.event(t, "lost").Error, "what is left of it cannot be seen")
	require.NoError(t, syscall.Kill(daemon(), syscall.SIGKILL))
	assert.Equal(t, exitLost, p.end(t), p.errs.String())
}

// Zombies that are left to a process that does not look after them hold no lock.
func TestRunWithoutAReaper(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	first := []string{"unshare", "--pid", "--fork", "--kill-child"}
	for name, program := range map[string][]string{
		"as the first process":         first,
		"under one that does not reap": append(first, "sh", "-c", `"$@" & [ "$1" = true ] || exec sleep 300`, "sh"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := s.startThrough(t, program, "run", name, "--json", "--ttl", "1h", "--", "sh", "-c", "(sleep 0.3) & exit 3")
			assert.Equal(t, new(3), p.event(t, "exit").Status)
			p.event(t, "released")
		})
	}
}

// A watchdog that has nothing to do any more does nothing.
func TestWatchdogThatKilledRests(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "--json", "--ttl", "1s", "--", "sh", "-c", "echo ready; exec sleep 300")
	require.Equal(t, "ready", p.line(t))
	dog := watchdogOf(t, p.Process.Pid)
	stopProcess(t, p.Process.Pid)
	p.event(t, "killed")
	begun := cpu(t, dog)
	assert.Never(t, func() bool { return cpu(t, dog) > begun+10 }, time.Second, 50*time.Millisecond)
}

func cpu(t *testing.T, pid int) (ticks int) {
	t.Helper()
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	require.NoError(t, err)
	for _, f := range strings.Fields(string(text[strings.LastIndexByte(string(text), ')'):]))[12:14] {
		n, err := strconv.Atoi(f)
		require.NoError(t, err)
		ticks += n
	}
	return ticks
}

// Where what it says is not read any more, as by head -1, redlock goes on.
func TestRunWhoseReaderIsGone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	said, says, err := os.Pipe()
	require.NoError(t, err)
	p := s.prepare(t, "run", "k", "--json", "--ttl", "1h", "--", "sh", "-c", "exec 2>/dev/null; trap 'echo USR1; exit 3' USR1; echo ready; while :; do sleep 0.02; done")
	p.Stderr = says
	p.launch(t)
	require.NoError(t, says.Close())
	require.Equal(t, "ready", p.line(t))
	require.NoError(t, said.Close())
	require.NoError(t, p.Process.Signal(syscall.SIGUSR1)) // of which it wants to say something
	assert.Equal(t, "USR1", p.line(t))
	assert.Equal(t, 3, p.end(t))
	assert.True(t, s.free(t))
}

// A lock has no fencing token and no permit of the lock around it.
func TestRunInARun(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.prepare(t, "run", "k", "--", "sh", "-c", "echo $REDLOCK_KEY=${REDLOCK_FENCE-unset}=${REDLOCK_PERMIT-unset}")
	p.Env = append(p.Env, "REDLOCK_KEY=outer", "REDLOCK_FENCE=7", "REDLOCK_PERMIT=3")
	p.launch(t)
	assert.Equal(t, "k=unset=unset", p.line(t))
	assert.Zero(t, p.end(t))
}

// That it is not guarded any more is said when it is noticed, which is at a renewal.
func TestRunWhoseWatchdogDied(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for form, says := range map[string]string{"--json": `"event":"unguarded"`, "--json=false": "the watchdog died: if redlock is killed or stopped, the command goes on"} {
		p := s.start(t, "run", "k", form, "--ttl", "6s", "--", "sh", "-c", "echo ready; trap 'exit 3' TERM; while :; do sleep 0.02; done")
		require.Equal(t, "ready", p.line(t))
		require.NoError(t, syscall.Kill(watchdogOf(t, p.Process.Pid), syscall.SIGKILL))
		require.Eventually(t, func() bool { return strings.Contains(p.errs.String(), says) }, 20*time.Second, time.Millisecond, lazily(p.errs.String))
		require.NoError(t, p.Process.Signal(syscall.SIGTERM))
		assert.Equal(t, 3, p.end(t))
		assert.Equal(t, 1, strings.Count(p.errs.String(), says))
	}
}

// A lease that recovered asks the command to end when it fails again, and is no reason for its end.
func TestRunWhoseLeaseFailsTwice(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "--json", "--ttl", "9s", "--", "sh", "-c",
		"trap 'echo TERM' TERM; trap 'ulimit -c 0; trap - SEGV; kill -SEGV $$' USR1; echo ready; while :; do sleep 0.02; done")
	require.Equal(t, "ready", p.line(t))
	for range 2 {
		for _, x := range s.servers {
			require.NoError(t, x.Pause())
		}
		require.Equal(t, "TERM", p.line(t), p.errs.String())
		for _, x := range s.servers {
			require.NoError(t, x.Resume())
		}
		require.Eventually(t, func() bool {
			st, err := s.nodes.Inspect(t.Context(), "k")
			return err == nil && st.TTL > 5*time.Second
		}, 20*time.Second, time.Millisecond)
	}
	require.NoError(t, p.Process.Signal(syscall.SIGUSR1))
	assert.Equal(t, 128+int(syscall.SIGSEGV), p.end(t), p.errs.String())
}

// What leaves the group belongs to the command as long as it stays in the session.
func TestRunOfProcessesThatLeaveTheGroup(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	begin := func(script string) (p *process, pid int) {
		p = s.startInGroup(t, "run", "k", "--json", "--ttl", "6s", "--", "sh", "-c", script)
		pid, err := strconv.Atoi(p.line(t))
		require.NoError(t, err, p.errs.String())
		t.Cleanup(func() { _ = syscall.Kill(pid, syscall.SIGKILL) })
		return p, pid
	}
	dies := func(pid int) {
		t.Helper()
		require.Eventually(t, func() bool { return syscall.Kill(pid, 0) != nil }, 20*time.Second, time.Millisecond)
	}
	const leaves = `timeout 300 sh -c 'trap "" INT; echo $$; exec sleep 300'; true`

	p, pid := begin(leaves)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, 143, p.end(t), p.errs.String())
	dies(pid)

	p, pid = begin(leaves)
	s.takeAway(t, "k")
	assert.Equal(t, exitLost, p.end(t), p.errs.String())
	dies(pid)

	p, pid = begin(leaves)
	require.NoError(t, p.Process.Kill())
	dies(pid)
	s.takeAway(t, "k")

	// Where nothing is left of the group but them, too.
	p, pid = begin(strings.TrimSuffix(leaves, "; true") + " & exit 3")
	gone(t, p.event(t, "started").PID)
	require.Never(t, func() bool { return s.free(t) }, 300*time.Millisecond, 20*time.Millisecond)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, 3, p.end(t), p.errs.String())
	dies(pid)
	assert.True(t, s.free(t))
	p, pid = begin(strings.TrimSuffix(leaves, "; true") + " & exit 3")
	gone(t, p.event(t, "started").PID)
	require.NoError(t, p.Process.Kill())
	dies(pid)
	s.takeAway(t, "k")

	p, pid = begin(`setsid sh -c 'echo $$; exec sleep 300' & exit 4`)
	assert.Equal(t, 4, p.end(t), "a daemon is not waited for")
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL), "nor killed")
}

// What forks and ends, again and again, is waited for as what stays.
func TestRunWaitsForALoopOfForks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	over := t.TempDir() + "/over"
	p := s.startInGroup(t, "run", "k", "--json", "--ttl", "6s", "--", "sh", "-c", `perl -MPOSIX -e '
		setpgid(0, 0); for ($end = time + 20; time < $end && !-e $ARGV[0]; ) { fork and _exit(0); select(undef, undef, undef, 0.002) }' "$0" & exit 3`, over)
	gone(t, p.event(t, "started").PID)
	begun := time.Now()
	for time.Since(begun) < 2*time.Second {
		require.False(t, s.free(t), p.errs.String())
	}
	require.NoError(t, os.WriteFile(over, nil, 0o600))
	assert.Equal(t, 3, p.end(t), p.errs.String())
	assert.True(t, s.free(t))
}

// Where the session is that of a process outside of the container, a daemon is none of it.
func TestRunInAContainerWaitsForNoDaemon(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.startThrough(t, []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"},
		"run", "k", "--json", "--ttl", "6s", "--", "sh", "-c", `setsid sleep 300 >/dev/null 2>&1 & exit 4`)
	assert.Equal(t, 4, p.end(t), p.errs.String())
	p.event(t, "released")
}

// A signal that a run gets is one for the command of a run within it, which its own run passes on.
func TestRunPassesSignalsOnceToACommandWithin(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.prepare(t, "run", "k", "--ttl", "1h", "--", "sh", "-c", `exec "$0" run inner --ttl 1h -- sh -c "$1"`, child.Command(asProgram).Path,
		`trap 'echo USR1' USR1; trap 'echo TERM; exit 5' TERM; trap : INT; echo ready; while :; do sleep 0.02; done`)
	p.launch(t)
	require.Equal(t, "ready", p.line(t))
	for range 3 {
		require.NoError(t, p.Process.Signal(syscall.SIGUSR1))
		require.Equal(t, "USR1", p.line(t))
	}
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, "TERM", p.line(t))
	assert.Equal(t, 5, p.end(t))
	assert.True(t, s.free(t))
}

// What redlock's process had as a child before it was redlock is not the command's.
func TestRunLeavesOlderChildrenAlone(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, dogDies := range []bool{false, true} {
		p := s.prepare(t)
		p.Path, p.Args = "/bin/sh", []string{"sh", "-c", `sleep 300 >/dev/null 2>&1 & echo $!; exec "$0" run k --json --ttl 3s -- sh -c 'setsid sleep 300 >/dev/null 2>&1 & echo $!; exec sleep 300'`, p.Path}
		p.launch(t)
		older, err := strconv.Atoi(p.line(t))
		require.NoError(t, err)
		t.Cleanup(func() { _ = syscall.Kill(older, syscall.SIGKILL) })
		daemon, err := strconv.Atoi(p.line(t))
		require.NoError(t, err)
		if dogDies {
			require.NoError(t, syscall.Kill(watchdogOf(t, p.Process.Pid), syscall.SIGKILL))
		}
		s.takeAway(t, "k")
		assert.Equal(t, exitLost, p.end(t), p.errs.String())
		assert.True(t, ended(daemon))
		assert.False(t, ended(older))
	}
}

// The command has the open files of whoever starts redlock, as those of flock, a jobserver or a socket.
func TestRunHandsDownOpenFiles(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for n := range 5 {
		p := s.prepare(t, "run", "k", "--", "sh", "-c", `ls -l /proc/self/fd | grep -c given; echo over`)
		for i := range n {
			f, err := os.Create(t.TempDir() + "/given" + strconv.Itoa(i))
			require.NoError(t, err)
			defer f.Close()
			p.ExtraFiles = append(p.ExtraFiles, f)
		}
		p.launch(t)
		assert.Equal(t, strconv.Itoa(n), p.line(t))
		assert.Equal(t, "over", p.line(t))
		assert.Zero(t, p.end(t), p.errs.String())
	}
}
