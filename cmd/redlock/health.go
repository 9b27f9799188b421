package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/admin"
)

// health is which nodes can grant locks: they answer, serve us, and their grants count.
type health struct {
	quorum int
	total  int
	votes  int
	barred []barredNode
	since  map[string]time.Time // by node: since when it has lost no data; none where that is not known
	until  time.Time            // when a quorum may vote if nothing else happens; zero: that does not help
}

// barredNode is one that answers, and whose grants do not count: it may have forgotten locks, or lacks something.
type barredNode struct {
	name  string
	until time.Time // zero: not known
	why   error     // as a client says it
}

// askHealth asks the nodes, for as long as an operator waits for a node. It knows nothing, and
// has a quorum of 0, where nobody could be asked.
func askHealth(ctx context.Context, nodes *admin.Nodes) health {
	ctx, cancel := context.WithTimeout(ctx, operatorPatience)
	defer cancel()
	report, _ := nodes.Check(ctx) // what is known is in the report
	if report.Nodes == nil {
		return health{}
	}
	return healthOf(report, time.Now())
}

// healthOf is what a report of that time says.
func healthOf(r admin.Report, at time.Time) health {
	h := health{quorum: r.Quorum, total: len(r.Nodes), since: make(map[string]time.Time)}
	var votes []time.Time
	for _, n := range r.Nodes {
		h.since[n.Node] = n.RemembersSince
		switch {
		case n.Err != nil:
		case n.BarredFor > 0:
			h.barred = append(h.barred, barredNode{n.Node, at.Add(n.BarredFor), n.NoVote})
			votes = append(votes, at.Add(n.BarredFor))
		case n.NoVote != nil:
			h.barred = append(h.barred, barredNode{name: n.Node, why: n.NoVote})
		default:
			h.votes++
			votes = append(votes, at)
		}
	}
	if h.votes < h.quorum && len(votes) >= h.quorum {
		slices.SortFunc(votes, time.Time.Compare)
		h.until = votes[h.quorum-1]
	}
	return h
}

// at is the health at a later time, if nothing else has happened.
func (h health) at(now time.Time) health {
	var left []barredNode
	for _, b := range h.barred {
		if b.until.IsZero() || b.until.After(now) {
			left = append(left, b)
		} else {
			h.votes++
		}
	}
	h.barred = left
	return h
}

// of leaves out barred nodes that do not answer.
func (h health) of(silent []admin.NodeStatus) health {
	h.barred = slices.DeleteFunc(slices.Clone(h.barred), func(b barredNode) bool {
		return slices.ContainsFunc(silent, func(n admin.NodeStatus) bool { return n.Node == b.name })
	})
	return h
}

// yet is what is said behind "may not vote" where time alone mends it.
func (h health) yet() string {
	if slices.ContainsFunc(h.barred, func(b barredNode) bool { return b.until.IsZero() }) {
		return ""
	}
	return " yet"
}

// lacks reports whether no lock can be had.
func (h health) lacks() bool { return h.votes < h.quorum }

// isBarred is why and until when a node is barred; nil if it is not.
func (h health) isBarred(name string) *barredNode {
	for i, b := range h.barred {
		if b.name == name {
			return &h.barred[i]
		}
	}
	return nil
}

// count says how many may vote.
func (h health) count() string {
	return nodesThat(h.votes, h.total, "may vote", "may vote") + fmt.Sprintf(", %d needed", h.quorum)
}

// names are the barred nodes.
func (h health) names() string {
	names := make([]string, len(h.barred))
	for i, b := range h.barred {
		names[i] = b.name
	}
	return strings.Join(names, ", ")
}

// wait is how long it takes until a quorum may vote, in words; empty if waiting does not help.
func (h health) wait(now time.Time) string {
	if h.until.IsZero() {
		return ""
	}
	return " for " + seconds(h.until.Sub(now))
}

// says is what is said of a barred node.
func (b barredNode) says(now time.Time) string {
	if b.until.IsZero() {
		return "has no vote: " + oneLine(b.why)
	}
	return "may not vote for " + seconds(b.until.Sub(now)) + " yet: it may have forgotten locks"
}

// seconds is a time that is left, rounded up: when it is over, it is.
func seconds(d time.Duration) string {
	return (max(d, 1) + time.Second - 1).Truncate(time.Second).String()
}
