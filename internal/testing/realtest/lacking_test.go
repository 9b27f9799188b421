package realtest_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Servers and proxies that lack something.

// waysTo are the ways in which a program reaches a server.
var waysTo = map[string]func(t *testing.T, addr, user string, o *redlock.Options) (*redlock.Redlock, error){
	"Open": func(t *testing.T, addr, user string, o *redlock.Options) (*redlock.Redlock, error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		return openOn(ctx, []string{"redis://" + user + "@" + addr}, o)
	},
	"New": func(t *testing.T, addr, user string, o *redlock.Options) (*redlock.Redlock, error) {
		return newOf([]redis.UniversalClient{clientOfAddr(t, addr, user)}, o)
	},
}

func clientOfAddr(t *testing.T, addr, user string) *redis.Client {
	name, password, _ := strings.Cut(user, ":")
	c := redis.NewClient(&redis.Options{Addr: addr, Username: name, Password: password, Protocol: 2})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// held is a lock of any kind.
type held interface {
	Extend(ctx context.Context, ttl time.Duration) error
	Release(ctx context.Context) error
}

func heldBy[L held](try func(context.Context) (L, error)) func(context.Context) (held, error) {
	return func(ctx context.Context) (held, error) { return try(ctx) }
}

// useFirst acquires, extends and releases a lock of each kind with a client that is new.
func useFirst(t *testing.T, rl *redlock.Redlock) (err error) {
	for _, try := range []func(context.Context) (held, error){heldBy(rl.Mutex("k").TryAcquire), heldBy(rl.Mutex("s").Shared().TryAcquire), heldBy(rl.Semaphore("p", 2).TryAcquire)} {
		lock, err := try(t.Context())
		if err != nil {
			return err
		}
		if err := lock.Extend(t.Context(), 10*time.Second); err != nil {
			return err
		}
		if err := lock.Release(t.Context()); err != nil {
			return err
		}
	}
	return nil
}

// What is granted where no script runs can be neither extended nor released, and keeps all out for a TTL.
func TestScriptsAreTriedBeforeANodeVotes(t *testing.T) {
	t.Parallel()
	server := realredis.Start(t)
	admin := server.Client(t)
	for name, c := range map[string]struct {
		rules []any
		says  string // empty: it votes
	}{
		"no scripts":          {[]any{"-eval", "-evalsha"}, "NOPERM"},
		"no texts of scripts": {[]any{"-eval"}, "NOPERM"},
		"no digests":          {[]any{"-evalsha"}, ""},
	} {
		args := append([]any{"ACL", "SETUSER", "app", "reset", "on", ">pw", "~*", "&*", "+@all"}, c.rules...)
		require.NoError(t, admin.Do(t.Context(), args...).Err())
		for way, open := range waysTo {
			t.Run(name+", "+way, func(t *testing.T) {
				require.NoError(t, admin.ScriptFlush(t.Context()).Err())
				require.NoError(t, admin.FlushAll(t.Context()).Err())
				rl, err := open(t, server.Addr(), "app:pw", nil)
				if err == nil {
					t.Cleanup(func() { _ = rl.Close() })
					err = useFirst(t, rl)
				}
				if c.says == "" {
					assert.NoError(t, err)
				} else {
					assert.ErrorIs(t, err, redlock.ErrNoQuorum)
					assert.ErrorContains(t, err, c.says)
				}
				assert.Zero(t, admin.Exists(t.Context(), "k", "s", "p").Val(), "a lock that nothing can release")
			})
		}
	}
}

// curt is a proxy that ends a connection at commands that it does not know.
type curt struct {
	server  string
	unknown []string
	drops   bool // the answers that it has, too
}

func (c *curt) start(t *testing.T) (addr string) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var done sync.WaitGroup
	var mu sync.Mutex
	var open []net.Conn
	keep := func(conn net.Conn) {
		mu.Lock()
		defer mu.Unlock()
		open = append(open, conn)
	}
	done.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			keep(conn)
			done.Go(func() {
				defer conn.Close()
				to, err := net.Dial("tcp", c.server)
				if err != nil {
					return
				}
				keep(to)
				defer to.Close()
				c.serve(conn, to)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for _, conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		done.Wait()
	})
	return l.Addr().String()
}

func (c *curt) serve(from, to net.Conn) {
	in, out := bufio.NewReaderSize(from, 64<<10), bufio.NewReader(to)
	var answers bytes.Buffer
	for {
		words, err := command(in)
		if err != nil || len(words) == 0 {
			return
		}
		name := strings.ToUpper(words[0])
		if len(words) > 1 && name == "CLIENT" {
			name += " " + strings.ToUpper(words[1])
		}
		if slices.Contains(c.unknown, name) || slices.Contains(c.unknown, strings.Fields(name)[0]) {
			if !c.drops {
				_, _ = from.Write(answers.Bytes())
			}
			return
		}
		if _, err := to.Write(commandBytes(words)); err != nil || copyReply(&answers, out) != nil {
			return
		}
		if in.Buffered() > 0 {
			continue
		}
		if _, err := from.Write(answers.Bytes()); err != nil {
			return
		}
		answers.Reset()
	}
}

func commandBytes(words []string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(words))
	for _, w := range words {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(w), w)
	}
	return b
}

func copyReply(to *bytes.Buffer, from *bufio.Reader) error {
	line, err := from.ReadString('\n')
	if err != nil {
		return err
	}
	to.WriteString(line)
	n, _ := strconv.Atoi(strings.TrimSpace(line[1:]))
	switch {
	case line[0] == '$' && n >= 0:
		_, err = io.CopyN(to, from, int64(n)+2)
	case line[0] == '*':
		for range n {
			if err := copyReply(to, from); err != nil {
				return err
			}
		}
	}
	return err
}

// Behind a proxy that ends connections at commands that it does not know there is no vote, and the error names the
// command where the proxy passed on what came before.
func TestProxiesThatHangUpAtUnknownCommands(t *testing.T) {
	t.Parallel()
	server := realredis.Start(t)
	admin := server.Client(t)
	for _, c := range []struct{ unknown, says string }{
		{"CLIENT", "hung up before it answered"},
		{"INFO", "hung up at INFO server"},
		{"EVALSHA", "hung up at EVALSHA"},
		{"AUTH", "hung up before it answered"},
	} {
		for _, drops := range []bool{false, true} {
			for _, way := range []string{"Open", "New"} {
				t.Run(fmt.Sprint(c.unknown, ", drops answers: ", drops, ", ", way), func(t *testing.T) {
					require.NoError(t, admin.FlushAll(t.Context()).Err())
					p := &curt{server: server.Addr(), unknown: []string{c.unknown}, drops: drops}
					rl, err := waysTo[way](t, p.start(t), map[bool]string{true: "default:pw"}[c.unknown == "AUTH"], nil)
					if err == nil {
						t.Cleanup(func() { _ = rl.Close() })
						err = useFirst(t, rl)
					}
					require.ErrorIs(t, err, redlock.ErrNoQuorum)
					if drops {
						c.says = "hung up"
					}
					assert.ErrorContains(t, err, c.says)
					if strings.Contains(err.Error(), "hung up at") {
						assert.NotContains(t, err.Error(), "TLS")
					}
					assert.Zero(t, admin.Exists(t.Context(), "k").Val())
				})
			}
		}
	}
}

// Without a guard and without waiters no proxy is asked for anything but locks, and any answer to PING is a sign of life.
func TestWithoutAGuardNothingIsAskedFor(t *testing.T) {
	t.Parallel()
	server := realredis.Start(t)
	errs := &answering{server: server.Addr()}
	errs.says(func(words []string) string {
		if strings.EqualFold(words[0], "PING") {
			return "-ERR Connection refused\r\n"
		}
		return ""
	})
	hangs := &curt{server: server.Addr(), unknown: []string{"CLIENT", "HELLO", "INFO", "TIME", "EXISTS"}}
	for name, start := range map[string]func(*testing.T) string{"hangs up": hangs.start, "errs at PING": errs.start} {
		addr := start(t)
		for way, open := range waysTo {
			t.Run(name+", "+way, func(t *testing.T) {
				rl, err := open(t, addr, "", &redlock.Options{NoRestartGuard: true, NodeTimeout: 2 * time.Second})
				require.NoError(t, err)
				t.Cleanup(func() { _ = rl.Close() })
				require.NoError(t, useFirst(t, rl))
			})
		}
	}
	require.Zero(t, server.Client(t).Exists(t.Context(), "redlock:memory").Val())
}

// A server that is full answers the first words of a connection with an error and hangs up. It is guarded when there is
// room again.
func TestServersThatAreFullKeepTheirGuard(t *testing.T) {
	t.Parallel()
	servers := realredis.StartN(t, 3, realredis.Password("pw"))
	var urls []string
	for _, s := range servers {
		urls = append(urls, s.URL())
	}
	o := &redlock.Options{TTL: 10 * time.Second}
	a, err := openOn(t.Context(), urls, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = a.Close() })
	first := servers[2].Client(t)
	require.NoError(t, first.Set(t.Context(), "k", "of another", 0).Err())
	held, err := a.Mutex("k").TryAcquire(t.Context())
	require.NoError(t, err)
	require.NoError(t, first.Del(t.Context(), "k").Err())

	full := servers[1].Client(t)
	require.NoError(t, full.ConfigSet(t.Context(), "maxclients", "1").Err())
	var clients []redis.UniversalClient
	for _, s := range servers {
		clients = append(clients, clientOfAddr(t, s.Addr(), "default:pw"))
	}
	b, err := newOf(clients, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = b.Close() })
	refused := func() (n int) {
		_, after, _ := strings.Cut(full.Info(t.Context(), "stats").Val(), "rejected_connections:")
		_, _ = fmt.Sscan(after, &n)
		return n
	}
	for before := refused(); refused() < before+12; {
		lock, err := b.Mutex("another").TryAcquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
	}

	require.NoError(t, full.FlushAll(t.Context()).Err())
	require.NoError(t, full.ConfigSet(t.Context(), "maxclients", "1000").Err())
	for held.Validity() > 0 {
		_, err := b.Mutex("k").TryAcquire(t.Context())
		require.Error(t, err, "two holders")
		var q *redlock.QuorumError
		if errors.As(err, &q) && slices.ContainsFunc(q.Outcomes, func(o redlock.Outcome) bool { return o.Vote == redlock.VoteBarred }) {
			return
		}
	}
	t.Error("node 1 was not seen to be barred")
}
