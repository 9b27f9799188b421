package redlock

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// guard keeps nodes that may have forgotten what they granted from voting for acquires,
// and servers that are behind two nodes from voting twice. The rules are those of memory.go.
//
// The wire keeps three promises:
//   - a batch with a SET goes over a connection only after saw was told who answers there,
//     and the node is ready. If it is ready, the question may be the head of the same batch;
//   - the mark is read behind the last SET of each batch, and saw is told before the batch's
//     votes are delivered. Where that look was not answered, grants of the batch do not
//     count, whatever judge would say;
//   - a mark that saw returns is written, and saw is told which mark is there then.
//
// So a grant that counts was given by data whose mark we know, and that mark was there
// after the grant. If the data is lost later, so is the mark, and every client notices.
type guard struct {
	fixed  time.Duration // 0: each attempt's own TTL
	names  []string
	tell   func(degradation)
	clock  clock
	random io.Reader // of the marks' ids; nil: crypto/rand
	looks  bool      // it writes no marks

	// By node. quiet is since when, by our clock, nothing speaks against it: what most votes
	// are judged by, without a mutex. settled is what most looks find; nil: nothing yet.
	quiet   []*atomic.Int64
	settled []*atomic.Pointer[settledMark]
	twins   []atomic.Pointer[errTwin] // nil: it is the only one that leads to its server, or the first

	mu       sync.Mutex // guards what follows; none but what tell takes is taken under it
	memories *memories

	evictions []evictions // by node
}

// degradation is what a node lacks for being guarded.
type degradation struct {
	node, lacks string
	err         error
	evicted     int64 // how many keys; 0: it is not about that
	again       bool  // to be reported although the same was before
}

// newGuard returns the guard of the nodes with these names. fixed is for how long a node that may
// have forgotten is kept from voting, 0 for each attempt's own TTL; below 0 there is no guard,
// which is nil. looks: no marks are written. tell must not block.
func newGuard(names []string, fixed time.Duration, looks bool, c clock, tell func(degradation)) *guard {
	if fixed < 0 {
		return nil
	}
	n := len(names)
	g := &guard{
		fixed: fixed, names: names, tell: tell, clock: c, looks: looks,
		quiet: make([]*atomic.Int64, n), settled: make([]*atomic.Pointer[settledMark], n),
		twins: make([]atomic.Pointer[errTwin], n), memories: newMemories(n, fixed > 0), evictions: make([]evictions, n),
	}
	for i := range names {
		g.quiet[i], g.settled[i] = new(atomic.Int64), new(atomic.Pointer[settledMark])
		g.quiet[i].Store(longAgo)
	}
	return g
}

var lacks = map[lack]string{lackIdentity: noGuard, lackMark: noMark}

// saw takes in what a server told over a connection of its node. If it returns a mark, that
// is to be written over the same connection.
func (g *guard) saw(i int, s sighting) *markWrite {
	if k := g.settled[i].Load(); k != nil && k.isAll(&s) {
		return nil
	}
	now := g.clock.now().mono
	g.mu.Lock()
	defer g.mu.Unlock()
	w, lacks := g.memories.see(i, s, now)
	m := &g.memories.nodes[i]
	g.quiet[i].Store(m.quiet())
	g.settled[i].Store(m.settled())
	for j := range g.twins {
		if of := g.memories.twinOf(j); of >= 0 {
			g.twins[j].Store(&errTwin{g.names[of]})
		} else {
			g.twins[j].Store(nil)
		}
	}
	g.report(i, lacks, s)
	if g.looks {
		return nil
	}
	if w != nil && w.id == "" {
		w.id = g.newID()
	}
	return w
}

// report says once what a node denies. It needs no mutex.
func (g *guard) report(i int, l lack, s sighting) {
	if l == lackNothing {
		return
	}
	err := s.err
	if err == nil {
		err = s.mark.err
	}
	g.tell(degradation{node: g.names[i], lacks: lacks[l], err: err})
}

// evicted takes in how many keys a node has evicted.
func (g *guard) evicted(i int, runID string, count int64) {
	now := g.clock.now().mono
	g.mu.Lock()
	grown, tell := g.evictions[i].see(runID, count, now)
	g.mu.Unlock()
	if tell {
		g.tell(degradation{
			node: g.names[i], lacks: evicts, evicted: grown, again: true,
			err: fmt.Errorf("evicted_keys has grown by %d to %d: set maxmemory-policy noeviction, and give the server the memory that it needs", grown, count),
		})
	}
}

// newID makes the id of a mark; the caller holds mu.
func (g *guard) newID() string {
	r := g.random
	if r == nil {
		r = rand.Reader
	}
	var b [12]byte
	_, _ = io.ReadFull(r, b[:]) // crypto/rand never fails
	return hex.EncodeToString(b[:])
}

// ready reports whether a batch with a SET may go to the node without the full question
// ahead of it: it is known who it is, and its mark.
func (g *guard) ready(i int) bool {
	if g == nil {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	m := &g.memories.nodes[i]
	return m.voice == voiceMute || m.voice == voiceClear && m.mark.state != markAbsent
}

// since is since when a node's data has been remembering, by our clock; zero where that is
// not known.
func (g *guard) since(i int) time.Time {
	if g == nil {
		return time.Time{}
	}
	now := g.clock.now()
	g.mu.Lock()
	defer g.mu.Unlock()
	at, ok := g.memories.remembers(i)
	if !ok {
		return time.Time{}
	}
	return now.when(at)
}

// changed is when we saw other data on a node than before, by our monotonic clock; longAgo: never.
func (g *guard) changed(i int) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.memories.nodes[i].changedAt
}

// twin is why a node has no vote that leads to the same server as another, and was seen to do so
// later than that one; nil if it has one. So a server has one vote in each round: the node that has
// it keeps it until it is seen to lead elsewhere.
func (g *guard) twin(i int) error {
	if e := g.twins[i].Load(); e != nil {
		return *e
	}
	return nil
}

// errTwin is why the vote of a node does not count that leads to the same server as another.
type errTwin struct{ of string }

func (e errTwin) Error() string {
	return fmt.Sprintf("the same server as %s, whose vote counts", e.of)
}

func (errTwin) Unwrap() error { return errDuplicateNode }

var errDuplicateNode = errors.New("duplicate node")

// fencedGuard is the least guard for fenced locks: a node that lost its counters must not
// give tokens before its clock is past all that it gave, of which none was more than a
// second ahead, on servers that agree within a second. See docs/safety.md.
const fencedGuard = 3 * time.Second

// period is how long a node is kept from voting on locks of this TTL.
func (g *guard) period(ttl time.Duration, fencing bool) time.Duration {
	p := ttl
	if g != nil && g.fixed > 0 {
		p = g.fixed
	}
	if fencing {
		p = max(p, fencedGuard)
	}
	return p
}

// judge reports for how long yet a node's grant may not be counted, where nodes are kept
// from voting for a period; zero if it may. open: that may change as soon as more nodes
// were seen.
func (g *guard) judge(i int, period time.Duration, now int64) (left time.Duration, open bool) {
	if now-g.quiet[i].Load() >= int64(period) {
		return 0, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.memories.bar(i, period, now)
}

// why is the error of a vote that judge does not count.
func (g *guard) why(i int, left time.Duration) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch m := &g.memories.nodes[i]; {
	case m.voice == voiceUnsure:
		return errNoIdentity
	case m.voice == voiceClear && m.mark.state == markAbsent:
		return errNoMark
	default:
		return errRestarted{left}
	}
}

// errRestarted is why a grant is not counted.
type errRestarted struct{ left time.Duration }

func (e errRestarted) Error() string {
	return fmt.Sprintf("restarted or replaced, or its data was, so it may have forgotten locks: may vote in %v", e.left.Round(time.Millisecond))
}

var (
	errNoIdentity = errors.New("does not tell at present which server it is, or is a replica, so its votes do not count")
	errNoMark     = errors.New("has no memory mark yet, so its votes do not count")
)

const (
	noGuard = "the restart guard: whether the node was restarted and forgot locks is not known, so its votes always count"
	noMark  = "the memory mark: FLUSHALL is not noticed, nor by clients that start later that the node was restarted or replaced"
)
