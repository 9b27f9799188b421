package guard

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// Guard keeps nodes that may have forgotten what they granted from voting for acquires,
// and servers that are behind two nodes from voting twice. The rules are those of memory.go.
//
// The wire keeps three promises:
//   - before a batch with a SET, where the node is not Ready, or which server answers over the connection is not known,
//     the server is asked, and Saw is told what it says;
//   - the mark is read behind the last SET of each batch, and Saw is told before the batch's
//     votes are delivered. Where that look was not answered, or by an error, or which server answers is still not
//     known, grants of the batch do not count, whatever Judge would say;
//   - a mark that Saw returns is written, and Saw is told which mark is there then.
//
// So a grant that counts was given by data whose mark we know, and that mark was there
// after the grant. If the data is lost later, so is the mark, and every client notices.
type Guard struct {
	fixed  time.Duration // the least period (Options.RestartGuard); 0: none
	names  []string
	clock  tick.Clock
	Random io.Reader // of the marks' ids; nil: crypto/rand
	// Look has all nodes looked at again, and waits for none of them; nil: nothing does. Saw calls it without a mutex.
	Look func()
	// Changed is told that a node has its vote no more, has it again, or is kept from it until another time; nil:
	// nothing is. Saw calls it without a mutex. Voteless says what is so now: that a bar is over by then, nothing tells.
	Changed func(i int)

	// By node. quiet is since when, by our clock, nothing speaks against it: what votes are judged by,
	// without a mutex. settled is what most looks find; nil: nothing yet.
	quiet      []*atomic.Int64
	settled    []*atomic.Pointer[settledMark]
	duplicates []atomic.Pointer[DuplicateError] // nil: it is the only one that leads to its server, or the first

	mu       sync.Mutex // guards what follows; no other is taken under it
	memories *Memories
}

// New returns the guard of the nodes with these names. fixed is for how long a node that may have forgotten is kept
// from voting, 0 for each attempt's own TTL; below 0 it returns nil, no guard.
func New(names []string, fixed time.Duration, c tick.Clock) *Guard {
	if fixed < 0 {
		return nil
	}
	n := len(names)
	g := &Guard{
		fixed: fixed, names: names, clock: c,
		quiet: make([]*atomic.Int64, n), settled: make([]*atomic.Pointer[settledMark], n),
		duplicates: make([]atomic.Pointer[DuplicateError], n), memories: NewMemories(n, fixed > 0),
	}
	for i := range names {
		g.quiet[i], g.settled[i] = new(atomic.Int64), new(atomic.Pointer[settledMark])
		g.quiet[i].Store(LongAgo)
	}
	return g
}

// Saw takes in what a server told over a connection of its node. If it returns a mark, that
// is to be written over the same connection.
func (g *Guard) Saw(i int, s protocol.ServerReport) *protocol.MarkWrite {
	if k := g.settled[i].Load(); k != nil && k.isAll(&s) {
		return nil
	}
	w, look, changed := g.see(i, s)
	if look && g.Look != nil {
		g.Look()
	}
	for _, j := range changed {
		if g.Changed != nil {
			g.Changed(j)
		}
	}
	return w
}

func (g *Guard) see(i int, s protocol.ServerReport) (w *protocol.MarkWrite, look bool, changed []int) {
	at := g.clock.Now()
	now := at.Mono
	g.mu.Lock()
	defer g.mu.Unlock()
	g.memories.Slept(at.Wall - now)
	w, look = g.memories.See(i, s, now)
	m := &g.memories.Nodes[i]
	if quiet := m.quiet(g.memories.all()); g.quiet[i].Swap(quiet) != quiet {
		changed = append(changed, i)
	}
	g.settled[i].Store(m.settled(now))
	for j := range g.duplicates {
		var is *DuplicateError
		if of := g.memories.duplicateOf(j); of >= 0 {
			is = &DuplicateError{g.names[of]}
		}
		if was := g.duplicates[j].Swap(is); (was == nil) != (is == nil) {
			changed = append(changed, j)
		}
	}
	if w != nil && w.ID == "" {
		w.ID = g.newID()
	}
	return w, look, changed
}

// newID makes the id of a mark; the caller holds mu.
func (g *Guard) newID() string {
	r := g.Random
	if r == nil {
		r = rand.Reader
	}
	var b [12]byte
	_, _ = io.ReadFull(r, b[:]) // crypto/rand never fails
	return hex.EncodeToString(b[:])
}

// Ready reports whether no question has to go ahead of a batch with a SET: identity and mark are known.
func (g *Guard) Ready(i int) bool {
	if g == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	m := &g.memories.Nodes[i]
	return m.Identity == identityKnown && !m.unmarked()
}

// Duplicate is why a node has no vote: it leads to the same server as one that was seen there first. Nil if it has a
// vote. So a server has one vote in each round: the node that has it keeps it until it is seen to lead elsewhere.
func (g *Guard) Duplicate(i int) error {
	if e := g.duplicates[i].Load(); e != nil {
		return *e
	}
	return nil
}

// DuplicateError is why a node has no vote: it is the same server as another.
type DuplicateError struct{ of string }

// SameServer is the error of a node that is the server of the node of that name.
func SameServer(as string) error { return DuplicateError{as} }

// Error names the node whose vote counts.
func (e DuplicateError) Error() string {
	return fmt.Sprintf("the same server as %s, whose vote counts", e.of)
}

// Unwrap returns ErrDuplicateNode.
func (DuplicateError) Unwrap() error { return ErrDuplicateNode }

var ErrDuplicateNode = errors.New("duplicate node")

// FencedGuard is the least guard for fenced locks: a node that lost its counters must not
// give tokens before its clock is past all that it gave, of which none was more than a
// second ahead, on servers that agree within a second. See docs/safety.md.
const FencedGuard = 3 * time.Second

// Period is how long a node is kept from voting on locks of this TTL: never less than the TTL,
// which is how long an earlier grant of the node may last, nor than FirstUse, which is for how long a
// fleet may be taken for a new one.
func (g *Guard) Period(ttl time.Duration, fencing bool) time.Duration {
	p := ttl
	if g != nil {
		p = max(p, g.fixed, FirstUse)
	}
	if fencing {
		p = max(p, FencedGuard)
	}
	return p
}

// Judge reports for how much longer grants of a node do not count under a guard of this period; 0: they count.
func (g *Guard) Judge(i int, period time.Duration, now int64) time.Duration {
	return left(g.quiet[i].Load(), period, now)
}

// Begins reports whether this may be the fleet's first use: all nodes that were seen are new, so grants may
// count as soon as all nodes were looked at again.
func (g *Guard) Begins() bool {
	if g == nil {
		return false
	}
	now := g.clock.Now().Mono
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.memories.begins(now)
}

// Voteless is until when a node's grants do not count under a guard of this period, by our clock, 0 where that is not
// known, and why; nil if they count.
func (g *Guard) Voteless(i int, period time.Duration) (until int64, why error) {
	if err := g.Duplicate(i); err != nil {
		return 0, err
	}
	now := g.clock.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	quiet := g.quiet[i].Load()
	left := left(quiet, period, now.Mono)
	if left == 0 {
		return 0, nil
	}
	if quiet != notYet {
		until = now.Mono + int64(left)
	}
	return until, g.memories.NoVote(i, left, now, g.names)
}

// Why is the error of a vote that Judge does not count.
func (g *Guard) Why(i int, left time.Duration) error {
	now := g.clock.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.memories.NoVote(i, left, now, g.names)
}

// BarredError is why a grant is not counted.
type BarredError struct {
	Left time.Duration // for how long yet they do not count, at that time
	From time.Time     // when they do
	Why  string        // see Memories.Why
}

// Error says when the node may vote, by this machine's clock.
func (e BarredError) Error() string {
	layout := time.TimeOnly
	if e.Left > 12*time.Hour {
		layout = time.DateTime
	}
	return e.Why + "; votes count from " + e.From.Add(time.Second-1).Format(layout) + " on"
}

var (
	// ErrUnsure is why a grant is not counted whose node did not tell all that its votes rest on.
	ErrUnsure = errors.New("which server it is, and what it remembers, is not known, so its votes do not count")
	// ErrReplica is why a replica has no vote.
	ErrReplica = errors.New("it is a replica")
	errUndated = errors.New("its memory mark is another one, of unknown age")
	errNoMark  = errors.New("has no memory mark yet, so its votes do not count")
)
