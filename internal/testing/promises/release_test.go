package promises_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/inside"
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
				b.assemble(inside.Assembly{})
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
				_, kept := b.lanes[0].Load()
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
		b.assemble(inside.Assembly{})
		lock := b.lock(redlock.WithTTL(time.Minute))
		require.NoError(b, lock.Extend(b.Context(), time.Minute))
		b.cluster.Node(0).Stop()
		require.NoError(b, lock.Release(b.Context()))
		b.pass(50 * time.Second)
		most := 0 // between two tries it is kept
		for range 100 {
			b.pass(37 * time.Millisecond)
			_, kept := b.lanes[0].Load()
			most = max(most, kept)
		}
		assert.Equal(b, 1, most, "as long as the longest lease")
		b.pass(20 * time.Second)
		_, kept := b.lanes[0].Load()
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
		b.assemble(inside.Assembly{})
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
		queued, kept := b.lanes[0].Load()
		assert.Equal(b, 1, queued+kept, "the first release")
		for _, lock := range held {
			b.takes(0, func() { require.NoError(b, lock.Release(b.Context())) })
		}
		queued, _ = b.lanes[0].Load()
		assert.Equal(b, 6, queued, "and those of the held ones")
		assert.Zero(b, b.cluster.Node(0).Commands())
		b.cluster.Node(0).Resume()
		synctest.Wait()
		assert.Empty(b, keysOf(b.cluster.Node(0)))
		queued, kept = b.lanes[0].Load()
		assert.Zero(b, queued+kept)
		assert.Equal(b, redlock.VoteGranted, b.lock().Outcomes()[0].Vote, "used again at once")
	})
}

func TestNothingPilesUpBeforeANodeThatRefuses(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.assemble(inside.Assembly{})
		b.cluster.Node(0).Stop()
		for range 300 {
			lock, err := b.rl.Mutex(key).TryAcquire(b.Context())
			require.NoError(b, err)
			require.NoError(b, lock.Release(b.Context()))
			time.Sleep(time.Millisecond)
		}
		b.pass(2 * time.Second)
		queued, kept := b.lanes[0].Load()
		assert.LessOrEqual(b, queued+kept, 301, "a release also serves the queue of a node that was reachable just now")
		b.pass(ttl)
		queued, kept = b.lanes[0].Load()
		assert.Zero(b, queued+kept)
		b.cluster.Node(0).Restart(redlocktest.LoseKeys)
		b.cycle()           // it is met again,
		b.pass(time.Minute) // and lost its keys, so it has to wait for the guard
		assert.Equal(b, redlock.VoteGranted, b.lock().Outcomes()[0].Vote)
	})
}

// A job is over sooner than machines' clocks differ: whoever comes late finds it held until the
// time is over, and has it then.
func TestReleasedBeforeMinHoldItIsKeptUntilThen(t *testing.T) {
	for _, fencing := range []bool{false, true} {
		inBubble(t, 5, nil, func(b *bed) {
			opts := []redlock.LockOption{redlock.WithMinHold(6 * time.Second), redlock.WithRenewal()}
			if fencing {
				opts = append(opts, redlock.WithFencing())
			}
			lock := b.lock(opts...)
			granted := time.Now()
			b.pass(4 * time.Second) // it was renewed, and lasts for longer than it is to be kept
			held := lock.Context()
			b.takes(0, func() { require.NoError(b, lock.Release(b.Context())) })
			<-held.Done()
			assert.ErrorIs(b, context.Cause(held), redlock.ErrReleased)
			assert.LessOrEqual(b, lock.Validity(), time.Duration(0))
			require.NoError(b, lock.Release(b.Context()), "the result of the first")
			b.on(5)
			for _, left := range b.cluster.TTLs(key) {
				assert.InDelta(b, 2*time.Second, left, float64(100*time.Millisecond), "what is left, whatever the lease was")
			}
			require.ErrorIs(b, b.try(), redlock.ErrHeld)
			next, err := b.another(nil).Mutex(key).Acquire(b.Context())
			require.NoError(b, err)
			waited := time.Since(granted)
			assert.GreaterOrEqual(b, waited, 6*time.Second)
			assert.Less(b, waited, 7*time.Second)
			require.NoError(b, next.Release(b.Context()))
			b.on(0)
		})
	}
}

func TestReleasedAfterMinHoldItIsFreeAtOnce(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock(redlock.WithMinHold(6*time.Second), redlock.WithRenewal())
		waiting := later(func() (*redlock.Lock, error) { return b.another(nil).Mutex(key).Acquire(b.Context()) })
		b.pass(6 * time.Second)
		b.pending(waiting)
		b.takes(0, func() { require.NoError(b, lock.Release(b.Context())) })
		released := time.Now()
		b.isFreeOf(lock)
		// It may have asked some nodes before they had the release, and asks again soon.
		r := <-waiting
		require.NoError(b, r.err)
		assert.Less(b, r.at.Sub(released), time.Second)
		require.NoError(b, r.lock.Release(b.Context()))
		b.on(0)
	})
}

// A SET that lands when the lock was released before keeps its node no longer than the others.
func TestMinHoldOfASetThatLandsLate(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		b.cycle()
		b.each([]int{4}, hang) // the SET is on its way there for as long
		lock, err := b.rl.Mutex(key, redlock.WithMinHold(5*time.Second)).TryAcquire(b.Context())
		require.NoError(b, err)
		synctest.Wait()
		b.takes(0, func() { require.NoError(b, lock.Release(b.Context())) })
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrReleased)
		b.pass(3 * time.Second)
		b.on(4)
		b.each([]int{4}, resume)
		b.pass(2*time.Second + 60*time.Millisecond)
		b.on(0)
		b.cycle()
	})
}

func TestMinorityDoesNotEndMinHold(t *testing.T) {
	for what, fault := range map[string]func(*redlocktest.Node){"hung": hang, "down": stop, "lost the key": gone} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				b.cycle()
				lock := b.lock(redlock.WithMinHold(5 * time.Second))
				b.each([]int{0, 3}, fault)
				b.takes(0, func() { require.NoError(b, lock.Release(b.Context())) })
				b.pass(4900 * time.Millisecond)
				_, err := b.another(nil).Mutex(key).TryAcquire(b.Context())
				require.Error(b, err)
			})
		})
	}
}

func TestMinHoldOfALockThatIsGone(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock(redlock.WithMinHold(5 * time.Second))
		b.each([]int{0, 1, 2}, gone)
		b.each([]int{3}, taken)
		require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNotHeld)
		assert.Equal(b, "somebody@else", b.cluster.Holders(key)[3])

		b.each([]int{0, 1, 2, 3, 4}, gone)
		lock = b.lock(redlock.WithMinHold(5 * time.Second))
		b.each([]int{0, 1, 2}, hang)
		b.takes(nodeTimeout, func() { require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNoQuorum) })
	})
}

// A lock under which nothing was done is free at once.
func TestReleaseUnusedDoesNotKeep(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithMinHold(5 * time.Second))
		b.on(3)
		require.NoError(b, lock.ReleaseUnused(b.Context()))
		b.on(0)
		require.NoError(b, lock.Release(b.Context()), "as the first release")
	})
}

// Nobody got the lock, so nobody is to be kept from it.
func TestMinHoldOfALockWhoseHookPanics(t *testing.T) {
	inBubble(t, 3, &redlock.Options{Hooks: &redlock.Hooks{Acquired: func(context.Context, redlock.AcquireInfo) { panic("hook") }}}, func(b *bed) {
		assert.Panics(b, func() { _, _ = b.rl.Mutex(key, redlock.WithMinHold(5*time.Second)).TryAcquire(b.Context()) })
		b.on(0)
	})
}

func TestBadMinHoldIsRefusedWithoutIO(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		asked := b.cluster.Commands()
		min := redlock.WithMinHold
		guarded := b.another(&redlock.Options{RestartGuard: time.Hour})
		for text, m := range map[string]locker{
			"WithMinHold is 0s: must be from 10ms to 24h0m0s": b.rl.Mutex(key, min(0)),
			"WithMinHold is -1s":                              b.rl.Mutex(key, min(-time.Second)),
			"WithMinHold is 25h0m0s: must be from":            b.rl.Mutex(key, min(25*time.Hour), redlock.WithTTL(24*time.Hour)),
			"WithMinHold is 11s: must be at most 10s":         b.rl.Mutex(key, min(11*time.Second)),
			"WithMinHold is 2h0m0s: must be at most 1h0m0s":   guarded.Mutex(key, min(2*time.Hour)),
			"WithMinHold is for exclusive locks":              b.rl.Mutex(key, min(time.Second)).Shared(),
			"lock \"p\": WithMinHold is for exclusive locks":  b.rl.Semaphore("p", 2, min(time.Second)),
		} {
			_, err := m.TryAcquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrInvalid, text)
			assert.ErrorContains(b, err, text)
		}
		assert.Equal(b, asked, b.cluster.Commands())

		for rl, d := range map[*redlock.Redlock]time.Duration{
			b.another(&redlock.Options{NoRestartGuard: true}): time.Hour, b.rl: 10 * time.Second,
		} {
			lock, err := rl.Mutex("fine", min(d)).TryAcquire(b.Context())
			require.NoError(b, err)
			assert.Positive(b, lock.Validity())
			takeAway(b, b.cluster, "fine")
			_ = lock.Release(b.Context())
			synctest.Wait()
		}
	})
}

// isFreeOf asserts that nothing of the lock is on the nodes, and nothing that it left.
func (b *bed) isFreeOf(lock *redlock.Lock) {
	b.Helper()
	synctest.Wait()
	for _, h := range b.cluster.Holders(key) {
		assert.NotContains(b, h, lock.Token())
	}
}

// outages are ways in which nodes are away, and how each ends.
var outages = map[string]struct{ begin, end func(*redlocktest.Node) }{
	"hung":     {hang, resume},
	"down":     {stop, func(n *redlocktest.Node) { n.Restart(redlocktest.KeepKeys) }},
	"cut off":  {func(n *redlocktest.Node) { n.Partition(redlocktest.Refuse) }, (*redlocktest.Node).Heal},
	"silent":   {func(n *redlocktest.Node) { n.Partition(redlocktest.DropRequests) }, (*redlocktest.Node).Heal},
	"failing":  {answers("LOADING Redis is loading the dataset in memory"), answers("")},
	"answered": {func(n *redlocktest.Node) { n.Partition(redlocktest.DropReplies) }, (*redlocktest.Node).Heal},
}

var allFive = []int{0, 1, 2, 3, 4}

// Row 110: the release of an outage is sent when that is over, like any other.
func TestMinHoldEndsInTimeAfterAnOutage(t *testing.T) {
	const lease = 20 * time.Second
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 5, &redlock.Options{NoRestartGuard: true}, func(b *bed) {
				releaseInOutage := func(lock *redlock.Lock) {
					b.each(allFive, outage.begin)
					require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNoQuorum)
					b.pass(time.Second)
					b.each(allFive, outage.end)
					b.pass(time.Second)
				}
				b.cycle()
				lock := b.lock(redlock.WithTTL(lease), redlock.WithMinHold(100*time.Millisecond))
				releaseInOutage(lock)
				b.on(0)

				lock = b.lock(redlock.WithTTL(lease), redlock.WithMinHold(5*time.Second))
				granted := time.Now()
				releaseInOutage(lock)
				b.pass(time.Until(granted.Add(5*time.Second - time.Millisecond)))
				b.on(5)
				require.ErrorIs(b, b.try(), redlock.ErrHeld)
				b.pass(3 * 100 * time.Millisecond)
				if name == "hung" {
					b.on(5) // it has the release since before it hung, and carries it out as it is
					b.pass(time.Second)
				}
				b.on(0)
			})
		})
	}
}

// A waiter has it then, and not when the lease would have ended.
func TestWaiterForMinHoldInAnOutageHasItThen(t *testing.T) {
	inBubble(t, 5, &redlock.Options{NoRestartGuard: true}, func(b *bed) {
		lock := b.lock(redlock.WithTTL(time.Minute), redlock.WithMinHold(100*time.Millisecond))
		waiting := later(func() (*redlock.Lock, error) {
			return b.another(&redlock.Options{NoRestartGuard: true}).Mutex(key).Acquire(b.Context())
		})
		b.each(allFive, hang)
		require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNoQuorum)
		b.pass(time.Second)
		b.each(allFive, resume)
		resumed := time.Now()
		r := <-waiting
		require.NoError(b, r.err)
		assert.Less(b, r.at.Sub(resumed), 2*time.Second)
		require.NoError(b, r.lock.Release(b.Context()))
		b.on(0)
	})
}

// Row 110: a node that is slow, or overdue just then, keeps the lock no longer than the others.
func TestMinHoldEndsInTimeOnANodeThatIsLate(t *testing.T) {
	for name, late := range map[string]func(b *bed){
		"asked before": func(b *bed) { // so that the release waits behind what is overdue
			require.NoError(b, b.rl.Mutex("other").Do(b.Context(), nothing))
			b.pass(2 * nodeTimeout)
		},
		"asked by the release": func(*bed) {},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				b.cycle()
				lock := b.lock(redlock.WithTTL(time.Minute), redlock.WithMinHold(5*time.Second))
				granted := time.Now()
				b.each([]int{4}, hang)
				late(b)
				require.NoError(b, lock.Release(b.Context()))
				b.pass(3 * time.Second)
				b.each([]int{4}, resume)
				b.pass(time.Until(granted.Add(5*time.Second - time.Millisecond)))
				b.on(5)
				b.pass(60 * time.Millisecond)
				b.on(0)
			})
		})
	}
}

// A job that is over, closes and exits leaves no node with the lease.
func TestCloseTellsAllNodesForHowLongALockIsKept(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		b.cycle()
		rl := b.another(nil)
		require.NoError(b, rl.Mutex("other").Do(b.Context(), nothing))
		lock, err := rl.Mutex(key, redlock.WithTTL(time.Minute), redlock.WithMinHold(5*time.Second)).TryAcquire(b.Context())
		require.NoError(b, err)
		granted := time.Now()
		synctest.Wait()
		b.each([]int{3, 4}, func(n *redlocktest.Node) { n.Delay(nodeTimeout / 16) })
		// Behind this, so that it is not even sent when Release returns.
		other, err := rl.Mutex("other").TryAcquire(b.Context())
		require.NoError(b, err)
		synctest.Wait() // it has left for the slow nodes
		require.NoError(b, lock.Release(b.Context()))
		require.NoError(b, other.Release(b.Context()))
		require.NoError(b, rl.Close())
		b.each([]int{3, 4}, func(n *redlocktest.Node) { n.Delay(0) })
		b.on(5)
		for _, left := range b.cluster.TTLs(key) {
			assert.LessOrEqual(b, left, 5*time.Second+60*time.Millisecond)
		}
		b.pass(time.Until(granted.Add(5*time.Second - time.Millisecond)))
		b.on(5)
		b.pass(2 * nodeTimeout)
		b.on(0)
	})
}

func nothing(context.Context, *redlock.Lock) error { return nil }

// A node that never had the lock does not keep it either, so it is none of the majority.
func TestMinHoldIsConfirmedByNodesThatHaveTheLock(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		b.cycle()
		b.each([]int{3, 4}, func(n *redlocktest.Node) { n.Delay(nodeTimeout / 4) })
		other, err := b.rl.Mutex("other").TryAcquire(b.Context()) // and what follows waits behind it
		require.NoError(b, err)
		synctest.Wait() // that has left for the slow nodes
		lock, err := b.rl.Mutex(key, redlock.WithMinHold(5*time.Second)).TryAcquire(b.Context())
		require.NoError(b, err)
		b.each([]int{1}, hang)
		require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNoQuorum, "two nodes have confirmed it")
		b.each([]int{1}, resume)
		require.NoError(b, other.Release(b.Context()))
		b.pass(time.Second)
		b.on(3)
		b.pass(5 * time.Second)
		b.on(0)
	})
}
