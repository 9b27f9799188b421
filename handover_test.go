package redlock_test

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

func TestLockIsHandedOverToAnotherProcess(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		other := b.another(nil)
		lock := b.lock(redlock.WithRenewal(), redlock.WithFencing())
		ctx := lock.Context()
		token, err := lock.HandOver(b.Context(), time.Minute)
		require.NoError(b, err)
		assert.Equal(b, lock.Token(), token)

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
		b.pass(time.Hour)
		assert.Positive(b, next.Validity(), "renewed")
		require.ErrorIs(b, b.try(), redlock.ErrHeld)
		require.NoError(b, next.Release(b.Context()))
		b.on(0)
	})
}

func TestHandOverThatNobodyAdoptsEndsByItsLease(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
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
	inBubble(t, 5, nil, func(b *bed) {
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

// A process wrote its token down and was killed. It may be only paused: what it still sends
// has no effect.
func TestAdoptOfALockWhoseHolderIsGone(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock()
		next, err := b.another(nil).Mutex(key, redlock.WithTTL(time.Minute)).Adopt(b.Context(), lock.Token())
		require.NoError(b, err)
		synctest.Wait()
		require.ErrorIs(b, lock.Extend(b.Context(), time.Hour), redlock.ErrLost)
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
		assert.ErrorContains(b, err, next.Token(), "who holds it")
		b.on(5)
		require.NoError(b, next.Release(b.Context()))

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
			inBubble(t, 5, nil, func(b *bed) {
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

func TestMinorityDoesNotDelayAHandOver(t *testing.T) {
	for what, fault := range map[string]func(*redlocktest.Node){"hung": hang, "down": stop, "lost the key": gone} {
		t.Run(what, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				other := b.another(nil)
				l, err := other.Mutex("warm").TryAcquire(b.Context())
				require.NoError(b, err)
				require.NoError(b, l.Release(b.Context()))
				lock := b.lock(redlock.WithFencing())
				b.each([]int{1, 3}, fault)
				b.takes(0, func() {
					token, err := lock.HandOver(b.Context(), time.Minute)
					require.NoError(b, err)
					lock, err = other.Mutex(key, redlock.WithFencing()).Adopt(b.Context(), token)
					require.NoError(b, err)
				})
				b.takes(0, func() { require.NoError(b, lock.Extend(b.Context(), time.Minute)) })
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
	inBubble(t, 5, nil, func(b *bed) {
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
		b.cluster.Node(2).Resume()
		b.pass(time.Minute)
		b.on(0)
	})
}

func TestHandOverThatFailsLeavesTheHandle(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithRenewal())
		b.each([]int{0, 1}, hang)
		_, err := lock.HandOver(b.Context(), time.Minute)
		require.ErrorIs(b, err, redlock.ErrNoQuorum)
		assert.Positive(b, lock.Validity())
		_, err = lock.HandOver(canceled(), time.Minute)
		require.ErrorIs(b, err, errGaveUp)
		b.each([]int{0, 1}, resume)
		b.pass(time.Hour)
		assert.Positive(b, lock.Validity(), "renewed")

		b.each([]int{0, 1}, gone)
		_, err = lock.HandOver(b.Context(), time.Minute)
		require.ErrorIs(b, err, redlock.ErrLost)
		_ = lock.Release(b.Context())
		b.on(0)
	})
}

func TestHandOverInsideOfDo(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
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
			assert.Equal(t, "alone", i.Mode)
			assert.NoError(t, i.Err)
			delete(held, i.Token)
		},
	}}, func(b *bed) {
		lock := b.lock()
		token, err := lock.HandOver(b.Context(), time.Minute)
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
			assert.ErrorContains(b, err, "32 hexadecimal digits")
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
