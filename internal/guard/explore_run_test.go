package guard

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/internal/protocol"
)

// xEvent is one step.
type xEvent struct {
	kind uint8
	a, b int8
}

const (
	xPass = iota
	xAsk
	xAskUnread
	xTry // SET and look
	xSendSet
	xLook
	xGiveUp
	xRelease
	xReplace
	xReconnect
	xExtend
	xRestartEmpty
	xRestartKept
	xRestartOld
	xPromote
	xFlush
	xEvictMark
	xRedraw
	xCopyBack
	xName
	xDeny
	xFull
	xBack
	xAhead
	xFollow
	xLead
	xTool
	xAcquire
	xGenesis
	xHoldAnswer
	xHoldWrite
	xLand
	xAskAcross
	xTakeCopy
	xPutBack
	xRestartSame
)

var xMasks = []string{"", "0", "1", "01", "2", "02", "12", "012"}

func (e xEvent) String() string {
	switch e.kind {
	case xPass:
		return "a tick passes"
	case xAcquire:
		return fmt.Sprintf("client %d asks for the lock at nodes %s", e.a, xMasks[e.b])
	case xGenesis:
		return fmt.Sprintf("client %d asks all nodes, three times over", e.a)
	case xHoldAnswer:
		return fmt.Sprintf("client %d asks node %d who it is, and the answer is held up", e.a, e.b)
	case xHoldWrite:
		return fmt.Sprintf("client %d asks node %d who it is, and what it writes then is held up", e.a, e.b)
	case xLand:
		return fmt.Sprintf("what was held up between client %d and node %d comes, as number %d", e.a, e.b%xNodes, e.b/xNodes)
	case xAskAcross:
		return fmt.Sprintf("client %d asks node %d who it is, and the copy of its data is put back between the answers", e.a, e.b)
	case xAsk:
		return fmt.Sprintf("client %d asks node %d who it is", e.a, e.b)
	case xAskUnread:
		return fmt.Sprintf("client %d asks node %d, which answers BUSY to the GET of the mark", e.a, e.b)
	case xTry:
		return fmt.Sprintf("client %d: SET and look at node %d", e.a, e.b)
	case xSendSet:
		return fmt.Sprintf("client %d: SET at node %d", e.a, e.b)
	case xLook:
		return fmt.Sprintf("client %d: look at node %d", e.a, e.b)
	case xGiveUp:
		return fmt.Sprintf("client %d gives up", e.a)
	case xRelease:
		return fmt.Sprintf("client %d releases", e.a)
	case xReplace:
		return fmt.Sprintf("client %d goes, a newcomer takes its number", e.a)
	case xReconnect:
		return fmt.Sprintf("client %d connects to node %d anew", e.a, e.b)
	case xExtend:
		return fmt.Sprintf("client %d extends at nodes %s", e.a, xMasks[e.b])
	case xName:
		return fmt.Sprintf("name %d leads to server %d", e.a, e.b)
	default:
		return fmt.Sprintf("server %d %s", e.a, map[uint8]string{
			xRestartEmpty: "restarts without its data", xRestartKept: "restarts with all its data", xRestartOld: "restarts with its mark and without the lock's key",
			xPromote: "is replaced by a replica that has the mark and lacks the lock's key", xFlush: "is flushed", xEvictMark: "evicts the mark", xRedraw: "draws a new replication id",
			xCopyBack: "follows another and leads again, with a copy that has its mark and lacks the key", xDeny: "denies its mark, or no longer", xFull: "is full, or no longer", xBack: "has its clock set back",
			xAhead: "has its clock set forward", xFollow: "becomes a replica", xLead: "is a master again, with a copy that has its mark and lacks the key", xTool: "is looked at by a client of this node alone",
			xTakeCopy: "has a copy taken of its data", xPutBack: "has the copy of its data put back", xRestartSame: "restarts with its mark and its run id, and without the lock's key",
		}[e.kind])
	}
}

func (x *explorer) events(w *xWorld, out []xEvent) []xEvent {
	sc := x.sc
	out = append(out, xEvent{kind: xPass})
	add := func(kind uint8, a, b int) { out = append(out, xEvent{kind, int8(a), int8(b)}) }
	for c := range sc.clients {
		cl := &w.c[c]
		known := false
		if sc.genesis && cl.until <= 0 {
			add(xGenesis, c, 0)
		}
		if sc.hold > 0 {
			for i := range cl.m {
				room := 0
				for n, p := range cl.m[i].pend {
					if p.kind != 0 {
						add(xLand, c, i+n*xNodes)
					} else if n == 0 || sc.several {
						room++
					}
				}
				if room > 0 && cl.until <= 0 && (!sc.lean || c == 1) {
					add(xHoldAnswer, c, i)
					add(xHoldWrite, c, i)
				}
			}
		}
		if sc.coarse {
			for i := range cl.m {
				known = known || cl.m[i].run > 0 || cl.m[i].identity > 0
			}
			switch {
			case cl.until > 0:
				for mask := 1; mask < 8 && sc.extend; mask++ {
					add(xExtend, c, mask)
				}
				add(xRelease, c, 0)
				for i := range cl.m {
					if sc.looks {
						add(xAsk, c, i)
					}
				}
			default:
				for mask := 1; mask < 8; mask++ {
					if sc.lean && (c == 0 && (mask&(mask-1) == 0 || mask == 7)) {
						continue
					}
					add(xAcquire, c, mask)
				}
				if sc.newcomers && known {
					add(xReplace, c, 0)
				}
			}
			for i := range cl.m {
				if sc.reconnect && x.alive(w, &cl.m[i]) {
					add(xReconnect, c, i)
				}
			}
			continue
		}
		for i := range cl.m {
			m := &cl.m[i]
			known = known || m.run > 0 || m.identity > 0
			lives := x.alive(w, m)
			switch {
			case m.said == xSet || m.said == xRefused:
				add(xLook, c, i)
				continue
			case !lives && m.said == xIdle:
				add(xAsk, c, i)
				if sc.unread {
					add(xAskUnread, c, i)
				}
			case lives && m.said == xIdle && cl.until <= 0:
				if sc.split {
					add(xSendSet, c, i)
				} else {
					add(xTry, c, i)
				}
			}
			if lives && sc.names && m.srv != w.name[i] && m.said == xIdle {
				add(xReconnect, c, i)
			}
		}
		switch {
		case cl.active:
			add(xGiveUp, c, 0)
		case cl.until > 0:
			for mask := 1; mask < 8 && sc.extend; mask++ {
				add(xExtend, c, mask)
			}
			add(xRelease, c, 0)
		case sc.newcomers && known:
			add(xReplace, c, 0)
		}
	}
	for s := range xNodes {
		if sc.copies && !sc.copied && int(w.faults) < sc.faults && !w.s[s].copy.has {
			add(xTakeCopy, s, 0)
		}
	}
	if int(w.faults) < sc.faults {
		mayForget := w.last == xNever || w.last <= -sc.apart
		for s := range xNodes {
			if sc.restartKept {
				add(xRestartKept, s, 0)
			}
			if sc.redraw {
				add(xRedraw, s, 0)
			}
			if sc.evictMark && w.s[s].mark.state == protocol.MarkPresent {
				add(xEvictMark, s, 0)
			}
			if sc.deny {
				add(xDeny, s, 0)
			}
			if sc.refuses != "" {
				add(xFull, s, 0)
			}
			if sc.back {
				add(xBack, s, 0)
			}
			if sc.names {
				for j := range xServers {
					if int8(j) != w.name[s] && (sc.outside || j < xNodes) {
						add(xName, s, j)
					}
				}
			}
			if sc.tool {
				add(xTool, s, 0)
			}
			if w.s[s].follows {
				if mayForget {
					add(xLead, s, 0)
				}
			} else if sc.follow {
				add(xFollow, s, 0)
			}
			if sc.ahead && w.s[s].owner < 0 && (mayForget || w.s[s].lost) {
				add(xAhead, s, 0)
			}
			if !mayForget {
				continue
			}
			if sc.restartEmpty {
				add(xRestartEmpty, s, 0)
			}
			if sc.restartOld {
				add(xRestartOld, s, 0)
			}
			if sc.promote {
				add(xPromote, s, 0)
			}
			if sc.flush {
				add(xFlush, s, 0)
			}
			if sc.restartSame {
				add(xRestartSame, s, 0)
			}
			if sc.copyBack {
				add(xCopyBack, s, 0)
			}
			if sc.copies && w.s[s].copy.has && !sc.across {
				add(xPutBack, s, 0)
			}
			for c := 0; c < sc.clients && sc.across && w.s[s].copy.has; c++ {
				add(xAskAcross, c, s)
			}
		}
	}
	return out
}

func (x *explorer) ready(c *xClient, i int) bool {
	x.load(c)
	return x.g.Ready(i)
}

// apply makes the step.
func (x *explorer) apply(w *xWorld, e xEvent) {
	a, b, sc := int(e.a), int(e.b), x.sc
	switch e.kind {
	case xPass:
		if sc.idle == 2 {
			x.askAll(w)
		}
		x.pass(w)
		if sc.idle == 1 {
			x.askAll(w)
		}
	case xAsk, xAskUnread:
		x.ask(w, a, b, e.kind == xAskUnread)
		x.conclude(w, a)
	case xGenesis:
		for range 3 {
			for i := range xNodes {
				if x.sc.names && w.c[a].m[i].srv != w.name[i] {
					w.c[a].m[i].srv = -1
				}
				x.ask(w, a, i, false)
			}
		}
	case xAskAcross:
		w.faults++
		w.c[a].m[b].srv = -1
		x.askHold(w, a, b, false, askAcross)
		x.conclude(w, a)
	case xTakeCopy:
		s := &w.s[a]
		s.copy = xCopy{has: true, mark: s.mark, owner: s.owner, till: s.till}
	case xHoldAnswer:
		x.askHold(w, a, b, false, 1)
	case xHoldWrite:
		x.askHold(w, a, b, false, 2)
		x.conclude(w, a)
	case xLand:
		x.land(w, a, b%xNodes, b/xNodes)
		x.conclude(w, a)
	case xReconnect:
		w.c[a].m[b].srv = -1
		x.ask(w, a, b, false)
		x.conclude(w, a)
	case xTry, xSendSet:
		cl := &w.c[a]
		if !x.ready(cl, b) {
			x.ask(w, a, b, false)
		}
		x.load(cl)
		if x.duplicate(cl, b) {
			cl.m[b].srv = -1
			return
		}
		if !cl.active {
			cl.active, cl.start = true, 0
		}
		x.setKey(w, a, b)
		if e.kind == xTry {
			x.look(w, a, b)
		}
	case xLook:
		x.look(w, a, b)
	case xAcquire:
		cl := &w.c[a]
		for i := range xNodes {
			if b>>i&1 == 0 || cl.until > 0 {
				continue
			}
			if m := &cl.m[i]; !x.alive(w, m) || x.sc.names && m.srv != w.name[i] {
				m.srv = -1
				x.ask(w, a, i, false)
			}
			x.apply(w, xEvent{xTry, e.a, int8(i)})
		}
		if cl.active {
			x.giveUp(w, a)
		}
	case xGiveUp, xRelease:
		x.giveUp(w, a)
	case xReplace:
		w.c[a] = xClient{}
		for i := range w.c[a].m {
			w.c[a].m[i] = xUnknown
		}
	case xExtend:
		x.extend(w, a, b)
	case xName:
		w.name[a] = int8(b)
		w.faults++
	default:
		w.faults++
		s := &w.s[a]
		forget := func() {
			for i := range w.s {
				w.s[i].lost = false
			}
			s.owner, s.till, s.lost, w.last = -1, 0, sc.ahead, 0
		}
		process := func() { s.run, s.start, s.puts = w.unused(0), w.unused(xStarts), 0 }
		redraw := func() { s.repl = w.unused(1) }
		switch e.kind {
		case xRestartEmpty:
			process()
			redraw()
			s.former = 0
			s.mark = xMark{}
			forget()
		case xRestartKept:
			process()
			s.former = 0
		case xRestartOld:
			process()
			s.former = 0
			forget()
		case xRestartSame:
			s.start, s.former, s.puts = w.unused(xStarts), 0, 0
			forget()
		case xPutBack:
			x.putBack(w, a)
		case xPromote:
			process()
			s.former = s.repl
			redraw()
			forget()
		case xFlush:
			s.mark = xMark{}
			forget()
		case xEvictMark:
			s.mark = xMark{}
		case xRedraw:
			s.former = 0
			redraw()
		case xCopyBack:
			s.puts++
			redraw()
			s.former = s.repl
			redraw()
			forget()
		case xDeny:
			s.denied = !s.denied
		case xFull:
			s.full = !s.full
		case xFollow:
			s.follows = true
		case xLead:
			s.follows = false
			s.puts++
			redraw()
			s.former = s.repl
			redraw()
			forget()
		case xTool:
			now := -s.back
			switch {
			case s.mark.state != protocol.MarkPresent:
				s.mark = xMark{state: protocol.MarkPresent, id: w.unused(2), run: s.run, repl: s.repl, start: s.start, puts: s.puts, at: now, first: true, all: sc.without == xSize}
			case s.mark.first && sc.without == xSize && time.Duration(now-s.mark.at)*x.sc.tick < newFor:
				s.mark.all = true
			}
		case xAhead:
			by := x.sc.ttl + int16(FirstUse/x.sc.tick)
			s.back -= by
			forget()
		case xBack:
			by := x.sc.ttl + 2
			s.back += by
			if s.owner >= 0 {
				s.till += by
			}
		}
	}
}

// askAll has each client ask all nodes that it knows.
func (x *explorer) askAll(w *xWorld) {
	for c := range x.sc.clients {
		for i := range xNodes {
			if w.c[c].m[i].identity > 0 {
				x.ask(w, c, i, false)
			}
		}
	}
}

// duplicate reports whether the node has no vote, since its name leads to another's server.
func (x *explorer) duplicate(c *xClient, i int) bool {
	x.load(c)
	return x.g.memories.duplicateOf(i) >= 0
}

// extend is a round of extends that reaches these nodes, at once.
func (x *explorer) extend(w *xWorld, c, mask int) {
	cl := &w.c[c]
	votes := 0
	for i := range cl.m {
		m := &cl.m[i]
		if mask>>i&1 == 0 || !x.alive(w, m) || x.duplicate(cl, i) {
			continue
		}
		switch s := &w.s[m.srv]; {
		case s.owner == int8(c):
			s.till = x.sc.ttl
			votes++
		case s.owner < 0:
			s.owner, s.till = int8(c), x.sc.ttl
		}
	}
	if votes >= 2 {
		cl.until = x.sc.ttl
	}
}

func (x *explorer) begin() *xWorld {
	sc := x.sc
	w := &xWorld{last: xNever}
	old := -3 * (sc.ttl + int16(FirstUse/sc.tick) + int16(4*time.Second/sc.tick))
	for i := range w.s {
		s := &w.s[i]
		*s = xServer{run: uint8(i + 1), repl: uint8(i + 1), start: uint8(i + 1), owner: -1}
		if !sc.fresh && (!sc.first || i != 2) || i == xNodes {
			s.mark = xMark{state: protocol.MarkPresent, id: uint8(i + 1), run: s.run, repl: s.repl, start: s.start, at: old, first: true, all: !sc.first}
		}
		s.copy = xCopy{has: sc.swap, owner: -1} // the other database is empty
	}
	for i := range w.name {
		w.name[i] = int8(i)
	}
	if sc.twins {
		w.name[1] = 0
	}
	for k := range w.c {
		for i := range w.c[k].m {
			w.c[k].m[i] = xUnknown
		}
	}
	if sc.fresh {
		// In the first two seconds a loss looks like the first use.
		w.last = xNever
	}
	for c := range sc.clients {
		for i := 0; i < xNodes && (sc.stay || sc.knows && c == 0); i++ {
			x.ask(w, c, i, false)
		}
	}
	for i := range xNodes {
		if sc.copied && !sc.swap {
			x.apply(w, xEvent{xTakeCopy, int8(i), 0})
		}
	}
	for n := x.farBack() + 4; sc.rested && n > 0; n-- {
		x.apply(w, xEvent{kind: xPass})
	}
	x.clip(w)
	return w
}

// xUnknown is what a newcomer knows of a node.
var xUnknown = xMemory{changedAt: xNever, seen: xNever, ahead: xNever, srv: -1}

// xSet64 is a set of hashes.
type xSet64 struct {
	slots []uint64
	n     int
}

func (s *xSet64) add(h uint64) bool {
	if h == 0 {
		h = 1
	}
	if s.n*4 >= len(s.slots)*3 {
		old := s.slots
		s.slots = make([]uint64, max(1<<16, len(old)*2))
		s.n = 0
		for _, v := range old {
			if v != 0 {
				s.add(v)
			}
		}
	}
	mask := uint64(len(s.slots) - 1)
	for i := h & mask; ; i = (i + 1) & mask {
		switch s.slots[i] {
		case 0:
			s.slots[i] = h
			s.n++
			return true
		case h:
			return false
		}
	}
}

type xParent struct {
	from uint32
	e    xEvent
}

// xFound is what a search came to.
type xFound struct {
	states, depth int
	whole         bool // nothing is left
	story         []string
	stuck         []string
	waits         []string // for a lock that is free, though nothing was lost
	worst         int
}

func (x *explorer) holders(w *xWorld) int {
	n := 0
	for c := range w.c {
		if w.c[c].until > 0 {
			n++
		}
	}
	return n
}

func (x *explorer) search(most int) (f xFound) {
	root := x.begin()
	var seen xSet64
	seen.add(x.key(root))
	parents := []xParent{{}}
	level := []xWorld{*root}
	first := uint32(0)
	var evs []xEvent
	story := func(at uint32, e *xEvent) (all []string) {
		var es []xEvent
		if e != nil {
			es = append(es, *e)
		}
		for ; at > 0; at = parents[at].from {
			es = append(es, parents[at].e)
		}
		w := *x.begin()
		for i := len(es) - 1; i >= 0; i-- {
			x.apply(&w, es[i])
			told := es[i].String()
			if es[i].kind != xPass && es[i].kind <= xLook || es[i].kind == xAcquire {
				told += x.describe(&w, int(es[i].a))
			}
			all = append(all, told)
		}
		return all
	}
	for depth := 0; len(level) > 0; depth++ {
		f.depth = depth
		if x.sc.depth > 0 && depth >= x.sc.depth {
			f.states = len(parents)
			return f
		}
		var next []xWorld
		start := uint32(len(parents))
		for n := range level {
			at := first + uint32(n)
			evs = x.events(&level[n], evs[:0])
			for _, e := range evs {
				w := level[n]
				x.apply(&w, e)
				if x.holders(&w) > 1 {
					f.story, f.states = story(at, &e), len(parents)
					return f
				}
				if !seen.add(x.key(&w)) {
					continue
				}
				ticks, ok := x.lives(&w)
				if x.sc.prompt && w.faults == 0 && ticks > 0 && x.free(&w) {
					f.waits, f.states = story(at, &e), len(parents)
					return f
				}
				if f.worst = max(f.worst, ticks); !ok {
					f.stuck, f.states = story(at, &e), len(parents)
					return f
				}
				parents = append(parents, xParent{at, e})
				next = append(next, w)
				if len(parents) >= most {
					f.states = len(parents)
					return f
				}
			}
		}
		level, first = next, start
	}
	f.states, f.whole = len(parents), true
	return f
}

// lives reports after how many ticks each node votes for each client once all is quiet, and whether that is
// within the guard's period and a TTL.
func (x *explorer) lives(w *xWorld) (worst int, ok bool) {
	for c := range x.sc.clients {
		q := x.quiet(w, c)
		ticks := x.votesAfter(&q, c, 0)
		if ticks > int(x.sc.ttl)+int((x.period()+x.sc.tick-1)/x.sc.tick)+1 {
			return ticks, false
		}
		worst = max(worst, ticks)
	}
	return worst, true
}

// free reports whether no node has the lock's key.
func (x *explorer) free(w *xWorld) bool {
	return !slices.ContainsFunc(w.s[:], func(s xServer) bool { return s.owner >= 0 })
}

// quiet is what is left of a state for one client when all is well and nothing more happens: the servers, and
// locks that others hold. Many states have the same.
func (x *explorer) quiet(w *xWorld, c int) xWorld {
	v := xWorld{s: w.s, last: xNever}
	v.c[c] = w.c[c]
	for i := range v.name {
		v.name[i] = int8(i)
		v.c[c].m[i].pend = [xSlots]xPending{}
	}
	for i := range v.s {
		s := &v.s[i]
		s.denied, s.full, s.follows = false, false, false
		s.copy = xCopy{owner: -1}
		if s.owner >= 0 && (int(s.owner) == c || w.c[s.owner].active) {
			s.owner, s.till = -1, 0
		} else if s.owner >= 0 {
			s.owner = int8(c+1) % xClients
		}
	}
	x.giveUp(&v, c)
	return v
}

// votesAfter lets time pass until each node votes for the client.
func (x *explorer) votesAfter(v *xWorld, c, depth int) int {
	order := [xClients]int{c, (c + 1) % xClients, (c + 2) % xClients}
	key := x.encode(v, x.order(v), order)
	if x.sc.old && c == 1 {
		key++
	}
	if t, ok := x.soon[key]; ok {
		return t
	}
	if depth > 60 {
		return 1000
	}
	for i := range xNodes {
		m := &v.c[c].m[i]
		if !x.alive(v, m) || m.srv != v.name[i] {
			m.srv = -1
			x.ask(v, c, i, false)
		}
		x.apply(v, xEvent{xTry, int8(c), int8(i)})
		if v.c[c].until > 0 {
			x.giveUp(v, c) // or the nodes behind a majority would never be asked
		}
	}
	x.load(&v.c[c])
	ticks := 0
	for i := range xNodes {
		if x.judge(i) > 0 {
			ticks = 1
		}
	}
	if ticks > 0 {
		x.giveUp(v, c)
		x.pass(v)
		ticks += x.votesAfter(v, c, depth+1)
	}
	x.soon[key] = ticks
	return ticks
}

func (x *explorer) describe(w *xWorld, c int) string {
	cl := &w.c[c]
	if cl.until > 0 {
		return fmt.Sprintf("  -> HOLDS for %d ticks", cl.until)
	}
	s := "  ["
	for i := range cl.m {
		s += []string{"-", "set", "refused?", "counts", "waits", "barred", "no"}[cl.m[i].said] + " "
	}
	return s[:len(s)-1] + "]"
}

// Each row within the promise has one holder at a time, and in every state each node votes soon for each
// client once all is quiet. Rows beyond it, and rules without a clause, show that the search finds two.
func TestExplore(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	page := make([]string, len(exploreRows))
	t.Cleanup(func() { writePage(t, page) })
	for n, row := range exploreRows {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			if raceDetector && row.beyond {
				t.Skip("it takes too long with the race detector, which sees nothing here")
			}
			found := row.look(t, xWhole, row.beyond, row.states)
			for clause := xAge; clause < xClauses && !raceDetector; clause++ {
				if most := row.clauses[clause]; most > 0 {
					found += "\n    without " + clause.String() + ": " + row.look(t, clause, true, most)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			page[n] = found
		})
	}
}

// look searches a row, and says for the page what was found.
func (r *xRow) look(t *testing.T, without xClause, two bool, states int) string {
	scope := r.scope
	scope.without = without
	begin := time.Now()
	x := newExplorer(&scope)
	f := x.search(exploreMost(states))
	took := time.Since(begin).Round(100 * time.Millisecond)
	story := strings.Join(f.story, "\n")
	assert.Equal(t, two, story != "", "two holders, without %q:\n%s", without, story)
	assert.Empty(t, f.waits, "a client waits for nothing, without %q", without)
	assert.Empty(t, f.stuck, "a client that a node never votes for, without %q", without)
	switch found := fmt.Sprintf("%d states, %v", f.states, took); {
	case story != "":
		found = fmt.Sprintf("two holders after %d steps, %s", len(f.story), found)
		t.Logf("without %q: %s", without, found)
		return found
	default:
		t.Logf("%s, depth %d, whole %v, worst wait %d ticks", found, f.depth, f.whole, f.worst)
		return fmt.Sprintf("all of depth %d, %s, longest wait %v", f.depth, found, time.Duration(f.worst)*scope.tick)
	}
}
