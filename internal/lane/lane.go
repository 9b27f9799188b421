package lane

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// Lane is the ordered, batched conversation with one node, and the only way to it.
//
// One batch is out at a time; what comes meanwhile makes the next one, so load makes
// batches larger instead of making more of them ("group commit"). Only on a link whose
// round trip is long do further batches follow on other connections while the first is
// out. No key is ever in two of them, so a release cannot overtake the SET that it takes
// back. While a batch is overdue the lane takes no new acquires: nothing piles up behind
// a node that hangs. Its late answers are still read, and releases wait for it.
//
// A goroutine drains the lane while there is something to send, waits for a moment when there
// is nothing, and ends. Its callers never wait for a mutex across I/O: Enqueue queues, and
// answers are delivered by the draining goroutine after it let go of Mu.
type Lane struct {
	Wire     Wire
	Clock    tick.Clock
	onChange func(down bool, err error) // may be nil; called with Mu held, in order
	remedies protocol.Remedies          // at hand for the node's errors

	// Mu guards what follows, and the fields of calls that say so. It is never held
	// across I/O, and no other mutex is taken under it but those of the clock and of
	// onChange.
	Mu      sync.Mutex
	Queue   backlog // times are nanoseconds of the clock
	Flight  flight
	kept    KeptReleases
	breaker breaker
	Alarm   tick.Alarm
	// Starting: a goroutine is about to take a batch. Several goroutines drain only while
	// several batches are out.
	Starting bool
	standby  standby
	closed   bool          // it takes nothing new, and sends the releases that it has
	flushed  chan struct{} // made by Close, closed when nothing is left to do
}

// New returns an open lane. onChange may be nil; it is called with Lane.Mu held when the node stops
// answering, with the reason, and when it answers again.
func New(w Wire, c tick.Clock, onChange func(bool, error)) *Lane {
	l := &Lane{Wire: w, Clock: c, onChange: onChange, standby: standby{work: make(chan bool, 1)}}
	l.Alarm = tick.Alarm{Clock: c, F: l.tick}
	l.kept.Alarm = &l.Alarm
	if m, ok := w.(Mender); ok {
		l.remedies = m.Remedies()
	}
	return l
}

// Enqueue sends a call after all that came before, or delivers at once why it cannot.
func (l *Lane) Enqueue(c *Call, now int64) {
	l.Mu.Lock()
	b := l.admit(c, now)
	l.Mu.Unlock()
	c.tell(b, now)
}

// TakeBack enqueues the release of what a SET did or may do. A SET that still waits in
// the queue is dropped instead.
func (l *Lane) TakeBack(c *Call, now int64) {
	l.Mu.Lock()
	set := c.Set
	var dropped, b protocol.Answer
	if set.State == callQueued {
		set.State, dropped = callDropped, protocol.Unsent(ErrMoot)
	}
	if dropped.Kind != 0 && set.earlier == 0 && c.When < QueueWaits {
		// Gone by our hand, as much as if the node had deleted it.
		c.State, b = callDropped, protocol.Answer{Kind: protocol.Granted, Final: true}
	} else {
		b = l.admit(c, now)
	}
	l.Mu.Unlock()
	set.tell(dropped, now)
	c.tell(b, now)
}

// Replace enqueues a SET that takes the place of an earlier one of the same value, unless
// that is on its way yet. What the earlier one did, or may still do, is from now on the
// later one's to answer for: a release looks at the last one only.
func (l *Lane) Replace(before, c *Call, now int64) (replaced bool) {
	l.Mu.Lock()
	if before.State == callQueued || before.State == callOut {
		l.Mu.Unlock()
		return false
	}
	c.earlier = before.trace()
	b := l.admit(c, now)
	l.Mu.Unlock()
	c.tell(b, now)
	return true
}

// StillPending keeps those of the requests that may take effect at any later time.
func (l *Lane) StillPending(calls []*Call) []*Call {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return slices.DeleteFunc(calls, func(c *Call) bool { return c.trace()&pending == 0 })
}

// MarkUncertain notes in a request that others of the same value have or may have taken effect, and may do
// so at any later time: a release looks at one request only.
func (l *Lane) MarkUncertain(c *Call) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	c.earlier = present | pending
}

// Again enqueues once more a SET that the node refused, and that so left nothing there.
func (l *Lane) Again(c *Call, deadline, now int64) {
	l.Mu.Lock()
	c.Answer, c.toldLate, c.Deadline = protocol.Answer{}, false, deadline
	b := l.admit(c, now)
	l.Mu.Unlock()
	c.tell(b, now)
}

// admit queues a call, or says why not; the caller holds Mu and delivers the answer.
func (l *Lane) admit(c *Call, now int64) protocol.Answer {
	switch {
	case l.closed:
		c.State = callDropped
		return protocol.Unsent(protocol.ErrClosed)
	case c.needless():
		c.State = callDropped
		return protocol.Unsent(errNeverSent)
	case l.Flight.overdue(now) && !(c.Req.Op == protocol.OpJoin && now < l.Flight.joinDue(c, now)):
		if c.Req.Op != protocol.OpRelease || c.servesOnly() {
			c.State = callDropped
			return protocol.Unsent(ErrOverdue)
		}
		// It waits for the node, and its caller does not.
		c.toldLate = true
		l.queueUp(c, now)
		return protocol.Answer{Kind: protocol.NotSent, Said: ErrOverdue}
	case now < l.breaker.until:
		if c.Req.Op != protocol.OpRelease || c.servesOnly() {
			c.State = callDropped
			return protocol.Unsent(l.breaker.err)
		}
		c.toldLate = true
		if !l.kept.wait(&l.kept.unheard, c, now, l.breaker.until) {
			return protocol.Unsent(l.breaker.err)
		}
		return protocol.Answer{Kind: protocol.NotSent, Said: l.breaker.err}
	default:
		l.queueUp(c, now)
		return protocol.Answer{}
	}
}

// queueUp puts a call behind all others; the caller holds Mu.
func (l *Lane) queueUp(c *Call, now int64) {
	l.Queue.push(c)
	l.Flight.blocked = l.Flight.blocked && l.Flight.has(c.Req.Key)
	if c.Caller != nil && !c.toldLate {
		l.Alarm.Set(l.Flight.due(c, now), now)
	}
	l.run(now)
}

// Reachable reports whether the node answered last, or may yet: it has not been silent for
// longer than patience.
func (l *Lane) Reachable(now int64, patience time.Duration) bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	b := &l.breaker
	return (!b.down || b.overdue) && now >= b.until && now-l.Flight.silentSince(now) < int64(patience)
}

// RoundTrip is the shortest round trip of the last seconds; whether or not it was in time; 0: no answer.
func (l *Lane) RoundTrip(now int64) time.Duration {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	if now-l.Flight.RTT.Since > 2*ShortestPeriod {
		return 0
	}
	return l.Flight.RTT.Get()
}

// Load is how many calls wait in the lane, and how many releases it keeps.
func (l *Lane) Load() (queued, kept int) {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	for c := range l.Queue.All() {
		if c.State != callDropped {
			queued++
		}
	}
	return queued, l.kept.len()
}

// Mended notes the remedies that are at hand for an error of the node.
func (l *Lane) Mended(err error) error { return protocol.Mended(err, l.remedies) }

// Gone reports whether the node's client was closed by its owner, as far as is known: the
// node is not coming back.
func (l *Lane) Gone() bool {
	l.Mu.Lock()
	defer l.Mu.Unlock()
	return l.breaker.down && protocol.Permanent(l.breaker.err)
}

// run sees to it that a goroutine sends what may be sent; the caller holds Mu.
func (l *Lane) run(now int64) {
	switch wait := l.Flight.wait(now); {
	case l.Queue.empty() || l.Starting || l.Flight.blocked:
	case wait == 0:
		if l.Starting = true; !l.standby.wake() {
			go l.drain()
		}
	case wait > 0:
		l.Alarm.Set(now+wait, now)
	}
}

// drain sends what there is to send, again and again, until there was nothing for a while.
func (l *Lane) drain() {
	for l.drainOnce() {
		if !l.standby.wait() {
			return
		}
	}
}

// drainOnce sends batch after batch until none may go, and reports whether to rest then.
func (l *Lane) drainOnce() (waits bool) {
	l.Clock.Yield(0)
	l.Mu.Lock()
	for {
		l.Starting = false
		now := l.Clock.Now().Mono
		b, pointless := l.Flight.next(&l.Queue, now)
		if b == nil {
			if wait := l.Flight.wait(now); !l.Queue.empty() && wait > 0 && !l.Flight.blocked {
				l.Alarm.Set(now+wait, now)
			}
			if waits = !l.closed && l.standby.begin(now); waits {
				l.endStandby(now)
			}
			l.tellFlushed()
		} else {
			l.Alarm.Set(b.overdueAt, now) // also where no caller waits for any of it
			if c := cmp.Or(b.join, l.Queue.joins.head); c != nil {
				l.Alarm.Set(now+int64(c.Req.JoinPatience()), now)
			}
		}
		l.Mu.Unlock()
		tellAll(pointless, now)
		if b == nil {
			return waits
		}
		l.Wire.Exchange(b.calls, time.Duration(b.overdueAt-b.sentAt), b.bound)
		l.finishBatch(b)
		runtime.Gosched() // callers that were just told go first: what they ask for next is in the next batch
		l.Clock.Yield(1)
		l.Mu.Lock()
		l.Flight.spare = append(l.Flight.spare, b)
	}
}

// endStandby ends a goroutine that has rested for long enough; of a lane that is closed, at
// once. The caller holds mu.
func (l *Lane) endStandby(now int64) {
	if end, waits := l.standby.restEnd(); waits && now < end && !l.closed {
		l.Alarm.Set(end, now)
	} else {
		l.standby.dismiss()
	}
}

// finishBatch reads the replies of a batch and tells the callers that wait for them.
func (l *Lane) finishBatch(b *batch) {
	now := l.Clock.Now().Mono
	heard, sent, failure := b.result()
	l.Mu.Lock()
	l.Flight.returned(b)
	l.Starting = true // this goroutine takes the next batch
	if !heard || !l.Flight.overdue(now) {
		l.SetDown(!heard, failure)
	}
	l.breaker.returned(heard)
	if heard {
		l.Flight.took(b, now)
		l.requeue(l.kept.some(&l.kept.unheard, now))
	}
	away := !heard && !sent
	if away {
		l.breaker.failed(failure, now)
	}
	told := l.finishAll(b, now)
	if away && !l.closed {
		told = l.putAside(told, now)
	}
	l.Mu.Unlock()

	tellAll(told, now)

	clear(b.calls)
	clear(told)
	b.told = told
}

// SetDown notes whether the node answers, and tells of a change until the lane is closed; the caller
// holds mu.
func (l *Lane) SetDown(down bool, err error) {
	changed := l.breaker.down != down && !l.closed
	l.breaker.down, l.breaker.overdue = down, false
	if changed && l.onChange != nil {
		l.onChange(down, err)
	}
}

// finishAll records the answers of a batch and returns what callers are to be told.
// Requests that are put in other words stay first in the queue, so that nothing overtakes
// them. The caller holds mu.
func (l *Lane) finishAll(b *batch, now int64) []news {
	told := b.told[:0]
	var again callList
	for i, c := range b.calls {
		if req := c.Instead(); req != nil {
			c.Req, b.calls[i] = req, nil
			again.push(c)
			continue
		}
		l.finish(c, now)
		if c.Caller != nil {
			told = append(told, news{c, c.Answer})
		}
	}
	if !again.Empty() {
		again.append(l.Queue.urgent)
		l.Queue.urgent = again
	}
	return told
}

// finish records a call's answer, or keeps a release that is not done yet; the caller
// holds mu.
func (l *Lane) finish(c *Call, now int64) {
	c.State, c.Answer = CallDone, c.Answer.Read(c.Req.Op)
	if c.Kind == protocol.Failed {
		c.Said = l.Mended(c.Err())
	}
	if c.Req.Op != protocol.OpRelease {
		return
	}
	refused, wasLost := c.Kind == protocol.Refused, c.lost
	switch {
	case c.Kind == protocol.Unknown:
		c.lost = true
	case refused && wasLost:
		c.Kind, c.Said = protocol.Unknown, errByUs
	}
	if l.closed {
		return
	}
	if l.kept.resend(c, refused, now) {
		l.served(c, now)
		return
	}
	switch {
	case refused:
		l.served(c, now)
	case protocol.Permanent(c.Err()), c.servesOnly() && c.Kind != protocol.Granted:
		l.kept.forget(c)
	case c.Kind == protocol.Unknown || c.Kind == protocol.NotSent:
		c.Final = !l.kept.wait(&l.kept.unheard, c, now, l.breaker.until)
	case c.Kind == protocol.Failed && !c.WantsSource():
		// Busy, loading, for the time being a replica: what is there is still there.
		c.Final = !l.kept.wait(&l.kept.failed, c, now, now)
	default:
		l.served(c, now)
	}
}

// requeue puts releases that were kept behind all others; the caller holds Mu, and runs
// the lane.
func (l *Lane) requeue(list callList) {
	if !list.Empty() {
		l.Queue.urgent.append(list)
		l.Flight.blocked = false
	}
}

// served queues the releases that the node failed, if this one was sent to find out whether
// it still does; the caller holds Mu.
func (l *Lane) served(c *Call, now int64) {
	if c == l.kept.failed.probe {
		l.requeue(l.kept.some(&l.kept.failed, now))
	}
}

// putAside has the releases that are queued wait for the node, to which no connection is
// to be had, and adds the news of that; the caller holds Mu.
func (l *Lane) putAside(told []news, now int64) []news {
	queue := l.Queue.urgent.takeAll()
	for c := queue.Pop(); c != nil; c = queue.Pop() {
		switch {
		case c.State == callDropped:
			continue
		case c.Req.Op != protocol.OpRelease || c.needless():
			l.Queue.urgent.push(c)
			continue
		}
		b := protocol.Answer{Kind: protocol.NotSent, Said: l.breaker.err}
		if c.servesOnly() || !l.kept.wait(&l.kept.unheard, c, now, l.breaker.until) {
			c.State, b.Final = CallDone, true
		}
		if c.Caller != nil && !c.toldLate {
			told = append(told, news{c, b})
		}
		c.toldLate = true
	}
	return told
}

// tick tells callers whose time is up, and sends the kept releases that are due.
func (l *Lane) tick() {
	now := l.Clock.Now().Mono
	l.Mu.Lock()
	l.Alarm.Rang()
	late := l.late(now)
	l.requeue(l.kept.Due(now))
	l.run(now)
	l.endStandby(now)
	if !l.breaker.down {
		if l.Flight.overdue(now) {
			l.SetDown(true, protocol.ErrTimeout)
			l.breaker.overdue = true
		}
		for _, b := range l.Flight.Out {
			if now < b.overdueAt {
				l.Alarm.Set(b.overdueAt, now)
			}
		}
	}
	l.Mu.Unlock()
	tellAll(late, now)
}

// late is the news for callers whose time is up; for the others the alarm is set. The
// caller holds mu.
func (l *Lane) late(now int64) (all []news) {
	check := func(c *Call, b protocol.Answer) {
		switch {
		case c.Caller == nil || c.toldLate || c.State == callDropped:
		case now < l.Flight.due(c, now):
			l.Alarm.Set(l.Flight.due(c, now), now)
		default:
			c.toldLate = true
			if b.Final {
				c.State = callDropped
			}
			all = append(all, news{c, b})
		}
	}
	for _, b := range l.Flight.Out {
		for _, c := range b.calls {
			check(c, protocol.Answer{Kind: protocol.Unknown, Said: protocol.ErrTimeout})
		}
	}
	for c := range l.Queue.All() {
		check(c, protocol.Answer{Kind: protocol.NotSent, Said: ErrTooLate, Final: c.Req.Op != protocol.OpRelease})
	}
	return all
}

// Close refuses new calls and drops those that wait, but sends the releases, and what opens doors. The
// channel is closed when they are done.
func (l *Lane) Close(now int64) <-chan struct{} {
	flushed := make(chan struct{})
	var dropped []*Call
	l.Mu.Lock()
	l.closed, l.flushed = true, flushed
	for c := range l.Queue.All() {
		if c.State == callQueued && c.Req.Op != protocol.OpRelease && c.Req.Script != protocol.ReleaseScript {
			c.State = callDropped
			dropped = append(dropped, c)
		}
	}
	l.requeue(l.kept.all(now))
	l.run(now)
	l.endStandby(now)
	l.tellFlushed()
	l.Mu.Unlock()
	for _, c := range dropped {
		c.tell(protocol.Unsent(protocol.ErrClosed), now)
	}
	return flushed
}

// tellFlushed ends Close's wait if nothing is left to do; the caller holds Mu.
func (l *Lane) tellFlushed() {
	if l.flushed != nil && l.Queue.empty() && len(l.Flight.Out) == 0 && !l.Starting {
		close(l.flushed)
		l.flushed = nil
	}
}

// Abandon forgets what a closed lane still has to send, and answers the calls that wait.
func (l *Lane) Abandon(now int64) {
	var left []news
	l.Mu.Lock()
	for c := range l.Queue.All() {
		left = append(left, news{c, protocol.Unsent(protocol.ErrClosed)})
	}
	l.Queue = backlog{}
	for _, b := range l.Flight.Out {
		for _, c := range b.calls {
			left = append(left, news{c, protocol.Answer{Kind: protocol.Unknown, Said: protocol.ErrClosed}})
		}
	}
	l.Alarm.Stop()
	l.Mu.Unlock()
	tellAll(left, now)
}
