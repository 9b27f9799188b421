package redlock

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/fakenode"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/realredis"
	"github.com/quorumlock/redlock/internal/tick"
)

// mutedNodes are servers on which a user may not PUBLISH.
var mutedNodes = map[string]func(t *testing.T) *contractNode{
	"in memory": func(*testing.T) *contractNode { return newInMemory(true) },
	"miniredis": func(t *testing.T) *contractNode {
		m := miniredis.RunT(t)
		m.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
			if cmd == "PUBLISH" {
				c.WriteError("NOPERM this user has no permissions to run the 'publish' command")
			}
			return cmd == "PUBLISH"
		})
		return overClient(t, m.Addr())
	},
	"redis": func(t *testing.T) *contractNode {
		s := realredis.Start(t)
		require.NoError(t, s.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", "-publish").Err())
		return overClient(t, s.Addr())
	},
}

// Where PUBLISH is denied, whatever lets a waiter in says that nobody was told: the process that
// hears it knows then that it will not be told either.
func TestContractDeniedPublish(t *testing.T) {
	t.Parallel()
	for server, start := range mutedNodes {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			asks := func(want string, req *protocol.Request) {
				t.Helper()
				a := n.do(req)
				require.NoError(t, a.err)
				assert.True(t, answers(want, a.val), "got %v, want %s", a.val, want)
			}
			claim := func(process, value string) *protocol.Request {
				return protocol.SharedClaimRequest(protocol.OpAcquireShared, contractTerms(contractTTL), "k", value, &shareOfK, &protocol.QueueArgs{Key: lineOfK, Entry: process + " 30000s0 " + value})
			}
			join := func(process, value string) *protocol.Request {
				return protocol.JoinRequest(contractTerms(contractTTL), "k", value, &protocol.QueueArgs{Key: lineOfK, Entry: process + " 30000s0 " + value})
			}

			asks("OK", askSet("a"))
			asks("[0 0 ~ ~ 1 0 a]", askJoin("p", "b", "", 0, 0))
			asks("2", askPlainLineRelease("a"))
			asks("OK", askClaim("p", "b"))

			// A crowd of which one release lets in all but one.
			for i := range fakenode.AtOnce + 1 {
				asks(fmt.Sprintf("[0 %d ~ ~ 1 0 b]", i), join("q", fmt.Sprint("r", i)))
			}
			asks("2", askPlainLineRelease("b"))
			asks("2049", claim("q", "r0"))
			for i := range fakenode.AtOnce {
				asks("1", claim("q", fmt.Sprint("r", i+1)))
			}

			asks("[0 0 ~ ~ 1 0 redlock:shared]", askJoin("p", "c", "", 0, 0))
			asks("[0 1 ~ ~ 1 0 redlock:shared]", askJoin("q", "d", "", 0, 0))
			for i := range fakenode.AtOnce {
				asks("3", askShareRelease(fmt.Sprint("r", i), lineOfK))
			}
			asks("2", askShareRelease(fmt.Sprint("r", fakenode.AtOnce), lineOfK))
			n.raw("DEL", "k")
			asks("[0 1 ~ ~ 0 1 c]", askJoin("q", "d", "", 0, 0))
		})
	}
}

// Scenario 91: a user may write the lock, but not its fencing counter. Redis does not roll
// back what a script did before it failed, so the counter comes first.
func TestFencedScriptsFailWhole(t *testing.T) {
	t.Parallel()
	if realredis.Major(t) < 7 {
		t.Skip("no user can have such rights before Redis 7")
	}
	server := realredis.Start(t)
	admin := server.Client(t)
	ctx := context.Background()
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "half", "on", ">pw", "+@all", "-set", "~*", "&*", "(+set ~k)").Err())
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "half", Password: "pw", Protocol: 2, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, client.Set(ctx, "k", "x", 0).Err(), "it may set the lock")
	require.NoError(t, admin.Del(ctx, "k").Err())

	w := conn.NewWire(client, conn.OpenHabits, "", tick.NewSystem())
	t.Cleanup(w.Close)
	for name, req := range map[string]*protocol.Request{
		"acquire": askFence("a", 1, ""), "claim": askFence("a", 1, entryOf("p", "a")), "repair": askFenceRepair("a", 8),
	} {
		c := &lane.Call{Req: req.WithSource()}
		w.Exchange([]*lane.Call{c}, 10*time.Second, 10*time.Second, func() {})
		assert.Equal(t, protocol.Failed, c.Read(req.Op).Kind, name)
		assert.True(t, protocol.Permanent(c.Err), "%s: %v", name, c.Err)
		assert.True(t, protocol.HalfWay(c.Err), "%s: %v", name, c.Err)
		assert.Empty(t, admin.Keys(ctx, "*").Val(), name)
	}
}
