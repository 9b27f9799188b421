// Package inside is what the simulation touches of the inside of package redlock, which sets the funcs when it is
// initialized. Clients are *redlock.Redlock, locks what describes one, held *redlock.Lock: this package cannot name
// what imports it.
package inside

import (
	"context"
	"io"
	"time"

	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// Assembly is what a client is made of.
type Assembly struct {
	Names       []string
	Wires       []lane.Wire // to the nodes with these names
	Options     any         // a *redlock.Options, or nil
	Clock       tick.Clock
	NodeTimeout time.Duration // which Options may refuse; 0: that of Options
	Process     string        // the name in queues; empty: a random one
	Random      io.Reader     // the source of tokens; nil: that of the system
	Room        int           // of each key's queue, for waiters of this client; 0: the usual one
}

// Parts are what a client consists of.
type Parts struct {
	Lanes     []*lane.Lane // of the nodes
	Guard     *guard.Guard // nil: it is off
	HasWaiter func(token string) bool
	// Ask sends a request to all nodes, and waits for each of them.
	Ask func(context.Context, *protocol.Request) ([]protocol.Answer, error)
}

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
	// Assemble makes a client.
	Assemble func(Assembly) (client any, parts Parts, err error)
	// DialTimeout is that of Open's connections where their address has none.
	DialTimeout time.Duration
	// Allow lets a lock be used whose options are refused, without a fencing token if it is a shared one.
	Allow func(lock any)
	// TermsOf is for locks, and for those that are held.
	TermsOf func(lock any) Terms
	// StateOf is for a lock that is held.
	StateOf func(held any) State
	// Extend is Lock.Extend without its limits.
	Extend func(held any, ctx context.Context, ttl time.Duration) error
	// StartRelease is the first half of Lock.Release; what it returns waits for the nodes.
	StartRelease func(held any) (end func() error)
)
