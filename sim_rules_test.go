package redlock

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/fakenode"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
)

// Rules about what a process sends, which no key on a node shows.

// faultHalf: scripts stop on Node after they have set a key.
const faultHalf = "half"

// drawHalf adds such a fault to some of the plans with fencing. It has randomness of its
// own, so that plans without it are what they were.
func (p *simPlan) drawHalf(nodes int) {
	r := rand.New(rand.NewPCG(p.Seed, 0x4a1f))
	fenced := false
	for _, f := range p.Fenced {
		fenced = fenced || f
	}
	if !fenced || r.IntN(2) > 0 {
		return
	}
	at, lasts := r.Int64N(int64(p.Until)), r.Int64N(int64(3*p.TTL))
	for _, i := range r.Perm(nodes)[:1+r.IntN(nodes)] { // all attempts fail, or some
		p.Faults = append(p.Faults, simFault{Kind: faultHalf, Node: i, At: time.Duration(at), For: time.Duration(lasts)})
	}
}

// stop breaks off a script that has just done its work; the caller holds mu.
func (n *simNode) stop(p *simProcess, r *protocol.Request, a *simAnswer) {
	if r.Op != protocol.OpAcquireFenced || a.err != nil || a.val == nil {
		return
	}
	if _, half := n.w.faultAt(n.w.t(), -1, n.i, faultHalf); !half {
		return
	}
	n.w.reached("a script stops half way", true)
	*a = simAnswer{err: fakenode.Error("NOPERM this user has no permissions to access one of the keys used as arguments")}
	silenced := slices.ContainsFunc(n.w.plan.Faults, func(f simFault) bool { return f.Kind == faultMute && f.Proc == p.i && f.Node == n.i })
	if h := n.last(r.Key, r.Value); h != nil && len(p.asleep) == 0 && p.killedAt == never && !silenced {
		n.stopped = append(n.stopped, h)
	}
}

// checkStopped: what a script set before it stopped is taken back, and not left to its TTL.
// Nobody may have been held up meanwhile.
func (w *simWorld) checkStopped() {
	p := w.plan
	if !p.Strict || p.Slow+p.Torn+p.Reset > 0 || slices.ContainsFunc(p.Faults, func(f simFault) bool { return f.Kind == faultHang }) {
		return
	}
	for _, n := range w.nodes {
		n.mu.Lock()
		for _, h := range n.stopped {
			if w.byToken[h.value[:tokenLen]] == nil && h.expire > 0 { // nobody removed it
				w.violated("I5: node %d kept %.6s until %.6f ms, of a script that failed", n.i, h.value, ms(h.to))
			}
		}
		n.mu.Unlock()
	}
}

const (
	// A node that fails releases is asked to do them again after pauses that double up to
	// maxBackoff: some at first, and a few per second. All of them may come once more when
	// one was done in between.
	repeatsAtOnce    = 24
	repeatsPerSecond = 5
)

// simRepeats counts releases that are sent again to a node that goes on failing them.
type simRepeats struct {
	since int64
	n     int
}

// examine looks at a batch that is about to leave.
func (s *simWire) examine(batch []*lane.Call) {
	p, w := s.p, s.p.w
	t := w.t()
	again := 0
	for _, c := range batch {
		switch {
		case c.Req.Op == protocol.OpRelease && c.Kind == protocol.Failed:
			again++
			w.reached("a release is sent again", true)
		case c.Req.Op == protocol.OpRepair:
			w.reached("a key is put back", true)
			p.examineRepair(c)
		}
	}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if _, failing := w.faultAt(t, -1, s.n.i, faultErr); !failing {
		s.repeats = simRepeats{}
		return
	}
	r := &s.repeats
	if r.n == 0 {
		r.since = t
	}
	r.n += again
	if most := repeatsAtOnce + repeatsPerSecond*int((t-r.since)/int64(time.Second)+1); r.n > most {
		w.violated("R2: process %d sent node %d %d releases again in %.3f ms, although it fails them", p.i, s.n.i, r.n, ms(t-r.since))
	}
}

// examineRepair: a key is put back only while the lock is held.
func (p *simProcess) examineRepair(c *lane.Call) {
	w := p.w
	w.mu.Lock()
	g := w.byToken[c.Req.Value[:tokenLen]]
	w.mu.Unlock()
	if g == nil {
		return
	}
	g.lock.mu.Lock()
	until, over := g.lock.until, g.lock.over
	g.lock.mu.Unlock()
	if now := p.Now(); over == nil && now.Mono > until.Mono {
		w.violated("E8: a repair of %v begins %.6f ms after Until", g, ms(now.Mono-until.Mono))
	}
}

// I5 at any time: a key whose lock was released, or was never granted, is gone as soon as its
// node can be reached, and not by its TTL.

// simSender is the process that sent the SETs of a value, and when it did so last.
type simSender struct {
	proc *simProcess
	at   int64
}

// simLongPause bounds how long clients do nothing, and how long they hold a lock, where a TTL is
// of minutes.
const simLongPause = 8 * time.Second

// simRetry is the longest pause after which a node that could not be reached is tried again, and
// after which a release is repeated that a node has refused. The library doubles from 5 to 250 ms.
const simRetry = 250 * time.Millisecond

// takesToRelease is how long a release may take to a node that can be reached: what is under way
// to the node and may be silent, the release, the same again after a SET that may land late, and
// the pauses before both.
func (w *simWorld) takesToRelease() int64 {
	p := w.plan
	return int64(4*p.NodeTimeout + 2*simRetry + 8*(p.Delay+p.Jitter) + 100*time.Millisecond)
}

// checkLeftBehind looks at each time in which a node had a value.
func (w *simWorld) checkLeftBehind() {
	p := w.plan
	if !p.Strict || p.Ties > 0 {
		return
	}
	limit := w.takesToRelease()
	for _, n := range w.nodes {
		for _, key := range sortedKeys(n.holds) {
			for _, h := range n.holds[key] {
				since, by := w.goodForNothing(h)
				if since == never || h.to-max(since, h.from) <= limit ||
					w.excused(exForgottenKey, h.forgotten > 0) {
					continue
				}
				since = n.reachable(by, max(since, h.from), limit)
				if h.to-since > limit {
					w.violated("I5: node %d had %.6s of %s until %.6f ms, although it could be reached from %.6f ms on, and %.3f ms is enough",
						n.i, h.value, key, ms(h.to), ms(since), ms(limit))
				}
			}
		}
	}
}

// goodForNothing is from when on nothing wants a value: its lock was released, or its attempt has
// ended without one; and which process is to see that it goes. Never if that process died, or has
// not given the lock up.
func (w *simWorld) goodForNothing(h *simHold) (since int64, by *simProcess) {
	set, sent := w.sentBy[h.value]
	if !sent {
		return never, nil
	}
	g := w.byToken[h.value[:tokenLen]]
	if g != nil && g.heir != nil && h.from <= g.heir.relCalled && g.heir.relCalled != never && g.heir.proc.killedAt == never {
		return g.heir.relCalled, g.heir.proc
	}
	by = set.proc
	if by.killedAt != never {
		return never, by
	}
	if g != nil {
		switch given := g.handedAt != 0; {
		case w.excused(exForTheHeir, given && h.value == g.ticket && g.handErr == nil && h.from <= g.handedAt):
			return never, by // it is there for whoever adopts it
		case given:
			return g.handedAt, by
		case g.leftUntil != 0 || g.abandoned || g.keeps:
			return never, by
		}
		return g.relCalled, by
	}
	if i := slices.IndexFunc(w.parts, func(p *simPart) bool { return p.token == h.value[:tokenLen] }); i >= 0 {
		return w.parts[i].to, by
	}
	return set.at + int64(3*w.plan.NodeTimeout), by
}

// reachable is the first time from t on at which nothing keeps the process and the node apart for
// as long as limit.
func (n *simNode) reachable(p *simProcess, t, limit int64) int64 {
	w := n.w
	if w.plan.Slow+w.plan.Torn+w.plan.Reset+w.plan.Late+w.plan.Lost+w.plan.Twice > 0 {
		w.excused(exAstray, t < int64(w.plan.Until))
		t = max(t, int64(w.plan.Until))
	}
	for again := true; again; {
		again = false
		for _, f := range w.plan.Faults {
			from, to := int64(f.At), int64(f.At+f.For)
			switch f.Kind {
			case faultPause, faultSuspend, faultWall:
				if f.Proc != p.i {
					continue
				}
			case faultCut, faultCutOut, faultCutBack:
				if f.Proc != p.i || f.Node != n.i {
					continue
				}
			case faultMute:
				if f.Proc != p.i || f.Node != n.i {
					continue
				}
				silent := n.silentUntil(p)
				w.excused(exSilent, to < silent && from < t+limit && t < silent)
				to = max(to, silent)
			default:
				if f.Node != n.i {
					continue
				}
			}
			if from < t+limit && t < to {
				t, again = to, true
			}
		}
	}
	return t
}

// Rules about what the library says of its locks: a loss, an end by time and the result of a
// release are compared with what the nodes had, and by whose request they lost it.

// simMoment is by how much the checker may see an event later than the library does: some
// turns of a busy processor, which yields make up to two trips long.
const simMoment = int64(100 * time.Microsecond)

// simReleased is what a release was said to have come to; at is 0 before that.
type simReleased struct {
	at  int64
	err error
}

// checkLoss: a lock that is said to be lost is lost. Either its validity is over by a clock of
// its process, or so many nodes were without its value at some time since it was confirmed last, or
// since the round began that found out, that no majority is left.
func (w *simWorld) checkLoss(g *simGrant, why error) {
	t := w.t()
	if t >= g.proc.killedAt {
		return
	}
	g.mu.Lock()
	last, longer := g.promises[len(g.promises)-1], g.longer
	g.mu.Unlock()
	if w.excused(exHanding, w.handing(g) && !errors.Is(why, ErrNotHeld)) {
		return // no majority confirmed the ticket in time, see tryHandOver
	}
	if errors.Is(why, ErrExpired) {
		if !isOver(last.told, g.proc.Now()) {
			w.violated("loss: %v was said to have expired, but it is valid until %.6f ms", g, ms(last.until))
		}
		if tells := (detail{}); errors.As(why, &tells) && longer {
			w.violated("loss: %v was extended since the failure that is said to have ended it: %v", g, why)
		}
		w.checkRanOut(g, last)
		return
	}
	// An extend that was called before that may have found it lost, and a repair has put it back
	// since: others could have had it in between.
	from := last.at
	if q := (*QuorumError)(nil); errors.As(why, &q) {
		for _, o := range q.Outcomes {
			from = min(from, t-int64(o.Elapsed))
		}
	}
	kept, since := 0, 0
	for _, n := range w.nodes {
		n.mu.Lock()
		if n.keptFrom(g, from, t) {
			kept++
		}
		if n.keptFrom(g, last.at, t) {
			since++
		}
		n.mu.Unlock()
	}
	if quorum := g.proc.rl.quorum; since >= quorum && !w.excused(exFoundBefore, kept < quorum) {
		w.violated("loss: %v was said to be lost (%v), but %d nodes have had it since %.6f ms", g, why, kept, ms(from))
	}
}

// checkRanOut: a lock that is renewed does not run out while a majority of nodes has it and can be
// reached, since it was confirmed last, or for as long as it takes to try again.
func (w *simWorld) checkRanOut(g *simGrant, last simPromise) {
	p, l := g.proc, g.lock
	if !g.renewed || l.terms.maxHold > 0 || p.setsWall() || w.plan.Rate > 0 || p.rl.life.closed() {
		return
	}
	needs := w.takesToRelease() + int64(l.terms.TTL)/4
	// It is renewed when a third of its TTL is over, behind a batch that is out, and again with the
	// script's text.
	enough := needs
	if once := int64(l.terms.TTL)/3 + 8*int64(w.plan.Delay+w.plan.Jitter); w.plan.Slow == 0 {
		enough = min(needs, max(once, int64(l.terms.TTL)/2)) // no message holds its connection for a NodeTimeout
	}
	if last.until-last.at < enough {
		return // it was granted, or told, too late for that
	}
	from := max(last.at, last.until-needs)
	there, silent, elsewhere := 0, 0, 0
	for _, n := range w.nodes {
		n.mu.Lock()
		had := n.keptFrom(g, from, last.until)
		n.mu.Unlock()
		if had && n.reachable(p, from, last.until-from) == from {
			there++
			if p.hasBeenSilenced(n.i, last.until) {
				silent++
			}
			if n.otherNames() || n.otherServers() {
				elsewhere++
			}
		}
	}
	if there >= p.rl.quorum && !w.excused(exOldSilent, there-silent < p.rl.quorum) && !w.excused(exOtherServer, there-elsewhere < p.rl.quorum) {
		w.violated("renewal: %v ran out, although %d nodes had it and could be reached from %.6f ms on", g, there, ms(from))
	}
}

// hasBeenSilenced reports whether a connection of the process to a node had gone silent by then. One of
// those that are used only while a batch is out on another may be found out seconds later, and with a
// long timeout per node there is no time left then to renew a lock again.
func (p *simProcess) hasBeenSilenced(node int, by int64) bool {
	return slices.ContainsFunc(p.w.plan.Faults, func(f simFault) bool {
		return f.Kind == faultMute && f.Node == node && f.Proc == p.i && int64(f.At) < by
	})
}

// keptFrom reports whether the node had a lock's value all the time between two moments. The
// caller holds mu.
func (n *simNode) keptFrom(g *simGrant, from, to int64) bool {
	at := from
	for _, h := range n.holds[g.key] { // in the order in which they began
		end := h.to
		if h.forgotten > 0 {
			end = min(end, h.forgotten)
		}
		if h.value == g.value && h.number == g.number && h.from <= at {
			at = max(at, end)
		}
	}
	return at >= to
}

// checkExtend: where nothing goes wrong, an extend of a lock that is valid succeeds.
func (w *simWorld) checkExtend(g *simGrant, err error) {
	if err != nil && w.plan.Calm && g.lock.Validity() > 0 && !w.excused(exCutOff, w.cutOff(g.proc.i)) {
		w.violated("extend: %v was not extended, although nothing goes wrong: %v", g, err)
	}
}

// checkByWhoseHand: a release is confirmed only if a majority of nodes removed the value because
// of it or never had it, since nothing is sent to a node that surely has nothing to remove. It says
// that the lock was not ours only if no majority removed the value because of it. WithMinHold removes
// nothing.
func (w *simWorld) checkByWhoseHand(g *simGrant) {
	if g.told.at == 0 || g.told.at >= g.proc.killedAt || w.excused(exKeptByHand, g.keeps || g.handedAt != 0) {
		return
	}
	ours, clean := 0, 0
	for _, n := range w.nodes {
		there, removed := false, false
		for _, h := range n.holds[g.key] {
			if h.value == g.value && h.from <= g.told.at {
				there, removed = true, removed || h.released && h.to <= g.told.at
			}
		}
		switch {
		case removed:
			ours++
		case !there:
			clean++
		}
	}
	quorum := g.proc.rl.quorum
	switch {
	case g.told.err == nil && ours < quorum && !w.excused(exNeverHad, ours+clean >= quorum):
		w.violated("I6: the release of %v is confirmed, but only %d nodes removed it because of it, and %d never had it", g, ours, clean)
	case errors.Is(g.told.err, ErrNotHeld) && ours >= quorum:
		w.violated("I6: the release of %v says that it was not held, but %d nodes removed it because of it", g, ours)
	}
}

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
		"plan: no connection ids": p.NoID, "plan: no kills": p.NoKill, "plan: releases one by one": p.NoMGet, "plan: native deletes": p.Native, "plan: mixed TTLs": p.Mixed, "plan: contexts": p.Contexts,
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
	{"a context ends by a loss", 936},
	{"a clock that jumps forward takes a key of a lock", 162},
	{"a context of a set ends by a loss", 33},
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
	{"a lock stands although a clock jumped forward", 126},
	{"a mark is given the present date", 6995},
	{"a part of a set is lost before the set is complete", 4.5},
	{"a permit is held beside another", 581.5},
	{"a reader or permit is told in its turn", 1067},
	{"a release finds no quorum", 3969},
	{"a release finds the lock lost", 1968},
	{"a release is sent again", 1232.5},
	{"a replica is asked", 847},
	{"a process starts while others run", 1600},
	{"a script stops half way", 678},
	{"a server does not know how to release several locks at once", 1560.5},
	{"a server may not release several locks at once", 126.5},
	{"a server answers BUSY", 94},
	{"a server answers MISCONF", 100},
	{"a server answers MOVED", 107},
	{"a server answers NOAUTH", 104},
	{"a server answers NOREPLICAS", 100},
	{"a server answers OOM", 100},
	{"a server that lives forgets its scripts", 715},
	{"a set is granted", 2322.5},
	{"a set is granted while a node is down", 266.5},
	{"a shared grant with a node down", 436},
	{"an acquire finds no quorum", 3487.5},
	{"an extend finds no quorum", 4159},
	{"an extend finds the lock lost", 322},
	{"an extend is confirmed after Until", 1188.5},
	{"an extend is given up", 1416},
	{"an old connection is ended", 6191},
	{"an old connection may not be ended", 373},
	{"of several locks to be released at once some are not", 196},
	{"readers share a lock", 564.5},
	{"several locks are released at once", 717},
	{"nodes: 1", 685.5},
	{"nodes: 2", 700},
	{"nodes: 3", 2891},
	{"nodes: 4", 728.5},
	{"nodes: 5", 3582},
	{"nodes: 6", 683},
	{"nodes: 7", 730},
	{"plan: apart", 161.5},
	{"plan: calm", 1301.5},
	{"plan: contexts", 2374.5},
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
	{"plan: releases one by one", 2053.5},
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
	{"fault: ahead", 438},
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
	{"fault: scripts", 779},
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
	exJump              = "I1, I2, fences: a clock jumped forward on a node without which there is no majority"
	exNoNotices         = "wake-up: PUBLISH is denied"
	exRejoined          = "order: a further attempt, and a clock is set back"
	exDoor              = "I6, held: a door was shut"
	exKeptByHand        = "I6, by whose hand: the lock is kept, or was handed over"
	exNeverHad          = "I6, by whose hand: a node never had the value"
	exSlept             = "I7, time of a call: the process slept"
	exSleeper           = "I7, progress: waits of a process that sleeps at some time"
	exNotQuiet          = "I7, progress: something went wrong less than 8 TTLs + 5 s ago"
	exCutOff            = "I7, progress, and calm plans: the process is cut off"
	exBarred            = "I7, progress: of two nodes one does not vote"
	exLeftOver          = "I7, progress: it was handed over, or kept"
	exStrays            = "I7, progress: messages come late, twice or torn"
	exDisturbed         = "I7, progress: a process of a calm plan died, or was cut off"
	exNames             = "I7, progress: queues on several nodes"
	exHandedBack        = "I7, progress: handed over, and a clock is set back"
	exHandedOver        = "I5, at the end: handed over, and not adopted yet"
	exKept              = "I5, at the end: kept for its time"
	exForgottenKey      = "I5: the node forgot it"
	exForTheHeir        = "I5: it waits for one that adopts it"
	exAstray            = "I5: messages go astray until then"
	exSilent            = "I5: a connection went silent while its node hung"
	exHanding           = "loss: the hand-over of the lock found no majority"
	exFoundBefore       = "loss: it was put back since the round began"
	exOtherServer       = "renewal: two names led to one server"
	exStoppedEntry      = "O8: its holder stopped, and told nobody"
	exOldSilent         = "renewal: a connection to the node had gone silent"
	exLostBefore        = "min hold: it was lost before its release"
	exHandedLate        = "adopt: handed over when it was nearly over"
	exSetMeanwhile      = "extend: the wall clock was set ahead meanwhile"
	exToldBack          = "O3: the node's clock was set back"
	exStruck            = "O3: an extend with another number struck it"
	exOtherName         = "O3: it joined by another node's name"
	exGhost             = "O1: one that had its turn alone is in the way"
	exNewcomer          = "wake-up: a newcomer has the permit"
	exKeptOut           = "wake-up: a newcomer had the lock until shortly before"
)

// simExcuses is all of them, in the order of the table.
var simExcuses = []string{
	exClockThereAndBack, exForgot, exJump, exNoNotices, exRejoined, exDoor,
	exKeptByHand, exNeverHad, exSlept, exSleeper, exNotQuiet, exCutOff, exBarred, exLeftOver,
	exStrays, exDisturbed, exNames, exHandedBack, exHandedOver, exKept, exForgottenKey,
	exForTheHeir, exAstray, exSilent, exHanding, exFoundBefore, exStoppedEntry, exOldSilent, exOtherServer, exLostBefore, exHandedLate, exSetMeanwhile,
	exToldBack, exStruck, exOtherName, exGhost, exNewcomer, exKeptOut,
}

var simWhenever = []string{exKeptByHand, exSleeper, exForTheHeir, exAstray, exHanding, exLostBefore, exStoppedEntry}

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
