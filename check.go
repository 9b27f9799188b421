package redlock

import (
	"context"
	"fmt"
	"time"
)

const (
	// checkPatience bounds how long Check waits for a node.
	checkPatience = 3 * time.Second
	// clockPatience is by how much the nodes' clocks may differ.
	clockPatience = time.Second
	// clockSamples is how often a node is asked for its time; the quickest answer counts.
	clockSamples = 3
)

// Check asks every node what could break locks, and says what each finding means and what
// to do: nodes that are down or refuse us, the same server under two names, replicas,
// nodes of a cluster, eviction, persistence, replicas that a failover would promote, clocks
// that differ, answers slower than Options.NodeTimeout, old versions, and rights that the
// library needs and the user lacks. What a node does not let us read is a finding, too.
//
// All nodes are asked at once. It ends when each has answered, after three seconds, when
// ctx ends or when the Redlock is closed; what was learnt until then is in the Report in
// any case. The error is the one of ctx, ErrClosed, or ErrNoQuorum if no majority of nodes
// serves us, along with a *QuorumError. Findings of whatever severity are no error; see
// Report.Worst.
//
// Nothing is written that stays. Rights are tested with commands that a user who has them
// is answered with an error, or that meet a key which does not exist; those that are denied
// show in the server's ACL LOG. Which keys a user may touch is tested with one random key
// behind Options.KeyPrefix only. Behind a cluster or ring client there are several servers,
// of which Check only learns whether they answer at all.
func (rl *Redlock) Check(ctx context.Context) (Report, error) {
	if rl == nil || rl.closing == nil {
		return Report{}, fmt.Errorf("redlock: check: %w Redlock: it was not made by Open or New", ErrInvalid)
	}
	if rl.isClosed() {
		return Report{}, fmt.Errorf("redlock: check: %w", ErrClosed)
	}
	if ctx.Err() != nil {
		return Report{}, &QuorumError{Op: "check", Need: rl.quorum, reasons: ended(ctx)}
	}
	probe, err := rl.newValue()
	if err != nil {
		return Report{}, err
	}
	start := rl.clock.now()
	all, closed := rl.examineAll(ctx, probe[:tokenLen])

	report := Report{Quorum: rl.quorum, Findings: judge(all, rl.setup())}
	for _, f := range all {
		report.Nodes = append(report.Nodes, f.NodeReport)
	}
	var reasons []error
	switch {
	case ctx.Err() != nil:
		reasons = ended(ctx)
	case closed:
		reasons = []error{ErrClosed}
	case serving(all) < rl.quorum:
		reasons = []error{ErrNoQuorum}
	default:
		return report, nil
	}
	outcomes := checkOutcomes(all, rl.clock.now().since(start))
	return report, &QuorumError{Op: "check", Need: rl.quorum, Outcomes: outcomes, reasons: reasons}
}

// examineAll asks all nodes at once, and returns what is known of each when it has answered
// or when waiting is over. closed: the Redlock was closed meanwhile.
func (rl *Redlock) examineAll(ctx context.Context, probe string) (all []facts, closed bool) {
	asking, cancel := context.WithTimeout(ctx, checkPatience)
	defer cancel()
	// go-redis does not look at a context while it reads, so a hung node's goroutine is
	// left to end by the read's own timeout.
	updates := make([]chan facts, len(rl.clients))
	for i, c := range rl.clients {
		updates[i] = make(chan facts, examinerSteps)
		e := examiner{clock: rl.clock, prefix: rl.opts.KeyPrefix, probe: probe, updates: updates[i]}
		e.Node = rl.names[i]
		go e.examine(asking, c)
	}
	for i := range updates {
		last, c := latest(asking, rl.closing, updates[i], rl.names[i])
		all, closed = append(all, last), closed || c
	}
	if end, ok := ctx.Deadline(); ok && !rl.clock.now().time.Before(end) {
		<-ctx.Done() // connections time out a little earlier than their context
	}
	return all, closed
}

// latest returns the last update about a node: when its examiner is done, when waiting for it
// is over, or when the Redlock is closed.
func latest(asking context.Context, closing <-chan struct{}, updates <-chan facts, name string) (last facts, closed bool) {
	last.NodeReport = NodeReport{Node: name, Err: fmt.Errorf("no answer within %v", checkPatience)}
	for {
		// Updates come first: one that is there is taken even if waiting is over.
		select {
		case f, more := <-updates:
			if !more {
				return last, false
			}
			last = f
			continue
		default:
		}
		select {
		case f, more := <-updates:
			if !more {
				return last, false
			}
			last = f
		case <-asking.Done():
			last.cut = true
			return last, false
		case <-closing:
			last.cut = true
			return last, true
		}
	}
}

// serving counts the nodes that can be used.
func serving(all []facts) (n int) {
	for _, f := range all {
		if f.Err == nil {
			n++
		}
	}
	return n
}

// checkOutcomes are the nodes as a QuorumError names them. waited is how long those that
// gave no answer were waited for.
func checkOutcomes(all []facts, waited time.Duration) []Outcome {
	outcomes := make([]Outcome, len(all))
	for i, f := range all {
		o := Outcome{Node: f.Node, Vote: VoteGranted, Err: f.Err, Elapsed: waited}
		switch {
		case f.Err == nil:
			o.Elapsed = f.Latency
		case f.Reachable:
			o.Vote = VoteFailed
		default:
			o.Vote = VoteBarred
		}
		outcomes[i] = o
	}
	return outcomes
}

// facts are what is known of a node, to be judged.
type facts struct {
	NodeReport
	many   bool // a cluster or ring client: several servers
	cut    bool // time was over before all was asked
	unread []unread
	lacks  []denial
	masked bool // the probe's key was refused, so nothing is known of rights to keys
}

type unread struct{ what, means, err string }

type denial struct {
	need need
	what string
	err  string
}

// need is what a right is for.
type need uint8

const (
	forLocks need = iota + 1
	forLines
	forNotices
)
