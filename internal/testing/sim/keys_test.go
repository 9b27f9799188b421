package sim_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
)

// What becomes of single keys of a server that lives.

// faultEvict: Node is full, and evicts one of the keys that Key needs: the one that Of names, as soon
// as it is there, if that is before the fault is over. Nothing tells clients of it.
const faultEvict = "evict"

// The keys that a lock needs, as Of names them.
const (
	ofLock   = "lock"
	ofLine   = "line"
	ofShared = "shared"
	ofDoor   = "door"
	ofFence  = "fence"
	ofMark   = "mark" // of all locks
)

// name is the key that a fault is about.
func (f simFault) name() string {
	switch key := fmt.Sprint("k", f.Key); f.Of {
	case ofLock:
		return key
	case ofMark:
		return protocol.MarkKey
	default:
		return "{" + key + "}:" + f.Of
	}
}

// keysOf is what a lock of this plan may need, the lock's own key more often than the others.
func (p *simPlan) keysOf(key int) []string {
	of := []string{ofLock, ofLock, ofLock, ofLine, ofLine}
	if len(p.Kinds) > 0 && p.Kinds[key] != 0 {
		of = append(of, ofShared, ofShared, ofDoor, ofDoor)
	}
	if p.Fenced[key] {
		of = append(of, ofFence, ofFence)
	}
	if p.RestartGuard >= 0 {
		of = append(of, ofMark)
	}
	return of
}

// drawEvictions has nodes evict keys in some plans, any nodes: where it is more than a lock can miss, its
// claim ends (see brokenBy). It has randomness of its own, so that the other plans are what they were.
func (p *simPlan) drawEvictions() {
	r := rand.New(rand.NewPCG(p.Seed, 0xe71c7))
	if p.Calm || r.IntN(5) > 0 {
		return
	}
	for range 1 + r.IntN(4) {
		f := simFault{Kind: faultEvict, Node: r.IntN(len(p.Nodes)), Key: r.IntN(len(p.Fenced))}
		of := p.keysOf(f.Key)
		f.Of = of[r.IntN(len(of))]
		f.At = time.Duration(r.Int64N(int64(p.Until)))
		f.For = time.Duration(r.Int64N(int64(p.Until - f.At)))
		p.Faults = append(p.Faults, f)
		for r.IntN(4) == 0 { // several are full
			f.Node = (f.Node + 1) % len(p.Nodes)
			p.Faults = append(p.Faults, f)
		}
	}
}

// drawListEvictions has nodes evict doors, or lists of those who share a lock, in some plans with such locks,
// as soon as they are there. It has randomness of its own, so that the other plans are what they were.
func (p *simPlan) drawListEvictions() {
	r := rand.New(rand.NewPCG(p.Seed, 0xe71c8))
	if p.Calm || p.MinHold > 0 || r.IntN(2) > 0 && p.Regime != simModes {
		return
	}
	n := len(p.Nodes)
	for key, kind := range p.Kinds {
		if kind == 0 {
			continue
		}
		f, most, times := simFault{Kind: faultEvict, Key: key, Of: ofDoor}, n-quorumOf(n)+1, 2
		if kind > 0 { // a node without a list gives permits other numbers than most
			f.Of, most, times = ofShared, max(n-quorumOf(n), 1), 6
			if p.Strict {
				p.Slow, p.Torn, p.Reset = 0, 0, 0 // which would keep a node from being told
				for i := range p.Processes {
					p.Processes[i].Clients = append(slices.Clip(p.Processes[i].Clients), simClientPlan{Key: key, Ops: 4}, simClientPlan{Key: key, Ops: 4})
				}
			}
		}
		for _, f.Node = range r.Perm(n)[:1+r.IntN(most)] {
			for range 1 + r.IntN(times) {
				f.At = time.Duration(r.Int64N(int64(p.Until)))
				f.For = p.Until - f.At
				p.Faults = append(p.Faults, f)
			}
		}
	}
}

// again calls f now, and again and again until it is done or a time is over.
func (n *simNode) again(until int64, id uint64, f func() (done bool)) {
	if t := n.w.t(); !f() && t < until {
		n.w.after(int64(n.w.plan.TTL)/128, id, func() { n.again(until, id, f) })
	}
}

// evict evicts a key if it is there.
func (n *simNode) evict(f simFault) (done bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, key, t := f.name(), fmt.Sprint("k", f.Key), n.w.t()
	k := n.store.Get(name)
	if k == nil || k.Other != "" {
		return false
	}
	if f.Of == ofLine {
		n.losesLine(key)
	}
	delete(n.store.Keys, name)
	n.w.reached("a server evicts a key: "+f.Of, true)
	n.w.happened(func() string { return fmt.Sprintf("node %d  evicts %s", n.i, name) }, uint64(n.i), hashOf(name), 'e')
	switch f.Of {
	case ofLock:
		n.rob(key, func(*simHold) bool { return true })
	case ofShared:
		n.rob(key, func(h *simHold) bool { return h.shared })
		if v, held, _ := n.store.Text(key); held && v == fakenode.Marker { // it refuses for as long as it lasts
			n.occupied(key, fakenode.Marker, n.expiry(n.store.Millis()+n.store.Pttl(key)))
		}
	case ofDoor:
		n.doorUntil[key] = t
	case ofFence:
		for i := range n.counts[name] { // what it counted before goes with it
			if c := &n.counts[name][i]; c.gone == 0 {
				c.gone = t
			}
		}
	case ofMark:
		n.marked = 0
	}
	return true
}

// rob ends what the node has of a lock, though its holders may still rely on it.
func (n *simNode) rob(key string, which func(h *simHold) bool) {
	t := n.w.t()
	for _, h := range n.holds[key] {
		if h.expire > 0 && h.to > t && which(h) {
			h.to, h.expire, h.evicted = t, 0, true
		}
	}
}

// occupied notes that something which is nobody's lock is in the way of all until a time.
func (n *simNode) occupied(key, what string, to int64) *simHold {
	h := &simHold{value: what, from: n.w.t(), to: to, shared: true}
	n.holds[key] = append(n.holds[key], h)
	return h
}

// simCounter is a value of a fencing counter.
type simCounter struct {
	value uint64
	at    int64
	gone  int64 // when it was evicted; 0: it was not
}

// counted notes a counter's value; the caller holds mu.
func (n *simNode) counted(name, value string) {
	n.counts[name] = append(n.counts[name], simCounter{value: uint64(fakenode.Number(value)), at: n.w.t()})
}

// uncounted reports whether a later grant may have a lower token than an earlier one, since counters were
// evicted: those that reach the earlier one's are on no majority of the nodes any more, and would be.
func (w *simWorld) uncounted(last, g *simGrant) bool {
	kept, maybe, evicted := 0, 0, false
	for _, n := range w.nodes {
		had, some := false, false
		for _, c := range n.counts["{"+g.key+"}:fence"] {
			if c.value < last.fence || c.at > g.ret {
				continue
			}
			lost := c.gone > 0 && c.gone <= g.ret
			had = had || c.at <= g.call && !lost
			some, evicted = true, evicted || lost
		}
		switch {
		case had:
			kept++
		case some: // evicted, or not there yet when the node was asked
			maybe++
		}
	}
	return evicted && kept < g.proc.quorum() && kept+maybe >= g.proc.quorum()
}

// faultForeign: others keep a list on Node under a name that Key needs, which Of names. They put it there
// as soon as nothing else is there, and take it away when the fault is over, or never if it is for Ever.
const faultForeign = "foreign"

const (
	foreignType = "list"
	foreignLock = "a list of others" // in the place of a lock's value
)

// simForeign is what others keep on a node.
type simForeign struct {
	name string
	hold *simHold // if it is in a lock's place
	to   int64    // never while it is there
}

// drawForeign has others use names of ours in some plans: for ever, and mostly, on a minority of the nodes,
// since locks must go on with the others. A node whose mark cannot be read tells of no losses but restarts,
// so nothing else is lost there. It has randomness of its own, so that the other plans are what they were.
func (p *simPlan) drawForeign() {
	r := rand.New(rand.NewPCG(p.Seed, 0xf0e16))
	share := 8
	if p.Regime == simWell {
		share = 3
	}
	if p.Calm || r.IntN(share) > 0 {
		return
	}
	losses := slices.ContainsFunc(p.Faults, func(f simFault) bool { return f.losesAt() > 0 && !f.restarts() })
	n := len(p.Nodes)
	few := r.Perm(n)[:n-quorumOf(n)]
	// A minority may fail already; and processes that queue at different nodes, since their names differ,
	// need more than a bare majority to come to an end soon (seed 5,235).
	away := p.Names || slices.ContainsFunc(p.Faults, func(f simFault) bool { return f.Kind == faultCrash && f.For > simWellFor })
	for range 1 + r.IntN(4) {
		f := simFault{Kind: faultForeign, Node: r.IntN(n), Key: r.IntN(len(p.Fenced))}
		most := len(few) == 0 || r.IntN(6) == 0
		if !most {
			f.Node, f.Ever = few[r.IntN(len(few))], r.IntN(2) == 0 && !away
		}
		of := p.keysOf(f.Key)
		of = append(of, of[5:]...) // which fewer plans have than locks and queues
		f.Of = of[r.IntN(len(of))]
		lasts := f.Of == ofMark || f.Of == ofFence // what clients put there they do not take away again
		if !lasts && r.IntN(3) > 0 {
			f.At = time.Duration(r.Int64N(int64(p.Until)))
		}
		f.For = time.Duration(r.Int64N(int64(p.Until-f.At))) + 1
		if f.Of == ofMark && (most || losses) {
			continue
		}
		p.Faults = append(p.Faults, f)
	}
}

// isForEver reports whether others keep something on the node for ever.
func (n *simNode) isForEver() bool {
	return slices.ContainsFunc(n.w.plan.Faults, func(f simFault) bool { return f.Kind == faultForeign && f.Node == n.i && f.Ever })
}

// occupy puts a list under a name if nothing is there.
func (n *simNode) occupy(f simFault) (done bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name := f.name()
	if n.store.Get(name) != nil {
		return false
	}
	n.store.Keys[name] = &fakenode.Key{Other: foreignType}
	if f.Of == ofDoor { // what a waiter had there was evicted, or had ended
		delete(n.doors, fmt.Sprint("k", f.Key))
	}
	what := &simForeign{name: name, to: never}
	if f.Of == ofLock {
		what.hold = n.occupied(name, foreignLock, never)
	}
	n.foreign = append(n.foreign, what)
	n.w.reached("others use a name: "+f.Of, true)
	n.w.reached("others use a name for ever", f.Ever)
	n.w.happened(func() string { return fmt.Sprintf("node %d  has a list of others under %s", n.i, name) }, uint64(n.i), hashOf(name), 'o')
	if !f.Ever {
		n.w.after(int64(f.At+f.For)-n.w.t(), uint64(n.i), func() { n.vacate(what) })
	}
	return true
}

// others is what others have on the node now; the caller holds mu.
func (n *simNode) others() (there []*simForeign) {
	for _, f := range n.foreign {
		if f.to == never {
			there = append(there, f)
		}
	}
	return there
}

// vacate is what the owners do in the end.
func (n *simNode) vacate(what *simForeign) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.checkForeign()
	if n.lost(what) {
		delete(n.store.Keys, what.name)
	}
}

// lost notes that a list is gone; there: it was there until now. The caller holds mu.
func (n *simNode) lost(what *simForeign) (there bool) {
	if what.to != never {
		return false
	}
	what.to = n.w.t()
	if what.hold != nil {
		what.hold.to = what.to
	}
	return true
}

// checkForeign: what others keep is not touched. The caller holds mu.
func (n *simNode) checkForeign() {
	for _, what := range n.others() {
		if n.store.Typ(what.name) != foreignType || n.store.Pttl(what.name) != -1 {
			n.w.violated("foreign: node %d does not have any more what others keep under %s, or not for ever", n.i, what.name)
			n.lost(what)
		}
	}
}

// faultStale: Node dies and comes back with its keys as they were By before, as a server does that writes
// its file once a second.
const faultStale = "stale"

// restarts reports whether a fault is a new process of the server, which tells newcomers of it.
func (f simFault) restarts() bool { return f.Kind == faultForget || f.Kind == faultStale }

// drawStale adds such restarts to some plans, where losses that are no restarts are allowed, too. It has
// randomness of its own, so that the other plans are what they were. Clocks that jump must not tell a
// restarted node that it is old, as in drawAhead.
func (p *simPlan) drawStale() {
	r := rand.New(rand.NewPCG(p.Seed, 0x57a1e))
	without := func(kinds ...string) bool {
		return !slices.ContainsFunc(p.Faults, func(f simFault) bool { return slices.Contains(kinds, f.Kind) })
	}
	if p.Calm || p.Strict || p.RestartGuard < 0 || len(p.Nodes) == 1 || !without(faultBack, faultAhead) || r.IntN(4) > 0 {
		return
	}
	for range 1 + r.IntN(4) {
		f := simFault{Kind: faultStale, Node: r.IntN(len(p.Nodes)), By: time.Duration(r.Int64N(int64(p.TTL))) + 1}
		f.At = time.Duration(r.Int64N(int64(p.Until)))
		f.For = min(time.Duration(r.Int64N(int64(p.TTL/2))), p.Until-f.At)
		p.Faults = append(p.Faults, f)
	}
}

// crash has the server die, and come back with what it had kept.
func (n *simNode) crash(kept map[string]*fakenode.Key) {
	n.disconnect()
	n.mu.Lock()
	defer n.mu.Unlock()
	t := n.w.t()
	maps.DeleteFunc(kept, func(_ string, k *fakenode.Key) bool { return k.Other != "" })
	for _, what := range n.others() { // what others keep is as it was
		kept[what.name] = n.store.Keys[what.name]
	}
	n.store.Keys = kept
	for name := range n.backBy { // what was heard since, the queue of before does not know
		key, process, _ := strings.Cut(name, " ")
		delete(n.backBy, name)
		if line := kept[n.beside(key).line]; line != nil {
			if by, ok := line.Zset["silent "+process]; ok {
				n.backBy[name] = -int64(by)
			}
		}
	}
	n.w.reached("a server comes back with keys of before", true)
	for key := range n.holds {
		now := n.valuesOf(key)
		for _, h := range n.holds[key] {
			if h.expire == 0 || h.gone() <= t {
				continue
			}
			v, there := now[h.value]
			switch {
			case !there || v.number != h.number || v.shared != h.shared:
				n.w.reached("a server comes back without a lock", true)
				h.expire, h.forgotten = 0, t
			default:
				h.lasts(v.expire, n.expiry(v.expire))
				delete(now, h.value)
			}
		}
		for _, value := range slices.Sorted(maps.Keys(now)) { // what was removed meanwhile
			n.w.reached("a server comes back with a lock that was over", true)
			h := now[value]
			h.from, h.to, h.whole = t, n.expiry(h.expire), n.whole(h.expire)
			n.holds[key] = append(n.holds[key], h)
		}
	}
}

// valuesOf is what is under a lock's key; the caller holds mu.
func (n *simNode) valuesOf(key string) map[string]*simHold {
	all := make(map[string]*simHold)
	switch v, held, _ := n.store.Text(key); {
	case held && v != fakenode.Marker:
		all[v] = &simHold{value: v, expire: n.store.Millis() + n.store.Pttl(key)}
	case held:
		for value, h := range n.lineOf(key).holders {
			all[value] = &simHold{value: value, expire: h.till, shared: true, number: h.number}
		}
	}
	return all
}

// gone is when the node really does not have the value any more.
func (h *simHold) gone() int64 {
	if h.forgotten > 0 {
		return h.forgotten
	}
	return h.to
}

// lasts notes until when the node has a value now. One that a restart cut short counts as held for as long
// as it would have been.
func (h *simHold) lasts(expire, to int64) {
	h.expire = expire
	if h.forgotten = 0; to < h.to {
		h.forgotten = to
		return
	}
	h.to = to
}
