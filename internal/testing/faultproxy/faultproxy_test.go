package faultproxy_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/faultproxy"
)

// rig is a server behind a proxy, reached in one of the two ways.
type rig struct {
	*testing.T
	p    *faultproxy.Proxy
	m    *miniredis.Miniredis
	addr string // "" when in memory
}

var ctx = context.Background()

// bothWays runs a test in memory, in a bubble, and over TCP.
func bothWays(t *testing.T, f func(*rig)) {
	t.Run("memory", func(t *testing.T) { inBubble(t, f) })
	t.Run("tcp", func(t *testing.T) {
		m := miniredis.RunT(t)
		var dialer net.Dialer
		p := faultproxy.New(func(ctx context.Context) (net.Conn, error) {
			return dialer.DialContext(ctx, "tcp", m.Addr())
		})
		t.Cleanup(p.Close)
		addr, err := p.Listen()
		require.NoError(t, err)
		f(&rig{t, p, m, addr})
	})
}

func inBubble(t *testing.T, f func(*rig)) {
	synctest.Test(t, func(t *testing.T) {
		m := miniredis.NewMiniRedis()
		t.Cleanup(m.Close)
		p := faultproxy.New(func(context.Context) (net.Conn, error) { return m.Dial() })
		t.Cleanup(p.Close)
		f(&rig{t, p, m, ""})
	})
}

func (r *rig) dial(ctx context.Context) (net.Conn, error) {
	if r.addr == "" {
		return r.p.DialContext(ctx)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", r.addr)
}

// client returns a client that tries everything once and gives up a command
// after timeout.
func (r *rig) client(timeout time.Duration, adapt ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{
		Addr:                     "127.0.0.1:1",
		Dialer:                   func(ctx context.Context, _, _ string) (net.Conn, error) { return r.dial(ctx) },
		DialTimeout:              timeout,
		DialerRetries:            1,
		ReadTimeout:              timeout,
		MaxRetries:               -1,
		PoolSize:                 100,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	for _, a := range adapt {
		a(o)
	}
	c := redis.NewClient(o)
	r.Cleanup(func() { c.Close() })
	return c
}

const (
	long  = 30 * time.Second // for what is expected to succeed
	short = 100 * time.Millisecond
)

func (r *rig) eventually(cond func() bool, what string) {
	r.Helper()
	for deadline := time.Now().Add(long); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatal("not in time: ", what)
		}
	}
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

func TestForwardsAndLogs(t *testing.T) {
	bothWays(t, func(r *rig) {
		for _, proto := range []int{2, 3} {
			r.p.Reset()
			c := r.client(long, func(o *redis.Options) { o.Protocol = proto })
			_, err := c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
				pipe.Set(ctx, "k", strings.Repeat("x", 100_000), 0)
				pipe.HSet(ctx, "h", "a", 1, "b", 2)
				pipe.Get(ctx, "k")
				return nil
			})
			require.NoError(r, err)
			assert.Equal(r, map[string]string{"a": "1", "b": "2"}, c.HGetAll(ctx, "h").Val())
			assert.ErrorIs(r, c.Get(ctx, "none").Err(), redis.Nil)
			assert.Equal(r, int64(7), c.Eval(ctx, "return 7", nil).Val())

			assert.Equal(r, 1, r.p.Count("set"))
			assert.Equal(r, 4, r.p.Count("GET", "HGETALL", "EVAL", "get"))
			assert.Equal(r, 1, r.p.CountFunc(func(c faultproxy.Command) bool { return c.Args[len(c.Args)-1] == "none" }))
			all := r.p.Commands()
			assert.Len(r, all, r.p.Count())
			last := all[len(all)-1]
			assert.Equal(r, []string{"eval", "return 7", "0"}, last.Args)
			assert.Equal(r, "EVAL", last.Name())
			assert.NotZero(r, last.Conn)
			assert.Equal(r, uint64(2), r.p.Stats().Conns, "go-redis has a pool for pipelines")
			assert.Greater(r, r.p.Stats().RequestBytes, uint64(100_000))
			assert.Greater(r, r.p.Stats().ReplyBytes, uint64(100_000))
			require.NoError(r, c.Close())
		}
		r.p.Record(false)
		n := r.p.Count()
		require.NoError(r, r.client(long).Ping(ctx).Err())
		assert.Equal(r, n, r.p.Count())
	})
}

func TestRefuse(t *testing.T) {
	bothWays(t, func(r *rig) {
		c := r.client(long)
		require.NoError(r, c.Ping(ctx).Err())
		r.p.Refuse()
		assert.ErrorIs(r, c.Ping(ctx).Err(), syscall.ECONNREFUSED)
		_, err := r.dial(ctx)
		var op *net.OpError
		require.ErrorAs(r, err, &op)
		assert.Equal(r, "dial", op.Op)
		r.p.Heal()
		assert.NoError(r, c.Ping(ctx).Err())
	})
}

func TestListenWhileRefusedOpensOnHeal(t *testing.T) {
	m := miniredis.RunT(t)
	p := faultproxy.New(func(context.Context) (net.Conn, error) { return net.Dial("tcp", m.Addr()) })
	defer p.Close()
	p.Refuse()
	addr, err := p.Listen()
	require.NoError(t, err)
	_, err = net.Dial("tcp", addr)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	p.Heal()
	again, err := p.Listen()
	require.NoError(t, err)
	assert.Equal(t, addr, again)
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	conn.Close()
}

func TestBlackholeLosesBytesAndHealCutsWhoLostSome(t *testing.T) {
	bothWays(t, func(r *rig) {
		idle, loser := r.client(long), r.client(short)
		require.NoError(r, idle.Ping(ctx).Err())
		require.NoError(r, loser.Ping(ctx).Err())
		conn, err := r.dial(ctx)
		require.NoError(r, err)
		defer conn.Close()

		r.p.Blackhole()
		assert.True(r, isTimeout(loser.Set(ctx, "k", "v", 0).Err()), "an old connection is silent")
		assert.Error(r, loser.Set(ctx, "k", "v", 0).Err(), "and so is a new one")
		assert.Equal(r, 1, r.p.Count("SET"), "what is swallowed is logged; a client without a connection sends nothing")
		_, err = conn.Write([]byte("*1\r\n$4\r\nPING\r\n"))
		require.NoError(r, err)
		r.eventually(func() bool { return r.p.Count("PING") == 3 }, "PING swallowed")

		r.p.Heal()
		_, err = conn.Read(make([]byte, 1))
		assert.ErrorIs(r, err, io.EOF)
		conns := r.p.Stats().Conns
		assert.NoError(r, idle.Ping(ctx).Err())
		assert.Equal(r, conns, r.p.Stats().Conns, "a connection that lost nothing lives on")
		assert.False(r, r.m.Exists("k"))
	})
}

func TestDialInBlackhole(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.p.Blackhole()
		start := time.Now()
		limited, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := r.p.DialContext(limited)
		assert.Equal(r, time.Second, time.Since(start))
		assert.True(r, isTimeout(err), "%v", err)
		assert.ErrorIs(r, err, context.DeadlineExceeded)

		time.AfterFunc(time.Minute, r.p.Heal)
		conn, err := r.p.Dial()
		require.NoError(r, err)
		conn.Close()
		assert.Equal(r, time.Minute+time.Second, time.Since(start))

		r.p.Blackhole()
		time.AfterFunc(time.Minute, r.p.Close)
		_, err = r.p.Dial()
		assert.ErrorIs(r, err, faultproxy.ErrClosed)
		_, err = r.p.Listen()
		assert.ErrorIs(r, err, faultproxy.ErrClosed)
	})
}

func TestFreezeLosesNothing(t *testing.T) {
	bothWays(t, func(r *rig) {
		c := r.client(short)
		require.NoError(r, c.Ping(ctx).Err())
		r.p.Freeze()
		assert.True(r, isTimeout(c.Set(ctx, "late", "1", 0).Err()))
		require.NoError(r, c.Close()) // the server's kernel has the request all the same
		conn, err := r.dial(ctx)
		require.NoError(r, err, "a frozen server accepts")
		defer conn.Close()
		for i := range 3 {
			fmt.Fprintf(conn, "*3\r\n$6\r\nAPPEND\r\n$1\r\na\r\n$1\r\n%d\r\n", i)
		}
		r.eventually(func() bool { return r.p.Count("APPEND") == 3 }, "requests held")
		assert.False(r, r.m.Exists("late"))

		r.p.Resume()
		replies := bufio.NewReader(conn)
		for i := range 3 {
			line, err := replies.ReadString('\n')
			require.NoError(r, err)
			assert.Equal(r, fmt.Sprintf(":%d\r\n", i+1), line)
		}
		assert.Equal(r, "012", first(r.m.Get("a")))
		r.eventually(func() bool { return r.m.Exists("late") }, "the request of a client that has gone is executed")
	})
}

func TestFreezeThenBlackholeKeepsWhatHadArrived(t *testing.T) {
	inBubble(t, func(r *rig) {
		c := r.client(short)
		require.NoError(r, c.Ping(ctx).Err())
		r.p.Freeze()
		assert.Error(r, c.Set(ctx, "before", "1", 0).Err())
		r.p.Blackhole()
		r.p.Resume()
		synctest.Wait()
		assert.True(r, r.m.Exists("before"))
	})
}

func TestDropRequestsAndDropReplies(t *testing.T) {
	bothWays(t, func(r *rig) {
		for _, drop := range []struct {
			name    string
			start   func()
			applied bool
		}{
			{"requests", r.p.DropRequests, false},
			{"replies", r.p.DropReplies, true},
		} {
			hasty, patient := r.client(short), r.client(long)
			require.NoError(r, hasty.Ping(ctx).Err())
			drop.start()
			assert.True(r, isTimeout(hasty.Set(ctx, drop.name, "v", 0).Err()), drop.name)
			assert.Equal(r, drop.applied, r.m.Exists(drop.name), drop.name)
			conn, err := r.dial(ctx)
			require.NoError(r, err)
			defer conn.Close()
			chunks := r.p.Stats()
			io.WriteString(conn, "*1\r\n$4\r\nPING\r\n")
			r.eventually(func() bool {
				now := r.p.Stats()
				return now.RequestChunks > chunks.RequestChunks && (!drop.applied || now.ReplyChunks > chunks.ReplyChunks)
			}, "loss of the PING")
			r.p.Heal()
			_, err = conn.Read(make([]byte, 1))
			assert.ErrorIs(r, err, io.EOF, drop.name)
			assert.NoError(r, patient.Ping(ctx).Err())
		}
	})
}

func TestBlackholeLosesWhatIsUnderWay(t *testing.T) {
	inBubble(t, func(r *rig) {
		for _, late := range [][2]time.Duration{{time.Second, 0}, {0, time.Second}} {
			conn, err := r.dial(ctx)
			require.NoError(r, err)
			defer conn.Close()
			r.m.FlushAll()
			r.p.Delay(late[0], late[1])
			io.WriteString(conn, "*2\r\n$4\r\nINCR\r\n$1\r\nk\r\n")
			synctest.Wait()
			r.p.Blackhole()
			time.Sleep(2 * time.Second)
			assert.Equal(r, late[0] == 0, r.m.Exists("k"))
			r.p.Heal()
			_, err = conn.Read(make([]byte, 1))
			assert.ErrorIs(r, err, io.EOF)
		}
	})
}

func TestDelay(t *testing.T) {
	const d, e = 20 * time.Millisecond, 30 * time.Millisecond
	bothWays(t, func(r *rig) {
		c := r.client(long)
		require.NoError(r, c.Ping(ctx).Err())
		r.p.Delay(d, e)
		start := time.Now()
		require.NoError(r, c.Ping(ctx).Err())
		took := time.Since(start)
		assert.GreaterOrEqual(r, took, d+e)
		if r.addr == "" {
			assert.Equal(r, d+e, took)
		}
		r.p.Delay(0, 0)
		start = time.Now()
		require.NoError(r, c.Ping(ctx).Err())
		if r.addr == "" {
			assert.Zero(r, time.Since(start))
		}
	})
}

func TestDelayKeepsOrderAndThroughput(t *testing.T) {
	inBubble(t, func(r *rig) {
		conn, err := r.dial(ctx)
		require.NoError(r, err)
		defer conn.Close()
		r.p.Delay(time.Second, time.Second)
		start := time.Now()
		for i := range 1000 {
			if i == 500 {
				r.p.Delay(0, time.Second) // what follows must not overtake
			}
			fmt.Fprintf(conn, "*2\r\n$4\r\nECHO\r\n$3\r\n%03d\r\n", i)
		}
		replies := bufio.NewReader(conn)
		for i := range 1000 {
			replies.ReadString('\n')
			line, err := replies.ReadString('\n')
			require.NoError(r, err)
			require.Equal(r, fmt.Sprintf("%03d\r\n", i), line)
		}
		assert.Equal(r, 2*time.Second, time.Since(start))
	})
}

func TestRepliesNobodyReadsBlockNobody(t *testing.T) {
	bothWays(t, func(r *rig) {
		conn, err := r.dial(ctx)
		require.NoError(r, err)
		defer conn.Close()
		const n = 20_000 // a megabyte: more than kernels buffer unread would be better, but pipes buffer nothing
		request := "*2\r\n$4\r\nECHO\r\n$50\r\n" + strings.Repeat("x", 50) + "\r\n"
		_, err = io.WriteString(conn, strings.Repeat(request, n))
		require.NoError(r, err)
		r.eventually(func() bool { return r.p.Count("ECHO") == n }, "all taken")
		_, err = io.CopyN(io.Discard, conn, int64(n*len("$50\r\n\r\n")+n*50))
		require.NoError(r, err)
	})
}

func TestDelayRequestIsOvertakenByOtherConnections(t *testing.T) {
	bothWays(t, func(r *rig) {
		c := r.client(long)
		r.p.DelayRequest(1, 5*short, faultproxy.Named("set"))
		done := make(chan error)
		go func() { done <- c.Set(ctx, "k", "first", 0).Err() }()
		r.eventually(func() bool { return r.p.Count("SET") == 1 }, "the first SET under way")
		require.NoError(r, c.Set(ctx, "k", "second", 0).Err())
		assert.Equal(r, "second", first(r.m.Get("k")))
		require.NoError(r, <-done)
		assert.Equal(r, "first", first(r.m.Get("k")))
	})
}

func TestDelayRequestLeavesWhatWentBefore(t *testing.T) {
	inBubble(t, func(r *rig) {
		c := r.client(long)
		require.NoError(r, c.Ping(ctx).Err())
		r.p.DelayRequest(1, time.Second, faultproxy.Named("DEL"))
		go c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Set(ctx, "a", 1, 0)
			pipe.Del(ctx, "none")
			pipe.Set(ctx, "b", 1, 0)
			return nil
		})
		synctest.Wait()
		assert.True(r, r.m.Exists("a"))
		assert.False(r, r.m.Exists("b"))
		time.Sleep(time.Second)
		synctest.Wait()
		assert.True(r, r.m.Exists("b"))
	})
}

func TestDelayNextConn(t *testing.T) {
	inBubble(t, func(r *rig) {
		ping := func() time.Duration {
			start := time.Now()
			conn, err := r.dial(ctx)
			require.NoError(r, err)
			defer conn.Close()
			io.WriteString(conn, "*1\r\n$4\r\nPING\r\n")
			_, err = io.ReadFull(conn, make([]byte, len("+PONG\r\n")))
			require.NoError(r, err)
			return time.Since(start)
		}
		r.p.DelayNextConn(time.Second)
		assert.Equal(r, time.Second, ping())
		assert.Zero(r, ping())
	})
}

func TestDropReply(t *testing.T) {
	for _, c := range []struct {
		name  string
		how   faultproxy.Drop
		check func(error) bool
	}{
		{"cut", faultproxy.DropCut, func(err error) bool { return errors.Is(err, io.EOF) }},
		// go-redis peeks for pushes before it reads the reply, and only the first
		// read of a socket tells of a reset.
		{"reset", faultproxy.DropReset, func(err error) bool { return errors.Is(err, io.EOF) }},
		{"silent", faultproxy.DropSilent, isTimeout},
	} {
		t.Run(c.name, func(t *testing.T) {
			bothWays(t, func(r *rig) {
				cl := r.client(short)
				require.NoError(r, cl.Ping(ctx).Err())
				r.p.DropReply(1, c.how, faultproxy.Named("SET"))
				err := cl.Set(ctx, "k", "v", 0).Err()
				assert.True(r, c.check(err), "%v", err)
				assert.True(r, r.m.Exists("k"), "it was applied")
				assert.NoError(r, cl.Set(ctx, "k", "v", 0).Err(), "only one is dropped")
			})
		})
	}
}

func TestDropReplyReset(t *testing.T) {
	bothWays(t, func(r *rig) {
		conn, err := r.dial(ctx)
		require.NoError(r, err)
		defer conn.Close()
		r.p.DropReply(1, faultproxy.DropReset, faultproxy.Named("INCR"))
		io.WriteString(conn, "*2\r\n$4\r\nINCR\r\n$1\r\nk\r\n")
		_, err = conn.Read(make([]byte, 1))
		assert.ErrorIs(r, err, syscall.ECONNRESET)
		assert.NoError(r, conn.SetReadDeadline(time.Now().Add(long)))
		_, err = conn.Read(make([]byte, 1))
		assert.Equal(r, io.EOF, err)
		_, err = conn.Write([]byte("x"))
		assert.Error(r, err)
	})
}

func TestDropReplySilentStaysSilentWhenTheServerDies(t *testing.T) {
	bothWays(t, func(r *rig) {
		conn, err := r.dial(ctx)
		require.NoError(r, err)
		defer conn.Close()
		r.p.DropReply(1, faultproxy.DropSilent, faultproxy.Named("INCR"))
		io.WriteString(conn, "*2\r\n$4\r\nINCR\r\n$1\r\nk\r\n")
		r.eventually(func() bool { return r.p.Stats().ReplyChunks == 1 }, "reply dropped")
		r.m.Close()
		conn.SetReadDeadline(time.Now().Add(short))
		_, err = conn.Read(make([]byte, 1))
		assert.True(r, isTimeout(err), "%v", err)
	})
}

func TestDropReplyDeliversWhatWentBefore(t *testing.T) {
	bothWays(t, func(r *rig) {
		conn, err := r.dial(ctx)
		require.NoError(r, err)
		defer conn.Close()
		r.p.DropReply(1, faultproxy.DropCut, faultproxy.Named("INCR"))
		incr := "*2\r\n$4\r\nINCR\r\n$1\r\nk\r\n"
		_, err = io.WriteString(conn, "*1\r\n$4\r\nPING\r\n"+incr+incr)
		require.NoError(r, err)
		got, err := io.ReadAll(conn)
		require.NoError(r, err)
		assert.Equal(r, "+PONG\r\n", string(got))
		r.eventually(func() bool { return first(r.m.Get("k")) == "2" }, "the request behind it is executed, too")
	})
}

func TestDropReplyFindsItsCommandAmongMessages(t *testing.T) {
	bothWays(t, func(r *rig) {
		for proto, messages := range map[int]bool{2: false, 3: true} {
			conn, err := r.dial(ctx)
			require.NoError(r, err)
			say := func(words ...string) {
				fmt.Fprintf(conn, "*%d\r\n", len(words))
				for _, w := range words {
					fmt.Fprintf(conn, "$%d\r\n%s\r\n", len(w), w)
				}
			}
			in := bufio.NewReader(conn)
			expect := func(want string) {
				r.Helper()
				got := make([]byte, len(want))
				_, err := io.ReadFull(in, got)
				require.NoError(r, err)
				require.Equal(r, want, string(got))
			}
			mark := "*"
			if messages {
				mark = ">"
				say("HELLO", "3")
				for line := ""; !strings.HasPrefix(line, "*0"); {
					line, err = in.ReadString('\n')
					require.NoError(r, err)
				}
			}
			say("SUBSCRIBE", "a", "b")
			for i, ch := range []string{"a", "b"} {
				expect(fmt.Sprintf("%s3\r\n$9\r\nsubscribe\r\n$1\r\n%s\r\n:%d\r\n", mark, ch, i+1))
			}
			r.p.DropReply(1, faultproxy.DropCut, func(args []string) bool { return len(args) == 2 && args[1] == "drop" })
			r.m.Publish("a", "1")
			expect(mark + "3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n1\r\n")
			say("PING", "keep")
			expect("*2\r\n$4\r\npong\r\n$4\r\nkeep\r\n")
			r.m.Publish("b", "2")
			expect(mark + "3\r\n$7\r\nmessage\r\n$1\r\nb\r\n$1\r\n2\r\n")
			r.p.DelayRequest(1, short, faultproxy.Named("PING"))
			n := r.p.Count("PING")
			say("PING", "drop")
			r.eventually(func() bool { return r.p.Count("PING") > n }, "PING under way")
			r.m.Publish("a", "3") // while a reply is owed
			expect(mark + "3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\n3\r\n")
			_, err = in.ReadByte()
			require.ErrorIs(r, err, io.EOF, "RESP%d", proto)
			conn.Close()
		}
	})
}

func TestGarbage(t *testing.T) {
	bothWays(t, func(r *rig) {
		c := r.client(long)
		require.NoError(r, c.Ping(ctx).Err())
		r.p.Garbage([]byte("rubbish\r\n"))
		assert.Error(r, c.Ping(ctx).Err())
		assert.NoError(r, c.Ping(ctx).Err())
	})
}

func TestCutCostsAnIdleConnectionNothing(t *testing.T) {
	bothWays(t, func(r *rig) {
		c := r.client(long)
		require.NoError(r, c.Ping(ctx).Err())
		r.p.Cut()
		assert.NoError(r, c.Ping(ctx).Err(), "the client's health check sees the end")
		assert.Equal(r, uint64(2), r.p.Stats().Conns)

		conn, err := r.dial(ctx)
		require.NoError(r, err)
		defer conn.Close()
		r.eventually(func() bool { return r.p.Stats().Conns == 3 }, "joined")
		r.p.Cut()
		_, err = conn.Read(make([]byte, 1))
		assert.ErrorIs(r, err, io.EOF)
	})
}

func TestCrashIsNotToldThroughABlackhole(t *testing.T) {
	bothWays(t, func(r *rig) {
		conn, err := r.dial(ctx)
		require.NoError(r, err)
		defer conn.Close()
		r.eventually(func() bool { return r.p.Stats().Conns == 1 }, "joined")
		r.p.Blackhole()
		r.p.Crash()
		conn.SetReadDeadline(time.Now().Add(short))
		_, err = conn.Read(make([]byte, 1))
		assert.True(r, isTimeout(err), "%v", err)
		r.p.Heal()
		conn.SetReadDeadline(time.Now().Add(long))
		_, err = conn.Read(make([]byte, 1))
		assert.ErrorIs(r, err, io.EOF)

		c := r.client(long)
		require.NoError(r, c.Ping(ctx).Err())
		r.p.Freeze()
		done := make(chan error)
		go func() { done <- c.Set(ctx, "k", "v", 0).Err() }()
		r.eventually(func() bool { return r.p.Count("SET") == 1 }, "SET held")
		r.p.Crash()
		assert.ErrorIs(r, <-done, io.EOF)
		r.p.Resume()
		assert.NoError(r, c.Ping(ctx).Err())
		assert.False(r, r.m.Exists("k"), "what a dead process held is lost")
	})
}

func TestServerThatCannotBeReached(t *testing.T) {
	bothWays(t, func(r *rig) {
		r.p.SetUpstream(func(context.Context) (net.Conn, error) { return nil, syscall.ECONNREFUSED })
		assert.Error(r, r.client(long).Ping(ctx).Err())
		if r.addr != "" {
			r.p.Blackhole()
			assert.True(r, isTimeout(r.client(short).Ping(ctx).Err()), "not even a refusal comes back")
			r.p.Heal()
		}
		other := miniredis.NewMiniRedis()
		defer other.Close()
		other.Set("who", "other")
		r.p.SetUpstream(func(context.Context) (net.Conn, error) { return other.Dial() })
		assert.Equal(r, "other", r.client(long).Get(ctx, "who").Val())
	})
}

func TestServerHangingUpIsPassedOn(t *testing.T) {
	bothWays(t, func(r *rig) {
		conn, err := r.dial(ctx)
		require.NoError(r, err)
		defer conn.Close()
		r.eventually(func() bool { return r.m.TotalConnectionCount() == 1 }, "connected")
		r.m.Close()
		_, err = conn.Read(make([]byte, 1))
		assert.ErrorIs(r, err, io.EOF)
	})
}

func TestClear(t *testing.T) {
	bothWays(t, func(r *rig) {
		c := r.client(long)
		r.p.Blackhole()
		r.p.Freeze()
		r.p.Delay(time.Hour, time.Hour)
		r.p.DelayNextConn(time.Hour)
		r.p.DropReply(-1, faultproxy.DropCut, faultproxy.Named("PING"))
		r.p.Garbage([]byte("rubbish"))
		r.p.Clear()
		assert.NoError(r, c.Ping(ctx).Err())
	})
}

func TestUnknownProtocolPassesUnread(t *testing.T) {
	bothWays(t, func(r *rig) {
		r.p.SetUpstream(func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			go func() { io.Copy(far, far); far.Close() }()
			return near, nil
		})
		conn, err := r.dial(ctx)
		require.NoError(r, err)
		for range 2 {
			msg := "\x16\x03\x01 no line end"
			io.WriteString(conn, msg)
			got := make([]byte, len(msg))
			_, err = io.ReadFull(conn, got)
			require.NoError(r, err)
			assert.Equal(r, msg, string(got))
		}
		conn.Close()
		assert.Zero(r, r.p.Count())
	})
}

// Switching everything at random under load must neither race nor hang Close.
func TestFaultsUnderLoad(t *testing.T) {
	bothWays(t, func(r *rig) {
		var load sync.WaitGroup
		stop := make(chan struct{})
		c := r.client(short)
		for i := range 8 {
			load.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						c.Incr(ctx, fmt.Sprint("k", i))
						time.Sleep(time.Millisecond)
					}
				}
			})
		}
		faults := []func(){
			r.p.Refuse, r.p.Heal, r.p.Blackhole, r.p.Crash, r.p.Heal, r.p.Freeze, r.p.Cut, r.p.DropReplies, r.p.Resume,
			func() { r.p.Delay(time.Millisecond, time.Millisecond) }, r.p.DropRequests, r.p.Freeze, r.p.Crash, r.p.Heal,
			func() { r.p.DropReply(3, faultproxy.DropReset, faultproxy.Named("INCR")) }, r.p.Resume, r.p.Reset, r.p.Clear,
		}
		for range 3 {
			for _, f := range faults {
				f()
				time.Sleep(2 * time.Millisecond)
			}
		}
		close(stop)
		load.Wait()
		r.p.Clear()
		assert.NoError(r, r.client(long).Ping(ctx).Err())
	})
}

func first[T any](v T, _ error) T { return v }
