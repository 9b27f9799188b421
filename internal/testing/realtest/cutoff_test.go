package realtest_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// convArbiter is the node that keeps the line of a key: that of the highest weight. The
// order is part of what all versions must agree on.
func convArbiter(key string, names []string) (arbiter int) {
	hash := func(s string) uint64 { // FNV-1a
		h := uint64(14695981039346656037)
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * 1099511628211
		}
		return h
	}
	weight := func(key, node uint64) uint64 {
		x := key + node
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		return x ^ x>>31
	}
	k := hash(key)
	for i, name := range names {
		if weight(k, hash(name)) > weight(k, hash(names[arbiter])) {
			arbiter = i
		}
	}
	return arbiter
}

// What convArbiter computes is where the line is.
func TestArbiterIsWhereTheLineIs(t *testing.T) {
	t.Parallel()
	f := convStart(t, 5)
	o := redlock.Options{NoRestartGuard: true}
	rl := f.direct().users(t, o)
	lock, err := rl.Mutex(convKey).TryAcquire(t.Context())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = rl.Mutex(convKey).Acquire(ctx)
	}()
	convEventually(t, func() bool {
		s, err := operator(t, rl).Inspect(context.Background(), convKey)
		return err == nil && s.Nodes[convArbiter(convKey, rl.Nodes())].Waiting == 1
	}, "the waiter is not in line there")
	cancel()
	<-over
	require.NoError(t, lock.Release(t.Context()))
}

// Row 83, L2: a process that cannot reach the node that keeps the line, and three that can,
// each get at least half of a fair share of the turns, for as long as that lasts. They
// wait in lines on different nodes, and either side can starve the other.
func TestProcessCutOffFromTheArbiterAndTheOthersGetTheirShare(t *testing.T) {
	type cut struct {
		nodes int
		hold  time.Duration
		long  time.Duration
		whole bool // nobody is cut off
	}
	var cases []cut
	for _, nodes := range []int{3, 5} {
		cases = append(cases,
			cut{nodes, 5 * time.Millisecond, 3 * time.Second, false},
			cut{nodes, 50 * time.Millisecond, 5 * time.Second, false},
			cut{nodes, 200 * time.Millisecond, 8 * time.Second, false},
			cut{nodes, 50 * time.Millisecond, 3 * time.Second, true})
	}
	name := func(c cut) string { return fmt.Sprintf("%d nodes, held for %v, whole %v", c.nodes, c.hold, c.whole) }
	t.Parallel()
	convTogether(t, cases, name, func(t *testing.T, c cut) {
		const processes = 4
		f := convStart(t, c.nodes)
		rls := make([]*redlock.Redlock, processes)
		for i := range rls {
			p := f.path(t)
			rls[i] = p.users(t, redlock.Options{NoRestartGuard: true})
			convWarm(t, f, rls[i])
			if arbiter := convArbiter(convKey, rls[i].Nodes()); i == 0 && !c.whole {
				p.refuse(arbiter)
			}
		}
		turns := make([]int, processes)
		for range 8 { // a busy machine needs longer for turns enough to tell shares
			ctx, cancel := context.WithTimeout(t.Context(), c.long)
			more, longest := convTakeTurns(ctx, rls, c.hold)
			cancel()
			for i, n := range more {
				turns[i] += n
			}
			t.Logf("turns %v, the first is cut off; the longest waits %v", more, longest)
			if sum(turns) >= 6*processes {
				break
			}
		}
		for i, n := range turns {
			assert.GreaterOrEqual(t, n, max(1, sum(turns)/processes/2), "turns of process %d of %v", i, turns)
		}
	})
}

// convTakeTurns has each process hold the lock again and again, and returns how often it
// did and how long it waited at most.
func convTakeTurns(ctx context.Context, rls []*redlock.Redlock, hold time.Duration) (turns []int, longest []time.Duration) {
	var each []locker
	for _, rl := range rls {
		each = append(each, rl.Mutex(convKey))
	}
	return convTakeTurnsOf(ctx, each, hold)
}

func convTakeTurnsOf(ctx context.Context, each []locker, hold time.Duration) (turns []int, longest []time.Duration) {
	turns, longest = make([]int, len(each)), make([]time.Duration, len(each))
	var all sync.WaitGroup
	for i, m := range each {
		all.Go(func() {
			for ctx.Err() == nil {
				begin := time.Now()
				lock, err := m.Acquire(ctx)
				longest[i] = max(longest[i], time.Since(begin).Round(time.Millisecond))
				if err != nil {
					continue
				}
				turns[i]++
				convPause(hold)
				_ = lock.Release(context.Background())
			}
		})
	}
	all.Wait()
	return turns, longest
}
