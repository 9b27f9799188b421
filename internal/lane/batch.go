package lane

import (
	"iter"
	"slices"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

const (
	// MostInBatch bounds how long one batch keeps the next one waiting.
	MostInBatch = 512
	// A link is long from longLink on. There, up to MostOut batches are out at a time,
	// and a batch leaves no sooner than a share of the round trip after the one before. On a
	// shorter link the smaller batches cost more than the wait for the one before.
	longLink = 2 * time.Millisecond
	gapShare = 4
	// mostPassed bounds the search for calls that may go while others are out.
	mostPassed = MostInBatch
	// callCost is the client's and the server's time per call, not counted as round trip. It is more
	// than on a fast machine, so that no load makes a link look long.
	callCost = 10 * time.Microsecond
	// fewestJoins is how many joins a batch has room for on any link. They take a node half
	// a millisecond, which is what they may cost the calls behind them.
	fewestJoins = 64
)

// callList is a queue of calls, linked through them, so that it costs no allocation.
type callList struct{ head, tail *Call }

func (q *callList) Empty() bool { return q.head == nil }

func (q *callList) push(c *Call) {
	c.State, c.next = callQueued, nil
	if q.tail == nil {
		q.head = c
	} else {
		q.tail.next = c
	}
	q.tail = c
}

// Pop takes out the first, nil if there is none.
func (q *callList) Pop() *Call {
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

// backlog is the calls that wait in a lane, by what matters first. A crowd of callers must not cost
// a lock that is held, so what keeps or frees one goes before attempts. Joins of a wait queue
// come last, since thousands of them may come at once: a batch takes a number of them, so neither it
// nor the calls behind them take any longer for that.
//
// So calls of one key keep their order within a list only. A release drops the SET that it takes
// back, if that waits here still. An extend goes behind the SET of its own value: ahead of it the node would
// deny having the value, and enough such nodes end a lock that is held. A waiter has one request under way
// at a time, and no call of its own overtakes its join, with one exception: one that joins anew after a
// failed attempt takes the attempt's place in the queue, and has to come before the release that strikes it
// out.
type backlog struct{ urgent, calls, joins callList }

func (q *backlog) empty() bool { return q.urgent.Empty() && q.calls.Empty() && q.joins.Empty() }

func (q *backlog) push(c *Call) {
	switch op := c.Req.Op; {
	case op == protocol.OpExtend && c.Set != nil && c.Set.State == callQueued: // mutant: extend-behind-its-set
		q.calls.push(c)
	case op == protocol.OpRelease, op == protocol.OpExtend, op == protocol.OpRepair, op == protocol.OpJoin && c.Req.Queue.Ended != "":
		q.urgent.push(c)
	case op == protocol.OpJoin:
		q.joins.push(c)
	default:
		q.calls.push(c)
	}
}

// All is every call, those that were dropped included.
func (q *backlog) All() iter.Seq[*Call] {
	return func(yield func(*Call) bool) {
		for _, list := range []*callList{&q.urgent, &q.calls, &q.joins} {
			for c := list.head; c != nil; c = c.next {
				if !yield(c) {
					return
				}
			}
		}
	}
}

// batch is what goes out together.
type batch struct {
	calls     []*Call
	sentAt    int64
	overdueAt int64 // sentAt + patience()
	bound     time.Duration
	join      *Call // one of those in it; nil: there is none
	array     [MostInBatch]*Call
	told      []news // room for its news, kept for reuse
}

// news is what a caller is to be told.
type news struct {
	call   *Call
	answer protocol.Answer
}

func tellAll(all []news, now int64) {
	for _, n := range all {
		n.call.tell(n.answer, now)
	}
}

// patience is after what time without an answer the node counts as hung: the longest
// timeout in the batch. Joins may take longer than other calls, and must not put that off.
func (b *batch) patience() time.Duration {
	var patience, ofJoins time.Duration
	for _, c := range b.calls {
		if c.Req.Op == protocol.OpJoin {
			ofJoins = max(ofJoins, c.Req.JoinPatience())
		} else {
			patience = max(patience, c.Req.Timeout)
		}
	}
	if patience == 0 {
		return ofJoins
	}
	return patience
}

// result sums up what came of a batch: whether the node answered anything, whether
// anything may have left, and what it failed with last.
func (b *batch) result() (heard, sent bool, failure error) {
	for _, c := range b.calls {
		if c.Answered() {
			heard = true
		} else {
			failure = c.Err()
		}
		sent = sent || c.Sent
	}
	return heard, sent, failure
}

// flight is the batches that are out, and when the next one may leave. Its lane's mutex
// guards it.
//
// Invariant: no key is in two batches that are out.
type flight struct {
	Out      []*batch
	lastSent int64
	// blocked: every call that could go has its key in a batch that is out. It holds
	// until a batch returns or a call with another key comes.
	blocked bool
	RTT     Shortest
	//lint:ignore U1000 invariants_on.go uses it
	freed released
	spare []*batch        // to be used again
	busy  map[string]bool // as keys found it
}

func (f *flight) overdue(now int64) bool {
	for _, b := range f.Out {
		if now >= b.overdueAt {
			return true
		}
	}
	return false
}

// wait is how long the next batch has to wait: 0 if it may go, negative: not before a batch returns.
func (f *flight) wait(now int64) int64 {
	if len(f.Out) == 0 {
		return 0
	}
	rtt := f.RTT.Get()
	if rtt < longLink || len(f.Out) == MostOut || f.overdue(now) {
		return -1
	}
	return max(f.lastSent+int64(rtt/gapShare)-now, 0)
}

// keys are those of the batches that are out; nil if there are none.
func (f *flight) keys() map[string]bool {
	if len(f.Out) == 0 {
		return nil
	}
	if f.busy == nil {
		f.busy = make(map[string]bool)
	}
	clear(f.busy)
	for _, b := range f.Out {
		for _, c := range b.calls {
			f.busy[c.Req.Key] = true
		}
	}
	return f.busy
}

func (f *flight) has(key string) bool {
	for _, b := range f.Out {
		for _, c := range b.calls {
			if c.Req.Key == key {
				return true
			}
		}
	}
	return false
}

// silentSince is when the oldest batch that is out was sent; now if none is out.
func (f *flight) silentSince(now int64) int64 {
	for _, b := range f.Out {
		now = min(now, b.sentAt)
	}
	return now
}

// due is when the caller of a call stops waiting. A join that waits is in time as long as
// the node answers, however many are before it.
func (f *flight) due(c *Call, now int64) int64 {
	if c.Req.Op == protocol.OpJoin && c.State == callQueued {
		return f.joinDue(c, now)
	}
	return c.Deadline
}

func (f *flight) joinDue(c *Call, now int64) int64 {
	return f.silentSince(now) + int64(c.Req.JoinPatience())
}

// roomForJoins is how many joins a batch may carry. On a link that is long they may be so
// many that they take as long again, since nothing but the next batch waits for them.
func (f *flight) roomForJoins() int {
	return min(max(fewestJoins, int(f.RTT.Get()/callCost)), MostInBatch*3/4)
}

// next takes what is to go out next, nil if there is nothing or it has to wait, and the
// news for those that have become pointless: too late for their callers, or releases of
// what turned out not to be there.
func (f *flight) next(q *backlog, now int64) (b *batch, pointless []news) {
	if q.empty() || f.wait(now) != 0 {
		return nil, nil
	}
	p := packing{batch: f.newBatch(now), busy: f.keys(), now: now}
	forJoins := 0
	if !q.joins.Empty() {
		forJoins = f.roomForJoins()
	}
	p.take(&q.urgent, MostInBatch-forJoins)
	p.take(&q.calls, MostInBatch-forJoins)
	p.take(&q.joins, len(p.batch.calls)+forJoins)
	b = p.batch
	if f.blocked = len(b.calls) == 0 && p.passed > 0; len(b.calls) == 0 {
		f.spare = append(f.spare, b)
		return nil, p.pointless
	}
	patience := b.patience()
	b.overdueAt, b.bound = now+int64(patience), max(patience, min(b.bound, LongestRead))
	f.check(b)
	f.Out, f.lastSent = append(f.Out, b), now
	return b, p.pointless
}

// packing is a batch while it is filled.
type packing struct {
	batch     *batch
	busy      map[string]bool // keys of calls that are out
	now       int64
	passed    int // calls that may not go because of their keys
	pointless []news
}

// take moves calls from the list to the batch until it holds most.
func (p *packing) take(q *callList, most int) {
	b := p.batch
	rest, passed := q.takeAll(), 0
	c := rest.head
	for c != nil && len(b.calls) < most && passed < mostPassed {
		next := c.next
		c.next = nil // a call that is kept must not keep those that stood behind it
		switch {
		case c.State == callDropped:
		case c.needless():
			c.State = callDropped
			p.pointless = append(p.pointless, news{c, protocol.Unsent(errNeverSent)})
		case c.Req.Op != protocol.OpRelease && c.Req.Op != protocol.OpJoin && c.Deadline < p.now:
			c.State = callDropped
			p.pointless = append(p.pointless, news{c, protocol.Unsent(ErrTooLate)})
		case p.busy[c.Req.Key]:
			passed++
			q.push(c)
		default:
			c.State, c.Req = callOut, c.Req.AsOf(p.now)
			if c.Req.Op == protocol.OpJoin {
				b.join, c.Deadline = c, p.now+int64(c.Req.JoinPatience())
			}
			b.calls = append(b.calls, c)
			b.bound = max(b.bound, c.Req.ReadBound)
		}
		c = next
	}
	if rest.head = c; c != nil {
		q.append(rest)
	}
	p.passed += passed
}

func (f *flight) newBatch(now int64) *batch {
	var b *batch
	if last := len(f.spare) - 1; last >= 0 {
		b, f.spare = f.spare[last], f.spare[:last]
	} else {
		b = new(batch)
	}
	b.calls, b.sentAt, b.bound, b.join = b.array[:0], now, 0, nil
	return b
}

// returned notes that a batch is not out any more.
func (f *flight) returned(b *batch) {
	f.Out = slices.DeleteFunc(f.Out, func(o *batch) bool { return o == b })
	f.blocked = false
}

// took notes how long a batch took that the node answered.
func (f *flight) took(b *batch, now int64) {
	f.RTT.Add(max(time.Duration(now-b.sentAt)-time.Duration(len(b.calls))*callCost, 1), now)
}

// Shortest is the shortest round trip of the last few seconds. Being the shortest, it
// tells of the link and not of the load.
type Shortest struct {
	Before, Now time.Duration // in the last whole period and in this one; 0: none
	Since       int64
}

const ShortestPeriod = int64(5 * time.Second)

// Add takes in a duration that was measured now.
func (s *Shortest) Add(d time.Duration, now int64) {
	if now-s.Since > ShortestPeriod {
		s.Before, s.Now, s.Since = s.Now, 0, now
	}
	if s.Now == 0 || d < s.Now {
		s.Now = d
	}
}

// Get is the shortest of late; 0: there was none.
func (s *Shortest) Get() time.Duration {
	if s.Before == 0 || s.Now != 0 && s.Now < s.Before {
		return s.Now
	}
	return s.Before
}
