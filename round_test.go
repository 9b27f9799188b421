package redlock

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/fakenode"
	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/ticktest"
)

// A round's grants that wait for other nodes to be seen count once they are, and not
// at all when no more nodes answer.
func TestRoundWaitsForNodesThatWereNotSeen(t *testing.T) {
	for _, all := range []bool{true, false} {
		c := ticktest.NewFakeClock()
		g := guard.New([]string{"0", "1", "2"}, 0, false, c, func(guard.Degradation) {})
		r := &round{guard: g, period: 10 * time.Second}
		r.init(c.Now(), make([]seat, 3))
		yes := protocol.Answer{Kind: protocol.Granted, Final: true}
		for i := range 2 {
			g.Saw(i, protocol.ServerReport{RunID: fmt.Sprint(i), Uptime: 0})
			r.Deliver(i, yes, c.Now().Mono)
			require.Equal(t, verdictOpen, r.current())
			require.Equal(t, VotePending, r.vote(i))
		}
		if all {
			g.Saw(2, protocol.ServerReport{RunID: "2", Uptime: 0})
			r.Deliver(2, yes, c.Now().Mono)
			require.Equal(t, verdictGranted, r.current())
			continue
		}
		r.Deliver(2, protocol.Answer{Kind: protocol.Unknown, Err: protocol.ErrTimeout}, c.Now().Mono)
		require.Equal(t, verdictNoQuorum, r.current())
		require.Equal(t, VoteBarred, r.vote(0))
		require.Equal(t, VoteBarred, r.vote(1))
		require.Equal(t, guard.RestartedError{Left: 10 * time.Second}, r.outcomes(make([]string, 3))[0].Err)
	}
}

func TestGuardTellsOnceWhatANodeLacks(t *testing.T) {
	told := make(chan DegradedInfo, 10)
	d := &degradations{hooks: &Hooks{Degraded: func(i DegradedInfo) { told <- i }}}
	g := guard.New([]string{"node0", "node1"}, 0, false, ticktest.NewFakeClock(), d.ofNode)
	full := protocol.ServerReport{Asked: true, RunID: "a", ReplID: "r", Mark: protocol.UnreadMark(fakenode.Error("NOPERM no access"))}
	for range 3 {
		g.Saw(0, full)
		g.Saw(1, protocol.ServerReport{Err: fakenode.Error("NOPERM no info")})
		g.Saw(1, protocol.ServerReport{Err: fakenode.Error("BUSY")})
	}
	byNode := make(map[string]DegradedInfo)
	for range 2 {
		d := <-told
		byNode[d.Node] = d
	}
	require.Empty(t, told)
	require.Contains(t, byNode["node0"].Lacks, "memory mark")
	require.ErrorContains(t, byNode["node0"].Err, "no access")
	require.Contains(t, byNode["node1"].Lacks, "restart guard")
	require.ErrorContains(t, byNode["node1"].Err, "no info")
}
