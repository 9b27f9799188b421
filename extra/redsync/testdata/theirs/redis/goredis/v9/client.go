package goredis

import "github.com/redis/go-redis/v9"

// Client lets theirs have the client of a pool.
func (p *pool) Client() redis.UniversalClient { return p.delegate }
