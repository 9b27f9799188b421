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
	"testing"
	"testing/iotest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/protocol"
)

// canned is a connection whose other end refuses the first command, which is go-redis' HELLO, and
// answers the second one with some bytes and its end, without looking at it.
type canned struct {
	net.TCPConn // closed, for what neither reads nor writes
	answer      io.Reader
	written     [][]byte
	in          io.Reader
}

func (c *canned) Write(p []byte) (int, error) {
	c.written = append(c.written, bytes.Clone(p))
	if c.in = c.answer; len(c.written) == 1 {
		c.in = strings.NewReader("-ERR unknown command\r\n")
	}
	return len(p), nil
}

func (c *canned) Read(p []byte) (int, error) { return c.in.Read(p) }

// overGoRedis sends commands in one pipeline.
func overGoRedis(t testing.TB, c *canned, cmds ...redis.Cmder) {
	client := redis.NewClient(&redis.Options{
		Dialer:   func(context.Context, string, string) (net.Conn, error) { return c, nil },
		Protocol: 2, MaxRetries: -1, DialerRetries: 1, DisableIdentity: true, ReadTimeout: -2, WriteTimeout: -2,
	})
	pipe := client.Pipeline()
	_ = pipe.BatchProcess(t.Context(), cmds...) // only queues them
	_, _ = pipe.Exec(t.Context())               // the commands have their errors
	require.NoError(t, client.Close())
}

// readings are what a reader makes of some bytes: values and server errors, and the error after which
// it can read no more.
type readings struct {
	vals   []any
	errs   []error
	broken error
}

const mostReadings = 8

func ours(from io.Reader) (all readings) {
	r := newRespReader(from)
	r.allow(mostAnswers)
	for range mostReadings {
		val, err := r.reply()
		if all.broken = r.broken; r.broken != nil {
			break
		}
		if errors.Is(err, redis.Nil) {
			err = nil // a server that says "-redis: nil"
		}
		all.vals, all.errs = append(all.vals, val), append(all.errs, err)
	}
	return all
}

func theirs(t testing.TB, from io.Reader) (all readings) {
	cmds := make([]redis.Cmder, mostReadings)
	for i := range cmds {
		cmds[i] = &probe{Cmd: redis.NewCmd(t.Context(), "PING")}
	}
	overGoRedis(t, &canned{answer: from}, cmds...)
	for _, c := range cmds {
		c := c.(*probe)
		if c.first != nil && !protocol.IsServerError(c.first) {
			all.broken = c.first
			break
		}
		if errors.Is(c.first, redis.Nil) {
			c.first = nil
		}
		all.vals, all.errs = append(all.vals, c.Val()), append(all.errs, c.first)
	}
	return all
}

// probe is a command that knows with what it was read: a pipeline that breaks marks those that
// were read before, too.
type probe struct {
	*redis.Cmd
	first error
	read  bool
}

func (p *probe) SetErr(err error) {
	if p.Cmd.SetErr(err); !p.read {
		p.first, p.read = err, true
	}
}

// kinds are the questions that go-redis answers of an error.
var kinds = map[string]func(error) bool{
	"loading": redis.IsLoadingError, "read-only": redis.IsReadOnlyError, "cluster down": redis.IsClusterDownError,
	"try again": redis.IsTryAgainError, "master down": redis.IsMasterDownError, "clients": redis.IsMaxClientsError,
	"auth": redis.IsAuthError, "permission": redis.IsPermissionError, "abort": redis.IsExecAbortError,
	"memory": redis.IsOOMError, "replicas": redis.IsNoReplicasError, "server": protocol.IsServerError,
	"no script": func(err error) bool { return errors.Is(err, redis.ErrNoScript) },
	"slot":      func(err error) bool { return errors.Is(err, redis.ErrCrossSlot) },
	"script":    func(err error) bool { return redis.HasErrorPrefix(err, "NOSCRIPT") },
}

// sameError: they say the same, and go-redis says the same of them, also where they are wrapped.
func sameError(t testing.TB, theirs, ours error) {
	if theirs == nil || ours == nil {
		require.Equal(t, theirs, ours)
		return
	}
	require.Equal(t, theirs.Error(), ours.Error())
	for name, is := range kinds {
		require.Equal(t, is(theirs), is(ours), "%s: %q", name, ours)
		require.Equal(t, is(fmt.Errorf("node 1: %w", theirs)), is(fmt.Errorf("node 1: %w", ours)), "%s, wrapped: %q", name, ours)
	}
}

// FuzzReplies: what our reader makes of bytes, however they come, go-redis makes of them, too. Where
// ours ends the connection, go-redis may read on: see TestRepliesThatEndAConnection.
func FuzzReplies(f *testing.F) {
	for _, c := range goodReplies {
		f.Add([]byte(c))
	}
	for _, c := range badReplies {
		f.Add([]byte(c.bytes))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<10 {
			return
		}
		if announces(data) {
			return // go-redis takes memory for what is announced
		}
		want := theirs(t, bytes.NewReader(data))
		for how, from := range map[string]io.Reader{
			"at once": bytes.NewReader(data), "byte by byte": iotest.OneByteReader(bytes.NewReader(data)),
			"with its end": iotest.DataErrReader(bytes.NewReader(data)),
		} {
			got := ours(from)
			for i := range got.vals {
				if hasError(got.vals[i]) {
					break // go-redis takes some errors in a list for the whole list, and reads on behind them
				}
				require.Less(t, i, len(want.vals), "%s: ours read %v %v, and go-redis %v", how, got.vals[i], got.errs[i], want.broken)
				require.Equal(t, want.vals[i], got.vals[i], how)
				sameError(t, want.errs[i], got.errs[i])
			}
			if got.broken != nil && !errors.Is(got.broken, errNoRESP) && !hasError(any(got.vals)) {
				require.Error(t, want.broken, "%s: ours found %v", how, got.broken)
				require.Len(t, got.vals, len(want.vals), how)
			}
		}
	})
}

// announces reports whether there is a length of five digits or more.
func announces(data []byte) bool {
	digits := 0
	for _, b := range data {
		if digits++; b < '0' || b > '9' {
			digits = 0
		}
		if digits > 4 {
			return true
		}
	}
	return false
}

func hasError(v any) bool {
	switch v := v.(type) {
	case error:
		return true
	case []any:
		for _, e := range v {
			if hasError(e) {
				return true
			}
		}
	}
	return false
}

var goodReplies = []string{
	"+OK\r\n", "+\r\n", "+a\rb\r\n", ":0\r\n", ":1\r\n", ":-1\r\n", ":+7\r\n", ":1700000000000000\r\n", "$-1\r\n", "*-1\r\n", "*0\r\n",
	"$0\r\n\r\n", "$5\r\nh\r\nlo\r\n", "*2\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n", "*1\r\n-ERR in a list\r\n",
	"-ERR unknown command 'EVALSHA'\r\n", "-\r\n", "-NOSCRIPT No matching script. Please use EVAL.\r\n", "-NOPERM no\r\n", "-READONLY You can't\r\n",
	"-LOADING Redis is\r\n", "-BUSY Redis is\r\n", "-MASTERDOWN Link\r\n", "-OOM command\r\n", "-NOAUTH Authentication\r\n", "-WRONGPASS in\r\n",
	"-CLUSTERDOWN Hash\r\n", "-TRYAGAIN Multiple\r\n", "-NOREPLICAS Not\r\n", "-ERR max number of clients reached\r\n", "-EXECABORT Transaction\r\n",
	"-CROSSSLOT Keys in request don't hash to the same slot\r\n", "-WRONGTYPE Operation\r\n", "-redis: nil\r\n",
	"-ERR Error running script (call to f_1): @user_script:1: -READONLY You can't write against a read only replica.\r\n",
	"+OK\r\n:1\r\n$-1\r\n-ERR x\r\n$3\r\nabc\r\n",
}

// badReplies end a connection. Lax: go-redis reads on.
var badReplies = []struct {
	name, bytes string
	lax         bool
}{
	{name: "nothing", bytes: ""},
	{name: "half a line", bytes: "+O"},
	{name: "half an end", bytes: "+OK\r"},
	{name: "no CR", bytes: "+OK\n"},
	{name: "an empty line", bytes: "\r\n"},
	{name: "a line of one byte", bytes: "\n"},
	{name: "half a string", bytes: "$5\r\nhel"},
	{name: "a string without its end", bytes: "$5\r\nhello"},
	{name: "a string with half its end", bytes: "$5\r\nhello\r"},
	{name: "a string with another end", bytes: "$5\r\nhelloXY", lax: true},
	{name: "a string that is longer than announced", bytes: "$5\r\nhello world\r\n", lax: true},
	{name: "half a list", bytes: "*2\r\n:1\r\n"},
	{name: "no length", bytes: "$\r\n"},
	{name: "no length of a list", bytes: "*\r\n"},
	{name: "a length of letters", bytes: "$abc\r\n"},
	{name: "a length below -1", bytes: "$-2\r\n"},
	{name: "a list below -1", bytes: "*-5\r\n"},
	{name: "a length that is no int", bytes: "$99999999999999999999\r\n"},
	{name: "no number", bytes: ":\r\n"},
	{name: "a number of letters", bytes: ":1a\r\n"},
	{name: "a number that is no int64", bytes: ":9223372036854775808\r\n"},
	{name: "an unknown type", bytes: "?1\r\n"},
	{name: "an inline command", bytes: "PING\r\n"},
	{name: "HTTP", bytes: "HTTP/1.1 400 Bad Request\r\n\r\n"},
	{name: "a push", bytes: ">2\r\n+invalidate\r\n*-1\r\n", lax: true},
	{name: "a null of RESP3", bytes: "_\r\n", lax: true},
	{name: "a boolean", bytes: "#t\r\n", lax: true},
	{name: "a double", bytes: ",1.5\r\n", lax: true},
	{name: "a big number", bytes: "(12345678901234567890\r\n", lax: true},
	{name: "a verbatim string", bytes: "=5\r\ntxt:a\r\n", lax: true},
	{name: "an error of RESP3", bytes: "!5\r\nERR a\r\n", lax: true},
	{name: "a map", bytes: "%1\r\n+a\r\n:1\r\n", lax: true},
	{name: "a set", bytes: "~1\r\n+a\r\n", lax: true},
	{name: "an attribute", bytes: "|1\r\n+a\r\n:1\r\n+OK\r\n", lax: true},
	{name: "a push in a list", bytes: "*2\r\n:1\r\n>1\r\n+message\r\n", lax: true},
	{name: "a very deep list", bytes: strings.Repeat("*1\r\n", 100) + ":1\r\n", lax: true},
	{name: "a very long line", bytes: "-ERR " + strings.Repeat("x", longestLine) + "\r\n", lax: true},
}

func TestRepliesThatEndAConnection(t *testing.T) {
	for _, c := range badReplies {
		t.Run(c.name, func(t *testing.T) {
			r := newRespReader(strings.NewReader("+OK\r\n" + c.bytes))
			r.allow(mostAnswers)
			val, err := r.reply()
			require.NoError(t, err)
			require.Equal(t, "OK", val)
			val, err = r.reply()
			require.Error(t, err)
			assert.Nil(t, val)
			assert.False(t, protocol.IsServerError(err), "%v", err)
			for range 3 {
				_, again := r.reply()
				assert.Equal(t, err, again, "a reader that is broken stays so")
			}
			got := theirs(t, strings.NewReader("+OK\r\n"+c.bytes))
			assert.Equal(t, c.lax, len(got.vals) > 1, "go-redis read %v, and then %v", got.vals, got.broken)
		})
	}
}

// What is announced takes no memory before it comes, unlike in go-redis.
func TestAnnouncedLengthsTakeNoMemory(t *testing.T) {
	for _, head := range []string{"$536870912\r\n", "*536870912\r\n", "$536870913\r\n", "*9223372036854775807\r\n"} {
		r := newRespReader(strings.NewReader(head + "x"))
		r.allow(mostAnswers)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := r.reply()
		runtime.ReadMemStats(&after)
		require.Error(t, err)
		assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), head)
	}
}

// A string that is longer than the buffer.
func TestLongReplies(t *testing.T) {
	for _, n := range []int{longestLine - 3, longestLine - 2, longestLine - 1, longestLine, 3*longestLine + 7} {
		text := strings.Repeat("x", n)
		bytes := fmt.Sprintf("$%d\r\n%s\r\n:1\r\n", n, text)
		for _, from := range []io.Reader{strings.NewReader(bytes), iotest.HalfReader(strings.NewReader(bytes))} {
			got := ours(from)
			assert.Equal(t, []any{text, int64(1)}, got.vals)
			assert.ErrorIs(t, got.broken, io.EOF)
		}
	}
}

// An answer that tells where a key is in a cluster is one, also to go-redis.
func TestMovedIsAnError(t *testing.T) {
	r := newRespReader(strings.NewReader("-MOVED 3999 127.0.0.1:6381\r\n"))
	r.allow(mostAnswers)
	_, err := r.reply()
	addr, moved := redis.IsMovedError(err)
	assert.True(t, moved)
	assert.Equal(t, "127.0.0.1:6381", addr)
	assert.True(t, elsewhere(err))
}

// requests are of each kind that there is.
func requests(key, value, other string, n int64) map[string]*protocol.Request {
	terms := &protocol.Terms{TTL: time.Duration(n%1e9) * time.Millisecond, NodeTimeout: time.Second}
	own := func(r protocol.Request) *protocol.Request { return &r }
	whole := func(r *protocol.Request) *protocol.Request { return r.WithSource() }
	q := &protocol.QueueArgs{Key: other, Entry: value, Ended: key, Holders: other, Arrival: n, Waited: -n, As: protocol.AsHolder}
	plain := &protocol.QueueArgs{Key: other, Entry: value}
	f := &protocol.FenceArgs{Key: other, Token: uint64(n) >> 1}
	s := &protocol.ShareArgs{Holders: other, Door: value, Limit: n, Number: n}
	native := func(by protocol.NativeDelete) *protocol.Request {
		r := protocol.ReleaseRequest(terms, key, value)
		r.Native = by
		return &r
	}
	return map[string]*protocol.Request{
		"set": own(protocol.SetRequest(protocol.OpAcquire, terms, key, value)), "claim": protocol.ClaimRequest(terms, key, value, other, value),
		"release": own(protocol.ReleaseRequest(terms, key, value)), "whole": whole(own(protocol.ReleaseRequest(terms, key, value))),
		"delifeq": native(protocol.DelIfEq), "delex": native(protocol.DelEx),
		"release at the queue": own(protocol.QueueReleaseRequest(terms, key, value, q)), "... without one": own(protocol.QueueReleaseRequest(terms, key, value, nil)),
		"extend": protocol.ExtendRequest(terms, key, value), "join": protocol.JoinRequest(terms, key, value, q), "plain join": protocol.JoinRequest(terms, key, value, plain),
		"inspect": protocol.InspectRequest(terms, key, other, value, int(n%1e6)), "inspect one": protocol.InspectRequest(terms, key, other, "", 1),
		"several": (&protocol.Bundle{Of: []*protocol.Request{own(protocol.QueueReleaseRequest(terms, key, value, nil)), own(protocol.ReleaseRequest(terms, other, value))}}).Request(),
		"force":   protocol.ForceRequest(terms, key, value, other, ""), "token": protocol.TokenReleaseRequest(terms, key, value, other, key),
		"shared claim": protocol.SharedClaimRequest(protocol.OpAcquireShared, terms, key, value, s, q), "newcomer": protocol.SharedClaimRequest(protocol.OpAcquireShared, terms, key, value, s, nil),
		"shared extend": protocol.SharedExtendRequest(terms, key, value, s), "shared release": own(protocol.SharedReleaseRequest(terms, key, value, s, q)),
		"door": protocol.DoorRequest(terms, key, value, time.Duration(n)), "open door": protocol.OpenDoorRequest(terms, key, value),
		"adopt": own(protocol.AdoptRequest(terms, key, value, other, nil)), "fenced adopt": own(protocol.AdoptRequest(terms, key, value, other, f)),
		"fence": protocol.FenceRequest(terms, key, value, f, nil), "fence in a queue": protocol.FenceRequest(terms, key, value, f, q),
		"raise": protocol.RaiseRequest(terms, key, value, f), "repair": own(protocol.FenceRepairRequest(terms, key, value, f)),
		"shorten": own(protocol.ShortenRequest(terms, key, value, n)),
		"mark":    protocol.MarkRequest(key, &protocol.MarkWrite{Old: value, ID: other, At: n, RunID: key}),
	}
}

// FuzzRequests: the bytes of a batch are those that go-redis writes for the same commands.
func FuzzRequests(f *testing.F) {
	f.Add("k", "v", "o", int64(8000))
	f.Add("", "\r\n", "$5\r\n", int64(-1))
	f.Add("{orders}:42", strings.Repeat("ab", 700), "\x00\xff", int64(1)<<62)
	f.Fuzz(func(t *testing.T, key, value, other string, n int64) {
		var w respWriter
		var cmds []redis.Cmder
		for _, r := range requests(key, value, other, n) {
			assert.Equal(t, r.Native != protocol.NoNative, w.request(r, protocol.NoNative))
			cmds = append(cmds, redis.NewCmd(t.Context(), r.Values()...))
		}
		many := make([]string, 123)
		w.ask(many...)
		cmds = append(cmds, redis.NewCmd(t.Context(), anys(many)...))
		c := &canned{answer: strings.NewReader("")}
		overGoRedis(t, c, cmds...)
		require.Equal(t, string(bytes.Join(c.written[1:], nil)), string(w.bytes))
	})
}

func anys(words []string) (all []any) {
	for _, s := range words {
		all = append(all, s)
	}
	return all
}

// A release goes as the server's own command where it has one and the request allows it.
func TestReleasesGoNative(t *testing.T) {
	var w respWriter
	r := protocol.ReleaseRequest(&protocol.Terms{}, "k", "v")
	assert.True(t, w.request(&r, protocol.DelEx))
	assert.Equal(t, "*4\r\n$5\r\nDELEX\r\n$1\r\nk\r\n$4\r\nIFEQ\r\n$1\r\nv\r\n", string(w.bytes))
	w = respWriter{}
	assert.True(t, w.request(&r, protocol.DelIfEq))
	assert.Equal(t, "*3\r\n$7\r\nDELIFEQ\r\n$1\r\nk\r\n$1\r\nv\r\n", string(w.bytes))
	w = respWriter{}
	assert.False(t, w.request(r.WithLua(), protocol.DelEx))
	assert.Contains(t, string(w.bytes), "EVALSHA")
}

// An identity of which a part is missing is none, wherever the connection breaks.
func TestTornIdentity(t *testing.T) {
	whole := "+PONG\r\n" + bulkReply("text") + serverTold + ":1\r\n"
	ask := func(answer string) (protocol.ServerReport, error) {
		f := newOwnFlow(&scripted{answer: strings.NewReader(answer)}, &redis.Options{DisableIdentity: true}, "mark", newQuirks(""))
		defer f.Close()
		return f.Ask()
	}
	s, err := ask(whole)
	require.NoError(t, err)
	want := wasTold
	want.Asked, want.Mark = true, protocol.Mark{State: protocol.MarkPresent, Text: "text", Age: want.Time, Now: want.Time}
	require.Equal(t, want, s)
	for cut := range len(whole) {
		s, err := ask(whole[:cut])
		assert.Error(t, err, "cut at %d: %+v", cut, s)
	}
}
