package main

import (
	"context"
	"errors"
	"time"

	"github.com/quorumlock/redlock"
)

type redlockCandidate struct {
	named string
	rl    *redlock.Redlock
	opts  []redlock.LockOption
}

func openRedlock(name string, opts ...redlock.LockOption) func(context.Context, target) (candidate, error) {
	return func(ctx context.Context, t target) (candidate, error) {
		rl, err := redlock.Open(ctx, t.Addrs, &redlock.Options{TTL: lease, NodeTimeout: t.NodeTimeout, Owner: "bench"})
		if err != nil {
			return nil, err
		}
		return &redlockCandidate{name, rl, opts}, nil
	}
}

func (c *redlockCandidate) name() string { return c.named }
func (c *redlockCandidate) close()       { _ = c.rl.Close() }
func (c *redlockCandidate) worker(key string) worker {
	return &redlockWorker{rl: c.rl, key: key, opts: c.opts}
}

type redlockWorker struct {
	rl   *redlock.Redlock
	key  string
	opts []redlock.LockOption
	lock *redlock.Lock
}

func (w *redlockWorker) acquire(ctx context.Context) (err error) {
	w.lock, err = w.rl.Mutex(w.key, w.opts...).Acquire(ctx)
	return err
}

func (w *redlockWorker) release(ctx context.Context) error { return w.lock.Release(ctx) }

func (c *redlockCandidate) validFor() time.Duration { return lease - lease/100 - 2*time.Millisecond }

func (c *redlockCandidate) hold(ctx context.Context, key string) (held, error) {
	lock, err := c.rl.Mutex(key, redlock.WithRenewal()).Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return redlockHeld{lock}, nil
}

type redlockHeld struct{ lock *redlock.Lock }

func (h redlockHeld) until() time.Time { return h.lock.Until() }
func (h redlockHeld) lost() bool       { return h.lock.Validity() <= 0 }

func (h redlockHeld) release(ctx context.Context) error {
	err := h.lock.Release(ctx)
	if errors.Is(err, redlock.ErrNotHeld) {
		return nil // told by lost
	}
	return err
}
