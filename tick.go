package redlock

import (
	"math"
	"math/rand/v2"
	"time"
)

// instant is one reading of both clocks of this machine.
//
// A lease must end when either clock says so. The monotonic clock cannot be set,
// but it stands still while the machine sleeps (golang/go#24595), and the nodes'
// clocks do not; the wall clock keeps running, but it can be set back.
type instant struct {
	time time.Time // for people and for callers' comparisons
	mono int64     // nanoseconds since the clock was made
	wall int64     // Unix nanoseconds
}

func (i instant) add(d time.Duration) instant {
	return instant{time: i.time.Add(d), mono: plus(i.mono, d), wall: plus(i.wall, d)}
}

// when is the time at which the monotonic clock showed at, for people.
func (i instant) when(at int64) time.Time {
	return i.time.Add(time.Duration(at - i.mono)).Round(0)
}

// plus ends at the last time that can be told: a holder may allow itself for ever.
func plus(at int64, d time.Duration) int64 {
	if sum := at + int64(d); d < 0 || sum >= at {
		return sum
	}
	return math.MaxInt64
}

// earliest is when the first of two ends has come by either clock.
func earliest(i, j instant) instant {
	e := instant{time: i.time, mono: min(i.mono, j.mono), wall: min(i.wall, j.wall)}
	if j.time.Before(i.time) {
		e.time = j.time
	}
	return e
}

// until is the time left from i to end: what the more pessimistic of both clocks says.
func (i instant) until(end instant) time.Duration {
	return time.Duration(min(end.mono-i.mono, end.wall-i.wall))
}

// since is the time that has passed, by the clock that nobody can set.
func (i instant) since(start instant) time.Duration { return time.Duration(i.mono - start.mono) }

// reached reports whether end has come by either clock.
func (i instant) reached(end instant) bool { return i.until(end) <= 0 }

// after reports whether i lies behind j by both clocks.
func (i instant) after(j instant) bool { return j.until(i) > 0 }

// allowance is what a lease of ttl loses to clocks that run at different rates:
// a share of the TTL, and 2 ms for the granularity of Redis' expiry.
func allowance(ttl time.Duration, factor float64) time.Duration {
	return time.Duration(float64(ttl)*factor) + 2*time.Millisecond
}

// clock is where the library gets the time from. It is a seam for tests: nothing else in
// the package asks the machine for the time or sets a timer.
type clock interface {
	now() instant
	// afterFunc calls f on a goroutine of its own once d has passed.
	afterFunc(d time.Duration, f func()) timer
	// yield stands where a goroutine goes on after it was woken, with no mutex held, and
	// does nothing. A simulation stops the process there, and puts in order what would
	// otherwise happen at the same time; by id it tells those apart.
	yield(id int64)
	// jitter is a random time, at least 0 and less than d. It is here because a simulation
	// must be able to repeat it.
	jitter(d time.Duration) time.Duration
}

type timer interface {
	Stop() bool
	Reset(d time.Duration) bool
}

// alarm calls f once the time that it was set for has come. Setting it to a later time
// than it has already changes nothing: it is left to run and to find nothing to do, which
// is cheaper than stopping and setting a timer for each thing that is waited for.
//
// An alarm needs its owner's mutex for every method. f runs on a goroutine of its own
// without it, and has to call rang, under the mutex, before it sets the alarm again.
type alarm struct {
	clock clock
	f     func()
	timer timer
	armed bool
	at    int64 // of the clock; means nothing unless armed
}

// set makes the alarm ring at the given time of the clock at the latest.
func (a *alarm) set(at, now int64) {
	if a.armed && at >= a.at {
		return
	}
	a.armed, a.at = true, at
	if d := time.Duration(max(at-now, 0)); a.timer == nil {
		a.timer = a.clock.afterFunc(d, a.f)
	} else {
		a.timer.Reset(d)
	}
}

// rang notes that f runs.
func (a *alarm) rang() { a.armed = false }

func (a *alarm) stop() {
	if a.armed {
		a.timer.Stop()
		a.armed = false
	}
}

// after returns a channel that is closed once d has passed; stop ends the wait early.
func after(c clock, d time.Duration) (over <-chan struct{}, stop func() bool) {
	ch := make(chan struct{})
	return ch, c.afterFunc(d, func() { close(ch) }).Stop
}

// systemClock is this machine's clock.
type systemClock struct{ start time.Time }

func newSystemClock() systemClock { return systemClock{start: time.Now()} }

func (c systemClock) now() instant {
	t := time.Now()
	return instant{time: t, mono: int64(t.Sub(c.start)), wall: t.UnixNano()}
}

func (systemClock) afterFunc(d time.Duration, f func()) timer { return time.AfterFunc(d, f) }

func (systemClock) yield(int64) {}

func (systemClock) jitter(d time.Duration) time.Duration { return rand.N(d) }
