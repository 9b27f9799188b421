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

// redisWire is the wire over a go-redis client of any kind.
type redisWire struct {
	client redis.UniversalClient

	mu      sync.Mutex
	bounded map[time.Duration]redis.UniversalClient // by read timeout
}

func (w *redisWire) exchange(batch []*call, bound time.Duration) {
	// A context could not end this early: go-redis does not look at it while it
	// reads, unless told so by an option that is not ours to set. See withReadTimeout.
	ctx := context.Background()
	pipe := w.withReadTimeout(bound).Pipeline()
	cmds := make([]*once, len(batch))
	for i, c := range batch {
		cmds[i] = &once{Cmd: redis.NewCmd(ctx, c.req.args...)}
		_ = pipe.Process(ctx, cmds[i]) // only queues it
	}
	_, failure := pipe.Exec(ctx)
	for i, c := range batch {
		c.reply = cmds[i].reply(failure)
	}
}

// withReadTimeout is the same client, with the same pool and hooks, that waits for an
// answer no longer than d (rounded up, so that there are only a few such clients).
// Where go-redis cannot do that, it is the client itself with its own ReadTimeout.
func (w *redisWire) withReadTimeout(d time.Duration) redis.UniversalClient {
	single, ok := w.client.(*redis.Client)
	if !ok {
		return w.client
	}
	d = 1 << bits.Len64(uint64(d-1))
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

// once is a command that go-redis must not send a second time by itself: a SET NX that
// is sent again after a lost reply finds its own key and reports it as another's
// (go-redis#2985). It also knows whether its bytes may have left.
type once struct {
	*redis.Cmd
	written bool
}

// NoRetry makes go-redis send the command, and the pipeline it is in, at most once,
// whatever the client's MaxRetries.
func (o *once) NoRetry() bool { return true }

// Args is what go-redis asks for when it writes the command to a connection, after
// dialing and greeting. A user's hook may ask earlier, which errs on the safe side.
func (o *once) Args() []any {
	o.written = true
	return o.Cmd.Args()
}

// Clone keeps the wrapper where go-redis copies commands (clusters, rings).
func (o *once) Clone() redis.Cmder {
	return &once{Cmd: o.Cmd.Clone().(*redis.Cmd)}
}

// reply reads what came of the command; failure is that of the whole pipeline.
func (o *once) reply(failure error) reply {
	val, err := o.Cmd.Result()
	switch {
	case errors.Is(err, redis.Nil):
		return reply{sent: true}
	case err == nil && val != nil:
		return reply{val: val, sent: true}
	case err == nil:
		// A server that rejects the greeting of a new connection fails the pipeline
		// with its answer and leaves the commands untouched.
		if err = failure; err == nil {
			err = errors.New("go-redis returned neither a reply nor an error")
		}
	}
	return reply{err: err, sent: o.written && !neverSent(err)}
}

// neverSent recognizes errors that come before a connection is there to write to.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed)
}
