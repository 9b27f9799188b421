package redlock

import (
	"context"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// Release gives the lock up on every node and returns when a majority confirmed it, after NodeTimeout at the latest.
// A program calls Redlock.Close before it exits; without it a minority of the nodes may keep the key until the lease
// ends. ctx only gives its values to Hooks; its end does not matter. A second call has the result of the first.
//
// It returns nil when a majority confirms that we removed the lock, ErrNotHeld when it was not ours any more,
// ErrNoQuorum when too few nodes answered, ErrClosed after Close. Whatever it returns, the lock is over. What
// was not confirmed is sent again in the background, until the node answers or the key has expired.
func (l *Lock) Release(ctx context.Context) error {
	sent, start := l.startRelease(true)
	return l.endRelease(ctx, sent, start)
}

// ReleaseUnused is Release without WithMinHold: others may have the lock at once. It is for a job that did nothing,
// or failed and should be tried by another machine.
func (l *Lock) ReleaseUnused(ctx context.Context) error {
	sent, start := l.startRelease(false)
	return l.endRelease(ctx, sent, start)
}

// startRelease sends the release, and returns its round; nil if there was one before. keep: a
// user released the lock, so WithMinHold counts.
func (l *Lock) startRelease(keep bool) (sent *round, start tick.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.release.state != notReleased {
		return nil, start
	}
	l.release.state = releaseSent
	start = l.clock.Now()
	left := time.Duration(0)
	if keep {
		left = l.minHoldLeft(start)
	}
	if l.over == nil {
		l.finish(start, errWasReleased)
	}
	// Sent under mu, so that no repair can come after it.
	return l.sendRelease(start, left), start
}

// endRelease waits for the result of the release that startRelease sent, or of the one
// before it.
func (l *Lock) endRelease(ctx context.Context, sent *round, start tick.Instant) error {
	if sent == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.firstRelease()
	}
	err := l.waitRelease(sent)
	l.mu.Lock()
	l.release.end(err)
	l.mu.Unlock()
	l.tellReleased(ctx, start, start, sent, err)
	return err
}

// tellReleased tells the hook how the lock was given up by a call that began at start: it was
// over at the given time. sent is nil where no release was.
func (l *Lock) tellReleased(ctx context.Context, start, over tick.Instant, sent *round, err error) {
	told := l.opts.Hooks.Released
	if told == nil {
		return
	}
	info := ReleaseInfo{
		Key: l.key, Mode: l.terms.mode(), Token: l.Token(), Held: over.Since(l.grantedAt),
		Start: start.Time, Elapsed: l.clock.Now().Since(start), Err: err,
	}
	if sent != nil {
		info.Outcomes = l.outcomes(sent)
	}
	told(ctx, info)
}

// firstRelease waits for the result of the first Release. The caller holds mu, which
// is let go while it waits.
func (l *Lock) firstRelease() error {
	if l.release.state == releaseSent {
		if l.release.done == nil {
			l.release.done = make(chan struct{})
		}
		done := l.release.done
		l.mu.Unlock()
		<-done
		l.mu.Lock()
	}
	return l.release.err
}

// lookAfter is after what time a holder looks for waiters that it does not serve.
const lookAfter = 5 * time.Millisecond

// lookEvery is how many locks that are held for less are released for one that looks.
const lookEvery = 8

// looksElsewhere reports whether the release looks for waiters at nodes whose queue it does not
// serve. A look costs a server more than the deletion. A waiter there has its share as
// soon as two looks find it that are lookPause apart. So locks that are held briefly, of which
// there are many, look now and then: every eighth.
func (l *Lock) looksElsewhere(now tick.Instant) bool {
	return now.Since(l.grantedAt) >= lookAfter || l.queues.brief.Add(1)%lookEvery == 0
}

// sendRelease starts the release on every node where the value may be; the caller holds mu. What is left
// of WithMinHold is left on the nodes: instead of deleting the key they shorten its lease to that. It is
// a release all the same: a node that is away is sent it when it is back, with what is left by then.
func (l *Lock) sendRelease(start tick.Instant, left time.Duration) *round {
	as := protocol.AsHolder
	if left > 0 {
		as = protocol.AsWaiter // nobody's turn comes yet
	}
	l.prepareRelease(start, as, l.longest, left == 0 && l.looksElsewhere(start))
	d := l.leaving
	if left > 0 {
		until := start.Mono + int64(left+tick.Allowance(left, l.opts.DriftFactor))
		d.req = protocol.ShortenRequest(&l.terms.Terms, l.name, l.value, until)
		d.req.ReadBound, d.req.KeepFor = l.longest, l.longest+left
	}
	r := &d.round
	r.observer, r.signal = l, l.round.signal
	r.init(start, r.seats)
	for i := range r.seats {
		c := l.releaseCall(i, l.lastSet(i), lane.SetWasSent, lane.QueueWaits)
		if left > 0 {
			// Sent everywhere: a node that never had the value is none of the majority that keeps it.
			c.Req, c.When = &d.req, max(c.When, lane.QueueWaits)
		}
		r.address(i, c.Req)
	}
	l.takeBackFormer(start)
	for i := range r.seats {
		l.lane(i).TakeBack(&r.seats[i].call, start.Mono)
	}
	if left > 0 {
		l.leaveQueue(start)
	}
	return r
}

// leaveQueue takes our entry out of the queue, and leaves the key alone, which is another's by now: a
// node that did not carry out our claim has the entry still. The caller holds mu, and sends no other
// release to that node.
func (l *Lock) leaveQueue(now tick.Instant) {
	node := int(l.arbiter)
	if l.entry == "" || !l.mayLand(node) {
		return
	}
	d := l.leaving
	d.queueReq.Value = ""
	l.lane(node).TakeBack(&lane.Call{Req: &d.queueReq, Index: l.arbiter, Set: l.lastSet(node), When: lane.Always}, now.Mono)
}

// takeBackFormer has the nodes that did not confirm an Adopt delete the value of the former holder, which no
// release of the new value fits: it would keep others from the node until its lease ends. It goes ahead of
// the release, so that nothing is left there, whenever the request of Adopt comes.
func (l *Lock) takeBackFormer(start tick.Instant) {
	if l.adoptFrom == "" {
		return
	}
	r := protocol.TokenReleaseRequest(&l.terms.Terms, l.name, l.adoptFrom, l.queueKey(), l.holdersKey())
	r.KeepFor = max(l.longest, l.opts.RestartGuard) // as long as the former lease may be
	for i := range l.nodes {
		if !l.granted(i) {
			c := &lane.Call{Req: r, Index: int16(i), Set: formerGrant, When: lane.SetWasSent}
			l.lane(i).TakeBack(c, start.Mono)
		}
	}
}

// formerGrant is the SET of the former holder, which was granted. It is never written.
var formerGrant = &lane.Call{Req: &protocol.Request{Op: protocol.OpAcquire}, State: lane.CallDone, Answer: protocol.Answer{Kind: protocol.Granted, Sent: true, Final: true}}

// Detach ends the handle without releasing the lock, and returns the lock's token, by which Mutex.Adopt goes on with
// it in another process. It does no I/O. The key stays on the nodes for what is left of its lease and is not renewed:
// call Extend before, if the other process needs longer.
//
// The handle's context ends with ErrReleased, Extend fails with it, Release does nothing and returns nil, and
// Hooks.Released is called, without outcomes. The token is enough to take the lock: treat it as a secret.
//
// Detach returns "" if the lock was over before; Adopt refuses that. It panics for a shared lock and for a permit,
// which cannot be adopted.
func (l *Lock) Detach() (token string) {
	if l.terms.shared {
		panic("redlock: Detach of a lock that is " + l.terms.mode() + ": only an exclusive one can be adopted")
	}
	now := l.clock.Now()
	l.mu.Lock()
	held, lost := l.over == nil, error(nil)
	switch {
	case !held:
	case now.Reached(l.until):
		held, lost = false, l.expired()
		l.finish(now, lost)
	default:
		l.finish(now, errWasReleased)
		l.release.state = releaseDone
	}
	l.mu.Unlock()
	if lost != nil {
		l.tellLost(lost)
	}
	if !held {
		return ""
	}
	l.tellReleased(context.WithoutCancel(l.acquireCtx), now, now, nil, nil)
	return l.Token()
}

func (l *Lock) answered() {}

// observe sees each node's answer to the release.
func (l *Lock) observe(i int, b protocol.Answer) {
	served := l.leaving.serves(i, int(l.arbiter))
	told, _ := b.Said.(int64)
	if told == protocol.PublishDenied {
		l.queues.notePublishDenied(i, nil)
	}
	switch {
	case served && (told == protocol.OthersTurn || told == protocol.PublishDenied || told == protocol.OthersWait):
		l.queues.othersWait(l.resource)
	case told == protocol.PublishDenied || told == protocol.OthersWait:
		l.queues.othersWaitAt(l.resource, i)
	case told == protocol.OthersTurn, b.Holder() != "" && !served:
		// The node may be reserved for one of them. No waiter is to go there for it: those there may be dead.
		l.queues.othersWaitAt(l.resource, -1)
	}
}

func (l *Lock) waitRelease(r *round) error {
	// Nothing but the lanes ends it: they resolve every call by its deadline.
	v, _ := r.waitFinal(context.Background(), l.clock, nil)
	if v == verdictGranted {
		return nil
	}
	reason := ErrNoQuorum
	switch {
	case l.life.closed():
		reason = ErrClosed
	case v == verdictHeld:
		reason = ErrNotHeld
	}
	err := l.failed(r, protocol.OpRelease, reason)
	if reason == ErrNoQuorum && err.grants() >= err.Need {
		return nil // the last answers came behind the verdict
	}
	return err
}

// A lock that others shall not have for a while yet, although it was released.

// minHoldLeft is how long WithMinHold keeps a lock that is held from others; the caller holds
// mu. The wall clock has no say: one that is set ahead would end it.
func (l *Lock) minHoldLeft(now tick.Instant) time.Duration {
	if l.terms.minHold == 0 || l.over != nil {
		return 0
	}
	return max(0, time.Duration(l.grantedAt.Mono-now.Mono)+l.terms.minHold)
}

// mayLand reports whether a SET of ours may still put our value on a node; the caller holds mu.
func (l *Lock) mayLand(i int) bool {
	return !l.granted(i) || l.repairs != nil && l.repairs[i] != nil || i == int(l.arbiter) && len(l.joined) > 0
}
