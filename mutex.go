package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/renew"
)

// Mutex describes an exclusive lock: its key and its options. It has no state of its own, so one Mutex serves any
// number of goroutines, and two with the same key are the same lock. It is made by Redlock.Mutex.
type Mutex struct{ lockable }

// SharedMutex describes a lock that may have any number of holders at a time, see Mutex.Shared.
type SharedMutex struct{ lockable }

// Semaphore describes a lock that may have a limited number of holders at a time, see Redlock.Semaphore.
type Semaphore struct{ lockable }

// lockable is what describes a lock, however many may hold it.
type lockable struct {
	resource
	queues  *queues
	renewer *renew.Renewer
	err     error // a broken rule
}

// Key returns the lock's key, without Options.KeyPrefix.
func (m *lockable) Key() string { return m.key }

// newMutex judges the terms; what is wrong with them is the error of every operation.
func newMutex(ns *nodeSet, qs *queues, k *renew.Renewer, key string, opts []LockOption) *Mutex {
	return &Mutex{describe(ns, qs, k, key, draft{terms: terms{Terms: protocol.Terms{TTL: ns.opts.TTL}}}, opts)}
}

// newSemaphore is newMutex for a lock that up to permits hold at a time.
func newSemaphore(ns *nodeSet, qs *queues, k *renew.Renewer, key string, permits int, opts []LockOption) *Semaphore {
	t := draft{terms: terms{Terms: protocol.Terms{TTL: ns.opts.TTL}, shared: true, permits: permits}}
	if permits < 1 || permits > maxPermits {
		t.broken = append(t.broken, fmt.Sprintf("permits is %d: must be from 1 to %d", permits, maxPermits))
	}
	return &Semaphore{describe(ns, qs, k, key, t, opts)}
}

func describe(ns *nodeSet, qs *queues, k *renew.Renewer, key string, t draft, opts []LockOption) lockable {
	for _, o := range opts {
		if o == nil {
			t.broken = append(t.broken, "a LockOption is nil")
			continue
		}
		o(&t)
	}
	broken := append(t.broken, protocol.BrokenName(key, ns.opts.KeyPrefix)...)
	if t.shared {
		broken = append(broken, t.onlyExclusive()...)
	}
	if most := ns.guard.Period(t.TTL, t.fencing); t.minHold > most && ttlRange("", t.TTL) == "" && ttlRange("", t.minHold) == "" && ns.opts.RestartGuard >= 0 {
		broken = append(broken, fmt.Sprintf("WithMinHold is %v: must be at most %v, for which a node that restarted is kept from granting (the TTL, or a longer Options.RestartGuard)", t.minHold, most))
	}
	broken = append(broken, brokenTTL("TTL", t.TTL, ns.opts)...)
	t.NodeTimeout = ns.opts.nodeTimeout(t.TTL)
	m := lockable{resource: newResource(ns, key, t.terms), queues: qs, renewer: k}
	if len(broken) > 0 {
		m.err = invalid("lock "+quoteKey(key), broken)
	}
	return m
}

// maxPermits is the most permits that a semaphore can have.
const maxPermits = 1024

// onlyExclusive is what only exclusive locks can have.
func (t *terms) onlyExclusive() (broken []string) {
	if t.fencing {
		broken = append(broken, "WithFencing is for exclusive locks: a token that several have at once orders nothing")
	}
	if t.minHold > 0 {
		broken = append(broken, "WithMinHold is for exclusive locks")
	}
	return broken
}

// Shared describes the shared lock of the same key, with the options of m: any number of shared locks of a key are
// granted at a time, and none beside an exclusive one.
//
//	config := rl.Mutex("config")
//	config.Shared().Do(ctx, read)  // beside other readers
//	config.Do(ctx, write)          // exclusive
//
// A shared lock cannot be made exclusive: release it, acquire the other, and look again at what was read.
//
// Readers and writers wait in one queue, first come, first served, but all readers in it have their turn with the
// first. A writer that is first keeps newcomers from sharing the lock.
//
// The methods fail with ErrInvalid if m has WithFencing or WithMinHold. Nodes keep two more keys for it, see
// "Permissions" in docs/operations.md.
func (m *Mutex) Shared() *SharedMutex {
	s := &SharedMutex{m.lockable}
	s.terms.shared = true
	if s.err == nil {
		s.err = invalid("lock "+quoteKey(m.key), s.terms.onlyExclusive())
	}
	return s
}

func (m *lockable) check(ctx context.Context, o protocol.Op) error {
	switch {
	case m.err != nil:
		return m.err
	default:
		return m.usable(ctx, o)
	}
}

// TryAcquire asks all nodes once, and returns when a majority granted the lock, or when none can any more. It never
// waits for a holder. The lock ends after its TTL unless it is renewed: see WithRenewal and Lock.Extend.
//
// Several that ask for a free lock at once rarely all fail; where one must succeed, use Acquire.
//
// It fails with ErrHeld, ErrNoQuorum, ErrExpired if the majority came too late, ErrClosed, ErrInvalid, ErrNested, or
// with ctx's error, within NodeTimeout, or up to three times that: a second round may be needed, and one more on new
// nodes. What a failure left is taken back in the background; on a node that stays away it lasts for the TTL at most.
func (m *lockable) TryAcquire(ctx context.Context) (*Lock, error) {
	return m.acquire(ctx, acquisition{})
}

// Contended reports, for this process only, whether it has waiters for the lock, or was told to wait for it within
// the last second. TryAcquire may then overtake a waiter whose turn has come; Acquire does not. It asks no node.
func (m *lockable) Contended() bool {
	return m.queues.recentlyRefused(&m.resource)
}

// Acquire waits until the lock is granted, ctx ends, or WithMaxWait is over. The lock is not renewed, see TryAcquire;
// most callers want Do.
//
// If another holds the lock it joins the lock's queue on one node. Grants follow the order of arrival, across
// processes and modes; docs/safety.md has the exceptions. Where no node keeps a queue it polls.
//
// A held lock and an outage are waited out. Only errors that waiting cannot fix end it early, with ErrNoQuorum,
// ErrDuplicateNode, or ErrHeld where the key holds no lock: docs/operations.md has the table. Close ends it with
// ErrClosed. When ctx ends, errors.Is finds its error and the last attempt's reason, errors.As its *QuorumError.
// A failure leaves what one of TryAcquire does.
func (m *lockable) Acquire(ctx context.Context) (*Lock, error) {
	return m.acquire(ctx, acquisition{wait: true})
}

// Do acquires the lock as Acquire does, calls fn, and releases the lock, also when fn panics.
// While fn runs the lock is renewed. fn's context ends with ctx, and with cause ErrLost when
// the lock is lost; fn should then stop at once, since another may hold the lock. Do waits for
// fn to return in any case.
//
// It returns Acquire's error if fn was not called (set a variable in fn to tell such an ErrHeld from fn's own);
// otherwise fn's error and, if the lock was lost, as even the release may find, one for which errors.Is(err,
// ErrLost). A release that too few nodes answered is no error. fn may release the lock itself.
func (m *lockable) Do(ctx context.Context, fn func(ctx context.Context, lock *Lock) error) error {
	if fn == nil {
		return fmt.Errorf("redlock: do: %w fn: it is nil", ErrInvalid)
	}
	return withLost(m.whileHeld(ctx, 0, fn))
}

// whileHeld is Do, with fn's error as it is, and beside it why the lock was lost. It also waits for
// these remedies.
func (m *lockable) whileHeld(ctx context.Context, awaits protocol.Remedies, fn func(ctx context.Context, lock *Lock) error) (lost, err error) {
	lock, err := m.acquire(ctx, acquisition{wait: true, renews: true, awaits: awaits})
	if errors.Is(err, ErrNested) && m.terms.reentry {
		if lock = covering(ctx, &m.resource); lock != nil {
			return lock.again(ctx, fn)
		}
	}
	if err != nil {
		return nil, err
	}
	return lock.whileHeld(ctx, fn)
}

// whileHeld calls fn with a context that ends with ctx, or when the lock is lost, and releases the lock. It
// returns fn's error as it is, and beside it why the lock was lost; nil if it was not.
func (l *Lock) whileHeld(ctx context.Context, fn func(ctx context.Context, lock *Lock) error) (lost, err error) {
	inner, end := l.within(ctx)
	// Deferred one by one, so that a panic or Goexit, in fn or in a hook, skips nothing and
	// then goes on.
	defer end(ErrReleased)
	defer func() {
		found, why := l.lost()
		// Sent before a hook is called, which may take its time: another may want the lock.
		sent, start := l.startRelease(true)
		defer func() {
			if rerr := l.endRelease(ctx, sent, start); lost == nil && errors.Is(rerr, ErrNotHeld) {
				lost = fmt.Errorf("redlock: %w: %w", ErrLost, within{rerr})
			}
		}()
		if lost = why; found {
			l.tellLost(why)
		}
	}()
	return nil, fn(inner, l)
}

// again is whileHeld inside of it, and leaves the release to the one outside.
func (l *Lock) again(ctx context.Context, fn func(ctx context.Context, lock *Lock) error) (lost, err error) {
	inner, end := l.within(ctx)
	defer end(nil)
	err = fn(inner, l)
	found, lost := l.lost()
	if found {
		l.tellLost(lost)
	}
	return lost, err
}

// withLost is both errors of whileHeld in one.
func withLost(lost, err error) error {
	if lost != nil && !errors.Is(err, ErrLost) {
		return inOneLine(err, lost)
	}
	return err
}

// acquire does what a says, which tells only how to.
func (m *lockable) acquire(ctx context.Context, a acquisition) (*Lock, error) {
	if err := m.check(ctx, protocol.OpAcquire); err != nil {
		return nil, err
	}
	if err := checkNested(ctx, &m.resource); err != nil {
		return nil, err
	}
	a.resource, a.queues, a.renewer, a.caller, a.ctx = &m.resource, m.queues, m.renewer, ctx, ctx
	return a.acquire()
}

// Adopt goes on with a lock by the token that Lock.Detach returned in another process, or that a process wrote down
// before it was killed. A majority of nodes replaces the token by a fresh one; the lock is held throughout, and
// for the Mutex's TTL from now; a fencing token grows.
//
// Adopt before the lease ends; "A lock that is passed on" in docs/safety.md says what happens afterwards. A process
// that was only paused still believes in its lock.
//
// Adopt asks all nodes once. It fails with ErrNotHeld if no majority has the token, with ErrInvalid for a malformed
// one, and otherwise as TryAcquire does; the lock may be gone then. Of two callers at most one gets it.
func (m *Mutex) Adopt(ctx context.Context, token string) (*Lock, error) {
	if err := m.check(ctx, protocol.OpAdopt); err != nil {
		return nil, err
	}
	if !isToken(token) {
		return nil, fmt.Errorf("redlock: adopt %s: %w token: it has %d bytes, and a token is %d hexadecimal digits in lower case, as Lock.Token and Detach return it",
			quoteKey(m.key), ErrInvalid, len(token), tokenLen)
	}
	a := acquisition{resource: &m.resource, queues: m.queues, renewer: m.renewer, caller: ctx, ctx: ctx, adoptFrom: token}
	return a.acquire()
}

func isToken(s string) bool {
	return len(s) == tokenLen && strings.Trim(s, "0123456789abcdef") == ""
}

// Lead runs fn in one of its callers at a time. It waits for the lock and calls fn, as Do does. When the lock is
// lost, or WithMaxHold ends the term, it waits for fn, drops its error, pauses for RetryMin, and waits again.
//
// A leader resigns by returning from fn while the lock is held: Lead returns fn's error or nil. When ctx ends it
// returns fn's result if it leads, and otherwise Acquire's error, so look at ctx.Err() first. A wrong password and
// missing permissions are waited out; Hooks.Degraded tells.
//
// fn's context ends when the lock is lost; fn must stop then, since another may lead. With WithFencing, Lock.Fence is
// the number of the term.
func (m *Mutex) Lead(ctx context.Context, fn func(ctx context.Context, lock *Lock) error) error {
	if fn == nil {
		return fmt.Errorf("redlock: lead: %w fn: it is nil", ErrInvalid)
	}
	for {
		// Both are judged by the lock of this term: fn may well return the loss of another lock.
		ended := false // by WithMaxHold the lock is not lost yet, and yet it is no resignation
		// A leader is to be there for as long as the program runs, whatever operators do to its user meanwhile.
		lost, err := m.whileHeld(ctx, protocol.NewPassword|protocol.NewRights, func(ctx context.Context, lock *Lock) error {
			err := fn(ctx, lock)
			ended = errors.Is(context.Cause(lock.Context()), ErrLost)
			return err
		})
		if ctx.Err() != nil || !ended && lost == nil {
			return withLost(lost, err)
		}
		_ = m.pause(ctx, m.opts.RetryMin) // if that ends early, the next term says why
	}
}
