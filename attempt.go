package redlock

import (
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
)

// attempt is what asking for a lock needs. It is let go of as soon as all nodes have granted,
// which is nearly always, so that a lock that is held for long is small.
type attempt struct {
	round
	set protocol.Request
}

// withSeats makes what has a round, and room for the answers of so many nodes. The usual numbers
// cost one allocation.
func withSeats[T any](nodes int, of func(*T) *round) *T {
	switch nodes {
	case 3:
		x := new(struct {
			it   T
			room [3]seat
		})
		of(&x.it).seats = x.room[:]
		return &x.it
	case 5:
		x := new(struct {
			it   T
			room [5]seat
		})
		of(&x.it).seats = x.room[:]
		return &x.it
	default:
		it := new(T)
		of(it).seats = make([]seat, nodes)
		return it
	}
}

// departure is what giving a lock up needs. It is made when that begins.
type departure struct {
	round
	req      protocol.Request // for the nodes whose queue is not served
	queueReq protocol.Request // for the arbiter
	also     *servedToo       // nil: no other
}

// servedToo is a second node whose queue a release serves.
type servedToo struct {
	node int
	req  protocol.Request
}

// grants is what is left of the attempt that made a lock, once all nodes have granted.
type grants struct {
	attempt atomic.Pointer[attempt] // nil: all have granted, and it was let go of
	begun   atomic.Bool             // the lock is held, so nobody waits for answers any more
	kept    atomic.Bool             // took was written, or is by now
	took    []time.Duration         // each node; once attempt is nil
	room    [5]time.Duration
}

// mayForget lets go of the attempt if nobody needs it.
func (g *grants) mayForget() {
	a := g.attempt.Load()
	if a == nil || !g.begun.Load() || !a.allGranted() || g.kept.Swap(true) {
		return
	}
	g.took = g.room[:0]
	for i := range a.seats {
		g.took = append(g.took, a.seats[i].cast.elapsed) // final
	}
	g.attempt.Store(nil)
}

// granted reports whether a node has, as far as is known now.
func (g *grants) granted(node int) bool {
	a := g.attempt.Load()
	return a == nil || a.vote(node) == VoteGranted
}

// answers are what the nodes said.
func (g *grants) answers(names []string) []Outcome {
	if a := g.attempt.Load(); a != nil {
		return a.outcomes(names)
	}
	out := make([]Outcome, len(names))
	for i := range out {
		out[i] = Outcome{Node: names[i], Vote: VoteGranted, Elapsed: g.took[i]}
	}
	return out
}

// onceGranted sees the answers to an attempt.
type onceGranted struct{ *grants }

func (o onceGranted) observe(int, protocol.Answer) { o.mayForget() }

// The SETs of attempts that were let go of: they were granted, and have left nothing else.
// Nothing in them is ever written.
var (
	plainGrant  = &lane.Call{Req: &protocol.Request{Op: protocol.OpAcquire}, State: lane.CallDone, Answer: protocol.Answer{Kind: protocol.Granted, Sent: true, Final: true}}
	scriptGrant = &lane.Call{Req: &protocol.Request{Op: protocol.OpAcquire, Script: protocol.ClaimScript}, State: lane.CallDone, Answer: protocol.Answer{Kind: protocol.Granted, Sent: true, Final: true}}
)
