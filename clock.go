package redlock

import "time"

// validUntil is the end of what the holder may rely on, for a request whose first
// byte left no earlier than start: start + TTL - allowance, the TTL rounded down
// to whole milliseconds. See https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/.
func validUntil(start instant, ttl time.Duration, factor float64) instant {
	return start.add(ttl.Truncate(time.Millisecond) - allowance(ttl, factor))
}
