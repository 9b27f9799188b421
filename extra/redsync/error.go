package redsync

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
)

// ErrFailed: Lock got no lock, because its context ended, or for a reason that is none of a node.
var ErrFailed = errors.New("redsync: failed to acquire lock")

// ErrExtendFailed: Extend found that the lock is over.
var ErrExtendFailed = errors.New("redsync: failed to extend lock")

// ErrLockAlreadyExpired: Unlock found that the lock had ended before, or that there was none.
var ErrLockAlreadyExpired = errors.New("redsync: failed to unlock, lock was already expired")

// ErrTaken: another has the lock on so many nodes that the others are no majority. Methods return a
// *ErrTaken.
type ErrTaken struct {
	Nodes []int // that said so before the call returned, by their numbers in the order of the pools, from 0
}

func (err ErrTaken) Error() string {
	return fmt.Sprintf("lock already taken, locked nodes: %v", err.Nodes)
}

// ErrNodeTaken: on one node another has the lock. Methods return a *ErrNodeTaken.
type ErrNodeTaken struct {
	Node int // from 0
}

func (err ErrNodeTaken) Error() string {
	return fmt.Sprintf("node #%d: lock already taken", err.Node)
}

// RedisError is why one node has no part in what was asked: it answered with an error, did not answer or
// was not reached, or its grant does not count because it restarted. Methods return a *RedisError.
type RedisError struct {
	Node int // from 0
	Err  error
}

func (e RedisError) Error() string { return fmt.Sprintf("node #%d: %s", e.Node, e.Err) }

// Unwrap returns Err.
func (e RedisError) Unwrap() error { return e.Err }

// failure has the text of an error of the library, which has each node's answer, and errors of both
// libraries for errors.Is and errors.As. It does not wrap the library's error, in which there is a
// context's error also if only the tries were used up.
type failure struct {
	text    string
	reasons []error
}

func (f *failure) Error() string { return f.text }

func (f *failure) Unwrap() []error { return f.reasons }

var sentinels = []error{
	redlock.ErrHeld, redlock.ErrNoQuorum, redlock.ErrExpired, redlock.ErrNested, redlock.ErrNotHeld,
	redlock.ErrLost, redlock.ErrReleased, redlock.ErrClosed, redlock.ErrDuplicateNode, redlock.ErrInvalid,
}

func lockFailed(ctx context.Context, err error) error {
	reasons := answers(err)
	if !errors.Is(err, redlock.ErrInvalid) && (ctx.Err() != nil || len(reasons) == 0) {
		reasons = append(reasons, ErrFailed)
	}
	return failed(ctx, err, reasons)
}

func unlockFailed(err error, reasons []error) error {
	if errors.Is(err, redlock.ErrNotHeld) && !errors.As(errors.Join(reasons...), new(*ErrTaken)) {
		reasons = append(reasons, ErrLockAlreadyExpired)
	}
	return failed(context.Background(), err, reasons)
}

func extendFailed(ctx context.Context, err error) error {
	reasons := answers(err)
	if errors.Is(err, redlock.ErrLost) || errors.Is(err, redlock.ErrReleased) {
		reasons = append(reasons, ErrExtendFailed)
	}
	return failed(ctx, err, reasons)
}

// answers are what the nodes said, in redsync's errors.
func answers(err error) (all []error) {
	var others []int
	q := new(redlock.QuorumError)
	errors.As(err, &q)
	for i, o := range q.Outcomes {
		switch {
		// A node that refuses to grant a lock does not always say who has it; one that was not asked
		// again because of the queue said it before. To other requests it says when the key is gone.
		case o.Vote == redlock.VoteRefused && (o.Holder != "" || q.Op == "acquire"),
			o.Vote == redlock.VoteNotSent && o.Holder != "":
			others = append(others, i)
			all = append(all, &ErrNodeTaken{Node: i})
		case o.Vote != redlock.VoteRefused && o.Vote != redlock.VoteGranted && o.Err != nil:
			all = append(all, &RedisError{Node: i, Err: o.Err})
		}
	}
	if errors.Is(err, redlock.ErrHeld) || len(others) > 0 && len(others) > len(q.Outcomes)-q.Need {
		return []error{&ErrTaken{Nodes: others}}
	}
	if e := new(admin.Error); errors.As(err, &e) {
		for i, n := range e.Nodes {
			if n.Err != nil {
				all = append(all, &RedisError{Node: i, Err: n.Err})
			}
		}
	}
	return all
}

// found is what an Unlock by a value came upon.
func found(taken admin.Taken, quorum int) (all []error) {
	var others []int
	for i, n := range taken.Nodes {
		switch n.Left {
		case admin.Kept:
			others = append(others, i)
			all = append(all, &ErrNodeTaken{Node: i})
		case admin.Unknown:
			all = append(all, &RedisError{Node: i, Err: n.Err})
		}
	}
	if len(others) > len(taken.Nodes)-quorum {
		return []error{&ErrTaken{Nodes: others}}
	}
	return all
}

func failed(ctx context.Context, err error, nodes []error) error {
	f := &failure{text: err.Error(), reasons: nodes}
	for _, s := range sentinels {
		if errors.Is(err, s) {
			f.reasons = append(f.reasons, s)
		}
	}
	if ctx.Err() != nil {
		f.reasons = append(f.reasons, ctx.Err())
		// That another lock was lost, say, is nothing that happened to this one.
		if cause := context.Cause(ctx); !slices.ContainsFunc(sentinels, func(s error) bool { return errors.Is(cause, s) }) {
			f.reasons = append(f.reasons, cause)
		}
	}
	return f
}
