package conn

import (
	"slices"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// How conversations end: those that are overdue are looked after, and of those that are
// over it is made certain that nothing of them will be executed any more.

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
	cv.rolesTurn = at.Reached(cs.roleAt.Add(roleEvery)) // by either clock: one of them stands still while a machine sleeps
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
		o.flow.Close() // so that its exchange returns
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

// settle makes certain that nothing of a conversation that is over will be executed any
// more. It reports false where it cannot: within patience, or for as long as the server says
// only that it is busy, within bound. Until it serves us again, nothing else can be had
// there anyway, and what was sent may be read as soon as it does.
func (cs *Conversations) settle(old *conversation, patience, bound time.Duration) (settled bool) {
	cs.Mu.Lock()
	// Without a run id the fresh one may be with another process, in which that id is another client's.
	hopeless := cs.noKill || cs.closed || old.who.RunID == "" || old.who.ClientID == 0
	cs.Mu.Unlock()
	if hopeless {
		return false
	}
	start := cs.clock.Now().Mono
	deadline := start + int64(max(patience, bound))
	for pause := lane.MinBackoff; ; pause = min(2*pause, lane.MaxBackoff) {
		left := time.Duration(deadline - cs.clock.Now().Mono)
		if left <= 0 {
			break
		}
		fresh, err := cs.await(min(left, patience), old.askedAt.Mono, true)
		if err != nil && cs.isBusy() {
			continue
		}
		if err != nil {
			break
		}
		settled, lives := cs.outlive(old, fresh, patience, deadline)
		if settled {
			return true
		}
		if lives || cs.clock.Now().Mono-start >= int64(patience) {
			break
		}
		cs.sleep(pause)
	}
	cs.killLater(old)
	return false
}

// isBusy reports whether the server answered the last fresh conversation that it could not
// serve it at present.
func (cs *Conversations) isBusy() bool {
	cs.Mu.Lock()
	defer cs.Mu.Unlock()
	return cs.busy && !cs.closed
}

// outlive ends a conversation over another one, which came later. Lives: that one is of
// further use.
func (cs *Conversations) outlive(old, fresh *conversation, patience time.Duration, deadline int64) (settled, lives bool) {
	defer cs.killed()
	if fresh.who.RunID != old.who.RunID {
		// The process is gone, with all that it had not read. Client ids start again with
		// the next one: what has this one now is another client.
		cs.putBack(fresh)
		return fresh.who.RunID != "", true
	}
	now := cs.clock.Now().Mono
	cs.begin(fresh, patience, max(patience, time.Duration(deadline-now)))
	settled, lives = cs.kill(old, fresh, deadline)
	cs.putBackIf(lives, fresh)
	return settled, lives
}

func (cs *Conversations) putBackIf(lives bool, cv *conversation) {
	if lives {
		cs.putBack(cv)
	} else {
		cs.drop(cv)
	}
}

// killLater has a conversation ended later that could not be ended in time: over the next one
// that comes free. Its batch has returned by then, so this only makes it less likely that
// something of it is left behind.
func (cs *Conversations) killLater(old *conversation) {
	cs.Mu.Lock()
	defer cs.Mu.Unlock()
	if !cs.noKill && !cs.closed && len(cs.unkilled) < mostUnkilled {
		cs.unkilled = append(cs.unkilled, old)
	}
}

const (
	mostUnkilled = 64
	// unkilledFor is for how long it is worth to end what lingers. It covers the TTL of most
	// locks.
	unkilledFor = int64(lane.LongestRead)
)

// endsUnkilled reports whether a conversation that comes free is to be used to end those that
// linger; the caller holds mu.
func (cs *Conversations) endsUnkilled(cv *conversation, now int64) bool {
	if len(cs.unkilled) == 0 || now < cs.unkilledAt || cs.noKill {
		return false
	}
	cs.unkilled = slices.DeleteFunc(cs.unkilled, func(old *conversation) bool {
		// Of another process: what that had not read is gone.
		return old.who.RunID != cv.who.RunID || now-old.askedAt.Mono > unkilledFor
	})
	return len(cs.unkilled) > 0
}

// endUnkilled ends those that linger over a conversation that came free, and puts that back.
func (cs *Conversations) endUnkilled(cv *conversation) {
	cs.clock.Yield(7)
	cs.Mu.Lock()
	unkilled := slices.Clone(cs.unkilled)
	patience := cs.patience
	cs.Mu.Unlock()
	now := cs.begin(cv, patience, patience)
	done, lives := 0, true
	for _, old := range unkilled {
		var settled bool
		if settled, lives = cs.kill(old, cv, now); !settled {
			break
		}
		done++
	}
	cs.Mu.Lock()
	cs.unkilled = slices.DeleteFunc(cs.unkilled, func(old *conversation) bool { return slices.Contains(unkilled[:done], old) })
	cs.unkilledAt = cs.clock.Now().Mono + int64(lane.MaxBackoff)
	cs.Mu.Unlock()
	cs.putBackIf(lives, cv)
}

// killed notes that a conversation is not used to end another one any more. Others that
// wanted to end theirs have waited for that one.
func (cs *Conversations) killed() {
	cs.Mu.Lock()
	defer cs.Mu.Unlock()
	if cs.killing--; cs.killing == 0 && len(cs.takers) > 0 {
		cs.refresh()
	}
}

// kill ends a conversation by its id over another one to the same process. Lives: that one
// is of further use.
func (cs *Conversations) kill(old, fresh *conversation, deadline int64) (settled, lives bool) {
	for pause := lane.MinBackoff; ; pause = min(2*pause, lane.MaxBackoff) {
		err := fresh.flow.Kill(old.who.ClientID)
		switch {
		case err == nil:
			return true, true
		case !protocol.IsServerError(err):
			return false, false
		case protocol.Permanent(err):
			cs.Mu.Lock()
			cs.noKill = true
			cs.Mu.Unlock()
			cs.Lacks(noEnd, err)
			return false, true
		}
		// An error, such as BUSY, is no answer: the old one lives and may be read yet.
		if cs.clock.Now().Mono+int64(pause) >= deadline {
			return false, true
		}
		cs.sleep(pause)
	}
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
