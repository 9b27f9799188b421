package redlock

import "time"

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
