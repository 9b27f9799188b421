package redlock

// shutDoor keeps newcomers from sharing the lock, since the first in line wants it alone.
// Those who share it would otherwise come in for as long as others do, past the line: a
// majority of nodes does not keep it. It lasts until the next look shuts it again, which is
// later in a process that waits for thousands of keys, and for half a reservation more.
func (w *waiter) shutDoor() {
	half := w.reservation() / 2
	w.door = w.value
	w.tellDoor(doorRequest(&w.terms.leaseTerms, w.naming.doorKey(w.name), w.door, w.of.paced(half)+half))
}

// openDoor lets newcomers in again. Where that does not arrive, it opens by itself.
func (w *waiter) openDoor() {
	if w.door != "" {
		w.tellDoor(openDoorRequest(&w.terms.leaseTerms, w.naming.doorKey(w.name), w.door))
		w.door = ""
	}
}

func (w *waiter) tellDoor(req *request) {
	now := w.clock.now().mono
	for i := range w.names {
		w.lane(i).enqueue(&call{req: req, index: int32(i), deadline: now + int64(req.timeout)}, now)
	}
}
