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
)

// keeper renews the locks that want it and ends the contexts of those that a sleeping
// machine outlived. It has timers and no goroutine of its own.
type keeper struct {
	clock clock

	mu       sync.Mutex // nothing is called under it but timers
	due      renewals
	timer    timer
	watched  map[*Lock]struct{}
	watching timer
	stopped  bool
}

// renewal is a lock's place in its keeper.
type renewal struct {
	at    int64 // of the clock
	index int   // in the heap, plus one; 0 if it is not there
}

func newKeeper(c clock) *keeper {
	return &keeper{clock: c, watched: make(map[*Lock]struct{})}
}

// schedule renews the lock once, in about d from now and not later.
func (k *keeper) schedule(l *Lock, now instant, d time.Duration) {
	at := now.mono + int64(d)
	at -= at % int64(min(renewalGrid, l.mutex.terms.ttl/20))
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped || l.renewal.index > 0 {
		return
	}
	l.renewal.at = at
	heap.Push(&k.due, l)
	if l.renewal.index == 1 {
		k.arm(now.mono)
	}
}

// arm sets the timer for the first renewal; the caller holds mu.
func (k *keeper) arm(now int64) {
	if len(k.due) == 0 {
		return
	}
	if d := time.Duration(max(k.due[0].renewal.at-now, 0)); k.timer == nil {
		k.timer = k.clock.afterFunc(d, k.tick)
	} else {
		k.timer.Reset(d)
	}
}

func (k *keeper) tick() {
	now := k.clock.now().mono
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stopped {
		return
	}
	for len(k.due) > 0 && now >= k.due[0].renewal.at {
		go heap.Pop(&k.due).(*Lock).renewNow()
	}
	k.arm(now)
}

// watch compares both clocks for this lock until it is forgotten.
func (k *keeper) watch(l *Lock) {
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
		k.watching = k.clock.afterFunc(watchEvery, k.look)
	} else {
		k.watching.Reset(watchEvery)
	}
}

func (k *keeper) look() {
	k.mu.Lock()
	locks := make([]*Lock, 0, len(k.watched))
	for l := range k.watched {
		locks = append(locks, l)
	}
	if len(locks) > 0 && !k.stopped {
		k.watching.Reset(watchEvery)
	}
	k.mu.Unlock()
	for _, l := range locks {
		l.checkEnd()
	}
}

// forget neither renews nor watches the lock any longer.
func (k *keeper) forget(l *Lock) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l.renewal.index > 0 {
		heap.Remove(&k.due, l.renewal.index-1)
	}
	if _, ok := k.watched[l]; ok {
		delete(k.watched, l)
		if len(k.watched) == 0 {
			k.watching.Stop()
		}
	}
}

// stop ends renewal. Contexts go on ending by their own timers.
func (k *keeper) stop() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.stopped = true
	for _, l := range k.due {
		l.renewal.index = 0
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
type renewals []*Lock

func (r renewals) Len() int           { return len(r) }
func (r renewals) Less(i, j int) bool { return r[i].renewal.at < r[j].renewal.at }
func (r renewals) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].renewal.index, r[j].renewal.index = i+1, j+1
}

func (r *renewals) Push(x any) {
	l := x.(*Lock)
	*r = append(*r, l)
	l.renewal.index = len(*r)
}

func (r *renewals) Pop() any {
	old := *r
	l := old[len(old)-1]
	old[len(old)-1] = nil
	*r = old[:len(old)-1]
	l.renewal.index = 0
	return l
}
