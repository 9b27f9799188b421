package jepsen

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/testing/history"
	"github.com/quorumlock/redlock/proof/linear"
)

// Report is what a run has shown.
type Report struct {
	Config  Config    `json:"config"`
	Started time.Time `json:"started"`
	Length  int64     `json:"length_ns"`
	OK      bool      `json:"ok"`
	Reasons []string  `json:"reasons,omitempty"` // why not
	Notes   []string  `json:"notes,omitempty"`

	Plain  *Counts `json:"plain,omitempty"`
	Fenced *Counts `json:"fenced,omitempty"`
	Mixed  *Counts `json:"mixed,omitempty"`

	Versions []*Version `json:"versions,omitempty"` // the older and ours, where clients of both took turns

	Lost        []Incident         `json:"lost,omitempty"`
	Exclusion   []linear.Violation `json:"exclusion,omitempty"`
	Fences      []linear.Violation `json:"fences,omitempty"`
	Linear      []linear.Violation `json:"linear,omitempty"`
	Overstaying []string           `json:"overstaying,omitempty"` // keys that would have outlived every lease
	Leftover    []string           `json:"leftover,omitempty"`    // keys that did
	Trouble     []string           `json:"trouble,omitempty"`     // what went wrong with the run itself
	Events      []Event            `json:"events"`

	programs programs

	lives   []job
	history []history.Op
	updates []update
	final   map[string]record
}

// Counts are what was done with the counters of a kind.
type Counts struct {
	Calls     int `json:"calls"` // of acquire
	Grants    int `json:"grants"`
	Extends   int `json:"extends"`    // that succeeded
	Releases  int `json:"releases"`   // that were confirmed
	NotHeld   int `json:"not_held"`   // releases of a lease that was over
	Unknown   int `json:"unknown"`    // releases and extends of which nobody knows what became
	Written   int `json:"written"`    // updates that were acknowledged
	Refused   int `json:"refused"`    // by the store
	Withheld  int `json:"withheld"`   // by the client, whose lease was over
	LateWrite int `json:"late_write"` // acknowledged after the lease was over
	Lost      int `json:"lost"`       // acknowledged, and without effect
	Unexplain int `json:"lost_unexplained"`
	Counters  int `json:"counters"`

	// Of mixed locks: how grants were held, and how the holder changed.
	Alone    int `json:"alone,omitempty"`
	Shared   int `json:"shared,omitempty"`
	Permits  int `json:"permits,omitempty"`
	Adopted  int `json:"adopted,omitempty"`
	Detached int `json:"detached,omitempty"`
}

// Incident is a place where a counter's history forks: two clients read the same value and both wrote its successor.
type Incident struct {
	Key       string   `json:"key"`
	At        int64    `json:"at"`
	Lost      int      `json:"lost"` // updates
	Explained bool     `json:"explained"`
	Cause     string   `json:"cause"`
	Writers   []update `json:"writers"`
}

// kindOf is the kind of a counter, by its name.
func kindOf(key string) string {
	kind, _, _ := strings.Cut(key, "-")
	return kind
}

func (r *Report) counts(kind string) *Counts {
	switch {
	case kind == plain && r.Plain != nil:
		return r.Plain
	case kind == fenced && r.Fenced != nil:
		return r.Fenced
	case kind == mixed && r.Mixed != nil:
		return r.Mixed
	}
	return new(Counts)
}

// judge checks everything that was recorded.
func (r *Report) judge() {
	if r.Config.Plain {
		r.Plain = new(Counts)
	}
	if r.Config.Fenced {
		r.Fenced = new(Counts)
	}
	if r.Config.Mixed {
		r.Mixed = new(Counts)
	}
	r.countCalls()
	r.findLost()

	var err error
	r.Exclusion, err = linear.Overlaps(r.history)
	r.trouble(err)
	r.Fences, err = linear.Fences(r.history)
	r.trouble(err)
	if err == nil {
		r.Linear, err = linear.Linearizable(r.history, 5*time.Minute)
		r.trouble(err)
	}

	because := func(n int, format string, args ...any) {
		if n > 0 {
			r.Reasons = append(r.Reasons, fmt.Sprintf(format, args...))
		}
	}
	because(len(r.Exclusion), "mutual exclusion: %d claims overlap", len(r.Exclusion))
	because(len(r.Fences), "%d fencing tokens do not increase", len(r.Fences))
	because(len(r.Linear), "%d keys have answers that no order of the calls explains", len(r.Linear))
	if r.Plain != nil {
		because(r.Plain.Unexplain, "%d updates under plain locks were lost without a writer that was late", r.Plain.Unexplain)
		because(notGranted(r.Plain), "no plain lock was granted at all")
	}
	if r.Fenced != nil {
		because(r.Fenced.Lost, "%d fenced updates were lost", r.Fenced.Lost)
		because(notGranted(r.Fenced), "no fenced lock was granted at all")
	}
	if r.Mixed != nil {
		because(notGranted(r.Mixed), "no mixed lock was granted at all")
	}
	because(len(r.waitedInVain()), "without a turn: %s", strings.Join(r.waitedInVain(), ", "))
	because(len(r.Overstaying), "%d keys were set to outlive every lease", len(r.Overstaying))
	because(len(r.Leftover), "%d keys were left when every lease was over", len(r.Leftover))
	because(len(r.Trouble), "%d things went wrong with the run itself", len(r.Trouble))
	r.OK = len(r.Reasons) == 0
}

// A run in which nothing was locked proves nothing.
func notGranted(c *Counts) int {
	if c.Grants == 0 {
		return 1
	}
	return 0
}

func (r *Report) countCalls() {
	for _, op := range r.history {
		r.counts(kindOf(op.Key)).add(op)
	}
}

func (c *Counts) add(op history.Op) {
	switch {
	case op.Kind == history.Acquire:
		c.Calls++
		if op.Outcome == history.OK {
			c.granted(op)
		}
	case op.Kind == history.Detach && op.Outcome == history.OK:
		c.Detached++
	case op.Return < op.Call: // says that it calls; the result is another line
	case op.Outcome == history.Unknown:
		c.Unknown++
	case op.Kind == history.Extend && op.Outcome == history.OK:
		c.Extends++
	case op.Kind == history.Release && op.Outcome == history.OK:
		c.Releases++
	case op.Outcome == history.NotHeld:
		c.NotHeld++
	}
}

func (c *Counts) granted(op history.Op) {
	c.Grants++
	switch op.Mode {
	case history.Shared:
		c.Shared++
	case history.Permit:
		c.Permits++
	default:
		c.Alone++
	}
	if op.From != "" {
		c.Adopted++
	}
}

// findLost follows each counter from its last value back to its first. Each update knows which one it read, so an acknowledged update that is not on
// this path was lost: somebody wrote over it without having read it.
func (r *Report) findLost() {
	all := make(map[string]update) // by token; of two lines about one, the later knows more
	for _, up := range r.updates {
		if old, ok := all[up.Token]; !ok || old.Result == begun {
			all[up.Token] = up
		}
	}
	onPath := make(map[string]bool)
	child := make(map[string]map[string]update) // by key and parent
	for key, last := range r.final {
		child[key] = make(map[string]update)
		r.counts(kindOf(key)).Counters++
		for token := last.Token; token != ""; {
			up, ok := all[token]
			if !ok || up.Key != key || onPath[token] {
				r.trouble(fmt.Errorf("counter %q: nobody has written what is there with token %q", key, token))
				break
			}
			onPath[token] = true
			child[key][up.Parent] = up
			token = up.Parent
		}
	}
	forks := make(map[string]*Incident)
	for token, up := range all {
		c := r.counts(kindOf(up.Key))
		switch up.Result {
		case refused:
			c.Refused++
		case withheld:
			c.Withheld++
		case written:
			c.Written++
			if up.late() {
				c.LateWrite++
			}
			if onPath[token] {
				continue
			}
			root := up
			for parent, ok := all[root.Parent]; ok && !onPath[root.Parent]; parent, ok = all[root.Parent] {
				root = parent
			}
			in := forks[root.Token]
			if in == nil {
				in = &Incident{Key: up.Key, At: root.Return, Writers: []update{root}}
				if over, ok := child[up.Key][root.Parent]; ok {
					in.Writers = append(in.Writers, over)
				}
				in.Explained, in.Cause = r.explain(in.Writers)
				forks[root.Token] = in
			}
			in.Lost++
			c.Lost++
			if !in.Explained {
				c.Unexplain++
			}
		}
	}
	for _, in := range forks {
		r.Lost = append(r.Lost, *in)
	}
	slices.SortFunc(r.Lost, func(a, b Incident) int { return cmp.Compare(a.At, b.At) })
}

// late reports whether a write was done, or may have been, after the lease it was made under was over. Such a write is beyond what a lock can prevent.
func (u update) late() bool { return u.Return == 0 || u.Return > u.Until }

// explain finds the writer that was late, and why. Two that were not cannot both have read the same value under their locks.
func (r *Report) explain(writers []update) (bool, string) {
	for _, w := range writers {
		if !w.late() {
			continue
		}
		end, what := w.Return, "wrote"
		if end == 0 {
			end, what = r.Length, "may have written" // it was killed
			for _, e := range r.Events {
				if e.Kind == "kill" && e.Client == w.Client && e.From >= w.Checked {
					end = e.From
					break
				}
			}
			if end <= w.Until {
				continue
			}
		}
		over := time.Duration(end - w.Until).Round(time.Microsecond)
		for _, e := range r.Events {
			if e.Kind == "pause" && e.Client == w.Client && e.From < end && e.To > w.Checked {
				return true, fmt.Sprintf("client %d %s %v after the end of its lease: %s from %s to %s", w.Client, what, over, e.Text, seconds(e.From), seconds(e.To))
			}
		}
		return true, fmt.Sprintf("client %d %s %v after the end of its lease, %v after it had checked it; the nemesis did not stop it, the machine did", w.Client, what, over,
			time.Duration(end-w.Checked).Round(time.Microsecond))
	}
	return false, "no writer was late: two clients relied on the lock at the same time"
}

func seconds(at int64) string { return fmt.Sprintf("%.3fs", float64(at)/1e9) }

// ErrViolation is what a report that is not OK stands for.
var ErrViolation = errors.New("violation")

// Err is nil, or says why the run was not clean.
func (r *Report) Err() error {
	if r.OK {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrViolation, strings.Join(r.Reasons, "; "))
}
