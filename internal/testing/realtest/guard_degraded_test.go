package realtest_test

import (
	"slices"
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

// What waiting does not mend is told at once, by Open and by each acquire, and names the permission and the option.
func TestNodesThatDenyWhatAVoteRestsOn(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		rules []string
		says  string
	}{
		"INFO":                {[]string{"~*", "-info"}, "'info'"},
		"GET":                 {[]string{"~*", "-get"}, "'get'"},
		"TIME":                {[]string{"~*", "-time"}, "time"},
		"the mark":            {[]string{"~" + resource}, "~redlock:memory"},
		"writing of the mark": {[]string{"~" + resource, "%R~redlock:memory", "~redlock:trial"}, "~redlock:memory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 3, realredis.User("locker", "secret", append([]string{"&*", "+@all"}, c.rules...)...))
			var clients []redis.UniversalClient
			var urls []string
			for _, s := range f.servers {
				clients = append(clients, defaultClient(t, s.Addr(), func(o *redis.Options) { o.Username, o.Password = "locker", "secret" }))
				urls = append(urls, "redis://locker:secret@"+s.Addr())
			}
			o := guarded(time.Hour)
			rl := newOn(t, o, clients...)
			for range 3 {
				for _, call := range []func() error{
					func() error { _, err := openOn(t.Context(), urls, &o); return err },
					func() error { _, err := rl.Mutex(resource).Acquire(t.Context()); return err },
				} {
					err := promptly(t, func() error { return call() })
					requireNoQuorum(t, err)
					require.ErrorContains(t, err, c.says)
					require.ErrorContains(t, err, "ACL SETUSER")
					if name != "GET" { // which locks need in any case
						require.ErrorContains(t, err, "NoRestartGuard")
					}
				}
			}
			f.requireGone(t, resource)
			o.NoRestartGuard, o.RestartGuard = true, 0
			if name != "GET" { // which scripts need
				lock := requireLock(t, newOn(t, o, clients...))
				require.NoError(t, lock.Release(t.Context()))
			}
		})
	}
}
