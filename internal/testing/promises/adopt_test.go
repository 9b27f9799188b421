package promises_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// longLeases lets locks of the usual TTL be extended for a minute.
var longLeases = &redlock.Options{RestartGuard: time.Minute}

func TestLockThatWasDetachedIsAdoptedElsewhere(t *testing.T) {
	inBubble(t, 5, longLeases, func(b *bed) {
		other := b.another(nil)
		lock := b.lock(redlock.WithRenewal(), redlock.WithFencing())
		require.NoError(b, lock.Extend(b.Context(), time.Minute))
		synctest.Wait()
		ctx, asked := lock.Context(), b.cluster.Commands()
		token := lock.Detach()
		assert.Equal(b, lock.Token(), token)
		assert.Equal(b, asked, b.cluster.Commands(), "no I/O")

		assert.LessOrEqual(b, lock.Validity(), time.Duration(0))
		<-ctx.Done()
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrReleased)
		assert.NotErrorIs(b, context.Cause(ctx), redlock.ErrLost)
		require.ErrorIs(b, lock.Extend(b.Context(), time.Minute), redlock.ErrReleased)
		assert.Empty(b, lock.Detach())
		require.NoError(b, lock.Release(b.Context()), "ends nothing")
		b.pass(50 * time.Second)
		b.on(5) // for a minute, and nothing renews it

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

func TestLockThatWasDetachedAndIsNotAdoptedEndsByItsLease(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		require.NotEmpty(b, b.lock(redlock.WithRenewal(), redlock.WithTTL(time.Minute)).Detach())
		start := time.Now()
		lock, err := b.another(nil).Mutex(key).Acquire(b.Context())
		require.NoError(b, err)
		assert.InDelta(b, time.Minute, time.Since(start), float64(time.Second))
		require.NoError(b, lock.Release(b.Context()))
	})
}

// Waiters wait on while the lock changes hands, and are served by the new holder's release.
func TestWaitersStayInTheQueueWhileALockChangesHands(t *testing.T) {
	inBubble(t, 5, longLeases, func(b *bed) {
		lock := b.lock()
		waiting := later(func() (*redlock.Lock, error) { return b.another(nil).Mutex(key).Acquire(b.Context()) })
		next, err := b.another(nil).Mutex(key).Adopt(b.Context(), lock.Detach())
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

// A try on new nodes, whose grants do not count yet, takes the token from them: the next would find that it is gone.
func TestAdoptOnNewNodesSaysWhyItFailed(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		token := strings.Repeat("a", 32)
		for _, n := range b.cluster.Nodes() {
			n.FlushAll()
			n.Set(key, token, ttl)
		}
		_, err := b.rl.Mutex(key).Adopt(b.Context(), token)
		require.ErrorIs(b, err, redlock.ErrNoQuorum)
		assert.Contains(b, votes(b.quorumError(err).Outcomes), "barred")
		synctest.Wait()
		for _, h := range b.cluster.Holders(key) { // one that two bars made needless was not asked
			assert.Contains(b, []string{"", token}, h, "what changed hands is released")
		}
	})
}

// Where a majority has the key no more, the others are given back, and the rest ends by its
// lease. Never do two have the lock.
func TestAdoptInTheMiddleOfAnOutage(t *testing.T) {
	for what, fault := range map[string]func(*redlocktest.Node){"hung": hang, "down": stop} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, 5, longLeases, func(b *bed) {
				lock := b.lock()
				synctest.Wait()
				token := lock.Detach()
				b.each([]int{0, 1, 2}, fault)
				_, err := b.another(nil).Mutex(key).Adopt(b.Context(), token)
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

func TestMinorityDoesNotKeepALockFromBeingAdopted(t *testing.T) {
	for what, fault := range map[string]func(*redlocktest.Node){"hung": hang, "down": stop, "lost the key": gone} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, 5, longLeases, func(b *bed) {
				other := b.another(longLeases)
				l, err := other.Mutex("warm").TryAcquire(b.Context())
				require.NoError(b, err)
				require.NoError(b, l.Release(b.Context()))
				lock := b.lock(redlock.WithFencing())
				b.each([]int{1, 3}, fault)
				for range 2 {
					b.takes(0, func() {
						lock, err = other.Mutex(key, redlock.WithFencing()).Adopt(b.Context(), lock.Detach())
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
			token := b.lock().Detach()
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

// All that the former holder ever sent comes to every node once more after the Adopt.
func TestNothingOfTheFormerHolderEndsAnAdoptedLock(t *testing.T) {
	inBubble(t, 3, longLeases, func(b *bed) {
		b.cluster.Record(true)
		b.cluster.ResetCommands()
		lock := b.lock(redlock.WithFencing(), redlock.WithTTL(time.Hour/2))
		require.NoError(b, lock.Extend(b.Context(), time.Hour/2))
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
		next, err := b.another(nil).Mutex(key, redlock.WithFencing()).Adopt(b.Context(), lock.Detach())
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

// A renewal that is on its way makes the lease of the node longer, and loses nothing.
func TestDetachDuringARenewal(t *testing.T) {
	lost := 0
	inBubble(t, 5, &redlock.Options{Hooks: &redlock.Hooks{Lost: func(context.Context, redlock.LostInfo) { lost++ }}}, func(b *bed) {
		lock := b.lock(redlock.WithRenewal(), redlock.WithTTL(30*time.Second))
		b.pass(9900 * time.Millisecond)
		b.each([]int{0, 1, 2, 3, 4}, func(n *redlocktest.Node) { n.Delay(20 * time.Millisecond) })
		b.pass(120 * time.Millisecond) // it was sent after 10 s, and is not there yet
		token := lock.Detach()
		b.each([]int{0, 1, 2, 3, 4}, func(n *redlocktest.Node) { n.Delay(0) })
		b.pass(5 * time.Second)
		assert.Zero(b, lost)
		for i, h := range b.cluster.Holders(key) {
			assert.True(b, strings.HasPrefix(h, token), "node %d has %s", i, h)
			assert.Less(b, b.cluster.TTLs(key)[i], 26*time.Second)
		}
		next, err := b.another(nil).Mutex(key).Adopt(b.Context(), token)
		require.NoError(b, err)
		require.NoError(b, next.Release(b.Context()))
		b.on(0)
	})
}

// A node that was away during the Adopt still has the former value, which no release of the new value
// fits. It is free nevertheless as soon as it is back, and not when the former lease ends.
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
				token := b.lock(redlock.WithTTL(time.Minute)).Detach()
				synctest.Wait()
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

// What Adopt promises ends with the lease.
func TestLockIsNotAdoptedAfterItsLease(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		token := b.lock().Detach()
		b.pass(ttl + time.Second)
		_, err := b.rl.Mutex(key).Adopt(b.Context(), token)
		require.ErrorIs(b, err, redlock.ErrNotHeld)

		lock := b.lock()
		b.pass(ttl)
		assert.Empty(b, lock.Detach(), "it was over")
		require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNotHeld)
	})
}

func TestLockIsDetachedOnce(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock()
		all := make(chan string, 4)
		for range cap(all) {
			go func() { all <- lock.Detach() }()
		}
		var tokens []string
		for range cap(all) {
			if token := <-all; token != "" {
				tokens = append(tokens, token)
			}
		}
		assert.Equal(b, []string{lock.Token()}, tokens)
	})
}

func TestDetachInsideOfDo(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		var token string
		require.NoError(b, b.rl.Mutex(key).Do(b.Context(), func(ctx context.Context, lock *redlock.Lock) error {
			synctest.Wait()
			token = lock.Detach()
			<-ctx.Done()
			assert.ErrorIs(b, context.Cause(ctx), redlock.ErrReleased)
			return nil
		}))
		b.on(3)
		lock, err := b.rl.Mutex(key).Adopt(b.Context(), token)
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
	})
}

func TestDetachTellsHooks(t *testing.T) {
	held := make(map[string]bool)
	inBubble(t, 3, &redlock.Options{Hooks: &redlock.Hooks{
		Acquired: func(_ context.Context, i redlock.AcquireInfo) { held[i.Token] = i.Err == nil },
		Released: func(ctx context.Context, i redlock.ReleaseInfo) {
			assert.True(t, held[i.Token])
			assert.Equal(t, redlock.ModeExclusive, i.Mode)
			assert.NotNil(t, ctx)
			assert.NoError(t, i.Err)
			delete(held, i.Token)
		},
	}}, func(b *bed) {
		lock := b.lock()
		token := lock.Detach()
		assert.Empty(b, held)
		require.NoError(b, lock.Release(b.Context()))
		next, err := b.rl.Mutex(key).Adopt(b.Context(), token)
		require.NoError(b, err)
		assert.Len(b, held, 1)
		require.NoError(b, next.Release(b.Context()))
		assert.Empty(b, held)
	})
}

func TestBadTokensAreRefusedWithoutIO(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		asked := b.cluster.Commands()
		m := b.rl.Mutex(key)
		for _, token := range []string{"", "x", lock.Token()[1:], lock.Token() + "@me", strings.ToUpper(lock.Token()), strings.Repeat("g", 32)} {
			_, err := m.Adopt(b.Context(), token)
			if token == lock.Token() { // digits only
				continue
			}
			require.ErrorIs(b, err, redlock.ErrInvalid, token)
			assert.ErrorContains(b, err, "32 hexadecimal digits in lower case")
		}
		_, err := m.Adopt(canceled(), lock.Token())
		require.ErrorIs(b, err, context.Canceled)
		assert.Equal(b, asked, b.cluster.Commands())
		require.NoError(b, b.rl.Close())
		_, err = m.Adopt(b.Context(), lock.Token())
		require.ErrorIs(b, err, redlock.ErrClosed)
	})
}
