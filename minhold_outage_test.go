package redlock_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

// outages are ways in which nodes are away, and how each ends.
var outages = map[string]struct{ begin, end func(*redlocktest.Node) }{
	"hung":     {hang, resume},
	"down":     {stop, func(n *redlocktest.Node) { n.Restart(redlocktest.KeepKeys) }},
	"cut off":  {func(n *redlocktest.Node) { n.Partition(redlocktest.Refuse) }, (*redlocktest.Node).Heal},
	"silent":   {func(n *redlocktest.Node) { n.Partition(redlocktest.DropRequests) }, (*redlocktest.Node).Heal},
	"failing":  {answers("LOADING Redis is loading the dataset in memory"), answers("")},
	"answered": {func(n *redlocktest.Node) { n.Partition(redlocktest.DropReplies) }, (*redlocktest.Node).Heal},
}

var allFive = []int{0, 1, 2, 3, 4}

// Row 110: the release of an outage is sent when that is over, like any other.
func TestMinHoldEndsInTimeAfterAnOutage(t *testing.T) {
	const lease = 20 * time.Second
	for name, outage := range outages {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 5, &redlock.Options{RestartGuard: -1}, func(b *bed) {
				releaseInOutage := func(lock *redlock.Lock) {
					b.each(allFive, outage.begin)
					require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNoQuorum)
					b.pass(time.Second)
					b.each(allFive, outage.end)
					b.pass(time.Second)
				}
				b.cycle()
				lock := b.lock(redlock.WithTTL(lease), redlock.WithMinHold(100*time.Millisecond))
				releaseInOutage(lock)
				b.on(0)

				lock = b.lock(redlock.WithTTL(lease), redlock.WithMinHold(5*time.Second))
				granted := time.Now()
				releaseInOutage(lock)
				b.on(5)
				assert.NotContains(b, b.cluster.Holders(key), lock.Token()+"@", "what the holder still sends ends nothing")
				b.pass(time.Until(granted.Add(5*time.Second - time.Millisecond)))
				b.on(5)
				require.ErrorIs(b, b.try(), redlock.ErrHeld)
				b.pass(3 * 100 * time.Millisecond)
				b.on(0)
			})
		})
	}
}

// A waiter has it then, and not when the lease would have ended.
func TestWaiterForMinHoldInAnOutageHasItThen(t *testing.T) {
	inBubble(t, 5, &redlock.Options{RestartGuard: -1}, func(b *bed) {
		lock := b.lock(redlock.WithTTL(time.Minute), redlock.WithMinHold(100*time.Millisecond))
		waiting := later(func() (*redlock.Lock, error) {
			return b.another(&redlock.Options{RestartGuard: -1}).Mutex(key).Acquire(b.Context())
		})
		b.each(allFive, hang)
		require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNoQuorum)
		b.pass(time.Second)
		b.each(allFive, resume)
		resumed := time.Now()
		r := <-waiting
		require.NoError(b, r.err)
		assert.Less(b, r.at.Sub(resumed), 2*time.Second)
		require.NoError(b, r.lock.Release(b.Context()))
		b.on(0)
	})
}

// Row 110: a node that is slow, or overdue just then, keeps the lock no longer than the others.
func TestMinHoldEndsInTimeOnANodeThatIsLate(t *testing.T) {
	for name, late := range map[string]func(b *bed){
		"asked before": func(b *bed) { // so that the release waits behind what is overdue
			require.NoError(b, b.rl.Mutex("other").Do(b.Context(), nothing))
			b.pass(2 * nodeTimeout)
		},
		"asked by the release": func(*bed) {},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				b.cycle()
				lock := b.lock(redlock.WithTTL(time.Minute), redlock.WithMinHold(5*time.Second))
				granted := time.Now()
				b.each([]int{4}, hang)
				late(b)
				require.NoError(b, lock.Release(b.Context()))
				b.pass(3 * time.Second)
				b.each([]int{4}, resume)
				b.pass(time.Until(granted.Add(5*time.Second - time.Millisecond)))
				b.on(5)
				b.pass(60 * time.Millisecond)
				b.on(0)
			})
		})
	}
}

// A job that is over, closes and exits leaves no node with the lease.
func TestCloseTellsAllNodesForHowLongALockIsKept(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		b.cycle()
		rl := b.another(nil)
		require.NoError(b, rl.Mutex("other").Do(b.Context(), nothing))
		lock, err := rl.Mutex(key, redlock.WithTTL(time.Minute), redlock.WithMinHold(5*time.Second)).TryAcquire(b.Context())
		require.NoError(b, err)
		granted := time.Now()
		synctest.Wait()
		b.each([]int{3, 4}, func(n *redlocktest.Node) { n.Delay(nodeTimeout / 16) })
		// Behind this, so that it is not even sent when Release returns.
		other, err := rl.Mutex("other").TryAcquire(b.Context())
		require.NoError(b, err)
		synctest.Wait() // it has left for the slow nodes
		require.NoError(b, lock.Release(b.Context()))
		require.NoError(b, other.Release(b.Context()))
		require.NoError(b, rl.Close())
		b.each([]int{3, 4}, func(n *redlocktest.Node) { n.Delay(0) })
		b.on(5)
		for _, left := range b.cluster.TTLs(key) {
			assert.LessOrEqual(b, left, 5*time.Second+60*time.Millisecond)
		}
		b.pass(time.Until(granted.Add(5*time.Second - time.Millisecond)))
		b.on(5)
		b.pass(2 * nodeTimeout)
		b.on(0)
	})
}

func nothing(context.Context, *redlock.Lock) error { return nil }

// A node that never had the lock does not keep it either, so it is none of the majority.
func TestMinHoldIsConfirmedByNodesThatHaveTheLock(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		b.cycle()
		b.each([]int{3, 4}, func(n *redlocktest.Node) { n.Delay(nodeTimeout / 4) })
		other, err := b.rl.Mutex("other").TryAcquire(b.Context()) // and what follows waits behind it
		require.NoError(b, err)
		synctest.Wait() // that has left for the slow nodes
		lock, err := b.rl.Mutex(key, redlock.WithMinHold(5*time.Second)).TryAcquire(b.Context())
		require.NoError(b, err)
		b.each([]int{1, 2}, hang)
		require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNoQuorum, "one node has confirmed it")
		b.each([]int{1, 2}, resume)
		require.NoError(b, other.Release(b.Context()))
		b.pass(time.Second)
		b.on(3)
		b.pass(5 * time.Second)
		b.on(0)
	})
}
