package realtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/stretchr/testify/require"
)

// A firewall, a NAT gateway or a load balancer forgets open connections without a word.
// New ones work at once, so locks are to be had again soon, and a renewed one is kept.
func TestFlowsThatDieSilently(t *testing.T) {
	t.Parallel()
	o := redlock.Options{RestartGuard: -1} // default TTL of 10 s, so 200 ms for each node
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 5)
			rl := open(f, t, o)
			warm(t, rl)
			kept := requireLock(t, rl, redlock.WithRenewal())
			for _, p := range f.proxies {
				p.MuteFlows()
			}
			start := time.Now()
			free := rl.Mutex("another")
			var took time.Duration
			eventually(t, func() bool {
				lock, err := free.TryAcquire(context.Background())
				if err != nil {
					return false
				}
				took = time.Since(start)
				return lock.Release(context.Background()) == nil
			}, "no lock")
			t.Logf("%s: usable after %v", name, took)
			require.Less(t, took, 2*time.Second, "two node timeouts and what a busy machine needs")
			until := kept.Until()
			require.Eventually(t, func() bool { return kept.Until().After(until) }, 10*time.Second, 10*time.Millisecond,
				"the lock is not renewed")
			require.NoError(t, kept.Release(t.Context()))
			f.requireGone(t, resource)
		})
	}
}

// ways are how a Redlock is made.
var ways = map[string]func(*fleet, *testing.T, redlock.Options) *redlock.Redlock{
	"Open": func(f *fleet, t *testing.T, o redlock.Options) *redlock.Redlock { return f.open(t, o) },
	"New":  func(f *fleet, t *testing.T, o redlock.Options) *redlock.Redlock { return f.byDefault(t, o) },
}
