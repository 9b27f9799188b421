package redlock

import (
	"time"

	"github.com/quorumlock/redlock/internal/tick"
)

// A lock that others shall not have for a while yet, although it was released.

// minHoldLeft is how long WithMinHold keeps a lock that is held from others; the caller holds
// mu. The wall clock has no say: one that is set ahead would end it.
func (l *Lock) minHoldLeft(now tick.Instant) time.Duration {
	if l.terms.minHold == 0 || l.over != nil {
		return 0
	}
	return max(0, time.Duration(l.grantedAt.Mono-now.Mono)+l.terms.minHold)
}

// mayLand reports whether a SET of ours may still put our value on a node; the caller holds mu.
func (l *Lock) mayLand(i int) bool {
	return !l.granted(i) || l.repairs != nil && l.repairs[i] != nil
}
