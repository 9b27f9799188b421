package realtest_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/quorumlock/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestFenceOnRealServers(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	var fences []uint64
	var wg sync.WaitGroup
	for range 3 {
		rl := f.open(t, patient)
		for range 4 {
			wg.Go(func() {
				for range 25 {
					err := rl.Mutex(resource, redlock.WithFencing()).Do(t.Context(), func(_ context.Context, l *redlock.Lock) error {
						fences = append(fences, l.Fence()) // guarded by the lock
						return nil
					})
					if !assert.NoError(t, err) {
						return
					}
				}
			})
		}
	}
	wg.Wait()
	require.Len(t, fences, 3*4*25)
	require.True(t, slices.IsSorted(fences))
	require.Len(t, slices.Compact(fences), 3*4*25)
}
