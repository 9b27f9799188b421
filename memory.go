package redlock

import (
	"math"
	"slices"
	"strings"
	"time"
)

// The rules by which nodes are kept from voting: what is known of each, what a further
// sighting makes of it, and when its grants may count. Nothing here does I/O, asks for
// the time or knows of other goroutines; guard.go does. testdata/guard.txt shows
// them.
//
// A node may vote for a lock of guard period G once its data has been remembering for G,
// since then every lease that it may have forgotten is over. There are two witnesses: a
// change that this client saw itself, which counts from that moment, and the mark, which
// tells the clients that come later.

// memory is what is known of one node. Times are nanoseconds of our monotonic clock.
type memory struct {
	voice         voice
	runID, replID string
	bornAt        int64 // its process, at the latest
	changedAt     int64 // when we saw other data there than before; longAgo: never
	mark          mark  // markPresent only while it fits this process and its data
	markedAt      int64 // when it was written, at the latest
	rank          int   // the lower one of two nodes was seen first to lead to its process
}

// voice is how far a node tells who it is.
type voice uint8

const (
	voiceNone   voice = iota // never heard
	voiceMute                // does not tell, and never will
	voiceUnsure              // did not tell when it was asked last, or is a replica
	voiceClear
)

// lack is what a node denies for good.
type lack uint8

const (
	lackNothing lack = iota
	lackIdentity
	lackMark
)

// firstUse is how far apart the marks of nodes may be that were written when their fleet
// was used for the first time: clients come one after the other, and so do nodes.
const firstUse = 2 * time.Second

// memories is what is known of all nodes of a Redlock.
type memories struct {
	fixed bool // the period is the same for all locks
	nodes []memory
	// young is the shortest period for which all of these processes were found too young
	// at one time. They are taken to have started together, and stay exempt when the first
	// of them outgrows it. Zero: none.
	young time.Duration
	ranks int // so many were given
}

func newMemories(n int, fixed bool) *memories {
	ms := &memories{fixed: fixed}
	for range n {
		ms.grow()
	}
	return ms
}

func (ms *memories) grow() {
	ms.nodes = append(ms.nodes, memory{changedAt: longAgo})
}

// see takes in a sighting. It returns the mark to be written to the node, nil for none, without
// an id if that is a new one; and a right that the node has just turned out to deny.
func (ms *memories) see(i int, s sighting, now int64) (*markWrite, lack) {
	m := &ms.nodes[i]
	if s.err != nil || s.runID == "" {
		return nil, m.silent(s.err, now)
	}
	before := *m
	met := m.meet(s, now)
	if met == newProcess {
		ms.ranks++
		m.rank = ms.ranks
	}
	w, lacks := m.consider(s, met, now)
	if w != nil && w.isRedated() && len(ms.nodes) > 1 {
		w.first = false // its age would no longer be that of its fleet's first use
	}
	if m.runID != before.runID || m.changedAt != before.changedAt {
		ms.young = 0 // no first start any more
	}
	return w, lacks
}

// silent takes in an answer without an identity. Where a node told who it is before, an
// error that is not known to be lasting is taken for one that passes; and one that is
// lasting may come from another server in its place.
func (m *memory) silent(err error, now int64) lack {
	if err == nil || passing(err) || m.runID != "" && !permanent(err) {
		if m.voice != voiceMute {
			m.voice = voiceUnsure
		}
		return lackNothing
	}
	if m.runID != "" {
		m.changedAt = now
	}
	*m = memory{voice: voiceMute, changedAt: m.changedAt}
	return lackIdentity
}

// acquaintance is what the ids of a sighting are to us.
type acquaintance uint8

const (
	sameData acquaintance = iota
	newProcess
	newData   // other data in the same process
	redrawnID // a new replication id for the same data
)

// meet compares the ids with those that are known.
func (m *memory) meet(s sighting, now int64) acquaintance {
	m.voice = voiceClear
	if s.runID != m.runID {
		if m.runID != "" {
			m.changedAt = now
		}
		// INFO counts seconds from a clock that it reads now and then, so it may be up to a
		// second ahead. A clock that was set back must not make a node younger than new.
		age := min(max(s.uptime-time.Second, 0), maxAge)
		*m = memory{voice: voiceClear, runID: s.runID, replID: s.replID, bornAt: now - int64(age), changedAt: m.changedAt}
		return newProcess
	}
	if s.replID == "" || s.replID == m.replID {
		return sameData
	}
	told := m.replID != ""
	m.replID = s.replID
	switch {
	case told && noFormer(s.formerID):
		return redrawnID
	case told || m.mark.state == markPresent && m.mark.replID != s.replID:
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
func (m *memory) forget() {
	if m.mark.state == markPresent {
		m.mark = mark{state: markAbsent}
	}
}

// change notes that the node's data is not what it was.
func (m *memory) change(now int64) {
	m.changedAt = now
	m.forget()
}

// consider takes in the mark, once the ids have been.
func (m *memory) consider(s sighting, met acquaintance, now int64) (*markWrite, lack) {
	seen := s.mark
	if seen.state == markPresent && seen.id == "" {
		seen.read()
	}
	switch {
	case s.role == "slave": // it may become a master again unseen
		m.voice = voiceUnsure
		m.change(now)
		return nil, lackNothing
	case seen.state == markDenied, seen.state == markUnread && seen.err != nil && !passing(seen.err):
		return nil, m.deny(seen.err, now)
	case seen.state == markUnread:
		if seen.err != nil {
			m.voice = voiceUnsure
		}
		return nil, lackNothing
	}
	known := m.mark.state == markPresent
	switch same := known && seen.id == m.mark.id && seen.runID == m.runID; {
	case same:
		return m.again(seen, s.asked), lackNothing
	case m.fits(seen):
		return m.adopt(seen, known, now), lackNothing
	case m.mark.state == markDenied:
		return nil, lackNothing
	case known && !s.asked:
		m.change(now)
	case !known:
		m.mark = mark{state: markAbsent}
	}
	// Where this was asked, it may be older than what we know. Then the mark that we know is
	// still there, the script finds it and writes nothing; and else we shall see what it wrote.
	first := seen.state == markAbsent && m.changedAt == longAgo
	return m.writes(seen, "", 0, time.Duration(now-m.bornAt), first), lackNothing
}

// again takes in the mark that we know, found again by its id.
func (m *memory) again(seen mark, asked bool) *markWrite {
	switch {
	case m.fits(seen):
		m.mark.text, m.mark.replID = seen.text, seen.replID // or given another date
		return nil
	case seen.replID != m.mark.replID:
		// Somebody bound it to a replication id that we were not told yet, or it is a copy of
		// before. Asking tells.
		m.voice = voiceUnsure
		return nil
	case !asked:
		return nil
	default:
		// The replication id was drawn anew for the same data, and the mark is bound to it for
		// those who come later.
		return m.writes(seen, seen.id, seen.at, seen.uptime, seen.first)
	}
}

// deny takes in that the mark may not be read or written.
func (m *memory) deny(err error, now int64) lack {
	if m.mark.state == markDenied {
		return lackNothing
	}
	if m.mark.state == markPresent {
		m.changedAt = now
	}
	m.mark = mark{state: markDenied, err: err}
	return lackMark
}

// fits reports whether a mark is one of this process and its data.
func (m *memory) fits(seen mark) bool {
	return seen.id != "" && seen.runID == m.runID && (m.replID == "" || seen.replID == m.replID)
}

// adopt takes in a mark that fits and is new to us. One from the future, as a clock that
// was set back leaves it, would bar the node to every client that comes until then; it is
// given the present date, and keeps its id for those who know it.
func (m *memory) adopt(seen mark, known bool, now int64) *markWrite {
	if known {
		m.changedAt = now
	}
	m.mark = seen
	m.markedAt = now - int64(min(max(seen.age, 0), maxAge))
	if seen.age < -time.Second {
		return m.writes(seen, seen.id, 0, time.Duration(now-m.bornAt), seen.first)
	}
	return nil
}

func (m *memory) writes(over mark, id string, at int64, uptime time.Duration, first bool) *markWrite {
	return &markWrite{old: over.text, id: id, at: at, uptime: min(uptime, maxAge), first: first, runID: m.runID, replID: m.replID}
}

// bar is for how long yet a node's grants do not count for locks of this period; zero if
// they do. open: that may change as soon as more nodes were seen.
func (ms *memories) bar(i int, period time.Duration, now int64) (left time.Duration, open bool) {
	m := &ms.nodes[i]
	switch {
	case m.voice == voiceNone:
		return 0, false // its wire tells of nobody
	case m.voice == voiceUnsure, m.mark.state == markAbsent && m.voice == voiceClear:
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

// barredFor is for how long yet a node is barred: for the period after other data was first
// seen there, and until its data has remembered for the period. first: its mark is of the
// fleet's first use, so what counts is the age of the process. young: all nodes started
// together, so that nothing can have been forgotten before.
func (m *memory) barredFor(period time.Duration, first, young bool, now int64) time.Duration {
	since := m.changedAt
	if !young {
		since = max(since, m.since(first))
	}
	return max(0, time.Duration(since+int64(period)-now))
}

// since is since when the node's data has been remembering, at the latest.
func (m *memory) since(first bool) int64 {
	switch {
	case m.voice == voiceMute:
		return longAgo
	case m.mark.state != markPresent:
		return m.bornAt
	case first:
		return m.markedAt - int64(m.mark.uptime)
	default:
		return m.markedAt
	}
}

// remembers is since when a node's data has been remembering, for people; ok is false where
// there is no mark of this data, or none that may be read. It is the mark's date also where
// isFirst vouches for the time before: that takes a quorum of other nodes, so the time would
// jump when one of these goes away or loses its data.
func (ms *memories) remembers(i int) (at int64, ok bool) {
	m := &ms.nodes[i]
	if m.voice != voiceClear || m.mark.state != markPresent {
		return 0, false
	}
	return max(m.changedAt, m.since(false)), true
}

// quiet is since when nothing speaks against a node, whatever is known of the others.
func (m *memory) quiet() int64 {
	switch {
	case m.voice == voiceNone:
		return longAgo
	case m.voice == voiceUnsure, m.voice == voiceClear && m.mark.state == markAbsent:
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
// A single node has nobody to witness against it: there, a fixed period asks for more.
func (ms *memories) isFirst(i int, unseen bool) bool {
	if ms.fixed && len(ms.nodes) == 1 {
		return false
	}
	oldest := int64(notYet)
	for j := range ms.nodes {
		if m := &ms.nodes[j]; m.mark.state == markPresent {
			oldest = min(oldest, m.markedAt)
		}
	}
	of := func(m *memory) bool {
		return m.mark.state == markPresent && m.mark.first && m.markedAt-oldest <= int64(firstUse)
	}
	n := 0
	for j := range ms.nodes {
		if m := &ms.nodes[j]; of(m) || unseen && m.unseen() {
			n++
		}
	}
	return of(&ms.nodes[i]) && n >= len(ms.nodes)/2+1
}

// maybeFirst is isFirst, and true also where there is no mark to tell.
func (ms *memories) maybeFirst(i int, unseen bool) bool {
	return ms.nodes[i].mark.state != markPresent || ms.isFirst(i, unseen)
}

// allYoung reports whether every node is younger than the period, or was when its fleet was
// used for the first time. unseen: nodes that were not seen yet are taken for young.
func (ms *memories) allYoung(period time.Duration, now int64, unseen bool) bool {
	for i := range ms.nodes {
		m := &ms.nodes[i]
		young := false
		switch {
		case m.unseen():
			young = unseen
		case m.voice != voiceClear, m.mark.state == markAbsent:
		case m.mark.state == markPresent && ms.isFirst(i, unseen):
			young = m.mark.uptime < period
		default:
			young = now-m.bornAt < int64(period)
		}
		if !young {
			return false
		}
	}
	return true
}

// unseen: it may turn out to be anything. So may a node that told who it is and whose mark
// is being written at this moment.
func (m *memory) unseen() bool {
	return m.runID == "" && m.voice != voiceMute || m.voice == voiceClear && m.mark.state == markAbsent
}

func (ms *memories) anyUnseen() bool {
	return slices.ContainsFunc(ms.nodes, func(m memory) bool { return m.unseen() })
}

// settledMark is a mark that says nothing new where it is found again.
type settledMark struct{ runID, replID, text string }

// isAll reports whether a look shows nothing else.
func (k *settledMark) isAll(s *sighting) bool {
	return !s.asked && s.err == nil && s.role != "slave" && s.runID == k.runID && (s.replID == "" || s.replID == k.replID) &&
		s.mark.state == markPresent && s.mark.text == k.text
}

// settled is the mark where finding it again changes nothing, nil if anything would.
func (m *memory) settled() *settledMark {
	if m.voice != voiceClear || m.mark.state != markPresent {
		return nil
	}
	return &settledMark{m.runID, m.replID, m.mark.text}
}

// twinOf is the node that was seen first of those that lead to the same server as this one; -1 if
// this is it.
func (ms *memories) twinOf(i int) int {
	first := i
	for j := range ms.nodes {
		if m, f := &ms.nodes[j], &ms.nodes[first]; m.runID != "" && m.runID == f.runID && m.rank < f.rank {
			first = j
		}
	}
	if first == i {
		return -1
	}
	return first
}

const (
	longAgo = math.MinInt64 / 2
	notYet  = math.MaxInt64
)
