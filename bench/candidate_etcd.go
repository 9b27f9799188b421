package main

import (
	"context"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"
)

// etcdCandidate is the Mutex of etcd's own package. Two goroutines with one session are one
// owner to it, so each has a session of its own while it holds or waits.
type etcdCandidate struct {
	client *clientv3.Client

	mu   sync.Mutex
	idle []*concurrency.Session
	all  []*concurrency.Session
}

func openEtcd(ctx context.Context, t target) (candidate, error) {
	client, err := clientv3.New(clientv3.Config{Endpoints: t.Etcd, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		return nil, err
	}
	return &etcdCandidate{client: client}, nil
}

func (c *etcdCandidate) name() string             { return "etcd" }
func (c *etcdCandidate) worker(key string) worker { return &etcdWorker{c: c, key: "/bench/" + key} }

func (c *etcdCandidate) close() {
	for _, s := range c.all {
		s.Orphan() // or each would revoke its lease, one after the other
	}
	_ = c.client.Close()
}

// session is one that nobody uses, and that has not ended.
func (c *etcdCandidate) session(ctx context.Context) (*concurrency.Session, error) {
	c.mu.Lock()
	for n := len(c.idle); n > 0; n = len(c.idle) {
		s := c.idle[n-1]
		c.idle = c.idle[:n-1]
		select {
		case <-s.Done():
		default:
			c.mu.Unlock()
			return s, nil
		}
	}
	c.mu.Unlock()
	lease, err := c.client.Grant(ctx, int64(lease/time.Second))
	if err != nil {
		return nil, err
	}
	s, err := concurrency.NewSession(c.client, concurrency.WithLease(lease.ID))
	if err == nil {
		c.mu.Lock()
		c.all = append(c.all, s)
		c.mu.Unlock()
	}
	return s, err
}

type etcdWorker struct {
	c       *etcdCandidate
	key     string
	session *concurrency.Session
	mutex   *concurrency.Mutex
}

func (w *etcdWorker) acquire(ctx context.Context) (err error) {
	if w.session, err = w.c.session(ctx); err != nil {
		return err
	}
	w.mutex = concurrency.NewMutex(w.session, w.key)
	err = w.mutex.Lock(ctx)
	if err != nil {
		w.giveUp()
	}
	return err
}

func (w *etcdWorker) release(ctx context.Context) error {
	if err := w.mutex.Unlock(ctx); err != nil {
		w.giveUp()
		return err
	}
	w.giveBack()
	return nil
}

// giveUp ends a session that may have left a key behind: while it lives, so does the key.
func (w *etcdWorker) giveUp() { go w.session.Close() }

func (w *etcdWorker) giveBack() {
	w.c.mu.Lock()
	w.c.idle = append(w.c.idle, w.session)
	w.c.mu.Unlock()
}
