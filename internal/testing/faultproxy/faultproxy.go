// Package faultproxy stands between a Redis client and a Redis server and does
// to their conversation what networks, kernels and dying processes do to it:
// it refuses, swallows, holds, delays, cuts and corrupts, on command.
//
// A Proxy is reached by TCP ([Proxy.Listen], one stable address on the loopback
// interface) or without any socket ([Proxy.Dial], [Proxy.DialContext]). The
// second way works inside a testing/synctest bubble: everything a Proxy waits
// for is a channel, a timer or an in-memory pipe, so fake time goes on while it
// waits. The Proxy must then be made inside the bubble.
//
// # Model
//
// Each connection has a queue per direction, of unbounded length, in which
// every chunk carries the instant at which it is due. Readers fill the queues
// without ever waiting for writers, so latency costs no throughput and a client
// that pipelines cannot deadlock against a server that answers.
//
// The link decides a chunk's fate when the chunk enters the proxy: a link that
// swallows never gives anything back. As in TCP, a stream with a hole in it is
// over: nothing that follows a lost byte is delivered, and [Proxy.Heal] cuts the
// connections concerned. Freezing is not a matter of the link but of the server:
// what has arrived stays in order and is delivered by [Proxy.Resume], even if
// the client has closed its connection in the meantime.
//
// The proxy reads RESP2 and RESP3 only as far as it must: where a request or a
// reply ends and which reply belongs to which request. A stream that it does not
// understand passes unchanged, without log and without [Proxy.DropReply]. MONITOR
// and CLIENT REPLY break the pairing and are not supported.
package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/quorumlock/redlock/internal/testing/port"
)

// ErrClosed is what Dial and Listen return after Close.
var ErrClosed = errors.New("faultproxy: closed")

// A Dialer opens a connection to the server behind a Proxy.
type Dialer func(ctx context.Context) (net.Conn, error)

// Drop says what becomes of a connection whose reply is dropped.
type Drop uint8

const (
	DropCut    Drop = iota + 1 // the client reads EOF where the reply was due
	DropReset                  // the connection is reset (RST) there
	DropSilent                 // the connection stays open and never says anything again
)

// link is the state of the network between the clients and the server.
type link uint8

const (
	linkUp link = iota
	linkRefused
	linkBlackhole
	linkNoRequests
	linkNoReplies
)

func (l link) swallows(d direction) bool {
	return l == linkBlackhole ||
		l == linkNoRequests && d == requests ||
		l == linkNoReplies && d == replies
}

// Proxy is a fault proxy in front of one server. All methods may be called at
// any time from any goroutine.
type Proxy struct {
	ctx    context.Context // ends with Close; bounds dials to the server
	cancel context.CancelFunc
	wg     sync.WaitGroup // every goroutine of this proxy

	// control makes the switches that open or close the listener follow one
	// another; it is taken before mu and may be held while a port is reopened.
	control sync.Mutex

	// mu guards the rest, including all fields of all connections that are not
	// fixed at their start. It is never held while anything is waited for.
	mu       sync.Mutex
	dialer   Dialer
	closed   bool
	link     link
	relinked chan struct{} // closed, and replaced, when link changes
	frozen   bool
	latency  [2]time.Duration // by direction
	jitter   time.Duration    // at most, on top of it
	nextConn time.Duration    // added to the requests of the next connection
	rules    []*rule
	garbage  []byte
	conns    map[*conn]struct{}
	lastID   int
	listener net.Listener
	// reservation keeps the port of addr from others while the listener is closed.
	reservation io.Closer
	addr        string
	log         wireLog
}

// rule is a fault that waits for matching commands to arrive.
type rule struct {
	left  int // commands it is still good for; negative: without end
	match func(args []string) bool
	drop  Drop
	delay time.Duration
}

// New returns a proxy whose connections are forwarded to what dialer opens. It
// starts nothing: without Listen or Dial there is no socket and no goroutine.
func New(dialer Dialer) *Proxy {
	p := &Proxy{
		dialer:   dialer,
		relinked: make(chan struct{}),
		conns:    make(map[*conn]struct{}),
	}
	p.log.on = true
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// SetUpstream makes dialer the way to the server for connections opened from
// now on. Existing ones stay where they are; Cut moves them.
func (p *Proxy) SetUpstream(dialer Dialer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dialer = dialer
}

// Listen opens a TCP listener on a free port of 127.0.0.1 and returns its
// address. Later calls return the same address. While connections are refused
// the port is chosen but closed.
func (p *Proxy) Listen() (string, error) {
	p.control.Lock()
	defer p.control.Unlock()

	p.mu.Lock()
	addr, refused, closed := p.addr, p.link == linkRefused, p.closed
	p.mu.Unlock()
	if closed {
		return "", ErrClosed
	}
	if addr != "" {
		return addr, nil
	}
	chosen, reservation, err := port.Reserve()
	if err != nil {
		return "", err
	}
	addr = net.JoinHostPort("127.0.0.1", strconv.Itoa(chosen))
	p.mu.Lock()
	p.addr, p.reservation = addr, reservation
	p.mu.Unlock()
	if !refused {
		p.accept(listen(addr))
	}
	return addr, nil
}

// accept serves l until it is closed. The caller holds control, not mu.
func (p *Proxy) accept(l net.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		l.Close()
		return
	}
	p.listener = l
	p.wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return // closed: by refuse or Close
			}
			p.wg.Go(func() { p.serve(client) })
		}
	})
}

// serve joins an accepted TCP connection to one of the server.
func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	dialer := p.dialer
	p.mu.Unlock()
	server, err := dialer(p.ctx)
	if err == nil {
		if err = p.join(client, server); err == nil {
			return
		}
		server.Close()
	}
	p.mu.Lock()
	mute := p.link.swallows(replies)
	p.mu.Unlock()
	if mute && p.join(client, newDeadConn()) == nil {
		return // the server's refusal is lost in the network, too
	}
	reset(client)
}

// Dial is DialContext without a context.
func (p *Proxy) Dial() (net.Conn, error) { return p.DialContext(context.Background()) }

// DialContext opens an in-memory connection through the proxy. Refuse makes it
// fail with ECONNREFUSED; in a black hole it blocks until ctx ends, the network
// changes or the proxy is closed. Its errors are *net.OpError with Op "dial", as
// those of net.Dialer are.
//
// The connection behaves like a TCP connection as far as a Redis client can
// tell: it reports resets and broken pipes, and go-redis' health check of idle
// connections sees when it has been closed from the other side. It has no
// buffer: a Write returns when the proxy has read it.
func (p *Proxy) DialContext(ctx context.Context) (net.Conn, error) {
	conn, err := p.dialMem(ctx)
	if err != nil {
		return nil, &net.OpError{Op: "dial", Net: "mem", Err: err}
	}
	return conn, nil
}

func (p *Proxy) dialMem(ctx context.Context) (net.Conn, error) {
	dialer, err := p.reachable(ctx)
	if err != nil {
		return nil, err
	}
	dialCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	server, err := dialer(dialCtx)
	if err != nil {
		return nil, err
	}
	near, far := newMemPipe()
	if err := p.join(far, server); err != nil {
		server.Close()
		return nil, err
	}
	return near, nil
}

// reachable waits while the link is a black hole.
func (p *Proxy) reachable(ctx context.Context) (Dialer, error) {
	for {
		p.mu.Lock()
		closed, link, relinked, dialer := p.closed, p.link, p.relinked, p.dialer
		p.mu.Unlock()
		switch {
		case closed:
			return nil, ErrClosed
		case link == linkRefused:
			return nil, syscall.ECONNREFUSED
		case link != linkBlackhole:
			return dialer, ctx.Err()
		}
		select {
		case <-relinked:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-p.ctx.Done():
			return nil, ErrClosed
		}
	}
}

// join starts to forward between two ends. On error both are still the caller's.
func (p *Proxy) join(client, server net.Conn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	if p.link == linkRefused { // since the dial began
		return syscall.ECONNREFUSED
	}
	p.lastID++
	c := newConn(p, p.lastID, client, server)
	c.extra, p.nextConn = p.nextConn, 0
	p.conns[c] = struct{}{}
	p.log.stats.Conns++
	p.wg.Go(c.run)
	return nil
}

// Refuse closes all connections and refuses new ones: the TCP listener is really
// closed, Dial fails with ECONNREFUSED.
func (p *Proxy) Refuse() { p.relink(linkRefused) }

// Blackhole swallows everything in both directions, closing of connections
// included. Clients that connect by TCP still get a connection, which never
// answers; DialContext blocks.
func (p *Proxy) Blackhole() { p.relink(linkBlackhole) }

// DropRequests swallows what clients send; replies to what the server has
// already got still come through.
func (p *Proxy) DropRequests() { p.relink(linkNoRequests) }

// DropReplies swallows what the server sends: requests are executed, and nobody
// learns of it.
func (p *Proxy) DropReplies() { p.relink(linkNoReplies) }

// Heal ends Refuse, Blackhole, DropRequests and DropReplies, and only these.
// Connections that lost bytes are cut; the others go on. A TCP listener comes
// back on its old port; should another process have taken it meanwhile, Heal
// waits some seconds for the port and then panics.
func (p *Proxy) Heal() { p.relink(linkUp) }

func (p *Proxy) relink(to link) {
	p.control.Lock()
	defer p.control.Unlock()

	p.mu.Lock()
	if p.closed || p.link == to {
		p.mu.Unlock()
		return
	}
	reopen := p.link == linkRefused && p.addr != ""
	p.link = to
	close(p.relinked)
	p.relinked = make(chan struct{})
	if to == linkRefused && p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	for c := range p.conns {
		if to == linkRefused || to == linkUp && c.holed() {
			c.kill()
			continue
		}
		for _, d := range []direction{requests, replies} {
			if to.swallows(d) {
				c.loseFlying(d)
			}
		}
	}
	p.mu.Unlock()

	if reopen {
		p.accept(listen(p.addr)) // addr is fixed once set
	}
}

// listen opens a listener on the port that is reserved for the proxy. The reservation keeps nothing
// away but other proxies and servers of tests, hence the patience.
func listen(addr string) net.Listener {
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		l, err := net.Listen("tcp", addr)
		if err == nil {
			return l
		}
		if time.Now().After(deadline) {
			panic(fmt.Sprintf("faultproxy: cannot listen on %s: %v", addr, err))
		}
	}
}

// Freeze holds everything that arrives, in both directions, like a server
// stopped by SIGSTOP: connections are accepted, nothing is answered and nothing
// is lost.
func (p *Proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = true
}

// Resume delivers what Freeze has held: in order on each connection, in no
// particular order among connections. Requests of clients that have hung up in
// the meantime are executed, too.
func (p *Proxy) Resume() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = false
	p.wakeAll()
}

// Delay adds latency to everything that arrives from now on, per direction.
// Order is kept, throughput is not limited, and opening a connection takes no
// longer than before. Zero ends it; what is already under way arrives when it
// was due.
func (p *Proxy) Delay(toServer, toClient time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = [2]time.Duration{requests: toServer, replies: toClient}
}

// DelayNextConn makes the next connection that is opened a slow one: all its
// requests, those of the handshake included, arrive d later than Delay says.
func (p *Proxy) DelayNextConn(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.nextConn = d
}

// DelayRequest delays by d the next n commands that match, and with each of them
// what follows on its connection; other connections can overtake it. A negative
// n means all, until Clear. match runs under the proxy's lock: it must be quick
// and must not call the proxy.
func (p *Proxy) DelayRequest(n int, d time.Duration, match func(args []string) bool) {
	p.addRule(&rule{left: n, match: match, delay: d})
}

// DropReply lets the server apply the next n commands that match and drops their
// replies, ending the connections as how says. Only commands that arrive after
// this call count. Negative n and match: as for DelayRequest.
func (p *Proxy) DropReply(n int, how Drop, match func(args []string) bool) {
	p.addRule(&rule{left: n, match: match, drop: how})
}

func (p *Proxy) addRule(r *rule) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
}

// Named matches commands by name, in any case.
func Named(names ...string) func(args []string) bool {
	return func(args []string) bool {
		return slices.ContainsFunc(names, func(n string) bool { return strings.EqualFold(n, args[0]) })
	}
}

// Garbage puts b in front of the next reply, on whichever connection it comes.
func (p *Proxy) Garbage(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.garbage = slices.Clone(b)
}

// Cut closes all connections at both ends. What they held is lost; new
// connections are welcome at once.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.kill()
	}
}

// Crash is what the clients see of a server process that dies: its connections
// end and what the proxy held for or from it is lost. It differs from Cut in that
// a link which swallows replies swallows the end of the connection, too: those
// clients go on waiting until Heal.
func (p *Proxy) Crash() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		if p.link.swallows(replies) || c.mute {
			c.loseServer()
			c.server.Close()
		} else {
			c.kill()
		}
	}
}

// Clear ends every fault: Heal, Resume, LetGo, no delay, no rule, no garbage. Flows that
// were forgotten stay so.
func (p *Proxy) Clear() {
	p.Heal()
	p.Resume()
	p.LetGo()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.latency = [2]time.Duration{}
	p.jitter = 0
	p.nextConn = 0
	p.rules = nil
	p.garbage = nil
}

// Close closes the listener and all connections and returns when every goroutine
// of the proxy has ended.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	if p.listener != nil {
		p.listener.Close()
		p.listener = nil
	}
	if p.reservation != nil {
		p.reservation.Close()
	}
	for c := range p.conns {
		c.kill()
	}
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
}

// wakeAll makes every writer look at its queue again. The caller holds mu.
func (p *Proxy) wakeAll() {
	for c := range p.conns {
		for i := range c.queues {
			c.queues[i].wakeUp()
		}
	}
}

// apply runs a command past the rules. The caller holds mu.
func (p *Proxy) apply(args []string) (drop Drop, delay time.Duration) {
	for _, r := range p.rules {
		if r.left == 0 || !r.match(args) {
			continue
		}
		r.left--
		delay += r.delay
		if drop == 0 {
			drop = r.drop
		}
	}
	p.rules = slices.DeleteFunc(p.rules, func(r *rule) bool { return r.left == 0 })
	return drop, delay
}
