package redlock

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redlock holds the way to N independent Redis masters. It is made by Open or New, is
// safe for use by any number of goroutines, and is meant to be shared: one for each
// set of nodes in a process.
type Redlock struct {
	opts  Options
	nodes []*node
	// clients are the nodes', for what does not go by the lanes: Check.
	clients []redis.UniversalClient
	names   []string
	quorum  int
	clock   clock
	random  io.Reader // nil: crypto/rand

	lastFence lastFence

	keeper *keeper
	guard  *guard // nil: none
	lines  *lines
	owned  []redis.UniversalClient

	closing  chan struct{} // closed by Close
	busy     atomic.Int64  // acquires that may still have something to take back
	idle     chan struct{} // one token: busy came down to zero while closing
	closeOne sync.Once
	closeErr error
}

func build(clients []redis.UniversalClient, ours bool, o Options, clk clock) *Redlock {
	return assemble(clients, ours, o, clk, newGuard(nodeNames(clients), &o, clk))
}

func assemble(clients []redis.UniversalClient, ours bool, o Options, clk clock, g *guard) *Redlock {
	rl := &Redlock{
		opts:    o,
		clients: clients,
		names:   nodeNames(clients),
		quorum:  majority(len(clients)),
		clock:   clk,
		keeper:  newKeeper(clk),
		guard:   g,
		closing: make(chan struct{}),
		idle:    make(chan struct{}, 1),
	}
	for i, c := range clients {
		rl.addNode(rl.names[i], newRedisWire(c, ours))
	}
	rl.lines = newLines(rl)
	return rl
}

func (rl *Redlock) addNode(name string, w wire) {
	var changes inOrder
	onChange := func(down bool, err error) {
		switch h := rl.opts.Hooks; {
		case down && h.NodeDown != nil:
			changes.do(func() { h.NodeDown(NodeInfo{Node: name, Err: explained(err)}) })
		case !down && h.NodeUp != nil:
			changes.do(func() { h.NodeUp(NodeInfo{Node: name}) })
		}
	}
	rl.guard.watch(len(rl.nodes), name, w)
	rl.nodes = append(rl.nodes, &node{name: name, hash: fnv1a(name), lane: newLane(w, rl.clock, onChange)})
}

// ended puts the error of a context that is over in front of other reasons.
func ended(ctx context.Context, reasons ...error) []error {
	err := ctx.Err()
	if err == nil {
		return reasons
	}
	all := []error{err}
	if cause := context.Cause(ctx); !errors.Is(err, cause) {
		all = append(all, cause)
	}
	return append(all, reasons...)
}

// Quorum returns how many nodes must grant: more than half of them.
func (rl *Redlock) Quorum() int { return rl.quorum }

// Nodes returns the nodes' names, address/database, in the order in which they were
// given. Equal ones have "#" and their index behind them.
func (rl *Redlock) Nodes() []string { return append([]string(nil), rl.names...) }

// Close ends every waiting Acquire with ErrClosed, sends the releases that are on
// their way, waiting for them no longer than the timeout per node, and closes the
// connections that Open made. Locks that are held are not released: their keys stay
// until their TTL ends, and are not renewed. Calls after Close return ErrClosed.
func (rl *Redlock) Close() error {
	rl.closeOne.Do(func() { rl.closeErr = rl.close() })
	return rl.closeErr
}

func (rl *Redlock) close() error {
	close(rl.closing)
	rl.keeper.stop()
	over := make(chan struct{})
	limit := rl.clock.afterFunc(rl.opts.nodeTimeout(rl.opts.TTL), func() { close(over) })
	defer limit.Stop()

	if rl.busy.Load() > 0 {
		select {
		case <-rl.idle:
		case <-over:
		}
	}
	flushed := rl.lines.close()
	now := rl.clock.now().mono
	for _, n := range rl.nodes {
		flushed = append(flushed, n.lane.close(now))
	}
	for _, f := range flushed {
		select {
		case <-f:
		case <-over:
		}
	}
	for _, n := range rl.nodes {
		n.lane.abandon(now)
		if w, ok := n.lane.wire.(interface{ close() }); ok {
			w.close()
		}
	}
	var errs []error
	for _, c := range rl.owned {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// enter announces an operation that may have something to take back. Each enter that
// returns true is followed by one leave.
func (rl *Redlock) enter() bool {
	rl.busy.Add(1)
	if rl.isClosed() {
		rl.leave()
		return false
	}
	return true
}

func (rl *Redlock) leave() {
	if rl.busy.Add(-1) == 0 && rl.isClosed() {
		select {
		case rl.idle <- struct{}{}:
		default:
		}
	}
}

func (rl *Redlock) isClosed() bool {
	select {
	case <-rl.closing:
		return true
	default:
		return false
	}
}

// tokenLen is the length of a token in hexadecimal digits.
const tokenLen = 32

// newValue makes what an attempt puts under its key: a token of 128 random bits and the
// owner's label. Every attempt needs its own token: a late release of an earlier
// attempt would delete the keys of a later one with the same token.
func (rl *Redlock) newValue() (string, error) {
	var random [tokenLen / 2]byte
	if rl.random == nil {
		_, _ = rand.Read(random[:]) // never fails
	} else if _, err := io.ReadFull(rl.random, random[:]); err != nil {
		return "", fmt.Errorf("redlock: no randomness for a token: %w", err)
	}
	value := make([]byte, tokenLen, tokenLen+1+len(rl.opts.Owner))
	hex.Encode(value, random[:])
	value = append(value, '@')
	return string(append(value, rl.opts.Owner...)), nil
}

// pause waits for d, or less if ctx ends or the Redlock is closed.
func (rl *Redlock) pause(ctx context.Context, d time.Duration) error {
	over := make(chan struct{})
	t := rl.clock.afterFunc(d, func() { close(over) })
	defer t.Stop()
	select {
	case <-over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-rl.closing:
		return ErrClosed
	}
}
