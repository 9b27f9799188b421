package redlock

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/lanetest"
	"github.com/quorumlock/redlock/internal/tick"
)

// overLink is a Redlock whose one node is at the end of a link with a round trip.
func overLink(t *testing.T, roundTrip time.Duration) (*Redlock, *lanetest.ScriptedWire) {
	w := lanetest.NewScriptedWire()
	w.Takes = roundTrip
	return overWires(t, &Options{}, w), w
}

// cycle acquires and releases each key from a goroutine of its own, times over.
func cycle(t *testing.T, rl *Redlock, keys, times int) (longest time.Duration) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range keys {
		wg.Go(func() {
			m := rl.Mutex(fmt.Sprint("key", i))
			for range times {
				start := time.Now()
				l, err := m.TryAcquire(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				took := time.Since(start)
				mu.Lock()
				longest = max(longest, took)
				mu.Unlock()
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return longest
}

func TestOnAShortLinkOneBatchIsOutAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rl, w := overLink(t, 100*time.Microsecond)
		cycle(t, rl, 50, 20)
		require.NoError(t, rl.Close())
		require.Equal(t, 1, w.Most)
	})
}

func TestOnALongLinkBatchesFollowEachOtherButNeverOneKeyTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rl, w := overLink(t, 4*time.Millisecond)
		cycle(t, rl, 1, 3) // learns what link it is
		// Start them all within one round trip, so that they want to leave at
		// different times.
		var wg sync.WaitGroup
		for i := range 40 {
			<-time.After(150 * time.Microsecond)
			wg.Go(func() {
				m := rl.Mutex(fmt.Sprint("key", i%20))
				for range 20 {
					if l, err := m.TryAcquire(t.Context()); err == nil {
						_ = l.Release(t.Context())
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, rl.Close())
		require.Greater(t, w.Most, 1)
		require.LessOrEqual(t, w.Most, lane.MostOut)
		require.Empty(t, w.Twice())
	})
}

func TestOnALongLinkARequestWaitsForAShareOfARoundTripOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rl, w := overLink(t, 4*time.Millisecond)
		cycle(t, rl, 1, 3)
		longest := cycle(t, rl, 64, 50)
		require.NoError(t, rl.Close())
		require.LessOrEqual(t, longest, 2*w.Takes)
	})
}

func TestAReleaseNeverOvertakesItsSetOnALongLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rl, w := overLink(t, 4*time.Millisecond)
		cycle(t, rl, 1, 3)
		cycle(t, rl, 30, 10)
		require.NoError(t, rl.Close())
		for key, kinds := range w.Order() {
			for pair := range slices.Chunk(kinds, 2) {
				require.Equal(t, []protocol.Op{protocol.OpAcquire, protocol.OpRelease}, pair, key)
			}
		}
	})
}

func TestTheShortestRoundTripForgetsAfterAWhile(t *testing.T) {
	var s lane.Shortest
	at := int64(1)
	require.Zero(t, s.Get())
	s.Add(5*time.Millisecond, at)
	s.Add(time.Millisecond, at)
	s.Add(3*time.Millisecond, at)
	require.Equal(t, time.Millisecond, s.Get())
	at += lane.ShortestPeriod + 1
	s.Add(2*time.Millisecond, at)
	require.Equal(t, time.Millisecond, s.Get(), "the period before still counts")
	at += lane.ShortestPeriod + 1
	s.Add(4*time.Millisecond, at)
	require.Equal(t, 2*time.Millisecond, s.Get())
}

func TestAHeldKeyHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rl, w := overLink(t, 100*time.Millisecond)
		cycle(t, rl, 1, 3)
		hot, err := rl.Mutex("hot").TryAcquire(t.Context())
		require.NoError(t, err)
		go func() { _ = hot.Release(t.Context()) }()
		synctest.Wait()
		go func() { _, _ = rl.Mutex("hot").TryAcquire(t.Context()) }() // waits, since its key is out
		time.Sleep(30 * time.Millisecond)                              // more than a quarter of a round trip
		synctest.Wait()
		start := time.Now()
		_, err = rl.Mutex("cold").TryAcquire(t.Context())
		require.NoError(t, err)
		require.Equal(t, w.Takes, time.Since(start))
	})
}

// overWires is a Redlock whose nodes are at the end of these wires.
func overWires(t *testing.T, o *Options, wires ...lane.Wire) *Redlock {
	t.Helper()
	full, broken := o.withDefaults()
	require.NoError(t, broken)
	names := make([]string, len(wires))
	for i := range names {
		names[i] = fmt.Sprint("node ", i)
	}
	rl := assemble(names, wires, full, tick.NewSystem())
	t.Cleanup(func() { assert.NoError(t, rl.Close()) }) // also where a test fails: what still waits would end all others
	return rl
}

// Locks that were acquired within a moment fall due together, and so do all whose process stood
// still. None waits behind so many others that its timeout per node is over before it is sent. On
// a long link as many are under way as it takes. A hook that does not return holds up nothing.
func TestLocksThatFallDueTogetherAreAllRenewed(t *testing.T) {
	for name, c := range map[string]struct {
		locks       int
		lease       time.Duration
		nodeTimeout time.Duration
		takes, each time.Duration // of a batch, and of every request in it
	}{
		// The node needs 36 ms for all, and the timeout per node is 20 ms.
		"more than a node renews within a timeout": {locks: 6000, lease: time.Second, takes: 100 * time.Microsecond, each: 6 * time.Microsecond},
		// One batch per round trip would renew 6,656 before the first lease ends.
		"a long link": {locks: 7000, lease: 2 * time.Second, takes: 100 * time.Millisecond, nodeTimeout: 400 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var renewed sync.Map
				var failed atomic.Int64
				done := make(chan struct{})
				o, err := (&Options{TTL: c.lease, NodeTimeout: c.nodeTimeout, Hooks: &Hooks{Extended: func(_ context.Context, i ExtendInfo) {
					if i.Err != nil {
						failed.Add(1)
					}
					renewed.Store(i.Key, true)
					<-done
				}}}).withDefaults()
				require.NoError(t, err)
				w := lanetest.NewScriptedWire()
				w.Takes, w.Each = c.takes, c.each
				rl := assemble([]string{"one"}, []lane.Wire{w}, o, tick.NewSystem())
				began := time.Now()
				cycle(t, rl, 1, 3) // learns what link it is
				var g errgroup.Group
				g.SetLimit(lane.MostOut * lane.MostInBatch)
				for i := range c.locks {
					g.Go(func() error {
						_, err := rl.Mutex(fmt.Sprint("key", i), WithRenewal()).TryAcquire(t.Context())
						return err
					})
				}
				require.NoError(t, g.Wait())
				require.Equal(t, c.locks, rl.renewer.Hurry())
				<-time.After(time.Until(began.Add(c.lease - c.lease/50))) // the first leases end
				keys := 0
				renewed.Range(func(any, any) bool { keys++; return true })
				assert.Equal(t, c.locks, keys)
				assert.Zero(t, failed.Load())
				close(done)
				require.NoError(t, rl.Close())
			})
		})
	}
}

// burstNode is a node whose keys end, and that takes its time for each request.
type burstNode struct {
	mu      sync.Mutex
	each    time.Duration
	keys    map[string]time.Time
	refuses func(key string) bool // an extend
	away    bool
}

// burstNodes are three, and a Redlock of them.
func burstNodes(t *testing.T, o *Options) ([]*burstNode, *Redlock) {
	nodes := make([]*burstNode, 3)
	wires := make([]lane.Wire, len(nodes))
	for i := range nodes {
		nodes[i] = &burstNode{keys: make(map[string]time.Time), each: time.Microsecond}
		wires[i] = nodes[i]
	}
	return nodes, overWires(t, o, wires...)
}

func (n *burstNode) Exchange(batch []*lane.Call, _, _ time.Duration) {
	n.mu.Lock()
	each, away := n.each, n.away
	n.mu.Unlock()
	if away {
		for _, c := range batch {
			c.Answer = lanetest.Refused
		}
		return
	}
	time.Sleep(50*time.Microsecond + time.Duration(len(batch))*each)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range batch {
		c.Answer = n.answer(c.Req)
	}
}

func (n *burstNode) answer(req *protocol.Request) protocol.Answer {
	held := time.Now().Before(n.keys[req.Key])
	switch {
	case req.Op.Sets():
		n.keys[req.Key] = time.Now().Add(req.KeepFor)
		return lanetest.Ok
	case req.Op == protocol.OpExtend && held && (n.refuses == nil || !n.refuses(req.Key)):
		n.keys[req.Key] = time.Now().Add(req.KeepFor)
		return lanetest.One
	case req.Op == protocol.OpRelease && held:
		delete(n.keys, req.Key)
		return lanetest.One
	default:
		return lanetest.Zero
	}
}

// set changes the node.
func (n *burstNode) set(change func(*burstNode)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(n)
}

// live is how many keys are held.
func (n *burstNode) live() (live int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, end := range n.keys {
		if time.Now().Before(end) {
			live++
		}
	}
	return live
}

// holdMany acquires locks that are renewed.
func holdMany(t *testing.T, rl *Redlock, n int, name string, opts ...LockOption) []*Lock {
	locks := make([]*Lock, n)
	var g errgroup.Group
	g.SetLimit(lane.MostInBatch)
	for i := range n {
		g.Go(func() (err error) {
			locks[i], err = rl.Mutex(fmt.Sprint(name, i), append(opts, WithRenewal())...).TryAcquire(t.Context())
			return err
		})
	}
	require.NoError(t, g.Wait())
	return locks
}

func valid(locks []*Lock) (n int) {
	for _, l := range locks {
		if l.Validity() > 0 {
			n++
		}
	}
	return n
}

func TestLostHookThatDoesNotReturnHoldsUpNoRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		done := make(chan struct{})
		nodes, rl := burstNodes(t, &Options{TTL: time.Second, Hooks: &Hooks{Lost: func(context.Context, LostInfo) { <-done }}})
		holdMany(t, rl, 1000, "lost")
		others := holdMany(t, rl, 20, "other")
		for _, n := range nodes {
			n.set(func(n *burstNode) { n.refuses = func(key string) bool { return key[:4] == "lost" } })
		}
		<-time.After(5 * time.Second)
		assert.Equal(t, 20, valid(others))
		close(done)
	})
}

// A node that is slower than the majority gets no more at once than it can do in time, so it
// keeps all keys: they are needed when another node fails.
func TestSlowerNodeKeepsAllThatFallDueTogether(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const locks = 6000
		nodes, rl := burstNodes(t, &Options{TTL: 2 * time.Second}) // 40 ms per node
		held := holdMany(t, rl, locks, "key")
		nodes[2].set(func(n *burstNode) { n.each = 30 * time.Microsecond })
		<-time.After(5 * time.Second)
		assert.Equal(t, locks, nodes[2].live())
		nodes[0].set(func(n *burstNode) { n.away = true })
		<-time.After(5 * time.Second)
		assert.Equal(t, locks, valid(held))
	})
}

// What has least time left is renewed first, whatever fell due before it.
func TestShortLeasesAreRenewedBeforeLongOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes, rl := burstNodes(t, nil)
		began := time.Now()
		long := holdMany(t, rl, 15_000, "long")
		for _, n := range nodes {
			n.set(func(n *burstNode) { n.each = 40 * time.Microsecond }) // 0.6 s for all
		}
		<-time.After(time.Until(began.Add(rl.opts.TTL/3)) - 150*time.Millisecond) // soon the first falls due
		short := holdMany(t, rl, 10, "short", WithTTL(500*time.Millisecond))
		<-time.After(2 * time.Second)
		assert.Equal(t, 10, valid(short))
		assert.Equal(t, 15_000, valid(long))
	})
}

// Releases that were kept for nodes that were away do not take all of their time when they are
// back.
func TestKeptReleasesLeaveRoomForOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		nodes, rl := burstNodes(t, &Options{TTL: 4 * time.Second})
		gone := holdMany(t, rl, 40_000, "gone")
		held := holdMany(t, rl, 200, "held")
		<-time.After(time.Second)
		for _, n := range nodes {
			n.set(func(n *burstNode) { n.away = true })
		}
		var g errgroup.Group
		g.SetLimit(lane.MostInBatch)
		for _, l := range gone {
			g.Go(func() error { _ = l.Release(t.Context()); return nil })
		}
		_ = g.Wait()
		<-time.After(time.Second)
		for _, n := range nodes {
			n.set(func(n *burstNode) { n.away, n.each = false, 40*time.Microsecond }) // 1.6 s for all
		}
		<-time.After(2 * lane.MaxBackoff)
		lock, err := rl.Mutex("free").TryAcquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
		<-time.After(4 * time.Second)
		assert.Equal(t, 200, valid(held))
		for _, n := range nodes {
			assert.Equal(t, 200, n.live())
		}
	})
}

// A node whose answer to the SET was lost has granted nothing as far as is known: the SET may land
// after the release, which is sent a second time for that. That the others have granted changes
// nothing.
func TestReleaseIsSentAgainWhereTheSetMayLand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := lanetest.NewScriptedWire()
		last.Takes = 50 * time.Millisecond
		last.Reply = func(string, bool) protocol.Answer { return lanetest.Lost }
		rl := overWires(t, &Options{NoRestartGuard: true}, lanetest.NewScriptedWire(), lanetest.NewScriptedWire(), last)
		lock, err := rl.Mutex("k").TryAcquire(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Second) // the third node's answer is known to be lost by then
		last.Answers(func(string, bool) protocol.Answer { return lanetest.Zero })
		require.NoError(t, lock.Release(t.Context()))
		time.Sleep(time.Minute)
		assert.Equal(t, []protocol.Op{protocol.OpAcquire, protocol.OpRelease, protocol.OpRelease}, last.Order()["k"])
	})
}

// wokenClock calls a func where a call goes on that its context ended.
type wokenClock struct {
	tick.Clock
	ended func()
}

func (c wokenClock) Yield(id int64) {
	if id < 0 {
		c.ended()
	}
}

// A grant that comes when a call has been cancelled, and has not looked at its votes since, is taken back.
func TestGrantAtTheMomentOfCancellationIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := lanetest.NewScriptedWire()
		w.Gate = make(chan struct{})
		rl := overWires(t, &Options{NoRestartGuard: true}, w)
		rl.clock = wokenClock{rl.clock, func() {
			close(w.Gate)
			synctest.Wait()
		}}
		time.Sleep(time.Millisecond) // calls are told apart by when they began
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Millisecond, cancel)
		_, err := rl.Mutex("k").TryAcquire(ctx)
		require.ErrorIs(t, err, context.Canceled)
		synctest.Wait()
		assert.Equal(t, []protocol.Op{protocol.OpAcquire, protocol.OpRelease}, w.Order()["k"])
	})
}

// The last answers to a release come behind its verdict: it is done, and no error says that the quorum that it
// lists is missing.
func TestReleaseWhoseQuorumComesBehindItsVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rl := overWires(t, &Options{NoRestartGuard: true}, lanetest.NewScriptedWire())
		lock, err := rl.Mutex("k").TryAcquire(t.Context())
		require.NoError(t, err)
		r := new(round)
		r.init(rl.clock.Now(), make([]seat, 1))
		r.Deliver(0, protocol.Answer{Kind: protocol.Unknown, Said: protocol.ErrTimeout}, r.start)
		assert.ErrorContains(t, lock.waitRelease(r), "(0 of 1 nodes released, 1 needed): node 0 unknown (no answer in time)")
		r.Deliver(0, protocol.Answer{Kind: protocol.Granted, Final: true}, r.start)
		assert.NoError(t, lock.waitRelease(r))
		require.NoError(t, lock.Release(t.Context()))
	})
}

// The answer to a waiter's first join was lost, and the second was answered. The first may land after
// the release that takes the entry back, which is sent a second time for that.
func TestWaiterTakesBackEachJoinThatMayLand(t *testing.T) {
	twice := []protocol.Op{protocol.OpJoin, protocol.OpJoin, protocol.OpRelease, protocol.OpRelease}
	for name, c := range map[string]struct {
		ends func(*waiter)
		want []protocol.Op
	}{
		"it leaves": {(*waiter).withdraw, twice},
		"an attempt had the entry last": {func(w *waiter) {
			at := newAttempt(w.r, w.of.queues)
			at.arbiter, at.entry, at.value, at.wants, at.joined = w.claim()
			at.send(w.r.clock.Now())
			time.Sleep(time.Second)
			at.takeBack(false)
		}, slices.Insert(slices.Clone(twice), 2, protocol.OpAcquire)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := lanetest.NewScriptedWire()
				w.Reply = func(string, bool) protocol.Answer { return lanetest.Lost }
				rl := overWires(t, &Options{NoRestartGuard: true}, w)
				waiter, err := rl.queues.enter(t.Context(), &rl.Mutex("k").resource)
				require.NoError(t, err)
				require.NoError(t, waiter.register(t.Context(), 0))
				waiter.send()
				time.Sleep(time.Second)
				w.Answers(nil)
				waiter.send()
				time.Sleep(time.Second)
				c.ends(waiter)
				time.Sleep(time.Minute)
				assert.Equal(t, c.want, w.Order()["k"])
				waiter.leave(false)
			})
		})
	}
}

// slowEar is a wire whose subscription takes a moment to end.
type slowEar struct {
	*lanetest.ScriptedWire
	ended atomic.Bool
}

func (e *slowEar) Listen(ctx context.Context, _ string, _ lane.Subscriber) error {
	<-ctx.Done()
	time.Sleep(10 * time.Millisecond)
	e.ended.Store(true)
	return ctx.Err()
}

// A subscription that no waiter uses any more is over when Close returns, also if it began to end just before.
func TestCloseWaitsForASubscriptionThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ear := &slowEar{ScriptedWire: lanetest.NewScriptedWire()}
		rl := overWires(t, &Options{NoRestartGuard: true}, ear)
		w, err := rl.queues.enter(t.Context(), &rl.Mutex("k").resource)
		require.NoError(t, err)
		require.NoError(t, w.register(t.Context(), 0))
		w.leave(false)
		time.Sleep(listenFor + time.Millisecond)
		require.NoError(t, rl.Close())
		assert.True(t, ear.ended.Load())
	})
}

// numberingWire gives every permit the same number, and notes whether it was told another.
type numberingWire struct {
	number int64
	takes  time.Duration
	told   atomic.Bool
}

func (w *numberingWire) Exchange(batch []*lane.Call, _, _ time.Duration) {
	for _, c := range batch {
		c.Answer = lanetest.One
		if c.Req.Op.Sets() {
			time.Sleep(w.takes)
			c.Answer.Said = w.number + 1
		}
	}
	if slices.ContainsFunc(batch, func(c *lane.Call) bool { return c.Req.Op == protocol.OpExtend }) {
		w.told.Store(true)
	}
}

// A node that gave another number than the quorum is told so whenever it votes: before the acquire
// takes the number, after that, and in between. The last is a matter of nanoseconds, so here only a
// mutant, which sleeps for one microsecond in that moment, has votes come then.
func TestStrayNumberIsMendedWheneverItComes(t *testing.T) {
	for _, late := range []time.Duration{0, 500 * time.Nanosecond, time.Millisecond} {
		t.Run(late.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				last := &numberingWire{number: 2, takes: late}
				rl := overWires(t, &Options{NoRestartGuard: true}, &numberingWire{number: 1}, &numberingWire{number: 1}, last)
				permit, err := rl.Semaphore("k", 3).TryAcquire(t.Context())
				require.NoError(t, err)
				require.Zero(t, permit.Permit())
				time.Sleep(time.Second)
				require.True(t, last.told.Load())
				require.NoError(t, permit.Release(t.Context()))
			})
		})
	}
}

// Queues that began at the same moment: all processes must agree which of them to go to.
func TestOfTwoQueuesOneHasWaitedLonger(t *testing.T) {
	queue := func(waited time.Duration, process string) *inspection {
		return &inspection{Inspection: protocol.Inspection{Waiters: []protocol.Waiting{{Waited: waited, Process: process}}}}
	}
	empty := &inspection{}
	for _, c := range []struct {
		first, second *inspection
	}{
		{queue(2, "b"), queue(1, "a")},
		{queue(1, "a"), queue(1, "b")},
		{queue(1, "a"), empty},
	} {
		assert.True(t, c.first.waitedLonger(c.second))
		assert.False(t, c.second.waitedLonger(c.first))
	}
	assert.False(t, empty.waitedLonger(empty))
}

// What is kept for "once per key" is bounded. Below a thousand keys each is told once.
func TestLongerLeasesAreToldOfAThousandKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []DegradedInfo
		rl := overWires(t, &Options{Hooks: &Hooks{Degraded: func(i DegradedInfo) { said = append(said, i) }}}, lanetest.NewScriptedWire())
		for range 2 {
			for i := range 1100 {
				rl.Mutex(fmt.Sprint("k", i)).sawLease(time.Hour)
			}
		}
		synctest.Wait()
		require.Len(t, said, 1000)
		keys := make(map[string]bool)
		for _, i := range said {
			keys[i.Key] = true
		}
		assert.Len(t, keys, 1000)
	})
}
