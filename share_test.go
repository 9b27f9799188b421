package redlock_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

const holdersOfKey = "{" + key + "}:shared"

// share acquires the key together with others, at once.
func (b *bed) share(opts ...redlock.LockOption) *redlock.Lock {
	b.Helper()
	lock, err := b.rl.Mutex(key, opts...).Shared().TryAcquire(b.Context())
	require.NoError(b, err)
	synctest.Wait()
	return lock
}

// status is what Inspect tells.
func (b *bed) status() redlock.Status {
	b.Helper()
	s, err := b.rl.Mutex(key).Inspect(b.Context())
	require.NoError(b, err)
	return s
}

// Readers together, and never beside one who has the lock alone.
func TestSharedLocksAreHeldTogetherAndNeverBesideOneAlone(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		m := b.rl.Mutex(key)
		one, two := b.share(), b.share()
		assert.Equal(b, valid, one.Validity())
		_, err := m.TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
		require.NoError(b, one.Release(b.Context()))
		_, err = m.TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld, "the other reads on")
		require.NoError(b, two.Release(b.Context()))
		b.on(0)

		alone := b.lock()
		_, err = m.Shared().TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
		require.NoError(b, alone.Release(b.Context()))
		b.takes(0, func() { b.share() })
	})
}

// Readers and permits of one key are held together: a reader is let in beside any number of permits,
// and takes the room of one from those that come after it.
func TestReadersTakeTheRoomOfPermits(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		permits := b.rl.Semaphore(key, 2)
		reader := b.share()
		permit, err := permits.TryAcquire(b.Context())
		require.NoError(b, err)
		synctest.Wait()
		_, err = permits.TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld, "a reader and a permit have the room of two")
		synctest.Wait()
		second := b.share()

		waiting := make(chan *redlock.Lock)
		go func() {
			lock, err := permits.Acquire(context.Background())
			assert.NoError(b, err)
			waiting <- lock
		}()
		time.Sleep(time.Second)
		require.NoError(b, second.Release(b.Context()))
		synctest.Wait()
		assert.Empty(b, waiting, "there is no room yet")
		require.NoError(b, reader.Release(b.Context()))
		other := <-waiting
		assert.NotEqual(b, permit.Permit(), other.Permit())
		require.NoError(b, other.Release(b.Context()))
		require.NoError(b, permit.Release(b.Context()))
	})
}

// Each who shares is struck when its own lease ends, and by nothing else.
func TestEachWhoSharesHasALeaseOfItsOwn(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		dead := b.share()
		b.pass(4 * time.Second)
		alive := b.share()
		b.pass(6*time.Second + time.Millisecond)
		assert.Negative(b, dead.Validity())
		s := b.status()
		require.Len(b, s.Holders, 1)
		assert.Equal(b, alive.Token(), s.Holders[0].Token)
		assert.Equal(b, 4*time.Second-time.Millisecond, s.TTL)
		require.ErrorIs(b, dead.Release(b.Context()), redlock.ErrNotHeld)
		require.NoError(b, alive.Extend(b.Context(), ttl), "nobody else is struck by a late release")
		b.pass(ttl - time.Millisecond)
		_, err := b.rl.Mutex(key).TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld, "the key lasts as long as the longest lease")
		b.pass(2 * time.Millisecond)
		b.lock()
	})
}

// Two of five nodes are away.
func TestSharedLocksAndPermitsWithAMinorityAway(t *testing.T) {
	for name, fault := range map[string]func(*redlocktest.Node){"stopped": stop, "hung": hang} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				b.each([]int{0, 3}, fault)
				semaphore := b.rl.Semaphore("s", 2)
				b.takes(0, func() {
					require.NoError(b, b.share(redlock.WithRenewal()).Release(b.Context()))
					for range 2 {
						_, err := semaphore.TryAcquire(b.Context())
						require.NoError(b, err)
					}
					_, err := b.rl.Mutex(key).Shared().TryAcquire(b.Context())
					require.NoError(b, err)
				})
				_, err := semaphore.TryAcquire(b.Context())
				require.ErrorIs(b, err, redlock.ErrHeld)
			})
		})
	}
}

// No more holders than permits, and no number twice.
func TestSemaphore(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		semaphore := b.rl.Semaphore(key, 3)
		locks := make([]*redlock.Lock, 3)
		for range 3 {
			lock, err := semaphore.TryAcquire(b.Context())
			require.NoError(b, err)
			require.Nil(b, locks[lock.Permit()], "no number twice")
			locks[lock.Permit()] = lock
		}
		_, err := semaphore.TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
		_, err = b.rl.Mutex(key).TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)

		s := b.status()
		assert.True(b, s.Held())
		assert.True(b, s.Shared)
		assert.Empty(b, s.Token)
		require.Len(b, s.Holders, 3)
		for i, h := range s.Holders {
			assert.Equal(b, redlock.Holder{Token: locks[i].Token(), Owner: s.Holders[0].Owner, Permit: i, TTL: ttl}, h)
			assert.Equal(b, locks[i].Token(), s.Nodes[4].Holders[i].Token)
		}

		require.NoError(b, locks[1].Release(b.Context()))
		lock, err := semaphore.TryAcquire(b.Context())
		require.NoError(b, err)
		assert.Equal(b, 1, lock.Permit())

		b.pass(5 * time.Second)
		require.NoError(b, lock.Extend(b.Context(), ttl))
		b.pass(5*time.Second + time.Millisecond)
		for range 2 {
			again, err := semaphore.TryAcquire(b.Context())
			require.NoError(b, err, "the permits of holders that died are free")
			assert.NotEqual(b, 1, again.Permit())
		}
	})
}

// The greatest number of permits counts.
func TestClientsWithDifferentPermits(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		few, many := b.rl.Semaphore(key, 1), b.rl.Semaphore(key, 3)
		first, err := few.TryAcquire(b.Context())
		require.NoError(b, err)
		assert.Equal(b, 0, first.Permit())
		for range 2 {
			lock, err := many.TryAcquire(b.Context())
			require.NoError(b, err)
			assert.Positive(b, lock.Permit())
		}
		for _, m := range []*redlock.Mutex{few, many} {
			_, err := m.TryAcquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrHeld)
		}
		most := b.rl.Semaphore("most", 1024)
		lock, err := most.TryAcquire(b.Context())
		require.NoError(b, err)
		assert.Less(b, lock.Permit(), 1024)
	})
}

// A node that was away lists somebody else under the number, and all agree
// after a renewal.
func TestNodesThatGaveAnotherNumberAreMended(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		semaphore := b.rl.Semaphore(key, 2, redlock.WithRenewal())
		first, err := semaphore.TryAcquire(b.Context())
		require.NoError(b, err)
		synctest.Wait()
		b.cluster.Node(2).Del(key)
		b.cluster.Node(2).Del(holdersOfKey)
		second, err := semaphore.TryAcquire(b.Context())
		require.NoError(b, err)
		assert.NotEqual(b, first.Permit(), second.Permit())
		b.pass(5 * time.Second)
		for _, n := range b.status().Nodes {
			require.Len(b, n.Holders, 2)
			for _, h := range n.Holders {
				assert.Equal(b, h.Token == first.Token(), h.Permit == first.Permit(), "on %s", n.Node)
			}
		}
	})
}

func TestBadUseOfSharedLocksAsksNoNode(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		for _, permits := range []int{-1, 0, 1025} {
			_, err := b.rl.Semaphore(key, permits).TryAcquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrInvalid)
			assert.ErrorContains(b, err, "permits is")
			assert.ErrorContains(b, err, "must be from 1 to 1024")
		}
		for _, m := range []*redlock.Mutex{
			b.rl.Mutex(key, redlock.WithFencing()).Shared(), b.rl.Semaphore(key, 2, redlock.WithFencing()),
		} {
			_, err := m.Acquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrInvalid)
			assert.ErrorContains(b, err, "WithFencing")
		}
		var zero redlock.Redlock
		_, err := zero.Semaphore(key, 2).TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrInvalid)
		_, err = new(redlock.Mutex).Shared().TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrInvalid)
		assert.Zero(b, b.cluster.Commands("SET")+b.cluster.Commands(evalsha)+b.cluster.Commands("EVAL"))

		shared := b.share()
		asked := b.cluster.Commands(evalsha)
		require.ErrorIs(b, shared.Downgrade(b.Context()), redlock.ErrInvalid)
		require.ErrorIs(b, new(redlock.Lock).Downgrade(b.Context()), redlock.ErrInvalid)
		_, err = shared.HandOver(b.Context(), ttl)
		require.ErrorIs(b, err, redlock.ErrInvalid)
		_, err = b.rl.Semaphore(key, 2).Adopt(b.Context(), shared.Token())
		require.ErrorIs(b, err, redlock.ErrInvalid)
		err = b.rl.Mutex(key, redlock.WithReentry()).Do(shared.Context(), mustNotRun)
		require.ErrorIs(b, err, redlock.ErrNested, "a shared lock is no exclusive one")
		assert.Equal(b, asked, b.cluster.Commands(evalsha))
		permit, err := b.rl.Semaphore("two", 2).TryAcquire(b.Context())
		require.NoError(b, err)
		_, err = b.rl.Semaphore("two", 2).TryAcquire(permit.Context())
		require.NoError(b, err, "a permit beside a permit is another number")
		assert.Panics(b, func() { shared.Permit() })
		assert.Panics(b, func() { new(redlock.Lock).Permit() })
	})
}

// From alone to shared without a gap, also where a node is told late.
func TestDowngrade(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock(redlock.WithRenewal())
		b.each([]int{1}, hang)
		require.NoError(b, lock.Downgrade(b.Context()))
		synctest.Wait()
		b.each([]int{1}, resume)
		reader := b.share()
		_, err := b.rl.Mutex(key).TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
		b.pass(ttl + time.Millisecond)
		require.Positive(b, lock.Validity(), "it is renewed")
		for _, n := range b.status().Nodes {
			assert.Equal(b, "redlock:shared", n.Value, "a node that was away is told by a renewal")
		}
		require.ErrorIs(b, reader.Release(b.Context()), redlock.ErrNotHeld, "nobody extended it")
		require.NoError(b, lock.Downgrade(b.Context()), "again")
		require.NoError(b, lock.Release(b.Context()))
		b.on(0)
		require.ErrorIs(b, lock.Downgrade(b.Context()), redlock.ErrReleased)
	})
}

// Readers without a pause, and who wants the lock alone.
func TestWhoWantsItAloneIsNotStarvedByThoseWhoShareIt(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, nil, func(b *bed) {
		m := b.rl.Mutex(key)
		var stop, writing atomic.Bool
		var readers sync.WaitGroup
		for i := range 8 {
			readers.Go(func() {
				time.Sleep(time.Duration(i) * 7 * time.Millisecond)
				for !stop.Load() {
					lock, err := m.Shared().TryAcquire(b.Context())
					if err != nil {
						time.Sleep(time.Millisecond)
						continue
					}
					time.Sleep(50 * time.Millisecond)
					assert.False(b, writing.Load())
					_ = lock.Release(b.Context())
				}
			})
		}
		for range 5 {
			time.Sleep(300 * time.Millisecond)
			ctx, cancel := context.WithTimeout(b.Context(), 2*time.Second)
			lock, err := m.Acquire(ctx)
			cancel()
			require.NoError(b, err)
			writing.Store(true)
			time.Sleep(10 * time.Millisecond)
			writing.Store(false)
			require.NoError(b, lock.Release(b.Context()))
		}
		// One that gives up lets them in again at once.
		hold := b.rl.Mutex(key)
		ctx, cancel := context.WithTimeout(b.Context(), 20*time.Millisecond)
		_, err := hold.Acquire(ctx)
		cancel()
		if err != nil {
			require.True(b, errors.Is(err, context.DeadlineExceeded), err)
		}
		stop.Store(true)
		readers.Wait()
		b.pass(time.Second)
		for _, n := range b.cluster.Nodes() {
			assert.Empty(b, n.Get("{"+key+"}:door"))
		}
	})
}

func TestForceReleaseOfOneWhoShares(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		one, two := b.share(), b.share()
		m := b.rl.Mutex(key)
		require.NoError(b, m.ForceRelease(b.Context(), one.Token()))
		require.ErrorIs(b, one.Extend(b.Context(), ttl), redlock.ErrNotHeld)
		require.NoError(b, two.Extend(b.Context(), ttl))
		require.ErrorIs(b, m.ForceRelease(b.Context(), one.Token()), redlock.ErrNotHeld)
		require.NoError(b, m.ForceRelease(b.Context(), ""))
		require.ErrorIs(b, two.Extend(b.Context(), ttl), redlock.ErrNotHeld)
		b.lock()
	})
}

// Acquire waits for a permit, and for those who hold the lock alone.
func TestAcquireOfWhatIsSharedWaits(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		semaphore := b.rl.Semaphore(key, 2)
		var held, most atomic.Int64
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				err := semaphore.Do(b.Context(), func(ctx context.Context, lock *redlock.Lock) error {
					most.Store(max(most.Load(), held.Add(1)))
					time.Sleep(100 * time.Millisecond)
					held.Add(-1)
					return nil
				})
				assert.NoError(b, err)
			})
		}
		all.Wait()
		assert.Equal(b, int64(2), most.Load())
	})
}

func TestHooksTellTheMode(t *testing.T) {
	var mu sync.Mutex
	var modes []string
	note := func(what, mode string) {
		mu.Lock()
		defer mu.Unlock()
		modes = append(modes, what+" "+mode)
	}
	hooks := &redlock.Hooks{
		Acquired: func(i redlock.AcquireInfo) { note("acquired", i.Mode) },
		Extended: func(i redlock.ExtendInfo) { note("extended", i.Mode) },
		Released: func(i redlock.ReleaseInfo) { note("released", i.Mode) },
	}
	inBubble(t, 3, &redlock.Options{Hooks: hooks}, func(b *bed) {
		alone := b.lock()
		require.NoError(b, alone.Extend(b.Context(), ttl))
		require.NoError(b, alone.Downgrade(b.Context()))
		require.NoError(b, b.share().Release(b.Context()))
		require.NoError(b, alone.Release(b.Context()))
		permit, err := b.rl.Semaphore(key, 1).TryAcquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, permit.Extend(b.Context(), ttl))
		assert.Equal(b, []string{
			"acquired alone", "extended alone", "extended shared", "acquired shared", "released shared", "released shared",
			"acquired permit", "extended permit",
		}, modes)
	})
}
