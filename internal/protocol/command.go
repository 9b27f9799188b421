package protocol

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
func (a *arguments) sharedClaim(r *Request) {
	q, s := r.Queue, r.share
	if q != nil && q.Key != "" {
		a.keys(&r.Key, &s.Holders, &s.Door, &q.Key)
	} else {
		a.keys(&r.Key, &s.Holders, &s.Door)
	}
	a.str(&r.Value)
	a.num(&r.Px)
	a.num(&s.Limit)
	if q != nil {
		a.str(&q.Entry)
	}
}

// write appends the request as a command. It is the only place that knows where a
// script expects what.
func (a *arguments) write(r *Request) {
	if r.Native != NoNative {
		a.compareAndDelete(r, r.Native)
		return
	}
	if r.Script == nil {
		a.list = append(a.list, "SET")
		a.str(&r.Key)
		a.str(&r.Value)
		a.list = append(a.list, "NX")
		a.list = append(a.list, "PX")
		a.num(&r.Px)
		return
	}
	if r.Whole {
		a.list = append(a.list, "EVAL")
		a.str(&r.Script.Source)
	} else {
		a.list = append(a.list, "EVALSHA")
		a.str(&r.Script.digest)
	}
	q, f, s := r.Queue, r.fence, r.share
	switch r.Script {
	case ReleaseScript:
		a.keys(&r.Key)
		a.str(&r.Value)
	case KeepScript:
		a.keys(&r.Key)
		a.add(r.Value, r.Keep.Value, r.Px)
	case QueueReleaseScript:
		a.keys(&r.Key)
		a.str(&r.Value)
		if q != nil {
			a.str(&q.Key)
			a.str(&q.Entry)
			a.str(q.As.digit())
			a.unusual(q.Holders)
		}
	case ExtendScript, DoorScript:
		a.keys(&r.Key)
		a.str(&r.Value)
		a.num(&r.Px)
	case InspectScript:
		a.keys(&r.Key)
		a.add(q.Key, q.most)
		a.unusual(s.Holders)
	case ForceScript:
		a.keys(&r.Key)
		a.add(r.Value, q.Key)
		a.unusual(s.Holders)
	case SharedClaimScript:
		a.sharedClaim(r)
	case SharedExtendScript:
		a.keys(&r.Key, &s.Holders)
		a.str(&r.Value)
		a.num(&r.Px)
		a.num(&s.Number)
		if q != nil {
			a.str(&q.Key)
		}
	case SharedReleaseScript:
		a.keys(&r.Key, &s.Holders)
		a.str(&r.Value)
		a.str(&q.Key)
		a.str(&q.Entry)
		a.str(q.As.digit())
	case JoinScript:
		a.keys(&r.Key, &q.Key)
		a.add(q.Entry, q.Ended, q.Arrival, q.Waited, QueueLife.Milliseconds())
		a.unusual(q.Holders)
	case ClaimScript:
		a.keys(&r.Key, &q.Key)
		a.add(r.Value, r.Px, q.Entry)
	case FenceScript:
		if q == nil {
			a.keys(&r.Key, &f.Key)
		} else {
			a.keys(&r.Key, &f.Key, &q.Key)
		}
		a.add(r.Value, r.Px, f.Token, fenceLife.Milliseconds())
		if q != nil {
			a.add(q.Entry)
		}
	case AdoptScript:
		if f == nil {
			a.keys(&r.Key)
			a.add(r.Value, r.Px, r.from)
		} else {
			a.keys(&r.Key, &f.Key)
			a.add(r.Value, r.Px, r.from, f.Token, fenceLife.Milliseconds())
		}
	case RaiseScript:
		a.keys(&r.Key, &f.Key)
		a.add(r.Value, f.Token, fenceLife.Milliseconds())
	case FenceRepairScript:
		a.keys(&r.Key, &f.Key)
		a.add(r.Value, r.Px, f.Token, fenceLife.Milliseconds())
	case MarkScript:
		a.keys(&r.Key)
		a.add(r.mark...)
	default:
		panic("bug: no arguments for a script")
	}
}

// CompareAndDelete is the release of a server that needs no script for it.
func (a *arguments) compareAndDelete(r *Request, by NativeDelete) {
	if by == DelEx {
		a.list = append(a.list, "DELEX")
		a.str(&r.Key)
		a.list = append(a.list, "IFEQ")
	} else {
		a.list = append(a.list, "DELIFEQ")
		a.str(&r.Key)
	}
	a.str(&r.Value)
}

var releaserDigits = [...]string{AsWaiter: "0", AsHolder: "1", AsPasser: "2"}

// digit is what scripts know a releaser by.
func (as Releaser) digit() *string { return &releaserDigits[as] }

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

// Values is the request as a command whose arguments others may read: hooks, and clients that
// choose a server by the key.
func (r *Request) Values() []any {
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

// Command is a command that go-redis must not send a second time by itself: a SET NX that
// is sent again after a lost reply finds its own key and reports it as another's
// (go-redis#2985). It also knows whether its bytes may have left.
type Command struct {
	redis.Cmder // script or status
	script      *redis.Cmd
	status      *redis.StatusCmd
	args        []any
	written     bool
	native      bool
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
func (o *Command) Clone() redis.Cmder {
	c := &Command{Cmder: o.Cmder.Clone(), args: o.args}
	c.script, _ = c.Cmder.(*redis.Cmd)
	c.status, _ = c.Cmder.(*redis.StatusCmd)
	return c
}

// Reuse makes the command anew, in its own memory. The inner command is given the first
// word only, and no context of a caller: it lives as long as the wire, and a lock does not.
func (o *Command) Reuse(req *Request, native NativeDelete) {
	a := arguments{list: o.args[:0]}
	name := scriptName
	switch o.native = native != NoNative && req.MayBeNative(); {
	case o.native:
		a.compareAndDelete(req, native)
	case req.Script == nil:
		a.write(req)
		name = setName
	default:
		a.write(req)
	}
	o.Prepare(req.Script == nil, name, a.list)
}

var setName, scriptName = []any{"SET"}, []any{"EVALSHA"}

// Prepare makes the inner command of inner. Plain SETs are read as a status, which costs
// less than a reply of any kind.
func (o *Command) Prepare(plain bool, inner, args []any) {
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

// Forget lets go of what belongs to a lock, which ends before the command does.
func (o *Command) Forget() { clear(o.args) }

// Reply fills in what came of the command; failure is that of the whole pipeline.
func (o *Command) Reply(b *Answer, failure error) {
	*b = Answer{Sent: true, Native: o.native}
	if err := o.Err(); errors.Is(err, redis.Nil) || err != nil && IsServerError(err) {
		if b.Err = err; errors.Is(err, redis.Nil) {
			b.Err = nil
		}
		return
	}
	// A pipeline that breaks marks all its commands, also those that were answered
	// before; their answers count.
	if b.Val = o.val(); b.Val != nil {
		return
	}
	// A server that rejects the greeting of a new connection fails the pipeline with
	// its answer and leaves the commands untouched.
	if b.Err = o.Err(); b.Err == nil {
		b.Err = failure
	}
	if b.Err == nil {
		b.Err = errors.New("go-redis returned neither a reply nor an error")
	}
	b.Sent = o.written && !NeverSent(b.Err)
}

// val is the answer, nil if there is none.
func (o *Command) val() any {
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

// NeverSent recognizes errors that come before a connection is there to write to.
func NeverSent(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" ||
		errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || errors.Is(err, redis.ErrClosed)
}
