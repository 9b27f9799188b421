//go:build unix

package child_test

import (
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/child"
)

func TestMain(m *testing.M) {
	switch child.Role() {
	case "ignorant": // starts itself again with what it was started with
		if slices.Contains(os.Args, "defaults") {
			child.DefaultSignals()
		}
		cmd := child.Command("witness")
		cmd.Stdout = os.Stdout
		if cmd.Run() != nil {
			os.Exit(1)
		}
	case "witness":
		for _, s := range []syscall.Signal{syscall.SIGHUP, syscall.SIGINT} {
			if signal.Ignored(s) {
				os.Stdout.WriteString(s.String() + "\n")
			}
		}
	default:
		m.Run()
	}
}

// A process under nohup, or a job in the background, ignores signals, and so do those that
// it starts, unless it asks for defaults.
func TestDefaultSignals(t *testing.T) {
	heard := func(args ...string) string {
		ignorant := child.Command("ignorant", args...)
		sh := exec.Command("sh", "-c", `trap "" HUP INT; exec "$0" "$@"`)
		sh.Args = append(sh.Args, ignorant.Args...)
		sh.Env = ignorant.Env
		out, err := sh.Output()
		require.NoError(t, err)
		return strings.Join(strings.Split(strings.TrimSpace(string(out)), "\n"), ", ")
	}
	assert.Equal(t, "hangup, interrupt", heard())
	assert.Empty(t, heard("defaults"))
}

type order struct{ Word string }

// TestEcho is no test of its own: it is the child of the next ones.
func TestEcho(t *testing.T) {
	var o order
	parent := child.Of(t, &o)
	parent.Say(t, order{o.Word})
	for word := parent.Hear(); word != ""; word = parent.Hear() {
		parent.Say(t, order{word})
	}
}

func TestChildAndParentTalk(t *testing.T) {
	c := child.Start(t, "TestEcho", order{"first"})
	var o order
	c.Hear(t, &o)
	assert.Equal(t, "first", o.Word)
	for _, word := range []string{"second", "third"} {
		c.Tell(t, word)
		c.Hear(t, &o)
		assert.Equal(t, word, o.Word)
	}
	c.Wait(t)
}

func TestChildIsPausedAndKilled(t *testing.T) {
	c := child.Start(t, "TestEcho", order{"first"})
	var o order
	c.Hear(t, &o)
	c.Pause(t)
	c.Tell(t, "second")
	c.Resume(t)
	c.Hear(t, &o)
	assert.Equal(t, "second", o.Word)
	c.Kill(t)
}
