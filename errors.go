package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/protocol"
)

// The reasons for which an operation fails. Errors of this package wrap one or more of them, or the error of a
// context; test for them with errors.Is. If nodes were asked, errors.As finds a *QuorumError with the answer of each,
// except where a lease just ran out.
var (
	// ErrHeld: another holds the lock, it is reserved for a waiter, or WithMinHold keeps it. So many nodes refused
	// that no majority is left; a node that did not answer is no refusal.
	ErrHeld = errors.New("held by another")
	// ErrNoQuorum: no majority of nodes granted the request, and refusals alone do not
	// explain that: nodes did not answer, could not be reached, answered with an error or may
	// not vote yet (VoteBarred).
	ErrNoQuorum = protocol.ErrNoQuorum
	// ErrExpired: a majority granted the lock, but so late that no validity was left; or the validity of a held lock
	// has ended (with ErrLost). It is also a cause of a context that WithMaxHold ended, although the lease may go on.
	ErrExpired = errors.New("validity is over")
	// ErrNested: the call's context belongs to a held lock of the same key (it is that of Do's function or of
	// Lock.Context, or comes from it), so the call would wait for itself. No node was asked. Pass the Lock on, use Do
	// with WithReentry, or use a context that does not come from that lock. For permits see Redlock.Semaphore.
	ErrNested = errors.New("held by the caller's own context")
	// ErrNotHeld: on so many nodes the key is gone or another's that no majority is left.
	ErrNotHeld = protocol.ErrNotHeld
	// ErrLost: the lock was ours and ended without being released. If its lease ran out
	// because extends found no quorum, errors.As finds the last one's *QuorumError. It is also
	// the cause of a context that WithMaxHold ended.
	ErrLost = errors.New("lock lost")
	// ErrReleased: the lock had been released or detached before.
	ErrReleased = errors.New("lock released")
	// ErrClosed: the Redlock was closed.
	ErrClosed = protocol.ErrClosed
	// ErrDuplicateNode: two of the nodes are the same server, which would vote twice.
	ErrDuplicateNode = guard.ErrDuplicateNode
	// ErrInvalid: an argument or option breaks a rule. The text says which.
	ErrInvalid = protocol.ErrInvalid
)

// QuorumError reports, node by node, why an operation failed. errors.As finds it, and
// errors.Is tests for its reasons.
type QuorumError struct {
	// Op is the operation: "open", "acquire", "adopt", "extend" or "release". Newer versions may have more.
	Op string
	// Key is the lock's key, without Options.KeyPrefix; empty for "open".
	Key string
	// Need is the number of grants that make a quorum.
	Need int
	// Outcomes has one entry per node, in the order of Redlock.Nodes. The votes are those
	// known when the error was made. An Acquire that waits then asks for the present
	// holder, and adds the answers: Outcome.Holder, and Outcome.Err for a key that holds
	// no lock. Outcomes is nil if the context had ended before any node was asked.
	Outcomes []Outcome
	// HolderTTL is how soon the lock becomes free if its holder does nothing, as of the last time an Acquire that
	// waits asked for that; zero if it is not known, as always after TryAcquire.
	HolderTTL time.Duration

	reasons []error
}

// Unwrap returns the reasons: any of ErrHeld, ErrNoQuorum, ErrExpired, ErrNotHeld, ErrLost, ErrClosed and
// ErrDuplicateNode, and, if the context ended, its error and its cause. A cause from this package, such as the loss
// of another lock, is in the text only, so that errors.Is does not confuse the two. The nodes' own errors are in
// Outcomes only: a timeout of one node is no timeout of the operation.
func (e *QuorumError) Unwrap() []error { return e.reasons }

// Error returns one line: the reason, what ended the call if it was cut short, and each node with
// what it said. Of the holder's token it has eight digits; Outcome.Holder has all of it.
func (e *QuorumError) Error() string {
	var b strings.Builder
	b.WriteString("redlock: " + e.Op)
	if e.Key != "" {
		b.WriteString(" " + quoteKey(e.Key))
	}
	b.WriteString(": " + why(e.reasons))
	if len(e.Outcomes) == 0 {
		return b.String() // no node was asked
	}
	granted := e.granted()
	fmt.Fprintf(&b, " (%d of %d nodes %s, %d needed", e.grants(), len(e.Outcomes), granted, e.Need)
	if e.HolderTTL > 0 {
		fmt.Fprintf(&b, "; the holder's lease ends in %v", e.HolderTTL.Round(time.Millisecond))
	}
	b.WriteString(")")
	for i, o := range e.Outcomes {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		b.WriteString(protocol.OneLine(o.Node))
		b.WriteByte(' ')
		if o.Vote == VoteGranted {
			b.WriteString(granted)
		} else {
			b.WriteString(o.Vote.String())
		}
		switch {
		case o.Holder == "" || o.Vote == VotePending || o.Vote == VoteUnknown: // it has not answered
		case o.Vote == VoteNotSent:
			fmt.Fprintf(&b, " (has %s)", quoteKey(withoutSecret(o.Holder))) // as it said when it was looked at
		default:
			fmt.Fprintf(&b, " (found %s)", quoteKey(withoutSecret(o.Holder)))
		}
		if o.Err != nil {
			fmt.Fprintf(&b, " (%s)", protocol.OneLine(o.Err.Error()))
		}
		if o.Vote != VotePending && o.Elapsed > 0 {
			fmt.Fprintf(&b, " after %v", o.Elapsed.Round(10*time.Microsecond))
		}
	}
	return b.String()
}

// why puts the reasons of this package before what ended the call: that a lock is held tells more
// than that a context is over.
func why(all []error) string {
	var reasons, ends []string
	gaveUp := slices.ContainsFunc(all, func(err error) bool { return errors.As(err, new(waitOver)) })
	for _, err := range all {
		switch text := protocol.OneLine(err.Error()); {
		case slices.Contains(sentinels, err):
			reasons = append(reasons, text)
		case !gaveUp || err != context.DeadlineExceeded:
			ends = append(ends, text)
		}
	}
	return strings.Join(slices.DeleteFunc([]string{strings.Join(reasons, ", "), strings.Join(ends, ", ")}, func(s string) bool { return s == "" }), ": ")
}

var sentinels = []error{
	ErrHeld, ErrNoQuorum, ErrExpired, ErrNested, ErrNotHeld, ErrLost, ErrReleased, ErrClosed, ErrDuplicateNode, ErrInvalid,
}

// waitOver is the cause of a context that WithMaxWait ended.
type waitOver time.Duration

func (w waitOver) Error() string {
	return fmt.Sprintf("gave up after %v (WithMaxWait)", time.Duration(w))
}

// withoutSecret leaves eight characters of what may be a token in the value of a key. Errors and
// log lines end in mails and tickets, and the whole token is enough to take the lock.
func withoutSecret(value string) string {
	token, owner, owned := strings.Cut(value, "@")
	if len(token) < shortestSecret || strings.ContainsAny(token, " \t") {
		return value
	}
	token = token[:8] + "..."
	if owned {
		return token + "@" + owner
	}
	return token
}

// shortestSecret is below the length of the tokens of ours and of other libraries, such as 24
// characters of redsync's.
const shortestSecret = 20

// grants is how many nodes did what was asked.
func (e *QuorumError) grants() (n int) {
	for _, o := range e.Outcomes {
		if o.Vote == VoteGranted {
			n++
		}
	}
	return n
}

// granted is what such a node did.
func (e *QuorumError) granted() string {
	switch e.Op {
	case "open":
		return "answered"
	case "extend":
		return "extended"
	case "release":
		return "released"
	default:
		return VoteGranted.String()
	}
}

// inOneLine puts errors together as errors.Join does; nil if all of them are.
func inOneLine(errs ...error) error { return protocol.InOneLine(errs...) }

// within is an error of this package inside of the text of another one, which begins with the
// package's name already.
type within struct{ error }

func (w within) Error() string { return strings.TrimPrefix(w.error.Error(), "redlock: ") }

func (w within) Unwrap() error { return w.error }

// detail is an error that tells more of another one, and is not its reason: errors.As finds it,
// and errors.Is does not. A program that tests a lost lock for ErrNoQuorum first would take it for
// one that was never granted.
type detail struct{ error }

func (d detail) Error() string { return within(d).Error() }

func (d detail) As(target any) bool { return errors.As(d.error, target) }

func quoteKey(s string) string { return protocol.Quote(s) }

func invalid(what string, broken []string) error { return protocol.Invalid(what, broken) }
