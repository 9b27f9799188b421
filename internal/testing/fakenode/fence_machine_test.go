package fakenode_test

import (
	"cmp"
	"fmt"
	"testing"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
)

// The fencing tokens of one key as a small machine, whose states are searched: three nodes with the real scripts, of which
// one's clock is ahead, and two clients whose clocks are wrong by days. Tokens grow, whichever nodes answer, whatever is
// lost on the way, and although nodes forget, one at a time. Times of nodes are microseconds from now.

const (
	fmNone = int64(-1 << 40)
	fmTTL  = 2 // ticks of a second
	fmBar  = 3 // FencedGuard
	fmLong = int64(-5e6)
)

type fmNode struct {
	counter     int64
	owner, till int8 // of the lock; -1: it is free
	barred      int8
}

type fmClient struct {
	phase        fmPhase
	asked, raise uint8 // nodes
	left         int8  // of the lease
	grants       [3]int64
	token        int64
}

var fmIdles = fmClient{grants: [3]int64{fmNone, fmNone, fmNone}, token: fmNone}

type fmPhase uint8

const (
	fmIdle fmPhase = iota
	fmAsks
	fmRaises
	fmHolds
)

type fmState struct {
	n            [3]fmNode
	c            [2]fmClient
	last         int64 // token
	since        int8  // a node forgot
	losses, lost int8  // so many are left
}

var fmClock = fakenode.Epoch + int64(time.Hour)

// store is a server with what a node has.
func (n *fmNode) store(i int) *fakenode.Store {
	now := fmClock
	if i == 0 {
		now += int64(900 * time.Millisecond)
	}
	st := fakenode.New(func() int64 { return now })
	if n.counter != fmNone {
		st.Set("counter", fakenode.Argument(fmClock/1000+n.counter), 1e9, &fakenode.Op{})
	}
	if n.owner >= 0 {
		st.Set("lock", fmValue(int(n.owner)), int64(n.till)*1000, &fakenode.Op{})
	}
	return st
}

func fmValue(c int) string { return fmt.Sprintf("%032d", c) }

// do asks a node something, and says whether it granted that, by which token.
func (n *fmNode) do(i, c int, req *protocol.Request) (ok bool, token int64) {
	st := n.store(i)
	val, err := st.Do(req.WithSource())
	a := protocol.Answer{Said: protocol.Said(val, err), Sent: true}.Read(req.Op)
	if text, ok, _ := st.Text("counter"); ok {
		n.counter = fakenode.Number(text) - fmClock/1000
	}
	if a.Kind != protocol.Granted {
		return false, fmNone
	}
	n.owner, n.till = int8(c), fmTTL
	return true, int64(a.Fence()) - fmClock/1000
}

var fmTerms = &protocol.Terms{TTL: fmTTL * time.Second, NodeTimeout: time.Second}

// fence is an attempt's request. The client's clock is an hour behind, or ahead.
func (s *fmState) fence(i, c int, without string) (ok bool, token int64) {
	n := &s.n[i]
	proposal, before := fmClock/1000-3600e6, n.counter
	if c == 1 {
		proposal += 2 * 3600e6
	}
	ok, token = n.do(i, c, protocol.FenceRequest(fmTerms, "lock", fmValue(c), &protocol.FenceArgs{Key: "counter", Token: uint64(proposal)}, nil))
	switch {
	case !ok:
	case without == "a proposal near the server's time":
		token = max(before+1, proposal-fmClock/1000)
		n.counter = token
	case without == "more than the counter" && token == before+1:
		token = before
		n.counter = token
	}
	return ok, token
}

// ask asks nodes until it is decided. The answer of the first may be lost.
func (s *fmState) ask(c int, mask uint8, lost int8, without string) (wrong string) {
	cl := &s.c[c]
	if cl.phase == fmIdle {
		cl.phase, cl.left = fmAsks, fmTTL
	}
	s.lost -= lost
	for i := range s.n {
		if mask>>i&1 == 1 && cl.phase == fmAsks {
			cl.asked |= 1 << i
			if ok, token := s.fence(i, c, without); ok && lost == 0 && s.n[i].barred == 0 {
				cl.grants[i] = token
			}
			lost, wrong = 0, s.settle(c, without)
		}
	}
	return wrong
}

func (s *fmState) raise(c, i int, without string) string {
	cl, n := &s.c[c], s.n[i]
	cl.raise &^= 1 << i
	if ok, _ := n.do(i, c, protocol.RaiseRequest(fmTerms, "lock", fmValue(c), &protocol.FenceArgs{Key: "counter", Token: uint64(cl.token + fmClock/1000)})); ok {
		cl.grants[i] = cl.token
	}
	s.n[i].counter = n.counter
	return s.settle(c, without)
}

// sorted is the state with the two nodes in order whose clocks are the same.
func (s fmState) sorted() fmState {
	v := s
	v.n[1], v.n[2] = s.n[2], s.n[1]
	swap := func(m uint8) uint8 { return m&1 | m>>1&1<<2 | m>>2&1<<1 }
	for c := range v.c {
		cl := &v.c[c]
		cl.grants[1], cl.grants[2] = cl.grants[2], cl.grants[1]
		cl.asked, cl.raise = swap(cl.asked), swap(cl.raise)
	}
	a, b := &s.n[1], &s.n[2]
	order := cmp.Or(cmp.Compare(a.counter, b.counter), cmp.Compare(a.owner, b.owner), cmp.Compare(a.till, b.till), cmp.Compare(a.barred, b.barred))
	for c := range s.c {
		cl := &s.c[c]
		order = cmp.Or(order, cmp.Compare(cl.grants[1], cl.grants[2]), cmp.Compare(cl.asked>>1&1, cl.asked>>2), cmp.Compare(cl.raise>>1&1, cl.raise>>2))
	}
	if order > 0 {
		return v
	}
	return s
}

// free ends what a client has, with its keys or without.
func (s *fmState) free(c int, keys bool) {
	s.c[c] = fmIdles
	for i := range s.n {
		if n := &s.n[i]; keys && n.owner == int8(c) {
			n.owner, n.till = -1, 0
		}
	}
}

// settle is what settleFence does, once the votes allow it.
func (s *fmState) settle(c int, without string) (wrong string) {
	cl := &s.c[c]
	votes, agreed := 0, 0
	if cl.phase == fmAsks {
		cl.token = fmNone
		for _, g := range cl.grants {
			if g != fmNone {
				votes++
				cl.token = max(cl.token, g)
			}
		}
		if votes < 2 {
			if cl.asked == 7 {
				s.free(c, true)
			}
			return ""
		}
		cl.phase = fmRaises
		for i, g := range cl.grants {
			if g != fmNone && g != cl.token {
				cl.raise |= 1 << i
			}
		}
	}
	for _, g := range cl.grants {
		if g == cl.token {
			agreed++
		}
	}
	if agreed < 2 && without != "a majority with the same" {
		return ""
	}
	cl.phase, cl.asked, cl.raise, cl.grants = fmHolds, 0, 0, fmIdles.grants
	if cl.token <= s.last {
		wrong = fmt.Sprintf("token %d after %d", cl.token, s.last)
	}
	s.last = cl.token
	return wrong
}

func (s *fmState) tick() {
	age := func(t *int64) {
		if *t > 20*fmLong {
			*t = max(*t-1e6, fmLong) // any token of today is greater than all of so long ago
		}
	}
	for i := range s.n {
		n := &s.n[i]
		age(&n.counter)
		if n.till = max(0, n.till-1); n.till == 0 {
			n.owner = -1
		}
		n.barred = max(0, n.barred-1)
	}
	for c := range s.c {
		cl := &s.c[c]
		for i := range cl.grants {
			age(&cl.grants[i])
		}
		age(&cl.token)
		if cl.phase != fmIdle {
			if cl.left--; cl.left <= 0 {
				s.free(c, false)
			}
		}
	}
	age(&s.last)
	s.since = min(s.since+1, fmBar)
}

// extend gives a holder its TTL again, and puts the lock back where it was lost.
func (s *fmState) extend(c int) {
	has := 0
	for i := range s.n {
		if s.n[i].owner == int8(c) {
			has++
		}
	}
	for i := range s.n {
		switch n := &s.n[i]; n.owner {
		case int8(c):
			n.till = fmTTL
		case -1:
			req := protocol.FenceRepairRequest(fmTerms, "lock", fmValue(c), &protocol.FenceArgs{Key: "counter", Token: uint64(s.c[c].token + fmClock/1000)})
			n.do(i, c, &req)
		}
	}
	if has >= 2 {
		s.c[c].left = fmTTL
	}
}

func fmNext(without string) func(s fmState, then func(step string, s fmState, wrong string)) {
	bar := int8(fmBar)
	if without == "a second more than the TTL" {
		bar = fmTTL
	}
	return func(s fmState, then func(step string, s fmState, wrong string)) {
		try := func(step string, change func(s *fmState) string) {
			v := s
			wrong := change(&v)
			then(step, v.sorted(), wrong)
		}
		try("a second passes", func(s *fmState) string { s.tick(); return "" })
		for i := range s.n {
			if s.losses > 0 && s.since >= bar {
				try(fmt.Sprintf("node %d forgets", i), func(s *fmState) string {
					s.n[i] = fmNode{counter: fmNone, owner: -1, barred: bar}
					s.losses, s.since = s.losses-1, 0
					return ""
				})
			}
		}
		for c := range s.c {
			for mask := uint8(1); mask < 7 && s.c[c].phase <= fmAsks; mask++ {
				for lost := int8(0); lost <= s.lost && s.c[c].asked&mask == 0; lost++ {
					try(fmt.Sprintf("client %d asks nodes %03b, answer lost %v", c, mask, lost > 0), func(s *fmState) string { return s.ask(c, mask, lost, without) })
				}
			}
			for i := range s.n {
				if s.c[c].phase == fmRaises && s.c[c].raise>>i&1 == 1 {
					try(fmt.Sprintf("client %d raises node %d", c, i), func(s *fmState) string { return s.raise(c, i, without) })
				}
			}
			if s.c[c].phase == fmHolds {
				try(fmt.Sprintf("client %d extends", c), func(s *fmState) string { s.extend(c); return "" })
			}
			if s.c[c].phase == fmHolds {
				try(fmt.Sprintf("client %d releases", c), func(s *fmState) string { s.free(c, true); return "" })
			}
		}
	}
}

func TestFencingTokensGrow(t *testing.T) {
	t.Parallel()
	begin := fmState{c: [2]fmClient{fmIdles, fmIdles}, last: fmNone, since: fmBar, losses: 2, lost: 1}
	for i := range begin.n {
		begin.n[i] = fmNode{counter: fmNone, owner: -1}
	}
	machine(t, 150_000, []string{"more than the counter", "a majority with the same", "a proposal near the server's time", "a second more than the TTL"}, begin, fmNext)
}
