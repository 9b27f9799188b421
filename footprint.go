package redlock

import (
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// footprint is what one value of ours has on the nodes, or may have: of an attempt, and of the
// lock that comes of it. What does not change is not guarded.
type footprint struct {
	*resource
	queues *queues
	value  string // on the nodes: token@owner
	// entry is what stands in the queue of a node for a lock that was waited for; empty: nothing does.
	entry string
	// adoptFrom is the token of the lock that it goes on with, which is not waited for; empty: none.
	adoptFrom string
	// arbiter is the node in whose queue entry stands. If nothing does, it is the node whose queue
	// is served by the release, and known from then on; -1: none.
	arbiter int16
	leaving *releaseRound // nil until it is given up
}

// releaseRound is what taking a value from the nodes needs. It is made when that begins.
type releaseRound struct {
	round
	req      protocol.Request // for the nodes whose queue is not served
	queueReq protocol.Request // for the arbiter
	also     *servedToo       // nil: no other
}

// servedToo is a second node whose queue a release serves.
type servedToo struct {
	node int
	req  protocol.Request
}

// serves reports whether the queue of a node is served.
func (r *releaseRound) serves(node, arbiter int) bool {
	return node == arbiter || r.also != nil && node == r.also.node
}

// prepareRelease fills in the requests. Of a lock the caller holds its mu. No node was asked to hold
// the value for longer than longest. looks: nodes whose queue is not served are asked for waiters,
// too.
//
// A holder serves the queue by which it came, and the one that this process uses now, if
// that is another. On the other nodes it may look for waiters that know neither.
func (f *footprint) prepareRelease(now tick.Instant, as protocol.Releaser, longest time.Duration, looks bool) {
	if f.leaving != nil {
		return // they may be on their way already
	}
	d := withSeats(len(f.nodes), func(d *releaseRound) *round { return &d.round })
	f.leaving = d
	arbiter := f.queues.arbiter(f.resource, now.Mono, f.terms.JoinPatience())
	if f.entry == "" {
		f.arbiter = int16(arbiter)
	}
	d.req = f.releaseRequest(looks)
	d.req.ReadBound, d.req.KeepFor = longest, longest
	if f.arbiter < 0 {
		return
	}
	var q *protocol.QueueArgs
	if as == protocol.AsWaiter || f.entry != "" || f.naming != protocol.UsualNames {
		q = f.queueArgs(f.entry, as)
	}
	d.queueReq = f.queueRelease(q)
	d.queueReq.ReadBound, d.queueReq.KeepFor = longest, longest
	if f.entry != "" {
		d.queueReq.KeepFor = max(longest, protocol.QueueLife)
	}
	if int(f.arbiter) != arbiter && arbiter >= 0 && as == protocol.AsHolder {
		also := f.queueRelease(f.queueArgs("", protocol.AsHolder))
		also.ReadBound, also.KeepFor = longest, longest
		d.also = &servedToo{node: arbiter, req: also}
	}
}

// releaseRequest is the request for the nodes whose queue is not served.
func (f *footprint) releaseRequest(looks bool) protocol.Request {
	switch {
	case f.terms.shared:
		return protocol.SharedReleaseRequest(&f.terms.Terms, f.name, f.value, f.shareArgs(0), f.queueArgs("", protocol.AsPasser))
	case !looks || !f.hasQueue():
		return protocol.ReleaseRequest(&f.terms.Terms, f.name, f.value)
	case f.naming == protocol.UsualNames:
		return protocol.QueueReleaseRequest(&f.terms.Terms, f.name, f.value, passer)
	default:
		return protocol.QueueReleaseRequest(&f.terms.Terms, f.name, f.value, f.queueArgs("", protocol.AsPasser))
	}
}

// queueRelease is the request for a node whose queue is served; without q it is that of a
// holder that did not wait, for a queue with the usual name.
func (f *footprint) queueRelease(q *protocol.QueueArgs) protocol.Request {
	switch {
	case !f.terms.shared:
		return protocol.QueueReleaseRequest(&f.terms.Terms, f.name, f.value, q)
	case q == nil:
		q = f.queueArgs("", protocol.AsHolder)
	}
	return protocol.SharedReleaseRequest(&f.terms.Terms, f.name, f.value, f.shareArgs(0), q)
}

var passer = &protocol.QueueArgs{As: protocol.AsPasser}

// releaseCall makes the call for one node, which takes back that SET. served takes the place of when
// where it serves a queue. It does not look at a call that was handed to a lane before.
func (f *footprint) releaseCall(i int, set *lane.Call, when, served lane.ReleaseWhen) *lane.Call {
	d := f.leaving
	c := &d.seats[i].call
	c.Req, c.Index = &d.req, int16(i)
	switch {
	case i == int(f.arbiter):
		c.Req, when = &d.queueReq, served
		if f.entry != "" {
			when = lane.Always
		}
	case d.also != nil && i == d.also.node:
		c.Req, when = &d.also.req, lane.Always
	}
	c.Set, c.When = set, when
	return c
}
