package main

import (
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/stretchr/testify/require"
)

func TestPrimitivesAreMeasured(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	var out strings.Builder
	p := &primitives{out: &out, cycles: 100, waits: 3, readers: 50, contestFor: 200 * time.Millisecond}
	require.NoError(t, p.measure(t.Context()))
	for _, row := range []string{"plain: acquire", "shared by 100: extend", "permit, of 100: release", "adopt", "a writer among", "all of three keys that", "a permit of 20", "three permits, 16", "one of four writes, 64", "50 readers behind", "50 waiters for five", "all of three keys"} {
		require.Contains(t, out.String(), "| "+row)
	}
}
