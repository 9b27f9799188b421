package realtest_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock"
)

// Row 93: three thousand callers with 50 ms each, and four that have time, want a lock that
// each holds for a millisecond. The patient are served, and so are callers in a hurry: what
// those cost that have left by their turn must not fall on those behind them. The bars are
// far below what an idle machine shows (360 turns a second of 758 that it could serve) and
// far above what there was where all of them stood in the queue (3). Those of promises are exact, in virtual time.
func TestCallersInAHurryDoNotStarveEachOther(t *testing.T) {
	const (
		patient = 4
		hold    = time.Millisecond
		calm    = 2 * time.Second // to measure what the lock can serve
		rush    = 5 * time.Second
	)
	f := convStart(t, 5)
	rl := f.direct().open(t, redlock.Options{NoRestartGuard: true})
	convWarm(t, f, rl)

	alone, _ := convServe(t, rl, calm, convCallers{patient, 0, hold})
	could := float64(sum(alone)) / calm.Seconds()
	perSecond := func(turns int) float64 { return float64(turns) / rush.Seconds() }
	// On a busy machine a round trip may take most of the 50 ms, so one rush of several must do.
	convEventuallyIn(t, 5, func() bool {
		served, longest := convServe(t, rl, rush, convCallers{patient, 0, hold}, convCallers{convCrowd(3000), 50 * time.Millisecond, hold})
		t.Logf("%.0f turns/s without the hurry; with it %d patient, who waited %v at most, and %d in a hurry (%.0f/s)",
			could, served[0], longest[0], served[1], perSecond(served[1]))
		return perSecond(sum(served)) >= could/16 && perSecond(served[1]) >= could/64 && longest[0] < 3*time.Second
	}, "callers starve")
}

func sum(n []int) (sum int) {
	for _, v := range n {
		sum += v
	}
	return sum
}

// convCallers is a number of callers, each of which wants the lock again and again, and
// gives up if it takes too long: never if limit is 0.
type convCallers struct {
	n           int
	limit, hold time.Duration
}

// convServe has callers of several kinds want the lock, and returns for each kind how many
// turns they had and how long one waited for its turn at most.
func convServe(t *testing.T, rl *redlock.Redlock, d time.Duration, kinds ...convCallers) (turns []int, longest []time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	var all sync.WaitGroup
	served, waited := make([]atomic.Int64, len(kinds)), make([]atomic.Int64, len(kinds))
	var inside atomic.Int64
	m := rl.Mutex(convKey)
	for k, kind := range kinds {
		for range kind.n {
			all.Go(func() {
				for ctx.Err() == nil {
					begin := time.Now()
					lock, err := convAcquireWithin(ctx, m, kind.limit)
					if err != nil {
						continue
					}
					convAtLeast(&waited[k], int64(time.Since(begin)))
					served[k].Add(1)
					assert.EqualValues(t, 1, inside.Add(1), "holders at a time")
					convPause(kind.hold)
					inside.Add(-1)
					_ = lock.Release(context.Background())
				}
			})
		}
	}
	all.Wait()
	for k := range kinds {
		turns, longest = append(turns, int(served[k].Load())), append(longest, time.Duration(waited[k].Load()))
	}
	return turns, longest
}

func convAcquireWithin(ctx context.Context, m *redlock.Mutex, limit time.Duration) (*redlock.Lock, error) {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	return m.Acquire(ctx)
}

// convAtLeast raises v to n.
func convAtLeast(v *atomic.Int64, n int64) {
	for old := v.Load(); n > old && !v.CompareAndSwap(old, n); old = v.Load() {
	}
}
