package redlock

import (
	"fmt"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/realredis"
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
			asks := func(want string, req *request) {
				t.Helper()
				a := n.do(req)
				require.NoError(t, a.err)
				assert.True(t, answers(want, a.val), "got %v, want %s", a.val, want)
			}
			claim := func(process, value string) *request {
				return sharedClaimRequest(opAcquireShared, contractTerms(contractTTL), "k", value, &shareOfK, &queueArgs{key: lineOfK, entry: process + " 30000s0 " + value})
			}
			join := func(process, value string) *request {
				return joinRequest(contractTerms(contractTTL), "k", value, &queueArgs{key: lineOfK, entry: process + " 30000s0 " + value})
			}

			asks("OK", askSet("a"))
			asks("[0 0 ~ ~ 1 0 a]", askJoin("p", "b", "", 0, 0))
			asks("2", askPlainLineRelease("a"))
			asks("OK", askClaim("p", "b"))

			// A crowd of which one release lets in all but one.
			for i := range atOnce + 1 {
				asks(fmt.Sprintf("[0 %d ~ ~ 1 0 b]", i), join("q", fmt.Sprint("r", i)))
			}
			asks("2", askPlainLineRelease("b"))
			asks("2049", claim("q", "r0"))
			for i := range atOnce {
				asks("1", claim("q", fmt.Sprint("r", i+1)))
			}

			asks("[0 0 ~ ~ 1 0 redlock:shared]", askJoin("p", "c", "", 0, 0))
			asks("[0 1 ~ ~ 1 0 redlock:shared]", askJoin("q", "d", "", 0, 0))
			for i := range atOnce {
				asks("3", askShareRelease(fmt.Sprint("r", i), lineOfK))
			}
			asks("2", askShareRelease(fmt.Sprint("r", atOnce), lineOfK))
			n.raw("DEL", "k")
			asks("[0 1 ~ ~ 0 1 c]", askJoin("q", "d", "", 0, 0))
		})
	}
}
