package redlock_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// Scenario 59: every call returns what the first one does, also while it is under way.
func TestReleaseIsDoneOnce(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		b.cluster.ResetCommands()
		for _, n := range b.cluster.Nodes() {
			n.Delay(20 * time.Millisecond)
			n.FlushAll()
		}
		var all sync.WaitGroup
		errs := make([]error, 5)
		for i := range errs {
			all.Go(func() { errs[i] = lock.Release(b.Context()) })
		}
		b.takes(80*time.Millisecond, all.Wait) // each script is sent whole the second time
		b.takes(0, func() { errs = append(errs, lock.Release(canceled())) })
		for _, err := range errs {
			require.ErrorIs(b, err, redlock.ErrNotHeld)
			assert.Equal(b, errs[0], err)
		}
		assert.Equal(b, 3, b.cluster.Commands(evalsha))
		assert.Equal(b, 3, b.cluster.Commands(eval), "scenario 44: NOSCRIPT is answered with the text, once")
	})
}

// Scenario 60, R6.
func TestReleaseGoesOnWithADeadContext(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycleOf(looksAtRelease)
		lock := b.lock()
		b.pass(looksAtRelease)
		for _, n := range b.cluster.Nodes() {
			n.Delay(20 * time.Millisecond)
		}
		ctx, cancel := context.WithTimeout(b.Context(), time.Millisecond)
		defer cancel()
		b.takes(40*time.Millisecond, func() { require.NoError(b, lock.Release(ctx)) })
	})
}

// What a release may say, and what the caller may conclude.
func TestReleaseOutcomes(t *testing.T) {
	lost := func(n *redlocktest.Node) { n.FlushAll() }
	for _, c := range []struct {
		name   string
		faults map[int]func(*redlocktest.Node)
		want   error
		takes  time.Duration
	}{
		{"all there", nil, nil, 0},
		{"two hung", map[int]func(*redlocktest.Node){0: hang, 1: hang}, nil, 0},
		{"two lost", map[int]func(*redlocktest.Node){0: lost, 1: lost}, nil, 0},
		{"three lost", map[int]func(*redlocktest.Node){0: lost, 1: lost, 2: lost}, redlock.ErrNotHeld, 0},
		{"three another's", map[int]func(*redlocktest.Node){0: taken, 1: taken, 2: taken}, redlock.ErrNotHeld, 0},
		{"three lists", map[int]func(*redlocktest.Node){0: func(n *redlocktest.Node) { lost(n); list(n) }, 1: func(n *redlocktest.Node) { lost(n); list(n) },
			2: func(n *redlocktest.Node) { lost(n); list(n) }}, redlock.ErrNotHeld, 0},
		{"three hung", map[int]func(*redlocktest.Node){0: hang, 1: hang, 2: hang}, redlock.ErrNoQuorum, nodeTimeout},
		{"two lost, one hung", map[int]func(*redlocktest.Node){0: lost, 1: lost, 2: hang}, nil, nodeTimeout},
		{"three in error", map[int]func(*redlocktest.Node){0: answers("BUSY x"), 1: answers("BUSY x"), 2: answers("BUSY x")}, redlock.ErrNoQuorum, 0},
		{"all stopped", map[int]func(*redlocktest.Node){0: stop, 1: stop, 2: stop, 3: stop, 4: stop}, redlock.ErrNoQuorum, -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				b.cycle()
				lock := b.lock()
				for i, f := range c.faults {
					f(b.cluster.Node(i))
				}
				start := time.Now()
				err := lock.Release(b.Context())
				if c.want == nil && c.name == "two lost, one hung" {
					require.ErrorIs(b, err, redlock.ErrNoQuorum, "two of five confirm")
				} else {
					require.ErrorIs(b, err, c.want)
				}
				if err != nil {
					q := b.quorumError(err)
					assert.Equal(b, "release", q.Op)
				}
				if c.takes >= 0 {
					assert.Equal(b, c.takes, time.Since(start))
				}
				assert.LessOrEqual(b, time.Since(start), nodeTimeout)
				assert.LessOrEqual(b, lock.Validity(), time.Duration(0), "over, whatever was confirmed")
				b.each([]int{0, 1, 2, 3, 4}, resume)
				synctest.Wait()
				for i, h := range b.cluster.Holders(key) {
					if c.name != "three in error" || i > 2 {
						assert.Contains(b, []string{"", "somebody@else", "(list)"}, h)
					}
				}
			})
		})
	}
}

// Scenario 58.
func TestReleaseAfterAnotherHasTakenOver(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		b.pass(ttl)
		next := b.lock()
		err := lock.Release(b.Context())
		require.ErrorIs(b, err, redlock.ErrNotHeld)
		assert.ErrorContains(b, err, next.Token()[:8])
		b.on(3)
		require.NoError(b, next.Release(b.Context()))
	})
}

// Scenario 29: cut off while holding: extends fail, the lock is over at Until, and
// release says soon that it does not know.
func TestHolderThatIsCutOff(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock(redlock.WithRenewal())
		ctx := lock.Context()
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.Partition(redlocktest.Blackhole) })
		end := time.Until(lock.Until())
		b.takes(end, func() { <-ctx.Done() })
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrExpired)
		b.takes(0, func() { require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNoQuorum) })
		b.pass(time.Minute)
		b.on(0)
	})
}

// Scenario 25: a node that hangs keeps what it was sent; its key is gone as soon as it
// wakes up, without anybody asking.
func TestKeyOnAHungNodeIsGoneWhenItWakes(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		require.NoError(b, b.lock(redlock.WithTTL(time.Hour)).Release(b.Context()))
		synctest.Wait()
		b.cluster.Node(0).Hang()
		lock, err := b.rl.Mutex(key, redlock.WithTTL(time.Hour)).TryAcquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
		b.pass(20 * time.Second)
		b.cluster.Node(0).Resume()
		b.pass(time.Millisecond)
		b.on(0)
		assert.Equal(b, 2, b.cluster.Node(0).Commands("SET"), "it did arrive")

		// Also if it takes longer than a connection is kept waiting.
		b.cluster.Node(0).Hang()
		lock, err = b.rl.Mutex(key, redlock.WithTTL(time.Hour)).TryAcquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
		b.pass(10 * time.Minute)
		b.cluster.Node(0).Resume()
		b.pass(time.Second)
		b.on(0)
	})
}

// A release that a broken connection swallowed is sent again.
func TestReleaseIsSentAgain(t *testing.T) {
	for name, break_ := range map[string]func(*redlocktest.Node){
		"stopped":   func(n *redlocktest.Node) { n.Stop() },
		"cut off":   func(n *redlocktest.Node) { n.Partition(redlocktest.Refuse) },
		"swallowed": func(n *redlocktest.Node) { n.Partition(redlocktest.DropRequests) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				lock := b.lock(redlock.WithTTL(time.Hour))
				break_(b.cluster.Node(0))
				require.NoError(b, lock.Release(b.Context()))
				b.pass(time.Minute)
				if name == "stopped" {
					b.cluster.Node(0).Restart(redlocktest.KeepKeys)
				} else {
					b.on(1)
					b.cluster.Node(0).Heal()
				}
				b.pass(10 * time.Second)
				b.on(0)
				_, kept := redlock.LaneLoad(b.rl, 0)
				assert.Zero(b, kept)
			})
		})
	}
}

// A node that answers with an error which passes has not released anything yet.
func TestReleaseThatFailsForNow(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		lock := b.lock(redlock.WithTTL(time.Hour))
		b.each([]int{0, 1, 2}, answers("LOADING Redis is loading the dataset in memory"))
		b.takes(0, func() { require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNoQuorum) })
		b.pass(time.Minute)
		b.on(3)
		b.each([]int{0, 1, 2}, answers(""))
		b.pass(time.Second)
		b.on(0)
	})
}

// It is forgotten when the key is gone by itself.
func TestReleaseIsNotKeptForEver(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithTTL(time.Minute))
		require.NoError(b, lock.Extend(b.Context(), time.Minute))
		b.cluster.Node(0).Stop()
		require.NoError(b, lock.Release(b.Context()))
		b.pass(50 * time.Second)
		most := 0 // between two tries it is kept
		for range 100 {
			b.pass(37 * time.Millisecond)
			_, kept := redlock.LaneLoad(b.rl, 0)
			most = max(most, kept)
		}
		assert.Equal(b, 1, most, "as long as the longest lease")
		b.pass(20 * time.Second)
		_, kept := redlock.LaneLoad(b.rl, 0)
		assert.Zero(b, kept)
	})
}

// A release whose answer is lost did its work; that it then finds nothing is no proof
// that another did it.
func TestReleaseWhoseAnswerIsLost(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		lock := b.lock()
		b.each([]int{0, 1}, func(n *redlocktest.Node) { n.DropReply(evalsha, 1) })
		err := lock.Release(b.Context())
		require.NotErrorIs(b, err, redlock.ErrNotHeld)
		b.pass(time.Second)
		b.on(0)
	})
}

// The circuit breaker: behind a batch that is overdue nothing piles up, and what was
// held is released when the node is back.
func TestNothingPilesUpBehindAHungNode(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		var held []*redlock.Lock
		for i := range 5 {
			lock, err := b.rl.Mutex(string(rune('a'+i)), redlock.WithTTL(time.Hour)).TryAcquire(b.Context())
			require.NoError(b, err)
			held = append(held, lock)
		}
		synctest.Wait()
		b.cluster.Node(0).Hang()
		b.cycle() // makes it overdue
		b.pass(nodeTimeout)
		b.cluster.ResetCommands()
		b.takes(0, func() {
			for range 300 {
				lock, err := b.rl.Mutex(key).TryAcquire(b.Context())
				require.NoError(b, err)
				require.Equal(b, redlock.VoteNotSent, lock.Outcomes()[0].Vote)
				require.ErrorContains(b, lock.Outcomes()[0].Err, "has not answered earlier requests")
				require.NoError(b, lock.Release(b.Context()))
			}
		})
		queued, kept := redlock.LaneLoad(b.rl, 0)
		assert.Equal(b, 1, queued+kept, "the first release")
		for _, lock := range held {
			b.takes(0, func() { require.NoError(b, lock.Release(b.Context())) })
		}
		queued, _ = redlock.LaneLoad(b.rl, 0)
		assert.Equal(b, 6, queued, "and those of the held ones")
		assert.Zero(b, b.cluster.Node(0).Commands())
		b.cluster.Node(0).Resume()
		synctest.Wait()
		assert.Empty(b, keysOf(b.cluster.Node(0)))
		queued, kept = redlock.LaneLoad(b.rl, 0)
		assert.Zero(b, queued+kept)
		assert.Equal(b, redlock.VoteGranted, b.lock().Outcomes()[0].Vote, "used again at once")
	})
}

func TestNothingPilesUpBeforeANodeThatRefuses(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cluster.Node(0).Stop()
		for range 300 {
			lock, err := b.rl.Mutex(key).TryAcquire(b.Context())
			require.NoError(b, err)
			require.NoError(b, lock.Release(b.Context()))
			time.Sleep(time.Millisecond)
		}
		b.pass(2 * time.Second)
		queued, kept := redlock.LaneLoad(b.rl, 0)
		assert.LessOrEqual(b, queued+kept, 301, "a release also serves the queue of a node that was reachable just now")
		b.pass(ttl)
		queued, kept = redlock.LaneLoad(b.rl, 0)
		assert.Zero(b, queued+kept)
		b.cluster.Node(0).Restart(redlocktest.LoseKeys)
		b.cycle()           // it is met again,
		b.pass(time.Minute) // and lost its keys, so it has to wait for the guard
		assert.Equal(b, redlock.VoteGranted, b.lock().Outcomes()[0].Vote)
	})
}
