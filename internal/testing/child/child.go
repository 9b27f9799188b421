// Package child starts the running test binary once more. A test needs that where a
// process is paused, killed, short of processors, or at a terminal of its own.
//
// There are two kinds of children. Start runs one test of the binary, which takes its
// orders by Of, and the two talk in lines. Command makes a command of the binary, for
// TestMain to become by Role whatever it likes.
package child

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	roleEnv = "REDLOCK_TEST_CHILD"
	argsEnv = "REDLOCK_TEST_CHILD_ARGS"

	// mark tells a child's lines from what the testing package prints.
	mark = "child: "
)

// Role is what Command or Start made this process, or empty if neither started it.
func Role() string { return os.Getenv(roleEnv) }

// Command is this binary in a role.
func Command(role string, args ...string) *exec.Cmd {
	self, err := os.Executable()
	cmd := exec.Command(self, args...)
	if err != nil {
		cmd.Err = err
	}
	// The race detector would otherwise let each process wait for a second at its end.
	cmd.Env = append(os.Environ(), roleEnv+"="+role, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// DefaultSignals lets the processes that this one starts find SIGHUP and SIGINT as a shell
// leaves them for a job in the foreground. Under nohup, or as a job that a script starts in
// the background, this process was told to ignore them, and hands that down. Other signals
// that end a process are handled by every Go program, and so are not ignored further down.
func DefaultSignals() {
	for _, s := range []os.Signal{syscall.SIGHUP, syscall.SIGINT} {
		if signal.Ignored(s) {
			// What is caught is no more ignored after exec; here it is still of no effect.
			signal.Notify(make(chan os.Signal, 1), s)
		}
	}
}

// Process is a child that runs a test.
type Process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// Start runs a test of this binary, by its name, in another process. Of gives it the
// arguments, which travel as JSON; env is added to its environment. It is killed when the
// test ends that started it.
func Start(t *testing.T, test string, args any, env ...string) *Process {
	t.Helper()
	text, err := json.Marshal(args)
	require.NoError(t, err)
	p := &Process{cmd: Command(test, "-test.run=^"+test+"$", "-test.count=1", "-test.timeout=10m")}
	p.cmd.Env = append(append(p.cmd.Env, argsEnv+"="+string(text)), env...)
	p.cmd.Stderr = os.Stderr
	p.in, err = p.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	require.NoError(t, p.cmd.Start())
	t.Cleanup(p.end)
	return p
}

func (p *Process) end() {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait()
}

// Hear reads what the child says next into v. It fails the test if the child ends before
// that.
func (p *Process) Hear(t *testing.T, v any) {
	t.Helper()
	var all strings.Builder
	for {
		line, err := p.out.ReadString('\n')
		if said, ok := strings.CutPrefix(line, mark); ok {
			require.NoError(t, json.Unmarshal([]byte(said), v), "%s", said)
			return
		}
		all.WriteString(line)
		require.NoError(t, err, "the child ended, and printed: %s", all.String())
	}
}

// Tell sends a line to the child.
func (p *Process) Tell(t *testing.T, line string) {
	t.Helper()
	_, err := io.WriteString(p.in, line+"\n")
	require.NoError(t, err)
}

// Wait closes the child's input, and waits until its test has passed.
func (p *Process) Wait(t *testing.T) {
	t.Helper()
	_ = p.in.Close()
	rest, _ := io.ReadAll(p.out)
	require.NoError(t, p.cmd.Wait(), "%s", rest)
}

// Parent is the process that started this one.
type Parent struct{ in *bufio.Reader }

// Of returns the parent of a process that Start made for this test, with its arguments in
// args. In other processes the test is skipped: it is no test of its own.
func Of(t *testing.T, args any) *Parent {
	t.Helper()
	if Role() != t.Name() {
		t.Skip("only in a process that another test starts")
	}
	require.NoError(t, json.Unmarshal([]byte(os.Getenv(argsEnv)), args))
	return &Parent{bufio.NewReader(os.Stdin)}
}

// Say lets the parent hear v.
func (p *Parent) Say(t *testing.T, v any) {
	t.Helper()
	text, err := json.Marshal(v)
	require.NoError(t, err)
	fmt.Printf("%s%s\n", mark, text)
}

// Hear waits for the parent's next line, which is empty when there is none any more.
func (p *Parent) Hear() string {
	line, _ := p.in.ReadString('\n')
	return strings.TrimSpace(line)
}
