package sim_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
)

// Calls that only some programs make: Close in the middle, and ForceRelease.

// faultClose: Proc's Redlock is closed; during the next call that Says names, if it names one.
const faultClose = "close"

// drawCalls has some plans end locks by force, and close a process's Redlock in the middle. It has randomness of
// its own, so that the other plans are what they were. Of what is kept, or handed over, force would have to be followed, too.
func (p *simPlan) drawCalls() {
	r := rand.New(rand.NewPCG(p.Seed, 0xca11))
	p.Force = r.IntN(4) == 0 && !p.Calm && p.MinHold == 0 && !p.HandOvers
	var during []string // calls that are not in all plans
	if p.HandOvers {
		during = append(during, "an Adopt")
	}
	if p.Force {
		during = append(during, "ForceRelease", "ForceRelease")
	}
	if p.Calm || r.IntN(6) > min(len(during), 2) {
		return
	}
	for range 1 + r.IntN(2) {
		f := simFault{Kind: faultClose, Proc: r.IntN(len(p.Processes)), At: time.Duration(r.Int64N(int64(p.Until)))}
		for i, next := range p.Processes {
			if next.Start > 0 && i != f.Proc && r.IntN(2) == 0 {
				f.At = next.Start // which takes its place
			}
		}
		if r.IntN(4) > 0 {
			f.Says = []string{"a release", "a release", "an extend"}[r.IntN(3)]
			if len(during) > 0 && r.IntN(4) > 0 {
				f.At /= 4 // so that there is one
				f.Says = during[r.IntN(len(during))]
			}
		}
		if p.Processes[f.Proc].Start < f.At && !slices.ContainsFunc(p.Faults, func(g simFault) bool { return g.Kind == faultClose && g.Proc == f.Proc }) {
			p.Faults = append(p.Faults, f)
		}
	}
}

// lockOptions are those of a use, without what it must not have.
func (c *simClient) lockOptions() (opts []redlock.LockOption) {
	if c.w.plan.Fenced[c.plan.Key] {
		opts = append(opts, redlock.WithFencing())
	}
	return opts
}

func (c *simClient) key() string { return fmt.Sprint("k", c.plan.Key) }

// slack is by how much a call that is ended from outside may return later: some turns of a busy
// processor.
func (w *simWorld) slack() int64 {
	return int64(100*time.Microsecond) + 8*int64(w.plan.Delay+w.plan.Jitter)
}

// Close in the middle.

// simClosing is when a process's Redlock was closed; 0: it was not.
type simClosing struct {
	called, returned atomic.Int64
	aimed            atomic.Bool
}

// begins closes the process's Redlock if that is to happen during such a call.
func (c *simClient) begins(what string) { c.p.begins(what, uint64(c.i)) }

func (p *simProcess) begins(what string, client uint64) {
	w := p.w
	aimed := func(f simFault) bool {
		return f.Kind == faultClose && f.Proc == p.i && f.Says == what && int64(f.At) <= w.t()
	}
	if slices.ContainsFunc(w.plan.Faults, aimed) && p.closing.aimed.CompareAndSwap(false, true) {
		w.after(int64(w.mix('C', uint64(p.i), client, uint64(w.t()))%uint64(w.plan.Delay+w.plan.Jitter+1)), uint64(p.i), p.close)
	}
}

// closesDuring reports whether the process's Redlock is closed before the end, and only during such a call.
func (p *simProcess) closesDuring(what string) bool {
	return !slices.ContainsFunc(p.w.plan.Faults, func(f simFault) bool { return f.Kind == faultClose && f.Proc == p.i && f.Says != what })
}

// closedAt is never for a Redlock that is not closed yet.
func (p *simProcess) closedAt() int64 {
	if at := p.closing.called.Load(); at > 0 {
		return at
	}
	return never
}

// closes reports whether a Redlock is closed before the end.
func (p *simProcess) closes() bool {
	return slices.ContainsFunc(p.w.plan.Faults, func(f simFault) bool { return f.Kind == faultClose && f.Proc == p.i })
}

// close closes the process's Redlock. Its clients are done when they find out.
func (p *simProcess) close() {
	p.gate()
	w := p.w
	call := w.t()
	w.mu.Lock()
	if w.ended || call >= p.killedAt {
		w.mu.Unlock()
		return
	}
	p.closing.called.Store(call)
	w.reached("a Redlock is closed", true)
	w.reached("a Redlock is closed while a lock is held", slices.ContainsFunc(w.grants, func(g *simGrant) bool {
		return g.proc == p && g.relCalled == never && g.lostAt == never
	}))
	w.mu.Unlock()
	w.happened(func() string { return fmt.Sprintf("process %d closes its Redlock", p.i) }, 9, uint64(p.i))
	err := p.rl.Close()
	if w.dead(p) {
		return
	}
	w.took(p, "Close", call, w.plan.NodeTimeout)
	w.checkClosed(p, err, p.rl.Close())
	p.closing.returned.Store(w.t())
}

func (w *simWorld) checkClosed(p *simProcess, err, again error) {
	if err != nil || again != nil {
		w.violated("close: process %d: %v, and then %v", p.i, err, again)
	}
}

// cameToAnEnd: a call ends with ErrClosed only after Close, and with no other error when it began after
// that. What was under way ends at once, with that error, and not with success.
func (w *simWorld) cameToAnEnd(p *simProcess, what string, call int64, err error) {
	t, closed := w.t(), p.closedAt()
	if t >= p.killedAt {
		return
	}
	returned := p.closing.returned.Load()
	switch {
	case errors.Is(err, redlock.ErrClosed) && closed == never:
		w.violated("close: %s of process %d ended with ErrClosed, and nobody closed the Redlock: %v", what, p.i, err)
	case !errors.Is(err, redlock.ErrClosed) && returned > 0 && call >= returned:
		w.violated("close: %s of process %d after Close: %v", what, p.i, err)
	}
	w.reached("a Redlock is closed during "+what, call < closed && closed <= t)
}

// endedByClose: an acquire that was under way ends at once.
func (w *simWorld) endedByClose(p *simProcess, what string, call int64, err error) {
	w.cameToAnEnd(p, what, call, err)
	if closed := p.closedAt(); closed < w.t() {
		w.took(p, what+" whose Redlock was closed", max(call, closed), 0)
	}
}

// afterClose makes each call once more. Whatever would ask nodes fails, and asks none.
func (c *simClient) afterClose(ctx context.Context) {
	w, p := c.w, c.p
	for p.closing.returned.Load() == 0 {
		if ctx.Err() != nil || w.dead(p) {
			return
		}
		c.pause(w.plan.NodeTimeout/4 + 1)
	}
	m := p.rl.Mutex(c.key(), c.lockOptions()...)
	inside.Allow(m)
	never := func(context.Context, *redlock.Lock) error { return errors.New("it has the lock") }
	_, tries := m.TryAcquire(ctx)
	_, acquires := m.Acquire(ctx)
	_, adopts := adoptAnyway(ctx, m, strings.Repeat("a", tokenLength))
	call, asked := w.t(), p.requests()
	for what, err := range map[string]error{
		"TryAcquire": tries, "Acquire": acquires, "Adopt": adopts,
		"Do": m.Do(ctx, never), "Lead": m.Lead(ctx, never),
	} {
		w.cameToAnEnd(p, what, call, err)
	}
	w.checkSilent(p, p.requests()-asked, w.t()-call)
}

// checkSilent: calls after Close ask no node.
func (w *simWorld) checkSilent(p *simProcess, asked int, took int64) {
	if asked != 0 || took > w.slack() {
		w.violated("close: calls of process %d after Close took %.6f ms, and sent %d requests", p.i, ms(took), asked)
	}
}

// examineClosed: nothing leaves after Close has returned.
func (p *simProcess) examineClosed(node int, batch []*lane.Call) {
	if at := p.closing.returned.Load(); at > 0 && p.w.t() > at+p.w.slack() {
		p.w.violated("close: process %d sends node %d %v, and Close has returned at %.6f ms", p.i, node, batch[0].Req.Op, ms(at))
	}
}

// checkClosedRenewal: no renewal begins after Close.
func (w *simWorld) checkClosedRenewal(g *simGrant, i redlock.ExtendInfo) {
	closed := g.proc.closedAt()
	if !i.Renewal || closed == never || len(g.proc.asleep) > 0 {
		return
	}
	if began := g.proc.Now().Mono - int64(i.Elapsed); began > g.proc.mono.at(closed)+simMoment+2*int64(w.plan.Delay+w.plan.Jitter) {
		w.violated("close: %v is renewed %.3f ms after Close", g, ms(began-g.proc.mono.at(closed)))
	}
}

// givesUp is when a process gives up a lock: never after Close.
func (p *simProcess) givesUp(released int64) int64 {
	if released > p.closedAt() {
		return never
	}
	return released
}

// leftByClose is since when a process could have taken something back from a node that nothing has wanted
// since a time; never if it could not, because it was closed. Close sends once more what a node has failed,
// or was not there to be sent, and gives it no longer than a NodeTimeout for that. So such a node must be
// back by then, and all else must have been well before.
func (n *simNode) leftByClose(p *simProcess, since, limit int64) int64 {
	closed, slack := p.closedAt(), n.w.slack()
	back := n.reachable(p, since, limit)
	if closed == never || back+limit <= closed {
		return back
	}
	from := max(closed-limit, 0)
	isBack := func(f simFault) bool { return int64(f.At+f.For)+slack < closed }
	if since > closed+slack || n.reachableBut(p, from, 2*limit, isBack) > from {
		return never
	}
	return max(since, closed)
}

// ForceRelease.

// simForce is a call of ForceRelease.
type simForce struct {
	key, token string
	from, to   int64
}

// force ends a lock that somebody has, or had, or all that there is.
func (c *simClient) force(ctx context.Context, op int) {
	w, p := c.w, c.p
	f := &simForce{key: c.key()}
	w.mu.Lock()
	var held []string
	for _, g := range w.grants {
		if g.key == f.key && g.relCalled > w.t()-int64(w.plan.TTL) {
			held = append(held, g.value[:tokenLength])
		}
	}
	if n := len(held); n > 0 && c.roll(op, 301)%3 > 0 {
		f.token = held[n-1-int(c.roll(op, 302)%uint64(min(n, 2)))]
	}
	f.from, f.to = w.t(), never
	w.forces = append(w.forces, f)
	w.mu.Unlock()
	dying, stop := ctx, func() {}
	if c.roll(op, 303)%8 == 0 {
		dying, stop, _ = c.dies(ctx, c.within(op, 304, w.plan.NodeTimeout))
	}
	m := p.rl.Mutex(f.key)
	inside.Allow(m)
	c.begins("ForceRelease")
	err := p.force(dying, m, f.token)
	stop()
	w.mu.Lock()
	f.to = w.t()
	w.mu.Unlock()
	w.took(p, "ForceRelease", f.from, w.plan.NodeTimeout)
	w.cameToAnEnd(p, "ForceRelease", f.from, err)
	w.happened(func() string {
		return fmt.Sprintf("client %d.%d ends %s of %.6s by force: %v", p.i, c.i, f.key, f.token, err)
	},
		10, uint64(p.i), uint64(c.i), uint64(fakenode.Truth(err == nil)))
	if !w.dead(p) {
		w.checkForced(p, f, err)
	}
}

// force is ForceRelease of package admin, by the process's own lanes.
func (p *simProcess) force(ctx context.Context, m *redlock.Mutex, token string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	names, holders := protocol.NamingOf(m.Key()), ""
	if names != protocol.UsualNames {
		holders = names.HoldersKey(m.Key())
	}
	t := inside.TermsOf(m)
	answers, err := p.parts.Ask(ctx, protocol.ForceRequest(&protocol.Terms{TTL: t.TTL, NodeTimeout: t.NodeTimeout}, m.Key(), token, names.QueueKey(m.Key()), holders))
	if err != nil {
		return err
	}
	var counts protocol.Forced
	for _, a := range answers {
		counts.Add(a)
	}
	return counts.Failed(len(answers), nil)
}

// names reports whether the call is about a value.
func (f *simForce) names(value string) bool { return strings.HasPrefix(value, f.token) }

// checkForced compares what ForceRelease says with what became of the key meanwhile.
func (w *simWorld) checkForced(p *simProcess, f *simForce, err error) {
	deleted, gone, kept := 0, 0, 0
	for _, n := range w.nodes {
		n.mu.Lock()
		removed, stays := false, false
		for _, h := range n.holds[f.key] {
			removed = removed || h.forced && f.names(h.value) && h.to >= f.from
			stays = stays || f.names(h.value) && h.value != fakenode.Marker && h.forgotten == 0 && h.from <= f.from && h.to > f.to
		}
		deleted += int(fakenode.Truth(removed))
		gone += int(fakenode.Truth(removed || n.freeWithin(f.key, f.from, f.to)))
		kept += int(fakenode.Truth(stays))
		n.mu.Unlock()
	}
	strays := int64(8 * w.plan.TTL) // what was sent by an earlier call may land as late
	w.mu.Lock()
	alone := !slices.ContainsFunc(w.forces, func(o *simForce) bool { return o != f && o.key == f.key && o.to >= f.from-strays })
	w.mu.Unlock()
	switch quorum := p.quorum(); {
	case err == nil && (deleted == 0 || gone < quorum):
		w.violated("force: %s was released, but of %d nodes without it %d deleted it", f.key, gone, deleted)
	case errors.Is(err, redlock.ErrNotHeld) && (kept >= quorum || deleted >= quorum && alone):
		w.violated("force: %s was not held, but %d nodes deleted it, and %d have it still", f.key, deleted, kept)
	case err != nil && !errors.Is(err, redlock.ErrNotHeld) && !errors.Is(err, redlock.ErrNoQuorum) && !errors.Is(err, redlock.ErrClosed) && !errors.Is(err, context.Canceled):
		w.violated("force: ForceRelease failed with an error that is none of its own: %v", err)
	}
	w.reached("a lock is released by force", err == nil)
}

// freeWithin reports whether a key was free at some time between two others, if only between two requests of
// a batch, which have one time; the caller holds mu. So it is where only the marker of a shared lock is left,
// whose list was evicted.
func (n *simNode) freeWithin(key string, from, to int64) bool {
	free := func(t int64) bool {
		return !slices.ContainsFunc(n.holds[key], func(h *simHold) bool {
			return h.value != fakenode.Marker && h.from < t && t < h.to && (h.forgotten == 0 || t < h.forgotten)
		})
	}
	for _, h := range n.holds[key] {
		for _, t := range []int64{h.to, h.forgotten} {
			if t >= from && t <= to && free(t) {
				return true
			}
		}
	}
	return free(from)
}

// forced notes that holds were ended by ForceRelease. Without a token it takes the marker of a shared lock,
// and the list with it.
func (n *simNode) forced(key, value string, op *fakenode.Op) {
	if op.Req == nil || op.Req.Script != protocol.ForceScript {
		return
	}
	if others := n.others(); slices.ContainsFunc(others, func(f *simForeign) bool { return f.name == key }) {
		what := others[slices.IndexFunc(others, func(f *simForeign) bool { return f.name == key })]
		if what.hold != nil {
			what.hold.forced = true
		}
		n.lost(what) // without a token it deletes whatever is there
		return
	}
	t := n.w.t()
	whole := value == fakenode.Marker && op.Ended == "" && n.forceOp != op // and not what is let in then
	n.forceOp = op
	if value == fakenode.Marker { // which lasts for up to a millisecond longer than those that are listed
		n.holds[key] = append(n.holds[key], &simHold{value: value, from: t, to: t, forced: true})
	}
	for _, h := range n.holds[key] {
		if h.to > t && (h.value == value || whole && h.shared) {
			h.to, h.expire, h.forced = t, 0, true
		}
	}
}

// checkConfirmed: an extend is confirmed by a majority of nodes that had the value meanwhile. So a holder
// whose lock is gone, for whatever reason, learns of it by the next one.
func (w *simWorld) checkConfirmed(g *simGrant, i redlock.ExtendInfo) {
	t := w.t()
	if i.Err != nil || len(g.proc.asleep) > 0 || t >= g.proc.killedAt {
		return
	}
	from, had := t-int64(i.Elapsed)*102/100-simMoment, 0
	for _, n := range w.nodes {
		n.mu.Lock()
		had += int(fakenode.Truth(slices.ContainsFunc(n.holds[g.key], func(h *simHold) bool { return h.value == g.value && h.from <= t && h.to >= from })))
		n.mu.Unlock()
	}
	if had < g.proc.quorum() {
		w.violated("extend: %v was confirmed, but only %d nodes have had it since the call", g, had)
	}
}
