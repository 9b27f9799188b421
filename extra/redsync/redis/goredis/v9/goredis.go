// Package goredis makes pools of clients of go-redis v9. It stands where a program finds
// github.com/go-redsync/redsync/v4/redis/goredis/v9 after it changed the imports.
package goredis

import (
	goredis "github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/extra/redsync/redis"
)

// NewPool returns the client, which is a pool already. It does no I/O, and the client stays the
// caller's to close.
func NewPool(delegate goredis.UniversalClient) redis.Pool { return delegate }
