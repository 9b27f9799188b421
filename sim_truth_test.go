package redlock

import (
	"errors"
	"time"
)

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
