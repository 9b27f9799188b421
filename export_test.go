package redlock

import (
	"io"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// What tests in package redlock_test may touch from inside.

// NewWithClock is New with another clock.
func NewWithClock(clients []redis.UniversalClient, opts *Options, c *FakeClock) (*Redlock, error) {
	o, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	return build(clients, o, c, userHabits), nil
}

// SetRandom replaces the source of tokens.
func SetRandom(rl *Redlock, r io.Reader) { rl.tokens.random = r }

// LaneLoad tells how many requests wait in a node's lane, and how many releases it
// keeps for later.
func LaneLoad(rl *Redlock, node int) (queued, kept int) {
	return rl.nodes[node].lane.load()
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
	return build(clients, o, skewedClock{newSystemClock(), wrong}, userHabits), nil
}

type skewedClock struct {
	clock
	wrong *atomic.Int64 // nanoseconds
}

func (c skewedClock) now() instant {
	i := c.clock.now()
	d := time.Duration(c.wrong.Load())
	i.time, i.wall = i.time.Add(d), plus(i.wall, d)
	return i
}
