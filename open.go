package redlock

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"golang.org/x/sync/errgroup"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/nodes"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

const (
	// openPatience bounds how long Open waits for a node, each time it asks.
	openPatience = time.Second
	// openWait is for how long Open asks the nodes again where its context has no deadline.
	openWait = 5 * time.Second
	// openPause is that between the first two times. It doubles, up to openPatience.
	openPause = 50 * time.Millisecond
)

// Open connects to the nodes. An address is "host:port", or a redis://, rediss:// (TLS, see Options.TLS) or unix://
// URL, which may have a user, a password and a database number.
//
// It returns once all nodes have told what their votes rest on, or once a majority has and a second has passed; the
// rest join when they do. Without a majority it fails when ctx ends, or after five seconds if ctx has no deadline.
//
// It fails with ErrNoQuorum (and ctx's error if ctx ended), early if waiting cannot fix what so many nodes say; with
// ErrDuplicateNode if a server is given twice; and with ErrInvalid. It leaves the memory mark on each node (see
// Options.RestartGuard). Redlock.Close closes the connections.
func Open(ctx context.Context, addrs []string, opts *Options) (*Redlock, error) {
	o, broken := opts.withDefaults()
	parsed, err := nodes.Parse(addrs, openPatience)
	if err := inOneLine(broken, err, nodes.CheckNames(o.NodeNames, len(addrs))); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("redlock: open: %w", err)
	}
	clients := make([]*redis.Client, len(parsed))
	for i, p := range parsed {
		nodes.Secure(p, addrs[i], o.TLS)
		clients[i] = redis.NewClient(conn.OwnOptions(p)) // as it is, it would start goroutines that end only with it
	}
	rl := build(clients, o, tick.NewSystem(), conn.OpenHabits)
	if err := rl.greet(ctx); err != nil {
		_ = rl.Close()
		return nil, err
	}
	return rl, nil
}

// New returns a Redlock on the servers of the given clients, one node for each. It does no I/O.
//
// Each is a *redis.Client of an independent master, also one of NewFailoverClient. The library opens connections of its
// own with a copy of its options; its hooks, pool and retries do not apply, and it may be closed, except a failover
// client. What panics in the options' code (such as the Dialer) is the node's error, see NodeInfo.Err.
//
// New fails with ErrInvalid for any other client (a cluster or ring is no quorum), and with ErrDuplicateNode if one is
// given twice. With the guard, of two clients of one server only one has a vote.
func New(clients []redis.UniversalClient, opts *Options) (*Redlock, error) {
	o, broken := opts.withDefaults()
	singles, err := nodes.Clients(clients)
	if err := inOneLine(broken, err, nodes.CheckNames(o.NodeNames, len(clients))); err != nil {
		return nil, err
	}
	return build(singles, o, tick.NewSystem(), conn.UserHabits), nil
}

// build makes a Redlock of the servers that clients lead to.
func build(clients []*redis.Client, o Options, clk tick.Clock, h func(*redis.Options) conn.Habits) *Redlock {
	wires, name := make([]lane.Wire, len(clients)), protocol.NewClientName(clients, o.KeyPrefix, o.Owner).String()
	for i, c := range clients {
		wires[i] = conn.NewWire(c, h, markKeyOf(&o), name, clk)
	}
	rl := assemble(nodes.Names(clients, o.NodeNames), wires, o, clk)
	rl.clients = clients
	return rl
}

// greet asks all nodes for what their votes rest on, until a quorum has told it. It fails if two nodes are
// the same server, or if no majority tells it in time.
func (rl *Redlock) greet(ctx context.Context) error {
	asking := ctx
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		asking, cancel = context.WithTimeout(ctx, openWait)
		defer cancel()
	}
	g := greeting{ids: make([]string, len(rl.nodes)), outcomes: make([]Outcome, len(rl.nodes))}
	for pause := openPause; ; pause = min(2*pause, openPatience) {
		rl.greetOnce(asking, &g)
		var duplicates []error
		for _, t := range guard.Duplicates(g.ids) {
			duplicates = append(duplicates, sameServer(rl.names, t, g.ids[t.First]))
		}
		switch up, lasting := g.count(); {
		case duplicates != nil:
			return inOneLine(duplicates...)
		case up >= rl.quorum:
			// So that the first lock does not have to wait for it.
			rl.whileNew(asking, openPatience, func() (again bool) { return up == len(rl.nodes) && rl.guard.Begins() })
			return nil
		case len(rl.nodes)-lasting < rl.quorum, rl.pause(asking, pause) != nil:
			return &QuorumError{Op: "open", Need: rl.quorum, Outcomes: g.outcomes, reasons: withContextErr(ctx, ErrNoQuorum)}
		}
	}
}

// greeting is what the nodes have answered to Open so far.
type greeting struct {
	ids      []string
	outcomes []Outcome
}

// count is how many nodes answer, and how many refuse to for a reason that waiting cannot fix.
func (g *greeting) count() (up, lasting int) {
	for _, o := range g.outcomes {
		switch {
		case o.Vote == VoteGranted:
			up++
		case protocol.Permanent(o.Err) || mistrusts(o.Err):
			lasting++
		}
	}
	return up, lasting
}

// greetOnce asks those nodes that have not answered.
func (rl *Redlock) greetOnce(ctx context.Context, g *greeting) {
	start := rl.clock.Now()
	asking, cancel := context.WithTimeout(ctx, openPatience)
	defer cancel()
	var group errgroup.Group
	for i := range rl.nodes {
		if g.outcomes[i].Vote == VoteGranted {
			continue
		}
		group.Go(func() error {
			id, err := rl.lane(i).Wire.(*conn.Wire).Greet(asking, openPatience)
			if errors.Is(err, context.DeadlineExceeded) {
				err = protocol.ErrTimeout // whatever ended the wait for the node
			}
			if err != nil && ctx.Err() != nil && g.outcomes[i].Err != nil {
				return nil // what it said before says more
			}
			vote := VoteGranted
			switch {
			case err != nil && protocol.IsServerError(err):
				vote = VoteFailed
			case err != nil:
				vote = VoteNotSent
			case !rl.guard.Ready(i):
				vote, err = VoteBarred, rl.hinted(rl.guard.Why(i, 0))
			}
			g.ids[i] = id
			g.outcomes[i] = Outcome{
				Node: rl.names[i], Vote: vote, Err: protocol.Hinted(rl.clients[i], err),
				Elapsed: rl.clock.Now().Since(start),
			}
			return nil
		})
	}
	_ = group.Wait()
	if end, ok := ctx.Deadline(); ok && !rl.clock.Now().Time.Before(end) {
		<-ctx.Done() // connections time out a little earlier than their context
	}
}

// mistrusts reports whether the two ends cannot agree on TLS.
func mistrusts(err error) bool {
	return protocol.RemoteAlert(err) || errors.As(err, new(tls.RecordHeaderError)) || errors.As(err, new(*tls.CertificateVerificationError))
}

// sameServer is the error for nodes with these names that are duplicates.
func sameServer(names []string, t guard.Duplicate, runID string) error {
	return fmt.Errorf("redlock: %w: %s and %s are the same server, run id %s", ErrDuplicateNode, names[t.First], names[t.Second], runID)
}
