package admin_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/redlocktest"
)

func TestLocksAreFoundByTheirNamesAndValues(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 3)
	const prefix = "a*b:"
	rl, err := redlock.Open(t.Context(), cluster.Addrs(), &redlock.Options{TTL: time.Minute, KeyPrefix: prefix})
	require.NoError(t, err)
	t.Cleanup(func() { _ = rl.Close() })
	fences := make(map[string]uint64)
	keys := []string{"plain", "{tag}x", "odd}", "a{b", "a:line", "a:line:", "b:door:", "odd}:line:"}
	for _, k := range keys {
		lock, err := rl.Mutex(k, redlock.WithFencing()).Acquire(t.Context())
		require.NoError(t, err)
		fences[k] = lock.Fence()
	}
	for _, n := range cluster.Nodes() {
		n.Set(prefix+"cart", "some text", 0)
		n.Set("axb:other", strings.Repeat("0", 32)+"@somebody", 0) // not of this prefix
		n.Redis().Lpush(prefix+"list", "x")
		n.Set("{"+prefix+"plain}:door", strings.Repeat("0", 32)+"@waiter", 0) // keeps newcomers from sharing
		n.Set(prefix+"{tag}x:door:", strings.Repeat("0", 32)+"@waiter", 0)
	}
	_, err = cluster.Node(0).Redis().ZAdd("{"+prefix+"awaited}:line", 1, "a waiter")
	require.NoError(t, err)
	nodes, err := admin.Open(cluster.Addrs(), &admin.Options{KeyPrefix: prefix, Timeout: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { _ = nodes.Close() })
	search := nodes.Search()
	sight, err := search.Look(t.Context(), keys)
	require.NoError(t, err)
	assert.ElementsMatch(t, append(keys, "awaited"), sight.Keys)
	assert.True(t, sight.Whole)
	assert.Equal(t, fences, sight.Fences)
	cluster.Node(1).Stop()
	sight, err = search.Look(t.Context(), keys)
	require.NoError(t, err)
	assert.Error(t, sight.Nodes[1].Err)
	assert.NoError(t, sight.Nodes[0].Err)
	assert.Equal(t, fences, sight.Fences)
}

// One look asks a node for no more than its share, so a lock among very many keys takes
// several.
func TestManyKeysAreLookedThroughBitByBit(t *testing.T) {
	server := realredis.Start(t)
	c := server.Client(t)
	_, err := c.Pipelined(t.Context(), func(p redis.Pipeliner) error {
		for i := range 10_000 {
			p.Set(t.Context(), fmt.Sprintf("page:%d", i), "text", 0)
		}
		p.Set(t.Context(), "lock", strings.Repeat("0f", 16)+"@app", time.Minute)
		return nil
	})
	require.NoError(t, err)
	nodes, err := admin.Open([]string{server.Addr()}, &admin.Options{Timeout: 10 * time.Second})
	require.NoError(t, err)
	defer nodes.Close()
	search, looks := nodes.Search(), 0
	var found []string
	for whole := false; !whole; looks++ {
		sight, err := search.Look(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, sight.Nodes[0].Err)
		found, whole = append(found, sight.Keys...), sight.Whole
	}
	assert.Equal(t, []string{"lock"}, found)
	assert.GreaterOrEqual(t, looks, 8)
}
