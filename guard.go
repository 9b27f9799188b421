package redlock

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// guard keeps nodes that may have forgotten what they granted from voting for acquires.
//
// A restart breaks every connection, so it is enough to ask each new one who answers.
// What was seen of a process first is kept as long as its run id stays: its age then goes
// by our monotonic clock, and a node whose wall clock is set neither grows old nor young.
type guard struct {
	fixed time.Duration // 0: each attempt's own TTL
	names []string
	clock clock
	lacks *degradations

	// quiet is since when, by our clock, nothing speaks against a node. It is what
	// most votes are judged by, without a mutex.
	quiet []*atomic.Int64

	mu    sync.Mutex
	nodes []memory
	// fleet is the shortest guard for which all of these processes were found too
	// young at one time: they started together, and still did when the first of them
	// comes of age. Zero: none.
	fleet time.Duration

	twice atomic.Pointer[error]
}

// memory is what is known of the process behind a node. Times are nanoseconds of our
// monotonic clock.
type memory struct {
	runID     string // empty: never seen
	mute      bool   // never seen, and does not tell
	bornAt    int64  // at the latest
	changed   bool   // another process was behind the node before
	changedAt int64
}

const longAgo = math.MinInt64 / 2

// newGuard returns nil, which guards nothing, where the options say so.
func newGuard(names []string, o *Options, c clock, lacks *degradations) *guard {
	if o.RestartGuard < 0 {
		return nil
	}
	g := &guard{
		fixed: o.RestartGuard, names: names, clock: c, lacks: lacks,
		quiet: make([]*atomic.Int64, len(names)), nodes: make([]memory, len(names)),
	}
	for i := range names {
		g.quiet[i] = new(atomic.Int64)
		g.quiet[i].Store(longAgo)
	}
	return g
}

// saw records what a new connection to a node told.
func (g *guard) saw(i int, s sighting) {
	now := g.clock.now().mono
	g.mu.Lock()
	defer g.mu.Unlock()
	m := &g.nodes[i]
	switch {
	case s.err != nil:
		// What was found out before stays: it still bars, and bars no longer for it.
		m.mute = m.runID == ""
		g.lacks.tell(g.names[i], noGuard, s.err)
		return
	case s.runID == m.runID:
		return
	}
	// INFO counts seconds from a clock that it reads now and then, so it may be up to a
	// second ahead. A clock that was set back must not make a node younger than new.
	age := min(max(s.uptime-time.Second, 0), maxAge)
	*m = memory{runID: s.runID, bornAt: now - int64(age), changed: m.runID != "", changedAt: now}
	quiet := m.bornAt
	if m.changed {
		quiet = now
	}
	g.fleet = 0
	g.quiet[i].Store(quiet)
	g.findTwice()
}

// maxAge keeps sums of times in range; no guard is as long.
const maxAge = 100 * 365 * 24 * time.Hour

// findTwice looks for a process behind two nodes; the caller holds mu.
func (g *guard) findTwice() {
	g.twice.Store(nil)
	ids := make([]string, len(g.nodes))
	for i, m := range g.nodes {
		ids[i] = m.runID
	}
	if all := twins(ids); len(all) > 0 {
		err := sameServer(g.names, all[0], ids[all[0].first])
		g.twice.Store(&err)
	}
}

// duplicate tells of a server that is behind two nodes at present.
func (g *guard) duplicate() error {
	if g == nil {
		return nil
	}
	if err := g.twice.Load(); err != nil {
		return *err
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
	if g.fixed == 0 && allYoung(g.nodes, period, now) && (g.fleet == 0 || period < g.fleet) {
		g.fleet = period
	}
	first := g.fixed == 0 && g.fleet > 0 && period >= g.fleet
	left = barredFor(g.nodes[i], period, first, now)
	open = left > 0 && g.fixed == 0 && barredFor(g.nodes[i], period, true, now) == 0 && mayAllBeYoung(g.nodes, period, now)
	return left, open
}

// barredFor is how long yet a node may not vote: for the period after another process
// was first seen there, and until the process is a period old, unless it is the first
// start of all nodes. A promoted replica may be old, so the age alone does not tell.
func barredFor(m memory, period time.Duration, first bool, now int64) time.Duration {
	if m.runID == "" {
		return 0
	}
	left := time.Duration(0)
	if m.changed {
		left = max(left, time.Duration(m.changedAt+int64(period)-now))
	}
	if !first {
		left = max(left, time.Duration(m.bornAt+int64(period)-now))
	}
	return left
}

// allYoung reports whether every node was seen and is younger than the period.
func allYoung(nodes []memory, period time.Duration, now int64) bool {
	return !slices.ContainsFunc(nodes, func(m memory) bool { return m.runID == "" || now-m.bornAt >= int64(period) })
}

// mayAllBeYoung is allYoung where nodes that were not seen yet are taken for young.
func mayAllBeYoung(nodes []memory, period time.Duration, now int64) bool {
	return !slices.ContainsFunc(nodes, func(m memory) bool {
		return m.mute || m.runID != "" && now-m.bornAt >= int64(period)
	})
}

// errRestarted is why a grant is not counted.
type errRestarted struct{ left time.Duration }

func (e errRestarted) Error() string {
	return fmt.Sprintf("restarted or replaced, so it may have forgotten locks: may vote in %v", e.left.Round(time.Millisecond))
}

var errNoSinglePool = errors.New("the client is no *redis.Client, so which server answers is not known")
