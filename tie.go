package redlock

import (
	"context"
	"time"
)

// Ties. Of several that ask for a free lock at the same moment each may get a minority, and
// if all gave theirs back, nobody would have the lock. One node decides between them: its
// grant goes to one attempt only. That attempt keeps its grants and asks the nodes that
// refused it again, and all others give theirs back. docs/design.md says why this is safe.

const (
	// tieTries is how often nodes that refused are asked again. The others have given back
	// after the first or the second pause, or it is a holder who refuses us.
	tieTries = 2
	// leastTiePause is the least that the others are given to give back.
	leastTiePause = 500 * time.Microsecond
)

// waitAcquire waits for the verdict on an attempt, and asks again where the tie-breaker has
// granted and others refused. All of it ends within the timeout per node.
func (l *Lock) waitAcquire(ctx context.Context) (v verdict, cut error) {
	r := &l.acquiring
	v, cut = r.wait(ctx, l.clock, l.life.closing, verdictOpen)
	if cut != nil || v == verdictGranted || !r.mayAskAgain() {
		return v, cut
	}
	took := l.clock.now().since(r.start)
	pause := max(took/2, leastTiePause) // until the others' releases have arrived
	for range tieTries {
		if l.clock.now().since(r.start)+pause+pause/2+took > l.terms.nodeTimeout {
			break // the answers would come too late
		}
		if cut = l.pause(ctx, pause/2+l.clock.jitter(pause)); cut != nil {
			return v, cut
		}
		l.askAgain()
		if v, cut = r.wait(ctx, l.clock, l.life.closing, verdictOpen); cut != nil || v == verdictGranted {
			break
		}
	}
	return v, cut
}

// askAgain sends the SET again to the nodes that refused it, with the same token.
//
// A node that refused has nothing of ours and no request of ours, so to it this is like a
// first SET. That ends with the first release: one of the same token must never meet a
// later SET. So no release may have been sent, and nodes of which no answer is known are
// left alone.
func (l *Lock) askAgain() {
	r := &l.acquiring
	now := l.clock.now().mono
	for _, i := range r.reopen() {
		c := &r.seats[i].call
		req := c.req
		*c = call{} // the lane is done with it
		r.address(i, req)
		l.lane(i).enqueue(c, now)
	}
}
