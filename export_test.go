package redlock

import (
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// What tests in package redlock_test may touch from inside.

// NewWithClock is New with another clock.
func NewWithClock(clients []redis.UniversalClient, opts *Options, c *FakeClock) (*Redlock, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return build(clients, o, c, userHabits), nil
}

// SetRandom replaces the source of tokens.
func SetRandom(rl *Redlock, r io.Reader) { rl.tokens.random = r }

// LaneLoad tells how many requests wait in a node's lane, and how many releases it
// keeps for later.
func LaneLoad(rl *Redlock, node int) (queued, kept int) {
	l := rl.nodes[node].lane
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.queue.all() {
		if c.state != callDropped {
			queued++
		}
	}
	return queued, keptIn(&l.kept)
}

// FakeClock is a clock whose monotonic and wall hands are moved by hand and apart
// from each other.
type FakeClock struct {
	mu     sync.Mutex
	mono   int64
	wall   int64
	timers []*fakeTimer
}

func NewFakeClock() *FakeClock {
	return &FakeClock{mono: int64(time.Hour), wall: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC).UnixNano()}
}

func (c *FakeClock) now() instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return instant{time: time.Unix(0, c.wall), mono: c.mono, wall: c.wall}
}

// Advance lets time pass as it usually does.
func (c *FakeClock) Advance(d time.Duration) {
	c.Stun(d)
	c.fire()
}

// Suspend is what a sleeping machine looks like: only the wall clock has gone on.
func (c *FakeClock) Suspend(d time.Duration) { c.SetWall(d) }

// SetWall sets the wall clock ahead, or back.
func (c *FakeClock) SetWall(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wall += int64(d)
}

// Stun lets time pass while this process gets no processor: timers that fell due
// have not fired yet.
func (c *FakeClock) Stun(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mono += int64(d)
	c.wall += int64(d)
}

// fire runs the timers that are due.
func (c *FakeClock) fire() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.timers {
		if t.armed && t.at <= c.mono {
			t.armed = false
			go t.f()
		}
	}
}

func (c *FakeClock) yield(int64) {}

func (c *FakeClock) jitter(d time.Duration) time.Duration { return rand.N(d) }

func (c *FakeClock) afterFunc(d time.Duration, f func()) timer {
	t := &fakeTimer{clock: c, f: f}
	c.mu.Lock()
	c.timers = append(c.timers, t)
	c.mu.Unlock()
	t.Reset(d)
	return t
}

type fakeTimer struct {
	clock *FakeClock
	f     func()
	at    int64
	armed bool
}

func (t *fakeTimer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	was := t.armed
	t.armed = false
	return was
}

func (t *fakeTimer) Reset(d time.Duration) bool {
	t.clock.mu.Lock()
	was := t.armed
	t.armed, t.at = true, t.clock.mono+int64(d)
	t.clock.mu.Unlock()
	if d <= 0 {
		t.clock.fire()
	}
	return was
}

// NewQuorumError makes an error with reasons.
func NewQuorumError(op, key string, need int, left time.Duration, outcomes []Outcome, reasons ...error) *QuorumError {
	return &QuorumError{Op: op, Key: key, Need: need, HolderTTL: left, Outcomes: outcomes, reasons: reasons}
}

// NewSkewed is New on a machine whose wall clock is wrong.
func NewSkewed(clients []redis.UniversalClient, opts *Options, wrong *atomic.Int64) (*Redlock, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return build(clients, o, skewedClock{newSystemClock(), wrong}, userHabits), nil
}

type skewedClock struct {
	clock
	wrong *atomic.Int64 // nanoseconds
}

func (c skewedClock) now() instant {
	i := c.clock.now()
	d := time.Duration(c.wrong.Load())
	i.time, i.wall = i.time.Add(d), plus(i.wall, d)
	return i
}

// keptIn is how many there are.
func keptIn(k *keptReleases) int { return waitingIn(&k.unheard) + waitingIn(&k.failed) + len(k.later) }

// waitingIn counts also the one that is on its way.
func waitingIn(w *waitingReleases) int {
	if w.probing() {
		return w.n + 1
	}
	return w.n
}
