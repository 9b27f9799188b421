package redlock

import (
	"context"
	"time"

	"github.com/quorumlock/redlock/internal/tick"
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
// granted and others refused. Where a node is silent the others give back only after the
// timeout per node, and the answers then may take as long again.
func (l *Lock) waitAcquire(ctx context.Context) (verdict, error) {
	r := &l.attempt.Load().round
	v, cut := r.wait(ctx, l.clock, l.life.closing, verdictOpen)
	pause, took := time.Duration(0), time.Duration(0)
	end := r.start.Add(2 * l.terms.NodeTimeout)
	for try := 0; try < tieTries && cut == nil && v != verdictGranted && r.mayAskAgain(); try++ {
		// All who refuse are asked at once, or the last of them would be asked too seldom.
		if v, cut = l.await(ctx, r); cut != nil || v == verdictGranted {
			break
		}
		if try == 0 {
			took = r.slowestAnswer()
			pause = max(took/2, leastTiePause) // until the others' releases have arrived
		}
		if pause+pause/2+took > l.clock.Now().Until(end) {
			break
		}
		if cut = l.pause(ctx, pause/2+l.clock.Jitter(pause)); cut != nil {
			break
		}
		l.askAgain(end)
		v, cut = r.wait(ctx, l.clock, l.life.closing, verdictOpen)
	}
	return v, cut
}

// askAgain sends the SET again to the nodes that refused it, with the same token.
//
// A node that refused has nothing of ours, and no request of ours is on its way there, so
// to it this is like a first SET. That ends with the first release: one of the same token
// must never meet a later SET. So no release may have been sent, and nodes of which no
// answer is known are left alone.
func (l *Lock) askAgain(end tick.Instant) {
	r := &l.attempt.Load().round
	now := l.clock.Now().Mono
	deadline := min(now+int64(l.terms.NodeTimeout), end.Mono)
	for _, i := range r.reopen() {
		l.lane(i).Again(&r.seats[i].call, deadline, now)
	}
}
