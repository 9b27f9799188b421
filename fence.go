package redlock

import (
	"context"
	"errors"
	"slices"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Fencing. Each node has a counter per key; a grant by the node is a number above all
// that it gave before. The fence of a lock is the greatest of its grants, and the lock is
// granted only once a majority of nodes has a counter of exactly that. A later lock of the
// key is granted by one of these nodes too, and so gets more. "INCR on each node and take
// the maximum" lacks the second half, and is not monotonic over changing majorities.
//
// docs/safety.md has the argument in full.

var errNoGrant = errors.New("it had not granted the lock, so its fencing counter is left alone")

// fenceArgs are those of the lock's counter.
func (r *resource) fenceArgs(token uint64) *protocol.FenceArgs {
	return &protocol.FenceArgs{Key: r.naming.FenceKey(r.name), Token: token}
}

// settleFence gives an attempt that a quorum has granted its fencing token: the greatest
// that a node granted, once a majority has exactly that. Usually it has. Otherwise the
// nodes that have less are asked to raise theirs, in a round that it returns. Nodes that
// grant later than the quorum have no part in it.
//
// The lease may have ended meanwhile, so validity is to be checked after it and not
// before.
func (r *resource) settleFence(ctx context.Context, acquiring *round, value string) (token uint64, raised *round, v verdict, cut error) {
	fences := acquiring.fences()
	token = slices.Max(fences)
	r.fences.saw(token)
	agreed := 0
	for _, f := range fences {
		if f == token {
			agreed++
		}
	}
	if agreed >= r.quorum {
		return token, nil, verdictGranted, nil
	}
	now := r.clock.Now()
	req := protocol.RaiseRequest(&r.terms.Terms, r.name, value, r.fenceArgs(token))
	raised = new(round)
	raised.init(now, make([]seat, len(r.nodes)))
	for i, f := range fences {
		switch f {
		case token:
			raised.Deliver(i, protocol.Answer{Kind: protocol.Granted, Final: true}, now.Mono)
		case 0:
			raised.Deliver(i, protocol.Unsent(errNoGrant), now.Mono)
		default:
			raised.address(i, req)
			r.lane(i).Enqueue(&raised.seats[i].call, now.Mono)
		}
	}
	v, cut = r.await(ctx, raised)
	return token, raised, v, cut
}
