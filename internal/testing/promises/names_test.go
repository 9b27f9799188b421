package promises_test

import (
	"context"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/redlocktest"
)

// Clients of Sentinel all report one address; a fleet behind different addresses needs the same
// names to agree on who keeps the line.
func TestNodesAreCalledByTheirNames(t *testing.T) {
	names := []string{"zone-a", "zone-b", "zone-c"}
	inBubble(t, 3, &redlock.Options{NodeNames: names}, func(b *bed) {
		names[0] = "changed"
		assert.Equal(b, []string{"zone-a", "zone-b", "zone-c"}, b.rl.Nodes())
		b.each([]int{1, 2}, stop)
		q := b.try()
		assert.Equal(b, "zone-b", q.Outcomes[1].Node)
		assert.ErrorContains(b, q, "; zone-c ")
	})
}

func TestNamesDecideWhoKeepsTheLine(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		held := b.lock()
		// They report nothing by which they could be told apart, as failover clients do.
		open := func(order ...int) *redlock.Redlock {
			var clients []redis.UniversalClient
			var names []string
			for _, i := range order {
				clients = append(clients, b.cluster.Client(i, func(o *redis.Options) { o.Addr = "FailoverClient" }))
				names = append(names, string(rune('a'+i)))
			}
			rl, err := redlock.New(clients, &redlock.Options{NodeNames: names})
			require.NoError(b, err)
			b.Cleanup(func() { _ = rl.Close() })
			return rl
		}
		here, there := open(0, 1, 2, 3, 4), open(3, 4, 1, 0, 2)
		for _, rl := range []*redlock.Redlock{here, there} {
			later(func() (*redlock.Lock, error) { return rl.Mutex(key).Acquire(b.Context()) })
		}
		b.pass(10 * time.Millisecond)
		lines := 0
		for _, n := range b.cluster.Nodes() {
			if members, err := n.Redis().SortedSet("{" + key + "}:line"); err == nil {
				lines++
				maps.DeleteFunc(members, func(m string, _ float64) bool { return strings.HasPrefix(m, "silent ") })
				assert.Len(b, members, 2)
			}
		}
		assert.Equal(b, 1, lines)
		require.NoError(b, held.Release(b.Context()))
	})
}

func TestBadNamesAreRefusedWithoutIO(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 3)
	for says, names := range map[string][]string{
		"NodeNames has 2 names for 3 nodes":                         {"a", "b"},
		"name 1 of NodeNames is 0 bytes long":                       {"a", "", "c"},
		"name 2 of NodeNames is 257 bytes long":                     {"a", "b", strings.Repeat("x", 257)},
		"name 0 of NodeNames is no UTF-8":                           {"\xff", "b", "c"}, // as labels of metrics must be
		`names 0 and 2 of NodeNames are both "a": must differ`:      {"a", "b", "a"},
		"NodeNames has 4 names for 3 nodes: must have one for each": {"a", "b", "c", "d"},
	} {
		opts := &redlock.Options{NodeNames: names}
		_, err := redlock.New(cluster.Clients(), opts)
		require.ErrorIs(t, err, redlock.ErrInvalid)
		assert.ErrorContains(t, err, says)
		_, err = redlock.Open(t.Context(), cluster.Addrs(), opts)
		require.ErrorIs(t, err, redlock.ErrInvalid)
		assert.ErrorContains(t, err, says)
	}
	assert.Zero(t, cluster.Commands())
	rl, err := redlock.Open(t.Context(), cluster.Addrs(), &redlock.Options{NodeNames: []string{"a", "b", "c"}})
	require.NoError(t, err)
	assert.Equal(t, []string{"a", "b", "c"}, rl.Nodes())
	require.NoError(t, rl.Close())
}

// Logs have one line for an error, also for one that is made of several.
func TestErrorsOfSeveralThingsAreOneLine(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		mine := errors.New("the work failed")
		err := b.rl.Mutex(key).Do(b.Context(), func(context.Context, *redlock.Lock) error {
			b.each([]int{0, 1, 2}, gone)
			return mine
		})
		assert.ErrorIs(b, err, mine)
		assert.ErrorIs(b, err, redlock.ErrLost)
		assert.NotContains(b, err.Error(), "\n")
		assert.True(b, strings.HasPrefix(err.Error(), "the work failed; redlock: lock lost: "), err)
	})
	_, err := redlock.Open(t.Context(), []string{"x", "a:1", "a:1"}, &redlock.Options{TTL: -1})
	assert.ErrorIs(t, err, redlock.ErrDuplicateNode)
	assert.NotContains(t, err.Error(), "\n")
}

// A node that is asked whether it is there grants nothing.
func TestErrorOfOpenSaysWhoAnswered(t *testing.T) {
	t.Parallel()
	cluster := redlocktest.NewCluster(t, 3)
	addrs := cluster.Addrs()
	cluster.Node(1).Stop()
	cluster.Node(2).Stop()
	_, err := redlock.Open(t.Context(), addrs, nil)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	assert.ErrorContains(t, err, "(1 of 3 nodes answered, 2 needed): "+addrs[0]+"/0 answered")
	assert.NotContains(t, err.Error(), "granted")
}

// A lock that has the name of what belongs to another lock, or to the library, would be deleted
// or outlived by it.
func TestNamesOfOursAreNoLocks(t *testing.T) {
	fn := func(context.Context, *redlock.Lock) error { return errors.New("called") }
	token := strings.Repeat("0a", 16)
	cluster := redlocktest.NewCluster(t, 3)
	for name, says := range map[string]string{
		"redlock:memory":           `"redlock:memory" is where the memory mark is kept on the nodes: must be another key`,
		"redlock:trial":            `"redlock:trial" is where a lock's commands are tried on the nodes: must be another key`,
		"other:redlock:memory":     "the memory mark",
		"{report}:line":            `"{report}:line" is where the wait queue of "report" is kept on the nodes: must be another key`,
		"{report}:shared":          `the list of those who share "report"`,
		"{report}:door":            `the key that keeps newcomers from sharing "report"`,
		"{report}:fence":           `the fencing counter of "report"`,
		"{{a}:fence":               `the fencing counter of "{a"`,
		"{a}:line:":                `the wait queue of "{a}"`,
		"x{a}y:shared:":            `share "x{a}y"`,
		"a}:door:":                 `sharing "a}"`,
		"{{report}:line}:line":     "",
		"{{report}:line:}:line":    "",
		strings.Repeat("k", 8193):  "the key is 8193 bytes long, with Options.KeyPrefix: must be at most 8192",
		strings.Repeat("k", 1<<20): "the key is 1048576 bytes long",
		"report:line":              "", // of "report" it is {report}:line
		"report:line:":             "",
		"report:shared:":           "",
		"{}:line":                  "", // of the empty key, which is none
		"a}:line:":                 "", // "a}" can have no queue
		"redlock:memory:2":         "",
		"{report}:lines":           "",
		"{report}:line:orders":     "",
		strings.Repeat("k", 8192):  "",
		"{orders}:42":              "",
	} {
		for prefix, key := range map[string]string{"": name, name[:1]: name[1:]} {
			rl, err := redlock.New(cluster.Clients(), &redlock.Options{KeyPrefix: prefix})
			require.NoError(t, err)
			m, nodes := rl.Mutex(key), looking(t, cluster, &admin.Options{KeyPrefix: prefix})
			ways := map[string]func(ctx context.Context) error{
				"TryAcquire": func(ctx context.Context) error { _, err := m.TryAcquire(ctx); return err },
				"Acquire":    func(ctx context.Context) error { _, err := m.Acquire(ctx); return err },
				"Do":         func(ctx context.Context) error { return m.Do(ctx, fn) },
				"Inspect":    func(ctx context.Context) error { _, err := nodes.Inspect(ctx, key); return err },
				"ForceRelease": func(ctx context.Context) error {
					_, err := nodes.ForceRelease(ctx, key, admin.HeldBy(token))
					return err
				},
				"Lead":      func(ctx context.Context) error { return m.Lead(ctx, fn) },
				"Adopt":     func(ctx context.Context) error { _, err := m.Adopt(ctx, token); return err },
				"Shared":    func(ctx context.Context) error { _, err := m.Shared().TryAcquire(ctx); return err },
				"Semaphore": func(ctx context.Context) error { _, err := rl.Semaphore(key, 3).Acquire(ctx); return err },
			}
			if says == "" {
				_, err := m.TryAcquire(canceled())
				assert.NotErrorIs(t, err, redlock.ErrInvalid, "%.40s", name)
				continue
			}
			for way, try := range ways {
				err := try(t.Context())
				assert.ErrorIs(t, err, redlock.ErrInvalid, "%s of %.40s", way, name)
				assert.ErrorContains(t, err, says, way)
				assert.Less(t, len(err.Error()), 1000)
			}
			require.NoError(t, rl.Close())
		}
	}
	assert.Zero(t, cluster.Commands())
}
