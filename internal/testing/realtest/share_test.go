package realtest_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Readers, writers and permits on five servers, of which none, one or two are away: never a
// writer beside another, readers together, never more permits than there are, no number twice.
func TestSharedLocksAndSemaphoresOnServersThatFail(t *testing.T) {
	t.Parallel()
	for _, away := range [][]int{nil, {1}, {0, 3}} {
		f := startFleet(t, 5)
		processes := make([]*redlock.Redlock, 3)
		for i := range processes {
			rl, err := openOn(t.Context(), f.addrs(), &brisk)
			require.NoError(t, err)
			defer rl.Close()
			processes[i] = rl
		}
		for _, i := range away {
			f.servers[i].Kill()
		}
		shareAndCount(t, processes)
	}
}

func shareAndCount(t *testing.T, processes []*redlock.Redlock) {
	t.Helper()
	const permits, rounds = 3, 20
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var (
		readers, writers, together atomic.Int32
		numbers                    [permits]atomic.Int32
		work                       sync.WaitGroup
	)
	for i := range 12 {
		rl := processes[i%len(processes)]
		work.Go(func() {
			for round := range rounds {
				m := rl.Mutex("page")
				if (i+round)%6 == 0 {
					assert.NoError(t, m.Do(ctx, func(context.Context, *redlock.Lock) error {
						assert.Equal(t, int32(1), writers.Add(1), "two writers")
						assert.Zero(t, readers.Load(), "a writer beside a reader")
						writers.Add(-1)
						return nil
					}))
					continue
				}
				assert.NoError(t, m.Shared().Do(ctx, func(context.Context, *redlock.Lock) error {
					if readers.Add(1) > 1 {
						together.Add(1)
					}
					assert.Zero(t, writers.Load(), "a reader beside a writer")
					time.Sleep(time.Millisecond)
					readers.Add(-1)
					return nil
				}))
			}
		})
		work.Go(func() {
			for range rounds {
				assert.NoError(t, rl.Semaphore("calls", permits).Do(ctx, func(_ context.Context, lock *redlock.Lock) error {
					assert.Equal(t, int32(1), numbers[lock.Permit()].Add(1), "permit %d twice", lock.Permit())
					time.Sleep(time.Millisecond)
					numbers[lock.Permit()].Add(-1)
					return nil
				}))
			}
		})
	}
	work.Wait()
	assert.Positive(t, together.Load(), "nobody ever read beside another")
}

// Three clients, each of which reaches two of three servers. If each server counts its holders
// and a majority is enough, as in libraries that do so, all three hold a semaphore of two. Numbers
// that a majority must agree on do not let that happen.
func TestCountingOnEachServerAdmitsMoreThanTheLimit(t *testing.T) {
	t.Parallel()
	const permits = 2
	f := startFleet(t, 3)
	counted, held := 0, 0
	for client := range 3 {
		reach := []int{client, (client + 1) % 3}
		granted := 0
		for _, i := range reach {
			n, err := f.admins[i].Eval(t.Context(), `
				if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[1]) then return 0 end
				return redis.call('ZADD', KEYS[1], 1, ARGV[2])`, []string{"counted"}, permits, client).Int()
			require.NoError(t, err)
			granted += n
		}
		if granted == len(reach) {
			counted++
		}

		addrs := addrsOf(f.servers)
		addrs[(client+2)%3] = "127.0.0.1:1" // nobody answers there
		rl := openAt(t, addrs, patient)
		if _, err := rl.Semaphore("numbered", permits).TryAcquire(t.Context()); err == nil {
			held++
		}
	}
	assert.Equal(t, 3, counted, "holders of a semaphore of two that is counted")
	assert.LessOrEqual(t, held, permits)
	assert.Positive(t, held)
}
