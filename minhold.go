package redlock

import "time"

// A lock that others shall not have for a while yet, although it was released.

// minHoldLeft is how long WithMinHold keeps a lock that is held from others; the caller holds
// mu. The wall clock has no say: one that is set ahead would end it.
func (l *Lock) minHoldLeft(now instant) time.Duration {
	if l.terms.minHold == 0 || l.over != nil {
		return 0
	}
	return max(0, time.Duration(l.grantedAt.mono-now.mono)+l.terms.minHold)
}

// sendKeep has the keys last for what is left, in place of a release; the caller holds mu. It
// returns nil without randomness for a token.
//
// They go to a value that nobody has, as by an Adopt without a holder. So what we sent before,
// and comes late, finds nothing of ours, and the lease may become shorter, which an extend must
// never make it. The node that is not reached has the key for as long as the lease lasts.
func (l *Lock) sendKeep(start instant, left time.Duration) *round {
	value, err := l.tokens.newValue(l.terms.owner)
	if err != nil {
		return nil
	}
	terms := l.terms
	terms.ttl = left + allowance(left, l.opts.DriftFactor)
	req := keepRequest(&terms, l.name, value, l.token)
	req.readBound = l.longest
	r := new(round)
	r.guard = l.guard
	r.init(start, make([]seat, len(l.nodes)))
	return l.send(r, req)
}

// mayLand reports whether a SET of ours may still put our value on a node; the caller holds mu.
func (l *Lock) mayLand(i int) bool {
	return !l.granted(i) || l.repairs != nil && l.repairs[i] != nil
}
