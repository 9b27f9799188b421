// Package admin is for operators' tools: it says who holds a lock and who waits, which locks there
// are, and what is wrong with the nodes, and takes a lock away from a holder that is gone. The command
// redlock is made of it.
//
// It needs no quorum to answer: each node is asked, all at once, and what each said is in the result
// beside what a majority makes of it. Only ForceRelease writes to a node, to take a lock away: not even the memory
// mark of a node that has none is written. What a node answers beyond what is asked for costs its answer and not the
// program: each exchange has a budget of bytes, a megabyte as a rule.
package admin

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/nodes"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// The reasons for which a call fails; each is the one of that name in package redlock. Test for them
// with errors.Is.
var (
	// ErrNoQuorum: too few nodes answered. What the others said is in the result.
	ErrNoQuorum = protocol.ErrNoQuorum
	// ErrNotHeld: there was nothing to take away, or another's token.
	ErrNotHeld = protocol.ErrNotHeld
	// ErrInvalid: an argument or option breaks a rule. No node was asked.
	ErrInvalid = protocol.ErrInvalid
)

// Options are what the nodes are asked with, and what Check judges them by. Nil and the zero value
// mean all defaults.
type Options struct {
	// KeyPrefix is redlock.Options.KeyPrefix of the programs that lock. Default none.
	KeyPrefix string
	// NodeNames are what the nodes are called in results. Default: address/database.
	NodeNames []string
	// TLS is for the addresses given to Open, as redlock.Options.TLS is. Default nil.
	TLS *tls.Config
	// Timeout bounds how long a node is waited for. Default 1s. Check takes up to three times as long, and
	// List up to 30 times.
	Timeout time.Duration

	// TTL, NodeTimeout and RestartGuard are those of the programs that lock, for Check. Defaults
	// as in redlock.Options: 10s, a fiftieth of the TTL, and the TTL.
	TTL, NodeTimeout, RestartGuard time.Duration
	// NoRestartGuard is also that of the programs that lock.
	NoRestartGuard bool
}

const (
	defaultTimeout = time.Second
	defaultTTL     = 10 * time.Second
	maxTTL         = 24 * time.Hour
)

// Nodes are the nodes on which programs lock. Its methods may be called from any number of goroutines.
type Nodes struct {
	clients []*redis.Client // that lead to the nodes, see open
	opened  bool            // by Open
	names   []string
	opts    Options
	clock   tick.Clock

	mu     sync.Mutex      // guards what follows
	asked  []*redis.Client // nil: none are open
	calls  int             // that are under way
	idle   tick.Timer      // since the last one; nil: it does not run
	closed bool
}

// Open takes addresses as redlock.Open does, and asks no node: connections are opened when they are
// needed. It fails with ErrInvalid for what breaks a rule, and with redlock.ErrDuplicateNode if two addresses are
// the same; that two names lead to one server is a finding of Check. Close closes the connections.
func Open(addrs []string, opts *Options) (*Nodes, error) {
	o, broken := opts.withDefaults()
	parsed, err := nodes.Parse(addrs, o.Timeout)
	if err := protocol.InOneLine(broken, err, nodes.CheckNames(o.NodeNames, len(addrs))); err != nil {
		return nil, err
	}
	clients := make([]*redis.Client, len(parsed))
	for i, p := range parsed {
		nodes.Secure(p, addrs[i], o.TLS)
		clients[i] = redis.NewClient(conn.OwnOptions(p)) // or its Dialer would have no time where that is not limited
	}
	n := build(clients, o)
	n.opened = true
	return n, nil
}

// New takes clients of go-redis, one for each node, which stay the caller's to close: each is a *redis.Client, as for
// redlock.New. Connections of its own lead to where that does, with its settings but not its hooks, until they were
// idle for a minute. It asks no node, and fails with ErrInvalid for what breaks a rule, and with
// redlock.ErrDuplicateNode if a client is given twice.
func New(clients []redis.UniversalClient, opts *Options) (*Nodes, error) {
	o, broken := opts.withDefaults()
	singles, err := nodes.Clients(clients)
	if err := protocol.InOneLine(broken, err, nodes.CheckNames(o.NodeNames, len(clients))); err != nil {
		return nil, err
	}
	return build(singles, o), nil
}

func build(clients []*redis.Client, o Options) *Nodes {
	return &Nodes{clients: clients, names: nodes.Names(clients, o.NodeNames), opts: o, clock: tick.NewSystem()}
}

// userConn is for how long connections stay open without work that lead to where clients of the caller's do.
const userConn = time.Minute

// open returns the clients that a call asks, and what says that it is over. Whatever a node answers, each exchange
// has a budget, see [conn.Bound].
func (n *Nodes) open() (asked []*redis.Client, done func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.calls++; n.idle != nil {
		n.idle.Stop()
	}
	if n.asked == nil {
		for _, c := range n.clients {
			n.asked = append(n.asked, redis.NewClient(n.bounded(c, conn.Bound)))
		}
		if n.closed {
			_ = closeAll(n.asked) // they have no connections yet
		}
	}
	return n.asked, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.calls--; n.calls == 0 && !n.opened && !n.closed {
			n.idle = n.clock.AfterFunc(userConn, n.rest)
		}
	}
}

// rest closes connections that no call uses; the next one opens others.
func (n *Nodes) rest() {
	n.mu.Lock()
	var over []*redis.Client
	if n.calls == 0 && !n.closed {
		over, n.asked = n.asked, nil
	}
	n.mu.Unlock()
	_ = closeAll(over)
}

// closeAll may block, as long as a connection of a Dialer's does.
func closeAll(clients []*redis.Client) error {
	errs := make([]error, len(clients))
	for i, c := range clients {
		// A connection of a Dialer's may panic.
		if err := conn.NoPanic(func() { errs[i] = c.Close() }); err != nil {
			errs[i] = err
		}
	}
	return protocol.InOneLine(errs...)
}

// bounded are options for connections of our own to where a client leads.
func (n *Nodes) bounded(c *redis.Client, bound func(*redis.Options)) *redis.Options {
	o := conn.OwnOptions(c.Options())
	o.ReadTimeout, o.WriteTimeout = checkPatience*n.opts.Timeout, checkPatience*n.opts.Timeout
	bound(o)
	return o
}

func (o *Options) withDefaults() (Options, error) {
	var c Options
	if o != nil {
		c = *o
	}
	var broken []string
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{{"Timeout", &c.Timeout, defaultTimeout}, {"TTL", &c.TTL, defaultTTL}} {
		if *d.value == 0 {
			*d.value = d.def
		}
		if *d.value < time.Millisecond || *d.value > maxTTL {
			broken = append(broken, fmt.Sprintf("%s is %v: must be 0 (default %v) or from 1ms to %v", d.name, *d.value, d.def, maxTTL))
		}
	}
	if c.NodeTimeout == 0 {
		c.NodeTimeout = protocol.NodeTimeout(c.TTL)
	}
	if c.NodeTimeout < time.Millisecond {
		broken = append(broken, fmt.Sprintf("NodeTimeout is %v: must be 0 (default) or at least 1ms", c.NodeTimeout))
	}
	if c.RestartGuard < 0 || c.RestartGuard > maxTTL {
		broken = append(broken, fmt.Sprintf("RestartGuard is %v: must be from 0 to %v; NoRestartGuard turns it off", c.RestartGuard, maxTTL))
	}
	if len(c.KeyPrefix) >= protocol.MaxKeyName {
		broken = append(broken, fmt.Sprintf("KeyPrefix is %d bytes long: must be below %d", len(c.KeyPrefix), protocol.MaxKeyName))
	}
	return c, protocol.Invalid("options", broken)
}

// Names are the nodes' names, in the order in which they were given.
func (n *Nodes) Names() []string { return append([]string(nil), n.names...) }

// Quorum is how many nodes must grant a lock: more than half of them.
func (n *Nodes) Quorum() int { return len(n.clients)/2 + 1 }

// Close closes the connections, and not the clients that New was given. Later calls fail; a second Close returns nil.
func (n *Nodes) Close() error {
	n.mu.Lock()
	var over []*redis.Client
	if !n.closed {
		over = n.asked
	}
	if n.closed = true; n.idle != nil {
		n.idle.Stop()
	}
	n.mu.Unlock()
	return closeAll(over)
}

// name is a lock's key on the nodes, if it breaks no rule.
func (n *Nodes) name(op, key string) (string, error) {
	name := n.opts.KeyPrefix + key
	return name, protocol.Invalid(op, protocol.BrokenName(key, n.opts.KeyPrefix))
}

// answer is what a node said.
type answer struct {
	protocol.Answer
	elapsed time.Duration
}

// ask asks all nodes at once, by clients of open, and returns what each has said, within the timeout. Its error
// is that of ctx.
func (n *Nodes) ask(ctx context.Context, clients []*redis.Client, of func() *protocol.Request) ([]answer, error) {
	asking, cancel := context.WithTimeout(ctx, n.opts.Timeout)
	defer cancel()
	all := make([]answer, len(clients))
	var group errgroup.Group
	for i, c := range clients {
		group.Go(func() error {
			start := n.clock.Now()
			all[i].Answer = once(asking, c, of())
			all[i].elapsed = n.clock.Now().Since(start)
			return nil
		})
	}
	_ = group.Wait()
	return all, n.ended(ctx)
}

// ended is the error of a context that is over, with its cause in the text; nil if it is not.
func (n *Nodes) ended(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok && !n.clock.Now().Time.Before(end) {
		<-ctx.Done() // connections time out a little earlier than their context
	}
	err := ctx.Err()
	if cause := context.Cause(ctx); err != nil && !errors.Is(err, cause) {
		return fmt.Errorf("%w: %v", err, cause)
	}
	return err
}

// once asks one node. The script goes as its text where the server does not know it, or denies to run
// it by its digest.
func once(ctx context.Context, c *redis.Client, r *protocol.Request) (a protocol.Answer) {
	for {
		var err error
		if a, err = within(ctx, func() (got protocol.Answer, _ error) {
			cmd := redis.NewCmd(ctx, r.Values()...)
			if err := c.Process(ctx, cmd); err != nil && !errors.Is(err, redis.Nil) {
				return got, protocol.CleanError(err)
			}
			return protocol.Answer{Said: cmd.Val()}, nil
		}); err != nil {
			a = protocol.Answer{Sent: true, Said: err}
		}
		if r.Whole || !a.WantsSource() {
			break
		}
		r = r.WithSource()
	}
	a = a.Read(r.Op)
	err := a.Err()
	if errors.Is(err, context.DeadlineExceeded) {
		err = protocol.ErrTimeout
	}
	a.Said = protocol.Said(a.Said, protocol.Hinted(c, err))
	return a
}

// within is what ask returns, or ErrTimeout when ctx ends: a client of the user's may wait for longer.
func within[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	got, late, err := conn.Within(ctx, ask, nil)
	if late {
		err = protocol.ErrTimeout
	}
	return got, err
}

// NodeError is why a call failed, as far as one node is concerned.
type NodeError struct {
	Node    string
	Err     error // nil: it answered
	Elapsed time.Duration
}

// Error reports a call that failed after nodes were asked. errors.Is finds its reason: ErrNoQuorum, ErrNotHeld, or
// the error of the context.
type Error struct {
	// Op is "check", "clients", "force release", "inspect" or "list". Only Inspect and ForceRelease have a Key.
	Op, Key string
	Nodes   []NodeError
	Reason  error
}

// Unwrap returns the reason: ErrNoQuorum, ErrNotHeld or the context's error.
func (e *Error) Unwrap() error { return e.Reason }

// Error is one line: the reason, and what each node said.
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString("redlock: " + e.Op)
	if e.Key != "" {
		b.WriteString(" " + protocol.Quote(e.Key))
	}
	b.WriteString(": " + protocol.OneLine(e.Reason.Error()))
	if len(e.Nodes) == 0 { // it was over before
		return b.String()
	}
	answered := 0
	for _, n := range e.Nodes {
		if n.Err == nil {
			answered++
		}
	}
	fmt.Fprintf(&b, " (%d of %d nodes answered, %d needed)", answered, len(e.Nodes), len(e.Nodes)/2+1)
	for i, n := range e.Nodes {
		b.WriteString([]string{": ", "; "}[min(i, 1)] + protocol.OneLine(n.Node))
		if n.Err == nil {
			b.WriteString(" answered")
		} else {
			b.WriteString(": " + protocol.OneLine(n.Err.Error()))
		}
	}
	return b.String()
}

func (n *Nodes) failed(op, key string, all []answer, why error) error {
	e := &Error{Op: op, Key: key, Reason: why}
	for i, a := range all {
		e.Nodes = append(e.Nodes, NodeError{n.names[i], unanswered(a), a.elapsed})
	}
	return e
}

// unanswered is why a node did not say what was asked.
func unanswered(a answer) error {
	if a.Kind == protocol.Granted || a.Kind == protocol.Refused {
		return nil
	}
	return a.Err()
}
