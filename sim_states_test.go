package redlock

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/fakenode"
)

// States that only some seeds come to. Each is counted, so that one that is lost when plans change,
// or the library, is noticed.

// reached counts a state of the run.
func (w *simWorld) reached(state string, here bool) {
	if here {
		w.tallies.count(state)
	}
}

// down is how many nodes a process cannot use now.
func (w *simWorld) down(p *simProcess) (n int) {
	t := w.t()
	for i := range w.nodes {
		_, gone := w.faultAt(t, -1, i, faultHang, faultCrash, faultForget, faultSwap, faultPromote, faultErr, faultResync)
		_, cut := w.faultAt(t, p.i, i, faultCut, faultCutOut, faultCutBack)
		n += int(fakenode.Truth(gone || cut))
	}
	return n
}

// grantedIn counts the states in which a lock is granted; the caller holds mu.
func (w *simWorld) grantedIn(g *simGrant) {
	p, t := g.proc, w.t()
	spare := len(w.nodes) - p.rl.quorum
	down, shares := w.down(p), g.shared
	w.reached("a grant with a node down", down > 0)
	w.reached("a grant with as many nodes down as may be", down > 0 && down == spare)
	w.reached("a shared grant with a node down", down > 0 && shares)
	w.reached("a grant of a shared lock", shares && g.permits == 0)
	w.reached("a grant of a permit", g.permits > 0)
	w.reached("a grant with a fencing token", g.fence > 0)
	w.reached("a grant to one that waited", w.places[g.value].came != 0)
	barred := 0
	for i := range w.nodes {
		if guard := p.rl.guard; guard != nil {
			left, _ := guard.Judge(i, guard.Period(g.lock.terms.TTL, g.lock.terms.fencing), p.mono.at(t))
			barred += int(fakenode.Truth(left > 0))
		}
	}
	w.reached("a grant although a node is barred", barred > 0)
	w.reached("a grant although as many nodes are barred as may be", barred > 0 && barred == spare)
	for _, f := range w.plan.Faults {
		at := f.losesAt()
		n := w.nodes[f.Node]
		n.mu.Lock()
		met, known := n.met[p.i]
		n.mu.Unlock()
		if at > 0 && at <= t && known && met > at && met <= at+int64(w.plan.TTL) {
			w.reached("a grant to a process that met a node within a TTL after its loss", true)
			break
		}
	}
}

// planned counts what a plan has.
func (w *simWorld) planned() {
	p := w.plan
	w.reached(fmt.Sprint("nodes: ", len(p.Nodes)), true)
	if p.Regime != "" {
		w.reached("plan: "+p.Regime, true)
	}
	for _, f := range p.Faults {
		w.reached("fault: "+f.Kind, true)
	}
	for _, kind := range p.Kinds {
		w.reached("plan: semaphores", kind > 0)
		w.reached("plan: shared locks", kind < 0)
	}
	for state, here := range map[string]bool{
		"plan: calm": p.Calm, "plan: strict with faults": p.Strict && !p.Calm && len(p.Faults) > 0, "plan: ties": p.Ties > 0,
		"plan: sets": p.Sets, "plan: sets of all modes": p.Sets && len(p.Kinds) > 0, "plan: hand-overs": p.HandOvers, "plan: min hold": p.MinHold > 0,
		"plan: own names": p.Names, "plan: young nodes": p.Young, "plan: nobody may publish": p.NoPublish, "plan: users' clients": p.Users,
		"plan: no connection ids": p.NoID, "plan: no kills": p.NoKill, "plan: native deletes": p.Native, "plan: mixed TTLs": p.Mixed,
		"plan: torn for long": p.TornFor > 0, "plan: slow": p.Slow > 0, "plan: lost": p.Lost > 0, "plan: reset": p.Reset > 0,
		"plan: torn": p.Torn > 0, "plan: late": p.Late > 0, "plan: twice": p.Twice > 0, "plan: deaf": p.Deaf > 0,
	} {
		w.reached(state, here)
	}
}

// simState is a state, and how many of 10,000 seeds come to it.
type simState struct {
	name string
	of   float64
}

// notReached lists the states that none of so many seeds came to, although it is next to
// impossible that a dozen are expected and none comes.
func notReached(states []simState, seedsOf map[string]int, seeds int) (lost []string) {
	for _, s := range states {
		if expected := s.of * float64(seeds) / 1e4; expected >= 12 && seedsOf[s.name] == 0 {
			lost = append(lost, fmt.Sprintf("%s: no seed of %d, about %.0f were to be expected", s.name, seeds, expected))
		}
	}
	return lost
}

// unlisted is what was counted and is in no list.
func unlisted(seedsOf map[string]int) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(seedsOf)) {
		if !slices.Contains(simExcuses, name) && !slices.ContainsFunc(simStates, func(s simState) bool { return s.name == name }) {
			names = append(names, name)
		}
	}
	return names
}

func stateNames() (names []string) {
	for _, s := range simStates {
		names = append(names, s.name)
	}
	return names
}

func TestSimStateThatIsLostIsNoticed(t *testing.T) {
	states := []simState{{"rare", 100}, {"frequent", 5000}}
	require.Empty(t, notReached(states, nil, 20), "too few seeds to say anything")
	require.Empty(t, notReached(states, map[string]int{"frequent": 1}, 1000))
	require.Len(t, notReached(states, map[string]int{"rare": 1}, 1000), 1)
	require.Len(t, notReached(states, map[string]int{"frequent": 1}, 1200), 1)
	require.Len(t, notReached(states, nil, 1200), 2)
}

// simStates is all states that are counted, with what was measured over 20,000 seeds.
var simStates = []simState{
	{"a SET is sent again to a node that refused", 2156.5},
	{"a door is shut", 811.5},
	{"a fencing counter cannot be raised", 1372},
	{"a fencing counter is raised", 1367},
	{"a grant although a node is barred", 2826},
	{"a grant although as many nodes are barred as may be", 1800},
	{"a grant comes too late", 5.5},
	{"a grant of a permit", 799},
	{"a grant of a shared lock", 674},
	{"a grant to a process that met a node within a TTL after its loss", 1044},
	{"a grant to one that waited", 7641},
	{"a grant with a fencing token", 2796.5},
	{"a grant with a node down", 2599.5},
	{"a grant with as many nodes down as may be", 1190.5},
	{"a key is put back", 3540.5},
	{"a lock is adopted", 1423.5},
	{"a lock is adopted after a node forgot it", 29.5},
	{"a lock is adopted from a holder that stopped", 388.5},
	{"a lock is adopted while a node is down", 83.5},
	{"a lock is downgraded", 480},
	{"a lock is lost", 1896},
	{"a mark is given the present date", 6995},
	{"a part of a set is lost before the set is complete", 4.5},
	{"a permit is held beside another", 581.5},
	{"a reader or permit is told in its turn", 1067},
	{"a release finds no quorum", 3969},
	{"a release finds the lock lost", 1968},
	{"a release is sent again", 1232.5},
	{"a replica is asked", 847},
	{"a script stops half way", 678},
	{"a set is granted", 2322.5},
	{"a set is granted while a node is down", 266.5},
	{"a shared grant with a node down", 436},
	{"an acquire finds no quorum", 3487.5},
	{"an extend finds no quorum", 4159},
	{"an extend finds the lock lost", 322},
	{"an extend is confirmed after Until", 1188.5},
	{"an old connection is ended", 6191},
	{"an old connection may not be ended", 373},
	{"readers share a lock", 564.5},
	{"nodes: 1", 685.5},
	{"nodes: 2", 700},
	{"nodes: 3", 2891},
	{"nodes: 4", 728.5},
	{"nodes: 5", 3582},
	{"nodes: 6", 683},
	{"nodes: 7", 730},
	{"plan: apart", 161.5},
	{"plan: calm", 1301.5},
	{"plan: crowd", 146},
	{"plan: deaf", 3659.5},
	{"plan: hand-overs", 2890.5},
	{"plan: hurry", 171.5},
	{"plan: late", 2689},
	{"plan: lease", 310.5},
	{"plan: long", 323.5},
	{"plan: lost", 1824},
	{"plan: min hold", 1171.5},
	{"plan: mixed TTLs", 83.5},
	{"plan: modes", 291},
	{"plan: native deletes", 2455},
	{"plan: no connection ids", 452.5},
	{"plan: no kills", 434},
	{"plan: nobody may publish", 422},
	{"plan: own names", 1623.5},
	{"plan: reset", 2548},
	{"plan: semaphores", 1898},
	{"plan: sets", 2699},
	{"plan: sets of all modes", 1348.5},
	{"plan: shared locks", 1644},
	{"plan: slow", 3768.5},
	{"plan: strict with faults", 2192},
	{"plan: ties", 315},
	{"plan: torn", 2524.5},
	{"plan: torn for long", 902.5},
	{"plan: twice", 1843},
	{"plan: users' clients", 2570},
	{"plan: well", 158},
	{"plan: young nodes", 802},
	{"fault: back", 1055.5},
	{"fault: crash", 1057},
	{"fault: cut", 2877},
	{"fault: cutback", 1385.5},
	{"fault: cutout", 1462.5},
	{"fault: error", 1503},
	{"fault: flush", 1049},
	{"fault: forget", 2652},
	{"fault: half", 1094},
	{"fault: hang", 3226},
	{"fault: kill", 1537},
	{"fault: mute", 2307},
	{"fault: pause", 3448},
	{"fault: promote", 955},
	{"fault: resync", 979},
	{"fault: suspend", 1998},
	{"fault: swap", 951.5},
	{"fault: twin", 290},
	{"fault: wall", 1998},
}

// Where a rule excuses something, the excuse has a name, and its uses are counted: those without which
// the rule would have failed. Where two excuse the same, neither is counted. Of the few in
// simWhenever the checker cannot tell, and counts all uses, which their names say in the table.

const (
	exClockThereAndBack = "R7: a wall clock was past the end, and is set back"
	exForgot            = "I2: nodes of the majority have forgotten the lock"
	exNoNotices         = "wake-up: PUBLISH is denied"
	exMoved             = "order: it waited at another node before"
	exRejoined          = "order: a further attempt, and a clock is set back"
	exFreeAtCall        = "I6, release: a node was without the value at the call"
	exRefusedFirst      = "I6, release: a SET that was refused came again"
	exDoor              = "I6, held: a door was shut"
	exWithoutAtCall     = "I6, hand-over: a node was without the value at the call"
	exKeptByHand        = "I6, by whose hand: the lock is kept, or was handed over"
	exNeverHad          = "I6, by whose hand: a node never had the value"
	exSlept             = "I7, time of a call: the process slept"
	exSleeper           = "I7, progress: waits of a process that sleeps at some time"
	exNotQuiet          = "I7, progress: something went wrong less than 8 TTLs + 5 s ago"
	exCutOff            = "I7, progress, and calm plans: the process is cut off"
	exPart              = "I7, progress: held for a set that is not complete"
	exBarred            = "I7, progress: of two nodes one does not vote"
	exLeftOver          = "I7, progress: it was handed over, or kept"
	exStrays            = "I7, progress: messages come late, twice or torn"
	exDisturbed         = "I7, progress: a process of a calm plan died, or was cut off"
	exNames             = "I7, progress: queues on several nodes"
	exHandedBack        = "I7, progress: handed over, and a clock is set back"
	exHandedOver        = "I5, at the end: handed over, and not adopted yet"
	exKept              = "I5, at the end: kept for its time"
	exStoppedLate       = "I5, at the end: a node that hung got it when its holder had stopped"
	exLastsLonger       = "I5, at the end: the node's clock was set back"
	exForgottenKey      = "I5: the node forgot it"
	exTurn              = "I5: reserved for the first in the queue"
	exForTheHeir        = "I5: it waits for one that adopts it"
	exForTheTime        = "I5: it is kept for its time"
	exAstray            = "I5: messages go astray until then"
	exSilent            = "I5: a connection went silent while its node hung"
	exHanding           = "loss: the hand-over of the lock found no majority"
	exFoundBefore       = "loss: it was put back since the round began"
	exLostBefore        = "min hold: it was lost before its release"
	exHandedLate        = "adopt: handed over when it was nearly over"
	exToldBack          = "O3: the node's clock was set back"
	exStruck            = "O3: an extend with another number struck it"
	exOtherName         = "O3: it joined by another node's name"
	exGhost             = "O1: one that had its turn alone is in the way"
	exNewcomer          = "wake-up: a newcomer has the permit"
	exKeptOut           = "wake-up: a newcomer had the lock until shortly before"
)

// simExcuses is all of them, in the order of the table.
var simExcuses = []string{
	exClockThereAndBack, exForgot, exNoNotices, exMoved, exRejoined, exFreeAtCall, exRefusedFirst, exDoor,
	exWithoutAtCall, exKeptByHand, exNeverHad, exSlept, exSleeper, exNotQuiet, exCutOff, exPart, exBarred, exLeftOver,
	exStrays, exDisturbed, exNames, exHandedBack, exHandedOver, exKept, exStoppedLate, exLastsLonger, exForgottenKey,
	exTurn, exForTheHeir, exForTheTime, exAstray, exSilent, exHanding, exFoundBefore, exLostBefore, exHandedLate,
	exToldBack, exStruck, exOtherName, exGhost, exNewcomer, exKeptOut,
}

var simWhenever = []string{exKeptByHand, exSleeper, exForTheHeir, exForTheTime, exAstray, exHanding, exLostBefore}

// excused counts the use of an excuse.
func (w *simWorld) excused(name string, used bool) bool {
	if used {
		w.tallies.count(name)
	}
	return used
}

// simExcuse has a lock count as taken until then.
type simExcuse struct {
	name  string
	until int64
}

// freeFor is from when on a lock that was wanted until a time was free, from the given time on but
// for excuses, and for how long it may be.
func (w *simWorld) freeFor(q simQuiet, to, free int64, cutOff bool, others ...simExcuse) (from, limit int64) {
	others = append(others, simExcuse{exNotQuiet, q.from})
	if cutOff {
		others = append(others, simExcuse{exCutOff, to})
	}
	from = free
	for _, e := range others {
		from = max(from, e.until)
	}
	if to-from > q.limit {
		return from, q.limit
	}
	for i, e := range others {
		without := free
		for j, o := range others {
			if i != j {
				without = max(without, o.until)
			}
		}
		w.excused(e.name, to-without > q.limit)
	}
	w.excused(q.why, to-from > q.usual)
	return from, q.limit
}

// tallyTable is names with uses, and the seeds with any, per 10,000 seeds.
func tallyTable(names []string, uses, seeds map[string]int, of int) string {
	var text strings.Builder
	for _, name := range names {
		whenever := ""
		if slices.Contains(simWhenever, name) {
			whenever = " (whenever it applies)"
		}
		fmt.Fprintf(&text, "\n%9.1f uses %8.1f seeds  %s%s", float64(uses[name])*1e4/float64(of), float64(seeds[name])*1e4/float64(of), name, whenever)
	}
	return text.String()
}

// simTallies counts what has a name. Several goroutines of a run do.
type simTallies struct {
	mu sync.Mutex
	of map[string]int
}

func (c *simTallies) count(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		c.of = make(map[string]int)
	}
	c.of[name]++
}
