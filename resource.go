package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// resource is a lock's key on a set of nodes and the terms on which it is asked for: what
// a Mutex, its Locks and its waiters have in common. It does not change.
type resource struct {
	*nodeSet
	key    string // without Options.KeyPrefix
	name   string // of the key on the nodes
	hash   uint64 // of name, see weight
	naming protocol.Naming
	terms  terms
}

func newResource(ns *nodeSet, key string, t terms) resource {
	name := ns.opts.KeyPrefix + key
	return resource{nodeSet: ns, key: key, name: name, naming: protocol.NamingOf(name), hash: fnv1a(name), terms: t}
}

// queueKey is made when it is needed, since hardly any acquire needs it; empty if there is no queue.
func (r *resource) queueKey() string {
	if !r.hasQueue() {
		return ""
	}
	return r.naming.QueueKey(r.name)
}

// holdersKey is that of the list of the lock's sharers, if scripts do not know its
// name by themselves.
func (r *resource) holdersKey() string {
	if r.naming == protocol.UsualNames {
		return ""
	}
	return r.naming.HoldersKey(r.name)
}

// shareArgs are those of a holder with this number, 0 for none.
func (r *resource) shareArgs(number int64) *protocol.ShareArgs {
	s := &protocol.ShareArgs{
		Holders: r.naming.HoldersKey(r.name), Door: r.naming.DoorKey(r.name), Limit: int64(r.terms.permits), Number: number,
	}
	if number > 0 {
		s.Limit = -number
	}
	return s
}

// queueArgs are those of a release on a node that may keep a queue.
func (r *resource) queueArgs(entry string, as protocol.Releaser) *protocol.QueueArgs {
	return &protocol.QueueArgs{Key: r.queueKey(), Entry: entry, As: as, Holders: r.holdersKey()}
}

// modeInQueue is how a waiter's entry says that it wants to share the lock, see scripts/line.lua.
func (t *terms) modeInQueue() string {
	if !t.shared {
		return ""
	}
	return "s" + strconv.Itoa(t.permits)
}

func (t *terms) mode() Mode {
	switch {
	case t.permits > 0:
		return ModePermit
	case t.shared:
		return ModeShared
	default:
		return ModeExclusive
	}
}

// hasQueue reports whether the key can have a wait queue, and we use it.
func (r *resource) hasQueue() bool { return !r.opts.NoQueue && r.naming != protocol.NoQueueName }

// nodeOrder is all nodes, the arbiter first.
func (r *resource) nodeOrder() []int { return byWeight(r.hash, r.hashes()) }

// firstReachable is the first node in order that has not been silent for longer than
// patience, -1 if none is. Every release comes by here, and nearly always the first of all
// is reachable, so the others' lanes are left alone.
func (r *resource) firstReachable(now int64, patience time.Duration) int {
	above := ^uint64(0)
	for range r.nodes {
		best, at := uint64(0), -1
		for i, n := range r.nodes {
			if w := weight(r.hash, n.hash); w < above && (at < 0 || w > best) {
				best, at = w, i
			}
		}
		if at < 0 || r.lane(at).Reachable(now, patience) {
			return at
		}
		above = best
	}
	return -1
}

// reservation is that of the lock's terms.
func (r *resource) reservation() time.Duration { return r.terms.Reservation() }

// reachable reports whether a node can keep the wait queue: it answered last, or has not
// been silent for longer than joins are patient.
func (r *resource) reachable(i int, now int64) bool {
	return r.lane(i).Reachable(now, r.terms.JoinPatience())
}

// failed makes the error of a round for this lock.
func (r *resource) failed(rd *round, o protocol.Op, reasons ...error) *QuorumError {
	return r.fail(rd, o, r.key, reasons...)
}

// usable returns why an operation cannot begin, or nil.
func (r *resource) usable(ctx context.Context, o protocol.Op) error {
	switch {
	case r.life.closed():
		return fmt.Errorf("redlock: %s %s: %w", o, quoteKey(r.key), ErrClosed)
	case ctx.Err() != nil:
		return &QuorumError{Op: o.String(), Key: r.key, Need: r.quorum, reasons: withContextErr(ctx)}
	default:
		return nil
	}
}

// backoff is how long to pause when no node will tell us, with full jitter so that
// contenders do not split the votes again and again; free is when the lock will be free,
// negative if unknown.
func (r *resource) backoff(attempts int, free time.Duration) time.Duration {
	o := &r.opts
	limit := o.RetryMax
	if shift := attempts - 1; o.RetryMin < limit>>shift {
		limit = o.RetryMin << shift
	}
	d := o.RetryMin + r.clock.Jitter(limit-o.RetryMin+1)
	if free >= 0 {
		// No node will tell us of a lease that ends; be there when it does.
		d = min(d, max(o.RetryMin, free)+r.clock.Jitter(o.RetryMin))
	}
	return d
}

// inspection is one node's answer to an inspect request.
type inspection struct {
	protocol.Inspection
	known bool
}

// age is how long the first in the queue has waited; 0 if there is none.
func (n *inspection) age() time.Duration {
	if len(n.Waiters) == 0 {
		return 0
	}
	return n.Waiters[0].Waited
}

// waitedLonger reports whether the first in the queue has waited longer than that of another.
// Of two that began at the same moment it is the one of the lesser process id, for every process,
// or they would each stay where they are.
func (n *inspection) waitedLonger(than *inspection) bool {
	if n.age() != than.age() || len(n.Waiters) == 0 || len(than.Waiters) == 0 {
		return n.age() > than.age()
	}
	return n.Waiters[0].Process < than.Waiters[0].Process
}

// anyShared reports whether several hold the lock on one of the nodes, or may.
func anyShared(all []inspection) bool {
	return slices.ContainsFunc(all, func(n inspection) bool { return n.Shared })
}

// inspected reads the answers to an inspect request.
func inspected(r *round) []inspection {
	all := make([]inspection, len(r.seats))
	for i := range all {
		vote, b := r.ballot(i)
		if vote != VoteGranted {
			continue
		}
		all[i].Inspection, all[i].known = protocol.ReadInspection(b.Said)
	}
	return all
}

// whenFree asks what stands in our way and adds it to the error. It returns in what time
// the lock will be free, negative if unknown, and an error if what is there is
// nothing that will ever be released.
func (r *resource) whenFree(ctx context.Context, last *QuorumError) (free time.Duration, all []inspection, err error) {
	// All nodes, since those that hold something strange may be the slowest.
	rd, err := r.ask(ctx, protocol.InspectRequest(&r.terms.Terms, r.name, r.queueKey(), r.holdersKey(), max(1, r.terms.permits)))
	if err != nil {
		return 0, nil, err
	}
	var lefts []time.Duration // until each node is free
	strange := 0
	all = inspected(rd)
	for i := range all {
		n := &all[i]
		if !n.known {
			continue
		}
		last.Outcomes[i].Holder = n.Value
		if err := n.NoLock(); err != nil {
			strange++
			last.Outcomes[i].Err = err
		}
		switch {
		case n.Kind == "none", n.Shared && r.terms.shared && (r.terms.permits == 0 || len(n.Holders) < r.terms.permits):
			lefts = append(lefts, 0)
		case n.Shared && r.terms.permits > 0 && len(n.Holders) > 0:
			lefts = append(lefts, n.Holders[0].TTL)
		case n.TTL >= 0:
			lefts = append(lefts, n.TTL)
		}
	}
	if strange >= blocking(len(r.nodes)) {
		return 0, all, last
	}
	// The lock is free when a quorum of nodes is.
	if slices.Sort(lefts); len(lefts) < r.quorum {
		return -1, all, nil
	}
	last.HolderTTL = lefts[r.quorum-1]
	r.sawLease(last.HolderTTL)
	return last.HolderTTL, all, nil
}

// sawLease takes in what is left of a lease that stands in our way on so many nodes that others
// cannot be a majority. One that is longer than a lease of these terms can be is that of a client
// with another TTL: a node that forgets it would vote for us before it is over.
func (r *resource) sawLease(left time.Duration) {
	most := r.guard.Period(r.terms.TTL, r.terms.fencing)
	// A reservation is no lease, and keys of WithMinHold last longer by the drift allowance.
	if r.guard == nil || left <= max(most+tick.Allowance(most, r.opts.DriftFactor), r.reservation()) {
		return
	}
	r.lacks.tellOfKey(r.hash, DegradedInfo{
		Kind: DegradedTTL, Key: r.key, Lacks: longerLease,
		Err: fmt.Errorf("the holder's lease goes on for %v, and here the TTL is %v and RestartGuard is %s: "+
			"use one TTL in all clients of the key, or set RestartGuard to the longest in all of them",
			left, r.terms.TTL, guardText(r.opts.RestartGuard)),
	})
}

// withContextErr puts the error of a context that is over in front of other reasons.
func withContextErr(ctx context.Context, reasons ...error) []error {
	err := ctx.Err()
	if err == nil {
		return reasons
	}
	all := []error{err}
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		if slices.ContainsFunc(sentinels, func(s error) bool { return errors.Is(cause, s) }) {
			cause = elsewhere{cause.Error()}
		}
		all = append(all, cause)
	}
	return append(all, reasons...)
}

// elsewhere is the cause of a context that ended because of some other lock, such as one that was lost: that it
// is not held says nothing of the lock whose operation it ended.
type elsewhere struct{ text string }

func (e elsewhere) Error() string { return e.text }
