// Package redis has the type of the pools that redsync.New takes. It stands where a program finds
// github.com/go-redsync/redsync/v4/redis after it changed the imports.
package redis

import goredis "github.com/redis/go-redis/v9"

// Pool is one node: a client of go-redis v9 as it is, which must be a *redis.Client.
type Pool = goredis.UniversalClient
