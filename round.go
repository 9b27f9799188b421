package redlock

import (
	"context"
	"sync"
	"time"

	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/invariants"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// round is one fan-out: a request to every node, decided as early as the votes allow.
// Answers that come after the decision are still recorded. It must not be copied.
type round struct {
	start  int64 // nanoseconds of the clock
	seats  []seat
	signal chan struct{} // one token: the verdict moved
	// observer is told each final answer, as the node gave it, whatever the guard says; nil: none. No mutex of the
	// round or of a lane is held then; a Lock's own may be.
	observer observer
	// guard says which grants of an acquire count; nil: all do.
	guard *guard.Guard
	// period is for how long a node that may have forgotten is kept from voting.
	period time.Duration
	// tieBreaker is the node whose answer is waited for before the round is given up; -1:
	// none. An attempt that it granted asks the others again.
	tieBreaker  int16
	waitsForAll bool // for every node, not just for a quorum
	// numbered: only grants with the same number count together, see tally.ofOneNumber.
	numbered bool

	// mu guards what follows and the ballots.
	verdict verdict // open, perhaps hopeless, then final; only reopen moves it back
	givenUp bool    // it was hopeless, and what was granted is given back
	tally   tally
	mu      sync.Mutex
}

type observer interface {
	observe(node int, b protocol.Answer)
	// answered is called, as observe is, when the last pending vote came: once, unless the round is reopened.
	answered()
}

// seat is one node's place in a round. It has two guards: the call's lane guards the call,
// the round guards the ballot.
type seat struct {
	call   lane.Call
	ballot ballot
}

// ballot is the latest that is known of one node's vote: of its answer what the round needs, since an acquire and a
// release have ten of them.
type ballot struct {
	said  any // as in protocol.Answer
	took  time.Duration
	vote  Vote // as it counts
	kind  protocol.Kind
	final bool
}

// answer is what the node said, as far as it is kept.
func (c *ballot) answer() protocol.Answer {
	return protocol.Answer{Said: c.said, Kind: c.kind, Final: c.final}
}

// number is that of the permit that the node gave, if its grant counts; otherwise 0.
func (c *ballot) number() int64 {
	if c.vote != VoteGranted {
		return 0
	}
	return c.answer().Number()
}

// fence is the token that the node granted, if its grant counts; otherwise 0.
func (c *ballot) fence() uint64 {
	if c.vote != VoteGranted {
		return 0
	}
	return c.answer().Fence()
}

// withSeats returns a new T, which contains a round, with a seat per node; one allocation for 3 and 5 nodes.
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

// init makes the round ready; seats are the nodes', new. It keeps a signal that it was given:
// a token that is left in it does no harm.
func (r *round) init(start tick.Instant, seats []seat) {
	r.start, r.seats, r.tieBreaker = start.Mono, seats, -1
	if r.signal == nil {
		r.signal = make(chan struct{}, 1)
	}
	r.tally = newTally(len(seats))
	r.verdict = verdictOpen
	for i := range seats {
		seats[i].ballot.vote = VotePending
	}
}

// address prepares the round's call to a node.
func (r *round) address(node int, req *protocol.Request) {
	c := &r.seats[node].call
	c.Req, c.Caller, c.Index = req, r, int16(node)
	c.Deadline = r.start + int64(req.Timeout)
}

// Deliver records a node's vote. A vote that is not final never replaces one that is.
func (r *round) Deliver(i int, b protocol.Answer, now int64) {
	r.mu.Lock()
	v := &r.seats[i].ballot
	if v.final {
		r.mu.Unlock()
		return
	}
	pending := r.tally.count[VotePending] > 0
	r.record(i, b, now)
	switch {
	case !r.waitsForAll:
		if v := r.count(); v == verdictGranted || !r.awaitsTieBreaker() {
			r.advance(v)
		}
	case r.tally.count[VotePending] == 0:
		r.advance(verdictGranted)
	}
	answered := pending && r.tally.count[VotePending] == 0
	r.mu.Unlock()
	if r.observer == nil {
		return
	}
	if b.Final {
		r.observer.observe(i, b)
	}
	if answered {
		r.observer.answered()
	}
}

// record notes an answer as the guard judges it. What the lane knows of the call stays as
// it was: a grant that does not count is taken back like any other. The caller holds mu.
func (r *round) record(i int, b protocol.Answer, now int64) {
	v := &r.seats[i].ballot
	vote := votes[b.Kind]
	if r.guard != nil && vote == VoteGranted {
		vote, b = r.judge(i, b, now)
	}
	r.tally.change(v.vote, vote)
	v.said, v.kind, v.final = b.Said, b.Kind, b.Final
	v.vote, v.took = vote, time.Duration(now-r.start)
	r.addUp()
}

// addUp looks whether the tally is that of the votes; the caller holds mu.
func (r *round) addUp() {
	if !invariants.On {
		return
	}
	var count [voteEnd]int16
	for i := range r.seats {
		count[r.seats[i].ballot.vote]++
	}
	if count != r.tally.count {
		invariants.Broken("the tally %v is not that of the votes, %v", r.tally.count, count)
	}
}

// votes are what a node's answers count as, but for what the guard says of a grant.
var votes = [...]Vote{
	protocol.Granted: VoteGranted, protocol.Refused: VoteRefused, protocol.Unknown: VoteUnknown, protocol.Failed: VoteFailed, protocol.NotSent: VoteNotSent,
}

// judge is a grant as the guard sees it; the caller holds mu.
func (r *round) judge(i int, b protocol.Answer, now int64) (Vote, protocol.Answer) {
	switch left := r.guard.Judge(i, r.period, now); {
	case left > 0:
		b.Said = r.guard.Why(i, left)
	case b.Unsure:
		b.Said = guard.ErrUnsure
	default:
		return VoteGranted, b
	}
	return VoteBarred, b
}

// lacksForDuplicates reports whether a quorum is missing because nodes are the same server as others.
func (r *round) lacksForDuplicates() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	duplicates := 0
	for i := range r.seats {
		if _, ok := r.seats[i].ballot.said.(guard.DuplicateError); ok {
			duplicates++
		}
	}
	need := int(r.tally.need)
	return duplicates > 0 && (int(r.tally.count[VoteGranted])+duplicates >= need || len(r.seats)-duplicates < need)
}

// advance moves the verdict, never back: once the round was given up, late grants change
// nothing. They come where a guess, such as unknown, is replaced by an answer. The caller
// holds mu.
func (r *round) advance(to verdict) {
	if r.verdict == verdictHopeless && to == verdictGranted && r.givenUp {
		if to = verdictHopeless; r.tally.count[VotePending] == 0 {
			to = verdictNoQuorum
		}
	}
	switch {
	case to == r.verdict, r.verdict != verdictOpen && r.verdict != verdictHopeless:
		return
	case to == verdictOpen:
		return
	}
	r.verdict = to
	select {
	case r.signal <- struct{}{}:
	default:
	}
}

// awaitsTieBreaker reports whether the tie-breaker may still say that the round is to go
// on. The caller holds mu.
func (r *round) awaitsTieBreaker() bool {
	return r.tieBreaker >= 0 && r.seats[r.tieBreaker].ballot.vote == VotePending
}

// mayAskAgain reports whether the tie-breaker has granted, and a quorum may come of it if
// the nodes that refused are asked again.
func (r *round) mayAskAgain() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tieBreaker >= 0 && r.seats[r.tieBreaker].ballot.vote == VoteGranted && r.tally.withRefusals() >= int(r.tally.need)
}

// slowestAnswer is how long the nodes took that have granted or refused.
func (r *round) slowestAnswer() (took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.seats {
		if c := &r.seats[i].ballot; c.vote == VoteGranted || c.vote == VoteRefused {
			took = max(took, c.took)
		}
	}
	return took
}

// reopen makes the votes of nodes whose refusal is final pending again, if a quorum may come of asking them again,
// and returns these nodes. The verdict moves back, which nothing else makes it do, so nothing of the round may have
// been given back.
func (r *round) reopen() (again []int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tally.withRefusals() < int(r.tally.need) {
		return nil
	}
	if r.count() != verdictGranted { // by answers that came late
		for i := range r.seats {
			if c := &r.seats[i].ballot; c.vote == VoteRefused && c.final {
				*c = ballot{vote: VotePending}
				r.tally.change(VoteRefused, VotePending)
				again = append(again, i)
			}
		}
	}
	r.addUp()
	r.verdict = r.count()
	return again
}

// count reads the votes as they are now; the caller holds mu.
func (r *round) count() verdict {
	if !r.numbered {
		return r.tally.verdict()
	}
	t, _ := r.tally.ofOneNumber(r.numbers())
	return t.verdict()
}

// numbers are those of the permits that the nodes gave, 0 for none; the caller holds mu.
func (r *round) numbers() []int64 {
	all := make([]int64, len(r.seats))
	for i := range r.seats {
		all[i] = r.seats[i].ballot.number()
	}
	return all
}

// unknownNumber is that of a permit that a node gave by a grant that does not count, or not yet.
const unknownNumber = -1

// permit is the number that most nodes gave, and those that each of them gave.
func (r *round) permit() (most int64, all []int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all = r.numbers()
	_, most = r.tally.ofOneNumber(all)
	for i := range r.seats {
		if c := &r.seats[i].ballot; c.kind == protocol.Granted && c.vote != VoteGranted {
			all[i] = unknownNumber
		}
	}
	return most, all
}

func (r *round) current() verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.verdict
}

// ballot is what a node said, as it is known now.
func (r *round) ballot(i int) (Vote, protocol.Answer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &r.seats[i].ballot
	return c.vote, c.answer()
}

func (r *round) vote(i int) Vote {
	v, _ := r.ballot(i)
	return v
}

// fences are the tokens that the nodes granted, 0 for none.
func (r *round) fences() []uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	fences := make([]uint64, len(r.seats))
	for i := range r.seats {
		fences[i] = r.seats[i].ballot.fence()
	}
	return fences
}

// giveUp returns the verdict. If it is hopeless, the caller gives back what was granted, and late grants change
// nothing.
func (r *round) giveUp() verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.givenUp = r.givenUp || r.verdict == verdictHopeless
	return r.verdict
}

// wait returns when the round is decided, or with the error when ctx ends or the Redlock is closed first. Lanes
// resolve every call by its deadline, so it takes no longer than the timeout per node. seen is the verdict that the
// caller knows: with verdictHopeless it waits for the final one.
func (r *round) wait(ctx context.Context, c tick.Clock, closing <-chan struct{}, seen verdict) (verdict, error) {
	for {
		if v := r.current(); v != verdictOpen && v != seen {
			return v, nil
		}
		select {
		case <-r.signal:
			c.Yield(r.start)
		case <-ctx.Done():
			c.Yield(-r.start)
			return r.current(), ctx.Err()
		case <-closing:
			c.Yield(-r.start)
			return r.current(), ErrClosed
		}
	}
}

// waitFinal waits for the final verdict.
func (r *round) waitFinal(ctx context.Context, c tick.Clock, closing <-chan struct{}) (verdict, error) {
	return r.wait(ctx, c, closing, verdictHopeless)
}

// outcomes copies the votes as they are known now.
func (r *round) outcomes(names []string) []Outcome {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]Outcome, len(r.seats))
	for i := range r.seats {
		v := &r.seats[i].ballot
		b := v.answer()
		out[i] = Outcome{Node: names[i], Vote: v.vote, Holder: b.Holder(), Elapsed: v.took, Err: protocol.WithHint(b.Err())}
	}
	return out
}

// permanent reports whether errors that neither waiting nor these remedies mend are enough to rule out a quorum.
func (r *round) permanent(awaited protocol.Remedies) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for i := range r.seats {
		if protocol.PermanentBut(r.seats[i].ballot.answer().Err(), awaited) {
			n++
		}
	}
	return n >= blocking(len(r.seats))
}
