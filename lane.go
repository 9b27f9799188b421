package redlock

import (
	"errors"
	"slices"
	"sync"
	"time"
)

const (
	// mostInBatch bounds how long one batch keeps the next one waiting.
	mostInBatch = 512
	// A link is long from longLink on. There, up to mostOut batches are out at a time,
	// and a batch leaves no sooner than a share of the round trip after the one before.
	longLink = 500 * time.Microsecond
	mostOut  = 4
	gapShare = 4
	// mostHeld bounds the search for calls that may go while others are out.
	mostHeld = mostInBatch
	// callCost is what a call in a batch takes at both ends, which is not the link's.
	callCost = 10 * time.Microsecond
	// longestRead bounds how long a batch that is not answered keeps its connection.
	longestRead = 30 * time.Second

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

// shortest is the shortest round trip of the last few seconds. Being the shortest, it
// tells of the link and not of the load.
type shortest struct {
	before, now time.Duration // in the last whole period and in this one; 0: none
	since       int64
}

const shortestPeriod = int64(5 * time.Second)

func (s *shortest) add(d time.Duration, now int64) {
	if now-s.since > shortestPeriod {
		s.before, s.now, s.since = s.now, 0, now
	}
	if s.now == 0 || d < s.now {
		s.now = d
	}
}

func (s *shortest) get() time.Duration {
	if s.before == 0 || s.now != 0 && s.now < s.before {
		return s.now
	}
	return s.before
}

// wire puts requests on the wire; it is the part of a lane that a simulation replaces.
//
// exchange sends the requests of the batch in order over one connection, each of them
// once and never again, and fills in the ballot of each: val, err and sent. It returns when all replies
// were read or the conversation broke, and waits for a reply no longer than bound. After
// patience nobody waits for the replies any more, and it may look whether the node still
// answers others. Settled: nothing of the batch may take effect any more.
// It must not look at anything but req of a call, nor keep the slice. On a long link
// several exchanges run at the same time.
type wire interface {
	exchange(batch []*call, patience, bound time.Duration) (settled bool)
}

// lane is the ordered, batched conversation with one node, and the only way to it.
//
// One batch is out at a time; what comes meanwhile makes the next one, so load makes
// batches larger instead of making more of them ("group commit"). Only on a link whose
// round trip is long do further batches follow on other connections while the first is
// out. No key is ever in two of them, so a release cannot overtake the SET that it takes
// back. A batch that is overdue closes the lane to new acquires: nothing piles up behind
// a node that hangs. Its late answers are still read, and releases wait for it.
type lane struct {
	wire     wire
	clock    clock
	onChange func(down bool, err error) // may be nil; called with mu held, in order

	// mu guards what follows, and the fields of calls that say so. It is never held
	// across I/O or a timer. A round's mutex may be taken under it, never the other
	// way round.
	mu         sync.Mutex
	head, tail *call // queued, in order; times are nanoseconds of the clock
	out        []*batch
	lastSent   int64
	starting   bool // a goroutine is about to take a batch
	blocked    bool // all that could go has its key in a batch that is out
	rtt        shortest
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

	spare *batch // to be used again
}

// batch is what goes out together.
type batch struct {
	calls     []*call
	sentAt    int64
	overdueAt int64 // the longest timeout in it is over
	bound     time.Duration
	array     [mostInBatch]*call
	told      []news // of use while it is settled
}

// news is what a caller is to be told.
type news struct {
	call   *call
	ballot ballot
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
	var b ballot
	if set.state == callQueued {
		set.state = callDropped
		dropped = ballot{vote: VoteBarred, err: errMoot, final: true}
	}
	if dropped.vote != 0 && !set.unsure && !set.stands && !c.leaves {
		// Gone by our hand, as much as if the node had deleted it.
		c.state, b = callDropped, ballot{vote: VoteGranted, final: true}
	} else {
		b = l.admit(c, now)
	}
	l.mu.Unlock()
	set.deliver(dropped, now)
	c.deliver(b, now)
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
	c.unsure, c.doubt, c.stands = before.unsure, before.mayLand() || before.doubt, before.stands || before.vote == VoteGranted
	b := l.admit(c, now)
	l.mu.Unlock()
	c.deliver(b, now)
	return true
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
	l.blocked = l.blocked && l.busyWith(c)
	if c.round != nil && !c.overdue {
		l.arm(c.deadline, now)
	}
	l.run(now)
	return b
}

// skip reports whether there is surely nothing for a release to take back. The
// caller holds the lane's mutex.
func (c *call) skip() bool {
	set := c.takesBack
	if set == nil || set.unsure || set.stands || c.leaves {
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
	for _, b := range l.out {
		if now >= b.overdueAt {
			return true
		}
	}
	return false
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

// run sees to it that somebody sends what may be sent; the caller holds mu.
func (l *lane) run(now int64) {
	switch wait := l.wait(now); {
	case l.head == nil || l.starting || l.blocked:
	case wait == 0:
		l.starting = true
		go l.drain()
	case wait > 0:
		l.arm(now+wait, now)
	}
}

// wait is how long the next batch has to wait: 0 if it may go, negative if it is not
// for the time to decide.
func (l *lane) wait(now int64) int64 {
	if len(l.out) == 0 {
		return 0
	}
	rtt := l.rtt.get()
	if rtt < longLink || len(l.out) == mostOut || l.overdue(now) {
		return -1
	}
	return max(l.lastSent+int64(rtt/gapShare)-now, 0)
}

// drain sends batch after batch until none may go, and ends.
func (l *lane) drain() {
	l.clock.yield(0)
	l.mu.Lock()
	l.starting = false
	for {
		now := l.clock.now().mono
		b, unsent := l.nextBatch(now)
		if b == nil {
			if wait := l.wait(now); l.head != nil && wait > 0 && !l.blocked {
				l.arm(now+wait, now)
			}
			l.tellFlushed()
		}
		l.mu.Unlock()
		for _, c := range unsent {
			c.deliver(ballot{vote: VoteBarred, err: errNeverSent, final: true}, now)
		}
		if b == nil {
			return
		}
		settled := l.wire.exchange(b.calls, time.Duration(b.overdueAt-b.sentAt), b.bound)
		l.settle(b, settled)
		l.clock.yield(1)
		l.mu.Lock()
	}
}

// nextBatch takes what is to go out next, nil if there is nothing or it has to wait,
// and those that have become pointless: too late for their callers, or releases of
// what turned out not to be there. The caller holds mu.
func (l *lane) nextBatch(now int64) (b *batch, unsent []*call) {
	if l.head == nil || l.wait(now) != 0 {
		return nil, nil
	}
	busy := l.keysOut()
	if b, l.spare = l.spare, nil; b == nil {
		b = new(batch)
	}
	b.calls, b.sentAt, b.bound = b.array[:0], now, 0
	patience := time.Duration(0)
	c, tail := l.head, l.tail
	l.head, l.tail = nil, nil
	held := 0
	for c != nil && len(b.calls) < mostInBatch && held < mostHeld {
		next := c.next
		switch {
		case c.state == callDropped:
		case c.skip(), c.req.kind != release && c.deadline < now:
			c.state = callDropped
			if c.round != nil {
				unsent = append(unsent, c)
			}
		case busy != nil && busy[c.req.key()]:
			held++
			l.push(c)
		default:
			c.state, c.next = callOut, nil
			b.calls = append(b.calls, c)
			patience = max(patience, c.req.timeout)
			b.bound = max(b.bound, c.req.ttl)
		}
		c = next
	}
	if c != nil {
		if l.tail == nil {
			l.head = c
		} else {
			l.tail.next = c
		}
		l.tail = tail
	}
	if l.blocked = len(b.calls) == 0 && held > 0; len(b.calls) == 0 {
		l.spare = b
		return nil, unsent
	}
	b.overdueAt, b.bound = now+int64(patience), max(patience, min(b.bound, longestRead))
	l.out, l.lastSent = append(l.out, b), now
	return b, unsent
}

// keysOut are the keys of the batches that are out; nil if there are none.
func (l *lane) keysOut() map[any]bool {
	if len(l.out) == 0 {
		return nil
	}
	keys := make(map[any]bool)
	for _, b := range l.out {
		for _, c := range b.calls {
			keys[c.req.key()] = true
		}
	}
	return keys
}

// busyWith reports whether a call's key is in a batch that is out; the caller holds mu.
func (l *lane) busyWith(c *call) bool {
	for _, b := range l.out {
		for _, o := range b.calls {
			if o.req.key() == c.req.key() {
				return true
			}
		}
	}
	return false
}

// settle reads the replies of a batch and tells whoever waits for them.
func (l *lane) settle(b *batch, settled bool) {
	now := l.clock.now().mono
	heard, sent := false, false
	var failure error
	for _, c := range b.calls {
		if c.answered() {
			heard = true
		} else {
			failure = c.err
		}
		sent = sent || c.sent
	}

	l.mu.Lock()
	l.out = slices.DeleteFunc(l.out, func(o *batch) bool { return o == b })
	l.blocked = false
	changed := l.down == heard && !l.closed
	l.down = !heard
	if changed && l.onChange != nil {
		l.onChange(!heard, failure)
	}
	if l.backoff = min(max(2*l.backoff, minBackoff), maxBackoff); !heard && !sent {
		l.holdUntil, l.holdErr = now+int64(l.backoff), failure
	}
	if heard {
		l.backoff = 0
		l.rtt.add(max(time.Duration(now-b.sentAt)-time.Duration(len(b.calls))*callCost, 1), now)
		l.wake(now, func(c *call) bool { return !c.again && c.vote != VoteFailed })
	}
	told := b.told[:0]
	var first, last *call // scripts that the server wants whole
	for i, c := range b.calls {
		if c.unknownScript() && !c.req.whole {
			c.req, c.state = c.req.withSource(), callQueued
			if b.calls[i] = nil; first == nil {
				first = c
			} else {
				last.next = c
			}
			last = c
			continue
		}
		c.over = settled && !c.doubt
		l.finish(c, now)
		if c.round != nil {
			told = append(told, news{c, c.ballot})
		}
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

	for _, n := range told {
		n.call.deliver(n.ballot, now)
	}

	clear(b.calls)
	clear(told)
	b.told = told
	l.mu.Lock()
	l.spare = b
	l.mu.Unlock()
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
	case refused && !c.again && c.takesBack != nil && c.takesBack.mayLand():
		c.again = true
		c.vote, c.err = VoteUnknown, errMayLand
		c.final = !l.keep(c, now, now+int64(c.req.timeout))
	case c.vote == VoteGranted && !c.again && c.takesBack != nil && c.takesBack.mayLand() && c.takesBack.mayFindItself():
		// What was deleted need not be what that SET did, or will do. For whoever waits
		// the lock is gone from here.
		c.again = true
		l.keep(c, now, now+int64(c.req.timeout))
	case !refused && (c.vote == VoteUnknown || c.vote == VoteBarred):
		c.final = !l.keep(c, now, now+int64(max(l.backoff, minBackoff)))
	case c.vote == VoteFailed && !incurable(c.err) && !c.unknownScript():
		// Busy, loading, for the time being a replica: what is there is still there.
		c.final = !l.keep(c, now, now+int64(c.req.timeout))
	}
}

// mayLand reports whether a SET, or one that it replaced, may take effect at any later time.
func (c *call) mayLand() bool { return c.unsure && !c.over }

// mayFindItself reports whether a node may have had the value before it got the SET: by a
// reservation in line, which scripts take up, or from a SET that this one replaced.
func (c *call) mayFindItself() bool {
	return c.stands || (c.doubt || c.req.script != nil) && c.state != callDropped
}

// keep puts a release aside until it is due, or reports that nothing of ours can be on
// the node by then; the caller holds mu.
func (l *lane) keep(c *call, now, due int64) bool {
	if c.goneBy == 0 {
		c.goneBy = now + int64(max(c.req.ttl, c.req.leaves))
	}
	if due > c.goneBy {
		return false
	}
	c.state, c.due = callKept, due
	l.kept = append(l.kept, c)
	return true
}

// wake queues the kept releases that ready picks; the caller holds mu.
func (l *lane) wake(now int64, ready func(*call) bool) {
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
	l.run(now)
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
	for _, b := range l.out {
		for _, c := range b.calls {
			check(c, ballot{vote: VoteUnknown, err: errTimeout})
		}
	}
	for c := l.head; c != nil; c = c.next {
		check(c, ballot{vote: VoteBarred, err: errTooLate, final: c.req.kind != release})
	}
	l.wake(now, func(c *call) bool { return now >= c.due })
	l.armKept(now)
	if !l.down {
		if l.overdue(now) {
			l.down = true
			if l.onChange != nil {
				l.onChange(true, errTimeout)
			}
		}
		for _, b := range l.out {
			if now < b.overdueAt {
				l.arm(b.overdueAt, now)
			}
		}
	}
	l.mu.Unlock()

	for _, n := range late {
		n.call.deliver(n.ballot, now)
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
	l.wake(now, func(*call) bool { return true })
	l.tellFlushed()
	l.mu.Unlock()
	for _, c := range dropped {
		c.deliver(ballot{vote: VoteBarred, err: ErrClosed, final: true}, now)
	}
	return flushed
}

// tellFlushed ends close's wait if nothing is left to do; the caller holds mu.
func (l *lane) tellFlushed() {
	if l.flushed != nil && l.head == nil && len(l.out) == 0 && !l.starting {
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
	for _, b := range l.out {
		left = append(left, b.calls...)
	}
	l.head, l.tail, l.kept = nil, nil, nil
	if l.timer != nil {
		l.timer.Stop()
	}
	l.mu.Unlock()
	for _, c := range left {
		c.deliver(ballot{vote: VoteUnknown, err: ErrClosed}, now)
	}
}
