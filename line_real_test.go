package redlock_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/realredis"
	"github.com/stretchr/testify/require"
)

// child is a process of its own: this test binary, run again.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	setup childSetup
	stdin *bufio.Reader
}

type childSetup struct {
	Mode  string
	Addrs []string
	Args  json.RawMessage
}

const childEnv = "REDLOCK_LINE_CHILD"

// lineChildren are what a child can be told to do.
var lineChildren = map[string]func(*testing.T, *child){}

// TestLineChild is what a child runs; by itself it does nothing.
func TestLineChild(t *testing.T) {
	setup := os.Getenv(childEnv)
	if setup == "" {
		t.Skip("only as a child of other tests")
	}
	c := &child{stdin: bufio.NewReader(os.Stdin)}
	require.NoError(t, json.Unmarshal([]byte(setup), &c.setup))
	lineChildren[c.setup.Mode](t, c)
}

func (c *child) args(t *testing.T, v any) { require.NoError(t, json.Unmarshal(c.setup.Args, v)) }

func (c *child) open(t *testing.T, o *redlock.Options) *redlock.Redlock {
	rl, err := redlock.Open(t.Context(), c.setup.Addrs, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	return rl
}

// say sends a line to the parent.
func (c *child) say(t *testing.T, v any) {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	fmt.Fprintf(os.Stdout, "%s%s\n", childMark, b)
}

// hear waits for a line of the parent.
func (c *child) hear() string {
	s, _ := c.stdin.ReadString('\n')
	return strings.TrimSpace(s)
}

const childMark = "child: "

// spawn starts a child, which is killed at the end of the test.
func spawn(t *testing.T, mode string, servers []*realredis.Server, args any) *child {
	t.Helper()
	raw, err := json.Marshal(args)
	require.NoError(t, err)
	setup := childSetup{Mode: mode, Args: raw}
	for _, s := range servers {
		setup.Addrs = append(setup.Addrs, s.Addr())
	}
	env, err := json.Marshal(setup)
	require.NoError(t, err)
	c := &child{cmd: exec.Command(os.Args[0], "-test.run=^TestLineChild$", "-test.count=1")}
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(env))
	c.cmd.Stderr = os.Stderr
	c.in, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.out = bufio.NewReader(out)
	require.NoError(t, c.cmd.Start())
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	return c
}

// line is the next thing that the child says.
func (c *child) line(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for {
		s, err := c.out.ReadString('\n')
		if rest, ok := strings.CutPrefix(s, childMark); ok {
			return strings.TrimSpace(rest)
		}
		all.WriteString(s)
		require.NoError(t, err, "the child said: %s", all.String())
	}
}

// tell sends a line to the child.
func (c *child) tell(t *testing.T, s string) {
	_, err := io.WriteString(c.in, s+"\n")
	require.NoError(t, err)
}

func (c *child) signal(t *testing.T, s syscall.Signal) { require.NoError(t, c.cmd.Process.Signal(s)) }

// wait waits for the child's good end.
func (c *child) wait(t *testing.T) {
	t.Helper()
	_ = c.in.Close()
	rest, _ := io.ReadAll(c.out)
	require.NoError(t, c.cmd.Wait(), "%s", rest)
}
