package conn

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
)

// scripted is a connection that answers a batch with some bytes and its end.
type scripted struct {
	net.TCPConn // closed, for what is not overridden
	answer      io.Reader
	written     int
	accepts     int    // so many bytes are written before it breaks; 0: all
	events      string // written, read
}

var errWritten = errors.New("broken pipe")

func (s *scripted) Write(p []byte) (int, error) {
	s.events += "w"
	if s.accepts > 0 && len(p) > s.accepts {
		s.written += s.accepts
		return s.accepts, errWritten
	}
	s.written += len(p)
	return len(p), nil
}

func (s *scripted) Read(p []byte) (int, error) {
	s.events += "r"
	return s.answer.Read(p)
}

func flowOver(t *testing.T, s *scripted) *ownFlow {
	f := newOwnFlow(s, &redis.Options{}, "mark", newQuirks(""))
	t.Cleanup(f.Close)
	return f
}

// batchOfThree is a SET, a release and another SET.
func batchOfThree() []*lane.Call {
	terms := &protocol.Terms{}
	set, release := protocol.SetRequest(protocol.OpAcquire, terms, "a", "v"), protocol.ReleaseRequest(terms, "b", "v")
	return []*lane.Call{{Req: &set}, {Req: &release}, {Req: &set}}
}

func bulkReply(text string) string { return string(appendBulk(nil, text)) }

const (
	runID  = "0123456789abcdef0123456789abcdef01234567"
	replID = "1123456789abcdef0123456789abcdef01234567"
)

// serverTold are the replies of a server to all questions that are asked behind the one for the mark.
var serverTold = strings.Join([]string{
	"*2\r\n$10\r\n1700000000\r\n$1\r\n5\r\n",
	bulkReply("# Server\r\nrun_id:" + runID + "\r\nuptime_in_seconds:7\r\nserver_time_usec:1700000000000005\r\n"),
	bulkReply("# Replication\r\nrole:master\r\nmaster_replid:" + replID + "\r\n"),
	bulkReply("# Commandstats\r\ncmdstat_swapdb:calls=3,usec=1\r\n"),
}, "")

// wasTold is what they say.
var wasTold = protocol.ServerReport{
	RunID: runID, ReplID: replID, Role: "master", Start: 1699999993, Puts: 3, Time: 1700000000*time.Second + 5*time.Microsecond,
}

// allReplies are those to batchOfThree and both looks.
func allReplies() []string {
	return []string{"+OK\r\n", ":1\r\n", "$-1\r\n", bulkReply("text"), serverTold}
}

func TestBatchIsWrittenOnceAndReadWhole(t *testing.T) {
	s := &scripted{answer: strings.NewReader(strings.Join(allReplies(), ""))}
	f, batch := flowOver(t, s), batchOfThree()
	got := f.Exchange(batch, LookMark|LookServer)
	assert.Equal(t, "wr", s.events, "it is written at once, and then read")
	assert.Equal(t, []protocol.Answer{{Said: "OK", Sent: true}, {Said: int64(1), Sent: true}, {Sent: true}},
		[]protocol.Answer{batch[0].Answer, batch[1].Answer, batch[2].Answer})
	assert.Equal(t, Said{Mark: protocol.Mark{State: protocol.MarkPresent, Text: "text", Age: wasTold.Time, Now: wasTold.Time}, Server: &wasTold}, got)
	assert.Nil(t, f.in.broken)
}

// A connection that breaks anywhere: what was read whole counts, the rest was sent, and the looks
// say that they are missing.
func TestTornReplies(t *testing.T) {
	replies := allReplies()
	all := strings.Join(replies, "")
	for _, accepts := range []int{0, 1} {
		for cut := range len(all) {
			s := &scripted{answer: strings.NewReader(all[:cut]), accepts: accepts}
			f, batch := flowOver(t, s), batchOfThree()
			got := f.Exchange(batch, LookMark|LookServer)
			whole := accepts == 0
			end := 0
			for i, c := range batch {
				end += len(replies[i])
				if whole && cut >= end {
					assert.NoError(t, c.Err(), "cut at %d, call %d", cut, i)
					continue
				}
				assert.Error(t, c.Err(), "cut at %d, call %d", cut, i)
				assert.False(t, c.Answered(), "cut at %d, call %d: %v", cut, i, c.Err())
				assert.True(t, c.Sent, "cut at %d, call %d", cut, i)
			}
			require.True(t, got.Broken, "cut at %d", cut)
			if _, sent := Read(batch); cut < len(replies[0]) {
				assert.True(t, sent)
			}
		}
	}
}

// What comes behind the last answer was for nothing that was asked, so it may have come before the
// first as well: none of them counts.
func TestMoreThanWasAskedFor(t *testing.T) {
	s := &scripted{answer: strings.NewReader("-ERR of another\r\n+OK\r\n:1\r\n$-1\r\n")}
	f, batch := flowOver(t, s), batchOfThree()
	got := f.Exchange(batch, 0)
	assert.True(t, got.Broken)
	for _, c := range batch {
		assert.Equal(t, protocol.Answer{Said: errUnasked, Sent: true}, c.Answer)
		assert.Equal(t, protocol.Unknown, c.Read(c.Req.Op).Kind)
	}
}

// A push, which was not agreed on, ends a connection: what comes behind it belongs to nothing that is known.
func TestPushEndsAConnection(t *testing.T) {
	s := &scripted{answer: strings.NewReader("+OK\r\n>2\r\n+invalidate\r\n*0\r\n:1\r\n$-1\r\n")}
	f, batch := flowOver(t, s), batchOfThree()
	assert.True(t, f.Exchange(batch, 0).Broken)
	assert.Equal(t, protocol.Answer{Said: "OK", Sent: true}, batch[0].Answer)
	for _, c := range batch[1:] {
		assert.ErrorIs(t, c.Err(), errNoRESP)
		assert.Equal(t, protocol.Unknown, c.Read(c.Req.Op).Kind)
	}
}

// The errors that the library acts on are recognized as they are from go-redis.
func TestServerErrorsAreAnswers(t *testing.T) {
	s := &scripted{answer: strings.NewReader("-READONLY You can't write against a read only replica.\r\n-NOSCRIPT No matching script. Please use EVAL.\r\n" +
		"-NOPERM this user has no permissions\r\n-WRONGTYPE Operation against a key\r\n" + strings.Repeat("-NOPERM no INFO\r\n", 4))}
	f, batch := flowOver(t, s), batchOfThree()
	got := f.Exchange(batch, LookMark|LookServer)
	for _, c := range batch {
		assert.True(t, c.Answered(), "%v", c.Err())
		assert.Equal(t, protocol.Failed, c.Read(c.Req.Op).Kind)
	}
	assert.Equal(t, batch[0].Err(), movedOn(batch))
	assert.True(t, protocol.ReadOnly(batch[0].Err()))
	assert.True(t, batch[1].WantsSource())
	assert.True(t, batch[1].Instead().Whole)
	assert.True(t, protocol.Permanent(batch[2].Err()))
	assert.True(t, protocol.Denied(batch[2].Err()))
	assert.False(t, got.Broken)
	assert.ErrorContains(t, got.Server.Err, "INFO server: NOPERM no INFO; the user lacks +info")
	assert.Equal(t, protocol.MarkUnread, got.Mark.State)
	assert.ErrorContains(t, got.Mark.Err, "holds what is no memory mark")
}

// A server that does not know its own command for releases any more is not asked for it again.
func TestNativeReleaseThatIsDenied(t *testing.T) {
	s := &scripted{answer: strings.NewReader("+OK\r\n-ERR unknown command 'DELEX'\r\n+OK\r\n")}
	f, batch := flowOver(t, s), batchOfThree()
	f.native.Has = protocol.DelEx
	assert.False(t, f.Exchange(batch, 0).Broken)
	assert.True(t, batch[1].Native)
	assert.False(t, batch[0].Native)
	assert.NotNil(t, batch[1].Instead())
	assert.Equal(t, protocol.NoNative, f.native.May())
}

// What is over ends with a reset, over TLS, too, and anything else with a plain close.
func TestOnlyAResetResets(t *testing.T) {
	for name, ends := range map[string]struct {
		end   func(*ownFlow)
		reset bool
	}{
		"reset": {(*ownFlow).Reset, true},
		"close": {(*ownFlow).Close, false},
	} {
		for _, secure := range []bool{false, true} {
			t.Run(fmt.Sprint(name, ", TLS ", secure), func(t *testing.T) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				require.NoError(t, err)
				defer l.Close()
				ours, err := net.Dial("tcp", l.Addr().String())
				require.NoError(t, err)
				theirs, err := l.Accept()
				require.NoError(t, err)
				defer theirs.Close()
				if secure {
					ours = tls.Client(ours, &tls.Config{InsecureSkipVerify: true})
				}
				ends.end(newOwnFlow(ours, &redis.Options{}, "mark", newQuirks("")))
				_, err = theirs.Read(make([]byte, 1))
				assert.Equal(t, ends.reset, errors.Is(err, syscall.ECONNRESET), "%v", err)
				assert.Equal(t, !ends.reset, err == io.EOF, "%v", err)
			})
		}
	}
}

// One batch of whole scripts must not be paid for in memory for as long as the connection lives.
func TestRoomOfALargeBatchIsNotKept(t *testing.T) {
	s := &scripted{}
	f := flowOver(t, s)
	r := protocol.ReleaseRequest(&protocol.Terms{}, strings.Repeat("k", 40), strings.Repeat("v", 40))
	for _, c := range []struct {
		req  *protocol.Request
		kept bool
	}{{&r, true}, {protocol.JoinRequest(&protocol.Terms{}, "k", "v", &protocol.QueueArgs{}).WithSource(), false}} {
		var batch []*lane.Call
		for range lane.MostInBatch {
			batch = append(batch, &lane.Call{Req: c.req})
		}
		s.answer = strings.NewReader(strings.Repeat(":1\r\n", len(batch)))
		assert.False(t, f.Exchange(batch, 0).Broken)
		assert.Equal(t, c.kept, cap(f.out.bytes) > 0, "%d", cap(f.out.bytes))
	}
}

// echo is a connection that answers each write with the same bytes.
type echo struct {
	net.TCPConn // closed, for what is not overridden
	answer      string
	left        string
	greets      bool // the first write is go-redis' HELLO
}

func (e *echo) Write(p []byte) (int, error) {
	e.left = e.answer
	if e.greets {
		e.left, e.greets = "-ERR unknown command\r\n", false
	}
	return len(p), nil
}

func (e *echo) Read(p []byte) (int, error) {
	n := copy(p, e.left)
	e.left = e.left[n:]
	return n, nil
}

// BenchmarkBatch is what a batch costs beside the sockets: written and read here, and as a pipeline
// of go-redis, which is the way over a cluster.
func BenchmarkBatch(b *testing.B) {
	terms := &protocol.Terms{TTL: 8 * time.Second}
	key, value := "orders:4711", strings.Repeat("0123456789abcdef", 2)
	set, release := protocol.SetRequest(protocol.OpAcquire, terms, key, value), protocol.ReleaseRequest(terms, key, value)
	for _, n := range []int{1, 3, 57} {
		var batch []*lane.Call
		answer := ""
		for i := range n {
			r, a := &set, "+OK\r\n"
			if i%2 == 1 {
				r, a = &release, ":1\r\n"
			}
			batch, answer = append(batch, &lane.Call{Req: r}), answer+a
		}
		b.Run(fmt.Sprintf("here, %d", n), func(b *testing.B) {
			f := newOwnFlow(&echo{answer: answer}, &redis.Options{}, "mark", newQuirks(""))
			defer f.Close()
			b.ReportAllocs()
			for b.Loop() {
				f.Exchange(batch, 0)
			}
			require.Equal(b, "OK", batch[0].Said)
		})
		b.Run(fmt.Sprintf("go-redis, %d", n), func(b *testing.B) {
			c := &echo{answer: answer, greets: true}
			client := redis.NewClient(&redis.Options{
				Dialer:   func(context.Context, string, string) (net.Conn, error) { return c, nil },
				Protocol: 2, MaxRetries: -1, DisableIdentity: true, ReadTimeout: -2, WriteTimeout: -2, PoolSize: 1,
			})
			defer client.Close()
			pipe := client.Conn().Pipeline()
			b.ReportAllocs()
			cmds := make([]redis.Cmder, n)
			for b.Loop() {
				for i, c := range batch {
					cmds[i] = redis.NewCmd(b.Context(), c.Req.Values()...)
				}
				_ = pipe.BatchProcess(b.Context(), cmds...)
				_, err := pipe.Exec(b.Context())
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
