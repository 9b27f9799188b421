package conn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
)

// The way to one server, over connections of our own to where a go-redis client leads.

// OwnOptions are a client's options, for connections of our own, and for clients of go-redis that package admin
// asks. What leads to the server stays: the Dialer (by which a Sentinel's client finds the master), credentials,
// database, protocol, OnConnect. What the client does beside that does not: retries, its pool's limits, its cache.
func OwnOptions(of *redis.Options) *redis.Options {
	o := *of
	// One dial and one try: that a node is down must be known at once, and the library
	// decides itself what it sends again.
	o.MaxRetries, o.DialerRetries = -1, 1
	o.ContextTimeoutEnabled = true
	if o.DialTimeout < 0 { // to go-redis without an end, and a dial that hangs keeps all others from being tried
		o.DialTimeout = 5 * time.Second
	}
	// After as many failed dials as the pool is large, go-redis stops dialing for a second.
	o.PoolSize, o.PipelinePoolSize = 64, -1
	o.MinIdleConns, o.MaxIdleConns, o.MaxActiveConns = 0, 0, 0
	o.ClientSideCache, o.ClientSideCacheConfig = nil, nil
	o.Limiter = nil
	o.MaintNotificationsConfig = noNotifications()
	return &o
}

// noNotifications has a client not ask for what needs RESP3.
func noNotifications() *maintnotifications.Config {
	return &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
}

// connect opens a connection as the options say.
func connect(ctx context.Context, o *redis.Options, q *quirks) (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, o.DialTimeout)
	defer cancel()
	conn, err = within(ctx, q, func() (net.Conn, error) { return o.Dialer(ctx, o.Network, o.Addr) }, func(c net.Conn) {
		if c != nil {
			_ = newSocket(c).Close()
		}
	})
	if errors.Is(err, context.DeadlineExceeded) { // which may have ended first
		err = fmt.Errorf("dial %s %s: %w", o.Network, o.Addr, os.ErrDeadlineExceeded)
	}
	if protocol.IsServerError(err) {
		err = fmt.Errorf("dial: %v", err) // a Sentinel's, which is not the node
	}
	if conn == nil && err == nil {
		err = errors.New("the Dialer returned neither a connection nor an error")
	}
	return conn, err
}

// Connector opens connections to one node as conversations do, for those that simulate what is said over them.
func Connector(of *redis.Options) func(context.Context) (net.Conn, error) {
	o, q := OwnOptions(of), newQuirks("")
	return func(ctx context.Context) (net.Conn, error) { return connect(ctx, o, q) }
}

// ownDialer opens conversations.
type ownDialer struct {
	options *redis.Options
	markKey string // empty: no memory marks
	quirks  *quirks
}

// userConn is for how long New's connections stay open without work, and after what time another
// one takes the place of any. The name may lead to another server by then: a Sentinel may have promoted
// one while the old master, which is cut off from it, goes on as a master.
const userConn = time.Minute

// OpenHabits are those of Open: the last connection stays. More are only needed on long
// links.
func OpenHabits(o *redis.Options) Habits {
	h := UserHabits(o)
	h.Keep, h.Idle = 1, 5*time.Second
	return h
}

// UserHabits are those of New: a Redlock that is not closed leaves no connection behind.
func UserHabits(o *redis.Options) Habits {
	h := Habits{Idle: userConn, Life: userConn}
	if o.ConnMaxIdleTime > 0 {
		h.Idle = min(h.Idle, o.ConnMaxIdleTime)
	}
	if o.ConnMaxLifetime > 0 {
		h.Life = min(h.Life, o.ConnMaxLifetime)
	}
	return h
}

func (d *ownDialer) Dial(ctx context.Context) (Flow, error) {
	conn, err := connect(ctx, d.options, d.quirks)
	if err != nil {
		return nil, err
	}
	return newOwnFlow(conn, d.options, d.markKey, d.quirks), nil
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
	_ = NoPanic(func() {
		if sc, ok := s.under.(syscall.Conn); ok {
			s.raw, _ = sc.SyscallConn()
		}
	})
	s.look = s.peek.at
	return s
}

// quiet reports whether the connection is open and there is nothing to be read: neither
// its end, nor anything that was not asked for.
func (s *socket) quiet() bool {
	if s.raw == nil {
		return true
	}
	// A batch that has just taken the conversation may look while another goroutine does to
	// which it is overdue.
	s.looking.Lock()
	defer s.looking.Unlock()
	s.peek.quiet = true // a Dialer of the user's may have put something in the place of a socket
	return s.control() == nil && s.peek.quiet
}

// control looks. It is not raw.Read, which waits for another goroutine that reads at present.
func (s *socket) control() (err error) {
	defer noPanic(&err)
	return s.raw.Control(s.look)
}

// A Dialer's connection is code of the user's.
func (s *socket) Read(p []byte) (n int, err error) {
	defer noPanic(&err)
	n, err = s.Conn.Read(p)
	s.count.Add(int64(n))
	return n, err
}

func (s *socket) Write(p []byte) (n int, err error) {
	defer noPanic(&err)
	return s.Conn.Write(p)
}

// unsent has the system drop what it has not delivered when the connection is closed.
func (s *socket) unsent() {
	var err error
	defer noPanic(&err)
	if c, ok := s.under.(interface{ SetLinger(sec int) error }); ok { // a *net.TCPConn
		_ = c.SetLinger(0)
	}
}

// Close skips TLS' goodbye, which may block.
func (s *socket) Close() (err error) {
	defer noPanic(&err)
	return s.under.Close()
}

// ownFlow is a connection of our own, see resp.go.
type ownFlow struct {
	socket   *socket
	login    login
	out      respWriter
	in       respReader
	quirks   *quirks
	asked    []asked // and not answered
	heard    bool    // any answer
	refused  error   // the first one, if the server refuses the connection itself
	hello    hello
	greeted  bool
	known    bool // which server answers
	markKey  string
	lastMark protocol.Mark // as read last, since it hardly ever changes
	native   Native
	stamp    stamp
	ctx      context.Context // ends with the flow
	end      context.CancelFunc
	closing  sync.Once
}

func newOwnFlow(conn net.Conn, o *redis.Options, markKey string, q *quirks) *ownFlow {
	f := &ownFlow{
		socket: newSocket(conn), login: login{options: o}, markKey: markKey,
		quirks: q, native: Native{Denied: &q.noNative},
	}
	f.in, f.stamp.wanted = newRespReader(f.socket), f.socket.isSecure()
	f.ctx, f.end = context.WithCancel(context.Background())
	return f
}

func (f *ownFlow) Exchange(batch []*lane.Call, want Looks) (got Said) {
	again := f.send(batch, want)
	if f.stamp.works {
		f.readStamp()
	}
	if again {
		// Where the server does not take the new account, the connection goes on under the old one, and
		// what that may not do any more the server says itself.
		_, _ = f.in.reply()
	}
	for _, c := range batch {
		c.Said = protocol.Said(f.in.reply())
		f.native.Learn(&c.Answer)
	}
	f.checkStamp(batch)
	f.look(&got, want)
	if err := f.in.checkUnasked(); errors.Is(err, errUnasked) {
		for _, c := range batch {
			c.Answer = protocol.Answer{Said: err, Sent: true}
		}
	}
	got.Broken = f.in.broken != nil
	return got
}

// send writes a batch and what is asked behind it. Once it has begun to, any of it may have been
// sent: what a connection that breaks says of that is not certain everywhere. Again: it begins
// with a login.
func (f *ownFlow) send(batch []*lane.Call, want Looks) (again bool) {
	if f.stamp.works {
		f.out.ask(f.stamp.ping()...)
	}
	if f.login.news.Load() != nil {
		words := f.login.news.Swap(nil).words()
		if again = words != nil; again {
			f.out.ask(words...)
		}
	}
	may, room, whole := f.native.May(), batchRoom, f.quirks.noDigest.Load()
	for _, c := range batch {
		req := c.Req
		if whole && req.Script != nil && !req.Whole {
			req = req.WithSource()
		}
		c.Answer = protocol.Answer{Sent: true, Native: f.out.request(req, may)}
		room += c.Req.AnswerRoom()
	}
	if want&LookMark != 0 {
		f.out.ask("GET", f.markKey)
	}
	if want&LookServer != 0 {
		room += greetingRoom
		f.out.ask("TIME")
		for _, section := range protocol.Sections {
			f.out.ask("INFO", section)
		}
	}
	f.flush(room)
	return again
}

// flush sends what was written. The answers may take so much room.
func (f *ownFlow) flush(room int) {
	f.in.allow(room)
	if _, err := f.socket.Write(f.out.bytes); err != nil {
		f.in.fail(err)
	}
	if f.out.bytes = f.out.bytes[:0]; cap(f.out.bytes) > mostRoom {
		f.out.bytes = nil
	}
}

// batchRoom is for the looks behind a batch, and for errors that are longer than answers.
const batchRoom = 128 << 10

// mostRoom is what a connection keeps for its next batch. A full one of plain requests takes half
// of it, one of scripts as their text several times as much.
const mostRoom = 256 << 10

// look reads the answers to the looks behind a batch.
func (f *ownFlow) look(got *Said, want Looks) {
	if want&LookMark != 0 {
		if text, present, err := f.in.text(); err != nil {
			got.Mark = protocol.MarkOfError(protocol.Unanswered("GET "+f.markKey, err))
		} else {
			got.Mark = f.mark(text, present)
		}
	}
	if want&LookServer != 0 {
		of := facts{time: f.answer()}
		for i := range of.info {
			of.info[i] = f.answer()
		}
		if f.in.broken == nil {
			s := of.report()
			got.Server, got.Mark, f.native.Has = &s, got.Mark.Aged(s.Time), s.Native
		}
	}
}

func (f *ownFlow) Alive() bool { return f.socket.quiet() }

func (f *ownFlow) Heard() int64 {
	if !f.socket.quiet() {
		return f.socket.count.Add(1)
	}
	return f.socket.count.Load()
}

func (f *ownFlow) Reset() {
	f.socket.unsent()
	f.Close()
}

func (f *ownFlow) Close() {
	f.closing.Do(func() {
		f.end()
		_ = f.socket.Close()
		f.login.end()
	})
}
