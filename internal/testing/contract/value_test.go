package contract_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// Others may have put anything under a lock's key. Whatever is asked about it, a node sends no more than
// of a lock, and does not change it; also where the user may not run GETRANGE.
func TestForeignValuesAreNotSent(t *testing.T) {
	server := realredis.Start(t)
	admin := server.Client(t)
	// Where GET has to do it, the script reads the whole text.
	for rights, size := range map[string]int64{"+getrange": 64 << 20, "-getrange": 1 << 20} {
		t.Run(rights, func(t *testing.T) {
			require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "default", rights).Err())
			n := overClient(t, server.Addr())
			require.NoError(t, admin.Do(t.Context(), "SETRANGE", "k", size-1, "x").Err())
			for name, ask := range map[string]*protocol.Request{
				"set": askSet("a"), "release": askRelease("a"), "extend": askExtend("a", time.Hour), "shorten": askShorten("a", time.Second),
				"inspect": askInspect(3), "force": askForce(tokenA), "adopt": askAdopt("b", tokenA), "fenced adopt": askAdoptFenced("b", tokenA, 1),
				"fence": askFence("a", 1, ""), "fence of a waiter": askFence("a", 1, entryOf("p", "a")), "raise": askRaise("a", 1), "repair": askFenceRepair("a", 1),
				"release at the line": askPlainLineRelease("a"), "of a waiter": askLineRelease("a", entryOf("p", "a"), protocol.AsWaiter), "of a passer": askLineRelease("a", "", protocol.AsPasser),
				"join": askJoin("p", "b", "", 0, 0), "claim": askClaim("p", "b"), "several": askMany(askRelease("a"), beside("k2", askRelease("b"))),
				"share": askShare("a1", 0, contractTTL), "shared extend": askShareExtend("a1", 0, contractTTL), "shared release": askShareRelease("a1", lineOfK),
			} {
				n.do(ask) // it may be new to the server
				before := sentBy(t, admin)
				got := n.do(ask)
				sent := sentBy(t, admin) - before
				assert.Less(t, sent, int64(8<<10), "%s: %s", name, fmt.Sprint(got)[:min(100, len(fmt.Sprint(got)))])
				assert.EqualValues(t, size, admin.StrLen(t.Context(), "k").Val(), name)
				vote := protocol.Answer{Said: protocol.Said(got.val, got.err)}.Read(ask.Op)
				if vote.Kind == protocol.Refused && got.val != nil {
					assert.Empty(t, vote.Holder(), name)
					if ask.Bundle() == nil {
						assert.ErrorContains(t, vote.Err(), "more than 289 bytes, which is no lock", name)
						assert.True(t, protocol.OtherType(vote.Err()), name)
					}
				}
			}
			require.NoError(t, admin.Del(t.Context(), "k", lineOfK).Err())
		})
	}
}

// sentBy is how many bytes a server has sent, this answer included.
func sentBy(t *testing.T, c *redis.Client) int64 {
	text, err := c.Info(t.Context(), "stats").Result()
	require.NoError(t, err)
	_, rest, _ := strings.Cut(text, "total_net_output_bytes:")
	digits, _, _ := strings.Cut(rest, "\r")
	n, err := strconv.ParseInt(digits, 10, 64)
	require.NoError(t, err)
	return n
}
