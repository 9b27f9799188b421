package redlock

import (
	"errors"
	"slices"
	"time"
)

const (
	// mostInBatch bounds how long one batch keeps the next one waiting.
	mostInBatch = 512
	// A link is long from longLink on. There, up to mostOut batches are out at a time,
	// and a batch leaves no sooner than a share of the round trip after the one before.
	longLink = 500 * time.Microsecond
	gapShare = 4
	// mostPassed bounds the search for calls that may go while others are out.
	mostPassed = mostInBatch
	// callCost is what a call in a batch takes at both ends, which is not the link's.
	callCost = 10 * time.Microsecond
	// A node that cannot be reached, or fails, is tried again after a pause that doubles.
	minBackoff = 5 * time.Millisecond
	maxBackoff = 250 * time.Millisecond
)

var (
	errTooLate   = errors.New("waited too long behind other requests")
	errNeverSent = errors.New("nothing left to be done there")
)

// callList is a queue of calls, linked through them, so that it costs no allocation.
type callList struct{ head, tail *call }

func (q *callList) empty() bool { return q.head == nil }

func (q *callList) push(c *call) {
	c.state, c.next = callQueued, nil
	if q.tail == nil {
		q.head = c
	} else {
		q.tail.next = c
	}
	q.tail = c
}

// pop takes out the first, nil if there is none.
func (q *callList) pop() *call {
	c := q.head
	if c == nil {
		return nil
	}
	if q.head = c.next; q.head == nil {
		q.tail = nil
	}
	c.next = nil
	return c
}

// takeAll empties the list and returns what was in it.
func (q *callList) takeAll() callList {
	all := *q
	*q = callList{}
	return all
}

// append puts another list, which is used no longer, behind this one.
func (q *callList) append(other callList) {
	switch {
	case other.head == nil:
	case q.tail == nil:
		*q = other
	default:
		q.tail.next, q.tail = other.head, other.tail
	}
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

func tellAll(all []news, now int64) {
	for _, n := range all {
		n.call.tell(n.ballot, now)
	}
}

// result sums up what came of a batch: whether the node answered anything, whether
// anything may have left, and what it failed with last.
func (b *batch) result() (heard, sent bool, failure error) {
	for _, c := range b.calls {
		if c.answered() {
			heard = true
		} else {
			failure = c.err
		}
		sent = sent || c.sent
	}
	return heard, sent, failure
}

// flight is the batches that are out, and when the next one may leave. Its lane's mutex
// guards it.
//
// Invariant: no key is in two batches that are out.
type flight struct {
	out      []*batch
	lastSent int64
	// blocked: every call that could go has its key in a batch that is out. It holds
	// until a batch is settled or a call with another key comes.
	blocked bool
	rtt     shortest
	spare   *batch // to be used again
}

func (f *flight) overdue(now int64) bool {
	for _, b := range f.out {
		if now >= b.overdueAt {
			return true
		}
	}
	return false
}

// wait is how long the next batch has to wait: 0 if it may go, negative if it is not
// for the time to decide.
func (f *flight) wait(now int64) int64 {
	if len(f.out) == 0 {
		return 0
	}
	rtt := f.rtt.get()
	if rtt < longLink || len(f.out) == mostOut || f.overdue(now) {
		return -1
	}
	return max(f.lastSent+int64(rtt/gapShare)-now, 0)
}

// keys are those of the batches that are out; nil if there are none.
func (f *flight) keys() map[string]bool {
	if len(f.out) == 0 {
		return nil
	}
	keys := make(map[string]bool)
	for _, b := range f.out {
		for _, c := range b.calls {
			keys[c.req.key] = true
		}
	}
	return keys
}

func (f *flight) has(key string) bool {
	for _, b := range f.out {
		for _, c := range b.calls {
			if c.req.key == key {
				return true
			}
		}
	}
	return false
}

// next takes what is to go out next from the queue, nil if there is nothing or it has to
// wait, and the news for those that have become pointless: too late for their callers, or
// releases of what turned out not to be there.
func (f *flight) next(q *callList, now int64) (b *batch, pointless []news) {
	if q.empty() || f.wait(now) != 0 {
		return nil, nil
	}
	busy := f.keys()
	b = f.newBatch(now)
	patience := time.Duration(0)
	rest := q.takeAll()
	c, passed := rest.head, 0
	for c != nil && len(b.calls) < mostInBatch && passed < mostPassed {
		next := c.next
		switch {
		case c.state == callDropped:
		case c.needless():
			c.state = callDropped
			pointless = append(pointless, news{c, unsent(errNeverSent)})
		case c.req.op != opRelease && c.deadline < now:
			c.state = callDropped
			pointless = append(pointless, news{c, unsent(errTooLate)})
		case busy != nil && busy[c.req.key]:
			passed++
			q.push(c)
		default:
			c.state, c.next = callOut, nil
			b.calls = append(b.calls, c)
			patience = max(patience, c.req.timeout)
			b.bound = max(b.bound, c.req.readBound)
		}
		c = next
	}
	if rest.head = c; c != nil {
		q.append(rest)
	}
	if f.blocked = len(b.calls) == 0 && passed > 0; len(b.calls) == 0 {
		f.spare = b
		return nil, pointless
	}
	b.overdueAt, b.bound = now+int64(patience), max(patience, min(b.bound, longestRead))
	f.out, f.lastSent = append(f.out, b), now
	return b, pointless
}

func (f *flight) newBatch(now int64) *batch {
	b := f.spare
	if f.spare = nil; b == nil {
		b = new(batch)
	}
	b.calls, b.sentAt, b.bound = b.array[:0], now, 0
	return b
}

// landed notes that a batch is not out any more.
func (f *flight) landed(b *batch) {
	f.out = slices.DeleteFunc(f.out, func(o *batch) bool { return o == b })
	f.blocked = false
}

// took notes how long a batch took that the node answered.
func (f *flight) took(b *batch, now int64) {
	f.rtt.add(max(time.Duration(now-b.sentAt)-time.Duration(len(b.calls))*callCost, 1), now)
}

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

// breaker keeps requests from a node to which no connection can be had, and tells whether
// the node answers. Its lane's mutex guards it.
type breaker struct {
	down    bool // the last batch was not answered, or one is overdue
	backoff time.Duration
	until   int64 // nothing but releases is taken before this
	err     error // of the last try
}

// landed notes how a batch ended.
func (b *breaker) landed(heard bool) {
	b.backoff = min(max(2*b.backoff, minBackoff), maxBackoff)
	if heard {
		b.backoff = 0
	}
}

// failed notes that not even a connection could be had.
func (b *breaker) failed(err error, now int64) { b.until, b.err = now+int64(b.backoff), err }
