package redlock

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// The way to one server, over connections of our own to where a go-redis client leads.

// ownOptions are a client's options, for connections of our own. What leads to the server stays:
// the Dialer (by which a Sentinel's client finds the master), credentials, database, protocol,
// OnConnect. What the client does beside that does not: retries, its pool's limits, its cache.
func ownOptions(of *redis.Options) *redis.Options {
	o := *of
	// One dial and one try: that a node is down must be known at once, and the library
	// decides itself what it sends again.
	o.MaxRetries, o.DialerRetries = -1, 1
	o.ContextTimeoutEnabled = true
	// After as many failed dials as the pool is large, go-redis stops dialing for a second.
	o.PoolSize, o.PipelinePoolSize = 64, -1
	o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = 0, 0, 0
	o.ClientSideCache, o.ClientSideCacheConfig = nil, nil
	o.Limiter = nil
	o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &o
}

// connect opens a connection as the options say.
func connect(ctx context.Context, o *redis.Options) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, o.DialTimeout)
	defer cancel()
	conn, err := o.Dialer(ctx, o.Network, o.Addr)
	if isServerError(err) {
		err = fmt.Errorf("dial: %v", err) // a Sentinel's, which is not the node
	}
	return conn, err
}

// failed is a connection that was none: it says why when it is used. go-redis logs each
// dial that fails, and after some failures answers for the network itself.
type failed struct {
	net.Conn // nil
	err      error
}

func (f failed) Read([]byte) (int, error)         { return 0, f.err }
func (f failed) Write([]byte) (int, error)        { return 0, f.err }
func (f failed) Close() error                     { return nil }
func (f failed) LocalAddr() net.Addr              { return nil }
func (f failed) RemoteAddr() net.Addr             { return nil }
func (f failed) SetDeadline(time.Time) error      { return nil }
func (f failed) SetReadDeadline(time.Time) error  { return nil }
func (f failed) SetWriteDeadline(time.Time) error { return nil }

// sideClient is a node's client beside the conversations: for subscriptions and Check, which
// both end what they open.
func sideClient(o *redis.Options) *redis.Client {
	side := *o
	side.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) {
		conn, err := connect(ctx, o)
		if err != nil {
			return failed{err: err}, nil
		}
		return conn, nil
	}
	return redis.NewClient(&side)
}

// ownDialer opens conversations.
type ownDialer struct {
	options *redis.Options
	markKey string // empty: no memory marks
	denied  atomic.Bool
}

// userConn is for how long New's connections stay open without work, and after what time another
// one takes their place. The name may lead to another server by then: a Sentinel may have promoted
// one while the old master, which is cut off from it, goes on as a master.
const userConn = time.Minute

// openHabits are those of Open: the last connection stays. More are only needed on long
// links, and to end others.
func openHabits(o *redis.Options) habits {
	return habits{keep: 1, idle: 5 * time.Second, life: o.ConnMaxLifetime}
}

// userHabits are those of New: a Redlock that is not closed leaves no connection behind.
func userHabits(o *redis.Options) habits {
	h := habits{idle: userConn, life: userConn}
	if o.ConnMaxIdleTime > 0 {
		h.idle = min(h.idle, o.ConnMaxIdleTime)
	}
	if o.ConnMaxLifetime > 0 {
		h.life = min(h.life, o.ConnMaxLifetime)
	}
	return h
}

func (d *ownDialer) dial(ctx context.Context) (flow, error) {
	conn, err := connect(ctx, d.options)
	if err != nil {
		return nil, err
	}
	return newOwnFlow(conn, d.options, d.markKey, &d.denied), nil
}

// socket is a connection that counts what it reads.
type socket struct {
	net.Conn
	under   net.Conn        // without TLS
	raw     syscall.RawConn // of that; nil where there is none
	looking sync.Mutex      // guards peek; no other is taken under it
	peek    peek
	look    func(fd uintptr) // peek.at, bound once
	count   atomic.Int64
	written func() // called before the next read, since go-redis flushes before that; nil: none is
}

func newSocket(conn net.Conn) *socket {
	s := &socket{Conn: conn, under: conn}
	if secure, ok := conn.(*tls.Conn); ok {
		s.under = secure.NetConn()
	}
	if sc, ok := s.under.(syscall.Conn); ok {
		s.raw, _ = sc.SyscallConn()
	}
	s.look = s.peek.at
	return s
}

// quiet reports whether the connection is open and there is nothing to be read: neither
// its end, nor anything that nobody asked for.
func (s *socket) quiet() bool {
	if s.raw == nil {
		return true
	}
	// A batch that has just taken the conversation may look while another goroutine does to
	// whom it is overdue.
	s.looking.Lock()
	defer s.looking.Unlock()
	s.peek.quiet = true // a Dialer of the user's may have put something in the place of a socket
	// Not raw.Read, which waits for another goroutine that reads at present.
	return s.raw.Control(s.look) == nil && s.peek.quiet
}

func (s *socket) Read(p []byte) (int, error) {
	if w := s.written; w != nil {
		s.written = nil
		w()
	}
	n, err := s.Conn.Read(p)
	s.count.Add(int64(n))
	return n, err
}

// Close skips TLS' goodbye, which may block.
func (s *socket) Close() error { return s.under.Close() }

// ownFlow is a connection of our own. A go-redis client of its own holds it, so socket and
// identity belong together: a pool would replace one behind the other's back.
type ownFlow struct {
	socket    *socket
	client    *redis.Client
	conn      *redis.Conn
	pipe      redis.Pipeliner
	cmds      []redis.Cmder // *once, to be used again
	room      []redis.Cmder // a batch and what follows it
	questions *questions    // behind batches, and without any
	markKey   string
	native    native
	closing   sync.Once
}

func newOwnFlow(conn net.Conn, o *redis.Options, markKey string, denied *atomic.Bool) *ownFlow {
	f := &ownFlow{socket: newSocket(conn), questions: newQuestions(markKey), markKey: markKey, native: native{denied: denied}}
	mine := *o
	var given atomic.Bool
	mine.Dialer = func(context.Context, string, string) (net.Conn, error) {
		if given.Swap(true) {
			return failed{err: net.ErrClosed}, nil
		}
		return f.socket, nil
	}
	mine.TLSConfig = nil // done
	mine.PoolSize = 1
	mine.ConnMaxLifetime, mine.ConnMaxIdleTime = 0, -1
	// Without deadlines: a timer closes the socket.
	mine.ReadTimeout, mine.WriteTimeout = -2, -2
	f.client = redis.NewClient(&mine)
	f.conn = f.client.Conn()
	f.pipe = f.conn.Pipeline()
	return f
}

func (f *ownFlow) exchange(batch []*call, want looks, left func()) (got said) {
	ctx := context.Background()
	for len(f.cmds) < len(batch) {
		f.cmds = append(f.cmds, &once{})
	}
	cmds := append(f.room[:0], f.cmds[:len(batch)]...)
	native := f.native.may()
	for i, c := range batch {
		cmds[i].(*once).reuse(c.req, native)
	}
	cmds = f.questions.follow(cmds, want)
	f.room = cmds
	f.socket.written = left
	failure := f.send(ctx, cmds)
	f.socket.written = nil
	for i, c := range batch {
		o := cmds[i].(*once)
		o.reply(&c.ballot, failure)
		f.native.learn(&c.ballot)
		o.forget()
	}
	got.behind(f.questions, want, failure)
	return got
}

// send sends commands. One alone needs no pipeline.
func (f *ownFlow) send(ctx context.Context, cmds []redis.Cmder) error {
	if len(cmds) == 1 {
		return f.conn.Process(ctx, cmds[0])
	}
	_ = f.pipe.BatchProcess(ctx, cmds...) // only queues them
	_, err := f.pipe.Exec(ctx)
	return err
}

// behind reads the answers to the looks behind a batch.
func (got *said) behind(q *questions, want looks, failure error) {
	heard := true
	if want&lookMark != 0 {
		got.mark, heard = q.remembered(failure, 0)
		got.broken = got.broken || !heard
	}
	if want&lookRole != 0 {
		got.role, got.roleOK, heard = q.role(failure)
		got.broken = got.broken || !heard
		got.evicted, heard = q.evicted(failure)
		got.broken = got.broken || !heard
	}
}

func (f *ownFlow) ask() (sighting, error) {
	ctx, q := context.Background(), f.questions
	_ = f.pipe.Process(ctx, q.ping.again())
	_ = f.pipe.BatchProcess(ctx, q.who()...)
	_, failure := f.pipe.Exec(ctx)
	if _, err, heard := q.ping.answer(failure); !heard {
		return sighting{}, err
	} else if err := serving(err); err != nil {
		return sighting{}, err
	}
	s, err := q.identity(failure)
	f.native.has = s.native
	return s, err
}

func (f *ownFlow) kill(id int64) error {
	ctx, q := context.Background(), ask("CLIENT", "KILL", "ID", id)
	_ = f.pipe.Process(ctx, q)
	_, failure := f.pipe.Exec(ctx)
	val, err, _ := q.answer(failure)
	return killed(val, err)
}

func (f *ownFlow) write(w *markWrite) (mark, error) {
	ctx, q := context.Background(), askToWrite(f.markKey, w)
	_ = f.pipe.Process(ctx, q)
	_, failure := f.pipe.Exec(ctx)
	return q.written(failure)
}

func (f *ownFlow) alive() bool { return f.socket.quiet() }

func (f *ownFlow) heard() int64 {
	if !f.socket.quiet() {
		return f.socket.count.Add(1)
	}
	return f.socket.count.Load()
}

func (f *ownFlow) close() {
	f.closing.Do(func() {
		_ = f.socket.Close()
		_ = f.client.Close()
	})
}
