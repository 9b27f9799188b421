package lane

import (
	"errors"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Call is one request on its way to one node. Its lane guards everything in it but req,
// caller and index, which do not change once it was handed over. Times are nanoseconds of
// the clock.
type Call struct {
	Req             *protocol.Request
	Caller          Caller // nil: nobody waits for the answer
	next            *Call  // in the lane's queue
	protocol.Answer        // once done or kept

	Deadline int64 // when the caller stops waiting; an unsent request other than a release is dropped then
	Index    int16 // the node's
	State    CallState
	toldLate bool      // the caller was told that its time is up
	earlier  leftovers // of a SET: what those that it replaced, or joins of its value, may have left

	// Of a release.
	When   Insistence
	tries  tries
	Undoes *Call  // the SET that it takes back; nil if none in particular
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

// CallState is where a call is. It goes down this list, except that a script which the
// server wants whole goes back from out to queued, and a kept release to queued.
type CallState uint8

const (
	callNew     CallState = iota
	callQueued            // waits in its lane
	callOut               // was or may have been sent
	CallKept              // a release that waits for its node or for its second time
	CallDone              // answered, or will never be
	CallDropped           // never sent
	callSettled           // done, its answer was lost, and its connection is surely over
)

// Instead is the request in the words that the server wants, or that tell more; nil if its
// answer is good. The request that was answered did nothing.
func (c *Call) Instead() *protocol.Request {
	switch {
	case c.UnknownScript() && !c.Req.Whole:
		return c.Req.WithSource()
	case c.Alone:
		return c.Req.ByItself()
	case c.Native && (c.Val == any(int64(0)) || protocol.Denied(c.Err) || protocol.OtherType(c.Err)):
		return c.Req.WithLua() // says what is there instead
	default:
		return nil
	}
}

// leftovers is what SETs of the same value, which a later one replaced, or joins of it (Doubt), may
// have left on the node. It only ever grows: a SET that is replaced adds what became of it.
//
//	nothing --granted--> grant   --answer lost--> both
//	nothing --answer lost--> doubt --granted--> both
type leftovers uint8

const (
	leftNothing leftovers = 0
	leftGrant   leftovers = 1 // one was granted, or may have been
	leftDoubt   leftovers = 2 // an answer was lost, so that SET may take effect at any later time
	leftBoth    leftovers = leftGrant | leftDoubt
)

// fate is what becomes of a SET on its node.
type fate uint8

const (
	// fateOpen: it is queued or out.
	fateOpen fate = iota
	// fateNone: it did nothing and never will: not sent, refused, or failed.
	fateNone
	// fateGranted: the node said so; or it is a script that failed and may have come as far.
	fateGranted
	// fateSettled: its answer was lost, but its connection is surely over: it did what it
	// did, and one release tells.
	fateSettled
	// fateMayLand: it, or one that it replaced, was sent and its answer was lost, so it may
	// take effect at any later time.
	fateMayLand
)

// fate reads what is known of a SET; the caller holds its lane's mutex.
//
//	open --not sent, refused, failed-----> none      unless an earlier one may land
//	     --granted, script failed half-way-> granted   likewise
//	     --answer lost-------------------> mayLand
//	     --answer lost, its connection ended on the server--> settled, likewise
func (c *Call) fate() fate {
	switch {
	case c.earlier&leftDoubt != 0, c.State == CallDone && c.Kind == protocol.Unknown:
		return fateMayLand
	case c.State == callSettled:
		return fateSettled
	case c.State == CallDropped, c.State == CallDone && c.Kind != protocol.Granted && !c.halfDone():
		return fateNone
	case c.State == CallDone:
		return fateGranted
	default:
		return fateOpen
	}
}

// mayLand reports whether a SET may take effect at a later time; the caller holds its lane's mutex.
func (c *Call) mayLand() bool {
	return c != nil && (c.fate() == fateMayLand || c.State == callOut)
}

// halfDone reports whether a SET is a script that failed and may have set the key before.
func (c *Call) halfDone() bool {
	return c.Req.Script != nil && c.Kind == protocol.Failed && protocol.HalfWay(c.Err)
}

// leaves is what a SET leaves for the one that replaces it; the caller holds its lane's
// mutex.
func (c *Call) leaves() leftovers {
	left := c.earlier
	if c.Kind == protocol.Granted || c.halfDone() || c.State == callSettled {
		left |= leftGrant
	}
	if c.fate() == fateMayLand {
		left |= leftDoubt
	}
	return left
}

// mayFindItself reports whether the node may have had the value before it got this SET: by
// a reservation, which scripts take up, or from a SET that this one replaced. The caller
// holds its lane's mutex.
func (c *Call) mayFindItself() bool {
	return c.earlier&leftGrant != 0 || (c.earlier&leftDoubt != 0 || c.Req.Script != nil) && c.State != CallDropped
}

// Insistence is on what a release is sent, though its SET may have left nothing.
type Insistence uint8

const (
	IfPlaced      Insistence = iota // only where the SET was or may have been granted
	IfSent                          // also where it was refused, to learn what is there
	ToServe                         // also where nothing was sent, for the waiters; not to a node that hangs
	Unconditional                   // also where nothing was sent: it leaves a wait queue, too
)

// tries is what became of earlier tries of a release. A release is sent a second time
// after an answer only where its SET may land late.
//
//	noTry --answer lost--> tryLost
//	noTry, tryLost --answered while the SET may land--> resent --answer lost--> resendLost
type tries uint8

const (
	noTry tries = iota
	tryLost
	resent
	resendLost
)

func (t tries) lost() bool   { return t == tryLost || t == resendLost }
func (t tries) resent() bool { return t == resent || t == resendLost }

func (t tries) withLost() tries {
	if t.resent() {
		return resendLost
	}
	return tryLost
}

func (t tries) withResent() tries {
	if t.lost() {
		return resendLost
	}
	return resent
}

// nothingThere reports whether there is surely nothing for a release to take back; the
// caller holds the lane's mutex.
func (c *Call) nothingThere() bool {
	set := c.Undoes
	return set != nil && set.earlier == leftNothing && set.fate() == fateNone
}

// needless reports whether a release need not be sent; the caller holds the lane's mutex.
func (c *Call) needless() bool {
	if c.When >= ToServe || !c.nothingThere() {
		return false
	}
	set := c.Undoes
	return c.When == IfPlaced || set.State == CallDropped || set.Kind == protocol.NotSent
}

// keptLate reports whether a node may have been slow to leave the key for a while, which then begins
// late, too. Of a release that was sent again no caller is told that it is late.
func (c *Call) keptLate() bool {
	return c.Req.Keep() != nil && c.Req.Px > 0 && (c.toldLate || c.again != nil)
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
	ErrMayLand   = errors.New("nothing was there, but a request of ours whose answer was lost may still arrive")
)
