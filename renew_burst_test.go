package redlock

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/lanetest"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

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
				o, err := (&Options{TTL: c.lease, NodeTimeout: c.nodeTimeout, Hooks: &Hooks{Extended: func(i ExtendInfo) {
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
				rl.renewer.mu.Lock()
				require.Len(t, rl.renewer.due, c.locks)
				for _, r := range rl.renewer.due {
					r.at = 0 // when the first falls due, so do all
				}
				rl.renewer.mu.Unlock()
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

func (n *burstNode) Exchange(batch []*lane.Call, _, _ time.Duration, left func()) bool {
	left()
	n.mu.Lock()
	each, away := n.each, n.away
	n.mu.Unlock()
	if away {
		for _, c := range batch {
			c.Answer = lanetest.Refused
		}
		return true
	}
	time.Sleep(50*time.Microsecond + time.Duration(len(batch))*each)
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range batch {
		c.Answer = n.answer(c.Req)
	}
	answered, sent := conn.Read(batch)
	return answered || !sent
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
		nodes, rl := burstNodes(t, &Options{TTL: time.Second, Hooks: &Hooks{Lost: func(LostInfo) { <-done }}})
		holdMany(t, rl, 1000, "lost")
		others := holdMany(t, rl, 20, "other")
		for _, n := range nodes {
			n.set(func(n *burstNode) { n.refuses = func(key string) bool { return key[:4] == "lost" } })
		}
		<-time.After(5 * time.Second)
		assert.Equal(t, 20, valid(others))
		close(done)
		require.NoError(t, rl.Close())
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
		require.NoError(t, rl.Close())
	})
}

// What has least time left is renewed first, whatever fell due before it.
func TestShortLeasesAreRenewedBeforeLongOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes, rl := burstNodes(t, nil)
		long := holdMany(t, rl, 15_000, "long")
		for _, n := range nodes {
			n.set(func(n *burstNode) { n.each = 40 * time.Microsecond }) // 0.6 s for all
		}
		rl.renewer.mu.Lock()
		first := rl.renewer.due[0].at
		rl.renewer.mu.Unlock()
		<-time.After(time.Duration(first-rl.clock.Now().Mono) - 100*time.Millisecond)
		short := holdMany(t, rl, 10, "short", WithTTL(500*time.Millisecond))
		<-time.After(2 * time.Second)
		assert.Equal(t, 10, valid(short))
		assert.Equal(t, 15_000, valid(long))
		require.NoError(t, rl.Close())
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
		require.NoError(t, rl.Close())
	})
}

// looked counts how often it is looked at.
type looked struct {
	renewable
	n atomic.Int32
}

func (l *looked) checkEnd() error { l.n.Add(1); return nil }

// While the clocks go together, contexts end by their own timers. To look at a hundred thousand
// of them four times a second would take a quarter of a core.
func TestContextsAreLookedAtWhenTheClocksMoveApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := newRenewer(tick.NewSystem())
		l := new(looked)
		k.watch(l)
		<-time.After(time.Minute)
		assert.LessOrEqual(t, l.n.Load(), int32(1))
		k.stop()
	})
}
