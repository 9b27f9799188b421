package realtest_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/stretchr/testify/require"
)

// front is a proxy that speaks Redis' protocol on both sides: it answers PING itself, and a client's conversation goes
// on when the node behind it is another process. It may say what the node did not.
type front struct {
	dial func(ctx context.Context) (net.Conn, error) // to the node
	far  time.Duration                               // from the clients
	over chan struct{}                               // closed at the end of the test
	done sync.WaitGroup

	mu     sync.Mutex
	says   func(n int, words []string) remark
	came   int // commands so far
	behind map[net.Conn]bool
	conns  []net.Conn
	log    []string
	began  time.Time
}

// remark is what becomes of one command.
type remark struct {
	instead string                     // said in the place of the node's answer
	change  func(answer string) string // of the node's answer
	hold    time.Duration              // for so long nothing is said
	late    bool                       // the node is asked before that, and not after it
	hangUp  bool                       // behind the answer
}

func newFront(t *testing.T, dial func(ctx context.Context) (net.Conn, error)) *front {
	p := &front{dial: dial, over: make(chan struct{}), behind: make(map[net.Conn]bool), began: time.Now()}
	t.Cleanup(p.close)
	return p
}

// frontOf is a front of a real server, and its address.
func frontOf(t *testing.T, s *realredis.Server) (p *front, addr string) {
	t.Helper()
	p = newFront(t, func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "tcp", s.Addr()) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() }) // before close, which waits
	p.done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			p.accept(conn)
		}
	})
	return p, l.Addr().String()
}

// pipe is a client's connection without a socket.
func (p *front) pipe(context.Context, string, string) (net.Conn, error) {
	client, conn := net.Pipe()
	p.accept(conn)
	return client, nil
}

// say changes what is said from now on; nil: what the node says.
func (p *front) say(says func(n int, words []string) remark) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.says, p.came = says, 0
}

// lost ends the proxy's own connections with the node, of which clients hear nothing.
func (p *front) lost() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.behind {
		_ = c.Close()
	}
	clear(p.behind)
}

func (p *front) close() {
	close(p.over)
	p.lost()
	p.mu.Lock()
	for _, c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.done.Wait()
}

func (p *front) accept(conn net.Conn) {
	p.mu.Lock()
	p.conns = append(p.conns, conn)
	p.mu.Unlock()
	p.done.Go(func() {
		defer conn.Close()
		p.serve(conn)
	})
}

// backend is the proxy's own conversation with the node.
type backend struct {
	p    *front
	conn net.Conn
	in   *bufio.Reader
}

func (b *backend) close() {
	if b.conn == nil {
		return
	}
	_ = b.conn.Close()
	b.p.mu.Lock()
	delete(b.p.behind, b.conn)
	b.p.mu.Unlock()
	b.conn = nil
}

// ask is the node's answer, or the proxy's own error where there is none.
func (b *backend) ask(words []string) string {
	if b.conn != nil {
		b.p.mu.Lock()
		there := b.p.behind[b.conn]
		b.p.mu.Unlock()
		if !there {
			b.conn = nil
		}
	}
	if b.conn == nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		conn, err := b.p.dial(ctx)
		if err != nil {
			return "-ERR Connection refused\r\n"
		}
		b.conn, b.in = conn, bufio.NewReader(conn)
		b.p.mu.Lock()
		b.p.behind[conn] = true
		b.p.mu.Unlock()
	}
	var answer bytes.Buffer
	_, err := b.conn.Write(commandBytes(words))
	if err == nil {
		err = copyReply(&answer, b.in)
	}
	if err != nil {
		b.close()
		return "-ERR upstream failure\r\n"
	}
	return answer.String()
}

func (p *front) serve(client net.Conn) {
	in := bufio.NewReaderSize(client, 64<<10)
	b := &backend{p: p}
	defer b.close()
	for {
		first := in.Buffered() == 0
		words, err := command(in)
		if err != nil || len(words) == 0 {
			return
		}
		if first {
			p.wait(p.far)
		}
		answer, hangUp := p.answer(b, words)
		if _, err := client.Write([]byte(answer)); err != nil || hangUp {
			return
		}
	}
}

func (p *front) answer(b *backend, words []string) (answer string, hangUp bool) {
	switch strings.ToUpper(words[0]) {
	case "PING":
		return "+PONG\r\n", false
	case "SUBSCRIBE":
		return "-ERR unknown command 'subscribe'\r\n", false
	}
	p.mu.Lock()
	n, says := p.came, p.says
	p.came++
	p.mu.Unlock()
	var r remark
	if says != nil {
		r = says(n, words)
	}
	if r.late {
		answer = b.ask(words)
	}
	p.wait(r.hold)
	if answer == "" && r.instead == "" {
		answer = b.ask(words)
	}
	if r.instead != "" {
		answer = r.instead
	}
	if r.change != nil {
		answer = r.change(answer)
	}
	p.note(n, words, answer, r)
	return answer, r.hangUp
}

func (p *front) wait(d time.Duration) {
	if d > 0 {
		select {
		case <-time.After(d):
		case <-p.over:
		}
	}
}

// note keeps what a failure of the test shows.
func (p *front) note(n int, words []string, answer string, r remark) {
	own := ""
	if r.instead != "" || r.change != nil || r.hold > 0 {
		own = " (the proxy's)"
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	line := fmt.Sprintf("%v %d %.60q: %.200q%s", time.Since(p.began), n, words, answer, own)
	if p.log = append(p.log, line); len(p.log) > 80 {
		p.log = p.log[1:]
	}
}

func (p *front) told() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.log, "\n")
}
