package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync"

	"github.com/redis/go-redis/v9"
)

const (
	bareName   = "bare"
	bareScript = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`
)

// bareCandidate is what a lock costs with nothing but lanes: one goroutine per node sends
// what has collected in one go-redis pipeline, and a call returns at the quorum. It has no
// queue, guard, hooks, fencing, deadlines, clean-up or errors per node. It is a measure of
// what those cost, and no lock to use: a node that hangs stops it for good.
type bareCandidate struct {
	need  int
	nodes []*bareLane
	sha   string
}

func openBare(ctx context.Context, t target) (candidate, error) {
	c := &bareCandidate{need: len(t.Addrs)/2 + 1}
	for _, addr := range t.Addrs {
		client := redis.NewClient(&redis.Options{
			Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true, PoolSize: 8,
		})
		c.nodes = append(c.nodes, newBareLane(client))
		var err error
		if c.sha, err = client.ScriptLoad(ctx, bareScript).Result(); err != nil {
			c.close()
			return nil, err
		}
	}
	return c, nil
}

func (c *bareCandidate) name() string { return bareName }

func (c *bareCandidate) close() {
	for _, l := range c.nodes {
		l.end()
		_ = l.client.Close()
	}
}

func (c *bareCandidate) worker(key string) worker { return &bareWorker{c: c, key: key} }

type bareWorker struct {
	c          *bareCandidate
	key, token string
}

func (w *bareWorker) acquire(context.Context) error {
	var random [16]byte
	_, _ = rand.Read(random[:]) // it cannot fail
	w.token = hex.EncodeToString(random[:])
	return w.c.ask([]any{"set", w.key, w.token, "nx", "px", lease.Milliseconds()})
}

func (w *bareWorker) release(context.Context) error {
	return w.c.ask([]any{"evalsha", w.c.sha, 1, w.key, w.token})
}

var errBare = errors.New("bare lane: no quorum")

// ask sends a command to all nodes and waits until enough have done it.
func (c *bareCandidate) ask(args []any) error {
	results := make(chan bareResult, len(c.nodes))
	for _, l := range c.nodes {
		l.put(bareOp{args, results})
	}
	good := 0
	for range c.nodes {
		if r := <-results; r.err == nil && (r.value == "OK" || r.value == int64(1)) {
			good++
		}
		if good == c.need {
			return nil
		}
	}
	return errBare
}

type bareOp struct {
	args    []any
	results chan<- bareResult
}

type bareResult struct {
	value any
	err   error
}

type bareLane struct {
	client *redis.Client
	done   sync.WaitGroup

	mu    sync.Mutex
	more  sync.Cond
	queue []bareOp
	ended bool
}

func newBareLane(client *redis.Client) *bareLane {
	l := &bareLane{client: client}
	l.more.L = &l.mu
	l.done.Go(l.run)
	return l
}

func (l *bareLane) put(o bareOp) {
	l.mu.Lock()
	l.queue = append(l.queue, o)
	if len(l.queue) == 1 {
		l.more.Signal()
	}
	l.mu.Unlock()
}

func (l *bareLane) end() {
	l.mu.Lock()
	l.ended = true
	l.more.Signal()
	l.mu.Unlock()
	l.done.Wait()
}

func (l *bareLane) run() {
	var batch []bareOp
	for {
		l.mu.Lock()
		for len(l.queue) == 0 && !l.ended {
			l.more.Wait()
		}
		if len(l.queue) == 0 {
			l.mu.Unlock()
			return
		}
		batch, l.queue = l.queue, batch[:0]
		l.mu.Unlock()
		l.send(batch)
		clear(batch)
	}
}

func (l *bareLane) send(batch []bareOp) {
	ctx := context.Background()
	if len(batch) == 1 { // needs no pipeline
		cmd := redis.NewCmd(ctx, batch[0].args...)
		_ = l.client.Process(ctx, cmd) // the command has its error
		v, err := cmd.Result()
		batch[0].results <- bareResult{v, err}
		return
	}
	pipe := l.client.Pipeline()
	cmds := make([]redis.Cmd, len(batch))
	for i := range batch {
		cmds[i] = *redis.NewCmd(ctx, batch[i].args...)
		_ = pipe.Process(ctx, &cmds[i]) // only queues it
	}
	_, _ = pipe.Exec(ctx)
	for i := range batch {
		v, err := cmds[i].Result()
		batch[i].results <- bareResult{v, err}
	}
}
