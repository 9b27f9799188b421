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
	denied *degradations
	clock  clock
	random io.Reader // of the marks' ids; nil: crypto/rand

	// By node. quiet is since when, by our clock, nothing speaks against it: what most votes
	// are judged by, without a mutex. settled is what most looks find; nil: nothing yet.
	quiet   []*atomic.Int64
	settled []*atomic.Pointer[settledMark]
	twins   atomic.Bool // two nodes lead to one server at present

	mu       sync.Mutex // guards what follows; none but that of denied is taken under it
	memories *memories
}

// newGuard returns nil, which guards nothing, where the options say so.
func newGuard(names []string, o *Options, c clock, denied *degradations) *guard {
	if o.RestartGuard < 0 {
		return nil
	}
	n := len(names)
	g := &guard{
		fixed: o.RestartGuard, names: names, denied: denied, clock: c,
		quiet: make([]*atomic.Int64, n), settled: make([]*atomic.Pointer[settledMark], n),
		memories: newMemories(n, o.RestartGuard > 0),
	}
	for i := range names {
		g.quiet[i], g.settled[i] = new(atomic.Int64), new(atomic.Pointer[settledMark])
		g.quiet[i].Store(longAgo)
	}
	return g
}

var lacks = map[lack]string{lackIdentity: noGuard, lackMark: noMark}

// markKeyOf is the key of the nodes' memory marks; empty without a guard.
func markKeyOf(o *Options) string {
	if o.RestartGuard < 0 {
		return ""
	}
	return o.KeyPrefix + markKey
}

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
	g.twins.Store(g.memories.anyTwins())
	g.tell(i, lacks, s)
	if w != nil && w.id == "" {
		w.id = g.newID()
	}
	return w
}

// tell says once what a node denies. It needs no mutex.
func (g *guard) tell(i int, l lack, s sighting) {
	if l == lackNothing {
		return
	}
	err := s.err
	if err == nil {
		err = s.mark.err
	}
	g.denied.tell(g.names[i], lacks[l], err)
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

// twin reports whether a node leads to the same server as another, whose vote counts
// already. A round with both votes would rest on fewer servers than it seems to.
//
// It is enough to look at the round's own votes. Which of the two counts is of no matter,
// and a name that leads nowhere casts none.
func (g *guard) twin(i int, counts func(node int) bool) (of int, ok bool) {
	if !g.anyTwins() {
		return 0, false
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for j := range g.memories.nodes {
		if j != i && g.memories.areTwins(i, j) && counts(j) {
			return j, true
		}
	}
	return 0, false
}

// anyTwins reports whether two nodes lead to one server at present.
func (g *guard) anyTwins() bool { return g != nil && g.twins.Load() }

// errTwin is why the vote of a node does not count that leads to the same server as another.
type errTwin struct{ of string }

func (e errTwin) Error() string {
	return fmt.Sprintf("the same server as %s, whose vote counts already", e.of)
}

func (errTwin) Unwrap() error { return ErrDuplicateNode }

// duplicate tells of a server that is behind two nodes at present.
func (g *guard) duplicate() error {
	if !g.anyTwins() {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range g.names {
		for j := range i {
			if g.memories.areTwins(i, j) {
				return fmt.Errorf("redlock: %w: %s and %s are the same server, run id %s", ErrDuplicateNode, g.names[j], g.names[i], g.memories.nodes[i].runID)
			}
		}
	}
	return nil
}

// fencedGuard is the least guard for fenced locks: a node that lost its counters must not
// give tokens before its clock is past all that it gave, of which none was more than a
// second ahead, on servers that agree within a second. See docs/safety.md.
const fencedGuard = 3 * time.Second

// period is how long a node is kept from voting on locks of these terms.
func (g *guard) period(t *terms) time.Duration {
	p := t.ttl
	if g != nil && g.fixed > 0 {
		p = g.fixed
	}
	if t.fencing {
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

	errNoSinglePool = errors.New("the client is no *redis.Client, so which server answers is not known")
)
