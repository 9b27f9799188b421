package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/quorumlock/redlock/internal/invariants"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/renew"
	"github.com/quorumlock/redlock/internal/tick"
)

// Lock is one acquisition of a lock, by TryAcquire, Acquire, Do, Lead or Adopt. Its methods
// may be called from any number of goroutines. Fence, Permit and Detach panic for a lock that has no fencing
// token, no permit, or cannot be detached, since these are bugs of the program that no test of it can miss.
type Lock struct {
	*attempt // that was granted
	renewer  *renew.Renewer

	acquireCtx context.Context // of Acquire, for its values
	grantedAt  tick.Instant
	fence      uint64 // with WithFencing

	// mu guards what follows. The mutexes of lanes, of the renewer and of queues may be
	// taken under it; none of their owners calls a Lock while it holds its own.
	mu      sync.Mutex
	until   tick.Instant // at least a quorum of nodes holds the value before this
	renews  bool
	repairs []*lane.Call // SETs that put the value back on nodes that lost it, by node
	over    error        // why the lock is not ours any more; nil while it is
	// notExtended is why the last extend found no quorum; nil if it found one.
	notExtended error
	longest     time.Duration // no node was asked to hold the value for longer than this
	confirmed   int64         // when the latest extend began that was granted
	release     releaseResult
	ctx         *lockContext // nil until it is asked for

	renewal renew.Renewal
}

// lockContext is the context of a lock, of which most locks have none.
type lockContext struct {
	context.Context
	cancel context.CancelCauseFunc
	timer  tick.Timer // ends it
}

// releaseResult is what has come of the release.
type releaseResult struct {
	state releaseState
	err   error
	done  chan struct{} // closed when the result is known; nil if no caller waits for it
}

// end notes the result; the caller holds the lock's mu.
func (r *releaseResult) end(err error) {
	r.state, r.err = releaseDone, err
	if r.done != nil {
		close(r.done)
	}
}

// releaseState only ever moves on.
type releaseState uint8

const (
	notReleased releaseState = iota
	releaseSent
	releaseDone
)

var errWasReleased = fmt.Errorf("redlock: %w", ErrReleased)

// newLock makes a lock of an attempt that was granted. It is not held before begin.
func newLock(a *attempt, k *renew.Renewer) *Lock {
	return &Lock{attempt: a, renewer: k, longest: a.terms.TTL}
}

// begin is the moment from which on the lock is held.
func (l *Lock) begin(ctx context.Context, fence uint64, until, now tick.Instant, renew bool) {
	l.acquireCtx, l.fence, l.until, l.grantedAt = ctx, fence, until, now
	if l.renews = renew || l.terms.renew; l.renews {
		l.renewer.Schedule(&l.renewal, now, l.until, l.terms.TTL/3, l.terms.TTL)
	}
}

// Key returns the lock's key, without Options.KeyPrefix.
func (l *Lock) Key() string { return l.key }

// Token returns the random token of this acquisition, 32 hexadecimal digits in lower case. On
// the nodes, "@" and the label of WithOwner or Options.Owner follow it. It is enough to end the lock
// (admin.Nodes.ForceRelease) or to take it over (Adopt).
func (l *Lock) Token() string { return l.value[:tokenLen] }

// Fence returns the fencing token: greater than that of every earlier lock of the key, by any client that used
// WithFencing. A resource that remembers the greatest token it has seen for the key, and refuses what comes with a
// smaller one, is safe from a holder that does not know yet that its lease is over. It is in [1, 2^52], and about the
// time of the grant in microseconds since 1970.
//
// It panics for a lock that was acquired without WithFencing, since a made-up number
// would pass every check at the resource.
func (l *Lock) Fence() uint64 {
	if !l.terms.fencing {
		panic("redlock: Fence of a Lock acquired without WithFencing")
	}
	return l.fence
}

// Permit returns the number of a semaphore's permit, from 0 to permits-1. No other holder has it
// before Until, so it may choose a port, a shard, or the worker number of an id. It panics for
// a lock that was not acquired from a Semaphore.
func (l *Lock) Permit() int {
	if l.terms.permits == 0 {
		panic("redlock: Permit of a Lock that is no semaphore's")
	}
	return int(l.permit.Load()) - 1
}

// Until returns the end of validity: before it a majority of nodes holds the lock for
// us, if clocks run at rates within Options.DriftFactor of each other and no majority
// forgets. A successful extend moves it on; a release, Detach, or a loss that is
// noticed ends it at that moment, if that is earlier.
func (l *Lock) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.until.Time
}

// Validity returns what remains until Until by the more pessimistic of the monotonic
// and the wall clock; zero or less when the lock is over. It needs no goroutine to
// have run, so it is right even where the lock's context ends late.
func (l *Lock) Validity() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clock.Now().Until(l.until)
}

// Outcomes returns what each node said to the acquire, in the order of Redlock.Nodes.
// Answers that came after the grant are in later copies.
func (l *Lock) Outcomes() []Outcome { return l.round.outcomes(l.names) }

// Context returns a context that ends when the lock is released, detached or known to be lost, and at Until at the
// latest, by a timer of this process, whatever the network does. A timer may be late: before work that must be
// exclusive look at Validity. For a context that also ends with a request use Within. With WithMaxHold it also ends
// that long after the grant. context.Cause tells why: ErrReleased, or else ErrLost, and ErrExpired too if time ran
// out. It carries the values of the context given to the acquire but not its end, which often is a limit for
// acquiring only. Every call returns the same context.
func (l *Lock) Context() context.Context {
	ctx, late := l.context()
	if late {
		l.timeUp() // and not some time after this call has returned a context that looks alive
	}
	return ctx
}

// context is Context, and whether it is made when it should have ended.
func (l *Lock) context() (_ context.Context, late bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx != nil {
		return l.ctx.Context, false
	}
	c := new(lockContext)
	c.Context, c.cancel = context.WithCancelCause(withHeld(context.WithoutCancel(l.acquireCtx), l))
	l.ctx = c
	if l.over != nil {
		c.cancel(l.over)
		return c.Context, false
	}
	now, end := l.clock.Now(), l.contextEnd()
	c.timer = l.clock.AfterFunc(now.Until(end), l.timeUp)
	l.renewer.Watch(&l.renewal)
	return c.Context, now.Reached(end)
}

// Within returns a context that belongs to the lock and ends with ctx, whose values it carries, or with
// the lock, whichever is first; context.Cause tells which, as for Context. It is what Do gives to its
// function. Call the CancelFunc when the work is done. A context that comes from several locks ends
// with the first of them, and Held finds each.
func (l *Lock) Within(ctx context.Context) (context.Context, context.CancelFunc) {
	inner, end := l.within(ctx)
	return inner, func() { end(nil) }
}

func (l *Lock) within(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	held := l.Context()
	inner, cancel := context.WithCancelCause(withHeld(ctx, l))
	stop := context.AfterFunc(held, func() { cancel(context.Cause(held)) })
	if held.Err() != nil {
		cancel(context.Cause(held)) // not some time later, on a goroutine of its own
	}
	return inner, func(cause error) {
		stop()
		cancel(cause)
	}
}

// contextEnd is when the context is to end; the caller holds mu.
func (l *Lock) contextEnd() tick.Instant {
	if most := l.terms.maxHold; most > 0 {
		return tick.Earliest(l.until, l.grantedAt.Add(most))
	}
	return l.until
}

// timeUp is called by the timer of the lock's context.
func (l *Lock) timeUp() {
	if lost := l.checkEnd(); lost != nil {
		l.tellLost(lost)
	}
}

// checkEnd ends the lock's context if its time has come. If the lock was not known to be
// over, it returns why it was lost, and tellLost is the caller's to call.
func (l *Lock) checkEnd() (lost error) {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.over != nil || l.ctx == nil:
	case now.Reached(l.until):
		lost = l.expired()
		l.finish(now, lost)
	case now.Reached(l.contextEnd()):
		l.ctx.cancel(fmt.Errorf("redlock: %w: %w: %s held for WithMaxHold, %v", ErrLost, ErrExpired, quoteKey(l.key), l.terms.maxHold))
	default:
		l.ctx.timer.Reset(now.Until(l.contextEnd()))
	}
	return lost
}

// expired is the error of a lease that ran out, with what the nodes answered when it was to be
// extended last; the caller holds mu.
func (l *Lock) expired() error {
	err := fmt.Errorf("redlock: %w: %w: lease of %s not extended in time", ErrLost, ErrExpired, quoteKey(l.key))
	if l.notExtended == nil {
		return err
	}
	return fmt.Errorf("%w; the last try: %w", err, detail{l.notExtended})
}

// tellLost calls the hook; mu must not be held.
func (l *Lock) tellLost(why error) {
	if lost := l.opts.Hooks.Lost; lost != nil {
		lost(context.WithoutCancel(l.acquireCtx), LostInfo{Key: l.key, Token: l.Token(), Mode: l.terms.mode(), Err: why})
	}
}

// finish ends everything that lasts as long as the lock; the caller holds mu.
func (l *Lock) finish(now tick.Instant, why error) {
	l.stop(now, why)
	if l.ctx != nil {
		l.ctx.cancel(why)
	}
}

// stop is finish without the lock's context; the caller holds mu.
func (l *Lock) stop(now tick.Instant, why error) {
	l.over = why
	// By each clock: one that ended the lock and is set back afterwards must not give it time again.
	l.until = tick.Earliest(l.until, now)
	if l.renews || l.ctx != nil {
		l.renewer.Forget(&l.renewal)
	}
	if l.ctx != nil {
		l.ctx.timer.Stop()
	}
}

// lasts moves the end of validity on. Nothing but stop moves it back. The caller holds mu.
func (l *Lock) lasts(until, now tick.Instant) {
	if invariants.On && (l.over != nil || now.Until(until) < now.Until(l.until)) {
		invariants.Broken("a lock of %q, over by %v, was valid for %v and shall be for %v", l.key, l.over, now.Until(l.until), now.Until(until))
	}
	l.until = until
}

// lost returns why the lock was lost, or nil if it is held or was released. found: that was not
// known, and tellLost is the caller's to call.
func (l *Lock) lost() (found bool, why error) {
	now := l.clock.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over == nil && now.Reached(l.until) {
		l.finish(now, l.expired())
		found = true
	}
	if errors.Is(l.over, ErrLost) {
		why = l.over
	}
	return found, why
}

// heldIn is a lock that a context belongs to, and those around it.
type heldIn struct {
	lock   *Lock
	around *heldIn
}

type heldKey struct{}

// withHeld is a context that belongs to this lock, too.
func withHeld(ctx context.Context, l *Lock) context.Context {
	h, _ := ctx.Value(heldKey{}).(*heldIn)
	return context.WithValue(ctx, heldKey{}, &heldIn{l, h})
}

// innermost is the innermost lock that the context belongs to of those that are still held and
// for which is returns true; nil if there is none.
func innermost(ctx context.Context, is func(*Lock) bool) *Lock {
	h, _ := ctx.Value(heldKey{}).(*heldIn)
	for ; h != nil; h = h.around {
		if is(h.lock) && h.lock.Validity() > 0 {
			return h.lock
		}
	}
	return nil
}

// An acquire inside of its own lock: with a context that ends with a lock of the same key it
// would wait for itself.

// WithReentry lets a function that acquires the lock be called by one that already holds it: if the context
// given to Do or Lead belongs to a held lock of the same key, they ask no node and call their function at once,
// with that Lock. It is for the inner Mutex; without it such a call fails with ErrNested. See [Held].
//
// The outer lock must cover what the inner Mutex describes: an exclusive lock covers all, any other its own
// kind, and WithFencing needs a lock that has it. Otherwise they fail with ErrNested.
//
// Two goroutines that share such a context are both let in. Release of the Lock releases the
// outer lock.
func WithReentry() LockOption { return func(t *draft) { t.reentry = true } }

// Held returns the lock with the given key to which ctx belongs, and whether there is one that is
// still held: ctx is that of Do's function, Lock.Context or Lock.Within, or derived from it. key is that of
// Lock.Key, without Options.KeyPrefix. Of several it is the innermost: Held does not tell Redlocks
// apart that use the same key, nor an exclusive lock from a shared one or a permit. It asks no node.
//
// It is for functions that are called under a lock and were not given it: for its Fence, which
// panics if the lock was acquired without WithFencing, or to return an error where the caller should
// have locked.
func Held(ctx context.Context, key string) (*Lock, bool) {
	l := innermost(ctx, func(l *Lock) bool { return l.key == key })
	return l, l != nil
}

func (l *Lock) isOf(r *resource) bool { return l.nodeSet == r.nodeSet && l.name == r.name }

// checkNested returns ErrNested if the context belongs to the lock that is to be acquired. A
// holder of a permit may well acquire another one, unless the same one is asked for.
func checkNested(ctx context.Context, r *resource) error {
	another := func(l *Lock) bool { return r.terms.permits > 1 && l.terms.permits > 1 && !r.terms.reentry }
	if innermost(ctx, func(l *Lock) bool { return l.isOf(r) && !another(l) }) == nil {
		return nil
	}
	return fmt.Errorf("redlock: %v %s: %w", protocol.OpAcquire, quoteKey(r.key), ErrNested)
}

// covering is the lock that the context belongs to, if it has all that the terms ask for.
func covering(ctx context.Context, r *resource) *Lock {
	return innermost(ctx, func(l *Lock) bool {
		if !l.isOf(r) || r.terms.fencing && !l.terms.fencing {
			return false
		}
		return !l.terms.shared || r.terms.shared && r.terms.permits == l.terms.permits
	})
}
