package redlock

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A round's grants that wait for other nodes to be seen count once they are, and not
// at all when no more nodes answer.
func TestRoundWaitsForNodesThatWereNotSeen(t *testing.T) {
	for _, all := range []bool{true, false} {
		c := NewFakeClock()
		g := newGuard([]string{"0", "1", "2"}, 0, false, c, func(degradation) {})
		r := &round{guard: g, period: 10 * time.Second}
		r.init(c.now(), make([]seat, 3))
		yes := ballot{kind: kindGranted, final: true}
		for i := range 2 {
			g.saw(i, sighting{runID: fmt.Sprint(i), uptime: 0})
			r.deliver(i, yes, c.now().mono)
			require.Equal(t, verdictOpen, r.current())
			require.Equal(t, VotePending, r.vote(i))
		}
		if all {
			g.saw(2, sighting{runID: "2", uptime: 0})
			r.deliver(2, yes, c.now().mono)
			require.Equal(t, verdictGranted, r.current())
			continue
		}
		r.deliver(2, ballot{kind: kindUnknown, err: errTimeout}, c.now().mono)
		require.Equal(t, verdictNoQuorum, r.current())
		require.Equal(t, VoteBarred, r.vote(0))
		require.Equal(t, VoteBarred, r.vote(1))
		require.Equal(t, errRestarted{10 * time.Second}, r.outcomes(make([]string, 3))[0].Err)
	}
}

func TestGuardTellsOnceWhatANodeLacks(t *testing.T) {
	told := make(chan DegradedInfo, 10)
	d := &degradations{hooks: &Hooks{Degraded: func(i DegradedInfo) { told <- i }}}
	g := newGuard([]string{"node0", "node1"}, 0, false, NewFakeClock(), d.ofNode)
	full := sighting{asked: true, runID: "a", replID: "r", mark: unreadMark(memError("NOPERM no access"))}
	for range 3 {
		g.saw(0, full)
		g.saw(1, sighting{err: memError("NOPERM no info")})
		g.saw(1, sighting{err: memError("BUSY")})
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
