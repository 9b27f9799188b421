package admin

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

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
	// Nodes has one entry per node, in the order of Names.
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
	// Elapsed is how long the node took to answer.
	Elapsed time.Duration
	// Err says why the node did not answer, or that the key holds no lock.
	Err error
}

// Waiter is one acquire that waits in the queue.
type Waiter struct {
	// Owner is the waiter's label.
	Owner string
	// Mode is how it wants to hold the lock: "exclusive", "shared" or "permit".
	Mode string
	// Waited is how long it has been in the queue, by the node's clock.
	Waited time.Duration
}

// Inspect asks every node what it has under the key, all at once, and waits for all of them, for
// Options.Timeout at most. If fewer than a majority answered it returns what was learned along with
// ErrNoQuorum. It also fails with ErrInvalid, and with ctx's error when that ends first, and the
// Status is then zero.
func (n *Nodes) Inspect(ctx context.Context, key string) (Status, error) {
	clients, done := n.open()
	defer done()
	return n.inspect(ctx, clients, key)
}

func (n *Nodes) inspect(ctx context.Context, clients []*redis.Client, key string) (Status, error) {
	name, err := n.name("inspect", key)
	if err != nil {
		return Status{}, err
	}
	of := protocol.NamingOf(name)
	all, err := n.ask(ctx, clients, func() *protocol.Request {
		return protocol.InspectRequest(&protocol.Terms{}, name, of.QueueKey(name), of.UnusualHolders(name), mostWaiters)
	})
	if err != nil {
		return Status{}, fmt.Errorf("redlock: inspect %s: %w", protocol.Quote(key), err)
	}
	s := Status{Key: key}
	answers := 0
	votes := make(map[string]int)
	for i, a := range all {
		ns := NodeStatus{Node: n.names[i], Elapsed: a.elapsed, Err: unanswered(a)}
		if found, known := protocol.ReadInspection(a.Said); known && ns.Err == nil {
			answers++
			ns.read(&found)
			s.wait(found.Waiters)
			if found.Kind == "string" {
				votes[found.Value]++
			}
		}
		s.Nodes = append(s.Nodes, ns)
	}
	for value, count := range votes {
		if count >= n.Quorum() {
			s.held(value, n.Quorum())
		}
	}
	if answers < n.Quorum() {
		return s, n.failed("inspect", key, all, ErrNoQuorum)
	}
	return s, nil
}

// wait fills in the waiters of the node that has the most of them: as a rule only one has any.
func (s *Status) wait(found []protocol.Waiting) {
	if len(found) <= len(s.Waiters) {
		return
	}
	s.Waiters = nil
	for _, w := range found {
		s.Waiters = append(s.Waiters, Waiter{w.Owner, w.Mode, w.Waited})
	}
}

// held fills in the holder, or the holders, under a value that a quorum of nodes has.
func (s *Status) held(value string, quorum int) {
	if s.Shared = value == protocol.SharedMarker; s.Shared {
		s.Holders = s.sharers(quorum)
	} else {
		s.Token, s.Owner, _ = strings.Cut(value, "@")
	}
	s.TTL = s.lasts(value, quorum)
}

// read fills in what a node has under the key.
func (ns *NodeStatus) read(n *protocol.Inspection) {
	ns.Value, ns.Waiting = n.Value, n.Waiting
	switch n.Kind {
	case "string":
		if n.Shared {
			ns.Holders = holdersHere(n)
		} else {
			ns.Token, ns.Owner, _ = strings.Cut(n.Value, "@")
		}
		ns.TTL = n.TTL
		if n.TTL == 0 {
			ns.TTL = 1 // in its last millisecond, but there
		}
	case "none":
	default:
		ns.TTL = n.TTL
		ns.Err = n.NoLock()
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
		here := make(map[Holder]time.Duration) // a node has one vote, whatever it lists twice
		for _, h := range n.Holders {
			ttl := h.TTL
			h.TTL = 0
			here[h] = ttl
		}
		for h, ttl := range here {
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
func holdersHere(n *protocol.Inspection) (all []Holder) {
	for _, s := range n.Holders {
		token, owner, _ := strings.Cut(s.Value, "@")
		all = append(all, Holder{Token: token, Owner: owner, Permit: int(s.Number) - 1, TTL: max(s.TTL, 1)})
	}
	return all
}
