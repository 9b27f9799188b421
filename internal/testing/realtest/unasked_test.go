package realtest_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// repeating is a way to a server on which a grant that was not asked for follows one refusal.
type repeating struct {
	server *realredis.Server
	secure *tls.Config // nil: without TLS
	alone  chan bool   // it comes by itself when this is closed; nil: together with the refusal

	l     net.Listener
	armed atomic.Bool
	sent  chan bool // gets one when it was
	done  sync.WaitGroup
}

func startRepeating(t *testing.T, s *realredis.Server, secure *tls.Config, alone, sent chan bool) *repeating {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	r := &repeating{server: s, secure: secure, alone: alone, l: l, sent: sent}
	r.done.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			r.done.Go(func() { r.serve(c) })
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		r.done.Wait()
	})
	return r
}

// gathered is a connection that sends what is written to it only when it is flushed, so that all arrives at once.
type gathered struct {
	net.Conn
	bytes bytes.Buffer
}

func (g *gathered) Write(p []byte) (int, error) { return g.bytes.Write(p) }

func (g *gathered) flush() error {
	_, err := g.bytes.WriteTo(g.Conn)
	return err
}

func (r *repeating) serve(c net.Conn) {
	defer c.Close()
	server, err := net.Dial("tcp", r.server.Addr())
	if err != nil {
		return
	}
	defer server.Close()
	out := &gathered{Conn: c}
	client, flush := net.Conn(out), out.flush
	if r.secure != nil { // each write is a record of its own
		shaken := tls.Server(c, r.secure)
		if shaken.Handshake() != nil {
			return
		}
		client, flush = shaken, func() error { return nil }
	}
	r.done.Go(func() {
		defer server.Close()
		_, _ = io.Copy(server, client)
	})
	chunk := make([]byte, 64<<10)
	for {
		n, err := server.Read(chunk)
		if err != nil {
			return
		}
		_, _ = client.Write(chunk[:n])
		repeats := bytes.HasSuffix(chunk[:n], []byte("$-1\r\n")) && r.armed.CompareAndSwap(true, false)
		if repeats && r.alone != nil {
			_ = flush()
			<-r.alone
		}
		if repeats {
			_, _ = client.Write([]byte("+OK\r\n"))
		}
		if flush() != nil {
			return
		}
		if repeats {
			r.sent <- true
		}
	}
}

// own is a connection of a type that is none of the standard library's. It reads one reply at a time.
type own struct{ net.Conn }

func (o own) Read(p []byte) (int, error) { return o.Conn.Read(p[:min(len(p), len("$-1\r\n"))]) }

// A reply that was not asked for is noticed over TLS, too, and grants nothing.
func TestReplyThatWasNotAskedForGrantsNothing(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	https := httptest.NewTLSServer(nil) // has a certificate
	https.Close()
	servers := realredis.StartN(t, 3)
	for name, kind := range map[string]struct {
		secure *tls.Config
		ours   func(c net.Conn) net.Conn
	}{
		"TCP":          {nil, func(c net.Conn) net.Conn { return c }},
		"TLS":          {https.TLS, func(c net.Conn) net.Conn { return tls.Client(c, &tls.Config{InsecureSkipVerify: true}) }},
		"TLS over own": {https.TLS, func(c net.Conn) net.Conn { return tls.Client(own{c}, &tls.Config{InsecureSkipVerify: true}) }},
	} {
		for _, alone := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, alone %v", name, alone), func(t *testing.T) {
				key := resource + t.Name()
				var refused chan bool
				sent := make(chan bool, len(servers))
				if alone {
					refused = make(chan bool)
				}
				var ways []*repeating
				var clients []redis.UniversalClient
				for _, s := range servers {
					r := startRepeating(t, s, kind.secure, refused, sent)
					ways = append(ways, r)
					c := redis.NewClient(&redis.Options{Addr: r.l.Addr().String(), Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
						c, err := new(net.Dialer).DialContext(ctx, network, addr)
						if err != nil {
							return nil, err
						}
						return kind.ours(c), nil
					}})
					t.Cleanup(func() { _ = c.Close() })
					clients = append(clients, c)
				}
				rl := newOn(t, redlock.Options{NodeTimeout: 2 * time.Second, NoRestartGuard: true}, clients...)
				lock, err := rl.Mutex(key).TryAcquire(t.Context())
				require.NoError(t, err)
				require.NoError(t, lock.Release(t.Context()))
				for _, s := range servers { // another one holds it
					require.NoError(t, s.Client(t).Set(t.Context(), key, "another's", time.Minute).Err())
				}
				for _, r := range ways {
					r.armed.Store(true)
				}
				_, err = rl.Mutex(key).TryAcquire(t.Context())
				if alone {
					close(refused)
				}
				require.Error(t, err)
				for range len(servers)/2 + 1 { // the others may not have been asked any more
					await(t, sent)
				}
				lock, err = rl.Mutex(key).TryAcquire(t.Context())
				require.Error(t, err)
				require.Nil(t, lock)
			})
		}
	}
}
