package conn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// reading is a connection that is only read.
type reading struct {
	net.TCPConn // closed, for what is not overridden
	from        io.Reader
}

func (r *reading) Read(p []byte) (int, error) { return r.from.Read(p) }

// What a scanner lets through it does not change, however it comes, and it lets through what Redis
// says.
func TestScannerLetsRepliesThrough(t *testing.T) {
	all := strings.Join(goodReplies, "") +
		"%2\r\n+a\r\n:1\r\n+b\r\n*2\r\n_\r\n#t\r\n~1\r\n,1.5\r\n>2\r\n+invalidate\r\n*0\r\n(123\r\n=5\r\ntxt:a\r\n!3\r\nERR\r\n" +
		fmt.Sprintf("$%d\r\n%s\r\n", 900_000, strings.Repeat("x", 900_000)) + "*10000\r\n" + strings.Repeat(":1\r\n", 10_000)
	for how, from := range map[string]io.Reader{
		"at once": strings.NewReader(all), "byte by byte": iotest.OneByteReader(strings.NewReader(all)), "by halves": iotest.HalfReader(strings.NewReader(all)),
		"many times": strings.NewReader(strings.Repeat(all, 5)),
	} {
		s := newScanner(&reading{from: from}, 16<<20)
		got, err := io.ReadAll(s)
		require.NoError(t, err, how)
		assert.Equal(t, 0, len(got)%len(all), how)
		assert.True(t, bytes.HasPrefix(got, []byte(all)), how)
		assert.Empty(t, s.open, how)
	}
}

// What announces or has too much does not come as far as the end of its line.
func TestScannerBreaks(t *testing.T) {
	for name, c := range map[string]string{
		"a string": "$1048577\r\n", "a very long one": "$9223372036854775807\r\n", "one beyond numbers": "$99999999999999999999999999\r\n",
		"no length": "$?\r\n", "a list": "*16385\r\n", "a map": "%8193\r\n", "a set": "~1000000\r\n", "a push": ">1000000\r\n",
		"an error": "!1048577\r\n", "a verbatim string": "=1048577\r\n", "an attribute": "|0\r\n",
		"lists in lists": strings.Repeat("*1\r\n", deepest+1), "wide lists": strings.Repeat("*5000\r\n", 4),
		"a list of strings": "*8\r\n" + strings.Repeat(fmt.Sprintf("$%d\r\n%s\r\n", 140_000, strings.Repeat("x", 140_000)), 8),
		"a line":            "+" + strings.Repeat("x", longestLine+1), "a line of errors": "-" + strings.Repeat("x", longestLine+1),
	} {
		for _, from := range []io.Reader{strings.NewReader("+OK\r\n" + c), iotest.OneByteReader(strings.NewReader("+OK\r\n" + c))} {
			s := newScanner(&reading{from: from}, mostAnswers)
			_, err := io.ReadAll(s)
			require.ErrorIs(t, err, errTooMuch, name)
			_, err = s.Read(make([]byte, 1))
			require.ErrorIs(t, err, errTooMuch, name)
		}
	}
}

// What is asked at once has one budget, and what is asked then another.
func TestScannerCountsAnExchange(t *testing.T) {
	half := []byte(bulkReply(strings.Repeat("x", mostAnswers/2)))
	s := newScanner(&actor{says: [][]byte{half, half, append(half, half...)}}, mostAnswers)
	read := func() error {
		_, err := s.Write([]byte("a question"))
		require.NoError(t, err)
		_, err = io.ReadAll(s)
		return err
	}
	require.NoError(t, read())
	require.NoError(t, read())
	err := read()
	require.ErrorContains(t, err, "more than 1048576 bytes, by a reply that begins with '$'")
	require.True(t, TooMuch(err))
}

// actor is a connection whose other end answers each write with the next part of what it has to say,
// whatever was asked.
type actor struct {
	net.TCPConn // closed, for what is not overridden
	says        [][]byte
	now         []byte
}

func (a *actor) Write(p []byte) (int, error) {
	if len(a.says) > 0 {
		a.now, a.says = append(a.now, a.says[0]...), a.says[1:]
	}
	return len(p), nil
}

func (a *actor) Read(p []byte) (int, error) {
	if len(a.now) == 0 {
		return 0, io.EOF
	}
	n := copy(p, a.now)
	a.now = a.now[n:]
	return n, nil
}

// play plays a conversation from the greeting on: with OnConnect, with all that a connection is used
// for, and over a client of go-redis that is bounded.
func play(ctx context.Context, data []byte) {
	says := bytes.Split(data, []byte{0})
	dial := func(context.Context, string, string) (net.Conn, error) { return &actor{says: says}, nil }
	o := &redis.Options{
		Dialer: dial, DialTimeout: time.Second, Password: "p", DB: 1, ClientName: "c", Protocol: 2, MaxRetries: -1, DialerRetries: 1, ReadTimeout: -2, WriteTimeout: -2,
		MaintNotificationsConfig: noNotifications(),
	}
	terms := &protocol.Terms{TTL: time.Second, NodeTimeout: time.Second}
	set, release := protocol.SetRequest(protocol.OpAcquire, terms, "k", "v"), protocol.ReleaseRequest(terms, "k", "v")
	for _, onConnect := range []func(context.Context, *redis.Conn) error{nil, func(ctx context.Context, cn *redis.Conn) error {
		if err := cn.Ping(ctx).Err(); err != nil {
			return err
		}
		return cn.Do(ctx, "CONFIG", "GET", "*").Err()
	}} {
		o := *o
		o.OnConnect = onConnect
		f := newOwnFlow(&actor{says: says}, &o, "mark", newQuirks(""))
		if _, err := f.Ask(); err == nil || protocol.IsServerError(err) {
			_, _ = f.Ask()
		}
		batch := []*lane.Call{{Req: &set}, {Req: &release}, {Req: protocol.InspectRequest(terms, "k", "l", "", 10)}, {Req: protocol.JoinRequest(terms, "k", "v", &protocol.QueueArgs{Key: "l"})}}
		f.Exchange(batch, LookMark|LookServer)
		for _, c := range batch {
			c.Read(c.Req.Op)
		}
		_, _ = f.Write(&protocol.MarkWrite{})
		f.Close()
		_ = listen(ctx, tick.NewSystem(), &o, newQuirks(""), "c", lane.Subscriber{Confirmed: func() {}, Denied: func(error) {}, Heard: func(string) {}})
	}
	Bound(o)
	side := redis.NewClient(o)
	defer side.Close()
	_ = NoPanic(func() {
		side.Info(ctx)
		side.ConfigGet(ctx, "*")
		side.Do(ctx, "ROLE")
		side.Time(ctx)
	})
}

// FuzzConversation: a server that says anything ends no goroutine, and takes no memory but for what it
// sends and some more.
func FuzzConversation(f *testing.F) {
	honest := []string{
		"+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n",
		"+PONG\r\n" + bulkReply("run_id:abc\r\nuptime_in_seconds:7\r\n") + bulkReply("role:master\r\nmaster_replid:r\r\n") + ":42\r\n" + bulkReply("text") + "*2\r\n$10\r\n1700000000\r\n$1\r\n5\r\n",
		"+OK\r\n:1\r\n*5\r\n$4\r\nnone\r\n$0\r\n\r\n:-2\r\n:0\r\n*0\r\n*7\r\n:0\r\n:0\r\n:5\r\n:5\r\n:1\r\n:0\r\n$1\r\nv\r\n",
		"*2\r\n$1\r\nm\r\n:5\r\n", ":1\r\n", ":0\r\n*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n",
	}
	f.Add([]byte(strings.Join(honest, "\x00")))
	for _, head := range []string{"$9223372036854775806\r\n", "*9223372036854775806\r\n", "$1000000000000\r\n", "%4611686018427387904\r\n", "*0\r\n", "*1\r\n:1\r\n", "|0\r\n", "*1\r\n", "-ERR max number of clients reached\r\n"} {
		for i := range honest {
			part := append(append([]string(nil), honest[:i]...), strings.Repeat(head, 3))
			f.Add([]byte(strings.Join(part, "\x00")))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 8<<10 {
			return
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		play(t.Context(), data)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
	})
}

var errOfUser = errors.New("of a user's function")

// panicking is a connection that a Dialer of the user's made.
type panicking struct{ net.Conn }

func (panicking) Read([]byte) (int, error)  { panic(errOfUser) }
func (panicking) Write([]byte) (int, error) { panic(errOfUser) }
func (panicking) Close() error              { panic(errOfUser) }
func (panicking) SetLinger(int) error       { panic(errOfUser) }

func (panicking) SyscallConn() (syscall.RawConn, error) { panic(errOfUser) }

// looked is one that panics only when its socket is looked at.
type looked struct{ panicking }

func (l looked) SyscallConn() (syscall.RawConn, error) { return panickingRaw{}, nil }

type panickingRaw struct{ syscall.RawConn }

func (panickingRaw) Control(func(uintptr)) error { panic(errOfUser) }

// A panic of what runs on our goroutines and is not ours is an error that has it once with its stack.
func TestPanicsAreErrors(t *testing.T) {
	for name, change := range map[string]func(*redis.Options){
		"dialer": func(o *redis.Options) {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) { panic(errOfUser) }
		},
		"connection": func(o *redis.Options) {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) { return panicking{}, nil }
		},
		"credentials": func(o *redis.Options) { o.CredentialsProvider = func() (string, string) { panic(errOfUser) } },
		"with context": func(o *redis.Options) {
			o.CredentialsProviderContext = func(context.Context) (string, string, error) { panic(errOfUser) }
		},
		"on connect": func(o *redis.Options) { o.OnConnect = func(context.Context, *redis.Conn) error { panic(errOfUser) } },
	} {
		t.Run(name, func(t *testing.T) {
			o := &redis.Options{DialTimeout: time.Second, Dialer: func(context.Context, string, string) (net.Conn, error) {
				return &actor{says: [][]byte{[]byte("+OK\r\n+OK\r\n")}}, nil
			}}
			change(o)
			err := listen(t.Context(), tick.NewSystem(), o, newQuirks(""), "c", lane.Subscriber{})
			var p *panicked
			require.ErrorAs(t, err, &p)
			assert.NotErrorIs(t, err, errOfUser)
			assert.ErrorContains(t, err, errOfUser.Error())
			assert.NotContains(t, err.Error(), "goroutine")
			assert.Contains(t, string(p.Stack()), "TestPanicsAreErrors")
		})
	}
}

// A conversation that is overdue is looked at and reset on a timer's goroutine, where a panic would end the process.
func TestPanicsOfConnectionsThatAreLookedAfter(t *testing.T) {
	for name, c := range map[string]net.Conn{"no socket": panicking{}, "socket": looked{}} {
		t.Run(name, func(t *testing.T) {
			f := newOwnFlow(c, &redis.Options{}, "", newQuirks(""))
			assert.Equal(t, name == "no socket", f.Alive())
			f.Heard()
			f.Reset()
		})
	}
}

// Whichever of the two ends first, a Dialer or the wait for it, the error says that it took too long.
func TestDialThatTakesTooLong(t *testing.T) {
	o := &redis.Options{Network: "tcp", Addr: "a:1", DialTimeout: time.Millisecond, Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	err := listen(t.Context(), tick.NewSystem(), o, newQuirks(""), "c", lane.Subscriber{})
	require.EqualError(t, err, "dial tcp a:1: i/o timeout")
}
