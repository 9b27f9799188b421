package realtest_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/child"
)

// inMode is "k" as it is wanted in a mode: alone, shared, or one of so many permits.
func inMode(rl *redlock.Redlock, mode string, opts ...redlock.LockOption) locker {
	opts = append(opts, redlock.WithTTL(2*time.Second))
	switch mode {
	case "alone":
		return rl.Mutex("k", opts...)
	case "shared":
		return rl.Mutex("k", opts...).Shared()
	default:
		permits := 0
		_, _ = fmt.Sscanf(mode, "one of %d", &permits)
		return rl.Semaphore("k", permits, opts...)
	}
}

// TestIdleWaiterProcess is no test of its own: it waits until it is killed, and tells its place if it is served.
func TestIdleWaiterProcess(t *testing.T) {
	var j job
	parent := child.Of(t, &j)
	m := inMode(j.open(t, nil), j.Name)
	for range j.Goroutines {
		go func() {
			if l, err := m.Acquire(t.Context()); err == nil {
				parent.Say(t, "served")
				_ = l.Release(t.Context())
			}
		}()
	}
	parent.Hear()
}

// Row 99: a waiter that died, or whose process stands still, is in the way of none that could have
// the lock beside its holder, for longer than two reservations; and one that goes on has its turn.
func TestDeadWaiterIsPassedOverBesideAHolderThatStays(t *testing.T) {
	silences := map[string]func(*child.Process, *testing.T){"killed": (*child.Process).Kill, "paused": (*child.Process).Pause}
	for _, c := range []struct {
		holder, dead, behind string
		processes, each      int
	}{
		{"shared", "alone", "shared", 1, 1},
		{"shared", "alone", "shared", 4, 25},
		{"one of 3", "alone", "one of 3", 1, 1},
		{"one of 3", "one of 1", "one of 3", 3, 3},
	} {
		for name, silence := range silences {
			t.Run(fmt.Sprintf("%d times %d %s, %s, before %s", c.processes, c.each, c.dead, name, c.behind), func(t *testing.T) {
				s := newSite(t, nil)
				holder, err := inMode(s.rl, c.holder, redlock.WithRenewal()).Acquire(t.Context())
				require.NoError(t, err)
				var dead []*child.Process
				for range c.processes {
					dead = append(dead, s.start(t, "TestIdleWaiterProcess", job{Name: c.dead, Goroutines: c.each}))
				}
				s.waiting(t, c.processes*c.each)
				for _, p := range dead {
					silence(p, t)
				}
				rl := job{Addrs: addrsOf(s.servers)}.open(t, nil)
				start := time.Now()
				behind, err := inMode(rl, c.behind).Acquire(t.Context())
				require.NoError(t, err)
				t.Logf("after %v", time.Since(start))
				assert.Less(t, time.Since(start), 5*time.Second, "two reservations are one second, on a machine that is idle")
				require.NoError(t, holder.Release(t.Context()))
				require.NoError(t, behind.Release(t.Context()))
				if name == "paused" {
					for _, p := range dead {
						p.Resume(t)
					}
					for range c.each {
						for _, p := range dead {
							p.Hear(t, new(string))
						}
					}
				}
			})
		}
	}
}
