package redlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/longtest"
)

// A fleet of a thousand processes: half of them have keys of their own, the others wait for
// one of five. Meanwhile a node hangs, another loses its keys, and a third one's connections
// go silent for one process.
func TestSimFleet(t *testing.T) {
	processes := 100
	if longtest.On() {
		processes = 1000
	}
	plan := &simPlan{
		Seed: 7, TTL: time.Second, NodeTimeout: 100 * time.Millisecond, Until: 30 * time.Second,
		Nodes: make([]simNodePlan, 5), Fenced: make([]bool, processes+5),
		Delay: 200 * time.Microsecond, Jitter: 200 * time.Microsecond,
		Faults: []simFault{
			{Kind: faultHang, Node: 1, At: 2 * time.Second, For: 2 * time.Second},
			{Kind: faultForget, Node: 3, At: 6 * time.Second, For: time.Second},
			{Kind: faultMute, Node: 2, Proc: 3, At: time.Second, For: 10 * time.Second},
		},
	}
	for i := range processes {
		key := i
		if i%2 == 0 {
			key = processes + i/2%5
		}
		plan.Processes = append(plan.Processes, simProcessPlan{Clients: []simClientPlan{{Key: key, Ops: 2}}})
	}
	res := simulate(t, plan, nil)
	require.Empty(t, res.bad)
	require.GreaterOrEqual(t, res.count.Grants, processes)
	t.Logf("%d processes: %+v", processes, res.count)
}
