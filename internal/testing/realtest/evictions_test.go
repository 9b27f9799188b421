package realtest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/stretchr/testify/require"
)

// A server that is full and evicts keys: Check says of which node that is so, and how many they were.
func TestCheckTellsOfEvictions(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, realredis.Args("maxmemory", "3mb", "maxmemory-policy", "allkeys-random"))
	rl := f.open(t, unhurried)
	require.NotContains(t, fmt.Sprint(check(t, rl).Findings), "evicted")
	filler, n := strings.Repeat("x", 1024), 0
	eventually(t, func() bool {
		p := f.admins[1].Pipeline()
		for range 500 {
			n++
			p.Set(t.Context(), fmt.Sprint("filler-", n), filler, 0)
		}
		_, err := p.Exec(t.Context())
		require.NoError(t, err)
		return check(t, rl).Nodes[1].EvictedKeys > 0
	}, "nothing is evicted")
	report := check(t, rl)
	require.Zero(t, report.Nodes[0].EvictedKeys)
	require.Contains(t, fmt.Sprint(report.Findings), fmt.Sprintf("has evicted %d keys since its start", report.Nodes[1].EvictedKeys))
}
