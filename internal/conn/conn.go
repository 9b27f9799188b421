package conn

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// Wire is the way to a node.
type Wire struct {
	Talk
	client redis.UniversalClient
	own    *redis.Options // of connections of our own; nil: there are none
	clock  tick.Clock
	quirks *quirks
}

// Talk is the part of a wire that batches go over.
type Talk interface {
	lane.Wire
	lane.Watcher
	Close()
}

// NewWire is the wire to where a client leads. mark is the key of the memory mark, empty if there is
// none, and name what connections are called, unless the client has a name.
func NewWire(c redis.UniversalClient, h func(*redis.Options) Habits, mark, name string, clk tick.Clock) *Wire {
	single, ok := c.(*redis.Client)
	if !ok {
		return &Wire{Talk: &ManyServers{client: c}, client: c}
	}
	o, q := OwnOptions(single.Options()), newQuirks(name)
	return &Wire{NewConversations(clk, &ownDialer{o, mark, q}, h(o)), c, o, clk, q}
}

// Remedies are those that are at hand where a client learns passwords from a provider, or follows a
// cluster; also one in a type of the user's, whose methods show it.
func (w *Wire) Remedies() (at protocol.Remedies) {
	provided := false
	switch c := w.client.(type) {
	case interface{ Options() *redis.Options }:
		o := c.Options()
		provided = o.CredentialsProvider != nil || o.CredentialsProviderContext != nil || o.StreamingCredentialsProvider != nil
	case interface{ Options() *redis.RingOptions }:
		o := c.Options()
		provided = o.CredentialsProvider != nil || o.CredentialsProviderContext != nil || o.StreamingCredentialsProvider != nil
	case interface{ Options() *redis.ClusterOptions }:
		o := c.Options()
		provided = o.CredentialsProvider != nil || o.CredentialsProviderContext != nil || o.StreamingCredentialsProvider != nil
		at = protocol.Cluster
	}
	if provided {
		at |= protocol.NewPassword
	}
	return at
}

// ManyServers is the talk over a client of the user's for which one name stands for several
// servers, or for a number that is not known. Which one answers is not known there, so there is
// nothing to guard and no connection to kill, and how long to wait is up to the client.
type ManyServers struct {
	client redis.UniversalClient
	lacks  func(what string, err error)
	tried  atomic.Bool // scripts run
}

// Exchange is that of lane.Wire; how long it waits is up to the client.
func (m *ManyServers) Exchange(batch []*lane.Call, _, _ time.Duration) {
	ctx := context.Background()
	if err := m.tryScripts(ctx, batch); err != nil {
		for _, c := range batch {
			c.Answer = protocol.Answer{Said: err}
		}
		return
	}
	cmds := make([]redis.Cmder, len(batch))
	for i, c := range batch {
		cmds[i] = protocol.NewCommand(c.Req)
	}
	failure := m.exec(ctx, cmds)
	for i, c := range batch {
		cmds[i].(*protocol.Command).Reply(&c.Answer, failure)
	}
}

// tryScripts is ownFlow.tryScripts ahead of the first batch with a SET, on the server of its lock.
func (m *ManyServers) tryScripts(ctx context.Context, batch []*lane.Call) error {
	at := slices.IndexFunc(batch, func(c *lane.Call) bool { return c.Req.Op.Sets() })
	if m.tried.Load() || at < 0 {
		return nil
	}
	try := protocol.TryRequest(batch[at].Req.Key)
	for _, r := range []*protocol.Request{try, try.WithSource()} {
		cmd := protocol.NewCommand(r)
		var got protocol.Answer
		cmd.Reply(&got, m.exec(ctx, []redis.Cmder{cmd}))
		switch {
		case !got.Answered():
			return got.Err()
		case protocol.WantsSource(got.Err()) && !r.Whole:
		default:
			err := protocol.ScriptsFail(got.Err())
			m.tried.Store(err == nil)
			return err
		}
	}
	return nil
}

func (m *ManyServers) exec(ctx context.Context, cmds []redis.Cmder) (err error) {
	defer func() { m.tellPanic(err) }()
	defer noPanic(&err)
	pipe := m.client.Pipeline()
	_ = pipe.BatchProcess(ctx, cmds...) // only queues them
	_, err = pipe.Exec(ctx)
	return err
}

func (m *ManyServers) tellPanic(err error) {
	if p := whole(err); p != nil && m.lacks != nil {
		m.lacks(unbroken, p)
	}
}

var ErrNoSinglePool = errors.New("the client is no *redis.Client, so which server answers is not known")

// Watch says at once that which server answers is not known.
func (m *ManyServers) Watch(o lane.Onlooker) {
	m.lacks = o.Lacks
	if o.Saw != nil {
		o.Saw(protocol.ServerReport{Err: ErrNoSinglePool})
	}
}

// Close does nothing: the client is its owner's to close.
func (m *ManyServers) Close() {}

// Listen subscribes to a channel on a connection of its own and returns when that breaks
// or ctx ends.
func (w *Wire) Listen(ctx context.Context, channel string, tell lane.Subscriber) error {
	if w.own != nil {
		return listen(ctx, w.clock, w.own, w.quirks, channel, tell)
	}
	return listenOver(ctx, w.client, channel, tell)
}

// Listen is that of a wire to where a client leads.
func Listen(ctx context.Context, clk tick.Clock, c redis.UniversalClient, channel string, tell lane.Subscriber) error {
	if single, ok := c.(*redis.Client); ok {
		return listen(ctx, clk, OwnOptions(single.Options()), newQuirks(""), channel, tell)
	}
	return listenOver(ctx, c, channel, tell)
}

func listen(ctx context.Context, clk tick.Clock, o *redis.Options, q *quirks, channel string, tell lane.Subscriber) error {
	c, err := connect(ctx, o, q)
	if err != nil {
		return err
	}
	f := newOwnFlow(c, o, "", q)
	defer f.Close()
	// A read does not look at ctx, and a greeting is waited for as long as for a connection.
	defer context.AfterFunc(ctx, f.Close)()
	late := clk.AfterFunc(o.DialTimeout, f.Close)
	defer late.Stop()
	if err := f.greet(); err != nil {
		return err
	}
	// Whether the server lets us publish can be asked only before it is subscribed to. Scripts say so,
	// too, but only when they let a waiter in.
	var publish answer
	f.question(&publish, "PUBLISH", "PUBLISH", channel, "")
	f.out.ask("SUBSCRIBE", channel)
	f.hear()
	if err := f.welcome(); err != nil {
		return err
	}
	if denied := publish.err; protocol.IsServerError(denied) && protocol.Permanent(denied) {
		tell.Denied(denied)
	}
	for {
		// Nothing to hear looks like a dead connection, so ask.
		doubt := clk.AfterFunc(listenPatience, func() { _, _ = f.socket.Write([]byte("*1\r\n$4\r\nPING\r\n")) })
		over := clk.AfterFunc(2*listenPatience, f.Close)
		kind, payload, err := f.in.message()
		doubt.Stop()
		over.Stop()
		switch {
		case errors.Is(err, net.ErrClosed) && ctx.Err() == nil:
			return protocol.ErrTimeout
		case err != nil:
			return err
		case kind == "subscribe":
			if !late.Stop() {
				return protocol.ErrTimeout
			}
			tell.Confirmed()
		case kind == "message":
			tell.Heard(payload)
		}
		f.in.allow(messageRoom)
	}
}

// messageRoom is for a notice of all of a process whom one script lets in.
const messageRoom = 64 << 10

// listenOver is Listen over a client for which one name stands for several servers. It does not tell
// whether we may publish.
func listenOver(ctx context.Context, c redis.UniversalClient, channel string, tell lane.Subscriber) (err error) {
	defer func() { err = protocol.CleanError(err) }()
	defer noPanic(&err)
	var ps *redis.PubSub
	if ring, ok := c.(*redis.Ring); ok {
		// It must know the channel to choose a server, which may be another than the
		// key's: what is published there goes unheard, and waiters find it by timers.
		ps = ring.Subscribe(ctx, channel)
	} else {
		ps = c.Subscribe(ctx) // no I/O yet
	}
	defer ps.Close()
	// A read does not look at ctx.
	defer context.AfterFunc(ctx, func() { _ = ps.Close() })()
	if err := ps.Subscribe(ctx, channel); err != nil {
		return err
	}
	for asked := false; ; {
		m, err := ps.ReceiveTimeout(ctx, listenPatience)
		var nerr net.Error
		switch m := m.(type) {
		case *redis.Subscription:
			tell.Confirmed()
		case *redis.Message:
			tell.Heard(m.Payload)
		}
		switch {
		case err == nil:
			asked = false
		case !asked && errors.As(err, &nerr) && nerr.Timeout():
			// Nothing to hear looks like a dead connection, so ask.
			if err := ps.Ping(ctx); err != nil {
				return err
			}
			asked = true
		default:
			return err
		}
	}
}

// listenPatience is how long a subscription may be silent before we doubt it.
const listenPatience = 3 * time.Second
