package redlock

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// leastGrace is the least time for which the lock is reserved for a woken waiter.
	leastGrace = 500 * time.Millisecond
	// lineLife is how long a line outlives the last sign of its waiters.
	lineLife = 30 * time.Second
	// homeEvery is when those who followed others to their line go back to their own.
	homeEvery = 5 * time.Second
	// crowdedFor is for how long after a refusal we go to the line first.
	crowdedFor = time.Second
	// perKey bounds what looking after very many lines costs: a process that waits for
	// thousands of keys refreshes a thousand of them per second.
	perKey = time.Millisecond
	// probeEvery is how often a node that failed is asked whether it is back.
	probeEvery = 100 * time.Millisecond
	// listenFor is how long a subscription is kept when nobody waits.
	listenFor = 10 * time.Second
	// mostJoins is how often a node that is up is asked before the next one is.
	mostJoins = 4
	// shunFor is for how long a node that denied something is not asked for it again.
	shunFor = 30 * time.Second
)

var errNoLine = errors.New("no node keeps a line")

// lines is what waits in this process. Nodes know a process by its id: a process that
// is silent is skipped as a whole, and its channel is where it is told whose turn it is.
//
// The order of waiters is kept by one node per key and need not be safe: whatever a line
// says, a lock is granted by a quorum only.
type lines struct {
	rl      *Redlock
	process string
	keys    atomic.Int64 // len(queues)
	awaited atomic.Int64 // of them have waiters

	// mu guards what follows, queues and ears. Nothing but timers is called under it.
	mu      sync.Mutex
	queues  map[string]*queue
	values  map[string]*waiter // by what the next attempt will set
	ears    map[int]*ear       // by node
	shunned map[int]int64      // by node: not asked to keep a line before this time
	probed  map[int]int64      // by node: not asked whether it is back before this time
	told    map[string]bool    // what Hooks.Degraded was told
	idle    list.List          // of *queue: without waiters, the longest first
	closed  bool
}

// queue is those of this process who wait for one key, in the order in which they came.
// The first of them looks after all: it refreshes the line and finds out what no notice
// told. So a waiter costs no timer, and ten thousand on one key no more than one.
type queue struct {
	lines     *lines
	key       string
	waiters   list.List // of *waiter
	node      int       // which keeps the line, as far as we know; -1 if we do not
	leader    int       // whose line we followed the others to
	follows   int64     // until when it comes first, whatever the order
	grace     time.Duration
	refused   int64 // when somebody was last told to wait
	scattered bool  // some may be in a line that is none any more
	rallied   int64 // when all were last sent to join again
	idle      bool  // in lines.idle
	emptied   int64 // when it last got there
	timer     timer
	armed     bool
	armedFor  int64
}

// waiter is an Acquire that waits. All but woken belongs to its goroutine.
type waiter struct {
	mutex  *Mutex
	lines  *lines
	id     int64 // for clock.yield
	queue  *queue
	place  *list.Element
	ear    *ear
	order  []int         // of nodes, the arbiter first
	signal chan struct{} // one token: woken, or look again

	// entry is what stands in the line of node, with the value of the next attempt; empty
	// if nothing does. ended is that of the attempt before, until it is known to be gone.
	node         int
	entry, value string
	ended        string
	arrival      int64 // on node
	joined       bool  // node has confirmed the entry
	refused      bool  // node answered that it does not keep the line
	call         *call // the latest join
	round        *round
	since        instant // when it first joined anywhere
	failures     int     // attempts in a row that were our turn and failed

	woken bool // guarded by lines.mu
	polls bool // likewise: gave its turn up
	told  bool // likewise: to wait
}

func newLines(rl *Redlock) *lines {
	return &lines{
		rl: rl, process: fmt.Sprintf("%016x", rand.Uint64()), // told apart, not kept secret
		ears: make(map[int]*ear), shunned: make(map[int]int64), probed: make(map[int]int64),
		queues: make(map[string]*queue), values: make(map[string]*waiter), told: make(map[string]bool),
	}
}

// of is the key of a lock's line, in the same cluster slot as the lock, or empty if
// no name is: Redis takes the text between the first "{" and the next "}" for the tag.
// The suffixes differ so that the lines of "a" and "{a}" do.
func (n naming) of(key string) string {
	switch n {
	case taggedLine:
		return key + ":line:"
	case usualLine:
		return "{" + key + "}:line"
	default:
		return ""
	}
}

type naming uint8

const (
	noLineName naming = iota
	usualLine         // scripts/line_release.lua knows it, too
	taggedLine        // the key has a tag of its own
)

func lineNaming(key string) naming {
	open := strings.IndexByte(key, '{')
	switch {
	case open >= 0 && strings.IndexByte(key[open+1:], '}') > 0:
		return taggedLine
	case strings.IndexByte(key, '}') >= 0:
		return noLineName
	default:
		return usualLine
	}
}

// line is made when it is needed, since hardly any acquire needs it.
func (m *Mutex) line() any { return m.naming.of(m.name.(string)) }

// weight orders the nodes that may keep the line of a key: the highest is the arbiter.
// All clients and all versions must agree on it. Rendezvous hashing spreads the lines
// evenly and moves only those of a node that is gone.
func weight(key, node uint64) uint64 {
	x := key + node
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// fnv1a is the 64 bit FNV-1a hash.
func fnv1a(s string) uint64 {
	h := uint64(14695981039346656037)
	for i := range len(s) {
		h = (h ^ uint64(s[i])) * 1099511628211
	}
	return h
}

// arbiter is the node that keeps the line, as far as this process can see: the first
// that is reachable. -1 if the key has no line.
func (m *Mutex) arbiter(now int64) int {
	if m.naming == noLineName {
		return -1
	}
	if leader, ok := m.rl.lines.leader(m, now); ok && m.rl.nodes[leader].lane.reachable(now) {
		return leader
	}
	// Every release comes by here, and nearly always the first of all is reachable, so
	// that the others' lanes are better left alone.
	above := ^uint64(0)
	for range m.rl.nodes {
		best, at := uint64(0), -1
		for i, n := range m.rl.nodes {
			if w := weight(m.hash, n.hash); w < above && (at < 0 || w > best) {
				best, at = w, i
			}
		}
		if at < 0 || m.rl.nodes[at].lane.reachable(now) {
			return at
		}
		above = best
	}
	return -1
}

// nodeOrder is all nodes, the arbiter first.
func (m *Mutex) nodeOrder() []int {
	order := make([]int, len(m.rl.nodes))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int {
		if weight(m.hash, m.rl.nodes[a].hash) > weight(m.hash, m.rl.nodes[b].hash) {
			return -1
		}
		return 1
	})
	return order
}

// grace is for how long the lock is reserved for a woken waiter, and so what a dead one
// costs the others.
func (m *Mutex) grace() time.Duration { return max(leastGrace, 4*m.terms.nodeTimeout) }

// crowded reports whether this process was lately told to wait for the lock, so that it
// must not overtake those who do.
func (m *Mutex) crowded() bool {
	ls := m.rl.lines
	if ls.keys.Load() == 0 || m.naming == noLineName {
		return false
	}
	now := m.rl.clock.now().mono
	ls.mu.Lock()
	defer ls.mu.Unlock()
	q := ls.queues[m.name.(string)]
	return q != nil && q.crowded(now)
}

// leader is the node whose line those of this process who wait for the key have followed
// the others to.
func (ls *lines) leader(m *Mutex, now int64) (node int, ok bool) {
	if ls.keys.Load() == 0 {
		return 0, false
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	q := ls.queues[m.name.(string)]
	if q == nil || q.follows <= now {
		return 0, false
	}
	return q.leader, true
}

func (q *queue) crowded(now int64) bool {
	return q.waiters.Len() > 0 || now-q.refused < int64(crowdedFor)
}

// newWaiter returns nil if the key cannot have a line.
func (m *Mutex) newWaiter() *waiter {
	if m.naming == noLineName {
		return nil
	}
	return &waiter{mutex: m, lines: m.rl.lines, id: m.rl.clock.now().mono, order: m.nodeOrder(), signal: make(chan struct{}, 1)}
}

// await joins the line, or stays in it, and returns nil when it is time for an attempt.
// It returns errNoLine if no node keeps a line for us, ctx's error, or ErrClosed. What
// it learns of the holder goes into last.
func (w *waiter) await(ctx context.Context, last *QuorumError) error {
	var free time.Duration
	looked := w.mutex.rl.clock.now().mono
	left := -1 // the node whose line we left for a longer one
	for {
		a, err := w.ask(ctx)
		if err != nil {
			return err
		}
		if left >= 0 && left != w.node {
			w.failures = 0
		}
		if !a.ours {
			last.HolderTTL = max(a.ttl, 0)
			last.Outcomes[w.node].Holder = a.holder
			w.failures = 0
			// What is on the arbiter may be gone from the others: its clock was set back,
			// somebody put a key there, or a holder who lost the majority renewed it. The
			// first in line, who overtakes nobody, finds out.
			if now := w.mutex.rl.clock.now().mono; a.ahead == 0 && now-looked >= int64(w.looksEvery()) {
				looked = now
				if free, _, err := w.mutex.look(ctx, last); free == 0 || err != nil {
					return err
				}
			}
			if woken, err := w.sleep(ctx, nil); woken || err != nil {
				return err
			}
			continue
		}
		if w.failures < 2 {
			return nil
		}
		if left == w.node {
			break // it did not let us in
		}
		// The arbiter would have us, and the others have somebody else: who won without
		// the arbiter, and whose release wakes us again, or those who are first in other
		// lines.
		var all []inspection
		if free, all, err = w.mutex.look(ctx, last); err != nil {
			return err
		}
		from := w.node
		if !w.follow(longest(all, w.node)) {
			break
		}
		left = from
	}
	if at := &last.Outcomes[w.node]; at.Holder == w.value {
		at.Holder = "" // reserved for us, who are not what stands in the way
	}
	over := make(chan struct{})
	d := min(w.mutex.backoff(w.failures, free), w.mutex.grace()/2)
	t := w.mutex.rl.clock.afterFunc(d, func() { close(over) })
	defer t.Stop()
	for {
		woken, err := w.sleep(ctx, over)
		if woken || err != nil {
			return err
		}
		select {
		case <-over:
			return nil
		default:
		}
	}
}

// longest is the node with the longest line, by the value that is reserved there if several
// are as long: all who look see the same, whatever they call the nodes.
func longest(all []inspection, ours int) int {
	best := ours
	for i, n := range all {
		b := &all[best]
		if n.waiting > b.waiting || n.waiting == b.waiting && n.waiting > 0 && n.value < b.value {
			best = i
		}
	}
	return best
}

// follow has all of this process who wait for the key move to the line of another node,
// and reports whether that is another.
//
// Lines of one key on several nodes come of clients that know the nodes by different names,
// or find different ones unreachable. Each line reserves its node for its own first waiter,
// and so many of them leave nobody a quorum. So whoever had its turn in vain twice goes to
// where most wait, and lines run together. Every few seconds by the clock on the wall, which
// is about the same everywhere, all go back to the first node of their own order: at any
// other time whoever went would find the longer line elsewhere.
func (w *waiter) follow(node int) bool {
	if node == w.node {
		return false
	}
	ls := w.lines
	ls.mu.Lock()
	defer ls.mu.Unlock()
	now := ls.rl.clock.now()
	w.queue.leader, w.queue.follows = node, now.mono+int64(homeEvery)-now.wall%int64(homeEvery)
	for e := w.queue.waiters.Front(); e != nil; e = e.Next() {
		if e.Value != w {
			e.Value.(*waiter).poke()
		}
	}
	return true
}

// nodes is all nodes in the order in which they are asked to keep the line.
func (w *waiter) nodes() []int {
	ls := w.lines
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w.queue == nil || w.queue.follows <= ls.rl.clock.now().mono {
		return w.order
	}
	order := []int{w.queue.leader}
	for _, i := range w.order {
		if i != w.queue.leader {
			order = append(order, i)
		}
	}
	return order
}

// looksEvery is how often the first in line looks at what the other nodes hold. Those who
// wait for thousands of keys do so less often.
func (w *waiter) looksEvery() time.Duration {
	return max(w.mutex.grace(), time.Duration(w.lines.awaited.Load())*4*perKey)
}

// sleep waits for a signal, or for over, and tells whether it is our turn.
func (w *waiter) sleep(ctx context.Context, over <-chan struct{}) (woken bool, err error) {
	select {
	case <-w.signal:
		w.lines.rl.clock.yield(w.id)
	case <-over:
	case <-ctx.Done():
		return false, ctx.Err()
	case <-w.mutex.rl.closing:
		return false, ErrClosed
	}
	w.lines.mu.Lock()
	defer w.lines.mu.Unlock()
	woken, w.woken = w.woken, false
	return woken, nil
}

// poke makes the waiter look again; the caller holds mu.
func (w *waiter) poke() {
	select {
	case w.signal <- struct{}{}:
	default:
	}
}

// wake tells the waiter that the lock is reserved for it; the caller holds mu.
func (w *waiter) wake() {
	w.woken = true
	w.poke()
}

// notice is a message on the process's channel: the value that the lock now has.
func (ls *lines) notice(value string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w := ls.values[value]; w != nil {
		w.wake()
	}
}

// answer is what a node says to one that joins.
type answer struct {
	ours    bool          // the lock is reserved for us
	ahead   int64         // how many are before us
	ttl     time.Duration // of the lock's key
	arrival int64
	fresh   bool // we were not in line
	denied  bool // PUBLISH was
	holder  string
}

func readAnswer(val any) (a answer, ok bool) {
	f, _ := val.([]any)
	if len(f) != 7 {
		return a, false
	}
	var n [6]int64
	for i := range n {
		if n[i], ok = f[i].(int64); !ok {
			return a, false
		}
	}
	a = answer{
		ours: n[0] == 1, ahead: n[1], ttl: time.Duration(n[2]) * time.Millisecond,
		arrival: n[3], fresh: n[4] == 1, denied: n[5] == 1,
	}
	a.holder, ok = f[6].(string)
	return a, ok
}

// ask joins the line of the first node that keeps one, or refreshes it.
func (w *waiter) ask(ctx context.Context) (answer, error) {
	rl := w.mutex.rl
	if w.round != nil { // sent when the last attempt failed
		if a, err := w.receive(ctx); err == nil || !errors.Is(err, errNoLine) {
			return a, err
		}
	}
	for _, i := range w.nodes() {
		now := rl.clock.now()
		lane := rl.nodes[i].lane
		if w.lines.shuns(i, now.mono) {
			continue
		}
		if !lane.reachable(now.mono) {
			w.probe(i, now)
			continue
		}
		if w.entry == "" || i != w.node {
			w.withdraw()
			if err := w.register(ctx, i); err != nil {
				return answer{}, err
			}
		}
		// One that is only slow, under the load of many who join, is no reason to part
		// the line.
		for range mostJoins {
			w.send()
			if a, err := w.receive(ctx); err == nil || !errors.Is(err, errNoLine) {
				return a, err
			}
			if now := rl.clock.now().mono; !lane.reachable(now) || w.refused {
				break
			}
		}
	}
	if w.refused {
		w.withdraw() // or the next attempt would claim by a script what there is no right to
	}
	return answer{}, errNoLine
}

// probe asks a node that failed for anything. Nobody else might find out that it is back.
func (w *waiter) probe(node int, now instant) {
	ls := w.lines
	ls.mu.Lock()
	due := now.mono >= ls.probed[node]
	if due {
		ls.probed[node] = now.mono + int64(probeEvery)
	}
	ls.mu.Unlock()
	if due {
		req := inspectRequest(&w.mutex.terms, w.mutex.name, "", 0)
		w.mutex.rl.nodes[node].lane.enqueue(&call{req: req, deadline: now.mono + int64(req.timeout)}, now.mono)
	}
}

// register gives the waiter a new entry for the line of a node.
func (w *waiter) register(ctx context.Context, node int) error {
	if w.ear == nil || w.ear.node != node {
		w.hear(ctx, node)
	}
	if node != w.node {
		w.node, w.arrival = node, 0
	}
	value, err := w.mutex.rl.newValue()
	if err != nil {
		return err
	}
	w.value, w.joined, w.call = value, false, nil
	w.entry = fmt.Sprintf("%s %d %s", w.lines.process, w.mutex.grace().Milliseconds(), value)
	ls := w.lines
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if w.queue == nil {
		w.queue = ls.queueOf(w.mutex)
		if w.place = w.queue.waiters.PushBack(w); w.queue.waiters.Len() == 1 {
			ls.awaited.Add(1)
		}
	}
	w.woken, w.polls = false, false
	ls.values[value] = w
	return nil
}

// send joins the line with the present entry.
func (w *waiter) send() {
	m := w.mutex
	now := m.rl.clock.now()
	waited := time.Duration(0)
	if w.arrival == 0 && w.since != (instant{}) {
		waited = now.since(w.since)
	}
	w.round = new(round)
	w.round.init(now, make([]seat, 1))
	w.call = &w.round.seats[0].call
	w.call.to(w.round, joinRequest(&m.terms, m.name, m.line(), w.entry, w.ended, w.arrival, waited), 0)
	m.rl.nodes[w.node].lane.enqueue(w.call, now.mono)
}

// receive waits for the answer to send.
func (w *waiter) receive(ctx context.Context) (answer, error) {
	rl, r := w.mutex.rl, w.round
	v, err := r.waitFinal(ctx, rl.clock, rl.closing)
	if err != nil {
		return answer{}, err
	}
	w.round = nil
	vote, val, failure := r.first()
	a, ok := readAnswer(val)
	if w.refused = vote == VoteFailed || vote == VoteRefused; v != granted || !ok {
		if vote == VoteFailed {
			w.lines.shun(w.node, failure)
		}
		return answer{}, errNoLine
	}
	w.ended, w.arrival = "", a.arrival
	if w.since == (instant{}) {
		w.since = r.start
	}
	w.lines.heard(w, a)
	w.joined = true
	return a, nil
}

// heard keeps what a node said to one waiter for the benefit of all.
func (ls *lines) heard(w *waiter, a answer) {
	now := ls.rl.clock.now().mono
	ls.mu.Lock()
	q := w.queue
	if !a.ours {
		q.refused, w.told = now, true
	}
	if a.denied {
		w.ear.mute = true
	}
	// A line that lost us lost the others too, and where we had to move they have to.
	if lost := w.joined && a.fresh; lost || q.node >= 0 && q.node != w.node {
		q.scattered = true
	}
	if q.scattered && now-q.rallied > int64(q.grace/2) {
		q.rallied, q.scattered = now, false
		for e := q.waiters.Front(); e != nil; e = e.Next() {
			if e.Value != w {
				e.Value.(*waiter).poke()
			}
		}
	}
	q.node = w.node
	if other := ls.values[a.holder]; other != nil && other != w {
		other.wake() // its notice may be on the way, or lost
	}
	d := q.interval()
	if a.ttl > 0 {
		d = min(d, a.ttl+time.Millisecond+ls.rl.clock.jitter(ls.rl.opts.RetryMin))
	}
	q.arm(now, d)
	ls.mu.Unlock()
	if a.denied {
		ls.degraded(w.node, noPublish, nil)
	}
}

// interval is how often the first of the queue looks, without being told. A waiter whose
// notice is lost must look within its grace.
func (q *queue) interval() time.Duration {
	d := q.grace / 2
	if e := q.lines.ears[q.node]; e == nil || !e.open || e.mute {
		d = q.grace / 8
	}
	d = max(d, time.Duration(q.lines.awaited.Load())*perKey)
	return d/2 + q.lines.rl.clock.jitter(d/2)
}

func (q *queue) arm(now int64, d time.Duration) {
	at := now + int64(d)
	if q.waiters.Len() == 0 || q.armed && at >= q.armedFor {
		return
	}
	q.armed, q.armedFor = true, at
	if q.timer == nil {
		q.timer = q.lines.rl.clock.afterFunc(d, q.tick)
	} else {
		q.timer.Reset(d)
	}
}

func (q *queue) tick() {
	now := q.lines.rl.clock.now().mono
	q.lines.mu.Lock()
	defer q.lines.mu.Unlock()
	q.armed = false
	if first := q.first(); first != nil {
		first.poke()
	}
	if q.waiters.Len() > 0 {
		q.arm(now, q.interval())
	}
}

// first is the first of those who are in line.
func (q *queue) first() *waiter {
	for e := q.waiters.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*waiter); !w.polls {
			return w
		}
	}
	return nil
}

// queueOf finds or makes the queue of a key; the caller holds mu.
func (ls *lines) queueOf(m *Mutex) *queue {
	key := m.name.(string)
	q := ls.queues[key]
	now := ls.rl.clock.now().mono
	if q == nil {
		ls.forget(now)
		q = &queue{lines: ls, key: key, refused: longAgo}
		ls.queues[key] = q
		ls.keys.Store(int64(len(ls.queues)))
	}
	if q.waiters.Len() == 0 {
		q.node, q.grace, q.follows, q.scattered, q.rallied = -1, m.grace(), 0, false, now
	}
	return q
}

// forget drops queues that nobody has waited in for a while; the caller holds mu.
func (ls *lines) forget(now int64) {
	for e := ls.idle.Front(); e != nil; e = ls.idle.Front() {
		q := e.Value.(*queue)
		if now-q.emptied <= int64(crowdedFor) {
			break
		}
		ls.idle.Remove(e)
		switch q.idle = false; {
		case !q.crowded(now):
			delete(ls.queues, q.key)
		case q.waiters.Len() == 0:
			q.emptied, q.idle = now, true
			ls.idle.PushBack(q)
		}
	}
	if len(ls.queues) == 0 {
		ls.queues = make(map[string]*queue) // a map never shrinks
	}
	ls.keys.Store(int64(len(ls.queues)))
}

// claim hands the entry over to an attempt, which sets its value. The attempt ends, and
// with it the value: it is never registered again.
func (w *waiter) claim() (node int, entry, value string) {
	ls := w.lines
	ls.mu.Lock()
	delete(ls.values, w.value)
	w.woken = false
	ls.mu.Unlock()
	node, entry, value = w.node, w.entry, w.value
	w.ended, w.entry, w.value = entry, "", ""
	return node, entry, value
}

// again takes the old place with a new entry, after an attempt that failed. It is sent
// before anything of the attempt is taken back, so that the arbiter finds us first in
// line still.
func (w *waiter) again() {
	w.failures++
	if w.register(context.Background(), w.node) == nil {
		w.send()
	}
}

// withdraw takes the entry out of the line it is in, and passes the turn on if it was
// ours. It has nothing to do with the caller's context, and is sent again by the lane
// until the node has answered.
func (w *waiter) withdraw() {
	if w.entry == "" {
		return
	}
	m := w.mutex
	req := lineReleaseRequest(&m.terms, m.name, w.value, m.line(), w.entry, false)
	req.leaves = lineLife
	c := &call{req: &req, takesBack: w.call, leaves: true}
	if w.call != nil {
		m.rl.nodes[w.node].lane.takeBack(c, m.rl.clock.now().mono)
	}
	ls := w.lines
	ls.mu.Lock()
	delete(ls.values, w.value)
	ls.mu.Unlock()
	w.entry, w.value, w.ended, w.call, w.round, w.joined = "", "", "", nil, nil, false
}

// end leaves the line, if the waiter is still in it, and forgets the waiter.
func (w *waiter) end() {
	w.withdraw()
	ls := w.lines
	now := ls.rl.clock.now().mono
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if q := w.queue; q != nil {
		q.waiters.Remove(w.place)
		if w.told {
			q.refused = now
		}
		if q.waiters.Len() == 0 {
			ls.awaited.Add(-1)
			if q.emptied = now; !q.idle {
				q.idle = true
				ls.idle.PushBack(q)
			}
			if q.armed {
				q.timer.Stop()
				q.armed = false
			}
		}
		ls.forget(now)
		w.queue = nil
	}
	ls.unhear(w)
}

// shuns reports whether a node lately refused to keep a line.
func (ls *lines) shuns(node int, now int64) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return now < ls.shunned[node]
}

// shun leaves a node out of the order for a while if it may not keep a line; other
// errors, as of a full node, may be over the next time.
func (ls *lines) shun(node int, err error) {
	if err == nil || !incurable(err) || strings.Contains(err.Error(), "WRONGTYPE") {
		return
	}
	now := ls.rl.clock.now().mono
	ls.mu.Lock()
	ls.shunned[node] = now + int64(shunFor)
	ls.mu.Unlock()
	ls.degraded(node, noLine, err)
}

const (
	noLine    = "the line of waiters: they poll instead, in no order"
	noPublish = "PUBLISH: waiters are not told of releases and find them by timers"
	noListen  = "SUBSCRIBE: our waiters are not told of releases and find them by timers"
)

// degraded says once what a node denies.
func (ls *lines) degraded(node int, lacks string, err error) {
	name := ls.rl.names[node]
	ls.mu.Lock()
	told := ls.told[name+lacks]
	ls.told[name+lacks] = true
	ls.mu.Unlock()
	if tell := ls.rl.opts.Hooks.Degraded; tell != nil && !told {
		go tell(DegradedInfo{Node: name, Lacks: lacks, Err: err})
	}
}

// ear is the subscription of this process to its channel on one node, shared by all who
// wait in a line there. lines.mu guards it.
type ear struct {
	lines *lines
	node  int
	users int
	open  bool // confirmed, and not broken since
	mute  bool // nobody may publish
	deaf  bool // we may not subscribe
	again int64
	ready chan struct{} // closed when the first try has ended
	tried bool
	stop  context.CancelFunc
	done  chan struct{}
	idle  timer
}

// listener is a wire that can tell of messages on a channel.
type listener interface {
	// listen returns when the subscription breaks or ctx ends. It tells when the server
	// confirmed it, and of each message.
	listen(ctx context.Context, channel string, confirmed func(), heard func(message string)) error
}

// hear makes the waiter one of those who listen on a node, and waits until the
// subscription is confirmed, so that no notice is lost between joining and listening.
// It does not wait for longer than any request: without notices there are timers.
func (w *waiter) hear(ctx context.Context, node int) {
	ls := w.lines
	now := ls.rl.clock.now().mono
	ls.mu.Lock()
	ls.unhear(w)
	e := ls.ears[node]
	if e == nil || e.deaf && now >= e.again {
		e = ls.listen(node)
	}
	e.users++
	w.ear = e
	waits := !e.tried
	ls.mu.Unlock()
	if !waits {
		return
	}
	over := make(chan struct{})
	t := ls.rl.clock.afterFunc(w.mutex.terms.nodeTimeout, func() { close(over) })
	defer t.Stop()
	select {
	case <-e.ready:
	case <-over:
	case <-ctx.Done():
	case <-ls.rl.closing:
	}
	ls.rl.clock.yield(w.id)
}

// listen starts a subscription; the caller holds mu.
func (ls *lines) listen(node int) *ear {
	ctx, stop := context.WithCancel(context.Background())
	e := &ear{lines: ls, node: node, ready: make(chan struct{}), stop: stop, done: make(chan struct{})}
	ls.ears[node] = e
	if l, ok := ls.rl.nodes[node].lane.wire.(listener); ok && !ls.closed {
		go e.run(ctx, l)
	} else {
		stop()
		e.end()
		close(e.done)
	}
	return e
}

// end notes that a try has ended; the caller holds mu.
func (e *ear) end() {
	if !e.tried {
		e.tried = true
		close(e.ready)
	}
}

func (e *ear) run(ctx context.Context, l listener) {
	defer close(e.done)
	defer e.stop()
	ls := e.lines
	pause := minBackoff
	for {
		err := l.listen(ctx, "redlock:"+ls.process, e.confirmed, ls.notice)
		now := ls.rl.clock.now().mono
		ls.mu.Lock()
		if e.open {
			e.open, pause = false, minBackoff
		}
		e.end()
		e.deaf = ctx.Err() == nil && isServerError(err) && incurable(err)
		e.again = now + int64(shunFor)
		deaf := e.deaf
		ls.mu.Unlock()
		if deaf {
			ls.degraded(e.node, noListen, err)
		}
		if deaf || ctx.Err() != nil {
			return
		}
		over := make(chan struct{})
		t := ls.rl.clock.afterFunc(pause, func() { close(over) })
		select {
		case <-over:
		case <-ctx.Done():
			t.Stop()
			return
		}
		pause = min(2*pause, maxBackoff)
	}
}

// confirmed sends everybody who joined meanwhile to look: what was said before the server
// confirmed, nobody heard.
func (e *ear) confirmed() {
	ls := e.lines
	ls.mu.Lock()
	defer ls.mu.Unlock()
	e.open = true
	e.end()
	for _, q := range ls.queues {
		if q.node != e.node {
			continue
		}
		if first := q.first(); first != nil {
			first.poke()
		}
	}
}

// unhear lets go of the waiter's subscription; the caller holds mu. The connection is
// closed when nobody has wanted it for a while.
func (ls *lines) unhear(w *waiter) {
	e := w.ear
	if e == nil {
		return
	}
	w.ear = nil
	if e.users--; e.users > 0 || ls.closed {
		return
	}
	if e.idle != nil {
		e.idle.Reset(listenFor)
		return
	}
	e.idle = ls.rl.clock.afterFunc(listenFor, func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		if e.users == 0 {
			e.stop()
			if ls.ears[e.node] == e {
				delete(ls.ears, e.node)
			}
		}
	})
}

// close ends all subscriptions. The channels are closed when they are gone.
func (ls *lines) close() (gone []<-chan struct{}) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.closed = true
	for _, e := range ls.ears {
		e.stop()
		if e.idle != nil {
			e.idle.Stop()
		}
		gone = append(gone, e.done)
	}
	return gone
}
