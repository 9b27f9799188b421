package main

import (
	"context"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

type rueidisCandidate struct {
	called string
	locker rueidislock.Locker
}

func openRueidis(name string, majority int32) func(context.Context, target) (candidate, error) {
	return func(ctx context.Context, t target) (candidate, error) {
		version, err := serverVersion(ctx, t.Addrs[0])
		if err != nil {
			return nil, err
		}
		locker, err := rueidislock.NewLocker(rueidislock.LockerOption{
			ClientOption:   rueidis.ClientOption{InitAddress: t.Addrs[:1]},
			KeyMajority:    majority,
			KeyValidity:    lease,
			NoLoopTracking: atLeast(version, 7, 0, 5), // as its documentation advises
		})
		if err != nil {
			return nil, err
		}
		return &rueidisCandidate{name, locker}, nil
	}
}

func (c *rueidisCandidate) name() string { return c.called }
func (c *rueidisCandidate) close()       { c.locker.Close() }
func (c *rueidisCandidate) worker(key string) worker {
	return &rueidisWorker{locker: c.locker, key: key}
}

type rueidisWorker struct {
	locker rueidislock.Locker
	key    string
	cancel context.CancelFunc
}

func (w *rueidisWorker) acquire(ctx context.Context) (err error) {
	_, w.cancel, err = w.locker.WithContext(ctx, w.key)
	return err
}

// release has no result: rueidislock does not tell.
func (w *rueidisWorker) release(context.Context) error {
	w.cancel()
	return nil
}

func (c *rueidisCandidate) validFor() time.Duration { return lease }

func (c *rueidisCandidate) hold(ctx context.Context, key string) (held, error) {
	// The lock ends with the context, which therefore must outlast the caller's.
	own, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	lock, cancel, err := c.locker.WithContext(own, key)
	if stop(); err != nil {
		end()
		return nil, err
	}
	return rueidisHeld{lock, func() { cancel(); end() }}, nil
}

type rueidisHeld struct {
	ctx    context.Context
	cancel context.CancelFunc
}

func (h rueidisHeld) until() time.Time { return time.Time{} }
func (h rueidisHeld) lost() bool       { return h.ctx.Err() != nil }

func (h rueidisHeld) release(context.Context) error {
	h.cancel()
	return nil
}
