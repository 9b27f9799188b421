package sim_test

import (
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
	"github.com/quorumlock/redlock/internal/tick"
)

// simWorld is one run: servers in memory, a network between them and the processes under
// test, and everything that goes wrong, as planned. All its doings are spread over
// nanoseconds by hashes of the seed, so that no two of them happen at the same time, and a
// seed gives one and the same run on every machine.
type simWorld struct {
	plan  *simPlan
	began int64         // by the bubble
	over  chan struct{} // closed at the end: whatever is dead or hangs goes on and fails
	nodes []*simNode
	procs []*simProcess

	mu       sync.Mutex
	verbose  func(string)
	trace    uint64 // the sum of the hashes of all that happened
	steps    int
	bad      []string
	broken   []string // the rules that bad is about, as their formats
	grants   []*simGrant
	byToken  map[string]*simGrant
	places   map[string]simPlace   // where who has this value stands in line
	arrivals map[int64]simPlace    // the same, by arrival in the line: a further attempt has another value
	waits    map[string][]simWait  // by key
	wants    map[string][]*simWait // by key: all calls that want it in any way, and are not over
	sets     map[simSent]simHeard  // what is known of each SET
	sentBy   map[string]simSender  // the process that sent the SETs of a value
	ended    bool
	slept    atomic.Int64
	tallies  simTallies
	renewals simRenewals
	forces   []*simForce
	allNew   simTimes // when a mark was lost and none was left that tells of before
	conns    simConnects
}

// simFine: a nanosecond of the run is so many of the bubble's, between which hashes
// spread what would fall on the same one.
const simFine = 1 << 20

// t is the true time in nanoseconds.
func (w *simWorld) t() int64 { return w.passed() / simFine }

// passed is the time of the bubble since the run began.
func (w *simWorld) passed() int64 { return time.Now().UnixNano() - w.began }

// fine is a time of the bubble; what differs in id ends at different times.
func (w *simWorld) fine(d int64, id uint64) time.Duration {
	return time.Duration(max(d, 0)*simFine + int64(w.mix('z', uint64(w.passed()), uint64(d), id)%simFine))
}

// after calls f in d nanoseconds.
func (w *simWorld) after(d int64, id uint64, f func()) *time.Timer {
	return time.AfterFunc(w.fine(d, id), f)
}

// hashOf is that of a text.
func hashOf(s string) uint64 {
	h := fnv.New64a()
	_, _ = io.WriteString(h, s)
	return h.Sum64()
}

// mix is a hash of the seed and of what is given.
func (w *simWorld) mix(vs ...uint64) uint64 { return mix(w.plan.Seed, vs...) }

func mix(x uint64, vs ...uint64) uint64 {
	for _, v := range vs {
		x ^= v + 0x9e3779b97f4a7c15 + x<<6 + x>>2
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return x
}

// happened adds to the trace.
func (w *simWorld) happened(text func() string, vs ...uint64) {
	t := w.t()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	if w.steps++; len(vs) > 0 {
		w.trace += mix(uint64(t), vs...)
	}
	if w.verbose != nil {
		w.verbose(fmt.Sprintf("%14.6f ms  %s", float64(t)/1e6, text()))
	}
}

// violated notes that a promise was broken.
func (w *simWorld) violated(what string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return
	}
	text := fmt.Sprintf("at %.6f ms: ", float64(w.t())/1e6) + fmt.Sprintf(what, args...)
	w.bad = append(w.bad, text)
	w.broken = append(w.broken, what)
	if w.verbose != nil {
		w.verbose("VIOLATED " + text)
	}
}

// faultAt is the fault of one of the kinds that covers t, for one process or node; negative
// ones stand for any.
func (w *simWorld) faultAt(t int64, proc, node int, kinds ...string) (until int64, ok bool) {
	for i := range w.plan.Faults {
		f := &w.plan.Faults[i]
		if t < int64(f.At) || t >= int64(f.At+f.For) || proc >= 0 && f.Proc != proc || node >= 0 && f.Node != node {
			continue
		}
		for _, k := range kinds {
			if f.Kind == k {
				until, ok = max(until, int64(f.At+f.For)), true
			}
		}
	}
	return until, ok
}

// simNode is a server.
type simNode struct {
	w    *simWorld
	i    int
	hand simHand

	mu    sync.Mutex
	store *fakenode.Store
	holds map[string][]*simHold // by lock key
	// doorUntil is when the door of a lock was or would have been gone at the latest.
	doorUntil map[string]int64
	doors     map[string]string // by lock key: who shut it last
	subs      []*simSub

	names    map[string]simBeside
	calls    map[simName]string
	backBy   map[string]int64        // until when a process says that it is heard of again by what it asks of a key's queue, in us of the server
	toldAt   map[string]int64        // when the lock was reserved for a value
	forceOp  *fakenode.Op            // of ForceRelease, the last one
	met      map[int]int64           // by process: when it sent something first
	counts   map[string][]simCounter // of fencing, by name
	foreign  []*simForeign           // also what is gone, see others
	heard    []simHeardBy
	lineLost map[string]int64 // when a queue was lost, by lock key
	busy     int64            // until when it is at handshakes, see simLinks
	keptIn   map[string]bool  // entries that a release was to take out while others had the lock's key, so that it changed nothing
	marked   int64            // when the memory mark was written first; 0: never
	saysAll  int64            // when that said first that all nodes were new; 0: never
}

// simHold is a time during which a server has a value under a lock's key.
type simHold struct {
	value     string
	from, to  int64 // true time; to is when it is or would have been gone
	expire    int64 // milliseconds of the server; 0: it is gone
	released  bool  // by a release of this very value
	forced    bool  // by ForceRelease
	shared    bool  // listed with others
	number    int64 // of a permit
	extended  int64 // when its TTL was set last, after it was set
	whole     int64 // when it would be gone if the clock never jumped forward again
	shortened int64 // when it was to be gone after its first release, which left it for WithMinHold; 0: none
	evicted   bool  // it was gone at to for that
	// forgotten is when the server lost it with all else; 0: it did not.
	forgotten int64
}

func newSimNode(w *simWorld, i int) *simNode {
	p := w.plan.Nodes[i]
	n := &simNode{
		w: w, i: i, hand: simHand{base: fakenode.Epoch + int64(p.Offset), ppm: p.PPM},
		holds: make(map[string][]*simHold), doorUntil: make(map[string]int64), doors: make(map[string]string),
		toldAt: make(map[string]int64), backBy: make(map[string]int64), lineLost: make(map[string]int64), keptIn: make(map[string]bool), names: make(map[string]simBeside), calls: make(map[simName]string), met: make(map[int]int64), counts: make(map[string][]simCounter),
	}
	n.store = fakenode.New(func() int64 { return n.hand.at(w.t()) })
	n.store.Watch, n.store.Publish, n.store.Mute = n, n.publish, w.plan.NoPublish
	n.store.NoMGet = w.plan.NoMGet && i%2 == 1
	for _, f := range w.plan.Faults {
		if f.Node != i {
			continue
		}
		switch f.Kind {
		case faultBack:
			n.hand.steps = append(n.hand.steps, simStep{int64(f.At), int64(f.By)})
			w.after(int64(f.At)-1, uint64(i), n.expireAll)
		case faultAhead:
			n.hand.steps = append(n.hand.steps, simStep{int64(f.At), int64(f.By)})
			w.after(int64(f.At), uint64(i), n.expireAll)
		case faultEvict:
			w.after(int64(f.At), uint64(i), func() {
				n.again(int64(f.At+f.For), uint64(i), func() bool {
					done := n.evict(f)
					if done && f.Of == ofMark {
						w.lostMark()
					}
					return done
				})
			})
		case faultForeign:
			if f.At == 0 { // before any process sees the node
				n.occupy(f)
				continue
			}
			w.after(int64(f.At), uint64(i), func() { n.again(int64(f.At+f.For), uint64(i), func() bool { return n.occupy(f) }) })
		case faultScripts:
			w.after(int64(f.At), uint64(i), n.flushScripts)
		case faultUnheard:
			w.after(int64(f.At), uint64(i), n.unhear)
		case faultCrash:
			w.after(int64(f.At), uint64(i), n.disconnect)
		case faultStale:
			kept := map[string]*fakenode.Key{} // where it is as old as the run
			w.after(int64(f.At-f.By), uint64(i), func() {
				n.mu.Lock()
				defer n.mu.Unlock()
				maps.Copy(kept, n.store.Copy())
			})
			w.after(int64(f.At), uint64(i), func() { n.crash(kept); w.lostMark() })
		case faultForget, faultSwap, faultPromote, faultFlush, faultResync:
			w.after(f.losesAt(), uint64(i), func() { n.lose(f.Kind); w.lostMark() })
		}
	}
	return n
}

// expireAll is what a server does now and then: what has expired must not come back
// because the clock is set back.
func (n *simNode) expireAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for key := range n.store.Keys {
		n.store.Get(key)
	}
}

// expiry is the true time at which a key is gone.
func (n *simNode) expiry(millis int64) int64 {
	return n.hand.reach((millis+1)*int64(time.Millisecond), n.w.t())
}

// whole is expiry if the clock never jumps forward again.
func (n *simNode) whole(millis int64) int64 {
	t := n.w.t()
	return t + n.hand.lasts((millis+1)*int64(time.Millisecond)-n.hand.at(t))
}

func (n *simNode) isDoor(key string) bool { return strings.HasSuffix(key, "}:door") }

func (n *simNode) isLock(key string) bool { return key[0] == 'k' }

// put, prolonged and removed see what becomes of locks; the caller holds mu.

func (n *simNode) Put(key, value string, expire int64, op *fakenode.Op) {
	if n.isDoor(key) {
		n.w.reached("a door is shut", true)
		of := key[1 : len(key)-len("}:door")]
		n.doorUntil[of], n.doors[of] = n.expiry(expire), value
	}
	if strings.HasSuffix(key, "}:fence") {
		n.counted(key, value)
	}
	if n.isLock(key) && value != fakenode.Marker {
		n.holds[key] = append(n.holds[key], &simHold{
			value: value, from: n.w.t(), expire: expire, to: n.expiry(expire), whole: n.whole(expire),
		})
	}
}

func (n *simNode) last(key, value string) *simHold {
	hs := n.holds[key]
	for i := len(hs) - 1; i >= 0; i-- {
		switch h := hs[i]; {
		case h.shared:
		case h.value != value || h.expire == 0:
			return nil
		default:
			return h
		}
	}
	return nil
}

func (n *simNode) Prolonged(key, value string, expire int64, op *fakenode.Op) {
	if !n.isLock(key) || value == fakenode.Marker {
		return
	}
	if value != op.Value {
		n.w.violated("I3: %s of %.6s changed the TTL of %.6s on node %d", op.Req.Op, op.Value, value, n.i)
	}
	h := n.last(key, value)
	if h == nil {
		return
	}
	to := n.expiry(expire)
	if op.Req.Op == protocol.OpRelease && h.shortened == 0 {
		h.shortened = n.whole(expire)
	}
	if op.Req.Op != protocol.OpRelease && to < h.gone() {
		n.w.violated("I4: an extend or claim made the lease of %.6s on node %d end at %.3f ms and not at %.3f", value, n.i, ms(to), ms(h.gone()))
	}
	if h.extended, h.whole = n.w.t(), max(h.whole, n.whole(expire)); h.forgotten > 0 {
		h.lasts(expire, to)
		return
	}
	h.expire, h.to = expire, to
}

func (n *simNode) Removed(key, value string, op *fakenode.Op) {
	if n.isDoor(key) {
		delete(n.doors, key[1:len(key)-len("}:door")])
	}
	n.forced(key, value, op)
	if !n.isLock(key) || value == fakenode.Marker {
		return
	}
	byToken := op.Req.Script == protocol.AdoptScript || op.Req.Script == protocol.ForceScript
	if value != op.Value && value != op.Ended && !(byToken && strings.HasPrefix(value, op.Ended)) {
		n.w.violated("I3: %s of %.6s removed %.6s from node %d", op.Req.Op, op.Value, value, n.i)
	}
	if h := n.last(key, value); h != nil {
		h.to, h.expire, h.released = n.w.t(), 0, op.Req.Op == protocol.OpRelease && value == op.Value
	}
}

func (n *simNode) Listed(key, value string, number, till int64, op *fakenode.Op) {
	if !n.isLock(key) {
		return
	}
	if value != op.Value && !op.Serves() {
		n.w.violated("I3: %s of %.6s listed %.6s on node %d", op.Req.Op, op.Value, value, n.i)
	}
	to := n.expiry(till)
	h := n.member(key, value)
	if h == nil || h.number != number || h.gone() < n.w.t() {
		n.holds[key] = append(n.holds[key], &simHold{value: value, from: n.w.t(), expire: till, to: to, whole: n.whole(till), shared: true, number: number})
		return
	}
	if to < h.gone() {
		n.w.violated("I4: %s made the lease of %.6s on node %d end at %.3f ms and not at %.3f", op.Req.Op, value, n.i, ms(to), ms(h.gone()))
	}
	h.lasts(till, to)
	h.whole = max(h.whole, n.whole(till))
}

func (n *simNode) Struck(key, value string, op *fakenode.Op) {
	n.forced(key, value, op)
	if !n.isLock(key) {
		return
	}
	if value != op.Value && value != op.Ended && !(op.Req.Script == protocol.ForceScript && strings.HasPrefix(value, op.Ended)) {
		n.w.violated("I3: %s of %.6s struck %.6s from node %d", op.Req.Op, op.Value, value, n.i)
	}
	if h := n.member(key, value); h != nil {
		h.to, h.expire, h.released = min(h.to, n.w.t()), 0, op.Req.Op == protocol.OpRelease
	}
}

// member is the last listing of one who shares a lock.
func (n *simNode) member(key, value string) *simHold {
	hs := n.holds[key]
	for i := len(hs) - 1; i >= 0; i-- {
		if hs[i].value == value && hs[i].shared && hs[i].expire > 0 {
			return hs[i]
		}
	}
	return nil
}

func ms(t int64) float64 { return float64(t) / 1e6 }

// simAnswer is what the server says to one request.
type simAnswer struct {
	val any
	err error
}

// simAnswers is what it says to a batch, and to the looks ahead of it and behind.
type simAnswers struct {
	each []simAnswer
	look *protocol.ServerReport // nil: none was wanted
}

// run executes a batch now, and looks behind it if that is wanted.
func (n *simNode) run(p *simProcess, reqs []*protocol.Request, looks bool) (each []simAnswer, look *protocol.ServerReport) {
	t := n.w.t()
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, known := n.met[p.i]; !known {
		n.met[p.i] = t
	}
	each = make([]simAnswer, len(reqs))
	for i, r := range reqs {
		a := &each[i]
		if a.err = n.denies(r, t); a.err == nil {
			a.val, a.err = n.do(r)
		}
		n.noticeEach(p, r, a)
	}
	n.checkForeign()
	if looks {
		s := n.sighting(t)
		s.Asked, look = false, &s
	}
	return each, look
}

// do has the server carry out a request. Some deny commands that they have.
func (n *simNode) do(r *protocol.Request) (any, error) {
	if r.Native != protocol.NoNative && n.i%3 == 2 {
		return nil, fakenode.Error("NOPERM this user has no permissions to run the 'delifeq' command")
	}
	if r.Bundle() != nil {
		return n.doBundle(r)
	}
	if !touchesLine(r) {
		n.hears(r)
		return n.store.Do(r)
	}
	before := n.lineOf(r.Key)
	val, err := n.store.Do(r)
	n.hears(r)
	if err == nil {
		n.checkLine(r, before, val)
	} else if r.Op == protocol.OpRelease && r.Queue != nil && n.store.Typ(r.Key) == foreignType && strings.HasPrefix(err.Error(), "WRONGTYPE") {
		n.keptIn[r.Queue.Entry] = true
	}
	return val, err
}

// doBundle has the server release several locks in one command. To each queue that is looked at it is
// to do what the release of one lock does that finds nobody there, or nothing.
func (n *simNode) doBundle(r *protocol.Request) (any, error) {
	before := make([]simLine, len(r.Bundle().Of))
	for i, of := range r.Bundle().Of {
		if touchesLine(of) {
			before[i] = n.lineOf(of.Key)
		}
	}
	val, err := n.store.Do(r)
	n.w.reached("a server does not know how to release several locks at once", err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT"))
	n.w.reached("a server may not release several locks at once", protocol.NeverBundled(err))
	if err != nil {
		return val, err
	}
	for i, of := range r.Bundle().Of {
		if !isAmong(val, i) && touchesLine(of) {
			n.checkLine(of, before[i], int64(1))
		}
	}
	n.w.reached("several locks are released at once", true)
	n.w.reached("of several locks to be released at once some are not", len(val.([]any)) > 0)
	return val, err
}

// isAmong reports whether the answer to a release of several lists the one of that index.
func isAmong(val any, i int) bool {
	others, _ := val.([]any)
	return slices.Contains(others, any(int64(i+1)))
}

// noticeEach is notice for requests that may be several.
func (n *simNode) noticeEach(p *simProcess, r *protocol.Request, a *simAnswer) {
	if r.Bundle() == nil {
		n.notice(p, r, a)
		return
	}
	for i, of := range r.Bundle().Of {
		each := simAnswer{int64(1), a.err}
		if isAmong(a.val, i) {
			each.val = "to be asked alone"
		}
		n.notice(p, of, &each)
	}
}

// placeAgain is the place of a waiter that joins again: with the same value, after an attempt that failed,
// or with the arrival that it had. Those of one process that began to wait at the same moment may have the
// same arrival. The caller holds mu.
func (w *simWorld) placeAgain(r *protocol.Request, value string) (place simPlace, known bool) {
	if place, known = w.places[value]; !known && r.Queue.Ended != "" {
		place, known = w.places[fakenode.ValueIn(r.Queue.Ended)]
	}
	if !known && r.Queue.Arrival != 0 {
		place, known = w.arrivals[r.Queue.Arrival]
	}
	return place, known
}

func (n *simNode) notice(p *simProcess, r *protocol.Request, a *simAnswer) {
	w := n.w
	value := r.Value
	if r.Op == protocol.OpInspect {
		value = r.Queue.Key
	}
	if r.Op == protocol.OpJoin && a.err == nil {
		if got, _ := a.val.([]any); len(got) > 3 {
			arrival := got[3].(int64) // see scripts/line.lua
			w.mu.Lock()
			place, known := w.placeAgain(r, value)
			if !known {
				t := w.t()
				ago := max(0, n.hand.at(t)/int64(time.Microsecond)-arrival) * int64(time.Microsecond)
				place = simPlace{came: t, since: t - ago}
				w.arrivals[arrival] = place
			}
			place.node, place.arrival = n.i, arrival
			w.places[value] = place
			w.mu.Unlock()
		}
	}
	if r.Op == protocol.OpRaise {
		w.reached("a fencing counter is raised", a.err == nil)
		w.reached("a fencing counter cannot be raised", a.err != nil)
	}
	code := uint64(0)
	switch v := a.val.(type) {
	case int64:
		code = uint64(v)
	case string:
		code = hashOf(v)
	}
	if a.err != nil {
		code = hashOf(a.err.Error())
	}
	w.happened(func() string {
		return fmt.Sprintf("node %d  %-8s of process %d, %.6s: %s", n.i, r.Op, p.i, value, short(a))
	}, uint64(n.i), uint64(r.Op), hashOf(value), code)
}

func short(a *simAnswer) string {
	if a.err != nil {
		return a.err.Error()
	}
	if s, ok := a.val.(string); ok {
		return fmt.Sprintf("%.6s", s)
	}
	return fmt.Sprintf("%.60s", fmt.Sprint(a.val))
}

// had reports whether the node had the value at a time that is not in the future, or
// would have had it had it not forgotten. A permit is to have its number there.
func (n *simNode) had(key, value string, number, t int64) bool {
	for _, h := range n.holds[key] {
		if h.value == value && h.number == number && h.from <= t && t < h.to {
			return true
		}
	}
	return false
}

// has is had without what it forgot.
func (n *simNode) has(key, value string, t int64) bool {
	for _, h := range n.holds[key] {
		if h.value == value && h.from <= t && t < h.to && (h.forgotten == 0 || t < h.forgotten) {
			return true
		}
	}
	return false
}

// simSub is a subscription.
type simSub struct {
	proc    *simProcess
	channel string
	heard   func(string)
	broken  chan struct{}
	gone    bool // guarded by the node's mu
}

func (s *simSub) breakOff() {
	if !s.gone {
		s.gone = true
		close(s.broken)
	}
}

// publish is called with mu held.
func (n *simNode) publish(channel, message string) {
	w := n.w
	t := w.t()
	if slices.ContainsFunc(strings.Fields(message), func(f string) bool { return len(f) > nameLength(channel) }) {
		w.violated("secret: a notice tells a token: %s", message)
	}
	for _, s := range n.subs {
		roll := w.mix('n', uint64(n.i), uint64(s.proc.i), uint64(t), hashOf(message))
		_, cut := w.faultAt(t, s.proc.i, n.i, faultCut, faultCutBack)
		if s.channel != channel || cut || t < int64(w.plan.Until) && int(roll%1000) < w.plan.Deaf {
			continue
		}
		w.after(w.trip(roll), roll, func() {
			s.proc.gate()
			n.mu.Lock()
			gone := s.gone
			n.mu.Unlock()
			if !gone && !s.proc.dead() {
				s.heard(message)
			}
		})
	}
}

// trip is how long a message takes one way.
func (w *simWorld) trip(roll uint64) int64 {
	if l := w.plan.Links; l != nil && l.Late > 0 && w.t() < int64(w.plan.Until) {
		return int64(l.Late+w.plan.Delay) + int64(mix(roll, 't')%uint64(w.plan.Jitter+1))
	}
	return int64(w.plan.Delay) + int64(mix(roll, 't')%uint64(w.plan.Jitter+1))
}

// simProcess is a process that uses the library: a Redlock with clocks of its own.
type simProcess struct {
	w          *simWorld
	i          int
	name       string // in entries of queues
	rl         *redlock.Redlock
	parts      inside.Parts
	mono, wall simHand
	asleep     []simFault // pauses and suspends
	killedAt   int64
	closing    simClosing
	tokens     struct {
		sync.Mutex
		at    int64
		count uint64
	}
	votes struct {
		sync.Mutex
		of []simVoter // by node
	}
	told struct { // what now returned last, and when by the bubble
		sync.Mutex
		at   int64
		mono int64
	}
}

const never = int64(1) << 42 // more than an hour

// What every version keeps to: the digits of a token, the least TTL, and how many of n nodes are a majority.
const (
	tokenLength = 32
	leastTTL    = 10 * time.Millisecond
)

func quorumOf(n int) int { return n/2 + 1 }

func (p *simProcess) quorum() int { return quorumOf(len(p.w.nodes)) }

func newSimProcess(w *simWorld, i int, sp simProcessPlan) *simProcess {
	p := &simProcess{
		w: w, i: i, name: fmt.Sprint("p", i, []string{".", ""}[i%2]), killedAt: never,
		mono: simHand{base: int64(time.Hour), ppm: sp.PPM},
		wall: simHand{base: fakenode.Epoch + int64(sp.Offset), ppm: sp.PPM},
	}
	for _, f := range w.plan.Faults {
		if f.Proc != i {
			continue
		}
		switch f.Kind {
		case faultPause:
			p.asleep = append(p.asleep, f)
		case faultSuspend:
			overlaps := false
			for _, g := range p.mono.frozen {
				overlaps = overlaps || f.At < g.At+g.For && g.At < f.At+f.For
			}
			if !overlaps {
				p.asleep = append(p.asleep, f)
				p.mono.frozen = append(p.mono.frozen, f)
			}
		case faultWall:
			p.wall.steps = append(p.wall.steps, simStep{int64(f.At), int64(f.By)})
		case faultKill:
			p.killedAt = min(p.killedAt, int64(f.At))
		}
	}
	opts := &redlock.Options{TTL: w.plan.TTL, RestartGuard: max(w.plan.RestartGuard, 0), NoRestartGuard: w.plan.RestartGuard < 0, NoQueue: sp.NoQueue, Owner: fmt.Sprint("process-", i)}
	opts.Hooks = &redlock.Hooks{
		Acquired: p.acquired, Extended: p.extended, Lost: p.lost, Released: p.released,
		NodeBarred: func(i redlock.VoteInfo) { p.voteTold(i, true) }, NodeVotes: func(i redlock.VoteInfo) { p.voteTold(i, false) },
	}
	names, wires := make([]string, len(w.nodes)), make([]lane.Wire, len(w.nodes))
	for j, n := range w.nodes {
		if names[j] = fmt.Sprintf("node %d", j); w.plan.Names {
			names[j] += fmt.Sprintf(" of process %d", i)
		}
		wires[j] = newSimWire(p, n)
	}
	// Up to four fifths of the TTL, which Options would refuse.
	a := inside.Assembly{Names: names, Wires: wires, Options: opts, NodeTimeout: w.plan.NodeTimeout, Process: p.name, Clock: p, Random: p}
	if w.plan.Links != nil { // then it is the default
		a.NodeTimeout = 0
	}
	if narrow := mix(w.plan.Seed, 'w') % 8; narrow < 4 { // room for one to three
		a.Room = int(narrow)
	}
	client, parts, err := inside.Assemble(a)
	if err != nil {
		panic(err)
	}
	p.rl, p.parts = client.(*redlock.Redlock), parts
	if p.parts.Guard != nil {
		p.parts.Guard.Random = p
	}
	for j, l := range p.parts.Lanes {
		c := laneClock{p, int64(j + 1)}
		l.Clock, l.Alarm.Clock = c, c
	}
	return p
}

// Read makes the randomness of tokens.
func (p *simProcess) Read(b []byte) (int, error) {
	t := p.w.t()
	p.tokens.Lock()
	if p.tokens.at != t {
		p.tokens.at, p.tokens.count = t, 0
	}
	p.tokens.count++
	x := p.w.mix('r', uint64(p.i), uint64(t), p.tokens.count)
	p.tokens.Unlock()
	for i := range b {
		if i%8 == 0 {
			x = mix(x, uint64(i))
		}
		b[i] = byte(x >> (i % 8 * 8))
	}
	return len(b), nil
}

var _ io.Reader = (*simProcess)(nil)

func (p *simProcess) dead() bool { return p.w.t() >= p.killedAt }

// awake is the first time from t on at which the process runs.
func (p *simProcess) awake(t int64) int64 {
	for again := true; again; {
		again = false
		for i := range p.asleep {
			if f := &p.asleep[i]; t >= int64(f.At) && t < int64(f.At+f.For) {
				t, again = int64(f.At+f.For)+int64(p.w.mix('a', uint64(p.i), uint64(t))%1000), true
			}
		}
	}
	return t
}

// gate is passed when the process runs, which a dead one never does.
func (p *simProcess) gate() {
	if p.w.isOver() {
		return
	}
	for t := p.w.t(); ; {
		if t >= p.killedAt {
			<-p.w.over
			return
		}
		at := p.awake(t)
		if at == t {
			return
		}
		p.w.sleep(at-t, uint64(p.i))
		t = p.w.t()
	}
}

// sleep takes some true time. Whoever sleeps at the end of the run wakes when its time is over,
// which is soon. The checker relies on the order that time makes, of which the race detector learns
// by channels of timers and by slept: time.Sleep tells it nothing.
func (w *simWorld) sleep(d int64, id uint64) {
	if w.isOver() {
		return
	}
	w.slept.Add(1)
	time.Sleep(w.fine(d, id)) // real time: none, a run is in a bubble
	w.slept.Load()
}

func (w *simWorld) isOver() bool {
	select {
	case <-w.over:
		return true
	default:
		return false
	}
}

// The clock of the process.

// Now never gives the same instant at two times of the bubble, though they lie within a
// nanosecond: acquires and rounds yield by the instant at which they began. Two with the same
// one would be woken together, in an order that Go's scheduler chooses.
func (p *simProcess) Now() tick.Instant {
	t := p.w.t()
	wall := p.wall.at(t)
	return tick.Instant{Time: time.Unix(0, wall), Mono: p.distinct(p.mono.at(t)), Wall: wall}
}

func (p *simProcess) distinct(mono int64) int64 {
	at := p.w.passed()
	p.told.Lock()
	defer p.told.Unlock()
	if at > p.told.at || mono > p.told.mono {
		p.told.at, p.told.mono = at, max(mono, p.told.mono+1)
	}
	return p.told.mono
}

func (p *simProcess) Yield(id int64) {
	roll := p.w.mix('y', uint64(p.i), uint64(p.w.t()), uint64(id))
	d := int64(1 + roll%2000)
	if roll>>32%40 == 0 { // it was not its turn for a while
		d += int64(mix(roll, 'p') % uint64(2*(p.w.plan.Delay+p.w.plan.Jitter)))
	}
	p.w.sleep(d, roll)
	p.gate()
}

func (p *simProcess) Jitter(d time.Duration) time.Duration {
	return time.Duration(p.w.mix('j', uint64(p.i), uint64(p.w.t()), uint64(d)) % uint64(d))
}

func (p *simProcess) AfterFunc(d time.Duration, f func()) tick.Timer {
	return p.timer(0, d, f)
}

func (p *simProcess) timer(id int64, d time.Duration, f func()) tick.Timer {
	t := &simTimer{p: p, id: id, f: f}
	t.Reset(d)
	return t
}

// laneClock keeps what lanes do at the same time apart.
type laneClock struct {
	*simProcess
	id int64
}

func (c laneClock) Yield(id int64) { c.simProcess.Yield(id + 16*c.id) }

func (c laneClock) AfterFunc(d time.Duration, f func()) tick.Timer { return c.timer(c.id, d, f) }

// simTimer fires by the monotonic clock of its process, when that runs.
type simTimer struct {
	p    *simProcess
	id   int64
	f    func()
	real *time.Timer
}

// Stop of a timer that was never armed, since its process was dead: it has not fired.
func (t *simTimer) Stop() bool { return t.real == nil || t.real.Stop() }

func (t *simTimer) Reset(d time.Duration) bool {
	p := t.p
	now := p.w.t()
	due := p.mono.at(now) + max(int64(d), 0)
	at := p.awake(p.mono.reach(due, now) + int64(p.w.mix('f', uint64(p.i), uint64(now), uint64(due), uint64(t.id))%1000))
	if at >= p.killedAt {
		return t.Stop()
	}
	if t.real == nil {
		t.real = p.w.after(at-now, uint64(p.i*64)+uint64(t.id), t.f)
		return false
	}
	return t.real.Reset(p.w.fine(at-now, uint64(p.i*64)+uint64(t.id)))
}

// trueEnd is when the process's clocks reach an instant.
func (p *simProcess) trueEnd(end tick.Instant) int64 {
	t := p.w.t()
	return min(p.mono.reach(end.Mono, t), p.wall.reach(end.Wall, t))
}

// available is when a server that may hang looks at what came at t.
func (w *simWorld) available(n *simNode, t int64) int64 {
	for {
		until, hung := w.faultAt(t, -1, n.i, faultHang)
		if !hung {
			return t
		}
		t = until + int64(w.mix('h', uint64(t))%10000)
	}
}
