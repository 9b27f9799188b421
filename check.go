package redlock

import (
	"context"
	"fmt"
	"time"

	"github.com/quorumlock/redlock/internal/examine"
	"github.com/quorumlock/redlock/internal/protocol"
)

// checkPatience bounds how long Check waits for a node.
const checkPatience = 3 * time.Second

// Check asks every node about things that could break locks. Each finding says what it means
// and what to do. There are findings about nodes that are down or refuse to serve us, the
// same server under two names, replicas, nodes of a cluster, eviction, persistence, replicas
// that a failover would promote, nodes that may not vote yet after they lost their data, clocks
// that differ, answers slower than Options.NodeTimeout, old versions, and permissions that the
// library needs and the user lacks. Settings that a node does not let us read are findings, too.
//
// Check asks all nodes at once. It returns when each has answered, after three seconds, when
// ctx ends or when the Redlock is closed. The Report has what was learned until then in any
// case. The error wraps ctx's error, ErrClosed, or ErrNoQuorum if no majority of nodes serves
// us; if nodes were asked, errors.As finds a *QuorumError. Findings are no error, however severe they are; see Report.Worst.
//
// It cannot see that clients of a key use different TTLs, which the restart guard does not cover (see
// Options.RestartGuard): nodes know leases, and not for how long clients will bar a node. A client that
// waits and meets such a lease tells Hooks.Degraded.
//
// Check itself leaves nothing on the nodes. It tests permissions with commands that fail even where
// they are allowed, or whose key does not exist. Commands that are denied appear in the server's
// ACL LOG. Permissions for keys are tested with one random key behind Options.KeyPrefix only. A
// cluster or ring client has several servers, so Check only learns whether it answers at all.
func (rl *Redlock) Check(ctx context.Context) (Report, error) {
	if rl.life.closed() {
		return Report{}, fmt.Errorf("redlock: check: %w", ErrClosed)
	}
	if ctx.Err() != nil {
		return Report{}, &QuorumError{Op: "check", Need: rl.quorum, reasons: withContextErr(ctx)}
	}
	probe, err := rl.tokens.newValue("")
	if err != nil {
		return Report{}, err
	}
	start := rl.clock.Now()
	all, closed := examine.All(ctx, rl.clients, rl.names, rl.clock, checkPatience, rl.life.closing, rl.questions(probe[:tokenLen]))
	if end, ok := ctx.Deadline(); ok && !rl.clock.Now().Time.Before(end) {
		<-ctx.Done() // connections time out a little earlier than their context
	}
	now, s := rl.clock.Now(), examine.Setup{TTL: rl.opts.TTL, NodeTimeout: rl.opts.nodeTimeout(rl.opts.TTL), Quorum: rl.quorum}
	ms := examine.Remember(all, rl.opts.RestartGuard > 0, now)
	if rl.guard != nil {
		s.Guard = rl.guard.Period(rl.opts.TTL, false)
		examine.Barring(all, ms, s.Guard, now, rl.guard.Changed)
	}
	report := Report{Quorum: rl.quorum, Findings: []Finding{}}
	for _, f := range examine.Judge(all, s) {
		report.Findings = append(report.Findings, Finding{f.Node, Severity(f.Severity), f.Code, f.Message, f.Advice})
	}
	for _, f := range all {
		report.Nodes = append(report.Nodes, reportOf(f.Node))
	}
	var reasons []error
	switch {
	case ctx.Err() != nil:
		reasons = withContextErr(ctx)
	case closed:
		reasons = []error{ErrClosed}
	case examine.Count(all, examine.Facts.Serves) < rl.quorum:
		reasons = []error{ErrNoQuorum}
	default:
		return report, nil
	}
	outcomes := checkOutcomes(all, rl.clock.Now().Since(start))
	return report, &QuorumError{Op: "check", Need: rl.quorum, Outcomes: outcomes, reasons: reasons}
}

// questions are about a random key behind the prefix.
func (rl *Redlock) questions(random string) examine.Questions {
	key := rl.opts.KeyPrefix + "redlock-check-" + random
	of := protocol.NamingOf(key)
	line := of.QueueKey(key)
	if line == "" {
		line = key // with such a prefix no lock has a line
	}
	return examine.Questions{
		Key: key, Line: line, Holders: of.HoldersKey(key), Door: of.DoorKey(key), Channel: "redlock:" + random, Mark: markKeyOf(&rl.opts),
	}
}

// checkOutcomes are the nodes as a QuorumError names them. waited is how long those that
// gave no answer were waited for.
func checkOutcomes(all []examine.Facts, waited time.Duration) []Outcome {
	outcomes := make([]Outcome, len(all))
	for i, f := range all {
		o := Outcome{Node: f.Node.Node, Vote: VoteGranted, Err: f.Err, Elapsed: waited}
		switch {
		case f.Err == nil:
			o.Elapsed = f.Latency
		case f.Reachable:
			o.Vote = VoteFailed
		default:
			o.Vote = VoteNotSent
		}
		outcomes[i] = o
	}
	return outcomes
}
