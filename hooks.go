package redlock

import (
	"context"
	"sync"
	"time"
)

// Hooks are optional functions that the library calls when something happens, for logs,
// metrics and traces. LogHooks returns hooks that log; JoinHooks combines several.
//
// A hook runs on the goroutine of the caller whose operation ended, or on one of its own. A slow hook delays that
// caller only. Hooks must be safe for concurrent use, and must not call Redlock.Close.
//
// The context carries the values of the one given to the call, and may have ended. For a renewal, Detach and Lost it
// has the values of the acquire's, and does not end.
//
// A panic goes on in the caller, and ends the program where the goroutine is the library's; if Acquired
// panics, the lock is released.
type Hooks struct {
	// Acquired is called when a call that acquires a lock (TryAcquire, Acquire, Do, Lead, Adopt)
	// has got it or has given up, before the caller learns of it. It is not called for calls that
	// break a rule (ErrInvalid, ErrNested), nor if the Redlock was closed or ctx had ended before
	// the call.
	Acquired func(ctx context.Context, info AcquireInfo)
	// Waiting is called once when an Acquire, Do or Lead begins to wait. Acquired tells that it is over.
	// It must not wait for the acquire.
	Waiting func(ctx context.Context, info WaitInfo)
	// Extended is called after each extend: by Extend or by renewal. It is also
	// called where no node was asked because the lock was over, ctx had ended or the Redlock was
	// closed, but not for ErrInvalid.
	Extended func(ctx context.Context, info ExtendInfo)
	// Released is called after the first release of a lock, by Release, ReleaseUnused,
	// Do or Lead, and by Detach, without outcomes.
	Released func(ctx context.Context, info ReleaseInfo)
	// Lost is called at most once per lock, when an extend, a renewal, Detach or the timer of a Context finds it
	// lost. A loss that only the release finds, also that of Do, is in ReleaseInfo.Err. A lock that is not extended,
	// and whose Context was never asked for, expires unnoticed.
	Lost func(ctx context.Context, info LostInfo)
	// NodeDown is called when a request to a node gets no answer in time, or no connection can be made, also since code
	// of a client given to New panics; NodeUp is called when the node answers again. The calls for one node come one
	// after the other, in the order of the events; none comes for events after Close.
	NodeDown func(info NodeInfo)
	NodeUp   func(info NodeInfo)
	// NodeBarred is called when a node answers and has no vote: its grants of locks of Options.TTL do not count. It may
	// have forgotten locks, does not tell all that a vote rests on, is a replica, or is the same server as another node.
	// The call comes within a second of the answer that showed it, unless that is over by then, and again when
	// VoteInfo.Until becomes known or another time.
	//
	// NodeVotes is called within a second of when they count again. Where an answer has to show that, the next acquire
	// asks. Of three nodes, one that is barred or down leaves none to spare. Calls for one node come as for NodeDown;
	// with NoRestartGuard none does.
	NodeBarred func(info VoteInfo)
	NodeVotes  func(info VoteInfo)
	// Degraded is called when something is missing that the library can do without, in the same
	// way. DegradedInfo.Kind says what, and Lacks what gets worse. It is called
	//   - once per node and feature, when a node denies something;
	//   - once per key, for the first 1,000 keys, when a waiter sees a lease longer than its own restart guard:
	//     clients use different TTLs.
	Degraded func(info DegradedInfo)
}

// Mode is a way to hold a lock.
type Mode string

const (
	ModeExclusive Mode = "exclusive" // Redlock.Mutex
	ModeShared    Mode = "shared"    // Mutex.Shared
	ModePermit    Mode = "permit"    // Redlock.Semaphore
)

// Degradation is a kind of thing that is missing and that the library can do without.
type Degradation string

const (
	DegradedNotices Degradation = "notices" // PUBLISH or SUBSCRIBE: waiters find releases by timers
	DegradedAccess  Degradation = "access"  // a wrong password or missing permissions: the call waits, or uses other nodes
	DegradedTTL     Degradation = "ttl"     // clients of a key use different TTLs
)

// AcquireInfo describes an acquire that has ended. Other hooks and Err share the Outcomes, so hooks
// must not change them.
type AcquireInfo struct {
	Key      string
	Mode     Mode   // ModeExclusive, ModeShared or ModePermit
	Token    string // empty if Err is set
	Attempts int    // rounds in which the nodes were asked for the lock
	Start    time.Time
	Elapsed  time.Duration
	// WaitID links it to the WaitInfo of its wait; 0 if Hooks.Waiting was not called.
	WaitID uint64
	// WaitStart is when the acquire began to wait: after its first attempt failed, or before
	// any attempt if it joined the queue at once. It is zero if the acquire did not wait.
	// Waited is the time from then until its last attempt began or it gave up. That
	// includes the attempts in between.
	WaitStart time.Time
	Waited    time.Duration
	Until     time.Time // end of validity; zero if Err is set
	// Outcomes are the nodes' votes in the last attempt, as known now, in the order of
	// Redlock.Nodes. It is nil if no node was asked.
	Outcomes []Outcome
	Err      error
}

// WaitInfo describes an acquire that begins to wait. admin.Nodes.Inspect says who holds the lock.
type WaitInfo struct {
	Key       string
	Mode      Mode   // as in AcquireInfo
	WaitID    uint64 // unique in this process; AcquireInfo has the same
	Attempts  int    // so far: 0 or 1
	Start     time.Time
	WaitStart time.Time // as in AcquireInfo
	// Err is why the attempt failed, in one word: ErrHeld, ErrNoQuorum or ErrExpired.
	Err error
}

// ExtendInfo describes an extend that has ended.
type ExtendInfo struct {
	Key, Token string
	Mode       Mode // as in AcquireInfo
	TTL        time.Duration
	Renewal    bool // by the library itself
	Start      time.Time
	Elapsed    time.Duration
	Until      time.Time // end of validity, moved or not
	Outcomes   []Outcome // nil if no node was asked
	Err        error
}

// ReleaseInfo describes a release that has ended.
type ReleaseInfo struct {
	Key, Token string
	Mode       Mode          // as in AcquireInfo
	Held       time.Duration // since the grant
	Start      time.Time
	Elapsed    time.Duration
	Outcomes   []Outcome // VoteGranted: the node confirmed it; nil after Detach
	Err        error
}

// LostInfo describes a lock that was lost.
type LostInfo struct {
	Key, Token string
	Mode       Mode  // as in AcquireInfo
	Err        error // wraps ErrLost
}

// NodeInfo describes a node that stopped answering or answers again.
type NodeInfo struct {
	Node string
	// Err is why the node counts as down; nil for NodeUp. Of a panic it has the value, and errors.As finds the stack as
	// an interface{ Stack() []byte }.
	Err error
}

// VoteInfo describes a node that has no vote, or has it again.
type VoteInfo struct {
	Node string
	// Err is why its grants do not count, in the words of Outcome.Err; nil for NodeVotes.
	Err error
	// Until is when they count again, by this machine's clock, for a lock of Options.TTL, if nothing else happens; a
	// longer TTL waits longer. Zero where that is not known, and for NodeVotes.
	Until time.Time
}

// DegradedInfo describes something that is missing.
type DegradedInfo struct {
	Kind  Degradation
	Node  string // empty if it is about a key
	Key   string // of a lock; empty if it is about a node
	Lacks string // what is missing, and what follows from that, for people
	Err   error  // the node's error, or the figures and what to set; nil if there is no more to say
}

// copied returns a copy, so that changes to Options.Hooks have no effect later; never nil.
// Functions that are nil stay nil: callers test for that before they build the arguments.
func (h *Hooks) copied() *Hooks {
	if h == nil {
		return new(Hooks)
	}
	c := *h
	return &c
}

// JoinHooks returns hooks that call all the given ones in their order, for example to log
// and to count. Nil arguments and nil functions are skipped. The arguments are copied, so
// changing them afterwards has no effect.
func JoinHooks(all ...*Hooks) *Hooks {
	var j Hooks
	for _, h := range all {
		if h != nil {
			both(&j.Acquired, h.Acquired)
			both(&j.Waiting, h.Waiting)
			both(&j.Extended, h.Extended)
			both(&j.Released, h.Released)
			both(&j.Lost, h.Lost)
			bothOf(&j.NodeDown, h.NodeDown)
			bothOf(&j.NodeUp, h.NodeUp)
			bothOf(&j.NodeBarred, h.NodeBarred)
			bothOf(&j.NodeVotes, h.NodeVotes)
			bothOf(&j.Degraded, h.Degraded)
		}
	}
	return &j
}

// both makes *first call second, too.
func both[T any](first *func(context.Context, T), second func(context.Context, T)) {
	before := *first
	switch {
	case second == nil:
	case before == nil:
		*first = second
	default:
		*first = func(ctx context.Context, info T) {
			before(ctx, info)
			second(ctx, info)
		}
	}
}

// bothOf is both for hooks without a context.
func bothOf[T any](first *func(T), second func(T)) {
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

// inOrder calls functions one after the other, on a goroutine that ends when there are no
// more.
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
	done := false
	defer func() {
		if !done {
			go o.run() // a function ended this goroutine (runtime.Goexit)
		}
	}()
	for {
		o.mu.Lock()
		if len(o.queue) == 0 {
			o.running, done = false, true
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
	hooks   *Hooks
	closing <-chan struct{} // closed when the Redlock is
	calls   inOrder

	mu       sync.Mutex
	told     map[string]bool
	toldKeys map[uint64]bool // by hash
}

// tell says that a node lacks something, unless it was said before.
func (d *degradations) tell(node string, what lack, err error) {
	d.mu.Lock()
	told := d.told[node+what.text]
	if d.told == nil {
		d.told = make(map[string]bool)
	}
	d.told[node+what.text] = true
	d.mu.Unlock()
	if !told {
		d.tellAgain(DegradedInfo{Kind: what.kind, Node: node, Lacks: what.text, Err: err})
	}
}

// mostToldKeys bounds what is kept of keys of which the hook was told. One that was told of so many
// has said what there is to say.
const mostToldKeys = 1000

// tellOfKey says what is missing for a key, unless it was said before. Of two keys with one hash the
// second is left out.
func (d *degradations) tellOfKey(hash uint64, i DegradedInfo) {
	d.mu.Lock()
	told := d.toldKeys[hash] || len(d.toldKeys) == mostToldKeys
	if d.toldKeys == nil {
		d.toldKeys = make(map[uint64]bool)
	}
	if !told {
		d.toldKeys[hash] = true
	}
	d.mu.Unlock()
	if !told {
		d.tellAgain(i)
	}
}

// tellAgain calls the hook, whatever was said before. It needs no mutex.
func (d *degradations) tellAgain(i DegradedInfo) {
	f := d.hooks.Degraded
	if f == nil {
		return
	}
	select {
	case <-d.closing:
	default:
		d.calls.do(func() { f(i) })
	}
}

// lack is something that is missing.
type lack struct {
	kind Degradation
	text string
}

var (
	noLine    = lack{DegradedAccess, "the queue of waiters: they go to another node's, and fail where too few nodes keep one"}
	noEntry   = lack{DegradedAccess, "permission to use it: calls of Lead, and those with a provider of credentials, wait for that"}
	noPublish = lack{DegradedNotices, "PUBLISH: waiters are not told of releases and find them by timers"}
	noListen  = lack{DegradedNotices, "SUBSCRIBE: our waiters are not told of releases and find them by timers"}
)

// longerLease is about a key.
const longerLease = "one TTL for all clients of the key: a node that restarts may grant it while its holder's lease goes on"
