package redlock

import (
	"errors"
	"time"
)

// call is one request on its way to one node. Its lane guards everything in it but req,
// caller and index, which do not change once it was handed over. Times are nanoseconds of
// the clock.
type call struct {
	req    *request
	caller caller // nil: nobody waits for the answer
	next   *call  // in the lane's queue
	ballot        // once done or kept

	deadline int64 // when the caller stops waiting; of no meaning without a caller
	index    int32 // the node's
	state    callState
	overdue  bool      // the caller was told that its time is up
	earlier  leftovers // of a SET: what those that it replaced may have left

	release releasePlan // of a release
}

// caller is told what becomes of its calls.
type caller interface {
	// deliver is called without any mutex of a lane. A ballot that is not final is news
	// that may be followed by others.
	deliver(node int, b ballot, now int64)
}

// callState is where a call is. It goes down this list, except that a script which the
// server wants whole goes back from out to queued, and a kept release to queued.
type callState uint8

const (
	callNew     callState = iota
	callQueued            // waits in its lane
	callOut               // was or may have been sent
	callKept              // a release that waits for its node or for its second time
	callDone              // answered, or will never be
	callDropped           // never sent
	callSettled           // done, its answer was lost, and its connection is surely over
)

// instead is the request in the words that the server wants, or that tell more; nil if its
// answer is good. The request that was answered did nothing.
func (c *call) instead() *request {
	switch {
	case c.unknownScript() && !c.req.whole:
		return c.req.withSource()
	case c.native && (c.val == any(int64(0)) || denied(c.err) || otherType(c.err)):
		return c.req.withLua() // says what is there instead
	default:
		return nil
	}
}

// leftovers is what SETs of the same value, which a later one replaced, may have left on
// the node. It only ever grows: a SET that is replaced adds what became of it.
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
func (c *call) fate() fate {
	switch {
	case c.earlier&leftDoubt != 0, c.state == callDone && c.kind == kindUnknown:
		return fateMayLand
	case c.state == callSettled:
		return fateSettled
	case c.state == callDropped, c.state == callDone && c.kind != kindGranted && !c.halfDone():
		return fateNone
	case c.state == callDone:
		return fateGranted
	default:
		return fateOpen
	}
}

// mayLand reports whether a SET may take effect at a later time; the caller holds its lane's mutex.
func (c *call) mayLand() bool {
	return c != nil && (c.fate() == fateMayLand || c.state == callOut)
}

// halfDone reports whether a SET is a script that failed and may have set the key before.
func (c *call) halfDone() bool {
	return c.req.script != nil && c.kind == kindFailed && halfWay(c.err)
}

// leaves is what a SET leaves for the one that replaces it; the caller holds its lane's
// mutex.
func (c *call) leaves() leftovers {
	left := c.earlier
	if c.kind == kindGranted || c.halfDone() || c.state == callSettled {
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
func (c *call) mayFindItself() bool {
	return c.earlier&leftGrant != 0 || (c.earlier&leftDoubt != 0 || c.req.script != nil) && c.state != callDropped
}

// releasePlan is how a release is to be delivered.
type releasePlan struct {
	of    *call // the SET that it takes back; nil if none in particular
	when  insistence
	tries tries
	// due is when it is to be sent next, while it is kept.
	due int64
	// goneBy: the key is not there any more by then, so that a release that could not be
	// delivered may be forgotten. Zero until a first try failed.
	goneBy int64
}

// insistence is on what a release is sent, though its SET may have left nothing.
type insistence uint8

const (
	ifPlaced      insistence = iota // only where the SET was or may have been granted
	ifSent                          // also where it was refused, to learn what is there
	toServe                         // also where nothing was sent, for the waiters; not to a node that hangs
	unconditional                   // also where nothing was sent: it leaves a wait queue, too
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
func (c *call) nothingThere() bool {
	set := c.release.of
	return set != nil && set.earlier == leftNothing && set.fate() == fateNone
}

// needless reports whether a release need not be sent; the caller holds the lane's mutex.
func (c *call) needless() bool {
	if c.release.when >= toServe || !c.nothingThere() {
		return false
	}
	set := c.release.of
	return c.release.when == ifPlaced || set.state == callDropped || set.kind == kindNotSent
}

// keptLate reports whether a node was slow to leave the key for a while, which then begins
// late, too.
func (c *call) keptLate() bool { return c.req.keep != nil && c.req.px > 0 && c.overdue }

// tell gives whoever waits the news; an empty ballot is none. No mutex may be held.
func (c *call) tell(b ballot, now int64) {
	if c.caller != nil && b.kind != 0 {
		c.caller.deliver(int(c.index), b, now)
	}
}

const (
	// A node that cannot be reached, or fails, is tried again after a pause that doubles.
	minBackoff = 5 * time.Millisecond
	maxBackoff = 250 * time.Millisecond
)

// Why a call has no answer, or one that says little.
var (
	errOverdue   = errors.New("the node has not answered earlier requests in time")
	errMoot      = errors.New("the attempt was decided before")
	errTooLate   = errors.New("waited too long behind other requests")
	errNeverSent = errors.New("nothing left to be done there")
	errByUs      = errors.New("not there, perhaps by an earlier release of ours whose answer was lost")
	errMayLand   = errors.New("nothing was there, but a request of ours whose answer was lost may still arrive")
)
