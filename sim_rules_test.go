package redlock

import (
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
