package redlock

import (
	"sync"
	"time"
	"weak"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// settlesIn is for how long a node has or lacks its vote before that is told. A new fleet's first use takes a few looks
// at each node, an error may be over with the next answer, and a mark that is about to be replaced looks well.
const settlesIn = 500 * time.Millisecond

// voter tells Hooks.NodeBarred and Hooks.NodeVotes of one node.
type voter struct {
	ns     *nodeSet
	index  int
	calls  *inOrder // the node's
	period time.Duration

	mu      sync.Mutex // guards what follows; that of the guard is taken under it
	alarm   tick.Alarm
	told    standing
	differs bool  // what is so is not what was told
	since   int64 // when that began; means nothing unless differs
}

// standing is whether a node has a vote, and until when it has none, by our clock; 0: not known.
type standing struct {
	barred bool
	until  int64
}

// watchVotes has the hooks told which nodes vote. It is called before the lanes are used.
func (ns *nodeSet) watchVotes(calls []*inOrder) {
	if h := ns.opts.Hooks; ns.guard == nil || h.NodeBarred == nil && h.NodeVotes == nil {
		return
	}
	for i, c := range calls {
		v := &voter{ns: ns, index: i, calls: c, period: ns.guard.Period(ns.opts.TTL, false)}
		v.alarm = tick.Alarm{Clock: ns.clock, F: ringOf(weak.Make(v))}
		ns.voters = append(ns.voters, v)
	}
	ns.guard.Changed = func(i int) { ns.voters[i].changed() }
}

// changed is called after the node's vote may have changed.
func (v *voter) changed() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.look()
}

// ringOf is what the alarm calls. It holds nothing: a Redlock that is closed, or dropped, would otherwise be kept, with its
// user's hooks, until a bar ends.
func ringOf(w weak.Pointer[voter]) func() {
	return func() {
		if v := w.Value(); v != nil {
			v.ring()
		}
	}
}

func (v *voter) ring() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.alarm.Rang()
	v.look()
}

// look tells what changed, or sets the alarm for when it is to be told; the caller holds mu.
func (v *voter) look() {
	if v.ns.life.closed() {
		return
	}
	now := v.ns.clock.Now()
	until, why := v.ns.guard.Voteless(v.index, v.period)
	is := standing{why != nil, until}
	if is == v.told {
		v.differs = false
	} else if !v.differs {
		v.differs, v.since = true, now.Mono
	}
	switch at := v.since + int64(settlesIn); {
	case v.differs && now.Mono < at:
		v.alarm.Set(at, now.Mono)
		return
	case v.differs:
		v.tell(is, why, now)
	}
	if until != 0 {
		v.alarm.Set(until, now.Mono)
	}
}

// tell calls the hook; the caller holds mu.
func (v *voter) tell(is standing, why error, now tick.Instant) {
	v.told, v.differs = is, false
	hook, info := v.ns.opts.Hooks.NodeVotes, VoteInfo{Node: v.ns.names[v.index]}
	if is.barred {
		hook, info.Err = v.ns.opts.Hooks.NodeBarred, protocol.WithHint(why)
	}
	if is.until != 0 {
		info.Until = now.When(is.until)
	}
	if hook != nil {
		v.calls.do(func() { hook(info) })
	}
}
