package jepsen

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quorumlock/redlock/internal/testing/faultproxy"
)

// Faults that may be chosen.
const (
	Pauses  = "pauses"  // clients are stopped, some for longer than their lease, some between the check of the lease and the write
	Kills   = "kills"   // clients are killed and started again
	Nodes   = "nodes"   // servers are stopped, killed and started again, with their keys or without
	Amnesia = "amnesia" // only a bare majority can be reached, and then those of it that forget restart
	Network = "network" // ways are cut: for all clients or some, in both directions or one; connections break, links are slow
	Clocks  = "clocks"  // servers' clocks are set back and forward
)

// AllFaults are all that there are.
var AllFaults = []string{Pauses, Kills, Nodes, Amnesia, Network, Clocks}

// Event is a fault while it lasts, in nanoseconds of the run.
type Event struct {
	Kind   string `json:"kind"`   // empty: nothing came of it
	Client int    `json:"client"` // -1: none
	Node   int    `json:"node"`   // -1: none
	From   int64  `json:"from"`
	To     int64  `json:"to"`
	Text   string `json:"text"`
}

// nemesis breaks things, and mends them. Which, in which order and for how long follows from the seed; when exactly does not.
type nemesis struct {
	clock   clock
	random  *rand.Rand
	ttl     time.Duration
	kinds   []string // of counters
	seats   []*seat
	nodes   []*node
	actions []action
	guard   time.Duration // for how long a node has no vote after a restart

	mu      sync.Mutex
	events  []Event
	current map[int]string // by number of the action, for the progress line
	busy    map[string]bool
	barred  map[int]int64 // until when a node has no vote, by index
	errs    []error
	running sync.WaitGroup
}

// action is a fault that can be drawn.
type action struct {
	fault  string
	weight int
	// do chooses a target, and returns what is to be done to it: nothing if there is none.
	do func(*nemesis) *deed
}

// deed is one fault.
type deed struct {
	targets []string // that may have no other fault at the same time
	event   Event
	run     func(context.Context, *Event) error // returns when the fault is over; it may say more exactly what it was
}

func (n *nemesis) between(low, high time.Duration) time.Duration {
	return low + time.Duration(n.random.Int64N(int64(high-low)+1))
}

// leases is a time in leases.
func (n *nemesis) leases(low, high float64) time.Duration {
	return n.between(time.Duration(low*float64(n.ttl)), time.Duration(high*float64(n.ttl)))
}

// broken is how many nodes may have a fault at the same time: mostly a minority, at times a majority.
func (n *nemesis) broken() int {
	if n.random.IntN(4) == 0 {
		return len(n.nodes)/2 + 1
	}
	return (len(n.nodes) - 1) / 2
}

var repertoire = []action{
	{Pauses, 3, func(n *nemesis) *deed { return n.pauseClient("stopped", n.leases(0.05, 0.5)) }},
	{Pauses, 3, func(n *nemesis) *deed { return n.pauseClient("stopped past its lease", n.leases(1.1, 2)) }},
	{Pauses, 4, func(n *nemesis) *deed { return n.pauseAtWrite(n.leases(1.2, 2.5)) }},
	{Kills, 3, func(n *nemesis) *deed { return n.killClient(n.between(0, time.Second)) }},
	{Nodes, 4, func(n *nemesis) *deed { return n.stopNode(n.leases(0.05, 2)) }},
	{Nodes, 4, func(n *nemesis) *deed { return n.killNode(n.leases(0, 1)) }},
	{Amnesia, 3, func(n *nemesis) *deed { return n.amnesia(n.leases(0.4, 0.8)) }},
	{Network, 2, func(n *nemesis) *deed {
		return n.cut("unreachable", 100, n.leases(0.1, 2), on((*faultproxy.Proxy).Blackhole))
	}},
	{Network, 2, func(n *nemesis) *deed {
		return n.cut("closes connections", n.share(), n.leases(0.1, 2), (*node).close)
	}},
	{Network, 3, func(n *nemesis) *deed {
		return n.cut("requests lost", n.share(), n.leases(0.1, 2), on((*faultproxy.Proxy).DropRequests))
	}},
	{Network, 3, func(n *nemesis) *deed {
		return n.cut("replies lost", n.share(), n.leases(0.1, 2), on((*faultproxy.Proxy).DropReplies))
	}},
	{Network, 4, func(n *nemesis) *deed {
		return n.cut("unreachable", 50, n.leases(0.1, 2), on((*faultproxy.Proxy).Blackhole))
	}},
	{Network, 2, func(n *nemesis) *deed {
		return n.cut("connections broken", 70, 0, on((*faultproxy.Proxy).Cut))
	}},
	{Network, 2, func(n *nemesis) *deed {
		out, back := n.between(0, 150*time.Millisecond), n.between(0, 150*time.Millisecond)
		text := fmt.Sprintf("slow by %v and %v", out.Round(time.Millisecond), back.Round(time.Millisecond))
		return n.cut(text, n.share(), n.leases(0.2, 2), on(func(p *faultproxy.Proxy) { p.Delay(out, back) }))
	}},
	{Clocks, 2, func(n *nemesis) *deed { return n.stepClock(n.between(50*time.Millisecond, 450*time.Millisecond)) }},
}

// on is something that the proxy of a client's way does.
func on(f func(*faultproxy.Proxy)) func(*node, int) {
	return func(n *node, client int) { f(n.ways[client]) }
}

// share is whether a fault hits all clients or some.
func (n *nemesis) share() int { return []int{100, 50}[n.random.IntN(2)] }

func newNemesis(c clock, cfg Config, guard time.Duration, seats []*seat, nodes []*node) *nemesis {
	n := &nemesis{
		clock: c, random: rand.New(rand.NewPCG(cfg.Seed, 1)), ttl: cfg.TTL, kinds: cfg.kinds(), seats: seats, nodes: nodes, guard: guard,
		busy: make(map[string]bool), barred: make(map[int]int64), current: make(map[int]string),
	}
	for _, a := range repertoire {
		if slices.Contains(cfg.Faults, a.fault) && (a.fault != Clocks || nodes[0].shift != nil) {
			for range a.weight {
				n.actions = append(n.actions, a)
			}
		}
	}
	return n
}

// rage breaks things until ctx ends, and returns when all is whole again.
func (n *nemesis) rage(ctx context.Context) {
	for i := 0; len(n.actions) > 0; i++ {
		select {
		case <-ctx.Done():
			n.running.Wait()
			return
		case <-time.After(n.between(100*time.Millisecond, 700*time.Millisecond)):
		}
		d := n.actions[n.random.IntN(len(n.actions))].do(n)
		if d == nil || !n.take(d.targets) {
			continue
		}
		d.event.From = n.clock.now()
		n.mu.Lock()
		n.current[i] = d.event.name() + " " + d.event.Text
		n.mu.Unlock()
		n.running.Go(func() {
			err := d.run(ctx, &d.event)
			d.event.To = n.clock.now()
			n.mu.Lock()
			defer n.mu.Unlock()
			if err != nil {
				n.errs = append(n.errs, fmt.Errorf("%s: %w", d.event.Text, err))
			}
			if d.event.Kind != "" {
				n.events = append(n.events, d.event)
			}
			delete(n.current, i)
			for _, target := range d.targets {
				delete(n.busy, target)
			}
		})
	}
	<-ctx.Done()
}

func (e Event) name() string {
	if e.Client >= 0 {
		return fmt.Sprintf("client %d", e.Client)
	}
	return fmt.Sprintf("node %d", e.Node)
}

// take marks targets as broken, unless one of them is.
func (n *nemesis) take(targets []string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.ContainsFunc(targets, func(t string) bool { return n.busy[t] }) {
		return false
	}
	for _, t := range targets {
		n.busy[t] = true
	}
	return true
}

// note adds to the faults that were.
func (n *nemesis) note(e Event) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.events = append(n.events, e)
}

func (n *nemesis) now() (going []string, done int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, text := range n.current {
		going = append(going, text)
	}
	slices.Sort(going)
	return going, len(n.events)
}

// sleep ends early with ctx, so that a run does not last for longer than its last fault would.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (n *nemesis) client() (int, string, *seat) {
	i := n.random.IntN(len(n.seats))
	return i, fmt.Sprint("client ", i), n.seats[i]
}

func (n *nemesis) pauseClient(text string, d time.Duration) *deed {
	i, target, s := n.client()
	return &deed{[]string{target}, Event{Kind: "pause", Client: i, Node: -1, Text: text}, func(ctx context.Context, _ *Event) error {
		p := s.process()
		p.signal(syscall.SIGSTOP)
		sleep(ctx, d)
		p.signal(syscall.SIGCONT)
		return nil
	}}
}

// pauseAtWrite has a client stop itself between the check of its lease and the write, where no lock can help it.
func (n *nemesis) pauseAtWrite(d time.Duration) *deed {
	i, target, s := n.client()
	kind := n.kinds[n.random.IntN(len(n.kinds))]
	e := Event{Kind: "pause", Client: i, Node: -1, Text: "stopped past its lease, right before a " + kind + " write"}
	return &deed{[]string{target}, e, func(ctx context.Context, e *Event) error {
		p := s.process()
		p.say("stop " + kind)
		for begin := n.clock.now(); p.alive() && !p.stopped(); {
			if time.Duration(n.clock.now()-begin) > 3*time.Second {
				p.say("stop ")
				break
			}
			time.Sleep(200 * time.Microsecond)
		}
		if !p.stopped() {
			e.Kind = "" // it did not come to any write
			p.signal(syscall.SIGCONT)
			return nil
		}
		e.From = n.clock.now()
		sleep(ctx, d)
		p.signal(syscall.SIGCONT)
		return nil
	}}
}

func (n *nemesis) killClient(down time.Duration) *deed {
	i, target, s := n.client()
	return &deed{[]string{target}, Event{Kind: "kill", Client: i, Node: -1, Text: "killed"}, func(ctx context.Context, _ *Event) error {
		s.kill()
		sleep(ctx, down)
		return s.start()
	}}
}

// node draws a node, nil if as many are broken as may be. One that the restart guard keeps from voting is as good as broken; it may be broken further.
func (n *nemesis) node() (int, string, *node) {
	most := n.broken()
	i := n.random.IntN(len(n.nodes))
	n.mu.Lock()
	defer n.mu.Unlock()
	away := func(j int) bool { return n.busy[fmt.Sprint("node ", j)] || n.barred[j] > n.clock.now() }
	broken := 0
	for j := range n.nodes {
		if away(j) {
			broken++
		}
	}
	if broken >= most && !away(i) {
		return 0, "", nil
	}
	return i, fmt.Sprint("node ", i), n.nodes[i]
}

func (n *nemesis) stopNode(d time.Duration) *deed {
	i, target, nd := n.node()
	if nd == nil {
		return nil
	}
	return &deed{[]string{target}, Event{Kind: "stop", Client: -1, Node: i, Text: "stopped"}, func(ctx context.Context, _ *Event) error {
		if err := nd.server.Pause(); err != nil {
			return err
		}
		sleep(ctx, d)
		return nd.server.Resume()
	}}
}

func (n *nemesis) killNode(down time.Duration) *deed {
	i, target, nd := n.node()
	if nd == nil {
		return nil
	}
	e := Event{Kind: "killed", Client: -1, Node: i, Text: "killed, restarts with its keys"}
	if !nd.keeps {
		e.Kind, e.Text = "forgets", "killed, restarts without its keys"
	}
	return &deed{[]string{target}, e, func(ctx context.Context, _ *Event) error {
		nd.server.Kill()
		sleep(ctx, down)
		return n.restart(nd)
	}}
}

func (n *nemesis) restart(nd *node) error {
	err := nd.server.Restart()
	if n.guard > 0 {
		now := n.clock.now()
		n.note(Event{Kind: "barred", Client: -1, Node: nd.index, From: now, To: now + int64(n.guard), Text: "has no vote, by the restart guard"})
		n.mu.Lock()
		defer n.mu.Unlock()
		n.barred[nd.index] = now + int64(n.guard)
	}
	return err
}

// amnesia is what the restart guard is for. For a while only a bare majority can be reached, so that all leases are on it alone; then the others
// come back, and at the same moment those of the majority that keep no keys restart. Without the guard they would help the others to grant
// everything again.
func (n *nemesis) amnesia(cut time.Duration) *deed {
	var others, forgetful []*node
	var targets []string
	for _, nd := range n.nodes {
		switch {
		case !nd.keeps:
			forgetful = append(forgetful, nd)
		case len(others) < (len(n.nodes)-1)/2:
			others = append(others, nd)
		default:
			continue
		}
		targets = append(targets, fmt.Sprint("node ", nd.index))
	}
	if len(forgetful) == 0 {
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, until := range n.barred {
		if until > n.clock.now() {
			return nil // there would be no majority
		}
	}
	return &deed{targets, Event{Client: -1, Node: forgetful[0].index, Text: "amnesia of a majority"}, func(ctx context.Context, _ *Event) error {
		from := n.clock.now()
		for _, nd := range others {
			for _, p := range nd.ways {
				p.Blackhole()
			}
		}
		sleep(ctx, cut)
		for _, nd := range forgetful {
			nd.server.Kill()
		}
		for _, nd := range others {
			nd.mendAll()
			n.note(Event{Kind: "cut", Client: -1, Node: nd.index, From: from, To: n.clock.now(), Text: "unreachable, until those it is missed by forget"})
		}
		errs := make([]error, len(forgetful))
		var restarting sync.WaitGroup
		for i, nd := range forgetful {
			restarting.Go(func() {
				killed := n.clock.now()
				errs[i] = n.restart(nd)
				n.note(Event{
					Kind: "forgets", Client: -1, Node: nd.index, From: killed, To: n.clock.now(),
					Text: "killed, restarts without its keys, which a bare majority had",
				})
			})
		}
		restarting.Wait()
		return errors.Join(errs...)
	}}
}

// cut does something to the ways of all clients, or of about a share of them, to a node.
func (n *nemesis) cut(text string, percent int, d time.Duration, do func(*node, int)) *deed {
	i, target, nd := n.node()
	if nd == nil {
		return nil
	}
	var hit []int
	for c := range nd.ways {
		if percent == 100 || n.random.IntN(100) < percent {
			hit = append(hit, c)
		}
	}
	if len(hit) == 0 {
		return nil
	}
	kind, whose := "cut", "for all clients"
	if len(hit) < len(nd.ways) {
		kind, whose = "partial", "for clients "+strings.Trim(fmt.Sprint(hit), "[]")
	}
	return &deed{[]string{target}, Event{Kind: kind, Client: -1, Node: i, Text: text + " " + whose}, func(ctx context.Context, _ *Event) error {
		for _, c := range hit {
			do(nd, c)
		}
		sleep(ctx, d)
		for _, c := range hit {
			nd.mend(c)
		}
		return nil
	}}
}

// stepClock sets a server's clock back, at once, and forward again as one has to do it: while nobody can rely on the server's keys, which the step
// ends early. Steps are below a second, the most by which the servers' clocks may be apart for fencing tokens after a loss of memory.
func (n *nemesis) stepClock(by time.Duration) *deed {
	i, target, nd := n.node()
	if nd == nil {
		return nil
	}
	back, drain := n.leases(0.5, 2), n.ttl+n.ttl/5
	e := Event{Kind: "clock", Client: -1, Node: i, Text: fmt.Sprintf("clock set back by %v, and forward after a time out of service", by.Round(time.Millisecond))}
	return &deed{[]string{target}, e, func(ctx context.Context, _ *Event) error {
		if err := nd.shift(-by); err != nil {
			return err
		}
		sleep(ctx, back)
		for _, p := range nd.ways {
			p.Blackhole()
		}
		time.Sleep(drain) // not cut short: the step must not come before
		err := nd.shift(0)
		nd.mendAll()
		return err
	}}
}
