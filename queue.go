package redlock

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

const (
	// refusedFor is for how long after a refusal an acquire joins the queue first.
	refusedFor = time.Second
	// perKey bounds what looking after very many queues costs: a process that waits for
	// thousands of keys refreshes a thousand of them per second.
	perKey = time.Millisecond
	// probeEvery is how often a node that failed is asked whether it is back.
	probeEvery = 100 * time.Millisecond
	// skipFor is for how long a node that denied something is not asked for it again, while others do it.
	skipFor = 30 * time.Second
	// mostAtFirst is how many calls of a process ask the nodes at a time without having waited. More
	// would only wait in its own lanes, until it is too late for them.
	mostAtFirst = 1024
)

// queues holds this process's waiting Acquires. Nodes identify the process by an id: they
// notify it on the channel of that name and, if it stays silent, drop all its waiters at
// once.
//
// One node per key keeps the order of waiters, in a sorted set. The order need not be
// safe: whatever a queue says, a lock is granted by a quorum only.
type queues struct {
	set        *nodeSet
	process    string
	keys       atomic.Int64  // len(byKey)
	awaited    atomic.Int64  // keys with waiters
	mostInside int           // of a key's waiters, see window
	atFirst    chan struct{} // calls that ask the nodes without having waited
	brief      atomic.Uint64 // locks that were held for a moment only, see looksElsewhere
	listening  sync.WaitGroup

	// mu guards what follows, all keyWaiters and subscriptions, and the fields of waiters that say so. No other mutex
	// is taken under it but those of the clock, its timers and contexts.
	mu       sync.Mutex
	byKey    map[string]*keyWaiters
	byName   map[string]*waiter    // by nameOf the next value
	subs     map[int]*subscription // by node
	denials  map[int]denial        // by node that keeps no queue for us
	probedAt map[int]int64         // by node: not asked whether it is back before this time
	closed   bool
}

func newQueues(set *nodeSet) *queues {
	return &queues{
		set: set, mostInside: mostInside, process: fmt.Sprintf("%016x.", rand.Uint64()), // told apart, not kept secret; for the dot see nameOf in line.lua
		atFirst: make(chan struct{}, mostAtFirst), subs: make(map[int]*subscription), denials: make(map[int]denial), probedAt: make(map[int]int64),
		byKey: make(map[string]*keyWaiters), byName: make(map[string]*waiter),
	}
}

// keyWaiters is the waiters of this process for one key, in the order in which they came.
// The first of them looks after all: it refreshes the queue on the node and finds out what
// no notice told. So a waiter costs no timer, and ten thousand on one key cost one.
type keyWaiters struct {
	queues       *queues
	key          string
	order        []int // of nodes, the arbiter first
	window       window
	node         int // which keeps the queue, as far as we know; -1 if we do not
	reservation  time.Duration
	refusedAt    int64      // when this process last knew that others want it
	alarm        tick.Alarm // when the first looks again, or this is forgotten; always set
	turnAt       int64      // when one of them last claimed; 0: none has
	meeting      meeting
	holding      holding       // what a node last said of the holder
	refusedUntil map[int]int64 // by node: not asked to keep this queue before that time
}

// holding is what a node said of the holder.
type holding struct {
	at     tick.Instant
	node   int
	holder string // token@owner; empty: none, or several
	ttl    time.Duration
}

// denial is why a node keeps no queue for us, for good, and until when it is not asked again.
type denial struct {
	until int64
	err   error
}

// holderOf is the lock's holder by what its key has; empty if there are several.
func holderOf(value string) string {
	switch {
	case value == protocol.SharedMarker:
		return ""
	case len(value) > protocol.LongestValue:
		return "a " + protocol.TooLong + ", which is no lock"
	default:
		return value
	}
}

// arbiter is the node that keeps the queue, as far as this process can see: the one that
// its waiters moved to, or else the first in order that is reachable: it has not been silent
// for longer than patience. -1 if the key has no queue or no node is reachable.
func (qs *queues) arbiter(r *resource, now int64, patience time.Duration) int {
	if !r.hasQueue() {
		return -1
	}
	if node, ok := qs.movedTo(r, now); ok && r.lane(node).Reachable(now, patience) {
		return node
	}
	return r.firstReachable(now, patience)
}

// recentlyRefused reports whether this process waits for the lock, or was lately told to, so that it must not
// overtake the waiters.
func (qs *queues) recentlyRefused(r *resource) bool {
	if qs.keys.Load() == 0 || !r.hasQueue() {
		return false
	}
	now := qs.set.clock.Now().Mono
	qs.mu.Lock()
	defer qs.mu.Unlock()
	k := qs.byKey[r.name]
	return k != nil && k.recentlyRefused(now)
}

// recentlyRefused needs queues.mu.
func (k *keyWaiters) recentlyRefused(now int64) bool {
	return k.window.len() > 0 || now-k.refusedAt < int64(refusedFor)
}

// of finds or makes a key's waiters, and starts afresh if none wait; the caller holds mu.
func (qs *queues) of(r *resource) *keyWaiters {
	k := qs.byKey[r.name]
	now := qs.set.clock.Now().Mono
	if k == nil {
		k = &keyWaiters{queues: qs, key: r.name, order: r.nodeOrder(), refusedAt: guard.LongAgo, meeting: newMeeting(), refusedUntil: make(map[int]int64)}
		k.window.most, k.window.room = qs.mostInside, [2]int{qs.mostInside, qs.mostInside}
		k.alarm = tick.Alarm{Clock: qs.set.clock, F: k.tick}
		qs.byKey[r.name] = k
		qs.keys.Store(int64(len(qs.byKey)))
		k.lookIn(now, refusedFor)
	}
	if k.window.len() == 0 {
		k.node, k.reservation = -1, r.reservation()
	}
	return k
}

// forget drops a key that has no waiters, unless it was wanted lately; the caller holds mu.
func (k *keyWaiters) forget(now int64) {
	qs := k.queues
	if until := max(k.refusedAt+int64(refusedFor), k.meeting.until); until > now {
		k.lookIn(now, time.Duration(until-now))
		return
	}
	if delete(qs.byKey, k.key); len(qs.byKey) == 0 {
		qs.byKey = make(map[string]*keyWaiters) // a map never shrinks
	}
	qs.keys.Store(int64(len(qs.byKey)))
}

// first is the first waiter that waits for its turn, which looks after the others; the caller holds mu.
func (k *keyWaiters) first() *waiter {
	for e := k.window.inside.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*waiter); w.state == joining || w.state == queued {
			return w
		}
	}
	return nil
}

// pokeFirst makes the first look; the caller holds mu.
func (k *keyWaiters) pokeFirst() {
	if first := k.first(); first != nil {
		first.poke()
	}
}

// pokeOthers makes all waiters but one look again, since what nodes confirmed counts no more; the caller holds mu.
func (k *keyWaiters) pokeOthers(but *waiter) {
	for e := k.window.inside.Front(); e != nil; e = e.Next() {
		if w := e.Value.(*waiter); w != but {
			if w.state == queued {
				w.state = joining // so it sends no others in its turn
			}
			w.poke()
		}
	}
}

// turnsAreOver has all waiters in the window look again, since none will have a turn: a quorum is gone for good. Each
// then makes an attempt, which says why.
func (qs *queues) turnsAreOver(r *resource) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if k := qs.byKey[r.name]; k != nil {
		k.pokeOthers(nil)
	}
}

// interval is how often the first waiter looks without being told. It finds lost notices of all, so it is less than a
// reservation, unless throttled. The caller holds mu.
func (k *keyWaiters) interval() time.Duration {
	d := k.reservation / 2
	if s := k.queues.subs[k.node]; s == nil || s.state != subOpen || s.publishDenied {
		d = k.pollInterval()
	}
	d = k.throttled(d)
	return d/2 + k.queues.set.clock.Jitter(d/2)
}

// throttled is d, or more in a process that waits for very many keys.
func (k *keyWaiters) throttled(d time.Duration) time.Duration {
	return max(d, time.Duration(k.queues.awaited.Load())*perKey)
}

// pollInterval is how often a waiter looks that no notice reaches: an eighth of the time since the last turn, from
// RetryMin/2 to a 32nd of the reservation. The caller holds mu.
func (k *keyWaiters) pollInterval() time.Duration {
	d := k.reservation / 32
	if k.turnAt > 0 {
		idle := time.Duration(k.queues.set.clock.Now().Mono - k.turnAt)
		d = min(d, max(idle, 4*k.queues.set.opts.RetryMin)/8)
	}
	return d
}

// notePublishDenied notes that a node denies PUBLISH, and tells of it; err is nil if a script said so.
func (qs *queues) notePublishDenied(node int, err error) {
	qs.lacks(node, noPublish, err)
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if s := qs.subs[node]; s != nil {
		s.publishDenied = true
	}
}

// lookIn has the first waiter look in d at the latest; the caller holds mu.
func (k *keyWaiters) lookIn(now int64, d time.Duration) {
	k.alarm.Set(now+int64(d), now)
}

// leftLine has the first look soon, since a script that takes an entry out of the queue ends what the node knew of
// when this process will be back; the caller holds mu.
func (k *keyWaiters) leftLine(now int64) { k.lookIn(now, k.reservation/2) }

func (k *keyWaiters) tick() {
	now := k.queues.set.clock.Now().Mono
	k.queues.mu.Lock()
	defer k.queues.mu.Unlock()
	k.alarm.Rang()
	if k.window.len() == 0 {
		k.forget(now)
		return
	}
	k.pokeFirst()
	k.lookIn(now, k.interval())
}

// mayAsk reports whether a node is asked to keep the queue, and probes one that is away.
func (k *keyWaiters) mayAsk(r *resource, node int) bool {
	qs, now := k.queues, k.queues.set.clock.Now().Mono
	reachable := r.reachable(node, now)
	qs.mu.Lock()
	may := now >= qs.denials[node].until && now >= k.refusedUntil[node]
	probes := may && !reachable && now >= qs.probedAt[node]
	if probes {
		qs.probedAt[node] = now + int64(probeEvery)
	}
	qs.mu.Unlock()
	if probes { // no other request might find out that it is back
		req := protocol.InspectRequest(&r.terms.Terms, r.name, "", r.holdersKey(), 0)
		r.lane(node).Enqueue(&lane.Call{Req: req, Deadline: now + int64(req.Timeout)}, now)
	}
	return may && reachable
}

// refused leaves a node out of the order for a while that does not keep the queue: to ask it again a waiter would
// have to leave the queue of another, and lose its turn there.
func (k *keyWaiters) refused(node int, err error) {
	qs, now := k.queues, k.queues.set.clock.Now()
	denied := protocol.QueueDenied(err, qs.set.opts.KeyPrefix, k.key)
	qs.mu.Lock()
	k.refusedUntil[node] = nextReturn(now)
	if denied != nil {
		qs.denials[node] = denial{now.Mono + int64(skipFor), denied}
	}
	qs.mu.Unlock()
	if denied != nil {
		qs.lacks(node, noLine, denied)
	}
}

// denied is the denials of the nodes that keep no queue for us, if so many do not that those which are left are no
// majority; nil otherwise. Each is asked again then by the next that waits, as its permissions may be other ones by
// then, unless this one waits for that.
func (qs *queues) denied(awaited protocol.Remedies) map[int]error {
	now := qs.set.clock.Now().Mono
	qs.mu.Lock()
	defer qs.mu.Unlock()
	all := make(map[int]error)
	for i, d := range qs.denials {
		if remedy, _ := protocol.RemedyOf(d.err); now < d.until && remedy&awaited == 0 {
			all[i] = d.err
		}
	}
	if len(all) < blocking(len(qs.set.nodes)) {
		return nil
	}
	for i := range all {
		delete(qs.denials, i)
	}
	return all
}

// askAll has all nodes asked again, since none keeps the queue.
func (k *keyWaiters) askAll() {
	k.queues.mu.Lock()
	defer k.queues.mu.Unlock()
	clear(k.refusedUntil)
}

// lacks says once what a node denies.
func (qs *queues) lacks(node int, what lack, err error) {
	qs.set.lacks.tell(qs.set.names[node], what, err)
}

// close ends all subscriptions. The channel is closed when they are gone, and those that ended before.
func (qs *queues) close() <-chan struct{} {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.closed = true
	for _, k := range qs.byKey {
		k.alarm.Stop()
	}
	for _, s := range qs.subs {
		s.stop()
		if s.idle != nil {
			s.idle.Stop()
		}
	}
	gone := make(chan struct{})
	go func() {
		qs.listening.Wait()
		close(gone)
	}()
	return gone
}
