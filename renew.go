package redlock

import (
	"container/heap"
	"sync"
	"time"
)

const (
	// renewalGrid: renewals fall due on a common grid, so that those of many locks
	// share batches. Without it 10,000 locks cost six times the CPU.
	renewalGrid = 50 * time.Millisecond
	// watchEvery is how soon after a wake-up of the machine contexts end.
	watchEvery = 250 * time.Millisecond
	// mostRenewals bounds how many renewals are under way: more do not fit into the batches
	// that are out on a long link, and would only wait in the lanes. Of 100,000 that fell due
	// within a second most waited there for longer than the timeout per node, and were tried
	// again, for which they took the time of those behind them.
	mostRenewals = mostOut * mostInBatch
	// renewalCost is what a renewal takes where the client and five nodes share two cores that
	// are busy. Behind as many as fit into its timeout, a renewal is in time.
	renewalCost = 40 * time.Microsecond
)

// renewer renews the locks that want it and ends the contexts of those that a sleeping
// machine outlived. It has timers and no goroutine of its own.
type renewer struct {
	clock clock

	// mu guards what follows and the renewals. Nothing but timers is called under it.
	mu       sync.Mutex
	due      renewals
	underWay int
	full     bool // the next that is due waits for one that is under way
	timer    timer
	watched  map[renewable]struct{}
	watching timer
	stopped  bool
}

// renewable is a lock, as far as the renewer knows it. Its methods may take the lock's
// mutex, and are called without the renewer's.
type renewable interface {
	// renewNow extends the lock, schedules the next renewal, and then tells the renewer that
	// this one has ended.
	renewNow()
	// checkEnd ends the lock's context if its time has come by either clock, and returns why
	// the lock was lost if it was found out just now.
	checkEnd() (lost error)
	// nodeTimeout is that of its renewals. It takes no mutex, and is called with the renewer's.
	nodeTimeout() time.Duration
	// tellLost calls the hook, which may take its time.
	tellLost(why error)
}

// renewal is a lock's place among those to be renewed.
type renewal struct {
	lock  renewable
	at    int64 // of the clock
	index int   // in the heap, plus one; 0: it is not there
}

func newRenewer(c clock) *renewer {
	return &renewer{clock: c, watched: make(map[renewable]struct{})}
}

// schedule renews the lock once, in about d from now and not later. Due times are rounded
// down to the grid, which is finer for locks with a TTL that is short.
func (k *renewer) schedule(r *renewal, now instant, d, ttl time.Duration) {
	at := now.mono + int64(d)
	at -= at % int64(min(renewalGrid, ttl/20))
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped || r.index > 0 {
		return
	}
	r.at = at
	heap.Push(&k.due, r)
	if r.index == 1 {
		k.setTimer(now.mono)
	}
}

// setTimer sets the timer for the first renewal, which may be later than it was set for
// before; the caller holds mu.
func (k *renewer) setTimer(now int64) {
	if len(k.due) == 0 {
		return
	}
	if d := time.Duration(max(k.due[0].at-now, 0)); k.timer == nil {
		k.timer = k.clock.afterFunc(d, k.tick)
	} else {
		k.timer.Reset(d)
	}
}

func (k *renewer) tick() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.begin()
}

// begin starts the renewals that are due, as many as may be under way; the caller holds mu.
func (k *renewer) begin() {
	if k.full = false; k.stopped {
		return
	}
	now := k.clock.now().mono
	for ; len(k.due) > 0 && now >= k.due[0].at; k.underWay++ {
		most := min(mostRenewals, int(k.due[0].lock.nodeTimeout()/renewalCost))
		if k.full = k.underWay >= most; k.full {
			return // ended goes on
		}
		go heap.Pop(&k.due).(*renewal).lock.renewNow()
	}
	k.setTimer(now)
}

// ended lets the next renewal begin where one waits for that.
func (k *renewer) ended() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.underWay--
	if k.full {
		k.begin()
	}
}

// watch compares both clocks for this lock until it is forgotten.
func (k *renewer) watch(l renewable) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return
	}
	k.watched[l] = struct{}{}
	if len(k.watched) > 1 {
		return
	}
	if k.watching == nil {
		k.watching = k.clock.afterFunc(watchEvery, k.checkEnds)
	} else {
		k.watching.Reset(watchEvery)
	}
}

func (k *renewer) checkEnds() {
	k.mu.Lock()
	locks := make([]renewable, 0, len(k.watched))
	for l := range k.watched {
		locks = append(locks, l)
	}
	if len(locks) > 0 && !k.stopped {
		k.watching.Reset(watchEvery)
	}
	k.mu.Unlock()
	for _, l := range locks {
		// After a sleep of the machine all may be over. The hook of one must not keep the
		// holders of the others at work.
		if lost := l.checkEnd(); lost != nil {
			go l.tellLost(lost)
		}
	}
}

// forget neither renews nor watches the lock any longer.
func (k *renewer) forget(r *renewal) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if r.index > 0 {
		heap.Remove(&k.due, r.index-1)
	}
	if _, ok := k.watched[r.lock]; ok {
		delete(k.watched, r.lock)
		if len(k.watched) == 0 {
			k.watching.Stop()
		}
	}
}

// stop ends renewal. Contexts go on ending by their own timers.
func (k *renewer) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	for _, r := range k.due {
		r.index = 0
	}
	k.due = nil
	for _, t := range []timer{k.timer, k.watching} {
		if t != nil {
			t.Stop()
		}
	}
	clear(k.watched)
}

// renewals is a heap, the first to fall due on top.
type renewals []*renewal

func (r renewals) Len() int           { return len(r) }
func (r renewals) Less(i, j int) bool { return r[i].at < r[j].at }
func (r renewals) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].index, r[j].index = i+1, j+1
}

func (r *renewals) Push(x any) {
	it := x.(*renewal)
	*r = append(*r, it)
	it.index = len(*r)
}

func (r *renewals) Pop() any {
	old := *r
	it := old[len(old)-1]
	old[len(old)-1] = nil
	*r = old[:len(old)-1]
	it.index = 0
	return it
}
