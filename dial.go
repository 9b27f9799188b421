package redlock

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
)

// keepAlive keeps idle connections known to firewalls and load balancers, which forget
// silent ones after a minute or more, and notices dead ones within half a minute.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3}

// connect opens a connection as the options say.
func connect(ctx context.Context, o *redis.Options) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, o.DialTimeout)
	defer cancel()
	d := net.Dialer{KeepAliveConfig: keepAlive}
	conn, err := d.DialContext(ctx, o.Network, o.Addr)
	if err != nil || o.TLSConfig == nil {
		return conn, err
	}
	cfg := o.TLSConfig
	if cfg.ServerName == "" && !cfg.InsecureSkipVerify {
		cfg = cfg.Clone()
		if cfg.ServerName, _, err = net.SplitHostPort(o.Addr); err != nil {
			cfg.ServerName = o.Addr
		}
	}
	secure := tls.Client(conn, cfg)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		// Nothing was asked of the server yet.
		return nil, &net.OpError{Op: "dial", Net: o.Network, Addr: conn.RemoteAddr(), Err: err}
	}
	return secure, nil
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

// sideClient is a node's client beside the conversations: for subscriptions and Check.
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

// ownDialer opens conversations of a client of our own.
type ownDialer struct {
	options *redis.Options
	markKey string // empty: no memory marks
	denied  atomic.Bool
}

// ownHabits: the last one is kept, and with keep-alive it stays of use. More are only
// needed on long links, and to end others.
func ownHabits(o *redis.Options) habits {
	return habits{keep: 1, idle: 5 * time.Second, life: o.ConnMaxLifetime}
}

func (d *ownDialer) dial(ctx context.Context, _ time.Duration) (opened, error) {
	conn, err := connect(ctx, d.options)
	if err != nil {
		return opened{}, err
	}
	return opened{flow: newOwnFlow(conn, d.options, d.markKey, &d.denied)}, nil
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
	// Not raw.Read, which waits for whoever reads at present.
	return s.raw.Control(s.look) == nil && s.peek.quiet
}

func (s *socket) Read(p []byte) (int, error) {
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
	mine.PoolSize, mine.MinIdleConns, mine.MaxIdleConns, mine.MaxActiveConns = 1, 0, 0, 0
	mine.PipelinePoolSize = -1
	mine.ConnMaxLifetime, mine.ConnMaxIdleTime = 0, -1
	// Without deadlines: a timer closes the socket.
	mine.ReadTimeout, mine.WriteTimeout = -2, -2
	f.client = redis.NewClient(&mine)
	f.conn = f.client.Conn()
	f.pipe = f.conn.Pipeline()
	return f
}

func (f *ownFlow) exchange(batch []*call, want looks) (got said) {
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
	failure := f.send(ctx, cmds)
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
