package redlock

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/protocol"
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
	Regime       string        `json:",omitempty"` // see sim_regimes_test.go
	Rate         time.Duration `json:",omitempty"` // that a node takes for each request
	Calm         bool          `json:",omitempty"` // nothing goes wrong: order and speed of the line are checked
	Strict       bool          `json:",omitempty"` // nothing gets lost: what is left behind is checked closely
	Young        bool          `json:",omitempty"` // the nodes have just been started
	Met          bool          `json:",omitempty"` // all nodes have memory marks, and all processes have seen them
	Ties         int           `json:",omitempty"` // so many times all ask once at the same moment, and nothing else is done
	Sets         bool          `json:",omitempty"` // clients also want several keys at once
	HandOvers    bool          `json:",omitempty"` // some locks go on in other processes
	MinHold      time.Duration `json:",omitempty"` // of some locks
	Mixed        bool          `json:",omitempty"` // locks have different TTLs, up to RestartGuard
	Nodes        []simNodePlan
	Processes    []simProcessPlan
	Fenced       []bool // by key
	Kinds        []int  `json:",omitempty"` // by key: 0: held alone; -1: shared by many; above: permits
	// Messages: a one-way trip takes Delay and up to Jitter more; of 1000 batches so
	// many have each fate.
	Delay, Jitter time.Duration
	Slow          int           `json:",omitempty"` // takes up to 1.5 NodeTimeouts more
	Lost          int           `json:",omitempty"` // arrives never, and nobody is told
	Reset         int           `json:",omitempty"` // the connection breaks, before or after
	Torn          int           `json:",omitempty"` // the connection breaks, and what was sent arrives within half a NodeTimeout
	Late          int           `json:",omitempty"` // arrives up to 2 TTLs later, on a connection given up by then
	Twice         int           `json:",omitempty"` // arrives again
	Deaf          int           `json:",omitempty"` // of 1000 notices so many are lost
	NoPublish     bool          `json:",omitempty"` // nobody may publish
	TornFor       time.Duration `json:",omitempty"` // and not within half a NodeTimeout, but within this
	Users         bool          `json:",omitempty"` // connections are of users' clients
	NoID          bool          `json:",omitempty"` // connections are not told their ids
	NoKill        bool          `json:",omitempty"` // nor may they be ended
	Native        bool          `json:",omitempty"` // two of three nodes say that they compare and delete by a command, and one of these denies it
	Faults        []simFault
}

type simNodePlan struct {
	PPM    int64         // by how much its clock runs fast
	Offset time.Duration // and is ahead
}

type simProcessPlan struct {
	PPM     int64
	Offset  time.Duration // of the wall clock
	Clients []simClientPlan
}

type simClientPlan struct {
	Key    int
	Ops    int
	Within time.Duration `json:",omitempty"` // for which each acquire waits at most; 0: as drawn
}

// simFault is one thing that goes wrong, from At for For.
type simFault struct {
	Kind       string
	At, For    time.Duration
	Node, Proc int           `json:",omitempty"`
	By         time.Duration `json:",omitempty"` // of clocks that are set
	To         int           `json:",omitempty"` // another node
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
	faultErr     = "error"   // Node answers errors
	faultBack    = "back"    // Node's clock is set back By
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
	if mix(seed, 'q')%25 == 0 {
		return drawTies(seed)
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
	p.drawSets()
	p.drawSetKinds()
	p.drawHandOvers()
	if p.Calm {
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
		return p
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
	// The guard takes a fleet whose nodes are all young for one that starts, so one stays.
	steady := r.IntN(nodes)
	for range r.IntN(9) {
		f := simFault{Kind: kinds[r.IntN(len(kinds))], Node: r.IntN(nodes), Proc: r.IntN(len(p.Processes))}
		f.At = in(0, p.Until)
		f.For = in(0, []time.Duration{p.NodeTimeout, p.TTL / 2, 2 * p.TTL}[r.IntN(3)])
		switch f.Kind {
		case faultCrash, faultForget:
			if f.Node == steady {
				continue
			}
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
			if i != steady && !oneIn(4) {
				p.Faults = append(p.Faults, simFault{Kind: kind, Node: i, At: at + in(0, p.TTL/4), For: in(0, p.TTL/8)})
			}
		}
	}
	p.drawLosses(steady)
	p.drawFlows()
	// Against a machine that sleeps while its wall clock is set back no clock helps.
	for i, f := range p.Faults {
		if f.Kind == faultWall && f.By < 0 && slices.ContainsFunc(p.Faults, func(g simFault) bool { return g.Kind == faultSuspend && g.Proc == f.Proc }) {
			p.Faults[i].By = -f.By
		}
	}
	p.drawHalf(nodes)
	p.drawKinds()
	p.drawMinHold()
	p.drawTwins()
	slices.SortFunc(p.Faults, func(a, b simFault) int { return int(a.At - b.At) })
	return p
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
			lo, hi := t, end-1
			if guess := t + (v-h.at(t))/1e6*(1e6-h.ppm); guess > lo && guess < hi {
				if h.at(guess) < v {
					lo = guess
				} else {
					hi = guess
				}
			}
			for lo+1 < hi {
				if mid := lo + (hi-lo)/2; h.at(mid) >= v {
					hi = mid
				} else {
					lo = mid
				}
			}
			return hi
		}
		t = end
	}
	return t
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
