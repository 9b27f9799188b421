package admin

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Check asks all nodes at once about what could break locks: nodes that are down, refuse to serve or have no vote, the
// same server under two names, replicas, eviction, persistence, clocks, latency, old versions, missing
// permissions. Each Finding says what it means and what to do.
//
// It returns after three times Options.Timeout at most, or when ctx ends, with what was learned until then. The
// error, an *Error, is ErrNoQuorum if no majority of nodes serves us, or ctx's. Findings are no error, however
// severe; see Report.Worst.
//
// It leaves no keys on nodes, and a script in their caches. Permissions are tested with commands that fail even where
// they are allowed; denied ones appear in the server's ACL LOG.
func (n *Nodes) Check(ctx context.Context) (Report, error) {
	if err := n.ended(ctx); err != nil {
		return Report{}, &Error{Op: "check", Reason: err}
	}
	random := make([]byte, 16)
	_, _ = rand.Read(random) // it never fails
	all := n.examineAll(ctx, n.questions(hex.EncodeToString(random)))
	over := n.ended(ctx)
	now, s := n.clock.Now(), setup{TTL: n.opts.TTL, NodeTimeout: n.opts.NodeTimeout, Quorum: n.Quorum(), Own: protocol.NewClientName(n.clients, n.opts.KeyPrefix, "")}
	ms := remember(all, n.opts.RestartGuard > 0, now)
	if !n.opts.NoRestartGuard {
		s.Guard = max(n.opts.TTL, n.opts.RestartGuard, 2*time.Second)
		barring(all, ms, s.Guard, now)
	} else {
		voteless(all)
	}
	report := Report{Quorum: n.Quorum(), Findings: judge(all, s)}
	failed := &Error{Op: "check"}
	for _, f := range all {
		report.Nodes = append(report.Nodes, f.NodeReport)
		failed.Nodes = append(failed.Nodes, NodeError{f.Node, f.Err, f.elapsed})
	}
	switch {
	case over != nil:
		failed.Reason = over
	case count(all, facts.serves) < n.Quorum():
		failed.Reason = ErrNoQuorum
	default:
		return report, nil
	}
	return report, failed
}

// questions are about a random key behind the prefix.
func (n *Nodes) questions(random string) questions {
	key := n.opts.KeyPrefix + "redlock-check-" + random
	of := protocol.NamingOf(key)
	line := of.QueueKey(key)
	if line == "" {
		line = key // with such a prefix no lock has a queue
	}
	mark := n.opts.KeyPrefix + protocol.MarkKey
	if n.opts.NoRestartGuard {
		mark = ""
	}
	return questions{Key: key, Line: line, Holders: of.HoldersKey(key), Door: of.DoorKey(key), Channel: "redlock:" + random, Mark: mark}
}
