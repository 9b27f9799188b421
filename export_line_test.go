package redlock

import (
	"context"
	"errors"
	"time"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/protocol"
)

// LoadScripts lets all nodes know all scripts.
func LoadScripts(rl *Redlock) error {
	var errs []error
	for _, n := range rl.nodes {
		client := n.lane.Wire.(*conn.Wire).Client
		for _, s := range []*protocol.Script{protocol.ReleaseScript, protocol.QueueReleaseScript, protocol.JoinScript, protocol.ClaimScript} {
			errs = append(errs, client.ScriptLoad(context.Background(), s.Source).Err())
		}
	}
	return errors.Join(errs...)
}

// NodeOrder is the order in which nodes are asked to keep the line of a key.
func (m *Mutex) NodeOrder() []int { return m.nodeOrder() }

// Line is the key of the line.
func (m *Mutex) Line() string { return m.queueKey() }

// SeeLease lets a waiter find a holder with so much of its lease left.
func (m *Mutex) SeeLease(left time.Duration) { m.sawLease(left) }

// Waits reports how many of this Redlock wait in lines, and how many subscriptions it has.
func (rl *Redlock) Waits() (waiters, subscriptions int) {
	rl.queues.mu.Lock()
	defer rl.queues.mu.Unlock()
	for _, q := range rl.queues.byKey {
		waiters += q.waiters.Len()
	}
	return waiters, len(rl.queues.subs)
}

// LineName is the key of the line of a Redis key.
func LineName(key string) string { return namingOf(key).queueKey(key) }

// NamesBeside are the names of all keys that go with a lock's.
func NamesBeside(name string) (all []string) {
	n := namingOf(name)
	for _, beside := range []string{n.queueKey(name), n.holdersKey(name), n.doorKey(name), n.fenceKey(name)} {
		if beside != "" {
			all = append(all, beside)
		}
	}
	return all
}

// Queues reports how many keys are remembered because somebody waits for them, or did.
func (rl *Redlock) Queues() int {
	rl.queues.mu.Lock()
	defer rl.queues.mu.Unlock()
	return len(rl.queues.byKey)
}
