package realtest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Writes of a server are paused, as before a planned failover: SETs and scripts wait, and PING and INFO are answered. That
// is no silence of a connection: the conversation that waits is not reset, what it has sent is answered late, and no
// others take its place.
func TestWritesThatPause(t *testing.T) {
	t.Parallel()
	for _, paused := range []int{1, 3} {
		t.Run(fmt.Sprint(paused), func(t *testing.T) {
			t.Parallel()
			servers := realredis.StartN(t, 3)
			var urls []string
			for _, s := range servers {
				urls = append(urls, s.URL())
			}
			rl, err := openOn(t.Context(), urls, &redlock.Options{TTL: 10 * time.Second, NodeTimeout: 200 * time.Millisecond})
			require.NoError(t, err)
			t.Cleanup(func() { _ = rl.Close() })
			m := rl.Mutex("k")
			cycle := func() {
				lock, err := m.Acquire(t.Context())
				require.NoError(t, err)
				require.NoError(t, lock.Release(t.Context()))
			}
			for range 20 {
				cycle()
			}
			first := servers[0].Client(t)
			before := conversationsOf(t, first)
			require.NotEmpty(t, before)
			for _, s := range servers[:paused] {
				require.NoError(t, s.Client(t).Do(t.Context(), "CLIENT", "PAUSE", 2000, "WRITE").Err())
			}
			for began := time.Now(); time.Since(began) < 1900*time.Millisecond; {
				lock, err := m.TryAcquire(t.Context())
				if paused == 1 {
					require.NoError(t, err, "the others vote")
					require.NoError(t, lock.Release(t.Context()))
				} else if err == nil { // at the end
					require.NoError(t, lock.Release(t.Context()))
				}
			}
			cycle()
			after := conversationsOf(t, first)
			for id := range before {
				require.Contains(t, after, id, "it was reset")
			}
			for _, s := range servers {
				eventually(t, func() bool { return s.Client(t).Exists(t.Context(), "k").Val() == 0 }, "a SET landed that was not taken back")
			}
		})
	}
}

// conversationsOf are the ids of those connections of a server that run scripts and commands of locks.
func conversationsOf(t *testing.T, c *redis.Client) map[string]bool {
	t.Helper()
	all := make(map[string]bool)
	for line := range strings.Lines(c.ClientList(t.Context()).Val()) {
		id, _, _ := strings.Cut(strings.TrimPrefix(line, "id="), " ")
		if strings.Contains(line, " name=redlock") {
			all[id] = true
		}
	}
	return all
}
