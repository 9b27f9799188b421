package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Mutex describes a lock: its key and its terms. It has no state of its own, so one
// Mutex serves any number of goroutines, and two with the same key are the same lock.
// It is made by Redlock.Mutex; the zero value refuses every operation.
type Mutex struct {
	rl     *Redlock
	key    string
	name   any    // the key on the nodes, a string
	hash   uint64 // of name, see weight
	naming naming // of the line
	terms  terms
	err    error
}

// Mutex describes the lock of a key, which may be any bytes but not empty. It does no
// I/O. Options that break a rule are reported by the Mutex's methods, with ErrInvalid.
func (rl *Redlock) Mutex(key string, opts ...LockOption) *Mutex {
	if rl == nil || rl.nodes == nil {
		return &Mutex{}
	}
	name := rl.opts.KeyPrefix + key
	m := &Mutex{rl: rl, key: key, name: name, naming: lineNaming(name), hash: fnv1a(name), terms: terms{ttl: rl.opts.TTL}}
	for _, o := range opts {
		if o == nil {
			m.terms.broken = append(m.terms.broken, "a LockOption is nil")
			continue
		}
		o(&m.terms)
	}
	broken := m.terms.broken
	if key == "" {
		broken = append(broken, "the key is empty: must be at least one byte")
	}
	broken = append(broken, brokenTTL("TTL", m.terms.ttl, rl.opts)...)
	m.terms.nodeTimeout = rl.opts.nodeTimeout(m.terms.ttl)
	if len(broken) > 0 {
		m.err = invalid("lock "+quoteKey(key), broken)
	}
	return m
}

func (m *Mutex) check(ctx context.Context, op string) error {
	switch {
	case m == nil || m.rl == nil:
		return fmt.Errorf("redlock: %s: %w Mutex: it was not made by Redlock.Mutex", op, ErrInvalid)
	case m.err != nil:
		return m.err
	case m.rl.isClosed():
		return fmt.Errorf("redlock: %s %s: %w", op, quoteKey(m.key), ErrClosed)
	case ctx.Err() != nil:
		return &QuorumError{Op: op, Key: m.key, Need: m.rl.quorum, reasons: ended(ctx)}
	default:
		return nil
	}
}

// TryAcquire asks all nodes once and returns when a majority granted or none is left
// to be had, without waiting for slower nodes, and never waits for a holder.
//
// It fails with ErrHeld if another holds the lock, ErrNoQuorum if too many nodes do
// not answer (that takes the timeout per node at most), ErrExpired if the majority
// came too late to be of use, ErrClosed, ErrInvalid, or with ctx's error when that
// ends first. Of several that ask for a free lock at the same moment, each may get a
// minority, and then all are refused: where one of them must get it, use Acquire with a
// deadline. After a failure nothing is left on nodes that can be reached; it is
// taken back in the background, also from nodes that answer late. On one that stays
// away, a key lasts for the TTL at most.
func (m *Mutex) TryAcquire(ctx context.Context) (*Lock, error) {
	return m.acquire(ctx, false, false)
}

// Acquire waits in line until it is granted or ctx ends. Most callers want Do instead.
//
// It asks all nodes at once, and if another holds the lock it joins the lock's line,
// which one of the nodes keeps, and asks again when it is its turn. Grants follow the
// order of arrival in the line, across goroutines and processes, except that a first
// attempt may find the lock free just before its turn is given to another; a process
// that was refused the lock within the last second goes to the line first. Where no node
// keeps a line, for lack of rights or nodes, it polls, with random pauses.
//
// A held lock and an outage of the nodes are both waited out. What ends it early are
// errors that no waiting mends, on so many nodes that they alone rule out a quorum: no
// or wrong credentials, a key that holds something else, a node of a cluster. When ctx
// ends, errors.Is finds its error and the last attempt's reason, and errors.As the last
// attempt's *QuorumError. Each attempt leaves as little behind as TryAcquire.
func (m *Mutex) Acquire(ctx context.Context) (*Lock, error) {
	return m.acquire(ctx, true, false)
}

// Do acquires the lock, calls fn, and releases it, also when fn panics. While fn runs
// the lock is renewed. fn's context ends with ctx, and with cause ErrLost when the lock
// is lost; fn should then stop at once, since another may hold the lock.
//
// It returns Acquire's error if there is no lock and fn was not called; otherwise fn's
// error and, if the lock was lost while fn ran, one for which errors.Is(err, ErrLost).
// A release that not enough nodes confirmed is no error here, since fn's work was done
// under the lock; Hooks.Released is told.
func (m *Mutex) Do(ctx context.Context, fn func(ctx context.Context, lock *Lock) error) (err error) {
	if fn == nil {
		return fmt.Errorf("redlock: do: %w fn: it is nil", ErrInvalid)
	}
	lock, err := m.acquire(ctx, true, true)
	if err != nil {
		return err
	}
	held := lock.Context()
	inner, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(held, func() { cancel(context.Cause(held)) })
	defer func() {
		// Deferred, so that a panic or Goexit in fn releases too, and then goes on.
		lost := lock.lost()
		if rerr := lock.Release(ctx); lost == nil && errors.Is(rerr, ErrNotHeld) {
			lost = fmt.Errorf("redlock: %w: %w", ErrLost, rerr)
		}
		stop()
		cancel(ErrReleased)
		if lost != nil && !errors.Is(err, ErrLost) {
			err = errors.Join(err, lost)
		}
	}()
	return fn(inner, lock)
}

func (m *Mutex) acquire(ctx context.Context, wait, renew bool) (*Lock, error) {
	if err := m.check(ctx, acquire.String()); err != nil {
		return nil, err
	}
	if !m.rl.enter() {
		return nil, fmt.Errorf("redlock: acquire %s: %w", quoteKey(m.key), ErrClosed)
	}
	defer m.rl.leave()

	start := m.rl.clock.now()
	var (
		lock     *Lock
		err      error
		last     *QuorumError
		w        *waiter // once it has to wait
		attempts int
		waiting  instant // since when
		waited   time.Duration
	)
	await := func() error {
		if waiting.time.IsZero() {
			waiting = m.rl.clock.now()
		}
		err := m.untilNextAttempt(ctx, max(attempts, 1), last, w)
		waited = m.rl.clock.now().since(waiting)
		return err
	}
	if wait && m.crowded() {
		last, w = m.notAsked(), m.newWaiter()
		err = await()
	}
	for err == nil {
		attempts++
		var again bool
		lock, again, err = m.attempt(ctx, renew, w)
		if err == nil || !wait || !again {
			break
		}
		errors.As(err, &last)
		if w == nil {
			w = m.newWaiter()
		}
		err = await()
	}
	if w != nil {
		w.end()
	}
	if err != nil && last != nil && (ctx.Err() != nil || errors.Is(err, ErrClosed)) {
		// What the nodes said last tells more than the attempt that was cut short.
		why := []error{ErrClosed}
		if ctx.Err() != nil {
			why = ended(ctx)
		}
		last.reasons = append(why, last.reasons...)
		err = last
	}
	if acquired := m.rl.opts.Hooks.Acquired; acquired != nil {
		info := AcquireInfo{
			Context: ctx, Key: m.key, Attempts: attempts, Start: start.time, Elapsed: m.rl.clock.now().since(start),
			WaitStart: waiting.time, Waited: waited, Err: err,
		}
		if lock != nil {
			info.Token, info.Until, info.Outcomes = lock.token, lock.Until(), lock.Outcomes()
		} else if q := (*QuorumError)(nil); attempts > 0 && errors.As(err, &q) {
			info.Outcomes = q.Outcomes
		}
		acquired(info)
	}
	return lock, err
}

// attempt is one round of the Redlock algorithm: the same key and a fresh token on all
// nodes, a majority within the validity time, everything taken back otherwise. again
// tells whether waiting may help.
//
// For a waiter that is in line, the token is the one that stands there, which the node
// that keeps the line may have put under the key already. It is as fresh as any: it was
// made for this attempt and is struck out by it.
func (m *Mutex) attempt(ctx context.Context, renew bool, w *waiter) (lock *Lock, again bool, err error) {
	rl := m.rl
	var l *Lock
	if w != nil && w.entry != "" {
		node, entry, value := w.claim()
		l = newLock(m, value)
		l.arbiter, l.entry = node, entry
	} else {
		value, err := rl.newValue()
		if err != nil {
			return nil, false, err
		}
		l = newLock(m, value)
	}
	start := rl.clock.now()
	until := validUntil(start, m.terms.ttl, rl.opts.DriftFactor)
	r := l.sendAcquire(start)

	v, cut := r.wait(ctx, rl.clock, rl.closing, undecided)
	if cut == nil && v == hopeless {
		// Already over: free what we got at once, then wait for what to call it.
		l.takeBack(true)
		v, cut = r.waitFinal(ctx, rl.clock, rl.closing)
	}
	if cut == nil && v == granted && m.terms.fencing {
		var raised *round
		if raised, v, cut = l.settleFence(ctx); v != granted {
			r = raised // its votes tell what went wrong
			if v == held {
				v = noQuorum // whose lease ended is not held by another
			}
		}
	}
	now := rl.clock.now()
	var reasons []error
	twice := rl.guard.duplicate()
	switch {
	case twice != nil && cut == nil:
		reasons = []error{twice}
	case cut == nil && v == granted && !now.reached(until):
		l.begin(ctx, until, now, renew)
		return l, false, nil
	case errors.Is(cut, ErrClosed):
		reasons = []error{ErrClosed}
	case cut != nil:
		reasons = ended(ctx)
	case v == granted:
		reasons, again = []error{ErrExpired}, true
	case v == held:
		reasons, again = []error{ErrHeld}, true
	default:
		reasons, again = []error{ErrNoQuorum}, !r.incurable()
	}
	if again && l.entry != "" {
		w.again()
	}
	l.takeBack(false)
	return nil, again, r.fail(rl, acquire, m.key, reasons...)
}

// notAsked is what there is to say of an acquire that is still in line: that another
// holds the lock, as the last one of this process was told.
func (m *Mutex) notAsked() *QuorumError {
	e := &QuorumError{Op: acquire.String(), Key: m.key, Need: m.rl.quorum, reasons: []error{ErrHeld}}
	for _, name := range m.rl.names {
		e.Outcomes = append(e.Outcomes, Outcome{Node: name, Vote: VoteBarred, Err: errInLine})
	}
	return e
}

var errInLine = errors.New("not asked: waiting in line")

// untilNextAttempt waits between two attempts of Acquire: in line if the lock is held
// and a node keeps one, else for a random time. What comes in the way besides another
// holder is no matter of whose turn it is.
func (m *Mutex) untilNextAttempt(ctx context.Context, attempts int, last *QuorumError, w *waiter) error {
	isHeld := errors.Is(last, ErrHeld)
	if w != nil && isHeld {
		if err := w.await(ctx, last); !errors.Is(err, errNoLine) {
			return err
		}
	}
	if w != nil && !isHeld && w.failures >= 2 {
		// Our turn keeps a node from the others, and we cannot reach enough of them.
		w.withdraw()
		w.failures = 0
		w.lines.mu.Lock()
		w.polls = true
		w.lines.mu.Unlock()
	}
	free := time.Duration(-1)
	if isHeld {
		var err error
		if free, _, err = m.look(ctx, last); err != nil {
			return err
		}
	}
	return m.rl.pause(ctx, m.backoff(attempts, free))
}

// backoff is how long to pause when nobody will tell us, with full jitter so that
// contenders do not split the votes again and again; free is when the lock will be free,
// negative if nobody knows.
func (m *Mutex) backoff(attempts int, free time.Duration) time.Duration {
	o := &m.rl.opts
	limit := o.RetryMax
	if shift := attempts - 1; o.RetryMin < limit>>shift {
		limit = o.RetryMin << shift
	}
	d := o.RetryMin + m.rl.clock.jitter(limit-o.RetryMin+1)
	if free >= 0 {
		// Nobody will tell us of a lease that ends; be there when it does.
		d = min(d, max(o.RetryMin, free)+m.rl.clock.jitter(o.RetryMin))
	}
	return d
}

// look asks what stands in our way and adds it to the error. It returns in what time
// the lock will be free, negative if nobody knows, and an error if what is there is
// nothing that will ever be released.
func (m *Mutex) look(ctx context.Context, last *QuorumError) (free time.Duration, all []inspection, err error) {
	rl := m.rl
	// All nodes, since those that hold something strange may be the slowest.
	r, err := rl.askAll(ctx, inspectRequest(&m.terms, m.name, m.line(), 0))
	if err != nil {
		return 0, nil, err
	}
	var lefts []time.Duration // until each node is free
	strange := 0
	all = r.inspected()
	for i, n := range all {
		if !n.known {
			continue
		}
		last.Outcomes[i].Holder = n.value
		if n.kind != "string" && n.kind != "none" {
			strange++
			last.Outcomes[i].Err = fmt.Errorf("the key holds a %s, which is no lock", n.kind)
		}
		switch {
		case n.kind == "none":
			lefts = append(lefts, 0)
		case n.ttl >= 0:
			lefts = append(lefts, n.ttl)
		}
	}
	if strange >= len(rl.nodes)-rl.quorum+1 {
		return 0, all, last
	}
	// The lock is free when a quorum of nodes is.
	if slices.Sort(lefts); len(lefts) < rl.quorum {
		return -1, all, nil
	}
	last.HolderTTL = lefts[rl.quorum-1]
	return last.HolderTTL, all, nil
}
