package guard

import (
	"math"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

// The rules by which nodes are kept from voting: what is known of each, what a further
// report makes of it, and when its grants may count. Nothing here does I/O, asks for
// the time or knows of other goroutines; guard.go does. testdata/guard.txt shows
// them.
//
// A node may vote for a lock of guard period G once its data has been remembering for G,
// since then every lease that it may have forgotten is over. There are two witnesses: a
// change that this client saw itself, which counts from that moment, and the mark, which
// tells the clients that come later.

// Memory is what is known of one node. Times are nanoseconds of our monotonic clock.
type Memory struct {
	Identity      identity
	runID, replID string
	bornAt        int64         // its process, at the latest
	changedAt     int64         // when we saw other data there than before; LongAgo: never
	mark          protocol.Mark // MarkPresent only while it fits this process and its data
	markedAt      int64         // when it was written, at the latest
	rank          int           // the lower one of two nodes was seen first to lead to its process
}

// identity is how far a node tells which server it is.
type identity uint8

const (
	identityUnheard   identity = iota // never heard
	identityWithheld                  // does not tell, and never will
	IdentityUncertain                 // did not tell when it was asked last, or is a replica
	identityKnown
)

// lack is what a node denies for good.
type lack uint8

const (
	lackNothing lack = iota
	lackIdentity
	lackMark
)

// FirstUse is how far apart the marks of nodes may be that were written when their fleet
// was used for the first time: clients come one after the other, and so do nodes.
const FirstUse = 2 * time.Second

// Memories is what is known of all nodes of a Redlock.
type Memories struct {
	fixed bool // a period was set: nodes that start for the first time are no exception
	Nodes []Memory
	// young is the shortest period for which all of these processes were found too young
	// at one time. They are taken to have started together, and stay exempt when the first
	// of them outgrows it. Zero: none.
	young time.Duration
	ranks int // so many were given
}

// NewMemories knows nothing of n nodes. fixed: a period was set.
func NewMemories(n int, fixed bool) *Memories {
	ms := &Memories{fixed: fixed}
	for range n {
		ms.grow()
	}
	return ms
}

func (ms *Memories) grow() {
	ms.Nodes = append(ms.Nodes, Memory{changedAt: LongAgo})
}

// See takes in a report. It returns the mark to be written to the node, nil for none, without
// an id if that is a new one; and a right that the node has just turned out to deny.
func (ms *Memories) See(i int, s protocol.ServerReport, now int64) (*protocol.MarkWrite, lack) {
	m := &ms.Nodes[i]
	if s.Err != nil || s.RunID == "" {
		return nil, m.silent(s.Err, now)
	}
	before := *m
	met := m.meet(s, now)
	if met == newProcess {
		ms.ranks++
		m.rank = ms.ranks
	}
	w, lacks := m.consider(s, met, now)
	if w != nil && w.IsRedated() && len(ms.Nodes) > 1 {
		w.First = false // its age would no longer be that of its fleet's first use
	}
	if m.runID != before.runID || m.changedAt != before.changedAt {
		ms.young = 0 // no first start any more
	}
	return w, lacks
}

// silent takes in an answer without an identity. Where a node told its identity before, an
// error that is not known to be lasting is taken for one that passes; and one that is
// lasting may come from another server in its place.
func (m *Memory) silent(err error, now int64) lack {
	if err == nil || protocol.Passing(err) || m.runID != "" && !protocol.Permanent(err) {
		if m.Identity != identityWithheld {
			m.Identity = IdentityUncertain
		}
		return lackNothing
	}
	if m.runID != "" {
		m.changedAt = now
	}
	*m = Memory{Identity: identityWithheld, changedAt: m.changedAt}
	return lackIdentity
}

// acquaintance is what the ids of a report are to us.
type acquaintance uint8

const (
	sameData acquaintance = iota
	newProcess
	newData   // other data in the same process
	redrawnID // a new replication id for the same data
)

// meet compares the ids with those that are known.
func (m *Memory) meet(s protocol.ServerReport, now int64) acquaintance {
	m.Identity = identityKnown
	if s.RunID != m.runID {
		if m.runID != "" {
			m.changedAt = now
		}
		// INFO counts seconds from a clock that it reads now and then, so it may be up to a
		// second ahead. A clock that was set back must not make a node younger than new.
		age := min(max(s.Uptime-time.Second, 0), protocol.MaxAge)
		*m = Memory{Identity: identityKnown, runID: s.RunID, replID: s.ReplID, bornAt: now - int64(age), changedAt: m.changedAt}
		return newProcess
	}
	if s.ReplID == "" || s.ReplID == m.replID {
		return sameData
	}
	told := m.replID != ""
	m.replID = s.ReplID
	switch {
	case told && noFormer(s.FormerID):
		return redrawnID
	case told || m.mark.State == protocol.MarkPresent && m.mark.ReplID != s.ReplID:
		m.change(now)
		return newData
	default:
		return sameData
	}
}

// noFormer reports whether a master with a new replication id was no replica meanwhile. A
// master draws one without any loss when its first replica comes, and some time after the
// last has gone, and then has no former id. A replica that becomes a master keeps its
// master's as the former one.
func noFormer(id string) bool { return id != "" && strings.Trim(id, "0") == "" }

// forget makes the mark that we know one that says nothing of the node's data.
func (m *Memory) forget() {
	if m.mark.State == protocol.MarkPresent {
		m.mark = protocol.Mark{State: protocol.MarkAbsent}
	}
}

// change notes that the node's data is not what it was.
func (m *Memory) change(now int64) {
	m.changedAt = now
	m.forget()
}

// consider takes in the mark, once the ids have been.
func (m *Memory) consider(s protocol.ServerReport, met acquaintance, now int64) (*protocol.MarkWrite, lack) {
	seen := s.Mark
	if seen.State == protocol.MarkPresent && seen.ID == "" {
		seen.Read()
	}
	switch {
	case s.Role == "slave": // it may become a master again unseen
		m.Identity = IdentityUncertain
		m.change(now)
		return nil, lackNothing
	case seen.State == protocol.MarkDenied, seen.State == protocol.MarkUnread && seen.Err != nil && !protocol.Passing(seen.Err):
		return nil, m.deny(seen.Err, now)
	case seen.State == protocol.MarkUnread:
		if seen.Err != nil {
			m.Identity = IdentityUncertain
		}
		return nil, lackNothing
	}
	known := m.mark.State == protocol.MarkPresent
	switch same := known && seen.ID == m.mark.ID && seen.RunID == m.runID; {
	case same:
		return m.again(seen, s.Asked), lackNothing
	case m.fits(seen):
		return m.adopt(seen, known, now), lackNothing
	case m.mark.State == protocol.MarkDenied:
		return nil, lackNothing
	case known && !s.Asked:
		m.change(now)
	case !known:
		m.mark = protocol.Mark{State: protocol.MarkAbsent}
	}
	// Where this was asked, it may be older than what we know. Then the mark that we know is
	// still there, the script finds it and writes nothing; and else we shall see what it wrote.
	first := seen.State == protocol.MarkAbsent && m.changedAt == LongAgo
	return m.writes(seen, "", 0, time.Duration(now-m.bornAt), first), lackNothing
}

// again takes in the mark that we know, found again by its id.
func (m *Memory) again(seen protocol.Mark, asked bool) *protocol.MarkWrite {
	switch {
	case m.fits(seen):
		m.mark.Text, m.mark.ReplID = seen.Text, seen.ReplID // or given another date
		return nil
	case seen.ReplID != m.mark.ReplID:
		// Another client bound it to a replication id that we were not told yet, or it is a copy of
		// before. Asking tells.
		m.Identity = IdentityUncertain
		return nil
	case !asked:
		return nil
	default:
		// The replication id was drawn anew for the same data, and the mark is bound to it for
		// clients that come later.
		return m.writes(seen, seen.ID, seen.At, seen.Uptime, seen.First)
	}
}

// deny takes in that the mark may not be read or written.
func (m *Memory) deny(err error, now int64) lack {
	if m.mark.State == protocol.MarkDenied {
		return lackNothing
	}
	if m.mark.State == protocol.MarkPresent {
		m.changedAt = now
	}
	m.mark = protocol.Mark{State: protocol.MarkDenied, Err: err}
	return lackMark
}

// fits reports whether a mark is one of this process and its data.
func (m *Memory) fits(seen protocol.Mark) bool {
	return seen.ID != "" && seen.RunID == m.runID && (m.replID == "" || seen.ReplID == m.replID)
}

// adopt takes in a mark that fits and is new to us. One from the future, as a clock that
// was set back leaves it, would bar the node to every client that comes until then; it is
// given the present date, and keeps its id for clients that know it.
func (m *Memory) adopt(seen protocol.Mark, known bool, now int64) *protocol.MarkWrite {
	if known {
		m.changedAt = now
	}
	m.mark = seen
	m.markedAt = now - int64(min(max(seen.Age, 0), protocol.MaxAge))
	if seen.Age < -time.Second {
		return m.writes(seen, seen.ID, 0, time.Duration(now-m.bornAt), seen.First)
	}
	return nil
}

func (m *Memory) writes(over protocol.Mark, id string, at int64, uptime time.Duration, first bool) *protocol.MarkWrite {
	return &protocol.MarkWrite{Old: over.Text, ID: id, At: at, Uptime: min(uptime, protocol.MaxAge), First: first, RunID: m.runID, ReplID: m.replID}
}

// Bar is for how long yet a node's grants do not count for locks of this period; zero if
// they do, and then they do until See takes in something else. open: that may change as soon as
// more nodes were seen.
func (ms *Memories) Bar(i int, period time.Duration, now int64) (left time.Duration, open bool) {
	m := &ms.Nodes[i]
	switch {
	case m.Identity == identityUnheard:
		return 0, false // its wire tells of no server
	case m.Identity == IdentityUncertain, m.unmarked():
		return period, false
	}
	if !ms.fixed && ms.allYoung(period, now, false) && (ms.young == 0 || period < ms.young) {
		ms.young = period
	}
	young := !ms.fixed && ms.young > 0 && period >= ms.young && ms.maybeFirst(i, false)
	left = m.barredFor(period, ms.isFirst(i, false), young, now)
	if left == 0 {
		return 0, false
	}
	// Nodes that were not seen yet may turn out to be as young, or marked at the same time.
	young = !ms.fixed && ms.allYoung(period, now, true) && ms.maybeFirst(i, true)
	return left, ms.anyUnseen() && m.barredFor(period, ms.isFirst(i, true), young, now) == 0
}

// BarredFor is for how long yet a node is barred: for the period after other data was first
// seen there, and until its data has remembered for the period. first: its mark is of the
// fleet's first use, so what counts is the age of the process. young: all nodes started
// together, so that nothing can have been forgotten before.
func (m *Memory) barredFor(period time.Duration, first, young bool, now int64) time.Duration {
	since := m.changedAt
	if !young {
		since = max(since, m.since(first))
	}
	return max(0, time.Duration(since+int64(period)-now))
}

// since is since when the node's data has been remembering, at the latest.
func (m *Memory) since(first bool) int64 {
	switch {
	case m.Identity == identityWithheld:
		return LongAgo
	case m.mark.State != protocol.MarkPresent:
		return m.bornAt
	case first:
		return m.markedAt - int64(m.mark.Uptime)
	default:
		return m.markedAt
	}
}

// Remembers is since when a node's data has been remembering, for people; ok is false where
// there is no mark of this data, or none that may be read. It is the mark's date also where
// isFirst vouches for the time before: that takes a quorum of other nodes, so the time would
// jump when one of these goes away or loses its data.
func (ms *Memories) Remembers(i int) (at int64, ok bool) {
	m := &ms.Nodes[i]
	if m.Identity != identityKnown || m.mark.State != protocol.MarkPresent {
		return 0, false
	}
	return max(m.changedAt, m.since(false)), true
}

// unmarked reports whether the node tells its identity, and has no mark.
func (m *Memory) unmarked() bool {
	return m.Identity == identityKnown && m.mark.State == protocol.MarkAbsent
}

// Quiet is since when nothing speaks against a node, whatever is known of the others.
func (m *Memory) quiet() int64 {
	switch {
	case m.Identity == identityUnheard:
		return LongAgo
	case m.Identity == IdentityUncertain, m.unmarked():
		return notYet
	default:
		return max(m.changedAt, m.since(false))
	}
}

// isFirst reports whether a node's mark was written when the fleet was used for the first
// time. Then nothing was there before, and nothing was lost: a quorum of nodes has marks
// that found nothing, of the same age, and no node has an older one. A node that lost its
// data later has a younger one than the others. unseen: count in what may be found out of
// nodes that were not seen yet.
//
// Nodes out of reach are not waited for: a fleet that is used for the first time while a
// minority of it is down works at once. docs/safety.md says what that leaves open.
//
// A single node has no other to witness against it: there, a period that was set asks for more.
func (ms *Memories) isFirst(i int, unseen bool) bool {
	if ms.fixed && len(ms.Nodes) == 1 {
		return false
	}
	oldest := ms.oldestMark()
	of := func(m *Memory) bool {
		return m.mark.State == protocol.MarkPresent && m.mark.First && m.markedAt-oldest <= int64(FirstUse)
	}
	n := 0
	for j := range ms.Nodes {
		if m := &ms.Nodes[j]; (of(m) || unseen && m.unseen()) && ms.duplicateOf(j) < 0 {
			n++
		}
	}
	return of(&ms.Nodes[i]) && n >= len(ms.Nodes)/2+1
}

// oldestMark is when the oldest mark was written; notYet if none is known.
func (ms *Memories) oldestMark() int64 {
	oldest := int64(notYet)
	for i := range ms.Nodes {
		if m := &ms.Nodes[i]; m.mark.State == protocol.MarkPresent {
			oldest = min(oldest, m.markedAt)
		}
	}
	return oldest
}

// maybeFirst is isFirst, and true also where there is no mark to tell, of a process that ran when
// the others were marked: a later one may have taken the place of one that was used.
func (ms *Memories) maybeFirst(i int, unseen bool) bool {
	m := &ms.Nodes[i]
	if m.mark.State == protocol.MarkPresent {
		return ms.isFirst(i, unseen)
	}
	oldest := ms.oldestMark()
	return oldest == notYet || m.bornAt <= oldest+int64(FirstUse)
}

// allYoung reports whether every node is younger than the period, or was when its fleet was
// used for the first time. unseen: nodes that were not seen yet are taken for young.
func (ms *Memories) allYoung(period time.Duration, now int64, unseen bool) bool {
	for i := range ms.Nodes {
		m := &ms.Nodes[i]
		young := false
		switch {
		case ms.duplicateOf(i) >= 0: // the server that this name should lead to may be as old as any
		case m.unseen():
			young = unseen
		case m.Identity != identityKnown, m.mark.State == protocol.MarkAbsent:
		case m.mark.State == protocol.MarkPresent && ms.isFirst(i, unseen):
			young = m.mark.Uptime < period
		default:
			young = now-m.bornAt < int64(period)
		}
		if !young {
			return false
		}
	}
	return true
}

// unseen: it may turn out to be anything. So may a node that told its identity and whose mark
// is being written at this moment.
func (m *Memory) unseen() bool {
	return m.runID == "" && m.Identity != identityWithheld || m.unmarked()
}

func (ms *Memories) anyUnseen() bool {
	return slices.ContainsFunc(ms.Nodes, func(m Memory) bool { return m.unseen() })
}

// settledMark is a mark that says nothing new where it is found again.
type settledMark struct{ runID, replID, text string }

// isAll reports whether a look shows nothing else.
func (k *settledMark) isAll(s *protocol.ServerReport) bool {
	return !s.Asked && s.Err == nil && s.Role != "slave" && s.RunID == k.runID && (s.ReplID == "" || s.ReplID == k.replID) &&
		s.Mark.State == protocol.MarkPresent && s.Mark.Text == k.text
}

// settled is the mark where finding it again changes nothing, nil if anything would.
func (m *Memory) settled() *settledMark {
	if m.Identity != identityKnown || m.mark.State != protocol.MarkPresent {
		return nil
	}
	return &settledMark{m.runID, m.replID, m.mark.Text}
}

// duplicateOf is the node that was seen first of those that lead to the same server as this one; -1 if
// this is it.
func (ms *Memories) duplicateOf(i int) int {
	first := i
	for j := range ms.Nodes {
		if m, f := &ms.Nodes[j], &ms.Nodes[first]; m.runID != "" && m.runID == f.runID && m.rank < f.rank {
			first = j
		}
	}
	if first == i {
		return -1
	}
	return first
}

const (
	LongAgo = math.MinInt64 / 2
	notYet  = math.MaxInt64
)
