package redlockprom_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/extra/redlockprom"
)

// BenchmarkHooks is one acquire and one release on five nodes, as the hooks see them.
func BenchmarkHooks(b *testing.B) {
	h := redlockprom.New().Hooks()
	var outcomes []redlock.Outcome
	for i := range 5 {
		outcomes = append(outcomes, redlock.Outcome{Node: fmt.Sprintf("10.0.0.%d:6379/0", i), Vote: redlock.VoteGranted})
	}
	ctx, until := context.Background(), time.Now().Add(time.Hour)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			h.Acquired(ctx, redlock.AcquireInfo{Mode: "exclusive", Token: "t", Attempts: 1, Until: until, Outcomes: outcomes})
			h.Released(ctx, redlock.ReleaseInfo{Mode: "exclusive", Token: "t", Outcomes: outcomes})
		}
	})
}
