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

// Wire is the way to a node over go-redis.
type Wire struct {
	Talk
	Client redis.UniversalClient // for subscriptions
}

// Talk is the part of a wire that batches go over.
type Talk interface {
	lane.Wire
	lane.Watcher
	Close()
}

// NewWire is the wire to the server that a client leads to. mark is the key of the memory
// mark, empty if there is none.
func NewWire(c *redis.Client, h func(*redis.Options) Habits, mark string, clk tick.Clock) *Wire {
	o := OwnOptions(c.Options())
	return &Wire{NewConversations(clk, &ownDialer{options: o, markKey: mark}, h(o)), sideClient(o)}
}

// ManyServers is the talk over a client of the user's for which one name stands for several
// servers, or for a number that is not known. Who answers is not known there, so there is
// nothing to guard and no connection to kill, and how long to wait is up to the client.
type ManyServers struct{ Client redis.UniversalClient }

// Exchange is that of lane.Wire; how long it waits is up to the client.
func (m *ManyServers) Exchange(batch []*lane.Call, _, _ time.Duration, left func()) (settled bool) {
	left() // the client does not tell when it has written
	ctx := context.Background()
	cmds := make([]redis.Cmder, len(batch))
	for i, c := range batch {
		cmds[i] = protocol.NewCommand(c.Req)
	}
	pipe := m.Client.Pipeline()
	_ = pipe.BatchProcess(ctx, cmds...) // only queues them
	_, failure := pipe.Exec(ctx)
	for i, c := range batch {
		cmds[i].(*protocol.Command).Reply(&c.Answer, failure)
	}
	answered, sent := Read(batch)
	return answered || !sent
}

var ErrNoSinglePool = errors.New("the client is no *redis.Client, so which server answers is not known")

// Watch says at once that which server answers is not known.
func (m *ManyServers) Watch(o lane.Onlooker) {
	if o.Saw != nil {
		o.Saw(protocol.ServerReport{Err: ErrNoSinglePool})
	}
}

// Close does nothing: the client is its owner's to close.
func (m *ManyServers) Close() {}

// Subscriber is told of a subscription.
type Subscriber = lane.Subscriber

// mayPublish is the key of what a context asks over the connection of a subscription before it
// subscribes, which is the only time at which that can be asked there: whether the server lets us
// publish. Scripts say so, too, but only when they let a waiter in. Where the connection is not made
// by a side client, they alone do.
type mayPublish struct{}

// Listen subscribes to a channel on a connection of its own and returns when that breaks
// or ctx ends.
func (w *Wire) Listen(ctx context.Context, channel string, tell Subscriber) error {
	ctx = context.WithValue(ctx, mayPublish{}, func(cn *redis.Conn) {
		if err := cn.Publish(ctx, channel, "").Err(); protocol.IsServerError(err) && protocol.Permanent(err) {
			tell.Denied(err)
		}
	})
	var ps *redis.PubSub
	if ring, ok := w.Client.(*redis.Ring); ok {
		// It must know the channel to choose a server, which may be another than the
		// key's: what is published there goes unheard, and waiters find it by timers.
		ps = ring.Subscribe(ctx, channel)
	} else {
		ps = w.Client.Subscribe(ctx) // no I/O yet
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
