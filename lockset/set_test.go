package lockset_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/lockset"
	"github.com/quorumlock/redlock/redlocktest"
)

var errFns = errors.New("fn's")

func TestLocksComeInTheOrderOfTheMembers(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		locks, err := setOf(b.rl, "c", "a", "b").TryAcquire(b.Context())
		require.NoError(b, err)
		var keys []string
		for _, l := range locks {
			keys = append(keys, l.Key())
		}
		assert.Equal(b, []string{"c", "a", "b"}, keys)
		b.release(locks)
		b.free(keys...)
	})
}

// All are asked at the same time: the second does not wait for the answer to the first.
func TestFreeLocksTakeOneRoundTrip(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		cycle := func() {
			locks, err := setOf(b.rl, "c", "a", "b", "d", "e").Acquire(b.Context())
			require.NoError(b, err)
			b.release(locks)
		}
		cycle() // so that the servers know the scripts
		b.pass(time.Second)
		b.delay(10 * time.Millisecond)
		start := time.Now()
		cycle()
		// A batch on a long link may leave a quarter of a round trip after the one before.
		assert.Less(b, time.Since(start), 100*time.Millisecond, "an acquire and a release, of 20ms each")
	})
}

func TestSetIsRenewedTogetherAndEndsTogether(t *testing.T) {
	inBubble(t, 3, &redlock.Options{RestartGuard: 30 * time.Minute}, func(b *bed) {
		locks, err := lockset.New(b.rl.Mutex("a", redlock.WithFencing()), b.rl.Mutex("b", redlock.WithTTL(time.Minute))).Acquire(b.Context())
		require.NoError(b, err)
		assert.NotZero(b, locks[0].Fence())
		assert.Equal(b, locks[0].Until(), locks.Until(), "the earliest")
		assert.LessOrEqual(b, locks.Validity(), locks[0].Validity())
		ctx, cancel := locks.Within(b.Context())
		defer cancel()
		b.pass(time.Hour)
		require.NoError(b, ctx.Err(), "renewed")
		require.NoError(b, locks.Extend(b.Context(), 20*time.Minute))
		assert.Greater(b, locks.Validity(), 10*time.Minute)

		b.pass(time.Second) // no renewal is under way, which would put back what one node alone has lost
		for _, n := range b.cluster.Nodes()[:2] {
			n.Del("b")
		}
		require.ErrorIs(b, locks.Extend(b.Context(), 30*time.Minute), redlock.ErrLost)
		<-ctx.Done()
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
		assert.LessOrEqual(b, locks.Validity(), time.Duration(0))
		assert.Greater(b, locks[0].Validity(), 10*time.Minute, "the other is held still")
		err = locks.Release(b.Context())
		assert.ErrorIs(b, err, redlock.ErrNotHeld)
		assert.Equal(b, "b", b.keyOf(err))
		b.free("a", "b")
	})
}

func TestContextOfASetBelongsToAllOfIt(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		require.NoError(b, setOf(b.rl, "a", "b", "c").Do(b.Context(), func(ctx context.Context, locks lockset.Locks) error {
			for _, l := range locks {
				held, ok := redlock.Held(ctx, l.Key())
				assert.True(b, ok)
				assert.Same(b, l, held)
			}
			_, err := setOf(b.rl, "d", "b").Acquire(ctx)
			require.ErrorIs(b, err, redlock.ErrNested)
			b.free("d")
			require.NoError(b, locks[1].Release(ctx))
			<-ctx.Done()
			assert.ErrorIs(b, context.Cause(ctx), redlock.ErrReleased)
			return nil
		}))
		b.free("a", "b", "c")
	})
}

func TestTryAcquireLeavesNothingWhereOneIsHeld(t *testing.T) {
	for _, busy := range []string{"a", "b", "c"} {
		t.Run(busy, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				other := b.take(b.another(nil), busy)
				locks, err := setOf(b.rl, "c", "b", "a").TryAcquire(b.Context())
				require.Nil(b, locks)
				require.ErrorIs(b, err, redlock.ErrHeld)
				assert.Equal(b, busy, b.keyOf(err))
				b.release(other)
				b.free("a", "b", "c")
				b.pass(time.Hour)
				b.free("a", "b", "c")
			})
		})
	}
}

// A set that waits for one lock may wait for long, and others may want only the rest.
func TestFirstWaitHoldsNothing(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		busy := b.take(b.another(nil), "b")
		done := b.later(setOf(b.rl, "a", "b", "c").Acquire)
		b.pass(10 * time.Minute)
		b.free("a", "c")
		b.pending(done)
		b.release(busy)
		r := <-done
		require.NoError(b, r.err)
		b.held("a", "b", "c")
		assert.Greater(b, r.locks.Validity(), ttl/2)
		b.release(r.locks)
		b.free("a", "b", "c")
	})
}

// A lock that is kept while the set waits may have ended by WithMaxHold. Its lease is valid, but not its context.
func TestNoLockOfASetHasEndedWhenItIsComplete(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		busy, last := b.take(b.another(nil), "b"), b.take(b.another(nil), "c")
		set := lockset.New(b.rl.Mutex("a", redlock.WithMaxHold(2*time.Second)), b.rl.Mutex("b"), b.rl.Mutex("c"))
		done := b.later(func(ctx context.Context) (lockset.Locks, error) {
			return nil, set.Do(ctx, func(ctx context.Context, _ lockset.Locks) error { return ctx.Err() })
		})
		b.pass(time.Second)
		b.release(busy)
		b.pass(5 * time.Second)
		b.release(last)
		require.NoError(b, (<-done).err)
	})
}

// In the moment between a release and the claim of the waiter whose turn it is most nodes are free.
func TestSetOvertakesNoWaiterOfItsProcess(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		b.release(b.take(b.rl, "a"))
		b.pass(time.Second)
		b.delay(5 * time.Millisecond)
		busy := b.take(b.rl, "a")
		waiter := b.later(func(ctx context.Context) (lockset.Locks, error) {
			l, err := b.rl.Mutex("a", redlock.WithRenewal()).Acquire(ctx)
			return lockset.Locks{l}, err
		})
		b.pass(time.Second)
		b.later(func(ctx context.Context) (lockset.Locks, error) { return nil, busy.Release(ctx) })
		set := b.later(setOf(b.rl, "b", "a").Acquire) // while the release is under way
		b.pass(5 * time.Second)
		b.pending(set)
		r := <-waiter
		require.NoError(b, r.err)
		b.release(r.locks)
		r = <-set
		require.NoError(b, r.err)
		b.release(r.locks)
	})
}

// What it keeps while it waits for another is renewed, and taken anew if it is lost all the same.
func TestKeptLocksAreRenewedWhileWaiting(t *testing.T) {
	for _, lost := range []bool{false, true} {
		t.Run(fmt.Sprint("lost ", lost), func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				other := b.another(nil)
				first := b.take(other, "a")
				done := b.later(setOf(b.rl, "b", "a").Acquire)
				second := b.take(other, "b") // while the set waits for a and holds nothing
				b.release(first)
				b.held("a")
				b.pass(2 * time.Minute)
				b.held("a") // it waits for b
				b.pending(done)
				var thief *redlock.Lock
				if lost {
					for _, n := range b.cluster.Nodes()[:2] {
						n.Del("a")
					}
					thief = b.take(other, "a")
					b.pass(time.Minute)
				}
				b.release(second)
				if lost {
					b.pass(time.Minute)
					b.pending(done)
					b.release(thief)
				}
				r := <-done
				require.NoError(b, r.err)
				assert.Greater(b, r.locks.Validity(), ttl/2)
				b.release(r.locks)
				b.free("a", "b")
			})
		})
	}
}

// Nothing is left behind, whatever the set holds when its context ends, and the call does not outlast that.
func TestAcquireEndsWithItsContext(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		other := b.another(nil)
		for _, keeps := range []bool{false, true} {
			busy := b.take(other, "b")
			first := b.take(other, "a")
			ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
			start := time.Now()
			done := b.later(func(context.Context) (lockset.Locks, error) { return setOf(b.rl, "a", "b", "c").Acquire(ctx) })
			if keeps {
				b.release(first)
				b.held("a")
			}
			r := <-done
			assert.Equal(b, 30*time.Second, time.Since(start))
			assert.Nil(b, r.locks)
			assert.ErrorIs(b, r.err, context.DeadlineExceeded)
			assert.ErrorIs(b, r.err, redlock.ErrHeld)
			assert.Equal(b, map[bool]string{false: "a", true: "b"}[keeps], b.keyOf(r.err))
			b.free("c")
			cancel()
			if keeps {
				b.free("a")
			} else {
				b.release(first)
			}
			b.release(busy)
			b.free("a", "b", "c")
		}
		asked := b.cluster.Commands()
		canceled, cancel := context.WithCancel(b.Context())
		cancel()
		for _, acquire := range []func(context.Context) (lockset.Locks, error){setOf(b.rl, "a", "c").TryAcquire, setOf(b.rl, "a", "c").Acquire} {
			_, err := acquire(canceled)
			require.ErrorIs(b, err, context.Canceled)
		}
		assert.Equal(b, asked, b.cluster.Commands(), "without I/O")
	})
}

// A context that ends at any moment of an acquire leaves nothing, and the locks can be had at once.
func TestAcquireThatIsCancelledAtAnyMomentLeavesNothing(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		b.delay(2 * time.Millisecond)
		for at := time.Duration(0); at < 40*time.Millisecond; at += time.Millisecond {
			busy := b.take(b.rl, "b")
			b.pass(10 * time.Millisecond)
			ctx, cancel := context.WithTimeout(b.Context(), at)
			done := b.later(func(context.Context) (lockset.Locks, error) { return setOf(b.rl, "c", "a", "b").Acquire(ctx) })
			b.pass(10 * time.Millisecond)
			_ = busy.Release(b.Context())
			if r := <-done; r.err == nil {
				require.NoError(b, r.locks.Release(b.Context()))
			}
			cancel()
			b.pass(20 * time.Millisecond)
			b.free("a", "b", "c")
		}
	})
}

// Whatever the order in which the keys are named, there is no circle of sets that wait.
func TestSetsDoNotDeadlock(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.delay(time.Millisecond)
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
					err := setOf(rl, keys...).Do(ctx, func(ctx context.Context, _ lockset.Locks) error {
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
		b.pass(time.Second) // the slower nodes have had the releases, too
		b.free("a", "b", "c")
	})
}

// Three keys that are never free for long: a set that never kept any while it waits would not have its turn.
func TestSetOfAlwaysBusyKeysHasItsTurn(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.delay(time.Millisecond)
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
			locks, err := setOf(b.rl, "c", "b", "a").Acquire(limit)
			require.NoError(b, err)
			require.NoError(b, locks.Release(b.Context()))
		}
		stop()
		all.Wait()
	})
}

// Sixteen that want two of five keys, again and again: each has its turns.
func TestSetsShareTheTurns(t *testing.T) {
	for _, processes := range []int{1, 4} {
		t.Run(fmt.Sprint(processes, " processes"), func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				b.delay(time.Millisecond)
				rls := []*redlock.Redlock{b.rl}
				for len(rls) < processes {
					rls = append(rls, b.another(nil))
				}
				var turns [16]int
				ctx, cancel := context.WithTimeout(b.Context(), 6*time.Second)
				defer cancel()
				var all sync.WaitGroup
				for g := range turns {
					rl := rls[g%processes]
					all.Go(func() {
						for n := g; ctx.Err() == nil; n++ { // each wants every pair of keys as often as the others
							pair := n % 20
							one := pair % 5
							two := (one + 1 + pair/5) % 5
							if setOf(rl, fmt.Sprint(one), fmt.Sprint(two)).Do(ctx, func(context.Context, lockset.Locks) error {
								time.Sleep(2 * time.Millisecond)
								return nil
							}) == nil {
								turns[g]++
							}
						}
					})
				}
				all.Wait()
				least, most := turns[0], turns[0]
				for _, n := range turns {
					least, most = min(least, n), max(most, n)
				}
				assert.LessOrEqual(b, most, 2*least, "turns: %v", turns)
				assert.Greater(b, least, 20)
			})
		})
	}
}

func TestBadSetsAreRefusedWithoutIO(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		m := b.rl.Mutex("a")
		for text, s := range map[string]*lockset.Set{
			"it has no members":       lockset.New(),
			"set: it has no members":  {},
			`"a" is there twice`:      setOf(b.rl, "a", "b", "a"),
			`set: "a" is there twice`: lockset.New(m, m.Shared()),
			"member 1 is nil":         lockset.New(m, nil),
			"member 0 is nil":         lockset.New((*redlock.Mutex)(nil), m),
		} {
			asked := b.cluster.Commands()
			_, err := s.TryAcquire(b.Context())
			assert.ErrorIs(b, err, redlock.ErrInvalid, text)
			assert.ErrorContains(b, err, text)
			_, err = s.Acquire(b.Context())
			assert.ErrorIs(b, err, redlock.ErrInvalid, text)
			err = s.Do(b.Context(), func(context.Context, lockset.Locks) error { panic("called") })
			assert.ErrorIs(b, err, redlock.ErrInvalid, text)
			assert.Equal(b, asked, b.cluster.Commands(), text)
		}
		require.ErrorIs(b, setOf(b.rl, "a").Do(b.Context(), nil), redlock.ErrInvalid)
		for _, s := range []*lockset.Set{setOf(b.rl, "a", ""), lockset.New(m, b.rl.Mutex("b", redlock.WithMaxHold(-1)))} {
			_, err := s.Acquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrInvalid)
			b.free("a", "b")
		}
	})
}

func TestDo(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		s := setOf(b.rl, "a", "b")
		require.Equal(b, errFns, s.Do(b.Context(), func(context.Context, lockset.Locks) error {
			b.held("a", "b")
			return errFns
		}), "as it is")
		b.free("a", "b")

		var after context.Context
		require.NoError(b, s.Do(b.Context(), func(ctx context.Context, _ lockset.Locks) error { after = ctx; return nil }))
		assert.ErrorIs(b, context.Cause(after), redlock.ErrReleased)

		for name, lose := range map[string]func(){
			"deleted": func() {
				for _, n := range b.cluster.Nodes()[:3] {
					n.Del("b")
				}
			},
			"nodes away": func() {
				for _, n := range b.cluster.Nodes()[:3] {
					n.Hang()
				}
			},
		} {
			for _, fns := range []error{nil, errFns} {
				err := s.Do(b.Context(), func(ctx context.Context, _ lockset.Locks) error {
					synctest.Wait()
					lose()
					<-ctx.Done()
					assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
					return fns
				})
				require.ErrorIs(b, err, redlock.ErrLost, name)
				if fns != nil {
					require.ErrorIs(b, err, fns, name)
				}
				for _, n := range b.cluster.Nodes() {
					n.Resume()
				}
				b.pass(time.Minute)
				b.free("a", "b")
			}
		}

		// A loss that only the release finds.
		err := s.Do(b.Context(), func(context.Context, lockset.Locks) error {
			synctest.Wait()
			for _, n := range b.cluster.Nodes()[:3] {
				n.Del("b")
			}
			return nil
		})
		require.ErrorIs(b, err, redlock.ErrLost)
		assert.Equal(b, "b", b.keyOf(err))

		assert.Equal(b, "fn's", survive(func() {
			_ = s.Do(b.Context(), func(context.Context, lockset.Locks) error { panic("fn's") })
		}))
		b.free("a", "b")
	})
}

func TestMinorityDoesNotDelayASet(t *testing.T) {
	for what, fault := range map[string]func(*redlocktest.Node){"hung": (*redlocktest.Node).Hang, "down": (*redlocktest.Node).Stop} {
		for broken := range 3 {
			t.Run(fmt.Sprint(broken, " ", what), func(t *testing.T) {
				inBubble(t, 5, nil, func(b *bed) {
					b.release(b.take(b.rl, "a"))
					for i := range broken {
						fault(b.cluster.Node(2 * i))
					}
					b.takes(0, func() {
						for range 3 {
							locks, err := setOf(b.rl, "a", "b", "c").Acquire(b.Context())
							require.NoError(b, err)
							require.NoError(b, locks.Extend(b.Context(), ttl))
							require.NoError(b, locks.Release(b.Context()))
						}
					})
					for i := range broken {
						b.cluster.Node(2 * i).Resume()
					}
					b.pass(2 * time.Minute)
					b.free("a", "b", "c")
				})
			})
		}
	}
}

// An outage is waited out, as by Acquire of a Mutex; TryAcquire fails within the timeout per node.
func TestSetWaitsOutAnOutage(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.release(b.take(b.rl, "a"))
		for _, n := range b.cluster.Nodes()[:2] {
			n.Hang()
		}
		b.takes(nodeTimeout, func() {
			_, err := setOf(b.rl, "a", "b").TryAcquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrNoQuorum)
		})
		done := b.later(setOf(b.rl, "a", "b").Acquire)
		b.pass(time.Minute)
		b.pending(done)
		for _, n := range b.cluster.Nodes() {
			n.Resume()
		}
		r := <-done
		require.NoError(b, r.err)
		b.release(r.locks)
		b.pass(time.Minute)
		b.free("a", "b")
	})
}

// Each lock that hooks are told to be acquired is told to be released, on the way and at the end.
func TestHooksAreToldOfEachLockOfASet(t *testing.T) {
	var mu sync.Mutex
	held := make(map[string]string)
	inBubble(t, 3, &redlock.Options{Hooks: &redlock.Hooks{
		Acquired: func(_ context.Context, i redlock.AcquireInfo) {
			mu.Lock()
			defer mu.Unlock()
			if i.Err == nil {
				held[i.Token] = i.Key
			}
		},
		Released: func(_ context.Context, i redlock.ReleaseInfo) {
			mu.Lock()
			defer mu.Unlock()
			assert.Equal(t, i.Key, held[i.Token])
			delete(held, i.Token)
		},
	}}, func(b *bed) {
		told := func() int { mu.Lock(); defer mu.Unlock(); return len(held) }
		other := b.another(nil)
		s := setOf(b.rl, "a", "b")
		locks, err := s.TryAcquire(b.Context())
		require.NoError(b, err)
		assert.Equal(b, 2, told())
		b.release(locks)
		assert.Zero(b, told())

		busy := b.take(other, "b")
		_, err = s.TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
		assert.Zero(b, told())
		done := b.later(s.Acquire)
		assert.Zero(b, told())
		b.release(busy)
		r := <-done
		require.NoError(b, r.err)
		assert.Equal(b, 2, told())
		b.release(r.locks)
		assert.Zero(b, told())
	})
}

// A hook that does not return leaves nothing held, and its panic is the caller's.
func TestSetWhoseHookPanicsIsReleased(t *testing.T) {
	for name, leave := range map[string]func(){"panic": func() { panic("the hook's") }, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			calls := 0
			inBubble(t, 3, &redlock.Options{Hooks: &redlock.Hooks{Acquired: func(context.Context, redlock.AcquireInfo) {
				mu.Lock()
				calls++
				second := calls == 2
				mu.Unlock()
				if second {
					leave()
				}
			}}}, func(b *bed) {
				returned := false
				got := survive(func() {
					_, _ = setOf(b.rl, "a", "b", "c").Acquire(b.Context())
					returned = true
				})
				assert.False(b, returned)
				if name == "panic" {
					assert.Equal(b, "the hook's", got)
				}
				b.pass(time.Minute)
				b.free("a", "b", "c")
			})
		})
	}
}

// WithMinHold is for work that was done.
func TestWhatASetGivesBackIsNotKept(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		kept := func(k string) *redlock.Mutex { return b.rl.Mutex(k, redlock.WithMinHold(5*time.Second)) }
		set := lockset.New(kept("a"), kept("b"), kept("c"))
		busy := b.take(b.another(nil), "b")
		_, err := set.TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
		b.free("a", "c")
		b.release(busy)

		locks, err := set.TryAcquire(b.Context())
		require.NoError(b, err)
		b.release(locks)
		b.held("a", "b", "c")
		b.pass(6 * time.Second)
		b.free("a", "b", "c")
	})
}

// A bound of one lock is for each wait for that lock, and nothing is left when it is over.
func TestMaxWaitOfOneLockOfASet(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		busy := b.take(b.another(nil), "b")
		b.takes(time.Minute, func() {
			_, err := lockset.New(b.rl.Mutex("a", redlock.WithMaxWait(time.Second)), b.rl.Mutex("b", redlock.WithMaxWait(time.Minute))).Acquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrHeld)
			require.ErrorIs(b, err, context.DeadlineExceeded)
			assert.Equal(b, "b", b.keyOf(err))
		})
		b.free("a")
		b.release(busy)
		b.free("b")
	})
}

func TestCloseEndsASetThatWaits(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		busy := b.take(b.another(nil), "b")
		done := b.later(setOf(b.rl, "a", "b").Acquire)
		require.NoError(b, b.rl.Close())
		r := <-done
		require.ErrorIs(b, r.err, redlock.ErrClosed)
		_, err := setOf(b.rl, "a", "b").TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrClosed)
		b.release(busy)
		b.free("a", "b")
	})
}

// A set takes a lock of each kind: one shared, a permit, one alone.
func TestSetOfLocksOfAllKinds(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		set := func(alone string) *lockset.Set {
			return lockset.New(b.rl.Mutex("db").Shared(), b.rl.Semaphore("calls", 2), b.rl.Mutex(alone, redlock.WithFencing()))
		}
		first, err := set("one").TryAcquire(b.Context())
		require.NoError(b, err)
		busy := b.take(b.rl, "z")
		_, err = set("z").TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)
		b.release(busy)
		second, err := set("two").TryAcquire(b.Context())
		require.NoError(b, err, "the one before gave back what it had")
		assert.NotEqual(b, first[1].Permit(), second[1].Permit())
		assert.Positive(b, first[2].Fence())

		_, err = set("three").TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld, "there are two permits")
		assert.Equal(b, "calls", b.keyOf(err))
		b.free("three")
		_, err = b.rl.Mutex("db").TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrHeld)

		b.pass(30 * time.Second)
		assert.Positive(b, first.Validity(), "all of them are renewed")
		third := b.later(set("three").Acquire)
		b.pass(time.Second)
		b.pending(third)
		b.release(second)
		r := <-third
		require.NoError(b, r.err)
		assert.Equal(b, second[1].Permit(), r.locks[1].Permit())
		b.release(r.locks)
		b.release(first)
		b.free("db", "calls", "one", "two", "three")
	})
}

// Sets of all kinds, named in all orders: each has its turns, no lock is shared beside one that is held alone,
// and no more permits are held than there are.
func TestSetsOfAllKindsDoNotDeadlock(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.delay(time.Millisecond)
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
			var ms []lockset.Member
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
					err := lockset.New(ms...).Do(ctx, func(ctx context.Context, _ lockset.Locks) error {
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
		b.pass(time.Second) // the slower nodes have had the releases, too
		b.free("a", "b", "c")
	})
}
