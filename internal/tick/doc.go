// Package tick is the time as this library sees it: instants on two clocks, timers, and alarms
// that are cheap to set. Nothing else asks the machine for the time or sets a timer.
//
// A lease must end when either clock of the machine says so. The monotonic clock cannot be set, but
// it stands still while the machine sleeps; the wall clock goes on, but can be set back. [Instant] is
// a reading of both, and [Instant.Until] is what the more pessimistic one of them says.
//
// What it promises upwards: a [Clock] is safe for concurrent use, and calls the functions that it is
// given on goroutines of their own with no mutex held. It expects nothing downwards. It has no mutex:
// an [Alarm] belongs to its owner, and needs the owner's mutex for every method.
//
// A simulation implements [Clock] to repeat a run: Yield is where it decides which goroutine goes on,
// and Jitter is the library's only source of random times.
package tick
