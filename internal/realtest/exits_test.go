package realtest_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/child"
	"github.com/stretchr/testify/require"
)

const (
	exiting    = 8  // processes
	takeTurns  = 16 // goroutines in each
	exitingTTL = 10 * time.Second
)

// TestExitingProcess is no test of its own: it is the processes of the next one, each of which
// ends with its last Release.
func TestExitingProcess(t *testing.T) {
	var addrs []string
	parent := child.Of(t, &addrs)
	rl, err := redlock.Open(t.Context(), addrs, &redlock.Options{TTL: exitingTTL})
	require.NoError(t, err)
	lock, err := rl.Mutex("warm").Acquire(t.Context())
	require.NoError(t, err)
	require.NoError(t, lock.Release(t.Context()))
	parent.Say(t, "ready")
	parent.Hear()
	end := time.Now().Add(time.Second)
	var wg sync.WaitGroup
	for range takeTurns {
		wg.Go(func() {
			for time.Now().Before(end) {
				lock, err := rl.Mutex(resource).Acquire(context.Background())
				if err != nil {
					os.Exit(1)
				}
				if lock.Release(context.Background()) != nil {
					os.Exit(1)
				}
			}
		})
	}
	wg.Wait()
	os.Exit(0)
}

// Row 120: a short program that releases and exits leaves no lock to its TTL, also where several of
// them exit at about the same time: what each leaves on its slowest nodes would make a majority
// together.
func TestProgramsThatExitAfterReleaseLeaveTheLockFree(t *testing.T) {
	f := startFleet(t, 5)
	rl := openAt(t, f.addrs(), redlock.Options{TTL: exitingTTL})
	require.NoError(t, requireAcquireOf(t, rl, "warm").Release(t.Context()))
	processes := make([]*child.Process, exiting)
	for i := range processes {
		processes[i] = child.Start(t, "TestExitingProcess", f.addrs())
	}
	for _, p := range processes {
		p.Hear(t, new(string))
	}
	for _, p := range processes {
		p.Tell(t, "go")
	}
	// This process is one more that wants the lock, before they end and afterwards.
	var longest time.Duration
	ended, waited := make(chan struct{}), make(chan error)
	go func() {
		for last := false; ; {
			began := time.Now()
			lock, err := rl.Mutex(resource).Acquire(t.Context())
			longest = max(longest, time.Since(began))
			if err == nil {
				err = lock.Release(t.Context())
			}
			if err != nil || last {
				waited <- err
				return
			}
			select {
			case <-ended:
				last = true
			default:
			}
		}
	}()
	for _, p := range processes {
		p.Wait(t)
	}
	close(ended)
	require.NoError(t, <-waited)
	t.Logf("the longest wait was %v", longest)
	require.Less(t, longest, exitingTTL/2, "a lock was left to its TTL")
}
