// Package telemetry is what the modules for metrics and traces have in common: the words
// for results, and the state that is known from events.
package telemetry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/quorumlock/redlock"
)

// Buckets are upper bounds for histograms of durations in seconds: from a round trip on
// loopback to a long wait in line.
func Buckets() []float64 {
	return []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}
}

// reasons are in the order in which they count. What the nodes said goes before the end of
// the caller's context: an acquire that timed out in an outage failed for the outage.
var reasons = []struct {
	err  error
	word string
}{
	{redlock.ErrDuplicateNode, "duplicate_node"},
	{redlock.ErrNoQuorum, "no_quorum"},
	{redlock.ErrNotHeld, "not_held"},
	{redlock.ErrExpired, "expired"},
	{redlock.ErrLost, "lost"},
	{redlock.ErrHeld, "held"},
	{redlock.ErrReleased, "released"},
	{redlock.ErrClosed, "closed"},
	{redlock.ErrInvalid, "invalid"},
	{context.DeadlineExceeded, "timeout"},
	{context.Canceled, "canceled"},
}

// Reason is an error in one of few words, "other" if it is none of the library's, and empty
// for none.
func Reason(err error) string {
	if err == nil {
		return ""
	}
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.word
		}
	}
	return "other"
}

// VoteWord is a node's vote in one word.
func VoteWord(v redlock.Vote) string { return strings.ReplaceAll(v.String(), " ", "_") }

// State is what events tell of the present. Its zero value is ready for use, also by many
// goroutines.
type State struct {
	mu      sync.Mutex
	held    map[string]held // by token
	sweepAt int
	waiting map[uint64]wait // by their number
	nodes   map[string]Node
}

// held is a lock that is held.
type held struct {
	mode  string
	until time.Time
}

// wait is an acquire that waits.
type wait struct {
	mode  string
	since time.Time
}

// Apply applies the options of a call of a package. It panics for one that is nil.
func Apply[S any, O ~func(*S)](s *S, pkg, call string, opts []O) {
	for i, o := range opts {
		if o == nil {
			panic(fmt.Sprintf("%s: option %d of %s is nil: must be an Option", pkg, i+1, call))
		}
		o(s)
	}
}

// Modes are the ways in which locks are held, as the hooks call them.
func Modes() []string {
	return []string{string(redlock.ModeExclusive), string(redlock.ModeShared), string(redlock.ModePermit)}
}

// Node is what is known of a node.
type Node struct {
	Name     string
	Up       bool
	Votes    bool // its grants count
	Degraded bool // something that the library can do without was denied there
}

// leastSweep keeps small sets from being swept all the time.
const leastSweep = 1024

// Hooks keep the state up to date.
func (s *State) Hooks() *redlock.Hooks {
	return &redlock.Hooks{
		Acquired: func(_ context.Context, i redlock.AcquireInfo) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, o := range i.Outcomes {
				if _, ok := s.nodes[o.Node]; !ok {
					s.set(Node{Name: o.Node, Up: true, Votes: true})
				}
			}
			if i.Err == nil {
				s.hold(i.Token, held{string(i.Mode), i.Until})
			}
			delete(s.waiting, i.WaitID)
		},
		Waiting: func(_ context.Context, i redlock.WaitInfo) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.waiting == nil {
				s.waiting = make(map[uint64]wait)
			}
			s.waiting[i.WaitID] = wait{string(i.Mode), i.WaitStart}
		},
		Extended: func(_ context.Context, i redlock.ExtendInfo) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if _, ok := s.held[i.Token]; ok {
				s.held[i.Token] = held{string(i.Mode), i.Until}
			}
		},
		Released: func(_ context.Context, i redlock.ReleaseInfo) { s.drop(i.Token) },
		Lost:     func(_ context.Context, i redlock.LostInfo) { s.drop(i.Token) },
		NodeDown: func(i redlock.NodeInfo) { s.change(i.Node, func(n *Node) { n.Up = false }) },
		NodeUp:   func(i redlock.NodeInfo) { s.change(i.Node, func(n *Node) { n.Up = true }) },

		NodeBarred: func(i redlock.VoteInfo) { s.change(i.Node, func(n *Node) { n.Votes = false }) },
		NodeVotes:  func(i redlock.VoteInfo) { s.change(i.Node, func(n *Node) { n.Votes = true }) },
		Degraded: func(i redlock.DegradedInfo) {
			if i.Key == "" {
				s.change(i.Node, func(n *Node) { n.Degraded = true })
			}
		},
	}
}

// hold notes a lock; the caller holds mu. Those that were never released, nor found to be
// lost by anybody, are swept out when their time is over.
func (s *State) hold(token string, h held) {
	if s.held == nil {
		s.held = make(map[string]held)
	}
	s.held[token] = h
	if len(s.held) > max(s.sweepAt, leastSweep) {
		s.sweep(time.Now())
		s.sweepAt = 2 * len(s.held)
	}
}

func (s *State) sweep(now time.Time) {
	maps.DeleteFunc(s.held, func(_ string, h held) bool { return !now.Before(h.until) })
}

func (s *State) drop(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, token)
}

func (s *State) set(n Node) {
	if s.nodes == nil {
		s.nodes = make(map[string]Node)
	}
	s.nodes[n.Name] = n
}

func (s *State) change(name string, f func(*Node)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, ok := s.nodes[name]
	if !ok {
		n = Node{Name: name, Up: true, Votes: true}
	}
	f(&n)
	s.set(n)
}

// Held is how many locks are held and valid now, by mode.
func (s *State) Held() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep(time.Now())
	count := make(map[string]int)
	for _, h := range s.held {
		count[h.mode]++
	}
	return count
}

// Waits are acquires that wait.
type Waits struct {
	Count  int
	Oldest time.Duration // how long that one has waited; 0 if there is none
}

// Waiting are the acquires that wait now, by mode.
func (s *State) Waiting() map[string]Waits {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, all := time.Now(), make(map[string]Waits)
	for _, w := range s.waiting {
		of := all[w.mode]
		all[w.mode] = Waits{of.Count + 1, max(of.Oldest, now.Sub(w.since))}
	}
	return all
}

// Nodes are those that were heard of, by name.
func (s *State) Nodes() []Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]Node, 0, len(s.nodes))
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		all = append(all, s.nodes[name])
	}
	return all
}
