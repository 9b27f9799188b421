package conn

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// Wire is the way to a node.
type Wire struct {
	*Conversations
	options *redis.Options // of connections of our own
	quirks  *quirks
}

// NewWire is the wire to where a client leads. mark is the key of the memory mark, empty if there is
// none, and name what connections are called, unless the client has a name. Without a mark the server is asked for
// nothing but locks, and told no name: some proxies end connections at what they do not know.
func NewWire(c *redis.Client, h func(*redis.Options) Habits, mark, name string, clk tick.Clock) *Wire {
	o, q := OwnOptions(c.Options()), newQuirks(name)
	if q.shy = mark == ""; q.shy {
		q.name = ""
	}
	return &Wire{NewConversations(clk, &ownDialer{o, mark, q}, h(o)), o, q}
}

// Remedies are those that are at hand where a client learns passwords from a provider.
func (w *Wire) Remedies() protocol.Remedies {
	if o := w.options; o.CredentialsProvider != nil || o.CredentialsProviderContext != nil || o.StreamingCredentialsProvider != nil {
		return protocol.NewPassword
	}
	return 0
}

// Listen subscribes to a channel on a connection of its own and returns when that breaks
// or ctx ends.
func (w *Wire) Listen(ctx context.Context, channel string, tell lane.Subscriber) error {
	return listen(ctx, w.clock, w.options, w.quirks, channel, tell)
}

// Listen is that of a wire to where a client leads.
func Listen(ctx context.Context, clk tick.Clock, c *redis.Client, channel string, tell lane.Subscriber) error {
	return listen(ctx, clk, OwnOptions(c.Options()), newQuirks(""), channel, tell)
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

// listenPatience is how long a subscription may be silent before we doubt it.
const listenPatience = 3 * time.Second
