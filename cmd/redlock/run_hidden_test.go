//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What /proc hides is not called dead, whichever process is to end it.
func TestRunSaysThatThereIsWhatIsHidden(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root mounts /proc")
	}
	s := newSite(t)
	// A process is hidden from its own user, too, if that may not read its program.
	dir, err := os.MkdirTemp("", "redlock")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	text, err := os.ReadFile(sleep)
	require.NoError(t, err)
	hidden := filepath.Join(dir, "hidden")
	require.NoError(t, os.WriteFile(hidden, text, 0o700))
	require.NoError(t, os.Chmod(hidden, 0o111))
	for name, dogDies := range map[string]bool{"from the watchdog": false, "from redlock": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			through := []string{"unshare", "--mount", "sh", "-c", `mount -t proc -o hidepid=2 proc /proc && exec "$0" "$@"`}
			// It leaves the group, or that is killed without a look.
			p := s.startThrough(t, append(through, asAnotherUser()...), "run", name, "--json", "--ttl", "3s", "--", "sh", "-c",
				`setpriv --inh-caps -all --ambient-caps -all setsid "$0" 300 & exec sleep 300`, hidden)
			var pids []int
			require.Eventually(t, func() bool {
				pids = pids[:0]
				for _, found := range with(hidden + " 300") {
					if strings.HasPrefix(found.args, hidden) && userOf(found.pid) == userOf(p.Process.Pid) {
						pids = append(pids, found.pid)
					}
				}
				return len(pids) == 1
			}, 20*time.Second, 5*time.Millisecond, lazily(p.errs.String))
			t.Cleanup(func() { _ = syscall.Kill(pids[0], syscall.SIGKILL) })
			if dogDies {
				require.NoError(t, syscall.Kill(watchdogOf(t, p.Process.Pid), syscall.SIGKILL))
			}
			s.takeAway(t, name)
			assert.Contains(t, p.event(t, "lost").Error, "what is left of it cannot be seen")
			require.NoError(t, syscall.Kill(pids[0], syscall.SIGKILL), "it is alive")
			assert.Equal(t, exitLost, p.end(t), p.errs.String())
		})
	}
}

// userOf is whose process it is, whatever its program is.
func userOf(pid int) string {
	text, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/status")
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "Uid:") {
			return line
		}
	}
	return ""
}
