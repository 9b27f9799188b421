//go:build unix

package child

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Pause stops the child as SIGSTOP does, and returns when it has stopped.
func (p *Process) Pause(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP, ") T")
}

// Resume lets a paused child go on.
func (p *Process) Resume(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGCONT, "")
}

// Kill ends the child as SIGKILL does, and returns when it has ended.
func (p *Process) Kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL, ") Z")
}

// signal waits until /proc shows the state, where there is a /proc.
func (p *Process) signal(t *testing.T, s syscall.Signal, state string) {
	t.Helper()
	require.NoError(t, p.cmd.Process.Signal(s))
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
		return err != nil || strings.Contains(string(stat), state)
	}, 30*time.Second, time.Millisecond, "%v is not obeyed", s)
}
