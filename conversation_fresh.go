package redlock

import (
	"context"
	"slices"
	"time"
)

// Where conversations come from: those that lie idle, and fresh ones, of which one at a
// time is tried.

// take returns a conversation for a batch, which has begun. It waits no longer than bound.
func (cs *conversations) take(patience, bound time.Duration, left func()) (*conversation, error) {
	start := cs.clock.now()
	for {
		cv := cs.takeIdle(start, patience, bound)
		switch {
		case cv == nil:
			left()
			return cs.takeNew(start.mono, patience, bound)
		case cv.flow.alive():
			return cv, nil
		}
		// Nothing was out on it, so nothing of it can land.
		cs.drop(cv)
	}
}

// takeIdle is the conversation that was used last, since it is the likeliest to be alive;
// nil if none is idle.
func (cs *conversations) takeIdle(at instant, patience, bound time.Duration) *conversation {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.patience = patience
	if len(cs.idle) == 0 || cs.closed {
		return nil
	}
	cv := cs.popIdle()
	cs.beginLocked(cv, at, patience, bound)
	return cv
}

// popIdle takes out the one that was used last; the caller holds mu, and there is one.
func (cs *conversations) popIdle() *conversation {
	last := len(cs.idle) - 1
	cv := cs.idle[last]
	cs.idle[last] = nil
	cs.idle = cs.idle[:last]
	return cv
}

// takeNew is a new conversation, or one that comes free while it is waited for.
func (cs *conversations) takeNew(start int64, patience, bound time.Duration) (*conversation, error) {
	cv, err := cs.await(bound, 0, false)
	if err != nil {
		return nil, err
	}
	if now := cs.begin(cv, patience, bound); now-start >= int64(patience) {
		cs.putBack(cv)
		return nil, errTooLate // connecting took so long that nobody waits any more
	}
	return cv, nil
}

// await waits for a conversation for at most limit. One that lies idle will do if it was
// answered after since.
func (cs *conversations) await(limit time.Duration, since int64, settles bool) (*conversation, error) {
	cs.mu.Lock()
	if cs.closed {
		cs.mu.Unlock()
		return nil, errClosed
	}
	if last := len(cs.idle) - 1; last >= 0 && cs.idle[last].answeredAt > since {
		cv := cs.popIdle()
		if settles {
			cs.killing++
		}
		cs.mu.Unlock()
		return cv, nil
	}
	cs.asked++
	tk, id := &taker{got: make(chan *conversation, 1), settles: settles}, cs.asked%256
	at := len(cs.takers)
	if settles {
		at = 0
	}
	cs.takers = slices.Insert(cs.takers, at, tk)
	if !settles || cs.killing == 0 {
		cs.refresh()
	}
	cs.mu.Unlock()
	t := cs.clock.afterFunc(limit, func() { cs.refuse(errTimeout, func(o *taker) bool { return o == tk }) })
	cv := <-tk.got
	t.Stop()
	cs.clock.yield(8 + id)
	if cv == nil {
		return nil, tk.err
	}
	return cv, nil
}

// refuse tells those who wait that there is no conversation for them.
func (cs *conversations) refuse(why error, whom func(*taker) bool) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	cs.refuseLocked(why, whom)
}

func (cs *conversations) refuseLocked(why error, whom func(*taker) bool) {
	cs.takers = slices.DeleteFunc(cs.takers, func(tk *taker) bool {
		if whom(tk) {
			tk.err = why
			close(tk.got)
			return true
		}
		return false
	})
}

// putBack ends a batch of a conversation, and hands that to whoever waits for one, or keeps
// it.
func (cs *conversations) putBack(cv *conversation) {
	cs.mu.Lock()
	now := cs.clock.now().mono
	cs.endLocked(cv)
	aged := cs.habits.life > 0 && now >= cv.agedAt
	keep := !cs.closed && !cv.over && !cs.isReplaced(cv) && !(aged && len(cs.idle) > 0)
	if keep {
		cs.hand(cv, now)
	}
	if keep && aged {
		// It serves until the other one has been answered, so that no batch waits for that.
		cv.agedAt = now + int64(lastRedial)
		cs.refresh()
	}
	cs.mu.Unlock()
	if !keep {
		cv.flow.close()
	}
}

// hand hands over or keeps a conversation that is surely of use; the caller holds mu.
func (cs *conversations) hand(cv *conversation, now int64) {
	if cs.endsUndead(cv, now) {
		go cs.endUndead(cv)
		return
	}
	if len(cs.takers) > 0 {
		tk := cs.takers[0]
		cs.takers = slices.Delete(cs.takers, 0, 1)
		if tk.settles {
			cs.killing++
		}
		tk.got <- cv
		return
	}
	cv.answeredAt = now
	cs.idle = append(cs.idle, cv)
	if len(cs.idle) > cs.habits.keep {
		cs.expiry.set(now+int64(cs.habits.idle), now)
	}
}

// expire ends conversations that were idle for long.
func (cs *conversations) expire() {
	now := cs.clock.now().mono
	var over []*conversation
	cs.mu.Lock()
	cs.expiry.rang()
	for len(cs.idle) > cs.habits.keep {
		// The first one is the one that has been idle for longest.
		if due := cs.idle[0].answeredAt + int64(cs.habits.idle); now < due {
			cs.expiry.set(due, now)
			break
		}
		over = append(over, cs.idle[0])
		cs.idle = slices.Delete(cs.idle, 0, 1)
	}
	cs.mu.Unlock()
	for _, cv := range over {
		cv.flow.close()
	}
}

// refresh sees to it that a fresh conversation is on its way; the caller holds mu.
func (cs *conversations) refresh() {
	if !cs.trying && !cs.closed {
		cs.trying = true
		go cs.fresh()
	}
}

// fresh tries to get a fresh conversation until one is answered, or nobody needs one.
func (cs *conversations) fresh() {
	cs.clock.yield(6)
	t := trial{cs: cs, wait: firstRedial, pause: minBackoff}
	cs.mu.Lock()
	t.flow, cs.spare = cs.spare, nil
	cs.mu.Unlock()
	for {
		cv, err := t.once()
		if cv != nil {
			cs.arrive(cv, &t)
			return
		}
		if !cs.goOn(&t, err) {
			return
		}
		if !t.timedOut {
			cs.sleep(t.pause)
			t.pause = min(2*t.pause, maxBackoff)
		}
	}
}

// trial is what fresh knows of its tries.
type trial struct {
	cs       *conversations
	flow     flow // to be asked again; nil: none
	wait     time.Duration
	pause    time.Duration
	timedOut bool // the last try was given up
	sentAt   int64
	doneAt   int64
}

// once connects, unless that was done, and asks who answers.
func (t *trial) once() (*conversation, error) {
	cs := t.cs
	cs.mu.Lock()
	patience := cs.patience
	cs.mu.Unlock()
	wait := max(t.wait, min(2*patience, lastRedial))
	t.timedOut = false
	if t.flow != nil && !t.flow.alive() {
		t.flow.close()
		t.flow = nil
	}
	if t.flow == nil {
		f, err := cs.dialer.dial(cs.ctx)
		cs.clock.yield(3)
		if err != nil {
			return nil, err
		}
		t.flow, t.wait = f, min(2*t.wait, lastRedial)
	}
	f := t.flow
	cv := &conversation{flow: f}
	timer := cs.clock.afterFunc(wait, f.close)
	stop := context.AfterFunc(cs.ctx, f.close)
	cv.askedAt = cs.clock.now()
	t.sentAt, cv.agedAt = cv.askedAt.mono, cv.askedAt.mono+int64(cs.habits.life)
	s, err := f.ask()
	t.doneAt = cs.clock.now().mono
	cs.clock.yield(4)
	if err == nil {
		cs.learn(cv, s)
	}
	stop()
	if !timer.Stop() {
		f.close()
		t.flow, t.timedOut = nil, true
		return nil, errTimeout
	}
	if err == nil {
		t.flow = nil
		return cv, nil
	}
	if !isServerError(err) || elsewhere(err) {
		f.close()
		t.flow = nil
	}
	return nil, err
}

// arrive hands a fresh conversation over. Those that are overdue and stay silent from now
// on are over.
func (cs *conversations) arrive(cv *conversation, t *trial) {
	now := cs.clock.now().mono
	cs.mu.Lock()
	cs.trying, cs.busy = false, false
	if cs.closed {
		cs.mu.Unlock()
		cv.flow.close()
		return
	}
	cs.freshSent, cs.roundTrip = t.sentAt, time.Duration(t.doneAt-t.sentAt)
	for _, o := range cs.out {
		if o.busy && now >= o.overdueAt && o.suspectAt == 0 {
			cs.suspect(o, now)
		}
	}
	cs.hand(cv, now)
	// Those that want to end others share this one.
	if slices.ContainsFunc(cs.takers, func(tk *taker) bool { return !tk.settles }) {
		cs.refresh()
	}
	cs.mu.Unlock()
}

// goOn tells those who wait what came of a try, and reports whether to try again.
func (cs *conversations) goOn(t *trial, err error) bool {
	now := cs.clock.now().mono
	cs.mu.Lock()
	cs.busy = isServerError(err) && !permanent(err) && !t.timedOut
	switch {
	case t.timedOut:
		// The server may only hang: those that wait go on waiting.
	case isServerError(err):
		// It lives. Time mends this, and whoever wants to end another conversation waits
		// for it; a batch is told.
		cs.refuseLocked(err, func(tk *taker) bool { return !tk.settles })
	default:
		cs.refuseLocked(err, func(*taker) bool { return true })
	}
	overdue := slices.ContainsFunc(cs.out, func(o *conversation) bool { return now >= o.overdueAt })
	if !cs.closed && (overdue || len(cs.takers) > 0) {
		cs.mu.Unlock()
		return true
	}
	cs.trying = false
	f := t.flow
	if f != nil && !cs.closed {
		cs.spare, f = f, nil
	}
	cs.mu.Unlock()
	if f != nil {
		f.close()
	}
	return false
}

// sleep waits for d, or until the conversations are closed.
func (cs *conversations) sleep(d time.Duration) {
	over := make(chan struct{})
	t := cs.clock.afterFunc(d, func() { close(over) })
	select {
	case <-over:
	case <-cs.ctx.Done():
		t.Stop()
	}
	cs.clock.yield(5)
}

// greet opens the first conversation and tells the run id of who answers, empty where the
// server does not say. It fails where nobody answers, or refuses to serve us.
func (cs *conversations) greet(ctx context.Context, limit time.Duration) (runID string, err error) {
	cs.mu.Lock()
	cs.patience = limit
	cs.mu.Unlock()
	stop := context.AfterFunc(ctx, func() { cs.refuse(ctx.Err(), func(*taker) bool { return true }) })
	defer stop()
	cv, err := cs.await(limit, 0, false)
	if err != nil {
		return "", err
	}
	cs.putBack(cv)
	return cv.who.runID, nil
}
