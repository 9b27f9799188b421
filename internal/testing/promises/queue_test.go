package promises_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/longtest"
	"github.com/quorumlock/redlock/redlocktest"
)

// hall is a bed with those who wait there. Each Redlock counts as a process: nodes tell
// them apart by an id of their own.
type hall struct{ *bed }

func inHall(t *testing.T, f func(h hall)) {
	t.Helper()
	inBubble(t, 5, nil, func(b *bed) { f(hall{b}) })
}

// process opens another Redlock on the nodes.
func (h hall) process(o *redlock.Options) *redlock.Redlock {
	h.Helper()
	rl, err := redlock.New(h.cluster.Clients(), o)
	require.NoError(h, err)
	h.Cleanup(func() { require.NoError(h, rl.Close()) })
	return rl
}

// acquire acquires on all nodes. Where one has not set the key yet, a visitor that is
// granted there asks again before it joins the line.
func (h hall) acquire(m *redlock.Mutex) *redlock.Lock {
	h.Helper()
	l, err := m.Acquire(h.Context())
	require.NoError(h, err)
	synctest.Wait()
	return l
}

func (h hall) release(l *redlock.Lock) {
	h.Helper()
	require.NoError(h, l.Release(context.Background()))
}

// arbiter is the node that keeps the line of the key.
func (h hall) arbiter(m *redlock.Mutex) *redlocktest.Node {
	return h.cluster.Node(h.order(m)[0])
}

// entries are those who wait at a node.
func (h hall) entries(n *redlocktest.Node, m *redlock.Mutex) (found []string) {
	members, _ := n.Redis().ZMembers(queueKey(m.Key()))
	for _, e := range members {
		if !strings.HasPrefix(e, "woken ") && !strings.HasPrefix(e, "silent ") {
			found = append(found, e)
		}
	}
	return found
}

// empty checks that nothing is left on any node.
func (h hall) empty() {
	h.Helper()
	synctest.Wait()
	for _, n := range h.cluster.Nodes() {
		assert.Empty(h, keysOf(n), "left on %s", n.Name())
	}
}

// visitor is an Acquire that goes on in the background.
type visitor struct {
	lock *redlock.Lock
	err  error
	at   time.Time
	done chan struct{}
}

// visit starts an Acquire and returns when it waits, or has its lock.
func visit(ctx context.Context, m *redlock.Mutex) *visitor {
	v := &visitor{done: make(chan struct{})}
	go func() {
		v.lock, v.err = m.Acquire(ctx)
		v.at = time.Now()
		close(v.done)
	}()
	synctest.Wait()
	return v
}

// served waits for the visitor's lock and returns how long that took from now.
func (h hall) served(v *visitor) time.Duration {
	h.Helper()
	start := time.Now()
	select {
	case <-v.done:
	case <-time.After(time.Minute):
		h.Fatal("never served")
	}
	require.NoError(h, v.err)
	return v.at.Sub(start)
}

func (v *visitor) waits() bool {
	select {
	case <-v.done:
		return false
	default:
		return true
	}
}

func TestLineKeepsItsOrderWhenTheClockIsSetBack(t *testing.T) {
	inHall(t, func(h hall) {
		l := h.acquire(h.process(nil).Mutex("k"))
		first := visit(h.Context(), h.process(nil).Mutex("k"))
		h.arbiter(h.process(nil).Mutex("k")).ShiftClock(-time.Hour)
		second := visit(h.Context(), h.process(nil).Mutex("k"))
		h.release(l)
		h.served(first)
		assert.True(t, second.waits())
		h.release(first.lock)
		h.served(second)
		h.release(second.lock)
	})
}

func TestLineServesInTheOrderOfArrival(t *testing.T) {
	inHall(t, func(h hall) {
		var processes []*redlock.Redlock
		for range 3 {
			processes = append(processes, h.process(nil))
		}
		first := h.acquire(processes[0].Mutex("k"))

		var mu sync.Mutex
		var order []int
		var wg sync.WaitGroup
		for i := range 24 {
			wg.Go(func() {
				l, err := processes[i%3].Mutex("k").Acquire(h.Context())
				if !assert.NoError(t, err) {
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				time.Sleep(time.Millisecond)
				assert.NoError(t, l.Release(h.Context()))
			})
			synctest.Wait()
		}
		require.Len(t, h.entries(h.arbiter(processes[0].Mutex("k")), processes[0].Mutex("k")), 24)
		start := time.Now()
		h.release(first)
		wg.Wait()
		assert.True(t, slices.IsSorted(order), "%v", order)
		assert.Less(t, time.Since(start), 200*time.Millisecond, "each was woken by the release before")
		h.empty()
	})
}

func TestLineIsNotOvertakenByWhoWasRefused(t *testing.T) {
	inHall(t, func(h hall) {
		a, b := h.process(nil).Mutex("k"), h.process(nil).Mutex("k")
		l := h.acquire(b)
		refused := visit(h.Context(), a)
		h.release(l)
		h.served(refused)
		l = refused.lock
		waiting := visit(h.Context(), b)
		for range 20 {
			h.release(l)
			again := visit(h.Context(), a) // it comes right after
			h.served(waiting)
			require.True(t, again.waits(), "a was served before b, who came first")
			time.Sleep(time.Microsecond)
			h.release(waiting.lock)
			waiting = visit(h.Context(), b)
			h.served(again)
			require.True(t, waiting.waits())
			l = again.lock
			time.Sleep(time.Microsecond) // arrivals are told apart by the node's clock
		}
		h.release(l)
		h.served(waiting)
		h.release(waiting.lock)
		h.empty()
	})
}

func TestLineHandsOverWithoutAGap(t *testing.T) {
	inHall(t, func(h hall) {
		a, b, c := h.process(nil).Mutex("k"), h.process(nil).Mutex("k"), h.process(nil).Mutex("k")
		l := h.acquire(a)
		waiting := visit(h.Context(), b)
		arbiter := h.arbiter(a)
		next := strings.Fields(h.entries(arbiter, a)[0])[2]

		// The head's SETs take their time to the other nodes, so that the reservation shows.
		for _, n := range h.cluster.Nodes() {
			n.DelayCommand("SET", 1, 20*time.Millisecond)
		}
		arbiter.DelayCommand("EVALSHA", 2, 0)
		h.release(l)
		synctest.Wait()
		assert.Equal(t, next, arbiter.Get("k"), "the arbiter keeps the lock for the first in line")
		h.served(waiting)
		assert.Equal(t, next, waiting.lock.Token()+"@"+strings.SplitN(next, "@", 2)[1])
		assert.Greater(t, arbiter.TTL("k"), 9*time.Second, "its lease counts from its own round")
		_, err := c.TryAcquire(h.Context())
		require.ErrorIs(t, err, redlock.ErrHeld)
		h.release(waiting.lock)
		h.empty()
	})
}

func TestLineOneRoundOfPlainSetsWhenNobodyWaits(t *testing.T) {
	inHall(t, func(h hall) {
		m := h.process(nil).Mutex("k")
		for range 2 { // scripts are known after the first time
			h.cluster.ResetCommands()
			l := h.acquire(m)
			time.Sleep(looksAtRelease)
			synctest.Wait() // or what was not sent yet would never be
			h.release(l)
			synctest.Wait()
		}
		assert.Equal(t, 5, h.cluster.Commands("SET"))
		assert.Equal(t, 5, h.cluster.Commands("EVALSHA"))
		assert.Equal(t, 5, h.cluster.Commands("GET"), "the look at the mark")
		assert.Equal(t, 15, h.cluster.Commands())
	})
}

func TestLineShowsInInspect(t *testing.T) {
	inHall(t, func(h hall) {
		var ends []context.CancelFunc
		l := h.acquire(h.process(nil).Mutex("k"))
		var m *redlock.Mutex
		for i := range 3 {
			ctx, end := context.WithCancel(h.Context())
			ends = append(ends, end)
			m = h.process(&redlock.Options{Owner: fmt.Sprintf("clerk@%d", i)}).Mutex("k")
			visit(ctx, m)
			time.Sleep(time.Second)
		}
		nodes := looking(h, h.cluster, nil)
		s, err := nodes.Inspect(h.Context(), "k")
		require.NoError(t, err)
		require.Len(t, s.Waiters, 3)
		for i, w := range s.Waiters {
			assert.Equal(t, fmt.Sprintf("clerk@%d", i), w.Owner)
			assert.InDelta(t, time.Duration(3-i)*time.Second, w.Waited, float64(50*time.Millisecond))
		}
		assert.Equal(t, 3, s.Nodes[h.order(m)[0]].Waiting)
		assert.Zero(t, s.Nodes[h.order(m)[1]].Waiting)
		for _, end := range ends {
			end()
		}
		h.release(l)
		synctest.Wait()
		s, err = nodes.Inspect(h.Context(), "k")
		require.NoError(t, err)
		assert.Empty(t, s.Waiters)
		h.empty()
	})
}

func TestLineWaiterThatGivesUpLeavesAtOnce(t *testing.T) {
	for _, who := range []string{"first", "middle", "last"} {
		t.Run(who, func(t *testing.T) {
			inHall(t, func(h hall) {
				m := h.process(nil).Mutex("k")
				l := h.acquire(m)
				var vs []*visitor
				var ends []context.CancelFunc
				for range 3 {
					ctx, end := context.WithCancel(h.Context())
					defer end()
					ends = append(ends, end)
					vs = append(vs, visit(ctx, h.process(nil).Mutex("k")))
				}
				i := slices.Index([]string{"first", "middle", "last"}, who)
				ends[i]()
				<-vs[i].done
				synctest.Wait()
				require.ErrorIs(t, vs[i].err, context.Canceled)
				require.ErrorIs(t, vs[i].err, redlock.ErrHeld)
				assert.Len(t, h.entries(h.arbiter(m), m), 2)
				h.release(l)
				for j, v := range vs {
					if j != i {
						assert.Less(t, h.served(v), 100*time.Millisecond)
						h.release(v.lock)
					}
				}
				h.empty()
			})
		})
	}
}

func TestLineTurnIsPassedOnByWhoLeaves(t *testing.T) {
	// The first in line goes while the lock is reserved for it.
	for name, leave := range map[string]func(*redlock.Redlock, context.CancelFunc){
		"cancelled": func(_ *redlock.Redlock, cancel context.CancelFunc) { cancel() },
		"closed":    func(rl *redlock.Redlock, _ context.CancelFunc) { _ = rl.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			inHall(t, func(h hall) {
				m := h.process(nil).Mutex("k")
				l := h.acquire(m)
				rl := h.process(nil)
				ctx, cancel := context.WithCancel(h.Context())
				defer cancel()
				first := visit(ctx, rl.Mutex("k"))
				second := visit(h.Context(), h.process(nil).Mutex("k"))
				for _, n := range h.cluster.Nodes() {
					n.DelayCommand("SET", 1, 50*time.Millisecond) // its attempt hangs
				}
				h.release(l)
				time.Sleep(10 * time.Millisecond)
				leave(rl, cancel)
				assert.Less(t, h.served(second), 300*time.Millisecond)
				<-first.done
				assert.Error(t, first.err)
				h.release(second.lock)
				h.empty()
			})
		})
	}
}

func TestLineFindsALeaseThatEnds(t *testing.T) {
	inHall(t, func(h hall) {
		for _, n := range h.cluster.Nodes() {
			n.Set("k", "dead holder", 2*time.Second)
		}
		v := visit(h.Context(), h.process(nil).Mutex("k"))
		d := h.served(v)
		assert.GreaterOrEqual(t, d, 2*time.Second)
		assert.Less(t, d, 2500*time.Millisecond, "one grace, if the nodes do not forget at the same time")
		h.release(v.lock)
		h.empty()
	})
}

// longWait is one in which a queue that was not kept up would be gone, and waiters that come less
// often the longer they wait would be slow.
func longWait() time.Duration {
	if longtest.On() {
		return 30 * time.Minute
	}
	return 5 * time.Minute
}

func TestLineFindsAStrangersKeyGone(t *testing.T) {
	t.Parallel()
	inHall(t, func(h hall) {
		h.cluster.Record(false)
		for _, n := range h.cluster.Nodes() {
			n.Set("k", "by hand", 0)
		}
		v := visit(h.Context(), h.process(nil).Mutex("k"))
		time.Sleep(longWait())
		require.True(t, v.waits())
		for _, n := range h.cluster.Nodes() {
			n.Del("k")
		}
		assert.LessOrEqual(t, h.served(v), time.Second)
		h.release(v.lock)
		h.empty()
	})
}

func TestLineOutlivesALongHolder(t *testing.T) {
	t.Parallel()
	inHall(t, func(h hall) {
		h.cluster.Record(false)
		l := h.acquire(h.process(nil).Mutex("k", redlock.WithTTL(time.Hour)))
		m := h.process(nil).Mutex("k")
		var vs []*visitor
		for range 3 {
			vs = append(vs, visit(h.Context(), m))
		}
		time.Sleep(longWait())
		h.release(l)
		for i, v := range vs {
			assert.Less(t, h.served(v), 50*time.Millisecond)
			for _, later := range vs[i+1:] {
				assert.True(t, later.waits())
			}
			h.release(v.lock)
			synctest.Wait()
		}
		h.empty()
	})
}

func TestLineSurvivesABrokenSubscription(t *testing.T) {
	inHall(t, func(h hall) {
		m := h.process(nil).Mutex("k")
		l := h.acquire(m)
		v := visit(h.Context(), h.process(nil).Mutex("k"))
		for _, n := range h.cluster.Nodes() {
			n.Cut()
		}
		_ = l.Release(h.Context()) // connections of the pool are broken, too
		assert.Less(t, h.served(v), time.Second)
		h.release(v.lock)
		time.Sleep(time.Second)
		h.empty()
	})
}

// told collects what Hooks.Degraded is told.
func told() (*redlock.Hooks, func() []redlock.DegradedInfo) {
	var mu sync.Mutex
	var all []redlock.DegradedInfo
	return &redlock.Hooks{Degraded: func(i redlock.DegradedInfo) {
			mu.Lock()
			defer mu.Unlock()
			all = append(all, i)
		}}, func() []redlock.DegradedInfo {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(all)
		}
}

func TestLineWithoutSubscribe(t *testing.T) {
	inHall(t, func(h hall) {
		hooks, said := told()
		for _, n := range h.cluster.Nodes() {
			n.Deny("SUBSCRIBE")
		}
		holder := h.process(nil).Mutex("k")
		m := h.process(&redlock.Options{Hooks: hooks}).Mutex("k")
		for range 5 {
			l := h.acquire(holder)
			v := visit(h.Context(), m)
			time.Sleep(3 * time.Second)
			h.release(l)
			assert.Less(t, h.served(v), 500*time.Millisecond, "timers find it")
			h.release(v.lock)
			synctest.Wait()
		}
		require.Len(t, said(), 1)
		assert.Equal(t, redlock.DegradedNotices, said()[0].Kind)
		assert.Contains(t, said()[0].Lacks, "SUBSCRIBE")
		assert.ErrorContains(t, said()[0].Err, "NOPERM")
		h.empty()
	})
}

// A process that may not PUBLISH knows it before the first turn, and looks often enough at once: the
// first release finds its waiter soon, though it sent no notice.
func TestLineWithoutPublish(t *testing.T) {
	inHall(t, func(h hall) {
		hooks, said := told()
		for _, n := range h.cluster.Nodes() {
			n.Deny("PUBLISH")
		}
		l := h.acquire(h.process(nil).Mutex("k"))
		v := visit(h.Context(), h.process(&redlock.Options{Hooks: hooks}).Mutex("k"))
		time.Sleep(100 * time.Millisecond)
		require.True(t, v.waits())
		require.Len(t, said(), 1)
		assert.Equal(t, redlock.DegradedNotices, said()[0].Kind)
		assert.Contains(t, said()[0].Lacks, "PUBLISH")
		assert.ErrorContains(t, said()[0].Err, "NOPERM")
		h.release(l)
		assert.Less(t, h.served(v), 100*time.Millisecond)
		h.release(v.lock)
		h.empty()
	})
}

func TestLineIsFoundByTheHolderWhoWonWithoutTheArbiter(t *testing.T) {
	inHall(t, func(h hall) {
		holder, m := h.process(nil).Mutex("k"), h.process(nil).Mutex("k")
		arbiter := h.arbiter(m)
		arbiter.Stop()
		l := h.acquire(holder)
		arbiter.Restart(redlocktest.LoseKeys)
		time.Sleep(300 * time.Millisecond)
		v := visit(h.Context(), m)
		other := visit(h.Context(), h.process(nil).Mutex("k"))
		time.Sleep(3 * time.Second)
		require.True(t, v.waits())
		h.cluster.ResetCommands()
		time.Sleep(time.Second)
		assert.Less(t, h.cluster.Commands(), 300, "it must not ask all the time")
		h.release(l)
		assert.Less(t, h.served(v), 500*time.Millisecond, "its timer, where the holder's process still takes the arbiter for dead")
		assert.True(t, other.waits(), "the first keeps its place")
		h.release(v.lock)
		assert.Less(t, h.served(other), 100*time.Millisecond)
		h.release(other.lock)
		h.empty()
	})
}

func TestLineIsWokenByForceRelease(t *testing.T) {
	inHall(t, func(h hall) {
		l := h.acquire(h.process(nil).Mutex("k", redlock.WithTTL(time.Hour)))
		m := h.process(nil).Mutex("k")
		v := visit(h.Context(), m)
		_, err := looking(h, h.cluster, nil).ForceRelease(h.Context(), "k", admin.HeldBy(l.Token()))
		require.NoError(t, err)
		assert.Less(t, h.served(v), 20*time.Millisecond)
		h.release(v.lock)
		h.empty()
	})
}

func TestLineConnectionsAndGoroutines(t *testing.T) {
	inHall(t, func(h hall) {
		rl := h.process(nil)
		m := rl.Mutex("k")
		l := h.acquire(h.process(nil).Mutex("k"))
		visit(h.Context(), m)
		before := runtime.NumGoroutine()
		ctx, cancel := context.WithCancel(h.Context())
		for range 200 {
			go func() { _, _ = m.Acquire(ctx) }()
		}
		synctest.Wait()
		assert.LessOrEqual(t, runtime.NumGoroutine(), before+200+10, "a waiter has no goroutine but the caller's")
		assert.Equal(t, 1, h.subscriptions(), "one for all")
		cancel()
		h.release(l)
		time.Sleep(100 * time.Millisecond)
		assert.Equal(t, 1, h.subscriptions(), "kept for a while")
		assert.LessOrEqual(t, runtime.NumGoroutine(), before+10)
		time.Sleep(20 * time.Second)
		assert.Zero(t, h.subscriptions(), "closed when nothing waits")
	})
}

func TestLineOfTheArbiterThatIsLost(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]struct{ lose, back func(*redlocktest.Node) }{
		"killed": {(*redlocktest.Node).Stop, func(n *redlocktest.Node) { n.Restart(redlocktest.KeepKeys) }},
		"empty":  {(*redlocktest.Node).Stop, func(n *redlocktest.Node) { n.Restart(redlocktest.LoseKeys) }},
		"hung":   {(*redlocktest.Node).Hang, (*redlocktest.Node).Resume},
		"cut off": {func(n *redlocktest.Node) { n.Partition(redlocktest.Blackhole) },
			(*redlocktest.Node).Heal},
		"answers lost": {func(n *redlocktest.Node) { n.Partition(redlocktest.DropReplies) },
			(*redlocktest.Node).Heal},
		"at once empty": {func(n *redlocktest.Node) { n.Stop(); n.Restart(redlocktest.LoseKeys) }, func(*redlocktest.Node) {}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inHall(t, func(h hall) {
				h.cluster.Record(false)
				var holders, grants atomic.Int64
				ctx, cancel := context.WithCancel(h.Context())
				var wg sync.WaitGroup
				var m *redlock.Mutex
				for range 4 {
					own := h.process(nil).Mutex("k", redlock.WithTTL(5*time.Second))
					m = own
					for range 4 {
						wg.Go(func() {
							for {
								l, err := own.Acquire(ctx)
								if err != nil {
									assert.ErrorIs(t, err, context.Canceled)
									return
								}
								assert.EqualValues(t, 1, holders.Add(1), "two holders")
								grants.Add(1)
								time.Sleep(20 * time.Millisecond)
								holders.Add(-1)
								_ = l.Release(h.Context())
							}
						})
					}
				}
				goesOn := func(when string) {
					t.Helper()
					before, start := grants.Load(), time.Now()
					for grants.Load() < before+20 && time.Since(start) < 30*time.Second {
						time.Sleep(time.Millisecond)
					}
					t.Logf("%s: %d grants in %v", when, grants.Load()-before, time.Since(start))
					require.GreaterOrEqual(t, grants.Load(), before+20, when)
				}
				goesOn("before")
				fault.lose(h.arbiter(m))
				goesOn("without it")
				time.Sleep(2 * time.Second)
				goesOn("later without it")
				fault.back(h.arbiter(m))
				goesOn("when it is back")
				time.Sleep(8 * time.Second) // whoever followed others has come back
				goesOn("later")
				assert.NotEmpty(t, h.entries(h.arbiter(m), m), "the line is where it belongs")
				assert.Empty(t, h.entries(h.cluster.Node(h.order(m)[1]), m))
				cancel()
				wg.Wait()
				time.Sleep(10 * time.Second)
				h.empty()
			})
		})
	}
}

func TestLineWaiterMovesAndKeepsItsPlace(t *testing.T) {
	inHall(t, func(h hall) {
		holder := h.process(nil).Mutex("k", redlock.WithTTL(time.Minute))
		l := h.acquire(holder)
		synctest.Wait() // it is on all nodes, or without the arbiter its key would be on too few
		var vs []*visitor
		for range 6 {
			vs = append(vs, visit(h.Context(), h.process(nil).Mutex("k")))
			time.Sleep(10 * time.Millisecond)
		}
		h.arbiter(holder).Hang()
		time.Sleep(3 * time.Second)
		second := h.cluster.Node(h.order(holder)[1])
		moved := h.entries(second, holder)
		require.Len(t, moved, 6)
		came := time.Now()
		vs = append(vs, visit(h.Context(), h.process(nil).Mutex("k")))
		time.Sleep(3 * time.Second)
		for _, e := range h.entries(second, holder) {
			score, err := second.Redis().ZScore(queueKey(holder.Key()), e)
			require.NoError(t, err)
			since := time.UnixMicro(int64(score))
			assert.Equal(t, slices.Contains(moved, e), since.Before(came.Add(-2*time.Second)), "%s waits since %v there, and a newcomer came at %v", e, since, came)
		}
		h.release(l)
		for i, v := range vs {
			assert.Less(t, h.served(v), time.Second)
			for _, later := range vs[i+1:] {
				assert.True(t, later.waits(), "the order is that of arrival, on any node")
			}
			h.release(v.lock)
			synctest.Wait()
		}
		h.arbiter(holder).Resume()
		time.Sleep(10 * time.Second)
		h.empty()
	})
}

func TestLineNamesDiffer(t *testing.T) {
	assert.Equal(t, "{a}:line", queueKey("a"))
	assert.Equal(t, "{a}:line:", queueKey("{a}"))
	assert.Equal(t, "x{a}y:line:", queueKey("x{a}y"))
	assert.Equal(t, "{{a}:line", queueKey("{a"))
	for _, none := range []string{"a}", "{}a", "}{a"} {
		assert.Empty(t, queueKey(none), "no name has the slot of %q", none)
	}
	inHall(t, func(h hall) {
		m := h.process(nil).Mutex("a}b") // polls
		l := h.acquire(m)
		v := visit(h.Context(), m)
		h.release(l)
		h.served(v)
		h.release(v.lock)
		h.empty()
	})
}

func TestLineExcludesPollers(t *testing.T) {
	t.Parallel()
	inHall(t, func(h hall) {
		var holders, ours, theirs atomic.Int64
		end := time.Now().Add(5 * time.Second)
		visitHolder := func(n *atomic.Int64) {
			assert.EqualValues(t, 1, holders.Add(1), "two holders")
			n.Add(1)
			time.Sleep(10 * time.Millisecond)
			holders.Add(-1)
		}
		var wg sync.WaitGroup
		for range 2 {
			m := h.process(nil).Mutex("k")
			for range 3 {
				wg.Go(func() {
					for time.Now().Before(end) {
						l, err := m.Acquire(h.Context())
						if assert.NoError(t, err) {
							visitHolder(&ours)
							_ = l.Release(h.Context())
						}
					}
				})
			}
		}
		for i := range 2 {
			clients := h.cluster.Clients()
			wg.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					value := fmt.Sprintf("redsync %d %d", i, n)
					votes := 0
					for _, c := range clients {
						if c.SetNX(h.Context(), "k", value, 5*time.Second).Val() {
							votes++
						}
					}
					if votes >= 3 {
						visitHolder(&theirs)
					}
					for _, c := range clients {
						c.Eval(h.Context(), `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end`, []string{"k"}, value)
					}
					time.Sleep(time.Duration(15+i) * time.Millisecond)
				}
			})
		}
		wg.Wait()
		t.Logf("in line %d, polling %d", ours.Load(), theirs.Load())
		assert.Positive(t, ours.Load())
		time.Sleep(time.Second)
		h.empty()
	})
}

// muted is a connection on which no notice arrives, though all else does.
type muted struct {
	net.Conn
	lost *atomic.Int32
}

func (c muted) Read(p []byte) (int, error) {
	for {
		n, err := c.Conn.Read(p)
		if err != nil || !bytes.Contains(p[:n], []byte("$7\r\nmessage\r\n")) {
			return n, err
		}
		c.lost.Add(1)
	}
}

func TestLineDoesNotNeedItsNotices(t *testing.T) {
	inHall(t, func(h hall) {
		var lost atomic.Int32
		var clients []redis.UniversalClient
		for i := range h.cluster.Len() {
			clients = append(clients, h.cluster.Client(i, func(o *redis.Options) {
				dial := o.Dialer
				o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
					conn, err := dial(ctx, network, addr)
					return muted{conn, &lost}, err
				}
			}))
		}
		rl, err := redlock.New(clients, nil)
		require.NoError(h, err)
		h.Cleanup(func() { require.NoError(h, rl.Close()) })
		for range 3 {
			l := h.acquire(h.process(nil).Mutex("k"))
			first, second := visit(h.Context(), rl.Mutex("k")), visit(h.Context(), rl.Mutex("k"))
			time.Sleep(3 * time.Second)
			h.release(l)
			assert.Less(t, h.served(first), time.Second, "the fallback timer is half a grace")
			h.release(first.lock)
			assert.Less(t, h.served(second), time.Second)
			h.release(second.lock)
		}
		assert.GreaterOrEqual(t, lost.Load(), int32(3), "notices were sent, and lost")
		h.empty()
	})
}

// The release comes just after the waiter was refused: before it has subscribed, or
// between that and its joining the line. Nobody is told of it.
func TestLineMissesNoReleaseBeforeItJoined(t *testing.T) {
	for _, late := range []string{"SUBSCRIBE", "EVALSHA"} {
		t.Run(late, func(t *testing.T) {
			inHall(t, func(h hall) {
				p := h.process(nil)
				m := p.Mutex("k")
				h.release(h.acquire(p.Mutex("another"))) // it has tried whether scripts run
				l := h.acquire(h.process(nil).Mutex("k"))
				h.arbiter(m).DelayCommand(late, 1, 100*time.Millisecond)
				v := visit(h.Context(), m)
				require.True(h, v.waits())
				require.Empty(h, h.entries(h.arbiter(m), m), "not in line yet")
				h.release(l)
				assert.LessOrEqual(t, h.served(v), 100*time.Millisecond, "it finds the lock free as it joins")
				h.release(v.lock)
				h.empty()
			})
		})
	}
}

func TestLinesOnSeveralNodesRunTogether(t *testing.T) {
	t.Parallel()
	// Four processes that know the nodes by different names, so that each begins a line of
	// its own. Each node that keeps one reserves itself for its own first waiter; when all
	// of them did, nobody had a majority any more: 0 of 120 in a minute.
	rounds := 4
	if longtest.On() {
		rounds = 12
	}
	for round := range rounds {
		bubble.Run(t, 5, func(t *testing.T, c *redlocktest.Cluster) {
			c.Record(false)
			for _, n := range c.Nodes() {
				n.Delay(200 * time.Microsecond)
			}
			var rls []*redlock.Redlock
			for p := range 4 {
				var clients []redis.UniversalClient
				for i := range 5 {
					clients = append(clients, c.Client(i, func(o *redis.Options) { o.Addr = fmt.Sprintf("process%d-%s", p, o.Addr) }))
				}
				rl, err := redlock.New(clients, nil)
				require.NoError(t, err)
				defer func() { require.NoError(t, rl.Close()) }()
				rls = append(rls, rl)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			var waiters sync.WaitGroup
			for i := range 120 {
				waiters.Go(func() {
					assert.NoError(t, rls[i%4].Mutex(fmt.Sprint("teapot", round)).Do(ctx, func(context.Context, *redlock.Lock) error {
						time.Sleep(time.Millisecond)
						return nil
					}))
				})
			}
			waiters.Wait()
		})
	}
}

// Waiting where something of the line does not work: nodes, notices, or the first of those who wait.

// The node that keeps the line is lost soon after somebody came, or late: all who wait move
// at once, and not each when its turn would be.
func TestAllWaitersMoveWhenTheLineIsLost(t *testing.T) {
	for _, after := range []time.Duration{100 * time.Millisecond, 2 * time.Second} {
		inHall(t, func(h hall) {
			l := h.acquire(h.process(nil).Mutex("k", redlock.WithTTL(time.Minute)))
			m := h.process(nil).Mutex("k")
			var waiters sync.WaitGroup
			for range 50 {
				waiters.Go(func() {
					assert.NoError(t, m.Do(h.Context(), func(context.Context, *redlock.Lock) error {
						time.Sleep(time.Millisecond)
						return nil
					}))
				})
			}
			time.Sleep(after)
			h.arbiter(m).Stop()
			time.Sleep(4 * time.Second)
			assert.Len(t, h.entries(h.cluster.Node(h.order(m)[1]), m), 50, "lost after %v", after)
			_ = l.Release(h.Context()) // one node does not answer
			start := time.Now()
			waiters.Wait()
			assert.Less(t, time.Since(start), 2*time.Second, "lost after %v", after)
		})
	}
}

// A queue that the node forgot is joined again once by each waiter, not by all for as long as they join.
func TestLineThatIsForgottenIsJoinedAgainOnce(t *testing.T) {
	const waiters = 50
	inHall(t, func(h hall) {
		l := h.acquire(h.process(nil).Mutex("k", redlock.WithTTL(time.Minute)))
		m := h.process(nil).Mutex("k")
		ctx, cancel := context.WithCancel(h.Context())
		var all sync.WaitGroup
		for range waiters {
			all.Go(func() { _, _ = m.Acquire(ctx) })
		}
		arbiter := h.arbiter(m)
		// The whole takes less than a reservation, so that no waiter looks at what the other nodes have.
		time.Sleep(100 * time.Millisecond)
		arbiter.Redis().Del(queueKey(m.Key()))
		h.cluster.ResetCommands()
		time.Sleep(700 * time.Millisecond)
		assert.Less(t, h.cluster.Commands("EVALSHA"), waiters+10)
		assert.Len(t, h.entries(arbiter, m), waiters)
		cancel()
		all.Wait()
		h.release(l)
	})
}

// A longer line on a node that does not let us in is none to follow, again and again.
func TestLineThatLetsNobodyInIsNotFollowedWithoutPause(t *testing.T) {
	inHall(t, func(h hall) {
		m := h.process(nil).Mutex("k")
		order := h.order(m)
		for _, n := range h.cluster.Nodes() {
			n.Delay(200 * time.Microsecond)
		}
		for _, i := range order[1:] { // somebody holds the lock without the arbiter
			h.cluster.Node(i).Set("k", "somebody@else", time.Hour)
		}
		closed := h.cluster.Node(order[1])
		for i := range 5 {
			_, err := closed.Redis().ZAdd(queueKey(m.Key()), float64(time.Now().UnixMicro()), fmt.Sprintf("process%d 800 value%d@x", i, i))
			require.NoError(t, err)
		}
		closed.Deny("ZADD")
		ctx, cancel := context.WithCancel(h.Context())
		v := visit(ctx, m)
		time.Sleep(2 * time.Second)
		h.cluster.ResetCommands()
		time.Sleep(10 * time.Second)
		assert.Less(t, h.cluster.Commands("SET"), 500)
		cancel()
		<-v.done
	})
}

// One that waits behind a node which has something else under the lock's name, or is full, keeps its place, and its
// turn, and does not leave the queue for that node at each look.
func TestWaiterKeepsItsPlaceBesideANodeThatRefuses(t *testing.T) {
	for _, refuse := range []func(*redlocktest.Node){
		func(n *redlocktest.Node) { _, _ = n.Redis().Push("k", "theirs") },
		answers("OOM command not allowed when used memory > 'maxmemory'."),
	} {
		inHall(t, func(h hall) {
			for _, n := range h.cluster.Nodes() {
				n.Deny("SUBSCRIBE")
			}
			m := h.process(nil).Mutex("k")
			order := h.order(m)
			refuse(h.cluster.Node(order[0]))
			for _, i := range order[1:] {
				h.cluster.Node(i).Set("k", "somebody@else", time.Hour)
			}
			ctx, cancel := context.WithCancel(h.Context())
			v := visit(ctx, m)
			time.Sleep(2 * time.Second)
			entry := func() string {
				all := h.entries(h.cluster.Node(order[1]), m)
				require.Len(t, all, 1)
				return all[0]
			}
			before := entry()
			time.Sleep(2 * time.Second)
			assert.Equal(t, before, entry(), "the same place, by the same entry")
			cancel()
			<-v.done
		})
	}
}

// The first of a process's waiters for a key looks after the others. When it gives its turn
// up, since the restart guard leaves it no quorum, the next one does; also beside a node that refuses all.
func TestWaiterBehindOneThatGaveItsTurnUp(t *testing.T) {
	for _, refusing := range []bool{false, true} {
		inHall(t, func(h hall) {
			h.cluster.SetUptime(24 * time.Hour)
			for _, n := range h.cluster.Nodes() {
				n.Deny("SUBSCRIBE") // or a notice would wake it
			}
			rl := h.process(nil)
			long, short := rl.Mutex("k", redlock.WithTTL(10*time.Minute)), rl.Mutex("k")
			barred := h.order(long)[2:]
			for _, i := range barred {
				h.cluster.Node(i).Delay(time.Millisecond) // so that all answers are known
			}
			if refusing {
				_, err := h.cluster.Node(barred[0]).Redis().Push("k", "theirs")
				require.NoError(t, err)
				barred = barred[1:]
			}
			l := h.acquire(h.process(nil).Mutex("k", redlock.WithTTL(time.Minute)))
			ctx, cancel := context.WithCancel(h.Context())
			first := visit(ctx, long) // restarted nodes are barred for ten minutes
			second := visit(h.Context(), short)
			synctest.Wait()
			for _, i := range barred {
				h.cluster.Node(i).Restart(redlocktest.KeepKeys)
			}
			time.Sleep(15 * time.Second)
			require.True(t, second.waits())
			_ = l.Release(h.Context())
			assert.Less(t, h.served(second), 10*time.Second)
			require.True(t, first.waits())
			cancel()
			<-first.done
			h.release(second.lock)
		})
	}
}

// What once was contended is forgotten, and slows nobody down.
func TestKeysThatNobodyWaitsForAnyMore(t *testing.T) {
	t.Parallel()
	const burst = 1000
	inHall(t, func(h hall) {
		h.cluster.Record(false)
		for _, n := range h.cluster.Nodes() {
			n.Deny("SUBSCRIBE") // timers are all there is
		}
		holder, rl := h.process(nil), h.process(nil)
		var locks []*redlock.Lock
		for i := range burst {
			locks = append(locks, h.acquire(holder.Mutex(fmt.Sprint("burst", i), redlock.WithTTL(time.Minute))))
		}
		ctx, cancel := context.WithTimeout(h.Context(), time.Second)
		defer cancel()
		var waiters sync.WaitGroup
		for i := range burst {
			waiters.Go(func() {
				_, err := rl.Mutex(fmt.Sprint("burst", i)).Acquire(ctx)
				assert.ErrorIs(t, err, context.DeadlineExceeded)
			})
		}
		waiters.Wait()
		for _, l := range locks {
			h.release(l)
		}
		time.Sleep(3 * time.Second)
		for range 3 {
			l := h.acquire(holder.Mutex("k"))
			v := visit(h.Context(), rl.Mutex("k"))
			time.Sleep(3 * time.Second)
			h.release(l)
			assert.Less(t, h.served(v), 500*time.Millisecond)
			h.release(v.lock)
		}
	})
}

// A process that was refused once does not go to the line first for ever.
func TestProcessThatWasRefusedOnce(t *testing.T) {
	inHall(t, func(h hall) {
		rl := h.process(nil)
		h.loadScripts()
		m := rl.Mutex("k")
		l := h.acquire(h.process(nil).Mutex("k"))
		v := visit(h.Context(), m)
		time.Sleep(time.Second)
		h.release(l)
		h.served(v)
		h.release(v.lock)
		again := func(times int) {
			for range times {
				time.Sleep(900 * time.Millisecond)
				l := h.acquire(m)
				synctest.Wait() // or what was not sent yet would never be
				h.release(l)
				synctest.Wait()
			}
		}
		again(5)
		h.cluster.ResetCommands()
		again(10)
		assert.Equal(t, 50, h.cluster.Commands("SET"), "a round each")
		assert.Equal(t, 50, h.cluster.Commands("EVALSHA"), "and its release")
	})
}

// A hook that takes its time does not put off the next renewal.
func TestSlowExtendedHookLosesNoLock(t *testing.T) {
	inHall(t, func(h hall) {
		rl := h.process(&redlock.Options{TTL: 3 * time.Second, Hooks: &redlock.Hooks{
			Extended: func(context.Context, redlock.ExtendInfo) { time.Sleep(2500 * time.Millisecond) },
		}})
		require.NoError(t, rl.Mutex("k").Do(h.Context(), func(ctx context.Context, l *redlock.Lock) error {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(time.Minute):
				return nil
			}
		}))
		time.Sleep(10 * time.Second) // of the hooks
	})
}

// A queue outlives the time after which its waiters are heard of again, however long that is.
func TestQueueOfWaitersThatAreSeldomHeardOf(t *testing.T) {
	inBubble(t, 3, &redlock.Options{TTL: 200 * time.Second, NodeTimeout: 40 * time.Second}, func(b *bed) {
		held := b.lock()
		done := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(b.Context()) })
		b.pass(31 * time.Second)
		b.pending(done)
		require.NoError(b, held.Release(b.Context()))
		b.takes(0, func() { require.NoError(b, (<-done).err) })
	})
}
