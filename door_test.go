package redlock_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
)

// A process looks after each of thousands of keys so seldom that a door which lasts for a
// reservation would be open for most of the time. Readers that relieve each other would keep a
// writer of that process from its lock for ever: each holds it until the next has it, too, and
// waits for the next for longer than such a door lasts, but not for as long as this one is shut.
func TestDoorStaysShutForAProcessThatWaitsForThousandsOfKeys(t *testing.T) {
	t.Parallel()
	const others, hold = 1500, time.Second
	inHall(t, func(h hall) {
		h.cluster.Record(false)
		for _, n := range h.cluster.Nodes() {
			for i := range others {
				n.Set(fmt.Sprint("other", i), "somebody@else", time.Hour)
			}
		}
		ctx, cancel := context.WithCancel(h.Context())
		quick := &redlock.Options{RestartGuard: -1, NodeTimeout: 50 * time.Millisecond}
		writer, readers := h.process(quick), h.process(quick)
		var all sync.WaitGroup
		for i := range others {
			all.Go(func() {
				_, err := writer.Mutex(fmt.Sprint("other", i)).Acquire(ctx)
				assert.ErrorIs(h, err, context.Canceled)
			})
		}
		all.Go(func() {
			m := readers.Mutex("k").Shared()
			within := func(d time.Duration) (l *redlock.Lock) {
				for end := time.Now().Add(d); l == nil && time.Now().Before(end) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
					l, _ = m.TryAcquire(ctx)
				}
				return l
			}
			for present := within(hold); ctx.Err() == nil; {
				next := within(hold)
				if present != nil {
					h.release(present)
				}
				present = next
			}
		})
		time.Sleep(hold)
		start := time.Now()
		within, end := context.WithTimeout(ctx, 4*time.Second)
		defer end()
		l, err := writer.Mutex("k").Acquire(within)
		cancel()
		all.Wait()
		require.NoError(h, err)
		assert.Less(h, time.Since(start), 3*hold)
		h.release(l)
	})
}
