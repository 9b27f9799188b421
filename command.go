package redlock

import (
	"context"
	"errors"
	"net"

	"github.com/redis/go-redis/v9"
)

// arguments are a request's, as go-redis writes them. Most strings and numbers stay where they
// are in the request, and go-redis follows the pointer: that saves an allocation for each.
type arguments struct{ list []any }

func (a *arguments) str(s *string) { a.list = append(a.list, s) }

func (a *arguments) num(n *int64) { a.list = append(a.list, n) }

func (a *arguments) add(vs ...any) { a.list = append(a.list, vs...) }

// sharedClaim appends a claim of a lock that is held together with others.
func (a *arguments) sharedClaim(r *request) {
	q, s := r.queue, r.share
	if q != nil && q.key != "" {
		a.keys(&r.key, &s.holders, &s.door, &q.key)
	} else {
		a.keys(&r.key, &s.holders, &s.door)
	}
	a.str(&r.value)
	a.num(&r.px)
	a.num(&s.limit)
	if q != nil {
		a.str(&q.entry)
	}
}

// write appends the request as a command. It is the only place that knows where a
// script expects what.
func (a *arguments) write(r *request) {
	if r.native != noNative {
		a.compareAndDelete(r, r.native)
		return
	}
	if r.script == nil {
		a.list = append(a.list, "SET")
		a.str(&r.key)
		a.str(&r.value)
		a.list = append(a.list, "NX")
		a.list = append(a.list, "PX")
		a.num(&r.px)
		return
	}
	if r.whole {
		a.list = append(a.list, "EVAL")
		a.str(&r.script.source)
	} else {
		a.list = append(a.list, "EVALSHA")
		a.str(&r.script.digest)
	}
	q, f, s := r.queue, r.fence, r.share
	switch r.script {
	case releaseScript:
		a.keys(&r.key)
		a.str(&r.value)
	case keepScript:
		a.keys(&r.key)
		a.add(r.value, r.keep.value, r.px)
	case queueReleaseScript:
		a.keys(&r.key)
		a.str(&r.value)
		if q != nil {
			a.str(&q.key)
			a.str(&q.entry)
			a.str(q.as.digit())
			a.unusual(q.holders)
		}
	case extendScript, doorScript:
		a.keys(&r.key)
		a.str(&r.value)
		a.num(&r.px)
	case inspectScript:
		a.keys(&r.key)
		a.add(q.key, q.most)
		a.unusual(s.holders)
	case forceScript:
		a.keys(&r.key)
		a.add(r.value, q.key)
		a.unusual(s.holders)
	case sharedClaimScript:
		a.sharedClaim(r)
	case sharedExtendScript:
		a.keys(&r.key, &s.holders)
		a.str(&r.value)
		a.num(&r.px)
		a.num(&s.number)
		if q != nil {
			a.str(&q.key)
		}
	case sharedReleaseScript:
		a.keys(&r.key, &s.holders)
		a.str(&r.value)
		a.str(&q.key)
		a.str(&q.entry)
		a.str(q.as.digit())
	case joinScript:
		a.keys(&r.key, &q.key)
		a.add(q.entry, q.ended, q.arrival, q.waited, queueLife.Milliseconds())
		a.unusual(q.holders)
	case claimScript:
		a.keys(&r.key, &q.key)
		a.add(r.value, r.px, q.entry)
	case fenceScript:
		if q == nil {
			a.keys(&r.key, &f.key)
		} else {
			a.keys(&r.key, &f.key, &q.key)
		}
		a.add(r.value, r.px, f.token, fenceLife.Milliseconds())
		if q != nil {
			a.add(q.entry)
		}
	case adoptScript:
		if f == nil {
			a.keys(&r.key)
			a.add(r.value, r.px, r.from)
		} else {
			a.keys(&r.key, &f.key)
			a.add(r.value, r.px, r.from, f.token, fenceLife.Milliseconds())
		}
	case raiseScript:
		a.keys(&r.key, &f.key)
		a.add(r.value, f.token, fenceLife.Milliseconds())
	case fenceRepairScript:
		a.keys(&r.key, &f.key)
		a.add(r.value, r.px, f.token, fenceLife.Milliseconds())
	case markScript:
		a.keys(&r.key)
		a.add(r.mark...)
	default:
		panic("bug: no arguments for a script")
	}
}

// compareAndDelete is the release of a server that needs no script for it.
func (a *arguments) compareAndDelete(r *request, by nativeDelete) {
	if by == delEx {
		a.list = append(a.list, "DELEX")
		a.str(&r.key)
		a.list = append(a.list, "IFEQ")
	} else {
		a.list = append(a.list, "DELIFEQ")
		a.str(&r.key)
	}
	a.str(&r.value)
}

var releaserDigits = [...]string{asWaiter: "0", asHolder: "1", asPasser: "2"}

// digit is what scripts know a releaser by.
func (as releaser) digit() *string { return &releaserDigits[as] }

func (a *arguments) keys(names ...*string) {
	a.list = append(a.list, len(names))
	for _, n := range names {
		a.str(n)
	}
}

// unusual adds a name that a script does not know by itself.
func (a *arguments) unusual(name string) {
	if name != "" {
		a.add(name)
	}
}

// values is the request as a command whose arguments others may read: hooks, and clients that
// choose a server by the key.
func (r *request) values() []any {
	var a arguments
	a.write(r)
	for i, v := range a.list {
		switch v := v.(type) {
		case *string:
			a.list[i] = *v
		case *int64:
			a.list[i] = *v
		}
	}
	return a.list
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
	native      bool
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

// reuse makes the command anew, in its own memory. The inner command is given the first
// word only, and no context of a caller: it lives as long as the wire, and a lock does not.
func (o *once) reuse(req *request, native nativeDelete) {
	a := arguments{list: o.args[:0]}
	name := scriptName
	switch o.native = native != noNative && req.mayBeNative(); {
	case o.native:
		a.compareAndDelete(req, native)
	case req.script == nil:
		a.write(req)
		name = setName
	default:
		a.write(req)
	}
	o.prepare(req.script == nil, name, a.list)
}

var setName, scriptName = []any{"SET"}, []any{"EVALSHA"}

// prepare makes the inner command of inner. Plain SETs are read as a status, which costs
// less than a reply of any kind.
func (o *once) prepare(plain bool, inner, args []any) {
	ctx := context.Background()
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

// forget lets go of what belongs to a lock, which ends before the command does.
func (o *once) forget() { clear(o.args) }

// reply fills in what came of the command; failure is that of the whole pipeline.
func (o *once) reply(b *ballot, failure error) {
	*b = ballot{sent: true, native: o.native}
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
