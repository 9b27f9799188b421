package redlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
)

// Readers that wait behind a writer are let in by its release, and none is forgotten.
func TestReadersBehindAWriterAreLetIn(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		const readers = 100
		writer := b.lock(redlock.WithRenewal())
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		got := make(chan error, readers)
		clients := []*redlock.Redlock{b.another(nil), b.another(nil)}
		for i := range readers {
			m := clients[i%2].Mutex(key).Shared()
			go func() {
				lock, err := m.Acquire(ctx)
				if err == nil {
					err = lock.Release(b.Context())
				}
				got <- err
			}()
		}
		b.pass(5 * time.Second)
		assert.Empty(b, got)
		require.NoError(b, writer.Release(b.Context()))
		freed := time.Now()
		for range readers {
			require.NoError(b, <-got)
		}
		assert.Less(b, time.Since(freed), 100*time.Millisecond)
		b.on(0)
	})
}

func TestSemaphoreOfOneAndOfTheMost(t *testing.T) {
	t.Parallel()
	for _, permits := range []int{1, 1024} {
		inBubble(t, 1, nil, func(b *bed) {
			b.cluster.Record(false)
			m := b.rl.Semaphore(key, permits)
			held := make(map[int]*redlock.Lock)
			for range permits {
				lock, err := m.TryAcquire(b.Context())
				require.NoError(b, err)
				require.Nil(b, held[lock.Permit()], "no number twice")
				held[lock.Permit()] = lock
			}
			_, err := m.TryAcquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrHeld)
			require.ErrorIs(b, b.try(), redlock.ErrHeld)

			// Who wants it alone has it when all are given up, and none can be taken meanwhile.
			alone := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(b.Context()) })
			b.pass(time.Second)
			for i, lock := range held {
				b.pending(alone)
				require.NoError(b, lock.Release(b.Context()))
				if i%100 == 0 && len(held) > 1 {
					_, err := m.TryAcquire(b.Context())
					require.ErrorIs(b, err, redlock.ErrHeld, "the door is shut")
				}
				synctest.Wait()
			}
			r := <-alone
			require.NoError(b, r.err)
			require.NoError(b, r.lock.Release(b.Context()))
		})
	}
}
