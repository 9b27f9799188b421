// Package inside is what tests in other packages may touch of the inside of package redlock, which sets the funcs
// when it is initialized. Clients are *redlock.Redlock, locks *redlock.Mutex: this package cannot name what imports it.
package inside

import (
	"io"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/tick"
)

var (
	// NewWithClock is New with another clock. opts is an *Options or nil.
	NewWithClock func(clients []redis.UniversalClient, opts any, c tick.Clock) (client any, err error)
	// SetRandom replaces the source of tokens.
	SetRandom func(client any, r io.Reader)
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
