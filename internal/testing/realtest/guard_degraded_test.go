package realtest_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// degradations collects what Hooks.Degraded is told.
type degradations struct {
	mu   sync.Mutex
	seen []redlock.DegradedInfo
}

func (d *degradations) hooks() *redlock.Hooks {
	return &redlock.Hooks{Degraded: func(i redlock.DegradedInfo) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.seen = append(d.seen, i)
	}}
}

func (d *degradations) all() []redlock.DegradedInfo {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.seen)
}

// of is how often each node was told to have no guard.
func (d *degradations) of() map[string]int {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := make(map[string]int)
	for _, i := range d.seen {
		if i.Kind == redlock.DegradedGuard && strings.Contains(i.Lacks, "restart guard") && i.Err != nil {
			n[i.Node]++
		}
	}
	return n
}

func TestNodesThatDenyInfoAreUsedAndNamedOnce(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, realredis.User("locker", "secret", "~*", "&*", "+@all", "-info"))
	var clients []redis.UniversalClient
	var urls []string
	for _, s := range f.servers {
		clients = append(clients, defaultClient(t, s.Addr(), func(o *redis.Options) { o.Username, o.Password = "locker", "secret" }))
		urls = append(urls, "redis://locker:secret@"+s.Addr())
	}
	for way, open := range map[string]func(*testing.T, redlock.Options) *redlock.Redlock{
		"Open": func(t *testing.T, o redlock.Options) *redlock.Redlock { return openAt(t, urls, o) },
		"New":  func(t *testing.T, o redlock.Options) *redlock.Redlock { return newOn(t, o, clients...) },
	} {
		t.Run(way, func(t *testing.T) {
			var d degradations
			o := guarded(time.Hour)
			o.Hooks = d.hooks()
			rl := open(t, o)
			for range 3 {
				lock := requireLock(t, rl)
				waitForVotes(t, lock)
				require.NoError(t, lock.Release(t.Context()))
				f.requireGone(t, resource)
			}
			eventually(t, func() bool { return len(d.of()) == 3 }, "not all nodes are named")
			for _, n := range d.of() {
				require.Equal(t, 1, n)
			}
		})
	}
}
