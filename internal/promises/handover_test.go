package promises_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// longLeases lets locks of the usual TTL be handed over for a minute.
var longLeases = &redlock.Options{RestartGuard: time.Minute}

func TestLockIsHandedOverToAnotherProcess(t *testing.T) {
	inBubble(t, 5, longLeases, func(b *bed) {
		other := b.another(nil)
		lock := b.lock(redlock.WithRenewal(), redlock.WithFencing())
		ctx := lock.Context()
		token, err := lock.HandOver(b.Context(), time.Minute)
		require.NoError(b, err)
		assert.NotEqual(b, lock.Token(), token)
		synctest.Wait()
		for _, h := range b.cluster.Holders(key) {
			assert.True(b, strings.HasPrefix(h, token+"@"), "the ticket's, with the owner's label: %s", h)
		}

		assert.LessOrEqual(b, lock.Validity(), time.Duration(0))
		<-ctx.Done()
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrReleased)
		assert.NotErrorIs(b, context.Cause(ctx), redlock.ErrLost)
		require.ErrorIs(b, lock.Extend(b.Context(), time.Minute), redlock.ErrReleased)
		_, err = lock.HandOver(b.Context(), time.Minute)
		require.ErrorIs(b, err, redlock.ErrReleased)
		require.NoError(b, lock.Release(b.Context()), "ends nothing")
		b.pass(50 * time.Second)
		b.on(5) // for a minute, and nobody renews it

		next, err := other.Mutex(key, redlock.WithFencing(), redlock.WithRenewal()).Adopt(b.Context(), token)
		require.NoError(b, err)
		assert.NotEqual(b, token, next.Token())
		assert.Greater(b, next.Fence(), lock.Fence())
		assert.Equal(b, valid, next.Validity())
		b.pass(5 * time.Minute)
		assert.Positive(b, next.Validity(), "renewed")
		require.ErrorIs(b, b.try(), redlock.ErrHeld)
		require.NoError(b, next.Release(b.Context()))
		b.on(0)
	})
}

func TestHandOverThatNobodyAdoptsEndsByItsLease(t *testing.T) {
	inBubble(t, 3, longLeases, func(b *bed) {
		_, err := b.lock(redlock.WithRenewal()).HandOver(b.Context(), time.Minute)
		require.NoError(b, err)
		start := time.Now()
		lock, err := b.another(nil).Mutex(key).Acquire(b.Context())
		require.NoError(b, err)
		assert.InDelta(b, time.Minute, time.Since(start), float64(time.Second))
		require.NoError(b, lock.Release(b.Context()))
	})
}

// Waiters wait on while the lock changes hands, and are served by the new holder's release.
func TestWaitersStayInLineAcrossAHandOver(t *testing.T) {
	inBubble(t, 5, longLeases, func(b *bed) {
		lock := b.lock()
		waiting := later(func() (*redlock.Lock, error) { return b.another(nil).Mutex(key).Acquire(b.Context()) })
		token, err := lock.HandOver(b.Context(), time.Minute)
		require.NoError(b, err)
		next, err := b.another(nil).Mutex(key).Adopt(b.Context(), token)
		require.NoError(b, err)
		b.pending(waiting)
		b.takes(0, func() {
			require.NoError(b, next.Release(b.Context()))
			r := <-waiting
			require.NoError(b, r.err)
			require.NoError(b, r.lock.Release(b.Context()))
		})
	})
}

// A node that reserved the lock for the holder, and refused its claim, moves that value to the ticket
// all the same, and has the holder's entry in its queue. The one behind it would wait for as long as a
// reservation lasts.
func TestHandOverLeavesNobodyInTheQueueOfANodeThatOnlyReserved(t *testing.T) {
	inBubble(t, 5, longLeases, func(b *bed) {
		all := []int{0, 1, 2, 3, 4}
		other := b.another(longLeases)
		wait := func() <-chan result {
			return later(func() (*redlock.Lock, error) {
				return other.Mutex(key, redlock.WithTTL(time.Minute)).Acquire(b.Context())
			})
		}
		first := b.lock(redlock.WithTTL(time.Minute))
		waiting := wait()
		require.NoError(b, first.Release(b.Context()))
		require.NoError(b, (<-waiting).lock.Release(b.Context())) // from now on the nodes have the scripts
		b.pass(2 * time.Second)

		first = b.lock(redlock.WithTTL(time.Minute))
		waiting = wait()
		queues := slices.DeleteFunc(slices.Clone(all), func(i int) bool { return !b.cluster.Node(i).Redis().Exists("{" + key + "}:line") })
		require.Len(b, queues, 1)
		arbiter := b.cluster.Node(queues[0])
		b.each(all, func(n *redlocktest.Node) { n.Delay(10 * time.Millisecond) })
		released := later(func() (*redlock.Lock, error) { return nil, first.Release(b.Context()) })
		b.pass(25 * time.Millisecond) // the notice is there, and the claim on its way
		arbiter.SetError("LOADING Redis is loading the dataset in memory")
		b.pass(50 * time.Millisecond)
		arbiter.SetError("")
		require.NoError(b, (<-released).err)
		r := <-waiting
		require.NoError(b, r.err)
		require.NotEqual(b, redlock.VoteGranted, r.lock.Outcomes()[queues[0]].Vote, "%v", r.lock.Outcomes())
		b.each(all, func(n *redlocktest.Node) { n.Delay(0) })

		behind := later(func() (*redlock.Lock, error) { return b.another(longLeases).Mutex(key).Acquire(b.Context()) })
		token, err := r.lock.HandOver(b.Context(), time.Minute)
		require.NoError(b, err)
		b.on(5)
		next, err := b.another(longLeases).Mutex(key).Adopt(b.Context(), token)
		require.NoError(b, err)
		b.pending(behind)
		b.takes(0, func() {
			require.NoError(b, next.Release(b.Context()))
			last := <-behind
			require.NoError(b, last.err)
			require.NoError(b, last.lock.Release(b.Context()))
		})
	})
}

// A process wrote its token down and was killed. It may be only paused: what it still sends
// has no effect.
func TestAdoptOfALockWhoseHolderIsGone(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock()
		next, err := b.another(nil).Mutex(key, redlock.WithTTL(time.Minute)).Adopt(b.Context(), lock.Token())
		require.NoError(b, err)
		synctest.Wait()
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrLost)
		require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNotHeld)
		synctest.Wait()
		b.on(5)
		for _, ttl := range b.cluster.TTLs(key) {
			assert.LessOrEqual(b, ttl, time.Minute)
		}
		assert.Positive(b, next.Validity())
		_, err = b.another(nil).Mutex(key).Adopt(b.Context(), lock.Token())
		require.ErrorIs(b, err, redlock.ErrNotHeld, "the token is good for one Adopt")
		b.on(5)
		require.NoError(b, next.Release(b.Context()))
		b.on(0)
	})
}

func TestAdoptOfWhatIsNotThere(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock()
		m := b.another(nil).Mutex(key)
		require.NoError(b, lock.Release(b.Context()))
		synctest.Wait()
		_, err := m.Adopt(b.Context(), lock.Token())
		require.ErrorIs(b, err, redlock.ErrNotHeld)
		assert.NotErrorIs(b, err, redlock.ErrHeld)
		assert.Equal(b, "adopt", b.quorumError(err).Op)
		b.on(0)

		next := b.lock()
		_, err = m.Adopt(b.Context(), lock.Token())
		require.ErrorIs(b, err, redlock.ErrNotHeld)
		assert.ErrorContains(b, err, next.Token()[:8], "who holds it")
		b.on(5)
		require.NoError(b, next.Release(b.Context()))
		b.on(0)

		b.each([]int{0, 1, 2, 3, 4}, list)
		_, err = m.Adopt(b.Context(), lock.Token())
		require.ErrorIs(b, err, redlock.ErrNotHeld)
		assert.ErrorContains(b, err, "WRONGTYPE")
	})
}

// Where a majority has the key no more, the others are given back, and the rest ends by its
// lease. Never do two have the lock.
func TestAdoptInTheMiddleOfAnOutage(t *testing.T) {
	for what, fault := range map[string]func(*redlocktest.Node){"hung": hang, "down": stop} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, 5, longLeases, func(b *bed) {
				token, err := b.lock().HandOver(b.Context(), time.Minute)
				require.NoError(b, err)
				synctest.Wait()
				b.each([]int{0, 1, 2}, fault)
				_, err = b.another(nil).Mutex(key).Adopt(b.Context(), token)
				require.ErrorIs(b, err, redlock.ErrNoQuorum)
				synctest.Wait()
				for i, h := range b.cluster.Holders(key)[3:] {
					if what == "down" && strings.HasPrefix(h, token) {
						continue // three refuse at once, and it was over before this one was asked
					}
					assert.Empty(b, h, "what changed hands on node %d is released", i+3)
				}
			})
		})
	}
}

// HandOver waits for a node that hangs, once, and nothing else waits for any.
func TestMinorityDoesNotKeepALockFromBeingHandedOver(t *testing.T) {
	for what, fault := range map[string]func(*redlocktest.Node){"hung": hang, "down": stop, "lost the key": gone} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, 5, longLeases, func(b *bed) {
				other := b.another(longLeases)
				l, err := other.Mutex("warm").TryAcquire(b.Context())
				require.NoError(b, err)
				require.NoError(b, l.Release(b.Context()))
				lock := b.lock(redlock.WithFencing())
				b.each([]int{1, 3}, fault)
				wait := time.Duration(0)
				if what == "hung" {
					wait = 200 * time.Millisecond // the timeout per node
				}
				for range 2 {
					var token string
					b.takes(wait, func() {
						token, err = lock.HandOver(b.Context(), time.Minute)
						require.NoError(b, err)
					})
					b.takes(0, func() {
						lock, err = other.Mutex(key, redlock.WithFencing()).Adopt(b.Context(), token)
						require.NoError(b, err)
					})
				}
				b.takes(0, func() { require.NoError(b, lock.Extend(b.Context(), ttl)) })
				b.takes(0, func() { require.NoError(b, lock.Release(b.Context())) })
				b.each([]int{1, 3}, resume)
				b.pass(3 * time.Minute)
				b.on(0)
			})
		})
	}
}

// Of two that adopt a lock at the same moment one gets it, or none, but never both.
func TestTwoAdoptAtTheSameMoment(t *testing.T) {
	inBubble(t, 5, longLeases, func(b *bed) {
		got := 0
		for range 20 {
			token, err := b.lock().HandOver(b.Context(), time.Minute)
			require.NoError(b, err)
			both := make(chan result, 2)
			for range 2 {
				rl := b.another(nil)
				go func() {
					l, err := rl.Mutex(key).Adopt(b.Context(), token)
					both <- result{lock: l, err: err}
				}()
			}
			var holders []*redlock.Lock
			for range 2 {
				if r := <-both; r.err == nil {
					holders = append(holders, r.lock)
				} else {
					assert.ErrorIs(b, r.err, redlock.ErrNotHeld)
				}
			}
			require.LessOrEqual(b, len(holders), 1)
			got += len(holders)
			for _, l := range holders {
				require.NoError(b, l.Release(b.Context()))
			}
			b.pass(2 * time.Minute)
			b.on(0)
		}
		assert.Positive(b, got)
	})
}

// A SET that may still land is nobody's after the hand-over, so it is taken back.
func TestHandOverTakesBackWhatMayLand(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		b.cluster.Node(2).Hang()
		lock, err := b.rl.Mutex(key, redlock.WithTTL(time.Hour)).TryAcquire(b.Context())
		require.NoError(b, err)
		token, err := lock.HandOver(b.Context(), time.Hour)
		require.NoError(b, err)
		next, err := b.another(nil).Mutex(key).Adopt(b.Context(), token)
		require.NoError(b, err)
		require.NoError(b, next.Release(b.Context()))
		b.pass(time.Second)
		b.cluster.Node(2).Resume()
		b.pass(time.Minute)
		b.on(0)
	})
}

// A hand-over that is under way when Close is called ends first, so that no node keeps a ticket that nobody has.
func TestCloseInTheMiddleOfAHandOver(t *testing.T) {
	inBubble(t, 3, longLeases, func(b *bed) {
		lock := b.lock(redlock.WithTTL(time.Hour / 2))
		b.each([]int{1, 2}, stop)
		b.cluster.Node(0).Delay(10 * time.Millisecond)
		over := later(func() (*redlock.Lock, error) { _, err := lock.HandOver(b.Context(), time.Hour/2); return nil, err })
		b.pass(5 * time.Millisecond)
		require.NoError(b, b.rl.Close())
		require.ErrorIs(b, (<-over).err, redlock.ErrLost)
		b.pass(time.Second)
		assert.Empty(b, b.cluster.Node(0).Get(key), "taken back")
	})
}

// Before a node is asked, nothing has changed.
func TestHandOverThatAsksNobodyLeavesTheHandle(t *testing.T) {
	inBubble(t, 3, longLeases, func(b *bed) {
		lock := b.lock(redlock.WithRenewal())
		_, err := lock.HandOver(canceled(), time.Minute)
		require.ErrorIs(b, err, errGaveUp)
		assert.NotErrorIs(b, err, redlock.ErrLost)
		b.pass(5 * time.Minute)
		assert.Positive(b, lock.Validity(), "renewed")
		require.NoError(b, lock.Release(b.Context()))
	})
}

// Where no majority has the ticket the lock is lost, and what reached a minority is taken back.
func TestHandOverWithoutAMajorityIsALoss(t *testing.T) {
	for what, c := range map[string]struct {
		fault func(*redlocktest.Node)
		want  error
		there int // keys that are left once the nodes can be reached
	}{
		"hung":         {hang, redlock.ErrNoQuorum, 0},
		"stopped":      {stop, redlock.ErrNoQuorum, 0},
		"lost the key": {gone, redlock.ErrNotHeld, 0},
		"another's":    {taken, redlock.ErrNotHeld, 3},
	} {
		t.Run(what, func(t *testing.T) {
			var told []string
			opts := *longLeases
			opts.Hooks = &redlock.Hooks{
				Lost: func(i redlock.LostInfo) {
					told = append(told, "lost")
					assert.ErrorIs(t, i.Err, redlock.ErrLost)
				},
				Released: func(i redlock.ReleaseInfo) {
					told = append(told, "released")
					assert.ErrorIs(t, i.Err, redlock.ErrLost)
					assert.Len(t, i.Outcomes, 5)
				},
				Extended: func(redlock.ExtendInfo) { told = append(told, "extended") },
			}
			inBubble(t, 5, &opts, func(b *bed) {
				lock := b.lock(redlock.WithTTL(time.Minute), redlock.WithFencing())
				ctx := lock.Context()
				b.each([]int{0, 2, 4}, c.fault)
				token, err := lock.HandOver(b.Context(), time.Minute)
				require.ErrorIs(b, err, redlock.ErrLost)
				require.ErrorIs(b, err, c.want)
				assert.Empty(b, token)
				assert.Equal(b, []string{"lost", "released"}, told)
				assert.Equal(b, "hand over", b.quorumError(err).Op)
				assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost, "it ends before HandOver returns")
				assert.LessOrEqual(b, lock.Validity(), time.Duration(0))
				assert.ErrorIs(b, lock.Extend(b.Context(), time.Minute), redlock.ErrLost)
				assert.Equal(b, err, lock.Release(b.Context()), "the hand-over was it")
				assert.Equal(b, []string{"lost", "released", "extended"}, told)
				synctest.Wait()
				for _, i := range []int{1, 3} {
					assert.Empty(b, b.cluster.Node(i).Get(key), "taken back")
				}
				b.each([]int{0, 2, 4}, func(n *redlocktest.Node) {
					if what == "stopped" {
						n.Restart(redlocktest.KeepKeys)
					}
					n.Resume()
				})
				b.pass(time.Second)
				b.on(c.there)
			})
		})
	}
}

// A waiter has the lock that is lost in this way as soon as its keys are gone.
func TestWaitersAreServedAfterAHandOverThatFails(t *testing.T) {
	inBubble(t, 5, longLeases, func(b *bed) {
		lock := b.lock(redlock.WithTTL(time.Minute))
		waiting := later(func() (*redlock.Lock, error) { return b.another(nil).Mutex(key).Acquire(b.Context()) })
		b.pending(waiting)
		b.each([]int{2, 3, 4}, gone)
		_, err := lock.HandOver(b.Context(), time.Minute)
		require.ErrorIs(b, err, redlock.ErrNotHeld)
		start := time.Now()
		r := <-waiting
		require.NoError(b, r.err)
		assert.Less(b, time.Since(start), 2*time.Second)
		require.NoError(b, r.lock.Release(b.Context()))
	})
}

// All that the former holder ever sent comes to every node once more, after the hand-over and
// after the Adopt.
func TestNothingOfTheFormerHolderChangesATicket(t *testing.T) {
	inBubble(t, 3, longLeases, func(b *bed) {
		b.cluster.Record(true)
		b.cluster.ResetCommands()
		lock := b.lock(redlock.WithFencing(), redlock.WithTTL(time.Hour/2))
		require.NoError(b, lock.Extend(b.Context(), time.Hour/2))
		token, err := lock.HandOver(b.Context(), time.Minute)
		require.NoError(b, err)
		synctest.Wait()
		sent := make([][]redlocktest.Command, 3)
		for i, n := range b.cluster.Nodes() {
			sent[i] = n.Log()
		}
		again := func() {
			for i := range sent {
				c := b.cluster.Client(i, nil)
				for _, cmd := range sent[i] {
					args := make([]any, len(cmd.Args))
					for j, a := range cmd.Args {
						args[j] = a
					}
					switch strings.ToUpper(cmd.Args[0]) {
					case "SET", "EVAL", "EVALSHA", "DELIFEQ", "DELEX":
						_ = c.Do(b.Context(), args...).Err()
					}
				}
				require.NoError(b, c.Close())
			}
		}
		again()
		for i, h := range b.cluster.Holders(key) {
			assert.True(b, strings.HasPrefix(h, token), "node %d has %s", i, h)
			assert.LessOrEqual(b, b.cluster.TTLs(key)[i], time.Minute)
		}
		next, err := b.another(nil).Mutex(key, redlock.WithFencing()).Adopt(b.Context(), token)
		require.NoError(b, err)
		assert.Greater(b, next.Fence(), lock.Fence())
		synctest.Wait()
		again()
		for i, h := range b.cluster.Holders(key) {
			assert.True(b, strings.HasPrefix(h, next.Token()), "node %d has %s", i, h)
			assert.LessOrEqual(b, b.cluster.TTLs(key)[i], ttl)
		}
		require.NoError(b, next.Release(b.Context()))
		b.on(0)
	})
}

// A renewal that is on its way when the lock is handed over neither fails the hand-over, nor makes
// the ticket's lease longer, nor loses the lock.
func TestHandOverDuringARenewal(t *testing.T) {
	lost := 0
	opts := *longLeases
	opts.Hooks = &redlock.Hooks{Lost: func(redlock.LostInfo) { lost++ }}
	inBubble(t, 5, &opts, func(b *bed) {
		lock := b.lock(redlock.WithRenewal(), redlock.WithTTL(30*time.Second))
		b.pass(9900 * time.Millisecond)
		b.each([]int{0, 1, 2, 3, 4}, func(n *redlocktest.Node) { n.Delay(20 * time.Millisecond) })
		b.pass(120 * time.Millisecond) // it was sent after 10 s, and is not there yet
		token, err := lock.HandOver(b.Context(), 20*time.Second)
		require.NoError(b, err)
		b.each([]int{0, 1, 2, 3, 4}, func(n *redlocktest.Node) { n.Delay(0) })
		b.pass(5 * time.Second)
		assert.Zero(b, lost)
		for i, h := range b.cluster.Holders(key) {
			assert.True(b, strings.HasPrefix(h, token), "node %d has %s", i, h)
			assert.Less(b, b.cluster.TTLs(key)[i], 16*time.Second)
		}
		next, err := b.another(nil).Mutex(key).Adopt(b.Context(), token)
		require.NoError(b, err)
		require.NoError(b, next.Release(b.Context()))
		b.on(0)
	})
}

// A node that was away during the hand-over has the former value when it is back, or gets the
// ticket late. Both are taken back, so that it is of use for the next holder.
func TestNodeThatWasAwayAtAHandOver(t *testing.T) {
	for what, fault := range map[string]struct{ begin, end func(*redlocktest.Node) }{
		"hung":    {hang, resume},
		"stopped": {stop, func(n *redlocktest.Node) { n.Restart(redlocktest.KeepKeys) }},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, 5, longLeases, func(b *bed) {
				other := b.another(longLeases)
				l, err := other.Mutex("warm").TryAcquire(b.Context())
				require.NoError(b, err)
				require.NoError(b, l.Release(b.Context()))
				lock := b.lock(redlock.WithTTL(time.Minute))
				b.each([]int{1, 3}, fault.begin)
				token, err := lock.HandOver(b.Context(), time.Minute)
				require.NoError(b, err)
				next, err := other.Mutex(key, redlock.WithTTL(time.Minute)).Adopt(b.Context(), token)
				require.NoError(b, err)
				b.pass(time.Second)
				b.each([]int{1, 3}, fault.end)
				b.pass(5 * time.Second)
				for _, i := range []int{1, 3} {
					got := b.cluster.Node(i).Get(key)
					assert.False(b, strings.HasPrefix(got, lock.Token()) || strings.HasPrefix(got, token), "node %d has %s", i, got)
				}
				require.NoError(b, next.Extend(b.Context(), time.Minute))
				b.pass(time.Second)
				b.on(5)
				require.NoError(b, next.Release(b.Context()))
				b.on(0)
			})
		})
	}
}

// A node that was away during the Adopt still has the ticket, which no release of the new value
// fits. It is free nevertheless as soon as it is back, and not when the ticket's lease ends.
func TestNodeThatWasAwayAtAnAdopt(t *testing.T) {
	for what, c := range map[string]struct {
		begin, end func(*redlocktest.Node)
		opts       []redlock.LockOption
	}{
		"hung":    {begin: hang, end: resume},
		"stopped": {begin: stop, end: func(n *redlocktest.Node) { n.Restart(redlocktest.KeepKeys) }},
		"kept for a while": {begin: stop, end: func(n *redlocktest.Node) { n.Restart(redlocktest.KeepKeys) },
			opts: []redlock.LockOption{redlock.WithMinHold(500 * time.Millisecond)}},
	} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, 5, longLeases, func(b *bed) {
				opts := append(c.opts, redlock.WithTTL(time.Minute))
				token, err := b.lock(redlock.WithTTL(time.Minute)).HandOver(b.Context(), time.Minute)
				require.NoError(b, err)
				b.each([]int{1, 3}, c.begin)
				next, err := b.another(longLeases).Mutex(key, opts...).Adopt(b.Context(), token)
				require.NoError(b, err)
				require.NoError(b, next.Release(b.Context()))
				b.pass(time.Second)
				b.each([]int{1, 3}, c.end)
				b.pass(5 * time.Second)
				b.on(0)
			})
		})
	}
}

// A node moves the lock to the ticket just after HandOver has stopped waiting for it, and the process
// that adopts the lock cannot reach that node. The ticket there belongs to no lock, and is taken back.
func TestTicketThatComesTooLate(t *testing.T) {
	inBubble(t, 3, longLeases, func(b *bed) {
		first := b.lock()
		token, err := first.HandOver(b.Context(), ttl) // from then on all nodes know the script
		require.NoError(b, err)
		next, err := b.rl.Mutex(key).Adopt(b.Context(), token)
		require.NoError(b, err)
		require.NoError(b, next.Release(b.Context()))
		b.on(0)

		clients := b.cluster.Clients()
		clients[0] = b.cluster.Client(0, cannotReach)
		other, err := redlock.New(clients, longLeases)
		require.NoError(b, err)
		b.Cleanup(func() { _ = other.Close() })
		lock := b.lock()
		b.cluster.Node(0).DelayCommand(evalsha, 1, nodeTimeout+2*time.Millisecond)
		token, err = lock.HandOver(b.Context(), time.Minute)
		require.NoError(b, err)
		require.True(b, strings.HasPrefix(b.cluster.Node(0).Get(key), lock.Token()), "it has not had the ticket yet")
		_, err = other.Mutex(key, redlock.WithTTL(time.Minute)).Adopt(b.Context(), token)
		require.NoError(b, err)
		b.pass(time.Second)
		assert.Empty(b, b.cluster.Node(0).Get(key))
		b.on(2)
	})
}

// The nodes have the key for longer than its holder may rely on it, so they move it to the ticket
// also after that. Then others may have had the lock in between, as far as the holder can know.
func TestTicketThatWasMadeAfterTheLeaseIsNone(t *testing.T) {
	inBubble(t, 3, longLeases, func(b *bed) {
		lock := b.lock()
		b.pass(time.Until(lock.Until()) - 10*time.Millisecond)
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.Delay(20 * time.Millisecond) })
		_, err := lock.HandOver(b.Context(), time.Minute)
		require.ErrorIs(b, err, redlock.ErrLost)
		require.ErrorIs(b, err, redlock.ErrExpired)
		b.pass(time.Second)
		b.on(0)
	})
}

// The lease is the ticket's alone, so it may become shorter.
func TestTicketHasALeaseOfItsOwn(t *testing.T) {
	inBubble(t, 3, longLeases, func(b *bed) {
		lock := b.lock(redlock.WithTTL(time.Hour / 2))
		token, err := lock.HandOver(b.Context(), time.Minute)
		require.NoError(b, err)
		synctest.Wait()
		for _, ttl := range b.cluster.TTLs(key) {
			assert.InDelta(b, time.Minute, ttl, float64(time.Second))
		}
		status, err := b.rl.Mutex(key).Inspect(b.Context())
		require.NoError(b, err)
		for _, n := range status.Nodes {
			assert.Equal(b, token, n.Token)
			assert.Equal(b, token, n.Token)
		}
		b.pass(time.Minute + time.Second)
		_, err = b.rl.Mutex(key).Adopt(b.Context(), token)
		require.ErrorIs(b, err, redlock.ErrNotHeld)
	})
}

// Two hand over at the same moment: one of them has the ticket.
func TestLockIsHandedOverOnce(t *testing.T) {
	inBubble(t, 5, longLeases, func(b *bed) {
		lock := b.lock()
		type handed struct {
			token string
			err   error
		}
		all := make(chan handed, 4)
		for range cap(all) {
			go func() {
				token, err := lock.HandOver(b.Context(), time.Minute)
				all <- handed{token, err}
			}()
		}
		var tokens []string
		for range cap(all) {
			h := <-all
			if h.err != nil {
				assert.ErrorIs(b, h.err, redlock.ErrReleased)
				continue
			}
			tokens = append(tokens, h.token)
		}
		require.Len(b, tokens, 1)
		require.NoError(b, lock.Release(b.Context()))
		next, err := b.rl.Mutex(key).Adopt(b.Context(), tokens[0])
		require.NoError(b, err)
		require.NoError(b, next.Release(b.Context()))
	})
}

func TestHandOverInsideOfDo(t *testing.T) {
	inBubble(t, 3, longLeases, func(b *bed) {
		var token string
		require.NoError(b, b.rl.Mutex(key).Do(b.Context(), func(ctx context.Context, lock *redlock.Lock) (err error) {
			synctest.Wait()
			token, err = lock.HandOver(ctx, time.Minute)
			<-ctx.Done()
			assert.ErrorIs(b, context.Cause(ctx), redlock.ErrReleased)
			return err
		}))
		b.on(3)
		lock, err := b.rl.Mutex(key).Adopt(b.Context(), token)
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
	})
}

func TestHandOverTellsHooks(t *testing.T) {
	held := make(map[string]bool)
	inBubble(t, 3, &redlock.Options{Hooks: &redlock.Hooks{
		Acquired: func(i redlock.AcquireInfo) { held[i.Token] = i.Err == nil },
		Released: func(i redlock.ReleaseInfo) {
			assert.True(t, held[i.Token])
			assert.Equal(t, "exclusive", i.Mode)
			assert.NoError(t, i.Err)
			delete(held, i.Token)
		},
	}}, func(b *bed) {
		lock := b.lock()
		token, err := lock.HandOver(b.Context(), ttl)
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
		assert.Empty(b, held)
		next, err := b.rl.Mutex(key).Adopt(b.Context(), token)
		require.NoError(b, err)
		assert.Len(b, held, 1)
		require.NoError(b, next.Release(b.Context()))
		assert.Empty(b, held)
	})
}

func TestBadHandOversAreRefusedWithoutIO(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		asked := b.cluster.Commands()
		for _, ttl := range []time.Duration{0, -1, time.Millisecond, 25 * time.Hour} {
			_, err := lock.HandOver(b.Context(), ttl)
			require.ErrorIs(b, err, redlock.ErrInvalid)
			assert.ErrorContains(b, err, "ttl is "+ttl.String())
		}
		_, err := new(redlock.Lock).HandOver(b.Context(), time.Minute)
		require.ErrorIs(b, err, redlock.ErrInvalid)
		m := b.rl.Mutex(key)
		for _, token := range []string{"", "x", lock.Token()[1:], lock.Token() + "@me", strings.ToUpper(lock.Token()), strings.Repeat("g", 32)} {
			_, err := m.Adopt(b.Context(), token)
			if token == lock.Token() { // digits only
				continue
			}
			require.ErrorIs(b, err, redlock.ErrInvalid, token)
			assert.ErrorContains(b, err, "32 hexadecimal digits in lower case")
		}
		_, err = new(redlock.Mutex).Adopt(b.Context(), lock.Token())
		require.ErrorIs(b, err, redlock.ErrInvalid)
		_, err = m.Adopt(canceled(), lock.Token())
		require.ErrorIs(b, err, context.Canceled)
		assert.Equal(b, asked, b.cluster.Commands())
		require.NoError(b, b.rl.Close())
		_, err = m.Adopt(b.Context(), lock.Token())
		require.ErrorIs(b, err, redlock.ErrClosed)
	})
}
