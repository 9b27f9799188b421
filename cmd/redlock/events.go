package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/quorumlock/redlock"
)

// ballot is a node's vote.
type ballot struct {
	Node    string `json:"node"` // label
	Vote    string `json:"vote"`
	Elapsed ms     `json:"ms"`
	Err     string `json:"error,omitempty"`

	vote redlock.Vote
}

// ballots puts labels on votes. Without any, as without a lock, they are all pending.
func (d *demo) ballots(outcomes []redlock.Outcome) []ballot {
	all := make([]ballot, len(d.nodes))
	for i := range all {
		all[i] = ballot{Node: d.label(i), vote: redlock.VotePending}
		if i < len(outcomes) {
			o := outcomes[i]
			all[i].vote, all[i].Elapsed = o.Vote, ms(o.Elapsed)
			if o.Err != nil {
				all[i].Err = o.Err.Error()
			}
		}
		all[i].Vote = all[i].vote.String()
	}
	return all
}

// opening is the first event.
type opening struct {
	Version  string      `json:"version"`
	Embedded bool        `json:"embedded"` // whether faults of nodes will be shown
	Nodes    []nodeEntry `json:"nodes"`
	Quorum   int         `json:"quorum"`
	Workers  int         `json:"workers"`
	Duration ms          `json:"duration_ms"`
	TTL      ms          `json:"ttl_ms"`
	Key      string      `json:"key"`
}

type nodeEntry struct {
	Node string `json:"node"`
	Addr string `json:"addr"`
}

func newOpening(d *demo) *opening {
	o := &opening{
		Version: version(), Embedded: d.cluster != nil, Quorum: d.quorum, Workers: d.workers,
		Duration: ms(d.duration), TTL: ms(d.ttl), Key: d.key,
	}
	for i, name := range d.nodes {
		o.Nodes = append(o.Nodes, nodeEntry{Node: d.label(i), Addr: name})
	}
	return o
}

func (*opening) kind() string { return "start" }

func (o *opening) text(t *timeline, _ string) string {
	var b strings.Builder
	n := len(o.Nodes)
	fmt.Fprintf(&b, "%s\n\n", t.paint.bold(fmt.Sprintf("redlock demo: %d workers, one counter, a lock on %d of %d Redis nodes", o.Workers, o.Quorum, n)))
	fmt.Fprintf(&b, "Each worker waits for the lock, reads the counter, works for %d to %dms and\nwrites it back plus one. For %v, with a lease of %v.\n",
		workMin.Milliseconds(), workMax.Milliseconds(), time.Duration(o.Duration), time.Duration(o.TTL))
	if o.Embedded {
		fmt.Fprintf(&b, "The nodes run inside this program; some will be killed and one will hang.\n\n")
	} else {
		fmt.Fprintf(&b, "The servers are yours, so nothing is done to them; a worker will crash all the\nsame. The key is %q.\n\n", o.Key)
	}
	var labels []string
	const indent = "         "
	line := "  nodes  "
	for _, e := range o.Nodes {
		labels = append(labels, e.Node)
		entry := e.Node + " " + e.Addr
		if len(line)+len(entry) > 78 && strings.TrimSpace(line) != "" {
			b.WriteString(strings.TrimRight(line, " ") + "\n")
			line = indent
		}
		line += entry + "   "
	}
	b.WriteString(strings.TrimRight(line, " ") + "\n")
	b.WriteString("  votes  ")
	for i, v := range []struct {
		vote redlock.Vote
		text string
	}{
		{redlock.VoteGranted, "granted"}, {redlock.VoteRefused, "refused"}, {redlock.VoteNotSent, "away"}, {redlock.VoteBarred, "not yet"},
		{redlock.VoteUnknown, "silent"}, {redlock.VoteFailed, "error"}, {redlock.VotePending, "pending"},
	} {
		if i > 0 {
			b.WriteString("  ")
		}
		b.WriteString(t.mark(v.vote) + " " + v.text)
	}
	b.WriteString("\n")
	b.WriteString("  times  WAITED for the lock; VOTE: until a majority had granted it; HELD;\n")
	b.WriteString("         RELEASE: until a majority had confirmed it. A line appears after that.\n\n")
	b.WriteString(t.heading(labels))
	return b.String()
}

// increment is a worker's turn.
type increment struct {
	Worker   string   `json:"worker"`
	Counter  int64    `json:"counter"`
	Votes    []ballot `json:"votes"`
	Attempts int64    `json:"attempts"`
	Waited   ms       `json:"waited_ms"`
	Vote     ms       `json:"vote_ms"`
	Held     ms       `json:"held_ms"`
	Release  ms       `json:"release_ms"`

	votes []redlock.Outcome
}

func (*increment) kind() string { return "increment" }

func (e *increment) text(t *timeline, at string) string {
	return t.row(at, e.Worker, fmt.Sprintf("%d -> %d", e.Counter-1, e.Counter), e.Votes, e.Waited, e.Vote, e.Held, e.Release)
}

// leaseLost: a worker was too slow, or could not renew.
type leaseLost struct {
	Worker  string `json:"worker"`
	Written bool   `json:"written"`
	Held    ms     `json:"held_ms"`
}

func (*leaseLost) kind() string { return "lease_lost" }

func (e *leaseLost) text(t *timeline, at string) string {
	what := "and does not write"
	if e.Written {
		what = "after it wrote"
	}
	return t.banner(at, t.paint.odd, "%s loses its lease after %v, %s", e.Worker, e.Held, what)
}

// crashes is the acquisition of a worker that dies with it.
type crashes struct {
	Worker string   `json:"worker"`
	Votes  []ballot `json:"votes"`
	Waited ms       `json:"waited_ms"`
	Vote   ms       `json:"vote_ms"`
	Lease  ms       `json:"lease_ms"`
}

func (*crashes) kind() string { return "crash" }

func (e *crashes) text(t *timeline, at string) string {
	return t.row(at, e.Worker, "crashes", e.Votes, e.Waited, e.Vote) +
		t.banner(at, t.paint.bad, "%s dies with the lock: all wait for its lease to end, %v", e.Worker, e.Lease)
}

// leaseOver is the first grant after the crash.
type leaseOver struct {
	Worker  string `json:"worker"`
	Crashed string `json:"crashed"`
	After   ms     `json:"after_ms"` // the end of the lease
}

func (*leaseOver) kind() string { return "lease_over" }

func (e *leaseOver) text(t *timeline, at string) string {
	return t.banner(at, t.paint.good, "the lease of %s is over: %s got the lock, %v later", e.Crashed, e.Worker, e.After)
}

// stalled: nobody got the lock for long.
type stalled struct {
	For    ms       `json:"for_ms"`
	Away   []string `json:"away"`             // labels of nodes that do not answer as they should
	Barred []string `json:"barred,omitempty"` // of those that are back and may not vote yet
}

func (*stalled) kind() string { return "stalled" }

func (e *stalled) text(t *timeline, at string) string {
	why := ", though all nodes answer"
	if len(e.Away) > 0 {
		why = ". No answer: " + strings.Join(e.Away, ", ")
	}
	if len(e.Barred) > 0 {
		why += ". No vote yet: " + strings.Join(e.Barred, ", ")
	}
	return t.banner(at, t.paint.odd, "nobody got the lock for %v%s", e.For, why)
}

// restarted: a crashed worker is back.
type restarted struct {
	Worker string `json:"worker"`
}

func (*restarted) kind() string { return "worker_restart" }

func (e *restarted) text(t *timeline, at string) string {
	return t.banner(at, t.paint.good, "%s is started again", e.Worker)
}

// fault is a deed on nodes.
type fault struct {
	Fault  deed     `json:"fault"`
	Nodes  []string `json:"nodes"`            // labels
	Away   int      `json:"away"`             // nodes, from now on
	Barred int      `json:"barred,omitempty"` // nodes that are back and may not vote yet

	total int
}

func (*fault) kind() string { return "fault" }

func (e *fault) text(t *timeline, at string) string {
	one := len(e.Nodes) == 1
	verb := func(singular, plural string) string {
		if one {
			return singular
		}
		return plural
	}
	ink, what := t.paint.bad, ""
	switch e.Fault {
	case kill:
		what = verb("is killed", "are killed") + ": connections are refused"
	case hang:
		what = verb("hangs", "hang") + ": accepts everything and answers nothing"
	case restart:
		ink, what = t.paint.good, verb("is", "are")+" back, with all keys"
	case resume:
		ink, what = t.paint.good, verb("goes", "go")+" on, with all that had been sent"
	}
	missing := fmt.Sprintf("%d of %d away", e.Away, e.total)
	if e.Barred > 0 {
		missing = fmt.Sprintf("%d of %d missing", e.Away+e.Barred, e.total) // no room for more in 80 columns
	}
	return t.banner(at, ink, "%s %s [%s]", strings.Join(e.Nodes, " and "), what, missing)
}

// controlStarted announces the run without the lock.
type controlStarted struct {
	Duration ms `json:"duration_ms"`
}

func (*controlStarted) kind() string { return "control_start" }

func (e *controlStarted) text(t *timeline, at string) string {
	return t.banner(at, t.paint.odd, "CONTROL RUN: the same workers WITHOUT the lock, for %v", e.Duration)
}

// control is what happened without the lock.
type control struct {
	Duration   ms    `json:"duration_ms"`
	Increments int64 `json:"increments"`
	Counter    int64 `json:"counter"`
	Lost       int64 `json:"lost_updates"`
}

// crashSummary tells how the lease of the crashed holder ended.
type crashSummary struct {
	Worker    string `json:"worker"`
	Lease     ms     `json:"lease_ms"`
	Over      bool   `json:"over"`          // before the demo was
	NextGrant ms     `json:"next_grant_ms"` // after the lease was over
}

// summary is the last event.
type summary struct {
	OK             bool          `json:"ok"`
	Error          string        `json:"error,omitempty"`
	Interrupted    bool          `json:"interrupted"`
	Embedded       bool          `json:"embedded"`
	Acquisitions   int           `json:"acquisitions"`
	Increments     int64         `json:"increments"`
	Counter        int64         `json:"counter"`
	Lost           int64         `json:"lost_updates"`
	LeasesLost     int           `json:"leases_lost"`
	WorstWait      ms            `json:"worst_wait_ms"`
	WorstWaitCrash ms            `json:"worst_wait_behind_crash_ms"`
	MedianVote     ms            `json:"median_vote_ms"`
	WorstVote      ms            `json:"worst_vote_ms"`
	Crash          *crashSummary `json:"crash,omitempty"`
	LeftOn         []string      `json:"key_left_on"` // labels of nodes
	Control        *control      `json:"control_without_lock,omitempty"`
}

func (*summary) kind() string { return "summary" }

func (s *summary) text(t *timeline, _ string) string {
	var b strings.Builder
	head := "SUMMARY"
	if s.Interrupted {
		head += " (interrupted)"
	}
	fmt.Fprintf(&b, "\n%s\n", t.paint.bold(fmt.Sprintf("%-22s%15s%22s", head, "WITH THE LOCK", "CONTROL WITHOUT LOCK")))
	column := func(name string, with int64, without func(*control) int64, ink func(int64) func(...any) string) {
		fmt.Fprintf(&b, "  %-20s%s", name, ink(with)(fmt.Sprintf("%15d", with)))
		if s.Control != nil {
			v := without(s.Control)
			fmt.Fprint(&b, ink(v)(fmt.Sprintf("%22d", v)))
		} else {
			fmt.Fprintf(&b, "%22s", "not run")
		}
		b.WriteByte('\n')
	}
	plainInk := func(int64) func(...any) string { return fmt.Sprint }
	column("increments made", s.Increments, func(c *control) int64 { return c.Increments }, plainInk)
	column("counter at the end", s.Counter, func(c *control) int64 { return c.Counter }, plainInk)
	column("lost updates", s.Lost, func(c *control) int64 { return c.Lost }, func(v int64) func(...any) string {
		if v == 0 {
			return t.paint.good
		}
		return t.paint.bad
	})
	b.WriteByte('\n')
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "  %-20s  %s\n", name, fmt.Sprintf(format, args...))
	}
	line("acquisitions", "%d", s.Acquisitions)
	if s.WorstWaitCrash > 0 {
		line("worst wait", "%v; %v behind the dead holder's lease", s.WorstWait, s.WorstWaitCrash)
	} else {
		line("worst wait", "%v", s.WorstWait)
	}
	line("vote", "median %v, worst %v, to the majority", s.MedianVote, s.WorstVote)
	if s.LeasesLost > 0 {
		line("leases lost", "%d", s.LeasesLost)
	}
	if c := s.Crash; c != nil {
		next := "no grant before the demo ended"
		if c.Over {
			next = fmt.Sprintf("next grant %v after its end", c.NextGrant)
		}
		line("dead holder", "%s, lease %v; %s", c.Worker, c.Lease, next)
	}
	if !s.Embedded {
		line("faults of nodes", "none made: that takes control of the servers")
	}
	if len(s.LeftOn) == 0 {
		line("left on the nodes", "nothing")
	} else {
		line("left on the nodes", "%s: the key may be there until its lease ends", strings.Join(s.LeftOn, ", "))
	}
	b.WriteByte('\n')
	switch {
	case !s.OK:
		b.WriteString(t.paint.bad("FAILED") + "  " + s.Error + "\n")
	case s.Control != nil:
		fmt.Fprintf(&b, "%s  %s under the lock, %d lost. Without it: %d of %d lost.\n",
			t.paint.good("OK"), plural(int(s.Increments), "update"), s.Lost, s.Control.Lost, s.Control.Increments)
	default:
		fmt.Fprintf(&b, "%s  %s under the lock, %d lost.\n", t.paint.good("OK"), plural(int(s.Increments), "update"), s.Lost)
	}
	return b.String()
}
