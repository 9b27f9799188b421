package promises_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/longtest"
)

// cutOff opens a Redlock that some nodes refuse.
func (h hall) cutOff(nodes ...int) *redlock.Redlock {
	h.Helper()
	clients := make([]redis.UniversalClient, h.cluster.Len())
	refused := make(map[int]bool)
	for _, i := range nodes {
		refused[i] = true
	}
	for i := range clients {
		clients[i] = h.cluster.Client(i, func(o *redis.Options) {
			if refused[i] {
				o.DialerRetries = 1
				o.Dialer = func(context.Context, string, string) (net.Conn, error) {
					return nil, &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
				}
			}
		})
	}
	rl, err := redlock.New(clients, &redlock.Options{NoRestartGuard: true})
	require.NoError(h, err)
	h.Cleanup(func() { require.NoError(h, rl.Close()) })
	return rl
}

// takeTurns has each process hold the lock again and again until the time is over, and
// returns how often it did.
func (h hall) takeTurns(rls []*redlock.Redlock, hold, long time.Duration, begin func(i int) time.Duration) []int {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), long)
	defer cancel()
	var holders atomic.Int64
	turns := make([]int, len(rls))
	var all sync.WaitGroup
	for i, rl := range rls {
		all.Go(func() {
			time.Sleep(begin(i))
			for m := rl.Mutex("k"); ctx.Err() == nil; {
				l, err := m.Acquire(ctx)
				if err != nil {
					continue
				}
				assert.EqualValues(h, 1, holders.Add(1), "holders at a time")
				turns[i]++
				time.Sleep(hold)
				holders.Add(-1)
				_ = l.Release(context.Background())
			}
		})
	}
	all.Wait()
	return turns
}

// fair checks that each had at least half of its share.
func (h hall) fair(turns []int) {
	h.Helper()
	sum := 0
	for _, n := range turns {
		sum += n
	}
	h.Logf("turns %v", turns)
	for i, n := range turns {
		assert.GreaterOrEqual(h, n, max(1, sum/len(turns)/2), "turns of process %d of %v", i, turns)
	}
}

func inHallOf(t *testing.T, nodes int, f func(h hall)) {
	t.Helper()
	inBubble(t, nodes, nil, func(b *bed) {
		b.cluster.Record(false)
		for _, n := range b.cluster.Nodes() {
			n.Delay(200 * time.Microsecond)
		}
		f(hall{b})
	})
}

// A process that cannot reach the node where the others wait, and the others, get their
// share, for as long as that lasts, whoever comes first.
func TestQueuesThatMeetAreFair(t *testing.T) {
	t.Parallel()
	first := map[string]func(i int) time.Duration{
		"all at once":         func(int) time.Duration { return 0 },
		"the cut off first":   func(i int) time.Duration { return time.Duration(min(i, 1)) * 3 * time.Second },
		"the cut off at last": func(i int) time.Duration { return time.Duration(1-min(i, 1)) * 3 * time.Second },
	}
	for _, nodes := range []int{3, 5} {
		for hold, long := range map[time.Duration]time.Duration{
			5 * time.Millisecond: 12 * time.Second, 50 * time.Millisecond: 30 * time.Second, 200 * time.Millisecond: time.Minute,
		} {
			if !longtest.On() && (nodes > 3 || hold != 50*time.Millisecond) {
				continue
			}
			for when, begin := range first {
				t.Run(fmt.Sprintf("%d nodes, held for %v, %s", nodes, hold, when), func(t *testing.T) {
					t.Parallel()
					inHallOf(t, nodes, func(h hall) {
						arbiter := h.order(h.rl.Mutex("k"))[0]
						rls := []*redlock.Redlock{h.cutOff(arbiter), h.cutOff(), h.cutOff(), h.cutOff()}
						h.fair(h.takeTurns(rls, hold, long, begin))
					})
				})
			}
		}
	}
}

// Two processes that cannot reach the node of each other's queue meet at a third.
func TestQueuesThatCannotMeetAtEitherNode(t *testing.T) {
	t.Parallel()
	for _, nodes := range []int{3, 5} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			t.Parallel()
			inHallOf(t, nodes, func(h hall) {
				order := h.order(h.rl.Mutex("k"))
				rls := []*redlock.Redlock{h.cutOff(order[0]), h.cutOff(order[1])}
				h.fair(h.takeTurns(rls, 20*time.Millisecond, 30*time.Second, func(int) time.Duration { return 0 }))
			})
		})
	}
}

// farAway is a connection on which all that arrives takes its time.
type farAway struct {
	net.Conn
	takes time.Duration
}

func (c farAway) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	time.Sleep(c.takes)
	return n, err
}

// farOff opens a Redlock to which each answer takes its time.
func (h hall) farOff(takes time.Duration) *redlock.Redlock {
	h.Helper()
	clients := make([]redis.UniversalClient, h.cluster.Len())
	for i := range clients {
		clients[i] = h.cluster.Client(i, func(o *redis.Options) {
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := dial(ctx, network, addr)
				return farAway{conn, takes}, err
			}
		})
	}
	rl, err := redlock.New(clients, &redlock.Options{NoRestartGuard: true})
	require.NoError(h, err)
	h.Cleanup(func() { require.NoError(h, rl.Close()) })
	return rl
}

// A process near the nodes that was alone for long could take the lock again before one that
// is far away has even heard that it is its turn. It is told that somebody waits, whenever the
// other comes: also if that joins in the moment in which the lock is free, and is first at the
// node of the queue only.
func TestProcessThatIsNearLeavesOthersTheirTurn(t *testing.T) {
	t.Parallel()
	const hold, trip = 20 * time.Millisecond, 400 * time.Microsecond
	step := 4 * trip
	if longtest.On() {
		step = trip / 2
	}
	// With these it joins when the lock is free.
	comes := []time.Duration{5600 * time.Microsecond, 5800 * time.Microsecond, 6 * time.Millisecond, 6200 * time.Microsecond}
	for d := time.Duration(0); d < hold+2*trip; d += step {
		comes = append(comes, d)
	}
	for _, after := range comes {
		inHallOf(t, 5, func(h hall) {
			far := h.farOff(20 * time.Millisecond)
			begin := func(i int) time.Duration { return time.Duration(i) * (time.Second + after) }
			turns := h.takeTurns([]*redlock.Redlock{h.cutOff(), far}, hold, 4*time.Second, begin)
			assert.Greater(h, turns[1], 27, "turns of who comes after %v; in turn they are some 32", after)
		})
	}
}

// A holder whose lock is gone from the node of the queue, by which it is reserved for a waiter from
// far away, hears of that when it releases, and leaves the waiter its turn. It would have taken the
// other nodes again before the waiter has heard of the release.
func TestHolderWithoutTheNodeOfTheQueueLeavesOthersTheirTurn(t *testing.T) {
	inHallOf(t, 5, func(h hall) {
		near := h.process(nil).Mutex("k")
		l := h.acquire(near)
		arbiter := h.arbiter(near)
		arbiter.Redis().Del("k")
		waiter := visit(h.Context(), h.farOff(20*time.Millisecond).Mutex("k"))
		for len(h.entries(arbiter, near)) == 0 {
			time.Sleep(time.Millisecond)
		}
		h.release(l)
		time.Sleep(time.Millisecond) // until all nodes have answered
		again := visit(h.Context(), near)
		h.served(waiter)
		assert.True(h, again.waits(), "the waiter was there before")
		h.release(waiter.lock)
		h.served(again)
		h.release(again.lock)
	})
}

// The lock is held by nodes that keep no queue, and the node that would keep it refuses, as a
// replica does. The first waiter asks there whether the others wait, finds its turn taken when it
// comes back, and the next one does the same. They pause in between.
func TestWaitersWhoseTurnsAreInVainTakeTheirTime(t *testing.T) {
	inHallOf(t, 5, func(h hall) {
		h.cluster.Record(true)
		m := h.process(nil).Mutex("k")
		order := h.order(m)
		for _, i := range order[2:] {
			h.cluster.Node(i).Set("k", "a holder that died", 5*time.Second)
		}
		h.cluster.Node(order[0]).SetError("READONLY You can't write against a read only replica.")
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				ctx, cancel := context.WithTimeout(h.Context(), 4*time.Second)
				defer cancel()
				_, err := m.Acquire(ctx)
				assert.ErrorIs(h, err, context.DeadlineExceeded)
			})
		}
		all.Wait()
		assert.Less(h, h.cluster.Commands(), 10_000, "commands in four seconds")
	})
}

// A node that refused while it was a replica keeps the queue again when it is a master, also for
// those whose turns were in vain elsewhere all the time.
func TestWaiterWhoseTurnsAreInVainGoesBackToItsNode(t *testing.T) {
	inHallOf(t, 5, func(h hall) {
		m := h.process(nil).Mutex("k")
		order := h.order(m)
		for _, i := range order[2:] {
			h.cluster.Node(i).Set("k", "a holder that goes on", time.Minute)
		}
		first := h.cluster.Node(order[0])
		first.SetError("READONLY You can't write against a read only replica.")
		ctx, cancel := context.WithTimeout(h.Context(), 20*time.Second)
		defer cancel()
		var all sync.WaitGroup
		all.Go(func() {
			_, err := m.Acquire(ctx)
			assert.ErrorIs(h, err, context.Canceled)
		})
		time.Sleep(2 * time.Second)
		assert.NotEmpty(h, h.entries(h.cluster.Node(order[1]), m))
		first.SetError("")
		time.Sleep(10 * time.Second)
		assert.NotEmpty(h, h.entries(first, m))
		assert.Empty(h, h.entries(h.cluster.Node(order[1]), m))
		cancel()
		all.Wait()
	})
}

// wanting is one of several in each process who want the lock in this way.
type wanting struct {
	of func(rl *redlock.Redlock) locker
	// most may have it at a time, and takes is how many of these one is: who wants it alone is
	// all of them.
	most, takes int64
}

func wantsAlone() wanting {
	return wanting{func(rl *redlock.Redlock) locker { return rl.Mutex("k") }, 1 << 10, 1 << 10}
}

func wantsShare() wanting {
	return wanting{func(rl *redlock.Redlock) locker { return rl.Mutex("k").Shared() }, 1 << 10, 1}
}

func wantsPermit(n int) wanting {
	return wanting{func(rl *redlock.Redlock) locker { return rl.Semaphore("k", n) }, int64(n), 1}
}

// A process that cannot reach the node where the others wait, and the others, get their share in
// every way to hold the lock, also if the process that is cut off always has a waiter of its own,
// whose queue is the younger one as long as it is served and the others are not.
func TestQueuesThatMeetAreFairInAllModes(t *testing.T) {
	t.Parallel()
	first := map[string]func(i int) time.Duration{
		"all at once":         func(int) time.Duration { return 0 },
		"the cut off first":   func(i int) time.Duration { return time.Duration(min(i, 1)) * 3 * time.Second },
		"the cut off at last": func(i int) time.Duration { return time.Duration(1-min(i, 1)) * 3 * time.Second },
	}
	w, r, p2, p3 := wantsAlone(), wantsShare(), wantsPermit(2), wantsPermit(3)
	for name, in := range map[string]struct{ cutOff, others []wanting }{
		"alone":                {[]wanting{w, w, w, w}, []wanting{w, w, w, w}},
		"one of two permits":   {[]wanting{p2}, []wanting{p2}},
		"two of three permits": {[]wanting{p3, p3}, []wanting{p3, p3}},
		"more than permits":    {[]wanting{p3, p3, p3, p3}, []wanting{p3, p3, p3, p3}},
		"one of four writes":   {[]wanting{w, r, r, r}, []wanting{w, r, r, r}},
		"the cut off reads":    {[]wanting{r, r}, []wanting{w, w}},
		"the cut off writes":   {[]wanting{w, w}, []wanting{r, r}},
	} {
		for when, begin := range first {
			if !longtest.On() && when != "the cut off at last" && (when != "all at once" || name != "alone") {
				continue
			}
			t.Run(name+", "+when, func(t *testing.T) {
				t.Parallel()
				inHallOf(t, 3, func(h hall) {
					arbiter := h.order(h.rl.Mutex("k"))[0]
					processes := []*redlock.Redlock{h.cutOff(arbiter), h.cutOff(), h.cutOff(), h.cutOff()}
					want := [][]wanting{in.cutOff, in.others, in.others, in.others}
					h.fair(h.takeTurnsIn(processes, want, 50*time.Millisecond, 15*time.Second, begin))
				})
			})
		}
	}
}

// takeTurnsIn has those in each process hold the lock again and again until the time is over, and
// returns how often each process did.
func (h hall) takeTurnsIn(rls []*redlock.Redlock, want [][]wanting, hold, long time.Duration, begin func(i int) time.Duration) []int {
	h.Helper()
	ctx, cancel := context.WithTimeout(h.Context(), long)
	defer cancel()
	var taken atomic.Int64
	turns := make([]atomic.Int64, len(rls))
	var all sync.WaitGroup
	for i, rl := range rls {
		for _, one := range want[i] {
			m := one.of(rl)
			all.Go(func() {
				time.Sleep(begin(i))
				for ctx.Err() == nil {
					l, err := m.Acquire(ctx)
					if err != nil {
						continue
					}
					assert.LessOrEqual(h, taken.Add(one.takes), one.most, "holders at a time")
					turns[i].Add(1)
					time.Sleep(hold)
					taken.Add(-one.takes)
					_ = l.Release(context.Background())
				}
			})
		}
	}
	all.Wait()
	counts := make([]int, len(rls))
	for i := range turns {
		counts[i] = int(turns[i].Load())
	}
	return counts
}
