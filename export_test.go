package redlock

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/conn"
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
