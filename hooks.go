package redlock

import (
	"context"
	"sync"
	"time"
)

// Hooks are optional functions that are told what happens, for logs, metrics and traces:
// LogHooks makes some, and JoinHooks one of several. What a nil one would be told is not
// even put together. They run on the goroutine of the caller whose operation ended, or on one of their
// own, never while the library holds a mutex; a slow hook delays only that caller, and no renewal.
// They must be safe for concurrent use, and must not call Redlock.Close, which waits for the
// operation that they were told of.
type Hooks struct {
	// Acquired is called when TryAcquire, Acquire or Do got its lock or gave up.
	Acquired func(AcquireInfo)
	// Extended is called after each extend, by hand or by renewal.
	Extended func(ExtendInfo)
	// Released is called after the first Release of a lock.
	Released func(ReleaseInfo)
	// Lost is called once when a lock is found to be lost before it was released.
	Lost func(LostInfo)
	// NodeDown is called when a node stops answering, NodeUp when it answers again, for
	// each node in the order in which it happened.
	NodeDown func(NodeInfo)
	NodeUp   func(NodeInfo)
	// Degraded is called once per node and feature when a node denies something that
	// the library can do without, at the price of what DegradedInfo.Lacks says.
	Degraded func(DegradedInfo)
}

// AcquireInfo tells how an acquire ended. The Context of this and the others is there for
// the values that it carries, such as a trace; it may be over. Outcomes are shared with
// other hooks and with Err, so they must not be changed.
type AcquireInfo struct {
	Context  context.Context // given to TryAcquire, Acquire or Do
	Key      string
	Token    string // empty if Err is set
	Attempts int    // rounds in which the nodes were asked for the lock
	Start    time.Time
	Elapsed  time.Duration
	// WaitStart is when the first attempt was refused, or when it went to the line before
	// any; zero if it did not wait. Waited is from then until the last attempt began or
	// the acquire gave up: in line, in pauses, and in attempts in between.
	WaitStart time.Time
	Waited    time.Duration
	Until     time.Time // end of validity; zero if Err is set
	// Outcomes are the nodes' votes as known now, in the order of Redlock.Nodes: those
	// of the last attempt. It is nil where no node was asked.
	Outcomes []Outcome
	Err      error
}

// ExtendInfo tells how an extend ended.
type ExtendInfo struct {
	// Context is that given to Extend; for a renewal, one that carries the values of
	// the acquire's and does not end.
	Context    context.Context
	Key, Token string
	TTL        time.Duration
	Renewal    bool // by the library itself
	Start      time.Time
	Elapsed    time.Duration
	Until      time.Time // end of validity, moved or not
	Outcomes   []Outcome // nil where no node was asked
	Err        error
}

// ReleaseInfo tells how a release ended.
type ReleaseInfo struct {
	Context    context.Context // given to Release
	Key, Token string
	Held       time.Duration // since the grant
	Start      time.Time
	Elapsed    time.Duration
	Outcomes   []Outcome // VoteGranted: the node confirmed it
	Err        error
}

// LostInfo tells of a lost lock.
type LostInfo struct {
	// Context carries the values of the acquire's, and does not end.
	Context    context.Context
	Key, Token string
	Err        error // wraps ErrLost
}

// NodeInfo tells of a change in how a node answers.
type NodeInfo struct {
	Node string
	Err  error // what it failed with; nil for NodeUp
}

// DegradedInfo tells what goes less well on a node than it could.
type DegradedInfo struct {
	Node  string
	Lacks string // what is missing and what that means
	Err   error  // what the node said
}

// copied is what becomes of Options.Hooks. Any of its functions may be nil: what they
// would be told is then not put together.
func (h *Hooks) copied() *Hooks {
	if h == nil {
		return new(Hooks)
	}
	c := *h
	return &c
}

// JoinHooks makes hooks that call those given one after the other, in their order, so that
// logs and metrics can be had at once. Nil ones are left out. What is changed in the
// arguments afterwards has no effect.
func JoinHooks(all ...*Hooks) *Hooks {
	var j Hooks
	for _, h := range all {
		if h != nil {
			both(&j.Acquired, h.Acquired)
			both(&j.Extended, h.Extended)
			both(&j.Released, h.Released)
			both(&j.Lost, h.Lost)
			both(&j.NodeDown, h.NodeDown)
			both(&j.NodeUp, h.NodeUp)
			both(&j.Degraded, h.Degraded)
		}
	}
	return &j
}

func both[T any](first *func(T), second func(T)) {
	before := *first
	switch {
	case second == nil:
	case before == nil:
		*first = second
	default:
		*first = func(info T) {
			before(info)
			second(info)
		}
	}
}

// inOrder calls functions one after the other, on a goroutine that lasts as long as there
// are any.
type inOrder struct {
	mu      sync.Mutex
	queue   []func()
	running bool
}

func (o *inOrder) do(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.queue = append(o.queue, f)
	if !o.running {
		o.running = true
		go o.run()
	}
}

func (o *inOrder) run() {
	for {
		o.mu.Lock()
		if len(o.queue) == 0 {
			o.running = false
			o.mu.Unlock()
			return
		}
		f := o.queue[0]
		o.queue = o.queue[1:]
		o.mu.Unlock()
		f()
	}
}

// degradations tells Hooks.Degraded once what a node denies.
type degradations struct {
	hooks *Hooks

	mu   sync.Mutex
	told map[string]bool
}

// tell says that a node lacks something, unless it was said before.
func (d *degradations) tell(node, lacks string, err error) {
	d.mu.Lock()
	told := d.told[node+lacks]
	if d.told == nil {
		d.told = make(map[string]bool)
	}
	d.told[node+lacks] = true
	d.mu.Unlock()
	if f := d.hooks.Degraded; f != nil && !told {
		go f(DegradedInfo{Node: node, Lacks: lacks, Err: err})
	}
}

const (
	noGuard   = "the restart guard: whether the node was restarted and forgot locks is not known, so its votes always count"
	noQueue   = "the line of waiters: they poll instead, in no order"
	noPublish = "PUBLISH: waiters are not told of releases and find them by timers"
	noListen  = "SUBSCRIBE: our waiters are not told of releases and find them by timers"
)
