package realtest_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/lockset"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func setOf(rl *redlock.Redlock, keys ...string) *lockset.Set {
	var all []lockset.Member
	for _, k := range keys {
		all = append(all, rl.Mutex(k))
	}
	return lockset.New(all...)
}

// Scenario 72, with a minority of nodes that does not answer.
func TestSetsOfKeysOnNodesOfWhichAMinorityIsBroken(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"hung", "dead", "replies get lost"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 5)
			rl := f.open(t, unhurried)
			f.warm(t, rl)
			fault := faults[name]
			for _, i := range []int{1, 4} {
				fault.begin(t, f, i)
			}
			for range 3 {
				held, err := setOf(rl, "b", "a", "c").TryAcquire(t.Context())
				require.NoError(t, err)
				require.NoError(t, promptly(t, func() error { return held.Extend(t.Context(), time.Minute) }))
				// A refusal waits for the node that decides ties, which may be one that is silent.
				err = await(t, background(func() error { _, err := setOf(rl, "d", "c").TryAcquire(context.Background()); return err }))
				require.Error(t, err, "c is held")
				require.NoError(t, promptly(t, func() error { return held.Release(t.Context()) }))
			}
			for _, i := range []int{1, 4} {
				fault.end(t, f, i)
			}
			for _, k := range []string{"a", "b", "c", "d"} {
				f.requireGone(t, k)
			}
		})
	}
}

// accounts are keys, and how many have each now.
type accounts [4]atomic.Int32

// draw is two or three of them, in any order.
func (a *accounts) draw(r *rand.Rand) (order []int, keys []string) {
	order = r.Perm(len(a))[:2+r.IntN(2)]
	for _, i := range order {
		keys = append(keys, fmt.Sprint("account:", i))
	}
	return order, keys
}

// alone has some for a while, which nobody else may have.
func (a *accounts) alone(t *testing.T, order []int, lasts time.Duration) {
	for _, i := range order {
		assert.EqualValues(t, 1, a[i].Add(1), "two hold account %d", i)
	}
	time.Sleep(lasts)
	for _, i := range order {
		a[i].Add(-1)
	}
}

// Scenario 72: sets that overlap, in any order, from several processes, while a node after
// the other fails. None waits for ever, nothing is held twice, and nothing is left.
func TestSetsOfKeysExcludeEachOther(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var held accounts
	var all sync.WaitGroup
	var done atomic.Int32
	for p := range 4 {
		rl := f.open(t, brisk)
		for g := range 3 {
			r := rand.New(rand.NewPCG(uint64(p), uint64(g)))
			all.Go(func() {
				for range 12 {
					order, keys := held.draw(r)
					err := setOf(rl, keys...).Do(ctx, func(ctx context.Context, _ lockset.Locks) error {
						held.alone(t, order, time.Millisecond)
						return context.Cause(ctx)
					})
					if !assert.NoError(t, err) {
						return
					}
					done.Add(1)
				}
			})
		}
	}
	finished := background(func() error { all.Wait(); return nil })
	for i := 0; ; i = (i + 1) % 5 {
		before := done.Load()
		require.NoError(t, f.servers[i].Pause())
		eventually(t, func() bool { return done.Load() >= min(before+10, 4*3*12) || ctx.Err() != nil || t.Failed() }, "nobody goes on")
		require.NoError(t, f.servers[i].Resume())
		if done.Load() == 4*3*12 || ctx.Err() != nil || t.Failed() {
			break
		}
	}
	require.NoError(t, await(t, finished))
	for a := range held {
		f.requireGone(t, fmt.Sprint("account:", a))
	}
}

// Acquires of sets that overlap are cancelled at any moment, while nodes fail. None leaves a lock behind, and what is
// held is held alone.
func TestSetsThatAreCancelledLeaveNothing(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 5)
	var held accounts
	var granted, cancelled atomic.Int32
	var all sync.WaitGroup
	for p := range 3 {
		rl := f.open(t, brisk)
		for g := range 4 {
			r := rand.New(rand.NewPCG(uint64(p), uint64(g)))
			all.Go(func() {
				for range 25 {
					order, keys := held.draw(r)
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(30_000))*time.Microsecond)
					acquire := setOf(rl, keys...).Acquire
					if r.IntN(4) == 0 {
						acquire = setOf(rl, keys...).TryAcquire
					}
					locks, err := acquire(ctx)
					cancel()
					if err != nil {
						assert.Nil(t, locks)
						cancelled.Add(1)
						continue
					}
					granted.Add(1)
					held.alone(t, order, time.Duration(r.IntN(2000))*time.Microsecond)
					_ = locks.Release(t.Context())
				}
			})
		}
	}
	finished := background(func() error { all.Wait(); return nil })
	for i := range 6 {
		require.NoError(t, f.servers[i%5].Pause())
		time.Sleep(30 * time.Millisecond)
		require.NoError(t, f.servers[i%5].Resume())
	}
	require.NoError(t, await(t, finished))
	t.Logf("%d granted, %d given up", granted.Load(), cancelled.Load())
	assert.Positive(t, granted.Load())
	assert.Positive(t, cancelled.Load())
	for a := range held {
		f.requireGone(t, fmt.Sprint("account:", a))
	}
}
