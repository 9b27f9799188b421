package protocol

import (
	"context"
	"errors"
	"net"

	"github.com/redis/go-redis/v9"
)

// Words takes the words of a command, one after the other: as a list for go-redis, or as the
// bytes that go over a connection.
type Words interface {
	Str(string)
	Join(a, b, c string) // one word
	Num(int64)
}

// Write writes the request as a command. Native: it went as may, the compare-and-delete of the
// server's own, in place of the script.
func (r *Request) Write(w Words, may NativeDelete) (native bool) {
	by := r.Native
	if may != NoNative && r.MayBeNative() {
		by = may
	}
	switch {
	case by != NoNative:
		r.compareAndDelete(w, by)
		return true
	case r.Script == nil:
		w.Str("SET")
		w.Str(r.Key)
		w.Str(r.Value)
		w.Str("NX")
		w.Str("PX")
		w.Num(r.Px)
	case r.Whole:
		w.Str("EVAL")
		w.Str(r.Script.Source)
		r.arguments(w)
	default:
		w.Str("EVALSHA")
		w.Str(r.Script.digest)
		r.arguments(w)
	}
	return false
}

// compareAndDelete is the release of a server that needs no script for it.
func (r *Request) compareAndDelete(w Words, by NativeDelete) {
	if by == DelEx {
		w.Str("DELEX")
		w.Str(r.Key)
		w.Str("IFEQ")
	} else {
		w.Str("DELIFEQ")
		w.Str(r.Key)
	}
	w.Str(r.Value)
}

var releaserDigits = [...]string{AsWaiter: "0", AsHolder: "1", AsPasser: "2"}

// digit is what scripts know a releaser by.
func (as Releaser) digit() string { return releaserDigits[as] }

// Values is the request as a command of go-redis, whose arguments others may read: hooks, and
// clients that choose a server by the key.
func (r *Request) Values() []any {
	var v values
	r.Write(&v, NoNative)
	return v
}

type values []any

func (v *values) Str(s string) { *v = append(*v, s) }

func (v *values) Join(a, b, c string) { *v = append(*v, a+b+c) }

func (v *values) Num(n int64) { *v = append(*v, n) }

// Command is a command that go-redis must not send a second time by itself: a SET NX that
// is sent again after a lost reply finds its own key and reports it as another's
// (go-redis#2985). It also knows whether its bytes may have left.
type Command struct {
	redis.Cmder
	args    []any
	written bool
}

// NewCommand makes a command of a request. Plain SETs are read as a status, which costs less
// than a reply of any kind.
func NewCommand(r *Request) *Command {
	ctx, args := context.Background(), r.Values()
	if r.Script == nil {
		return &Command{Cmder: redis.NewStatusCmd(ctx, args...), args: args}
	}
	return &Command{Cmder: redis.NewCmd(ctx, args...), args: args}
}

// NoRetry makes go-redis send the command, and the pipeline it is in, at most once,
// whatever the client's MaxRetries.
func (o *Command) NoRetry() bool { return true }

// Args is what go-redis asks for when it writes the command to a connection, after
// dialing and greeting. A user's hook may ask earlier, which errs on the safe side.
func (o *Command) Args() []any {
	o.written = true
	return o.args
}

// Clone keeps the wrapper where go-redis copies commands (clusters, rings).
func (o *Command) Clone() redis.Cmder { return &Command{Cmder: o.Cmder.Clone(), args: o.args} }

// Reply fills in what came of the command; failure is that of the whole pipeline.
func (o *Command) Reply(b *Answer, failure error) {
	*b = Answer{Sent: true}
	if err := o.Err(); errors.Is(err, redis.Nil) || err != nil && IsServerError(err) {
		if !errors.Is(err, redis.Nil) {
			b.Said = CleanError(err)
		}
		return
	}
	// A pipeline that breaks marks all its commands, also those that were answered
	// before; their answers count.
	if b.Said = o.val(); b.Said != nil {
		return
	}
	// A server that rejects the greeting of a new connection fails the pipeline with
	// its answer and leaves the commands untouched.
	err := o.Err()
	if err == nil {
		err = CleanError(failure)
	}
	if err == nil {
		err = errors.New("go-redis returned neither a reply nor an error")
	}
	b.Said, b.Sent = err, o.written && !NeverSent(err)
}

// val is the answer, nil if there is none.
func (o *Command) val() any {
	switch c := o.Cmder.(type) {
	case *redis.Cmd:
		return c.Val()
	case *redis.StatusCmd:
		if v := c.Val(); v != "" {
			return v
		}
	}
	return nil
}

// NeverSent recognizes errors that come before a connection is there to write to.
func NeverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed)
}
