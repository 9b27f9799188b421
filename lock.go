package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// Lock is one acquisition of a Mutex. Its methods may be called from any number of
// goroutines. It is made by TryAcquire, Acquire and Do; on the zero value, methods
// that return an error return ErrInvalid, and Context and Fence panic.
type Lock struct {
	rl        *Redlock
	mutex     *Mutex
	token     string
	value     any             // what the nodes hold, a string: token@owner
	values    context.Context // of Acquire
	grantedAt instant

	fence uint64 // with WithFencing

	arbiter int    // the node whose line is served when the lock is released; -1 for none
	entry   string // in that line, for a lock that was waited for in line

	// Everything that acquiring and releasing needs lies in here, so that a cycle
	// costs few allocations.
	acquiring  round
	releasing  round
	setReq     request
	releaseReq request
	args       [3][6]any
	lineReq    request // the release for the arbiter
	seats      []seat  // those of acquiring, then those of releasing

	// mu guards what follows. Lanes and the keeper may be called under it; they never
	// call back while holding theirs.
	mu      sync.Mutex
	until   instant       // at least a quorum of nodes holds the value before this
	longest time.Duration // no node was asked to hold the value for longer than this
	sets    []*call       // SETs that put the value back on nodes that lost it, by node
	over    error         // why the lock is not ours any more; nil while it is
	renew   bool

	ctx    context.Context // nil until somebody asks for it
	cancel context.CancelCauseFunc
	timer  timer // ends ctx

	release    releaseState
	released   chan struct{} // closed when the result is known; nil if nobody waits for it
	releaseErr error

	renewal renewal // guarded by the keeper
}

type releaseState uint8

const (
	notReleased releaseState = iota
	releaseSent
	releaseDone
)

func newLock(m *Mutex, value string) *Lock {
	return &Lock{
		rl: m.rl, mutex: m, token: value[:tokenLen], value: value, longest: m.terms.ttl,
		seats: make([]seat, 2*len(m.rl.nodes)),
	}
}

// sendAcquire sends the SETs.
func (l *Lock) sendAcquire(start instant) *round {
	m := l.mutex
	set := &l.setReq
	proposal := uint64(0)
	if m.terms.fencing {
		proposal = l.rl.lastFence.propose(start)
		set = fenceRequest(m, l.value, proposal, "")
	} else {
		l.setReq = setRequest(acquire, &m.terms, &l.args[0], m.name, l.value)
	}
	r := &l.acquiring
	r.init(start, l.seats[:len(l.rl.nodes)])
	r.guard, r.period = l.rl.guard, l.rl.guard.period(&m.terms)
	for i := range r.seats {
		r.seats[i].call.to(r, set, i)
	}
	switch {
	case l.entry == "":
	case m.terms.fencing:
		r.seats[l.arbiter].call.req = fenceRequest(m, l.value, proposal, l.entry)
	default:
		r.seats[l.arbiter].call.req = claimRequest(&m.terms, m.name, m.line(), l.value, l.entry)
	}
	return l.rl.sendAddressed(r)
}

// begin makes a lock of a granted attempt.
func (l *Lock) begin(ctx context.Context, until, now instant, renew bool) {
	l.values, l.until, l.grantedAt = ctx, until, now
	l.renew = renew || l.mutex.terms.renew
	if l.renew {
		l.rl.keeper.schedule(l, now, l.mutex.terms.ttl/3)
	}
}

func (l *Lock) check() error {
	if l == nil || l.rl == nil {
		return fmt.Errorf("redlock: %w Lock: it was not made by acquiring a Mutex", ErrInvalid)
	}
	return nil
}

func (l *Lock) mustExist(method string) {
	if l.check() != nil {
		panic("redlock: " + method + " of a Lock that was not made by acquiring a Mutex")
	}
}

// Key returns the lock's key, without Options.KeyPrefix.
func (l *Lock) Key() string {
	if l.check() != nil {
		return ""
	}
	return l.mutex.key
}

// Token returns the random token of this acquisition, 32 hexadecimal digits. On the
// nodes, "@" and Options.Owner follow it.
func (l *Lock) Token() string {
	if l.check() != nil {
		return ""
	}
	return l.token
}

// Fence returns the fencing token: greater than that of every earlier lock of the key,
// by any client that used WithFencing. A resource that remembers the greatest token it
// has seen, and refuses what comes with a smaller one, is safe from a holder that does
// not know yet that its lease is over. It is in [1, 2^52], and about the time of the
// grant in microseconds since 1970.
//
// It panics for a lock that was acquired without WithFencing, since a made-up number
// would pass every check at the resource.
func (l *Lock) Fence() uint64 {
	l.mustExist("Fence")
	if !l.mutex.terms.fencing {
		panic("redlock: Fence of a Lock acquired without WithFencing")
	}
	return l.fence
}

// Until returns the end of validity: before it a majority of nodes holds the lock for
// us, if clocks run at rates within Options.DriftFactor of each other and no majority
// forgets. A successful extend moves it on; a loss or a release that was noticed moves
// it to that time.
func (l *Lock) Until() time.Time {
	if l.check() != nil {
		return time.Time{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until.time
}

// Validity returns what remains until Until by the more pessimistic of the monotonic
// and the wall clock; zero or less when the lock is over. It needs no goroutine to
// have run, so it is right even where the lock's context ends late.
func (l *Lock) Validity() time.Duration {
	if l.check() != nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rl.clock.now().until(l.until)
}

// Outcomes returns what each node said to the acquire, in the order of Redlock.Nodes.
// Answers that came after the grant are in later copies.
func (l *Lock) Outcomes() []Outcome {
	if l.check() != nil {
		return nil
	}
	return l.acquiring.outcomes(l.rl.names)
}

// Context returns a context that ends when the lock does: at Until at the latest, by a
// timer of this process, whatever the network does; with WithMaxHold, also then.
// context.Cause tells why: ErrReleased, else ErrLost, and ErrExpired too if time ran
// out. It carries the values of the context given to Acquire but not its end, which
// often is a limit for acquiring only.
func (l *Lock) Context() context.Context {
	l.mustExist("Context")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx != nil {
		return l.ctx
	}
	l.ctx, l.cancel = context.WithCancelCause(context.WithoutCancel(l.values))
	if l.over != nil {
		l.cancel(l.over)
		return l.ctx
	}
	l.timer = l.rl.clock.afterFunc(l.rl.clock.now().until(l.contextEnd()), l.checkEnd)
	l.rl.keeper.watch(l)
	return l.ctx
}

// contextEnd is when the context is to end; the caller holds mu.
func (l *Lock) contextEnd() instant {
	if most := l.mutex.terms.maxHold; most > 0 {
		return earliest(l.until, l.grantedAt.add(most))
	}
	return l.until
}

// checkEnd ends the lock's context if its time has come.
func (l *Lock) checkEnd() {
	now := l.rl.clock.now()
	l.mu.Lock()
	switch {
	case l.over != nil || l.ctx == nil:
		l.mu.Unlock()
	case now.reached(l.until):
		l.loseAndUnlock(now, l.expired())
	case now.reached(l.contextEnd()):
		l.cancel(fmt.Errorf("redlock: %w: %w: %s held for WithMaxHold, %v", ErrLost, ErrExpired, quoteKey(l.mutex.key), l.mutex.terms.maxHold))
		l.mu.Unlock()
	default:
		l.timer.Reset(now.until(l.contextEnd()))
		l.mu.Unlock()
	}
}

func (l *Lock) expired() error {
	return fmt.Errorf("redlock: %w: %w: lease of %s not extended in time", ErrLost, ErrExpired, quoteKey(l.mutex.key))
}

// loseAndUnlock notes that the lock is not ours any more; the caller holds mu, and
// over is nil.
func (l *Lock) loseAndUnlock(now instant, why error) {
	l.finish(now, why)
	l.mu.Unlock()
	if lost := l.rl.opts.Hooks.Lost; lost != nil {
		lost(LostInfo{Context: context.WithoutCancel(l.values), Key: l.mutex.key, Token: l.token, Err: why})
	}
}

// finish ends everything that lasts as long as the lock; the caller holds mu.
func (l *Lock) finish(now instant, why error) {
	l.over = why
	if l.until.after(now) {
		l.until = now
	}
	if l.renew || l.ctx != nil {
		l.rl.keeper.forget(l)
	}
	if l.ctx != nil {
		l.timer.Stop()
		l.cancel(why)
	}
}

// lost returns why the lock was lost, or nil if it is held or was released.
func (l *Lock) lost() error {
	now := l.rl.clock.now()
	l.mu.Lock()
	if l.over == nil && now.reached(l.until) {
		why := l.expired()
		l.loseAndUnlock(now, why)
		return why
	}
	defer l.mu.Unlock()
	if errors.Is(l.over, ErrLost) {
		return l.over
	}
	return nil
}

// Extend makes the lease last for ttl from now, and never less long than before. It
// returns when a majority of nodes confirmed it, without waiting for slower ones.
//
// On success Until is ttl from the call's start, less the drift allowance, or what it
// was if that is later, and nodes that lost the key are given it again. A failure
// leaves Until as it was, and the lock is still held until then, except that the lock
// is lost when so many nodes say that it is not ours that no majority is left
// (ErrNotHeld and ErrLost), or when Until has passed before the majority confirmed, or
// before the call (ErrExpired and ErrLost). Otherwise it fails with ErrNoQuorum,
// ErrReleased, ErrClosed, ErrInvalid for a ttl out of range, or with ctx's error when
// that ends first; the nodes may then have been extended or not.
func (l *Lock) Extend(ctx context.Context, ttl time.Duration) error {
	if err := l.check(); err != nil {
		return err
	}
	if err := invalid("extend of "+quoteKey(l.mutex.key), brokenTTL("ttl", ttl, l.rl.opts)); err != nil {
		return err
	}
	return l.extend(ctx, ttl, false)
}

func (l *Lock) extend(ctx context.Context, ttl time.Duration, renewal bool) error {
	start := l.rl.clock.now()
	r := new(round)
	err := l.tryExtend(ctx, r, start, ttl)
	l.tellExtended(ctx, r, start, ttl, renewal, err)
	return err
}

func (l *Lock) tellExtended(ctx context.Context, r *round, start instant, ttl time.Duration, renewal bool, err error) {
	extended := l.rl.opts.Hooks.Extended
	if extended == nil {
		return
	}
	if renewal {
		ctx = context.WithoutCancel(l.values)
	}
	extended(ExtendInfo{
		Context: ctx, Key: l.mutex.key, Token: l.token, TTL: ttl, Renewal: renewal,
		Start: start.time, Elapsed: l.rl.clock.now().since(start), Until: l.Until(),
		Outcomes: r.outcomes(l.rl.names), Err: err,
	})
}

// tryExtend leaves r as it is where no node is asked.
func (l *Lock) tryExtend(ctx context.Context, r *round, start instant, ttl time.Duration) error {
	rl := l.rl
	if err := l.mutex.check(ctx, extend.String()); err != nil {
		return err
	}
	l.mu.Lock()
	switch {
	case l.over != nil:
		defer l.mu.Unlock()
		return fmt.Errorf("redlock: extend %s: %w", quoteKey(l.mutex.key), l.over)
	case start.reached(l.until):
		why := l.expired()
		l.loseAndUnlock(start, why)
		return why
	}
	l.longest = max(l.longest, ttl)
	l.mu.Unlock()

	terms := l.mutex.terms
	terms.ttl, terms.nodeTimeout = ttl, rl.opts.nodeTimeout(ttl)
	mend := &repairs{lock: l, terms: &terms}
	r.observer = mend
	r.init(start, make([]seat, len(rl.nodes)))
	v, cut := rl.send(r, extendRequest(&terms, l.mutex.name, l.value)).waitFinal(ctx, rl.clock, rl.closing)
	now := rl.clock.now()
	switch {
	case errors.Is(cut, ErrClosed):
		return r.fail(rl, extend, l.mutex.key, ErrClosed)
	case cut != nil:
		return r.fail(rl, extend, l.mutex.key, ended(ctx)...)
	}

	l.mu.Lock()
	switch {
	case l.over != nil:
		defer l.mu.Unlock()
		return fmt.Errorf("redlock: extend %s: %w", quoteKey(l.mutex.key), l.over)
	case now.reached(l.until):
		// However many keys are left: in between others may have had the lock.
		why := r.fail(rl, extend, l.mutex.key, ErrLost, ErrExpired)
		l.loseAndUnlock(now, why)
		return why
	case v == held:
		why := r.fail(rl, extend, l.mutex.key, ErrNotHeld, ErrLost)
		l.loseAndUnlock(now, why)
		return why
	case v != granted:
		l.mu.Unlock()
		return r.fail(rl, extend, l.mutex.key, ErrNoQuorum)
	}
	if until := validUntil(start, ttl, rl.opts.DriftFactor); now.until(until) > now.until(l.until) {
		// Later as seen from now: the wall clock may have been set back meanwhile.
		l.until = until
		if l.ctx != nil {
			l.timer.Reset(now.until(l.contextEnd()))
		}
	}
	l.mu.Unlock()
	mend.begin()
	return nil
}

// repairs puts the key back on nodes that lost it, once an extend has succeeded
// without them. It is apart from the extend, because a key that was gone was free for
// others meanwhile: it must not count.
type repairs struct {
	lock  *Lock
	terms *terms

	mu      sync.Mutex
	begun   bool
	missing []int
}

// observe sees each node's answer to the extend, also those after its decision.
func (p *repairs) observe(i int, b ballot) {
	if b.vote != VoteRefused || b.holder() != "" || b.err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.begun {
		p.lock.restore(p.terms, i)
	} else {
		p.missing = append(p.missing, i)
	}
}

func (p *repairs) begin() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.begun = true
	for _, i := range p.missing {
		p.lock.restore(p.terms, i)
	}
}

// restore sets the key on a node that lost it.
func (l *Lock) restore(t *terms, i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil {
		return
	}
	if l.sets == nil {
		l.sets = make([]*call, len(l.rl.nodes))
	}
	req := setRequest(repair, t, new([6]any), l.mutex.name, l.value)
	if t.fencing {
		req = fenceRepairRequest(t, l.mutex, l.value, l.fence)
	}
	now := l.rl.clock.now().mono
	before, c := l.setOf(i), &call{req: &req, index: int32(i), deadline: now + int64(req.timeout)}
	if l.rl.nodes[i].lane.replace(before, c, now) {
		l.sets[i] = c
	}
}

// setOf is the last SET that may have put the value on a node; the caller holds mu.
func (l *Lock) setOf(i int) *call {
	if l.sets != nil && l.sets[i] != nil {
		return l.sets[i]
	}
	return &l.seats[i].call
}

// Release gives the lock up on every node and returns when a majority confirmed it,
// without waiting for slower ones, and after the timeout per node at the latest. The
// first in line, if anybody waits, is told that it is its turn. Release goes on when ctx
// is cancelled or was before: ctx only lends its values. A second call returns the
// result of the first.
//
// It returns nil when a majority confirms that the lock is gone by our hand,
// ErrNotHeld when so many nodes say that it was not ours any more that no majority is
// left, ErrNoQuorum when too few nodes answered, ErrClosed after Close. Whatever it
// returns, the lock is over, and releases that were not confirmed are sent again in
// the background until the node answers or the key is gone by its TTL.
func (l *Lock) Release(ctx context.Context) error {
	if err := l.check(); err != nil {
		return err
	}
	rl := l.rl
	l.mu.Lock()
	if l.release != notReleased {
		defer l.mu.Unlock()
		return l.firstRelease()
	}
	l.release = releaseSent
	start := rl.clock.now()
	if l.over == nil {
		l.finish(start, errWasReleased)
	}
	// Sent under mu, so that no repair can come after it.
	r := l.sendRelease(start)
	l.mu.Unlock()

	err := l.waitRelease(r)
	l.mu.Lock()
	l.release, l.releaseErr = releaseDone, err
	if l.released != nil {
		close(l.released)
	}
	l.mu.Unlock()
	if told := rl.opts.Hooks.Released; told != nil {
		told(ReleaseInfo{
			Context: ctx, Key: l.mutex.key, Token: l.token, Held: start.since(l.grantedAt),
			Start: start.time, Elapsed: rl.clock.now().since(start), Outcomes: r.outcomes(rl.names), Err: err,
		})
	}
	return err
}

var errWasReleased = fmt.Errorf("redlock: %w", ErrReleased)

// firstRelease waits for the result of the first Release. The caller holds mu, which
// is let go while it waits.
func (l *Lock) firstRelease() error {
	if l.release == releaseSent {
		if l.released == nil {
			l.released = make(chan struct{})
		}
		done := l.released
		l.mu.Unlock()
		<-done
		l.mu.Lock()
	}
	return l.releaseErr
}

// prepareRelease fills in the requests; the caller holds mu, or is the only one to know
// the lock.
func (l *Lock) prepareRelease(now instant, held bool) {
	if l.releaseReq.kind != 0 {
		return // they may be on their way already
	}
	m := l.mutex
	l.releaseReq = releaseRequest(&m.terms, &l.args[1], m.name, l.value)
	l.releaseReq.ttl = l.longest
	if l.entry == "" {
		l.arbiter = m.arbiter(now.mono)
	}
	if l.arbiter >= 0 {
		if l.entry == "" && held && m.naming == usualLine {
			l.lineReq = plainLineReleaseRequest(&m.terms, &l.args[2], m.name, l.value)
		} else {
			l.lineReq = lineReleaseRequest(&m.terms, m.name, l.value, m.line(), l.entry, held)
		}
		if l.lineReq.ttl = l.longest; l.entry != "" {
			l.lineReq.leaves = lineLife
		}
	}
}

// addressRelease makes the call for one node.
func (l *Lock) addressRelease(i int) *call {
	c := &l.seats[len(l.rl.nodes)+i].call
	c.req, c.index, c.takesBack = &l.releaseReq, int32(i), l.setOf(i)
	if i == l.arbiter {
		c.req, c.leaves = &l.lineReq, l.entry != "" || l.over != nil
	}
	return c
}

// sendRelease starts the release on every node where the value may be; the caller
// holds mu.
func (l *Lock) sendRelease(start instant) *round {
	l.prepareRelease(start, true)
	r := &l.releasing
	r.observer = l
	r.init(start, l.seats[len(l.rl.nodes):])
	for i := range r.seats {
		c := l.addressRelease(i)
		c.to(r, c.req, i)
		c.always = true
	}
	for i, n := range l.rl.nodes {
		n.lane.takeBack(&r.seats[i].call, start.mono)
	}
	return r
}

// observe sees each node's answer to the release.
func (l *Lock) observe(i int, b ballot) {
	if b.val == any(int64(publishDenied)) {
		l.rl.lines.degraded(i, noPublish, nil)
	}
}

func (l *Lock) waitRelease(r *round) error {
	// Nothing but the lanes ends it: they resolve every call by its deadline.
	v, _ := r.waitFinal(context.Background(), l.rl.clock, nil)
	switch {
	case v == granted:
		return nil
	case l.rl.isClosed():
		return r.fail(l.rl, release, l.mutex.key, ErrClosed)
	case v == held:
		return r.fail(l.rl, release, l.mutex.key, ErrNotHeld)
	default:
		return r.fail(l.rl, release, l.mutex.key, ErrNoQuorum)
	}
}

// takeBack releases a failed attempt wherever its SET was or may have been applied,
// with nobody waiting for it. With only granted, it leaves alone the nodes that did not
// answer yet, whose answers still tell what to call the failure, and the one that keeps
// the line we are in, where we take our place again first.
func (l *Lock) takeBack(onlyGranted bool) {
	now := l.rl.clock.now()
	l.prepareRelease(now, false)
	for i, n := range l.rl.nodes {
		s := &l.seats[len(l.rl.nodes)+i]
		if s.handed ||
			onlyGranted && (l.acquiring.vote(i) != VoteGranted || l.entry != "" && i == l.arbiter) {
			continue
		}
		s.handed = true
		n.lane.takeBack(l.addressRelease(i), now.mono)
	}
}

// renewNow extends the lock for its keeper, which calls it on a goroutine of its own.
func (l *Lock) renewNow() {
	ttl := l.mutex.terms.ttl
	now := l.rl.clock.now()
	if most := l.mutex.terms.maxHold; most > 0 && now.reached(l.grantedAt.add(most)) {
		return
	}
	start, r := now, new(round)
	err := l.tryExtend(context.Background(), r, start, ttl)
	// The next one is not put off by a hook that takes its time.
	l.renewLater(err)
	l.tellExtended(context.Background(), r, start, ttl, true, err)
}

// renewLater has the keeper renew the lock again, soon after a renewal that failed.
func (l *Lock) renewLater(err error) {
	now := l.rl.clock.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over != nil || l.rl.isClosed() {
		return
	}
	if next := l.mutex.terms.ttl / 3; err == nil {
		l.rl.keeper.schedule(l, now, next)
	} else {
		l.rl.keeper.schedule(l, now, next/5)
	}
}
