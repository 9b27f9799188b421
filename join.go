package redlock

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
)

// How a waiter joins the queue at a node, what it is told there, and how it leaves.

// mostAsked is how often a node that is up is asked to keep the queue before the next one.
const mostAsked = 4

var errNoQueue = errors.New("no node keeps a queue")

// answer is what a node says to one that joins.
type answer struct {
	ours          bool          // the lock is reserved for us
	number        int64         // of our permit then; 0: none
	ahead         int64         // how many are before us
	ttl           time.Duration // of the lock's key
	arrival       int64
	wasAbsent     bool // we were not in the queue
	publishDenied bool
	holder        string
	given         string // a notice of all waiters of this process that have it reserved with others
}

func readAnswer(val any) (a answer, ok bool) {
	f, _ := val.([]any)
	if len(f) != 7 && len(f) != 8 {
		return a, false
	}
	var n [6]int64
	for i := range n {
		if n[i], ok = f[i].(int64); !ok {
			return a, false
		}
	}
	a = answer{
		ours: n[0] > 0, number: max(n[0]-1, 0), ahead: n[1], ttl: time.Duration(n[2]) * time.Millisecond,
		arrival: n[3], wasAbsent: n[4] == 1, publishDenied: n[5] == 1,
	}
	if len(f) == 8 {
		a.given, _ = f[7].(string)
	}
	a.holder, ok = f[6].(string)
	return a, ok
}

// ask joins the queue of the first node that keeps one, or refreshes the place in it.
func (w *waiter) ask(ctx context.Context) (a answer, err error) {
	at, moved := w.of.queues.movedTo(w.r, w.r.clock.Now().Mono)
	if w.join != nil && (!moved || at == w.node) { // sent when the last attempt failed
		if a, err = w.receive(ctx); !errors.Is(err, errNoQueue) {
			return a, err
		}
	}
	for _, i := range w.of.nodes() {
		if !w.of.mayAsk(w.r, i) {
			continue
		}
		if a, err = w.askNode(ctx, i); !errors.Is(err, errNoQueue) {
			return a, err
		}
	}
	w.of.askAll()
	return answer{}, errNoQueue
}

// askNode joins the queue of one node, or refreshes the place in it.
func (w *waiter) askNode(ctx context.Context, node int) (a answer, err error) {
	if w.entry == "" || node != w.node {
		w.withdraw()
		if err = w.register(ctx, node); err != nil {
			return a, err
		}
	}
	// One that is only slow, under the load of many joins, is no reason to part the
	// queue.
	for range mostAsked {
		w.send()
		a, err = w.receive(ctx)
		if !errors.Is(err, errNoQueue) || w.entry == "" || !w.r.reachable(node, w.r.clock.Now().Mono) {
			break
		}
	}
	return a, err
}

// value is that of the next attempt.
func (w *waiter) value() string {
	_, rest, _ := strings.Cut(w.entry, " ")
	_, value, _ := strings.Cut(rest, " ")
	return value
}

// register gives the waiter a new entry for the queue of a node. It may first wait for the subscription.
func (w *waiter) register(ctx context.Context, node int) error {
	qs := w.of.queues
	if w.sub == nil || w.sub.node != node {
		qs.subscribe(ctx, w, node)
	}
	if node != w.node {
		w.node, w.arrival = node, min(w.arrival, 0)
	}
	value, err := w.r.tokens.newValue(w.r.terms.owner)
	if err != nil {
		return err
	}
	w.entry, w.joins = fmt.Sprintf("%s %d%s %s", qs.process, w.r.reservation().Milliseconds(), w.r.terms.modeInQueue(), value), nil
	qs.mu.Lock()
	defer qs.mu.Unlock()
	w.state, w.number = joining, 0
	qs.byName[nameOf(value)] = w
	return nil
}

// send joins the queue with the present entry. Back promises when this process will have looked at the queue again: a
// node that has not heard of it by then passes its waiters over.
func (w *waiter) send() {
	now := w.r.clock.Now()
	since := int64(0)
	if w.arrival == 0 {
		since = w.came // mutant: waited-elsewhere
	}
	w.join = w.r.askOne(w.node, protocol.JoinRequest(&w.r.terms.Terms, w.r.name, w.value(), &protocol.QueueArgs{
		Key: w.r.queueKey(), Holders: w.r.holdersKey(), Entry: w.entry, Ended: w.ended, Arrival: max(w.arrival, 0), Since: since,
		Back: 2 * w.of.throttled(w.r.reservation()/2),
	}), now)
	w.joins = append(w.r.lane(w.node).StillPending(w.joins), &w.join.seats[0].call)
}

// receive waits for the answer to send. It returns errNoQueue if there is none, or the node answered that it keeps no
// queue for us; then the entry is withdrawn, since its claim would need the same rights.
func (w *waiter) receive(ctx context.Context) (answer, error) {
	join := w.join
	v, err := w.r.await(ctx, join)
	if err != nil {
		return answer{}, err
	}
	w.join = nil
	vote, b := join.ballot(0)
	a, ok := readAnswer(b.Said)
	switch {
	case vote == VoteFailed, vote == VoteRefused:
		w.of.refused(w.node, b.Err())
		w.withdraw()
		return answer{}, errNoQueue
	case v != verdictGranted || !ok:
		return answer{}, errNoQueue
	}
	w.ended, w.arrival = "", a.arrival
	w.heard(a, join.seats[0].call.Req.Queue.Back)
	return a, nil
}

// heard takes in what a node said to this waiter, for the benefit of all. The node was told in what time
// this process will be back.
func (w *waiter) heard(a answer, back time.Duration) {
	k, qs := w.of, w.of.queues
	if a.publishDenied {
		qs.notePublishDenied(w.node, nil)
	}
	at := qs.set.clock.Now()
	now := at.Mono
	qs.mu.Lock()
	defer qs.mu.Unlock()
	// If the node forgot our entry it forgot theirs; if we had to change nodes, so must they.
	if w.state == queued && a.wasAbsent || k.node >= 0 && k.node != w.node {
		k.pokeOthers(w)
	}
	k.node = w.node
	switch {
	case !a.ours:
		k.refusedAt, k.holding = now, holding{at: at, node: w.node, holder: holderOf(a.holder), ttl: max(a.ttl, 0)}
		if w.state != turn { // a notice was faster
			w.state = queued
		}
	case w.state != turn && w.inVain():
		w.state, w.number = polling, a.number
	default:
		w.state, w.number = turn, a.number
	}
	qs.wake(a.given, w) // notices may be on the way, or lost
	qs.wakeOne(a.holder, 0, w)
	d := min(k.interval(), back/2) // there may be many more keys now than when it was told
	if a.ttl >= 0 {                // 0: within this millisecond
		d = min(d, a.ttl+time.Millisecond+qs.set.clock.Jitter(qs.set.opts.RetryMin))
	}
	k.lookIn(now, d)
}

// claim hands the entry over to an attempt, which sets its value. The attempt ends, and
// with it the value: it is never registered again.
func (w *waiter) claim() (node int16, entry, value string, number int32, joins []*lane.Call) {
	qs := w.of.queues
	node, entry, value, joins = int16(w.node), w.entry, w.value(), w.joins
	qs.mu.Lock()
	delete(qs.byName, nameOf(value))
	number, w.number, w.state, w.of.turnAt = int32(w.number), 0, trying, w.r.clock.Now().Mono
	w.of.leftLine(w.of.turnAt)
	qs.mu.Unlock()
	w.ended, w.entry, w.joins, w.join = entry, "", nil, nil
	return node, entry, value, number, joins
}

// rejoin takes the old place with a new entry, after an attempt that failed. It is sent
// before anything of the attempt is taken back, so that the arbiter finds us first in the
// queue still.
func (w *waiter) rejoin() {
	w.failures, w.failedAt = w.failures+1, w.node
	if w.register(context.Background(), w.node) == nil {
		w.send()
	}
}

// withdraw takes the entry out of the queue it is in, and passes the turn on if it was
// ours. It has nothing to do with the caller's context, and is sent again by the lane
// until the node has answered.
func (w *waiter) withdraw() {
	if w.entry == "" {
		return
	}
	r, value := w.r, w.value()
	q := r.queueArgs(w.entry, protocol.AsWaiter)
	req := protocol.QueueReleaseRequest(&r.terms.Terms, r.name, value, q)
	if r.terms.shared {
		req = protocol.SharedReleaseRequest(&r.terms.Terms, r.name, value, r.shareArgs(0), q)
	}
	req.KeepFor = max(req.KeepFor, protocol.QueueLife)
	if n := len(w.joins); n > 0 {
		l, last := r.lane(w.node), w.joins[n-1]
		if len(l.StillPending(w.joins[:n-1])) > 0 {
			l.MarkUncertain(last)
		}
		l.TakeBack(&lane.Call{Req: &req, Set: last, When: lane.Always}, r.clock.Now().Mono)
	}
	qs := w.of.queues
	qs.mu.Lock()
	delete(qs.byName, nameOf(value))
	w.state = joining
	w.of.leftLine(r.clock.Now().Mono)
	qs.mu.Unlock()
	w.entry, w.ended, w.joins, w.join = "", "", nil, nil
}
