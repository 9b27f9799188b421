package redlock

import (
	"slices"
	"time"
)

// How conversations end: those that are overdue are looked after, and of those that are
// over it is made certain that nothing of them will be executed any more.

// begin notes that a conversation is in use.
func (cs *conversations) begin(cv *conversation, patience, bound time.Duration) (now int64) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	at := cs.clock.now()
	cs.beginLocked(cv, at, patience, bound)
	return at.mono
}

func (cs *conversations) beginLocked(cv *conversation, at instant, patience, bound time.Duration) {
	now := at.mono
	cv.busy, cv.suspectAt, cv.askedAt = true, 0, at
	cv.sentAt, cv.overdueAt, cv.overAt = now, now+int64(patience), now+int64(max(patience, bound))
	cs.out = append(cs.out, cv)
	if cs.closed {
		go cv.flow.close()
		return
	}
	cv.rolesTurn = at.reached(cs.roleAt.add(roleEvery)) // by either clock: one of them stands still while a machine sleeps
	if cv.watch.f == nil {
		cv.watch = alarm{clock: cs.clock, f: func() { cs.check(cv) }}
	}
	cv.watch.set(cv.overdueAt, now)
}

// endLocked is the counterpart of beginLocked.
func (cs *conversations) endLocked(cv *conversation) {
	cv.busy = false
	if i := slices.Index(cs.out, cv); i >= 0 {
		cs.out[i] = cs.out[len(cs.out)-1]
		cs.out[len(cs.out)-1] = nil
		cs.out = cs.out[:len(cs.out)-1]
	}
}

// drop ends a conversation in use that is of no further use.
func (cs *conversations) drop(cv *conversation) {
	cs.mu.Lock()
	cs.endLocked(cv)
	cs.mu.Unlock()
	cv.flow.close()
}

// check looks after a conversation that is out.
func (cs *conversations) check(cv *conversation) {
	now := cs.clock.now().mono
	cs.mu.Lock()
	cv.watch.rang()
	over := false
	switch {
	case !cv.busy || cs.closed:
	case now >= cv.overAt:
		over = true
	case now < cv.overdueAt:
		cv.watch.set(cv.overdueAt, now)
	case cv.suspectAt == 0 && cs.freshSent > cv.sentAt:
		cs.suspect(cv, now)
	case cv.suspectAt == 0:
		cs.refresh()
		cv.watch.set(cv.overAt, now) // sooner if the fresh one is answered
	case now < cv.suspectAt:
		cv.watch.set(cv.suspectAt, now)
	case cv.flow.heard() != cv.heardThen:
		cs.suspect(cv, now) // slow, and not silent
	default:
		over = true
	}
	cv.over = cv.over || over
	cs.mu.Unlock()
	if over {
		cv.flow.close() // so that its exchange returns
	}
}

// suspect gives a conversation that is overdue its last chance, since a fresh one was
// answered; the caller holds mu.
func (cs *conversations) suspect(cv *conversation, now int64) {
	cv.heardThen = cv.flow.heard()
	cv.suspectAt = now + int64(cs.silence())
	cv.watch.set(min(cv.suspectAt, cv.overAt), now)
}

// silence is how long a conversation must be silent after the fresh one's answer.
func (cs *conversations) silence() time.Duration {
	return max(cs.roundTrip, min(cs.patience, leastSilence))
}

// settle makes certain that nothing of a conversation that is over will be executed any
// more. It reports false where it cannot: within patience, or for as long as the server says
// only that it is busy, within bound. Until it serves us again, nothing else can be had
// there anyway, and what was sent may be read as soon as it does.
func (cs *conversations) settle(old *conversation, patience, bound time.Duration) (settled bool) {
	cs.mu.Lock()
	hopeless := cs.noKill || cs.closed || old.who.runID == "" || old.who.clientID == 0
	cs.mu.Unlock()
	if hopeless {
		return false
	}
	start := cs.clock.now().mono
	deadline := start + int64(max(patience, bound))
	for pause := minBackoff; ; pause = min(2*pause, maxBackoff) {
		left := time.Duration(deadline - cs.clock.now().mono)
		if left <= 0 {
			break
		}
		fresh, err := cs.await(min(left, patience), old.sentAt, true)
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
		if lives || cs.clock.now().mono-start >= int64(patience) {
			break
		}
		cs.sleep(pause)
	}
	cs.linger(old)
	return false
}

// isBusy reports whether the server answered the last fresh conversation that it could not
// serve it at present.
func (cs *conversations) isBusy() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.busy && !cs.closed
}

// outlive ends a conversation over another one, which came later. Lives: that one is of
// further use.
func (cs *conversations) outlive(old, fresh *conversation, patience time.Duration, deadline int64) (settled, lives bool) {
	defer cs.killed()
	if fresh.who.runID != old.who.runID {
		// The process is gone, with all that it had not read. Client ids start again with
		// the next one: what has this one now is somebody else.
		cs.putBack(fresh)
		return fresh.who.runID != "", true
	}
	now := cs.clock.now().mono
	cs.begin(fresh, patience, max(patience, time.Duration(deadline-now)))
	settled, lives = cs.kill(old, fresh, deadline)
	cs.putBackIf(lives, fresh)
	return settled, lives
}

func (cs *conversations) putBackIf(lives bool, cv *conversation) {
	if lives {
		cs.putBack(cv)
	} else {
		cs.drop(cv)
	}
}

// linger has a conversation ended later that could not be ended in time: over the next one
// that comes free. Its batch has returned by then, so this only makes it less likely that
// something of it is left behind.
func (cs *conversations) linger(old *conversation) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if !cs.noKill && !cs.closed && len(cs.undead) < mostUndead {
		cs.undead = append(cs.undead, old)
	}
}

const (
	mostUndead = 64
	// undeadFor is for how long it is worth to end what lingers. It covers the TTL of most
	// locks.
	undeadFor = int64(longestRead)
)

// endsUndead reports whether a conversation that comes free is to be used to end those that
// linger; the caller holds mu.
func (cs *conversations) endsUndead(cv *conversation, now int64) bool {
	if len(cs.undead) == 0 || now < cs.undeadAt || cs.noKill {
		return false
	}
	cs.undead = slices.DeleteFunc(cs.undead, func(old *conversation) bool {
		// Of another process: what that had not read is gone.
		return old.who.runID != cv.who.runID || now-old.sentAt > undeadFor
	})
	return len(cs.undead) > 0
}

// endUndead ends those that linger over a conversation that came free, and puts that back.
func (cs *conversations) endUndead(cv *conversation) {
	cs.clock.yield(7)
	cs.mu.Lock()
	undead := slices.Clone(cs.undead)
	patience := cs.patience
	cs.mu.Unlock()
	now := cs.begin(cv, patience, patience)
	done, lives := 0, true
	for _, old := range undead {
		var settled bool
		if settled, lives = cs.kill(old, cv, now); !settled {
			break
		}
		done++
	}
	cs.mu.Lock()
	cs.undead = slices.DeleteFunc(cs.undead, func(old *conversation) bool { return slices.Contains(undead[:done], old) })
	cs.undeadAt = cs.clock.now().mono + int64(maxBackoff)
	cs.mu.Unlock()
	cs.putBackIf(lives, cv)
}

// killed notes that a conversation is not used to end another one any more. Others that
// wanted to end theirs have waited for that one.
func (cs *conversations) killed() {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.killing--; cs.killing == 0 && len(cs.takers) > 0 {
		cs.refresh()
	}
}

// kill ends a conversation by its id over another one to the same process. Lives: that one
// is of further use.
func (cs *conversations) kill(old, fresh *conversation, deadline int64) (settled, lives bool) {
	for pause := minBackoff; ; pause = min(2*pause, maxBackoff) {
		err := fresh.flow.kill(old.who.clientID)
		switch {
		case err == nil:
			return true, true
		case !isServerError(err):
			return false, false
		case permanent(err):
			cs.mu.Lock()
			cs.noKill = true
			cs.mu.Unlock()
			cs.lacks(noEnd, err)
			return false, true
		}
		// An error, such as BUSY, is no answer: the old one lives and may be read yet.
		if cs.clock.now().mono+int64(pause) >= deadline {
			return false, true
		}
		cs.sleep(pause)
	}
}

// close ends all conversations, also those that are out.
func (cs *conversations) close() {
	cs.mu.Lock()
	cs.closed = true
	all := slices.Concat(cs.idle, cs.out)
	cs.idle = nil
	for _, tk := range cs.takers {
		tk.err = errClosed
		close(tk.got)
	}
	cs.takers = nil
	for _, cv := range all {
		cv.watch.stop()
	}
	cs.expiry.stop()
	f := cs.spare
	cs.spare = nil
	cs.mu.Unlock()
	cs.cancel()
	for _, cv := range all {
		cv.flow.close()
	}
	if f != nil {
		f.close()
	}
}
