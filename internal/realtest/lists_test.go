package realtest_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/realredis"
)

// called are the names of a server's connections, but for those of the test.
func called(t *testing.T, s *realredis.Server) (names []string) {
	t.Helper()
	for line := range strings.Lines(s.Client(t).ClientList(t.Context()).Val()) {
		for _, word := range strings.Fields(line) {
			if name, ok := strings.CutPrefix(word, "name="); ok && name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// A connection says how many nodes its client has, unless the user has given it a name.
func TestConnectionsAreCalledByTheirClient(t *testing.T) {
	t.Parallel()
	servers := realredis.StartN(t, 3)
	named := func(o *redis.Options) { o.ClientName = "mine" }
	for want, made := range map[string]func() *redlock.Redlock{
		`^redlock:[0-9a-f]{8}:3:[0-9a-f]{8}:[0-9a-f]{8}:opened$`: func() *redlock.Redlock {
			return openAt(t, addrsOf(servers), redlock.Options{Owner: "opened"})
		},
		`^redlock:[0-9a-f]{8}:3:[0-9a-f]{8}:[0-9a-f]{8}:made$`: func() *redlock.Redlock {
			return newOn(t, redlock.Options{Owner: "made"}, clientsOf(t, addrsOf(servers)...)...)
		},
		`^mine$`: func() *redlock.Redlock {
			return newOn(t, redlock.Options{}, defaultClient(t, servers[0].Addr(), named), defaultClient(t, servers[1].Addr(), named), defaultClient(t, servers[2].Addr(), named))
		},
	} {
		rl := made()
		requireAcquire(t, rl)
		for _, s := range servers {
			eventually(t, func() bool { return len(called(t, s)) > 0 }, "no connection has a name")
			for _, got := range called(t, s) {
				assert.Regexp(t, want, got)
			}
		}
		assert.NoError(t, rl.Close())
		for _, s := range servers {
			s.Client(t).FlushAll(t.Context())
			eventually(t, func() bool { return len(called(t, s)) == 0 }, "connections are left")
		}
	}
}
