package redlock

import (
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/fakenode"
)

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
	restarts := func(f simFault) bool { return f.losesAt() > 0 || f.Kind == faultCrash || f.Kind == faultTwin }
	if slices.Contains(p.Fenced, true) && slices.ContainsFunc(p.Faults, restarts) {
		return
	}
	faults := slices.Clone(p.Faults)
	for _, i := range r.Perm(n)[:1+r.IntN(n-majority(n))] {
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

// cutShort reports whether a value is gone early, since the node's clock jumped after a TTL was set
// that would have lasted longer. That it was struck later, too, changes nothing: only ends before the
// release are looked at.
func (n *simNode) cutShort(h *simHold) bool {
	return slices.ContainsFunc(n.w.plan.Faults, func(f simFault) bool {
		return f.Kind == faultAhead && f.Node == n.i && h.from < int64(f.At) && int64(f.At) <= h.to && h.to < h.whole
	})
}

// brokenBy is when, from the call to a time, a key was gone early on a node without which no majority
// had the lock; never if none was. From then on nothing is promised: a node whose clock jumped counts
// among those that fail.
func (w *simWorld) brokenBy(g *simGrant, before int64) int64 {
	at := never
	for _, n := range w.nodes {
		for _, h := range n.holds[g.key] {
			if h.value != g.value || h.to < g.call || h.to > before {
				continue
			}
			t, left, short := max(h.to, g.ret), 0, 0
			for _, o := range w.nodes {
				switch {
				case o.had(g.key, g.value, g.number, t):
					left++
				case slices.ContainsFunc(o.holds[g.key], func(c *simHold) bool { return c.value == g.value && c.to <= t && o.cutShort(c) }):
					short++
				}
			}
			w.reached("a clock that jumps forward takes a key of a lock", short > 0)
			if left < g.proc.rl.quorum && left+short >= g.proc.rl.quorum {
				at = min(at, t)
			}
			w.reached("a lock stands although a clock jumped forward", short > 0 && left >= g.proc.rl.quorum)
		}
	}
	return at
}

// checkJumps ends claims of locks that a clock took from more than the nodes that they could miss.
func (w *simWorld) checkJumps() {
	if !slices.ContainsFunc(w.plan.Faults, func(f simFault) bool { return f.Kind == faultAhead }) {
		return
	}
	for _, g := range w.grants {
		end := g.end()
		if at := w.brokenBy(g, end-1); at < end {
			w.excused(exJump, true)
			g.brokenAt = max(at, g.ret)
		}
	}
}

// brokenNow is brokenBy while the run goes on.
func (w *simWorld) brokenNow(g *simGrant) bool {
	for _, n := range w.nodes {
		n.mu.Lock()
		defer n.mu.Unlock()
	}
	return w.brokenBy(g, w.t()) < never
}

// Errors of servers that live, with Redis' own texts.

var simSays = []string{
	"BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
	"NOAUTH Authentication required.",
	"MOVED 3999 127.0.0.1:6381",
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
	if r.IntN(10) > 0 {
		return
	}
	for range 1 + r.IntN(3) {
		p.Faults = append(p.Faults, simFault{Kind: faultScripts, Node: r.IntN(len(p.Nodes)), At: time.Duration(r.Int64N(int64(p.Until)))})
	}
}

// says is the error that the server answers to all that it is sent at t, but for what no key is needed
// for where that is another node's; nil: it does not.
func (n *simNode) says(t int64) error {
	for i := range n.w.plan.Faults {
		f := &n.w.plan.Faults[i]
		if f.Kind != faultErr || f.Node != n.i || t < int64(f.At) || t >= int64(f.At+f.For) {
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

func isMoved(err error) bool { return strings.HasPrefix(err.Error(), "MOVED") }

// flushScripts is SCRIPT FLUSH.
func (n *simNode) flushScripts() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.w.reached("a server that lives forgets its scripts", len(n.store.Scripts) > 0)
	clear(n.store.Scripts)
}
