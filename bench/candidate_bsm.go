package main

import (
	"context"
	"time"

	"github.com/bsm/redislock"
	"github.com/redis/go-redis/v9"
)

type bsmCandidate struct {
	client *redis.Client
	locks  *redislock.Client
}

func openBsm(_ context.Context, t target) (candidate, error) {
	client := redis.NewClient(&redis.Options{Addr: t.Addrs[0]})
	return &bsmCandidate{client, redislock.New(client)}, nil
}

func (c *bsmCandidate) name() string             { return "bsm" }
func (c *bsmCandidate) close()                   { _ = c.client.Close() }
func (c *bsmCandidate) worker(key string) worker { return &bsmWorker{locks: c.locks, key: key} }

var bsmOptions = &redislock.Options{RetryStrategy: redislock.LinearBackoff(5 * time.Millisecond)}

type bsmWorker struct {
	locks *redislock.Client
	key   string
	lock  *redislock.Lock
}

func (w *bsmWorker) acquire(ctx context.Context) (err error) {
	w.lock, err = w.locks.Obtain(ctx, w.key, lease, bsmOptions)
	return err
}

func (w *bsmWorker) release(ctx context.Context) error { return w.lock.Release(ctx) }
