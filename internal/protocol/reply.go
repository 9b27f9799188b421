package protocol

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// What operations fail with, in all packages that ask nodes.
var (
	ErrNoQuorum = errors.New("no quorum")
	ErrNotHeld  = errors.New("not held")
	ErrInvalid  = errors.New("invalid")
)

var (
	ErrClosed  = errors.New("closed")
	ErrTimeout = errors.New("no answer in time")
)

// What releases answer besides that they were done.
const (
	PublishDenied = 2 // a client waits, and could not be notified
	OthersWait    = 3 // a client waits in a queue of that node
	OthersTurn    = 4 // nothing was released: the node is reserved for a client that waits there
)

// Unheard is added to what a claim is answered if it let others in whom the node could not tell.
// It is above the number of any permit.
const Unheard = 2048

// mostNumber is the greatest fencing token, see scripts/fence_counter.lua.
const mostNumber = 1 << 52

// Kind is what a node's answer amounts to. How it counts is the round's to say.
type Kind uint8

const (
	// Granted: the node did what was asked.
	Granted Kind = iota + 1
	// Refused: the node answered that the key is not ours.
	Refused
	// Unknown: the request was or may have been sent, and no answer came.
	Unknown
	// Failed: the server answered with an error.
	Failed
	// NotSent: no byte of the request left, and none will.
	NotSent
)

// Answer is what is known of one node's answer to one request. The wire fills in Said
// and Sent; Read makes a kind of answer of them.
type Answer struct {
	// Said is the server's answer, nil for a null answer; or an error: a server's own (redis.Error),
	// or why there is no answer.
	Said any
	// Sent is false when surely no byte of the request left. It says nothing where
	// the server answered.
	Sent bool
	// Native: the server compared and deleted by a command of its own.
	Native bool
	// Alone: the server was asked for several at once, and did nothing of this one.
	Alone bool
	// Unsure: beside the answer the server did not tell all that a vote rests on, so a grant is none.
	Unsure bool

	Kind Kind // zero: nothing new
	// Final: an answer of the node, or certainty that there will be none. Otherwise
	// the kind may still change.
	Final bool
}

// Unsent is the answer of a request that did not leave and will not.
func Unsent(why error) Answer { return Answer{Kind: NotSent, Said: why, Final: true} }

// Err is why it is no good answer; nil if it is one.
func (b Answer) Err() error {
	switch said := b.Said.(type) {
	case nil, string, int64: // told apart without a table of methods
	case error:
		return said
	}
	return nil
}

// Said is what Answer.Said is of a value or an error.
func Said(val any, err error) any {
	if err != nil {
		return err
	}
	return val
}

// Answered reports whether the server itself spoke.
func (b Answer) Answered() bool { return b.Err() == nil || IsServerError(b.Err()) }

// IsServerError reports whether a server answered with this error, so that its request was read.
func IsServerError(err error) bool {
	var e redis.Error
	return errors.As(err, &e)
}

// WantsSource reports whether the server wants the script's text.
func (b Answer) WantsSource() bool { return WantsSource(b.Err()) }

// UnknownScript reports whether a server does not know a script that was named by its digest.
func UnknownScript(err error) bool {
	return err != nil && IsServerError(err) && strings.HasPrefix(err.Error(), "NOSCRIPT")
}

// WantsSource reports whether a script is to be sent as its text: the server does not know it, or does
// not run scripts by their digests for us.
func WantsSource(err error) bool {
	return UnknownScript(err) || neverRuns(err) && strings.Contains(strings.ToLower(err.Error()), "evalsha") && !FailedTrial(err)
}

// neverRuns reports whether a server does not run a command for us, ever. Not to be allowed a key is no such answer.
func neverRuns(err error) bool {
	return err != nil && IsServerError(err) && hasAny(err.Error(),
		"permissions to run the", "can't run this command", "nknown command", "nknown Redis command")
}

// Read tells the kind of what came of a request.
func (b Answer) Read(o Op) Answer {
	b.Final = true
	switch err := b.Err(); {
	case err != nil && IsServerError(err):
		b.Kind = Failed
		if o.is(compares) && strings.Contains(err.Error(), "WRONGTYPE") && (o == OpRelease || !namesAnotherKey(err)) {
			// A string is all that we ever put there. A release has nothing to do, too, where the list
			// of holders is another's.
			b.Kind = Refused
		}
		return b
	case err != nil && !b.Sent:
		b.Kind = NotSent
		return b
	case err != nil:
		b.Kind = Unknown
		return b
	}
	if v, ok := b.Said.(string); ok && len(v) > LongestValue && o.is(finds) {
		b.Kind, b.Said = Refused, errNoLock // as where the server says that it is no string
		return b
	}
	if b.Kind = readKind(o, b.Said); b.Kind == 0 {
		// Something that is no Redis answered. Whether it did anything is anyone's guess.
		b.Kind, b.Said = Unknown, fmt.Errorf("unexpected reply %.100q to %v", fmt.Sprint(b.Said), o)
	}
	return b
}

// errNoLock is an answer, too: a script found a text that is longer than any of ours.
var errNoLock error = ownText("WRONGTYPE the key holds a " + TooLong + ", which is no lock")

// TooLong is what a lock's key holds where that is longer than LongestValue.
var TooLong = fmt.Sprintf("string of more than %d bytes", LongestValue)

// ownText is an error of a server in words of ours.
type ownText string

func (e ownText) Error() string { return string(e) }
func (e ownText) RedisError()   {}

// namesAnotherKey reports whether a script found something of others under a key that goes with a lock,
// such as its fencing counter: of the lock's own key that says nothing. The scripts append such a key's
// name to Redis' text.
func namesAnotherKey(err error) bool {
	return hasAny(err.Error(), "wrong kind of value: ", "WRONGTYPE a value of others: ", "WRONGTYPE a sorted set of others: ")
}

// readKind is what an answer which is no error amounts to, 0 if it is none that
// Redis gives to such a request.
func readKind(o Op, val any) Kind {
	switch v := val.(type) {
	case nil:
		if o.Sets() && !o.is(finds) {
			return Refused
		}
	case string:
		switch {
		case o.is(okay) && v == "OK":
			return Granted
		case o.is(finds):
			return Refused // it names the holder
		}
	case int64:
		return readNumber(o, v)
	case []any:
		if o.is(tells) {
			return Granted
		}
	}
	return 0
}

func readNumber(o Op, n int64) Kind {
	switch {
	case o.is(numbers) && n > 0 && n <= mostNumber: // more would be raised on the others, for which it ends their counters
		return Granted
	case !o.is(finds):
		return 0
	case n == 1, (n == PublishDenied || n == OthersWait) && o == OpRelease:
		return Granted
	case n == 0, n == OthersTurn && o == OpRelease:
		return Refused
	default:
		return 0
	}
}

// Holder is the value that a script found instead of ours, or empty.
func (b Answer) Holder() string {
	v, _ := b.Said.(string)
	if b.Kind != Refused {
		return ""
	}
	return v
}

// Number is that of the permit that a node gave, from 1; 0 if it gave none.
func (b Answer) Number() int64 {
	if n, ok := b.Said.(int64); ok && b.Kind == Granted {
		return (n - 1) % Unheard
	}
	return 0
}

// LeftUntold reports whether a claim let others in whom the node could not tell.
func (b Answer) LeftUntold() bool {
	n, ok := b.Said.(int64)
	return ok && b.Kind == Granted && n > Unheard
}

// Fence is the token that a node granted, or 0.
func (b Answer) Fence() uint64 {
	if f, ok := b.Said.(int64); ok && b.Kind == Granted {
		return uint64(f)
	}
	return 0
}

// Denied reports whether a server does not do a command for us, ever.
func Denied(err error) bool {
	return err != nil && IsServerError(err) && hasAny(err.Error(), "NOPERM", "can't run this command", "unknown command")
}

// ReadOnly reports whether a server says that it is a replica. Before Redis 7 that stands
// inside of a longer text if a script was refused.
func ReadOnly(err error) bool { return redis.IsReadOnlyError(err) }

// NeverBundled reports whether a server does not release several locks in one command for us, ever.
// Not to be allowed a key is no such answer: that is of this bundle.
func NeverBundled(err error) bool {
	return neverRuns(err) || err != nil && IsServerError(err) && strings.Contains(err.Error(), "CROSSSLOT")
}

// Hangup is the end of a connection by the other side while it was asked about itself.
type Hangup struct {
	At    string // the first question that it did not answer
	Heard bool   // it had answered others
	Err   error
}

// Error names the question.
func (h *Hangup) Error() string {
	if !h.Heard {
		return "hung up before it answered: " + h.Err.Error()
	}
	return "hung up at " + h.At + ": " + h.Err.Error()
}

// Unwrap is how the connection ended.
func (h *Hangup) Unwrap() error { return h.Err }

// OnlyCode is an error of a server without what it chose to say: in an answer to AUTH that may be the password.
func OnlyCode(err error) error {
	if !IsServerError(err) {
		return err
	}
	text := err.Error()
	for _, usual := range usualRefusals {
		if strings.HasPrefix(text, usual) {
			return ownText(usual)
		}
	}
	code, _, _ := strings.Cut(text, " ")
	if len(code) > 20 || strings.Trim(code, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
		code = "ERR"
	}
	return ownText(code)
}

// usualRefusals are how the answers to AUTH begin.
var usualRefusals = []string{
	"WRONGPASS invalid username-password pair or user is disabled.",
	"ERR invalid password",
	"ERR AUTH <password> called without any password configured for the default user.",
	"ERR Client sent AUTH, but no password is set",
	"ERR max number of clients reached",
	"ERR unknown command",
	"LOADING Redis is loading the dataset in memory",
	"NOAUTH Authentication required.",
}

// EachOf is what the answer to a release of n locks says of each of them, but for the others, whose
// places it lists from 1 on: of these nothing was done.
func (b Answer) EachOf(n int) (each Answer, others []any) {
	each = Answer{Said: b.Err(), Sent: b.Sent}
	if err := b.Err(); err != nil {
		// What the server cannot do at present it says of each of them. After any other error each
		// is asked for by itself, since nothing was done of any.
		each.Alone = IsServerError(err) && !Passing(err)
		return each, nil
	}
	others, ok := b.Said.([]any)
	isNone := func(v any) bool { place, ok := v.(int64); return !ok || place < 1 || place > int64(n) }
	if !ok || slices.ContainsFunc(others, isNone) {
		each.Said = fmt.Errorf("unexpected reply %.100q to a release of several", fmt.Sprint(b.Said))
		return each, nil
	}
	each.Said = released
	return each, others
}

var released any = int64(1) // boxed once

// OtherType reports whether a command or a script did nothing since a key holds something else.
func OtherType(err error) bool {
	return err != nil && IsServerError(err) && hasAny(err.Error(), "WRONGTYPE", "Key should be of string type")
}

// HalfWay reports whether a script that failed with this error may have done a part of its
// work, which Redis does not roll back. The other errors come before a script's first write.
// Those of the server's state are not told apart by their beginning, since some versions
// put them into a longer text.
func HalfWay(err error) bool {
	return err != nil && !hasAny(err.Error(),
		"NOSCRIPT", "NOAUTH", "WRONGPASS", "DENIED", // not run
		"BUSY", "LOADING", "MASTERDOWN", "READONLY", "MISCONF", "OOM", "NOREPLICAS", // the state of the server
		"MOVED", "ASK ", "CROSSSLOT", "CLUSTERDOWN", "TRYAGAIN", // another node's
		"BADFENCE", // our own, see scripts/fence_counter.lua
	)
}

func hasAny(text string, marks ...string) bool {
	return slices.ContainsFunc(marks, func(m string) bool { return strings.Contains(text, m) })
}

// WithHint adds what to do to errors that people meet when they set up nodes.
func WithHint(err error) error {
	if errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("%w: its owner closed it while it was in use here", err)
	}
	if err == nil || !IsServerError(err) {
		return withTLSHint(err)
	}
	switch text := err.Error(); {
	case strings.HasPrefix(text, "MOVED"), strings.HasPrefix(text, "ASK "), strings.HasPrefix(text, "CLUSTERDOWN"):
		return fmt.Errorf("%w; this is a node of a Redis Cluster, and a quorum needs independent masters", err)
	case ReadOnly(err):
		return fmt.Errorf("%w; this is a replica, and a quorum needs independent masters", err)
	case strings.Contains(text, "section ("):
		return fmt.Errorf("%w; this is no Redis; if it is miniredis, package redlocktest makes nodes for tests", err)
	default:
		return err
	}
}

// withTLSHint is for servers that do not speak TLS, or are not trusted.
func withTLSHint(err error) error {
	switch {
	case errors.As(err, new(tls.RecordHeaderError)):
		return fmt.Errorf("%w; if it does not speak TLS, the URL begins with redis://, not rediss://", err)
	case errors.As(err, new(x509.UnknownAuthorityError)):
		return fmt.Errorf("%w; name the authority in Options.TLS or SSL_CERT_FILE", err)
	case RemoteAlert(err) && strings.Contains(err.Error(), "certificate required"):
		return fmt.Errorf("%w; give it a certificate in Options.TLS", err)
	default:
		return err
	}
}

// RemoteAlert reports whether the other end refused TLS with us.
func RemoteAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}
