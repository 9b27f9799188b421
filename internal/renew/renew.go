package renew

import (
	"container/heap"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/tick"
)

const (
	// renewalGrid: renewals fall due on a common grid, so that those of many locks
	// share batches. Without it 10,000 locks cost six times the CPU.
	renewalGrid = 50 * time.Millisecond
	// watchEvery is how soon after a wake-up of the machine contexts end.
	watchEvery = 250 * time.Millisecond
	// clockStep is by how much the clocks may move apart unnoticed. Leases leave out more.
	clockStep = time.Millisecond
	// mostRenewals bounds how many renewals are under way: more do not fit into the batches
	// that are out on a long link, and would only wait in the lanes. Of 100,000 that fell due
	// within a second most waited there for longer than the timeout per node, and were tried
	// again, for which they took the time of those behind them.
	mostRenewals = lane.MostOut * lane.MostInBatch
	// renewalCost is twice what a renewal takes where the client and five nodes share two cores
	// that are busy: as many as fit into its timeout may be under way together with one, and
	// that many again may be in the batch before it.
	renewalCost = 80 * time.Microsecond
)

// Renewer renews the locks that want it and ends the contexts of those that a sleeping
// machine outlived. It has timers and no goroutine of its own.
type Renewer struct {
	clock tick.Clock

	// mu guards what follows and the renewals. Nothing but timers is called under it.
	mu    sync.Mutex
	due   renewals // not due yet, the first to fall due on top
	ready renewals // due, the most urgent on top: they wait for those under way
	// undecided renewals are under way, and so are those of which the slower nodes have not
	// answered. Both are bounded, or a node that is slower than the others would be sent more
	// than it can do in time, and keep the keys of some locks only.
	undecided, unanswered int
	beside                map[int]int // how many of the unanswered allow so many under way beside them
	timer                 tick.Timer
	watched               map[*Renewal]struct{}
	watching              tick.Timer
	apart                 int64 // by how much the wall clock was ahead when contexts were looked at last
	stopped               bool
}

// Lock is a lock, as far as the renewer knows it. Its methods may take the lock's mutex, and but for NodeTimeout are
// called without the renewer's.
type Lock interface {
	// Renew extends the lock, schedules the next renewal, and then tells the renewer that this one has ended,
	// before it calls a hook.
	Renew()
	// CheckEnd ends the lock's context if its time has come by either clock, and returns why the lock was lost
	// if it was found out just now.
	CheckEnd() (lost error)
	// NodeTimeout is that of its renewals. It takes no mutex.
	NodeTimeout() time.Duration
	// TellLost calls the hook, which may take its time.
	TellLost(why error)
}

// Renewal is a lock's place in a renewer, whose mutex guards it. It must not be copied.
type Renewal struct {
	Lock  Lock  // does not change
	at    int64 // when it falls due, by the clock; of one that is ready, the end of its lease
	end   int64 // of its lease
	index int32 // in its heap, plus one; 0: it is in none
	ready bool
}

// New makes a renewer of no locks.
func New(c tick.Clock) *Renewer {
	return &Renewer{clock: c, beside: make(map[int]int), watched: make(map[*Renewal]struct{})}
}

// Schedule renews the lock, which is held until until, once, in about d from now and not later. Due
// times are rounded down to the grid, which is finer for locks with a TTL that is short.
func (k *Renewer) Schedule(r *Renewal, now, until tick.Instant, d, ttl time.Duration) {
	at := now.Mono + int64(d)
	at -= at % int64(min(renewalGrid, ttl/20))
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped || r.index > 0 {
		return
	}
	r.at, r.end, r.ready = at, until.Mono, false
	heap.Push(&k.due, r)
	if r.index == 1 {
		k.setTimer(now.Mono)
	}
}

// setTimer sets the timer for the first renewal, which may be later than it was set for
// before; the caller holds mu.
func (k *Renewer) setTimer(now int64) {
	if len(k.due) == 0 {
		return
	}
	if d := time.Duration(max(k.due[0].at-now, 0)); k.timer == nil {
		k.timer = k.clock.AfterFunc(d, k.tick)
	} else {
		k.timer.Reset(d)
	}
}

func (k *Renewer) tick() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.begin()
}

// begin starts the renewals that are due, as many as may be under way; the caller holds mu.
func (k *Renewer) begin() {
	if k.stopped {
		return
	}
	now := k.clock.Now().Mono
	for len(k.due) > 0 && now >= k.due[0].at {
		r := heap.Pop(&k.due).(*Renewal)
		r.at, r.ready = r.end, true
		heap.Push(&k.ready, r)
	}
	most := mostRenewals
	for allows := range k.beside {
		most = min(most, allows)
	}
	for len(k.ready) > 0 {
		// One with a short timeout waits until few enough are under way, and lets few others begin beside it.
		allows := k.ready[0].allows()
		most = min(most, allows)
		if k.undecided >= most || k.unanswered >= 2*most {
			break
		}
		k.undecided++
		k.unanswered++
		k.beside[allows]++
		r := heap.Pop(&k.ready).(*Renewal)
		r.ready = false
		go r.Lock.Renew()
	}
	k.setTimer(now)
}

// allows is how many fit into its timeout.
func (r *Renewal) allows() int {
	return min(mostRenewals, max(int(r.Lock.NodeTimeout()/renewalCost), 1))
}

// Fewer counts off a renewal that was decided, and one that every node has answered, or has had
// its time for.
func (k *Renewer) Fewer(r *Renewal, undecided, unanswered int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.undecided -= undecided
	k.unanswered -= unanswered
	allows := r.allows()
	if k.beside[allows] -= unanswered; k.beside[allows] == 0 {
		delete(k.beside, allows)
	}
	if len(k.ready) > 0 {
		k.begin()
	}
}

// Watch compares both clocks for this lock until it is forgotten.
func (k *Renewer) Watch(r *Renewal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return
	}
	k.watched[r] = struct{}{}
	if len(k.watched) > 1 {
		return
	}
	if k.watching == nil {
		k.watching = k.clock.AfterFunc(watchEvery, k.checkEnds)
	} else {
		k.watching.Reset(watchEvery)
	}
}

// checkEnds looks at the contexts if the clocks have moved apart. If not, their timers are right.
func (k *Renewer) checkEnds() {
	k.mu.Lock()
	now := k.clock.Now()
	if len(k.watched) > 0 && !k.stopped {
		k.watching.Reset(watchEvery)
	}
	apart := now.Wall - now.Mono
	if step := time.Duration(apart - k.apart); step.Abs() < clockStep {
		k.mu.Unlock()
		return
	}
	k.apart = apart
	watched := slices.Collect(maps.Keys(k.watched))
	k.mu.Unlock()
	for _, r := range watched {
		// After a sleep of the machine all may be over. The hook of one must not keep the
		// holders of the others at work.
		if lost := r.Lock.CheckEnd(); lost != nil {
			go r.Lock.TellLost(lost)
		}
	}
}

// Hurry has all locks fall due with the first. It is for tests, whose locks are granted one after the other.
func (k *Renewer) Hurry() (due int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, r := range k.due {
		r.at = 0
	}
	return len(k.due)
}

// Forget neither renews nor watches the lock any longer.
func (k *Renewer) Forget(r *Renewal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	switch {
	case r.index == 0:
	case r.ready:
		heap.Remove(&k.ready, int(r.index-1))
	default:
		heap.Remove(&k.due, int(r.index-1))
	}
	if _, ok := k.watched[r]; ok {
		delete(k.watched, r)
		if len(k.watched) == 0 {
			k.watching.Stop()
		}
	}
}

// Stop ends renewal. Contexts go on ending by their own timers.
func (k *Renewer) Stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	for _, r := range slices.Concat(k.due, k.ready) {
		r.index = 0
	}
	k.due, k.ready = nil, nil
	for _, t := range []tick.Timer{k.timer, k.watching} {
		if t != nil {
			t.Stop()
		}
	}
	clear(k.watched)
}

// renewals is a heap, the first on top.
type renewals []*Renewal

func (r renewals) Len() int           { return len(r) }
func (r renewals) Less(i, j int) bool { return r[i].at < r[j].at }
func (r renewals) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].index, r[j].index = int32(i+1), int32(j+1)
}

func (r *renewals) Push(x any) {
	it := x.(*Renewal)
	*r = append(*r, it)
	it.index = int32(len(*r))
}

func (r *renewals) Pop() any {
	old := *r
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*r = old[:len(old)-1]
	it.index = 0
	return it
}
