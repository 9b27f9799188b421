package conn

import (
	"slices"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// How conversations end, and how those that are overdue are looked after.

// begin notes that a conversation is in use.
func (cs *Conversations) begin(cv *conversation, patience, bound time.Duration) (now int64) {
	cs.Mu.Lock()
	defer cs.Mu.Unlock()
	at := cs.clock.Now()
	cs.beginLocked(cv, at, patience, bound)
	return at.Mono
}

func (cs *Conversations) beginLocked(cv *conversation, at tick.Instant, patience, bound time.Duration) {
	now := at.Mono
	cv.busy, cv.suspectAt, cv.askedAt = true, 0, at
	cv.overdueAt, cv.overAt = now+int64(patience), now+int64(max(patience, bound))
	cs.out = append(cs.out, cv)
	if cs.closed {
		go cv.flow.Close()
		return
	}
	cv.looksTurn = at.Reached(cs.lookedAt.Add(lookEvery)) // by either clock: one of them stands still while a machine sleeps
	if cv.watch.F == nil {
		cv.watch = tick.Alarm{Clock: cs.clock, F: func() { cs.check(cv) }}
	}
	cv.watch.Set(cv.overdueAt, now)
}

// endLocked is the counterpart of beginLocked.
func (cs *Conversations) endLocked(cv *conversation) {
	cv.busy = false
	if i := slices.Index(cs.out, cv); i >= 0 {
		cs.out[i] = cs.out[len(cs.out)-1]
		cs.out[len(cs.out)-1] = nil
		cs.out = cs.out[:len(cs.out)-1]
	}
}

// drop ends a conversation in use that is of no further use.
func (cs *Conversations) drop(cv *conversation) {
	cs.Mu.Lock()
	cs.endLocked(cv)
	cs.Mu.Unlock()
	cv.flow.Close()
}

// check looks after a conversation that is out.
func (cs *Conversations) check(cv *conversation) {
	now := cs.clock.Now().Mono
	cs.Mu.Lock()
	cv.watch.Rang()
	var over []*conversation
	switch {
	case !cv.busy || cs.closed:
	case now >= cv.overAt:
		over = []*conversation{cv} // whatever the server does, nothing waits for it any more
	case now < cv.overdueAt:
		cv.watch.Set(cv.overdueAt, now)
	case cv.suspectAt == 0 && cs.freshSent > cv.askedAt.Mono:
		cs.suspect(cv, now)
	case cv.suspectAt == 0:
		cs.refresh()
		cv.watch.Set(cv.overAt, now) // sooner if the fresh one is answered
	case now < cv.suspectAt:
		cv.watch.Set(cv.suspectAt, now)
	case cv.flow.Heard() != cv.heardThen:
		cs.suspect(cv, now) // slow, and not silent
	default:
		// What silenced it may have silenced those that the server did not answer since, and each would cost a timeout.
		over = append(cs.weed(func(o *conversation) bool { return o.answeredAt <= cs.freshSent }), cv)
	}
	cv.over = cv.over || len(over) > 0
	cs.Mu.Unlock()
	for _, o := range over {
		o.flow.Reset() // so that its exchange returns
	}
}

// suspect gives a conversation that is overdue its last chance, since a fresh one was
// answered; the caller holds mu.
func (cs *Conversations) suspect(cv *conversation, now int64) {
	// Bytes that come from now on show that it is slow, and not silent.
	cv.heardThen = cv.flow.Heard()
	cv.suspectAt = now + int64(cs.silence())
	cv.watch.Set(min(cv.suspectAt, cv.overAt), now)
}

// silence is how long a conversation must be silent after the fresh one's answer. An answer that
// took longer than anything is waited for tells for how long the server hung, and not of the link.
func (cs *Conversations) silence() time.Duration {
	return min(max(cs.roundTrip, leastSilence), cs.patience)
}

// Close ends all conversations, also those that are out.
func (cs *Conversations) Close() {
	cs.Mu.Lock()
	cs.closed = true
	all := slices.Concat(cs.idle, cs.out)
	cs.idle = nil
	for _, tk := range cs.takers {
		tk.err = protocol.ErrClosed
		close(tk.got)
	}
	cs.takers = nil
	for _, cv := range all {
		cv.watch.Stop()
	}
	cs.expiry.Stop()
	f := cs.unidentified
	cs.unidentified = nil
	cs.Mu.Unlock()
	cs.cancel()
	for _, cv := range all {
		cv.flow.Close()
	}
	if f != nil {
		f.Close()
	}
}
