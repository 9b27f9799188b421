package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// node is one master: its name and the only way to it.
type node struct {
	name string
	hash uint64 // of the name, see weight
	lane *lane.Lane
}

// nodeSet is the nodes that vote together, and what every request to them needs. Mutex,
// Lock and waiters hang on it; it knows none of them.
type nodeSet struct {
	nodes  []*node
	names  []string
	quorum int

	opts   Options
	clock  tick.Clock
	tokens tokens
	fences lastFence
	guard  *guard.Guard // nil: none
	lacks  *degradations
	outage *outage
	voters []*voter // by node; nil: no hook asks for them

	life lifetime
}

// newNodeSet makes the set of the nodes behind the wires.
func newNodeSet(names []string, wires []lane.Wire, o Options, c tick.Clock) *nodeSet {
	closing := make(chan struct{})
	lacks := &degradations{hooks: o.Hooks, closing: closing}
	ns := &nodeSet{
		names: names, quorum: majority(len(names)),
		opts: o, clock: c, tokens: tokens{owner: o.Owner}, lacks: lacks,
		guard: guard.New(names, o.RestartGuard, c), outage: newOutage(len(names)),
		life: lifetime{closing: closing, idle: make(chan struct{}, 1)},
	}
	calls := make([]*inOrder, len(names))
	for i, w := range wires {
		calls[i] = new(inOrder)
		ns.add(i, w, calls[i])
	}
	ns.watchVotes(calls)
	if ns.guard != nil {
		ns.guard.Look = ns.look
	}
	return ns
}

// look has all nodes looked at, with no caller waiting for it.
func (ns *nodeSet) look() {
	now, req := ns.clock.Now().Mono, protocol.LookRequest(ns.opts.KeyPrefix+protocol.TrialKey, ns.opts.nodeTimeout(ns.opts.TTL))
	for i := range ns.nodes {
		ns.lane(i).Enqueue(&lane.Call{Req: req, Index: int16(i), Deadline: now + int64(req.Timeout)}, now)
	}
}

func (ns *nodeSet) add(i int, w lane.Wire, changes *inOrder) {
	name, hooks := ns.names[i], ns.opts.Hooks
	onChange := func(down bool, err error) {
		ns.outage.changed(down)
		switch {
		case down && hooks.NodeDown != nil:
			changes.do(func() { hooks.NodeDown(NodeInfo{Node: name, Err: protocol.WithHint(err)}) })
		case !down && hooks.NodeUp != nil:
			changes.do(func() { hooks.NodeUp(NodeInfo{Node: name}) })
		}
	}
	if w, ok := w.(lane.Watcher); ok && ns.guard != nil {
		g := ns.guard
		w.Watch(lane.Onlooker{
			Saw:       func(s protocol.ServerReport) *protocol.MarkWrite { return g.Saw(i, s) },
			Ready:     func() bool { return g.Ready(i) },
			Duplicate: func() error { return g.Duplicate(i) },
		})
	}
	ns.nodes = append(ns.nodes, &node{name: name, hash: fnv1a(name), lane: lane.New(w, ns.clock, onChange)})
}

// hashes are those of the nodes' names.
func (ns *nodeSet) hashes() []uint64 {
	all := make([]uint64, len(ns.nodes))
	for i, n := range ns.nodes {
		all[i] = n.hash
	}
	return all
}

func (ns *nodeSet) lane(i int) *lane.Lane { return ns.nodes[i].lane }

// quorumGone reports whether so many nodes are gone for good that no quorum is left.
func (ns *nodeSet) quorumGone() bool {
	gone := 0
	for _, n := range ns.nodes {
		if n.lane.Gone() {
			gone++
		}
	}
	return gone >= blocking(len(ns.nodes))
}

// send starts a round with the same request to every node.
func (ns *nodeSet) send(r *round, req *protocol.Request) *round {
	for i := range r.seats {
		r.address(i, req)
	}
	return ns.sendAddressed(r)
}

// sendAddressed starts a round whose calls have their requests.
func (ns *nodeSet) sendAddressed(r *round) *round {
	for i, n := range ns.nodes {
		n.lane.Enqueue(&r.seats[i].call, r.start)
	}
	return r
}

// await waits for the final verdict, or for the end of ctx or of the Redlock.
func (ns *nodeSet) await(ctx context.Context, r *round) (verdict, error) {
	return r.waitFinal(ctx, ns.clock, ns.life.closing)
}

// ask sends the request to all nodes and waits for each of them, for the timeout per node
// at most.
func (ns *nodeSet) ask(ctx context.Context, req *protocol.Request) (*round, error) {
	r := &round{waitsForAll: true}
	r.init(ns.clock.Now(), make([]seat, len(ns.nodes)))
	_, err := ns.await(ctx, ns.send(r, req))
	return r, err
}

// askOne sends a request to one node, in a round of its own.
func (ns *nodeSet) askOne(i int, req *protocol.Request, now tick.Instant) *round {
	r := new(round)
	r.init(now, make([]seat, 1))
	r.address(0, req)
	ns.lane(i).Enqueue(&r.seats[0].call, now.Mono)
	return r
}

// outcomes are a round's votes as they are known now; nil if no node was asked.
func (ns *nodeSet) outcomes(r *round) []Outcome {
	if len(r.seats) == 0 {
		return nil
	}
	all := r.outcomes(ns.names)
	for i := range all {
		all[i].Err = ns.hinted(all[i].Err)
	}
	if len(all) != len(ns.nodes) {
		return all
	}
	now := ns.clock.Now().Mono
	for i := range all {
		if o := &all[i]; errors.Is(o.Err, protocol.ErrTimeout) || errors.Is(o.Err, lane.ErrOverdue) {
			if took := ns.lane(i).RoundTrip(now); took > o.Elapsed && o.Elapsed > 0 {
				o.Err = fmt.Errorf("%w: its answers take %v, longer than NodeTimeout", o.Err, took.Round(time.Millisecond))
			}
		}
	}
	return all
}

// hinted adds to a node's error what to give the user, where that lacks a permission.
func (ns *nodeSet) hinted(err error) error {
	return protocol.DeniedTo(err, ns.opts.KeyPrefix, errors.Is(err, guard.ErrUnsure))
}

// fail makes the error of a round that did not get its quorum.
func (ns *nodeSet) fail(r *round, o protocol.Op, key string, reasons ...error) *QuorumError {
	return &QuorumError{Op: o.String(), Key: key, Need: ns.quorum, Outcomes: ns.outcomes(r), reasons: reasons}
}

// pause waits for d, or less if ctx ends or the Redlock is closed.
func (ns *nodeSet) pause(ctx context.Context, d time.Duration) error {
	over, stop := tick.After(ns.clock, d)
	defer stop()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-ns.life.closing:
		ns.clock.Yield(int64(d))
		return ErrClosed
	}
}

// newPause is that between the first two tries on a new fleet. It doubles.
const newPause = time.Millisecond

// whileNew tries again, or looks whether to, until the grants of a new fleet's nodes count, or no further look can
// make them. No try begins later than most after the first.
func (ns *nodeSet) whileNew(ctx context.Context, most time.Duration, try func() (again bool)) {
	start := ns.clock.Now()
	for pause := newPause; try(); pause *= 2 {
		d := pause/2 + ns.clock.Jitter(pause) // several processes may have started together
		if ns.clock.Now().Since(start)+d > most || ns.pause(ctx, d) != nil {
			return
		}
	}
}

// onlyBarred reports whether a quorum is missing since grants do not count, and no node failed to answer.
func onlyBarred(err error) bool {
	var q *QuorumError
	if !errors.As(err, &q) || !errors.Is(err, ErrNoQuorum) {
		return false
	}
	barred := false
	for _, o := range q.Outcomes {
		switch o.Vote {
		case VoteBarred:
			barred = true
		case VoteGranted, VoteRefused, VotePending:
		default:
			if !errors.Is(o.Err, lane.ErrMoot) {
				return false
			}
		}
	}
	return barred
}

// lifetime is that of a Redlock.
type lifetime struct {
	closing chan struct{} // closed by Close
	busy    atomic.Int64  // acquires and adopts that may still have something to take back
	idle    chan struct{} // one token: busy came down to zero while closing
}

// enter announces an operation that may have something to take back. Each enter that
// returns true is followed by one leave.
func (l *lifetime) enter() bool {
	l.busy.Add(1)
	if l.closed() {
		l.leave()
		return false
	}
	return true
}

func (l *lifetime) leave() {
	if l.busy.Add(-1) == 0 && l.closed() {
		select {
		case l.idle <- struct{}{}:
		default:
		}
	}
}

// closed reports whether Close was called.
func (l *lifetime) closed() bool {
	select {
	case <-l.closing:
		return true
	default:
		return false
	}
}

// outage is whether a quorum of the nodes answers, as the lanes know it.
type outage struct {
	// asking has room for the one waiter that goes on making attempts meanwhile. Lanes
	// learn from them that their nodes are back.
	asking chan struct{}

	mu   sync.Mutex // taken under those of lanes; no other is taken under it
	most int        // so many nodes may be down
	down int
	back chan struct{} // closed when the outage is over; nil: there is none
}

func newOutage(nodes int) *outage {
	return &outage{asking: make(chan struct{}, 1), most: nodes - majority(nodes)}
}

// changed notes that a node went down or is up again.
func (o *outage) changed(down bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if down {
		o.down++
	} else {
		o.down--
	}
	switch {
	case o.down > o.most && o.back == nil:
		o.back = make(chan struct{})
	case o.down <= o.most && o.back != nil:
		close(o.back)
		o.back = nil
	}
}

// over is closed when a quorum answers again; nil if one does.
func (o *outage) over() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.back
}

// weight orders the nodes that may keep the wait queue of a key: the highest is the
// arbiter. All clients and all versions must agree on it. Rendezvous hashing spreads the
// queues evenly and moves only those of a node that is gone.
func weight(key, node uint64) uint64 {
	x := key + node
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fnv1a is the 64 bit FNV-1a hash.
func fnv1a(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// byWeight is the nodes' indexes, the arbiter of the key first.
func byWeight(key uint64, nodes []uint64) []int {
	order := make([]int, len(nodes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if weight(key, nodes[a]) > weight(key, nodes[b]) {
			return -1
		}
		return 1
	})
	return order
}
