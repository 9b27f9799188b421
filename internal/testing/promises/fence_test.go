package promises_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/longtest"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const counterKey = "{k}:fence"

// fenced is the mutex that these tests lock.
func fenced(rl *redlock.Redlock, opts ...redlock.LockOption) *redlock.Mutex {
	return rl.Mutex("k", append(opts, redlock.WithFencing())...)
}

// skewed is another process, on a machine whose wall clock is wrong.
func (h hall) skewed(o *redlock.Options, wrong time.Duration) (*redlock.Redlock, *atomic.Int64) {
	h.Helper()
	by := new(atomic.Int64)
	by.Store(int64(wrong))
	rl, err := newSkewed(h.cluster.Clients(), o, by)
	require.NoError(h, err)
	h.Cleanup(func() { require.NoError(h, rl.Close()) })
	return rl, by
}

func (h hall) counters() (all []uint64) {
	for _, n := range h.cluster.Nodes() {
		c, _ := strconv.ParseUint(n.Get(counterKey), 10, 64)
		all = append(all, c)
	}
	return all
}

// majorityHas checks what the next holder's token depends on.
func (h hall) majorityHas(fence uint64) {
	h.Helper()
	have := 0
	for _, c := range h.counters() {
		if c == fence {
			have++
		}
	}
	require.GreaterOrEqual(h, have, 3, "%d in %v", fence, h.counters())
}

func TestFenceTakesOneRoundTrip(t *testing.T) {
	inHall(t, func(h hall) {
		m := fenced(h.process(nil))
		h.release(h.acquire(m)) // the scripts
		last := uint64(0)
		for range 10 {
			synctest.Wait() // for the slower nodes
			h.cluster.ResetCommands()
			l := h.acquire(m)
			require.LessOrEqual(h, h.cluster.Commands("EVALSHA", "EVAL"), 5)
			require.Zero(h, h.cluster.Commands("SET"))
			assert.Greater(t, l.Fence(), last)
			assert.InDelta(t, time.Now().UnixMicro(), l.Fence(), 100, "about the time")
			h.majorityHas(l.Fence())
			last = l.Fence()
			h.release(l)
		}
		ttl := h.cluster.Node(0).TTL(counterKey)
		assert.Greater(t, ttl, 6*24*time.Hour)
		assert.LessOrEqual(t, ttl, 7*24*time.Hour)
	})
}

func TestFenceRaisesLaggards(t *testing.T) {
	inHall(t, func(h hall) {
		ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
		h.cluster.Node(4).Set(counterKey, fmt.Sprint(ahead), 0)
		m := fenced(h.process(nil))
		for _, n := range h.cluster.Nodes()[:2] {
			n.Stop() // so that node 4 takes part
		}
		for i := range uint64(3) {
			l := h.acquire(m)
			assert.Equal(t, ahead+1+i, l.Fence())
			h.majorityHas(l.Fence())
			h.release(l)
		}
		for _, n := range h.cluster.Nodes()[:2] {
			n.Restart(redlocktest.KeepKeys)
		}
		h.cluster.Node(4).Stop()
		time.Sleep(time.Second)
		l := h.acquire(m)
		assert.Greater(t, l.Fence(), ahead+3, "whoever leads may be gone by then")
		h.release(l)
	})
}

// The greatest of what a majority's counters give is not enough: of nodes with 10, 0 and
// 0 the first two grant 11, and the last two 1 after that.
func TestFenceIsMonotonicOverChangingMajorities(t *testing.T) {
	inHall(t, func(h hall) {
		ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
		h.cluster.Node(0).Set(counterKey, fmt.Sprint(ahead), 0)
		m, last := fenced(h.process(nil)), uint64(0)
		for _, off := range [][]int{{3, 4}, {0, 1}, {1, 2}, {0, 4}} {
			for _, i := range off {
				h.cluster.Node(i).Stop()
			}
			l := h.acquire(m)
			require.Greater(h, l.Fence(), last)
			last = l.Fence()
			h.release(l)
			for _, i := range off {
				h.cluster.Node(i).Restart(redlocktest.KeepKeys)
			}
			time.Sleep(time.Second)
		}
	})
}

// Clients whose clocks are wrong by days, other majorities each time, nodes that lose
// their memory one at a time and stay away for three seconds after it, as the restart
// guard has it, plain locks in between.
func TestFenceIsMonotonicWhateverHappens(t *testing.T) {
	t.Parallel()
	seeds := uint64(2)
	if longtest.On() {
		seeds = 20
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			inHall(t, func(h hall) {
				rnd := rand.New(rand.NewPCG(seed, 1))
				var clients []*redlock.Redlock
				for _, wrong := range []time.Duration{0, -72 * time.Hour, 240 * time.Hour, 300 * time.Microsecond, -2 * time.Millisecond} {
					rl, _ := h.skewed(&redlock.Options{TTL: time.Second}, wrong)
					clients = append(clients, rl)
				}
				last := uint64(0)
				for range 60 {
					off := rnd.Perm(5)[:rnd.IntN(3)]
					forgets := len(off) > 0 && rnd.IntN(4) == 0
					for _, i := range off {
						h.cluster.Node(i).Stop()
					}
					rl := clients[rnd.IntN(len(clients))]
					if rnd.IntN(5) == 0 {
						h.release(h.acquire(rl.Mutex("k")))
					}
					l := h.acquire(fenced(rl))
					require.Greater(h, l.Fence(), last)
					last = l.Fence()
					h.majorityHas(last)
					if rnd.IntN(4) > 0 {
						h.release(l)
					}
					for i, n := range off {
						if i == 0 && forgets {
							time.Sleep(3 * time.Second)
							h.cluster.Node(n).Restart(redlocktest.LoseKeys)
						} else {
							h.cluster.Node(n).Restart(redlocktest.KeepKeys)
						}
					}
					time.Sleep(time.Duration(rnd.Int64N(int64(100 * time.Millisecond))))
				}
			})
		})
	}
}

// The client's clock has no say in the size of a token.
func TestFenceIsClampedToTheNodesTime(t *testing.T) {
	for _, wrong := range []time.Duration{-time.Hour, time.Hour, 500 * 24 * time.Hour} {
		inHall(t, func(h hall) {
			rl, _ := h.skewed(nil, wrong)
			l := h.acquire(fenced(rl))
			assert.InDelta(t, time.Now().UnixMicro(), l.Fence(), 1e6)
			h.release(l)
		})
	}
}

// The second round takes as long as it takes, so validity is checked after it.
func TestFenceThatComesAfterTheLease(t *testing.T) {
	inHall(t, func(h hall) {
		rl, wrong := h.skewed(nil, 0)
		m := fenced(rl)
		h.release(h.acquire(m))
		time.Sleep(time.Second)
		h.unequal()
		for _, n := range h.cluster.Nodes() {
			n.DelayCommand("EVALSHA", 2, 20*time.Millisecond)
		}
		v := make(chan error, 1)
		go func() { _, err := m.TryAcquire(h.Context()); v <- err }()
		time.Sleep(30 * time.Millisecond) // the raise is on its way
		wrong.Store(int64(time.Minute))
		err := <-v
		require.ErrorIs(h, err, redlock.ErrExpired)
		time.Sleep(time.Second)
		assert.Equal(t, []string{"", "", "", "", ""}, h.cluster.Holders("k"))
	})
}

// unequal counters need a raise, whichever majority grants.
func (h hall) unequal() {
	for i, n := range h.cluster.Nodes() {
		n.Set(counterKey, fmt.Sprint(time.Now().Add(time.Hour).UnixMicro()+int64(i)), 0)
	}
}

func TestFenceWithoutAMajorityToRaise(t *testing.T) {
	inHall(t, func(h hall) {
		m := fenced(h.process(nil))
		h.release(h.acquire(m))
		time.Sleep(time.Second)
		h.unequal()
		v := make(chan error, 1)
		for _, n := range h.cluster.Nodes() {
			n.DelayCommand("EVALSHA", 1, 20*time.Millisecond)
		}
		go func() { _, err := m.TryAcquire(h.Context()); v <- err }()
		time.Sleep(10 * time.Millisecond) // the votes are on their way
		for _, n := range h.cluster.Nodes() {
			n.DelayCommand("EVALSHA", 1, 30*time.Second)
		}
		err := <-v
		require.ErrorIs(h, err, redlock.ErrNoQuorum)
		require.ErrorContains(h, err, "unknown", "it tells of the raise and not of the grants")
		time.Sleep(time.Minute)
		assert.Equal(t, []string{"", "", "", "", ""}, h.cluster.Holders("k"))
	})
}

func TestFenceContextEndsWhileRaising(t *testing.T) {
	inHall(t, func(h hall) {
		m := fenced(h.process(nil))
		h.release(h.acquire(m))
		time.Sleep(time.Second)
		h.unequal()
		for _, n := range h.cluster.Nodes() {
			n.DelayCommand("EVALSHA", 2, 20*time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(h.Context(), 30*time.Millisecond)
		defer cancel()
		_, err := m.Acquire(ctx)
		require.ErrorIs(h, err, context.DeadlineExceeded)
		time.Sleep(time.Second)
		assert.Equal(t, []string{"", "", "", "", ""}, h.cluster.Holders("k"))
	})
}

func TestFenceRefusesACounterThatIsNone(t *testing.T) {
	const most = 1 << 52
	for _, bad := range []string{"", "x", "-1", "1e3", "12.5", " 7", "0x10", fmt.Sprint(most + 1), fmt.Sprint(1 << 53), "99999999999999999999", fmt.Sprint(most)} {
		t.Run(bad, func(t *testing.T) {
			inHall(t, func(h hall) {
				for _, n := range h.cluster.Nodes()[:3] {
					n.Set(counterKey, bad, 0)
				}
				_, err := fenced(h.process(nil)).Acquire(h.Context()) // no waiting mends it
				require.ErrorIs(h, err, redlock.ErrNoQuorum)
				require.ErrorContains(h, err, "fencing counter")
				time.Sleep(time.Second)
				assert.Equal(t, []string{"", "", "", "", ""}, h.cluster.Holders("k"))
				assert.Equal(t, bad, h.cluster.Node(0).Get(counterKey))

				h.cluster.Node(0).Del(counterKey)
				l := h.acquire(fenced(h.process(nil)))
				assert.Positive(t, l.Fence(), "a minority cannot prevent it")
				h.release(l)
			})
		})
	}
	t.Run("a list", func(t *testing.T) {
		inHall(t, func(h hall) {
			for _, n := range h.cluster.Nodes()[:3] {
				_, err := n.Redis().Push(counterKey, "a")
				require.NoError(h, err)
			}
			_, err := fenced(h.process(nil)).Acquire(h.Context())
			require.ErrorContains(h, err, "WRONGTYPE")
			time.Sleep(time.Second)
			assert.Equal(t, []string{"", "", "", "", ""}, h.cluster.Holders("k"))
		})
	})
	t.Run("the last number", func(t *testing.T) {
		inHall(t, func(h hall) {
			for _, n := range h.cluster.Nodes() {
				n.Set(counterKey, fmt.Sprint(most-1), 0)
			}
			m := fenced(h.process(nil))
			l := h.acquire(m)
			assert.Equal(t, uint64(most), l.Fence())
			h.majorityHas(most)
			h.release(l)
			_, err := m.Acquire(h.Context())
			require.ErrorContains(h, err, "has reached its end")
		})
	})
}

func TestFenceInLine(t *testing.T) {
	inHall(t, func(h hall) {
		var mu sync.Mutex
		var fences []uint64
		var wg sync.WaitGroup
		for i := range 6 {
			rl, _ := h.skewed(nil, time.Duration(i-3)*time.Hour)
			m := fenced(rl)
			for range 3 {
				wg.Go(func() {
					for range 5 {
						l, err := m.Acquire(h.Context())
						if !assert.NoError(t, err) {
							return
						}
						mu.Lock()
						fences = append(fences, l.Fence())
						mu.Unlock()
						h.majorityHas(l.Fence())
						time.Sleep(time.Millisecond)
						assert.NoError(t, l.Release(h.Context()))
					}
				})
			}
		}
		wg.Wait()
		require.Len(h, fences, 6*3*5)
		require.True(h, slices.IsSorted(fences))
		require.Len(h, slices.Compact(fences), 6*3*5)
	})
}

func TestFenceWaiterLeavesTheLine(t *testing.T) {
	inHall(t, func(h hall) {
		m := fenced(h.process(nil))
		l := h.acquire(m)
		v := visit(h.Context(), m)
		require.Len(h, h.entries(h.arbiter(m), m), 1)
		h.release(l)
		h.served(v)
		synctest.Wait()
		assert.Empty(t, h.entries(h.arbiter(m), m))
		assert.Greater(t, v.lock.Fence(), l.Fence())
		h.release(v.lock)
	})
}

func TestFenceIsPutBackWithTheLock(t *testing.T) {
	inHall(t, func(h hall) {
		l := h.acquire(fenced(h.process(nil)))
		time.Sleep(time.Second)
		h.cluster.Node(2).FlushAll()
		require.NoError(h, l.Extend(h.Context(), ttl))
		time.Sleep(time.Second)
		for _, c := range h.counters() {
			assert.Equal(t, l.Fence(), c)
		}
		assert.NotContains(t, h.cluster.Holders("k"), "")
		h.release(l)
	})
}

func TestFenceSurvivesForceRelease(t *testing.T) {
	inHall(t, func(h hall) {
		m := fenced(h.process(nil))
		l := h.acquire(m)
		takeAway(h, h.cluster, "k")
		next := h.acquire(m)
		assert.Greater(t, next.Fence(), l.Fence())
		h.release(next)
	})
}

func TestFenceKeysDiffer(t *testing.T) {
	inHall(t, func(h hall) {
		rl := h.process(nil)
		for key, counter := range map[string]string{"a": "{a}:fence", "{a}": "{a}:fence:", "x{a}y": "x{a}y:fence:", "a}": "a}:fence:"} {
			l := h.acquire(rl.Mutex(key, redlock.WithFencing()))
			time.Sleep(time.Second)
			assert.Equal(t, fmt.Sprint(l.Fence()), h.cluster.Node(1).Get(counter))
			h.release(l)
		}
	})
}
