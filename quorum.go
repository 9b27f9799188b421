package redlock

import (
	"fmt"
	"time"
)

// Vote is what one node said to one request.
type Vote uint8

const (
	// VotePending: the node has not answered yet, and there is still time.
	VotePending Vote = iota + 1
	// VoteGranted: the node did what was asked.
	VoteGranted
	// VoteRefused: for an acquire, the lock is held or reserved on the node, a waiting writer keeps newcomers out, or
	// no permit is free; for an adopt, extend or release, the key is another's or gone.
	VoteRefused
	// VoteUnknown: the request was or may have been sent and no answer came. It
	// may have taken effect, may yet take effect, or may never.
	VoteUnknown
	// VoteFailed: the server answered with an error, so the request had no effect. Of an
	// acquire with a fencing token, which is a script, a part may have been done; it is
	// taken back.
	VoteFailed
	// VoteNotSent: the request was not sent and will not be: there is no connection, the node is not answering
	// earlier requests, the operation was decided before, it waited too long, the Redlock was closed, or the node is
	// the same server as another.
	VoteNotSent
	// VoteBarred: the node granted, but its grant may not be counted: the node may have
	// forgotten earlier grants, see Options.RestartGuard.
	VoteBarred

	voteEnd
)

// String returns the vote in lower case, as it appears in errors.
func (v Vote) String() string {
	switch v {
	case VotePending:
		return "pending"
	case VoteGranted:
		return "granted"
	case VoteRefused:
		return "refused"
	case VoteUnknown:
		return "unknown"
	case VoteFailed:
		return "failed"
	case VoteNotSent:
		return "not sent"
	case VoteBarred:
		return "barred"
	default:
		return fmt.Sprintf("Vote(%d)", uint8(v))
	}
}

// Outcome is one node's part in an operation.
type Outcome struct {
	// Node is the node's name, as in Redlock.Nodes.
	Node string
	// Vote is the latest that is known. An answer that comes after the decision
	// still replaces VotePending or VoteUnknown in later copies.
	Vote Vote
	// Holder is the value that the node found under the key: a token and the
	// owner's label. The token is enough to take the lock, so treat it as a secret; the texts of
	// errors shorten it. It is empty where no script told it: a plain acquire does not, and
	// neither does a release where the key is reserved for a waiter.
	Holder string
	// Elapsed is the time from the start of the operation to the vote, zero while
	// the vote is pending.
	Elapsed time.Duration
	// Err says why the vote is unknown, failed, not sent or barred, or, where it is refused, that
	// the key holds no lock. For a panic see NodeInfo.Err.
	Err error
}

// majority is the least number such that any two sets of so many of n nodes share one.
func majority(n int) int { return n/2 + 1 } // mutant: majority

// verdict is what the votes of a round amount to.
type verdict uint8

const (
	// verdictOpen: more votes may still make a quorum.
	verdictOpen verdict = iota + 1
	// verdictGranted: a quorum granted.
	verdictGranted
	// verdictHopeless: a quorum is out of reach, and the pending votes decide only how
	// to call it: held or no quorum.
	verdictHopeless
	// verdictHeld: so many nodes refused that no quorum can be had from the others.
	verdictHeld
	// verdictNoQuorum: a quorum is out of reach, and refusals alone do not explain it.
	verdictNoQuorum
)

func (v verdict) String() string {
	switch v {
	case verdictOpen:
		return "undecided"
	case verdictGranted:
		return "granted"
	case verdictHopeless:
		return "hopeless"
	case verdictHeld:
		return "held"
	case verdictNoQuorum:
		return "no quorum"
	default:
		return fmt.Sprintf("verdict(%d)", uint8(v))
	}
}

// tally counts the votes of one round over n nodes, of which need make a quorum.
// Invariant: the counts add up to n.
type tally struct {
	n, need int16
	count   [voteEnd]int16
}

func newTally(n int) tally {
	t := tally{n: int16(n), need: int16(majority(n))}
	t.count[VotePending] = t.n
	return t
}

// change records that a node's vote is now to, having been from.
func (t *tally) change(from, to Vote) {
	t.count[from]--
	t.count[to]++
}

// ofOneNumber is the tally in which grants with another number than most nodes gave count as refusals, and that
// number, on a tie the lowest; 0 if there is none. given has each node's number: 0 if it did not grant.
//
// A node gives each holder of a semaphore a number, and no number twice. A permit is a number
// that a majority gave, so each permit is a lock of its own, and no more are held than there
// are numbers. To count holders on each node instead would not do: of three holders of two
// permits on three nodes each can have a majority.
func (t tally) ofOneNumber(given []int64) (tally, int64) {
	count, best := make(map[int64]int16), int64(0)
	for _, n := range given {
		if n == 0 {
			continue
		}
		if count[n]++; count[n] > count[best] || count[n] == count[best] && n < best {
			best = n
		}
	}
	others := t.count[VoteGranted] - count[best]
	t.count[VoteGranted] -= others
	t.count[VoteRefused] += others
	return t, best
}

// withRefusals is how many might yet grant if those that refused were asked again, with those that granted or are
// pending.
func (t *tally) withRefusals() int {
	return int(t.count[VoteGranted] + t.count[VoteRefused] + t.count[VotePending])
}

// blocking is how many of n nodes, by not granting, rule out a quorum.
func blocking(n int) int { return n - majority(n) + 1 } // mutant: blocking

// verdict reads the votes. An unknown vote never counts as granted or refused.
func (t *tally) verdict() verdict {
	var (
		grants   = int(t.count[VoteGranted])
		refusals = int(t.count[VoteRefused]) // mutant: refusals
		pending  = int(t.count[VotePending])
	)
	switch {
	case grants >= int(t.need):
		return verdictGranted
	case refusals >= blocking(int(t.n)):
		return verdictHeld
	case grants+pending >= int(t.need):
		return verdictOpen
	case refusals+pending >= blocking(int(t.n)):
		return verdictHopeless
	default:
		return verdictNoQuorum
	}
}
