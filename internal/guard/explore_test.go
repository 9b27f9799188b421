package guard

import (
	"encoding/binary"
	"flag"
	"fmt"
	"hash/maphash"
	"slices"
	"strconv"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/ticktest"
	"github.com/quorumlock/redlock/internal/tick"
)

// An exhaustive search: every order of a few clients' steps and of a few faults on three nodes, with
// the real Guard in between. It is breadth first, so what it finds is a shortest story. A state is a
// value; the guard of a client is loaded from it before a step and read back after it. Times are whole
// ticks before or after now, ids are renamed in order of appearance, nodes and clients are sorted: two
// states that differ in nothing else are one.
//
//	go test ./internal/guard -run TestExplore -explore.states=3000000 -v

var (
	exploreStates = flag.Int("explore.states", 4_000, "how many states TestExplore visits at most, per row")
)

const (
	xStarts  = 3 // the kind of ids, behind those in xNames
	xNodes   = 3
	xServers = 4 // one of them outside of the fleet
	xClients = 3
	xSlots   = 2             // connections of one client to one node whose answers may be held up
	xNever   = int16(-10000) // LongAgo
)

// exploreMost is how many states a search visits that takes so many, or 0.
func exploreMost(least int) int {
	if raceDetector {
		return *exploreStates / 50
	}
	return max(*exploreStates, least)
}

// What a scope allows.
type xScope struct {
	lean    bool // client 0 only asks all nodes, and pairs of them for the lock
	tick    time.Duration
	ttl     int16 // ticks
	clients int
	faults  int // losses and restarts, in all
	apart   int16
	depth   int
	fixed   bool // RestartGuard = TTL

	fresh bool // no marks, and nothing held, in the beginning
	knows bool // client 0 knows all nodes
	stay  bool // and so do the others

	restartEmpty, restartKept, restartOld, promote, flush, evictMark, redraw, copyBack bool
	names, outside                                                                     bool // names change where they lead; outside: to a server with a mark of its own
	deny, unread                                                                       bool
	refuses                                                                            string // what a node says to writes, now and then
	follow                                                                             bool   // a node becomes a replica, and a master again
	ahead                                                                              bool   // clocks are set forward, by more than the period; also that of the node that forgot last
	old                                                                                bool   // client 1 is of a version that does not know that all nodes were new
	tool                                                                               bool   // a client of one node alone looks at nodes, too
	newcomers                                                                          bool   // clients are replaced by new ones
	extend, back                                                                       bool   // extends reach any of the nodes
	split                                                                              bool   // SET and look are two steps
	genesis                                                                            bool   // a client may ask all nodes, three times over, in one step
	first                                                                              bool   // fresh, with marks of an older fleet whose first use missed node 2
	reconnect                                                                          bool   // connections break
	hold                                                                               int16  // so long may an answer or a mark to be written be held up; 0: not at all
	several                                                                            bool   // over two connections at the same time
	twins                                                                              bool   // two names lead to one server in the beginning
	coarse                                                                             bool   // an attempt is one step
	looks                                                                              bool   // a holder looks, too

	rested      bool // it is long since the nodes were asked
	idle        int8 // each client asks all nodes in each tick; 1: first of all, 2: last
	bare        bool // looks behind SETs bring the mark alone
	restartSame bool // a process starts again with its mark and its run id, and without the lock's key
	copies      bool // copies of a node's data are taken, of any age, and put back in the same process
	copied      bool // and there is one of each node in the beginning
	swap        bool // what is there becomes the copy
	rollback    bool // the process, and its clock, is set back with the data
	across      bool // a copy is put back between two answers to what a client asks
	prompt      bool // where nothing was lost, a lock that is free is had at once

	without xClause
}

// xClause is a clause of the rule, to be left out.
type xClause uint8

const (
	xWhole         xClause = iota
	xAge                   // a mark has to be old enough
	xChange                // a client that saw other data waits
	xLater                 // a mark says whether its writer had seen anything there
	xAllNodes              // all nodes must be new, and not a majority
	xTwice                 // each is looked at again
	xNewFor                // marks of a first use are young
	xCompare               // a mark is written by compare and set
	xSize                  // a mark says how many all are
	xServersDiffer         // all nodes are different servers
	xOldClock              // a mark is dated by the node's clock as it was before, too
	xOlder                 // a mark that stood beside what we knew counts from now
	xStart                 // a mark says when its process started
	xPuts                  // a mark says how often its process was told to put other data in place
	xPutsOften             // the number is asked with each look
	xPutsBehind            // the number is asked behind the mark
	xClauses
)

func (c xClause) String() string {
	return [...]string{
		"", "the age of marks", "waiting where other data was seen", "first or later", "all nodes, not most", "the second look", "young marks only", "compare and set",
		"the number of nodes", "different servers", "the clock as it was before", "waiting where a mark is older than what was seen", "the start",
		"the number of puts", "that number in looks", "that number behind the mark",
	}[c]
}

type xMark struct {
	state         protocol.MarkState
	id, run, repl uint8
	start, puts   uint8
	at            int16
	first, all    bool
	ver           uint8 // grows where the same id is given another date
}

// xCopy is a copy of a server's data.
type xCopy struct {
	has   bool
	mark  xMark
	owner int8
	till  int16
	age   int16
}

type xServer struct {
	run, repl, former uint8
	start, puts       uint8
	copy              xCopy
	mark              xMark
	owner             int8 // of the lock's key; -1: free
	till              int16
	denied, full      bool
	follows           bool
	lost              bool  // it is the one that forgot last
	back              int16 // its clock is so much behind
}

type xMemory struct {
	identity        identity
	run, repl       uint8
	start, puts     uint8
	changedAt       int16
	mark            xMark
	markedAt        int16
	writtenAt       int16
	known, asked    int8 // in which order
	seen            int16
	ahead           int16 // xNever: not known
	begins          bool
	rank            int8
	pend            [xSlots]xPending
	srv             int8 // where its connection leads; -1: none
	conRun, conRepl uint8
	said            uint8 // xIdle and what follows
}

const (
	xIdle    = iota
	xSet     // landed, look to come
	xRefused // set refused, look to come
	xCounts
	xWaits
	xBarred
	xNo
)

// xPending is an answer, or a mark to be written, that is held up.
type xPending struct {
	kind              uint8 // 0: none, 1: report, 2: write
	srv               int8
	ord               int8
	at                int16 // when it was asked
	age, back         int16 // of its mark then, and of its clock
	run, repl, former uint8
	start, puts       uint8
	mark              xMark // in the report; or what the write is to replace
	newID             bool
	redate            bool
	first, all        bool
}

type xClock struct {
	*ticktest.FakeClock
	mono int64
}

func (c *xClock) Now() tick.Instant { return tick.Instant{Mono: c.mono} }

type xClient struct {
	m      [xNodes]xMemory
	ranks  int8
	active bool
	start  int16
	until  int16 // of the lock that it holds; 0 and before: none
}

type xWorld struct {
	s      [xServers]xServer
	name   [xNodes]int8
	c      [xClients]xClient
	last   int16 // when a node forgot
	faults int8
}

// now is always 0.

type explorer struct {
	sc    *xScope
	g     *Guard
	clock *xClock
	now   int64
	sets  [xNodes]settledMark
	seed  maphash.Seed
	buf   []byte
	texts map[xMark]string
	soon  map[uint64]int // see lives
}

func newExplorer(sc *xScope) *explorer {
	x := &explorer{sc: sc, clock: &xClock{FakeClock: ticktest.NewFakeClock(), mono: 1 << 60}, seed: maphash.MakeSeed(), texts: make(map[xMark]string), soon: make(map[uint64]int)}
	x.now = x.clock.Now().Mono
	fixed := time.Duration(0)
	if sc.fixed {
		fixed = time.Duration(sc.ttl) * sc.tick
	}
	x.g = New([]string{"0", "1", "2"}, fixed, x.clock)
	return x
}

func (x *explorer) period() time.Duration {
	return x.g.Period(time.Duration(x.sc.ttl)*x.sc.tick, false)
}

// judge is for how long yet a grant of the node does not count.
func (x *explorer) judge(i int) time.Duration {
	switch m := &x.g.memories.Nodes[i]; {
	case m.Identity != identityKnown || m.mark.State != protocol.MarkPresent:
	case x.sc.without == xAge:
		return left(m.changedAt, x.period(), x.clock.mono)
	case x.sc.without == xChange && m.mark.All == 0:
		return left(m.markedAt, x.period(), x.clock.mono)
	case x.sc.without == xChange:
		return 0
	}
	return x.g.Judge(i, x.period(), x.clock.mono)
}

// saw is Saw, but for the clause that is left out.
func (x *explorer) saw(i int, r protocol.ServerReport) *protocol.MarkWrite {
	ms := x.g.memories
	if x.sc.without == xTwice || x.sc.without == xNewFor {
		for j := range ms.Nodes {
			if m := &ms.Nodes[j]; m.mark.State == protocol.MarkPresent && x.sc.without == xTwice {
				m.askedAt = x.clock.mono + 1<<11
			} else if m.mark.State == protocol.MarkPresent {
				m.writtenAt = x.clock.mono
			}
		}
		x.g.settled[i].Store(nil)
		if x.sc.without == xTwice {
			r.At = x.clock.mono + 1<<11
		}
	}
	switch x.sc.without {
	case xStart:
		r.Start, r.Mark.Start = 0, 0
	case xPuts:
		r.Puts, r.Mark.Puts = 0, 0
	}
	w := x.g.Saw(i, r)
	m := &ms.Nodes[i]
	switch x.sc.without {
	case xLater:
		if w != nil {
			w.First = true
		}
	case xAllNodes, xServersDiffer:
		if x.beginsAnyway() {
			for j := range ms.Nodes {
				ms.Nodes[j].begins = ms.Nodes[j].isNew()
			}
		}
		if w == nil && m.begins && m.isNew() {
			w = m.rewrites(m.mark, m.mark.At)
			w.All = len(ms.Nodes)
		}
	}
	return w
}

// beginsAnyway is begin without a clause.
func (x *explorer) beginsAnyway() bool {
	ms := x.g.memories
	n, last := 0, int64(LongAgo)
	for i := range ms.Nodes {
		m := &ms.Nodes[i]
		if m.isNew() && x.clock.mono-m.writtenAt < int64(newFor) && (x.sc.without == xServersDiffer || ms.duplicateOf(i) < 0) {
			n++
			last = max(last, m.knownAt)
		}
	}
	for i := range ms.Nodes {
		if m := &ms.Nodes[i]; m.isNew() && m.askedAt <= last {
			return false
		}
	}
	return n == xNodes || x.sc.without == xAllNodes && n > xNodes/2
}

func (x *explorer) ns(t int16) int64 {
	if t == xNever {
		return LongAgo
	}
	return x.now + int64(t)*int64(x.sc.tick)
}

func (x *explorer) ticks(ns int64) int16 {
	if ns == LongAgo {
		return xNever
	}
	d, t := ns-x.now, int64(x.sc.tick)
	d = max(d, -9000*t) // long ago, and not never
	if d < 0 {
		return int16(-((-d + t - 1) / t))
	}
	return int16(d / t)
}

var xNames = func() (n [3][64]string) {
	for i := range n {
		for j := 1; j < 64; j++ {
			n[i][j] = []string{"run", "repl", "mark"}[i] + strconv.Itoa(j)
		}
	}
	return
}()

func xNumber(s string, _ int) uint8 {
	n := uint8(0)
	for i := range len(s) {
		if d := s[i] - '0'; d < 10 {
			n = n*10 + d
		}
	}
	return n
}

func (x *explorer) text(m xMark) string {
	k := xMark{id: m.id, run: m.run, repl: m.repl, start: m.start, puts: m.puts, ver: m.ver, all: m.all}
	t, ok := x.texts[k]
	if !ok {
		t = fmt.Sprintf("m%d/%d/%d/%d/%d/%v/%d", m.id, m.run, m.repl, m.start, m.puts, m.all, m.ver)
		x.texts[k] = t
	}
	return t
}

// mark is what a client reads.
func (x *explorer) mark(m xMark, aged bool, back int16) protocol.Mark {
	if m.state != protocol.MarkPresent {
		return protocol.Mark{State: m.state, Err: xErr(m.state)}
	}
	p := protocol.Mark{
		State: m.state, Text: x.text(m), ID: xNames[2][m.id], RunID: xNames[0][m.run], ReplID: xNames[1][m.repl],
		At: int64(m.at) + 1_000_000, First: m.first, Start: int64(m.start), Puts: int64(m.puts),
	}
	if m.all {
		p.All = xNodes
	}
	if aged {
		p.Age = time.Duration(-m.at-back) * x.sc.tick
		p.Now = xThen + time.Duration(x.clock.mono) - time.Duration(back)*x.sc.tick
	}
	return p
}

// xThen is what a node's clock shows more than ours.
const xThen = 1 << 58

type xError string

func (e xError) Error() string { return string(e) }
func (xError) RedisError()     {}

func xErr(s protocol.MarkState) error {
	switch s {
	case protocol.MarkUnread:
		return xError("BUSY")
	}
	return nil
}

// load makes the explorer's guard that of a client.
func (x *explorer) load(c *xClient) {
	ms := x.g.memories
	x.clock.mono += 1 << 12
	x.now = x.clock.mono
	for i := range c.m {
		m := &c.m[i]
		n := &ms.Nodes[i]
		*n = Memory{
			Identity: m.identity, runID: xNames[0][m.run], replID: xNames[1][m.repl], start: int64(m.start), puts: int64(m.puts), changedAt: x.ns(m.changedAt),
			markedAt: x.ns(m.markedAt), writtenAt: x.ns(m.writtenAt), knownAt: x.now - 1000 + int64(m.known), askedAt: x.now - 1000 + int64(m.asked), rank: int(m.rank), begins: m.begins,
			seenAt: x.ns(m.seen), ahead: noClock,
		}
		if m.ahead != xNever && x.sc.without != xOldClock {
			n.ahead = xThen + int64(m.ahead)*int64(x.sc.tick)
		}
		if x.sc.without == xOlder {
			n.seenAt = LongAgo
		}
		switch m.mark.state {
		case protocol.MarkPresent:
			n.mark = x.mark(m.mark, false, 0)
		default:
			n.mark = protocol.Mark{State: m.mark.state}
			n.markedAt, n.writtenAt = 0, 0
		}
		x.g.quiet[i].Store(n.quiet(ms.all()))
		if n.settled(x.now) == nil {
			x.g.settled[i].Store(nil)
		} else {
			x.sets[i] = settledMark{n.runID, n.replID, n.start, n.puts, n.mark.Text}
			x.g.settled[i].Store(&x.sets[i])
		}
	}
	ms.ranks = int(c.ranks)
	for i := range ms.Nodes {
		if of := ms.duplicateOf(i); of >= 0 {
			x.g.duplicates[i].Store(&DuplicateError{"x"})
		} else {
			x.g.duplicates[i].Store(nil)
		}
	}
}

func (x *explorer) store(c *xClient) {
	ms := x.g.memories
	for i := range c.m {
		m, n := &c.m[i], &ms.Nodes[i]
		m.identity, m.run, m.repl = n.Identity, xNumber(n.runID, 0), xNumber(n.replID, 1)
		m.start, m.puts = uint8(n.start), uint8(n.puts)
		m.changedAt, m.rank, m.begins = x.ticks(n.changedAt), int8(n.rank), n.begins && n.isNew()
		m.seen, m.ahead = x.ticks(n.seenAt), xNever
		if n.ahead != noClock {
			m.ahead = int16(time.Duration(n.ahead-xThen).Round(x.sc.tick) / x.sc.tick)
		}
		m.mark, m.markedAt, m.writtenAt, m.known, m.asked = xMark{state: n.mark.State}, 0, 0, 0, 0
		if n.mark.State == protocol.MarkPresent {
			ver := n.mark.Text[len(n.mark.Text)-1] - '0'
			m.mark = xMark{state: n.mark.State, id: xNumber(n.mark.ID, 2), run: xNumber(n.mark.RunID, 0), repl: xNumber(n.mark.ReplID, 1), first: n.mark.First, all: n.mark.All > 0, ver: ver}
			m.mark.start, m.mark.puts = uint8(n.mark.Start), uint8(n.mark.Puts)
			m.markedAt = x.ticks(n.markedAt)
			m.mark.at = int16(n.mark.At - 1_000_000)
			if n.isNew() && x.now-n.writtenAt < int64(FirstUse) {
				m.writtenAt = x.ticks(n.writtenAt)
			} else {
				m.writtenAt = xNever
				n.knownAt, n.askedAt = LongAgo, LongAgo
			}
		}
	}
	// Of these times only the order matters.
	var room [(2 + xSlots) * xNodes]int64
	all := room[:0]
	for i := range c.m {
		n := &ms.Nodes[i]
		if c.m[i].mark.state == protocol.MarkPresent && n.knownAt != LongAgo {
			all = append(all, n.knownAt, n.askedAt)
		}
		for _, p := range c.m[i].pend {
			if p.kind != 0 {
				all = append(all, x.now-1000+int64(p.ord))
			}
		}
	}
	slices.Sort(all)
	all = slices.Compact(all)
	for i := range c.m {
		n := &ms.Nodes[i]
		if c.m[i].mark.state == protocol.MarkPresent && n.knownAt != LongAgo {
			c.m[i].known, c.m[i].asked = int8(slices.Index(all, n.knownAt)+1), int8(slices.Index(all, n.askedAt)+1)
			n.knownAt, n.askedAt = x.now-1000+int64(c.m[i].known), x.now-1000+int64(c.m[i].asked)
		}
		for n := range c.m[i].pend {
			if p := &c.m[i].pend[n]; p.kind != 0 {
				p.ord = int8(slices.Index(all, x.now-1000+int64(p.ord)) + 1)
			}
		}
	}
	c.ranks = int8(ms.ranks)
}

// later makes a moment pass.
func (x *explorer) later() int64 {
	x.clock.mono++
	return x.clock.mono
}

// farBack is before what time a moment bars no more.
func (x *explorer) farBack() int16 {
	return max(x.sc.ttl, int16(FirstUse/x.sc.tick)) + 1
}

// unused is an id, or a start, that nothing has.
func (w *xWorld) unused(kind int) uint8 {
	var used [64]bool
	see := func(m *xMark) {
		switch kind {
		case 0:
			used[m.run] = true
		case 1:
			used[m.repl] = true
		case 2:
			used[m.id] = true
		case xStarts:
			used[m.start] = true
		}
	}
	for i := range w.s {
		s := &w.s[i]
		see(&s.mark)
		see(&s.copy.mark)
		if kind == xStarts {
			used[s.start] = true
		}
		if kind == 0 {
			used[s.run] = true
		} else if kind == 1 {
			used[s.repl], used[s.former] = true, true
		}
	}
	for k := range w.c {
		for i := range w.c[k].m {
			m := &w.c[k].m[i]
			see(&m.mark)
			if kind == xStarts {
				used[m.start] = true
			}
			if kind == 0 {
				used[m.run], used[m.conRun] = true, true
			} else if kind == 1 {
				used[m.repl], used[m.conRepl] = true, true
			}
			for n := range m.pend {
				p := &m.pend[n]
				see(&p.mark)
				if kind == xStarts {
					used[p.start] = true
				}
				if kind == 0 {
					used[p.run] = true
				} else if kind == 1 {
					used[p.repl], used[p.former] = true, true
				}
			}
		}
	}
	for i := 1; ; i++ {
		if !used[i] {
			return uint8(i)
		}
	}
}

// tell hands a report to a client's guard, and writes what that wants. hold: the write is held up.
func (x *explorer) tell(w *xWorld, c, i, srv int, r protocol.ServerReport, hold bool) {
	s := &w.s[srv]
	for n := 0; ; n++ {
		if n > 4 {
			panic("bug: writes without end")
		}
		x.later()
		wr := x.saw(i, r)
		if wr != nil && x.sc.old && c == 1 {
			wr.All = 0
		}
		if wr != nil && x.sc.old && c == 1 && wr.Old != "" && r.Mark.State == protocol.MarkPresent && wr.ID == r.Mark.ID && r.Mark.First && !wr.IsRedated() && wr.ReplID == r.Mark.ReplID {
			wr = nil // it would write that all nodes were new
		}
		if wr == nil {
			x.store(&w.c[c])
			return
		}
		p := x.pendingWrite(w, c, i, srv, wr, r)
		if hold {
			w.c[c].m[i].holdUp(p)
			x.store(&w.c[c])
			return
		}
		x.store(&w.c[c])
		p.at, p.ord = 0, 0
		at := x.later()
		r = x.write(w, s, &p, r.RunID, at)
	}
}

func (x *explorer) pendingWrite(w *xWorld, c, i, srv int, wr *protocol.MarkWrite, r protocol.ServerReport) xPending {
	p := xPending{kind: 2, srv: int8(srv), first: wr.First, all: wr.All > 0, run: xNumber(wr.RunID, 0), repl: xNumber(wr.ReplID, 1), start: uint8(wr.Start), puts: uint8(wr.Puts)}
	// What is to be replaced is known by its text; no two marks have the same.
	if wr.Old != "" {
		for m, t := range x.texts {
			if t == wr.Old {
				p.mark = m
				p.mark.state = protocol.MarkPresent
			}
		}
	}
	p.newID = p.mark.state != protocol.MarkPresent || wr.ID != xNames[2][p.mark.id]
	p.redate = wr.IsRedated()
	return p
}

// write is the script.
func (x *explorer) write(w *xWorld, s *xServer, p *xPending, runID string, at int64) protocol.ServerReport {
	r := protocol.ServerReport{RunID: runID, Asked: true, At: at}
	switch {
	case s.denied:
		r.Mark = protocol.Mark{State: protocol.MarkUnread, Err: xError("NOPERM")}
		return r
	case s.full:
		r.Mark = protocol.MarkOfError(xError(x.sc.refuses))
		return r
	case s.follows:
		r.Mark = protocol.MarkOfError(xError("READONLY You can't write against a read only replica."))
		return r
	}
	same := s.mark.state == p.mark.state
	if same && s.mark.state == protocol.MarkPresent {
		same = x.text(s.mark) == x.text(p.mark)
	}
	if same || x.sc.without == xCompare {
		m := xMark{state: protocol.MarkPresent, run: p.run, repl: p.repl, start: p.start, puts: p.puts, first: p.first, all: p.all}
		if p.newID {
			m.id = w.unused(2)
		} else {
			m.id = p.mark.id
			if m.ver = s.mark.ver; p.redate {
				m.ver = (m.ver + 1) % 8
			}
		}
		m.at = -s.back
		if !p.newID && !p.redate {
			m.at = s.mark.at
		}
		s.mark = m
	}
	r.Mark = x.mark(s.mark, true, s.back)
	return r
}

func (x *explorer) ask(w *xWorld, c, i int, unread bool) { x.askHold(w, c, i, unread, 0) }

// askHold: hold 1: the answer is held up; 2: what is to be written is.
func (x *explorer) askHold(w *xWorld, c, i int, unread bool, hold int) {
	cl := &w.c[c]
	srv := int(w.name[i])
	if cl.m[i].srv >= 0 && cl.m[i].conRun == w.s[cl.m[i].srv].run {
		srv = int(cl.m[i].srv)
	}
	s := &w.s[srv]
	cl.m[i].srv, cl.m[i].conRun, cl.m[i].conRepl = int8(srv), s.run, s.repl
	x.load(cl)
	if hold == 1 {
		p := xPending{kind: 1, srv: int8(srv), run: s.run, repl: s.repl, former: s.former, start: s.start, puts: s.puts, mark: s.mark}
		if s.mark.state == protocol.MarkPresent {
			p.age, p.back = -s.mark.at-s.back, s.back
			p.mark.at = 0
		}
		p.ord = 120 // the latest
		for j := range cl.m {
			for _, q := range cl.m[j].pend {
				if q.kind != 0 && q.ord >= p.ord {
					p.ord = q.ord + 1
				}
			}
		}
		cl.m[i].holdUp(p)
		x.store(cl)
		return
	}
	r := x.report(s)
	r.Asked = true
	switch {
	case unread:
		r.Mark = protocol.Mark{State: protocol.MarkUnread, Err: xErr(protocol.MarkUnread)}
	case hold == askAcross && x.sc.without == xPutsBehind:
		x.putBack(w, srv)
		r.Mark = x.report(s).Mark
	case hold == askAcross:
		x.putBack(w, srv)
		r.Puts = x.report(s).Puts
	}
	x.tell(w, c, i, srv, r, hold == 2)
}

// askAcross is of askHold: the copy of the node's data is put back between the answers.
const askAcross = 3

// report is what a server tells of itself now.
func (x *explorer) report(s *xServer) protocol.ServerReport {
	r := protocol.ServerReport{
		RunID: xNames[0][s.run], ReplID: xNames[1][s.repl], FormerID: "0000", Role: "master", Start: int64(s.start), Puts: int64(s.puts), At: x.later(), Mark: x.mark(s.mark, true, s.back),
	}
	if s.former > 0 {
		r.FormerID = xNames[1][s.former]
	}
	if s.follows {
		r.Role = "slave"
	}
	if s.mark.state != protocol.MarkPresent {
		r.Mark = protocol.Mark{State: protocol.MarkAbsent}
	}
	if s.denied {
		r.Mark = protocol.Mark{State: protocol.MarkUnread, Err: xError("NOPERM")}
	}
	return r
}

// putBack puts the copy of a server's data in place.
func (x *explorer) putBack(w *xWorld, srv int) {
	s := &w.s[srv]
	was := xCopy{true, s.mark, s.owner, s.till, 0}
	for i := range w.s {
		w.s[i].lost = false
	}
	s.mark, s.owner, s.till, s.lost, w.last = s.copy.mark, s.copy.owner, s.copy.till, x.sc.ahead, 0
	if x.sc.rollback {
		s.back += s.copy.age
	} else {
		s.puts++
	}
	if x.sc.swap {
		s.copy = was
	}
}

// holdUp adds what is held up; there must be room.
func (m *xMemory) holdUp(p xPending) {
	for n := range m.pend {
		if m.pend[n].kind == 0 {
			m.pend[n] = p
			return
		}
	}
	panic("bug: no room")
}

// arrives takes it out again.
func (m *xMemory) arrives(slot int) xPending {
	p := m.pend[slot]
	copy(m.pend[slot:], m.pend[slot+1:])
	m.pend[xSlots-1] = xPending{}
	return p
}

// land lets come what was held up.
func (x *explorer) land(w *xWorld, c, i, slot int) {
	cl := &w.c[c]
	p := cl.m[i].arrives(slot)
	s := &w.s[p.srv]
	x.load(cl)
	if p.kind == 2 {
		if s.run != p.run {
			return // the connection is gone
		}
		run := xNames[0][s.run]
		at := x.later()
		x.tell(w, c, i, int(p.srv), x.write(w, s, &p, run, at), false)
		return
	}
	r := protocol.ServerReport{
		Asked: true, RunID: xNames[0][p.run], ReplID: xNames[1][p.repl], FormerID: "0000", Role: "master", Start: int64(p.start), Puts: int64(p.puts),
		At: x.now - 1000 + int64(p.ord) + int64(p.at)*int64(x.sc.tick),
	}
	if p.former > 0 {
		r.FormerID = xNames[1][p.former]
	}
	if p.mark.state == protocol.MarkPresent {
		r.Mark = x.mark(p.mark, false, 0)
		r.Mark.Age = time.Duration(p.age) * x.sc.tick
		r.Mark.Now = xThen + time.Duration(x.clock.mono) + time.Duration(p.at-p.back)*x.sc.tick
	} else {
		r.Mark = protocol.Mark{State: protocol.MarkAbsent}
	}
	x.tell(w, c, i, int(p.srv), r, false)
}

func (x *explorer) alive(w *xWorld, m *xMemory) bool {
	return m.srv >= 0 && w.s[m.srv].run == m.conRun
}

// setKey is the SET of an attempt.
func (x *explorer) setKey(w *xWorld, c, i int) {
	cl := &w.c[c]
	m := &cl.m[i]
	s := &w.s[m.srv]
	m.said = xRefused
	if s.full || s.follows {
		m.said = xNo
		return
	}
	if s.owner < 0 {
		s.owner, s.till = int8(c), x.sc.ttl
		m.said = xSet
	}
}

// look reads the mark behind the SET, with the replication id, and the vote is judged.
func (x *explorer) look(w *xWorld, c, i int) {
	cl := &w.c[c]
	m := &cl.m[i]
	landed := m.said == xSet
	if !x.alive(w, m) {
		m.srv, m.said = -1, xNo
		x.conclude(w, c)
		return
	}
	srv := int(m.srv)
	s := &w.s[srv]
	x.load(cl)
	r := x.report(s)
	if x.sc.bare {
		r = protocol.ServerReport{RunID: r.RunID, At: r.At, Mark: r.Mark}
		r.Mark.Age, r.Mark.Now = 0, 0
	}
	if x.sc.without == xPutsOften {
		r.Puts = int64(m.puts)
	}
	x.tell(w, c, i, srv, r, false)
	m.conRepl = s.repl
	m.said = xNo
	if landed {
		left := x.judge(i)
		switch {
		case left > 0:
			m.said = xBarred
		default:
			m.said = xCounts
		}
	}
	x.conclude(w, c)
}

// conclude grants, or gives up where that is certain.
func (x *explorer) conclude(w *xWorld, c int) {
	cl := &w.c[c]
	if !cl.active {
		return
	}
	votes, pending := 0, 0
	for i := range cl.m {
		switch cl.m[i].said {
		case xCounts:
			votes++
		case xIdle, xSet, xRefused:
			pending++
		}
	}
	until := cl.start + x.sc.ttl
	switch {
	case votes >= 2:
		if until <= 0 {
			x.giveUp(w, c)
			return
		}
		cl.active, cl.until = false, until
		x.idle(cl)
	case votes+pending < 2:
		x.giveUp(w, c)
	}
}

func (x *explorer) idle(cl *xClient) {
	for i := range cl.m {
		cl.m[i].said = xIdle
	}
	cl.start = 0
}

// giveUp releases all.
func (x *explorer) giveUp(w *xWorld, c int) {
	w.c[c].active = false
	w.c[c].until = 0
	x.idle(&w.c[c])
	for i := range w.s {
		if w.s[i].owner == int8(c) {
			w.s[i].owner, w.s[i].till = -1, 0
		}
		if w.s[i].copy.owner == int8(c) {
			w.s[i].copy.owner, w.s[i].copy.till = -1, 0
		}
	}
}

// pass lets a tick pass.
func (x *explorer) pass(w *xWorld) {
	dec := func(t *int16) {
		if *t != xNever {
			*t--
		}
	}
	for i := range w.s {
		s := &w.s[i]
		if s.mark.state == protocol.MarkPresent {
			dec(&s.mark.at)
		}
		if s.copy.has {
			if dec(&s.copy.mark.at); x.sc.rollback {
				s.copy.age++
			}
			if s.copy.owner >= 0 {
				if s.copy.till--; s.copy.till <= 0 {
					s.copy.owner, s.copy.till = -1, 0
				}
			}
		}
		if s.owner >= 0 {
			if s.till--; s.till <= 0 {
				s.owner, s.till = -1, 0
			}
		}
	}
	for k := range w.c {
		c := &w.c[k]
		if c.active {
			c.start--
			if c.start+x.sc.ttl <= 0 {
				x.giveUp(w, k)
			}
		}
		if c.until > 0 {
			if c.until--; c.until == 0 {
				x.giveUp(w, k)
			}
		}
		for i := range c.m {
			m := &c.m[i]
			dec(&m.changedAt)
			dec(&m.seen)
			for n := xSlots - 1; n >= 0; n-- {
				if p := &m.pend[n]; p.kind != 0 {
					if p.at--; p.at < -x.sc.hold {
						m.arrives(n) // and nothing waits for it any more
					}
				}
			}
			if m.mark.state == protocol.MarkPresent {
				dec(&m.markedAt)
				if m.known > 0 {
					if dec(&m.writtenAt); int64(-m.writtenAt)*int64(x.sc.tick) >= int64(FirstUse) {
						m.writtenAt, m.known, m.asked = xNever, 0, 0
					}
				}
				dec(&m.mark.at)
			}
		}
	}
	dec(&w.last)
	x.clip(w)
}

// clip shortens spans in which nothing is.
func (x *explorer) clip(w *xWorld) {
	most := max(x.sc.ttl, int16(FirstUse/x.sc.tick)) + int16(FirstUse/x.sc.tick) + int16(2*time.Second/x.sc.tick) + 1
	var all [128]*int16
	n := 0
	add := func(t *int16) {
		if *t < 0 && *t != xNever {
			all[n] = t
			n++
		}
	}
	for i := range w.s {
		s := &w.s[i]
		if s.mark.state == protocol.MarkPresent {
			add(&s.mark.at)
		}
		if s.copy.has && s.copy.mark.state == protocol.MarkPresent {
			add(&s.copy.mark.at)
		}
	}
	for k := range w.c {
		c := &w.c[k]
		if c.active {
			add(&c.start)
		}
		for i := range c.m {
			m := &c.m[i]
			add(&m.changedAt)
			add(&m.seen)
			if m.mark.state == protocol.MarkPresent {
				add(&m.markedAt)
				if m.known > 0 {
					add(&m.writtenAt)
				}
				add(&m.mark.at)
			}
		}
	}
	add(&w.last)
	s := all[:n]
	slices.SortFunc(s, func(a, b *int16) int { return int(*b) - int(*a) })
	gained, before := int16(0), int16(0)
	step := int16(1)
	if x.sc.tick < time.Second {
		step = int16(time.Second / x.sc.tick)
	}
	for _, t := range s {
		was := *t + gained
		for before-was > most+step {
			was += step
			gained += step
		}
		*t = was
		before = was
	}
}

// order is that of the nodes, whatever their numbers.
func (x *explorer) order(w *xWorld) (order [xNodes]int) {
	if x.sc.names {
		return [xNodes]int{0, 1, 2} // a name that leads elsewhere ties them together
	}
	var sig [xNodes]uint64
	for i := range order {
		order[i] = i
		h := uint64(0)
		s := &w.s[i]
		mix := func(v int64) { h = (h ^ uint64(v+77777)) * 0x9E3779B97F4A7C15; h ^= h >> 29 }
		mix(int64(s.mark.state)<<40 | int64(s.mark.at)<<20 | int64(s.puts))
		mix(int64(s.owner)<<20 | int64(s.till))
		if w.name[i] == int8(i) {
			mix(3)
		} else if w.name[i] == 3 {
			mix(4)
		}
		for k := range w.c {
			m := &w.c[k].m[i]
			mix(int64(m.identity)<<40 | int64(uint16(m.seen))<<20 | int64(uint16(m.changedAt)))
			mix(int64(m.mark.state)<<40 | int64(uint16(m.markedAt))<<8 | int64(m.said)<<2 | int64(m.srv))
			mix(int64(m.known)<<40 | int64(m.asked)<<32 | int64(m.pend[0].kind)<<8 | int64(m.pend[0].ord))
		}
		sig[i] = h
	}
	slices.SortFunc(order[:], func(a, b int) int {
		switch {
		case sig[a] < sig[b]:
			return -1
		case sig[a] > sig[b]:
			return 1
		}
		return 0
	})
	return order
}

// key is the state's hash. Nodes and clients are in any order.
func (x *explorer) key(w *xWorld) uint64 {
	order := x.order(w)
	best := uint64(0)
	perms := [][xClients]int{{0, 1, 2}}
	if x.sc.clients == 2 {
		perms = append(perms, [xClients]int{1, 0, 2})
	} else if x.sc.clients == 3 {
		perms = [][xClients]int{{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}}
	}
	for n, p := range perms {
		h := x.encode(w, order, p)
		if n == 0 || h < best {
			best = h
		}
	}
	return best
}

func (x *explorer) encode(w *xWorld, order [xNodes]int, perm [xClients]int) uint64 {
	b := x.buf[:0]
	var ids [4][64]uint8
	var next [4]uint8
	id := func(kind int, v uint8) {
		if v == 0 {
			b = append(b, 0)
			return
		}
		if ids[kind][v] == 0 {
			next[kind]++
			ids[kind][v] = next[kind]
		}
		b = append(b, ids[kind][v])
	}
	t := func(v int16) { b = binary.LittleEndian.AppendUint16(b, uint16(v)) }
	flag := func(v bool) {
		if v {
			b = append(b, 1)
		} else {
			b = append(b, 0)
		}
	}
	mark := func(m *xMark) {
		b = append(b, byte(m.state))
		if m.state == protocol.MarkPresent {
			id(2, m.id)
			id(0, m.run)
			id(1, m.repl)
			id(xStarts, m.start)
			t(m.at)
			flag(m.first)
			flag(m.all)
			b = append(b, m.ver, m.puts)
		}
	}
	var rank [xClients]byte
	for p, k := range perm {
		rank[k] = byte(p)
	}
	servers := xNodes
	if x.sc.outside {
		servers = xServers
	}
	for n := range servers {
		i := n
		if n < xNodes {
			i = order[n]
		}
		s := &w.s[i]
		id(0, s.run)
		id(1, s.repl)
		id(1, s.former)
		id(xStarts, s.start)
		b = append(b, s.puts)
		mark(&s.mark)
		if s.owner >= 0 {
			b = append(b, rank[s.owner]+1)
		} else {
			b = append(b, 0)
		}
		t(s.till)
		if flag(s.copy.has); s.copy.has {
			mark(&s.copy.mark)
			if s.copy.owner >= 0 {
				b = append(b, rank[s.copy.owner]+1)
			} else {
				b = append(b, 0)
			}
			t(s.copy.till)
			t(s.copy.age)
		}
		flag(s.denied)
		flag(s.full)
		flag(s.follows)
		flag(s.lost)
		t(s.back)
		if n < xNodes {
			b = append(b, byte(w.name[i]))
		}
	}
	for _, k := range perm[:] {
		if k >= x.sc.clients {
			continue
		}
		c := &w.c[k]
		for _, i := range order {
			m := &c.m[i]
			b = append(b, byte(m.identity), m.said)
			id(0, m.run)
			id(1, m.repl)
			id(xStarts, m.start)
			b = append(b, m.puts)
			t(m.changedAt)
			t(m.seen)
			t(m.ahead)
			mark(&m.mark)
			t(m.markedAt)
			t(m.writtenAt)
			b = append(b, byte(m.known), byte(m.asked))
			flag(m.begins)
			for n := range m.pend {
				p := &m.pend[n]
				if b = append(b, p.kind); p.kind == 0 {
					break
				}
				b = append(b, byte(p.ord))
				t(p.at)
				t(p.age)
				t(p.back)
				id(0, p.run)
				id(1, p.repl)
				id(1, p.former)
				id(xStarts, p.start)
				b = append(b, p.puts)
				mark(&p.mark)
				flag(p.newID)
				flag(p.redate)
				flag(p.first)
				flag(p.all)
			}
			if x.sc.names {
				b = append(b, byte(m.srv), byte(m.rank))
			} else {
				flag(m.srv >= 0)
			}
			id(0, m.conRun)
		}
		flag(c.active)
		t(c.start)
		t(c.until)
	}
	t(w.last)
	b = append(b, byte(w.faults))
	x.buf = b
	return maphash.Bytes(x.seed, b)
}
