package sim_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/history"
	"github.com/quorumlock/redlock/internal/tick"
)

// Locks that several hold, in the simulation: keys that are shared and semaphores.

// manyShare is the kind of a key that is held alone and shared.
const manyShare = -1

// drawKinds makes some keys shared or semaphores, in plans in which no client holds two keys, which draw theirs
// in drawPairs, and no lock is handed over. It draws from a source of its own.
func (p *simPlan) drawKinds() {
	r := rand.New(rand.NewPCG(p.Seed, 0x54a3))
	if r.IntN(3) > 0 || p.Pairs || p.HandOvers {
		return
	}
	p.drawKindsFrom(r)
	// More clients, or hardly any two would share.
	for i := range p.Processes {
		proc := &p.Processes[i]
		for range r.IntN(3) {
			proc.Clients = append(proc.Clients, simClientPlan{Key: r.IntN(len(p.Fenced)), Ops: 1 + r.IntN(4)})
		}
	}
}

func (p *simPlan) drawKindsFrom(r *rand.Rand) {
	for _, fenced := range p.Fenced {
		kind := []int{0, manyShare, manyShare, 1, 2, 2, 3, 4}[r.IntN(8)]
		if fenced && kind > 0 {
			kind = manyShare
		}
		p.Kinds = append(p.Kinds, kind)
	}
}

// kind is that of a key.
func (p *simPlan) kind(key string) int {
	i, err := strconv.Atoi(strings.TrimPrefix(key, "k"))
	if err != nil || i >= len(p.Kinds) {
		return 0
	}
	return p.Kinds[i]
}

// mutex is what a client asks for: of a shared key one time in five alone, and of a
// semaphore's now and then alone or with a permit less.
func (c *simClient) mutex(op int, opts []redlock.LockOption) locker {
	return c.mutexOf(c.plan.Key, c.roll(op, 50), opts)
}

func (c *simClient) mutexOf(i int, roll uint64, opts []redlock.LockOption) locker {
	key := fmt.Sprint("k", i)
	switch kind := c.w.plan.kind(key); {
	case kind == manyShare && roll%5 > 0:
		// The methods refuse a fence that nobody has.
		m := c.p.rl.Mutex(key, opts...).Shared()
		inside.Allow(m)
		return m
	case kind > 0 && roll%12 > 0:
		permits := kind
		if roll>>8%8 == 0 {
			permits = max(1, kind-1)
		}
		return c.p.rl.Semaphore(key, permits, opts...)
	default:
		return c.p.rl.Mutex(key, opts...)
	}
}

// mode is how it was acquired, for a checker of histories.
func (g *simGrant) mode() string {
	switch {
	case g.permits > 0:
		return history.Permit
	case g.shared:
		return history.Shared
	default:
		return history.Alone
	}
}

// checkSharing is I1 for locks that several may hold: nobody beside one who holds it alone, no
// number twice, and no more than there are permits.
func (w *simWorld) checkSharing(grants []*simGrant) {
	type claim struct {
		*simGrant
		from, to int64
		alone    bool
	}
	var claims []claim
	for _, g := range grants {
		end := g.end()
		c := claim{g, g.ret, end, !g.shared}
		if c.to > c.from {
			claims = append(claims, c)
		}
	}
	slices.SortStableFunc(claims, func(a, b claim) int { return int(a.from - b.from) })
	var held []claim
	for _, c := range claims {
		held = slices.DeleteFunc(held, func(h claim) bool { return h.to <= c.from })
		most, permits := c.permits, int64(0)
		for _, h := range append(held, c) {
			if h.number > 0 {
				most, permits = max(most, h.permits), permits+1
			}
		}
		for _, h := range held {
			switch {
			case h.alone || c.alone:
				w.violated("I1: two holders of %s, of whom one has it alone: %v, while %v held until %.6f ms", c.key, c.simGrant, h.simGrant, ms(h.to))
			case c.number > 0 && h.number == c.number:
				w.violated("I1: permit %d of %s twice: %v, while %v held until %.6f ms", c.number, c.key, c.simGrant, h.simGrant, ms(h.to))
			}
		}
		if permits > most {
			w.violated("I1: %d permits of %s are held with %v, and there are %d", permits, c.key, c.simGrant, most)
		}
		if held = append(held, c); len(held) > 1 {
			w.reached("a permit is held beside another", c.permits > 0)
			w.reached("readers share a lock", c.permits == 0)
		}
	}
}

// inTheWay is until when, before the end of a wait, the way in which it wants the lock was not to be
// had: others held as much as there is, or one that is served before it waited for more than that.
func (w *simWorld) inTheWay(wait simWait, key string, grants []*simGrant) (until int64) {
	type change struct {
		at int64
		by int64
	}
	var changes []change
	for _, g := range grants {
		if g.ret >= wait.to {
			continue
		}
		end := min(max(g.end(), g.relRet), wait.to)
		from := g.ret
		if g.mode() == history.Alone {
			from = end
			until = max(until, from)
		}
		if from < end {
			changes = append(changes, change{from, 1}, change{end, -1})
		}
	}
	slices.SortFunc(changes, func(a, b change) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.by, b.by)) })
	held := int64(0)
	for i, c := range changes {
		held += c.by
		if wait.mode > 0 && held >= wait.mode && i+1 < len(changes) {
			until = max(until, changes[i+1].at)
		}
	}
	before := wait.to
	if w.plan.Calm && !w.plan.Names && !w.setsBack() { // it came before; how soon it joined the queue is not known
		before = min(before, wait.from+24*int64(w.plan.Delay+w.plan.Jitter)+int64(60*time.Millisecond))
	}
	for _, o := range w.wants[key] {
		if o.from < before && (o.mode < 0 || o.mode > 0 && o.mode < wait.mode) {
			until = max(until, min(o.to, wait.to))
		}
	}
	return until
}

// locker is what describes a lock: an exclusive one, a shared one or a semaphore.
type locker interface {
	Key() string
	TryAcquire(ctx context.Context) (*redlock.Lock, error)
	Acquire(ctx context.Context) (*redlock.Lock, error)
	Do(ctx context.Context, fn func(ctx context.Context, lock *redlock.Lock) error) error
}

// wayOf is how a lock is wanted: alone, which is below 0; shared, which is 0; or one of so many permits.
func wayOf(m locker) int64 {
	if !inside.TermsOf(m).Shared {
		return -1
	}
	return int64(inside.TermsOf(m).Permits)
}

// wanted notes that a client wants a lock, until the function that it returns is called.
func (w *simWorld) wanted(p *simProcess, m locker) (over func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	wait := &simWait{proc: p.i, from: w.t(), to: never, mode: wayOf(m)}
	w.wants[m.Key()] = append(w.wants[m.Key()], wait)
	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		wait.to = min(wait.to, w.t())
	}
}

// checkShareProgress: a permit that is free, and a shared lock that nobody has alone, is had in the
// time in which a lock is had that nobody has.
func (w *simWorld) checkShareProgress(key string, grants []*simGrant) {
	quiet := w.quiet()
	for _, g := range w.waits[key] {
		if g.mode < 0 || w.plan.kind(key) == 0 {
			continue
		}
		left := int64(0)
		for _, o := range grants {
			if o.ret < g.to {
				left = max(left, min(w.freeFromLeft(o), g.to))
			}
		}
		free, limit := w.freeFor(quiet, g.to, max(g.from, w.inTheWay(g, key, grants)), w.plan.Calm && w.cutOff(g.proc), simExcuse{exBarred, w.barredUntil(key)}, simExcuse{exLeftOver, left})
		if g.to-free > limit {
			w.violated("I7: client %d.%d could have had %s with others for %.3f ms, and waited for it until %.6f ms", g.proc, g.client, key, ms(g.to-free), ms(g.to))
		}
	}
}

// drawPairs makes some plans such that clients also hold two keys at once, in all ways to hold them. It has
// randomness of its own, so that the other plans are what they were.
func (p *simPlan) drawPairs() {
	r := rand.New(rand.NewPCG(p.Seed, 0x5e75))
	if r.IntN(3) > 0 || p.Calm {
		return
	}
	p.Pairs = true
	for len(p.Fenced) < 2+r.IntN(2) {
		p.Fenced = append(p.Fenced, r.IntN(6) == 0)
	}
	if kinds := rand.New(rand.NewPCG(p.Seed, 0x5e7b)); kinds.IntN(2) == 0 {
		p.drawKindsFrom(kinds)
	}
}

// pair holds two keys at once, if both are to be had, and releases them at the same moment: so releases of
// several keys are in one batch, which lanes bundle.
func (c *simClient) pair(ctx context.Context, op int) {
	w, p := c.w, c.p
	var grants []*simGrant
	for i := range min(2, len(w.plan.Fenced)) {
		at := (c.plan.Key + i) % len(w.plan.Fenced)
		var opts []redlock.LockOption
		if w.plan.Fenced[at] {
			opts = append(opts, redlock.WithFencing())
		}
		m := c.mutexOf(at, c.roll(op, 160+at), opts)
		inside.Allow(m) // as in once
		call := w.t()
		over := w.wanted(c.p, m)
		lock, err := m.TryAcquire(ctx)
		over()
		w.took(p, "TryAcquire", call, attemptLimit(m))
		if errors.Is(err, redlock.ErrHeld) {
			w.checkHeld(p, m.Key(), call, w.t())
		}
		if !w.checkAnswered(lock, err) || err != nil {
			break
		}
		g := w.granted(p, c.i, m.Key(), call, lock)
		if g == nil {
			return
		}
		lock.Renew()
		g.renewed = true
		grants = append(grants, g)
	}
	w.reached("two keys are held at once", len(grants) == 2)
	c.pause(c.within(op, 65, w.plan.TTL/4))
	from := w.t()
	ends := make([]func() error, len(grants))
	for i, g := range grants {
		g.released(from)
		ends[i] = inside.StartRelease(g.lock)
	}
	for i, g := range grants {
		g.relErr = ends[i]()
		g.relRet = w.t()
	}
	if len(grants) > 0 {
		w.took(p, "Release of two", from, w.plan.NodeTimeout)
	}
}

func (p *simProcess) released(_ context.Context, i redlock.ReleaseInfo) {
	w := p.w
	w.mu.Lock()
	defer w.mu.Unlock()
	w.reached("a release finds the lock lost", errors.Is(i.Err, redlock.ErrNotHeld))
	w.reached("a release finds no quorum", errors.Is(i.Err, redlock.ErrNoQuorum))
	if g := w.byToken[i.Token]; g != nil && g.told.at == 0 {
		g.told = simReleased{at: w.t(), err: i.Err}
	}
}

func (c *simClient) endedInTime(ends int64, err error) {
	if t := c.w.t(); t > ends && err != nil {
		c.w.took(c.p, "an acquire whose context had ended", ends, 0)
	}
}

// simQuiet is when waits are judged, and how.
type simQuiet struct {
	from  int64  // nothing goes wrong any more
	limit int64  // for how long a free lock may wait for one of those who want it
	usual int64  // the same, were it not for an excuse
	why   string // that excuse
}

func (w *simWorld) quiet() (q simQuiet) {
	q.from = int64(w.plan.Until) + int64(8*w.plan.TTL+5*time.Second)
	for _, f := range w.plan.Faults {
		q.from = max(q.from, int64(f.At+f.For)+int64(8*w.plan.TTL+5*time.Second))
	}
	grace := int64(max(protocol.LeastReservation, 4*w.plan.NodeTimeout))
	// A join that is torn, late or doubled may leave an entry behind whose turn is nobody's.
	q.usual, q.why = 3*grace, exStrays
	strays := int64(w.plan.Torn + w.plan.Late + w.plan.Twice)
	if w.plan.NoPublish {
		strays *= 16 // waiters ask as many times as often
	}
	q.limit = q.usual * (1 + strays/50)
	switch {
	case w.plan.Regime == simWell:
		q.from, q.usual, q.limit = w.wellFrom(), grace, grace
	case w.plan.Calm:
		q.from, q.usual = 0, grace
		switch q.limit = grace; {
		case w.disturbed(): // what it held, and its turn
			q.limit, q.why = int64(w.plan.TTL)+2*grace, exCutOff
		case w.plan.Names: // queues on several nodes meet first, and may pass each other
			q.limit, q.why = 2*grace, exNames
		case w.plan.HandOvers && w.setsBack():
			// What was handed over to nobody ends later at a queue's node whose clock was set
			// back. The first waiter looks at the others once per grace, when it joins again.
			q.limit, q.why = 2*grace, exLeftOver
		}
	}
	return q
}

// simSent is the SET of a value, as it was sent to one server.
type simSent struct {
	node  int
	value string
}

// simHeard is what its process was told of it.
type simHeard uint8

const (
	heardNothing simHeard = iota // that it is out, or that its answer was lost
	heardRefused
	heardGranted
	heardFailed
	heardNoScript
)

func (h simHeard) String() string {
	return [...]string{"an unknown outcome", "a refusal", "a grant", "an error", "an unknown script"}[h]
}

// sends is I9: the SET of a value goes to a server once, and again only if that refused it. That none follows a release
// of the value, the lane looks at itself. A message that the network doubles was sent once.
func (w *simWorld) sends(p *simProcess, node int, batch []*lane.Call) {
	var wrong []string
	w.mu.Lock()
	for _, c := range batch {
		if !c.Req.Op.Acquires() {
			continue
		}
		set := simSent{node, c.Req.Value}
		w.sentBy[c.Req.Value] = simSender{p, w.t()}
		heard, again := w.sets[set]
		switch {
		case !again, heard == heardNoScript:
		case heard != heardRefused:
			wrong = append(wrong, fmt.Sprintf("the SET of %.6s goes to node %d again after %v", set.value, node, heard))
		default:
			w.reached("a SET is sent again to a node that refused", true)
		}
		w.sets[set] = heardNothing
	}
	w.mu.Unlock()
	for _, what := range wrong {
		w.violated("I9: %s", what)
	}
}

// hears notes the answers to a batch.
func (w *simWorld) hears(node int, batch []*lane.Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range batch {
		if !c.Req.Op.Acquires() || !c.Answered() {
			continue
		}
		heard := heardFailed
		switch c.Read(c.Req.Op).Kind {
		case protocol.Refused:
			heard = heardRefused
		case protocol.Granted:
			heard = heardGranted
		}
		if c.WantsSource() {
			heard = heardNoScript
		}
		w.sets[simSent{node, c.Req.Value}] = heard
	}
}

// Contexts: those of locks and of Do's functions are looked at as claims are, and those of callers
// end in the middle of extends and of functions.

// simContextLate is how much later than a lock its context may end: an end by time is a timer's, and
// where the clocks have moved apart it is found out four times a second.
const simContextLate = int64(300 * time.Millisecond)

// drawContexts has the clients of some plans look at contexts, and use WithMaxHold. It has
// randomness of its own, so that the other plans are what they were.
func (p *simPlan) drawContexts() {
	p.Contexts = rand.New(rand.NewPCG(p.Seed, 0xc0c)).IntN(3) == 0
}

// maxHold is the option that this use has, if any.
func (c *simClient) maxHold(op int) (opts []redlock.LockOption) {
	if c.w.plan.Contexts && c.roll(op, 240)%4 == 0 {
		opts = append(opts, redlock.WithMaxHold(leastTTL+c.within(op, 241, 2*c.w.plan.TTL)))
	}
	return opts
}

// simContext is a context that is to end with a lock.
type simContext struct {
	context.Context
	caller context.Context // with which it ends, too; nil: there is none
	lost   bool            // it says that the lock is lost; guarded by simGrant.mu
}

// watch looks at a context of a lock from now on.
func (w *simWorld) watch(g *simGrant, ctx, caller context.Context) {
	s := &simContext{Context: ctx, caller: caller}
	g.contexts = append(g.contexts, s)
	context.AfterFunc(ctx, func() { w.contextEnded(g, s) })
}

// watchOwn is watch for Lock.Context, which not every holder asks for.
func (c *simClient) watchOwn(g *simGrant, op int) {
	if c.w.plan.Contexts && c.roll(op, 242)%2 == 0 {
		c.w.watch(g, g.lock.Context(), nil)
	}
}

// contextEnded: a context ends when its lock was released, with ErrReleased; when it is lost, with
// ErrLost; when time is over, with ErrExpired as well; and with its caller.
func (w *simWorld) contextEnded(g *simGrant, s *simContext) {
	if w.t() >= g.proc.killedAt {
		return
	}
	end := g.ends()
	switch cause := context.Cause(s); {
	case errors.Is(cause, redlock.ErrReleased):
		w.mu.Lock()
		given := g.relCalled != never || g.detaching
		w.mu.Unlock()
		if !given {
			w.violated("context: that of %v says that it was released", g)
		}
	case !errors.Is(cause, redlock.ErrLost):
		if s.caller == nil || s.caller.Err() == nil {
			w.violated("context: that of %v ended by %v, which says nothing of the lock", g, cause)
		}
	case errors.Is(cause, redlock.ErrExpired):
		if !isOver(end, g.proc.Now()) {
			w.violated("context: that of %v ended, although neither its validity nor WithMaxHold is over: %v", g, cause)
		}
	default:
		g.mu.Lock()
		s.lost = true
		g.mu.Unlock()
	}
	w.reached("a context ends by a loss", errors.Is(context.Cause(s), redlock.ErrLost))
}

// ends is when the contexts of a lock are to end by time.
func (g *simGrant) ends() tick.Instant {
	g.mu.Lock()
	end := g.promises[len(g.promises)-1].told
	g.mu.Unlock()
	if most := inside.TermsOf(g.lock).MaxHold; most > 0 {
		end = tick.Earliest(end, inside.StateOf(g.lock).GrantedAt.Add(most))
	}
	return end
}

// lookAtContexts: the contexts of a lock that is over have ended, and its validity is over.
func (w *simWorld) lookAtContexts(g *simGrant) {
	if !w.plan.Contexts || w.dead(g.proc) {
		return
	}
	t := w.t()
	w.mu.Lock()
	lost := g.lostAt <= t
	w.mu.Unlock()
	if g.lock.Validity() > 0 && lost {
		w.violated("context: %v is lost, and valid for %v", g, g.lock.Validity())
	}
	over := w.overSince(g)
	for _, s := range g.contexts {
		switch {
		case s.Err() != nil:
		case s.caller != nil && s.caller.Err() != nil:
			w.violated("context: that of %v goes on, and that of its caller has ended", g)
		case t-over > simContextLate && len(g.proc.asleep) == 0 && !g.proc.setsWall():
			w.violated("context: that of %v goes on, although it is over since %.6f ms", g, ms(over))
		}
	}
}

// overSince is when the contexts of a lock were or will be to end, in true time.
func (w *simWorld) overSince(g *simGrant) int64 {
	w.mu.Lock()
	over := min(g.lostAt, g.mostUntil)
	w.mu.Unlock()
	g.mu.Lock()
	defer g.mu.Unlock()
	return min(over, g.promises[len(g.promises)-1].until)
}

// setsWall reports whether the process's wall clock is set, so that what is over may not be for a
// while.
func (p *simProcess) setsWall() bool { return len(p.wall.steps) > 0 }

// checkContexts: whoever is told of losses is told of those that end contexts.
func (w *simWorld) checkContexts(g *simGrant) {
	for _, s := range g.contexts {
		g.mu.Lock()
		lost := s.lost
		g.mu.Unlock()
		if lost && g.lostAt == never && g.proc.killedAt == never {
			w.violated("context: that of %v ended by a loss that Hooks.Lost is not told", g)
		}
	}
}

// checkRenewal: none begins when the time of WithMaxHold is over, or the lock was released.
func (w *simWorld) checkRenewal(g *simGrant, i redlock.ExtendInfo) {
	if !i.Renewal {
		return
	}
	began := g.proc.Now().Mono - int64(i.Elapsed)
	w.mu.Lock()
	called := g.relCalled
	w.mu.Unlock()
	if called != never && w.t() < g.proc.killedAt {
		released := g.proc.mono.at(called)
		for _, f := range g.proc.asleep {
			if int64(f.At) >= called && int64(f.At) <= w.t() { // what was about to begin begins when it wakes
				released += int64(f.For)
			}
		}
		if began > released+simMoment+2*int64(w.plan.Delay+w.plan.Jitter) { // it was about to begin
			w.violated("renewal: %v is renewed %.3f ms after its release", g, ms(began-released))
		}
	}
	if i.Err != nil {
		return
	}
	if most := inside.TermsOf(g.lock).MaxHold; most > 0 && began-inside.StateOf(g.lock).GrantedAt.Mono > int64(most)+simMoment {
		w.violated("context: %v is renewed, although WithMaxHold, %v, is over", g, most)
	}
}

// extendWithin is an extend that may be given up in the middle.
func (c *simClient) extendWithin(g *simGrant, op, i int, ttl time.Duration) error {
	w := c.w
	if !w.plan.Contexts || c.roll(op, 250+i)%3 != 0 {
		return inside.Extend(g.lock, context.Background(), ttl)
	}
	longest := w.plan.NodeTimeout
	if c.roll(op, 260+i)%2 == 0 {
		longest = 4 * (w.plan.Delay + w.plan.Jitter)
	}
	ctx, stop, ends := c.dies(context.Background(), c.within(op, 270+i, longest))
	defer stop()
	err := inside.Extend(g.lock, ctx, ttl)
	if t := w.t(); t > ends && err != nil {
		w.took(c.p, "an extend whose context had ended", ends, 0)
	}
	w.checkGivenUp(g, err, w.t() >= ends)
	return err
}

// checkGivenUp: an extend whose context ends does not end the lock, and none is given up before.
func (w *simWorld) checkGivenUp(g *simGrant, err error, ended bool) {
	if !errors.Is(err, context.Canceled) {
		return
	}
	if errors.Is(err, redlock.ErrLost) || !ended {
		w.violated("context: the extend of %v was given up, which is wrong: %v", g, err)
	}
	w.reached("an extend is given up", true)
}

// doWithin is the context of some calls of Do, which may end in the middle.
func (c *simClient) doWithin(ctx context.Context, op int) (context.Context, func(), int64) {
	if !c.w.plan.Contexts || c.roll(op, 280)%3 != 0 {
		return ctx, func() {}, never
	}
	return c.dies(ctx, c.within(op, 281, 3*c.w.plan.TTL))
}
