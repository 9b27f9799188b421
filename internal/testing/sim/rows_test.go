package sim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
)

// What the library does in scenes of connecting, by the rules of its judge: each holds, or is broken so far. A rule
// that a scene does not name holds there. A repair turns the word round.

type simState bool

const (
	holds simState = false
	open  simState = true
)

// The rules, by their first words.
const (
	refused = "connect: %s of client %d.%d failed"
	unsent  = "connect: %s of client %d.%d may be known"
	flooded = "connect: process %d began"
	lost    = "connect: process %d has no connection"
	piled   = "connect: process %d has %d connections"
	moved   = "connect: process %d asks node %d"
	ranOut  = "renewal: %v ran out"
)

type simScene struct {
	scene string
	rules map[string]simState
	plan  *simPlan
}

// idlePlan is of processes with a client each, which asks for a lock of its own at intervals.
func idlePlan(links simLinks, processes int, every time.Duration, ops int) *simPlan {
	p := &simPlan{
		Seed: 1, TTL: 10 * time.Second, RestartGuard: -1, Delay: 200 * time.Microsecond, Jitter: 4 * time.Microsecond,
		Nodes: make([]simNodePlan, 3), Links: &links, Users: true,
	}
	p.NodeTimeout = protocol.NodeTimeout(p.TTL)
	for i := range processes {
		p.Processes = append(p.Processes, simProcessPlan{Clients: []simClientPlan{{Key: i, Ops: ops, Every: every}}})
		p.Fenced = append(p.Fenced, false)
	}
	return p
}

// far has a message and its answer take so long.
func (p *simPlan) far(roundTrip time.Duration) *simPlan {
	p.Delay, p.Jitter = roundTrip/2, roundTrip/100
	return p
}

// byOpen has the connections be those of Open.
func (p *simPlan) byOpen() *simPlan {
	p.Users = false
	return p
}

// holding has clients hold their locks for a time, and extend them then.
func (p *simPlan) holding(d time.Duration) *simPlan {
	p.TTL = 4 * d
	for i := range p.Processes {
		p.Processes[i].Clients[0].Hold = d
	}
	return p
}

// renewing has clients hold their locks for nearly two leases of ttl, renewed.
func (p *simPlan) renewing(ttl time.Duration) *simPlan {
	p.holding(ttl * 7 / 4)
	p.TTL = ttl
	for i := range p.Processes {
		p.Processes[i].Clients[0].Renews = true
	}
	return p
}

// with adds a fault of all nodes.
func (p *simPlan) with(f simFault) *simPlan {
	for f.Node = range p.Nodes {
		p.Faults = append(p.Faults, f)
	}
	return p
}

// busyPlan is of a process that asks all the time.
func busyPlan(clients int, every time.Duration, ops int) *simPlan {
	p := idlePlan(simLinks{}, 1, every, ops)
	for len(p.Fenced) < clients {
		p.Processes[0].Clients = append(p.Processes[0].Clients, simClientPlan{Key: len(p.Fenced), Ops: ops, Every: every})
		p.Fenced = append(p.Fenced, false)
	}
	return p
}

// sayingNo is busyPlan where one of the nodes says no.
func sayingNo(f simFault) *simPlan {
	f.Node, f.For = 2, 3*time.Second
	p := busyPlan(5, 10*time.Millisecond, 300)
	p.Faults = []simFault{f}
	return p
}

// crowd is of processes whose handshakes together take a server nearly two seconds.
func crowd(ops int) *simPlan {
	return idlePlan(simLinks{TLS: 1, Handshake: 60 * time.Millisecond}, 30, time.Second, ops)
}

func simScenes() []simScene {
	const minute = time.Minute
	near, tls := simLinks{}, simLinks{TLS: 2}
	return []simScene{
		{"a call every two minutes", nil, idlePlan(near, 1, 2*minute, 5)},
		{"a call every two minutes over a link of 120 ms", map[string]simState{refused: open, unsent: open}, idlePlan(near, 1, 2*minute, 5).far(120 * time.Millisecond)},
		{"the same with TLS over a link of 40 ms", map[string]simState{refused: open}, idlePlan(tls, 1, 2*minute, 5).far(40 * time.Millisecond)},
		{"an extend after 90 s over a link of 120 ms", map[string]simState{refused: open, unsent: open}, idlePlan(near, 1, 30*time.Second, 8).far(120 * time.Millisecond).holding(90 * time.Second)},
		{"renewals 30 s apart, connections closed after 3, a link of 120 ms", map[string]simState{refused: open, unsent: open, ranOut: open}, idlePlan(simLinks{Idle: 3 * time.Second}, 1, 2*time.Second, 3).far(120 * time.Millisecond).renewing(90 * time.Second)},
		{"a dead address of IPv6", map[string]simState{refused: open, unsent: open}, idlePlan(near, 1, 2*minute, 5).with(simFault{Kind: linkDead6, For: 15 * minute})},

		{"a crowd with TLS", map[string]simState{unsent: open}, crowd(40)},
		{"a crowd with TLS, after a minute", map[string]simState{refused: open, unsent: open}, crowd(90)},
		{"a crowd with TLS, after a stall", map[string]simState{refused: open, unsent: open}, crowd(40).with(simFault{Kind: faultHang, At: 20 * time.Second, For: 500 * time.Millisecond})},
		{"nodes that are slower than is waited for", map[string]simState{piled: open, unsent: open}, late(busyPlan(5, 50*time.Millisecond, 100))},

		{"a node that refuses connections", map[string]simState{flooded: open}, sayingNo(simFault{Kind: faultCrash, At: time.Second})},
		{"a node that is a replica", map[string]simState{flooded: open}, sayingNo(simFault{Kind: faultResync, At: time.Second})},
		{"a node that hangs up at a SET", map[string]simState{flooded: open}, sayingNo(simFault{Kind: linkHangUp, At: time.Second})},
		{"a node that does not take the password", map[string]simState{flooded: open}, sayingNo(simFault{Kind: linkUnwelcome, Says: "WRONGPASS invalid username-password pair or user is disabled."})},
		{"a node that is full", map[string]simState{flooded: open}, sayingNo(simFault{Kind: linkUnwelcome, Says: "ERR max number of clients reached"})},

		{"a dead first address, by Open", map[string]simState{lost: open, unsent: open}, idlePlan(near, 1, 2*time.Second, 20).byOpen().with(simFault{Kind: linkDead, For: minute})},
		{"a dead first address, by New", map[string]simState{unsent: open}, idlePlan(near, 1, 2*time.Second, 20).with(simFault{Kind: linkDead, For: minute})},
		{"a look-up of 1.2 s, by Open", map[string]simState{lost: open, unsent: open}, idlePlan(near, 1, 2*time.Second, 20).byOpen().with(simFault{Kind: linkLookup, By: 1200 * time.Millisecond, For: minute})},
		{"a Sentinel that hangs", map[string]simState{lost: open, unsent: open}, idlePlan(near, 1, 2*time.Second, 50).with(simFault{Kind: linkSentinel, By: 12 * time.Second, For: 2 * minute})},
		{"a firewall that forgets, by Open", map[string]simState{refused: open}, idlePlan(simLinks{Forgets: 5 * minute}, 1, 6*minute, 5).byOpen()},
		{"a firewall that forgets, by New", nil, idlePlan(simLinks{Forgets: 5 * minute}, 1, 6*minute, 5)},
		{"a Dialer that hangs for a minute, and returns never", map[string]simState{refused: open, lost: open, unsent: open}, idlePlan(near, 1, 2*time.Second, 60).with(simFault{Kind: linkHang, For: minute, Ever: true})},
		{"a name that leads elsewhere, asked all the time, by Open", nil, idlePlan(near, 1, time.Second, 200).byOpen().with(simFault{Kind: linkMoved, At: minute})},
		{"a name that leads elsewhere, asked every three minutes, by Open", map[string]simState{moved: open}, idlePlan(near, 1, 3*minute, 5).byOpen().with(simFault{Kind: linkMoved, At: minute})},
		{"a name that leads elsewhere, asked every three minutes, by New", nil, idlePlan(near, 1, 3*minute, 5).with(simFault{Kind: linkMoved, At: minute})},
		{"a Dialer that hangs for a minute", map[string]simState{unsent: open}, idlePlan(near, 1, 2*time.Second, 60).with(simFault{Kind: linkHang, For: minute})},
	}
}

func late(p *simPlan) *simPlan {
	p.Links.Late, p.Until = 150*time.Millisecond, 6*time.Second
	return p
}

// connectRules have a history for each of the rules.
var connectRules = []simRule{
	{refused, linkPlan, func(h *handMade) { // all nodes are up, or one is
		if !h.bad {
			h.plan.Faults = []simFault{{Kind: faultCrash, Node: 0, For: time.Second}, {Kind: faultCrash, Node: 1, For: time.Second}}
		}
		h.client().checkReached("TryAcquire", protocol.OpAcquire, 0, redlock.ErrNoQuorum)
	}},
	{refused, linkPlan, func(h *handMade) { // they are reached in 200 ms of the 250 that there are, or after 300
		h.plan.Links.Handshake = either(h, 100*time.Millisecond, 150*time.Millisecond)
		h.client().checkReached("TryAcquire", protocol.OpAcquire, 0, redlock.ErrNoQuorum)
	}},
	{unsent, linkPlan, func(h *handMade) {
		c := h.client()
		h.sleep(20*msec, 0)
		if !h.bad {
			h.conns.wrote(c.p, h.nodes[1], []*lane.Call{{Req: &protocol.Request{Op: protocol.OpAcquire, Key: "k0"}}})
		}
		h.plan.with(simFault{Kind: faultCrash, For: time.Second})
		c.checkReached("TryAcquire", protocol.OpAcquire, 10*msec, &redlock.QuorumError{Outcomes: []redlock.Outcome{{Vote: redlock.VoteNotSent}, {Vote: redlock.VoteUnknown}}})
	}},
	{flooded, linkPlan, func(h *handMade) {
		h.plan.with(simFault{Kind: faultCrash, At: time.Second, For: 5 * time.Second})
		h.conns.begun = map[simWay][]int64{{0, 0}: {1001 * msec, 1002 * msec, 1003 * msec, 2500 * msec, 3000 * msec, h.at(3499, 3501)}}
		h.checkFlood(simWay{0, 0})
	}},
	{flooded, linkPlan, func(h *handMade) { // answers are late, or in time
		h.plan.Until, h.plan.Links.Late = 10*time.Second, either(h, 25*time.Millisecond, 10*time.Millisecond)
		h.conns.begun = map[simWay][]int64{{0, 0}: {2000 * msec, 2001 * msec, 2002 * msec}}
		h.checkFlood(simWay{0, 0})
	}},
	{lost, linkPlan, func(h *handMade) {
		h.plan.with(simFault{Kind: linkDead, For: time.Minute})
		h.conns.asked = map[int][]int64{0: {10 * msec, 20000 * msec}}
		h.conns.made = map[simWay][]int64{{0, 0}: {h.at(8000, 7000)}}
		h.checkFound(simWay{0, 0})
	}},
	{moved, linkPlan, func(h *handMade) {
		h.plan.with(simFault{Kind: linkMoved, At: 10 * time.Millisecond})
		h.sleep(78000*msec, 0)
		(&simFlow{d: &simDialer{p: h.procs[0], n: h.nodes[0]}, born: h.at(9, 11)}).checkMoved()
	}},
	{piled, linkPlan, func(h *handMade) { h.checkPiled(simWay{0, 0}, either(h, mostOpen+1, mostOpen)) }},
}

func linkPlan(p *simPlan) { p.Links = &simLinks{TLS: 1} }

func TestSimConnects(t *testing.T) {
	for _, s := range simScenes() {
		t.Run(s.scene, func(t *testing.T) {
			res := simulate(t, s.plan, nil)
			byRule := make(map[string][]string)
			for i, f := range res.broken {
				rule := ""
				for _, r := range []string{refused, unsent, flooded, lost, piled, moved, ranOut} {
					if strings.HasPrefix(f, r) {
						rule = r
					}
				}
				byRule[rule] = append(byRule[rule], res.bad[i])
			}
			for rule, bad := range byRule {
				t.Logf("%d violations of %q, the first: %.300s", len(bad), rule, bad[0])
				if rule == "" || s.rules[rule] == holds {
					t.Errorf("broken: %.1000s", bad[0])
				}
			}
			for rule, state := range s.rules {
				if state == open && byRule[rule] == nil {
					t.Errorf("holds by now: %s", rule)
				}
			}
			if res.steps < 2000 {
				require.Equal(t, res.trace, simulate(t, s.plan, nil).trace)
			}
		})
	}
}
