package jepsen

import (
	"time"

	"golang.org/x/sys/unix"
)

// monotonic reads the clock that all processes of this machine share and nobody can set.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic("jepsen: CLOCK_MONOTONIC: " + err.Error())
	}
	return ts.Nano()
}

// clock tells the time of a run: nanoseconds since its zero, the same in all of its processes.
type clock struct {
	zero int64
	// base and at are one instant by Go's clock and by the shared one. Go's monotonic readings go by the same hardware, so what a lock says
	// of its end can be written in the run's time.
	base time.Time
	at   int64
}

func newClock(zero int64) clock {
	c := clock{zero: zero}
	// A process that is stopped between the readings would shift all that it says, so the closest of many count. What they lie apart makes ends
	// of leases earlier, never later.
	best := int64(1 << 62)
	for range 1000 {
		before := monotonic()
		base := time.Now()
		if gap := monotonic() - before; gap < best {
			best, c.base, c.at = gap, base, before
		}
	}
	return c
}

func (c clock) now() int64 { return monotonic() - c.zero }

// of converts an instant of this process that carries a monotonic reading.
func (c clock) of(t time.Time) int64 { return c.at + int64(t.Sub(c.base)) - c.zero }
