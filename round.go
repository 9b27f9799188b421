package redlock

import (
	"context"
	"sync"
	"time"
)

// round is one fan-out: a request to every node, decided as early as the votes allow.
// Answers that come after the decision are still recorded. It must not be copied.
type round struct {
	start  instant
	all    bool // wait for every node, not just for a quorum
	seats  []seat
	signal chan struct{} // one token: the verdict moved
	// observer is told each final vote after it is recorded, with no mutex held; nil if
	// nobody wants to know.
	observer observer
	// guard says which grants count; nil: all do.
	guard  *guard
	period time.Duration // for which it keeps nodes from voting

	mu      sync.Mutex // guards what follows and the casts
	tally   tally
	waiting int     // grants that may count once other nodes were seen
	verdict verdict // only ever moves on: undecided, then hopeless or final, then final
	told    bool    // somebody waited and was told that it is hopeless
}

type observer interface{ observe(i int, b ballot) }

// seat is one node's place in a round: the call to it, which its lane guards, and its
// vote, which the round guards.
type seat struct {
	call call
	cast cast
	// handed: the call was given to its lane. Only the acquiring goroutine looks at it,
	// at the releases of an attempt that failed.
	handed bool
}

// cast is the latest that is known of one node's vote.
type cast struct {
	ballot
	elapsed time.Duration
	waits   bool // a grant that may count once other nodes were seen
}

// call is one request on its way to one node. Its lane guards everything in it but
// req, round and index, which do not change. Times are nanoseconds of the clock.
type call struct {
	req       *request
	round     *round // nil: nobody waits for the answer
	takesBack *call  // what a release takes back; nil if nothing in particular
	next      *call
	ballot    // once done or kept

	deadline int64 // when the caller stops waiting; of no meaning without a round
	// goneBy: the key is not there any more by then, so a release that could not be
	// delivered may be forgotten. Zero until a first try failed.
	goneBy int64
	// due: when a release that is kept is to be sent next.
	due int64

	index   int32 // the node's
	state   callState
	overdue bool // the caller was told that its time is up
	// unsure: the request was sent and its answer lost, so it may take effect at any
	// later time.
	unsure bool
	// over: it was unsure, and will take effect no more if it did not.
	over bool
	// stands: a SET that this one replaced was granted.
	stands bool
	// doubt: a SET that this one replaced was unsure, and may take effect yet.
	doubt bool
	// always: send a release even where the key surely is not ours, to learn what is.
	always bool
	// leaves: a release also takes us out of a line, so it is sent even where the SET
	// left nothing to take back.
	leaves bool
	// again: a release was answered once, and is sent a second time after a grace
	// because what it takes back may have landed in between.
	again bool
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

// init makes the round ready; seats are the nodes', new.
func (r *round) init(start instant, seats []seat) {
	r.start, r.seats = start, seats
	r.signal = make(chan struct{}, 1)
	r.tally = newTally(len(seats))
	r.verdict = undecided
	for i := range seats {
		seats[i].cast.vote = VotePending
	}
}

// send starts a round.
func (rl *Redlock) send(r *round, req *request) *round {
	for i := range r.seats {
		r.seats[i].call.to(r, req, i)
	}
	return rl.sendAddressed(r)
}

func (rl *Redlock) sendAddressed(r *round) *round {
	for i, n := range rl.nodes {
		n.lane.enqueue(&r.seats[i].call, r.start.mono)
	}
	return r
}

// to addresses a call of the round.
func (c *call) to(r *round, req *request, node int) {
	c.req, c.round, c.index = req, r, int32(node)
	c.deadline = r.start.mono + int64(req.timeout)
}

// deliver records a node's vote. A vote that is not final never replaces one that is.
func (r *round) deliver(i int, b ballot, now int64) {
	r.mu.Lock()
	v := &r.seats[i].cast
	if v.final {
		r.mu.Unlock()
		return
	}
	r.record(i, b, now)
	if r.waiting > 0 {
		r.reconsider(now)
	}
	switch {
	case !r.all:
		r.advance(r.tally.verdict())
	case r.tally.count[VotePending] == 0:
		r.advance(granted)
	}
	r.mu.Unlock()
	if b.final && r.observer != nil {
		r.observer.observe(i, b)
	}
}

// record notes a ballot as the guard judges it. What the lane knows of the call stays as
// it was: a grant that does not count is taken back like any other. The caller holds mu.
func (r *round) record(i int, b ballot, now int64) {
	v := &r.seats[i].cast
	v.waits = false
	if r.guard != nil && b.vote == VoteGranted {
		left, open := r.guard.judge(i, r.period, now)
		switch {
		case open:
			v.waits = true
			r.waiting++
			b.vote, b.final = VotePending, false
		case left > 0:
			b.vote, b.err = VoteBarred, errRestarted{left}
		}
	}
	r.tally.change(v.vote, b.vote)
	v.ballot, v.elapsed = b, time.Duration(now-r.start.mono)
}

// reconsider looks again at grants that waited for other nodes to be seen. When no more
// can come of it, they do not count. The caller holds mu.
func (r *round) reconsider(now int64) {
	for i := range r.seats {
		v := &r.seats[i].cast
		if !v.waits {
			continue
		}
		r.waiting--
		b := v.ballot
		b.vote, b.final = VoteGranted, true
		r.record(i, b, now)
	}
	if r.waiting == 0 || int(r.tally.count[VotePending]) > r.waiting {
		return
	}
	for i := range r.seats {
		if v := &r.seats[i].cast; v.waits {
			left, _ := r.guard.judge(i, r.period, now)
			v.waits, v.vote, v.err, v.final = false, VoteBarred, errRestarted{left}, true
			r.tally.change(VotePending, VoteBarred)
		}
	}
	r.waiting = 0
}

// advance moves the verdict, never back: once somebody was told that it is hopeless,
// late grants change nothing. They come where a guess, such as unknown, is replaced by
// an answer. The caller holds mu.
func (r *round) advance(to verdict) {
	if r.verdict == hopeless && to == granted && r.told {
		if to = hopeless; r.tally.count[VotePending] == 0 {
			to = noQuorum
		}
	}
	switch {
	case to == r.verdict, r.verdict != undecided && r.verdict != hopeless:
		return
	case to == undecided:
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

func (r *round) vote(i int) Vote {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seats[i].cast.vote
}

// first is what the first node said.
func (r *round) first() (Vote, any, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &r.seats[0].cast
	return c.vote, c.val, c.err
}

// tell is current for somebody who acts on it, unless it was seen.
func (r *round) tell(seen verdict) verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.told = r.told || r.verdict == hopeless && seen != hopeless
	return r.verdict
}

// wait returns when the round is decided, or with the error when ctx ends or the
// Redlock is closed first. Lanes resolve every call by its deadline, so it takes no
// longer than the timeout per node. It returns hopeless once, as soon as that is
// clear, if the caller has not seen it; called again, it waits for the final verdict.
func (r *round) wait(ctx context.Context, c clock, closing <-chan struct{}, seen verdict) (verdict, error) {
	for {
		if v := r.tell(seen); v != undecided && v != seen {
			return v, nil
		}
		select {
		case <-r.signal:
			c.yield(r.start.mono)
		case <-ctx.Done():
			c.yield(-r.start.mono)
			return r.current(), ctx.Err()
		case <-closing:
			return r.current(), ErrClosed
		}
	}
}

// waitFinal waits for the final verdict.
func (r *round) waitFinal(ctx context.Context, c clock, closing <-chan struct{}) (verdict, error) {
	return r.wait(ctx, c, closing, hopeless)
}

// outcomes copies the votes as they are known now.
func (r *round) outcomes(names []string) []Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Outcome, len(r.seats))
	for i := range r.seats {
		v := &r.seats[i].cast
		out[i] = Outcome{Node: names[i], Vote: v.vote, Holder: v.holder(), Elapsed: v.elapsed, Err: explained(v.err)}
	}
	return out
}

// incurable reports whether errors that waiting does not mend rule out a quorum alone.
func (r *round) incurable() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for i := range r.seats {
		if incurable(r.seats[i].cast.err) {
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
