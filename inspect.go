package redlock

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Status is what the nodes say of a lock at one time.
type Status struct {
	// Key is the lock's key, without Options.KeyPrefix.
	Key string
	// Token and Owner are those of the exclusive holder: the parts before and behind the
	// first "@" of the value that a majority of nodes has. Both are empty if there is none.
	// Other libraries set what they like.
	Token, Owner string
	// Shared: a majority of nodes says that several may hold it together. Holders are the
	// holders that a majority lists, in the order of their permits; a node lists up to 1,024.
	Shared  bool
	Holders []Holder
	// TTL is how long the majority lasts unless it is renewed or released. It is
	// negative if it lasts for ever, and 0 if there is none.
	TTL time.Duration
	// Waiters is the wait queue, first come first, up to 1,024 of them. One node keeps it. Where
	// nodes failed lately there may be parts of it on several nodes, and this is the longest; see
	// NodeStatus.Waiting.
	Waiters []Waiter
	// Nodes has one entry per node, in the order of Redlock.Nodes.
	Nodes []NodeStatus
}

// mostWaiters bounds how many waiters and holders one node lists.
const mostWaiters = 1024

// Holder is one holder of a shared lock or of a permit.
type Holder struct {
	Token, Owner string
	// Permit is the number of a semaphore's permit, from 0; -1 for a holder of a
	// shared lock.
	Permit int
	// TTL is how long a majority lists it, unless it extends or is released; for
	// NodeStatus, how long the node does.
	TTL time.Duration
}

// Held reports whether a majority of nodes has the same value, or lists holders of a
// shared lock.
func (s Status) Held() bool { return s.TTL != 0 }

// NodeStatus is what one node says of a lock.
type NodeStatus struct {
	Node string
	// Value is what the key holds: empty if it is free or holds no string.
	Value string
	// Token and Owner are the parts of the value, which other libraries may set to
	// anything: Token is what comes before the first "@".
	Token, Owner string
	// TTL is what is left of the lease: 0 if the key is free, negative if it has no end.
	TTL time.Duration
	// Holders are the holders of a shared lock or of permits that this node has listed; other
	// nodes may have none of them. Value is then "redlock:shared".
	Holders []Holder
	// Waiting is how many wait in this node's queue for the lock. As a rule only one of the
	// nodes has one.
	Waiting int
	// RemembersSince is since when the node has lost no data, as NodeReport has it.
	// Inspect does not ask for it: it is what this client was told when it connected or
	// acquired locks last. So a loss that it has not noticed yet does not show, and one that
	// it saw itself counts, too. It is also zero if the node did not answer.
	RemembersSince time.Time
	// Elapsed is how long the node took to answer.
	Elapsed time.Duration
	// Err says why the node did not answer, or that the key holds no lock.
	Err error
}

// Inspect asks every node what it has under the key, and waits for all of them, for
// the timeout per node at most. It does not change the lock; a first connection may write the memory
// mark, see Options.ReadOnly. If fewer than a majority answered it returns what was learned along with
// ErrNoQuorum. It also fails with ErrInvalid, ErrClosed, and with ctx's error when that ends first,
// and the Status is then zero.
func (m *Mutex) Inspect(ctx context.Context) (Status, error) {
	if err := m.check(ctx, protocol.OpInspect); err != nil {
		return Status{}, err
	}
	r, err := m.ask(ctx, protocol.InspectRequest(&m.terms.Terms, m.name, m.queueKey(), m.holdersKey(), mostWaiters))
	if err != nil {
		return Status{}, fmt.Errorf("redlock: inspect %s: %w", quoteKey(m.key), err)
	}
	s := Status{Key: m.key}
	answers := 0
	outcomes := m.outcomes(r)
	votes := make(map[string]int)
	for i, n := range inspected(r) {
		ns := NodeStatus{Node: outcomes[i].Node, Elapsed: outcomes[i].Elapsed, Err: outcomes[i].Err}
		if n.known {
			answers++
			ns.read(&n)
			ns.RemembersSince = m.guard.Since(i)
			if len(n.waiters) > len(s.Waiters) {
				s.Waiters = n.waiters
			}
		}
		if n.kind == "string" {
			votes[n.value]++
		}
		s.Nodes = append(s.Nodes, ns)
	}
	for value, n := range votes {
		if n >= m.quorum {
			if s.Shared = value == protocol.SharedMarker; s.Shared {
				s.Holders = s.sharers(m.quorum)
			} else {
				s.Token, s.Owner, _ = strings.Cut(value, "@")
			}
			s.TTL = s.lasts(value, m.quorum)
		}
	}
	if answers < m.quorum {
		return s, m.failed(r, protocol.OpInspect, ErrNoQuorum)
	}
	return s, nil
}

// read fills in what a node has under the key.
func (ns *NodeStatus) read(n *inspection) {
	ns.Value, ns.Waiting = n.value, n.waiting
	switch n.kind {
	case "string":
		if n.shared {
			ns.Holders = n.holdersHere()
		} else {
			ns.Token, ns.Owner, _ = strings.Cut(n.value, "@")
		}
		ns.TTL = n.ttl
		if n.ttl == 0 {
			ns.TTL = 1 // in its last millisecond, but there
		}
	case "none":
	default:
		ns.TTL = n.ttl
		ns.Err = fmt.Errorf("the key holds a %s, which is no lock", n.kind)
	}
}

// lasts is how long a quorum of nodes keeps the value: the quorum-th longest lease.
func (s Status) lasts(value string, quorum int) time.Duration {
	var ttls []time.Duration
	for _, n := range s.Nodes {
		switch {
		case n.Value != value:
		case n.TTL < 0:
			ttls = append(ttls, math.MaxInt64)
		default:
			ttls = append(ttls, n.TTL)
		}
	}
	slices.Sort(ttls)
	if d := ttls[len(ttls)-quorum]; d != math.MaxInt64 {
		return d
	}
	return -1
}

// sharers are the holders that a quorum lists under the same number.
func (s Status) sharers(quorum int) (all []Holder) {
	listed := make(map[Holder][]time.Duration)
	for _, n := range s.Nodes {
		for _, h := range n.Holders {
			ttl := h.TTL
			h.TTL = 0
			listed[h] = append(listed[h], ttl)
		}
	}
	for h, ttls := range listed {
		if len(ttls) >= quorum {
			slices.Sort(ttls)
			h.TTL = ttls[len(ttls)-quorum]
			all = append(all, h)
		}
	}
	slices.SortFunc(all, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(a.Permit, b.Permit), strings.Compare(a.Token, b.Token))
	})
	return all
}

// holdersHere are the holders that a node lists.
func (n *inspection) holdersHere() (all []Holder) {
	for _, s := range n.holders {
		token, owner, _ := strings.Cut(s.value, "@")
		all = append(all, Holder{Token: token, Owner: owner, Permit: int(s.number) - 1, TTL: max(s.ttl, 1)})
	}
	return all
}

// ForceRelease takes the lock from one holder on every node, for an operator who knows that the
// holder is gone. The token is the holder's (Lock.Token, Status.Token), or that of one of several
// holders (Status.Holders), which then is the only one that is removed. An empty one is refused:
// Status.Token is empty for a shared lock, for permits, and where no majority agrees. A holder that
// is still there learns of it at its next extend, and not before. Waiters in the queue are woken.
//
// It waits for no node longer than the timeout per node, and returns nil when a majority of
// nodes confirms that the key is gone and at least one of them had it. It fails with
// ErrNotHeld when there was nothing to delete, or another's token on so many nodes that no
// majority is left; with ErrNoQuorum when too few nodes answered, and with ctx's error when
// that ends first: the key may then be gone on some nodes. It also fails with ErrClosed, and
// with ErrInvalid, for instance if the token is empty or longer than 8192 bytes. The request is not
// sent again: a node that did not answer keeps the key until its TTL ends.
func (m *Mutex) ForceRelease(ctx context.Context, token string) error {
	if err := m.check(ctx, protocol.OpForceRelease); err != nil {
		return err
	}
	if token == "" || len(token) > maxKeyName { // other libraries' tokens may be anything, but see there
		return fmt.Errorf("redlock: force release %s: %w token: it is %d bytes long: must be from 1 to %d", quoteKey(m.key), ErrInvalid, len(token), maxKeyName)
	}
	return m.forceRelease(ctx, token)
}

// ForceReleaseAll is ForceRelease for whichever holder there is, for all of them, and for
// whatever else the key holds.
func (m *Mutex) ForceReleaseAll(ctx context.Context) error {
	if err := m.check(ctx, protocol.OpForceRelease); err != nil {
		return err
	}
	return m.forceRelease(ctx, "")
}

// forceRelease takes the lock from the holder with a token, or, if that is empty, from all.
func (m *Mutex) forceRelease(ctx context.Context, token string) error {
	r, err := m.ask(ctx, protocol.ForceRequest(&m.terms.Terms, m.name, token, m.queueKey(), m.holdersKey()))
	if err != nil {
		return fmt.Errorf("redlock: force release %s: %w", quoteKey(m.key), err)
	}
	deleted, gone, others := 0, 0, 0
	for _, o := range m.outcomes(r) {
		switch {
		case o.Vote == VoteGranted:
			deleted++
			gone++
		case o.Vote == VoteRefused && o.Holder == "" && o.Err == nil:
			gone++
		case o.Vote == VoteRefused:
			others++
		}
	}
	switch {
	case gone >= m.quorum && deleted > 0:
		return nil
	case gone >= m.quorum || others > len(m.nodes)-m.quorum:
		return m.failed(r, protocol.OpForceRelease, ErrNotHeld)
	default:
		return m.failed(r, protocol.OpForceRelease, ErrNoQuorum)
	}
}
