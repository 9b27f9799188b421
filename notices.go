package redlock

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// listenFor is how long a subscription is kept without waiters.
const listenFor = 10 * time.Second

// subscription is that of this process to its channel on one node, shared by all waiters
// in a queue there. queues.mu guards it, and is held by callers of its methods but as said.
type subscription struct {
	queues *queues
	node   int
	users  int
	state  subState
	// publishDenied: we may not publish there, and probably no client may, so nothing will be heard.
	publishDenied bool
	retryAt       int64 // when it is asked for again after it was denied
	ready         chan struct{}
	stop          context.CancelFunc
	idle          tick.Timer
}

// subState is how far a subscription is.
//
//	trying --confirmed--> open --broke--> broken --confirmed--> open
//	trying --failed--> broken
//	trying, open, broken --not allowed--> denied
//
// ready is closed when trying ends.
type subState uint8

const (
	subTrying subState = iota
	subOpen
	subBroken // tried again after a pause
	subDenied
)

// become moves the subscription to another state; the caller holds mu.
func (s *subscription) become(next subState) {
	if s.state == subTrying && next != subTrying {
		close(s.ready)
	}
	s.state = next
}

// subscribe makes the waiter one of the listeners on a node, and waits until the
// subscription is confirmed, so that no notice is lost between joining and listening. It
// does not wait for longer than any request: without notices there are timers.
func (qs *queues) subscribe(ctx context.Context, w *waiter, node int) {
	now := qs.set.clock.Now().Mono
	qs.mu.Lock()
	qs.unsubscribe(w)
	s := qs.subs[node]
	if s == nil || s.state == subDenied && now >= s.retryAt {
		s = qs.listen(node)
	}
	s.users++
	w.sub = s
	waits := s.state == subTrying
	qs.mu.Unlock()
	if !waits {
		return
	}
	over, stop := tick.After(qs.set.clock, w.r.terms.NodeTimeout)
	defer stop()
	select {
	case <-s.ready:
	case <-over:
	case <-ctx.Done():
	case <-qs.set.life.closing:
	}
	qs.set.clock.Yield(w.came)
}

// listen starts a subscription; the caller holds mu.
func (qs *queues) listen(node int) *subscription {
	ctx, stop := context.WithCancel(context.Background())
	s := &subscription{queues: qs, node: node, ready: make(chan struct{}), stop: stop}
	qs.subs[node] = s
	if l, ok := qs.set.lane(node).Wire.(lane.Listener); ok && !qs.closed {
		qs.listening.Go(func() { s.run(ctx, l) })
	} else {
		stop()
		s.become(subBroken)
	}
	return s
}

// run keeps the subscription until it is stopped or denied.
func (s *subscription) run(ctx context.Context, l lane.Listener) {
	defer s.stop()
	tell := lane.Subscriber{Confirmed: s.confirmed, Denied: func(err error) { s.queues.notePublishDenied(s.node, err) }, Heard: s.queues.notice}
	pause := lane.MinBackoff
	for {
		err := l.Listen(ctx, "redlock:"+s.queues.process, tell)
		wasOpen, denied := s.broke(ctx, err)
		if denied {
			s.queues.lacks(s.node, noListen, err)
		}
		if denied || ctx.Err() != nil {
			return
		}
		if wasOpen {
			pause = lane.MinBackoff
		}
		over, stop := tick.After(s.queues.set.clock, pause)
		select {
		case <-over:
		case <-ctx.Done():
			stop()
			return
		}
		pause = min(2*pause, lane.MaxBackoff)
	}
}

// broke notes that the subscription ended, and takes mu for it.
func (s *subscription) broke(ctx context.Context, err error) (wasOpen, denied bool) {
	now := s.queues.set.clock.Now().Mono
	s.queues.mu.Lock()
	defer s.queues.mu.Unlock()
	wasOpen = s.state == subOpen
	mended := s.queues.set.lane(s.node).Mended(err)
	if denied = ctx.Err() == nil && protocol.IsServerError(err) && protocol.Permanent(mended); denied {
		s.become(subDenied)
	} else {
		s.become(subBroken)
	}
	s.retryAt = now + int64(skipFor)
	s.publishDenied = false // the next connection asks again
	return wasOpen, denied
}

// confirmed has the first waiter of each key look: what was said before the server confirmed was not heard. It takes
// mu.
func (s *subscription) confirmed() {
	qs := s.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	s.become(subOpen)
	for _, k := range qs.byKey {
		if k.node == s.node {
			k.pokeFirst()
		}
	}
}

// notice is a message on the process's channel: which of its waiters have the lock reserved. It takes mu.
func (qs *queues) notice(text string) {
	qs.mu.Lock()
	defer qs.mu.Unlock()
	qs.wake(text, nil)
}

// nameLen is how much of its token names a waiter in a notice. The rest stays a secret.
const nameLen = tokenLen / 2

// nameOf is what a waiter with this value is called, or with a token of it.
func nameOf(value string) string { return value[:nameLen] }

// wake wakes the waiters that a notice names, but for one; the caller holds mu. A notice is the name
// of one that wants the lock alone, or the number and the name of each that shares it: see add in
// scripts/line.lua. A name is longer than any number, and scripts of before gave more of the value.
func (qs *queues) wake(text string, but *waiter) {
	first, rest, _ := strings.Cut(text, " ")
	if len(first) >= nameLen {
		qs.wakeOne(text, 0, but)
		return
	}
	for ; rest != ""; first, rest, _ = strings.Cut(rest, " ") {
		var name string
		name, rest, _ = strings.Cut(rest, " ")
		number, _ := strconv.ParseInt(first, 10, 64)
		qs.wakeOne(name, number, but)
	}
}

func (qs *queues) wakeOne(name string, number int64, but *waiter) {
	if len(name) < nameLen {
		return
	}
	if w := qs.byName[nameOf(name)]; w != nil && w != but {
		w.state, w.number, w.of.meeting.rivals = turn, number, nil
		w.poke()
	}
}

// unsubscribe lets go of the waiter's subscription; the caller holds mu. The connection is
// closed when no waiter has wanted it for a while.
func (qs *queues) unsubscribe(w *waiter) {
	s := w.sub
	if s == nil {
		return
	}
	w.sub = nil
	if s.users--; s.users > 0 || qs.closed {
		return
	}
	if s.idle != nil {
		s.idle.Reset(listenFor)
		return
	}
	s.idle = qs.set.clock.AfterFunc(listenFor, s.closeIdle)
}

// closeIdle ends a subscription that no waiter uses. It takes mu.
func (s *subscription) closeIdle() {
	qs := s.queues
	qs.mu.Lock()
	defer qs.mu.Unlock()
	if s.users == 0 {
		s.stop()
		if qs.subs[s.node] == s {
			delete(qs.subs, s.node)
		}
	}
}
