package redlock_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/longtest"
)

// wanting is one of several in each process who want the lock in this way.
type wanting struct {
	of func(rl *redlock.Redlock) *redlock.Mutex
	// most may have it at a time, and takes is how many of these one is: who wants it alone is
	// all of them.
	most, takes int64
}

func wantsAlone() wanting {
	return wanting{func(rl *redlock.Redlock) *redlock.Mutex { return rl.Mutex("k") }, 1 << 10, 1 << 10}
}

func wantsShare() wanting {
	return wanting{func(rl *redlock.Redlock) *redlock.Mutex { return rl.Mutex("k").Shared() }, 1 << 10, 1}
}

func wantsPermit(n int) wanting {
	return wanting{func(rl *redlock.Redlock) *redlock.Mutex { return rl.Semaphore("k", n) }, int64(n), 1}
}

// A process that cannot reach the node where the others wait, and the others, get their share in
// every way to hold the lock, also if the process that is cut off always has a waiter of its own,
// whose queue is the younger one as long as it is served and the others are not.
func TestQueuesThatMeetAreFairInAllModes(t *testing.T) {
	t.Parallel()
	first := map[string]func(i int) time.Duration{
		"all at once":         func(int) time.Duration { return 0 },
		"the cut off first":   func(i int) time.Duration { return time.Duration(min(i, 1)) * 3 * time.Second },
		"the cut off at last": func(i int) time.Duration { return time.Duration(1-min(i, 1)) * 3 * time.Second },
	}
	w, r, p2, p3 := wantsAlone(), wantsShare(), wantsPermit(2), wantsPermit(3)
	for name, in := range map[string]struct{ cutOff, others []wanting }{
		"alone":                {[]wanting{w, w, w, w}, []wanting{w, w, w, w}},
		"one of two permits":   {[]wanting{p2}, []wanting{p2}},
		"two of three permits": {[]wanting{p3, p3}, []wanting{p3, p3}},
		"more than permits":    {[]wanting{p3, p3, p3, p3}, []wanting{p3, p3, p3, p3}},
		"one of four writes":   {[]wanting{w, r, r, r}, []wanting{w, r, r, r}},
		"the cut off reads":    {[]wanting{r, r}, []wanting{w, w}},
		"the cut off writes":   {[]wanting{w, w}, []wanting{r, r}},
	} {
		for when, begin := range first {
			if !longtest.On() && when != "the cut off at last" && (when != "all at once" || name != "alone") {
				continue
			}
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				inHallOf(t, 3, func(h hall) {
					arbiter := h.process(nil).Mutex("k").NodeOrder()[0]
					processes := []*redlock.Redlock{h.cutOff(arbiter), h.cutOff(), h.cutOff(), h.cutOff()}
					want := [][]wanting{in.cutOff, in.others, in.others, in.others}
					h.fair(h.takeTurnsIn(processes, want, 50*time.Millisecond, 15*time.Second, begin))
				})
			})
		}
	}
}

// takeTurnsIn has those in each process hold the lock again and again until the time is over, and
// returns how often each process did.
func (h hall) takeTurnsIn(rls []*redlock.Redlock, want [][]wanting, hold, long time.Duration, begin func(i int) time.Duration) []int {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), long)
	defer cancel()
	var taken atomic.Int64
	turns := make([]atomic.Int64, len(rls))
	var all sync.WaitGroup
	for i, rl := range rls {
		for _, one := range want[i] {
			m := one.of(rl)
			all.Go(func() {
				time.Sleep(begin(i))
				for ctx.Err() == nil {
					l, err := m.Acquire(ctx)
					if err != nil {
						continue
					}
					assert.LessOrEqual(h, taken.Add(one.takes), one.most, "holders at a time")
					turns[i].Add(1)
					time.Sleep(hold)
					taken.Add(-one.takes)
					_ = l.Release(context.Background())
				}
			})
		}
	}
	all.Wait()
	counts := make([]int, len(rls))
	for i := range turns {
		counts[i] = int(turns[i].Load())
	}
	return counts
}
