package redlock

import (
	"context"
	"errors"
	"math/bits"
	"net"
	"time"

	"github.com/redis/go-redis/v9"
)

// wire puts requests on the wire; it is the part of a lane that a simulation replaces.
//
// exchange sends the requests of the batch in order over one connection, each of them
// once and never again, and fills in the ballot of each: val, err and sent. It returns
// when all replies were read or the connection broke, and waits for a reply no longer
// than bound. After patience nobody waits for the replies any more, and it may look
// whether the node still answers others. Settled: nothing of the batch may take effect any
// more that did not. It must not look at anything but req of a call, nor keep the slice.
// On a long link several exchanges run at the same time.
type wire interface {
	exchange(batch []*call, patience, bound time.Duration) (settled bool)
}

// watcher is a wire that tells who answers, before their answers are read. A node whose
// wire never tells is not guarded.
type watcher interface {
	// watch is called before the wire is used.
	watch(onlooker)
}

// onlooker is told by a wire who answers.
type onlooker struct {
	// saw is told before any vote that came over the same connection is delivered. It
	// returns what is to be written over that connection, see guard. Nil: nobody wants to
	// know who answers.
	saw func(sighting) *markWrite
	// ready is false where the whole question has to be asked ahead of the next SET. It is
	// nil if saw is.
	ready func() bool
	// lacks is told what the node denies; never nil.
	lacks func(what string, err error)
}

// listener is a wire that can tell of messages on a channel.
type listener interface {
	// listen returns when the subscription breaks or ctx ends. It tells when the server
	// confirmed it, and of each message.
	listen(ctx context.Context, channel string, confirmed func(), heard func(message string)) error
}

const (
	// mostOut is how many exchanges run at a time on a long link.
	mostOut = 4
	// longestRead bounds how long a batch that is not answered keeps its connection.
	longestRead = 30 * time.Second
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
	cmds := plainCommands(batch)
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

func coarsely(d time.Duration) time.Duration {
	if coarse := time.Duration(1) << max(bits.Len64(uint64(d))-4, 0); d < longestRead {
		d = min((d+coarse-1)/coarse*coarse, longestRead)
	}
	return d
}
