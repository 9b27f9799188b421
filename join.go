package redlock

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// How a waiter joins the queue at a node, and what it is told there.

// mostAsked is how often a node that is up is asked to keep the queue before the next is.
const mostAsked = 4

var (
	errNoQueue    = errors.New("no node keeps a queue")
	errTurnedAway = fmt.Errorf("%w: refused", errNoQueue)
)

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
func (w *waiter) ask(ctx context.Context) (answer, error) {
	turnedAway := false
	if w.join != nil { // sent when the last attempt failed
		a, err := w.receive(ctx)
		if !errors.Is(err, errNoQueue) {
			return a, err
		}
		turnedAway = errors.Is(err, errTurnedAway)
	}
	for _, i := range w.nodes() {
		a, err := w.askNode(ctx, i, &turnedAway)
		if !errors.Is(err, errNoQueue) {
			return a, err
		}
	}
	if turnedAway {
		w.withdraw() // or the next attempt would claim by a script what there is no right to
	}
	return answer{}, errNoQueue
}

// nodes is all nodes in the order in which they are asked to keep the queue.
func (w *waiter) nodes() []int {
	first, ok := w.queues.movedTo(w.resource, w.clock.Now().Mono)
	if !ok {
		return w.order
	}
	order := []int{first}
	for _, i := range w.order {
		if i != first {
			order = append(order, i)
		}
	}
	return order
}

// askNode joins the queue of one node, or refreshes the place in it.
func (w *waiter) askNode(ctx context.Context, node int, turnedAway *bool) (answer, error) {
	now := w.clock.Now()
	if w.queues.skips(node, now.Mono) {
		return answer{}, errNoQueue
	}
	if now.Mono < w.refusedUntil[node] {
		*turnedAway = true
		return answer{}, errNoQueue
	}
	if !w.reachable(node, now.Mono) {
		w.queues.probe(w.resource, node, now)
		return answer{}, errNoQueue
	}
	if w.entry == "" || node != w.node {
		w.withdraw()
		if err := w.register(ctx, node); err != nil {
			return answer{}, err
		}
	}
	// One that is only slow, under the load of many joins, is no reason to part the
	// queue.
	for range mostAsked {
		w.send()
		a, err := w.receive(ctx)
		if !errors.Is(err, errNoQueue) {
			return a, err
		}
		*turnedAway = errors.Is(err, errTurnedAway)
		if now := w.clock.Now().Mono; !w.reachable(node, now) || *turnedAway {
			break
		}
	}
	return answer{}, errNoQueue
}

// register gives the waiter a new entry for the queue of a node.
func (w *waiter) register(ctx context.Context, node int) error {
	if w.sub == nil || w.sub.node != node {
		w.queues.subscribe(ctx, w, node)
	}
	if node != w.node {
		w.node, w.arrival = node, 0
	}
	value, err := w.tokens.newValue(w.terms.owner)
	if err != nil {
		return err
	}
	w.value, w.joined, w.joins = value, false, nil
	w.entry = fmt.Sprintf("%s %d%s %s", w.queues.process, w.reservation().Milliseconds(), w.terms.modeInQueue(), value)
	qs := w.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if w.place == nil {
		w.of.add(w)
	}
	w.woken, w.number = false, 0
	qs.byName[nameOf(value)] = w
	return nil
}

// send joins the queue with the present entry.
func (w *waiter) send() {
	now := w.clock.Now()
	since := int64(0)
	if w.arrival == 0 {
		since = w.since.Mono // mutant: waited-elsewhere
	}
	w.join = w.askOne(w.node, protocol.JoinRequest(&w.terms.Terms, w.name, w.value, &protocol.QueueArgs{
		Key: w.queueKey(), Holders: w.holdersKey(), Entry: w.entry, Ended: w.ended, Arrival: w.arrival, Since: since, Back: w.backIn(),
	}), now)
	w.joins = append(w.lane(w.node).MayLand(w.joins), &w.join.seats[0].call)
}

// receive waits for the answer to send. It returns errTurnedAway if the node answered that
// it keeps no queue for us, errNoQueue if it did not answer.
func (w *waiter) receive(ctx context.Context) (answer, error) {
	join := w.join
	v, err := w.resource.await(ctx, join)
	if err != nil {
		return answer{}, err
	}
	w.join = nil
	vote, val, failure := join.ballot(0)
	a, ok := readAnswer(val)
	switch {
	case vote == VoteFailed:
		w.queues.skip(w.node, failure)
		if protocol.OtherType(failure) {
			if w.refusedUntil == nil {
				w.refusedUntil = make(map[int]int64)
			}
			w.refusedUntil[w.node] = w.clock.Now().Mono + int64(returnEvery)
		}
		return answer{}, errTurnedAway
	case vote == VoteRefused:
		return answer{}, errTurnedAway
	case v != verdictGranted || !ok:
		return answer{}, errNoQueue
	}
	w.ended, w.arrival, w.number = "", a.arrival, a.number
	if w.since == (tick.Instant{}) {
		w.since = tick.Instant{Mono: max(join.start, 1)} // all that Since needs
	}
	w.queues.heard(w, a)
	w.joined = true
	return a, nil
}
