package redlock

import (
	"context"
	"errors"
	"math/bits"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// wire puts requests on the wire; it is the part of a lane that a simulation replaces.
//
// exchange sends the requests of the batch in order over one connection, each of them
// once and never again, and fills in the ballot of each: val, err and sent. It returns
// when all replies were read or the connection broke, and waits for a reply no longer
// than bound. It must not look at anything but req of a call, nor keep the slice. On a
// long link several exchanges run at the same time.
type wire interface {
	exchange(batch []*call, bound time.Duration)
}

// watcher is a wire that tells of each new connection, before the answers that come over
// it are read. A node whose wire never tells is not guarded.
type watcher interface {
	watch(c clock, saw func(sighting))
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

// redisWire is the wire over a go-redis client of any kind.
type redisWire struct {
	client redis.UniversalClient
	// ours: nobody else can have put hooks on the client that hold on to commands, so
	// they may be used again.
	ours bool
	pins *pins // nil: the client is ours, or the guard is off or not to be had

	mu      sync.Mutex
	bounded map[time.Duration]redis.UniversalClient // by read timeout
	spare   [][]redis.Cmder                         // commands of ours to be used again, *once
}

func newRedisWire(c redis.UniversalClient, ours bool) *redisWire {
	return &redisWire{client: c, ours: ours}
}

func (w *redisWire) exchange(batch []*call, bound time.Duration) {
	// A context could not end this early: go-redis does not look at it while it
	// reads, unless told so by an option that is not ours to set. See withReadTimeout.
	ctx := context.Background()
	client, cmds := w.withReadTimeout(bound), w.commands(batch)
	var failure error
	switch single, ok := client.(*redis.Client); {
	case len(batch) == 1 && w.ours:
		failure = client.Process(ctx, cmds[0])
	case ok && w.pins != nil:
		failure = w.pins.exchange(ctx, single, coarsely(bound), cmds)
	default:
		// Also for a single command on a user's client: go-redis keeps connections
		// for pipelines apart, so that we do not wait for one that the user's own
		// blocking commands have taken.
		pipe := client.Pipeline()
		_ = pipe.BatchProcess(ctx, cmds...) // only queues them
		_, failure = pipe.Exec(ctx)
	}
	for i, c := range batch {
		cmds[i].(*once).reply(&c.ballot, failure)
	}
	if w.ours {
		for _, c := range cmds {
			c.(*once).forget()
		}
		w.mu.Lock()
		w.spare = append(w.spare, cmds)
		w.mu.Unlock()
	}
}

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

// commands makes the batch's commands, in memory that was used before if it is ours.
func (w *redisWire) commands(batch []*call) (cmds []redis.Cmder) {
	if !w.ours {
		return plainCommands(batch)
	}
	w.mu.Lock()
	if last := len(w.spare) - 1; last >= 0 {
		cmds, w.spare = w.spare[last], w.spare[:last]
	}
	w.mu.Unlock()
	cmds = cmds[:cap(cmds)]
	for i, c := range batch {
		if i == len(cmds) {
			cmds = append(cmds, nil)
		}
		if cmds[i] == nil {
			cmds[i] = &once{}
		}
		cmds[i].(*once).reuse(c.req)
	}
	return cmds[:len(batch)]
}

// withReadTimeout is the same client, with the same pool and hooks, that waits for an
// answer no longer than d (rounded up by an eighth or less, so that there are only a few
// such clients).
// Where go-redis cannot do that, it is the client itself with its own ReadTimeout.
func (w *redisWire) withReadTimeout(d time.Duration) redis.UniversalClient {
	single, ok := w.client.(*redis.Client)
	if !ok {
		return w.client
	}
	d = coarsely(d)
	w.mu.Lock()
	defer w.mu.Unlock()
	c := w.bounded[d]
	if c == nil {
		if w.bounded == nil {
			w.bounded = make(map[time.Duration]redis.UniversalClient)
		}
		c = single.WithTimeout(d)
		w.bounded[d] = c
	}
	return c
}

func coarsely(d time.Duration) time.Duration {
	if coarse := time.Duration(1) << max(bits.Len64(uint64(d))-4, 0); d < longestRead {
		d = min((d+coarse-1)/coarse*coarse, longestRead)
	}
	return d
}

// close gives connections of a user's pool back.
func (w *redisWire) close() {
	if w.pins != nil {
		w.pins.close()
	}
}
