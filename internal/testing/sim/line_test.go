package sim_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
)

// The order in a wait queue, checked on each node after each script, from what lies there: rules O1 to O11.

// simLine is what a node has of a key's queue at one moment.
type simLine struct {
	lock    string // value of the lock's key; empty: it is free
	holders map[string]simListed
	entries []simEntry // first come first
	cursor  int64      // 0: none
	door    bool
}

type simListed struct{ till, number int64 } // in ms

// simEntry is a waiter as it stands in the queue.
type simEntry struct {
	member, process, value string
	shares                 bool
	limit, arrival         int64
	told                   int64 // until when the lock is reserved for it, in us; 0: it was not told
}

// parseSimEntry reads a member of the queue in words of its own, not those of the twins.
func parseSimEntry(member string, arrival int64) simEntry {
	e := simEntry{member: member, arrival: arrival}
	process, rest, _ := strings.Cut(member, " ")
	e.process = process
	grace, value, _ := strings.Cut(rest, " ")
	e.value = value
	if at := strings.IndexByte(grace, 's'); at >= 0 {
		e.shares = true
		e.limit, _ = strconv.ParseInt(grace[at+1:], 10, 64)
	}
	return e
}

// simBeside is the names of what goes with a lock's key.
type simBeside struct{ door, shared, line string }

func (n *simNode) beside(key string) simBeside {
	b, known := n.names[key]
	if !known {
		b = simBeside{"{" + key + "}:door", "{" + key + "}:shared", "{" + key + "}:line"}
		n.names[key] = b
	}
	return b
}

// lineOf looks at a key's queue; the caller holds mu.
func (n *simNode) lineOf(key string) (l simLine) {
	s := n.store
	var err error
	if l.lock, _, err = s.Text(key); err != nil {
		l.lock = foreignLock
	}
	beside := n.beside(key)
	l.door = s.Get(beside.door) != nil
	if k := s.Get(beside.shared); k != nil && l.lock == fakenode.Marker {
		l.holders = make(map[string]simListed)
		for value, score := range k.Zset {
			if h := (simListed{int64(score) / fakenode.Numbers, int64(score) % fakenode.Numbers}); h.till >= s.Millis() {
				l.holders[value] = h
			}
		}
	}
	k := s.Get(beside.line)
	if k == nil {
		return l
	}
	var told map[string]int64
	l.entries = make([]simEntry, 0, len(k.Zset))
	for m, score := range k.Zset {
		switch mark, member, _ := strings.Cut(m, " "); {
		case score >= 0:
			l.entries = append(l.entries, parseSimEntry(m, int64(score)))
		case mark == "woken":
			if told == nil {
				told = make(map[string]int64)
			}
			told[member] = -int64(score)
		case m == "told":
			l.cursor = -int64(score)
		}
	}
	slices.SortFunc(l.entries, func(a, b simEntry) int {
		return cmp.Or(cmp.Compare(a.arrival, b.arrival), strings.Compare(a.member, b.member))
	})
	for i := range l.entries {
		l.entries[i].told = told[l.entries[i].member]
	}
	return l
}

// touchesLine reports whether the request may change a queue, or the list of holders.
func touchesLine(r *protocol.Request) bool {
	switch r.Script {
	case protocol.JoinScript, protocol.QueueReleaseScript, protocol.SharedClaimScript, protocol.SharedReleaseScript, protocol.ForceScript:
		return true
	default:
		return false
	}
}

// serves reports whether the request is to let in all that may come, where it finds the queue.
func serves(r *protocol.Request, before simLine) bool {
	q := r.Queue
	if q != nil && q.Key == "" {
		return false // of a process that uses no queue
	}
	switch r.Script {
	case protocol.JoinScript, protocol.ForceScript:
		return true
	case protocol.QueueReleaseScript, protocol.SharedReleaseScript:
		return q == nil || q.As != protocol.AsPasser
	case protocol.SharedClaimScript:
		return q != nil
	default:
		return false
	}
}

// hears notes when a process is to be heard of again by what it asks of a key's queue. One that
// leaves it says nothing of its others. The caller holds mu.
func (n *simNode) hears(r *protocol.Request) {
	q := r.Queue
	if q == nil || q.Entry == "" {
		return
	}
	name := r.Key + " " + parseSimEntry(q.Entry, 0).process
	if r.Op == protocol.OpJoin {
		n.backBy[name] = n.store.Micros() + q.Back.Microseconds()
	} else {
		delete(n.backBy, name)
	}
}

// checkLine compares a queue before and after a script; the caller holds mu.
func (n *simNode) checkLine(r *protocol.Request, before simLine, val any) {
	n.checkGone(r.Key, before)
	after := n.lineOf(r.Key)
	n.checkDoor(r, before, after)
	if len(after.entries)+len(after.holders) == 0 {
		return // every rule is about one of them
	}
	var was map[string]bool // those that were told before
	for _, e := range before.entries {
		if e.told > 0 {
			if was == nil {
				was = make(map[string]bool)
			}
			was[e.member] = true
		}
	}
	bad := func(format string, args ...any) {
		n.w.violated(format+"; %s of %.6s on node %d", append(args, r.Op, r.Value, n.i)...)
	}
	now := n.store.Micros()
	var untold *simEntry // the first
	back := false        // one before it seems to have its turn still
	begins := true
	// One that is released by force is listed again if it has its turn still: that is known, see safety.md.
	force := r.Script == protocol.ForceScript
	for v := range before.holders {
		_, still := after.holders[v]
		begins = begins && (!still || force && strings.HasPrefix(v, r.Value))
	}
	begins = begins || force && before.lock != fakenode.Marker
	fresh, again, pending := 0, 0, 0
	for i := range after.entries {
		e := &after.entries[i]
		_, listed := after.holders[e.value]
		if e.told == 0 && untold == nil {
			untold = e
		}
		if e.told > 0 {
			pending++
		}
		if _, before := before.holders[e.value]; e.told > 0 && was[e.member] && listed && !before && e.value != r.Value {
			again++ // its place in the list was evicted, and a script lets it in as it does the next
		}
		if e.arrival < after.cursor && (e.told == 0 || !e.shares) {
			bad("O2: %.6s came at %d, before the cursor %d, and was not told", e.value, e.arrival, after.cursor)
		}
		// A clock that was set back since makes a turn that is over look as if it were to come.
		told := e.told - n.setBackBetween(n.toldAt[e.value], n.w.t()+1)/int64(time.Microsecond)
		over := e.told > now && told <= now && !listed
		back = back || over && untold == nil
		n.w.excused(exToldBack, e.shares && over)
		if e.shares && told > now && !listed && !n.w.excused(exStruck, n.w.hasLock(e.value) || n.struck(r.Key, e.value)) && !n.w.excused(exOtherName, n.otherNames()) {
			bad("O3: %.6s was told and is not listed", e.value)
		}
		if e.told > 0 && !was[e.member] {
			fresh++
			n.w.reached("a reader or permit is told in its turn", e.shares)
			n.toldAt[e.value] = n.w.t()
			if untold != nil && !(begins && e.shares && onlyAlone(after.entries[:i])) {
				bad("O4: %.6s was told before %.6s", e.value, untold.value)
			}
		}
	}
	most := fakenode.AtOnce
	if r.Script == protocol.SharedClaimScript {
		most = 2
	}
	looks := fresh // a script looks at no more than twice as many as it lets in
	for _, e := range before.entries {
		if e.told > 0 && e.arrival >= before.cursor {
			looks++
		}
	}
	// One whose turn was evicted, or taken by force, stands before it: one that wants the lock alone, or one of so many.
	ahead := slices.ContainsFunc(after.entries, func(e simEntry) bool {
		_, listed := after.holders[e.value]
		return untold != nil && e.arrival < untold.arrival && e.told > now && !listed && (!e.shares || e.limit > 0 && int64(len(after.holders)) >= e.limit) && n.struck(r.Key, e.value)
	})
	// It cannot be, or one that was told and stands before it cannot.
	unlisted := n.store.Typ(n.beside(r.Key).shared) == foreignType && slices.ContainsFunc(after.entries, func(e simEntry) bool {
		return untold != nil && e.shares && e.arrival <= untold.arrival
	})
	if untold != nil && serves(r, before) && fresh+again < most && pending < fakenode.AtOnce && looks < 2*most {
		room := len(after.holders)
		by, known := n.backBy[r.Key+" "+untold.process]
		switch {
		case known && by < now && after.lock == fakenode.Marker && !n.w.excused(exStruck, ahead):
			bad("O11: %.6s is in the way, and its process was to be heard of %d us before", untold.value, now-by)
		case after.lock == "" && !n.w.excused(exForeign, unlisted):
			bad("O1: the lock is free, and %.6s waits", untold.value)
		case after.lock == fakenode.Marker && untold.shares && (untold.limit == 0 || int64(room) < untold.limit) && !unlisted && !n.w.excused(exStruck, ahead) && !n.w.excused(exToldBack, back):
			bad("O1: %.6s waits, and only %d share the lock", untold.value, room)
		}
	}
	n.checkGiven(r, before, after, val, bad)
	if q := r.Queue; q != nil && (r.Op == protocol.OpRelease && q.Entry != "" || r.Op == protocol.OpJoin && q.Ended != "") {
		taken := r.Value
		if r.Op == protocol.OpJoin {
			taken = fakenode.ValueIn(q.Ended)
		}
		if _, listed := after.holders[taken]; listed {
			bad("O6: %.6s is listed after it was taken back", taken)
		}
	}
	_, was1 := before.holders[r.Value]
	if _, is := after.holders[r.Value]; r.Op == protocol.OpAcquireShared && r.Queue == nil && before.door && is && !was1 {
		bad("O7: %.6s passed the door", r.Value)
	}
}

// checkGone is O8: no client of the waiter's process wants the lock any more, and none has one that
// it got by this entry, for longer than it takes to release a lock at a node that can be reached.
// One that has gone and stands there is given the lock in its turn. A release that finds others' data
// under the lock's key changes nothing, and is not sent again. The caller holds mu.
func (n *simNode) checkGone(key string, l simLine) {
	w, now := n.w, n.w.t()
	if !w.plan.Strict {
		return
	}
	limit := w.takesToRelease()
	for _, e := range l.entries {
		since, by := w.wentAt(key, e)
		if since == never || now-since <= limit {
			continue
		}
		if since = n.leftByClose(by, since, limit); since != never && now-since > limit && !w.excused(exForeign, n.keptIn[e.member]) {
			w.violated("O8: %.6s of process %d stands in the queue of %s on node %d, has gone, and could have left since %.6f ms", e.value, by.i, key, n.i, ms(since))
		}
	}
}

// checkAllGone is O8 when everybody has gone.
func (w *simWorld) checkAllGone() {
	for _, n := range w.nodes {
		n.mu.Lock()
		for i := range w.plan.Fenced {
			key := fmt.Sprint("k", i)
			n.checkGone(key, n.lineOf(key))
		}
		n.mu.Unlock()
	}
}

// wentAt is since when nothing wants an entry, and whose it is; never while its process wants the
// lock, or has one by that entry, and if the process died.
func (w *simWorld) wentAt(key string, e simEntry) (since int64, by *simProcess) {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := slices.IndexFunc(w.procs, func(p *simProcess) bool { return p.name == e.process })
	if i < 0 || w.procs[i].killedAt != never {
		return never, nil
	}
	since = -1
	for _, want := range w.wants[key] {
		if want.proc == i {
			since = max(since, want.to)
		}
	}
	if g := w.grantOf(e.value); g != nil {
		if w.excused(exStoppedEntry, g.stopped) {
			return never, nil
		}
		since = max(since, g.proc.givesUp(g.relCalled))
	}
	if since < 0 {
		return never, nil
	}
	return since, w.procs[i]
}

// hasLock reports whether a lock was granted with this value. An extend of it may strike it where it has another
// number, though its claim never came.
func (w *simWorld) hasLock(value string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.grantOf(value) != nil
}

// struck reports whether the node evicted a value, or the list that had it, or ForceRelease took it away.
func (n *simNode) struck(key, value string) bool {
	return slices.ContainsFunc(n.holds[key], func(h *simHold) bool { return h.value == value && (h.evicted || h.forced) })
}

// otherNames reports whether another node's name leads to this node's server at some time. A waiter may
// have come to its queue by that name. A release that comes by its own name, to which no join was sent,
// takes it from the list and not from the queue.
func (n *simNode) otherNames() bool {
	return slices.ContainsFunc(n.w.plan.Faults, func(f simFault) bool { return f.Kind == faultTwin && f.To == n.i })
}

// onlyAlone: all of them that were not told want the lock alone.
func onlyAlone(entries []simEntry) bool {
	return !slices.ContainsFunc(entries, func(e simEntry) bool { return e.told == 0 && e.shares })
}

// nameLength is how much of its token names a waiter to its process. Every other process is of a version
// that knows whole tokens only.
func nameLength(process string) int {
	if strings.HasSuffix(process, ".") {
		return tokenLength / 2
	}
	return tokenLength
}

// checkGiven is O5.
func (n *simNode) checkGiven(r *protocol.Request, before, after simLine, val any, bad func(string, ...any)) {
	if r.Op != protocol.OpJoin {
		return
	}
	own := parseSimEntry(r.Queue.Entry, 0)
	if !slices.ContainsFunc(before.entries, func(e simEntry) bool { return e.member == own.member }) {
		return
	}
	fields, _ := val.([]any)
	given := ""
	if len(fields) > 7 {
		given, _ = fields[7].(string)
	}
	for _, e := range after.entries {
		h, listed := after.holders[e.value]
		if e.process == own.process && e.told > 0 && listed && !strings.Contains(given, fmt.Sprint(h.number, " ", e.value[:nameLength(e.process)])) {
			bad("O5: %.6s was not named", e.value)
		}
	}
}

// drawModes is many who want one key in all modes, with what hurts those who were told. Half of
// these plans are calm: nothing goes wrong.
func (p *simPlan) drawModes(r *rand.Rand) {
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	p.Regime, p.Until = simModes, 4*p.TTL
	p.Kinds = []int{[]int{manyShare, manyShare, 2, 3, 5}[r.IntN(5)]}
	p.Fenced[0] = p.Fenced[0] && p.Kinds[0] == manyShare
	for range 2 + r.IntN(3) {
		proc := simProcessPlan{PPM: r.Int64N(9900) - 4950}
		for range 3 + r.IntN(6) {
			proc.Clients = append(proc.Clients, simClientPlan{Ops: 3 + r.IntN(3)})
		}
		p.Processes = append(p.Processes, proc)
	}
	if p.Calm = r.IntN(2) == 0; p.Calm {
		return
	}
	if r.IntN(2) == 0 {
		p.Deaf = r.IntN(1000)
	}
	if r.IntN(3) == 0 {
		p.Slow = r.IntN(300)
	}
	for range 1 + r.IntN(4) {
		f := simFault{Node: r.IntN(len(p.Nodes)), Proc: r.IntN(len(p.Processes)), At: in(0, p.Until), For: in(0, 2*max(p.TTL, protocol.LeastReservation))}
		switch f.Kind = []string{faultKill, faultPause, faultPause, faultBack, faultHang, faultCut, faultForget}[r.IntN(7)]; f.Kind {
		case faultKill, faultCut:
			p.Strict = false
		case faultForget:
			p.Strict, p.RestartGuard = false, 0
			f.For = min(f.For, p.NodeTimeout)
		case faultBack:
			p.Strict = false
			f.By = -in(0, 3*p.TTL)
		}
		p.Faults = append(p.Faults, f)
	}
	slices.SortFunc(p.Faults, func(a, b simFault) int { return int(a.At - b.At) })
}

// checkToldInTime: in a run without faults, a waiter that was told has the lock soon.
func (w *simWorld) checkToldInTime(grants []*simGrant) {
	limit := 24*int64(w.plan.Delay+w.plan.Jitter) + int64(60*time.Millisecond)
	if limit > int64(protocol.LeastReservation)/4 || len(w.nodes) < 3 || w.disturbed() || w.setsBack() || w.plan.Deaf > 0 {
		return
	}
	for _, g := range grants {
		for _, n := range w.nodes {
			if at, told := n.toldAt[g.value]; told && g.ret-at > limit {
				w.violated("wake-up: %v was told %.3f ms before, %.3f ms is enough", g, ms(g.ret-at), ms(limit))
			}
		}
	}
}

func lineEntry(process, mode, value string) string {
	return fmt.Sprintf("%s 2000%s %s", process, mode, value)
}
