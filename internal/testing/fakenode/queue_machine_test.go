package fakenode_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
)

// The queue of one key as a small machine, whose states are searched: one node with the real scripts, and three clients, each a
// process, that want the lock in modes of their own, wait, hold, give up and die. No two that exclude each other hold the
// lock or have it reserved; the lock is not free while a live client waits; and once all is quiet each live client
// has it within a lease, whatever dead ones left. Times are milliseconds from now, arrivals are ranks.

const (
	qmTick = 250
	qmTTL  = 3 * qmTick
	qmRes  = 2 * qmTick // a reservation
	qmLock = "lock"
	qmLine = "{lock}:line"
	qmList = "{lock}:shared"
	qmNone = int64(-1)

	qmFree   = int8(-1)
	qmShared = int8(3) // the marker is there
)

type qmMode int64 // how many may have it; 0: any number

const (
	qmAlone qmMode = -1
	qmMany  qmMode = 0
)

type qmPhase uint8

const (
	qmAway qmPhase = iota
	qmWaits
	qmHolds
)

// qmClient is a client, and what the node has of it.
type qmClient struct {
	phase         qmPhase
	dead          bool
	left          int16 // of its lease
	arrival       int64 // as it knows it
	queued        int64 // its place; qmNone: it is not in the queue
	woken, silent int64 // until when
	listed        int64 // among those that share the lock
	number        int64
}

type qmState struct {
	lock   int8
	till   int64
	told   int64
	c      [3]qmClient
	deaths int8 // so many may come
}

type qmMachine struct {
	modes   [3]qmMode
	without string
	worst   int
	waits   map[qmState]int
}

var (
	qmNow   = fakenode.Epoch + int64(time.Hour)
	qmTerms = &protocol.Terms{TTL: qmTTL * time.Millisecond, NodeTimeout: 50 * time.Millisecond}
)

func qmValue(c int) string { return strings.Repeat(fmt.Sprint(c+1), 32) }

func (m *qmMachine) entry(c int) string {
	mode := ""
	if m.modes[c] != qmAlone {
		mode = fmt.Sprintf("s%d", m.modes[c])
	}
	return fmt.Sprintf("p%d %d%s %s", c, qmRes, mode, qmValue(c))
}

// do runs a request on a server that has what the state says.
func (m *qmMachine) do(s *qmState, req protocol.Request) protocol.Answer {
	st := fakenode.New(func() int64 { return qmNow })
	st.Publish = func(string, string) {}
	op, now := &fakenode.Op{}, qmNow/1000
	switch {
	case s.lock == qmShared:
		st.Set(qmLock, fakenode.Marker, s.till, op)
	case s.lock != qmFree:
		st.Set(qmLock, qmValue(int(s.lock)), s.till, op)
	}
	line, list := map[string]float64{}, map[string]float64{}
	if s.told != qmNone {
		line["told"] = -float64(now - 100 + s.told)
	}
	for c, cl := range s.c {
		if cl.queued != qmNone {
			line[m.entry(c)] = float64(now - 100 + cl.queued)
		}
		if cl.woken != qmNone {
			line["woken "+m.entry(c)] = -float64(now + cl.woken*1000)
		}
		if cl.silent != qmNone {
			line[fmt.Sprint("silent p", c)] = -float64(now + cl.silent*1000)
		}
		if cl.listed != qmNone {
			list[qmValue(c)] = float64((now/1000+cl.listed)*fakenode.Numbers + cl.number)
		}
	}
	if len(line) > 0 {
		st.Keys[qmLine] = &fakenode.Key{Zset: line}
		st.ExpireIn(qmLine, 30_000, op)
	}
	if len(list) > 0 {
		st.Keys[qmList] = &fakenode.Key{Zset: list}
		st.ExpireIn(qmList, 30_000, op)
	}
	val, err := st.Do(req.WithSource())
	text, held, _ := st.Text(qmLock)
	s.lock, s.till, s.told = qmFree, 0, qmNone
	if held {
		s.till = st.Pttl(qmLock)
		if s.lock = qmShared; text != fakenode.Marker {
			s.lock = int8(text[0] - '1')
		}
	}
	read := func(to *int64, member string, is func(score int64) int64) {
		if v, ok := st.Score(qmLine, member); ok {
			*to = is(int64(v))
		}
	}
	left := func(v int64) int64 { return max(0, (-v-now)/1000) }
	read(&s.told, "told", func(v int64) int64 { return -v - now + 100 })
	for c := range s.c {
		cl := &s.c[c]
		cl.queued, cl.woken, cl.silent, cl.listed, cl.number = qmNone, qmNone, qmNone, qmNone, 0
		read(&cl.queued, m.entry(c), func(v int64) int64 { return v - now + 100 })
		read(&cl.woken, "woken "+m.entry(c), left)
		if m.without != "passing over the dead" {
			read(&cl.silent, fmt.Sprint("silent p", c), left)
		}
		if v, ok := st.Score(qmList, qmValue(c)); ok && s.lock == qmShared {
			cl.listed, cl.number = int64(v)/fakenode.Numbers-now/1000, int64(v)%fakenode.Numbers
		}
	}
	return protocol.Answer{Said: protocol.Said(val, err), Sent: true}.Read(req.Op)
}

// ranked has arrivals as ranks.
func (s *qmState) ranked() {
	all := []int64{}
	each := func(f func(a *int64)) {
		f(&s.told)
		for c := range s.c {
			f(&s.c[c].arrival)
			f(&s.c[c].queued)
		}
	}
	each(func(a *int64) { all = append(all, *a) })
	all = slices.DeleteFunc(all, func(a int64) bool { return a == qmNone })
	slices.Sort(all)
	all = slices.Compact(all)
	each(func(a *int64) {
		if *a != qmNone {
			*a = int64(slices.Index(all, *a))
		}
	})
}

func (m *qmMachine) share(c int) *protocol.ShareArgs {
	return &protocol.ShareArgs{Holders: qmList, Door: "{lock}:door", Limit: int64(m.modes[c])}
}

// claim asks for the lock: a newcomer, or a waiter whose turn it may be.
func (m *qmMachine) claim(s *qmState, c int) {
	cl := &s.c[c]
	req := protocol.SetRequest(protocol.OpAcquire, qmTerms, qmLock, qmValue(c))
	var q *protocol.QueueArgs
	if cl.phase == qmWaits {
		q = &protocol.QueueArgs{Key: qmLine, Entry: m.entry(c)}
		req = *protocol.ClaimRequest(qmTerms, qmLock, qmValue(c), q.Key, q.Entry)
	}
	if m.modes[c] != qmAlone {
		req = *protocol.SharedClaimRequest(protocol.OpAcquireShared, qmTerms, qmLock, qmValue(c), m.share(c), q)
	}
	if m.do(s, req).Kind == protocol.Granted {
		cl.phase, cl.left, cl.arrival = qmHolds, qmTTL, qmNone
	} else if cl.phase == qmWaits {
		m.join(s, c)
	}
}

// join reports whether the lock is reserved for the client.
func (m *qmMachine) join(s *qmState, c int) (ours bool) {
	cl := &s.c[c]
	q := &protocol.QueueArgs{Key: qmLine, Holders: qmList, Entry: m.entry(c)}
	if cl.arrival != qmNone {
		q.Arrival = qmNow/1000 - 100 + cl.arrival
	}
	a := m.do(s, *protocol.JoinRequest(qmTerms, qmLock, qmValue(c), q))
	told := a.Said.([]any)
	cl.phase, cl.arrival = qmWaits, told[3].(int64)-qmNow/1000+100
	if ours = told[0].(int64) > 0; ours && m.without == "a claim before it holds" {
		cl.phase, cl.left = qmHolds, qmTTL
	}
	return ours
}

// leave is a release, or a waiter that gives up.
func (m *qmMachine) leave(s *qmState, c int) {
	q := &protocol.QueueArgs{Key: qmLine, Holders: qmList, As: protocol.AsHolder}
	if s.c[c].phase == qmWaits {
		q.Entry, q.As = m.entry(c), protocol.AsWaiter
	}
	switch {
	case m.modes[c] != qmAlone:
		m.do(s, protocol.SharedReleaseRequest(qmTerms, qmLock, qmValue(c), m.share(c), q))
	case m.without == "a release that serves the queue":
		m.do(s, protocol.ReleaseRequest(qmTerms, qmLock, qmValue(c)))
	default:
		m.do(s, protocol.QueueReleaseRequest(qmTerms, qmLock, qmValue(c), q))
	}
	s.c[c].phase, s.c[c].left, s.c[c].arrival = qmAway, 0, qmNone
}

// tick lets time pass.
func (s *qmState) tick() {
	age := func(t *int64) {
		if *t != qmNone {
			*t = max(0, *t-qmTick)
		}
	}
	if s.lock != qmFree {
		if age(&s.till); s.till == 0 {
			s.lock = qmFree
		}
	}
	for c := range s.c {
		cl := &s.c[c]
		age(&cl.woken)
		age(&cl.silent)
		if cl.listed != qmNone {
			if cl.listed -= qmTick; cl.listed <= 0 || s.lock == qmFree {
				cl.listed, cl.number = qmNone, 0
			}
		}
		if cl.left > 0 {
			if cl.left -= qmTick; cl.left == 0 {
				cl.phase = qmAway
			}
		}
	}
}

// wrong says what of the promise is broken.
func (m *qmMachine) wrong(s *qmState, served bool) string {
	var has []int
	permits := qmMode(0)
	for c, cl := range s.c {
		if cl.phase == qmHolds || int8(c) == s.lock || s.lock == qmShared && cl.listed > 0 {
			has = append(has, c)
			if m.modes[c] > 0 {
				permits++
			}
		}
	}
	for _, c := range has {
		if m.modes[c] == qmAlone && len(has) > 1 || m.modes[c] > 0 && permits > m.modes[c] {
			return fmt.Sprintf("clients %v are promised the lock", has)
		}
	}
	for c, cl := range s.c {
		if served && len(has) == 0 && cl.phase == qmWaits && !cl.dead && cl.queued != qmNone {
			return fmt.Sprintf("the lock is free while client %d waits", c)
		}
	}
	return ""
}

// quiet is for how many ticks live clients wait once all is quiet: none joins, and all release, but one that can
// share the lock with all that wait.
func (m *qmMachine) quiet(s qmState, depth int) (ticks int) {
	if t, ok := m.waits[s]; ok {
		return t
	}
	begin, wait := s, m.round(&s)
	if wait {
		wait = m.round(&s) // those that a release let in
	}
	if wait {
		if depth == 20 {
			return 1000
		}
		s.tick()
		ticks = 1 + m.quiet(s, depth+1)
	}
	m.waits[begin] = ticks
	return ticks
}

// round has each live client look, claim and release. It reports whether some wait still.
func (m *qmMachine) round(s *qmState) (wait bool) {
	alone := false
	for c := range s.c {
		if cl := &s.c[c]; cl.phase == qmWaits && !cl.dead {
			if m.join(s, c) {
				m.claim(s, c)
			}
			if cl.phase == qmWaits {
				wait, alone = true, alone || m.modes[c] != qmMany
			}
		}
	}
	for c := range s.c {
		switch cl := &s.c[c]; {
		case cl.phase != qmHolds || cl.dead:
		case m.modes[c] == qmMany && !alone && wait:
			m.do(s, *protocol.SharedExtendRequest(qmTerms, qmLock, qmValue(c), m.share(c)))
			cl.left = qmTTL
		default:
			m.leave(s, c)
		}
	}
	s.ranked()
	return wait
}

func (m *qmMachine) next(s qmState, then func(step string, s qmState, wrong string)) {
	try := func(served bool, step string, change func(s *qmState)) {
		v := s
		change(&v)
		v.ranked()
		wrong := m.wrong(&v, served)
		ticks := m.quiet(v, 0)
		if m.worst = max(m.worst, ticks); wrong == "" && ticks > qmTTL/qmTick {
			wrong = fmt.Sprintf("a client waits for %d ticks once all is quiet", ticks)
		}
		then(step, v, wrong)
	}
	try(false, "all that live look, and time passes", func(s *qmState) {
		for c := range s.c {
			if s.c[c].phase == qmWaits && !s.c[c].dead {
				m.join(s, c)
			}
		}
		s.tick()
	})
	for c, cl := range s.c {
		if cl.dead {
			continue
		}
		if s.deaths > 0 && cl.phase != qmAway {
			try(false, fmt.Sprintf("client %d dies", c), func(s *qmState) { s.c[c].dead, s.deaths = true, s.deaths-1 })
		}
		if cl.phase != qmHolds {
			try(true, fmt.Sprintf("client %d asks for the lock", c), func(s *qmState) { m.claim(s, c) })
			try(true, fmt.Sprintf("client %d joins the queue", c), func(s *qmState) { m.join(s, c) })
		}
		if cl.phase != qmAway {
			try(true, fmt.Sprintf("client %d leaves", c), func(s *qmState) { m.leave(s, c) })
		}
	}
}

func TestQueueOfOneKey(t *testing.T) {
	t.Parallel()
	begin := qmState{lock: qmFree, told: qmNone, deaths: 2}
	for c := range begin.c {
		begin.c[c] = qmClient{arrival: qmNone, queued: qmNone, woken: qmNone, silent: qmNone, listed: qmNone}
	}
	for _, row := range []struct {
		modes   [3]qmMode
		clauses []string
	}{
		{[3]qmMode{qmAlone, qmMany, qmMany}, []string{"a release that serves the queue", "a claim before it holds", "passing over the dead"}},
		{[3]qmMode{qmAlone, qmAlone, qmMany}, nil},
		{[3]qmMode{qmAlone, 1, 1}, nil},
		{[3]qmMode{qmMany, 2, 2}, nil},
	} {
		t.Run(fmt.Sprint(row.modes), func(t *testing.T) {
			machine(t, 8000, row.clauses, begin, func(without string) func(qmState, func(string, qmState, string)) {
				m := &qmMachine{modes: row.modes, without: without, waits: make(map[qmState]int)}
				t.Cleanup(func() { t.Logf("without %q: longest wait %d ticks", without, m.worst) })
				return m.next
			})
		})
	}
}
