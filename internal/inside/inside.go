// Package inside is what tests in other packages may touch of the inside of package redlock, which sets the funcs
// when it is initialized. Clients are *redlock.Redlock, locks what describes one, held *redlock.Lock: this package cannot
// name what imports it.
package inside

import (
	"context"
	"io"
	"time"

	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/tick"
)

// Terms are those on which a lock is asked for.
type Terms struct {
	TTL, NodeTimeout          time.Duration
	MaxWait, MaxHold, MinHold time.Duration
	Fencing, Shared, Renew    bool
	Permits                   int
}

// State is what a lock knows of itself.
type State struct {
	Value            string // on the nodes: token@owner
	GrantedAt, Until tick.Instant
	Over, Renews     bool
	Longest          time.Duration // no node was asked to hold it for longer
	Number           int           // of its permit, from 1; 0: none
	AdoptedFrom      string        // a token; empty: from none
}

var (
	// NewWithClock is New with another clock. clients is a []redis.UniversalClient: to name this interface
	// costs each package two seconds of compilation. opts is an *Options or nil.
	NewWithClock func(clients, opts any, c tick.Clock) (client any, err error)
	// NewLikeOpen is New with the habits of Open's connections, which leads to addresses only.
	NewLikeOpen func(clients any) (client any, err error)
	// Assemble makes a client over wires, with a NodeTimeout that options would refuse, and a name of the process in
	// queues. opts is an *Options.
	Assemble func(names []string, wires []lane.Wire, opts any, nodeTimeout time.Duration, process string, c tick.Clock) (client any, err error)
	// Lanes are those of a client's nodes. Guard is nil where it is off.
	Lanes func(client any) []*lane.Lane
	Guard func(client any) *guard.Guard
	// Order is that in which the nodes with these names are asked to keep the queue of a key.
	Order func(key string, nodes []string) []int
	// HasWaiter reports whether the waiter with a token is still there.
	HasWaiter func(client any, token string) bool
	// AwaitKeys lets a client look after its queues as one does that waits for so many keys more.
	AwaitKeys func(client any, more int64)
	// NarrowWindows says how many waiters of each key have room in its queue.
	NarrowWindows func(client any, most int)
	// Allow lets a lock be used whose options are refused; NoFence takes WithFencing from it.
	Allow   func(lock any)
	NoFence func(lock any)
	// TermsOf is for locks, and for those that are held.
	TermsOf func(lock any) Terms
	// StateOf and SetUntil are for a lock that is held.
	StateOf  func(held any) State
	SetUntil func(held any, until tick.Instant)
	// Extend is Lock.Extend without its limits.
	Extend func(held any, ctx context.Context, ttl time.Duration) error
	// StartRelease is the first half of Lock.Release; what it returns waits for the nodes.
	StartRelease func(held any) (end func() error)
	// ForceRelease is that of package admin, by the client's own connections. An empty token: of anything.
	ForceRelease func(lock any, ctx context.Context, token string) error
	// HeldIn is a context that belongs to a lock as that of Do's function does.
	HeldIn func(ctx context.Context, held any) context.Context
	// SetRandom replaces the source of tokens.
	SetRandom func(client any, r io.Reader)
	// Nodes are the clients of go-redis that a client was made of, and its Options.
	Nodes func(client any) (clients, opts any)
	// LaneLoad tells how many requests wait in a node's lane, and how many releases it keeps for later.
	LaneLoad func(client any, node int) (queued, kept int)
	// LoadScripts lets all nodes know all scripts.
	LoadScripts func(client any) error
	// Waits reports how many waiters of a client are in queues, and how many subscriptions it has.
	Waits func(client any) (waiters, subscriptions int)
	// Queues reports how many keys a client remembers since a waiter waits for them, or did.
	Queues func(client any) int
	// NodeOrder is the order in which nodes are asked to keep the queue of a lock.
	NodeOrder func(lock any) []int
	// QueueKey is the key of a lock's queue.
	QueueKey func(lock any) string
	// SawLease lets a waiter find a holder with so much of its lease left.
	SawLease func(lock any, left time.Duration)
	// QueueKeyOf is the key of the queue of a Redis key; NamesBeside are all that go with it.
	QueueKeyOf  func(key string) string
	NamesBeside func(key string) []string
	// NewQuorumError makes a *QuorumError. outcomes is a []Outcome.
	NewQuorumError func(op, key string, need int, left time.Duration, outcomes any, reasons ...error) error
)
