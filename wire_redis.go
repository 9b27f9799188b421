package redlock

import (
	"context"
	"errors"
	"net"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisWire is the way to a node over go-redis.
type redisWire struct {
	talk
	client redis.UniversalClient // for subscriptions
}

// talk is the part of a wire that batches go over.
type talk interface {
	wire
	watcher
	close()
}

// newRedisWire is the wire over a user's client. mark is the key of the memory mark, empty
// if there is none.
func newRedisWire(c redis.UniversalClient, mark string, clk clock) *redisWire {
	if single, ok := c.(*redis.Client); ok {
		return &redisWire{newConversations(clk, newUserDialer(single, mark), userHabits), c}
	}
	return &redisWire{&manyServers{c}, c}
}

// newOwnWire is the wire of Open; side is for what does not go by conversations.
func newOwnWire(o *redis.Options, side *redis.Client, mark string, clk clock) *redisWire {
	return &redisWire{newConversations(clk, &ownDialer{options: o, markKey: mark}, ownHabits(o)), side}
}

// manyServers is the talk over a client for which one name stands for several servers, or
// nobody knows for how many. Who answers is not known there, so there is nothing to guard
// and nobody to kill, and how long to wait is the client's own affair.
type manyServers struct{ client redis.UniversalClient }

func (m *manyServers) exchange(batch []*call, _, _ time.Duration) (settled bool) {
	ctx := context.Background()
	cmds := make([]redis.Cmder, len(batch))
	for i, c := range batch {
		// Hooks see these commands, and may send them again, which each of them counts.
		o := new(once)
		o.reset(ctx, c.req.script == nil, slices.Clone(c.req.plainArguments()))
		cmds[i] = o
	}
	pipe := m.client.Pipeline()
	_ = pipe.BatchProcess(ctx, cmds...) // only queues them
	_, failure := pipe.Exec(ctx)
	for i, c := range batch {
		cmds[i].(*once).reply(&c.ballot, failure)
	}
	answered, sent := read(batch)
	return answered || !sent
}

func (m *manyServers) watch(o onlooker) {
	if o.saw != nil {
		o.saw(sighting{err: errNoSinglePool})
	}
}

func (m *manyServers) close() {}

// listen subscribes to a channel on a connection of its own and returns when that breaks
// or ctx ends. It tells when the server has confirmed, and of each message.
func (w *redisWire) listen(ctx context.Context, channel string, confirmed func(), heard func(message string)) error {
	var ps *redis.PubSub
	if ring, ok := w.client.(*redis.Ring); ok {
		// It must know the channel to choose a server, which may be another than the
		// key's: what is published there goes unheard, and waiters find it by timers.
		ps = ring.Subscribe(ctx, channel)
	} else {
		ps = w.client.Subscribe(ctx) // no I/O yet
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
			confirmed()
		case *redis.Message:
			heard(m.Payload)
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
