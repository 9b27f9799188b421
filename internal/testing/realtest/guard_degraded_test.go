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

// What waiting does not mend is told at once, and names the right.
func TestNodesThatDenyWhatAVoteRestsOn(t *testing.T) {
	t.Parallel()
	for denied, says := range map[string]string{"-info": "'info'", "-get": "'get'", "-time": "votes do not count"} { // TIME is refused in scripts, too
		t.Run(denied, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 3, realredis.User("locker", "secret", "~*", "&*", "+@all", denied))
			var clients []redis.UniversalClient
			var urls []string
			for _, s := range f.servers {
				clients = append(clients, defaultClient(t, s.Addr(), func(o *redis.Options) { o.Username, o.Password = "locker", "secret" }))
				urls = append(urls, "redis://locker:secret@"+s.Addr())
			}
			if denied == "-info" {
				o := guarded(time.Hour)
				err := promptly(t, func() error { _, err := openOn(t.Context(), urls, &o); return err })
				requireNoQuorum(t, err)
				require.ErrorContains(t, err, "'info'")
			}
			o := guarded(time.Hour)
			rl := newOn(t, o, clients...)
			for range 3 {
				err := promptly(t, func() error { _, err := rl.Mutex(resource).Acquire(t.Context()); return err })
				requireNoQuorum(t, err)
				require.ErrorContains(t, err, says)
			}
			f.requireGone(t, resource)
			o.NoRestartGuard, o.RestartGuard = true, 0
			if denied != "-get" { // which scripts need
				lock := requireLock(t, newOn(t, o, clients...))
				require.NoError(t, lock.Release(t.Context()))
			}
		})
	}
}
