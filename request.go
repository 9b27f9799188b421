package redlock

import (
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"strings"
	"time"
)

// op is what a request asks of a node.
type op uint8

const (
	opAcquire op = iota + 1
	opAcquireFenced
	opAdopt // a lock that is held under another token, fenced or not
	opAcquireShared
	opExtend
	opMove   // to another token, which stands for a lock that was handed over or is kept
	opRepair // put back a key that a node lost, after a successful extend
	opRaise  // a fencing counter
	opRelease
	opForceRelease
	opInspect
	opJoin // the wait queue of a lock
	opMark // the memory mark, which belongs to no lock
	opDoor // keeps newcomers from sharing a lock
)

func (o op) String() string {
	return [...]string{"", "acquire", "acquire", "adopt", "acquire", "extend", "hand over", "repair", "raise", "release", "force release", "inspect", "join", "mark", "door"}[o]
}

// sets reports whether the request may create the lock's key or give it to us.
func (o op) sets() bool { return o.acquires() || o == opRepair }

// acquires reports whether the request may make us the holder.
func (o op) acquires() bool {
	return o == opAcquire || o == opAcquireFenced || o == opAcquireShared || o == opAdopt
}

// request is one thing asked of nodes, the same for each of them. It is immutable once it
// was sent. The wire makes a command of it, see appendArgs.
type request struct {
	op     op
	whole  bool         // the script goes as its text, since the server does not know its digest
	native nativeDelete // goes in place of the release script
	lua    bool         // and never
	script *script      // nil: a plain SET
	key    string       // the lock's
	value  string       // of the lock: to be set, extended, compared or deleted
	// px is for how many milliseconds the key is set or extended. PX and not PXAT: a
	// client's clock must have no say in when a node's key expires.
	px    int64
	queue *queueArgs // nil: the script knows what it needs
	fence *fenceArgs // nil: no fencing
	from  string     // of opAdopt and opMove: the token under which the lock is held
	share *shareArgs // nil: the lock is held alone
	mark  []any      // of opMark: the script's arguments
	keep  *keepArgs  // of a release that leaves the key for a while; nil: it does not

	// timeout is how long the caller waits for one node.
	timeout time.Duration
	// readBound is how long the answer may keep its connection when it does not come: as
	// long as a key may live because of the request, so that a late one is still seen.
	readBound time.Duration
	// keepFor is how long a release that cannot be delivered is worth keeping: after that
	// nothing of what it takes back is left on the node.
	keepFor time.Duration
}

// queueArgs is what scripts that touch a wait queue need besides the lock.
type queueArgs struct {
	key          string // of the queue; empty: the lock can have none
	entry, ended string // our own in it, and that of the attempt before; may be empty
	holders      string // key of the list of those who share the lock
	arrival      int64  // on that node; 0: not known
	waited       int64  // microseconds, elsewhere
	most         int64  // how many entries to list
	as           releaser
}

// releaser is who releases on a node that may keep a wait queue.
type releaser uint8

const (
	asWaiter releaser = iota // who did not hold the lock
	asHolder
	asPasser // a holder that serves the queue of another node
)

// fenceArgs is what scripts that touch a fencing counter need.
type fenceArgs struct {
	key   string // of the counter
	token uint64 // proposed, or to be raised to
}

// keepArgs is what a release needs that leaves the key for a while.
type keepArgs struct {
	value string // that it leaves the key under
	until int64  // nanoseconds of the clock
	drift float64
}

// sharedMarker is the value of a key that several hold; scripts/shared.lua knows it, too.
const sharedMarker = "redlock:shared"

// shareArgs is what scripts that touch the list of holders need.
type shareArgs struct {
	holders, door string // keys
	// limit is how many may hold the lock; 0: any number. Below 0: that number and no other.
	limit  int64
	number int64 // of the permit, from 1; 0: none
}

const (
	// queueLife is how long a wait queue outlives the last sign of its waiters.
	queueLife = 30 * time.Second
	// fenceLife is how long a counter outlives its last use. After that, servers' clocks
	// keep the order, since tokens are microseconds of theirs or more.
	fenceLife = 7 * 24 * time.Hour
)

//go:embed scripts/*.lua
var scriptFiles embed.FS

// script is a Lua script, run by its digest once a server knows it.
type script struct{ source, digest string }

func mustScript(name string) *script {
	src := mustRead(name)
	for _, part := range []string{"shared", "line", "fence_counter"} {
		src = strings.Replace(src, "-- include "+part+".lua\n", mustRead(part), 1)
	}
	sum := sha1.Sum([]byte(src))
	return &script{source: src, digest: hex.EncodeToString(sum[:])}
}

func mustRead(name string) string {
	src, err := scriptFiles.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic("bug: " + err.Error())
	}
	return string(src)
}

var (
	releaseScript = mustScript("release")
	keepScript    = mustScript("keep")
	extendScript  = mustScript("extend")
	doorScript    = mustScript("door")
	inspectScript = mustScript("inspect")
	forceScript   = mustScript("force")

	joinScript         = mustScript("line_join")
	claimScript        = mustScript("line_claim")
	queueReleaseScript = mustScript("line_release")

	adoptScript         = mustScript("adopt")
	sharedClaimScript   = mustScript("shared_claim")
	sharedExtendScript  = mustScript("shared_extend")
	sharedReleaseScript = mustScript("shared_release")

	fenceScript       = mustScript("fence")
	raiseScript       = mustScript("fence_raise")
	fenceRepairScript = mustScript("fence_repair")
)

// ttlOnNode is the TTL as it is sent, in milliseconds, never less than asked for.
func ttlOnNode(ttl time.Duration) int64 {
	return int64((ttl + time.Millisecond - 1) / time.Millisecond)
}

// leaseTerms are what requests on a lock need to know of its terms.
type leaseTerms struct {
	ttl         time.Duration // of the lease that is asked for
	nodeTimeout time.Duration // how long the caller waits for one node
}

// newRequest is a request on a lock with these terms.
func newRequest(o op, s *script, t *leaseTerms, key, value string) request {
	return request{
		op: o, script: s, key: key, value: value, px: ttlOnNode(t.ttl),
		timeout: t.nodeTimeout, readBound: t.ttl, keepFor: t.ttl,
	}
}

// setRequest is the command of the Redlock algorithm.
func setRequest(o op, t *leaseTerms, key, value string) request {
	return newRequest(o, nil, t, key, value)
}

// claimRequest is setRequest for the node that keeps the queue that we wait in.
func claimRequest(t *leaseTerms, key, value, queue, entry string) *request {
	r := newRequest(opAcquire, claimScript, t, key, value)
	r.queue = &queueArgs{key: queue, entry: entry}
	return &r
}

func releaseRequest(t *leaseTerms, key, value string) request {
	return newRequest(opRelease, releaseScript, t, key, value)
}

// queueReleaseRequest is releaseRequest for the node that keeps the wait queue. Without q
// it is that of a holder who did not wait, for a queue with the usual name.
func queueReleaseRequest(t *leaseTerms, key, value string, q *queueArgs) request {
	r := newRequest(opRelease, queueReleaseScript, t, key, value)
	r.queue = q
	return r
}

func extendRequest(t *leaseTerms, key, value string) *request {
	r := newRequest(opExtend, extendScript, t, key, value)
	return &r
}

// leastReservation is the least time for which a lock is reserved for a woken waiter.
const leastReservation = 500 * time.Millisecond

// reservation is for how long the lock is reserved for a woken waiter, and so what a dead
// one costs the others.
func (t *leaseTerms) reservation() time.Duration { return max(leastReservation, 4*t.nodeTimeout) }

// joinPatience is how long a node may be silent before its wait queue is left for that of
// the next one: the timeout per node, or more than that if it is shorter than what a busy
// machine may take.
func (t *leaseTerms) joinPatience() time.Duration { return t.reservation() / 4 }

// joinRequest joins the wait queue or refreshes the place in it. It may wait in its lane for
// as long as a reservation lasts, since thousands may join at once.
func joinRequest(t *leaseTerms, key, value string, q *queueArgs) *request {
	r := newRequest(opJoin, joinScript, t, key, value)
	r.queue, r.timeout = q, t.reservation()
	return &r
}

// joinPatience is that of a join, see there.
func (r *request) joinPatience() time.Duration { return r.timeout / 4 }

// inspectRequest reads the lock and, if queue is set, its first most waiters; and as many of
// those who share it. holders may be empty: the script knows the usual name.
func inspectRequest(t *leaseTerms, key, queue, holders string, most int) *request {
	r := newRequest(opInspect, inspectScript, t, key, "")
	r.queue, r.share = &queueArgs{key: queue, most: int64(most)}, &shareArgs{holders: holders}
	return &r
}

func forceRequest(t *leaseTerms, key, token, queue, holders string) *request {
	r := newRequest(opForceRelease, forceScript, t, key, token)
	r.queue, r.share = &queueArgs{key: queue}, &shareArgs{holders: holders}
	return &r
}

// ticketReleaseRequest is the release of a value of which only the token is known.
func ticketReleaseRequest(t *leaseTerms, key, token, queue, holders string) *request {
	r := forceRequest(t, key, token, queue, holders)
	r.op = opRelease
	return r
}

// sharedClaimRequest is setRequest for a lock that is held together with others. q is that of a
// waiter whose turn it is, with the queue's key for the node that keeps it; nil: of a newcomer.
func sharedClaimRequest(o op, t *leaseTerms, key, value string, s *shareArgs, q *queueArgs) *request {
	r := newRequest(o, sharedClaimScript, t, key, value)
	r.share, r.queue = s, q
	return &r
}

func sharedExtendRequest(t *leaseTerms, key, value string, s *shareArgs) *request {
	r := newRequest(opExtend, sharedExtendScript, t, key, value)
	r.share = s
	return &r
}

// sharedReleaseRequest is queueReleaseRequest for a lock that is held together with others.
func sharedReleaseRequest(t *leaseTerms, key, value string, s *shareArgs, q *queueArgs) request {
	r := newRequest(opRelease, sharedReleaseScript, t, key, value)
	r.share, r.queue = s, q
	return r
}

// doorRequest keeps newcomers from sharing a lock for a while; key is the door's.
func doorRequest(t *leaseTerms, key, value string, lasts time.Duration) *request {
	r := newRequest(opDoor, doorScript, t, key, value)
	r.px = lasts.Milliseconds()
	return &r
}

// openDoorRequest lets newcomers in again, if it is still shut by us.
func openDoorRequest(t *leaseTerms, key, value string) *request {
	r := newRequest(opDoor, releaseScript, t, key, value)
	return &r
}

// adoptRequest takes the lock over from whoever holds it under a token. f may be nil.
func adoptRequest(t *leaseTerms, key, value, from string, f *fenceArgs) request {
	r := newRequest(opAdopt, adoptScript, t, key, value)
	r.from, r.fence = from, f
	return r
}

// keepRequest is releaseRequest for a lock that is left to nobody until a time.
func keepRequest(t *leaseTerms, key, value string, k *keepArgs) request {
	r := newRequest(opRelease, keepScript, t, key, value)
	r.keep = k
	return r
}

// left is for how many milliseconds the key is to stay from now on.
func (k *keepArgs) left(now int64) int64 {
	d := time.Duration(k.until - now)
	if d <= 0 {
		return 0
	}
	return ttlOnNode(d + allowance(d, k.drift))
}

// asOf is the request in the words in which it is to be sent now.
func (r *request) asOf(now int64) *request {
	if r.keep == nil {
		return r
	}
	c := *r
	c.px = r.keep.left(now)
	return &c
}

// moveRequest moves the lock from the token under which it is held to a value that no request of
// its holder fits, for t.ttl from now, no longer and no less long.
func moveRequest(t *leaseTerms, key, value, from string) *request {
	r := newRequest(opMove, adoptScript, t, key, value)
	r.from = from
	return &r
}

// fenceRequest is setRequest with a fencing token, or claimRequest if there is a queue.
func fenceRequest(t *leaseTerms, key, value string, f *fenceArgs, q *queueArgs) *request {
	r := newRequest(opAcquireFenced, fenceScript, t, key, value)
	r.fence, r.queue = f, q
	return &r
}

func raiseRequest(t *leaseTerms, key, value string, f *fenceArgs) *request {
	r := newRequest(opRaise, raiseScript, t, key, value)
	r.fence = f
	return &r
}

// fenceRepairRequest puts a fenced lock back on a node that lost it.
func fenceRepairRequest(t *leaseTerms, key, value string, f *fenceArgs) request {
	r := newRequest(opRepair, fenceRepairScript, t, key, value)
	r.fence = f
	return r
}

// mayBeNative reports whether a server's own compare-and-delete will do.
func (r *request) mayBeNative() bool { return r.script == releaseScript && !r.lua && !r.whole }

// withLua is the same request by the script, which does the same and tells more.
func (r *request) withLua() *request {
	c := *r
	c.lua = true
	return &c
}

// withSource is the same request with the script's text in place of its digest.
func (r *request) withSource() *request {
	c := *r
	c.whole = true
	return &c
}
