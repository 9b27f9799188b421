//go:build linux

package realredis

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const orphanEnv = "REALREDIS_ORPHAN_TEST"

// TestNoOrphans kills a test binary which has servers in various states and
// looks whether any survives.
func TestNoOrphans(t *testing.T) {
	if os.Getenv(orphanEnv) != "" {
		beKilled(t)
		return
	}
	Need(t)
	cmd := exec.Command(os.Args[0], "-test.run=^TestNoOrphans$")
	cmd.Env = append(os.Environ(), orphanEnv+"=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())

	var pids []int
	for lines := bufio.NewScanner(out); lines.Scan(); {
		list, ok := strings.CutPrefix(lines.Text(), "pids ")
		if !ok {
			continue
		}
		for f := range strings.FieldsSeq(list) {
			pid, err := strconv.Atoi(f)
			require.NoError(t, err)
			require.True(t, running(pid))
			pids = append(pids, pid)
		}
		break
	}
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	require.Len(t, pids, 4)
	for _, pid := range pids {
		eventually(t, func() bool { return !running(pid) }, fmt.Sprintf("server %d has survived", pid))
	}
}

func beKilled(t *testing.T) {
	servers := StartN(t, 4)
	require.NoError(t, servers[0].Pause())
	servers[1].Kill()
	require.NoError(t, servers[1].Restart())
	line := "pids"
	for _, s := range servers {
		line += fmt.Sprint(" ", s.PID())
	}
	fmt.Println(line)
	select {}
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
