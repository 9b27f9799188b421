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

// convCrowd is a share of a burst: all of it, but for the race detector, with which
// everything takes ten times as long.
func convCrowd(waiters int) int { return waiters * crowd() / 10_000 }

// convBurstLimit only keeps a test from going on for ever.
const convBurstLimit = 60 * time.Second

// Row 82, L1: many waiters that come at once take longer to join than a node may take to
// answer one. They are in one line all the same, and all are served. Other keys do not feel
// it in another process.
func TestBurstOfWaitersIsServed(t *testing.T) {
	cases := []convBurst{{4000, time.Second, 0}, {2500, 300 * time.Millisecond, 0}}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%d, TTL %v", c.waiters, c.ttl), func(t *testing.T) {
			f := convStart(t, 5)
			patient := f.direct().open(t, redlock.Options{NodeTimeout: 2 * time.Second, NoRestartGuard: true}) // with a busy machine
			ctx, cancel := context.WithCancel(t.Context())
			felt := make(chan int, 1)
			go func() { felt <- convRefused(ctx, patient.Mutex("another")) }()
			waiters := convCrowd(c.waiters)
			served, took := f.direct().burst(t, c, waiters, waiters)
			cancel()
			assert.Equal(t, waiters, served, "waiters served in %v", took)
			assert.Less(t, <-felt, 5, "attempts for another key that failed")
		})
	}
}

// Row 82: over a long link, five thousand are served one after the other, as twenty are.
// How many join at a time must not keep the first ones from their turn.
func TestBurstOfWaitersOnALongLinkIsServed(t *testing.T) {
	const few = 20
	f := convStart(t, 5)
	c := convBurst{5000, 10 * time.Second, 40 * time.Millisecond}
	served, alone := f.path(t).burst(t, c, few, few)
	require.Equal(t, few, served)
	served, took := f.path(t).burst(t, c, convCrowd(c.waiters), few)
	t.Logf("%d of few in %v, of many in %v", few, alone, took)
	assert.GreaterOrEqual(t, served, few, "waiters served in %v", took)
}

// burst has many wait for a lock that is released while they come, and returns how many
// were served, up to enough.
func (p *convPath) burst(t *testing.T, c convBurst, waiters, enough int) (served int, took time.Duration) {
	t.Helper()
	o := redlock.Options{TTL: c.ttl, NoRestartGuard: true}
	rl, holder := p.open(t, o), p.fleet.direct().open(t, o)
	convWarm(t, p.fleet, rl)
	for _, proxy := range p.proxies {
		proxy.Record(false)
		proxy.Delay(c.link/2, c.link/2)
	}
	lock, err := holder.Mutex(convKey, redlock.WithTTL(time.Minute)).TryAcquire(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), convBurstLimit)
	defer cancel()
	var count atomic.Int64
	var all sync.WaitGroup
	m := rl.Mutex(convKey)
	for range waiters {
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
	convPause(300 * time.Millisecond) // while they come
	_ = lock.Release(t.Context())     // goes on if the nodes do not answer in time
	begin := time.Now()
	<-ctx.Done()
	took = time.Since(begin).Round(time.Millisecond)
	all.Wait()
	t.Logf("%d of %d served in %v", count.Load(), waiters, took)
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
