package promises_test

import (
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/tick"
)

// newWithClock is redlock.New with another clock.
func newWithClock(clients []redis.UniversalClient, opts *redlock.Options, c tick.Clock) (*redlock.Redlock, error) {
	rl, err := inside.NewWithClock(clients, opts, c)
	if err != nil {
		return nil, err
	}
	return rl.(*redlock.Redlock), nil
}

// newSkewed is redlock.New on a machine whose wall clock is wrong.
func newSkewed(clients []redis.UniversalClient, opts *redlock.Options, wrong *atomic.Int64) (*redlock.Redlock, error) {
	return newWithClock(clients, opts, skewedClock{tick.NewSystem(), wrong})
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

// newQuorumError makes an error with reasons.
func newQuorumError(op, key string, need int, left time.Duration, outcomes []redlock.Outcome, reasons ...error) *redlock.QuorumError {
	return inside.NewQuorumError(op, key, need, left, outcomes, reasons...).(*redlock.QuorumError)
}
