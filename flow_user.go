package redlock

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// Conversations over a client of a user's: connections that are kept out of its pool for a
// while with (*redis.Client).Conn. Its hooks, its dialer and its credentials apply to them.
// What such a connection cannot do shapes this file: nobody can end its read from outside,
// and it may be one that lay idle in the pool and is dead.

// userHabits: a connection that is idle dies unnoticed, and the user wants it back. One
// that is busy goes back now and then too, since go-redis renews its credentials there.
var userHabits = habits{lazy: true, idle: time.Second, life: 10 * time.Second}

// userDialer takes connections out of a user's pool.
type userDialer struct {
	client  *redis.Client
	markKey string // empty: no memory marks
	size    int    // of the pool
	denied  atomic.Bool
	held    atomic.Int64
}

func newUserDialer(c *redis.Client, markKey string) *userDialer {
	size := c.Options().PoolSize
	if most := c.Options().MaxActiveConns; most > 0 {
		size = min(size, most)
	}
	return &userDialer{client: c, markKey: markKey, size: size}
}

func (d *userDialer) dial(_ context.Context, bound time.Duration) (opened, error) {
	// The same client, with the same pool and hooks, that waits for an answer no longer than
	// bound. Each flow has one of its own: those that share one write to the same options
	// while they connect, each under a mutex of its own (go-redis 9.23, initConn).
	f := &userFlow{
		dialer: d, client: d.client.WithTimeout(bound), native: native{denied: &d.denied},
		jobs: make(chan []redis.Cmder), done: make(chan error, 1), gone: make(chan struct{}),
	}
	stats := d.client.PoolStats()
	// The pool's last connection is left to the user, whose commands would wait for it.
	full := stats.IdleConns == 0 && int(stats.TotalConns) >= d.size
	if int(d.held.Load()) >= d.size-1 || full {
		f.pipe = f.client.Pipeline()
		return opened{flow: f, single: true}, nil
	}
	d.held.Add(1)
	f.conn = f.client.Conn()
	f.pipe = f.conn.Pipeline()
	return opened{flow: f, stale: stats.IdleConns > 0}, nil
}

// userFlow is one connection of a user's pool. A goroutine of its own talks to it, so that
// the flow can be closed while that one reads.
type userFlow struct {
	dialer *userDialer
	client *redis.Client
	conn   *redis.Conn // nil: each exchange goes over whichever the client has for pipelines
	pipe   redis.Pipeliner
	known  mark // as read last
	native native

	jobs chan []redis.Cmder
	done chan error // capacity 1
	gone chan struct{}

	starting, closing sync.Once
}

// run sends the commands. Where it reports false, they may still be sent, so nobody may
// look at them any more.
func (f *userFlow) run(cmds []redis.Cmder) (failure error, done bool) {
	f.starting.Do(func() { go f.work() })
	select {
	case f.jobs <- cmds:
	case <-f.gone:
		return nil, false
	}
	select {
	case failure = <-f.done:
		return failure, true
	case <-f.gone:
		return nil, false
	}
}

// work serves run until the flow is closed.
func (f *userFlow) work() {
	for {
		select {
		case cmds := <-f.jobs:
			f.done <- f.send(cmds)
		case <-f.gone:
			f.giveBack(false)
			return
		}
		select {
		case <-f.gone:
			// Closed while it read. It must not get into the pool again, not even if it
			// was answered in the end: it may be about to be killed by its id.
			f.giveBack(true)
			return
		default:
		}
	}
}

func (f *userFlow) send(cmds []redis.Cmder) error {
	// A context could not end this early: go-redis does not look at it while it reads,
	// unless told so by an option that is not ours to set.
	ctx := context.Background()
	_ = f.pipe.BatchProcess(ctx, cmds...) // only queues them
	_, failure := f.pipe.Exec(ctx)
	return failure
}

func (f *userFlow) giveBack(spoilt bool) {
	if f.conn == nil {
		return
	}
	if spoilt {
		// What cannot be written breaks a connection for go-redis, without a byte sent.
		_ = f.conn.Do(context.Background(), "PING", unwritable{}).Err()
	}
	_ = f.conn.Close()
	f.dialer.held.Add(-1)
}

type unwritable struct{}

func (f *userFlow) exchange(batch []*call, want looks) (got said) {
	// Nothing is used again: a user's hook may hold on to it.
	var before *questions
	var head []redis.Cmder
	if want&lookWho != 0 {
		before = newQuestions(f.dialer.markKey)
		head = before.who()
	}
	cmds := append(make([]redis.Cmder, 0, len(head)+len(batch)+2), head...)
	cmds = append(cmds, plainCommands(batch, f.native.may())...)
	behind := newLooks(f.dialer.markKey, want, &f.known)
	cmds = behind.follow(cmds, want)
	failure, done := f.run(cmds)
	if !done {
		for _, c := range batch {
			c.ballot = ballot{err: errGivenUp, sent: true}
		}
		return said{whoErr: errGivenUp, broken: true}
	}
	for i, c := range batch {
		cmds[len(head)+i].(*once).reply(&c.ballot, failure)
		f.native.learn(&c.ballot)
	}
	if before != nil {
		got.who, got.whoErr = before.identity(failure)
		f.native.has = got.who.native
	}
	got.behind(behind, want, failure)
	return got
}

func (f *userFlow) ask() (sighting, error) {
	q := newQuestions(f.dialer.markKey)
	failure, done := f.run(q.who())
	if !done {
		return sighting{}, errGivenUp
	}
	s, err := q.identity(failure)
	f.native.has = s.native
	return s, err
}

func (f *userFlow) kill(id int64) error {
	q := ask("CLIENT", "KILL", "ID", id)
	failure, done := f.run([]redis.Cmder{q})
	if !done {
		return errGivenUp
	}
	val, err, _ := q.answer(failure)
	return killed(val, err)
}

func (f *userFlow) write(w *markWrite) (mark, error) {
	q := askToWrite(f.dialer.markKey, w)
	failure, done := f.run([]redis.Cmder{q})
	if !done {
		return mark{}, errGivenUp
	}
	return q.written(failure)
}

func (f *userFlow) alive() bool {
	select {
	case <-f.gone:
		return false
	default:
		return true
	}
}

func (f *userFlow) heard() int64 { return 0 }

func (f *userFlow) close() {
	f.closing.Do(func() {
		close(f.gone)
		// Without a worker there is nobody else to give the connection back.
		f.starting.Do(func() { f.giveBack(false) })
	})
}
