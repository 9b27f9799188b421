package main

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/go-redsync/redsync/v4"
	rsredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

var (
	failFast  = []redsync.Option{redsync.WithFailFast(true)}
	impatient = []redsync.Option{redsync.WithRetryDelay(5 * time.Millisecond), redsync.WithTries(math.MaxInt)}
)

type redsyncCandidate struct {
	called  string
	clients []*redis.Client
	rs      *redsync.Redsync
	opts    []redsync.Option
}

func openRedsync(name string, sets ...[]redsync.Option) func(context.Context, target) (candidate, error) {
	return func(ctx context.Context, t target) (candidate, error) {
		c := &redsyncCandidate{called: name, opts: []redsync.Option{redsync.WithExpiry(lease)}}
		for _, set := range sets {
			c.opts = append(c.opts, set...)
		}
		pools := make([]rsredis.Pool, len(t.Addrs))
		for i, addr := range t.Addrs {
			client := redis.NewClient(&redis.Options{Addr: addr})
			c.clients = append(c.clients, client)
			pools[i] = goredis.NewPool(client)
		}
		c.rs = redsync.New(pools...)
		return c, nil
	}
}

func (c *redsyncCandidate) name() string { return c.called }

func (c *redsyncCandidate) close() {
	for _, client := range c.clients {
		_ = client.Close()
	}
}

func (c *redsyncCandidate) worker(key string) worker { return &redsyncWorker{c: c, key: key} }

// redsyncWorker makes a Mutex for each cycle: with fail-fast, goroutines of the one
// before still read theirs.
type redsyncWorker struct {
	c   *redsyncCandidate
	key string
	m   *redsync.Mutex
}

func (w *redsyncWorker) acquire(ctx context.Context) error {
	w.m = w.c.rs.NewMutex(w.key, w.c.opts...)
	return w.m.LockContext(ctx)
}

func (w *redsyncWorker) release(ctx context.Context) error { return redsyncUnlock(ctx, w.m) }

func redsyncUnlock(ctx context.Context, m *redsync.Mutex) error {
	ok, err := m.UnlockContext(ctx)
	if !ok && err == nil {
		err = errors.New("redsync: not unlocked")
	}
	if ok {
		return nil
	}
	return err
}

func (c *redsyncCandidate) validFor() time.Duration { return lease - lease/100 }

// hold renews as users of redsync do, with a goroutine for each lock.
func (c *redsyncCandidate) hold(ctx context.Context, key string) (held, error) {
	m := c.rs.NewMutex(key, c.opts...)
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	h := &redsyncHeld{m: m, stop: make(chan struct{}), done: make(chan struct{})}
	h.noteUntil()
	go h.renew()
	return h, nil
}

type redsyncHeld struct {
	m          *redsync.Mutex
	end        atomic.Pointer[time.Time]
	stop, done chan struct{}
}

func (h *redsyncHeld) noteUntil() {
	t := h.m.Until()
	h.end.Store(&t)
}

func (h *redsyncHeld) renew() {
	defer close(h.done)
	ticker := time.NewTicker(lease / 3)
	defer ticker.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-ticker.C:
			if ok, err := h.m.ExtendContext(context.Background()); ok && err == nil {
				h.noteUntil()
			}
		}
	}
}

func (h *redsyncHeld) until() time.Time { return *h.end.Load() }
func (h *redsyncHeld) lost() bool       { return !time.Now().Before(h.until()) }

func (h *redsyncHeld) release(ctx context.Context) error {
	close(h.stop)
	<-h.done
	return redsyncUnlock(ctx, h.m)
}
