package lane

import (
	"errors"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Call is one request on its way to one node. Its lane guards everything in it but Caller and Index, which do not
// change once it was handed over, and replaces Req when it is sent (AsOf) or put in other words (Instead). Times are
// nanoseconds of the clock.
type Call struct {
	Req             *protocol.Request
	Caller          Caller // nil: the answer is not waited for
	next            *Call  // in the lane's queue
	protocol.Answer        // once done or kept

	Deadline int64 // when the caller stops waiting; an unsent request other than a release is dropped then
	Index    int16 // the node's
	State    CallState
	toldLate bool  // the caller was told that its time is up
	earlier  trace // of a SET: what those that it replaced, or joins of its value, may have left
	// Set is of a release the SET that it takes back, and of an extend the one that it must not overtake; nil if none in
	// particular.
	Set *Call

	// Of a release.
	When   ReleaseWhen
	lost   bool   // an earlier try had no answer, so a refusal may be due to that
	resent bool   // it was sent again after an answer, which happens once
	again  *again // once it is kept
}

// again is when a release is sent again.
type again struct {
	due int64 // while it is kept for its second time
	// goneBy: the key is not there any more by then, so that a release that could not be
	// delivered may be forgotten.
	goneBy int64
}

// Caller is told what becomes of its calls.
type Caller interface {
	// Deliver is called without any mutex of a lane. An answer that is not final is news
	// that may be followed by others.
	Deliver(node int, b protocol.Answer, now int64)
}

// CallState is where a call is. It goes down this list, and back to queued if it is put in other words (Instead),
// asked Again, or was kept.
type CallState uint8

const (
	callNew     CallState = iota
	callQueued            // waits in its lane
	callOut               // was or may have been sent
	callKept              // a release that waits for its node or for its second time
	CallDone              // answered, or will never be
	callDropped           // never sent
)

// Instead is the request in the words that the server wants, or that tell more; nil if its
// answer is good. The request that was answered did nothing.
func (c *Call) Instead() *protocol.Request {
	switch {
	case c.WantsSource() && !c.Req.Whole:
		return c.Req.WithSource()
	case c.Alone:
		return c.Req.ByItself()
	case c.Native && (c.Said == any(int64(0)) || protocol.Denied(c.Err()) || protocol.OtherType(c.Err())):
		return c.Req.WithLua() // says what is there instead
	default:
		return nil
	}
}

// trace is what SETs of one value may have left on a node. Zero: surely nothing.
type trace uint8

const (
	// present: a SET was granted, or may have been.
	present trace = 1 << iota
	// pending: a SET was sent and its answer is not known. It may take effect at any later time.
	pending
)

// trace is what this SET, and those of the same value before it, may have left; the caller holds
// its lane's mutex.
func (c *Call) trace() trace {
	if c == nil {
		return 0
	}
	t := c.earlier
	switch {
	case c.State == callDropped: // never sent
	case c.State != CallDone || c.Kind == protocol.Unknown: // no answer
		t |= pending
	case c.Kind == protocol.Granted, c.failedHalfWay():
		t |= present
	}
	return t
}

// failedHalfWay reports whether a SET is a script that failed and may have set the key before.
func (c *Call) failedHalfWay() bool {
	return c.Req.Script != nil && c.Kind == protocol.Failed && protocol.HalfWay(c.Err())
}

// mayFindItself reports whether the node may have had the value before it got this SET: by a
// reservation, which scripts take up, or from an earlier SET. Then a release that deletes the value
// does not show that this SET has arrived.
func (c *Call) mayFindItself() bool {
	sent := c.State != callDropped
	return c.earlier&present != 0 || sent && (c.earlier&pending != 0 || c.Req.Script != nil)
}

// ReleaseWhen says when a release is sent although its SET may have left nothing.
type ReleaseWhen uint8

const (
	SetMayExist ReleaseWhen = iota // only where the SET was or may have been granted
	SetWasSent                     // also where it was refused, to learn what is there
	QueueWaits                     // also where nothing was sent, for the waiters; not to a node that hangs
	Always                         // also where nothing was sent: it leaves a wait queue, too
)

// nothingThere reports whether there is surely nothing for a release to take back; the
// caller holds the lane's mutex.
func (c *Call) nothingThere() bool { return c.Set != nil && c.Set.trace() == 0 }

// servesOnly reports whether a release has nothing to take back, and is for the waiters alone: it is not worth
// keeping for a node that is away. The caller holds the lane's mutex.
func (c *Call) servesOnly() bool { return c.When == QueueWaits && c.nothingThere() } // mutant: serves-only

// needless reports whether a release need not be sent; the caller holds the lane's mutex.
func (c *Call) needless() bool {
	if c.Req.Op != protocol.OpRelease || c.When >= QueueWaits || !c.nothingThere() {
		return false
	}
	set := c.Set
	return c.When == SetMayExist || set.State == callDropped || set.Kind == protocol.NotSent
}

// tell gives the caller the news; an empty answer is none. No mutex may be held.
func (c *Call) tell(b protocol.Answer, now int64) {
	if c.Caller != nil && b.Kind != 0 {
		c.Caller.Deliver(int(c.Index), b, now)
	}
}

const (
	// A node that cannot be reached, or fails, is tried again after a pause that doubles.
	MinBackoff = 5 * time.Millisecond
	MaxBackoff = 250 * time.Millisecond
)

// Why a call has no answer, or one that says little.
var (
	ErrOverdue   = errors.New("the node has not answered earlier requests in time")
	ErrMoot      = errors.New("the attempt was decided before")
	ErrTooLate   = errors.New("waited too long behind other requests")
	errNeverSent = errors.New("nothing left to be done there")
	errByUs      = errors.New("not there, perhaps by an earlier release of ours whose answer was lost")
	errMayLand   = errors.New("nothing was there, but a request of ours whose answer was lost may still arrive")
)
