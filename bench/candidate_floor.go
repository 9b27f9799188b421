package main

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/redis/go-redis/v9"
)

const floorScript = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`

// floorCandidate is the least that any client over go-redis must do: the two commands
// of a cycle, to every node, in one pipeline per node that takes along all that waits.
// It checks that they succeed, and has none of what makes a lock: no timeouts, no
// deadlines, nothing to take back, no fault tolerance.
type floorCandidate struct {
	called string
	need   int
	lanes  []*floorLane
	sha    string
}

func openFloor(name string, all bool) func(context.Context, target) (candidate, error) {
	return func(ctx context.Context, t target) (candidate, error) {
		c := &floorCandidate{called: name, need: len(t.Addrs)/2 + 1}
		if all {
			c.need = len(t.Addrs)
		}
		for _, addr := range t.Addrs {
			l := &floorLane{client: redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1}), more: make(chan struct{}, 1)}
			c.lanes = append(c.lanes, l)
			l.done.Go(l.run)
			var err error
			if c.sha, err = l.client.ScriptLoad(ctx, floorScript).Result(); err != nil {
				c.close()
				return nil, err
			}
		}
		return c, nil
	}
}

func (c *floorCandidate) name() string { return c.called }

func (c *floorCandidate) close() {
	for _, l := range c.lanes {
		close(l.more)
		l.done.Wait()
		_ = l.client.Close()
	}
}

func (c *floorCandidate) worker(key string) worker { return &floorWorker{c: c, key: key} }

type floorWorker struct {
	c      *floorCandidate
	key    string
	value  string
	cycles int64
}

func (w *floorWorker) acquire(ctx context.Context) error {
	w.cycles++
	w.value = w.key + strconv.FormatInt(w.cycles, 10)
	return w.c.send(ctx, "SET", w.key, w.value, "NX", "PX", lease.Milliseconds())
}

func (w *floorWorker) release(ctx context.Context) error {
	return w.c.send(ctx, "EVALSHA", w.c.sha, 1, w.key, w.value)
}

// send puts a command to all nodes and waits until enough have done it.
func (c *floorCandidate) send(ctx context.Context, args ...any) error {
	call := &floorCall{args: args, need: int32(c.need), spare: int32(len(c.lanes) - c.need), result: make(chan error, 2)}
	for _, l := range c.lanes {
		l.push(call)
	}
	select {
	case err := <-call.result:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

type floorCall struct {
	args      []any
	need      int32
	spare     int32
	good, bad atomic.Int32
	result    chan error
}

var errFloor = errors.New("floor: a node answered otherwise than expected")

func (c *floorCall) tell(cmd *redis.Cmd) {
	v, err := cmd.Result()
	switch {
	case err == nil && (v == "OK" || v == int64(1)):
		if c.good.Add(1) == c.need {
			c.result <- nil
		}
	case c.bad.Add(1) == c.spare+1:
		if err == nil || errors.Is(err, redis.Nil) {
			err = errFloor
		}
		c.result <- err
	}
}

type floorLane struct {
	client *redis.Client
	more   chan struct{}
	done   sync.WaitGroup

	mu    sync.Mutex
	queue []*floorCall
}

func (l *floorLane) push(c *floorCall) {
	l.mu.Lock()
	l.queue = append(l.queue, c)
	first := len(l.queue) == 1
	l.mu.Unlock()
	if first {
		select {
		case l.more <- struct{}{}:
		default:
		}
	}
}

func (l *floorLane) run() {
	ctx := context.Background()
	var batch []*floorCall
	var cmds []*redis.Cmd
	pipe := l.client.Pipeline()
	for range l.more {
		for {
			l.mu.Lock()
			batch, l.queue = l.queue, batch[:0]
			l.mu.Unlock()
			if len(batch) == 0 {
				break
			}
			cmds = cmds[:0]
			for _, c := range batch {
				cmd := redis.NewCmd(ctx, c.args...)
				cmds = append(cmds, cmd)
				_ = pipe.Process(ctx, cmd) // only queues it
			}
			_, _ = pipe.Exec(ctx) // each command has its own error
			for i, c := range batch {
				c.tell(cmds[i])
			}
			clear(batch)
		}
	}
}
