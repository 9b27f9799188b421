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
	client, cmds := w.withReadTimeout(bound), w.commands(ctx, batch)
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
			c.(*once).args = nil // they belong to a lock, which ends before we do
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

// commands makes the batch's commands.
func (w *redisWire) commands(ctx context.Context, batch []*call) (cmds []redis.Cmder) {
	if w.ours {
		w.mu.Lock()
		if last := len(w.spare) - 1; last >= 0 {
			cmds, w.spare = w.spare[last], w.spare[:last]
		}
		w.mu.Unlock()
		cmds = cmds[:cap(cmds)]
	}
	for i, c := range batch {
		if i == len(cmds) {
			cmds = append(cmds, nil)
		}
		if cmds[i] == nil {
			cmds[i] = &once{}
		}
		cmds[i].(*once).reset(ctx, c.req)
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

// reset makes the command anew. Plain SETs are read as a status, which costs less
// than a reply of any kind.
func (o *once) reset(ctx context.Context, req *request) {
	o.args, o.written = req.args, false
	switch {
	case req.script == nil && o.status == nil:
		o.status = redis.NewStatusCmd(ctx, req.args...)
	case req.script == nil:
		o.status.SetVal("")
		o.status.SetErr(nil)
	case o.script == nil:
		o.script = redis.NewCmd(ctx, req.args...)
	default:
		o.script.SetVal(nil)
		o.script.SetErr(nil)
	}
	if o.Cmder = o.script; req.script == nil {
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
