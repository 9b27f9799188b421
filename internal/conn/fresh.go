package conn

import (
	"context"
	"slices"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// Where conversations come from: those that lie idle, and fresh ones, of which one at a
// time is tried.

// take returns a conversation for a batch, which has begun. It waits no longer than bound.
func (cs *Conversations) take(patience, bound time.Duration) (*conversation, error) {
	start := cs.clock.Now()
	for {
		cv := cs.takeIdle(start, patience, bound)
		switch {
		case cv == nil:
			return cs.takeNew(start.Mono, patience, bound)
		case cv.flow.Alive():
			return cv, nil
		}
		// Nothing was out on it, so nothing of it can land.
		cs.drop(cv)
	}
}

// takeIdle is the conversation that was used last, since it is the likeliest to be alive;
// nil if none is idle.
func (cs *Conversations) takeIdle(at tick.Instant, patience, bound time.Duration) *conversation {
	cs.Mu.Lock()
	defer cs.Mu.Unlock()
	cs.patience = patience
	if len(cs.idle) == 0 || cs.closed {
		return nil
	}
	cv := cs.popIdle()
	cs.beginLocked(cv, at, patience, bound)
	return cv
}

// popIdle takes out the one that was used last; the caller holds mu, and there is one.
func (cs *Conversations) popIdle() *conversation {
	last := len(cs.idle) - 1
	cv := cs.idle[last]
	cs.idle[last] = nil
	cs.idle = cs.idle[:last]
	return cv
}

// takeNew is a new conversation, or one that comes free while it is waited for.
func (cs *Conversations) takeNew(start int64, patience, bound time.Duration) (*conversation, error) {
	cv, err := cs.await(bound)
	if err != nil {
		return nil, err
	}
	if now := cs.begin(cv, patience, bound); now-start >= int64(patience) {
		cs.putBack(cv)
		return nil, errSlow // no call waits any more
	}
	return cv, nil
}

// weed takes out those of the idle ones that are of no use any more; the caller holds mu, and closes them without it.
func (p *pool) weed(useless func(*conversation) bool) (out []*conversation) {
	p.idle = slices.DeleteFunc(p.idle, func(cv *conversation) bool {
		if useless(cv) {
			out = append(out, cv)
			return true
		}
		return false
	})
	return out
}

// await waits for a conversation for at most limit.
func (cs *Conversations) await(limit time.Duration) (*conversation, error) {
	cs.Mu.Lock()
	if cs.closed {
		cs.Mu.Unlock()
		return nil, protocol.ErrClosed
	}
	if len(cs.idle) > 0 {
		cv := cs.popIdle()
		cs.Mu.Unlock()
		return cv, nil
	}
	if cs.refusal.left(cs.clock.Now().Mono) > 0 {
		defer cs.Mu.Unlock()
		return nil, cs.refusal.why
	}
	cs.asked++
	tk, id := &taker{got: make(chan *conversation, 1)}, cs.asked%256
	cs.takers = append(cs.takers, tk)
	cs.refresh()
	cs.Mu.Unlock()
	t := cs.clock.AfterFunc(limit, func() { cs.refuse(protocol.ErrTimeout, func(o *taker) bool { return o == tk }) })
	cv := <-tk.got
	t.Stop()
	cs.clock.Yield(8 + id)
	if cv == nil {
		return nil, tk.err
	}
	return cv, nil
}

// refuse tells takers that there is no conversation for them.
func (cs *Conversations) refuse(why error, whom func(*taker) bool) {
	cs.Mu.Lock()
	defer cs.Mu.Unlock()
	cs.refuseLocked(why, whom)
}

func (cs *Conversations) refuseLocked(why error, whom func(*taker) bool) {
	cs.takers = slices.DeleteFunc(cs.takers, func(tk *taker) bool {
		if whom(tk) {
			tk.err = why // read once got is closed, so it needs no mutex there
			close(tk.got)
			return true
		}
		return false
	})
}

// putBack ends a batch of a conversation, and hands that to a taker, or keeps
// it.
func (cs *Conversations) putBack(cv *conversation) {
	cs.Mu.Lock()
	now := cs.clock.Now().Mono
	cs.refusal = pause{} // not sooner: a replica takes greetings, too
	cs.endLocked(cv)
	// Of several the aged one goes at once; the only one waits for its successor.
	aged := cs.habits.Life > 0 && now >= cv.agedAt
	keep := !cs.closed && !cv.over && !cs.isReplaced(cv) && !(aged && len(cs.idle) > 0)
	if keep {
		cs.hand(cv, now)
	}
	if keep && aged {
		// It serves until the other one has been answered, so that no batch waits for that.
		cv.agedAt = now + int64(LastRedial)
		cs.refresh()
	}
	cs.Mu.Unlock()
	if !keep {
		cv.flow.Close()
	}
}

// hand hands over or keeps a conversation that is surely of use; the caller holds mu.
func (cs *Conversations) hand(cv *conversation, now int64) {
	if len(cs.takers) > 0 {
		tk := cs.takers[0]
		cs.takers = slices.Delete(cs.takers, 0, 1)
		tk.got <- cv // which has room for one
		return
	}
	cv.answeredAt = now
	cs.idle = append(cs.idle, cv)
	if len(cs.idle) > cs.habits.Keep {
		cs.expiry.Set(now+int64(cs.habits.Idle), now)
	}
}

// expire ends conversations that were idle for long.
func (cs *Conversations) expire() {
	now := cs.clock.Now().Mono
	var over []*conversation
	cs.Mu.Lock()
	cs.expiry.Rang()
	for len(cs.idle) > cs.habits.Keep {
		// The first one is the one that has been idle for longest.
		if due := cs.idle[0].answeredAt + int64(cs.habits.Idle); now < due {
			cs.expiry.Set(due, now)
			break
		}
		over = append(over, cs.idle[0])
		cs.idle = slices.Delete(cs.idle, 0, 1)
	}
	cs.Mu.Unlock()
	for _, cv := range over {
		cv.flow.Close()
	}
}

// refresh sees to it that a fresh conversation is on its way; the caller holds mu.
func (cs *Conversations) refresh() {
	if !cs.trying && !cs.closed {
		cs.trying = true
		go cs.tryNew()
	}
}

// tryNew tries to get a fresh conversation until one is answered, or none is needed.
func (cs *Conversations) tryNew() {
	cs.clock.Yield(6)
	t := trial{cs: cs, wait: FirstRedial, pause: lane.MinBackoff}
	cs.Mu.Lock()
	t.flow, cs.unidentified = cs.unidentified, nil
	cs.Mu.Unlock()
	for {
		cs.awaitRefusal()
		cv, err := t.once()
		if cv != nil {
			cs.arrive(cv, &t)
			return
		}
		if !cs.goOn(&t, err) {
			return
		}
		if !t.timedOut && !protocol.IsServerError(err) { // which took long enough, or has a pause of its own
			cs.sleep(t.pause)
			t.pause = min(2*t.pause, lane.MaxBackoff)
		}
	}
}

// trial is what tryNew knows of its tries.
type trial struct {
	cs       *Conversations
	flow     Flow // to be asked again; nil: none
	wait     time.Duration
	pause    time.Duration
	timedOut bool // the last try was given up
	doneAt   int64
}

// once connects, unless that was done, and asks which server answers.
func (t *trial) once() (*conversation, error) {
	cs := t.cs
	cs.Mu.Lock()
	patience := cs.patience
	cs.Mu.Unlock()
	// A lane that is patient has a slow link, over which a greeting takes two round trips and more.
	wait := max(t.wait, min(2*patience, LastRedial))
	t.timedOut = false
	if t.flow != nil && !t.flow.Alive() {
		t.flow.Close()
		t.flow = nil
	}
	if t.flow == nil {
		f, err := cs.dialer.Dial(cs.ctx)
		cs.clock.Yield(3)
		if err != nil {
			return nil, err
		}
		t.flow, t.wait = f, min(2*t.wait, LastRedial)
	}
	f := t.flow
	cv := &conversation{flow: f}
	// Closing is the only way to end a read.
	timer := cs.clock.AfterFunc(wait, f.Close)
	stop := context.AfterFunc(cs.ctx, f.Close)
	cv.askedAt = cs.clock.Now()
	cv.agedAt = cv.askedAt.Mono + int64(cs.habits.Life)
	s, err := f.Ask()
	t.doneAt = cs.clock.Now().Mono
	cs.clock.Yield(4)
	if err == nil {
		cs.learn(cv, s) // before a batch uses it, since answers are judged by what a server said of itself
	}
	stop()
	// The timer has closed the flow, whatever was answered in the last moment.
	if !timer.Stop() {
		f.Close()
		t.flow, t.timedOut = nil, true
		return nil, protocol.ErrTimeout
	}
	if err == nil {
		t.flow = nil
		return cv, nil
	}
	// A server that answers LOADING is asked again over the same flow. What sends clients elsewhere, or lasts,
	// takes another one: the name may lead elsewhere by then.
	if _, lasts := protocol.RemedyOf(err); lasts || !protocol.IsServerError(err) || elsewhere(err) {
		f.Close()
		t.flow = nil
	}
	return nil, err
}

// arrive hands a fresh conversation over. Those that are overdue and stay silent from now
// on are over: the answer to the fresh one shows that the server runs and can be reached, so what is
// wrong is wrong with their connections alone.
func (cs *Conversations) arrive(cv *conversation, t *trial) {
	now := cs.clock.Now().Mono
	cs.Mu.Lock()
	cs.trying = false
	if cs.closed {
		cs.Mu.Unlock()
		cv.flow.Close()
		return
	}
	// From when it was asked, as the server may have read other connections before this one was there.
	cs.freshSent, cs.roundTrip = cv.askedAt.Mono, time.Duration(t.doneAt-cv.askedAt.Mono)
	for _, o := range cs.out {
		if o.busy && now >= o.overdueAt && o.suspectAt == 0 {
			cs.suspect(o, now)
		}
	}
	cs.hand(cv, now)
	if len(cs.takers) > 0 {
		cs.refresh()
	}
	cs.Mu.Unlock()
}

// goOn tells takers what came of a try, and reports whether to try again.
func (cs *Conversations) goOn(t *trial, err error) bool {
	now := cs.clock.Now().Mono
	cs.Mu.Lock()
	if protocol.IsServerError(err) {
		cs.refusal.failed(cs.clock, err)
	}
	if !t.timedOut { // else the server may only hang, and those that wait go on waiting
		cs.refuseLocked(err, func(*taker) bool { return true })
	}
	// Where a conversation is overdue it is not known without a fresh one whether it is silent by itself.
	overdue := slices.ContainsFunc(cs.out, func(o *conversation) bool { return now >= o.overdueAt })
	if !cs.closed && (overdue || len(cs.takers) > 0) {
		cs.Mu.Unlock()
		return true
	}
	cs.trying = false
	f := t.flow
	// Kept for the next try, or a server that loads for an hour would see a connection for each.
	if f != nil && !cs.closed {
		cs.unidentified, f = f, nil
	}
	cs.Mu.Unlock()
	if f != nil {
		f.Close()
	}
	return false
}

// sleep waits for d, or until the conversations are closed.
func (cs *Conversations) sleep(d time.Duration) {
	over := make(chan struct{})
	t := cs.clock.AfterFunc(d, func() { close(over) })
	select {
	case <-over:
	case <-cs.ctx.Done():
		t.Stop()
	}
	cs.clock.Yield(5)
}

// Greet asks the server for its identity and returns the run id, empty where the server does not say. It fails
// where the server does not answer, or refuses to serve us.
func (cs *Conversations) Greet(ctx context.Context, limit time.Duration) (runID string, err error) {
	start := cs.clock.Now().Mono
	cs.Mu.Lock()
	cs.patience = limit
	cs.Mu.Unlock()
	stop := context.AfterFunc(ctx, func() { cs.refuse(ctx.Err(), func(*taker) bool { return true }) })
	defer stop()
	cv, err := cs.await(limit)
	if err != nil {
		return "", err
	}
	if cv.askedAt.Mono < start { // it lay idle
		cs.begin(cv, limit, limit)
		stop := context.AfterFunc(ctx, cv.flow.Close)
		s, err := cv.flow.Ask()
		if !stop() && err == nil {
			err = ctx.Err()
		}
		if err != nil {
			cs.drop(cv)
			return "", err
		}
		cs.learn(cv, s)
	}
	runID = cv.who.RunID
	cs.putBack(cv)
	return runID, nil
}
