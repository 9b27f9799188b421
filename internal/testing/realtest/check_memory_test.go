package realtest_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const markKey = "redlock:memory"

// Check goes by what the servers have, so the client that asks need not have used them.
func TestCheckTellsSinceWhenNodesRemember(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	servers := realredis.StartN(t, 3, durable(realredis.User("app", "pw", "~*", "+@all", "-get"))...)
	user := newOn(t, guarded(0), clientsOf(t, addrsOf(servers)...)...)
	clients := clientsOf(t, addrsOf(servers)...)
	clients[2] = defaultClient(t, servers[2].Addr(), func(o *redis.Options) { o.Username, o.Password = "app", "pw" })
	newcomer := newOn(t, guarded(0), clients...)
	for _, n := range check(t, newcomer).Nodes {
		assert.Zero(t, n.RemembersSince, "of %s, which nobody has used", n.Node)
	}

	first := newOn(t, guarded(0), clientsOf(t, addrsOf(servers)...)...)
	use(t, first)
	require.NoError(t, first.Close()) // a look of its that is under way would find marks that it did not write
	month := 30 * 24 * time.Hour
	for _, s := range servers {
		ageMark(t, s.Client(t), month)
	}
	flushed := servers[1].Client(t)
	require.NoError(t, flushed.FlushAll(t.Context()).Err())
	r := check(t, newcomer)
	assert.WithinDuration(t, time.Now().Add(-month), r.Nodes[0].RemembersSince, time.Hour, "%v", r)
	assert.Zero(t, r.Nodes[1].RemembersSince, "emptied, and not used since")
	assert.Zero(t, r.Nodes[2].RemembersSince, "may not be read")
	assert.Contains(t, strings.Join(r.Nodes[2].Unread, "\n"), "GET "+markKey+": NOPERM")
	assert.NotContains(t, strings.Join(r.Nodes[1].Unread, "\n"), markKey)
	assert.Zero(t, flushed.Exists(t.Context(), markKey).Val(), "Check wrote a mark")

	use(t, user)
	r = check(t, newcomer)
	assert.WithinDuration(t, time.Now(), r.Nodes[1].RemembersSince, time.Hour, "%v", r)
	assert.WithinDuration(t, time.Now().Add(-month), r.Nodes[0].RemembersSince, time.Hour, "%v", r)
	assert.Contains(t, r.String(), r.Nodes[0].RemembersSince.UTC().Format(time.RFC3339))

	for _, n := range check(t, newOn(t, redlock.Options{NoRestartGuard: true}, clients...)).Nodes {
		assert.Zero(t, n.RemembersSince, "without a guard")
		assert.NotContains(t, strings.Join(n.Unread, "\n"), markKey)
	}
}

// A mark that came from another server with the data says nothing of this one.
func TestCheckOfAMarkThatWasCopied(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	servers := realredis.StartN(t, 3, durable()...)
	rl := newOn(t, guarded(0), clientsOf(t, addrsOf(servers)...)...)
	use(t, rl)
	require.NoError(t, rl.Close()) // a look of its that is under way would write a mark in the place of the copied one
	text := servers[0].Client(t).Get(t.Context(), markKey).Val()
	require.NoError(t, servers[1].Client(t).Set(t.Context(), markKey, text, 0).Err())
	r := check(t, newOn(t, guarded(0), clientsOf(t, addrsOf(servers)...)...))
	assert.NotZero(t, r.Nodes[0].RemembersSince)
	assert.Zero(t, r.Nodes[1].RemembersSince)
	assert.NotZero(t, r.Nodes[2].RemembersSince)
}

// Times are this machine's, whatever a node's clock says.
func TestSinceWhenNodesRememberByOurClock(t *testing.T) {
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		user := clientOf(t, c, guarded(0))
		used := time.Now().Add(-time.Hour) // as every cluster of redlocktest
		use(t, user)
		time.Sleep(2 * time.Hour)
		for _, n := range check(t, user).Nodes {
			assert.WithinDuration(t, used, n.RemembersSince, 2*time.Second, "the date of its mark")
		}

		c.Node(1).ShiftClock(time.Minute)
		c.Node(1).FlushAll()
		emptied := time.Now()
		use(t, user)
		time.Sleep(time.Hour)
		nodes := check(t, user).Nodes
		assert.WithinDuration(t, used, nodes[0].RemembersSince, 2*time.Second)
		assert.WithinDuration(t, emptied, nodes[1].RemembersSince, time.Second)

		c.Node(2).Deny("TIME")
		nodes = check(t, user).Nodes
		assert.Zero(t, nodes[2].RemembersSince, "how old its mark is cannot be told")
		assert.NotZero(t, nodes[0].RemembersSince)
	})
}

// use writes marks where there are none.
func use(t *testing.T, rl *redlock.Redlock) {
	t.Helper()
	lock := requireLock(t, rl)
	waitForVotes(t, lock) // a release drops what was not sent yet, and then a node that is emptied has no mark
	require.NoError(t, lock.Release(t.Context()))
}

// ageMark makes a node's mark older than it is.
func ageMark(t *testing.T, c *redis.Client, d time.Duration) {
	t.Helper()
	fields := strings.Fields(c.Get(t.Context(), markKey).Val())
	require.Greater(t, len(fields), 2, "no mark")
	at, err := strconv.ParseInt(fields[1], 10, 64)
	require.NoError(t, err)
	fields[1] = strconv.FormatInt(at-d.Microseconds(), 10)
	require.NoError(t, c.Set(t.Context(), markKey, strings.Join(fields, " "), 0).Err())
}
