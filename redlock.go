package redlock

import (
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/renew"
	"github.com/quorumlock/redlock/internal/tick"
)

// A Redlock is a client of N independent Redis masters. It is made by Open or New, is
// safe for use by any number of goroutines, and is meant to be shared: one for each
// set of nodes in a process.
type Redlock struct {
	*nodeSet
	queues  *queues
	renewer *renew.Renewer

	// clients are the nodes', for the hints in texts of errors.
	clients []*redis.Client

	closeOnce sync.Once
}

// assemble makes a Redlock of wires to nodes with these names.
func assemble(names []string, wires []lane.Wire, o Options, clk tick.Clock) *Redlock {
	set := newNodeSet(names, wires, o, clk)
	return &Redlock{nodeSet: set, queues: newQueues(set), renewer: renew.New(clk)}
}

// Nodes returns the nodes' names in the order in which they were given: Options.NodeNames, or
// address/database. Equal ones have "#" and their index behind them.
func (rl *Redlock) Nodes() []string {
	return append([]string(nil), rl.names...)
}

// Mutex describes the lock of a key, which may be any bytes but not empty, and at most 8192 of them with
// Options.KeyPrefix. Names that the library needs on the nodes are refused, so check keys that users choose: what
// ends with redlock:memory, and {k}:line, {k}:shared, {k}:door and {k}:fence, or, for a k with a hash tag or a "}",
// k:line:, k:shared:, k:door: and k:fence:. It does no I/O; the Mutex's methods report what breaks a rule, with
// ErrInvalid, before any.
func (rl *Redlock) Mutex(key string, opts ...LockOption) *Mutex {
	return newMutex(rl.nodeSet, rl.queues, rl.renewer, key, opts)
}

// Semaphore describes a lock that has up to permits holders at a time. Each has a permit, numbered from 0: see
// Lock.Permit. permits is from 1 to 1024, and the same in all clients of a key. WithFencing and WithMinHold are
// refused with ErrInvalid.
//
// rl.Mutex(key) is the exclusive lock of the same key. A shared lock of the key counts as one permit.
//
// The permit of a holder that died is free when its lease ends. Where permits is above 1, a holder may acquire
// another one with a context of the first, unless WithReentry is set; holders that all want another wait for each
// other. Nodes keep two more keys for it, see "Permissions" in docs/operations.md.
func (rl *Redlock) Semaphore(key string, permits int, opts ...LockOption) *Semaphore {
	return newSemaphore(rl.nodeSet, rl.queues, rl.renewer, key, permits, opts)
}

// Close ends every waiting Acquire, Do and Lead with ErrClosed, finishes the releases that are under way, all within
// Options.NodeTimeout (the default is that of Options.TTL), and closes the connections that Open or New opened;
// clients given to New stay open. It returns nil.
//
// Locks that are held are not released: their keys stay until their TTL ends, and are not renewed. The function of a
// Do or Lead keeps running until the lease ends; its context then ends with ErrLost. So end those first. Later calls
// that would ask nodes fail with ErrClosed; a second Close waits for the first.
func (rl *Redlock) Close() error {
	rl.closeOnce.Do(rl.close)
	return nil
}

func (rl *Redlock) close() {
	close(rl.life.closing)
	rl.renewer.Stop()
	over, stop := tick.After(rl.clock, rl.opts.nodeTimeout(rl.opts.TTL))
	defer stop()

	if rl.life.busy.Load() > 0 {
		select {
		case <-rl.life.idle:
		case <-over:
		}
	}
	flushed := []<-chan struct{}{rl.queues.close()}
	now := rl.clock.Now().Mono
	for _, n := range rl.nodes {
		if w, ok := n.lane.Wire.(interface{ Hurry() }); ok {
			w.Hurry()
		}
		flushed = append(flushed, n.lane.Close(now))
	}
	for _, f := range flushed {
		select {
		case <-f:
		case <-over:
		}
	}
	for _, n := range rl.nodes {
		n.lane.Abandon(now)
		if w, ok := n.lane.Wire.(interface{ Close() }); ok {
			w.Close()
		}
	}
}
