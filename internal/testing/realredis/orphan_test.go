//go:build linux

package realredis

import (
	"errors"
	"fmt"
	"io/fs"
	"syscall"
	"testing"

	"github.com/quorumlock/redlock/internal/testing/child"
	"github.com/stretchr/testify/require"
)

// TestProcessWithServers is no test of its own: it has servers in various states until it
// is killed.
func TestProcessWithServers(t *testing.T) {
	parent := child.Of(t, new(any))
	servers := StartN(t, 4)
	require.NoError(t, servers[0].Pause())
	servers[1].Kill()
	require.NoError(t, servers[1].Restart())
	var pids []int
	for _, s := range servers {
		pids = append(pids, s.PID())
	}
	parent.Say(t, pids)
	parent.Hear()
	t.Error("not killed")
}

// Servers do not outlive the test binary that started them, however it ends.
func TestNoOrphans(t *testing.T) {
	Need(t)
	c := child.Start(t, "TestProcessWithServers", nil, "TMPDIR="+t.TempDir())
	var pids []int
	c.Hear(t, &pids)
	for _, pid := range pids {
		require.True(t, running(pid))
	}
	c.Kill(t)
	require.Len(t, pids, 4)
	for _, pid := range pids {
		eventually(t, func() bool { return !running(pid) }, fmt.Sprintf("server %d has survived", pid))
	}
}

// running is false for a zombie: an orphan is reaped by whoever adopts it, if
// at all.
func running(pid int) bool {
	s, err := state(pid)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return false
	}
	return err != nil || (s != "Z" && s != "X")
}
