package sim_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
	"github.com/quorumlock/redlock/internal/tick"
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
	if !p.Strict {
		return
	}
	limit := w.takesToRelease()
	for _, n := range w.nodes {
		for _, key := range slices.Sorted(maps.Keys(n.holds)) {
			for _, h := range n.holds[key] {
				since, by := w.goodForNothing(h)
				if since == never || h.to-max(since, h.from) <= limit ||
					w.excused(exForgot, h.forgotten > 0) {
					continue
				}
				since = n.leftByClose(by, max(since, h.from), limit)
				if since != never && h.to-since > limit+w.minHoldLeft(h.value) {
					w.violated("I5: node %d had %.6s of %s until %.6f ms, although it could be reached from %.6f ms on, and %.3f ms is enough",
						n.i, h.value, key, ms(h.to), ms(since), ms(limit))
				}
			}
		}
	}
}

// grantOf is the lock whose value that is; nil if it is none that was granted.
func (w *simWorld) grantOf(value string) *simGrant {
	if len(value) < tokenLength {
		return nil
	}
	return w.byToken[value[:tokenLength]]
}

// slept is for how long the process's machine was suspended while the process held the lock: WithMinHold goes
// by its monotonic clock.
func (g *simGrant) slept() (all int64) {
	for _, f := range g.proc.mono.frozen {
		all += max(0, min(int64(f.At+f.For), g.relCalled)-max(int64(f.At), g.ret))
	}
	return all
}

// minHoldLeft is for how long a node that is sent the release of a lock keeps it for WithMinHold.
func (w *simWorld) minHoldLeft(value string) int64 {
	g := w.grantOf(value)
	if g == nil || !g.keeps {
		return 0
	}
	return max(0, g.ret+g.slept()+int64(inside.TermsOf(g.lock).MinHold*102/100+5*time.Millisecond)-g.relCalled)
}

// goodForNothing is from when on nothing wants a value: its lock was released, or its attempt has
// ended without one; and which process is to see that it goes. Never if that process died, or has
// not given the lock up.
func (w *simWorld) goodForNothing(h *simHold) (since int64, by *simProcess) {
	g := w.grantOf(h.value)
	set, sent := w.sentBy[h.value]
	if !sent {
		return never, nil
	}
	if g != nil && g.heir != nil && h.from <= g.heir.relCalled && g.heir.relCalled != never && g.heir.proc.killedAt == never {
		return g.heir.relCalled, g.heir.proc
	}
	by = set.proc
	if by.killedAt != never {
		return never, by
	}
	if g != nil {
		switch {
		case g.keptAt != 0:
			return by.givesUp(g.keptAt), by // what is held at Close stays
		case g.abandoned || g.leftUntil != 0 && !g.keeps:
			return never, by
		}
		return by.givesUp(g.relCalled), by
	}
	return min(set.at+int64(3*w.plan.NodeTimeout), max(set.at, by.closedAt())), by
}

// reachable is the first time from t on at which nothing keeps the process and the node apart for
// as long as limit.
func (n *simNode) reachable(p *simProcess, t, limit int64) int64 {
	return n.reachableBut(p, t, limit, func(simFault) bool { return false })
}

// reachableBut is reachable, but for faults that do not count.
func (n *simNode) reachableBut(p *simProcess, t, limit int64, but func(simFault) bool) int64 {
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
			case faultEvict, faultForeign, faultUnheard: // it keeps nothing apart
				continue
			case faultErr, faultCrash:
				if f.Node != n.i || but(f) {
					continue
				}
			case faultPause, faultSuspend, faultWall:
				if f.Proc != p.i {
					continue
				}
			case faultClose: // see leftByClose
				continue
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

// simLastTry is how the error of a lease that ran out begins to tell why it was not extended.
const simLastTry = "; the last try: "

// checkLoss: a lock that is said to be lost is lost. Either its validity is over by a clock of
// its process, or so many nodes were without its value at some time since it was confirmed last that no
// majority is left.
func (w *simWorld) checkLoss(g *simGrant, why error) {
	t := w.t()
	if t >= g.proc.killedAt {
		return
	}
	g.mu.Lock()
	last, longer := g.promises[len(g.promises)-1], g.longer
	g.mu.Unlock()
	if errors.Is(why, redlock.ErrExpired) {
		if !isOver(last.told, g.proc.Now()) {
			w.violated("loss: %v was said to have expired, but it is valid until %.6f ms", g, ms(last.until))
		}
		if longer && strings.Contains(why.Error(), simLastTry) {
			w.violated("loss: %v was extended since the failure that is said to have ended it: %v", g, why)
		}
		w.checkRanOut(g, last)
		return
	}
	kept := 0
	for _, n := range w.nodes {
		n.mu.Lock()
		kept += int(fakenode.Truth(n.keptFrom(g, last.at, t)))
		n.mu.Unlock()
	}
	if kept >= g.proc.quorum() {
		w.violated("loss: %v was said to be lost (%v), but %d nodes have had it since %.6f ms", g, why, kept, ms(last.at))
	}
}

// checkRanOut: a lock that is renewed does not run out while a majority of nodes has it and can be
// reached, since it was confirmed last, or for as long as it takes to try again. A node on which others
// use the name of the list of holders cannot go on with a lock that is shared now.
func (w *simWorld) checkRanOut(g *simGrant, last simPromise) {
	p, l := g.proc, g.lock
	if !g.renewed || inside.TermsOf(l).MaxHold > 0 || p.setsWall() || p.closedAt() != never {
		return
	}
	needs := w.takesToRelease() + int64(inside.TermsOf(l).TTL)/4
	// It is renewed when a third of its TTL is over, behind a batch that is out, and again with the
	// script's text.
	enough := needs
	if once := int64(inside.TermsOf(l).TTL)/3 + 8*int64(w.plan.Delay+w.plan.Jitter); w.plan.Slow == 0 {
		enough = min(needs, max(once, int64(inside.TermsOf(l).TTL)/2)) // no message holds its connection for a NodeTimeout
	}
	if last.until-last.at < enough {
		return // it was granted, or told, too late for that
	}
	from := max(last.at, last.until-needs)
	// A connection that went silent since is found out in two NodeTimeouts, and with it all those that lay idle.
	heard := from - int64(2*w.plan.NodeTimeout)
	if w.plan.NodeTimeout > inside.TermsOf(l).TTL/2 { // one that lay idle costs the lease, however long it was silent
		heard = 0
	}
	there, silent := 0, 0
	for _, n := range w.nodes {
		n.mu.Lock()
		had := n.keptFrom(g, from, last.until)
		n.mu.Unlock()
		if had && n.reachable(p, from, last.until-from) == from {
			there++
			silent += int(fakenode.Truth(n.silenced(p, heard, last.until)))
		}
	}
	if there >= p.quorum() && !w.excused(exSilent, there-silent < p.quorum()) {
		w.violated("renewal: %v ran out, although %d nodes had it and could be reached from %.6f ms on", g, there, ms(from))
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
	if g.told.at == 0 || g.told.at >= g.proc.killedAt || w.excused(exKeptByHand, g.keeps || g.stopped && (g.detaching || inside.TermsOf(g.lock).MinHold > 0)) {
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
	quorum := g.proc.quorum()
	switch {
	case g.told.err == nil && ours < quorum && !w.excused(exNeverHad, ours+clean >= quorum):
		w.violated("I6: the release of %v is confirmed, but only %d nodes removed it because of it, and %d never had it", g, ours, clean)
	case errors.Is(g.told.err, redlock.ErrNotHeld) && ours >= quorum:
		w.violated("I6: the release of %v says that it was not held, but %d nodes removed it because of it", g, ours)
	}
}

// checkRenewedInTime: a lock that is renewed is extended when a third of its TTL is over, by the clock of
// its process: since it was granted, or since the renewal before has ended; and sooner after one that
// failed. The next one begins, or is not needed any more, at that time; late: it may be under way.
func (w *simWorld) checkRenewedInTime(g *simGrant, at int64, late time.Duration) {
	l, p := g.lock, g.proc
	renews := inside.StateOf(l).Renews
	if !renews || p.closedAt() != never || w.dead(p) {
		return
	}
	if most := inside.TermsOf(l).MaxHold; most > 0 {
		at = min(at, inside.StateOf(l).GrantedAt.Mono+int64(most), p.mono.at(g.mostUntil)) // which is over by the wall clock, too
	}
	since, wait := inside.StateOf(l).GrantedAt.Mono, inside.TermsOf(l).TTL/3
	if before, ok := w.renewals.of(g.value[:tokenLength]); ok {
		if since = before.ended; before.failed {
			wait = inside.TermsOf(l).TTL / 15
		}
	}
	limit := int64((wait+late)*102/100) + simMoment + 8*int64(w.plan.Delay+w.plan.Jitter) // as for any call
	slept, t := int64(0), w.t()
	for _, f := range p.asleep {
		if int64(f.At) <= t && int64(f.At+f.For) >= t-(p.Now().Mono-since)-int64(f.For) {
			slept += int64(f.For) + simMoment
		}
	}
	if took := at - since; took > limit && !w.excused(exSlept, took <= limit+slept) {
		w.violated("renewal: %v was not renewed for %.3f ms, %.3f ms is enough", g, ms(took), ms(limit))
	}
}

// renewed looks at a renewal that has ended; g is nil for a lock whose caller does not have it yet.
func (p *simProcess) renewed(g *simGrant, i redlock.ExtendInfo) {
	now := p.Now().Mono
	if g != nil {
		p.w.checkRenewedInTime(g, now-int64(i.Elapsed), 0)
	}
	p.w.renewals.note(i.Token, simRenewal{now, i.Err != nil})
}

// lastEnd is the end of validity that was promised last.
func (g *simGrant) lastEnd() tick.Instant {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.promises[len(g.promises)-1].told
}

// simRenewal is when the last renewal of a lock ended, by the clock of its process.
type simRenewal struct {
	ended  int64
	failed bool
}

// simRenewals is that of each token.
type simRenewals struct {
	mu   sync.Mutex
	last map[string]simRenewal
}

func (r *simRenewals) of(token string) (simRenewal, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	last, ok := r.last[token]
	return last, ok
}

func (r *simRenewals) note(token string, last simRenewal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.last == nil {
		r.last = make(map[string]simRenewal)
	}
	r.last[token] = last
}

// checkDoTells: Do says that the lock was lost while its function ran, or that its release found it
// lost; and says so of no other lock.
func (w *simWorld) checkDoTells(g *simGrant, err error) {
	if w.dead(g.proc) {
		return
	}
	w.mu.Lock()
	lost, found := g.lostAt, errors.Is(g.told.err, redlock.ErrNotHeld)
	w.mu.Unlock()
	switch says := errors.Is(err, redlock.ErrLost); {
	case !says && (found || lost < g.relCalled):
		w.violated("loss: Do does not say that %v was lost: %v", g, err)
	case says && !found && lost == never:
		w.violated("loss: Do says that %v was lost, and it was not: %v", g, err)
	}
}

// checkValidity: a lock that is over by either clock of its process is not valid, and not held for what is
// called under it.
func (w *simWorld) checkValidity(g *simGrant) {
	now := g.proc.Now()
	until := inside.StateOf(g.lock).Until
	left := g.lock.Validity()
	held := left > 0
	if g.within != nil {
		_, held = redlock.Held(g.within, g.key)
	}
	if !w.dead(g.proc) {
		w.checkValid(g, isOver(until, now), left, held)
	}
}

func (w *simWorld) checkValid(g *simGrant, over bool, left time.Duration, held bool) {
	if over && (left > 0 || held) {
		w.violated("R7: %v is over, and valid for %v, and held: %v", g, left, held)
	}
}

// checkGaveUp: an acquire that waits gives up by itself only if so many nodes say what time does not
// mend that no quorum is left.
func (c *simClient) checkGaveUp(ctx context.Context, m locker, err error) {
	w, p := c.w, c.p
	if err == nil || ctx.Err() != nil || w.dead(p) || p.closedAt() != never || errors.Is(err, redlock.ErrDuplicateNode) {
		return
	}
	lasting := lastingAnswers(err)
	if need := len(w.nodes) - p.quorum() + 1; lasting < need || !errors.Is(err, redlock.ErrNoQuorum) && !errors.Is(err, redlock.ErrHeld) {
		w.violated("I6: client %d.%d gave up, although only %d nodes said what time does not mend: %v", p.i, c.i, lasting, err)
	}
}

// lastingAnswers counts the nodes that say what time does not mend.
func lastingAnswers(err error) (n int) {
	if q := (*redlock.QuorumError)(nil); errors.As(err, &q) {
		for _, o := range q.Outcomes {
			if o.Err != nil && slices.ContainsFunc(simLasting, func(s string) bool { return strings.Contains(o.Err.Error(), s) }) {
				n++
			}
		}
	}
	return n
}

// simLasting is what answers say that time does not mend: no or wrong credentials, missing rights, a
// key that holds something else, and a node of a cluster.
var simLasting = []string{"NOAUTH", "WRONGPASS", "NOPERM", "WRONGTYPE", "BADFENCE", "MOVED", "CROSSSLOT", "CLUSTERDOWN", "which is no lock"}

// checkFenceOfTime: a fencing token is about the time of the grant, by the servers' clocks, of which
// some may have been ahead before; whatever the clock of the client says.
func (w *simWorld) checkFenceOfTime(g *simGrant) {
	const second = int64(time.Second / time.Microsecond)
	least, most := int64(math.MaxInt64), int64(0)
	for _, n := range w.nodes {
		for _, t := range []int64{g.call, g.ret} {
			shows := n.hand.at(t) / int64(time.Microsecond)
			least, most = min(least, shows), max(most, shows)
		}
		for _, s := range n.hand.steps { // a counter never goes back
			most = max(most, n.hand.at(min(g.ret, max(s.at-1, 0)))/int64(time.Microsecond))
			if g.call <= s.at && s.at <= g.ret { // and a clock that is set back shows least just then
				least = min(least, n.hand.at(s.at)/int64(time.Microsecond))
			}
		}
	}
	if f := int64(g.fence); f < least-second || f > most+second+5000 {
		w.violated("fence: %v has token %d, and the clocks of the nodes show %d to %d", g, f, least, most)
	}
}

// checkDoor: a newcomer is not kept out by a waiter that has gone, and does not pass one that is first in
// the queue and has shut the door. The caller holds mu.
func (n *simNode) checkDoor(r *protocol.Request, before, after simLine) {
	w := n.w
	if r.Op != protocol.OpAcquireShared || r.Queue != nil {
		return
	}
	door, shut := n.doors[r.Key]
	_, had := before.holders[r.Value]
	_, has := after.holders[r.Value]
	switch {
	case !shut || had:
	case before.door && !has:
		if p := w.plan; p.Slow+p.Torn+p.Reset+p.Late+p.Lost+p.Twice > 0 {
			return // it is opened once, and else opens by itself
		}
		by, since := w.doorman(r.Key, door)
		if by == nil || since == never || n.silenced(by, 0, since) {
			return
		}
		limit := int64(w.plan.NodeTimeout+100*time.Millisecond) + 8*int64(w.plan.Delay+w.plan.Jitter)
		well := max(0, since-limit-int64(2*w.plan.TTL)) // what shuts it may wait in a node that hangs
		if now := w.t(); now-since > limit && n.reachable(by, since, now-since) == since && n.reachable(by, well, since-well) == well {
			w.violated("O9: %.6s finds the door of %s on node %d shut by %.6s, which has gone at %.6f ms", r.Value, r.Key, n.i, door, ms(since))
		}
	case !before.door && has && w.plan.Calm && !w.disturbed():
		if len(before.entries) > 0 && before.entries[0].value == door {
			w.violated("O9: %.6s passed %.6s, which is the first that waits for %s on node %d, and had shut the door", r.Value, door, r.Key, n.i)
		}
	}
}

// silenced reports whether a connection of a process to the node went silent between two times. One of those that
// are used only while a batch is out on another may be found out seconds later.
func (n *simNode) silenced(p *simProcess, from, to int64) bool {
	return slices.ContainsFunc(n.w.plan.Faults, func(f simFault) bool {
		return f.Kind == faultMute && f.Node == n.i && f.Proc == p.i && int64(f.At) >= from && int64(f.At) < to
	})
}

// doorman is the process of a waiter that shut a door, and since when none of its clients wants the
// lock alone; never if one does, or it died.
func (w *simWorld) doorman(key, value string) (by *simProcess, since int64) {
	_, owner, _ := strings.Cut(value, "@process-")
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.procs, func(p *simProcess) bool { return fmt.Sprint(p.i) == owner })
	if i < 0 || w.procs[i].killedAt != never {
		return nil, never
	}
	for _, want := range w.wants[key] {
		if want.proc == i && want.mode < 0 {
			since = max(since, want.to)
		}
	}
	return w.procs[i], since
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
		_, gone := w.faultAt(t, -1, i, faultHang, faultCrash, faultStale, faultForget, faultSwap, faultPromote, faultErr, faultResync)
		_, cut := w.faultAt(t, p.i, i, faultCut, faultCutOut, faultCutBack)
		n += int(fakenode.Truth(gone || cut))
	}
	return n
}

// grantedIn counts the states in which a lock is granted; the caller holds mu.
func (w *simWorld) grantedIn(g *simGrant) {
	p, t := g.proc, w.t()
	spare := len(w.nodes) - p.quorum()
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
		if guard := p.parts.Guard; guard != nil {
			left := guard.Judge(i, guard.Period(inside.TermsOf(g.lock).TTL, inside.TermsOf(g.lock).Fencing), p.mono.at(t))
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
	w.reached("plan: "+p.Regime, p.Regime != "")
	for name, here := range p.fields() {
		w.reached("plan has "+name, here)
	}
	for _, f := range p.Faults {
		w.reached("fault: "+f.Kind, true)
	}
}

// fields tells of each of the plan's whether it is set, but for Why, which only kept plans have.
func (p *simPlan) fields() map[string]bool {
	set, v := make(map[string]bool), reflect.ValueOf(*p)
	for i := range v.NumField() {
		set[v.Type().Field(i).Name] = !v.Field(i).IsZero()
	}
	delete(set, "Why")
	return set
}

// simNames is where the source names what is counted, and what is put before it then.
var simNames = map[string][]string{
	`reached\("([^"]+)",`:                             {""},
	`\bfault[A-Z]\w+ += "(\w+)"`:                      {"fault: "},
	`\bsim[A-Z]\w+ += "(\w+)"`:                        {"plan: "},
	`\bof[A-Z]\w+ += "(\w+)"`:                         {"a server evicts a key: ", "others use a name: "},
	`(?:cameToAnEnd|endedByClose)\([\w.]+, "([^"]+)"`: {"a Redlock is closed during "},
	`(?m)^\t"([A-Z]+) .*",$`:                          {"a server answers "},
}

// simStates is all states that are counted.
func simStates(t *testing.T) (states []string) {
	for name := range new(simPlan).fields() {
		states = append(states, "plan has "+name)
	}
	for pattern, kinds := range simNames {
		names := named(t, pattern)
		require.NotEmpty(t, names, pattern)
		for _, name := range names {
			for _, kind := range kinds {
				states = append(states, kind+name)
			}
		}
	}
	slices.Sort(states)
	return slices.Compact(states)
}

// named is what a pattern finds in the source.
func named(t *testing.T, pattern string) (names []string) {
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, found := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			names = append(names, string(found[1]))
		}
	}
	return names
}

// simRare is how often, in 10,000 seeds, each state must be come to.
const simRare = 50

// tooRare lists the states that so many seeds came to less often than that, where there are enough of them to say.
func tooRare(states []string, uses map[string]int, seeds int) (rare []string) {
	for _, s := range states {
		if n := float64(uses[s]) * 1e4 / float64(seeds); seeds >= 10_000 && n < simRare {
			rare = append(rare, fmt.Sprintf("%s: %.1f times in 10,000 seeds", s, n))
		}
	}
	return rare
}

func TestSimStateThatIsRareIsNoticed(t *testing.T) {
	require.Empty(t, tooRare([]string{"rare"}, nil, 9_999), "too few seeds to say anything")
	require.Empty(t, tooRare([]string{"rare"}, map[string]int{"rare": 100}, 20_000))
	require.Len(t, tooRare([]string{"rare"}, map[string]int{"rare": 99}, 20_000), 1)
}

// Where a rule excuses something, the excuse has a name, and its uses are counted: those without which
// the rule would have failed. Where two excuse the same, neither is counted. Of the few in
// simWhenever the checker cannot tell, and counts all uses, which their names say in the table.

const (
	exClockThereAndBack = "R7: a wall clock was past the end, and is set back"
	exForgot            = "I2, I5: nodes have forgotten the lock"
	exBroken            = "I1, I2, fences, min hold: nodes broke what a lock assumes of a majority"
	exCounter           = "fences: a counter was evicted on a node without which there is no majority"
	exNoNotices         = "wake-up: PUBLISH is denied"
	exDoor              = "I6, held: a door was shut"
	exKeptByHand        = "I6, by whose hand: the lock is kept, or was detached"
	exNeverHad          = "I6, by whose hand: a node never had the value"
	exSlept             = "I7, renewal: the process slept"
	exNotQuiet          = "I7, progress: something went wrong less than 8 TTLs + 5 s ago"
	exCutOff            = "I7, progress, and calm plans: a process died, or is cut off"
	exBarred            = "I7, progress: so many nodes do not vote yet"
	exLeftOver          = "I5, I7: it was detached, or is kept for its time"
	exStrays            = "I7, progress: messages come late, twice or torn"
	exNames             = "I7, progress: queues on several nodes"
	exAstray            = "I5: messages go astray until then"
	exSilent            = "I5, renewal: a connection went silent"
	exStoppedEntry      = "O8: its holder stopped before it could leave"
	exLostBefore        = "min hold: it was lost before its release"
	exSetMeanwhile      = "extend: the wall clock was set ahead meanwhile"
	exToldBack          = "O1, O3: the node's clock was set back"
	exStruck            = "O1, O3, O11: an extend with another number, an eviction or force struck one from the list"
	exOtherName         = "O3: it joined by another node's name"
	exForeign           = "I5, O1, O8: others use a name of the lock"
	exOlderFirst        = "O10: an older waiter of its process has come since"
	exFirstUse          = "I7, time of a call: a fleet's first use"
)

// anExcuse is where the source names one.
const anExcuse = `(?m)^\tex[A-Z]\w+ += "([^"]+)"`

var simWhenever = []string{exKeptByHand, exAstray, exLostBefore, exStoppedEntry}

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
