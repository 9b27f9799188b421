package tick

import (
	"math"
	"math/rand/v2"
	"time"
)

// Instant is one reading of both clocks of this machine.
//
// A lease must end when either clock says so. The monotonic clock cannot be set,
// but it stands still while the machine sleeps (golang/go#24595), and the nodes'
// clocks do not; the wall clock keeps running, but it can be set back.
type Instant struct {
	Time time.Time // for people and for callers' comparisons
	Mono int64     // nanoseconds since the clock was made
	Wall int64     // Unix nanoseconds
}

// Add is the instant d later, on both clocks.
func (i Instant) Add(d time.Duration) Instant {
	return Instant{Time: i.Time.Add(d), Mono: Plus(i.Mono, d), Wall: Plus(i.Wall, d)}
}

// When is the time at which the monotonic clock showed at, for people.
func (i Instant) When(at int64) time.Time {
	return i.Time.Add(time.Duration(at - i.Mono)).Round(0)
}

// Plus ends at the last time that can be told: a holder may allow itself for ever.
func Plus(at int64, d time.Duration) int64 {
	if sum := at + int64(d); d < 0 || sum >= at {
		return sum
	}
	return math.MaxInt64
}

// Earliest is when the first of two ends has come by either clock.
func Earliest(i, j Instant) Instant {
	e := Instant{Time: i.Time, Mono: min(i.Mono, j.Mono), Wall: min(i.Wall, j.Wall)}
	if j.Time.Before(i.Time) {
		e.Time = j.Time
	}
	return e
}

// Until is the time left from i to end: what the more pessimistic of both clocks says.
func (i Instant) Until(end Instant) time.Duration {
	return time.Duration(min(end.Mono-i.Mono, end.Wall-i.Wall)) // mutant: both-clocks
}

// Since is the time that has passed, by the clock that cannot be set.
func (i Instant) Since(start Instant) time.Duration { return time.Duration(i.Mono - start.Mono) }

// Reached reports whether end has come by either clock.
func (i Instant) Reached(end Instant) bool { return i.Until(end) <= 0 }

// After reports whether i lies behind j by both clocks.
func (i Instant) After(j Instant) bool { return j.Until(i) > 0 }

// Allowance is what a lease of ttl loses to clocks that run at different rates:
// a share of the TTL, and 2 ms for the granularity of Redis' expiry.
func Allowance(ttl time.Duration, factor float64) time.Duration {
	return time.Duration(float64(ttl)*factor) + 2*time.Millisecond
}

// Clock is where the library gets the time from. It is a seam for tests: nothing else in
// the package asks the machine for the time or sets a timer.
type Clock interface {
	Now() Instant
	// AfterFunc calls f on a goroutine of its own once d has passed.
	AfterFunc(d time.Duration, f func()) Timer
	// Yield stands where a goroutine goes on after it was woken, with no mutex held, and
	// does nothing. A simulation stops the process there, and puts in order what would
	// otherwise happen at the same time; by id it tells those apart.
	Yield(id int64)
	// Jitter is a random time, at least 0 and less than d. It is here because a simulation
	// must be able to repeat it.
	Jitter(d time.Duration) time.Duration
}

// Timer is that of a Clock, as time.Timer.
type Timer interface {
	Stop() bool
	Reset(d time.Duration) bool
}

// Alarm calls f once the time that it was set for has come. Setting it to a later time
// than it has already changes nothing: it is left to run and to find nothing to do, which
// is cheaper than stopping and setting a timer for each thing that is waited for.
//
// An alarm needs its owner's mutex for every method. f runs on a goroutine of its own
// without it, and has to call rang, under the mutex, before it sets the alarm again.
type Alarm struct {
	Clock Clock
	F     func()
	timer Timer
	armed bool
	at    int64 // of the clock; means nothing unless armed
}

// Set makes the alarm ring at the given time of the clock at the latest.
func (a *Alarm) Set(at, now int64) {
	if a.armed && at >= a.at {
		return
	}
	a.armed, a.at = true, at
	if d := time.Duration(max(at-now, 0)); a.timer == nil {
		a.timer = a.Clock.AfterFunc(d, a.F)
	} else {
		a.timer.Reset(d)
	}
}

// Rang notes that f runs.
func (a *Alarm) Rang() { a.armed = false }

// Stop keeps the alarm from ringing, unless its func is about to run.
func (a *Alarm) Stop() {
	if a.armed {
		a.timer.Stop()
		a.armed = false
	}
}

// After returns a channel that is closed once d has passed; stop ends the wait early.
func After(c Clock, d time.Duration) (over <-chan struct{}, stop func() bool) {
	ch := make(chan struct{})
	return ch, c.AfterFunc(d, func() { close(ch) }).Stop
}

// System is this machine's clock.
type System struct{ start time.Time }

// NewSystem is this machine's clock; its monotonic time begins now.
func NewSystem() System { return System{start: time.Now()} }

// Now reads both clocks at once.
func (c System) Now() Instant {
	t := time.Now()
	return Instant{Time: t, Mono: int64(t.Sub(c.start)), Wall: t.UnixNano()}
}

// AfterFunc is time.AfterFunc.
func (System) AfterFunc(d time.Duration, f func()) Timer { return time.AfterFunc(d, f) }

// Yield does nothing.
func (System) Yield(int64) {}

// Jitter is a random time, at least 0 and less than d.
func (System) Jitter(d time.Duration) time.Duration { return rand.N(d) }
