package redlock

import (
	"cmp"
	"slices"
	"sync"
	"time"
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
// A goroutine drains the lane while there is something to send, waits for a moment when there
// is nothing, and ends. Its callers never wait for a mutex across I/O: enqueue queues, and
// answers are delivered by the draining goroutine after it let go of mu.
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
	kept    keptReleases
	breaker breaker
	alarm   alarm
	// starting: a goroutine is about to take a batch. Several goroutines drain only while
	// several batches are out.
	starting bool
	standby  standby
	// corked: so many callers have more to enqueue that is to go out together.
	corked  int
	life    laneLife
	flushed chan struct{} // made by close, closed when nothing is left to do
	moved   sync.Cond     // a batch has left, or none will go, or it is time to look: for awaitLeft
}

// laneLife only ever moves on.
type laneLife uint8

const (
	laneOpen   laneLife = iota
	laneClosed          // takes nothing new, and sends the releases that it has
)

// lateAfter is how many times as long as the other nodes needed a node may have been silent for a
// release to wait for it. A holder that works for no time has sent its SET two such times ago, and
// the node may take as long again.
const lateAfter = 4

func newLane(w wire, c clock, onChange func(bool, error)) *lane {
	l := &lane{wire: w, clock: c, onChange: onChange, standby: standby{work: make(chan bool, 1)}}
	l.alarm = alarm{clock: c, f: l.tick}
	l.kept.alarm = &l.alarm
	l.moved.L = &l.mu
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
	if dropped.kind != 0 && set.earlier == leftNothing && c.release.when < toServe && c.req.keep == nil {
		// Gone by our hand, as much as if the node had deleted it.
		c.state, b = callDropped, ballot{kind: kindGranted, final: true}
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

// again enqueues a SET once more that the node has refused, and so has left nothing.
func (l *lane) again(c *call, deadline, now int64) {
	l.mu.Lock()
	c.ballot, c.overdue, c.deadline = ballot{}, false, deadline
	b := l.admit(c, now)
	l.mu.Unlock()
	c.tell(b, now)
}

// admit queues a call, or says why not; the caller holds mu and delivers the ballot.
func (l *lane) admit(c *call, now int64) ballot {
	switch {
	case l.life == laneClosed:
		c.state = callDropped
		return unsent(errClosed)
	case c.needless():
		c.state = callDropped
		return unsent(errNeverSent)
	case l.flight.overdue(now) && !(c.req.op == opJoin && now < l.flight.joinDue(c, now)):
		if c.req.op != opRelease || c.nothingThere() && c.release.when == toServe {
			c.state = callDropped
			return unsent(errOverdue)
		}
		// It waits for the node, and its caller does not.
		c.overdue = true
		l.queueUp(c, now)
		return ballot{kind: kindNotSent, err: errOverdue}
	case now < l.breaker.until:
		if c.req.op != opRelease {
			c.state = callDropped
			return unsent(l.breaker.err)
		}
		c.overdue = true
		if !l.kept.wait(&l.kept.unheard, c, now, l.breaker.until) {
			return unsent(l.breaker.err)
		}
		return ballot{kind: kindNotSent, err: l.breaker.err}
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
		l.alarm.set(l.flight.due(c, now), now)
	}
	l.run(now)
}

// cork keeps what is enqueued from leaving until uncork. A lane that nobody uses would send
// the first of several requests by itself, and the others a round trip later.
func (l *lane) cork() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.corked++
}

func (l *lane) uncork(now int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.corked--
	l.run(now)
}

// reachable reports whether the node answered last, or may yet: it has not been silent for
// longer than patience.
func (l *lane) reachable(now int64, patience time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := &l.breaker
	return (!b.down || b.overdue) && now >= b.until && now-l.flight.silentSince(now) < int64(patience)
}

// load is how many calls wait in the lane, and how many releases it keeps.
func (l *lane) load() (queued, kept int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.queue.all() {
		if c.state != callDropped {
			queued++
		}
	}
	return queued, l.kept.len()
}

// gone reports whether the node's client was closed by its owner, as far as is known: the
// node is not coming back.
func (l *lane) gone() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.breaker.down && permanent(l.breaker.err)
}

// run sees to it that somebody sends what may be sent; the caller holds mu.
func (l *lane) run(now int64) {
	switch wait := l.flight.wait(now); {
	case l.queue.empty() || l.starting || l.corked > 0 || l.flight.blocked:
	case wait == 0:
		if l.starting = true; !l.standby.wake() {
			go l.drain()
		}
	case wait > 0:
		l.alarm.set(now+wait, now)
	}
}

// drain sends what there is to send, again and again, until there was nothing for a while.
func (l *lane) drain() {
	for l.drainOnce() {
		if !l.standby.wait() {
			return
		}
	}
}

// drainOnce sends batch after batch until none may go, and reports whether to rest then.
func (l *lane) drainOnce() (waits bool) {
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
			if waits = l.life == laneOpen && l.standby.begin(now); waits {
				l.endStandby(now)
			}
			l.tellFlushed()
			l.moved.Broadcast()
		} else if c := cmp.Or(b.join, l.queue.joins.head); c != nil {
			l.alarm.set(now+int64(c.req.joinPatience()), now)
		}
		l.mu.Unlock()
		tellAll(pointless, now)
		if b == nil {
			return waits
		}
		if b.hasLeft == nil {
			b.hasLeft = func() { l.left(b) }
		}
		settled := l.wire.exchange(b.calls, time.Duration(b.overdueAt-b.sentAt), b.bound, b.hasLeft)
		l.settle(b, settled)
		l.clock.yield(1)
		l.mu.Lock()
	}
}

// left notes that a batch was written, or has to wait.
func (l *lane) left(b *batch) {
	l.mu.Lock()
	b.left = true
	l.mu.Unlock()
	l.moved.Broadcast()
}

// awaitLeft returns once a call was written to the node's connection, unless that has to wait for
// a node that is slow, hung or down, or for a connection. Answers to what was sent before are
// waited for while they are not late: took is how long the others needed to answer such a call.
func (l *lane) awaitLeft(c *call, took time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.leaves(c, took) {
		l.moved.Wait()
	}
}

// leaves reports whether a call is about to be written; the caller holds mu, and looks again when
// the lane has moved.
func (l *lane) leaves(c *call, took time.Duration) bool {
	switch {
	case c.state == callOut:
		return l.flight.leaves(c)
	case c.state != callQueued:
		return false
	case len(l.flight.out) == 0:
		return l.starting || l.corked > 0
	case l.life == laneClosed || l.breaker.down || l.flight.rtt.get() > took:
		return false // what a closed lane has to send, close waits for
	}
	now := l.clock.now().mono
	end := min(l.flight.silentSince(now)+lateAfter*int64(took), c.deadline)
	if now < end {
		l.alarm.set(end, now)
	}
	return now < end
}

// endStandby ends a goroutine that has rested for long enough; of a lane that is closed, at
// once. The caller holds mu.
func (l *lane) endStandby(now int64) {
	if end, waits := l.standby.over(); waits && now < end && l.life == laneOpen {
		l.alarm.set(end, now)
	} else {
		l.standby.dismiss()
	}
}

// settle reads the replies of a batch and tells whoever waits for them. settled: nothing of
// it may take effect any more that did not.
func (l *lane) settle(b *batch, settled bool) {
	now := l.clock.now().mono
	heard, sent, failure := b.result()
	l.mu.Lock()
	l.flight.landed(b)
	l.setDown(!heard, failure)
	l.breaker.landed(heard)
	if heard {
		l.flight.took(b, now)
		l.requeue(l.kept.some(&l.kept.unheard, now))
		l.run(now) // the next batch need not wait until all are told of this one
	}
	away := !heard && !sent
	if away {
		l.breaker.failed(failure, now)
	}
	told := l.finishAll(b, settled, now)
	if away && l.life == laneOpen {
		told = l.putAside(told, now)
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
// Requests that are put in other words stay first in the queue, so that nothing overtakes
// them. The caller holds mu.
func (l *lane) finishAll(b *batch, settled bool, now int64) []news {
	told := b.told[:0]
	var again callList
	for i, c := range b.calls {
		if req := c.instead(); req != nil {
			c.req, b.calls[i] = req, nil
			again.push(c)
			continue
		}
		l.finish(c, now)
		if settled && c.state == callDone && c.kind == kindUnknown {
			c.state = callSettled
		}
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
	refused, wasLost := c.kind == kindRefused, c.release.tries.lost()
	switch {
	case c.kind == kindUnknown:
		c.release.tries = c.release.tries.withLost()
	case refused && wasLost:
		c.kind, c.err = kindUnknown, errByUs
	}
	if l.life == laneClosed {
		return
	}
	if l.kept.resend(c, refused, now) {
		l.served(c, now)
		return
	}
	switch {
	case refused:
		l.served(c, now)
	case permanent(c.err):
		l.kept.forget(c)
	case c.kind == kindUnknown || c.kind == kindNotSent:
		c.final = !l.kept.wait(&l.kept.unheard, c, now, l.breaker.until)
	case c.kind == kindFailed && !c.unknownScript():
		// Busy, loading, for the time being a replica: what is there is still there.
		c.final = !l.kept.wait(&l.kept.failed, c, now, now)
	default:
		l.served(c, now)
	}
}

// requeue puts releases that were kept behind all others; the caller holds mu, and runs
// the lane.
func (l *lane) requeue(list callList) {
	if !list.empty() {
		l.queue.calls.append(list)
		l.flight.blocked = false
	}
}

// served queues the releases that the node failed, if this one was sent to find out whether
// it still does; the caller holds mu.
func (l *lane) served(c *call, now int64) {
	if c == l.kept.failed.probe {
		l.requeue(l.kept.some(&l.kept.failed, now))
	}
}

// putAside has the releases that are queued wait for the node, to which no connection is
// to be had, and adds the news of that; the caller holds mu.
func (l *lane) putAside(told []news, now int64) []news {
	queue := l.queue.calls.takeAll()
	for c := queue.pop(); c != nil; c = queue.pop() {
		switch {
		case c.state == callDropped:
			continue
		case c.req.op != opRelease || c.needless():
			l.queue.calls.push(c)
			continue
		}
		b := ballot{kind: kindNotSent, err: l.breaker.err}
		if !l.kept.wait(&l.kept.unheard, c, now, l.breaker.until) {
			c.state, b.final = callDone, true
		}
		if c.caller != nil && !c.overdue {
			told = append(told, news{c, b})
		}
		c.overdue = true
	}
	return told
}

// tick tells callers whose time is up, and sends the kept releases that are due.
func (l *lane) tick() {
	now := l.clock.now().mono
	l.mu.Lock()
	l.alarm.rang()
	l.moved.Broadcast()
	late := l.late(now)
	l.requeue(l.kept.due(now))
	l.run(now)
	l.endStandby(now)
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
		case now < l.flight.due(c, now):
			l.alarm.set(l.flight.due(c, now), now)
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
			check(c, ballot{kind: kindUnknown, err: errTimeout})
		}
	}
	for c := range l.queue.all() {
		check(c, ballot{kind: kindNotSent, err: errTooLate, final: c.req.op != opRelease})
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
	l.requeue(l.kept.all(now))
	l.run(now)
	l.endStandby(now)
	l.tellFlushed()
	l.moved.Broadcast()
	l.mu.Unlock()
	for _, c := range dropped {
		c.tell(unsent(errClosed), now)
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
	for _, b := range l.flight.out {
		left = append(left, b.calls...)
	}
	l.alarm.stop()
	l.mu.Unlock()
	for _, c := range left {
		c.tell(ballot{kind: kindUnknown, err: errClosed}, now)
	}
}
