package redlock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// HandOver gives the lock to a ticket, for another process to go on with: on a majority of nodes
// its value becomes that of a fresh token, with a lease of ttl from now, which is how long that
// process has time. HandOver returns the token, to pass to Mutex.Adopt there. ttl follows the rules
// of Extend; the lease may become shorter.
//
// So ttl is at most the lock's TTL or Options.RestartGuard, whichever is greater. There are two
// ways to have two minutes for a deployment. With WithTTL(2*time.Minute) and renewal in all clients
// of the key, a holder that crashes keeps the others out for up to two minutes. With a RestartGuard
// of two minutes in all clients the TTL may stay short; then a node that restarted has no vote for
// two minutes, on any lock, and a set of nodes that is started for the first time grants nothing
// for that long.
//
// From the call on the handle is over: Validity is zero or less, it is not renewed, and Extend fails with
// ErrReleased. When HandOver returns the handle's context has ended, with ErrReleased unless WithMaxHold
// had ended it before, and Release does nothing and returns nil. Hooks.Released is called. Nothing that was
// sent for the handle, and comes late or twice, takes the lock away from the ticket or keeps it for
// longer. If the lock is not adopted it ends by its lease. The token is enough to take the lock over or
// to end it (ForceRelease), so treat it as a secret.
//
// HandOver asks all nodes once, and waits for each of them, for the timeout per node at most; the
// end of ctx does not cut it short. If no majority confirms that the ticket has the lock, the lock
// is lost, as it may be lost when an extend finds no majority: HandOver returns an error that is
// ErrLost, the handle's context ends with it, Hooks.Lost and Hooks.Released are called, and what
// reached a minority is taken back. Release then does nothing and returns the same error. It is
// also ErrNotHeld if so many nodes have another's key or none that no majority is left, ErrExpired
// if Until or ttl passed before the nodes had answered, ErrClosed after Close, or else ErrNoQuorum.
//
// With ErrInvalid, with ctx's error, if it has ended, and with ErrClosed without ErrLost, HandOver fails
// before it asks any node, and the handle goes on. ErrInvalid is for a ttl that breaks a rule, for shared
// locks and permits, and after Downgrade. For a handle that was over it fails as Extend does.
func (l *Lock) HandOver(ctx context.Context, ttl time.Duration) (token string, err error) {
	if err := l.check(); err != nil {
		return "", err
	}
	if err := invalid("hand-over of "+quoteKey(l.key), l.brokenLease(ttl)); err != nil {
		return "", err
	}
	l.mu.Lock()
	shared := l.shared
	l.mu.Unlock()
	if shared {
		return "", fmt.Errorf("redlock: hand over %s: %w lock: only an exclusive one can be handed over, and this one is %s", quoteKey(l.key), ErrInvalid, l.terms.mode(true))
	}
	return l.handOver(ctx, ttl)
}

func (l *Lock) handOver(ctx context.Context, ttl time.Duration) (token string, err error) {
	if err := l.usable(ctx, protocol.OpMove); err != nil {
		return "", err
	}
	ticket, err := l.tokens.newValue(l.terms.owner)
	if err != nil {
		return "", err
	}
	if !l.life.enter() {
		return "", l.usable(ctx, protocol.OpMove)
	}
	start := l.clock.Now()
	until, lost, err := l.leave(start)
	if err != nil {
		l.life.leave()
		if lost {
			l.tellLost(err)
		}
		return "", err
	}
	h := newHandOver(l, start, ticket, ttl)
	// Nothing but the lanes ends it: they resolve every call by its deadline.
	_, _ = l.send(&h.round, h.req).waitFinal(context.WithoutCancel(ctx), l.clock, nil)
	now := l.clock.Now()
	err = h.result(now.Reached(until) || now.Reached(validUntil(start, ttl, l.opts.DriftFactor)))
	h.takeBack(err != nil, now)
	l.life.leave()
	l.left(err)
	if err != nil {
		l.tellLost(err)
	}
	l.tellReleased(ctx, l.terms.mode(false), start, now, &h.round, err)
	if err != nil {
		return "", err
	}
	return ticket[:tokenLen], nil
}

// leave ends the handle, but for its context, and returns when it would have ended by itself. From
// then on nothing is sent that sets or extends the key.
func (l *Lock) leave(now tick.Instant) (until tick.Instant, lost bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.over != nil:
		return until, false, fmt.Errorf("redlock: hand over %s: %w", quoteKey(l.key), within{l.over})
	case now.Reached(l.until):
		why := l.expired()
		l.finish(now, why)
		return until, true, why
	}
	until = l.until
	l.stop(now, errWasReleased)
	l.release.state = releaseSent
	l.prepareRelease(now, protocol.AsWaiter, l.longest, false)
	return until, false, nil
}

// left notes what has come of a hand-over.
func (l *Lock) left(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.over = err
	}
	l.release.end(err)
	if l.ctx != nil {
		l.ctx.cancel(l.over)
	}
}

// handOver is the round that moves a lock to its ticket. It waits for each node: where the ticket came
// after an Adopt it would keep others out for its lease, so one that comes later is taken back.
type handOver struct {
	round
	lock    *Lock
	req     *protocol.Request
	release protocol.Request // of the ticket
	serves  protocol.Request // of the ticket, for the node whose queue is served
}

func newHandOver(l *Lock, start tick.Instant, ticket string, ttl time.Duration) *handOver {
	terms := l.terms
	terms.TTL, terms.NodeTimeout = ttl, l.opts.nodeTimeout(ttl)
	h := &handOver{lock: l, req: protocol.MoveRequest(&terms.Terms, l.name, ticket, l.Token())}
	h.req.ReadBound = max(ttl, l.longest)
	h.release = protocol.ReleaseRequest(&terms.Terms, l.name, ticket)
	h.serves = protocol.QueueReleaseRequest(&terms.Terms, l.name, ticket, l.queueArgs("", protocol.AsWaiter))
	h.waitsForAll, h.guard = true, l.guard
	h.init(start, make([]seat, len(l.nodes)))
	return h
}

// result is why the lock is lost, or nil.
func (h *handOver) result(late bool) error {
	l := h.lock
	switch v := h.votes(); {
	case v == verdictGranted && !late:
		return nil
	case v == verdictGranted:
		return l.failed(&h.round, protocol.OpMove, ErrLost, ErrExpired) // in between others may have had the lock, or have it
	case v == verdictHeld:
		return l.failed(&h.round, protocol.OpMove, ErrNotHeld, ErrLost)
	case l.life.closed():
		return l.failed(&h.round, protocol.OpMove, ErrClosed, ErrLost)
	default:
		return l.failed(&h.round, protocol.OpMove, ErrNoQuorum, ErrLost)
	}
}

// takeBack has nodes delete what they have, or may get later, and is of no use to any process: the
// ticket of which the lock was adopted, where that was not confirmed; the former value, with our
// entry in the queue; and the new ticket, where it was not confirmed, or if the lock is lost. The
// former value goes before the ticket. Then nothing is left, whenever a node gets the request that
// makes the one of the other.
func (h *handOver) takeBack(lost bool, now tick.Instant) {
	l := h.lock
	l.mu.Lock()
	defer l.mu.Unlock()
	l.takeBackTicket(now)
	for i := range l.nodes {
		if !lost && h.vote(i) == VoteGranted {
			// With the ticket there, no SET of ours is still to land. It may have come of a reservation.
			if i == int(l.arbiter) {
				l.leaveQueue(now)
			}
			continue
		}
		l.lane(i).TakeBack(l.releaseCall(i, l.lastSet(i), lane.IfPlaced, lane.ToServe), now.Mono)
		c := &lane.Call{Req: &h.release, Index: int16(i), Undoes: &h.seats[i].call, When: lane.IfPlaced}
		if i == int(l.arbiter) {
			c.Req = &h.serves
		}
		l.lane(i).TakeBack(c, now.Mono)
	}
}

// Adopt goes on with a lock that another process handed over, by the token that HandOver returned:
// on a majority of nodes the key goes from the ticket's value to a fresh one. The lock is held all
// the while, and is held under a new token afterwards. It lasts for the Mutex's TTL from now. To
// release a lock from elsewhere, use ForceRelease.
//
// Adopt before the lease ends, which is what HandOver's ttl is for. Afterwards Adopt fails with
// ErrNotHeld: no other client has had the lock between a HandOver and the Adopt of its ticket.
//
// Adopt also takes the token of a process that was killed, and had written it down (Lock.Token). Then
// its caller must know that the former holder has stopped: one that was only paused believes in its
// lock until its own Until, and what it still sends has no effect. With WithFencing, Adopt returns a
// greater fence, and the resource can refuse the former holder. Here there is an exception to
// ErrNotHeld after the lease: requests of the former holder that were held up, or delivered twice,
// may have put its value back on a majority of nodes, and Adopt succeeds although others may have had
// the lock in between.
//
// Adopt asks all nodes once. It fails with ErrNotHeld if so many nodes have another's key or none
// that no majority is left, with ErrInvalid for a malformed token and for a Mutex made by Shared or
// Semaphore, and with ErrNoQuorum, ErrExpired, ErrClosed or ctx's error as TryAcquire does. After a
// failure the lock may be gone: what had changed hands already is released, and the rest ends by
// its lease. The same is true if two callers adopt a lock at the same moment; never do both get it.
func (m *Mutex) Adopt(ctx context.Context, token string) (*Lock, error) {
	if err := m.check(ctx, protocol.OpAdopt); err != nil {
		return nil, err
	}
	if m.terms.shared {
		return nil, fmt.Errorf("redlock: adopt %s: %w Mutex: only an exclusive lock can be adopted, and this one is %s", quoteKey(m.key), ErrInvalid, m.terms.mode(true))
	}
	if !isToken(token) {
		return nil, fmt.Errorf("redlock: adopt %s: %w token: it has %d bytes, and a token is %d hexadecimal digits in lower case, as Lock.Token and HandOver return it",
			quoteKey(m.key), ErrInvalid, len(token), tokenLen)
	}
	a := acquisition{resource: &m.resource, queues: m.queues, renewer: m.renewer, caller: ctx, ctx: ctx, adoptFrom: token}
	return a.acquire()
}

func isToken(s string) bool {
	return len(s) == tokenLen && strings.Trim(s, "0123456789abcdef") == ""
}
