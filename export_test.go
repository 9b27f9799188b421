package redlock

import (
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/examine"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
	"github.com/quorumlock/redlock/internal/ticktest"
)

// What tests in package redlock_test may touch from inside.

// NewWithClock is New with another clock.
func NewWithClock(clients []redis.UniversalClient, opts *Options, c *ticktest.FakeClock) (*Redlock, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return build(clients, o, c, conn.UserHabits), nil
}

// SetRandom replaces the source of tokens.
func SetRandom(rl *Redlock, r io.Reader) { rl.tokens.random = r }

// LaneLoad tells how many requests wait in a node's lane, and how many releases it
// keeps for later.
func LaneLoad(rl *Redlock, node int) (queued, kept int) {
	return rl.nodes[node].lane.Load()
}

// FakeClock is a clock that is moved by hand.
type FakeClock = ticktest.FakeClock

// NewFakeClock returns one that stands at some time.
func NewFakeClock() *FakeClock { return ticktest.NewFakeClock() }

// NewQuorumError makes an error with reasons.
func NewQuorumError(op, key string, need int, left time.Duration, outcomes []Outcome, reasons ...error) *QuorumError {
	return &QuorumError{Op: op, Key: key, Need: need, HolderTTL: left, Outcomes: outcomes, reasons: reasons}
}

// NewSkewed is New on a machine whose wall clock is wrong.
func NewSkewed(clients []redis.UniversalClient, opts *Options, wrong *atomic.Int64) (*Redlock, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return build(clients, o, skewedClock{tick.NewSystem(), wrong}, conn.UserHabits), nil
}

type skewedClock struct {
	tick.Clock
	wrong *atomic.Int64 // nanoseconds
}

func (c skewedClock) Now() tick.Instant {
	i := c.Clock.Now()
	d := time.Duration(c.wrong.Load())
	i.Time, i.Wall = i.Time.Add(d), tick.Plus(i.Wall, d)
	return i
}

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

// ReportOf is what Check reports of a node that was examined.
func ReportOf(n examine.Node) NodeReport { return reportOf(n) }
