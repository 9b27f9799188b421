// Package ticktest is a clock for tests that is moved by hand.
package ticktest

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/quorumlock/redlock/internal/tick"
)

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

func (c *FakeClock) Now() tick.Instant {
	c.mu.Lock()
	defer c.mu.Unlock()
	return tick.Instant{Time: time.Unix(0, c.wall), Mono: c.mono, Wall: c.wall}
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

func (c *FakeClock) Yield(int64) {}

func (c *FakeClock) Jitter(d time.Duration) time.Duration { return rand.N(d) }

func (c *FakeClock) AfterFunc(d time.Duration, f func()) tick.Timer {
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
