package redlock

import (
	"slices"
	"time"
)

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
