package lane

import (
	"slices"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

const (
	// sweepEvery is how often releases that wait are looked through for keys that are gone.
	sweepEvery = time.Second
	// keptAtOnce is how many of them are sent together. When their node is back there may be a
	// hundred thousand, and locks that are held must be extended, too.
	keptAtOnce = MostInBatch / 4
)

// KeptReleases are releases that a lane could not deliver yet. None is forgotten before its
// key is gone from the node by itself (again.goneBy), and that may be a day. The
// lane's mutex guards them.
type KeptReleases struct {
	unheard waitingReleases // the node did not answer; sent again when it answers anything
	failed  waitingReleases // it answered with an error that passes; sent again when it does one of them
	Later   []*Call         // to be sent a second time, in the order of their times (again.due)
	Alarm   *tick.Alarm     // the lane's, which calls due
}

// worth reports whether anything of ours can be on the node at that time for a release to
// take back.
func (c *Call) worth(now, at int64) bool {
	if c.again == nil {
		c.again = &again{goneBy: now + int64(c.Req.KeepFor)}
		if c.Set.trace()&pending != 0 {
			// A server that hangs sets the key when it wakes, and its lease begins then.
			c.again.goneBy += int64(LongestRead)
		}
	}
	return at <= c.again.goneBy
}

// wait keeps a release until the node serves us again, or reports that it is not worth it.
// Nothing is sent before the time notBefore.
func (k *KeptReleases) wait(with *waitingReleases, c *Call, now, notBefore int64) bool {
	if !c.worth(now, max(now, notBefore)) {
		k.forget(c)
		return false
	}
	with.add(c, now, notBefore)
	k.Alarm.Set(with.dueAt, now)
	return true
}

// resend keeps an answered release, to send it once more, where the SET that it takes back may land after it.
func (k *KeptReleases) resend(c *Call, refused bool, now int64) bool {
	set := c.Set
	switch {
	case c.resent, set.trace()&pending == 0:
		return false
	case refused:
		c.resent = true
		c.Kind, c.Said = protocol.Unknown, errMayLand
		c.Final = !k.Postpone(c, now)
		return true
	case c.Kind == protocol.Granted && set.mayFindItself():
		// The deleted value may come from another SET, so this one may still land: release
		// again later. The caller need not wait for that.
		c.resent = true
		k.Postpone(c, now)
		return true
	default:
		return false
	}
}

// Postpone keeps a release for its second time, or reports that it is not worth it.
func (k *KeptReleases) Postpone(c *Call, now int64) bool {
	due := now + int64(c.Req.Timeout)
	if !c.worth(now, due) {
		return false
	}
	c.State, c.again.due = callKept, due
	at := len(k.Later)
	for at > 0 && k.Later[at-1].again.due > due { // as a rule all have one timeout
		at--
	}
	k.Later = slices.Insert(k.Later, at, c)
	k.Alarm.Set(k.Later[0].again.due, now)
	return true
}

// Due takes out those that are to be sent now.
func (k *KeptReleases) Due(now int64) (list callList) {
	for _, w := range []*waitingReleases{&k.unheard, &k.failed} {
		if c := w.next(now); c != nil {
			list.push(c)
		}
		if w.n > 0 {
			k.Alarm.Set(w.dueAt, now)
		}
	}
	n := 0
	for n < len(k.Later) && now >= k.Later[n].again.due {
		list.push(k.Later[n])
		n++
	}
	k.Later = slices.Delete(k.Later, 0, n)
	if len(k.Later) > 0 {
		k.Alarm.Set(k.Later[0].again.due, now)
	}
	return list
}

// some takes out as many as are sent together, and sets the alarm for the rest, in case no answer of these brings
// them.
func (k *KeptReleases) some(w *waitingReleases, now int64) callList {
	list := w.take(keptAtOnce, now)
	if w.n > 0 {
		k.Alarm.Set(w.dueAt, now)
	}
	return list
}

// all takes out every one.
func (k *KeptReleases) all(now int64) callList {
	list := k.unheard.take(k.unheard.n, now)
	list.append(k.failed.take(k.failed.n, now))
	for _, c := range k.Later {
		list.push(c) // mutant: second-releases-at-close
	}
	k.Later = nil
	return list
}

// len is how many there are.
func (k *KeptReleases) len() int { return k.unheard.len() + k.failed.len() + len(k.Later) }

// forget notes that a release is no probe any more.
func (k *KeptReleases) forget(c *Call) {
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
	probe   *Call    // the one that was sent last
	pause   time.Duration
	dueAt   int64 // when the next is sent
	sweepAt int64
}

// probing reports whether the node is being asked.
func (w *waitingReleases) probing() bool {
	return w.probe != nil && (w.probe.State == callQueued || w.probe.State == callOut)
}

// len counts also the one that is on its way.
func (w *waitingReleases) len() int {
	if w.probing() {
		return w.n + 1
	}
	return w.n
}

// add puts a release behind the others. Nothing is sent before the time notBefore.
func (w *waitingReleases) add(c *Call, now, notBefore int64) {
	back := c == w.probe
	if back {
		w.probe = nil
	}
	if back || w.n == 0 && !w.probing() {
		w.pause = min(max(2*w.pause, MinBackoff), MaxBackoff)
		w.dueAt = max(now+int64(w.pause), notBefore)
	}
	w.keep(c)
}

func (w *waitingReleases) keep(c *Call) {
	w.list.push(c)
	c.State = callKept
	w.n++
}

// next is the one to be sent now, nil if none is.
func (w *waitingReleases) next(now int64) *Call {
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
func (w *waitingReleases) pop(now int64) *Call {
	for c := w.list.Pop(); c != nil; c = w.list.Pop() {
		w.n--
		if now <= c.again.goneBy {
			return c
		}
		c.State = CallDone
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
	for c := rest.Pop(); c != nil; c = rest.Pop() {
		if now <= c.again.goneBy {
			w.keep(c)
		} else {
			c.State = CallDone
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
		w.probe, w.pause = list.tail, MinBackoff
		w.dueAt = now + int64(w.pause)
	}
	return list
}
