package realtest_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// Row 90: a Sentinel promotes a replica, which may lack the last writes. The library's own
// connections follow to it, and it is barred like a node that was restarted.
func TestSentinelFailoverIsNoticed(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(t *testing.T, master, sentinel *realredis.Server){
		// The old master lives on as a replica, which refuses writes.
		"ordered": func(t *testing.T, _, sentinel *realredis.Server) {
			require.NoError(t, sentinel.Client(t).Do(t.Context(), "SENTINEL", "FAILOVER", "m").Err())
		},
		"of a master that died": func(_ *testing.T, master, _ *realredis.Server) { master.Kill() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const period = 8 * time.Second
			var clients []redis.UniversalClient
			var master, replica, sentinel *realredis.Server
			for i, s := range realredis.StartN(t, 3) {
				if i == 0 {
					master, replica = s, realredis.Start(t, realredis.ReplicaOf(s))
				}
				se := realredis.StartSentinel(t, s, "m")
				if i == 0 {
					sentinel = se
				}
				c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{se.Addr()}})
				t.Cleanup(func() { _ = c.Close() })
				clients = append(clients, c)
				convAge(t, period, s.Client(t))
			}
			rl := newOn(t, guarded(period), clients...)
			warm(t, rl, period)
			fail(t, master, sentinel)

			promoted := replica.Client(t)
			eventually(t, func() bool { return convInfo(promoted, "replication", "role") == "master" }, "no failover")
			var votes []redlock.Outcome
			ctx := context.Background()
			vote := func() redlock.Outcome {
				lock, err := rl.Mutex(resource).TryAcquire(ctx)
				if err != nil {
					return redlock.Outcome{}
				}
				waitForVotes(t, lock)
				votes = lock.Outcomes()
				require.NoError(t, lock.Release(ctx))
				return votes[0]
			}
			eventually(t, func() bool { return says(vote(), "restarted or replaced") }, "the new master votes at once")
			eventually(t, func() bool { return vote().Vote == redlock.VoteGranted }, "it never votes again")
			lock, err := rl.Mutex(resource).TryAcquire(ctx)
			require.NoError(t, err)
			waitForVotes(t, lock)
			require.NotEmpty(t, promoted.Get(ctx, resource).Val(), "it is the new master that voted")
		})
	}
}
