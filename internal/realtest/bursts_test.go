package realtest_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// convBurst is how many waiters come at once, for a lock that is released while they come.
type convBurst struct {
	waiters int
	ttl     time.Duration
	link    time.Duration // the round trip's time
}

// Row 82, L1: many waiters that come at once take longer to join than a node may take to
// answer one. They are in one line all the same, and are served as fast as the link goes.
// Other keys do not feel it in another process.
func TestBurstOfWaitersIsServed(t *testing.T) {
	failsToday(t, "L1, 82")
	cases := []convBurst{{4000, time.Second, 0}, {2500, 300 * time.Millisecond, 0}}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%d, TTL %v", c.waiters, c.ttl), func(t *testing.T) {
			f := convStart(t, 5)
			patient := f.direct().open(t, redlock.Options{RestartGuard: -1}) // with a busy machine
			ctx, cancel := context.WithCancel(t.Context())
			felt := make(chan int, 1)
			go func() { felt <- convRefused(ctx, patient.Mutex("another")) }()
			served, took := f.direct().burst(t, c, c.waiters, 4*time.Second)
			cancel()
			// Not all, because the machine may be busy with other things.
			assert.GreaterOrEqual(t, served, c.waiters*3/4, "waiters served in %v", took)
			assert.Less(t, <-felt, 5, "attempts for another key that failed")
		})
	}
}

// Row 82: over a long link, five thousand are served about as fast, one after the other, as
// twenty are.
func TestBurstOfWaitersOnALongLinkIsServed(t *testing.T) {
	failsToday(t, "L1, 82")
	f := convStart(t, 5)
	c := convBurst{5000, 10 * time.Second, 40 * time.Millisecond}
	few := c
	few.waiters = 20
	served, took := f.path(t).burst(t, few, few.waiters, 8*time.Second)
	require.Equal(t, few.waiters, served)
	pace := took / time.Duration(served)
	const limit = 4 * time.Second
	least := int(limit / pace / 3) // and a third of the time to join
	served, took = f.path(t).burst(t, c, least, limit)
	t.Logf("%v for each of few, %v for each of many", pace, took/time.Duration(max(served, 1)))
	assert.GreaterOrEqual(t, served, least, "waiters served in %v", took)
}

// burst has many wait for a lock that is released while they come, and returns how many
// were served, up to enough, within the limit.
func (p *convPath) burst(t *testing.T, c convBurst, enough int, limit time.Duration) (served int, took time.Duration) {
	t.Helper()
	o := redlock.Options{TTL: c.ttl, RestartGuard: -1}
	rl, holder := p.open(t, o), p.fleet.direct().open(t, o)
	convWarm(t, p.fleet, rl)
	for _, proxy := range p.proxies {
		proxy.Record(false)
		proxy.Delay(c.link/2, c.link/2)
	}
	lock, err := holder.Mutex(convKey, redlock.WithTTL(time.Minute)).TryAcquire(t.Context())
	require.NoError(t, err)
	const coming = 300 * time.Millisecond
	ctx, cancel := context.WithTimeout(t.Context(), coming+limit)
	defer cancel()
	var count atomic.Int64
	var all sync.WaitGroup
	m := rl.Mutex(convKey)
	for range c.waiters {
		all.Go(func() {
			lock, err := m.Acquire(ctx)
			if err != nil {
				return
			}
			_ = lock.Release(ctx)
			if int(count.Add(1)) == enough {
				cancel()
			}
		})
	}
	convPause(coming)
	_ = lock.Release(t.Context()) // goes on if the nodes do not answer in time
	begin := time.Now()
	<-ctx.Done()
	took = time.Since(begin).Round(time.Millisecond)
	all.Wait()
	t.Logf("%d of %d served in %v", count.Load(), c.waiters, took)
	return int(count.Load()), took
}

// convRefused tries again and again until the context ends, and returns how often that
// failed.
func convRefused(ctx context.Context, m *redlock.Mutex) (failed int) {
	for ctx.Err() == nil {
		lock, err := m.TryAcquire(ctx)
		switch {
		case err == nil:
			_ = lock.Release(ctx)
		case ctx.Err() == nil:
			failed++
		}
		convPause(20 * time.Millisecond)
	}
	return failed
}
