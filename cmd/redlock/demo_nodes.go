package main

import (
	"context"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
)

// comeback is what was told of a node that is back after it was away.
type comeback struct {
	at         time.Time // zero: it was not away, or who knows
	told, over bool      // that it may not vote yet, and that it votes again
}

// cameBack notes that a node was restarted.
func (d *demo) cameBack(node int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.comebacks[node] = comeback{at: time.Now()}
}

// barred is how many nodes are back and may not vote yet, besides those that were hit.
func (d *demo) barred(hit map[int]deed) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, c := range d.comebacks {
		if _, away := hit[i]; !away && c.barred(d.ttl) {
			n++
		}
	}
	return n
}

// waitedFor is how many nodes are back and perhaps may not vote yet for some worker: each sees a
// little later than the node itself that it is back.
func (d *demo) waitedFor(hit map[int]deed) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i, c := range d.comebacks {
		over := time.Since(c.at) >= d.ttl+d.ttl/10 && (c.over || !c.told)
		if _, away := hit[i]; !away && !c.at.IsZero() && !over {
			n++
		}
	}
	return n
}

// barred tells whether the node may not vote yet. It votes again when the lease is over that it
// may have forgotten, or when a worker has seen it vote.
func (c comeback) barred(ttl time.Duration) bool {
	return !c.at.IsZero() && !c.over && time.Since(c.at) < ttl
}

// noteVotes tells of nodes that are back and may not vote yet, and when they do again: once
// each, though workers see it at different times.
func (d *demo) noteVotes(outcomes []redlock.Outcome) {
	var news []event
	d.mu.Lock()
	for i, o := range outcomes {
		c := d.comebacks[i]
		switch {
		case o.Vote == redlock.VoteBarred && !c.told:
			c.told = true
			e := &mayNotVote{Node: d.label(i)}
			if !c.at.IsZero() {
				e.Left = ms(max(time.Until(c.at.Add(d.ttl)), 0))
			}
			news = append(news, e)
		case o.Vote == redlock.VoteGranted && c.told && !c.over:
			c.over = true
			news = append(news, &votesAgain{Node: d.label(i)})
		case o.Vote == redlock.VoteNotSent && c.over:
			c = comeback{}
		}
		d.comebacks[i] = c
	}
	d.mu.Unlock()
	for _, e := range news {
		d.out.emit(e)
	}
}

// followLine tells when the wait queue moves to another node.
func (d *demo) followLine(ctx context.Context, observer *admin.Nodes) {
	keeper := -1
	for sleep(ctx, 50*time.Millisecond) {
		s, _ := observer.Inspect(ctx, d.key) // of each node there is an error, too
		now, most, missing := -1, 0, false
		for i, n := range s.Nodes {
			if n.Waiting > most {
				now, most = i, n.Waiting
			}
			missing = missing || n.Err != nil && i == keeper
		}
		if now < 0 || now == keeper {
			continue
		}
		if keeper >= 0 {
			d.out.emit(&lineMoved{From: d.label(keeper), To: d.label(now), Away: missing})
		}
		keeper = now
	}
}

// mayNotVote: a node is back, and its votes do not count yet.
type mayNotVote struct {
	Node string `json:"node"`
	Left ms     `json:"left_ms"` // until they do; 0 if it is not known
}

func (*mayNotVote) kind() string { return "may_not_vote" }

func (e *mayNotVote) text(t *timeline, at string) string {
	when := "yet"
	if e.Left > 0 {
		when = "for " + e.Left.String() + " yet"
	}
	return t.banner(at, t.paint.odd, "%s may not vote %s: it might have forgotten a lock", e.Node, when)
}

// votesAgain: a node that might not vote may.
type votesAgain struct {
	Node string `json:"node"`
}

func (*votesAgain) kind() string { return "votes_again" }

func (e *votesAgain) text(t *timeline, at string) string {
	return t.banner(at, t.paint.good, "%s votes again", e.Node)
}

// lineMoved: another node keeps the wait queue.
type lineMoved struct {
	From string `json:"from"`
	To   string `json:"to"`
	Away bool   `json:"from_away"`
}

func (*lineMoved) kind() string { return "line_moved" }

func (e *lineMoved) text(t *timeline, at string) string {
	why := ""
	if e.Away {
		why = ", " + e.From + " is away"
	}
	return t.banner(at, t.paint.odd, "the queue moves from %s to %s%s: a worker may be passed", e.From, e.To, why)
}
