package redlock

import (
	"time"

	"github.com/quorumlock/redlock/internal/tick"
)

// validUntil is the end of what the holder may rely on, for a request whose first
// byte left no earlier than start: start + TTL - allowance, the TTL rounded down
// to whole milliseconds. See https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/.
func validUntil(start tick.Instant, ttl time.Duration, factor float64) tick.Instant {
	return start.Add(ttl.Truncate(time.Millisecond) - tick.Allowance(ttl, factor)) // mutant: drift
}
