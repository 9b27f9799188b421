package realtest_test

import (
	"bufio"
	"bytes"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// answering is a proxy that answers some commands itself.
type answering struct {
	server  string
	instead atomic.Pointer[func(words []string) string] // the answer; empty: the server's
}

func (p *answering) says(instead func(words []string) string) { p.instead.Store(&instead) }

func (p *answering) start(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var done sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	done.Go(func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("tcp", p.server)
			if err != nil {
				_ = from.Close()
				continue
			}
			mu.Lock()
			open = append(open, from, to)
			mu.Unlock()
			done.Go(func() {
				defer from.Close()
				defer to.Close()
				p.serve(from, to)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		done.Wait()
	})
	return l.Addr().String()
}

func (p *answering) serve(from, to net.Conn) {
	in, out := bufio.NewReader(from), bufio.NewReader(to)
	for {
		words, err := command(in)
		if err != nil || len(words) == 0 {
			return
		}
		if f := p.instead.Load(); f != nil {
			if text := (*f)(words); text != "" {
				if _, err := from.Write([]byte(text)); err != nil {
					return
				}
				continue
			}
		}
		if _, err := to.Write(commandBytes(words)); err != nil {
			return
		}
		var answer bytes.Buffer
		if err := copyReply(&answer, out); err != nil {
			return
		}
		if _, err := from.Write(answer.Bytes()); err != nil {
			return
		}
	}
}

// refusingInfo answers INFO with a text of its own.
func refusingInfo(text string) func(words []string) string {
	return func(words []string) string {
		if strings.EqualFold(words[0], "INFO") {
			return "-" + text + "\r\n"
		}
		return ""
	}
}

// A proxy in front of a node says an error of its own to INFO while the node behind it restarts and forgets. A client
// that starts at that moment knows nothing of the node, and must not take its vote.
func TestErrorsOfAProxyAreNoVotes(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"ERR x", "ERR Connection refused", "ERR max requests limit exceeded", "upstream failure", "Error", "BUSY x",
		"NOPERM x", "ERR unknown command 'INFO'", "ERR unsupported",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			servers := realredis.StartN(t, 3)
			p := &answering{server: servers[0].Addr()}
			front := p.start(t)
			addrs := []string{front, servers[1].Addr(), servers[2].Addr()}
			o := &redlock.Options{TTL: 10 * time.Second}
			a, err := openOn(t.Context(), addrs, o)
			require.NoError(t, err)
			t.Cleanup(func() { _ = a.Close() })
			last := servers[2].Client(t)
			require.NoError(t, last.Set(t.Context(), "k", "of another", 0).Err())
			held, err := a.Mutex("k").TryAcquire(t.Context())
			require.NoError(t, err)
			require.NoError(t, last.Del(t.Context(), "k").Err())

			p.says(refusingInfo(text))
			require.NoError(t, servers[0].Client(t).FlushAll(t.Context()).Err()) // as a restart does that keeps nothing
			var clients []redis.UniversalClient
			for _, addr := range addrs {
				clients = append(clients, clientOfAddr(t, addr, ""))
			}
			b, err := newOf(clients, o)
			require.NoError(t, err)
			t.Cleanup(func() { _ = b.Close() })
			two := func() error { _, err := b.Mutex("k").TryAcquire(t.Context()); return err }
			eventually(t, func() bool {
				err := two()
				require.Error(t, err, "two holders")
				return slices.ContainsFunc(outcomes(t, err), func(o redlock.Outcome) bool { return says(o, text) })
			}, "the error is not told")
			p.says(func([]string) string { return "" })
			for range 20 {
				err := two()
				if held.Validity() == 0 {
					break // the machine stood still
				}
				require.Error(t, err, "two holders")
			}
			_ = held.Release(t.Context()) // one of the two forgot it
			eventually(t, func() bool {
				lock, err := b.Mutex("k").TryAcquire(t.Context())
				return err == nil && lock.Release(t.Context()) == nil
			}, "nodes 1 and 2 do not vote")
		})
	}
}
