package faultproxy

import (
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"
)

// direction says which way bytes go; it indexes the pairs below.
type direction int

const (
	requests direction = iota // from the client to the server
	replies                   // from the server to the client
)

// conn is one client's connection and the connection to the server that was
// opened for it. Four goroutines serve it, a reader and a writer per direction;
// all state is guarded by the proxy's mu.
type conn struct {
	p              *Proxy
	id             int
	client, server net.Conn

	queues     [2]queue
	over       [2]bool       // nothing is taken for, or out of, this queue any more
	pending    []expected    // forwarded requests, oldest first, whose replies are due
	subscribed bool          // a SUBSCRIBE has passed: arrays may be messages
	opaque     [2]bool       // not understood: bytes pass unread
	deaf, mute bool          // requests, replies were lost: none may follow the hole
	forgotten  bool          // neither end hears of the other any more, see Forget
	held       bool          // requests wait for LetGo
	extra      time.Duration // this connection's own delay of requests
}

// expected is a request whose reply has not come yet.
type expected struct {
	drop     Drop
	channels int // for SUBSCRIBE and its like: confirmations to come
}

func newConn(p *Proxy, id int, client, server net.Conn) *conn {
	c := &conn{p: p, id: id, client: client, server: server}
	for i := range c.queues {
		c.queues[i].wake = make(chan struct{}, 1)
	}
	return c
}

// run serves the connection until both ends are closed.
func (c *conn) run() {
	var wg sync.WaitGroup
	wg.Go(func() { c.read(requests, c.client) })
	wg.Go(func() { c.read(replies, c.server) })
	wg.Go(func() { c.write(requests, c.server) })
	wg.Go(func() { c.write(replies, c.client) })
	wg.Wait()
	c.client.Close()
	c.server.Close()
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	delete(c.p.conns, c)
}

// read takes in what src sends until it ends.
func (c *conn) read(d direction, src net.Conn) {
	buf := make([]byte, 32<<10)
	var pend []byte // begins at the first frame that is not complete
	for {
		n, err := src.Read(buf)
		if n > 0 {
			pend = append(pend, buf[:n]...)
			var used int
			if d == requests {
				used = c.requestsArrived(pend, n)
			} else {
				used = c.repliesArrived(pend, n)
			}
			// The queue owns what was used; only the rest may be appended to.
			pend = slices.Clone(pend[used:])
		}
		if err != nil {
			c.ended(d, err)
			return
		}
	}
}

// requestsArrived logs and queues the complete requests in b, whose last n bytes
// are new, and returns their length.
func (c *conn) requestsArrived(b []byte, n int) (used int) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	p := c.p
	p.log.stats.RequestChunks++
	p.log.stats.RequestBytes += uint64(n)
	lost := c.deaf || p.link.swallows(requests)
	now := time.Now()
	var queued int
	var args [][]byte
	for !c.opaque[requests] && used < len(b) {
		var size int
		var err error
		args, size, err = parseRequest(b[used:], args[:0])
		if err != nil {
			c.opaque[requests] = true
			break
		}
		if size == 0 {
			break
		}
		if len(args) > 0 { // Redis ignores empty requests
			drop, delay := c.note(args, now)
			if delay > 0 && !lost {
				c.enqueue(requests, item{data: b[queued:used], at: now.Add(c.delay(requests))})
				queued = used
				// What follows cannot overtake, so it need not be delayed itself.
				c.queues[requests].atLeast(now.Add(c.delay(requests) + delay))
			}
			if !lost {
				c.expect(args, drop)
			}
		}
		used += size
	}
	if c.opaque[requests] {
		used = len(b)
	}
	if lost {
		c.deaf = true
	} else {
		c.enqueue(requests, item{data: b[queued:used], at: now.Add(c.delay(requests))})
	}
	return used
}

// note writes a command into the log and asks the rules about it.
func (c *conn) note(args [][]byte, now time.Time) (Drop, time.Duration) {
	p := c.p
	if !p.log.on && len(p.rules) == 0 {
		return 0, 0
	}
	words := make([]string, len(args))
	for i, a := range args {
		words[i] = string(a)
	}
	p.log.add(Command{Conn: c.id, Args: words, At: now})
	return p.apply(words)
}

func (c *conn) expect(args [][]byte, drop Drop) {
	e := expected{drop: drop}
	if isSubscription(args[0]) {
		c.subscribed = true
		e.channels = max(1, len(args)-1)
	}
	c.pending = append(c.pending, e)
}

// repliesArrived is requestsArrived for the other direction.
func (c *conn) repliesArrived(b []byte, n int) (used int) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	p := c.p
	p.log.stats.ReplyChunks++
	p.log.stats.ReplyBytes += uint64(n)
	if c.mute || p.link.swallows(replies) {
		c.mute = true
		return len(b)
	}
	due := time.Now().Add(c.delay(replies))
	var queued int
	for !c.opaque[replies] && used < len(b) {
		size, err := replyLen(b[used:])
		if err != nil {
			c.opaque[replies] = true
			break
		}
		if size == 0 {
			break
		}
		e, isReply := c.match(b[used : used+size])
		if isReply && p.garbage != nil {
			c.enqueue(replies, item{data: b[queued:used], at: due})
			c.enqueue(replies, item{data: p.garbage, at: due})
			queued = used
			p.garbage = nil
		}
		if e.drop != 0 {
			c.enqueue(replies, item{data: b[queued:used], at: due})
			if e.drop != DropSilent {
				c.enqueue(replies, item{end: e.drop, at: due})
			}
			c.mute = true
			return len(b)
		}
		used += size
	}
	if c.opaque[replies] {
		used = len(b)
	}
	c.enqueue(replies, item{data: b[queued:used], at: due})
	return used
}

// match pairs a frame with the request that it answers. Pushes and messages
// answer none.
func (c *conn) match(frame []byte) (e expected, isReply bool) {
	word := pushKind(frame, c.subscribed)
	if len(c.pending) == 0 {
		return expected{}, word == ""
	}
	head := &c.pending[0]
	if word != "" {
		if head.channels == 0 || !isSubscription([]byte(word)) {
			return expected{}, false
		}
		if head.channels > 1 {
			head.channels--
			return *head, true
		}
	}
	e = *head
	c.pending = c.pending[1:]
	return e, true
}

func (c *conn) delay(d direction) time.Duration {
	if d == requests {
		return c.p.latency[d] + c.extra + c.p.jittered()
	}
	return c.p.latency[d] + c.p.jittered()
}

// ended is called by a reader whose source has ended.
func (c *conn) ended(d direction, err error) {
	c.p.mu.Lock()
	defer c.p.mu.Unlock()
	if d == requests {
		// The client is gone. What it has sent is still under way and will be
		// executed; what was meant for it has no reader any more.
		c.stop(replies)
		if c.forgotten {
			return // and the server is never told
		}
		c.enqueue(requests, item{end: DropCut, at: time.Now().Add(c.delay(requests))})
		return
	}
	c.stop(requests)
	if c.mute || c.p.link.swallows(replies) {
		c.mute = true // nobody tells the client
		return
	}
	end := DropCut
	if errors.Is(err, syscall.ECONNRESET) {
		end = DropReset
	}
	c.enqueue(replies, item{end: end, at: time.Now().Add(c.delay(replies))})
}

// write delivers what is due until the queue is over.
func (c *conn) write(d direction, dst net.Conn) {
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	for {
		it, ok := c.take(d, timer)
		if !ok {
			return
		}
		if it.end != 0 {
			closeEnd(d, dst, it.end)
			return
		}
		if _, err := dst.Write(it.data); err != nil {
			// The other side is gone, as its reader will find out.
			c.p.mu.Lock()
			c.stop(d)
			c.p.mu.Unlock()
			return
		}
	}
}

// closeEnd closes an end to which the end of its stream has been delivered.
func closeEnd(d direction, dst net.Conn, how Drop) {
	switch half, ok := dst.(interface{ CloseWrite() error }); {
	case how == DropReset:
		reset(dst)
	case d == requests && ok:
		// A server may not have read the last requests yet; a full close would
		// answer its replies with a reset, which may overtake them.
		half.CloseWrite()
	default:
		dst.Close()
	}
}

// take waits for the next item that is due. It reports false when there will be
// no more.
func (c *conn) take(d direction, timer *time.Timer) (item, bool) {
	q := &c.queues[d]
	for {
		c.p.mu.Lock()
		if c.over[d] {
			c.p.mu.Unlock()
			return item{}, false
		}
		wait := time.Duration(-1) // until woken
		if len(q.items) > 0 && !c.p.frozen && !(c.held && d == requests) {
			wait = time.Until(q.items[0].at)
			if wait <= 0 {
				it := q.pop()
				c.p.mu.Unlock()
				return it, true
			}
		}
		c.p.mu.Unlock()
		if wait < 0 {
			<-q.wake
			continue
		}
		timer.Reset(wait)
		select {
		case <-timer.C:
		case <-q.wake:
			timer.Stop() // a bubble's clock must not run after it
		}
	}
}

// The methods below need the proxy's mu.

func (c *conn) enqueue(d direction, it item) {
	if !c.over[d] && (len(it.data) > 0 || it.end != 0) {
		c.queues[d].push(it)
	}
}

// stop ends a direction: its queue is emptied and its writer leaves.
func (c *conn) stop(d direction) {
	c.over[d] = true
	c.queues[d].items = nil
	c.queues[d].wakeUp()
}

// loseFlying loses what a link that has just begun to swallow finds on its way.
// What is due has arrived and is out of the network's reach.
func (c *conn) loseFlying(d direction) {
	if d == replies {
		c.mute = c.queues[d].cutAfter(time.Now(), false) || c.mute
	} else {
		// The end stays: our connection to the server is closed in any case.
		c.deaf = c.queues[d].cutAfter(time.Now(), true) || c.deaf
	}
}

// loseServer ends the connection on the server's side, untold to the client.
func (c *conn) loseServer() {
	c.mute = true
	c.stop(requests)
	c.queues[replies].items = nil
}

// holed reports whether the connection has lost bytes.
func (c *conn) holed() bool { return c.deaf || c.mute }

// kill closes both ends at once and forgets what was under way.
func (c *conn) kill() {
	c.stop(requests)
	c.stop(replies)
	c.client.Close()
	c.server.Close()
}

// reset closes a connection so that the other side sees a reset.
func reset(conn net.Conn) {
	switch conn := conn.(type) {
	case interface{ SetLinger(sec int) error }:
		conn.SetLinger(0)
	case *memConn:
		conn.mark(memReset)
	}
	conn.Close()
}
