package redlock

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// The reasons for which an operation fails. Errors returned by this package wrap
// one or more of them; test for them with errors.Is. Where nodes were asked,
// errors.As finds a *QuorumError that tells what each of them said.
var (
	// ErrHeld: so many nodes say that another holds the lock that no quorum is left.
	// Only refusals count for it, never a node that did not answer.
	ErrHeld = errors.New("held by another")
	// ErrNoQuorum: a quorum is impossible for any other reason: nodes that did not
	// answer, could not be reached or answered with an error.
	ErrNoQuorum = errors.New("no quorum")
	// ErrExpired: a quorum granted, but so late that no validity was left; or the
	// validity of a held lock has passed.
	ErrExpired = errors.New("validity is over")
	// ErrNotHeld: so many nodes say that the key is not ours (any more) that we hold
	// no quorum.
	ErrNotHeld = errors.New("not held")
	// ErrLost: the lock was ours and is not any more, without having been released.
	ErrLost = errors.New("lock lost")
	// ErrReleased: the lock was released before.
	ErrReleased = errors.New("lock released")
	// ErrClosed: the Redlock was closed.
	ErrClosed = errors.New("closed")
	// ErrDuplicateNode: the same server was given twice.
	ErrDuplicateNode = errors.New("duplicate node")
	// ErrInvalid: an argument or option breaks a rule; the text names both.
	ErrInvalid = errors.New("invalid")
)

// QuorumError reports an operation that did not get its quorum, node by node.
// Use errors.As to get at it and errors.Is for its reason.
type QuorumError struct {
	// Op is the operation: "open", "acquire", "extend", "release", "inspect",
	// "force release" or "check".
	Op string
	// Key is the lock's key, without Options.KeyPrefix; empty for "open" and "check".
	Key string
	// Need is the number of grants that make a quorum.
	Need int
	// Outcomes has one entry per node, in the order of Redlock.Nodes, as known when
	// the operation was decided.
	Outcomes []Outcome
	// HolderTTL is how long the present holder's lease lasts at most on the nodes
	// that told it, zero where none did.
	HolderTTL time.Duration

	reasons []error
}

// Unwrap returns the reasons: ErrHeld, ErrNoQuorum, ErrExpired, ErrNotHeld, ErrLost.
// The nodes' own errors are in Outcomes only: a timeout on one node is not a timeout
// of the call.
func (e *QuorumError) Unwrap() []error { return e.reasons }

// Error returns one line that names each node and what it said.
func (e *QuorumError) Error() string {
	var b strings.Builder
	b.WriteString("redlock: " + e.Op)
	if e.Key != "" {
		b.WriteString(" " + quoteKey(e.Key))
	}
	b.WriteString(": ")
	for i, r := range e.reasons {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(oneLine(r.Error()))
	}
	if len(e.Outcomes) == 0 {
		return b.String() // no node was asked
	}
	grants := 0
	for _, o := range e.Outcomes {
		if o.Vote == VoteGranted {
			grants++
		}
	}
	fmt.Fprintf(&b, " (%d of %d nodes granted, %d needed", grants, len(e.Outcomes), e.Need)
	if e.HolderTTL > 0 {
		fmt.Fprintf(&b, "; the holder's lease ends in %v", e.HolderTTL.Round(time.Millisecond))
	}
	b.WriteString(")")
	for i, o := range e.Outcomes {
		b.WriteString([]string{": ", "; "}[min(i, 1)])
		b.WriteString(oneLine(o.Node))
		b.WriteByte(' ')
		b.WriteString(o.Vote.String())
		if o.Holder != "" {
			fmt.Fprintf(&b, " (found %s)", quoteKey(o.Holder))
		}
		if o.Err != nil {
			fmt.Fprintf(&b, " (%s)", oneLine(o.Err.Error()))
		}
		if o.Vote != VotePending && o.Elapsed > 0 {
			fmt.Fprintf(&b, " after %v", o.Elapsed.Round(10*time.Microsecond))
		}
	}
	return b.String()
}

// quoteKey makes any bytes readable and keeps a megabyte of them out of a log line.
func quoteKey(s string) string {
	if len(s) > mostOfKey {
		return fmt.Sprintf("%q... (%d bytes)", s[:mostOfKey], len(s))
	}
	return fmt.Sprintf("%q", s)
}

const mostOfKey = 128

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// invalid reports every broken rule in one error.
func invalid(what string, broken []string) error {
	if len(broken) == 0 {
		return nil
	}
	return fmt.Errorf("redlock: %w %s: %s", ErrInvalid, what, strings.Join(broken, "; "))
}
