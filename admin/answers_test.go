package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/longtest"
)

// answerer is a connection whose other end answers each command as soon as it is written.
type answerer struct {
	net.TCPConn // closed, for what is not overridden
	says        func(words []string) string
	in, out     []byte
}

func (a *answerer) Write(p []byte) (int, error) {
	a.in = append(a.in, p...)
	for {
		words, rest := readCommand(a.in)
		if words == nil {
			return len(p), nil
		}
		a.in, a.out = rest, append(a.out, a.says(words)...)
	}
}

// readCommand takes a command off its bytes; nil: it is not all there.
func readCommand(b []byte) (words []string, rest []byte) {
	number := func() int {
		line, after, _ := bytes.Cut(b, []byte("\r\n"))
		b = after
		if len(line) == 0 {
			return 0
		}
		n, _ := strconv.Atoi(string(line[1:]))
		return n
	}
	for range number() {
		n := number()
		if len(b) < n+2 {
			return nil, nil
		}
		words, b = append(words, string(b[:n])), b[n+2:]
	}
	return words, b
}

func (a *answerer) Read(p []byte) (int, error) {
	if len(a.out) == 0 {
		return 0, io.EOF
	}
	n := copy(p, a.out)
	a.out = a.out[n:]
	return n, nil
}

func (a *answerer) SetDeadline(time.Time) error      { return nil }
func (a *answerer) SetReadDeadline(time.Time) error  { return nil }
func (a *answerer) SetWriteDeadline(time.Time) error { return nil }
func (a *answerer) Close() error                     { return nil }

const answersPrefix = "prefix:"

// honestly is what a server says that has a shared lock, one that is held alone, and a queue.
func honestly(words []string) string {
	bulk := func(s string) string { return fmt.Sprintf("$%d\r\n%s\r\n", len(s), s) }
	list := func(parts ...string) string { return fmt.Sprintf("*%d\r\n%s", len(parts), strings.Join(parts, "")) }
	value := strings.Repeat("0f", 16) + "@owner"
	switch command := strings.ToUpper(words[0]); {
	case command == "HELLO":
		return "-ERR unknown command 'hello'\r\n"
	case command == "PING":
		return "+PONG\r\n"
	case command == "TIME":
		return list(bulk("1700000000"), bulk("5"))
	case command == "INFO":
		return bulk("run_id:" + strings.Repeat("a", 40) + "\r\nuptime_in_seconds:100\r\nredis_version:7.0.0\r\nrole:master\r\nmaster_replid:" + strings.Repeat("b", 40) +
			"\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\ncluster_enabled:0\r\n")
	case command == "ROLE":
		return list(bulk("master"), ":0\r\n", "*0\r\n")
	case command == "CONFIG":
		return list(bulk(words[2]), bulk("yes"))
	case command == "GET":
		return bulk("0123456789abcdef 1700000000000000 first " + strings.Repeat("a", 40) + " " + strings.Repeat("b", 40) + " 1699999000 0")
	case command == "GETRANGE" && strings.HasSuffix(words[1], "shared"):
		return bulk("redlock:shared")
	case command == "GETRANGE" && strings.HasSuffix(words[1], "fence"):
		return bulk("7")
	case command == "GETRANGE":
		return bulk(value)
	case command == "PTTL":
		return ":1000\r\n"
	case command == "SCAN":
		return list(bulk("0"), list(bulk(answersPrefix+"lock"), bulk(answersPrefix+"shared"), bulk("{"+answersPrefix+"awaited}:line")))
	case command == "CLIENT" && strings.EqualFold(words[1], "LIST"):
		return bulk("id=1 name=redlock:00000001:3:00000002:00000003:x age=1 idle=1 db=0\nid=2 name= db=0\n")
	case command == "EVALSHA" && len(words) > 3 && words[3] == answersPrefix+"shared":
		return list(bulk("string"), bulk("redlock:shared"), ":1000\r\n", ":1\r\n", list(bulk("p 1s0 "+value), ":5\r\n"), list(bulk(value), ":1000\r\n", ":0\r\n"))
	case command == "SUBSCRIBE":
		return list(bulk("subscribe"), bulk(words[1]), ":1\r\n")
	default:
		return "+OK\r\n"
	}
}

// nodesThat are three nodes that say so.
func nodesThat(t *testing.T, says func(node int, words []string) string) *admin.Nodes {
	clients := make([]redis.UniversalClient, 3)
	for i := range clients {
		c := redis.NewClient(&redis.Options{
			Addr: fmt.Sprint("127.0.0.1:", i+1), Protocol: 2, MaxRetries: -1, DialerRetries: 1, DisableIdentity: true,
			Dialer: func(context.Context, string, string) (net.Conn, error) {
				return &answerer{says: func(words []string) string { return says(i, words) }}, nil
			},
		})
		t.Cleanup(func() { _ = c.Close() })
		clients[i] = c
	}
	nodes, err := admin.New(clients, &admin.Options{KeyPrefix: answersPrefix, Timeout: 10 * time.Second})
	require.NoError(t, err)
	return nodes
}

// askAll makes all calls of nodes that say so, and fails if any of them panics, also where that is made an error.
func askAll(t *testing.T, says func(node int, words []string) string) (all string) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var scans atomic.Int64
	nodes := nodesThat(t, func(node int, words []string) string {
		if words[0] == "scan" && scans.Add(1) == 50 {
			cancel() // a search may have no end
		}
		return says(node, words)
	})
	var b strings.Builder

	tell := func(result any, err error) { fmt.Fprintf(&b, "%+v %v\n", result, err) }
	report, err := nodes.Check(t.Context())
	tell(report, err)
	tell(report.String(), nil)
	tell(json.Marshal(report))
	tell(nodes.List(ctx, "", 10))
	search := nodes.Search()
	for range 2 {
		tell(search.Look(t.Context(), []string{"lock", "shared"}))
	}
	tell(nodes.Clients(t.Context()))
	tell(nodes.Inspect(t.Context(), "lock"))
	tell(nodes.Inspect(t.Context(), "shared"))
	tell(nodes.ForceRelease(t.Context(), "lock", admin.Anything()))
	tell(nodes.ForceRelease(t.Context(), "lock", admin.HeldBy("token")))
	if i := strings.Index(b.String(), "panic"); i >= 0 {
		t.Fatalf("%.300s", b.String()[i:])
	}
	return b.String()
}

var answersTo = []string{"PING", "TIME", "INFO", "ROLE", "CONFIG", "GET", "GETRANGE", "PTTL", "SCAN", "CLIENT", "EVALSHA", "EVAL", "SUBSCRIBE", "PUBLISH", "HELLO", "SET"}

// oddAnswers are of the protocol, as a rule, and to no question.
var oddAnswers = []string{
	"", "\r\n", "+\r\n", "-\r\n", ":\r\n", "$\r\n", "*\r\n", "x\r\n", "+OK", "$5\r\nab\r\n", "$-1\r\n", "$-2\r\n", "*-1\r\n", "*-2\r\n", "*0\r\n", "$0\r\n\r\n",
	":0\r\n", ":-1\r\n", ":-2\r\n", ":9223372036854775807\r\n", ":-9223372036854775808\r\n", ":9223372036854775808\r\n", "+9223372036854775807\r\n", "$20\r\n99999999999999999999\r\n",
	"-ERR no\r\n", "-NOPERM this user has no permissions to run the 'x' command\r\n", "-NOPERM no permissions to access a key\r\n", "-LOADING\r\n", "-MOVED 1 a:1\r\n", "-NOSCRIPT\r\n", "-WRONGTYPE\r\n", "-READONLY\r\n",
	"*1\r\n$-1\r\n", "*1\r\n*-1\r\n", "*1\r\n-ERR\r\n", "*2\r\n$-1\r\n$-1\r\n", "*2\r\n:1\r\n:1\r\n", "*2\r\n:-1\r\n*0\r\n", "*2\r\n$1\r\n0\r\n*-1\r\n", "*2\r\n$1\r\n0\r\n$1\r\na\r\n", "*2\r\n$1\r\n0\r\n*1\r\n$-1\r\n", "*2\r\n$1\r\n0\r\n*1\r\n*0\r\n",
	"*2\r\n$1\r\n0\r\n*6\r\n$0\r\n\r\n$1\r\na\r\n$1\r\n{\r\n$7\r\n{}:line\r\n$6\r\n:line:\r\n$8\r\n{a}:line\r\n", // names that are shorter than the prefix
	"*2\r\n$1\r\n0\r\n*2\r\n$7\r\nprefix:\r\n$14\r\n{prefix:}:line\r\n", "*2\r\n$2\r\n-1\r\n*0\r\n", "*2\r\n$20\r\n18446744073709551615\r\n*0\r\n",
	"*3\r\n$6\r\nmaster\r\n$-1\r\n$-1\r\n", "*5\r\n$5\r\nslave\r\n:1\r\n:1\r\n:1\r\n:1\r\n",
	strings.Repeat("*1\r\n", 8) + ":1\r\n", strings.Repeat("*1\r\n", 40) + ":1\r\n", strings.Repeat("*9\r\n", 3) + ":1\r\n",
	"*5\r\n$6\r\nstring\r\n$-1\r\n$-1\r\n$-1\r\n$-1\r\n", "*5\r\n:1\r\n:1\r\n$1\r\na\r\n$1\r\na\r\n:1\r\n", "*5\r\n$6\r\nstring\r\n$0\r\n\r\n:0\r\n:-5\r\n*1\r\n:1\r\n",
	"*5\r\n$6\r\nstring\r\n$1\r\nv\r\n:9223372036854775807\r\n:9223372036854775807\r\n*2\r\n$-1\r\n:-9223372036854775808\r\n",
	"*6\r\n$6\r\nstring\r\n$14\r\nredlock:shared\r\n:-9223372036854775808\r\n:1\r\n*0\r\n*3\r\n$-1\r\n:-9223372036854775808\r\n:9223372036854775807\r\n",
	"*6\r\n$6\r\nstring\r\n$14\r\nredlock:shared\r\n:5\r\n:1\r\n*0\r\n*4\r\n$1\r\n@\r\n:5\r\n:-1\r\n*0\r\n", "*5\r\n$4\r\nzset\r\n$0\r\n\r\n:-2\r\n:0\r\n*0\r\n",
	"%1\r\n+a\r\n+b\r\n", "%0\r\n", "_\r\n", "#t\r\n", ",nan\r\n", "(12\r\n", "~1\r\n+a\r\n", ">1\r\n+a\r\n", "=5\r\ntxt:a\r\n", "!3\r\nERR\r\n", "|1\r\n+a\r\n+b\r\n+c\r\n",
	"$25\r\nuptime_in_seconds:-1\r\n:::\r\n", "$46\r\nname=redlock:00000001:99999:00000002:00000003: \n\r\n", "$10\r\nname=\nname\r\n",
	"+OK\r\n+OK\r\n", "$11\r\n0 0 0 first\r\n", "$32\r\n0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f\r\n", "$33\r\n0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f0f@\r\n",
}

// Whatever nodes answer to whichever command, no call panics: where all of them do so, and where one does.
func TestOddAnswers(t *testing.T) {
	honest := askAll(t, func(_ int, words []string) string { return honestly(words) })
	for _, found := range []string{"{Key:lock Held:true", "Holders:[{Token:0f0f", "Keys:[awaited lock shared] Fences:map[lock:7 shared:7]", "{ID:00000001 Owner:x"} {
		require.Contains(t, honest, found) // so that other answers are asked for
	}
	for _, command := range answersTo {
		for i, odd := range oddAnswers {
			t.Run(fmt.Sprint(command, " ", i), func(t *testing.T) {
				for _, evil := range []int{1, 3} {
					if !longtest.On() && evil == 1+2*(i%2) {
						continue
					}
					askAll(t, func(node int, words []string) string {
						if node < evil && strings.EqualFold(words[0], command) {
							return odd
						}
						return honestly(words)
					})
				}
			})
		}
	}
}

// FuzzAnswers is TestOddAnswers with any.
func FuzzAnswers(f *testing.F) {
	for i, odd := range oddAnswers {
		f.Add(uint8(i), []byte(odd), i%2 == 0)
	}
	f.Fuzz(func(t *testing.T, command uint8, odd []byte, all bool) {
		askAll(t, func(node int, words []string) string {
			if (all || node == 0) && strings.EqualFold(words[0], answersTo[int(command)%len(answersTo)]) {
				return string(odd)
			}
			return honestly(words)
		})
	})
}

// manyLocks answers SCAN with so many locks at a time, of so many, whose names have so many bytes, and what is asked
// of them in turn.
func manyLocks(locks, atOnce, bytes int) func(words []string) string {
	return func(words []string) string {
		if words[0] != "scan" {
			return honestly(words)
		}
		from, _ := strconv.Atoi(words[1])
		size := atOnce
		for i, w := range words {
			if w == "count" {
				count, _ := strconv.Atoi(words[i+1])
				size = min(size, count)
			}
		}
		to := min(from+size, locks)
		var names strings.Builder
		for i := from; i < to; i++ {
			name := fmt.Sprintf("%s%0*d", answersPrefix, bytes-len(answersPrefix), i)
			fmt.Fprintf(&names, "$%d\r\n%s\r\n", len(name), name)
		}
		next := strconv.Itoa(to % locks)
		return fmt.Sprintf("*2\r\n$%d\r\n%s\r\n*%d\r\n%s", len(next), next, to-from, names.String())
	}
}

// A listing that has no more room says so, and of which node that is true; what it has is right.
func TestListingThatIsCut(t *testing.T) {
	says := manyLocks(30_000, 500, 200)
	nodes := nodesThat(t, func(node int, words []string) string {
		if words[0] == "scan" && node == 2 {
			return honestly(words)
		}
		return says(words)
	})
	found, err := nodes.List(t.Context(), "", 1<<30)
	require.NoError(t, err)
	assert.True(t, found.More)
	cut := 0
	for _, n := range found.Nodes[:2] {
		if n.Err != nil {
			cut++
			assert.False(t, n.Whole)
			assert.EqualError(t, n.Err, "it has more than its part of what a listing keeps (16777216 bytes for all nodes): a narrower pattern finds the rest")
		}
	}
	assert.Positive(t, cut)
	assert.NoError(t, found.Nodes[2].Err)
	assert.Greater(t, len(found.Locks), 10_000)
	assert.Less(t, len(found.Locks), 30_000)
	for _, l := range found.Locks {
		require.True(t, l.Held || l.Nodes == 1 && slices.Contains([]string{"lock", "shared"}, l.Key), "%s, which two nodes have: %d", l.Key, l.Nodes)
	}
	// Where there is room for all, nothing is cut.
	few := manyLocks(5000, 500, 200)
	found, err = nodesThat(t, func(_ int, words []string) string { return few(words) }).List(t.Context(), "", 1<<30)
	require.NoError(t, err)
	assert.False(t, found.More)
	assert.Len(t, found.Locks, 5000)
}

// Names as long as those of locks may be, as many as are asked for at once, are no reason to fail.
func TestLocksWithLongNamesAreFound(t *testing.T) {
	says := manyLocks(600, 500, 8192)
	nodes := nodesThat(t, func(_ int, words []string) string { return says(words) })
	found, err := nodes.List(t.Context(), "", 1<<30)
	require.NoError(t, err)
	assert.Len(t, found.Locks, 600)
	assert.False(t, found.More)
}

// What a node answers beyond its budget is its error alone, with the rule; of the others all is told.
func TestNodeBeyondItsBudget(t *testing.T) {
	for name, c := range map[string]struct{ command, answer, want string }{
		"names":  {"scan", fmt.Sprintf("*2\r\n$1\r\n0\r\n*1\r\n$2000000\r\n%s\r\n", strings.Repeat("x", 2_000_000)), "the server announced or sent more than any answer to what it was asked: more than 1048576 bytes"},
		"values": {"getrange", fmt.Sprintf("$600000\r\n%s\r\n", strings.Repeat("x", 600_000)), "it answers GETRANGE with 600000 bytes, of 512 that were asked for"},
		"value":  {"getrange", fmt.Sprintf("$600\r\n%s\r\n", strings.Repeat("x", 600)), "it answers GETRANGE with 600 bytes, of 512 that were asked for"},
	} {
		t.Run(name, func(t *testing.T) {
			nodes := nodesThat(t, func(node int, words []string) string {
				if node == 1 && words[0] == c.command {
					return c.answer
				}
				return honestly(words)
			})
			found, err := nodes.List(t.Context(), "", 10)
			require.NoError(t, err)
			assert.ErrorContains(t, found.Nodes[1].Err, c.want)
			assert.Len(t, found.Locks, 2)
			assert.True(t, found.Locks[0].Held)
		})
	}
}

// One node has one vote, also if it lists a holder as often as there are nodes.
func TestHolderThatOneNodeListsOften(t *testing.T) {
	nodes := nodesThat(t, func(node int, words []string) string {
		if strings.EqualFold(words[0], "EVALSHA") && node == 0 {
			return "*6\r\n$6\r\nstring\r\n$14\r\nredlock:shared\r\n:1000\r\n:0\r\n*0\r\n*9\r\n" + strings.Repeat("$1\r\nx\r\n:1000\r\n:0\r\n", 3)
		}
		return honestly(words)
	})
	status, err := nodes.Inspect(t.Context(), "shared")
	require.NoError(t, err)
	require.Len(t, status.Holders, 1)
	assert.Equal(t, "owner", status.Holders[0].Owner)
}
