package sim_test

import (
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
)

// simPlan is everything that a simulated run does not leave to the code under test: who
// asks for what, how long messages take and what goes wrong, when. A seed makes one, and
// so does a file of the corpus. Times are since the start of the run.
type simPlan struct {
	Seed         uint64
	Why          string `json:",omitempty"` // of a plan that was kept: what it found
	TTL          time.Duration
	NodeTimeout  time.Duration
	RestartGuard time.Duration
	Until        time.Duration // faults end by then
	Names        bool          `json:",omitempty"` // each process has names of its own for the nodes
	Regime       string        `json:",omitempty"` // see drawRegime
	Calm         bool          `json:",omitempty"` // nothing goes wrong: order and speed of the line are checked
	Strict       bool          `json:",omitempty"` // nothing gets lost: what is left behind is checked closely
	Young        bool          `json:",omitempty"` // the nodes have just been started
	Pairs        bool          `json:",omitempty"` // clients also hold two keys at once
	HandOvers    bool          `json:",omitempty"` // some locks go on in other processes
	MinHold      time.Duration `json:",omitempty"` // of some locks
	Mixed        bool          `json:",omitempty"` // locks have different TTLs, up to RestartGuard
	Longer       bool          `json:",omitempty"` // some extends are for longer than the TTL
	Early        bool          `json:",omitempty"` // some locks are extended at once, while SETs of theirs may wait yet
	Contexts     bool          `json:",omitempty"` // clients look at contexts, and theirs end in the middle
	Force        bool          `json:",omitempty"` // clients also end locks by force
	Nodes        []simNodePlan
	Processes    []simProcessPlan
	Fenced       []bool // by key
	Kinds        []int  `json:",omitempty"` // by key: 0: held alone; -1: shared by many; above: permits
	// Messages: a one-way trip takes Delay and up to Jitter more; of 1000 batches so
	// many have each fate.
	Delay, Jitter time.Duration
	Slow          int           `json:",omitempty"` // takes up to 1.5 NodeTimeouts more
	SlowFor       time.Duration `json:",omitempty"` // or up to this
	Lost          int           `json:",omitempty"` // arrives never, and nobody is told
	Reset         int           `json:",omitempty"` // the connection breaks, before or after
	Torn          int           `json:",omitempty"` // the connection breaks, and what was sent arrives within half a NodeTimeout
	Late          int           `json:",omitempty"` // arrives up to 2 TTLs later, on a connection given up by then
	Twice         int           `json:",omitempty"` // arrives again
	Deaf          int           `json:",omitempty"` // of 1000 notices so many are lost
	NoPublish     bool          `json:",omitempty"` // nobody may publish
	TornFor       time.Duration `json:",omitempty"` // and not within half a NodeTimeout, but within this
	Users         bool          `json:",omitempty"` // connections are of users' clients
	Outlived      bool          `json:",omitempty"` // what is on its way arrives also after its connection was reset
	Native        bool          `json:",omitempty"` // two of three nodes say that they compare and delete by a command, and one of these denies it
	NoMGet        bool          `json:",omitempty"` // every second node does not release several locks in one command
	Links         *simLinks     `json:",omitempty"` // what connections cost; nil: a round trip
	Faults        []simFault
}

type simNodePlan struct {
	PPM    int64         // by how much its clock runs fast
	Offset time.Duration // and is ahead
}

type simProcessPlan struct {
	PPM     int64
	Offset  time.Duration // of the wall clock
	Start   time.Duration `json:",omitempty"` // it has met no node before
	NoQueue bool          `json:",omitempty"` // its waiters stand in no line
	Clients []simClientPlan
}

type simClientPlan struct {
	Key int
	Ops int
	// Every has it ask for a lock that no other wants, at these intervals, as an idle program does.
	Every  time.Duration `json:",omitempty"`
	Hold   time.Duration `json:",omitempty"` // for so long, and extend it then
	Renews bool          `json:",omitempty"` // or have it renewed meanwhile
}

// simFault is one thing that goes wrong, from At for For.
type simFault struct {
	Kind       string
	At, For    time.Duration
	Node, Proc int           `json:",omitempty"`
	By         time.Duration `json:",omitempty"` // of clocks that are set
	To         int           `json:",omitempty"` // another node
	Says       string        `json:",omitempty"` // the error that Node answers; empty: LOADING
	Only       string        `json:",omitempty"` // the question that it answers so; empty: everything
	Key        int           `json:",omitempty"` // of what becomes of a single key: the lock's
	Of         string        `json:",omitempty"` // and which of its keys, see ofLock
	Ever       bool          `json:",omitempty"` // it is never over
}

const (
	faultCut     = "cut"     // between Proc and Node
	faultCutOut  = "cutout"  // requests only
	faultCutBack = "cutback" // replies only
	faultHang    = "hang"    // Node stops, and goes on with what came meanwhile
	faultCrash   = "crash"   // Node dies and comes back with its keys
	faultForget  = "forget"  // or without
	faultSwap    = "swap"    // another server takes Node's place, as old and without its keys
	faultPromote = "promote" // a replica of Node takes its place, old and with the mark alone
	faultResync  = "resync"  // Node follows another master, and comes back with the mark alone
	faultFlush   = "flush"   // Node loses its keys, and goes on
	faultRedraw  = "redraw"  // Node draws a replication id, as when its first replica comes, or long after the last went
	faultErr     = "error"   // Node answers errors
	faultScripts = "scripts" // Node is sent SCRIPT FLUSH
	faultBack    = "back"    // Node's clock is set back By
	faultAhead   = "ahead"   // Node's clock jumps forward By
	faultPause   = "pause"   // Proc gets no processor
	faultSuspend = "suspend" // Proc's machine sleeps, and its monotonic clock with it
	faultWall    = "wall"    // Proc's wall clock is set By
	faultKill    = "kill"    // Proc dies
	faultMute    = "mute"    // what Proc has open to Node goes silent
	faultTwin    = "twin"    // for Proc, Node's name leads to the server of To
)

// drawPlan makes the plan of a seed. Regimes differ from seed to seed, because each fault
// of the library shows in some of them only.
func drawPlan(seed uint64) *simPlan {
	if p := drawRegime(seed); p != nil {
		return p
	}
	r := rand.New(rand.NewPCG(seed, 0x5ed))
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	oneIn := func(n int) bool { return r.IntN(n) == 0 }

	p := &simPlan{Seed: seed}
	nodes := []int{1, 2, 3, 3, 3, 4, 5, 5, 5, 5, 6, 7}[r.IntN(12)]
	p.TTL = in(100*time.Millisecond, time.Second).Truncate(time.Millisecond)
	if oneIn(6) {
		p.TTL *= 8
	}
	p.NodeTimeout = p.TTL * time.Duration(2+r.IntN([]int{8, 24, 79}[r.IntN(3)])) / 100
	p.Delay = in(10*time.Microsecond, min(p.NodeTimeout/20, 20*time.Millisecond))
	if oneIn(2) {
		p.Delay = in(10*time.Microsecond, min(p.NodeTimeout/20, 200*time.Microsecond))
	}
	p.Jitter = in(p.Delay/10, p.Delay)
	p.Until = in(p.TTL, 8*p.TTL)
	p.Calm = oneIn(8)
	p.Strict = p.Calm || oneIn(4)

	keys := []int{1, 1, 1, 2, 3}[r.IntN(5)]
	fenced := oneIn(3)
	for range keys {
		p.Fenced = append(p.Fenced, fenced && !oneIn(4))
	}
	// Clocks run within 1% of each other, which is what DriftFactor allows for.
	ppm := func() int64 { return []int64{0, r.Int64N(9900) - 4950, 4950, -4950}[r.IntN(4)] }
	for range nodes {
		p.Nodes = append(p.Nodes, simNodePlan{PPM: ppm(), Offset: in(-450*time.Millisecond, 450*time.Millisecond)})
	}
	for range 1 + r.IntN(4) {
		proc := simProcessPlan{PPM: ppm()}
		if oneIn(3) {
			proc.Offset = in(-72*time.Hour, 72*time.Hour)
		}
		for range 1 + r.IntN(3) {
			proc.Clients = append(proc.Clients, simClientPlan{Key: r.IntN(keys), Ops: 1 + r.IntN(4)})
		}
		p.Processes = append(p.Processes, proc)
	}
	p.Names = oneIn(5)
	p.NoPublish = mix(seed, 'N')%20 == 0
	p.NoMGet = mix(seed, 'g')%4 == 0
	p.drawPairs()
	p.drawHandOvers()
	if p.Calm {
		p.drawDeaf()
		switch f := (simFault{Kind: faultBack, Node: r.IntN(nodes), Proc: r.IntN(len(p.Processes)), At: in(0, p.Until)}); r.IntN(4) {
		case 0: // the order must stand it
			f.By = -in(0, p.TTL)
			p.Faults = []simFault{f}
		case 1: // and what is left of the dead must not hold up the living for long
			f.Kind = faultKill
			f.At = in(0, p.TTL)
			p.Faults = []simFault{f}
		case 2: // nor one who reaches the line and no majority
			if nodes < 3 || len(p.Processes) < 2 {
				break
			}
			f.Kind, f.For = faultCut, 12*max(p.TTL, 4*p.NodeTimeout, protocol.LeastReservation)
			for _, i := range r.Perm(nodes)[:nodes/2+1] {
				f.Node = i
				p.Faults = append(p.Faults, f)
			}
		}
		p.drawCalls()
		p.drawUnheard()
		return p
	}
	if mix(seed, 'q')%8 == 0 {
		for i := range p.Processes {
			p.Processes[i].NoQueue = mix(seed, 'q', uint64(i))%2 == 0
		}
	}
	if oneIn(3) {
		p.Torn = r.IntN([]int{150, 600}[r.IntN(2)])
	}
	if oneIn(3) {
		p.Reset = r.IntN(150)
	}
	if !p.Strict {
		if oneIn(2) {
			p.Late = r.IntN(150)
		}
		if oneIn(3) {
			p.Lost = r.IntN(60)
		}
		if oneIn(3) {
			p.Twice = r.IntN(150)
		}
	}
	if oneIn(2) {
		p.Slow = r.IntN(300)
	}
	if oneIn(2) {
		p.Deaf = r.IntN(1000)
	}
	kinds := []string{faultHang, faultPause, faultPause, faultSuspend, faultWall}
	if !p.Strict {
		kinds = append(kinds, faultCut, faultCut, faultCutOut, faultCutBack, faultCrash, faultErr, faultHang, faultKill, faultBack)
	}
	forgetful := oneIn(2) && nodes > 1
	if forgetful {
		kinds = append(kinds, faultForget, faultForget, faultForget, faultForget)
		if !p.Strict && oneIn(3) {
			p.RestartGuard = 2 * p.TTL
		}
		p.Young = oneIn(4)
	} else if oneIn(2) {
		p.RestartGuard = -1
	}
	for range r.IntN(9) {
		f := simFault{Kind: kinds[r.IntN(len(kinds))], Node: r.IntN(nodes), Proc: r.IntN(len(p.Processes))}
		f.At = in(0, p.Until)
		f.For = in(0, []time.Duration{p.NodeTimeout, p.TTL / 2, 2 * p.TTL}[r.IntN(3)])
		switch f.Kind {
		case faultCrash, faultForget:
			if p.Strict {
				f.For = min(f.For, p.NodeTimeout/8)
			}
		case faultWall:
			f.By = in(-3*p.TTL, 3*p.TTL)
		case faultBack:
			f.By = -in(0, 3*p.TTL)
			if forgetful { // then clocks keep the order of fences
				continue
			}
		}
		p.Faults = append(p.Faults, f)
	}
	if forgetful && !p.Strict { // many at a time, or whoever holds the lock still has a majority
		at := in(0, p.Until)
		kind := []string{faultForget, faultForget, faultSwap}[r.IntN(3)]
		for i := range nodes {
			if !oneIn(4) {
				p.Faults = append(p.Faults, simFault{Kind: kind, Node: i, At: at + in(0, p.TTL/4), For: in(0, p.TTL/8)})
			}
		}
	}
	p.drawShortGuard()
	p.drawLosses()
	p.drawFlows()
	// Against a machine that sleeps while its wall clock is set back no clock helps.
	for i, f := range p.Faults {
		if f.Kind == faultWall && f.By < 0 && slices.ContainsFunc(p.Faults, func(g simFault) bool { return g.Kind == faultSuspend && g.Proc == f.Proc }) {
			p.Faults[i].By = -f.By
		}
	}
	p.drawKinds()
	p.drawMinHold()
	p.drawTwins()
	p.drawContexts()
	p.drawErrors()
	p.drawStarts()
	p.drawEvictions()
	p.drawListEvictions()
	p.drawForeign()
	p.drawStale()
	p.drawRare()
	p.drawRedraws()
	p.drawAhead() // not where nodes lose what they have, so after all that have them do so
	p.drawCalls()
	slices.SortFunc(p.Faults, func(a, b simFault) int { return int(a.At - b.At) })
	p.drawEarly()
	return p
}

// drawDeaf has notices be lost in some calm plans: a waiter looks by itself before its turn is over. It
// has randomness of its own, so that the other plans are what they were.
func (p *simPlan) drawDeaf() {
	if r := rand.New(rand.NewPCG(p.Seed, 0xdeaf)); r.IntN(4) == 0 {
		p.Deaf = 100 + r.IntN(900)
	}
}

// simHand is a hand of a clock, as a function of true time since the start of the run.
type simHand struct {
	base   int64
	ppm    int64
	steps  []simStep
	frozen []simFault // does not move from At for For
}

type simStep struct{ at, by int64 }

func (h *simHand) at(t int64) int64 {
	run := t
	for _, f := range h.frozen {
		if t > int64(f.At) {
			run -= min(t-int64(f.At), int64(f.For))
		}
	}
	v := h.base + run + run/1e6*h.ppm + run%1e6*h.ppm/1e6
	for _, s := range h.steps {
		if t >= s.at {
			v += s.by
		}
	}
	return v
}

// lasts is for how long the hand takes to move on by d, in true time and without its steps.
func (h *simHand) lasts(d int64) int64 { return int64(float64(d) / (1 + float64(h.ppm)/1e6)) }

// reach is the first time from t on at which the hand shows v or more.
func (h *simHand) reach(v, t int64) int64 {
	edges := make([]int64, 0, 8)
	for _, s := range h.steps {
		edges = append(edges, s.at)
	}
	for _, f := range h.frozen {
		edges = append(edges, int64(f.At), int64(f.At+f.For))
	}
	slices.Sort(edges)
	edges = append(edges, 1<<62)
	for _, end := range edges {
		if end <= t {
			continue
		}
		if h.at(t) >= v {
			return t
		}
		// Within an edge it moves at one rate, or not at all.
		if h.at(end-1) >= v {
			return h.reachWithin(v, t)
		}
		t = end
	}
	return t
}

// reachWithin is reach where the hand moves at one rate until it shows v.
func (h *simHand) reachWithin(v, t int64) int64 {
	at := t + h.lasts(v-h.at(t)) // but for what is rounded
	for h.at(at) < v {
		at++
	}
	for at > t && h.at(at-1) >= v {
		at--
	}
	return at
}

func TestSimHandReachesWhatItShows(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		h := simHand{base: r.Int64N(1 << 60), ppm: r.Int64N(10000) - 5000}
		for range r.IntN(3) {
			h.steps = append(h.steps, simStep{r.Int64N(1e10), r.Int64N(1e10) - 5e9})
		}
		if r.IntN(2) == 0 {
			h.frozen = []simFault{{At: time.Duration(r.Int64N(1e10)), For: time.Duration(r.Int64N(1e10))}}
		}
		from := r.Int64N(2e10)
		v := h.at(from) + r.Int64N(1e10) - 1e9
		at := h.reach(v, from)
		require.GreaterOrEqual(t, h.at(at), v)
		require.GreaterOrEqual(t, at, from)
		for _, before := range []int64{at - 1, at - 2, at - 1000, from + (at-from)/2, from + (at-from)/3, from} {
			if before >= from && before < at {
				require.Less(t, h.at(before), v, "%+v from %d to %d, before %d", h, from, at, before)
			}
		}
	}
}

// Regimes of their own for waiting: what they attack needs more waiters, or faults that last
// longer, than the other plans have.

// drawRegime is the plan of a seed that is about waiting; nil for most seeds.
func drawRegime(seed uint64) *simPlan {
	r := rand.New(rand.NewPCG(seed, 0x4e91))
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	p := &simPlan{Seed: seed, RestartGuard: -1, Strict: true, Fenced: []bool{r.IntN(4) == 0}}
	nodes := 3 + 2*r.IntN(2)
	p.TTL = in(300*time.Millisecond, time.Second).Truncate(time.Millisecond)
	p.NodeTimeout = p.TTL * time.Duration(2+r.IntN(8)) / 100
	p.Delay = in(10*time.Microsecond, 300*time.Microsecond)
	p.Jitter = in(p.Delay/10, p.Delay)
	ppm := func() int64 { return r.Int64N(9900) - 4950 }
	for range nodes {
		p.Nodes = append(p.Nodes, simNodePlan{PPM: ppm(), Offset: in(-400*time.Millisecond, 400*time.Millisecond)})
	}
	processes := func(n int, clients ...simClientPlan) {
		for range n {
			p.Processes = append(p.Processes, simProcessPlan{PPM: ppm(), Clients: clients})
		}
	}
	switch mix(seed, 'R') % 64 {
	case 3, 4:
		p.Regime = simLong
		p.drawLong(r)
		p.drawLongUses()
	case 5, 6:
		p.drawModes(r)
	case 10:
		p.drawWell(r)
		p.drawAway()
	case 11, 12:
		p.drawAwayAgain(r)
		return p
	case 13:
		p.drawLostLines(r)
		return p
	case 15:
		p.drawIdle(r)
		return p
	case 8, 9, 14:
		if p.Regime = simLease; mix(seed, 'R')%64 == 14 {
			p.drawAllLose(r)
		} else {
			p.drawLease(r)
		}
		processes(2+r.IntN(3), make([]simClientPlan, 1+r.IntN(2))...)
		for i := range p.Processes {
			for j := range p.Processes[i].Clients {
				p.Processes[i].Clients[j].Ops = 6 + r.IntN(10)
			}
		}
	default:
		return nil
	}
	p.drawEvictions()
	p.drawListEvictions()
	p.drawForeign()
	slices.SortFunc(p.Faults, func(a, b simFault) int { return int(a.At - b.At) })
	return p
}

// drawLong has TTLs that no wait outlives, so that a key that is left behind shows, and faults
// of nodes, after which releases must still arrive.
func (p *simPlan) drawLong(r *rand.Rand) {
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	p.TTL = in(time.Minute, 2*time.Minute).Truncate(time.Millisecond)
	p.NodeTimeout = in(20*time.Millisecond, 200*time.Millisecond)
	p.Until = in(time.Second, 8*time.Second)
	p.Fenced = nil
	for range 1 + r.IntN(3) {
		p.Fenced = append(p.Fenced, r.IntN(4) == 0)
	}
	for range 1 + r.IntN(3) {
		var clients []simClientPlan
		for range 1 + r.IntN(3) {
			clients = append(clients, simClientPlan{Key: r.IntN(len(p.Fenced)), Ops: 4 + r.IntN(8)})
		}
		p.Processes = append(p.Processes, simProcessPlan{PPM: r.Int64N(9900) - 4950, Clients: clients})
	}
	if r.IntN(3) == 0 {
		p.Torn, p.Reset, p.Slow = r.IntN(300), r.IntN(150), r.IntN(300)
	}
	kinds := []string{faultErr, faultErr, faultCrash, faultCut, faultCutOut, faultCutBack, faultHang, faultPause}
	for range 1 + r.IntN(8) {
		p.Faults = append(p.Faults, simFault{
			Kind: kinds[r.IntN(len(kinds))], Node: r.IntN(len(p.Nodes)), Proc: r.IntN(len(p.Processes)),
			At: in(0, p.Until), For: in(0, []time.Duration{p.NodeTimeout, time.Second, 3 * time.Second}[r.IntN(3)]),
		})
	}
	p.Users = r.IntN(3) == 0
}

// drawLongUses has some of these plans hand locks over, keep them after their release, share them, or
// extend them for longer than their TTL. It has randomness of its own, so that the other plans are what
// they were.
func (p *simPlan) drawLongUses() {
	r := rand.New(rand.NewPCG(p.Seed, 0x1075))
	switch r.IntN(5) {
	case 0:
		p.HandOvers = true
	case 1:
		p.MinHold = leastTTL + time.Duration(r.Int64N(int64(simLongPause)))
	case 2:
		p.drawKindsFrom(r)
	}
	p.Longer = r.IntN(2) == 0
}

// drawEarly has locks be extended at once in some plans whose requests may be slow. It has randomness of its own, so that
// the other plans are what they were.
func (p *simPlan) drawEarly() {
	p.Early = p.Slow > 0 && rand.New(rand.NewPCG(p.Seed, 0xea57)).IntN(2) == 0
}

// The regimes.
const (
	simLong  = "long"  // leases last for minutes, and what is left of a lock is judged at any time
	simModes = "modes" // readers, writers and permits in one queue
)

// deadline is a context that tells when it ends.
type deadline struct {
	context.Context
	at time.Time
}

func (d deadline) Deadline() (time.Time, bool) { return d.at, true }

// Plans in which everything goes wrong for some seconds and nothing afterwards, while the clients go
// on for half a minute: after the time that recovery may take, all is as if nothing had happened.

const simWell = "well"

const (
	// simWellFor is for how long clients go on after the last fault.
	simWellFor = 30 * time.Second
	// simRecovery is the part of the recovery that no option changes: a connection that was opened
	// to a node that hangs is waited for up to four seconds, and what such a node was sent is sent
	// again after that.
	simRecovery = 5 * time.Second
)

// drawWell has the faults that a node, a process and the way between them recover from.
func (p *simPlan) drawWell(r *rand.Rand) {
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	p.Regime, p.Strict, p.RestartGuard = simWell, false, 0
	p.Until = in(time.Second, 4*time.Second)
	p.Fenced = nil
	for range 1 + r.IntN(2) {
		p.Fenced = append(p.Fenced, r.IntN(3) == 0)
		kind := []int{0, 0, manyShare, 1 + r.IntN(3)}[r.IntN(4)]
		if p.Kinds = append(p.Kinds, kind); kind > 0 {
			p.Fenced[len(p.Fenced)-1] = false
		}
	}
	for range 2 + r.IntN(3) {
		proc := simProcessPlan{PPM: r.Int64N(9900) - 4950}
		for range 1 + r.IntN(2) {
			proc.Clients = append(proc.Clients, simClientPlan{Key: r.IntN(len(p.Fenced)), Ops: 1000})
		}
		p.Processes = append(p.Processes, proc)
	}
	p.Users, p.Native = r.IntN(3) == 0, r.IntN(3) == 0
	p.NoMGet = mix(p.Seed, 'g')%4 == 0
	if r.IntN(2) == 0 {
		p.Torn, p.Reset, p.Slow = r.IntN(300), r.IntN(150), r.IntN(300)
		p.Late, p.Lost, p.Twice, p.Deaf = r.IntN(150), r.IntN(60), r.IntN(150), r.IntN(1000)
	}
	kinds := []string{
		faultCut, faultCut, faultCutOut, faultCutBack, faultCrash, faultCrash, faultErr, faultErr, faultHang, faultHang, faultMute,
		faultForget, faultFlush, faultSwap, faultResync, faultBack, faultPause, faultSuspend, faultWall, faultKill,
	}
	killed := false
	for range 2 + r.IntN(10) {
		f := simFault{Kind: kinds[r.IntN(len(kinds))], Node: r.IntN(len(p.Nodes)), Proc: r.IntN(len(p.Processes)), At: in(0, p.Until)}
		f.For = min(in(0, []time.Duration{p.NodeTimeout, p.TTL, 3 * time.Second}[r.IntN(3)]), p.Until-f.At)
		switch f.Kind {
		case faultBack:
			f.By = -in(0, 3*p.TTL)
		case faultWall:
			f.By = in(0, 3*p.TTL)
		case faultKill:
			if killed {
				continue
			}
			killed = true
		case faultForget, faultFlush, faultSwap, faultResync:
			f.For = min(f.For, p.TTL)
		}
		if f.For < noticed[f.Kind] {
			continue
		}
		p.Faults = append(p.Faults, f)
	}
	slices.SortFunc(p.Faults, func(a, b simFault) int { return int(a.At - b.At) })
}

// drawAway has a minority of the nodes of some of these plans stay away. It has randomness of its own, so
// that the other plans are what they were.
func (p *simPlan) drawAway() {
	r := rand.New(rand.NewPCG(p.Seed, 0xa3a7))
	n := len(p.Nodes)
	if r.IntN(2) == 0 {
		return
	}
	for _, node := range r.Perm(n)[:1+r.IntN(n-quorumOf(n))] {
		away := simFault{Kind: faultCrash, Node: node, At: time.Duration(r.Int64N(int64(p.Until)))}
		away.For = p.Until + simWellFor + 20*time.Second - away.At
		p.Faults = append(p.Faults, away)
	}
	slices.SortFunc(p.Faults, func(a, b simFault) int { return int(a.At - b.At) })
}

// staysAway reports whether a node of such a plan does.
func (n *simNode) staysAway() bool {
	return slices.ContainsFunc(n.w.plan.Faults, func(f simFault) bool { return f.Kind == faultCrash && f.Node == n.i && f.For > simWellFor })
}

// wellFrom is when recovery is over: a node may vote again a TTL after it forgot, and as long after
// that what is left of the last lock that it had no part in is gone; what lands late does so within
// two TTLs, and stays for one.
func (w *simWorld) wellFrom() int64 {
	period := 1.02 * float64(w.plan.TTL)
	if slices.Contains(w.plan.Fenced, true) {
		period = max(period, 1.02*float64(guard.FencedGuard))
	}
	return int64(w.plan.Until) + int64(period) + int64(4*w.plan.TTL+simRecovery)
}

// isWell reports whether a process must be well from t on.
func (w *simWorld) isWell(p *simProcess, t int64) bool {
	return w.plan.Regime == simWell && t >= w.wellFrom() && p.killedAt == never
}

// over reports whether a client of such a plan has done enough.
func (c *simClient) over() bool {
	return c.w.plan.Regime == simWell && c.w.t() > int64(c.w.plan.Until+simWellFor)
}

// checkWell: all that was asked for after the recovery was had, from all nodes, in order and at once.
func (w *simWorld) checkWell(key string, grants []*simGrant) {
	if w.plan.Regime != simWell {
		return
	}
	well := w.wellFrom()
	total, without := make(map[int]int), make(map[[2]int]int) // by process, and node
	for _, g := range grants {
		if g.ret < well || g.proc.killedAt != never {
			continue
		}
		w.reached("a grant after the recovery from all faults", true)
		if g.relRet > 0 && g.relErr != nil && g.relErr != errDoTellsNot {
			w.violated("well: the release of %v: %v", g, g.relErr)
		}
		total[g.proc.i]++
		for _, n := range w.nodes {
			if !slices.ContainsFunc(n.holds[key], func(h *simHold) bool { return h.value == g.value && h.from < g.relCalled }) {
				without[[2]int{g.proc.i, n.i}]++
			}
		}
	}
	// A node that still has the last holder's value refuses the next one, which does not need it. So does
	// one on which others keep something under the lock's name.
	for at, n := range without {
		if all := total[at[0]]; all >= 8 && n > all/2 && !w.nodes[at[1]].staysAway() && !w.nodes[at[1]].isForEver() {
			w.violated("well: node %d had no part in %d of %d locks of process %d on %s", at[1], n, all, at[0], key)
		}
	}
	clients := 0
	for _, p := range w.plan.Processes {
		clients += len(p.Clients)
	}
	for _, wait := range w.waits[key] {
		if wait.from < well || w.procs[wait.proc].killedAt != never {
			continue
		}
		if n := w.overtaken(wait, grants); n > 2*clients {
			w.violated("well: client %d.%d was overtaken %d times while it waited for %s until %.6f ms", wait.proc, wait.client, n, key, ms(wait.to))
		}
	}
}

// overtaken counts grants during a wait whose clients began to wait after it.
func (w *simWorld) overtaken(wait simWait, grants []*simGrant) (n int) {
	for _, g := range grants {
		if g.call > wait.from && g.ret < wait.to {
			n++
		}
	}
	return n
}

// mustSucceed: an acquire that began after the recovery has the lock.
func (c *simClient) mustSucceed(from int64, err error) {
	if err != nil && c.w.isWell(c.p, from) {
		c.w.violated("well: client %d.%d has no lock: %v", c.p.i, c.i, err)
	}
}

// Clocks of servers that jump forward (S6).

// drawAhead has the clocks of a minority jump forward in some plans. It has randomness of its own, so
// that the other plans are what they were. A node that jumps after it forgot what it granted votes too
// early, as its clock says how long ago that was; and counters that were lost start again from clocks
// that agree within a second. Both are assumed not to happen.
func (p *simPlan) drawAhead() {
	r := rand.New(rand.NewPCG(p.Seed, 0xa4ead))
	n := len(p.Nodes)
	if r.IntN(3) > 0 || p.Strict || n < 3 || p.HandOvers || p.MinHold > 0 {
		return
	}
	restarts := func(f simFault) bool {
		return f.losesAt() > 0 || f.Kind == faultCrash || f.Kind == faultStale || f.Kind == faultTwin
	}
	if slices.Contains(p.Fenced, true) && slices.ContainsFunc(p.Faults, restarts) {
		return
	}
	faults := slices.Clone(p.Faults)
	for _, i := range r.Perm(n)[:1+r.IntN(n-quorumOf(n))] {
		if slices.ContainsFunc(faults, func(f simFault) bool { return f.Node == i && restarts(f) }) {
			continue
		}
		by := time.Duration(r.Int64N(int64(3*p.TTL))) + 1
		if r.IntN(3) == 0 {
			by = time.Hour
		}
		p.Faults = append(p.Faults, simFault{Kind: faultAhead, Node: i, At: time.Duration(r.Int64N(int64(p.Until))), By: by})
	}
}

// cutShort reports whether a value is gone early: it was evicted, or the node's clock jumped after a TTL
// was set that would have lasted longer. That it was struck later, too, changes nothing: only ends before the
// release are looked at.
func (n *simNode) cutShort(h *simHold) bool {
	return h.evicted || slices.ContainsFunc(n.w.plan.Faults, func(f simFault) bool {
		return f.Kind == faultAhead && f.Node == n.i && h.from < int64(f.At) && int64(f.At) <= h.to && h.to < h.whole
	})
}

// brokenBy is when, from the call to a time, a majority was no longer possible since nodes lost a key early: by
// an eviction, a clock that jumped, or ForceRelease; or since the fleet looked new, and a node had the value by
// then; never if none was. From then on nothing is promised: such a node counts among those that fail.
func (w *simWorld) brokenBy(g *simGrant, before int64) int64 {
	at, first := never, never
	for _, n := range w.nodes {
		for _, h := range n.holds[g.key] {
			if h.value == g.value {
				first = min(first, h.from)
			}
			if h.value != g.value || h.to < g.call || h.to > before {
				continue
			}
			t, left, short, jumped, evicted := max(h.to, g.ret), 0, 0, 0, 0
			for _, o := range w.nodes {
				if o.had(g.key, g.value, g.number, t) {
					left++
					continue
				}
				var last *simHold
				forced := false // if it had another number, too
				for _, c := range o.holds[g.key] {
					if c.value != g.value || c.to > t {
						continue
					}
					forced = forced || c.forced
					// Where it came back for a shorter time, the one that was evicted would still be there.
					if last == nil || last.number != g.number || !last.evicted || last.whole <= t {
						last = c
					}
				}
				cut := last != nil && last.number == g.number && o.cutShort(last)
				short += int(fakenode.Truth(forced || cut))
				evicted += int(fakenode.Truth(cut && last.evicted))
				jumped += int(fakenode.Truth(cut && !last.evicted))
			}
			stands := left >= g.proc.quorum()
			w.reached("a clock that jumps forward takes a key of a lock", jumped > 0)
			w.reached("an evicted key is one of a lock", evicted > 0)
			w.reached("a lock stands although a clock jumped forward", jumped > 0 && stands)
			w.reached("a lock stands although a key of it was evicted", evicted > 0 && stands)
			if !stands && left+short >= g.proc.quorum() {
				at = min(at, t)
			}
		}
	}
	for _, t := range w.allNew.times() {
		if t > max(g.call, first) && t <= before {
			at = min(at, t)
		}
	}
	return at
}

// simTimes is when something happened.
type simTimes struct {
	mu sync.Mutex
	at []int64
}

func (s *simTimes) times() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// newBetween reports whether a mark was lost between two times after which the fleet looked new.
func (w *simWorld) newBetween(from, to int64) bool {
	return slices.ContainsFunc(w.allNew.times(), func(t int64) bool { return from < t && t <= to })
}

// isNew reports whether the node's mark tells a newcomer of nothing that was there before.
func (n *simNode) isNew() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	text, there, err := n.store.Text(protocol.MarkKey)
	m := protocol.ReadMark(text, there && err == nil, time.Duration(n.store.Now()))
	return m.ID == "" || m.First && m.All == 0 && m.Age < guard.FirstUse*102/100
}

// lostMark notes, after a mark was lost, that the fleet looks like a new one, if it does. From then on nothing is
// promised for locks of before.
func (w *simWorld) lostMark() {
	w.allNew.mu.Lock()
	defer w.allNew.mu.Unlock()
	if w.plan.RestartGuard < 0 || slices.ContainsFunc(w.nodes, func(n *simNode) bool { return !n.isNew() }) {
		return
	}
	w.allNew.at = append(w.allNew.at, w.t())
}

// breaks reports whether something of the plan may end claims: see brokenBy.
func (w *simWorld) breaks() bool {
	return w.allNew.times() != nil || w.plan.Force ||
		slices.ContainsFunc(w.plan.Faults, func(f simFault) bool { return f.Kind == faultAhead || f.Kind == faultEvict })
}

// checkBroken ends claims of locks that more nodes have lost early than they could miss.
func (w *simWorld) checkBroken() {
	if !w.breaks() {
		return
	}
	for _, g := range w.grants {
		end := g.end()
		if at := w.brokenBy(g, end-1); at < end {
			w.excused(exBroken, true)
			w.reached("a lock that is held is released by force", w.forced(g))
			g.brokenAt = max(at, g.ret)
		}
	}
}

// brokenNow is brokenBy while the run goes on.
func (w *simWorld) brokenNow(g *simGrant) bool {
	if !w.breaks() {
		return false
	}
	for _, n := range w.nodes {
		n.mu.Lock()
		defer n.mu.Unlock()
	}
	return w.excused(exBroken, w.brokenBy(g, w.t()) < never)
}

// forced reports whether ForceRelease took a lock from a node.
func (w *simWorld) forced(g *simGrant) bool {
	return slices.ContainsFunc(w.nodes, func(n *simNode) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return slices.ContainsFunc(n.holds[g.key], func(h *simHold) bool { return h.value == g.value && h.forced })
	})
}

// Errors of servers that live, with Redis' own texts.

var simSays = []string{
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"NOAUTH Authentication required.",
	"MOVED 3999 127.0.0.1:6381",
	"MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
	"NOREPLICAS Not enough good replicas to write.",
	"OOM command not allowed when used memory > 'maxmemory'.",
}

// drawStarts adds a process to some plans that starts while the others run: a deployment, or what comes
// in the place of one that died. It has randomness of its own, so that the other plans are what they were.
func (p *simPlan) drawStarts() {
	r := rand.New(rand.NewPCG(p.Seed, 0x57a2))
	if p.Young || r.IntN(4) > 0 {
		return
	}
	from, span := time.Duration(0), p.Until
	if i := slices.IndexFunc(p.Faults, func(f simFault) bool { return f.Kind == faultKill }); i >= 0 {
		from, span = p.Faults[i].At, p.TTL
	}
	of := p.Processes[r.IntN(len(p.Processes))]
	of.Start = from + time.Duration(r.Int64N(int64(span)))
	of.Clients = slices.Clone(of.Clients)
	p.Processes = append(p.Processes, of)
}

// drawRare makes some plans such that what is rare in the others happens in them: messages that take
// nearly as long as a lease, and wall clocks that jump ahead meanwhile, so that grants come too late; and
// hand-overs, or two keys at once, beside nodes that forget or are down again and again.
// It has randomness of its own, so that the other plans are what they were.
func (p *simPlan) drawRare() {
	r := rand.New(rand.NewPCG(p.Seed, 0x7a7e))
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	more := func(ops int) {
		for i := range p.Processes {
			for range 2 {
				p.Processes[i].Clients = append(slices.Clip(p.Processes[i].Clients), simClientPlan{Key: r.IntN(len(p.Fenced)), Ops: ops})
			}
		}
	}
	switch kind := r.IntN(20); {
	case p.Strict:
	case kind < 2:
		p.NodeTimeout, p.Slow, p.Contexts = p.TTL*4/5, 900, true
		p.SlowFor = p.NodeTimeout / 2
		for p.Pairs = true; len(p.Fenced) < 3; {
			p.Fenced = append(p.Fenced, false)
		}
		more(12)
		for i := range p.Processes {
			for at := in(0, p.TTL/2); at < p.Until; at += in(p.TTL/4, p.TTL) {
				p.Faults = append(p.Faults, simFault{Kind: faultWall, Proc: i, At: at, By: in(p.TTL/4, p.TTL)})
			}
		}
	case kind < 5 && len(p.Nodes) > 2:
		p.Until, p.RestartGuard, p.Contexts = 16*p.TTL, max(p.RestartGuard, 0), true
		p.HandOvers = len(p.Kinds) == 0 && r.IntN(4) > 0
		if p.Pairs = !p.HandOvers; p.Pairs && len(p.Fenced) < 2 {
			p.Fenced = append(p.Fenced, false)
		}
		more(8)
		for range 24 {
			f := simFault{Kind: faultCrash, Node: r.IntN(len(p.Nodes)), At: in(0, p.Until), For: in(p.TTL/4, 2*p.TTL)}
			if r.IntN(4) > 0 {
				f.Kind, f.For = faultForget, in(0, p.TTL/8)
			}
			p.Faults = append(p.Faults, f)
		}
	}
}

// doesNevertheless reports whether a server that says this error to others carries out a request all the same; nil
// is one that needs no key. One that is full does what takes no memory. It would also remove a key, and
// then have no room to reserve it for a waiter; a script that stops half way is another fault.
func doesNevertheless(said error, r *protocol.Request) bool {
	switch code, _, _ := strings.Cut(said.Error(), " "); code {
	case "MOVED":
		return r == nil
	case "MISCONF", "NOREPLICAS":
		return r == nil || r.Op == protocol.OpInspect
	case "OOM":
		return r == nil || r.Op == protocol.OpInspect || r.Queue == nil && r.Bundle() == nil && (r.Op == protocol.OpRelease || r.Op == protocol.OpExtend)
	default:
		return false
	}
}

// drawErrors gives some of the nodes that answer errors another one than LOADING, and empties the cache
// of scripts of some. It has randomness of its own, so that the other plans are what they were.
func (p *simPlan) drawErrors() {
	r := rand.New(rand.NewPCG(p.Seed, 0xe44))
	for i := range p.Faults {
		if f := &p.Faults[i]; f.Kind == faultErr && r.IntN(4) > 0 {
			f.Says = simSays[r.IntN(len(simSays))]
		}
	}
	questions := rand.New(rand.NewPCG(p.Seed, 0x0e5))
	for i := range p.Faults {
		if f := &p.Faults[i]; f.Kind == faultErr && questions.IntN(3) == 0 {
			f.Only, f.Says = simQuestions[questions.IntN(len(simQuestions))], "ERR upstream failure"
		}
	}
	if r.IntN(10) > 0 {
		return
	}
	for range 1 + r.IntN(3) {
		p.Faults = append(p.Faults, simFault{Kind: faultScripts, Node: r.IntN(len(p.Nodes)), At: time.Duration(r.Int64N(int64(p.Until)))})
	}
}

// simQuestions are those that a vote rests on.
var simQuestions = []string{"GET", "TIME", "INFO server", "INFO replication", "INFO commandstats", "EVALSHA"}

// saysTo is the error that the server answers at t to one of them alone, as a proxy in front of it may; nil: it does not.
func (n *simNode) saysTo(question string, t int64) error {
	for i := range n.w.plan.Faults {
		f := &n.w.plan.Faults[i]
		if f.Kind == faultErr && f.Only == question && f.Node == n.i && t >= int64(f.At) && t < int64(f.At+f.For) {
			n.w.reached("a server errs at one question of those that a vote rests on", true)
			return fakenode.Error(f.Says)
		}
	}
	return nil
}

// says is the error that the server answers at t to what it is sent, but for what it answers nevertheless;
// nil: it does not.
func (n *simNode) says(t int64) error {
	for i := range n.w.plan.Faults {
		f := &n.w.plan.Faults[i]
		if f.Kind != faultErr || f.Only != "" || f.Node != n.i || t < int64(f.At) || t >= int64(f.At+f.For) {
			continue
		}
		if f.Says == "" {
			return errSimLoading
		}
		code, _, _ := strings.Cut(f.Says, " ")
		n.w.reached("a server answers "+code, true)
		return fakenode.Error(f.Says)
	}
	return nil
}

// flushScripts is SCRIPT FLUSH.
func (n *simNode) flushScripts() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.w.reached("a server that lives forgets its scripts", len(n.store.Scripts) > 0)
	clear(n.store.Scripts)
}
