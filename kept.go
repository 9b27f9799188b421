package redlock

import (
	"slices"
	"time"
)

const (
	// sweepEvery is how often releases that wait are looked through for keys that are gone.
	sweepEvery = time.Second
	// keptAtOnce is how many of them are sent together. When their node is back there may be a
	// hundred thousand, and locks that are held must be extended, too.
	keptAtOnce = mostInBatch / 4
)

// keptReleases are releases that a lane could not deliver yet. None is forgotten before its
// key is gone from the node by itself (releasePlan.goneBy), and that may be a day. The
// lane's mutex guards them.
type keptReleases struct {
	unheard waitingReleases // the node did not answer; sent again when it answers anything
	failed  waitingReleases // it answered with an error that passes; sent again when it does one of them
	later   []*call         // to be sent a second time, in the order of their times (release.due)
	alarm   *alarm          // the lane's, which calls due
}

// worth reports whether anything of ours can be on the node at that time for a release to
// take back.
func (c *call) worth(now, at int64) bool {
	if c.release.goneBy == 0 {
		c.release.goneBy = now + int64(c.req.keepFor)
		if c.release.of.mayLand() {
			// A server that hangs sets the key when it wakes, and its lease begins then.
			c.release.goneBy += int64(longestRead)
		}
	}
	return at <= c.release.goneBy
}

// wait keeps a release until the node serves us again, or reports that it is not worth it.
// Nothing is sent before the time notBefore.
func (k *keptReleases) wait(with *waitingReleases, c *call, now, notBefore int64) bool {
	if !c.worth(now, max(now, notBefore)) {
		k.forget(c)
		return false
	}
	with.add(c, now, notBefore)
	k.alarm.set(with.dueAt, now)
	return true
}

// resend keeps a release that was answered for a second time, where the SET that it takes
// back may land after it, or where the node may have been so late that the key stays for
// longer than it is to be kept.
func (k *keptReleases) resend(c *call, refused bool, now int64) bool {
	set := c.release.of
	switch {
	case c.release.tries.resent():
		return false
	case c.kind == kindGranted && c.keptLate():
		c.release.tries = c.release.tries.withResent()
		k.postpone(c, now)
		return true
	case set == nil || set.fate() != fateMayLand:
		return false
	case refused:
		c.release.tries = c.release.tries.withResent()
		c.kind, c.err = kindUnknown, errMayLand
		c.final = !k.postpone(c, now)
		return true
	case c.kind == kindGranted && set.mayFindItself():
		// The deleted value may come from another SET, so this one may still land: release
		// again later. The caller need not wait for that.
		c.release.tries = c.release.tries.withResent()
		k.postpone(c, now)
		return true
	default:
		return false
	}
}

// postpone keeps a release for its second time, or reports that it is not worth it.
func (k *keptReleases) postpone(c *call, now int64) bool {
	c.release.due = now + int64(c.req.timeout)
	if !c.worth(now, c.release.due) {
		return false
	}
	c.state = callKept
	at := len(k.later)
	for at > 0 && k.later[at-1].release.due > c.release.due { // as a rule all have one timeout
		at--
	}
	k.later = slices.Insert(k.later, at, c)
	k.alarm.set(k.later[0].release.due, now)
	return true
}

// due takes out those that are to be sent now.
func (k *keptReleases) due(now int64) (list callList) {
	for _, w := range []*waitingReleases{&k.unheard, &k.failed} {
		if c := w.next(now); c != nil {
			list.push(c)
		}
		if w.n > 0 {
			k.alarm.set(w.dueAt, now)
		}
	}
	n := 0
	for n < len(k.later) && now >= k.later[n].release.due {
		list.push(k.later[n])
		n++
	}
	k.later = slices.Delete(k.later, 0, n)
	if len(k.later) > 0 {
		k.alarm.set(k.later[0].release.due, now)
	}
	return list
}

// some takes out as many as are sent together, and has the next follow, if these do not bring
// them.
func (k *keptReleases) some(w *waitingReleases, now int64) callList {
	list := w.take(keptAtOnce, now)
	if w.n > 0 {
		k.alarm.set(w.dueAt, now)
	}
	return list
}

// all takes out every one.
func (k *keptReleases) all(now int64) callList {
	list := k.unheard.take(k.unheard.n, now)
	list.append(k.failed.take(k.failed.n, now))
	for _, c := range k.later {
		list.push(c)
	}
	k.later = nil
	return list
}

// len is how many there are.
func (k *keptReleases) len() int { return k.unheard.len() + k.failed.len() + len(k.later) }

// forget lets go of one that will not come back.
func (k *keptReleases) forget(c *call) {
	for _, w := range []*waitingReleases{&k.unheard, &k.failed} {
		if w.probe == c {
			w.probe = nil
		}
	}
}

// waitingReleases wait for their node. One of them is sent at a time, to find out whether it
// can be served again, after a pause that doubles; then the others follow, some with each
// answer. So a node that is away, or fails, costs a few commands per second, however many
// wait for it, and one that is back serves others beside them.
type waitingReleases struct {
	list    callList // their states are callKept
	n       int      // in it
	probe   *call    // the one that was sent last
	pause   time.Duration
	dueAt   int64 // when the next is sent
	sweepAt int64
}

// probing reports whether the node is being asked.
func (w *waitingReleases) probing() bool {
	return w.probe != nil && (w.probe.state == callQueued || w.probe.state == callOut)
}

// len counts also the one that is on its way.
func (w *waitingReleases) len() int {
	if w.probing() {
		return w.n + 1
	}
	return w.n
}

// add puts a release behind the others. Nothing is sent before the time notBefore.
func (w *waitingReleases) add(c *call, now, notBefore int64) {
	back := c == w.probe
	if back {
		w.probe = nil
	}
	if back || w.n == 0 && !w.probing() {
		w.pause = min(max(2*w.pause, minBackoff), maxBackoff)
		w.dueAt = max(now+int64(w.pause), notBefore)
	}
	w.keep(c)
}

func (w *waitingReleases) keep(c *call) {
	w.list.push(c)
	c.state = callKept
	w.n++
}

// next is the one to be sent now, nil if none is.
func (w *waitingReleases) next(now int64) *call {
	if w.n == 0 || now < w.dueAt {
		return nil
	}
	w.dueAt = now + int64(w.pause)
	if w.probing() {
		return nil
	}
	w.sweep(now)
	w.probe = w.pop(now)
	return w.probe
}

// pop takes out the first whose key may still be there.
func (w *waitingReleases) pop(now int64) *call {
	for c := w.list.pop(); c != nil; c = w.list.pop() {
		w.n--
		if now <= c.release.goneBy {
			return c
		}
		c.state = callDone
	}
	return nil
}

// sweep forgets those whose keys are gone.
func (w *waitingReleases) sweep(now int64) {
	if now < w.sweepAt {
		return
	}
	w.sweepAt = now + int64(sweepEvery)
	rest := w.list.takeAll()
	w.n = 0
	for c := rest.pop(); c != nil; c = rest.pop() {
		if now <= c.release.goneBy {
			w.keep(c)
		} else {
			c.state = callDone
		}
	}
}

// take takes out so many of those whose keys may still be there, since the node serves us again.
// If others are left, the last of these finds out whether it still does.
func (w *waitingReleases) take(most int, now int64) (list callList) {
	for ; most > 0; most-- {
		c := w.pop(now)
		if c == nil {
			break
		}
		list.push(c)
	}
	w.probe, w.pause = nil, 0
	if w.n > 0 {
		w.probe, w.pause = list.tail, minBackoff
		w.dueAt = now + int64(w.pause)
	}
	return list
}
