package redlock

import (
	"context"
	"sync"
	"time"
)

// round is one fan-out: a request to every node, decided as early as the votes allow.
// Answers that come after the decision are still recorded.
type round struct {
	start  instant
	all    bool // wait for every node, not just for a quorum
	calls  []call
	signal chan struct{} // one token: the verdict moved
	// observe is told each final vote after it is recorded, with no mutex held; nil if
	// nobody wants to know.
	observe func(i int, b ballot)

	mu      sync.Mutex
	tally   tally
	verdict verdict // only ever moves on: undecided, then hopeless or final, then final
	votes   []cast
}

// cast is the latest that is known of one node's vote.
type cast struct {
	ballot
	elapsed time.Duration
}

func newRound(n int, start instant, all bool) *round {
	r := &round{
		start:   start,
		all:     all,
		calls:   make([]call, n),
		signal:  make(chan struct{}, 1),
		tally:   newTally(n),
		verdict: undecided,
		votes:   make([]cast, n),
	}
	for i := range r.votes {
		r.votes[i].vote = VotePending
	}
	return r
}

// call is one request on its way to one node. Its lane guards everything in it but
// req, round and index, which do not change.
type call struct {
	req   *request
	round *round // nil: nobody waits for the answer
	index int    // the node's

	next     *call
	state    callState
	deadline time.Time // when the caller stops waiting; zero without a round
	overdue  bool      // the caller was told so
	reply    reply
	ballot   ballot // once done or kept

	// unsure: the request was sent and its answer lost, so it may take effect at any
	// later time.
	unsure bool

	// A release remembers what it takes back: nil if nothing in particular.
	takesBack *call
	// always: send it even where the key surely is not ours, to learn what is there.
	always bool
	// again: it was answered once, and is sent a second time after a grace because
	// what it takes back may have landed in between.
	again bool
	// goneBy: the key is not there any more by then, so a release that could not be
	// delivered may be forgotten. Zero until a first try failed.
	goneBy time.Time
	// due: when a release that is kept is to be sent next.
	due time.Time
}

type callState uint8

const (
	callNew     callState = iota
	callQueued            // waits in its lane
	callOut               // was or may have been sent
	callKept              // a release that waits for its node or its grace
	callDone              // answered, or will never be
	callDropped           // never sent
)

// begin sends the request to every node, to be decided by a quorum.
func (rl *Redlock) begin(start instant, req *request) *round {
	return rl.send(newRound(len(rl.nodes), start, false), req)
}

// send starts a round.
func (rl *Redlock) send(r *round, req *request) *round {
	for i := range r.calls {
		c := &r.calls[i]
		c.req, c.round, c.index = req, r, i
		c.deadline = r.start.mono.Add(req.timeout)
	}
	for i, n := range rl.nodes {
		n.lane.enqueue(&r.calls[i], r.start.mono)
	}
	return r
}

// deliver records a node's vote. A vote that is not final never replaces one that is.
func (r *round) deliver(i int, b ballot, now time.Time) {
	r.mu.Lock()
	v := &r.votes[i]
	if v.final {
		r.mu.Unlock()
		return
	}
	r.tally.change(v.vote, b.vote)
	*v = cast{ballot: b, elapsed: now.Sub(r.start.mono)}
	switch {
	case !r.all:
		r.advance(r.tally.verdict())
	case r.tally.count[VotePending] == 0:
		r.advance(granted)
	}
	r.mu.Unlock()
	if b.final && r.observe != nil {
		r.observe(i, b)
	}
}

// advance moves the verdict, never back: once hopeless, late grants change nothing.
func (r *round) advance(to verdict) {
	switch {
	case to == r.verdict, r.verdict != undecided && r.verdict != hopeless:
		return
	case r.verdict == hopeless && to != held && to != noQuorum:
		return
	}
	r.verdict = to
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

func (r *round) current() verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.verdict
}

// wait returns when the round is decided, or with the error when ctx ends or the
// Redlock is closed first. Lanes resolve every call by its deadline, so it takes no
// longer than the timeout per node. Whatever becomes hopeless calls lost once, before
// it is clear how to call it.
func (r *round) wait(ctx context.Context, closing <-chan struct{}, lost func()) (verdict, error) {
	for {
		select {
		case <-r.signal:
		case <-ctx.Done():
			return r.current(), ctx.Err()
		case <-closing:
			return r.current(), ErrClosed
		}
		switch v := r.current(); v {
		case undecided:
		case hopeless:
			if lost != nil {
				lost()
				lost = nil
			}
		default:
			return v, nil
		}
	}
}

// outcomes copies the votes as they are known now.
func (r *round) outcomes(names []string) []Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Outcome, len(r.votes))
	for i, v := range r.votes {
		out[i] = Outcome{Node: names[i], Vote: v.vote, Holder: v.holder, Elapsed: v.elapsed, Err: explained(v.err)}
	}
	return out
}

// incurable reports whether errors that waiting does not mend rule out a quorum alone.
func (r *round) incurable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, v := range r.votes {
		if incurable(v.err) {
			n++
		}
	}
	return n >= r.tally.blocking()
}

// fail makes the error of a round that did not get its quorum.
func (r *round) fail(rl *Redlock, op kind, key string, reasons ...error) *QuorumError {
	return &QuorumError{
		Op: op.String(), Key: key, Need: rl.quorum,
		Outcomes: r.outcomes(rl.names), reasons: reasons,
	}
}
