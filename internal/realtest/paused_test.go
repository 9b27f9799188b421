//go:build unix

package realtest_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/quorumlock/redlock"
	"github.com/stretchr/testify/require"
)

const pausedAddrs = "REDLOCK_TEST_PAUSED_ADDRS"

// TestPausedProcess is no test of its own: it is the process that is paused in the next
// one. It says what it knows of its lock when it is asked to.
func TestPausedProcess(t *testing.T) {
	addrs := os.Getenv(pausedAddrs)
	if addrs == "" {
		return
	}
	rl := openAt(t, strings.Split(addrs, ","), redlock.Options{TTL: childTTL, NodeTimeout: childTTL / 4})
	lock, err := rl.Mutex(resource, redlock.WithRenewal()).Acquire(t.Context())
	require.NoError(t, err)
	ctx := lock.Context()
	fmt.Println("held", lock.Token())
	_, _ = bufio.NewReader(os.Stdin).ReadString('\n')
	over := lock.Validity() <= 0 // needs no goroutine to have run
	<-ctx.Done()
	cause := context.Cause(ctx)
	fmt.Println("woke",
		over,
		errors.Is(cause, redlock.ErrLost) && errors.Is(cause, redlock.ErrExpired),
		errors.Is(lock.Extend(t.Context(), childTTL), redlock.ErrLost),
		errors.Is(lock.Release(t.Context()), redlock.ErrNotHeld))
}

// Scenario 1: a process that is paused past its lease knows so when it wakes, and does
// no harm to whoever holds the lock by then.
func TestPausedHolderKnowsThatItsLockIsOver(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	child := exec.Command(os.Args[0], "-test.run=^TestPausedProcess$", "-test.timeout=60s")
	child.Env = append(os.Environ(), pausedAddrs+"="+strings.Join(f.addrs(), ","))
	in, err := child.StdinPipe()
	require.NoError(t, err)
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	lines := bufio.NewScanner(out)
	says := func(prefix string) string {
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), prefix) {
				return lines.Text()
			}
		}
		t.Fatalf("the child ended without saying %q", prefix)
		return ""
	}
	says("held ")

	rl := f.direct(t, patient)
	require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
	require.NoError(t, child.Process.Signal(syscall.SIGSTOP))
	f.requireGone(t, resource) // nobody renews the child's any more
	ours := requireAcquire(t, rl)
	require.NoError(t, child.Process.Signal(syscall.SIGCONT))
	_, err = in.Write([]byte("\n"))
	require.NoError(t, err)
	require.Equal(t, "woke true true true true", says("woke "), "validity over, context, extend, release")
	f.requireOn(t, ours)
	require.NoError(t, ours.Extend(t.Context(), patient.TTL))
	require.NoError(t, ours.Release(t.Context()))
}
