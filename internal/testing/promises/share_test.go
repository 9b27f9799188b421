package promises_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/longtest"
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
			assert.Equal(b, admin.Holder{Token: locks[i].Token(), Owner: s.Holders[0].Owner, Permit: i, TTL: ttl}, h)
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
		for _, m := range []*redlock.Semaphore{few, many} {
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

// A node that was restarted does not vote, but lists the permit, and keeps from others the number under
// which it does.
func TestNodeThatDoesNotVoteHasThePermitUnderItsNumber(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		const each = 16 // a node that lost the first permit may give the second the same number as the others
		semaphore := func(i int) *redlock.Semaphore { return b.rl.Semaphore(fmt.Sprint(key, i), 2) }
		for i := range each {
			_, err := semaphore(i).TryAcquire(b.Context())
			require.NoError(b, err)
		}
		synctest.Wait()
		b.cluster.Node(2).Restart(redlocktest.LoseKeys)
		nodes := looking(b, b.cluster, nil)
		for i := range each {
			lock, err := semaphore(i).TryAcquire(b.Context())
			require.NoError(b, err)
			b.pass(10 * time.Millisecond)
			s, err := nodes.Inspect(b.Context(), fmt.Sprint(key, i))
			require.NoError(b, err)
			listed := s.Nodes[2].Holders
			require.Len(b, listed, 1)
			assert.Equal(b, lock.Token(), listed[0].Token)
			assert.Equal(b, lock.Permit(), listed[0].Permit)
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
		for _, m := range []locker{
			b.rl.Mutex(key, redlock.WithFencing()).Shared(), b.rl.Semaphore(key, 2, redlock.WithFencing()),
		} {
			_, err := m.Acquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrInvalid)
			assert.ErrorContains(b, err, "WithFencing")
		}
		assert.Zero(b, b.cluster.Commands("SET")+b.cluster.Commands(evalsha)+b.cluster.Commands("EVAL"))

		shared := b.share()
		asked := b.cluster.Commands(evalsha)
		assert.Panics(b, func() { shared.Detach() })
		err := b.rl.Mutex(key, redlock.WithReentry()).Do(shared.Context(), mustNotRun)
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

// A process that is closed while it waits lets readers in again at once.
func TestCloseOpensTheDoor(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		reads, err := b.rl.Mutex(key).Shared().TryAcquire(b.Context())
		require.NoError(b, err)
		writer := b.another(nil)
		waits := later(func() (*redlock.Lock, error) { return writer.Mutex(key).Acquire(b.Context()) })
		b.pass(time.Second)
		shut := func() (doors []string) {
			for _, n := range b.cluster.Nodes() {
				if door := n.Get("{" + key + "}:door"); door != "" {
					doors = append(doors, door)
				}
			}
			return doors
		}
		require.Len(b, shut(), 3)
		require.NoError(b, writer.Close())
		require.ErrorIs(b, (<-waits).err, redlock.ErrClosed)
		assert.Empty(b, shut())
		require.NoError(b, reads.Release(b.Context()))
	})
}

func TestForceReleaseOfOneWhoShares(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		one, two := b.share(), b.share()
		nodes := looking(b, b.cluster, nil)
		_, err := nodes.ForceRelease(b.Context(), key, admin.HeldBy(one.Token()))
		require.NoError(b, err)
		require.ErrorIs(b, one.Extend(b.Context(), ttl), redlock.ErrNotHeld)
		require.NoError(b, two.Extend(b.Context(), ttl))
		_, err = nodes.ForceRelease(b.Context(), key, admin.HeldBy(one.Token()))
		require.ErrorIs(b, err, redlock.ErrNotHeld)
		takeAway(b, b.cluster, key)
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
		Acquired: func(_ context.Context, i redlock.AcquireInfo) { note("acquired", string(i.Mode)) },
		Extended: func(_ context.Context, i redlock.ExtendInfo) { note("extended", string(i.Mode)) },
		Released: func(_ context.Context, i redlock.ReleaseInfo) { note("released", string(i.Mode)) },
	}
	inBubble(t, 3, &redlock.Options{Hooks: hooks}, func(b *bed) {
		alone := b.lock()
		require.NoError(b, alone.Extend(b.Context(), ttl))
		require.NoError(b, alone.Release(b.Context()))
		require.NoError(b, b.share().Release(b.Context()))
		permit, err := b.rl.Semaphore(key, 1).TryAcquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, permit.Extend(b.Context(), ttl))
		assert.Equal(b, []string{
			"acquired exclusive", "extended exclusive", "released exclusive", "acquired shared", "released shared",
			"acquired permit", "extended permit",
		}, modes)
	})
}

// One queue for all ways to hold a lock, through the public API.

// turn is one who waited and had the lock.
type turn struct {
	who  string
	from time.Duration
}

// Readers that wait come in together with the first of them, past writers that came before, and
// everybody else in the order of arrival, whatever process they are of.
func TestWaitersOfAllModesHaveTheirTurnsInOrder(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		processes := []*redlock.Redlock{b.another(nil), b.another(nil), b.another(nil)}
		first := b.lock()
		var mu sync.Mutex
		var turns []turn
		var all sync.WaitGroup
		var freed time.Time
		come := func(i int, who string, m locker) {
			all.Go(func() {
				lock, err := m.Acquire(b.Context())
				if !assert.NoError(b, err) {
					return
				}
				mu.Lock()
				turns = append(turns, turn{who, time.Since(freed).Round(50 * time.Millisecond)})
				mu.Unlock()
				time.Sleep(100 * time.Millisecond)
				assert.NoError(b, lock.Release(b.Context()))
			})
			b.pass(10 * time.Millisecond)
		}
		for i, who := range []string{"r1", "w1", "r2", "w2", "r3"} {
			var m locker = processes[i%3].Mutex(key)
			if who[0] == 'r' {
				m = processes[i%3].Mutex(key).Shared()
			}
			come(i, who, m)
		}
		freed = time.Now()
		require.NoError(b, first.Release(b.Context()))
		all.Wait()
		slices.SortFunc(turns[:3], func(a, b turn) int { return int(a.who[1]) - int(b.who[1]) })
		assert.Equal(b, []turn{{"r1", 0}, {"r2", 0}, {"r3", 0}, {"w1", 100 * time.Millisecond}, {"w2", 200 * time.Millisecond}}, turns)
	})
}

// Those who want one of three permits have the same number of turns, and wait about as long.
func TestPermitsGoRound(t *testing.T) {
	t.Parallel()
	inBubble(t, 5, nil, func(b *bed) {
		const workers, permits, hold = 12, 3, 20 * time.Millisecond
		var turns [workers]int
		var longest atomic.Int64
		ctx, stop := context.WithTimeout(b.Context(), 2*time.Second)
		defer stop()
		var all sync.WaitGroup
		processes := []*redlock.Redlock{b.another(nil), b.another(nil), b.another(nil)}
		for i := range workers {
			m := processes[i%3].Semaphore(key, permits)
			all.Go(func() {
				for {
					since := time.Now()
					lock, err := m.Acquire(ctx)
					if err != nil {
						return
					}
					longest.Store(max(longest.Load(), int64(time.Since(since))))
					turns[i]++
					time.Sleep(hold)
					_ = lock.Release(b.Context())
				}
			})
		}
		all.Wait()
		least, most := slices.Min(turns[:]), slices.Max(turns[:])
		b.Logf("turns %v, longest wait %v", turns, time.Duration(longest.Load()))
		assert.GreaterOrEqual(b, 10*(least+1), 9*most)
		assert.Greater(b, most, 20)
		assert.Less(b, time.Duration(longest.Load()), 2*workers/permits*hold, "twice the even wait")
	})
}

// Where nobody may PUBLISH, all still have their turns in each mode, soon after they are free: the
// first waiter of each process looks for all of its process, whatever it wants itself.
func TestAllModesGoRoundWithoutNotices(t *testing.T) {
	t.Parallel()
	w, r, p := wantsAlone(), wantsShare(), wantsPermit(3)
	for name, in := range map[string]struct {
		want  []wanting
		least int // holds in 3 s; with notices it is more
	}{
		"exclusive":          {[]wanting{w, w, w, w}, 120}, // 270
		"permits":            {[]wanting{p, p, p, p}, 500}, // 830
		"one of four writes": {[]wanting{w, r, r, r}, 400}, // 870
	} {
		if !longtest.On() && name != "one of four writes" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			inHallOf(t, 5, func(h hall) {
				for _, n := range h.cluster.Nodes() {
					n.Deny("PUBLISH")
				}
				processes := []*redlock.Redlock{h.cutOff(), h.cutOff(), h.cutOff(), h.cutOff()}
				want := [][]wanting{in.want, in.want, in.want, in.want}
				turns := h.takeTurnsIn(processes, want, 10*time.Millisecond, 3*time.Second, func(int) time.Duration { return 0 })
				h.fair(turns)
				assert.GreaterOrEqual(h, turns[0]+turns[1]+turns[2]+turns[3], in.least)
			})
		})
	}
}

// Inspect tells the mode of each that waits and the permit of each that holds.
func TestQueueOfAllModesIsSeen(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		rl := b.another(nil)
		held := make(map[int]bool)
		var locks []*redlock.Lock
		for range 2 {
			lock, err := b.rl.Semaphore(key, 2).TryAcquire(b.Context())
			require.NoError(b, err)
			held[lock.Permit()] = true
			locks = append(locks, lock)
		}
		synctest.Wait() // a node that a newcomer asks before a holder has it refuses the holder
		assert.Equal(b, map[int]bool{0: true, 1: true}, held)
		var all []<-chan result
		for _, m := range []locker{rl.Semaphore(key, 2), rl.Mutex(key), rl.Mutex(key).Shared()} {
			all = append(all, later(func() (*redlock.Lock, error) { return m.Acquire(b.Context()) }))
			b.pass(100 * time.Millisecond)
		}
		s := b.status()
		var modes []string
		for _, waiter := range s.Waiters {
			modes = append(modes, string(waiter.Mode))
			assert.NotEmpty(b, waiter.Owner)
		}
		assert.Equal(b, []string{"permit", "exclusive", "shared"}, modes)
		require.Len(b, s.Holders, 2)
		for i, h := range s.Holders {
			assert.Equal(b, i, h.Permit)
		}
		for _, lock := range locks {
			require.NoError(b, lock.Release(b.Context()))
		}
		for _, done := range all {
			r := <-done
			require.NoError(b, r.err)
			require.NoError(b, r.lock.Release(b.Context()))
		}
	})
}

// A permit that is given up, and a writer that is released or gives up, each let in those behind them
// at once, without a timer.
func TestWhatFreesSomethingLetsTheNextIn(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		soon := func(done <-chan result) *redlock.Lock {
			from := time.Now()
			r := <-done
			require.NoError(b, r.err)
			assert.Less(b, time.Since(from), 20*time.Millisecond)
			return r.lock
		}
		acquire := func(m locker) <-chan result {
			done := later(func() (*redlock.Lock, error) { return m.Acquire(b.Context()) })
			b.pass(50 * time.Millisecond)
			b.pending(done)
			return done
		}
		other := b.another(nil)

		writer := b.lock()
		reader := acquire(other.Mutex(key).Shared())
		require.NoError(b, writer.Release(b.Context()))
		one := soon(reader)

		ctx, giveUp := context.WithCancel(b.Context())
		second := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(ctx) })
		b.pass(50 * time.Millisecond)
		reader = acquire(other.Mutex(key).Shared())
		giveUp()
		require.ErrorIs(b, (<-second).err, context.Canceled)
		two := soon(reader)

		for _, lock := range []*redlock.Lock{one, two} {
			require.NoError(b, lock.Release(b.Context()))
		}
		var locks []*redlock.Lock
		for range 3 {
			lock, err := b.rl.Semaphore("s", 3).TryAcquire(b.Context())
			require.NoError(b, err)
			locks = append(locks, lock)
		}
		synctest.Wait() // a node that a newcomer asks before a holder has it refuses the holder
		next := acquire(other.Semaphore("s", 3))
		require.NoError(b, locks[1].Release(b.Context()))
		lock := soon(next)
		assert.Equal(b, locks[1].Permit(), lock.Permit())
		locks[1] = lock
		for _, lock := range locks {
			require.NoError(b, lock.Release(b.Context()))
		}
		b.on(0)
	})
}

// Many readers of few processes behind a writer are all let in after its release, more than one
// script lets in.
func TestCrowdOfReadersFlowsIn(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, nil, func(b *bed) {
		const readers = 300
		writer := b.lock()
		processes := []*redlock.Redlock{b.another(nil), b.another(nil)}
		var held, most atomic.Int64
		var all sync.WaitGroup
		for i := range readers {
			m := processes[i%2].Mutex(key).Shared()
			all.Go(func() {
				lock, err := m.Acquire(b.Context())
				if !assert.NoError(b, err) {
					return
				}
				most.Store(max(most.Load(), held.Add(1)))
				time.Sleep(time.Second)
				held.Add(-1)
				assert.NoError(b, lock.Release(b.Context()))
			})
		}
		synctest.Wait()
		b.pass(time.Second)
		require.NoError(b, writer.Release(b.Context()))
		b.pass(900 * time.Millisecond)
		assert.Equal(b, int64(readers), most.Load(), "all of them beside each other")
		all.Wait()
		b.on(0)
	})
}

// Far more callers with deadlines than there are permits cost each other no turns.
func TestOverloadOfPermitsIsKeptOutOfTheQueue(t *testing.T) {
	t.Parallel()
	inHallOf(t, 5, func(h hall) {
		const hold = 5 * time.Millisecond
		did, scripts := h.overload(2, func(rl *redlock.Redlock) locker { return rl.Semaphore("k", 3) },
			&callers{n: 8, hold: hold}, &callers{n: 4, hold: hold}, &callers{n: 150, patience: 40 * time.Millisecond, hold: hold})
		assert.Less(t, scripts, 20*did, "eleven are a join, claims and releases")
	})
}

// Readers that wait behind a writer are let in by its release, and none is forgotten.
func TestReadersBehindAWriterAreLetIn(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		const readers = 100
		writer := b.lock(redlock.WithRenewal())
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		got := make(chan error, readers)
		clients := []*redlock.Redlock{b.another(nil), b.another(nil)}
		for i := range readers {
			m := clients[i%2].Mutex(key).Shared()
			go func() {
				lock, err := m.Acquire(ctx)
				if err == nil {
					err = lock.Release(b.Context())
				}
				got <- err
			}()
		}
		b.pass(5 * time.Second)
		assert.Empty(b, got)
		require.NoError(b, writer.Release(b.Context()))
		freed := time.Now()
		for range readers {
			require.NoError(b, <-got)
		}
		assert.Less(b, time.Since(freed), 100*time.Millisecond)
		b.on(0)
	})
}

func TestSemaphoreOfOneAndOfTheMost(t *testing.T) {
	t.Parallel()
	for _, permits := range []int{1, 1024} {
		inBubble(t, 1, nil, func(b *bed) {
			b.cluster.Record(false)
			m := b.rl.Semaphore(key, permits)
			held := make(map[int]*redlock.Lock)
			for range permits {
				lock, err := m.TryAcquire(b.Context())
				require.NoError(b, err)
				require.Nil(b, held[lock.Permit()], "no number twice")
				held[lock.Permit()] = lock
			}
			_, err := m.TryAcquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrHeld)
			require.ErrorIs(b, b.try(), redlock.ErrHeld)

			// Who wants it alone has it when all are given up, and none can be taken meanwhile.
			alone := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(b.Context()) })
			b.pass(time.Second)
			for i, lock := range held {
				b.pending(alone)
				require.NoError(b, lock.Release(b.Context()))
				if i%100 == 0 && len(held) > 1 {
					_, err := m.TryAcquire(b.Context())
					require.ErrorIs(b, err, redlock.ErrHeld, "the door is shut")
				}
				synctest.Wait()
			}
			r := <-alone
			require.NoError(b, r.err)
			require.NoError(b, r.lock.Release(b.Context()))
		})
	}
}

// A process looks after each of thousands of keys so seldom that a door which lasts for a
// reservation would be open for most of the time. Readers that relieve each other would keep a
// writer of that process from its lock for ever: each holds it until the next has it, too, and
// waits for the next for longer than such a door lasts, but not for as long as this one is shut.
func TestDoorStaysShutForAProcessThatWaitsForThousandsOfKeys(t *testing.T) {
	t.Parallel()
	const others, hold = 1500, 1500 * time.Millisecond
	inHall(t, func(h hall) {
		h.cluster.Record(false)
		for _, n := range h.cluster.Nodes() {
			for i := range others {
				n.Set(fmt.Sprint("other", i), "somebody@else", time.Hour)
			}
		}
		ctx, cancel := context.WithCancel(h.Context())
		quick := &redlock.Options{NoRestartGuard: true, NodeTimeout: 50 * time.Millisecond}
		writer, readers := h.process(quick), h.process(quick)
		var all sync.WaitGroup
		for i := range others {
			all.Go(func() {
				_, err := writer.Mutex(fmt.Sprint("other", i)).Acquire(ctx)
				assert.ErrorIs(h, err, context.Canceled)
			})
		}
		all.Go(func() {
			m := readers.Mutex("k").Shared()
			within := func(d time.Duration) (l *redlock.Lock) {
				for end := time.Now().Add(d); l == nil && time.Now().Before(end) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
					l, _ = m.TryAcquire(ctx)
				}
				return l
			}
			for present := within(hold); ctx.Err() == nil; {
				next := within(hold)
				if present != nil {
					h.release(present)
				}
				present = next
			}
		})
		time.Sleep(hold)
		start := time.Now()
		within, end := context.WithTimeout(ctx, 4*hold)
		defer end()
		l, err := writer.Mutex("k").Acquire(within)
		cancel()
		all.Wait()
		require.NoError(h, err)
		assert.Less(h, time.Since(start), 3*hold)
		h.release(l)
	})
}
