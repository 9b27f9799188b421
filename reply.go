package redlock

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

var (
	errClosed  = errors.New("closed")
	errTimeout = errors.New("no answer in time")
)

// What releases answer besides that they were done.
const (
	publishDenied = 2 // somebody waits, and could not be told
	othersWait    = 3 // somebody waits in a queue of that node
	othersTurn    = 4 // nothing was released: the node is reserved for somebody who waits there
)

// unheard is added to what a claim is answered if it let others in whom the node could not tell.
// It is above the number of any permit.
const unheard = 2048

// answerKind is what a node's answer amounts to. How it counts is the round's to say.
type answerKind uint8

const (
	// kindGranted: the node did what was asked.
	kindGranted answerKind = iota + 1
	// kindRefused: the node answered that the key is not ours.
	kindRefused
	// kindUnknown: the request was or may have been sent, and no answer came.
	kindUnknown
	// kindFailed: the server answered with an error.
	kindFailed
	// kindNotSent: no byte of the request left, and none will.
	kindNotSent
)

// ballot is what is known of one node's answer to one request. The wire fills in val,
// err and sent; read makes a vote of them.
type ballot struct {
	val any   // of the server's answer; nil for a null answer
	err error // a server's error answer (redis.Error), or why there is no answer
	// sent is false when surely no byte of the request left. It says nothing where
	// the server answered.
	sent bool
	// native: the server compared and deleted by a command of its own.
	native bool

	kind answerKind // zero: nothing new
	// final: an answer of the node, or certainty that there will be none. Otherwise
	// the kind may still change.
	final bool
}

// unsent is the ballot of a request that did not leave and will not.
func unsent(why error) ballot { return ballot{kind: kindNotSent, err: why, final: true} }

// answered reports whether the server itself spoke.
func (b ballot) answered() bool { return b.err == nil || isServerError(b.err) }

func isServerError(err error) bool {
	var e redis.Error
	return errors.As(err, &e)
}

// unknownScript reports whether the server wants the script's text.
func (b ballot) unknownScript() bool {
	return b.err != nil && isServerError(b.err) && strings.HasPrefix(b.err.Error(), "NOSCRIPT")
}

// read tells the kind of what came of a request.
func (b ballot) read(o op) ballot {
	b.final = true
	switch {
	case b.err != nil && isServerError(b.err):
		b.kind = kindFailed
		if o.comparesOnly() && strings.Contains(b.err.Error(), "WRONGTYPE") {
			// A string is all that we ever put there.
			b.kind = kindRefused
		}
		return b
	case b.err != nil && !b.sent:
		b.kind = kindNotSent
		return b
	case b.err != nil:
		b.kind = kindUnknown
		return b
	}
	if b.kind = readKind(o, b.val); b.kind == 0 {
		// Something that is no Redis answered. Whether it did anything is anyone's guess.
		b.kind, b.err = kindUnknown, fmt.Errorf("unexpected reply %.100q to %v", fmt.Sprint(b.val), o)
	}
	return b
}

// comparesOnly: the request acts on a value that is there already, and is answered by a
// vote about it.
func (o op) comparesOnly() bool {
	return o == opExtend || o == opMove || o == opAdopt || o == opRelease || o == opForceRelease
}

// tells reports whether the request is answered with a list of facts and no vote.
func (o op) tells() bool { return o == opInspect || o == opJoin || o == opMark }

// readKind is what an answer which is no error amounts to, 0 if it is none that
// Redis gives to such a request.
func readKind(o op, val any) answerKind {
	switch v := val.(type) {
	case nil:
		if o.sets() && o != opAdopt {
			return kindRefused
		}
	case string:
		switch {
		case (o == opAcquire || o == opRepair || o == opDoor) && v == "OK":
			return kindGranted
		case o == opAdopt, !o.sets() && !o.tells():
			return kindRefused // it says who holds it
		}
	case int64:
		return readNumber(o, v)
	case []any:
		if o.tells() {
			return kindGranted
		}
	}
	return 0
}

func readNumber(o op, n int64) answerKind {
	switch {
	case (o == opAcquireFenced || o == opAcquireShared || o == opRepair || o == opAdopt) && n > 0:
		return kindGranted
	case o == opAdopt && n == 0:
		return kindRefused
	case o.sets() || o.tells():
		return 0
	case n == 1, (n == publishDenied || n == othersWait) && o == opRelease:
		return kindGranted
	case n == 0, n == othersTurn && o == opRelease:
		return kindRefused
	default:
		return 0
	}
}

// holder is the value that a script found instead of ours, or empty.
func (b ballot) holder() string {
	v, _ := b.val.(string)
	if b.kind != kindRefused {
		return ""
	}
	return v
}

// number is that of the permit that a node gave, from 1; 0 if it gave none.
func (b ballot) number() int64 {
	if n, ok := b.val.(int64); ok && b.kind == kindGranted {
		return (n - 1) % unheard
	}
	return 0
}

// leftUntold reports whether a claim let others in whom the node could not tell.
func (b ballot) leftUntold() bool {
	n, ok := b.val.(int64)
	return ok && b.kind == kindGranted && n > unheard
}

// fence is the token that a node granted, or 0.
func (b ballot) fence() uint64 {
	if f, ok := b.val.(int64); ok && b.kind == kindGranted {
		return uint64(f)
	}
	return 0
}

// permanent reports whether waiting cannot mend why a node did not do what it was asked: it
// is set up wrongly, we are not allowed to use it, or its client was closed.
func permanent(err error) bool {
	if errors.Is(err, redis.ErrClosed) {
		return true
	}
	if err == nil || !isServerError(err) {
		return false
	}
	return hasAny(err.Error(),
		"NOAUTH", "WRONGPASS", "NOPERM", "DENIED", "can't run this command", "can't access at least one of the keys", "ACL failure", // not allowed
		"WRONGTYPE", "BADFENCE", // the key, or its fencing counter, holds something else
		"MOVED", "ASK ", "CROSSSLOT", "CLUSTERDOWN", // a node of a cluster
		"unknown command", "ERR AUTH", "invalid DB index", "out of range", // no such server or database
	)
}

// denied reports whether a server does not do a command for us, ever.
func denied(err error) bool {
	return err != nil && isServerError(err) && hasAny(err.Error(), "NOPERM", "can't run this command", "unknown command")
}

// readOnly reports whether a server says that it is a replica. Before Redis 7 that stands
// inside of a longer text if a script was refused.
func readOnly(err error) bool { return redis.IsReadOnlyError(err) }

// otherType reports whether a server's own command did nothing since the key holds no string.
func otherType(err error) bool {
	return err != nil && isServerError(err) && hasAny(err.Error(), "WRONGTYPE", "Key should be of string type")
}

// halfWay reports whether a script that failed with this error may have done a part of its
// work, which Redis does not roll back. The other errors come before a script's first write.
// Those of the server's state are not told apart by their beginning, since some versions
// put them into a longer text.
func halfWay(err error) bool {
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

// withHint adds what to do to errors that people meet when they set up nodes.
func withHint(err error) error {
	if errors.Is(err, redis.ErrClosed) {
		return fmt.Errorf("%w: its owner closed it while it was in use here", err)
	}
	if err == nil || !isServerError(err) {
		return withTLSHint(err)
	}
	switch text := err.Error(); {
	case strings.HasPrefix(text, "MOVED"), strings.HasPrefix(text, "ASK "), strings.HasPrefix(text, "CLUSTERDOWN"):
		return fmt.Errorf("%w; this is a node of a Redis Cluster, and a quorum needs independent masters", err)
	case readOnly(err):
		return fmt.Errorf("%w; this is a replica, and a quorum needs independent masters", err)
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
	case remoteAlert(err) && strings.Contains(err.Error(), "certificate required"):
		return fmt.Errorf("%w; give it a certificate in Options.TLS", err)
	default:
		return err
	}
}

// remoteAlert reports whether the other end refused TLS with us.
func remoteAlert(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "remote error"
}
