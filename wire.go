package redlock

import (
	"context"
	"errors"
	"math/bits"
	"net"
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
	watch(saw func(sighting) *markWrite, lacks func(lacks string, err error))
	close()
}

// newRedisWire is the wire over a user's client.
func newRedisWire(c redis.UniversalClient, clk clock) *redisWire {
	if single, ok := c.(*redis.Client); ok {
		return &redisWire{newConversations(clk, newUserDialer(single, ""), userHabits), c}
	}
	return &redisWire{&manyServers{c}, c}
}

// newOwnWire is the wire of Open; side is for what does not go by conversations.
func newOwnWire(o *redis.Options, side *redis.Client, clk clock) *redisWire {
	return &redisWire{newConversations(clk, &ownDialer{options: o}, ownHabits(o)), side}
}

// manyServers is the talk over a client for which one name stands for several servers, or
// nobody knows for how many. Who answers is not known there, so there is nothing to guard
// and nobody to kill, and how long to wait is the client's own affair.
type manyServers struct{ client redis.UniversalClient }

func (m *manyServers) exchange(batch []*call, _, _ time.Duration) (settled bool) {
	ctx := context.Background()
	cmds := make([]redis.Cmder, len(batch))
	for i, c := range batch {
		o := new(once)
		o.reset(ctx, c.req.script == nil, c.req.args)
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

func (m *manyServers) watch(saw func(sighting) *markWrite, _ func(string, error)) {
	if saw != nil {
		saw(sighting{err: errNoSinglePool})
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

// once is a command that go-redis must not send a second time by itself: a SET NX that
// is sent again after a lost reply finds its own key and reports it as another's
// (go-redis#2985). It also knows whether its bytes may have left.
type once struct {
	redis.Cmder // script or status
	script      *redis.Cmd
	status      *redis.StatusCmd
	args        []any
	written     bool
}

// reuse makes the command anew, in its own memory. The inner command is given the first
// word only, and no context of a caller: it lives as long as the conversation, and a lock
// does not.
func (o *once) reuse(req *request) {
	name := scriptName
	if req.script == nil {
		name = setName
	}
	o.prepare(context.Background(), req.script == nil, name, req.args)
}

var setName, scriptName = []any{"SET"}, []any{"EVALSHA"}

// forget lets go of what belongs to a lock, which ends before the command does.
func (o *once) forget() { o.args = nil }

// reset makes the command of arguments that others may keep.
func (o *once) reset(ctx context.Context, plain bool, args []any) {
	o.prepare(ctx, plain, args, args)
}

// prepare makes the inner command of inner. Plain SETs are read as a status, which costs
// less than a reply of any kind.
func (o *once) prepare(ctx context.Context, plain bool, inner, args []any) {
	o.args, o.written = args, false
	switch {
	case plain && o.status == nil:
		o.status = redis.NewStatusCmd(ctx, inner...)
	case plain:
		o.status.SetVal("")
		o.status.SetErr(nil)
	case o.script == nil:
		o.script = redis.NewCmd(ctx, inner...)
	default:
		o.script.SetVal(nil)
		o.script.SetErr(nil)
	}
	if o.Cmder = o.script; plain {
		o.Cmder = o.status
	}
}

// NoRetry makes go-redis send the command, and the pipeline it is in, at most once,
// whatever the client's MaxRetries.
func (o *once) NoRetry() bool { return true }

// Args is what go-redis asks for when it writes the command to a connection, after
// dialing and greeting. A user's hook may ask earlier, which errs on the safe side.
func (o *once) Args() []any {
	o.written = true
	return o.args
}

// Clone keeps the wrapper where go-redis copies commands (clusters, rings).
func (o *once) Clone() redis.Cmder {
	c := &once{Cmder: o.Cmder.Clone(), args: o.args}
	c.script, _ = c.Cmder.(*redis.Cmd)
	c.status, _ = c.Cmder.(*redis.StatusCmd)
	return c
}

// reply fills in what came of the command; failure is that of the whole pipeline.
func (o *once) reply(b *ballot, failure error) {
	*b = ballot{sent: true}
	if err := o.Err(); errors.Is(err, redis.Nil) || err != nil && isServerError(err) {
		if b.err = err; errors.Is(err, redis.Nil) {
			b.err = nil
		}
		return
	}
	// A pipeline that breaks marks all its commands, also those that were answered
	// before; their answers count.
	if b.val = o.val(); b.val != nil {
		return
	}
	// A server that rejects the greeting of a new connection fails the pipeline with
	// its answer and leaves the commands untouched.
	if b.err = o.Err(); b.err == nil {
		b.err = failure
	}
	if b.err == nil {
		b.err = errors.New("go-redis returned neither a reply nor an error")
	}
	b.sent = o.written && !neverSent(b.err)
}

// val is the answer, nil if there is none.
func (o *once) val() any {
	if o.Cmder == redis.Cmder(o.script) {
		return o.script.Val()
	}
	switch v := o.status.Val(); v {
	case "":
		return nil
	case "OK":
		return okReply
	default:
		return v
	}
}

var okReply any = "OK" // boxed once

// neverSent recognizes errors that come before a connection is there to write to.
func neverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed)
}
