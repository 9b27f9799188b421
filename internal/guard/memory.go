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
// A node may vote for a lock of guard period G once its data has been remembering for G: by then every lease that it
// may have forgotten is over. The mark tells since when that is. A client that knew other data there has its own memory
// as a second witness, against a clock that was set forward since: see adopt. A mark is one of this data if it was
// written under the run id, the replication id and the start that the node tells, and under the number of times that
// its process was told to put other data in place: a mark that came back with a copy has a smaller number. G is never
// less than FirstUse. Where the node does not tell which server it is, or its mark cannot be read, written or dated, for
// whatever reason, it has no vote.
//
// There is one exception, for a fleet that is used for the first time. A mark says whether
// anything was there when it was written. A client that finds new marks on all N nodes, where nothing
// was, looks at each of them again and then writes into each that all N were new together.
// Such a mark counts at once, whatever is known of other nodes.
//
// Between the two looks there was a moment at which all N nodes had these very marks. No grant had counted on any of
// them: they were younger than FirstUse, and none said that all were new. So if a lock was held at that moment, a
// majority that had granted it has lost its marks since, all within one lease. If it was not, no node has anything to
// remember. What a node forgets later, its mark goes with, and no client can write allN into the next mark, since
// another node says so already or is too old.

// Memory is what is known of one node. Times are nanoseconds of our monotonic clock.
type Memory struct {
	Identity      identity
	runID, replID string
	start, puts   int64         // as ServerReport has them
	changedAt     int64         // since when there is other data than we knew, at the latest; LongAgo: we knew none
	mark          protocol.Mark // MarkPresent only while it fits this process and its data
	markedAt      int64         // latest time at which it may have been written: bars count from it
	writtenAt     int64         // earliest such time: newFor counts from it
	knownAt       int64         // when we were first told of it
	askedAt       int64         // when we last asked for what showed it
	seenAt        int64         // when we last asked for what showed the data that we know, or knew; LongAgo: never
	ahead         int64         // by how much the node's clock was ahead of ours then, at least; noClock: not told
	err           error         // why that is uncertain, as the node says
	begins        bool          // its fleet's first use began with it, see Memories.begin
	rank          int           // order in which nodes were first seen to lead to their processes
}

// identity is how far a node tells which server it is.
type identity uint8

const (
	identityUnheard   identity = iota // never heard
	IdentityUncertain                 // did not tell it, or the mark, when it was asked last, or is a replica
	identityKnown
)

const (
	// FirstUse is the least age of a mark at which a grant counts on it, unless the mark says that
	// all nodes were new together.
	FirstUse = 2 * time.Second
	// newFor is up to which age a mark may be one of its fleet's first use. It is less than FirstUse,
	// since clients' clocks run at different rates.
	newFor = FirstUse - FirstUse/10
	// FirstLooks is how many looks at all nodes of a new fleet it takes until their grants count: one that
	// marks them, one that finds the marks, and one that writes into each that all nodes are new.
	FirstLooks = 3
)

// Memories is what is known of all nodes of a Redlock.
type Memories struct {
	fixed bool // a period was set: nodes that start for the first time are no exception
	Nodes []Memory
	ranks int   // so many were given
	ahead int64 // see Slept
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
	ms.Nodes = append(ms.Nodes, Memory{changedAt: LongAgo, seenAt: LongAgo, ahead: noClock})
}

// Slept takes in by how much our wall clock is ahead of the monotonic one, which stands still while the machine
// sleeps. What that has grown by makes a new mark older; it makes no bar shorter.
func (ms *Memories) Slept(ahead int64) {
	for i := range ms.Nodes {
		ms.Nodes[i].writtenAt -= max(ahead-ms.ahead, 0)
	}
	ms.ahead = ahead
}

// See takes in a report. It returns the mark to be written to the node, nil for none, without
// an id if that is a new one; and whether a further look at all nodes would bring their fleet's first use
// forward.
func (ms *Memories) See(i int, s protocol.ServerReport, now int64) (w *protocol.MarkWrite, look bool) {
	m := &ms.Nodes[i]
	if s.Err != nil || s.RunID == "" || s.RunID != m.runID && s.ReplID == "" {
		m.doubt(s.Err)
		return nil, false
	}
	if s.Mark.State == protocol.MarkPresent && s.Mark.ID == "" {
		s.Mark.Read()
	}
	if s.Time > 0 {
		s.Mark = s.Mark.Aged(s.Time)
	}
	if m.meet(s) {
		ms.ranks++
		m.rank = ms.ranks
	}
	before, met := m.mark.ID, false
	w = m.consider(s, now)
	m.sawAgain(s, now)
	switch {
	case m.mark.State != protocol.MarkPresent:
		m.begins = false
	case m.mark.ID != before:
		met, m.knownAt, m.askedAt, m.begins = true, now, s.At, false
	case s.Mark.State == protocol.MarkPresent && s.At > 0:
		m.askedAt = max(m.askedAt, s.At)
	}
	look = ms.begin(i, met, now)
	if w == nil && m.begins && m.isNew() {
		// However late this comes: the script finds the same mark only where the same data is.
		w = m.rewrites(m.mark, m.mark.At)
		w.All = len(ms.Nodes)
	}
	return w, look
}

// begin notes whether this is the fleet's first use: all nodes have new marks, and then each was asked for and seen
// again. It returns true when node i completes one of the two steps: all nodes have new marks (met), or all were seen
// twice. The caller then looks at every node again, even if its attempt is over: without that look the others stay
// barred for a period. Neither step is completed twice.
func (ms *Memories) begin(i int, met bool, now int64) (look bool) {
	last := int64(LongAgo)
	for i := range ms.Nodes {
		m := &ms.Nodes[i]
		if !m.isNew() || now-m.writtenAt >= int64(newFor) || ms.duplicateOf(i) >= 0 {
			return false
		}
		last = max(last, m.knownAt)
	}
	if len(ms.Nodes) > 1 && slices.ContainsFunc(ms.Nodes, func(m Memory) bool { return m.askedAt <= last }) {
		return met
	}
	for j := range ms.Nodes {
		look = look || j != i && !ms.Nodes[j].begins
		ms.Nodes[j].begins = true
	}
	return look
}

// begins reports whether this may be the fleet's first use, which further looks at the nodes tell.
func (ms *Memories) begins(now int64) bool {
	if ms.fixed {
		return false
	}
	some := false
	for i := range ms.Nodes {
		m := &ms.Nodes[i]
		young := m.isNew() && (m.begins || now-m.writtenAt < int64(newFor))
		some = some || young
		if !young && m.mark.All == 0 && m.Identity == identityKnown && !m.unmarked() {
			return false
		}
	}
	return some
}

// isNew reports whether nothing was there when the node's mark was written, and the mark does not say yet
// that all nodes were new.
func (m *Memory) isNew() bool {
	return m.Identity == identityKnown && m.mark.State == protocol.MarkPresent && m.mark.First && m.mark.All == 0 && m.changedAt == LongAgo
}

// doubt takes in that the node did not tell what its vote rests on. What was known is judged by when it tells again.
func (m *Memory) doubt(err error) { m.Identity, m.err = IdentityUncertain, err }

// meet compares what the node tells of itself with what is known, and reports whether it is a new process. A look at the
// mark alone tells nothing of it.
func (m *Memory) meet(s protocol.ServerReport) bool {
	m.Identity, m.err = identityKnown, nil
	if s.RunID != m.runID || s.ReplID != "" && anotherStart(s.Start, m.start) {
		if m.runID != "" {
			m.changedAt = m.barred()
		}
		*m = Memory{
			Identity: identityKnown, runID: s.RunID, replID: s.ReplID, start: s.Start, puts: s.Puts,
			changedAt: m.changedAt, seenAt: m.seenAt, ahead: m.ahead,
		}
		return true
	}
	if s.ReplID == "" {
		return false
	}
	if m.puts = s.Puts; s.Start != 0 {
		m.start = s.Start
	}
	if s.ReplID != m.replID {
		m.replID = s.ReplID
		if !noFormer(s.FormerID) {
			m.change(m.barred())
		}
	}
	return false
}

// anotherStart reports whether two starts, where both are told, are those of two processes.
func anotherStart(a, b int64) bool { return a != 0 && b != 0 && a != b }

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

// change notes that the node's data is not what it was, and since when nothing speaks against what is there instead, as
// far as its mark does not tell.
func (m *Memory) change(at int64) {
	m.changedAt = at
	m.forget()
}

// barred is from when what we know keeps the node from voting. What takes its place does so from no earlier time.
func (m *Memory) barred() int64 {
	if m.mark.State != protocol.MarkPresent {
		return max(m.changedAt, LongAgo+1) // something was known
	}
	return max(m.changedAt, m.markedAt)
}

// sawAgain notes that the data that we know was there when this was asked for.
func (m *Memory) sawAgain(s protocol.ServerReport, now int64) {
	if m.Identity != identityKnown || m.mark.State != protocol.MarkPresent || s.Mark.State != protocol.MarkPresent || s.Mark.Text != m.mark.Text || s.At < m.seenAt {
		return
	}
	m.seenAt = s.At
	if s.Mark.Now > 0 {
		m.ahead = int64(s.Mark.Now) - now
	}
}

// consider takes in the mark, once the ids have been.
func (m *Memory) consider(s protocol.ServerReport, now int64) *protocol.MarkWrite {
	seen := s.Mark
	switch {
	case s.Role != "" && s.Role != "master": // it may become a master again unseen
		m.doubt(ErrReplica)
		m.change(m.barred())
		return nil
	case seen.State == protocol.MarkUnread:
		if seen.Err != nil || m.mark.State == protocol.MarkPresent && m.mark.Puts != m.puts {
			m.doubt(seen.Err)
		}
		return nil
	}
	known := m.mark.State == protocol.MarkPresent
	same := known && seen.ID == m.mark.ID && seen.RunID == m.runID
	other := seen.RunID == m.runID && (seen.Puts != m.puts || anotherStart(seen.Start, m.start))
	switch {
	case other && s.ReplID == "":
		m.doubt(nil) // what we know of the node may be over; asking tells
		return nil
	case same && other:
		m.change(now)
	case same && s.Asked && s.ReplID != "" && seen.ReplID != m.replID && seen.ReplID != m.mark.ReplID:
		// Two ids were drawn since we asked last, and another client saw the first. Whether the data
		// is the same is not to be told from here, and no later answer would tell it.
		m.change(now)
	case same:
		return m.again(seen, s.Asked)
	case m.fits(seen) && seen.Now == 0:
		m.doubt(errUndated) // a look does not date it; asking does
		return nil
	case m.fits(seen):
		return m.adopt(seen, s.At, now)
	case known && !s.Asked:
		m.change(now)
	case !known:
		m.mark = protocol.Mark{State: protocol.MarkAbsent}
	}
	// If we know a mark and were answered late, the script finds that mark and writes nothing. Otherwise the next
	// look sees what it wrote.
	first := seen.State == protocol.MarkAbsent && m.changedAt == LongAgo && !known
	return &protocol.MarkWrite{Old: seen.Text, First: first, RunID: m.runID, ReplID: m.replID, Start: m.start, Puts: m.puts}
}

// again takes in the mark that we know, found again by its id.
func (m *Memory) again(seen protocol.Mark, asked bool) *protocol.MarkWrite {
	switch {
	case m.fits(seen):
		m.mark.Text, m.mark.ReplID = seen.Text, seen.ReplID // or given another date
		m.mark.All = max(m.mark.All, seen.All)
		return nil
	case seen.ReplID != m.mark.ReplID:
		// Another client bound it to a replication id that we were not told yet, or it is a copy of
		// before. Asking tells.
		m.doubt(nil)
		return nil
	case !asked:
		return nil
	default:
		// The replication id was drawn anew for the same data, and the mark is bound to it for
		// clients that come later.
		return m.rewrites(seen, seen.At)
	}
}

// fits reports whether a mark is one of this process and its data.
func (m *Memory) fits(seen protocol.Mark) bool {
	return seen.ID != "" && seen.RunID == m.runID && seen.ReplID == m.replID && seen.Puts == m.puts && !anotherStart(seen.Start, m.start)
}

// adopt takes in a mark that fits and is new to us. One from the future, as a clock that
// was set back leaves it, would bar the node to every client that comes until then; it is
// given the present date, and keeps its id for clients that know it.
//
// Where we knew other data, this mark was written once that was gone, so after our last look at it. It is dated by the
// node's clock as it is, and as it was when we looked: one that was set forward since makes no mark older. A mark
// that is older than that look stood beside what we knew: the name led to another server, or this answer is late. Then
// it tells nothing of what became of the data, and the bar counts from now.
func (m *Memory) adopt(seen protocol.Mark, asked, now int64) *protocol.MarkWrite {
	age := int64(min(max(seen.Age, 0), protocol.MaxAge))
	written := now - age
	if m.ahead != noClock {
		written = max(written, min(now, int64(seen.Now)-age-m.ahead))
	}
	switch {
	case written < m.seenAt:
		m.changedAt = now
	case m.mark.State == protocol.MarkPresent || m.changedAt != LongAgo:
		m.changedAt = max(m.barred(), written)
	}
	m.mark, m.markedAt, m.writtenAt = seen, written, asked-age
	if seen.Age < -time.Second {
		m.writtenAt = LongAgo // grants may have counted on it
		w := m.rewrites(seen, 0)
		w.First = w.All > 0
		return w
	}
	return nil
}

// rewrites is the mark that is there, bound to the replication id that its node has now.
func (m *Memory) rewrites(seen protocol.Mark, at int64) *protocol.MarkWrite {
	return &protocol.MarkWrite{
		Old: seen.Text, ID: seen.ID, At: at, First: seen.First, All: seen.All,
		RunID: m.runID, ReplID: m.replID, Start: seen.Start, Puts: seen.Puts,
	}
}

// Bar is for how much longer grants of a node do not count under a guard of this period; 0: they count, until See
// takes in something else.
func (ms *Memories) Bar(i int, period time.Duration, now int64) time.Duration {
	return left(ms.Nodes[i].quiet(ms.all()), period, now)
}

func left(quiet int64, period time.Duration, now int64) time.Duration {
	if quiet == notYet {
		return period
	}
	return max(0, time.Duration(quiet+int64(period)-now))
}

// Remembers is since when a node's data has been remembering, for people; ok is false where
// there is no mark of this data, or none that may be read.
func (ms *Memories) Remembers(i int) (at int64, ok bool) {
	m := &ms.Nodes[i]
	if m.Identity != identityKnown || m.mark.State != protocol.MarkPresent {
		return 0, false
	}
	return max(m.changedAt, m.markedAt), true
}

// unmarked reports whether the node tells its identity, and has no mark.
func (m *Memory) unmarked() bool {
	return m.Identity == identityKnown && m.mark.State != protocol.MarkPresent
}

// Unseen are the names of the nodes that have yet to be seen for a fleet to be new as a whole; none where
// one that was seen is not new, or where a period was set, which that would not make shorter.
func (ms *Memories) Unseen(names []string) (unseen []string) {
	if ms.fixed {
		return nil
	}
	for i := range ms.Nodes {
		switch m := &ms.Nodes[i]; {
		case m.mark.State != protocol.MarkPresent:
			unseen = append(unseen, names[i])
		case !m.isNew():
			return nil
		}
	}
	return unseen
}

// all is how many nodes must have been new together for a mark that says so to count at once; -1: none
// does.
func (ms *Memories) all() int {
	if ms.fixed {
		return -1
	}
	return len(ms.Nodes)
}

// quiet is since when nothing speaks against a node: it may vote a period later.
func (m *Memory) quiet(all int) int64 {
	switch {
	case m.Identity == identityUnheard:
		return LongAgo // its wire tells of no server
	case m.Identity == IdentityUncertain, m.unmarked():
		return notYet
	case m.mark.State == protocol.MarkPresent && m.mark.All == all:
		return m.changedAt
	default:
		return max(m.changedAt, m.markedAt)
	}
}

// settledMark is a mark that says nothing new where it is found again.
type settledMark struct {
	runID, replID string
	start, puts   int64
	text          string
}

// isAll reports whether a look shows nothing else. One that brings the node's time does.
func (k *settledMark) isAll(s *protocol.ServerReport) bool {
	return !s.Asked && s.Err == nil && s.Time == 0 && s.RunID == k.runID && s.Mark.State == protocol.MarkPresent && s.Mark.Text == k.text &&
		(s.ReplID == "" || s.Role == "master" && s.ReplID == k.replID && s.Start == k.start && s.Puts == k.puts)
}

// settled is the mark where finding it again changes nothing, nil if anything would.
func (m *Memory) settled(now int64) *settledMark {
	if m.Identity != identityKnown || m.mark.State != protocol.MarkPresent || m.isNew() && (m.begins || now-m.writtenAt < int64(newFor)) {
		return nil
	}
	return &settledMark{m.runID, m.replID, m.start, m.puts, m.mark.Text}
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
	noClock = math.MaxInt64
)
