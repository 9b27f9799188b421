package redlock

import (
	"errors"
	"sync"
	"time"
)

const (
	// mostInBatch bounds how long one batch keeps the next one waiting.
	mostInBatch = 512
	// longestRead bounds how long a batch that is not answered keeps its connection.
	longestRead = 30 * time.Second

	// A node that cannot be reached is tried again after a pause that doubles.
	minBackoff = 5 * time.Millisecond
	maxBackoff = 250 * time.Millisecond
)

var (
	errOverdue   = errors.New("not sent: the node has not answered earlier requests in time")
	errTooLate   = errors.New("not sent: waited too long behind other requests")
	errTimeout   = errors.New("no answer in time")
	errNeverSent = errors.New("not sent: nothing left to be done there")
	errByUs      = errors.New("not there, perhaps by an earlier release of ours whose answer was lost")
	errMayLand   = errors.New("nothing was there, but a request of ours whose answer was lost may still arrive")
)

// wire puts requests on the wire; it is the part of a lane that a simulation replaces.
//
// exchange sends the requests of the batch in order over one connection, each of them
// once and never again, and fills in the ballot of each: val, err and sent. It returns when all replies
// were read or the conversation broke, and waits for a reply no longer than bound.
// It must not look at anything but req of a call, nor keep the slice.
type wire interface {
	exchange(batch []*call, bound time.Duration)
}

// lane is the ordered, batched conversation with one node, and the only way to it.
//
// One batch is out at a time; what comes meanwhile makes the next one, so load makes
// batches larger instead of making more of them ("group commit"). Since a batch is
// read to its end before the next leaves, a release cannot overtake the SET that it
// takes back. A batch that is overdue closes the lane to new acquires: nothing piles
// up behind a node that hangs. Its late answers are still read, and releases wait for it.
type lane struct {
	wire     wire
	clock    clock
	onChange func(down bool, err error) // not called with mu held; may be nil

	// mu guards what follows, and the fields of calls that say so. It is never held
	// across I/O or a timer. A round's mutex may be taken under it, never the other
	// way round.
	mu         sync.Mutex
	head, tail *call // queued, in order; times are nanoseconds of the clock
	out        []*call
	overdueAt  int64   // for the batch that is out
	running    bool    // a goroutine drains the lane
	kept       []*call // releases that wait for the node or for their grace
	backoff    time.Duration
	holdUntil  int64 // no connection could be had; not tried again before this
	holdErr    error
	down       bool
	closed     bool
	flushed    chan struct{} // made by close, closed when nothing is left to do

	timer    timer
	armed    bool
	armedFor int64

	buf [mostInBatch]*call // of the batch that is out
}

func newLane(w wire, c clock, onChange func(bool, error)) *lane {
	return &lane{wire: w, clock: c, onChange: onChange}
}

// enqueue sends a call after all that came before, or delivers at once why it cannot.
func (l *lane) enqueue(c *call, now int64) {
	l.mu.Lock()
	b := l.admit(c, now)
	l.mu.Unlock()
	c.deliver(b, now)
}

// takeBack enqueues the release of what a SET did or may do. A SET that still waits in
// the queue is dropped instead.
func (l *lane) takeBack(c *call, now int64) {
	l.mu.Lock()
	set := c.takesBack
	dropped := ballot{}
	if set.state == callQueued {
		set.state = callDropped
		dropped = ballot{vote: VoteBarred, err: errNeverSent, final: true}
	}
	b := l.admit(c, now)
	l.mu.Unlock()
	set.deliver(dropped, now)
	c.deliver(b, now)
}

// replace enqueues a SET that takes the place of an earlier one of the same value.
// What the earlier one may still do is from now on the later one's doubt.
func (l *lane) replace(before, c *call, now int64) {
	l.mu.Lock()
	c.unsure = before.unsure
	b := l.admit(c, now)
	l.mu.Unlock()
	c.deliver(b, now)
}

// admit queues a call, or says why not; the caller holds mu and delivers the ballot.
func (l *lane) admit(c *call, now int64) (b ballot) {
	switch {
	case l.closed:
		c.state = callDropped
		return ballot{vote: VoteBarred, err: ErrClosed, final: true}
	case c.skip():
		c.state = callDropped
		return ballot{vote: VoteBarred, err: errNeverSent, final: true}
	case l.overdue(now):
		b = ballot{vote: VoteBarred, err: errOverdue}
		if c.req.kind != release {
			c.state = callDropped
			b.final = true
			return b
		}
		c.overdue = true
	case now < l.holdUntil:
		b = ballot{vote: VoteBarred, err: l.holdErr}
		if c.req.kind != release {
			c.state = callDropped
			b.final = true
			return b
		}
		c.overdue = true
		if b.final = !l.keep(c, now, l.holdUntil); !b.final {
			l.arm(c.due, now)
		}
		return b
	}
	l.push(c)
	if c.round != nil && !c.overdue {
		l.arm(c.deadline, now)
	}
	l.run()
	return b
}

// skip reports whether there is surely nothing for a release to take back. The
// caller holds the lane's mutex.
func (c *call) skip() bool {
	set := c.takesBack
	if set == nil || set.unsure || c.leaves {
		return false
	}
	switch {
	case set.state == callDropped || set.state == callDone && set.vote == VoteBarred:
		return true
	case set.state == callDone && set.vote != VoteGranted:
		return !c.always
	default:
		return false
	}
}

// deliver tells whoever waits; an empty ballot is no news.
func (c *call) deliver(b ballot, now int64) {
	if c.round != nil && b.vote != 0 {
		c.round.deliver(int(c.index), b, now)
	}
}

// reachable reports whether the node answered last and a request would leave now.
func (l *lane) reachable(now int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.down && !l.overdue(now) && now >= l.holdUntil
}

func (l *lane) overdue(now int64) bool {
	return l.out != nil && now >= l.overdueAt
}

func (l *lane) push(c *call) {
	c.state, c.next = callQueued, nil
	if l.tail == nil {
		l.head = c
	} else {
		l.tail.next = c
	}
	l.tail = c
}

// run sees to it that somebody drains the queue.
func (l *lane) run() {
	if !l.running && l.head != nil {
		l.running = true
		go l.drain()
	}
}

// drain sends batch after batch until none is left, and ends.
func (l *lane) drain() {
	for {
		now := l.clock.now().mono
		l.mu.Lock()
		batch, unsent, bound := l.nextBatch(now)
		if len(batch) == 0 {
			l.running = false
			l.tellFlushed()
		}
		l.mu.Unlock()
		for _, c := range unsent {
			c.deliver(ballot{vote: VoteBarred, err: errNeverSent, final: true}, now)
		}
		if len(batch) == 0 {
			return
		}
		l.wire.exchange(batch, bound)
		l.settle(batch)
	}
}

// nextBatch takes what is to go out next, and those that have become pointless: too
// late for their callers, or releases of what turned out not to be there. The caller
// holds mu.
func (l *lane) nextBatch(now int64) (batch, unsent []*call, bound time.Duration) {
	batch = l.buf[:0]
	patience := time.Duration(0)
	for l.head != nil && len(batch) < mostInBatch {
		c := l.head
		l.head, c.next = c.next, nil
		if l.head == nil {
			l.tail = nil
		}
		switch {
		case c.state == callDropped:
			continue
		case c.skip(), c.req.kind != release && c.deadline < now:
			c.state = callDropped
			if c.round != nil {
				unsent = append(unsent, c)
			}
			continue
		}
		c.state = callOut
		batch = append(batch, c)
		patience = max(patience, c.req.timeout)
		bound = max(bound, c.req.ttl)
	}
	if len(batch) > 0 {
		l.out, l.overdueAt = batch, now+int64(patience)
	}
	return batch, unsent, max(patience, min(bound, longestRead))
}

// settle reads the replies of a batch and tells whoever waits for them.
func (l *lane) settle(batch []*call) {
	now := l.clock.now().mono
	heard, sent := false, false
	var failure error
	for _, c := range batch {
		if c.answered() {
			heard = true
		} else {
			failure = c.err
		}
		sent = sent || c.sent
	}

	l.mu.Lock()
	l.out = nil
	changed := l.down == heard && !l.closed
	l.down = !heard
	if l.backoff = min(max(2*l.backoff, minBackoff), maxBackoff); !heard && !sent {
		l.holdUntil, l.holdErr = now+int64(l.backoff), failure
	}
	if heard {
		l.backoff = 0
		l.wake(func(c *call) bool { return !c.again })
	}
	var first, last *call // scripts that the server wants whole
	for i, c := range batch {
		if c.unknownScript() && !c.req.whole {
			c.req, c.state = c.req.withSource(), callQueued
			if batch[i] = nil; first == nil {
				first = c
			} else {
				last.next = c
			}
			last = c
			continue
		}
		l.finish(c, now)
	}
	if first != nil {
		// They were first, and stay first: nothing may overtake them.
		if last.next = l.head; l.head == nil {
			l.tail = last
		}
		l.head = first
	}
	l.armKept(now)
	l.mu.Unlock()

	for i, c := range batch {
		if c != nil {
			c.deliver(c.ballot, now)
		}
		batch[i] = nil
	}
	if changed && l.onChange != nil {
		l.onChange(!heard, failure)
	}
}

// finish records a call's answer, or keeps a release that is not done yet; the caller
// holds mu.
func (l *lane) finish(c *call, now int64) {
	c.state, c.ballot = callDone, c.ballot.read(c.req.kind)
	refused := c.vote == VoteRefused
	switch {
	case c.vote == VoteUnknown:
		c.unsure = true
	case refused && c.unsure && c.req.kind == release:
		c.vote, c.err = VoteUnknown, errByUs
	}
	if c.req.kind != release || l.closed {
		return
	}
	switch {
	case refused && !c.again && c.takesBack != nil && c.takesBack.unsure:
		c.again = true
		c.vote, c.err = VoteUnknown, errMayLand
		c.final = !l.keep(c, now, now+int64(c.req.timeout))
	case !refused && (c.vote == VoteUnknown || c.vote == VoteBarred):
		c.final = !l.keep(c, now, now+int64(max(l.backoff, minBackoff)))
	}
}

// keep puts a release aside until it is due, or reports that nothing of ours can be on
// the node by then; the caller holds mu.
func (l *lane) keep(c *call, now, due int64) bool {
	if c.goneBy == 0 {
		c.goneBy = now + int64(c.req.ttl)
	}
	if due > c.goneBy {
		return false
	}
	c.state, c.due = callKept, due
	l.kept = append(l.kept, c)
	return true
}

// wake queues the kept releases that ready picks; the caller holds mu.
func (l *lane) wake(ready func(*call) bool) {
	kept := l.kept[:0]
	for _, c := range l.kept {
		if ready(c) {
			l.push(c)
		} else {
			kept = append(kept, c)
		}
	}
	clear(l.kept[len(kept):])
	l.kept = kept
	l.run()
}

// armKept sets the timer for the first release that is due; the caller holds mu.
func (l *lane) armKept(now int64) {
	for _, c := range l.kept {
		l.arm(c.due, now)
	}
}

// arm makes tick run at the latest at the given time; the caller holds mu. The timer
// is left to run when what it was set for is done: it fires a few times a second under
// load, which is cheaper than setting it for each call.
func (l *lane) arm(at, now int64) {
	if l.armed && at >= l.armedFor {
		return
	}
	l.armed, l.armedFor = true, at
	if d := time.Duration(max(at-now, 0)); l.timer == nil {
		l.timer = l.clock.afterFunc(d, l.tick)
	} else {
		l.timer.Reset(d)
	}
}

// tick tells callers whose time is up, and sends the kept releases that are due.
func (l *lane) tick() {
	now := l.clock.now().mono
	type news struct {
		call   *call
		ballot ballot
	}
	var late []news
	check := func(c *call, b ballot) {
		if c.round == nil || c.overdue || c.state == callDropped {
			return
		}
		if now < c.deadline {
			l.arm(c.deadline, now)
			return
		}
		c.overdue = true
		if b.final {
			c.state = callDropped
		}
		late = append(late, news{c, b})
	}

	l.mu.Lock()
	l.armed = false
	for _, c := range l.out {
		check(c, ballot{vote: VoteUnknown, err: errTimeout})
	}
	for c := l.head; c != nil; c = c.next {
		check(c, ballot{vote: VoteBarred, err: errTooLate, final: c.req.kind != release})
	}
	l.wake(func(c *call) bool { return now >= c.due })
	l.armKept(now)
	down := false
	switch {
	case l.out == nil || l.down:
	case l.overdue(now):
		l.down, down = true, true
	default:
		l.arm(l.overdueAt, now)
	}
	l.mu.Unlock()

	for _, n := range late {
		n.call.deliver(n.ballot, now)
	}
	if down && l.onChange != nil {
		l.onChange(true, errTimeout)
	}
}

// close refuses new calls and drops those that wait, but sends the releases. The
// channel is closed when they are done.
func (l *lane) close(now int64) <-chan struct{} {
	flushed := make(chan struct{})
	var dropped []*call
	l.mu.Lock()
	l.closed, l.flushed = true, flushed
	for c := l.head; c != nil; c = c.next {
		if c.state == callQueued && c.req.kind != release {
			c.state = callDropped
			dropped = append(dropped, c)
		}
	}
	l.wake(func(*call) bool { return true })
	if !l.running {
		l.tellFlushed()
	}
	l.mu.Unlock()
	for _, c := range dropped {
		c.deliver(ballot{vote: VoteBarred, err: ErrClosed, final: true}, now)
	}
	return flushed
}

func (l *lane) tellFlushed() {
	if l.flushed != nil {
		close(l.flushed)
		l.flushed = nil
	}
}

// abandon forgets what a closed lane still has to send, and tells whoever waits.
func (l *lane) abandon(now int64) {
	var left []*call
	l.mu.Lock()
	for c := l.head; c != nil; c = c.next {
		left = append(left, c)
	}
	left = append(left, l.kept...)
	left = append(left, l.out...)
	l.head, l.tail, l.kept = nil, nil, nil
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	for _, c := range left {
		c.deliver(ballot{vote: VoteUnknown, err: ErrClosed}, now)
	}
}
