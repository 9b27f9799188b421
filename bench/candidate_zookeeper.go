package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"
)

// zookeeperCandidate is ZooKeeper's recipe of numbered nodes, as the Go client has it.
type zookeeperCandidate struct{ conn *zk.Conn }

func openZooKeeper(ctx context.Context, t target) (candidate, error) {
	conn, events, err := zk.Connect(t.ZooKeeper, lease, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		return nil, err
	}
	for {
		select {
		case e := <-events:
			if e.State != zk.StateHasSession {
				continue
			}
			go func() { // its channel must not fill up
				for range events {
				}
			}()
			return &zookeeperCandidate{conn}, nil
		case <-ctx.Done():
			conn.Close()
			return nil, fmt.Errorf("zookeeper: no session: %w", ctx.Err())
		}
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func (c *zookeeperCandidate) name() string { return "zookeeper" }
func (c *zookeeperCandidate) close()       { c.conn.Close() }

func (c *zookeeperCandidate) worker(key string) worker {
	return &zookeeperWorker{conn: c.conn, path: "/bench/" + strings.ReplaceAll(key, "/", "-")}
}

type zookeeperWorker struct {
	conn *zk.Conn
	path string
	lock *zk.Lock
}

var errZooKeeperWait = errors.New("zookeeper: the client's Lock cannot be interrupted")

// acquire: the client's Lock takes no context. A wait that is given up goes on behind the
// caller's back, and releases what it gets.
func (w *zookeeperWorker) acquire(ctx context.Context) error {
	lock := zk.NewLock(w.conn, w.path, zk.WorldACL(zk.PermAll))
	if ctx.Done() == nil {
		w.lock = lock
		return lock.Lock()
	}
	got := make(chan error, 1)
	go func() { got <- lock.Lock() }()
	select {
	case err := <-got:
		w.lock = lock
		return err
	case <-ctx.Done():
		go func() {
			if <-got == nil {
				_ = lock.Unlock()
			}
		}()
		return errors.Join(errZooKeeperWait, ctx.Err())
	}
}

func (w *zookeeperWorker) release(context.Context) error { return w.lock.Unlock() }
