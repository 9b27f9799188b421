package telemetry

import (
	"maps"
	"sync"
	"sync/atomic"

	"github.com/quorumlock/redlock"
)

// Vote is what votes are counted by.
type Vote struct {
	Node, Operation string
	Vote            redlock.Vote
}

// PerVote keeps one thing for each kind of vote, such as its counter: every acquire and
// every release has one vote per node, and a metrics library takes its time to look a
// counter up. It must not be copied.
type PerVote[T any] struct {
	// Make makes the thing. It is called once for each kind, or more often if several
	// goroutines ask for it first.
	Make func(Vote) T

	made atomic.Pointer[map[Vote]T] // never changed, but replaced
	mu   sync.Mutex                 // replaces it
}

// Get returns the thing of a kind of vote.
func (p *PerVote[T]) Get(v Vote) T {
	if made := p.made.Load(); made != nil {
		if t, ok := (*made)[v]; ok {
			return t
		}
	}
	t := p.Make(v)
	p.mu.Lock()
	defer p.mu.Unlock()
	next := make(map[Vote]T)
	if made := p.made.Load(); made != nil {
		next = maps.Clone(*made)
	}
	next[v] = t
	p.made.Store(&next)
	return t
}
