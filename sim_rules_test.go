package redlock

import (
	"errors"
	"math/rand/v2"
	"slices"
	"time"

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
					w.excused(exForgottenKey, h.forgotten > 0) || w.excused(exTurn, h.turn && h.extended == 0) {
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
		case w.excused(exForTheHeir, given && h.value == g.ticket && g.handErr == nil && h.from <= g.handedAt), w.excused(exForTheTime, h.value == g.kept):
			return never, by // it is there for whoever adopts it, or for as long as others are kept out
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
	last := g.promises[len(g.promises)-1]
	g.mu.Unlock()
	if w.excused(exHanding, w.handing(g) && !errors.Is(why, ErrNotHeld)) {
		return // no majority confirmed the ticket in time, see tryHandOver
	}
	if errors.Is(why, ErrExpired) {
		if !isOver(last.told, g.proc.Now()) {
			w.violated("loss: %v was said to have expired, but it is valid until %.6f ms", g, ms(last.until))
		}
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
	ours, clean, again := 0, 0, 0
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
		case n.refusedFirst(g.key, g.value):
			again++
		}
	}
	quorum := g.proc.rl.quorum
	switch {
	case g.told.err == nil && ours < quorum && !w.excused(exNeverHad, ours+clean >= quorum) && !w.excused(exRefusedFirst, ours+clean+again >= quorum):
		w.violated("I6: the release of %v is confirmed, but only %d nodes removed it because of it, and %d never had it", g, ours, clean)
	case errors.Is(g.told.err, ErrNotHeld) && ours >= quorum:
		w.violated("I6: the release of %v says that it was not held, but %d nodes removed it because of it", g, ours)
	}
}
