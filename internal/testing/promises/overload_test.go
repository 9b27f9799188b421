package promises_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/longtest"
)

// callers want the lock again and again until ctx ends, each time for as long as their
// patience lasts (0: until they have it), and hold it for a millisecond, or for hold.
type callers struct {
	n              int
	patience, hold time.Duration

	served  atomic.Int64
	longest atomic.Int64 // nanoseconds that one waited
}

func (c *callers) start(ctx context.Context, all *sync.WaitGroup, m locker) {
	for range c.n {
		all.Go(func() {
			for ctx.Err() == nil {
				c.once(ctx, m)
			}
		})
	}
}

func (c *callers) once(ctx context.Context, m locker) {
	begin := time.Now()
	if c.patience > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.patience)
		defer cancel()
	}
	l, err := m.Acquire(ctx)
	if err != nil {
		return
	}
	c.longest.Store(max(c.longest.Load(), int64(time.Since(begin))))
	c.served.Add(1)
	time.Sleep(max(c.hold, time.Millisecond))
	_ = l.Release(context.Background())
}

// Far more callers with deadlines than can be served cost each other no turns, nor those
// who have time theirs.
func TestOverloadIsKeptOutOfTheQueue(t *testing.T) {
	t.Parallel()
	for _, processes := range []int{1, 4} {
		t.Run(fmt.Sprint(processes), func(t *testing.T) {
			t.Parallel()
			inHallOf(t, 5, func(h hall) {
				const hold = 3 * time.Millisecond
				did, scripts := h.overload(processes, func(rl *redlock.Redlock) locker { return rl.Mutex("k") },
					&callers{n: 4, hold: hold}, &callers{n: 2, hold: hold}, &callers{n: 400, patience: 40 * time.Millisecond, hold: hold})
				assert.Less(t, scripts, 13*did, "seven are a join, a claim and the releases; some of the hurried join and leave")
			})
		})
	}
}

// overload lets far more callers in a hurry than can be served want a lock beside patient ones. They
// have at least half as many turns as those that could have it alone, and the patient ones theirs. It
// returns how many turns that were, and what they cost.
func (h hall) overload(processes int, mutex func(*redlock.Redlock) locker, alone, patient, hurried *callers) (did, scripts int) {
	h.Helper()
	could := h.turnsInASecond(processes, mutex, alone)
	h.cluster.Record(true)
	did = h.turnsInASecond(processes, mutex, patient, hurried)
	scripts = h.cluster.Commands("EVALSHA")
	longest := time.Duration(patient.longest.Load())
	h.Logf("%d turns of %d; %d in a hurry; the longest wait of others %v; %d scripts", did, could, hurried.served.Load(), longest, scripts)
	assert.Greater(h, did, could/2)
	assert.Less(h, longest, 200*time.Millisecond)
	return did, scripts
}

// turnsInASecond is how often callers of all kinds had the lock in a second, where each process has
// all of them.
func (h hall) turnsInASecond(processes int, mutex func(*redlock.Redlock) locker, kinds ...*callers) int {
	ctx, cancel := context.WithTimeout(h.Context(), time.Second)
	defer cancel()
	var all sync.WaitGroup
	for range processes {
		m := mutex(h.cutOff())
		for _, c := range kinds {
			c.start(ctx, &all, m)
		}
	}
	all.Wait()
	served := int64(0)
	for _, c := range kinds {
		served += c.served.Load()
	}
	return int(served)
}

// turns are those that waiters had, in order.
type turns struct {
	mu    sync.Mutex
	order []int
}

// take waits for the lock, notes the turn, and releases.
func (t *turns) take(h hall, m *redlock.Mutex, waiter int) {
	l, err := m.Acquire(h.Context())
	if !assert.NoError(h, err) {
		return
	}
	t.mu.Lock()
	t.order = append(t.order, waiter)
	t.mu.Unlock()
	h.release(l)
}

// Who has time is served in the order of arrival, whatever goes on beside.
func TestOverloadLeavesTheOrderOfThePatient(t *testing.T) {
	t.Parallel()
	inHallOf(t, 5, func(h hall) {
		ctx, cancel := context.WithCancel(h.Context())
		rls := []*redlock.Redlock{h.cutOff(), h.cutOff()}
		var all, patient sync.WaitGroup
		for _, rl := range rls {
			(&callers{n: 100, patience: 30 * time.Millisecond}).start(ctx, &all, rl.Mutex("k"))
		}
		time.Sleep(100 * time.Millisecond)
		var turns turns
		for i := range 30 {
			patient.Go(func() {
				time.Sleep(time.Duration(i) * 2 * time.Millisecond)
				turns.take(h, rls[i%2].Mutex("k"), i)
			})
		}
		patient.Wait()
		cancel()
		all.Wait()
		assert.True(t, slices.IsSorted(turns.order), "%v", turns.order)
	})
}

// within acquires and releases, and returns why there was no lock in that time.
func (h hall) within(rl *redlock.Redlock, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(h.Context(), patience)
	defer cancel()
	l, err := rl.Mutex("k").Acquire(ctx)
	if err == nil {
		h.release(l)
	}
	return err
}

// However long others held the lock while callers of this process waited, those that come
// when it is free have it, one after the other and all at once.
func TestLockThatIsFreeAfterALongHoldIsHad(t *testing.T) {
	inHallOf(t, 5, func(h hall) {
		holder, rl := h.cutOff(), h.cutOff()
		held := h.acquire(holder.Mutex("k", redlock.WithRenewal()))
		for range 4 {
			require.ErrorIs(t, h.within(rl, 3*time.Second), redlock.ErrHeld)
		}
		h.release(held)
		for range 20 {
			require.NoError(t, h.within(rl, 50*time.Millisecond))
		}
		held = h.acquire(holder.Mutex("k", redlock.WithRenewal()))
		require.ErrorIs(t, h.within(rl, 3*time.Second), redlock.ErrHeld)
		h.release(held)
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { assert.NoError(t, h.within(rl, 50*time.Millisecond)) })
		}
		all.Wait()
	})
}

// Callers with a deadline, which want the lock again and again, miss none of the short times
// in which it is free between long ones in which another holds it.
func TestNoFreeTimeIsMissedBetweenLongHolds(t *testing.T) {
	t.Parallel()
	inHallOf(t, 5, func(h hall) {
		holder, rl := h.cutOff(), h.cutOff()
		var served atomic.Int64
		ctx, cancel := context.WithCancel(h.Context())
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for ctx.Err() == nil {
					if h.within(rl, 300*time.Millisecond) == nil {
						served.Add(1)
						time.Sleep(5 * time.Millisecond)
					}
				}
			})
		}
		m := holder.Mutex("k", redlock.WithRenewal())
		missed, times := 0, 5
		if longtest.On() {
			times = 12
		}
		for i := range times {
			held := h.acquire(m)
			time.Sleep(time.Second + time.Duration(i%5)*500*time.Millisecond)
			before := served.Load()
			h.release(held)
			time.Sleep(300 * time.Millisecond)
			if served.Load() == before {
				missed++
			}
		}
		cancel()
		all.Wait()
		assert.Zero(t, missed, "of %d times in which the lock was free", times)
	})
}

// One hold that took long tells nothing of those that follow: callers with time enough are
// served in the order of arrival.
func TestLongHoldLeavesTheOrderOfThoseWithTime(t *testing.T) {
	inHallOf(t, 5, func(h hall) {
		rl := h.cutOff()
		held := h.acquire(h.cutOff().Mutex("k", redlock.WithRenewal()))
		var all sync.WaitGroup
		var mu sync.Mutex
		var order []int
		come := func(i int) {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(h.Context(), 30*time.Second)
				defer cancel()
				l, err := rl.Mutex("k").Acquire(ctx)
				if !assert.NoError(t, err) {
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(50 * time.Millisecond)
				h.release(l)
			})
			time.Sleep(time.Millisecond)
		}
		come(0)
		time.Sleep(50 * time.Millisecond) // it is refused, and joins; the next one joins at once
		come(1)
		time.Sleep(time.Minute / 3)
		h.release(held)
		time.Sleep(time.Millisecond)
		for i := 2; i < 40; i++ {
			come(i)
		}
		all.Wait()
		assert.Len(t, order, 40)
		assert.True(t, slices.IsSorted(order), "%v", order)
	})
}

// Holds that are longer than those who want the lock have time: it is always had, and few of
// them go into the queue.
func TestOverloadOfLongHolds(t *testing.T) {
	t.Parallel()
	const hold, long = 100 * time.Millisecond, 4 * time.Second
	inHallOf(t, 5, func(h hall) {
		h.cluster.Record(true)
		ctx, cancel := context.WithTimeout(h.Context(), long)
		defer cancel()
		var all sync.WaitGroup
		hurried := &callers{n: 80, patience: 40 * time.Millisecond, hold: hold}
		for range 4 {
			hurried.start(ctx, &all, h.cutOff().Mutex("k"))
		}
		all.Wait()
		scripts := h.cluster.Commands("EVALSHA")
		t.Logf("%d turns, %d scripts", hurried.served.Load(), scripts)
		assert.Greater(t, hurried.served.Load(), int64(long/hold)*9/10)
		assert.Less(t, scripts, 6000, "of 30,000 calls")
	})
}

// A caller that is kept out of the queue asks no node. What its error says is what a node
// told another of its process meanwhile, and asking that is no burden.
func TestErrorOfOneThatWasKeptOutIsAnAnswer(t *testing.T) {
	inHallOf(t, 5, func(h hall) {
		taken := func(by string, ttl time.Duration) {
			for _, n := range h.cluster.Nodes() {
				n.Set("k", by, ttl)
			}
		}
		rl := h.cutOff()
		taken("one@else", time.Hour)
		ctx, cancel := context.WithTimeout(h.Context(), 20*time.Second)
		defer cancel()
		inLine := visit(ctx, rl.Mutex("k"))
		time.Sleep(time.Second)
		for i := range 20 {
			by, ttl := fmt.Sprintf("%d@else", i), time.Hour+time.Duration(i)*time.Minute
			taken(by, ttl)
			q := h.quorumError(h.within(rl, 50*time.Millisecond))
			require.ErrorIs(t, q, redlock.ErrHeld)
			assert.ErrorContains(t, q, by)
			assert.InDelta(t, ttl, q.HolderTTL, float64(100*time.Millisecond))
		}
		h.cluster.Record(true)
		var all sync.WaitGroup
		for range 1000 {
			all.Go(func() { assert.ErrorIs(t, h.within(rl, 50*time.Millisecond), redlock.ErrHeld) })
			time.Sleep(time.Millisecond)
		}
		all.Wait()
		assert.Less(t, h.cluster.Commands("EVALSHA"), 100)
		cancel()
		<-inLine.done
	})
}

// More wait in a process than have a place in the queue of a node, and have their turns in the order in
// which they came, between those of another process.
func TestMoreThanStandInTheQueueAreServedInOrder(t *testing.T) {
	t.Parallel()
	inHallOf(t, 5, func(h hall) {
		rls := []*redlock.Redlock{h.cutOff(), h.cutOff()}
		held := h.acquire(h.cutOff().Mutex("k", redlock.WithRenewal()))
		var all sync.WaitGroup
		var turns turns
		for i := range 200 {
			all.Go(func() { turns.take(h, rls[min(i%8, 1)].Mutex("k"), i) })
			time.Sleep(50 * time.Millisecond)
		}
		h.release(held)
		all.Wait()
		assert.Len(h, turns.order, 200)
		assert.True(h, slices.IsSorted(turns.order), "%v", turns.order)
	})
}
