package redlock

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/golden"
	"github.com/quorumlock/redlock/internal/testing/ticktest"
	"github.com/quorumlock/redlock/internal/tick"
)

// Scenario 53.
func TestMajoritiesIntersect(t *testing.T) {
	for n := 1; n <= 101; n++ {
		q := majority(n)
		assert.Greater(t, 2*q, n, "two majorities of %d nodes must share one", n)
		assert.LessOrEqual(t, 2*(q-1), n, "%d of %d nodes is more than needed", q, n)
		// So nodes may be added and removed one by one under running clients.
		assert.Greater(t, q+majority(n+1)-1, n, "majorities of %d nodes and of one more must share one of the %d", n, n)
		tally := newTally(n)
		assert.Equal(t, n, q+blocking(int(tally.n))-1, "the rest of a blocking set is one short of a quorum")
	}
}

// classify is what a completed round amounts to, said as naively as possible.
func classify(votes []Vote) verdict {
	var grants, others float64
	for _, v := range votes {
		switch v {
		case VoteGranted:
			grants++
		case VoteRefused:
			others++
		}
	}
	half := float64(len(votes)) / 2
	switch {
	case grants > half:
		return verdictGranted
	case float64(len(votes))-others <= half: // even all who did not refuse are no majority
		return verdictHeld
	default:
		return verdictNoQuorum
	}
}

// endings calls f with every way in which the pending votes may turn out.
func endings(votes []Vote, f func([]Vote)) {
	for i, v := range votes {
		if v != VotePending {
			continue
		}
		for _, end := range []Vote{VoteGranted, VoteRefused, VoteUnknown} {
			votes[i] = end
			endings(votes, f)
		}
		votes[i] = VotePending
		return
	}
	f(votes)
}

// naive decides by trying every ending.
func naive(votes []Vote) verdict {
	seen := map[verdict]bool{}
	endings(votes, func(end []Vote) { seen[classify(end)] = true })
	switch {
	case len(seen) == 1:
		for v := range seen {
			return v
		}
	case seen[verdictGranted]:
		return verdictOpen
	}
	return verdictHopeless
}

// eachVector calls f with every vector of votes of n nodes.
func eachVector(n int, f func([]Vote)) {
	votes := make([]Vote, n)
	var fill func(i int)
	fill = func(i int) {
		if i == n {
			f(votes)
			return
		}
		for v := VotePending; v < voteEnd; v++ {
			votes[i] = v
			fill(i + 1)
		}
	}
	fill(0)
}

// count makes a tally of votes that came in the given order of nodes.
func count(votes []Vote, order []int) tally {
	t := newTally(len(votes))
	for _, i := range order {
		t.change(VotePending, votes[i])
	}
	return t
}

// A decision made early must be the one that every ending of the round leads to, so
// this shows that deciding at quorum is sound, too.
func TestVerdictIsThatOfANaiveTwin(t *testing.T) {
	// The twin does not look at who voted what, so once for each mix of votes will do.
	known := map[[voteEnd]int]verdict{}
	for n := 1; n <= 7; n++ {
		eachVector(n, func(votes []Vote) {
			var mix [voteEnd]int
			for _, v := range votes {
				mix[v]++
			}
			if known[mix] == 0 {
				known[mix] = naive(votes)
			}
			order := rand.Perm(n)
			want, got := known[mix], count(votes, order)
			if got.verdict() != want {
				t.Fatalf("%v in order %v: %v, want %v", votes, order, got.verdict(), want)
			}
		})
	}
}

// What is unknown may turn out either way later, and pending votes come one by one:
// no path may contradict a decision.
func TestVerdictIsTheSameInEveryOrder(t *testing.T) {
	for range 3000 {
		n := 1 + rand.IntN(15)
		votes := make([]Vote, n)
		for i := range votes {
			votes[i] = VotePending + Vote(rand.IntN(int(voteEnd-VotePending)))
		}
		a, b := count(votes, rand.Perm(n)), count(votes, rand.Perm(n))
		require.Equal(t, a, b)
		sum := int16(0)
		for _, c := range a.count {
			sum += c
		}
		require.Equal(t, n, int(sum), "the counts add up to the nodes")
	}
}

// FuzzTally is the twin for more nodes than can be tried one and all.
func FuzzTally(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 0, 1})
	f.Add([]byte{2, 2, 2})
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, seed []byte) {
		if len(seed) == 0 || len(seed) > 9 {
			return
		}
		votes := make([]Vote, len(seed))
		for i, b := range seed {
			votes[i] = VotePending + Vote(b)%(voteEnd-VotePending)
		}
		tally := count(votes, rand.Perm(len(votes)))
		if got, want := tally.verdict(), naive(votes); got != want {
			t.Fatalf("%v: %v, want %v", votes, got, want)
		}
	})
}

// step is an answer that reaches a round.
type step struct {
	node int
	protocol.Answer
}

// Whatever order answers come in, also such that replace a guess ("unknown" or
// "not sent" for now), a round moves on from open by way of hopeless to a final
// verdict, never back, and never ends without one.
func TestRoundMovesOnAndEndsWithAVerdict(t *testing.T) {
	guesses := []protocol.Kind{protocol.Unknown, protocol.NotSent}
	for seed := range uint64(10000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		n := 1 + rng.IntN(5)
		var steps []step
		for i := range n {
			if rng.IntN(2) == 0 {
				steps = append(steps, step{i, protocol.Answer{Kind: guesses[rng.IntN(2)]}})
			}
			final := protocol.Granted + protocol.Kind(rng.IntN(int(protocol.NotSent)))
			steps = append(steps, step{i, protocol.Answer{Kind: final, Final: true}})
		}
		// A guess for a node comes before its answer, whatever the rest does.
		rng.Shuffle(len(steps), func(i, j int) {
			if steps[i].node != steps[j].node {
				steps[i], steps[j] = steps[j], steps[i]
			}
		})
		guessedAfter := make(map[int]bool)
		acts := rng.IntN(2) == 0 // whether somebody acts on hopelessness

		var r round
		r.init(tick.Instant{}, make([]seat, n))
		r.tieBreaker = int16(rng.IntN(n+1) - 1)
		before, givenUp := r.current(), false
		for _, s := range steps {
			if guessedAfter[s.node] && !s.Final {
				continue
			}
			guessedAfter[s.node] = s.Final || guessedAfter[s.node]
			r.Deliver(s.node, s.Answer, 0)
			now := r.current()
			switch {
			case now == before:
			case before == verdictOpen:
			case before == verdictHopeless && (now == verdictHeld || now == verdictNoQuorum):
			case before == verdictHopeless && now == verdictGranted && !givenUp:
			default:
				t.Fatalf("seed %d: %v became %v at %v", seed, before, now, steps)
			}
			if now != verdictOpen && now != verdictGranted && r.tieBreaker >= 0 && r.vote(int(r.tieBreaker)) == VotePending {
				t.Fatalf("seed %d: %v without the answer of the tie-breaker at %v", seed, now, steps)
			}
			if acts {
				givenUp = r.giveUp() == verdictHopeless || givenUp
			}
			before = now
		}
		if before == verdictOpen || before == verdictHopeless {
			t.Fatalf("seed %d: all answers are in and the round is %v: %v", seed, before, steps)
		}
	}
}

// Somebody who gives up a round has released what was granted.
func TestLateGrantsChangeNothingOnceHopeless(t *testing.T) {
	over, cancel := context.WithCancel(t.Context())
	cancel() // or a round that is still open would be waited for
	var r round
	r.init(tick.Instant{}, make([]seat, 5))
	for i, v := range []protocol.Kind{protocol.Refused, protocol.Refused, protocol.Unknown, protocol.Granted} {
		r.Deliver(i, protocol.Answer{Kind: v}, int64(i))
	}
	v, err := r.wait(over, tick.NewSystem(), nil, verdictOpen)
	require.NoError(t, err)
	require.Equal(t, verdictHopeless, v)
	require.Equal(t, verdictHopeless, r.giveUp())
	r.Deliver(2, protocol.Answer{Kind: protocol.Granted, Final: true}, 2)
	r.Deliver(4, protocol.Answer{Kind: protocol.Granted, Final: true}, 4)
	v, err = r.waitFinal(over, tick.NewSystem(), nil)
	require.NoError(t, err)
	assert.Equal(t, verdictNoQuorum, v)
	assert.Equal(t, VoteGranted, r.outcomes(make([]string, 5))[4].Vote, "but they are recorded")
}

// Nodes are asked again that refused for good, and no others.
func TestRoundThatIsReopened(t *testing.T) {
	refused, granted := protocol.Answer{Kind: protocol.Refused, Final: true}, protocol.Answer{Kind: protocol.Granted, Final: true}
	unknown, failed := protocol.Answer{Kind: protocol.Unknown}, protocol.Answer{Kind: protocol.Failed, Final: true}
	for _, c := range []struct {
		name    string
		votes   []protocol.Answer // the tie-breaker's first; empty ones are pending
		may     bool
		again   []int
		verdict verdict
	}{
		{"all others refused", []protocol.Answer{granted, refused, refused, refused, refused}, true, []int{1, 2, 3, 4}, verdictOpen},
		{"one is silent", []protocol.Answer{granted, refused, unknown, refused, granted}, true, []int{1, 3}, verdictOpen},
		{"one has not answered yet", []protocol.Answer{granted, refused, failed, refused, {}}, true, []int{1, 3}, verdictOpen},
		{"too many are silent", []protocol.Answer{granted, refused, unknown, unknown, unknown}, false, nil, verdictNoQuorum},
		{"too many failed", []protocol.Answer{granted, granted, failed, failed, failed}, false, nil, verdictNoQuorum},
		{"the tie-breaker refused", []protocol.Answer{refused, granted, refused, refused, granted}, false, []int{0, 2, 3}, verdictOpen},
		{"the tie-breaker is silent", []protocol.Answer{unknown, granted, refused, refused, granted}, false, []int{2, 3}, verdictOpen},
		{"a late grant made a quorum", []protocol.Answer{granted, granted, granted, refused, refused}, true, nil, verdictGranted},
	} {
		var r round
		r.init(tick.Instant{}, make([]seat, len(c.votes)))
		r.tieBreaker = 0
		for i, b := range c.votes {
			if b.Kind != 0 {
				r.Deliver(i, b, 5)
			}
		}
		assert.Equal(t, c.may, r.mayAskAgain(), c.name)
		assert.Equal(t, c.again, r.reopen(), c.name)
		assert.Equal(t, c.verdict, r.current(), c.name)
		for _, i := range c.again {
			assert.Equal(t, Outcome{Vote: VotePending}, r.outcomes(make([]string, len(c.votes)))[i], c.name)
			r.Deliver(i, granted, 7)
		}
		if c.again != nil {
			assert.Equal(t, verdictGranted, r.current(), c.name)
		}
	}
}

func TestAnswersAreNotReplaced(t *testing.T) {
	var r round
	r.init(tick.Instant{Mono: 100}, make([]seat, 1))
	r.Deliver(0, protocol.Answer{Kind: protocol.Unknown}, 100+int64(time.Second))
	r.Deliver(0, protocol.Answer{Kind: protocol.Granted, Final: true}, 100+int64(time.Minute))
	r.Deliver(0, protocol.Answer{Kind: protocol.Unknown}, 100+int64(time.Hour))
	assert.Equal(t, []Outcome{{Node: "a", Vote: VoteGranted, Elapsed: time.Minute}}, r.outcomes([]string{"a"}))
}

func TestVotesAndVerdictsHaveNames(t *testing.T) {
	names := map[string]bool{}
	for v := VotePending; v < voteEnd; v++ {
		names[v.String()] = true
	}
	assert.Len(t, names, int(voteEnd-VotePending))
	for v := verdictOpen; v <= verdictNoQuorum; v++ {
		names[v.String()] = true
	}
	assert.Len(t, names, int(voteEnd-VotePending)+4, "only granted is both")
	assert.Equal(t, "pending granted refused unknown failed not sent barred",
		fmt.Sprint(VotePending, " ", VoteGranted, " ", VoteRefused, " ", VoteUnknown, " ", VoteFailed, " ", VoteNotSent, " ", VoteBarred))
	assert.Equal(t, "Vote(0)", Vote(0).String())
	assert.Equal(t, "Vote(8)", voteEnd.String())
	assert.Equal(t, "verdict(0)", verdict(0).String())
}

// A vote is judged once, when it comes, by what is known of its own node.
func TestRoundJudgesAVoteOnce(t *testing.T) {
	c := ticktest.NewFakeClock()
	g := guard.New([]string{"0", "1", "2"}, 0, c)
	r := &round{guard: g, period: 10 * time.Second}
	r.init(c.Now(), make([]seat, 3))
	yes := protocol.Answer{Kind: protocol.Granted, Final: true}
	see := func(i int, age time.Duration) {
		run := fmt.Sprint(i)
		g.Saw(i, protocol.ServerReport{Asked: true, RunID: run, ReplID: "r", Mark: protocol.ReadMark("id 1 later "+run+" r 0 0", true, age+time.Microsecond)})
	}
	see(0, 0)
	r.Deliver(0, yes, c.Now().Mono)
	require.Equal(t, VoteBarred, r.vote(0))
	for i := 1; i < 3; i++ {
		see(i, time.Hour)
		r.Deliver(i, yes, c.Now().Mono)
		require.Equal(t, VoteGranted, r.vote(i))
	}
	c.Advance(time.Hour)
	require.Equal(t, verdictGranted, r.current())
	require.Equal(t, VoteBarred, r.vote(0))
	require.ErrorContains(t, r.outcomes(make([]string, 3))[0].Err, "votes count from ")

	r.init(c.Now(), make([]seat, 3))
	yes.Unsure = true
	r.Deliver(1, yes, c.Now().Mono)
	require.Equal(t, VoteBarred, r.vote(1), "whatever is known over other connections")
	require.ErrorIs(t, r.outcomes(make([]string, 3))[1].Err, guard.ErrUnsure)
}

// A permit is a number that a majority gave: grants with other numbers are refusals. Of two that as many nodes
// gave it is the lesser, whatever the order of the nodes.
func TestOnlyGrantsOfOneNumberCount(t *testing.T) {
	for _, c := range []struct {
		given            []int64 // 0: no grant
		number           int64
		granted, refused int16
	}{
		{[]int64{0, 0, 0}, 0, 0, 0},
		{[]int64{2, 0, 0}, 2, 1, 0},
		{[]int64{1, 1, 1}, 1, 3, 0},
		{[]int64{3, 1, 3}, 3, 2, 1},
		{[]int64{1, 3, 3}, 3, 2, 1},
		{[]int64{2, 1, 0}, 1, 1, 1},
		{[]int64{1, 2, 0}, 1, 1, 1},
		{[]int64{2, 2, 1, 1, 3}, 1, 2, 3},
		{[]int64{1, 1, 2, 2, 0}, 1, 2, 2},
	} {
		tally := newTally(len(c.given))
		for _, n := range c.given {
			if n > 0 {
				tally.change(VotePending, VoteGranted)
			}
		}
		got, number := tally.ofOneNumber(c.given)
		assert.Equal(t, c.number, number, c.given)
		assert.Equal(t, c.granted, got.count[VoteGranted], c.given)
		assert.Equal(t, c.refused, got.count[VoteRefused], c.given)
		assert.Equal(t, tally.count[VotePending], got.count[VotePending], c.given)
	}
}

func TestGoldenQuorum(t *testing.T) {
	golden.Run(t, "quorum.txt", func(c golden.Command) string {
		switch c.Name {
		case "majority": // n
			tally := newTally(c.Number("n"))
			return fmt.Sprintf("n=%d: quorum %d, ruled out by %d refusals", tally.n, tally.need, blocking(int(tally.n)))
		case "verdict": // n, votes in the order of nodes; the rest is pending
			return goldenVerdict(goldenVotes(c))
		case "votes": // the same, and the verdict after each vote
			var b strings.Builder
			votes := goldenVotes(c)
			for i := range c.Args {
				soFar := append([]Vote(nil), votes...)
				for j := i + 1; j < len(votes); j++ {
					soFar[j] = VotePending
				}
				fmt.Fprintf(&b, "%-8v %s\n", votes[i], goldenVerdict(soFar))
			}
			return b.String()
		case "table": // n, rest: the verdict for each number of grants and refusals
			return goldenTable(c, c.Number("n"), goldenVote(c, c.Values["rest"]))
		default:
			return c.Unknown()
		}
	})
}

func goldenVote(c golden.Command, name string) Vote {
	for v := VotePending; v < voteEnd; v++ {
		if v.String() == name {
			return v
		}
	}
	c.T.Fatalf("golden: there is no such vote as %q", name)
	return 0
}

func goldenVotes(c golden.Command) []Vote {
	votes := make([]Vote, c.Number("n"))
	for i := range votes {
		if votes[i] = VotePending; i < len(c.Args) {
			votes[i] = goldenVote(c, c.Args[i])
		}
	}
	return votes
}

func goldenTable(c golden.Command, n int, rest Vote) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for refused := range n + 1 {
		fmt.Fprintf(w, "\t%d refused", refused)
	}
	for grants := range n + 1 {
		fmt.Fprintf(w, "\n%d granted", grants)
		for refused := range n + 1 - grants {
			votes := make([]Vote, n)
			for i := range votes {
				switch {
				case i < grants:
					votes[i] = VoteGranted
				case i < grants+refused:
					votes[i] = VoteRefused
				default:
					votes[i] = rest
				}
			}
			fmt.Fprint(w, "\t", goldenVerdict(votes))
		}
	}
	_ = w.Flush()
	return b.String()
}

// goldenVerdict is the verdict on votes, computed by a naive twin, too, and for nodes in
// other orders.
func goldenVerdict(votes []Vote) string {
	order := make([]int, len(votes))
	for i := range order {
		order[i] = i
	}
	t := count(votes, order)
	text := t.verdict().String()
	if twin := naive(append([]Vote(nil), votes...)); twin != t.verdict() {
		text += fmt.Sprint(" MISMATCH twin: ", twin)
	}
	for range votes {
		order = append(order[1:], order[0])
		if turned := count(votes, order); turned.verdict() != t.verdict() {
			text += fmt.Sprint(" MISMATCH nodes in order ", order, ": ", turned.verdict())
		}
	}
	return text
}

func TestQuorumErrorIsOneReadableLine(t *testing.T) {
	e := &QuorumError{Op: "acquire", Key: "orders:42", Need: 3, HolderTTL: 2345678 * time.Microsecond, Outcomes: []Outcome{
		{Node: "a:1/0", Vote: VoteGranted, Elapsed: 1234567},
		{Node: "b:1/0", Vote: VoteRefused, Holder: "0123456789abcdef0123456789abcdef@me", Elapsed: time.Millisecond},
		{Node: "c:1/0", Vote: VoteUnknown, Elapsed: time.Second, Err: errors.New("line\r\nbreak")},
		{Node: "d:1/0", Vote: VotePending, Holder: "0123456789abcdef0123456789abcdef@me"},
		{Node: "e:1/0", Vote: VoteNotSent, Err: errors.New("waiting in the queue"), Holder: "by hand@me"},
		{Node: "f:1/0", Vote: VoteRefused, Holder: "bm90IHRoYXQgc2VjcmV0IQ=="},
	}, reasons: []error{context.Canceled, errors.New("the cause"), ErrHeld}}
	assert.Equal(t, `redlock: acquire "orders:42": held by another: context canceled, the cause (1 of 6 nodes granted, 3 needed; `+
		`the holder's lease ends in 2.346s): a:1/0 granted after 1.23ms; b:1/0 refused (found "01234567...@me") after 1ms; `+
		`c:1/0 unknown (line break) after 1s; d:1/0 pending; e:1/0 not sent (has "by hand@me") (waiting in the queue); f:1/0 refused (found "bm90IHRo...")`, e.Error())
	assert.ErrorIs(t, e, ErrHeld)
	assert.ErrorIs(t, e, context.Canceled)
	assert.NotErrorIs(t, e, ErrNoQuorum)

	e = &QuorumError{Op: "open", Need: 1, reasons: []error{ErrNoQuorum}}
	assert.Equal(t, "redlock: open: no quorum", e.Error())
}

// A node's timeout is not the call's: errors.Is does not find it.
func TestErrorsOfNodesAreNotThoseOfTheCall(t *testing.T) {
	e := &QuorumError{Outcomes: []Outcome{{Node: "a", Vote: VoteUnknown, Err: context.DeadlineExceeded}}, reasons: []error{ErrNoQuorum}}
	assert.NotErrorIs(t, e, context.DeadlineExceeded)
	assert.ErrorIs(t, e.Outcomes[0].Err, context.DeadlineExceeded)
}

// FuzzQuorumError: whatever names, keys, values and errors there are, it is one line.
func FuzzQuorumError(f *testing.F) {
	f.Add("k", "a:1", "tok@me", "EOF", "held", int64(1), uint8(3))
	f.Add("\n\r\x00", "a\nb", "\u2028", "x\r\ny", "a\nb", int64(-1), uint8(0))
	f.Add(strings.Repeat("é", 100), "", strings.Repeat("x", 1000), "", "", int64(math.MaxInt64), uint8(255))
	f.Fuzz(func(t *testing.T, key, node, holder, problem, reason string, left int64, vote uint8) {
		e := &QuorumError{Op: "acquire", Key: key, Need: 2, HolderTTL: time.Duration(left), Outcomes: []Outcome{
			{Node: node, Vote: Vote(vote), Holder: holder, Elapsed: time.Duration(left), Err: errors.New(problem)},
			{Node: "last", Vote: VotePending},
		}, reasons: []error{errors.New(reason), ErrHeld}}
		text := e.Error()
		if i := strings.IndexFunc(text, func(r rune) bool { return r != ' ' && unicode.IsSpace(r) }); i >= 0 {
			t.Fatalf("%q has more than one line", text)
		}
		if !strings.HasPrefix(text, "redlock: acquire") || !strings.HasSuffix(text, "; last pending") {
			t.Fatalf("%q", text)
		}
		if !errors.Is(e, ErrHeld) {
			t.Fatal("the reason is lost")
		}
	})
}
