package promises_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// takeBy acquires a key at once.
func (b *bed) takeBy(rl *redlock.Redlock, key string) *redlock.Lock {
	b.Helper()
	lock, err := rl.Mutex(key).TryAcquire(b.Context())
	require.NoError(b, err)
	synctest.Wait()
	return lock
}

// isFree asserts whether nobody has a key on any node.
func (b *bed) isFree(want bool, keys ...string) {
	b.Helper()
	synctest.Wait()
	for _, k := range keys {
		free := !slices.ContainsFunc(b.cluster.Holders(k), func(h string) bool { return h != "" })
		assert.Equal(b, want, free, "is %s free", k)
	}
}

func TestAllLocksAreAcquiredInOneRoundTrip(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		known, err := allOf(b.rl, "c", "a", "b").TryAcquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, known.Release(b.Context())) // so that the servers know the scripts
		b.pass(time.Second)
		for _, n := range b.cluster.Nodes() {
			n.Delay(10 * time.Millisecond)
		}
		var held redlock.Locks
		b.takes(20*time.Millisecond, func() {
			var err error
			held, err = allOf(b.rl, "c", "a", "b").TryAcquire(b.Context())
			require.NoError(b, err)
		})
		var keys []string
		for _, l := range held {
			keys = append(keys, l.Key())
			assert.Equal(b, "granted granted granted", strings.Join(slices.DeleteFunc(strings.Fields(votes(l.Outcomes())),
				func(v string) bool { return v != "granted" })[:3], " "))
		}
		assert.Equal(b, []string{"c", "a", "b"}, keys, "in the order in which they were given")
		b.pass(time.Second)
		b.takes(20*time.Millisecond, func() { require.NoError(b, held.Release(b.Context())) })
		b.pass(time.Second)
		b.isFree(true, keys...)
	})
}

func TestLocksAreRenewedTogetherAndEndTogether(t *testing.T) {
	inBubble(t, 3, &redlock.Options{RestartGuard: 30 * time.Minute}, func(b *bed) {
		held, err := redlock.All(b.rl.Mutex("a", redlock.WithFencing()), b.rl.Mutex("b", redlock.WithTTL(time.Minute))).Acquire(b.Context())
		require.NoError(b, err)
		assert.NotZero(b, held[0].Fence())
		assert.Equal(b, held[0].Until(), held.Until(), "the earliest")
		assert.LessOrEqual(b, held.Validity(), held[0].Validity())
		ctx := held.Context()
		b.pass(time.Hour)
		require.NoError(b, ctx.Err(), "renewed")
		require.NoError(b, held.Extend(b.Context(), 20*time.Minute))
		assert.Greater(b, held.Validity(), 10*time.Minute)

		b.pass(time.Second) // no renewal is under way, which would put back what one node alone has lost
		b.each([]int{0, 1}, func(n *redlocktest.Node) { n.Del("b") })
		require.ErrorIs(b, held.Extend(b.Context(), 30*time.Minute), redlock.ErrLost)
		<-ctx.Done()
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
		assert.LessOrEqual(b, held.Validity(), time.Duration(0))
		assert.Greater(b, held[0].Validity(), 10*time.Minute, "the other is held still")
		err = held.Release(b.Context())
		assert.ErrorIs(b, err, redlock.ErrNotHeld, "what became of b")
		b.isFree(true, "a", "b")
	})
}

// A context for each call would last until the locks end, and a program may well ask in a loop.
func TestContextOfLocksIsMadeOnce(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		held, err := allOf(b.rl, "a", "b", "c").Acquire(context.WithValue(b.Context(), ctxKey{}, "value"))
		require.NoError(b, err)
		ctx := held.Context()
		assert.Same(b, ctx, held.Context())
		assert.Same(b, ctx, redlock.Locks{held[0], held[1], held[2]}.Context(), "the same locks")
		assert.Equal(b, "value", ctx.Value(ctxKey{}))
		synctest.Wait() // nothing else allocates
		assert.Zero(b, testing.AllocsPerRun(100, func() { held.Context() }))

		pair, turned, one := held[:2].Context(), redlock.Locks{held[1], held[0]}.Context(), held[1:2].Context()
		assert.Same(b, pair, held[:2].Context())
		assert.Same(b, held[1].Context(), one)
		require.NoError(b, held[2].Release(b.Context()))
		<-ctx.Done()
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrReleased)
		for _, others := range []context.Context{pair, turned, one} {
			assert.NoError(b, others.Err(), "others of these locks")
		}
		assert.Same(b, ctx, held.Context(), "also when it has ended")
		require.NoError(b, held[1].Release(b.Context()))
		<-pair.Done()
		<-turned.Done()
		require.NoError(b, held[0].Release(b.Context()))

		// Those who ask at the same moment get the same.
		held, err = allOf(b.rl, "a", "b").Acquire(b.Context())
		require.NoError(b, err)
		all := make(chan context.Context)
		for range 20 {
			go func() { all <- held.Context() }()
		}
		for range 20 {
			assert.Same(b, held.Context(), <-all)
		}
		require.NoError(b, held.Release(b.Context()))
	})
}

func TestTryAcquireOfSeveralLeavesNothingWhereOneIsHeld(t *testing.T) {
	for _, busy := range []string{"a", "b", "c"} {
		t.Run(busy, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				other := b.takeBy(b.another(nil), busy)
				held, err := allOf(b.rl, "c", "b", "a").TryAcquire(b.Context())
				require.Nil(b, held)
				require.ErrorIs(b, err, redlock.ErrHeld)
				assert.Equal(b, busy, b.quorumError(err).Key)
				b.isFree(true, slices.DeleteFunc([]string{"a", "b", "c"}, func(k string) bool { return k == busy })...)
				assert.Positive(b, other.Validity())
				b.pass(time.Hour)
				b.isFree(true, "a", "b", "c")
			})
		})
	}
}

func TestAcquireOfSeveralHoldsNothingWhileItWaits(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		other := b.another(&redlock.Options{RestartGuard: 30 * time.Minute})
		busy := b.takeBy(other, "b")
		require.NoError(b, busy.Extend(b.Context(), 30*time.Minute))
		done := make(chan redlock.Locks)
		go func() {
			held, err := allOf(b.rl, "a", "b", "c").Acquire(b.Context())
			assert.NoError(b, err)
			done <- held
		}()
		b.pass(time.Minute)
		b.isFree(true, "a", "c")
		require.NoError(b, busy.Release(b.Context()))
		held := <-done
		b.isFree(false, "a", "b", "c")
		assert.Greater(b, held.Validity(), ttl/2)
		require.NoError(b, held.Release(b.Context()))
		b.isFree(true, "a", "b", "c")
	})
}

// Whatever the order in which the keys are named, there is no circle of those who wait.
func TestSetsOfKeysDoNotDeadlock(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		for _, n := range b.cluster.Nodes() {
			n.Delay(time.Millisecond)
		}
		sets := [][]string{{"a", "b"}, {"b", "c"}, {"c", "a"}, {"c", "b", "a"}, {"a", "b", "c"}}
		var mu sync.Mutex
		inside := make(map[string]int)
		var all sync.WaitGroup
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		defer cancel()
		for _, keys := range sets {
			rl := b.another(nil)
			all.Go(func() {
				for range 10 {
					err := allOf(rl, keys...).Do(ctx, func(ctx context.Context, held redlock.Locks) error {
						mu.Lock()
						for _, k := range keys {
							inside[k]++
							assert.Equal(b, 1, inside[k], k)
						}
						mu.Unlock()
						time.Sleep(5 * time.Millisecond)
						mu.Lock()
						for _, k := range keys {
							inside[k]--
						}
						mu.Unlock()
						return ctx.Err()
					})
					if !assert.NoError(b, err) {
						return
					}
				}
			})
		}
		all.Wait()
		b.isFree(true, "a", "b", "c")
	})
}

// Three keys that are never free for long: without keeping some of them a set of all three
// would never have its turn.
func TestSetOfAlwaysBusyKeysHasItsTurn(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, nil, func(b *bed) {
		for _, n := range b.cluster.Nodes() {
			n.Delay(time.Millisecond)
		}
		ctx, stop := context.WithCancel(b.Context())
		var all sync.WaitGroup
		for _, k := range []string{"a", "b", "c"} {
			for range 3 {
				rl := b.another(nil)
				all.Go(func() {
					for ctx.Err() == nil {
						_ = rl.Mutex(k).Do(ctx, func(context.Context, *redlock.Lock) error {
							time.Sleep(10 * time.Millisecond)
							return nil
						})
					}
				})
			}
		}
		b.pass(time.Second)
		limit, cancel := context.WithTimeout(b.Context(), 20*time.Second)
		defer cancel()
		for range 5 {
			held, err := allOf(b.rl, "c", "b", "a").Acquire(limit)
			require.NoError(b, err)
			require.NoError(b, held.Release(b.Context()))
		}
		stop()
		all.Wait()
	})
}

func TestPartThatIsLostWhileWaitingForAnotherIsAcquiredAgain(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		// Its fifth turn keeps a and waits for b: for four turns the one that it waited for was
		// had, and the other one was taken.
		other := b.another(&redlock.Options{RestartGuard: 30 * time.Minute})
		holder := b.takeBy(other, "a")
		var waits []string
		done := make(chan redlock.Locks)
		go func() {
			held, err := allOf(b.rl, "a", "b").Acquire(b.Context())
			assert.NoError(b, err)
			done <- held
		}()
		synctest.Wait()
		for turn := range 6 {
			next := []string{"b", "a"}[turn%2]
			if turn >= 4 {
				next = "b"
			}
			if holder.Key() == next {
				break
			}
			taken := b.takeBy(other, next) // before the set, which waits for the other, asks for it
			require.NoError(b, holder.Release(b.Context()))
			// Its claim may overtake the release on the way to other nodes. Then it has the lock
			// after a reservation, 0.8s, at the latest.
			b.pass(2 * time.Second)
			waits = append(waits, next)
			holder = taken
		}
		assert.Len(b, waits, 5)
		b.isFree(false, "a", "b") // it keeps a
		b.each([]int{0, 1}, func(n *redlocktest.Node) { n.Del("a") })
		thief := b.takeBy(other, "a")
		b.pass(ttl/3 + nodeTimeout) // the renewal has told it
		assert.Empty(b, b.cluster.Node(2).Get("a"), "what is left of a part that is lost goes at once")
		for _, l := range []*redlock.Lock{holder, thief} {
			require.NoError(b, l.Extend(b.Context(), 30*time.Minute))
		}
		b.pass(time.Minute)
		require.NoError(b, holder.Release(b.Context()))
		synctest.Wait()
		select {
		case <-done:
			b.Fatal("has all, although a is another's")
		default:
		}
		_ = thief.Release(b.Context())
		held := <-done
		assert.Positive(b, held.Validity())
		require.NoError(b, held.Release(b.Context()))
		b.isFree(true, "a", "b")
	})
}

func TestAcquireOfSeveralEndsWithItsContext(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		busy := b.takeBy(b.another(&redlock.Options{RestartGuard: 30 * time.Minute}), "b")
		require.NoError(b, busy.Extend(b.Context(), 30*time.Minute))
		ctx, cancel := context.WithTimeout(b.Context(), 3*time.Second)
		defer cancel()
		b.takes(3*time.Second, func() {
			held, err := allOf(b.rl, "a", "b", "c").Acquire(ctx)
			assert.Nil(b, held)
			assert.ErrorIs(b, err, context.DeadlineExceeded)
			assert.ErrorIs(b, err, redlock.ErrHeld)
			assert.Equal(b, "b", b.quorumError(err).Key)
		})
		b.isFree(true, "a", "c")

		asked := b.cluster.Commands()
		_, err := allOf(b.rl, "a", "c").TryAcquire(canceled())
		require.ErrorIs(b, err, context.Canceled)
		assert.Equal(b, asked, b.cluster.Commands(), "without I/O")
	})
}

func TestBadSetsAreRefusedWithoutIO(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		other := b.another(nil)
		var unmade *redlock.Mutexes
		for text, s := range map[string]*redlock.Mutexes{
			"at least one is needed":                 redlock.All(),
			`"a" is there twice`:                     allOf(b.rl, "a", "b", "a"),
			"another Redlock":                        redlock.All(b.rl.Mutex("a"), other.Mutex("b")),
			"Mutex 1 was not made by Redlock.Mutex":  redlock.All(b.rl.Mutex("a"), nil),
			"Mutex 0 was not made by Redlock.Mutex":  redlock.All(new(redlock.Mutex), b.rl.Mutex("a")),
			"the key is empty":                       allOf(b.rl, "a", ""),
			"WithMaxHold is -1ns":                    redlock.All(b.rl.Mutex("a", redlock.WithMaxHold(-1))),
			"it was not made by All":                 new(redlock.Mutexes),
			"invalid Mutexes: it was not made by Al": unmade,
		} {
			asked := b.cluster.Commands()
			_, err := s.TryAcquire(b.Context())
			assert.ErrorIs(b, err, redlock.ErrInvalid, text)
			assert.ErrorContains(b, err, text)
			_, err = s.Acquire(b.Context())
			assert.ErrorIs(b, err, redlock.ErrInvalid, text)
			err = s.Do(b.Context(), func(context.Context, redlock.Locks) error { panic("called") })
			assert.ErrorIs(b, err, redlock.ErrInvalid, text)
			assert.Equal(b, asked, b.cluster.Commands(), text)
		}
		require.ErrorIs(b, allOf(b.rl, "a").Do(b.Context(), nil), redlock.ErrInvalid)
		var none redlock.Locks
		assert.ErrorIs(b, none.Release(b.Context()), redlock.ErrInvalid)
		assert.ErrorIs(b, none.Extend(b.Context(), ttl), redlock.ErrInvalid)
		assert.ErrorIs(b, redlock.Locks{nil}.Release(b.Context()), redlock.ErrInvalid)
		assert.Zero(b, none.Validity())
		assert.Zero(b, none.Until())
		assert.Panics(b, func() { none.Context() })
	})
}

func TestDoOfSeveral(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		s := allOf(b.rl, "a", "b")
		require.ErrorIs(b, s.Do(b.Context(), func(ctx context.Context, held redlock.Locks) error {
			b.isFree(false, "a", "b")
			return errGaveUp
		}), errGaveUp)
		b.isFree(true, "a", "b")

		err := s.Do(b.Context(), func(ctx context.Context, held redlock.Locks) error {
			synctest.Wait()
			b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.Del("b") })
			<-ctx.Done()
			assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
			return nil
		})
		require.ErrorIs(b, err, redlock.ErrLost)
		b.isFree(true, "a", "b")

		assert.Equal(b, "fn's", survive(func() {
			_ = s.Do(b.Context(), func(context.Context, redlock.Locks) error { panic("fn's") })
		}))
		b.isFree(true, "a", "b")
	})
}

func TestMinorityDoesNotDelaySeveral(t *testing.T) {
	for what, fault := range map[string]func(*redlocktest.Node){"hung": hang, "down": stop} {
		for broken := range 3 {
			t.Run(fmt.Sprint(broken, " ", what), func(t *testing.T) {
				inBubble(t, 5, nil, func(b *bed) {
					b.cycle()
					for i := range broken {
						fault(b.cluster.Node(2 * i))
					}
					b.takes(0, func() {
						for range 3 {
							held, err := allOf(b.rl, "a", "b", "c").Acquire(b.Context())
							require.NoError(b, err)
							require.NoError(b, held.Extend(b.Context(), ttl))
							require.NoError(b, held.Release(b.Context()))
						}
					})
					for i := range broken {
						b.cluster.Node(2 * i).Resume()
					}
					b.pass(2 * time.Minute)
					b.isFree(true, "a", "b", "c")
				})
			})
		}
	}
}

// Each lock that hooks are told to be acquired is told to be released, on the way and at
// the end.
func TestHooksAreToldOfEachLockOfASet(t *testing.T) {
	var mu sync.Mutex
	held := make(map[string]string)
	var failed []string
	hooks := &redlock.Hooks{
		Acquired: func(i redlock.AcquireInfo) {
			mu.Lock()
			defer mu.Unlock()
			if i.Err != nil {
				failed = append(failed, i.Key)
				return
			}
			held[i.Token] = i.Key
		},
		Released: func(i redlock.ReleaseInfo) {
			mu.Lock()
			defer mu.Unlock()
			if held[i.Token] != i.Key {
				failed = append(failed, "unknown "+i.Key)
			}
			delete(held, i.Token)
		},
	}
	inBubble(t, 3, &redlock.Options{Hooks: hooks}, func(b *bed) {
		other := b.another(nil)
		s := allOf(b.rl, "a", "b")
		l, err := s.TryAcquire(b.Context())
		require.NoError(b, err)
		assert.Len(b, held, 2)
		require.NoError(b, l.Release(b.Context()))
		assert.Empty(b, held)

		synctest.Wait() // or a node that has not heard of the release would be without the next holder
		busy := b.takeBy(other, "b")
		_, err = s.TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
		assert.Equal(b, []string{"b"}, failed)

		ctx, cancel := context.WithTimeout(b.Context(), time.Second)
		defer cancel()
		_, err = s.Acquire(ctx)
		require.ErrorIs(b, err, context.DeadlineExceeded)
		b.pass(time.Second)
		assert.Empty(b, held)
		assert.Equal(b, []string{"b", "b"}, failed)

		done := make(chan redlock.Locks)
		go func() { l, _ := s.Acquire(b.Context()); done <- l }()
		synctest.Wait()
		third := b.takeBy(other, "a") // so that b is given back, and a waited for
		require.NoError(b, busy.Release(b.Context()))
		b.pass(time.Second)
		mu.Lock()
		assert.Empty(b, held)
		mu.Unlock()
		require.NoError(b, third.Release(b.Context()))
		l = <-done
		assert.Len(b, held, 2)
		require.NoError(b, l.Release(b.Context()))
		assert.Empty(b, held)
	})
}

func TestSetWhoseHookPanicsIsReleased(t *testing.T) {
	for name, leave := range leaves {
		t.Run(name, func(t *testing.T) {
			calls := 0
			inBubble(t, 3, &redlock.Options{Hooks: &redlock.Hooks{Acquired: func(redlock.AcquireInfo) {
				if calls++; calls == 2 {
					leave()
				}
			}}}, func(b *bed) {
				survive(func() { _, _ = allOf(b.rl, "a", "b", "c").Acquire(b.Context()) })
				b.pass(time.Minute)
				b.isFree(true, "a", "b", "c")
			})
		})
	}
}

func TestCloseEndsWhoWaitsForSeveral(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		busy := b.takeBy(b.another(nil), "b")
		done := make(chan error, 1)
		go func() { _, err := allOf(b.rl, "a", "b").Acquire(b.Context()); done <- err }()
		synctest.Wait()
		require.NoError(b, b.rl.Close())
		require.ErrorIs(b, <-done, redlock.ErrClosed)
		_, err := allOf(b.rl, "a", "b").TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrClosed)
		require.NoError(b, busy.Release(b.Context()))
		b.isFree(true, "a", "b")
	})
}

func TestNoRandomnessNoSet(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		inside.SetRandom(b.rl, &fewTokens{left: 1})
		_, err := allOf(b.rl, "a", "b").Acquire(b.Context())
		require.ErrorContains(b, err, "no randomness")
		b.isFree(true, "a", "b")
	})
}

// fewTokens has randomness for some tokens only.
type fewTokens struct{ left int }

func (f *fewTokens) Read(p []byte) (int, error) {
	if f.left--; f.left < 0 {
		return 0, errors.New("exhausted")
	}
	return len(p), nil
}

// A set takes a lock of each kind: one shared, a permit, one alone.
func TestSetOfLocksOfAllKinds(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		set := func(alone string) *redlock.Mutexes {
			return redlock.All(b.rl.Mutex("db").Shared(), b.rl.Semaphore("calls", 2), b.rl.Mutex(alone, redlock.WithFencing()))
		}
		b.cycle()
		for _, n := range b.cluster.Nodes() {
			n.Delay(10 * time.Millisecond)
		}
		var first redlock.Locks
		held, err := set("one").TryAcquire(b.Context()) // the servers know the scripts then
		require.NoError(b, err)
		require.NoError(b, held.Release(b.Context()))
		b.pass(time.Second)
		b.takes(20*time.Millisecond, func() {
			first, err = set("one").TryAcquire(b.Context())
			require.NoError(b, err)
		})
		b.pass(time.Second)
		for _, n := range b.cluster.Nodes() {
			n.Delay(0)
		}
		busy := b.takeBy(b.rl, "z")
		_, err = set("z").TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
		require.NoError(b, busy.Release(b.Context()))
		synctest.Wait()
		second, err := set("two").TryAcquire(b.Context())
		require.NoError(b, err, "what the one before had of them it gave back")
		assert.NotEqual(b, first[1].Permit(), second[1].Permit())
		assert.Positive(b, first[2].Fence())
		assert.Panics(b, func() { first[0].Permit() })

		_, err = set("three").TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld, "there are two permits")
		b.isFree(true, "three")
		_, err = b.rl.Mutex("db").TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)

		b.pass(30 * time.Second)
		assert.Positive(b, first.Validity(), "all of them are renewed")
		third := later(func() (*redlock.Lock, error) {
			held, err := set("three").Acquire(b.Context())
			if err != nil {
				return nil, err
			}
			return held[1], held.Release(b.Context())
		})
		b.pass(time.Second)
		b.pending(third)
		require.NoError(b, second.Release(b.Context()))
		r := <-third
		require.NoError(b, r.err)
		assert.Equal(b, second[1].Permit(), r.lock.Permit())
		require.NoError(b, first.Release(b.Context()))
		b.isFree(true, "db", "calls", "one", "two", "three")
	})
}

// Sets are named in all orders, of all kinds, and each has its turns. Nobody is beside one who
// has a lock alone, and no more permits are held than there are.
func TestSetsOfAllKindsDoNotDeadlock(t *testing.T) {
	t.Parallel()
	inBubble(t, 3, nil, func(b *bed) {
		for _, n := range b.cluster.Nodes() {
			n.Delay(time.Millisecond)
		}
		type want struct {
			key  string
			kind int // 0: alone; -1: shared; above: of so many permits
		}
		sets := [][]want{
			{{"a", -1}, {"b", 2}, {"c", 0}}, {{"c", 0}, {"b", 2}, {"a", -1}}, {{"b", 2}, {"a", -1}},
			{{"a", 0}, {"c", 0}}, {{"c", 0}, {"b", 0}, {"a", -1}}, {{"b", 2}, {"c", 0}},
		}
		var mu sync.Mutex
		alone, others := make(map[string]int), make(map[string]int)
		count := func(set []want, by int) {
			mu.Lock()
			defer mu.Unlock()
			for _, w := range set {
				if w.kind == 0 {
					alone[w.key] += by
				} else {
					others[w.key] += by
				}
				assert.True(b, alone[w.key] == 0 || alone[w.key] == 1 && others[w.key] == 0, "%s: %d alone, %d others", w.key, alone[w.key], others[w.key])
				assert.True(b, w.kind <= 0 || others[w.key] <= w.kind)
			}
		}
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Minute)
		defer cancel()
		var all sync.WaitGroup
		for _, set := range sets {
			rl := b.another(nil)
			var ms []*redlock.Mutex
			for _, w := range set {
				switch m := rl.Mutex(w.key); {
				case w.kind > 0:
					ms = append(ms, rl.Semaphore(w.key, w.kind))
				case w.kind < 0:
					ms = append(ms, m.Shared())
				default:
					ms = append(ms, m)
				}
			}
			all.Go(func() {
				for range 10 {
					err := redlock.All(ms...).Do(ctx, func(ctx context.Context, held redlock.Locks) error {
						count(set, 1)
						time.Sleep(5 * time.Millisecond)
						count(set, -1)
						return ctx.Err()
					})
					if !assert.NoError(b, err, fmt.Sprint(set)) {
						return
					}
				}
			})
		}
		all.Wait()
		b.isFree(true, "a", "b", "c")
	})
}

// The same key twice, in two kinds, is a wait for oneself.
func TestOneKeyInTwoKindsIsNoSet(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		asked := b.cluster.Commands()
		m := b.rl.Mutex("a")
		for text, s := range map[string]*redlock.Mutexes{
			`"a" is there twice`:                   redlock.All(m, m.Shared()),
			`"a" is there twice: keys must differ`: redlock.All(b.rl.Semaphore("a", 2), m),
			"permits is 0":                         redlock.All(m, b.rl.Semaphore("b", 0)),
			"WithFencing is for exclusive lo":      redlock.All(m, b.rl.Mutex("b", redlock.WithFencing()).Shared()),
		} {
			_, err := s.TryAcquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrInvalid)
			assert.ErrorContains(b, err, text)
		}
		assert.Equal(b, asked, b.cluster.Commands())
	})
}

// A set whose context ends while it waits for a permit leaves nothing.
func TestSetThatWaitsForAPermitEndsWithItsContext(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		busy, err := b.another(nil).Semaphore("b", 1).TryAcquire(b.Context())
		require.NoError(b, err)
		ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
		defer cancel()
		go func() { // so that the holder does not end by its lease
			for ctx.Err() == nil {
				_ = busy.Extend(ctx, ttl)
				time.Sleep(time.Second)
			}
		}()
		_, err = redlock.All(b.rl.Mutex("a").Shared(), b.rl.Semaphore("b", 1), b.rl.Mutex("c")).Acquire(ctx)
		require.ErrorIs(b, err, context.DeadlineExceeded)
		require.ErrorIs(b, err, redlock.ErrHeld)
		synctest.Wait()
		b.isFree(true, "a", "c")
		require.NoError(b, busy.Release(b.Context()))
		b.isFree(true, "b")
	})
}
