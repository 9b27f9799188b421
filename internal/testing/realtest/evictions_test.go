package realtest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/stretchr/testify/require"
)

// A server that is full and evicts keys: a program that only takes locks is told, and Check says how
// many keys it was.
func TestEvictionOnAServerIsTold(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, realredis.Args("maxmemory", "3mb", "maxmemory-policy", "allkeys-random"))
	var told degradations
	rl := f.open(t, redlock.Options{TTL: time.Minute, NodeTimeout: 10 * time.Second, Hooks: told.hooks()})
	m := rl.Mutex(resource)
	cycle := func() {
		if lock, err := m.TryAcquire(context.Background()); err == nil {
			_ = lock.Release(context.Background())
		}
	}
	cycle()
	require.NotContains(t, fmt.Sprint(check(t, rl).Findings), "evicted")
	filler := strings.Repeat("x", 1024)
	of := func() (all []redlock.DegradedInfo) {
		for _, i := range told.all() {
			if i.Evicted > 0 {
				all = append(all, i)
			}
		}
		return all
	}
	n := 0
	eventually(t, func() bool {
		p := f.admins[1].Pipeline()
		for range 500 {
			n++
			p.Set(t.Context(), fmt.Sprint("filler-", n), filler, 0)
		}
		_, err := p.Exec(t.Context())
		require.NoError(t, err)
		cycle()
		return len(of()) > 0
	}, "the evictions are not told")
	i := of()[0]
	require.Equal(t, rl.Nodes()[1], i.Node)
	require.ErrorContains(t, i.Err, "maxmemory-policy noeviction")
	report := check(t, rl)
	require.Positive(t, report.Nodes[1].EvictedKeys)
	require.Zero(t, report.Nodes[0].EvictedKeys)
	require.Contains(t, fmt.Sprint(report.Findings), fmt.Sprintf("has evicted %d keys since its start", report.Nodes[1].EvictedKeys))
}
