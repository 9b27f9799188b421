package protocol

import (
	"time"
)

// Request is one thing asked of nodes, the same for each of them. It is immutable once it
// was sent. The wire makes a command of it, see Write.
type Request struct {
	Op     Op
	Whole  bool         // the script goes as its text, since the server does not know its digest
	Native NativeDelete // goes in place of the release script
	lua    bool         // and never
	alone  bool         // never together with others, see Bundle
	Script *Script      // nil: a plain SET
	Key    string       // the lock's
	Value  string       // of the lock: to be set, extended, compared or deleted
	// Px is for how many milliseconds the key is set or extended. PX and not PXAT: a
	// client's clock must have no say in when a node's key expires.
	Px    int64
	Queue *QueueArgs // nil: the script knows what it needs
	// more is what else a script needs, of which no request has two: *FenceArgs, *ShareArgs,
	// *adoptArgs, *Bundle, markArgs or keptUntil. A plain SET and a plain release have none, and a
	// cycle has three requests.
	more any

	// Timeout is how long the caller waits for one node.
	Timeout time.Duration
	// ReadBound is how long the answer may keep its connection when it does not come: as
	// long as a key may live because of the request, so that a late one is still seen. Of a
	// batch it is at most lane.LongestRead, and at least its patience.
	ReadBound time.Duration
	// KeepFor is how long a release that cannot be delivered is worth keeping: after that
	// nothing of what it takes back is left on the node.
	KeepFor time.Duration
}

// fence is nil without fencing.
func (r *Request) fence() *FenceArgs {
	if a, ok := r.more.(*adoptArgs); ok {
		return a.fence
	}
	f, _ := r.more.(*FenceArgs)
	return f
}

// share is nil if the lock is held alone.
func (r *Request) share() *ShareArgs {
	s, _ := r.more.(*ShareArgs)
	return s
}

// from is of OpAdopt: the token under which the lock is held.
func (r *Request) from() string {
	return r.more.(*adoptArgs).from
}

// mark is of opMark: the script's arguments.
func (r *Request) mark() markArgs {
	return r.more.(markArgs)
}

// Bundle is of a release of several locks; nil: of one.
func (r *Request) Bundle() *Bundle {
	b, _ := r.more.(*Bundle)
	return b
}

// QueueArgs is what scripts that touch a wait queue need besides the lock.
type QueueArgs struct {
	Key          string // of the queue; empty: the lock can have none
	Entry, Ended string // our own in it, and that of the attempt before; may be empty
	Holders      string // key of the list of holders that share the lock
	Arrival      int64  // on that node; 0: not known
	Waited       int64  // microseconds, elsewhere
	Since        int64  // when that wait began, by the clock: Waited is set when it is sent; 0: as it is
	// Back is in what time at most the process will join or refresh a place there again, at
	// least a reservation.
	Back time.Duration
	most int64 // how many entries to list
	As   Releaser
}

// Releaser is what releases on a node that may keep a wait queue.
type Releaser uint8

const (
	AsWaiter Releaser = iota // it did not hold the lock
	AsHolder
	AsPasser // a holder that serves the queue of another node
)

// FenceArgs is what scripts that touch a fencing counter need.
type FenceArgs struct {
	Key   string // of the counter
	Token uint64 // proposed, or to be raised to
}

// adoptArgs is what taking a lock over needs.
type adoptArgs struct {
	from  string     // the token under which the lock is held
	fence *FenceArgs // nil: no fencing
}

// markArgs are those of the script that writes the memory mark.
type markArgs []string

// keptUntil is when a release has the key end, in nanoseconds of the clock.
type keptUntil int64

// SharedMarker is the value of a key that several hold; scripts/shared.lua knows it, too.
const SharedMarker = "redlock:shared"

// ShareArgs is what scripts that touch the list of holders need.
type ShareArgs struct {
	Holders, Door string // keys
	// Limit is how many may hold the lock; 0: any number. Below 0: that number and no other.
	Limit  int64
	Number int64 // of the permit, from 1; 0: none
}

// TTLOnNode is the TTL as it is sent, in milliseconds, never less than asked for.
func TTLOnNode(ttl time.Duration) int64 {
	return int64((ttl + time.Millisecond - 1) / time.Millisecond)
}

// NodeTimeout is how long an operation on a lock of this TTL waits for one node, by default.
func NodeTimeout(ttl time.Duration) time.Duration {
	return min(ttl/4, max(5*time.Millisecond, min(200*time.Millisecond, ttl/50)))
}

// Terms are what requests on a lock need to know of its terms.
type Terms struct {
	TTL         time.Duration // of the lease that is asked for
	NodeTimeout time.Duration // how long the caller waits for one node
}

// newRequest is a request on a lock with these terms.
func newRequest(o Op, s *Script, t *Terms, key, value string) Request {
	return Request{
		Op: o, Script: s, Key: key, Value: value, Px: TTLOnNode(t.TTL),
		Timeout: t.NodeTimeout, ReadBound: t.TTL, KeepFor: t.TTL,
	}
}

// request is one by this script, for what its row says.
func (s *Script) request(t *Terms, key, value string) Request {
	return newRequest(s.op, s, t, key, value)
}

// SetRequest is the command of the Redlock algorithm.
func SetRequest(o Op, t *Terms, key, value string) Request {
	return newRequest(o, nil, t, key, value)
}

// ClaimRequest is SetRequest for the node that keeps the queue that we wait in.
func ClaimRequest(t *Terms, key, value, queue, entry string) *Request {
	r := ClaimScript.request(t, key, value)
	r.Queue = &QueueArgs{Key: queue, Entry: entry}
	return &r
}

// ReleaseRequest deletes the key if it has our value.
func ReleaseRequest(t *Terms, key, value string) Request {
	return ReleaseScript.request(t, key, value)
}

// QueueReleaseRequest is ReleaseRequest for the node that keeps the wait queue. Without q
// it is that of a holder that did not wait, for a queue with the usual name.
func QueueReleaseRequest(t *Terms, key, value string, q *QueueArgs) Request {
	r := QueueReleaseScript.request(t, key, value)
	r.Queue = q
	return r
}

// ExtendRequest gives the key the TTL again if it has our value.
func ExtendRequest(t *Terms, key, value string) *Request {
	r := ExtendScript.request(t, key, value)
	return &r
}

// ShortenRequest is a release that leaves the key until a time by our clock, whether its lease was longer
// or not.
func ShortenRequest(t *Terms, key, value string, until int64) Request {
	r := newRequest(OpRelease, ExtendScript, t, key, value)
	r.more = keptUntil(until)
	return r
}

// AsOf is the request in the words in which it is to be sent now.
func (r *Request) AsOf(now int64) *Request {
	until, kept := r.more.(keptUntil)
	waits := r.Op == OpJoin && r.Queue.Since != 0
	if !kept && !waits {
		return r
	}
	c := *r
	if kept {
		c.Px = TTLOnNode(time.Duration(max(1, int64(until)-now)))
	} else {
		q := *r.Queue
		q.Waited = max((now-q.Since)/int64(time.Microsecond), 1)
		c.Queue = &q
	}
	return &c
}

// LeastReservation is the least time for which a lock is reserved for a woken waiter.
const LeastReservation = 500 * time.Millisecond

// Reservation is for how long the lock is reserved for a woken waiter, and so what a dead
// one costs the others.
func (t *Terms) Reservation() time.Duration { return max(LeastReservation, 4*t.NodeTimeout) }

// JoinPatience is how long a node may be silent before its wait queue is left for that of
// the next one: the timeout per node, or more than that if it is shorter than what a busy
// machine may take.
func (t *Terms) JoinPatience() time.Duration { return t.Reservation() / 4 }

// JoinRequest joins the wait queue or refreshes the place in it. It may wait in its lane for
// as long as a reservation lasts, since thousands may join at once.
func JoinRequest(t *Terms, key, value string, q *QueueArgs) *Request {
	r := JoinScript.request(t, key, value)
	q.Back = max(q.Back, t.Reservation())
	r.Queue, r.Timeout = q, t.Reservation()
	return &r
}

// JoinPatience is that of a join, see there.
func (r *Request) JoinPatience() time.Duration { return r.Timeout / 4 }

// InspectRequest reads the lock and, if queue is set, its first most waiters; and as many of
// the holders that share it. holders may be empty: the script knows the usual name.
func InspectRequest(t *Terms, key, queue, holders string, most int) *Request {
	r := InspectScript.request(t, key, "")
	r.Queue, r.more = &QueueArgs{Key: queue, most: int64(most)}, &ShareArgs{Holders: holders}
	return &r
}

// ForceRequest deletes the key, whatever value it has if token is empty, and otherwise if its value is
// that token, alone or with an owner's label; of a lock that several hold it strikes the holder with
// that token. Waiters are woken.
func ForceRequest(t *Terms, key, token, queue, holders string) *Request {
	r := ForceScript.request(t, key, token)
	r.Queue, r.more = &QueueArgs{Key: queue}, &ShareArgs{Holders: holders}
	return &r
}

// TokenReleaseRequest is the release of a value of which only the token is known.
func TokenReleaseRequest(t *Terms, key, token, queue, holders string) *Request {
	r := ForceRequest(t, key, token, queue, holders)
	r.Op = OpRelease
	return r
}

// SharedClaimRequest is SetRequest for a lock that is held together with others. q is that of a
// waiter whose turn it is, with the queue's key for the node that keeps it; nil: of a newcomer.
func SharedClaimRequest(o Op, t *Terms, key, value string, s *ShareArgs, q *QueueArgs) *Request {
	r := newRequest(o, SharedClaimScript, t, key, value)
	r.more, r.Queue = s, q
	return &r
}

// SharedExtendRequest is ExtendRequest for a lock that is held together with others.
func SharedExtendRequest(t *Terms, key, value string, s *ShareArgs) *Request {
	r := SharedExtendScript.request(t, key, value)
	r.more = s
	return &r
}

// SharedReleaseRequest is QueueReleaseRequest for a lock that is held together with others.
func SharedReleaseRequest(t *Terms, key, value string, s *ShareArgs, q *QueueArgs) Request {
	r := SharedReleaseScript.request(t, key, value)
	r.more, r.Queue = s, q
	return r
}

// DoorRequest keeps newcomers from sharing a lock for a while; key is the door's.
func DoorRequest(t *Terms, key, value string, lasts time.Duration) *Request {
	r := DoorScript.request(t, key, value)
	r.Px = lasts.Milliseconds()
	return &r
}

// OpenDoorRequest lets newcomers in again, if it is still shut by us.
func OpenDoorRequest(t *Terms, key, value string) *Request {
	r := newRequest(opDoor, ReleaseScript, t, key, value)
	return &r
}

// LookRequest has the memory mark looked at, and does nothing else. key is that of the trial.
func LookRequest(key string, timeout time.Duration) *Request {
	try := newRequest(opTry, TryScript, &Terms{}, key, "")
	r := try.WithSource()
	r.Timeout = timeout
	return r
}

// AdoptRequest takes the lock over from the holder of a token. f may be nil.
func AdoptRequest(t *Terms, key, value, from string, f *FenceArgs) Request {
	r := AdoptScript.request(t, key, value)
	r.more = &adoptArgs{from, f}
	return r
}

// FenceRequest is SetRequest with a fencing token, or ClaimRequest if there is a queue.
func FenceRequest(t *Terms, key, value string, f *FenceArgs, q *QueueArgs) *Request {
	r := FenceScript.request(t, key, value)
	r.more, r.Queue = f, q
	return &r
}

// RaiseRequest raises a fencing counter to a token that a majority agreed on.
func RaiseRequest(t *Terms, key, value string, f *FenceArgs) *Request {
	r := RaiseScript.request(t, key, value)
	r.more = f
	return &r
}

// FenceRepairRequest puts a fenced lock back on a node that lost it.
func FenceRepairRequest(t *Terms, key, value string, f *FenceArgs) Request {
	r := FenceRepairScript.request(t, key, value)
	r.more = f
	return r
}

// MayBeNative reports whether a server's own compare-and-delete will do.
func (r *Request) MayBeNative() bool { return r.Script == ReleaseScript && !r.lua && !r.Whole }

// Bundle is the releases that go to a node in one command, each of which MayBeBundled. No two have the
// same key. Those that look for waiters come first.
type Bundle struct {
	Of []*Request
	// lined is how many of them, from the first on, are of locks that may have a wait queue there.
	lined   int
	request Request
}

// Request is that of the command. It is good until the next one.
func (b *Bundle) Request() *Request {
	b.lined = 0
	for i, r := range b.Of {
		if r.LooksForWaiters() {
			if b.lined++; i >= b.lined {
				panic("bug: a release that looks for waiters behind one that does not")
			}
		}
	}
	b.request = Request{Op: OpRelease, Script: BundleScript, Key: b.Of[0].Key, Value: b.Of[0].Value, more: b}
	return &b.request
}

// MayBeBundled reports whether BundleScript does the same, or nothing. A holder that waited in the
// queue has an entry to take out of it, and others behind it as a rule: it is released by itself.
func (r *Request) MayBeBundled() bool {
	if r.Op != OpRelease || r.lua || r.alone || r.Whole {
		return false
	}
	return r.Script == ReleaseScript || r.Script == QueueReleaseScript && (r.Queue == nil || r.Queue.Entry == "")
}

// LooksForWaiters reports whether a release is for a node that may keep a wait queue for the lock.
func (r *Request) LooksForWaiters() bool { return r.Script == QueueReleaseScript }

// writeLine writes the key of the wait queue that a release looks at.
func (r *Request) writeLine(w Words) {
	if r.Queue != nil && r.Queue.Key != "" {
		w.Str(r.Queue.Key)
	} else {
		w.Join("{", r.Key, "}:line")
	}
}

// ByItself is the same request, and not together with others.
func (r *Request) ByItself() *Request {
	c := *r
	c.alone = true
	return &c
}

// WithLua is the same request by the script, which does the same and tells more.
func (r *Request) WithLua() *Request {
	c := *r
	c.lua = true
	return &c
}

// WithSource is the same request with the script's text in place of its digest.
func (r *Request) WithSource() *Request {
	c := *r
	c.Whole = true
	return &c
}

const (
	// LongestValue is of the values that we put under a lock's key: a token, '@' and an owner's
	// label. What is longer is another's; scripts/value.lua knows it, too.
	LongestValue = 32 + 1 + 256
	// perEntry is more than a waiter or a holder takes in a list, see AnswerRoom.
	perEntry = 1 << 10
)

// AnswerRoom is more than what Redis answers takes: its bytes, and a little for each element of a
// list. An error may be longer, but not each of a batch.
func (r *Request) AnswerRoom() int {
	room := perEntry
	switch {
	case r.Script == InspectScript:
		room += 2 * int(r.Queue.most) * perEntry // waiters and holders
	case r.Script == JoinScript:
		room += mostGiven * perEntry
	case r.Bundle() != nil:
		room += len(r.Bundle().Of) * perEntry
	}
	return room
}

// mostGiven is how many of a process have the lock reserved by one join, see scripts/line_join.lua.
const mostGiven = 256
