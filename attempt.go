package redlock

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// attempt asks all nodes for a lock once, under a value of its own. A Lock is made of it if it is
// granted, and of nothing else; otherwise it takes back what it has.
type attempt struct {
	footprint
	round  round
	set    protocol.Request
	joined []*lane.Call // of its entry, those that may still take effect
	wants  int32        // the number of the permit that is reserved for it; 0: any
	permit atomic.Int32 // the number that a quorum gave, from 1; 0: none, or not granted yet
}

// newAttempt is not sent yet, and has no value.
func newAttempt(r *resource, qs *queues) *attempt {
	a := withSeats(len(r.nodes), func(a *attempt) *round { return &a.round })
	a.footprint = footprint{resource: r, queues: qs}
	return a
}

// send hands the SETs to the lanes.
func (a *attempt) send(start tick.Instant) {
	set := &a.set
	var fence *protocol.FenceArgs
	if a.terms.fencing {
		fence = a.fenceArgs(a.fences.propose(start))
	}
	var share *protocol.ShareArgs
	switch {
	case a.terms.shared:
		share = a.shareArgs(int64(a.wants))
		var q *protocol.QueueArgs
		if a.entry != "" {
			q = &protocol.QueueArgs{Entry: a.entry}
		}
		set = protocol.SharedClaimRequest(protocol.OpAcquireShared, &a.terms.Terms, a.name, a.value, share, q)
	case a.adoptFrom != "":
		a.set = protocol.AdoptRequest(&a.terms.Terms, a.name, a.value, a.adoptFrom, fence)
	case a.terms.fencing:
		set = protocol.FenceRequest(&a.terms.Terms, a.name, a.value, fence, nil)
	default:
		a.set = protocol.SetRequest(protocol.OpAcquire, &a.terms.Terms, a.name, a.value)
	}
	r := &a.round
	r.numbered, r.observer = a.terms.permits > 0, a
	r.init(start, r.seats)
	r.guard, r.period = a.guard, a.guard.Period(a.terms.TTL, a.terms.fencing)
	r.tieBreaker = int16(a.tieBreaker(start.Mono))
	for i := range r.seats {
		r.address(i, set)
	}
	switch {
	case a.entry == "":
	case a.terms.shared:
		q := &protocol.QueueArgs{Key: a.queueKey(), Entry: a.entry}
		r.seats[a.arbiter].call.Req = protocol.SharedClaimRequest(protocol.OpAcquireShared, &a.terms.Terms, a.name, a.value, share, q)
	case a.terms.fencing:
		r.seats[a.arbiter].call.Req = protocol.FenceRequest(&a.terms.Terms, a.name, a.value, fence, &protocol.QueueArgs{Key: a.queueKey(), Entry: a.entry})
	default:
		r.seats[a.arbiter].call.Req = protocol.ClaimRequest(&a.terms.Terms, a.name, a.value, a.queueKey(), a.entry)
	}
	if len(a.joined) > 0 {
		l := a.lane(int(a.arbiter))
		if a.joined = l.StillPending(a.joined); len(a.joined) > 0 {
			l.MarkUncertain(&r.seats[a.arbiter].call)
		}
	}
	a.sendAddressed(r)
}

// Ties. Of several that ask for a free lock at the same moment each may get a minority, and
// if all gave theirs back, none would have the lock. One node decides between them: its
// grant goes to one attempt only. That attempt keeps its grants and asks the nodes that
// refused it again, and all others give theirs back. docs/design.md says why this is safe.

const (
	// tieTries is how often nodes that refused are asked again. The others have given back
	// after the first or the second pause, or it is a holder that refuses us.
	tieTries = 2
	// leastTiePause is the least that the others are given to give back.
	leastTiePause = 500 * time.Microsecond
)

// tieBreaker is the node that decides between attempts at the same moment: the first in
// order, as for a wait queue. -1 if no node is reachable, or if the queue decides already.
// For a semaphore there is none: that one node gave another number says nothing of which attempt goes on.
func (a *attempt) tieBreaker(now int64) int {
	switch {
	case a.entry != "" && !a.terms.shared:
		return -1
	case a.entry != "":
		return int(a.arbiter) // reserved for us, while a release is still on its way to the others
	case a.adoptFrom != "", a.terms.permits > 0: // what another gives back is free, and not to be adopted
		return -1
	case a.hasQueue():
		return a.queues.arbiter(a.resource, now, a.terms.NodeTimeout)
	default:
		return a.firstReachable(now, a.terms.NodeTimeout)
	}
}

// wait waits for the verdict, and asks again where the tie-breaker has granted and others
// refused. Where a node is silent the others give back only after the timeout per node, and the
// answers then may take as long again.
//
// If it is hopeless, what was granted is free again at once, before what to call it is known.
func (a *attempt) wait(ctx context.Context, start tick.Instant) (verdict, error) {
	v, cut := a.waitOutTies(ctx, start)
	if cut == nil && v == verdictHopeless {
		v = a.round.giveUp()
	}
	if cut == nil && v == verdictHopeless {
		a.takeBack(true)
		v, cut = a.await(ctx, &a.round)
	}
	return v, cut
}

func (a *attempt) waitOutTies(ctx context.Context, start tick.Instant) (verdict, error) {
	r := &a.round
	v, cut := r.wait(ctx, a.clock, a.life.closing, verdictOpen)
	pause, took := time.Duration(0), time.Duration(0)
	end := start.Add(2 * a.terms.NodeTimeout)
	for try := 0; try < tieTries && cut == nil && v != verdictGranted && r.mayAskAgain(); try++ {
		// Wait for every refusal first, or a late one would miss one of the two retries.
		if v, cut = a.await(ctx, r); cut != nil || v == verdictGranted {
			break
		}
		if try == 0 {
			took = r.slowestAnswer()
			pause = max(took/2, leastTiePause) // until the others' releases have arrived
		}
		if pause+pause/2+took > a.clock.Now().Until(end) {
			break
		}
		if cut = a.pause(ctx, pause/2+a.clock.Jitter(pause)); cut != nil {
			break
		}
		a.askAgain(end)
		v, cut = r.wait(ctx, a.clock, a.life.closing, verdictOpen)
	}
	return v, cut
}

// askAgain sends the SET again to the nodes that refused it, with the same token.
//
// A node that refused has nothing of ours, and no SET of ours is on its way there, so to it
// this is like a first SET. That ends with the first release: one of the same token
// must never meet a later SET. So no release may have been sent, and nodes of which no
// answer is known are left alone.
func (a *attempt) askAgain(end tick.Instant) {
	now := a.clock.Now().Mono
	deadline := min(now+int64(a.terms.NodeTimeout), end.Mono)
	for _, i := range a.round.reopen() {
		a.lane(i).Again(&a.round.seats[i].call, deadline, now)
	}
}

// granted reports whether a node has, as far as is known now.
func (a *attempt) granted(node int) bool { return a.round.vote(node) == VoteGranted }

// takeBack releases a failed attempt wherever its SET was or may have been applied,
// with no caller waiting for it. With only granted, it leaves alone the nodes that did not
// answer yet, whose answers still tell what to call the failure, and the one that keeps
// the queue we are in, where we take our place again first.
func (a *attempt) takeBack(onlyGranted bool) {
	now := a.clock.Now()
	a.prepareRelease(now, protocol.AsWaiter, a.terms.TTL, false)
	for i := range a.nodes {
		handed := a.leaving.seats[i].call.Set != nil
		if handed ||
			onlyGranted && (!a.granted(i) || a.entry != "" && i == int(a.arbiter)) {
			continue
		}
		a.lane(i).TakeBack(a.releaseCall(i, &a.round.seats[i].call, lane.SetMayExist, lane.SetMayExist), now.Mono)
	}
}

// settlePermit takes the number that a quorum gave. Nodes that gave another one are told: by
// observe where they vote after that, here where they did before.
func (a *attempt) settlePermit() {
	most, _ := a.round.permit()
	a.permit.Store(int32(most))
	_, all := a.round.permit() // not those from before: a vote may have come in between
	for i, number := range all {
		a.mendNumber(i, number)
	}
}

// mendNumber has a node that gave us another number list us under the one that we have, or
// not at all if another holder has that there. It is an extend, which creates nothing, so it
// may come after the release. It takes no mutex of the lock: votes are delivered under that,
// too.
func (a *attempt) mendNumber(i int, number int64) {
	want := int64(a.permit.Load())
	if want == 0 || number == 0 || number == want {
		return
	}
	now := a.clock.Now().Mono
	req := protocol.SharedExtendRequest(&a.terms.Terms, a.name, a.value, a.shareArgs(want))
	a.lane(i).Enqueue(&lane.Call{Req: req, Index: int16(i), Deadline: now + int64(req.Timeout)}, now)
}

func (a *attempt) answered() {}

// observe sees each node's answer, also those that come after a lock was made of the attempt.
func (a *attempt) observe(i int, b protocol.Answer) {
	if a.terms.permits > 0 {
		a.mendNumber(i, b.Number())
	}
	if a.terms.shared && b.LeftUntold() {
		a.queues.notePublishDenied(i, nil)
		a.queues.othersWait(a.resource)
	}
}
