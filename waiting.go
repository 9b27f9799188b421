package redlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/internal/tick"
)

const (
	// firstNews is after what time Hooks.Waiting hears of a wait again. From then on it hears
	// each time that the wait has become twice as long, or rarestNews has passed: a wait of
	// days, as that of a leader's deputy, must not fill a log.
	firstNews  = time.Second
	rarestNews = time.Hour
)

// toldWait is a wait of which Hooks.Waiting is told. There is none without such a hook. It
// tells what the acquire has learned for itself, and asks no node.
type toldWait struct {
	resource *resource
	caller   context.Context
	id       uint64
	start    tick.Instant // of the call
	since    tick.Instant

	// mu guards what follows; queues.mu may be taken under it.
	mu       sync.Mutex
	w        *waiter // nil for one that polls
	attempts int
	reason   error
	polled   holding    // of one that polls
	timer    tick.Timer // nil until the hook was told for the first time
	ended    bool
	telling  chan struct{} // closed when the hook that runs has returned; nil: none runs
}

var waitIDs atomic.Uint64

// learn takes note of why the acquire waits.
func (t *toldWait) learn(w *waiter, attempts int, reason error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.w, t.attempts, t.reason = w, attempts, reason
}

// waitsAs takes note of the waiter that asks for it.
func (t *toldWait) waitsAs(w *waiter) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.w = w
}

// polledFor takes note of what the nodes said to one that polls.
func (t *toldWait) polledFor(last *QuorumError, now tick.Instant) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.polled = holding{at: now, ttl: last.HolderTTL}
	for _, o := range last.Outcomes {
		if t.polled.holder = holderOf(o.Holder); t.polled.holder != "" {
			break
		}
	}
}

// goOn has the hook told again in d.
func (t *toldWait) goOn(d time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.ended:
	case t.timer == nil:
		t.timer = t.resource.clock.AfterFunc(d, t.again)
	default:
		t.timer.Reset(d)
	}
}

// again tells the hook that the wait goes on.
func (t *toldWait) again() {
	t.mu.Lock()
	if t.ended {
		t.mu.Unlock()
		return
	}
	told := make(chan struct{})
	t.telling = told
	t.mu.Unlock()
	defer close(told)
	info := t.info(t.resource.clock.Now())
	defer t.goOn(min(max(info.Waited, firstNews), rarestNews))
	t.resource.opts.Hooks.Waiting(t.caller, info)
}

// end returns when the hook will not be told any more. So it never hears of a wait after
// Hooks.Acquired has heard of its end.
func (t *toldWait) end() {
	if t == nil {
		return
	}
	t.mu.Lock()
	t.ended = true
	if t.timer != nil {
		t.timer.Stop()
	}
	telling := t.telling
	t.mu.Unlock()
	if telling != nil {
		<-telling
	}
}

func (t *toldWait) info(now tick.Instant) WaitInfo {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := WaitInfo{
		Key: t.resource.key, Mode: t.resource.terms.mode(), WaitID: t.id,
		Attempts: t.attempts, Start: t.start.Time, WaitStart: t.since.Time, Waited: now.Since(t.since), Err: t.reason, Ahead: -1,
	}
	seen := t.polled
	if t.w != nil {
		heard, ahead := t.w.seen()
		if i.Ahead = ahead; heard.at.Mono >= seen.at.Mono {
			seen = heard
		}
	}
	if seen.at != (tick.Instant{}) {
		i.AsOf, i.Holder, i.HolderTTL = seen.at.Time, seen.holder, max(seen.ttl-now.Since(seen.at), 0)
	}
	return i
}

// waitID is that of AcquireInfo.
func (t *toldWait) waitID() uint64 {
	if t == nil {
		return 0
	}
	return t.id
}
