package redlock

import (
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
)

// shutDoor keeps newcomers from sharing the lock, since the first in line wants it alone.
// Those who share it would otherwise come in for as long as others do, past the line: a
// majority of nodes does not keep it. It lasts until the next look shuts it again, which is
// later in a process that waits for thousands of keys, and for half a reservation more.
func (w *waiter) shutDoor() {
	half := w.reservation() / 2
	w.door = w.value
	w.tellDoor(protocol.DoorRequest(&w.terms.Terms, w.naming.doorKey(w.name), w.door, w.of.paced(half)+half))
}

// openDoor lets newcomers in again. Where that does not arrive, it opens by itself.
func (w *waiter) openDoor() {
	if w.door != "" {
		w.tellDoor(protocol.OpenDoorRequest(&w.terms.Terms, w.naming.doorKey(w.name), w.door))
		w.door = ""
	}
}

func (w *waiter) tellDoor(req *protocol.Request) {
	now := w.clock.Now().Mono
	for i := range w.names {
		w.lane(i).Enqueue(&lane.Call{Req: req, Index: int32(i), Deadline: now + int64(req.Timeout)}, now)
	}
}
