package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/child"
	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

// What the test binary can be instead: the program, and the program with a lock that keeps
// nobody out.
const (
	asProgram  = "program"
	asUnlocked = "program without a lock"
)

// TestMain fails the run if tests leave goroutines behind.
func TestMain(m *testing.M) {
	switch child.Role() {
	case asUnlocked:
		guard = func(*redlock.Mutex) doer { return unlocked{} }
		main()
	case asProgram:
		main()
	}
	child.DefaultSignals()
	logging.Disable()
	// They wait most of the time.
	_ = flag.Set("test.parallel", fmt.Sprint(3*runtime.GOMAXPROCS(0)))
	_ = os.Unsetenv(addrsEnv) // the servers of whoever runs the tests are not for them
	leaktest.Main(m)
}

// result is what a run of the program left.
type result struct {
	code        int
	out, errOut string
}

// tooBusy is true for a demo on a machine that was too busy to get anywhere, which is to be seen again.
func (r result) tooBusy() bool { return strings.Contains(r.errOut, "no worker got to increment") }

// again runs a demo until the machine let it get where it is to be looked at, twenty times at most.
func again(demo func() result, tooBusy func(result) bool) (r result) {
	for range 20 {
		if r = demo(); !tooBusy(r) {
			break
		}
	}
	return r
}

// run executes the program within the test's process.
func run(t *testing.T, ctx context.Context, args ...string) result {
	t.Helper()
	var out, errOut bytes.Buffer
	code := execute(ctx, args, &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

// spawn runs a process to its end.
func spawn(t *testing.T, cmd *exec.Cmd, env ...string) result {
	t.Helper()
	cmd.Env = append(cmd.Environ(), env...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	require.NoError(t, cmd.Start())
	defer time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
	if err := cmd.Wait(); err != nil {
		require.ErrorAs(t, err, new(*exec.ExitError))
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		name string
		role string
		args []string
		code int
		says string // on stderr
	}{
		{"nothing lost", asProgram, []string{"demo", "--duration", "600ms"}, exitOK, ""},
		{"updates lost", asUnlocked, []string{"demo", "--duration", "3s"}, exitFailed, "updates were lost under the lock"},
		{"no servers", asProgram, []string{"demo", "--addrs", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"}, exitFailed, "the demo could not run"},
		{"bad flag", asProgram, []string{"demo", "--workers", "1"}, exitUsage, "--workers is 1"},
		{"version", asProgram, []string{"--version"}, exitOK, ""},
		{"the command version", asProgram, []string{"version"}, exitOK, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := again(func() result { return spawn(t, child.Command(c.role, c.args...), addrsEnv+"=") }, result.tooBusy)
			require.Equal(t, c.code, r.code, "stdout:\n%s\nstderr:\n%s", r.out, r.errOut)
			if c.says == "" {
				require.Empty(t, r.errOut)
			} else {
				require.Contains(t, r.errOut, c.says)
			}
		})
	}
}

// The program as it is built, without the test binary's detour.
func TestBuiltBinary(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("builds the program")
	}
	program := filepath.Join(t.TempDir(), "redlock.exe")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput()
	require.NoError(t, err, "%s", out)

	r := again(func() result { return spawn(t, exec.Command(program, "demo", "--duration", "500ms"), addrsEnv+"=") }, result.tooBusy)
	require.Equal(t, exitOK, r.code, "%s\n%s", r.out, r.errOut)
	require.Contains(t, r.out, "SUMMARY")
	require.Empty(t, r.errOut)

	r = spawn(t, exec.Command(program, "--version"))
	require.Regexp(t, `^redlock \S+\n$`, r.out)
	require.Equal(t, exitUsage, spawn(t, exec.Command(program, "demo", "--ttl", "1s5")).code)
}

func TestInterruptedProcessPrintsItsSummary(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no interrupts there")
	}
	cmd := child.Command(asProgram, "demo", "--duration", "10m")
	cmd.Env = append(cmd.Env, addrsEnv+"=")
	var out lockedBuffer
	cmd.Stdout, cmd.Stderr = &out, &out
	require.NoError(t, cmd.Start())
	defer time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() }).Stop()
	require.Eventually(t, func() bool { return strings.Contains(out.String(), "3 -> 4") }, 30*time.Second, 10*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait(), "%s", out.String())
	require.Contains(t, out.String(), "SUMMARY (interrupted)")
}

func TestCommandLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		says []string
	}{
		{[]string{"demo", "--workers", "0"}, []string{"--workers is 0: must be from 2 to 64"}},
		{[]string{"demo", "--workers", "65", "--ttl", "5ms", "--duration", "0s"}, []string{
			"--workers is 65: must be from 2 to 64", "--ttl is 5ms: must be from 100ms to 1h", "--duration is 0s: must be from 500ms to 1h",
		}},
		{[]string{"demo", "--duration", "soon"}, []string{`--duration is "soon": must be a number and a unit, such as 8s or 500ms`}},
		{[]string{"demo", "--workers", "few"}, []string{`--workers is "few": must be a whole number`}},
		{[]string{"demo", "--plain=maybe"}, []string{`--plain is "maybe": must be true or false`}},
		{[]string{"demo", "--colour"}, []string{"unknown flag: --colour"}},
		{[]string{"demo", "now"}, []string{`unexpected argument "now"`}},
		{[]string{"demo", "--addrs", "a:6379,redis://me:secret@b:6379"}, []string{"the 2nd address of --addrs has a password"}},
		{[]string{"demo", "--addrs", "a:6379,b:x"}, []string{`"b:x": must be host:port`}},
		{[]string{"demo", "--addrs", "a:6379,a"}, []string{"duplicate node"}}, // the port of Redis
		{[]string{"demo", "--adrs", "a:6379"}, []string{"unknown flag: --adrs; did you mean --addrs?"}},
		{[]string{"run", "--time", "5s", "k", "--", "true"}, []string{"did you mean --timeout?"}},
		{[]string{"version", "now"}, []string{"unexpected argument"}},
		{[]string{"demo", "--addrs", "a:6379,A:6379"}, []string{"duplicate node"}},
		{[]string{"status", "", "--addrs", "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"}, []string{"the key is empty"}},
		{[]string{"dmo"}, []string{`there is no command "dmo"; did you mean demo?`}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			r := run(t, t.Context(), c.args...)
			require.Equal(t, exitUsage, r.code)
			require.Empty(t, r.out)
			for _, s := range append(c.says, "redlock: ") {
				require.Contains(t, r.errOut, s)
			}
			duplicate := strings.Contains(r.errOut, "duplicate node") // of which --help says nothing
			require.Equal(t, !duplicate, strings.Contains(r.errOut, "--help'"), r.errOut)
			require.NotContains(t, r.errOut, "redlock: redlock: ")
		})
	}
}

func TestManPages(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "man1")
	r := run(t, t.Context(), "man", dir)
	require.Equal(t, exitOK, r.code, r.errOut)
	for _, c := range rootCommand().Commands() {
		page, err := os.ReadFile(filepath.Join(dir, "redlock-"+c.Name()+".1"))
		require.NoError(t, err)
		require.Contains(t, string(page), `.TH "REDLOCK-`+strings.ToUpper(c.Name())+`" "1"`)
		require.Contains(t, string(page), c.Short[:20])
	}
	require.Equal(t, exitFailed, run(t, t.Context(), "man", filepath.Join(dir, "redlock.1")).code, "it is a file")
}

func TestHelpAndCompletion(t *testing.T) {
	r := run(t, t.Context())
	require.Equal(t, exitOK, r.code)
	require.Contains(t, r.out, "demo")

	r = run(t, t.Context(), "demo", "--help")
	require.Equal(t, exitOK, r.code)
	for _, flag := range []string{"--addrs", "--workers", "--duration", "--ttl", "--plain", "--no-color", "--json"} {
		require.Contains(t, r.out, flag)
	}

	for _, c := range rootCommand().Commands() {
		r = run(t, t.Context(), c.Name(), "--help")
		for line := range strings.Lines(r.out) {
			if !strings.Contains(line, "redlock ") { // examples are to be copied
				require.LessOrEqual(t, len([]rune(line)), 81, "%s: %s", c.Name(), line)
			}
		}
	}

	r = run(t, t.Context(), "completion", "bash")
	require.Equal(t, exitOK, r.code)
	require.Contains(t, r.out, "redlock")
	r = run(t, t.Context(), "__complete", "demo", "--du")
	require.Contains(t, r.out, "--duration")
}
