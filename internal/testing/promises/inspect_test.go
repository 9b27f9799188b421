package promises_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/redlocktest"
)

func TestInspect(t *testing.T) {
	inBubble(t, 5, &redlock.Options{Owner: "me@here"}, func(b *bed) {
		inspect := func() admin.Status {
			s := b.status()
			require.Len(b, s.Nodes, 5)
			assert.Equal(b, key, s.Key)
			return s
		}
		s := inspect()
		assert.False(b, s.Held())
		assert.Equal(b, admin.Status{Key: key, Nodes: s.Nodes}, s)
		assert.Equal(b, admin.NodeStatus{Node: b.rl.Nodes()[3]}, s.Nodes[3])

		lock := b.lock()
		b.pass(time.Second)
		b.cluster.Node(0).Del(key)
		b.cluster.Node(1).ShiftClock(3 * time.Second)
		before := b.cluster.Holders(key)
		s = inspect()
		assert.True(b, s.Held())
		assert.Equal(b, lock.Token(), s.Token)
		assert.Equal(b, "me@here", s.Owner)
		assert.Equal(b, 9*time.Second, s.TTL, "of the best quorum")
		assert.Zero(b, s.Nodes[0].TTL)
		assert.Equal(b, 6*time.Second, s.Nodes[1].TTL)
		assert.Equal(b, lock.Token()+"@me@here", s.Nodes[1].Value)
		assert.Equal(b, before, b.cluster.Holders(key), "it changes nothing")

		b.each([]int{2}, taken)
		assert.Equal(b, 6*time.Second, inspect().TTL)
		b.each([]int{3}, taken)
		s = inspect()
		assert.False(b, s.Held(), "a split is nobody's")
		assert.Empty(b, s.Token)
		assert.Equal(b, "somebody", s.Nodes[3].Token)
		assert.Equal(b, "else", s.Nodes[3].Owner)

		// Scenario 48, and values of other libraries.
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.Set(key, "plain", 0) })
		s = inspect()
		assert.True(b, s.Held())
		assert.Negative(b, s.TTL)
		assert.Negative(b, s.Nodes[0].TTL)
		assert.Equal(b, "plain", s.Nodes[0].Token)
		assert.Empty(b, s.Nodes[0].Owner)

		// Scenario 47.
		b.each([]int{0}, func(n *redlocktest.Node) { n.Del(key); list(n) })
		s = inspect()
		assert.ErrorContains(b, s.Nodes[0].Err, "a list, which is no lock")
		assert.Empty(b, s.Nodes[0].Value)
	})
}

func TestInspectWaitsForAllNodesButNotLong(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		lock := b.lock()
		nodes := looking(b, b.cluster, &admin.Options{Timeout: nodeTimeout})
		_, err := nodes.Inspect(b.Context(), key)
		require.NoError(b, err)
		b.cluster.Node(0).Delay(40 * time.Millisecond)
		b.takes(80*time.Millisecond, func() {
			s, err := nodes.Inspect(b.Context(), key)
			require.NoError(b, err)
			assert.Equal(b, lock.Token(), s.Nodes[0].Token)
			assert.Equal(b, 80*time.Millisecond, s.Nodes[0].Elapsed)
		})
		b.cluster.Node(0).Delay(0)
		b.each([]int{0, 1}, hang)
		b.takes(nodeTimeout, func() {
			s, err := nodes.Inspect(b.Context(), key)
			require.NoError(b, err)
			assert.True(b, s.Held())
			assert.Error(b, s.Nodes[0].Err)
		})
		b.cluster.Node(2).Hang()
		s, err := nodes.Inspect(b.Context(), key)
		require.ErrorIs(b, err, redlock.ErrNoQuorum)
		assert.Equal(b, "inspect", failure(b, err).Op)
		assert.Equal(b, lock.Token(), s.Nodes[4].Token, "what was learnt")
		assert.False(b, s.Held())

		ctx, cancel := context.WithCancel(b.Context())
		b.each([]int{0, 1, 2}, resume)
		synctest.Wait()
		b.each([]int{0}, hang)
		done := later(func() (*redlock.Lock, error) { _, err := nodes.Inspect(ctx, key); return nil, err })
		b.pending(done)
		cancel()
		require.ErrorIs(b, (<-done).err, context.Canceled)
		b.each([]int{0}, resume)
	})
}

// failure is an error of package admin.
func failure(b *bed, err error) *admin.Error {
	b.Helper()
	var e *admin.Error
	require.ErrorAs(b, err, &e)
	assert.NotContains(b, e.Error(), "\n")
	return e
}

func TestForceRelease(t *testing.T) {
	type nodes = map[int]func(*redlocktest.Node)
	gone := func(n *redlocktest.Node) { n.Del(key) }
	odd := func(n *redlocktest.Node) { n.Del(key); list(n) }
	for _, c := range []struct {
		name   string
		token  func(*redlock.Lock) string // nil: Anything
		faults nodes
		want   error
		left   int
	}{
		{"by token", (*redlock.Lock).Token, nil, nil, 0},
		{"any holder", nil, nil, nil, 0},
		{"another token", func(*redlock.Lock) string { return "other" }, nil, redlock.ErrNotHeld, 5},
		{"part of the token", func(l *redlock.Lock) string { return l.Token()[:31] }, nil, redlock.ErrNotHeld, 5},
		{"a value of another library", func(*redlock.Lock) string { return "somebody@else" }, nodes{0: taken, 1: taken, 2: taken, 3: taken, 4: taken}, nil, 0},
		{"nothing there", (*redlock.Lock).Token, nodes{0: gone, 1: gone, 2: gone, 3: gone, 4: gone}, redlock.ErrNotHeld, 0},
		{"one left", (*redlock.Lock).Token, nodes{0: gone, 1: gone, 2: gone, 3: gone}, nil, 0},
		{"two of another", (*redlock.Lock).Token, nodes{0: taken, 1: taken}, nil, 2},
		{"three of another", (*redlock.Lock).Token, nodes{0: taken, 1: taken, 2: taken}, redlock.ErrNotHeld, 3},
		{"two of another, one hung", (*redlock.Lock).Token, nodes{0: taken, 1: taken, 2: hang}, redlock.ErrNoQuorum, 3},
		{"lists, by token", (*redlock.Lock).Token, nodes{0: odd, 1: odd, 2: odd}, redlock.ErrNotHeld, 3},
		{"lists, whatever", nil, nodes{0: odd, 1: odd, 2: odd}, nil, 0},
		{"three stopped", (*redlock.Lock).Token, nodes{0: stop, 1: stop, 2: stop}, redlock.ErrNoQuorum, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				lock := b.lock()
				for i, f := range c.faults {
					f(b.cluster.Node(i))
				}
				from := admin.Anything()
				if c.token != nil {
					from = admin.HeldBy(c.token(lock))
				}
				taken, err := looking(b, b.cluster, nil).ForceRelease(b.Context(), key, from)
				require.Len(b, taken.Nodes, 5)
				b.on(c.left)
				if c.want == nil {
					require.NoError(b, err)
					return
				}
				require.ErrorIs(b, err, c.want)
				assert.Equal(b, "force release", failure(b, err).Op)
				b.each([]int{0, 1, 2, 3, 4}, resume)
			})
		})
	}
}

// An empty token is that of a Status with several holders, or none. And nodes would seem to be away
// with one of a megabyte, which takes longer than their timeout.
func TestForceReleaseOfATokenThatIsNone(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		nodes := looking(b, b.cluster, nil)
		b.lock()
		b.cluster.ResetCommands()
		for _, n := range []int{0, 8193} {
			_, err := nodes.ForceRelease(b.Context(), key, admin.HeldBy(strings.Repeat("t", n)))
			require.ErrorIs(b, err, redlock.ErrInvalid)
			assert.ErrorContains(b, err, fmt.Sprintf("token: it is %d bytes long: must be from 1 to 8192", n))
		}
		assert.Zero(b, b.cluster.Commands(), "before any I/O")
		_, err := nodes.ForceRelease(b.Context(), key, admin.HeldBy(strings.Repeat("t", 8192)))
		assert.ErrorIs(b, err, admin.ErrNotHeld)
	})
}

func TestForceReleaseIsLearntAtTheNextExtend(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		takeAway(b, b.cluster, key)
		assert.Greater(b, lock.Validity(), time.Duration(0))
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrNotHeld)

		b.cluster.Node(0).Hang()
		ctx, cancel := context.WithTimeout(b.Context(), time.Millisecond)
		defer cancel()
		_, err := looking(b, b.cluster, nil).ForceRelease(ctx, key, admin.Anything())
		require.ErrorIs(b, err, context.DeadlineExceeded)
		b.cluster.Node(0).Resume()
	})
}
