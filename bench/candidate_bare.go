package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"strconv"
	"sync"

	"github.com/redis/go-redis/v9"
)

const (
	bareName     = "bare"
	bareRESPName = "bare-resp"

	bareScript = `if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0`
)

// bareCandidate is what a lock costs with nothing but lanes: one goroutine per node sends
// what has collected at once, and a call returns at the quorum. It has no queue, guard, hooks,
// fencing, deadlines, clean-up or errors per node. It is a measure of what those cost, and no
// lock to use: a node that hangs stops it for good.
type bareCandidate struct {
	called string
	resp   bool
	need   int
	nodes  []*bareLane
	sha    string
}

// openBare opens one whose batches are go-redis pipelines, or, with resp, bytes that are written
// and read without it, which is the floor.
func openBare(name string, resp bool) func(context.Context, target) (candidate, error) {
	return func(ctx context.Context, t target) (candidate, error) {
		c := &bareCandidate{called: name, resp: resp, need: len(t.Addrs)/2 + 1}
		for _, addr := range t.Addrs {
			if err := c.add(ctx, addr); err != nil {
				c.close()
				return nil, err
			}
		}
		return c, nil
	}
}

func (c *bareCandidate) add(ctx context.Context, addr string) (err error) {
	client := redis.NewClient(&redis.Options{
		Addr: addr, MaxRetries: -1, ContextTimeoutEnabled: true, DisableIdentity: true, PoolSize: 8,
	})
	if c.sha, err = client.ScriptLoad(ctx, bareScript).Result(); err != nil {
		return errors.Join(err, client.Close())
	}
	if !c.resp {
		c.nodes = append(c.nodes, newBareLane(barePipeline{client}))
		return nil
	}
	conn, err := net.Dial("tcp", addr)
	if err == nil {
		c.nodes = append(c.nodes, newBareLane(&bareRESP{Conn: conn, in: bufio.NewReaderSize(conn, 32<<10)}))
	}
	return errors.Join(err, client.Close())
}

func (c *bareCandidate) name() string { return c.called }

func (c *bareCandidate) close() {
	for _, l := range c.nodes {
		l.end()
		_ = l.wire.Close()
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
	return w.c.ask("set", w.key, w.token, "nx", "px", leaseText)
}

func (w *bareWorker) release(context.Context) error {
	return w.c.ask("evalsha", w.c.sha, "1", w.key, w.token)
}

var leaseText = strconv.FormatInt(lease.Milliseconds(), 10)

var errBare = errors.New("bare lane: no quorum")

// ask sends a command to all nodes and waits until enough have done it.
func (c *bareCandidate) ask(words ...string) error {
	results, cmd := make(chan bool, len(c.nodes)), c.command(words)
	for _, l := range c.nodes {
		l.put(bareOp{cmd, results})
	}
	good := 0
	for range c.nodes {
		if <-results {
			good++
		}
		if good == c.need {
			return nil
		}
	}
	return errBare
}

// bareCommand is made once for all nodes: for go-redis, or as bytes.
type bareCommand struct {
	args  []any
	bytes []byte
}

func (c *bareCandidate) command(words []string) (cmd bareCommand) {
	if !c.resp {
		for _, w := range words {
			cmd.args = append(cmd.args, w)
		}
		return cmd
	}
	b := append(strconv.AppendInt([]byte{'*'}, int64(len(words)), 10), "\r\n"...)
	for _, w := range words {
		b = append(strconv.AppendInt(append(b, '$'), int64(len(w)), 10), "\r\n"...)
		b = append(append(b, w...), "\r\n"...)
	}
	return bareCommand{bytes: b}
}

// bareOp is a command, and where it is told whether it was done.
type bareOp struct {
	bareCommand
	done chan<- bool
}

// bareWire carries out a batch.
type bareWire interface {
	send(batch []bareOp)
	io.Closer
}

type bareLane struct {
	wire bareWire
	done sync.WaitGroup

	mu    sync.Mutex
	more  sync.Cond
	queue []bareOp
	ended bool
}

func newBareLane(w bareWire) *bareLane {
	l := &bareLane{wire: w}
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
		l.wire.send(batch)
		clear(batch)
	}
}

// barePipeline sends batches by go-redis.
type barePipeline struct{ *redis.Client }

func (p barePipeline) send(batch []bareOp) {
	ctx := context.Background()
	cmds := make([]redis.Cmd, len(batch))
	for i, o := range batch {
		cmds[i] = *redis.NewCmd(ctx, o.args...)
	}
	if len(batch) == 1 { // needs no pipeline
		_ = p.Process(ctx, &cmds[0]) // the command has its error
	} else {
		pipe := p.Pipeline()
		for i := range cmds {
			_ = pipe.Process(ctx, &cmds[i]) // only queues it
		}
		_, _ = pipe.Exec(ctx)
	}
	for i := range batch {
		v, err := cmds[i].Result()
		batch[i].done <- err == nil && (v == "OK" || v == int64(1))
	}
}

// bareRESP needs no go-redis for batches. It knows no reply but those that a bare lane is given.
type bareRESP struct {
	net.Conn
	in  *bufio.Reader
	out []byte
}

func (r *bareRESP) send(batch []bareOp) {
	r.out = r.out[:0]
	for _, o := range batch {
		r.out = append(r.out, o.bytes...)
	}
	_, err := r.Write(r.out)
	for _, o := range batch {
		var line []byte
		if err == nil {
			line, err = r.in.ReadSlice('\n')
		}
		o.done <- err == nil && (string(line) == "+OK\r\n" || string(line) == ":1\r\n")
	}
}
