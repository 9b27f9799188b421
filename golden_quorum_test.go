package redlock

import (
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
)

func TestGoldenQuorum(t *testing.T) {
	golden(t, "quorum.txt", func(c goldenCommand) string {
		switch c.name {
		case "majority": // n
			tally := newTally(c.number("n"))
			return fmt.Sprintf("n=%d: quorum %d, ruled out by %d refusals", tally.n, tally.need, blocking(tally.n))
		case "verdict": // n, votes in the order of nodes; the rest is pending
			return goldenVerdict(c.votes())
		case "votes": // the same, and the verdict after each vote
			var b strings.Builder
			votes := c.votes()
			for i := range c.args {
				soFar := append([]Vote(nil), votes...)
				for j := i + 1; j < len(votes); j++ {
					soFar[j] = VotePending
				}
				fmt.Fprintf(&b, "%-8v %s\n", votes[i], goldenVerdict(soFar))
			}
			return b.String()
		case "table": // n, rest: the verdict for each number of grants and refusals
			return c.table(c.number("n"), c.vote(c.values["rest"]))
		default:
			return c.unknown()
		}
	})
}

func (c goldenCommand) vote(name string) Vote {
	for v := VotePending; v < voteEnd; v++ {
		if v.String() == name {
			return v
		}
	}
	c.t.Fatalf("golden: there is no such vote as %q", name)
	return 0
}

func (c goldenCommand) votes() []Vote {
	votes := make([]Vote, c.number("n"))
	for i := range votes {
		if votes[i] = VotePending; i < len(c.args) {
			votes[i] = c.vote(c.args[i])
		}
	}
	return votes
}

func (c goldenCommand) table(n int, rest Vote) string {
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
