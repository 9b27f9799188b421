//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/quorumlock/redlock/internal/testing/child"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// tty is a terminal with a program in it.
type tty struct {
	*os.File
	cmd  *exec.Cmd
	out  lockedBuffer
	seen int // of out
}

const prompt = "PROMPT> "

// terminal starts a program as the leader of a terminal's session.
func (s *site) terminal(t *testing.T, name string, args ...string) *tty {
	t.Helper()
	program := child.Command(asProgram)
	x := &tty{cmd: exec.Command(name, args...)}
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, syscall.Mkfifo(fifo, 0o600))
	x.cmd.Env = append(program.Env, "FIFO="+fifo, addrsEnv+"="+strings.Join(s.addrs, ","), "REDLOCK="+program.Path,
		"PS1="+prompt, "TERM=xterm", "LC_ALL=C.UTF-8", "NO_COLOR=", "HISTFILE=")
	var err error
	x.File, err = pty.StartWithSize(x.cmd, &pty.Winsize{Rows: 24, Cols: 100})
	require.NoError(t, err)
	over := make(chan struct{})
	go func() {
		defer close(over)
		b := make([]byte, 4096)
		for {
			n, err := x.Read(b)
			_, _ = x.out.Write(b[:n])
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		for _, pid := range strings.Fields(x.ps("pid=")) {
			if pid, err := strconv.Atoi(pid); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		<-over
		_ = x.Close()
		if x.cmd.ProcessState == nil {
			_ = x.cmd.Wait()
		}
	})
	return x
}

// shell is a terminal with a shell that has job control.
func (s *site) shell(t *testing.T) *tty {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed: no shell with job control")
	}
	x := s.terminal(t, bash, "--norc", "--noprofile", "--noediting", "-i")
	x.expect(t, prompt)
	return x
}

func (x *tty) typed(t *testing.T, text string) {
	t.Helper()
	_, err := x.WriteString(text)
	require.NoError(t, err)
}

// expect waits until the terminal shows the text, behind what was expected before, and
// returns what stands between.
func (x *tty) expect(t *testing.T, text string) (before string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(x.out.String()[x.seen:], text) },
		30*time.Second, 2*time.Millisecond, "%q does not come: %q", text, lazily(func() string {
			return x.out.String()[x.seen:] + "\n" + x.ps("pid,ppid,pgid,tpgid,stat,args")
		}))
	rest := x.out.String()[x.seen:]
	i := strings.Index(rest, text)
	x.seen += i + len(text)
	return rest[:i]
}

// ps is what there is in the terminal's session.
func (x *tty) ps(columns string) string {
	out, _ := exec.Command("ps", "-e", "-o", "sid=,"+columns).Output()
	var all strings.Builder
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); f[0] == strconv.Itoa(x.cmd.Process.Pid) {
			all.WriteString(strings.Join(f[1:], " ") + "\n")
		}
	}
	return all.String()
}

// lazily is evaluated when it is printed.
type lazily func() string

func (f lazily) String() string { return f() }

// status is what the shell says of the last command; it has to be at its prompt.
func (x *tty) status(t *testing.T) int {
	t.Helper()
	x.typed(t, "echo status=$?.\n")
	x.expect(t, "\nstatus=")
	code, err := strconv.Atoi(x.expect(t, "."))
	require.NoError(t, err)
	x.expect(t, prompt)
	return code
}

func (x *tty) end(t *testing.T) int {
	t.Helper()
	done := make(chan struct{})
	go func() { _ = x.cmd.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(30 * time.Second):
		require.FailNow(t, "it does not end", "%q", x.out.String())
	}
	return x.cmd.ProcessState.ExitCode()
}

// idle is a loop's body for bash that starts no process. A shell that starts one with
// vfork(2) cannot be stopped meanwhile if that one is.
const idle = `read -rt 0.02 x <&3`

const (
	ctrlC         = "\x03"
	ctrlZ         = "\x1a"
	ctrlBackslash = "\x1c"
)

func (s *site) pidOf(t *testing.T, x *tty) int {
	t.Helper()
	x.expect(t, "pid=")
	pid, err := strconv.Atoi(x.expect(t, "."))
	require.NoError(t, err)
	return pid
}

// state is the process's, as ps has it: T is stopped, and + is in the foreground. How nice
// these tests were asked to be is left out.
func state(pid int) string {
	out, _ := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	return strings.NewReplacer("N", "", "<", "").Replace(strings.TrimSpace(string(out)))
}

// ended reports whether it runs no more, be it that its end was waited for or not.
func ended(pid int) bool { s := state(pid); return s == "" || strings.HasPrefix(s, "Z") }

func stateBecomes(t *testing.T, pid int, prefix string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.HasPrefix(state(pid), prefix) }, 20*time.Second, 5*time.Millisecond,
		"%d is not %q but %q", pid, prefix, lazily(func() string { return state(pid) }))
}

// The command has the terminal: it is in the foreground, and may set and read it, many times
// in a row; afterwards the shell has it again.
func TestRunGivesItsCommandTheTerminal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.shell(t)
	for i := range 10 {
		x.typed(t, fmt.Sprintf(`"$REDLOCK" run k -- sh -c 'until set -- $(ps -o pgid=,tpgid= -p $$); [ $1 = $2 ]; do sleep 0.01; done; echo foreground; stty -echo; stty echo; stty size; echo ready; read x </dev/tty; read y; echo "got $x $y"; exit %d'`+"\n", i))
		x.expect(t, "\r\nforeground\r\n")
		x.expect(t, "24 100")
		x.expect(t, "ready\r\n")
		x.typed(t, "a\nb\n")
		x.expect(t, "got a b")
		x.expect(t, prompt)
		require.Equal(t, i, x.status(t))
	}
	assert.True(t, s.free(t))
}

// Input and output that are no terminal do not keep it from the command that opens it.
func TestRunInAPipelineGivesTheTerminalToWhoAsks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.shell(t)
	for _, around := range []string{`%s </dev/null`, `echo in | %s`, `%s | cat`, `echo in | %s | cat`} {
		x.typed(t, fmt.Sprintf(around, `"$REDLOCK" run k -- sh -c 'stty size </dev/tty; read x </dev/tty; echo "got $x"'`)+"\n")
		x.expect(t, "24 100")
		x.typed(t, "this\n")
		x.expect(t, "got this")
		x.expect(t, prompt)
		assert.Zero(t, x.status(t))
	}
	// A pager reads keys from the terminal, not from the pipe.
	x.typed(t, `"$REDLOCK" run k -- sh -c 'echo page; sleep 0.3' | sh -c 'cat; read key </dev/tty; echo "key $key"'`+"\n")
	x.expect(t, "page\r\n")
	x.typed(t, "q\n")
	x.expect(t, "key q")
	x.expect(t, prompt)
}

func TestRunPassesControlCOnce(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.shell(t)
	const counts = `sh -c 'n=0; trap "n=\$((n+1)); echo INT\$n" INT; trap "exit 9" TERM; echo pid=$$.; while :; do sleep 0.02; done'`
	for _, c := range []struct{ name, line string }{
		{"in the foreground", `"$REDLOCK" run k -- ` + counts},
		{"input from elsewhere", `"$REDLOCK" run k -- ` + counts + ` </dev/null`},
		{"in a pipeline", `"$REDLOCK" run k -- ` + counts + ` | (trap "" INT; cat)`},
	} {
		x.typed(t, c.line+"\n")
		x.expect(t, "\n")
		pid := s.pidOf(t, x)
		for i := range 3 {
			x.typed(t, ctrlC)
			x.expect(t, fmt.Sprintf("INT%d\r\n", i+1))
			require.Never(t, func() bool { return strings.Contains(x.out.String()[x.seen:], "INT") }, 200*time.Millisecond, 10*time.Millisecond, c.name)
		}
		require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
		x.expect(t, prompt)
		if !strings.Contains(c.line, "|") {
			require.Equal(t, 9, x.status(t))
		}
	}
	for key, code := range map[string]int{ctrlC: 130, ctrlBackslash: 131} {
		x.typed(t, `"$REDLOCK" run k -- sh -c 'ulimit -c 0; echo pid=$$.; exec sleep 60'`+"\n")
		x.expect(t, "\n")
		stateBecomes(t, s.pidOf(t, x), "S+")
		x.typed(t, key)
		x.expect(t, prompt)
		require.Equal(t, code, x.status(t))
	}
	assert.True(t, s.free(t))
}

// Ctrl-C while it waits ends redlock itself.
func TestRunIsInterruptedAtTheTerminalWhileItWaits(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lock := s.hold(t)
	x := s.shell(t)
	x.typed(t, `"$REDLOCK" run k -- echo ran`+"\n")
	require.Eventually(t, func() bool {
		st, err := s.nodes.Inspect(t.Context(), "k")
		return err == nil && len(st.Waiters) == 1
	}, 20*time.Second, 5*time.Millisecond)
	x.typed(t, ctrlC)
	x.expect(t, prompt)
	require.Equal(t, 130, x.status(t))
	assert.NotContains(t, x.out.String(), "\r\nran")
	require.NoError(t, lock.Release(t.Context()))
}

// A job that is stopped, and continued in time, goes on.
func TestRunIsSuspended(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.shell(t)
	for _, around := range []string{`%s`, `%s | cat`} {
		x.typed(t, fmt.Sprintf(around, `"$REDLOCK" run k --ttl 1h -- sh -c 'echo pid=$$.; read x </dev/tty; echo "got $x"; exit 4'`)+"\n")
		x.expect(t, "\n")
		pid := s.pidOf(t, x)
		stateBecomes(t, pid, "S+")
		x.typed(t, ctrlZ)
		x.expect(t, "Stopped")
		x.expect(t, prompt)
		stateBecomes(t, pid, "T")
		assert.False(t, s.free(t))
		x.typed(t, "fg\n")
		stateBecomes(t, pid, "S+")
		x.typed(t, ctrlZ) // and once more
		x.expect(t, "Stopped")
		x.expect(t, prompt)
		x.typed(t, "fg\n")
		stateBecomes(t, pid, "S+")
		x.typed(t, "hello\n")
		x.expect(t, "got hello")
		x.expect(t, prompt)
		if around == "%s" {
			require.Equal(t, 4, x.status(t))
		}
	}
	assert.True(t, s.free(t))
}

// One that does not ask for the terminal is stopped, too, and goes on in the background.
func TestRunIsSuspendedAndContinuedInTheBackground(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.shell(t)
	for _, around := range []string{`%s`, `%s </dev/null`, `%s | cat`} {
		done := filepath.Join(t.TempDir(), "done")
		x.typed(t, fmt.Sprintf(around, `"$REDLOCK" run k --ttl 1h -- bash -c 'exec 3<>$FIFO; echo pid=$$.; while [ ! -e `+done+` ]; do `+idle+`; done; echo "ended"'`)+"\n")
		x.expect(t, "\n")
		pid := s.pidOf(t, x)
		x.typed(t, ctrlZ)
		x.expect(t, "Stopped")
		x.expect(t, prompt)
		stateBecomes(t, pid, "T")
		x.typed(t, "bg\n")
		x.expect(t, prompt)
		stateBecomes(t, pid, "S")
		assert.NotContains(t, state(pid), "+")
		x.typed(t, "echo the shell has the terminal $((1+1))\n")
		x.expect(t, "the shell has the terminal 2")
		require.NoError(t, os.WriteFile(done, nil, 0o600))
		x.expect(t, "ended")
		x.typed(t, "wait; echo waited\n")
		x.expect(t, "\nwaited")
		x.expect(t, prompt)
	}
	assert.True(t, s.free(t))
}

// The lease of a stopped job ends, and what was under it never runs again.
func TestRunIsSuspendedForTooLong(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.shell(t)
	x.typed(t, `"$REDLOCK" run k --ttl 1s -- bash -c 'exec 3<>$FIFO; trap "echo it went on" TERM CONT; echo pid=$$.; while :; do `+idle+`; done'`+"\n")
	x.expect(t, "\n")
	pid := s.pidOf(t, x)
	x.typed(t, ctrlZ)
	x.expect(t, "Stopped")
	x.expect(t, prompt)
	require.Eventually(t, func() bool { return s.free(t) }, 20*time.Second, 10*time.Millisecond)
	lock := s.hold(t)
	// The watchdog has some milliseconds for it, less what a busy machine takes; until then it is stopped, and does nothing.
	require.Eventually(t, func() bool { return ended(pid) }, 20*time.Second, time.Millisecond, "the watchdog has not killed it")
	x.typed(t, "fg\n")
	x.expect(t, "lost")
	x.expect(t, prompt)
	require.Equal(t, exitLost, x.status(t))
	assert.NotContains(t, x.out.String(), "\nit went on")
	assert.Empty(t, state(pid))
	assert.NoError(t, lock.Release(t.Context()), "another's lock is left alone")
}

// The signal may come to us instead of the command, as it does from Ctrl-Z before the command
// has the terminal. What we then do to the command is no second stop.
func TestRunIsStoppedBesideItsCommand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.shell(t)
	x.typed(t, `"$REDLOCK" run k -- sh -c 'echo pid=$$.; read x; echo "got $x"; exit 4'`+"\n")
	x.expect(t, "\n")
	pid := s.pidOf(t, x)
	stateBecomes(t, pid, "S+")
	for range 3 {
		require.NoError(t, syscall.Kill(runOf(t, pid), syscall.SIGTSTP))
		x.expect(t, "Stopped")
		x.expect(t, prompt)
		stateBecomes(t, pid, "T")
		x.typed(t, "fg\n")
		stateBecomes(t, pid, "S+")
	}
	x.typed(t, "hello\n")
	x.expect(t, "got hello")
	x.expect(t, prompt)
	require.Equal(t, 4, x.status(t))
}

// runOf is the redlock of a command, which is its watchdog's parent.
func runOf(t *testing.T, pid int) int {
	t.Helper()
	return parentOf(t, parentOf(t, pid))
}

func parentOf(t *testing.T, pid int) int {
	t.Helper()
	out, err := exec.Command("ps", "-o", "ppid=", "-p", strconv.Itoa(pid)).Output()
	require.NoError(t, err)
	parent, err := strconv.Atoi(strings.TrimSpace(string(out)))
	require.NoError(t, err)
	return parent
}

// Where there is no shell to continue it, Ctrl-Z does nothing.
func TestRunWithoutAShellIsNotSuspended(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.terminal(t, child.Command(asProgram).Path, "run", "k", "--", "sh", "-c", `echo pid=$$.; read x; echo "got $x"; exit 4`)
	stateBecomes(t, s.pidOf(t, x), "S+")
	x.typed(t, ctrlZ)
	x.typed(t, "this\n")
	x.expect(t, "got this")
	assert.Equal(t, 4, x.end(t))
}

// A job in the background leaves the terminal to the shell, until it is put in the foreground.
func TestRunInTheBackground(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.shell(t)
	x.typed(t, `"$REDLOCK" run k -- sh -c 'echo pid=$$.; sleep 0.3; read x; echo "got $x"; exit 4' &`+"\n")
	x.expect(t, "\n")
	pid := s.pidOf(t, x)
	x.typed(t, "echo the shell has the terminal $((1+1))\n")
	x.expect(t, "the shell has the terminal 2")
	stateBecomes(t, pid, "T") // it wants to read
	stateBecomes(t, runOf(t, pid), "T")
	assert.False(t, s.free(t))
	x.typed(t, "fg\n")
	stateBecomes(t, pid, "S+")
	x.typed(t, "hello\n")
	x.expect(t, "got hello")
	x.expect(t, prompt)
	require.Equal(t, 4, x.status(t))

	x.typed(t, `"$REDLOCK" run k -- sh -c 'echo pid=$$.; sleep 60' &`+"\n")
	x.expect(t, "\n")
	pid = s.pidOf(t, x)
	x.typed(t, "fg\n") // while it runs
	stateBecomes(t, pid, "S+")
	x.typed(t, ctrlC)
	x.expect(t, prompt)
	require.Equal(t, 130, x.status(t))
}

func TestRunPassesTheSizeOfTheWindow(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.shell(t)
	for _, around := range []string{`%s`, `%s </dev/null`} {
		x.typed(t, fmt.Sprintf(around, `"$REDLOCK" run k -- sh -c 'trap "stty size </dev/tty; exit 0" WINCH; stty size </dev/tty; echo pid=$$.; while :; do sleep 0.02; done'`)+"\n")
		x.expect(t, "\n")
		x.expect(t, "24 100")
		s.pidOf(t, x)
		require.NoError(t, pty.Setsize(x.File, &pty.Winsize{Rows: 30, Cols: 90}))
		x.expect(t, "30 90")
		x.expect(t, prompt)
		require.NoError(t, pty.Setsize(x.File, &pty.Winsize{Rows: 24, Cols: 100}))
	}
}

// What a command did to the terminal that was killed is undone; what one left on purpose is not.
func TestRunRestoresTheModesOfTheTerminal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for how, want := range map[string]string{`kill -9 $$`: " icanon", `exit 0`: " -icanon"} {
		x := s.terminal(t, "sh", "-c", `"$REDLOCK" run k -- sh -c 'stty -icanon -echo; `+how+`'; stty -a; echo over`)
		assert.Contains(t, x.expect(t, "over"), want)
		assert.Zero(t, x.end(t))
	}
}

// The terminal's end is the command's end, be it that the shell tells it or the system.
func TestRunIsHungUp(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, sig := range []syscall.Signal{syscall.SIGHUP, syscall.SIGKILL} {
		x := s.shell(t)
		x.typed(t, `"$REDLOCK" run k -- sh -c 'echo pid=$$.; sleep 60'`+"\n")
		x.expect(t, "\n")
		pid := s.pidOf(t, x)
		stateBecomes(t, pid, "S+")
		require.NoError(t, x.cmd.Process.Signal(sig))
		require.Eventually(t, func() bool { return s.free(t) }, 20*time.Second, 10*time.Millisecond)
		assert.Empty(t, state(pid))
	}
}

// The command finds signals as it would without us: ignored is what was ignored.
func TestRunLeavesDispositionsOfSignalsAlone(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	t.Parallel()
	s := newSite(t)
	ignored := func(x *tty) string {
		x.expect(t, "SigIgn:")
		return strings.TrimSpace(x.expect(t, "\r\n"))
	}
	x := s.terminal(t, "sh", "-c", `cd /; grep SigIgn /proc/self/status; "$REDLOCK" run k -- grep SigIgn /proc/self/status; trap "" HUP INT; grep SigIgn /proc/self/status; "$REDLOCK" run k -- grep SigIgn /proc/self/status`)
	assert.Equal(t, ignored(x), ignored(x))
	want := ignored(x)
	assert.Equal(t, want, ignored(x))
	assert.True(t, strings.HasSuffix(want, "3"), want) // HUP, INT
	assert.Zero(t, x.end(t))
}

// Colours and bars are for terminals only; with NO_COLOR, or in a pipe, there are none.
func TestColoursAreForTerminals(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ageMarks(t) // or the others are barred when one is dead
	lock := s.hold(t)
	for _, c := range []struct {
		dead bool // the last node
		args []string
		want string // with colours
		then string // typed
	}{
		{false, []string{"status", "k"}, "\x1b[35mk is held by the test, token " + shortToken(lock.Token()), ""},
		{false, []string{"status", "free"}, "\x1b[32mfree is free\x1b[0m", ""},
		{false, []string{"watch", "k", "--interval", "50ms"}, "\x1b[35mk is held by the test", ctrlC},
		{false, []string{"bench", "--goroutines", "2", "--duration", "500ms"}, "cycles/s", ""},
		{false, []string{"bench", "--goroutines", "2", "--duration", "500ms"}, "\x1b[1m  LATENCY", ""},
		{false, []string{"bench", "--goroutines", "2", "--duration", "10m"}, "cycles/s", ctrlC},
		{true, []string{"status", "k"}, "\x1b[31m" + s.addrs[2], ""},
		{true, []string{"check"}, "\x1b[35mwarning", ""},
		{true, []string{"check"}, "\x1b[31m" + s.addrs[2], ""},
	} {
		if c.dead {
			s.servers[2].Kill()
		}
		for _, shell := range []string{`exec "$REDLOCK" "$@"`, `export NO_COLOR=1; exec "$REDLOCK" "$@"`, `"$REDLOCK" "$@" 2>&1 | cat`} {
			if c.then != "" && strings.Contains(shell, "|") {
				continue
			}
			x := s.terminal(t, "sh", append([]string{"-c", shell, "sh"}, c.args...)...)
			coloured := strings.HasPrefix(shell, "exec")
			want := c.want
			if !coloured {
				want = regexp.MustCompile("\x1b\\[\\d*m").ReplaceAllString(want, "")
			}
			if strings.Contains(shell, "|") && want == "cycles/s" {
				want = "per second"
			}
			x.expect(t, want)
			x.typed(t, c.then)
			// A busy machine makes errors in bench.
			if code := x.end(t); !strings.Contains(shell, "|") && c.args[0] != "bench" {
				assert.Zero(t, code, "%v", c.args)
			}
			if !coloured {
				assert.NotRegexp(t, "\x1b\\[[1-9][0-9]*m", x.out.String(), "%v %s", c.args, shell)
			}
			if strings.Contains(shell, "|") {
				assert.NotContains(t, x.out.String(), "\x1b")
				assert.NotContains(t, x.out.String(), "cycles/s")
			}
		}
	}
}

// A narrow terminal has a table of its own, with the same states.
func TestCheckOnATerminal(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	x := s.terminal(t, "sh", "-c", `exec "$REDLOCK" check --addrs `+s.addrs[0]+","+s.addrs[0]+","+s.addrs[1])
	x.expect(t, "there are critical findings")
	assert.Equal(t, exitFailed, x.end(t))
	assert.Regexp(t, `\x1b\[31m`+regexp.QuoteMeta(s.addrs[0])+`/0#1 +same-server +\S+ +master +redis `, x.out.String())
	assert.Equal(t, "76 s", printable(inTable(uptime(76*time.Second))))
}
