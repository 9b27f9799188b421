package redlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/longtest"
)

// One queue for all ways to hold a lock, through the public API.

// turn is one who waited and had the lock.
type turn struct {
	who  string
	from time.Duration
}

// Readers that wait come in together with the first of them, past writers that came before, and
// everybody else in the order of arrival, whatever process they are of.
func TestWaitersOfAllModesHaveTheirTurnsInOrder(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		processes := []*redlock.Redlock{b.another(nil), b.another(nil), b.another(nil)}
		first := b.lock()
		var mu sync.Mutex
		var turns []turn
		var all sync.WaitGroup
		var freed time.Time
		come := func(i int, who string, m *redlock.Mutex) {
			all.Go(func() {
				lock, err := m.Acquire(b.Context())
				if !assert.NoError(b, err) {
					return
				}
				mu.Lock()
				turns = append(turns, turn{who, time.Since(freed).Round(50 * time.Millisecond)})
				mu.Unlock()
				time.Sleep(100 * time.Millisecond)
				assert.NoError(b, lock.Release(b.Context()))
			})
			b.pass(10 * time.Millisecond)
		}
		for i, who := range []string{"r1", "w1", "r2", "w2", "r3"} {
			m := processes[i%3].Mutex(key)
			if who[0] == 'r' {
				m = m.Shared()
			}
			come(i, who, m)
		}
		freed = time.Now()
		require.NoError(b, first.Release(b.Context()))
		all.Wait()
		slices.SortFunc(turns[:3], func(a, b turn) int { return int(a.who[1]) - int(b.who[1]) })
		assert.Equal(b, []turn{{"r1", 0}, {"r2", 0}, {"r3", 0}, {"w1", 100 * time.Millisecond}, {"w2", 200 * time.Millisecond}}, turns)
	})
}

// Those who want one of three permits have the same number of turns, and wait about as long.
func TestPermitsGoRound(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, nil, func(b *bed) {
		const workers, permits, hold = 12, 3, 20 * time.Millisecond
		var turns [workers]int
		var longest atomic.Int64
		ctx, stop := context.WithTimeout(b.Context(), 2*time.Second)
		defer stop()
		var all sync.WaitGroup
		processes := []*redlock.Redlock{b.another(nil), b.another(nil), b.another(nil)}
		for i := range workers {
			m := processes[i%3].Semaphore(key, permits)
			all.Go(func() {
				for {
					since := time.Now()
					lock, err := m.Acquire(ctx)
					if err != nil {
						return
					}
					longest.Store(max(longest.Load(), int64(time.Since(since))))
					turns[i]++
					time.Sleep(hold)
					_ = lock.Release(b.Context())
				}
			})
		}
		all.Wait()
		least, most := slices.Min(turns[:]), slices.Max(turns[:])
		b.Logf("turns %v, longest wait %v", turns, time.Duration(longest.Load()))
		assert.GreaterOrEqual(b, 10*(least+1), 9*most)
		assert.Greater(b, most, 20)
		assert.Less(b, time.Duration(longest.Load()), 2*workers/permits*hold, "twice the even wait")
	})
}

// Where nobody may PUBLISH, all still have their turns in each mode, soon after they are free: the
// first waiter of each process looks for all of its process, whatever it wants itself.
func TestAllModesGoRoundWithoutNotices(t *testing.T) {
	t.Parallel()
	w, r, p := wantsAlone(), wantsShare(), wantsPermit(3)
	for name, in := range map[string]struct {
		want  []wanting
		least int // holds in 3 s; with notices it is more
	}{
		"alone":              {[]wanting{w, w, w, w}, 120}, // 270
		"permits":            {[]wanting{p, p, p, p}, 500}, // 830
		"one of four writes": {[]wanting{w, r, r, r}, 400}, // 870
	} {
		if !longtest.On() && name != "one of four writes" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			inHallOf(t, 5, func(h hall) {
				for _, n := range h.cluster.Nodes() {
					n.Deny("PUBLISH")
				}
				processes := []*redlock.Redlock{h.cutOff(), h.cutOff(), h.cutOff(), h.cutOff()}
				want := [][]wanting{in.want, in.want, in.want, in.want}
				turns := h.takeTurnsIn(processes, want, 10*time.Millisecond, 3*time.Second, func(int) time.Duration { return 0 })
				h.fair(turns)
				assert.GreaterOrEqual(h, turns[0]+turns[1]+turns[2]+turns[3], in.least)
			})
		})
	}
}

// Inspect tells the mode of each who waits and the permit of each who holds, and Hooks.Waiting the
// place in the queue in all modes.
func TestQueueOfAllModesIsSeen(t *testing.T) {
	var w waits
	inBubble(t, 3, nil, func(b *bed) {
		rl := b.another(w.options())
		held := make(map[int]bool)
		var locks []*redlock.Lock
		for range 2 {
			lock, err := b.rl.Semaphore(key, 2).TryAcquire(b.Context())
			require.NoError(b, err)
			held[lock.Permit()] = true
			locks = append(locks, lock)
		}
		assert.Equal(b, map[int]bool{0: true, 1: true}, held)
		var all []<-chan result
		for _, m := range []*redlock.Mutex{rl.Semaphore(key, 2), rl.Mutex(key), rl.Mutex(key).Shared()} {
			all = append(all, later(func() (*redlock.Lock, error) { return m.Acquire(b.Context()) }))
			b.pass(100 * time.Millisecond)
		}
		s := b.status()
		var modes []string
		for _, waiter := range s.Waiters {
			modes = append(modes, waiter.Mode)
			assert.NotEmpty(b, waiter.Owner)
		}
		assert.Equal(b, []string{"permit", "alone", "shared"}, modes)
		require.Len(b, s.Holders, 2)
		for i, h := range s.Holders {
			assert.Equal(b, i, h.Permit)
		}
		b.pass(8 * time.Second) // the hook hears of each wait four times
		told, _ := w.take()
		places := make(map[string]int)
		for _, i := range told {
			if i.Ahead >= 0 { // it may be asking at that moment
				places[i.Mode] = i.Ahead
			}
		}
		assert.Equal(b, map[string]int{"permit": 0, "alone": 1, "shared": 2}, places)
		for _, lock := range locks {
			require.NoError(b, lock.Release(b.Context()))
		}
		for _, done := range all {
			r := <-done
			require.NoError(b, r.err)
			require.NoError(b, r.lock.Release(b.Context()))
		}
	})
}

// A permit that is given up, a writer that gives up, and a downgrade each let in those behind them
// at once, without a timer.
func TestWhatFreesSomethingLetsTheNextIn(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		soon := func(done <-chan result) *redlock.Lock {
			from := time.Now()
			r := <-done
			require.NoError(b, r.err)
			assert.Less(b, time.Since(from), 20*time.Millisecond)
			return r.lock
		}
		acquire := func(m *redlock.Mutex) <-chan result {
			done := later(func() (*redlock.Lock, error) { return m.Acquire(b.Context()) })
			b.pass(50 * time.Millisecond)
			b.pending(done)
			return done
		}
		other := b.another(nil)

		writer := b.lock()
		reader := acquire(other.Mutex(key).Shared())
		require.NoError(b, writer.Downgrade(b.Context()))
		one := soon(reader)

		ctx, giveUp := context.WithCancel(b.Context())
		second := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(ctx) })
		b.pass(50 * time.Millisecond)
		reader = acquire(other.Mutex(key).Shared())
		giveUp()
		require.ErrorIs(b, (<-second).err, context.Canceled)
		two := soon(reader)

		for _, lock := range []*redlock.Lock{writer, one, two} {
			require.NoError(b, lock.Release(b.Context()))
		}
		var locks []*redlock.Lock
		for range 3 {
			lock, err := b.rl.Semaphore("s", 3).TryAcquire(b.Context())
			require.NoError(b, err)
			locks = append(locks, lock)
		}
		next := acquire(other.Semaphore("s", 3))
		require.NoError(b, locks[1].Release(b.Context()))
		lock := soon(next)
		assert.Equal(b, locks[1].Permit(), lock.Permit())
		locks[1] = lock
		for _, lock := range locks {
			require.NoError(b, lock.Release(b.Context()))
		}
		b.on(0)
	})
}

// Many readers of few processes behind a writer are all let in after its release, more than one
// script lets in.
func TestCrowdOfReadersFlowsIn(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, nil, func(b *bed) {
		const readers = 300
		writer := b.lock()
		processes := []*redlock.Redlock{b.another(nil), b.another(nil)}
		var held, most atomic.Int64
		var all sync.WaitGroup
		for i := range readers {
			m := processes[i%2].Mutex(key).Shared()
			all.Go(func() {
				lock, err := m.Acquire(b.Context())
				if !assert.NoError(b, err) {
					return
				}
				most.Store(max(most.Load(), held.Add(1)))
				time.Sleep(time.Second)
				held.Add(-1)
				assert.NoError(b, lock.Release(b.Context()))
			})
		}
		synctest.Wait()
		b.pass(time.Second)
		require.NoError(b, writer.Release(b.Context()))
		b.pass(900 * time.Millisecond)
		assert.Equal(b, int64(readers), most.Load(), "all of them beside each other")
		all.Wait()
		b.on(0)
	})
}

// Far more callers with deadlines than there are permits cost each other no turns.
func TestOverloadOfPermitsIsKeptOutOfTheQueue(t *testing.T) {
	t.Parallel()
	inHallOf(t, 5, func(h hall) {
		const hold = 5 * time.Millisecond
		did, scripts := h.overload(2, func(rl *redlock.Redlock) *redlock.Mutex { return rl.Semaphore("k", 3) },
			&callers{n: 8, hold: hold}, &callers{n: 4, hold: hold}, &callers{n: 150, patience: 40 * time.Millisecond, hold: hold})
		assert.Less(t, scripts, 20*did, "eleven are a join, claims and releases")
	})
}

// Sets of locks of all kinds, in different orders, all have their turns, beside those who want one
// of the locks.
func TestSetsOfAllModesHaveTheirTurns(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, nil, func(b *bed) {
		b.cluster.Record(false)
		ctx, stop := context.WithTimeout(b.Context(), 5*time.Second)
		defer stop()
		processes := []*redlock.Redlock{b.another(nil), b.another(nil)}
		var turns [6]int
		var all sync.WaitGroup
		for i := range turns {
			rl := processes[i%2]
			sets := []*redlock.Mutexes{
				redlock.All(rl.Mutex("a").Shared(), rl.Semaphore("b", 2), rl.Mutex("c")),
				redlock.All(rl.Mutex("c").Shared(), rl.Mutex("a")),
				redlock.All(rl.Semaphore("b", 2), rl.Mutex("a").Shared()),
			}
			all.Go(func() {
				for ctx.Err() == nil {
					err := sets[i%3].Do(ctx, func(context.Context, redlock.Locks) error {
						turns[i]++
						time.Sleep(30 * time.Millisecond)
						return nil
					})
					if ctx.Err() == nil {
						assert.NoError(b, err)
					}
				}
			})
		}
		all.Wait()
		b.Log(fmt.Sprint("turns ", turns))
		least := slices.Min(turns[:])
		assert.Greater(b, 3*least, slices.Max(turns[:]), "one was starved: %v", turns)
	})
}

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
