package promises_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

func TestExtendMovesTheEnd(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock(redlock.WithTTL(20 * time.Second))
		b.pass(4 * time.Second)
		b.takes(0, func() { require.NoError(b, lock.Extend(b.Context(), 20*time.Second)) })
		assert.Equal(b, 20*time.Second-202*time.Millisecond, lock.Validity())
		synctest.Wait()
		for _, left := range b.cluster.TTLs(key) {
			assert.Equal(b, 20*time.Second, left)
		}
		b.pass(17 * time.Second)
		require.ErrorIs(b, b.try(), redlock.ErrHeld)
	})
}

// R7: keys last from when they were extended, which may be long before a slow quorum has
// said so.
func TestExtendCountsFromTheCall(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock(redlock.WithTTL(20 * time.Second))
		require.NoError(b, lock.Extend(b.Context(), ttl)) // the script is known
		synctest.Wait()
		for _, n := range b.cluster.Nodes() {
			n.DelayCommand(evalsha, 1, 100*time.Millisecond)
		}
		b.takes(100*time.Millisecond, func() { require.NoError(b, lock.Extend(b.Context(), 20*time.Second)) })
		assert.Equal(b, 20*time.Second-202*time.Millisecond-100*time.Millisecond, lock.Validity())
	})
}

// R9: neither the promise nor a key ever gets shorter.
func TestExtendNeverShortens(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		until := lock.Until()
		require.NoError(b, lock.Extend(b.Context(), time.Second))
		assert.Equal(b, until, lock.Until())
		synctest.Wait()
		assert.Equal(b, ttl, b.cluster.TTLs(key)[0])
	})
}

// Scenario 14: a shorter extend that lands late, after its connection was given up and
// a longer one was promised, does not cut it.
func TestLateExtendDoesNotCut(t *testing.T) {
	inBubble(t, 3, &redlock.Options{RestartGuard: time.Minute}, func(b *bed) {
		lock := b.lock(redlock.WithTTL(time.Second))
		require.NoError(b, lock.Extend(b.Context(), time.Second)) // the script is known
		synctest.Wait()
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.DelayCommand(evalsha, 1, 500*time.Millisecond) })
		require.ErrorIs(b, lock.Extend(b.Context(), 100*time.Millisecond), redlock.ErrNoQuorum)
		assert.NoError(b, lock.Context().Err(), "a failure is no loss")
		b.pass(200 * time.Millisecond) // given up after 101ms
		require.NoError(b, lock.Extend(b.Context(), time.Minute))
		b.pass(time.Second)
		for _, left := range b.cluster.TTLs(key) {
			assert.Equal(b, 59*time.Second, left)
		}
	})
}

// The claim of a waiter waits in the lane of the arbiter, and the extend of its lock goes ahead of it.
func TestClaimBehindAnExtendCutsNothing(t *testing.T) {
	for _, opts := range [][]redlock.LockOption{nil, {redlock.WithFencing()}} {
		guarded := &redlock.Options{RestartGuard: time.Minute}
		inBubble(t, 3, guarded, func(b *bed) {
			m, others := b.rl.Mutex(key, opts...), b.another(guarded).Mutex(key, opts...)
			holder, err := others.TryAcquire(b.Context())
			require.NoError(b, err)
			require.NoError(b, holder.Extend(b.Context(), ttl), "nodes know the script")
			waiter := later(func() (*redlock.Lock, error) { return m.Acquire(b.Context()) })
			order := nodeOrder(key, b.rl.Nodes())
			b.cluster.Node(order[0]).Delay(time.Millisecond) // the others are released first
			b.cluster.Node(order[0]).DelayCommand("SET", 1, nodeTimeout/2)
			_, err = b.rl.Mutex("beside").TryAcquire(b.Context())
			require.NoError(b, err)
			require.NoError(b, holder.Release(b.Context()))
			lock := (<-waiter).lock
			b.cluster.Node(order[2]).Partition(redlocktest.DropRequests)
			require.NoError(b, lock.Extend(b.Context(), time.Minute))
			b.pass(ttl)
			b.cluster.Node(order[2]).Heal()
			b.pass(time.Second)
			_, err = others.TryAcquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrHeld)
			assert.Greater(b, lock.Validity(), ttl)
		})
	}
}

// The SET of a lock may still wait for its turn at a node when the lock is extended: a node that was never asked to hold
// it has not lost it.
func TestExtendIsBehindTheSetOfItsLock(t *testing.T) {
	for name, acquire := range map[string]func(b *bed) (*redlock.Lock, error){
		"exclusive": func(b *bed) (*redlock.Lock, error) { return b.rl.Mutex(key).TryAcquire(b.Context()) },
		"fenced": func(b *bed) (*redlock.Lock, error) {
			return b.rl.Mutex(key, redlock.WithFencing()).TryAcquire(b.Context())
		},
		"shared": func(b *bed) (*redlock.Lock, error) { return b.rl.Mutex(key).Shared().TryAcquire(b.Context()) },
		"permit": func(b *bed) (*redlock.Lock, error) { return b.rl.Semaphore(key, 2).TryAcquire(b.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				for range 2 { // nodes are connected and know the scripts
					lock, err := acquire(b)
					require.NoError(b, err)
					require.NoError(b, lock.Extend(b.Context(), ttl))
					require.NoError(b, lock.Release(b.Context()))
					b.pass(time.Second)
				}
				b.cluster.Node(0).DelayCommand("SET", 1, 60*time.Millisecond)
				beside, err := b.rl.Mutex("beside").TryAcquire(b.Context())
				require.NoError(b, err)
				lock, err := acquire(b)
				require.NoError(b, err)
				synctest.Wait()
				b.cluster.Node(2).Redis().FlushAll()
				require.NoError(b, lock.Extend(b.Context(), ttl))
				b.pass(time.Second)
				assert.NoError(b, lock.Context().Err())
				for i, left := range b.cluster.TTLs(key) {
					assert.Positive(b, left, "node %d", i)
				}
				require.NoError(b, lock.Release(b.Context()))
				require.NoError(b, beside.Release(b.Context()))
			})
		})
	}
}

// Scenario 48.
func TestExtendGivesBackALostTTL(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithTTL(time.Minute))
		for _, n := range b.cluster.Nodes() {
			n.Set(key, n.Get(key), 0)
		}
		require.NoError(b, lock.Extend(b.Context(), time.Minute))
		synctest.Wait()
		assert.Equal(b, []time.Duration{time.Minute, time.Minute, time.Minute}, b.cluster.TTLs(key))
	})
}

// Scenario 13 and R7: after Until it is a loss, however many keys are left.
func TestExtendAfterTheEndIsALoss(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		for _, n := range b.cluster.Nodes() {
			n.Set(key, n.Get(key), time.Hour)
		}
		b.pass(valid)
		b.cluster.ResetCommands()
		err := lock.Extend(b.Context(), ttl)
		assert.ErrorIs(b, err, redlock.ErrLost)
		assert.ErrorIs(b, err, redlock.ErrExpired)
		assert.Zero(b, b.cluster.Commands(), "nobody needs to be asked")
		err = lock.Extend(b.Context(), ttl)
		assert.ErrorIs(b, err, redlock.ErrLost, "and stays lost")
		require.NoError(b, lock.Release(b.Context()), "what is left can be given back")
		b.on(0)
	})
}

// Scenario 17: decided too late is a loss too.
func TestExtendThatIsConfirmedTooLateIsALoss(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		require.NoError(b, lock.Extend(b.Context(), ttl)) // the script is known
		b.pass(valid - 50*time.Millisecond)
		b.each([]int{0, 1}, func(n *redlocktest.Node) { n.Delay(25 * time.Millisecond) })
		err := lock.Extend(b.Context(), ttl)
		require.ErrorIs(b, err, redlock.ErrExpired)
		require.ErrorIs(b, err, redlock.ErrLost)
		b.quorumError(err)
		assert.LessOrEqual(b, lock.Validity(), time.Duration(0))
		require.NoError(b, lock.Release(b.Context()))
	})
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		require.NoError(b, lock.Extend(b.Context(), ttl))
		b.pass(valid - 51*time.Millisecond)
		b.each([]int{0, 1}, func(n *redlocktest.Node) { n.Delay(25 * time.Millisecond) })
		require.NoError(b, lock.Extend(b.Context(), ttl), "a millisecond earlier is not")
	})
}

// Scenario 38: below a quorum it is no success; lost as soon as the others rule it out.
func TestExtendNeedsAQuorumThatKeptTheKey(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock()
		until := lock.Until()
		b.each([]int{0, 1, 2}, hang)
		err := lock.Extend(b.Context(), ttl)
		require.ErrorIs(b, err, redlock.ErrNoQuorum)
		require.NotErrorIs(b, err, redlock.ErrLost)
		assert.Equal(b, until, lock.Until())
		b.each([]int{0, 1, 2}, resume)
		b.pass(time.Second)
		require.NoError(b, lock.Extend(b.Context(), ttl), "held until then, so it can be tried again")
		synctest.Wait()

		b.each([]int{0, 1, 2}, gone)
		err = lock.Extend(b.Context(), ttl)
		require.ErrorIs(b, err, redlock.ErrNotHeld)
		require.ErrorIs(b, err, redlock.ErrLost)
		require.NotErrorIs(b, err, redlock.ErrExpired)
		assert.LessOrEqual(b, lock.Validity(), time.Duration(0))
		b.on(2)
		require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNotHeld)
		b.on(0)
	})
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock()
		b.each([]int{0, 1, 2}, taken)
		err := lock.Extend(b.Context(), ttl)
		require.ErrorIs(b, err, redlock.ErrNotHeld)
		assert.ErrorContains(b, err, `found "somebody@else"`)
		assert.Equal(b, "somebody@else", b.cluster.Node(0).Get(key))
		assert.Equal(b, time.Hour, b.cluster.TTLs(key)[0], "I3: nothing of others is touched")
	})
}

// A key that was gone was free for others, so it must not count; it is put back after
// a success, and released like all others.
func TestExtendRepairsNodesThatForgot(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock(redlock.WithTTL(time.Minute))
		b.pass(2 * time.Second) // no connection is kept out of its pool, so all are checked
		b.each([]int{0, 1}, func(n *redlocktest.Node) { n.Restart(redlocktest.LoseKeys) })
		b.cluster.ResetCommands()
		require.NoError(b, lock.Extend(b.Context(), time.Minute))
		b.on(5)
		assert.Equal(b, time.Minute, b.cluster.TTLs(key)[0])
		assert.Equal(b, 2, b.cluster.Commands("SET"), "only where it is missing")
		assert.Equal(b, b.cluster.Holders(key)[4], b.cluster.Holders(key)[0])

		b.pass(2 * time.Second)
		b.each([]int{2, 3}, func(n *redlocktest.Node) { n.Restart(redlocktest.LoseKeys) })
		require.NoError(b, lock.Extend(b.Context(), time.Minute), "the repaired ones count from the next on")
		b.on(5)
		require.NoError(b, lock.Release(b.Context()))
		b.on(0)
	})
}

// An extend does not shorten what an earlier lease promised, neither where the key was nor where it is put back.
func TestShortExtendRepairsForWhatTheHolderReliesOn(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		until := lock.Validity()
		b.each([]int{0}, gone)
		require.NoError(b, lock.Extend(b.Context(), ttl/10))
		synctest.Wait()
		require.Equal(b, until, lock.Validity(), "no time has passed")
		assert.GreaterOrEqual(b, b.cluster.TTLs(key)[0], until)
	})
}

func TestFailedExtendRepairsNothing(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock()
		b.each([]int{0, 1, 2}, gone)
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrNotHeld)
		b.on(2)
		b.pass(time.Minute)
		b.on(0)
	})
}

// A node that says so only after the extend succeeded is repaired as well.
func TestExtendRepairsAfterALateAnswer(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		require.NoError(b, lock.Extend(b.Context(), ttl))
		synctest.Wait()
		b.cluster.Node(0).FlushAll()
		b.cluster.Node(0).Delay(time.Second)
		b.takes(0, func() { require.NoError(b, lock.Extend(b.Context(), ttl)) })
		b.on(2)
		b.pass(6 * time.Second)
		b.on(3)
		require.NoError(b, lock.Release(b.Context()))
		b.pass(5 * time.Second)
		b.on(0)
	})
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		require.NoError(b, lock.Extend(b.Context(), ttl))
		synctest.Wait()
		b.cluster.Node(0).FlushAll()
		b.cluster.Node(0).Delay(time.Second)
		require.NoError(b, lock.Extend(b.Context(), ttl))
		require.NoError(b, lock.Release(b.Context()))
		b.pass(time.Minute)
		b.on(0) // no repair after a release
		assert.Equal(b, 1, b.cluster.Node(0).Commands("SET"))
	})
}

// A repair counts as a SET in flight: its release follows it, wherever it is stuck.
func TestReleaseTakesBackARepairInFlight(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		require.NoError(b, lock.Extend(b.Context(), ttl))
		synctest.Wait()
		b.cluster.Node(0).FlushAll()
		b.cluster.Node(0).DelayCommand("SET", 1, time.Second)
		require.NoError(b, lock.Extend(b.Context(), ttl))
		b.takes(0, func() { require.NoError(b, lock.Release(b.Context())) })
		b.pass(time.Minute)
		b.on(0)
	})
	for range 20 { // the release may overtake it: that is up to the scheduler
		inBubble(t, 3, nil, func(b *bed) { // and its reply may be lost
			lock := b.lock()
			b.cluster.Node(0).FlushAll()
			b.cluster.Node(0).DropReply("SET", 1)
			require.NoError(b, lock.Extend(b.Context(), ttl))
			require.NoError(b, lock.Release(b.Context()))
			b.on(0)
		})
	}
}

// Scenario 27: an extend that lands after the release, or after the next lock, creates
// and prolongs nothing.
func TestLateExtendAfterReleaseDoesNothing(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithTTL(time.Second))
		require.NoError(b, lock.Extend(b.Context(), time.Second))
		synctest.Wait()
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.DelayCommand(evalsha, 1, 800*time.Millisecond) })
		ctx, cancel := context.WithTimeout(b.Context(), time.Millisecond)
		defer cancel()
		require.ErrorIs(b, lock.Extend(ctx, 100*time.Millisecond), context.DeadlineExceeded)
		b.pass(200 * time.Millisecond) // given up; the next goes by another connection
		require.NoError(b, lock.Release(b.Context()))
		b.on(0)
		next := b.lock(redlock.WithTTL(time.Second))
		b.pass(900 * time.Millisecond)
		assert.Equal(b, 100*time.Millisecond, b.cluster.TTLs(key)[0], "the next one's, as it was")
		assert.Greater(b, next.Validity(), time.Duration(0))
	})
}

func TestExtendAfterReleaseAndWithADeadContext(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		b.each([]int{0, 1, 2}, hang)
		ctx, cancel := context.WithTimeout(b.Context(), 7*time.Millisecond)
		defer cancel()
		until := lock.Until()
		b.takes(7*time.Millisecond, func() {
			err := lock.Extend(ctx, ttl)
			require.ErrorIs(b, err, context.DeadlineExceeded)
			require.NotErrorIs(b, err, redlock.ErrLost)
		})
		assert.Equal(b, until, lock.Until())
		b.each([]int{0, 1, 2}, resume)
		require.NoError(b, lock.Release(b.Context()))
		synctest.Wait()
		b.cluster.ResetCommands()
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrReleased)
		assert.Zero(b, b.cluster.Commands())
	})
}

// Released while an extend is under way: the extend says so and repairs nothing.
func TestReleaseDuringExtend(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		for _, n := range b.cluster.Nodes() {
			n.Delay(10 * time.Millisecond)
		}
		b.cluster.Node(2).FlushAll()
		extended := later(func() (*redlock.Lock, error) { return nil, lock.Extend(b.Context(), ttl) })
		require.NoError(b, lock.Release(b.Context()))
		require.ErrorIs(b, (<-extended).err, redlock.ErrReleased)
		b.pass(time.Second)
		b.on(0)
	})
}

// Extends at the same time all succeed, and the longest counts.
func TestExtendsAtTheSameTime(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithTTL(20 * time.Second))
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() { assert.NoError(b, lock.Extend(b.Context(), time.Duration(20-i)*time.Second)) })
		}
		all.Wait()
		assert.Equal(b, 20*time.Second-202*time.Millisecond, lock.Validity())
	})
}

// A SET of the acquire's arrives behind an extend that found nothing there. What that extend still hears is older
// than the next one, which a majority confirmed.
func TestExtendThatALaterOneOvertookIsNoLoss(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		require.NoError(b, lock.Extend(b.Context(), ttl), "nodes know the script")
		synctest.Wait()
		value := b.cluster.Node(1).Get(key)
		b.cluster.Node(1).Del(key)
		b.cluster.Node(2).Del(key)
		b.cluster.Node(2).DelayCommand(evalsha, 1, nodeTimeout/2)
		first := later(func() (*redlock.Lock, error) { return lock, lock.Extend(b.Context(), ttl) })
		b.pass(nodeTimeout / 4)
		b.cluster.Node(1).Set(key, value, ttl)
		require.NoError(b, lock.Extend(b.Context(), ttl))
		err := (<-first).err
		assert.ErrorIs(b, err, redlock.ErrNoQuorum)
		assert.NotErrorIs(b, err, redlock.ErrLost)
		assert.NoError(b, lock.Context().Err())
		b.pass(time.Second)
		b.on(3)
	})
}

// Scenario 5: when the wall clock is set back, monotonic time decides, and extends go
// on moving the end.
func TestExtendAfterTheWallClockWasSetBack(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		rl, clock := b.withClock()
		lock, err := rl.Mutex(key).TryAcquire(b.Context())
		require.NoError(b, err)
		clock.Advance(4 * time.Second)
		clock.SetWall(-time.Hour)
		assert.Equal(b, valid-4*time.Second, lock.Validity())
		require.NoError(b, lock.Extend(b.Context(), ttl))
		assert.Equal(b, valid, lock.Validity())
		clock.Advance(9 * time.Second)
		require.NoError(b, lock.Extend(b.Context(), ttl), "past the first end")
		clock.SetWall(-time.Minute)
		require.NoError(b, lock.Extend(b.Context(), 10*time.Millisecond))
		assert.Equal(b, valid, lock.Validity(), "still never shorter")
		clock.SetWall(time.Hour)
		assert.Less(b, lock.Validity(), time.Duration(0), "forward: an early end")
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrExpired)
	})
}

// Scenario 91: a node says after Until that it lost the key. What would be put back there
// is nobody's, although nobody has noticed yet that the lock is over.
func TestNoRepairBeginsAfterUntil(t *testing.T) {
	for name, answered := range map[string]time.Duration{"before Until": valid - time.Second, "after Until": valid + 50*time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				lock := b.lock()
				require.NoError(b, lock.Extend(b.Context(), ttl))
				synctest.Wait()
				b.cluster.Node(0).FlushAll()
				b.cluster.Node(0).Hang()
				b.cluster.ResetCommands()
				require.NoError(b, lock.Extend(b.Context(), ttl))
				b.pass(answered)
				b.cluster.Node(0).Resume()
				synctest.Wait()
				sent := 0
				if name == "before Until" {
					sent = 1
				}
				assert.Equal(b, sent, b.cluster.Node(0).Commands("SET"))
				b.each([]int{0}, (*redlocktest.Node).FlushAll)
			})
		})
	}
}

// A node that forgot a lease is kept from voting for the lock's TTL or RestartGuard, so no lease
// may be made longer than that.
func TestNoLeaseOutlivesTheGuard(t *testing.T) {
	const second = time.Second
	for _, c := range []struct {
		name                string
		guard, ttl, longest time.Duration
		says                []string
	}{
		{"the TTL", 0, 2 * second, 2 * second, []string{"TTL is 2s", "RestartGuard is not set", "at most 2s"}},
		{"RestartGuard above the TTL", 30 * second, 2 * second, 30 * second, []string{"TTL is 2s", "RestartGuard is 30s", "at most 30s"}},
		{"RestartGuard below the TTL", second, 20 * second, 20 * second, []string{"TTL is 20s", "RestartGuard is 1s", "at most 20s"}},
		{"no guard", -1, 2 * second, 24 * time.Hour, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, 3, &redlock.Options{TTL: c.ttl, RestartGuard: max(c.guard, 0), NoRestartGuard: c.guard < 0}, func(b *bed) {
				lock := b.lock()
				if c.says != nil {
					until, asked := lock.Until(), b.cluster.Commands()
					err := lock.Extend(b.Context(), c.longest+1)
					require.ErrorIs(b, err, redlock.ErrInvalid)
					for _, text := range append(c.says, "ttl is "+(c.longest+1).String(), "WithTTL") {
						assert.ErrorContains(b, err, text)
					}
					assert.Equal(b, asked, b.cluster.Commands())
					assert.Equal(b, until, lock.Until())
				}
				require.NoError(b, lock.Extend(b.Context(), c.longest))
				synctest.Wait()
				for _, left := range b.cluster.TTLs(key) {
					assert.Equal(b, c.longest, left)
				}
			})
		})
	}
}

// A guard that is set, and shorter than the lease, does not let a node vote that forgot it.
func TestShortGuardLastsAsLongAsTheLease(t *testing.T) {
	o := &redlock.Options{TTL: 10 * time.Second, RestartGuard: 10 * time.Millisecond}
	inBubble(t, 3, o, func(b *bed) {
		other := b.another(o)
		for _, rl := range []*redlock.Redlock{b.rl, other} {
			lock, err := rl.Mutex("warm").TryAcquire(b.Context())
			require.NoError(b, err)
			require.NoError(b, lock.Release(b.Context()))
		}
		time.Sleep(o.TTL)
		lock := b.lock()
		synctest.Wait()
		b.cluster.Node(2).Del(key) // as if it had been out of reach
		b.cluster.Node(1).Restart(redlocktest.LoseKeys)
		time.Sleep(time.Second)
		_, err := other.Mutex(key).TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrNoQuorum)
		assert.Equal(b, redlock.VoteBarred, b.quorumError(err).Outcomes[1].Vote)
		require.Positive(b, lock.Validity())
		time.Sleep(o.TTL)
		_, err = other.Mutex(key).TryAcquire(b.Context())
		require.NoError(b, err)
	})
}

// The limit is that of the lock's own Mutex, whatever Options.TTL is.
func TestLimitOfALeaseIsThatOfItsMutex(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		long, short := b.rl.Mutex("long", redlock.WithTTL(time.Minute)), b.rl.Mutex("short", redlock.WithTTL(time.Second))
		for m, longest := range map[*redlock.Mutex]time.Duration{long: time.Minute, short: time.Second} {
			lock, err := m.TryAcquire(b.Context())
			require.NoError(b, err)
			require.ErrorIs(b, lock.Extend(b.Context(), longest+1), redlock.ErrInvalid)
			require.NoError(b, lock.Extend(b.Context(), longest))
			require.NoError(b, lock.Release(b.Context()))
		}
		lock, err := short.TryAcquire(b.Context())
		require.NoError(b, err)
		synctest.Wait()
		adopted, err := b.rl.Mutex("short", redlock.WithTTL(time.Minute)).Adopt(b.Context(), lock.Token())
		require.NoError(b, err)
		require.NoError(b, adopted.Extend(b.Context(), time.Minute), "who adopts it has terms of its own")
	})
}

// A holder whose lease is longer than its TTL and the guard of the one that waits allow: clients of the
// key use different TTLs, and the one that waits says so, once per key.
func TestLongerLeaseOfAHolderIsTold(t *testing.T) {
	waits := func(b *bed, m locker, d time.Duration) {
		b.Helper()
		ctx, cancel := context.WithTimeout(b.Context(), d)
		defer cancel()
		_, err := m.Acquire(ctx)
		require.ErrorIs(b, err, context.DeadlineExceeded)
	}
	for name, ask := range map[string]func(*redlock.Redlock, string) locker{
		"alone":  func(rl *redlock.Redlock, key string) locker { return rl.Mutex(key) },
		"shared": func(rl *redlock.Redlock, key string) locker { return rl.Mutex(key).Shared() },
	} {
		t.Run(name, func(t *testing.T) {
			hooks, said := told()
			inBubble(t, 5, nil, func(b *bed) {
				rl := b.another(&redlock.Options{Hooks: hooks})
				for _, key := range []string{"a", "b"} {
					_, err := b.another(nil).Mutex(key, redlock.WithTTL(time.Minute)).TryAcquire(b.Context())
					require.NoError(b, err)
				}
				for range 3 {
					waits(b, ask(rl, "a"), 3*time.Second)
				}
				synctest.Wait()
				require.Len(b, said(), 1)
				i := said()[0]
				assert.Equal(b, "a", i.Key)
				assert.Empty(b, i.Node)
				assert.Equal(b, redlock.DegradedTTL, i.Kind)
				assert.Contains(b, i.Lacks, "one TTL for all clients of the key")
				for _, text := range []string{"the TTL is 10s", "RestartGuard is not set", "goes on for 5"} {
					assert.ErrorContains(b, i.Err, text)
				}
				waits(b, ask(rl, "b"), 3*time.Second)
				synctest.Wait()
				require.Len(b, said(), 2, "once per key")
			})
		})
	}
}

// Nothing is told where the lease is as long as the TTL or RestartGuard, where there is no guard, of
// what WithMinHold keeps, and of a node whose clock was set back, which keeps each key for longer.
func TestLeaseThatIsCoveredIsNotTold(t *testing.T) {
	minute, second := redlock.WithTTL(time.Minute), redlock.WithTTL(time.Second)
	for name, c := range map[string]struct {
		holder, waiter []redlock.LockOption
		opts           redlock.Options
		clock          time.Duration
	}{
		"the same TTL":              {},
		"a longer TTL of its own":   {waiter: []redlock.LockOption{minute}},
		"covered by RestartGuard":   {holder: []redlock.LockOption{minute}, opts: redlock.Options{RestartGuard: time.Minute}},
		"no guard":                  {holder: []redlock.LockOption{minute}, opts: redlock.Options{NoRestartGuard: true}},
		"WithMinHold":               {holder: []redlock.LockOption{redlock.WithMinHold(ttl)}},
		"WithMinHold, a short TTL":  {holder: []redlock.LockOption{redlock.WithMinHold(2 * time.Second), second}, waiter: []redlock.LockOption{second}},
		"a clock that was set back": {clock: -time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			hooks, said := told()
			inBubble(t, 3, nil, func(b *bed) {
				c.opts.Hooks = hooks
				rl := b.another(&c.opts)
				lock := b.lock(c.holder...)
				if strings.HasPrefix(name, "WithMinHold") {
					require.NoError(b, lock.Release(b.Context()))
				}
				if c.clock != 0 {
					b.cluster.Node(0).ShiftClock(c.clock)
				}
				ctx, cancel := context.WithTimeout(b.Context(), 1500*time.Millisecond)
				defer cancel()
				_, err := rl.Mutex(key, c.waiter...).Acquire(ctx)
				require.ErrorIs(b, err, context.DeadlineExceeded)
				synctest.Wait()
				assert.Empty(b, said())
			})
		})
	}
}
