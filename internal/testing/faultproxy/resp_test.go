package faultproxy

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var replyFrames = []string{
	"+OK\r\n", "-ERR no\r\n", ":42\r\n", "$5\r\nhello\r\n", "$0\r\n\r\n", "$-1\r\n", "$4\r\n\r\n\r\n\r\n",
	"*0\r\n", "*-1\r\n", "*2\r\n$1\r\na\r\n*2\r\n:1\r\n$-1\r\n",
	"_\r\n", "#t\r\n", ",3.25\r\n", ",inf\r\n", "(12345678901234567890\r\n", "!9\r\nERR wrong\r\n",
	"=7\r\ntxt:abc\r\n", "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n_\r\n", "~2\r\n+a\r\n+b\r\n",
	">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", "|1\r\n+ttl\r\n:3\r\n$1\r\nx\r\n",
}

func TestReplyLenKnowsEveryTypeAndEveryPrefix(t *testing.T) {
	for _, frame := range replyFrames {
		for i := range len(frame) {
			n, err := replyLen([]byte(frame[:i]))
			require.NoError(t, err, "%q", frame[:i])
			require.Zero(t, n, "prefix %q", frame[:i])
		}
		n, err := replyLen([]byte(frame + "+NEXT\r\n"))
		require.NoError(t, err, "%q", frame)
		assert.Equal(t, len(frame), n, "%q", frame)
	}
	for _, bad := range []string{"hello\r\n", "\r\n", "$x\r\n", "*\r\n", "$99999999999\r\n", "%x\r\n", "|-\r\n"} {
		_, err := replyLen([]byte(bad))
		assert.Error(t, err, "%q", bad)
	}
}

func TestParseRequest(t *testing.T) {
	for _, c := range []struct {
		in   string
		args []string
	}{
		{"*1\r\n$4\r\nPING\r\n", []string{"PING"}},
		{"*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$0\r\n\r\n", []string{"SET", "k", ""}},
		{"*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\n", []string{"ECHO", "\r\n"}},
		{"*0\r\n", nil},
		{"*-1\r\n", nil},
		{"\r\n", nil},
		{"PING hello\r\n", []string{"PING", "hello"}},
	} {
		for i := 1; i < len(c.in); i++ {
			_, n, err := parseRequest([]byte(c.in[:i]), nil)
			require.NoError(t, err, "%q", c.in[:i])
			require.Zero(t, n, "prefix %q", c.in[:i])
		}
		args, n, err := parseRequest([]byte(c.in+"*1\r\n"), nil)
		require.NoError(t, err, "%q", c.in)
		assert.Equal(t, len(c.in), n)
		var words []string
		for _, a := range args {
			words = append(words, string(a))
		}
		assert.Equal(t, c.args, words)
	}
	for _, bad := range []string{"\x16\x03\x01", "*x\r\n", "*1\r\n+PING\r\n", "*1\r\n$-1\r\n", "*1\r\n\r\n"} {
		_, _, err := parseRequest([]byte(bad), nil)
		assert.Error(t, err, "%q", bad)
	}
}

func TestPushKind(t *testing.T) {
	for _, c := range []struct {
		frame      string
		subscribed bool
		want       string
	}{
		{">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n", false, "invalidate"},
		{">0\r\n", false, "push"},
		{"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", true, "message"},
		{"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nm\r\n", false, ""},
		{"*3\r\n$11\r\nunsubscribe\r\n$1\r\nc\r\n:0\r\n", true, "unsubscribe"},
		{"*2\r\n$4\r\npong\r\n$0\r\n\r\n", true, ""},
		{"*-1\r\n", true, ""},
		{"*1\r\n$-1\r\n", true, ""},
		{"+OK\r\n", true, ""},
	} {
		assert.Equal(t, c.want, pushKind([]byte(c.frame), c.subscribed), "%q", c.frame)
	}
}

// Whatever comes, a frame lies inside its input, and a frame that was found once
// is found again when more input follows.
func FuzzFrames(f *testing.F) {
	f.Add([]byte(strings.Join(replyFrames, "")))
	f.Add([]byte("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(size func([]byte) (int, error)) {
			n, err := size(b)
			require.True(t, 0 <= n && n <= len(b))
			if n > 0 && err == nil {
				again, err := size(b[:n])
				require.NoError(t, err)
				require.Equal(t, n, again)
			}
		}
		if len(b) == 0 {
			return
		}
		check(func(b []byte) (int, error) {
			n, err := replyLen(b)
			if n > 0 && err == nil {
				pushKind(b[:n], true)
			}
			return n, err
		})
		check(func(b []byte) (int, error) {
			_, n, err := parseRequest(b, nil)
			return n, err
		})
	})
}
