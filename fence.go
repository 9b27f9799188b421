package redlock

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"
)

// Fencing. Each node has a counter per key; a grant by the node is a number above all
// that it gave before. The fence of a lock is the greatest of its grants, and the lock is
// granted only once a majority of nodes has a counter of exactly that. Whoever is granted
// the lock later meets one of them, and so gets more. "INCR on each node and take the
// maximum" lacks the second half, and is not monotonic over changing majorities.
//
// docs/safety.md has the argument in full.

// fenceLife is how long a counter outlives its last use. After that, servers' clocks
// keep the order, since tokens are microseconds of theirs or more.
const fenceLife = 7 * 24 * time.Hour

// lastFence proposes a token: the wall clock in microseconds, or just above the last one
// of this Redlock if its clock was set back a little. Only the number of round trips
// depends on it: nodes that were proposed more than they have agree at once.
type lastFence struct{ last atomic.Uint64 }

func (l *lastFence) propose(now instant) uint64 {
	wall := uint64(max(now.wall/int64(time.Microsecond), 0))
	// A counter that is far ahead of time is a matter of its own key.
	if last := l.last.Load(); last >= wall && last < wall+uint64(time.Second/time.Microsecond) {
		return last + 1
	}
	return wall
}

func (l *lastFence) saw(fence uint64) {
	for {
		last := l.last.Load()
		if fence <= last || l.last.CompareAndSwap(last, fence) {
			return
		}
	}
}

// fenceKey is the key of the counter, in the lock's cluster slot if it can be.
func (m *Mutex) fenceKey() any {
	if m.naming == usualLine {
		return "{" + m.name.(string) + "}:fence"
	}
	return m.name.(string) + ":fence:"
}

// fence is the token that a node granted, or 0.
func (b ballot) fence() uint64 {
	if f, ok := b.val.(int64); ok && b.vote == VoteGranted {
		return uint64(f)
	}
	return 0
}

// fences are the tokens that the nodes granted in a round, 0 for none.
func (r *round) fences() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	fences := make([]uint64, len(r.seats))
	for i := range r.seats {
		fences[i] = r.seats[i].cast.fence()
	}
	return fences
}

// settleFence gives an attempt that a quorum has granted its fencing token: the greatest
// that a node granted, once a majority has exactly that. Usually it has. Otherwise those
// that have less are asked to raise theirs, in a round that it returns. Nodes that grant
// later than the quorum have no part in it.
//
// The lease may have ended meanwhile, so validity is to be checked after it and not
// before.
func (l *Lock) settleFence(ctx context.Context) (r *round, v verdict, cut error) {
	rl := l.rl
	fences := l.acquiring.fences()
	l.fence = slices.Max(fences)
	rl.lastFence.saw(l.fence)
	agreed := 0
	for _, f := range fences {
		if f == l.fence {
			agreed++
		}
	}
	if agreed >= rl.quorum {
		return nil, granted, nil
	}
	now := rl.clock.now()
	req := raiseRequest(l.mutex, l.value, l.fence)
	r = new(round)
	r.init(now, make([]seat, len(rl.nodes)))
	for i, f := range fences {
		switch f {
		case l.fence:
			r.deliver(i, ballot{vote: VoteGranted, final: true}, now.mono)
		case 0:
			r.deliver(i, ballot{vote: VoteBarred, err: errNoGrant, final: true}, now.mono)
		default:
			c := &r.seats[i].call
			c.to(r, req, i)
			rl.nodes[i].lane.enqueue(c, now.mono)
		}
	}
	v, cut = r.waitFinal(ctx, rl.clock, rl.closing)
	return r, v, cut
}

var errNoGrant = errors.New("not asked to raise its fencing counter: it had not granted the lock")

// fenceRequest is setRequest, or claimRequest for a waiter's entry, with a fencing token.
func fenceRequest(m *Mutex, value any, proposal uint64, entry string) *request {
	args := []any{"EVALSHA", fenceScript.digest, 2, m.name, m.fenceKey(), value, ttlOnNode(m.terms.ttl), proposal, fenceLife.Milliseconds()}
	if entry != "" {
		args = []any{
			"EVALSHA", fenceScript.digest, 3, m.name, m.fenceKey(), m.line(), value, ttlOnNode(m.terms.ttl),
			proposal, fenceLife.Milliseconds(), entry,
		}
	}
	return &request{kind: acquireFenced, script: fenceScript, ttl: m.terms.ttl, timeout: m.terms.nodeTimeout, args: args}
}

func raiseRequest(m *Mutex, value any, fence uint64) *request {
	return &request{
		kind: raise, script: raiseScript, ttl: m.terms.ttl, timeout: m.terms.nodeTimeout,
		args: []any{"EVALSHA", raiseScript.digest, 2, m.name, m.fenceKey(), value, fence, fenceLife.Milliseconds()},
	}
}

// fenceRepairRequest puts a fenced lock back on a node that lost it.
func fenceRepairRequest(t *terms, m *Mutex, value any, fence uint64) request {
	return request{
		kind: repair, script: fenceRepairScript, ttl: t.ttl, timeout: t.nodeTimeout,
		args: []any{
			"EVALSHA", fenceRepairScript.digest, 2, m.name, m.fenceKey(), value, ttlOnNode(t.ttl), fence, fenceLife.Milliseconds(),
		},
	}
}
