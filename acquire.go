package redlock

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/renew"
	"github.com/quorumlock/redlock/internal/tick"
)

// acquisition is one call of TryAcquire, Acquire or Do until it has its lock or gives up.
type acquisition struct {
	*resource
	queues  *queues
	renewer *renew.Renewer
	caller  context.Context // given to the call: that of the lock and of hooks
	ctx     context.Context // what ends the acquire: caller, or the time that it may wait
	wait    bool            // for a holder
	// awaits is what else the acquire waits for where it alone keeps it from a quorum.
	awaits protocol.Remedies
	renews bool // once it is held
	// adoptFrom is the token of the lock to go on with; empty: it is to be free.
	adoptFrom string

	start    tick.Instant
	attempts int
	w        *waiter      // once it is to wait in order
	last     *QuorumError // nil: it has asked no node
	waiting  tick.Instant // since when
	waitID   uint64       // told to Hooks.Waiting; 0: it was not called
	waited   time.Duration
}

// acquire returns the lock, or why there is none.
func (a *acquisition) acquire() (*Lock, error) {
	if !a.life.enter() {
		return nil, fmt.Errorf("redlock: %v %s: %w", a.op(), quoteKey(a.key), ErrClosed)
	}
	defer a.life.leave()
	if a.wait {
		ctx, cancel := boundWait(a.ctx, a.terms.maxWait)
		defer cancel()
		a.ctx = ctx
	}
	a.start = a.clock.Now()
	lock, err := a.run()
	if a.w != nil {
		a.w.leave(lock != nil)
	}
	err = a.explain(err)
	a.handOver(lock, err)
	return lock, err
}

// boundWait is ctx, or a context that ends earlier, after the time that an acquire may wait; 0:
// without end.
func boundWait(ctx context.Context, most time.Duration) (context.Context, context.CancelFunc) {
	if most == 0 {
		return ctx, func() {}
	}
	return context.WithTimeoutCause(ctx, most, waitOver(most))
}

// handOver tells the hook before the caller has the lock. A hook that does not return (a
// panic, which the caller may recover, or runtime.Goexit) leaves the lock to no caller, and it
// would be renewed for as long as the process lives, so it is released.
func (a *acquisition) handOver(lock *Lock, err error) {
	returned := false
	defer func() {
		if !returned && lock != nil {
			sent, start := lock.startRelease(false)
			_ = lock.endRelease(a.caller, sent, start)
		}
	}()
	a.tellAcquired(lock, err)
	returned = true
}

// run makes attempts, and waits between them.
func (a *acquisition) run() (lock *Lock, err error) {
	for err == nil {
		var retryable bool
		lock, retryable, err = a.inTurn()
		if err == nil || !a.wait || !retryable {
			break
		}
		last := a.last
		errors.As(err, &last) // not into a: it would be on the heap, in every acquire
		a.last = last
		a.tellRefusals()
		err = a.untilNextAttempt()
	}
	return lock, err
}

// inTurn makes an attempt. One that may wait for a holder, and has not yet, makes none while others
// of this process wait for the lock, which it must not overtake, and not before too many others that
// ask as it does have their answers.
func (a *acquisition) inTurn() (lock *Lock, retryable bool, err error) {
	if a.wait && (a.waiting.Time.IsZero() || !a.hasQueue()) {
		if !a.queues.recentlyRefused(a.resource) {
			select {
			case a.queues.atFirst <- struct{}{}:
			default:
				if err := a.awaitOthers(); err != nil {
					return nil, false, err
				}
			}
			defer func() { <-a.queues.atFirst }()
		}
		if a.queues.recentlyRefused(a.resource) {
			return nil, true, errInQueue
		}
	}
	a.attempts++
	barred := false // was the one before
	a.whileNew(a.ctx, a.terms.NodeTimeout, func() (again bool) {
		lock, retryable, err = a.attempt()
		switch before := barred; {
		case err == nil || !retryable || a.adoptFrom != "": // a token is good for one try
			return false
		case onlyBarred(err):
			barred = true
			return a.guard.Begins() || a.mayVoteNow(err)
		default:
			// What refuses it may be the key of that one: a server that does not know the script yet deletes it
			// a moment later.
			barred = false
			return before
		}
	})
	return lock, retryable, err
}

// mayVoteNow reports whether a grant that was barred when it came would count by now, since all nodes were told
// meanwhile that they are new.
func (a *acquisition) mayVoteNow(err error) bool {
	var q *QuorumError
	if !errors.As(err, &q) {
		return false
	}
	now := a.clock.Now().Mono
	for i, o := range q.Outcomes {
		if o.Vote == VoteBarred && a.guard.Judge(i, protocol.MaxAge, now) == 0 { // not for its age
			return true
		}
	}
	return false
}

// awaitOthers returns when it is this acquire's turn to ask for the first time.
func (a *acquisition) awaitOthers() (err error) {
	select {
	case a.queues.atFirst <- struct{}{}:
		if err = a.ctx.Err(); err == nil {
			a.clock.Yield(a.start.Mono)
			return nil
		}
		<-a.queues.atFirst
	case <-a.ctx.Done():
		err = a.ctx.Err()
	case <-a.life.closing:
		a.clock.Yield(a.start.Mono)
		err = ErrClosed
	}
	a.last = a.notAsked(ErrNoQuorum, lane.ErrTooLate)
	return err
}

// explain makes the error of an acquire that was cut short while it waited: what the nodes
// said last tells more than the attempt that was cut.
func (a *acquisition) explain(err error) error {
	if err == nil || a.last == nil {
		return err
	}
	return cutShort(a.ctx, a.last, err)
}

func cutShort(ctx context.Context, last *QuorumError, err error) error {
	if ctx.Err() == nil && !errors.Is(err, ErrClosed) {
		return err
	}
	why := []error{ErrClosed}
	if ctx.Err() != nil {
		why = withContextErr(ctx)
	}
	last.reasons = append(why, last.reasons...)
	return last
}

func (a *acquisition) tellAcquired(lock *Lock, err error) {
	acquired := a.opts.Hooks.Acquired
	if acquired == nil {
		return
	}
	info := AcquireInfo{
		Key: a.key, Mode: a.terms.mode(), Attempts: a.attempts, Start: a.start.Time, Elapsed: a.clock.Now().Since(a.start),
		WaitID: a.waitID, WaitStart: a.waiting.Time, Waited: a.waited, Err: err,
	}
	if lock != nil {
		info.Token, info.Until, info.Outcomes = lock.Token(), lock.Until(), lock.Outcomes()
	} else if q := (*QuorumError)(nil); a.attempts > 0 && errors.As(err, &q) {
		info.Outcomes = q.Outcomes
	}
	acquired(a.caller, info)
}

// tellWaiting tells Hooks.Waiting that the acquire begins to wait. If the hook does not return the
// acquire has ended, and a hook that counts waits hears of that.
func (a *acquisition) tellWaiting() {
	hook := a.opts.Hooks.Waiting
	if hook == nil {
		return
	}
	reason := ErrHeld
	if a.last != nil && !a.lostToOthers() {
		reason = a.last.reasons[0]
	}
	a.waitID = waitIDs.Add(1)
	returned := false
	defer func() {
		if !returned {
			a.tellAcquired(nil, errHookLeft)
		}
	}()
	hook(a.caller, WaitInfo{
		Key: a.key, Mode: a.terms.mode(), WaitID: a.waitID, Attempts: a.attempts, Start: a.start.Time, WaitStart: a.waiting.Time, Err: reason,
	})
	returned = true
}

var waitIDs atomic.Uint64

var errHookLeft = fmt.Errorf("redlock: acquire: %w Hooks.Waiting: it did not return", ErrInvalid)

// attempt is one round of the Redlock algorithm: the same key and a fresh token on all
// nodes, a majority within the validity time, everything taken back otherwise. retryable
// tells whether waiting may help.
//
// For a waiter that is in the queue, the token is the one that stands there, which the node
// that keeps the queue may have put under the key already. It is as fresh as any: it was
// made for this attempt and is struck out by it.
func (a *acquisition) attempt() (lock *Lock, retryable bool, err error) {
	at, start, err := a.ask()
	if err != nil {
		return nil, false, err
	}
	return a.conclude(at, start)
}

// ask sends the SETs of an attempt, with the value that stands in the queue if the acquire waits
// there.
func (a *acquisition) ask() (at *attempt, start tick.Instant, err error) {
	at = newAttempt(a.resource, a.queues)
	at.adoptFrom = a.adoptFrom
	if a.w != nil && a.w.entry != "" {
		at.arbiter, at.entry, at.value, at.wants, at.joined = a.w.claim()
	} else if at.value, err = a.tokens.newValue(a.terms.owner); err != nil {
		return nil, start, err
	}
	start = a.clock.Now()
	at.send(start)
	return at, start, nil
}

// conclude waits for what becomes of an attempt, and makes a lock of it if it was granted.
func (a *acquisition) conclude(at *attempt, start tick.Instant) (lock *Lock, retryable bool, err error) {
	r, until := &at.round, validUntil(start, a.terms.TTL, a.opts.DriftFactor)
	v, cut := at.wait(a.ctx, start)
	var fence uint64
	if cut == nil && v == verdictGranted && a.terms.fencing {
		var raised *round
		if fence, raised, v, cut = a.settleFence(a.ctx, r, at.value); v != verdictGranted {
			r = raised // its votes tell what went wrong
			if v == verdictHeld {
				v = verdictNoQuorum // whose lease ended is not held by another
			}
		}
	}
	now := a.clock.Now()
	if cut == nil && v == verdictGranted && !now.Reached(until) {
		if a.terms.permits > 0 {
			at.settlePermit()
		}
		lock = newLock(at, a.renewer)
		lock.renewal.Lock = (*renewed)(lock)
		lock.begin(a.caller, fence, until, now, a.renews)
		return lock, false, nil
	}
	reasons, retryable := a.reasons(r, v, cut)
	if !retryable && a.quorumGone() {
		a.queues.turnsAreOver(a.resource)
	}
	if retryable && at.entry != "" {
		a.w.rejoin()
	}
	at.takeBack(false)
	return nil, retryable, a.failed(r, a.op(), reasons...)
}

// tellRefusals says of nodes that refuse us, and may be mended, that they are waited for: without it a
// program with a wrong password would look like one that waits for a holder.
func (a *acquisition) tellRefusals() {
	if a.last == nil {
		return
	}
	for _, o := range a.last.Outcomes {
		if remedy, _ := protocol.RemedyOf(o.Err); remedy&(protocol.NewPassword|protocol.NewRights) != 0 {
			a.lacks.tell(o.Node, noEntry, o.Err)
		}
	}
}

// op is what the attempt is called in errors.
func (a *acquisition) op() protocol.Op {
	if a.adoptFrom != "" {
		return protocol.OpAdopt
	}
	return protocol.OpAcquire
}

// reasons is why an attempt failed, and whether waiting may help.
func (a *acquisition) reasons(r *round, v verdict, cut error) (reasons []error, retryable bool) {
	switch {
	case errors.Is(cut, ErrClosed):
		return []error{ErrClosed}, false
	case cut != nil:
		return withContextErr(a.ctx), false
	case v == verdictGranted:
		return []error{ErrExpired}, true
	case v == verdictHeld && a.adoptFrom != "":
		return []error{ErrNotHeld}, false
	case v == verdictHeld:
		return []error{ErrHeld}, true
	default:
		if r.lacksForDuplicates() {
			return []error{ErrNoQuorum, ErrDuplicateNode}, false
		}
		return []error{ErrNoQuorum}, !r.permanent(a.awaits)
	}
}

// notAsked is what there is to say of an acquire that has asked no node. One that is still in the
// queue says that another holds the lock, as the last one of this process was told.
func (a *acquisition) notAsked(reason, why error) *QuorumError {
	e := &QuorumError{Op: protocol.OpAcquire.String(), Key: a.key, Need: a.quorum, reasons: []error{reason}}
	for _, name := range a.names {
		e.Outcomes = append(e.Outcomes, Outcome{Node: name, Vote: VoteNotSent, Err: why})
	}
	return e
}

var errInQueue = errors.New("waiting in the queue")

// untilNextAttempt waits between two attempts of Acquire: in the queue if the lock is held
// and a node keeps one, else for a random time. Other failures (an outage) are not a matter
// of order, so they are waited out with a random pause.
func (a *acquisition) untilNextAttempt() error {
	if a.waiting.Time.IsZero() {
		a.waiting = a.clock.Now()
		a.tellWaiting()
	}
	err := a.waitBetween(max(a.attempts, 1))
	a.waited = a.clock.Now().Since(a.waiting)
	return err
}

func (a *acquisition) waitBetween(attempts int) error {
	isHeld := a.last == nil || errors.Is(a.last, ErrHeld) || a.lostToOthers()
	if a.hasQueue() && (isHeld || a.knownHeld()) {
		if err := a.awaitTurn(); !errors.Is(err, errNoQueue) {
			return err
		}
		if denials := a.queues.denied(a.awaits); denials != nil {
			return a.notQueued(denials)
		}
	}
	if a.w != nil && !isHeld && (a.w.inVain() || a.outage.over() != nil) {
		// Our turn keeps a node from the others, and we cannot reach enough of them. In an
		// outage it may be long until we try again.
		a.w.withdraw()
		a.w.failures = 0
	}
	free := time.Duration(-1)
	if isHeld {
		var all []inspection
		var err error
		if free, all, err = a.whenFree(a.ctx, a.last); err != nil {
			return err
		}
		if free == 0 && anyShared(all) {
			free = -1 // there is room among the sharers, and a door keeps us out
		}
	}
	if a.hasQueue() && a.quorumGone() {
		return nil
	}
	return a.pauseBetween(a.backoff(attempts, free))
}

// awaitTurn waits in the queue: first for a place in the window of the key's waiters, which costs
// little, and then as one that asks a node.
func (a *acquisition) awaitTurn() error {
	if a.w == nil {
		var err error
		a.w, err = a.queues.enter(a.ctx, a.resource)
		if a.last == nil {
			a.last = a.notAsked(ErrHeld, errInQueue)
		}
		if err != nil {
			a.w.tellOutside(a.last)
			return err
		}
	}
	return a.w.await(a.ctx, a.last)
}

// notQueued is the error of an acquire that nodes let into no queue, for good.
func (a *acquisition) notQueued(denials map[int]error) *QuorumError {
	e := a.notAsked(ErrNoQuorum, errInQueue)
	copy(e.Outcomes, a.last.Outcomes)
	for i, err := range denials {
		e.Outcomes[i] = Outcome{Node: a.names[i], Vote: VoteFailed, Err: err}
	}
	return e
}

// lostToOthers reports whether the nodes that answered would have been a quorum, had not
// some of them refused. With a node away, a holder may be seen on too few nodes to say that
// the lock is held. It is not if bars alone kept us from a quorum: others may have none.
func (a *acquisition) lostToOthers() bool {
	var of [voteEnd]int
	for _, o := range a.last.Outcomes {
		of[o.Vote]++
	}
	granted, refused := of[VoteGranted], of[VoteRefused]
	return refused > 0 && granted+refused >= a.quorum && granted+of[VoteBarred] < a.quorum
}

// knownHeld reports whether others of this process were told that the lock is held, while
// this one came too late to ask, behind thousands that came with it.
func (a *acquisition) knownHeld() bool {
	// One that was in the queue and gave its turn up must not be sent straight back to it.
	return (a.w == nil || a.w.arrival < 0) && a.queues.recentlyRefused(a.resource)
}

// pauseBetween waits for d before the next attempt. While too few nodes answer, each acquire
// knows what an attempt would come to, and one at a time finds out whether that is over.
func (a *acquisition) pauseBetween(d time.Duration) error {
	if a.w != nil {
		a.w.stepAside()
	}
	if over := a.outage.over(); over != nil {
		select {
		case a.outage.asking <- struct{}{}:
			defer func() { <-a.outage.asking }()
		case <-over:
		case <-a.ctx.Done():
			return a.ctx.Err()
		case <-a.life.closing:
			a.clock.Yield(a.start.Mono)
			return ErrClosed
		}
		a.clock.Yield(a.start.Mono)
	}
	if a.w != nil {
		return a.w.pause(a.ctx, d)
	}
	return a.pause(a.ctx, d)
}
