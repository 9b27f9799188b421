package redlock_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock"
)

// callers want the lock again and again until ctx ends, each time for as long as their
// patience lasts (0: until they have it), and hold it for a millisecond, or for hold.
type callers struct {
	n              int
	patience, hold time.Duration

	served  atomic.Int64
	longest atomic.Int64 // nanoseconds that one waited
}

func (c *callers) start(ctx context.Context, all *sync.WaitGroup, m *redlock.Mutex) {
	for range c.n {
		all.Go(func() {
			for ctx.Err() == nil {
				c.once(ctx, m)
			}
		})
	}
}

func (c *callers) once(ctx context.Context, m *redlock.Mutex) {
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
				did, scripts := h.overload(processes, func(rl *redlock.Redlock) *redlock.Mutex { return rl.Mutex("k") },
					&callers{n: 4, hold: hold}, &callers{n: 2, hold: hold}, &callers{n: 400, patience: 40 * time.Millisecond, hold: hold})
				assert.Less(t, scripts, 10*did, "seven are a join, a claim and the releases")
			})
		})
	}
}

// overload lets far more callers in a hurry than can be served want a lock beside patient ones. They
// have at least half as many turns as those that could have it alone, and the patient ones theirs. It
// returns how many turns that were, and what they cost.
func (h hall) overload(processes int, mutex func(*redlock.Redlock) *redlock.Mutex, alone, patient, hurried *callers) (did, scripts int) {
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
func (h hall) turnsInASecond(processes int, mutex func(*redlock.Redlock) *redlock.Mutex, kinds ...*callers) int {
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
		var mu sync.Mutex
		var order []int
		for i := range 30 {
			patient.Go(func() {
				time.Sleep(time.Duration(i) * 2 * time.Millisecond)
				l, err := rls[i%2].Mutex("k").Acquire(h.Context())
				if !assert.NoError(h, err) {
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				h.release(l)
			})
		}
		patient.Wait()
		cancel()
		all.Wait()
		assert.True(t, slices.IsSorted(order), "%v", order)
	})
}
