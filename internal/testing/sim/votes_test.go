package sim_test

import (
	"context"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/guard"
)

// simVoter is what a process knows of one node's vote: by the acquires that met it, and by what its hooks were told.
type simVoter struct {
	barred      bool  // by the hooks
	counts      bool  // by the acquires
	since, last int64 // the first and the last of those that met it so, one soon after the other; 0: none
}

const (
	// simVoteTold is for how long acquires meet a node with or without its vote until the hooks must have said so: a
	// second, and some for processors that are busy.
	simVoteTold = int64(1500 * time.Millisecond)
	// simVoteGap is how soon after each other they meet it. What happens between two of them is not known.
	simVoteGap = int64(700 * time.Millisecond)
)

// oneBar reports whether all locks of the plan are barred for as long as those of Options.TTL, of which the hooks tell.
func (p *simPlan) oneBar() bool {
	period := max(p.TTL, p.RestartGuard, guard.FirstUse)
	for _, fenced := range p.Fenced {
		if fenced && period < guard.FencedGuard {
			return false
		}
	}
	return p.RestartGuard >= 0 && !p.Mixed && !p.HandOvers
}

// acquired is told of each acquire that has ended.
func (p *simProcess) acquired(_ context.Context, i redlock.AcquireInfo) {
	if !p.w.plan.oneBar() {
		return
	}
	t := p.w.t()
	for node, o := range i.Outcomes {
		if o.Vote == redlock.VoteGranted || o.Vote == redlock.VoteBarred {
			p.metVote(node, o.Vote == redlock.VoteGranted, t)
		}
	}
}

// metVote: the hooks tell of a node that has no vote, or has it again, within a second of the answer that showed it.
func (p *simProcess) metVote(node int, counts bool, t int64) {
	p.votes.Lock()
	defer p.votes.Unlock()
	v := p.voter(node)
	if v.since == 0 || v.counts != counts || t-v.last > simVoteGap {
		v.counts, v.since = counts, t
	}
	v.last = t
	long := t-v.since > simVoteTold
	p.w.reached("acquires meet a node without a vote for long", long && !counts)
	if long && v.barred == counts {
		p.w.violated("votes: acquires of process %d met node %d from %.6f ms on, always with its vote: %v, and its hooks say otherwise", p.i, node, ms(v.since), counts)
	}
}

// voter is that of a node; the caller holds votes.
func (p *simProcess) voter(node int) *simVoter {
	for len(p.votes.of) <= node {
		p.votes.of = append(p.votes.of, simVoter{})
	}
	return &p.votes.of[node]
}

// voteTold is what the hooks say. It says nothing twice, and gives no reason for a vote.
func (p *simProcess) voteTold(i redlock.VoteInfo, barred bool) {
	p.votes.Lock()
	defer p.votes.Unlock()
	for node, name := range p.rl.Nodes() {
		v := p.voter(node)
		if name != i.Node {
			continue
		}
		if barred != (i.Err != nil) || !barred && !v.barred {
			p.w.violated("votes: process %d is told of node %d: barred %v, then %v (%v)", p.i, node, v.barred, barred, i.Err)
		}
		v.barred = barred
	}
	p.w.reached("a node is told of that votes again", !barred)
}
