package redlock

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	// A node that cannot be reached is tried again after a pause that doubles.
	minBackoff = 5 * time.Millisecond
	maxBackoff = 250 * time.Millisecond
)

var (
	errOverdue   = errors.New("not sent: the node has not answered earlier requests in time")
	errMoot      = errors.New("not sent: the attempt was decided before")
	errTooLate   = errors.New("not sent: waited too long behind other requests")
	errTimeout   = errors.New("no answer in time")
	errNeverSent = errors.New("not sent: nothing left to be done there")
	errByUs      = errors.New("not there, perhaps by an earlier release of ours whose answer was lost")
	errMayLand   = errors.New("nothing was there, but a request of ours whose answer was lost may still arrive")
)

// lane is the ordered, batched conversation with one node, and the only way to it.
//
// One batch is out at a time; what comes meanwhile makes the next one, so load makes
// batches larger instead of making more of them ("group commit"). Only on a link whose
// round trip is long do further batches follow on other connections while the first is
// out. No key is ever in two of them, so a release cannot overtake the SET that it takes
// back. A batch that is overdue closes the lane to new acquires: nothing piles up behind
// a node that hangs. Its late answers are still read, and releases wait for it.
//
// A goroutine drains the lane while there is something to send and ends when there is
// nothing. Its callers never wait for a mutex across I/O: enqueue queues, and answers are
// delivered by the draining goroutine after it let go of mu.
type lane struct {
	wire     wire
	clock    clock
	onChange func(down bool, err error) // may be nil; called with mu held, in order

	// mu guards what follows, and the fields of calls that say so. It is never held
	// across I/O, and no other mutex is taken under it but those of the clock and of
	// onChange.
	mu      sync.Mutex
	queue   backlog // times are nanoseconds of the clock
	flight  flight
	kept    []*call // releases that wait for the node or for their second time
	breaker breaker
	alarm   alarm
	// starting: a goroutine is about to take a batch. Several goroutines drain only while
	// several batches are out.
	starting bool
	life     laneLife
	flushed  chan struct{} // made by close, closed when nothing is left to do
}

// laneLife only ever moves on.
type laneLife uint8

const (
	laneOpen   laneLife = iota
	laneClosed          // takes nothing new, and sends the releases that it has
)

// breaker keeps requests from a node to which no connection can be had, and tells whether
// the node answers. Its lane's mutex guards it.
type breaker struct {
	down    bool // the last batch was not answered, or one is overdue
	overdue bool // down for the latter alone
	backoff time.Duration
	until   int64 // nothing but releases is taken before this
	err     error // of the last try
}

// failed notes that not even a connection could be had.
func (b *breaker) failed(err error, now int64) { b.until, b.err = now+int64(b.backoff), err }

func newLane(w wire, c clock, onChange func(bool, error)) *lane {
	l := &lane{wire: w, clock: c, onChange: onChange}
	l.alarm = alarm{clock: c, f: l.tick}
	return l
}

// enqueue sends a call after all that came before, or delivers at once why it cannot.
func (l *lane) enqueue(c *call, now int64) {
	l.mu.Lock()
	b := l.admit(c, now)
	l.mu.Unlock()
	c.tell(b, now)
}

// takeBack enqueues the release of what a SET did or may do. A SET that still waits in
// the queue is dropped instead.
func (l *lane) takeBack(c *call, now int64) {
	l.mu.Lock()
	set := c.release.of
	var dropped, b ballot
	if set.state == callQueued {
		set.state, dropped = callDropped, unsent(errMoot)
	}
	if dropped.vote != 0 && set.earlier == leftNothing && c.release.when != unconditional {
		// Gone by our hand, as much as if the node had deleted it.
		c.state, b = callDropped, ballot{vote: VoteGranted, final: true}
	} else {
		b = l.admit(c, now)
	}
	l.mu.Unlock()
	set.tell(dropped, now)
	c.tell(b, now)
}

// replace enqueues a SET that takes the place of an earlier one of the same value, unless
// that is on its way yet. What the earlier one did, or may still do, is from now on the
// later one's to answer for: a release looks at the last one only.
func (l *lane) replace(before, c *call, now int64) (replaced bool) {
	l.mu.Lock()
	if before.state == callQueued || before.state == callOut {
		l.mu.Unlock()
		return false
	}
	c.earlier = before.leaves()
	b := l.admit(c, now)
	l.mu.Unlock()
	c.tell(b, now)
	return true
}

// admit queues a call, or says why not; the caller holds mu and delivers the ballot.
func (l *lane) admit(c *call, now int64) ballot {
	switch {
	case l.life == laneClosed:
		c.state = callDropped
		return unsent(ErrClosed)
	case c.needless():
		c.state = callDropped
		return unsent(errNeverSent)
	case l.flight.overdue(now) && !(c.req.op == opJoin && now < l.joinDue(c, now)):
		if c.req.op != opRelease {
			c.state = callDropped
			return unsent(errOverdue)
		}
		// It waits for the node, and its caller does not.
		c.overdue = true
		l.queueUp(c, now)
		return ballot{vote: VoteNotSent, err: errOverdue}
	case now < l.breaker.until:
		if c.req.op != opRelease {
			c.state = callDropped
			return unsent(l.breaker.err)
		}
		c.overdue = true
		if !l.keep(c, now, l.breaker.until) {
			return unsent(l.breaker.err)
		}
		l.alarm.set(c.release.due, now)
		return ballot{vote: VoteNotSent, err: l.breaker.err}
	default:
		l.queueUp(c, now)
		return ballot{}
	}
}

// queueUp puts a call behind all others; the caller holds mu.
func (l *lane) queueUp(c *call, now int64) {
	l.queue.push(c)
	l.flight.blocked = l.flight.blocked && l.flight.has(c.req.key)
	if c.caller != nil && !c.overdue {
		l.alarm.set(l.due(c, now), now)
	}
	l.run(now)
}

// due is when the caller of a call stops waiting. A join that waits is in time as long as
// the node answers, however many are before it. The caller holds mu.
func (l *lane) due(c *call, now int64) int64 {
	if c.req.op == opJoin && c.state == callQueued {
		return l.joinDue(c, now)
	}
	return c.deadline
}

func (l *lane) joinDue(c *call, now int64) int64 {
	return min(c.deadline, l.flight.silentSince(now)+int64(c.req.joinPatience()))
}

// reachable reports whether the node answered last, or may yet: it has not been silent for
// longer than patience.
func (l *lane) reachable(now int64, patience time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := &l.breaker
	return (!b.down || b.overdue) && now >= b.until && now-l.flight.silentSince(now) < int64(patience)
}

// run sees to it that somebody sends what may be sent; the caller holds mu.
func (l *lane) run(now int64) {
	switch wait := l.flight.wait(now); {
	case l.queue.empty() || l.starting || l.flight.blocked:
	case wait == 0:
		l.starting = true
		go l.drain()
	case wait > 0:
		l.alarm.set(now+wait, now)
	}
}

// drain sends batch after batch until none may go, and ends.
func (l *lane) drain() {
	l.clock.yield(0)
	l.mu.Lock()
	l.starting = false
	for {
		now := l.clock.now().mono
		b, pointless := l.flight.next(&l.queue, now)
		if b == nil {
			if wait := l.flight.wait(now); !l.queue.empty() && wait > 0 && !l.flight.blocked {
				l.alarm.set(now+wait, now)
			}
			l.tellFlushed()
		} else if c := cmp.Or(b.join, l.queue.joins.head); c != nil {
			l.alarm.set(now+int64(c.req.joinPatience()), now)
		}
		l.mu.Unlock()
		for _, c := range pointless {
			c.tell(unsent(errNeverSent), now)
		}
		if b == nil {
			return
		}
		l.wire.exchange(b.calls, b.bound)
		l.settle(b)
		l.clock.yield(1)
		l.mu.Lock()
	}
}

// settle reads the replies of a batch and tells whoever waits for them.
func (l *lane) settle(b *batch) {
	now := l.clock.now().mono
	heard, sent, failure := b.result()
	l.mu.Lock()
	l.flight.landed(b)
	l.setDown(!heard, failure)
	if l.breaker.backoff = min(max(2*l.breaker.backoff, minBackoff), maxBackoff); !heard && !sent {
		l.breaker.failed(failure, now)
	}
	if heard {
		l.breaker.backoff = 0
		l.flight.took(b, now)
		// What the node failed, or is to be sent twice, waits for its own time.
		l.wake(now, func(c *call) bool { return !c.release.tries.resent() && c.vote != VoteFailed })
	}
	told := l.finishAll(b, now)
	for _, c := range l.kept {
		l.alarm.set(c.release.due, now)
	}
	l.mu.Unlock()

	tellAll(told, now)

	clear(b.calls)
	clear(told)
	b.told = told
	l.mu.Lock()
	l.flight.spare = b
	l.mu.Unlock()
}

// setDown notes whether the node answers; the caller holds mu.
func (l *lane) setDown(down bool, err error) {
	changed := l.breaker.down != down && l.life == laneOpen
	l.breaker.down, l.breaker.overdue = down, false
	if changed && l.onChange != nil {
		l.onChange(down, err)
	}
}

// finishAll records the answers of a batch and returns what callers are to be told.
// Scripts whose text the server wants stay first in the queue, so that nothing overtakes
// them. The caller holds mu.
func (l *lane) finishAll(b *batch, now int64) []news {
	told := b.told[:0]
	var again callList
	for i, c := range b.calls {
		if c.unknownScript() && !c.req.whole {
			c.req, b.calls[i] = c.req.withSource(), nil
			again.push(c)
			continue
		}
		l.finish(c, now)
		if c.caller != nil {
			told = append(told, news{c, c.ballot})
		}
	}
	if !again.empty() {
		again.append(l.queue.calls)
		l.queue.calls = again
	}
	return told
}

// finish records a call's answer, or keeps a release that is not done yet; the caller
// holds mu.
func (l *lane) finish(c *call, now int64) {
	c.state, c.ballot = callDone, c.ballot.read(c.req.op)
	if c.req.op != opRelease {
		return
	}
	refused, wasLost := c.vote == VoteRefused, c.release.tries.lost()
	switch {
	case c.vote == VoteUnknown:
		c.release.tries = c.release.tries.withLost()
	case refused && wasLost:
		c.vote, c.err = VoteUnknown, errByUs
	}
	if l.life == laneClosed {
		return
	}
	if l.resend(c, refused, now) {
		return
	}
	switch {
	case refused:
	case c.vote == VoteUnknown || c.vote == VoteNotSent:
		c.final = !l.keep(c, now, now+int64(max(l.breaker.backoff, minBackoff)))
	case c.vote == VoteFailed && !permanent(c.err) && !c.unknownScript():
		// Busy, loading, for the time being a replica: what is there is still there.
		c.final = !l.keep(c, now, now+int64(c.req.timeout))
	}
}

// resend keeps a release that was answered for a second time, where the SET that it takes
// back may land after it; the caller holds mu.
func (l *lane) resend(c *call, refused bool, now int64) bool {
	set := c.release.of
	if c.release.tries.resent() || set == nil || set.fate() != fateMayLand {
		return false
	}
	resendAt := now + int64(c.req.timeout)
	switch {
	case refused:
		c.release.tries = c.release.tries.withResent()
		c.vote, c.err = VoteUnknown, errMayLand
		c.final = !l.keep(c, now, resendAt)
		return true
	case c.vote == VoteGranted && set.mayFindItself():
		// The deleted value may come from another SET, so this one may still land: release
		// again later. The caller need not wait for that.
		c.release.tries = c.release.tries.withResent()
		l.keep(c, now, resendAt)
		return true
	default:
		return false
	}
}

// keep puts a release aside until it is due, or reports that nothing of ours can be on
// the node by then; the caller holds mu.
func (l *lane) keep(c *call, now, due int64) bool {
	if c.release.goneBy == 0 {
		c.release.goneBy = now + int64(c.req.keepFor)
	}
	if due > c.release.goneBy {
		return false
	}
	c.state, c.release.due = callKept, due
	l.kept = append(l.kept, c)
	return true
}

// wake queues the kept releases that ready picks; the caller holds mu.
func (l *lane) wake(now int64, ready func(*call) bool) {
	kept := l.kept[:0]
	for _, c := range l.kept {
		if ready(c) {
			l.queue.push(c)
		} else {
			kept = append(kept, c)
		}
	}
	clear(l.kept[len(kept):])
	l.kept = kept
	l.run(now)
}

// tick tells callers whose time is up, and sends the kept releases that are due.
func (l *lane) tick() {
	now := l.clock.now().mono
	l.mu.Lock()
	l.alarm.rang()
	late := l.late(now)
	l.wake(now, func(c *call) bool { return now >= c.release.due })
	for _, c := range l.kept {
		l.alarm.set(c.release.due, now)
	}
	if !l.breaker.down {
		if l.flight.overdue(now) {
			l.breaker.down, l.breaker.overdue = true, true
			if l.onChange != nil {
				l.onChange(true, errTimeout)
			}
		}
		for _, b := range l.flight.out {
			if now < b.overdueAt {
				l.alarm.set(b.overdueAt, now)
			}
		}
	}
	l.mu.Unlock()
	tellAll(late, now)
}

// late is the news for callers whose time is up; for the others the alarm is set. The
// caller holds mu.
func (l *lane) late(now int64) (all []news) {
	check := func(c *call, b ballot) {
		switch {
		case c.caller == nil || c.overdue || c.state == callDropped:
		case now < l.due(c, now):
			l.alarm.set(l.due(c, now), now)
		default:
			c.overdue = true
			if b.final {
				c.state = callDropped
			}
			all = append(all, news{c, b})
		}
	}
	for _, b := range l.flight.out {
		for _, c := range b.calls {
			check(c, ballot{vote: VoteUnknown, err: errTimeout})
		}
	}
	for c := range l.queue.all() {
		check(c, ballot{vote: VoteNotSent, err: errTooLate, final: c.req.op != opRelease})
	}
	return all
}

// close refuses new calls and drops those that wait, but sends the releases. The
// channel is closed when they are done.
func (l *lane) close(now int64) <-chan struct{} {
	flushed := make(chan struct{})
	var dropped []*call
	l.mu.Lock()
	l.life, l.flushed = laneClosed, flushed
	for c := range l.queue.all() {
		if c.state == callQueued && c.req.op != opRelease {
			c.state = callDropped
			dropped = append(dropped, c)
		}
	}
	l.wake(now, func(*call) bool { return true })
	l.tellFlushed()
	l.mu.Unlock()
	for _, c := range dropped {
		c.tell(unsent(ErrClosed), now)
	}
	return flushed
}

// tellFlushed ends close's wait if nothing is left to do; the caller holds mu.
func (l *lane) tellFlushed() {
	if l.flushed != nil && l.queue.empty() && len(l.flight.out) == 0 && !l.starting {
		close(l.flushed)
		l.flushed = nil
	}
}

// abandon forgets what a closed lane still has to send, and tells whoever waits.
func (l *lane) abandon(now int64) {
	var left []*call
	l.mu.Lock()
	left = slices.AppendSeq(left, l.queue.all())
	l.queue = backlog{}
	left = append(left, l.kept...)
	for _, b := range l.flight.out {
		left = append(left, b.calls...)
	}
	l.kept = nil
	l.alarm.stop()
	l.mu.Unlock()
	for _, c := range left {
		c.tell(ballot{vote: VoteUnknown, err: ErrClosed}, now)
	}
}
