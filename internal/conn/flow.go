package conn

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/protocol"
)

// question is a command beside those of a batch. Like them it is not sent twice, and it
// is made once for many uses where the connection is ours.
type question struct {
	redis.Cmder
	text redis.Cmd
	bulk *redis.StringCmd // in the place of text where the answer is a text: it costs less
}

func ask(args ...any) *question {
	q := &question{text: *redis.NewCmd(context.Background(), args...)}
	q.Cmder = &q.text
	return q
}

// unanswered stands where no answer was read: a text may be empty.
const unanswered = "\x00"

// askText is ask where the answer is a text or nothing.
func askText(args ...any) *question {
	q := &question{bulk: redis.NewStringCmd(context.Background(), args...)}
	q.Cmder = q.bulk
	return q
}

func (q *question) NoRetry() bool { return true }

// again makes the question anew.
func (q *question) again() redis.Cmder {
	if q.bulk != nil {
		q.bulk.SetVal(unanswered)
		q.bulk.SetErr(nil)
	} else {
		q.text.SetVal(nil)
		q.text.SetErr(nil)
	}
	return q
}

// answer is what the server said. Heard is false where it said nothing; failure is that of
// the whole pipeline.
func (q *question) answer(failure error) (val any, err error, heard bool) {
	val = q.text.Val()
	whole := val != nil
	if q.Err() != nil {
		// Where a connection breaks in the middle of a text or a list, go-redis returns an
		// empty one.
		switch v := val.(type) {
		case string:
			whole = v != ""
		case []any:
			whole = v != nil
		}
	}
	_, err, heard = q.came(whole, failure)
	if err != nil || !heard {
		val = nil
	}
	return val, err, heard
}

// came is what came of a question beside its value; present: there is one.
func (q *question) came(value bool, failure error) (present bool, err error, heard bool) {
	err = q.Err()
	switch {
	case errors.Is(err, redis.Nil):
		return false, nil, true
	case err != nil && protocol.IsServerError(err):
		return false, err, true
	case value:
		// A pipeline that breaks marks all its commands, also those that were answered before.
		return true, nil, true
	case err != nil:
		return false, err, false
	}
	// The greeting of a new connection was refused, and nothing else was sent.
	if failure == nil {
		failure = errors.New("go-redis returned neither a reply nor an error")
	}
	return false, failure, false
}

// string is answer where it is a text.
func (q *question) string(failure error) (text string, err error, heard bool) {
	val, err, heard := q.answer(failure)
	if err != nil {
		return "", err, heard
	}
	text, ok := val.(string)
	if !ok && val != nil {
		return "", fmt.Errorf("unexpected reply %.100q", fmt.Sprint(val)), heard
	}
	return text, nil, heard
}

// Native is by what command one connection's server compares and deletes without a script.
type Native struct {
	Has    protocol.NativeDelete // as it said when it was asked who it is
	Denied *atomic.Bool          // it did not do it for us over this or another connection
}

// May is the command of the server's own that may take the place of the release script.
func (n *Native) May() protocol.NativeDelete {
	if n.Denied.Load() {
		return protocol.NoNative
	}
	return n.Has
}

// Learn takes in the answer to such a command.
func (n *Native) Learn(b *protocol.Answer) {
	if b.Native && protocol.Denied(b.Err) {
		n.Denied.Store(true)
	}
}

// questions are all that a server may be asked about itself.
type questions struct {
	known protocol.Mark // as read last, since it hardly ever changes

	ping, server, replication, id, mark, time *question
}

func newQuestions(markKey string) *questions {
	q := &questions{
		ping: ask("PING"), server: ask("INFO", "server"), replication: ask("INFO", "replication"),
		id: ask("CLIENT", "ID"),
	}
	if markKey != "" {
		q.mark, q.time = askText("GET", markKey), ask("TIME")
	}
	return q
}

// askToWrite is the command that writes the mark.
func askToWrite(markKey string, w *protocol.MarkWrite) *question {
	r := protocol.MarkRequest(markKey, w)
	r.Whole = true
	return ask(r.Values()...)
}

// written reads the answer to askToWrite. Its error means that there is none.
func (q *question) written(failure error) (protocol.Mark, error) {
	val, err, heard := q.answer(failure)
	if !heard {
		return protocol.Mark{}, err
	}
	return protocol.ReadWritten(val, err), nil
}

// who are the questions after the identity.
func (q *questions) who() []redis.Cmder {
	cmds := []redis.Cmder{q.server.again(), q.replication.again(), q.id.again()}
	if q.mark != nil {
		cmds = append(cmds, q.mark.again(), q.time.again())
	}
	return cmds
}

// identity reads the answers to who. Its error means that there is none: the server's own
// that time mends, or why no server answered.
func (q *questions) identity(failure error) (s protocol.ServerReport, err error) {
	text, err, heard := q.server.string(failure)
	switch {
	case err == nil:
		if err := s.ReadServer(text); err != nil {
			return protocol.ServerReport{Err: err}, nil
		}
	case heard && !protocol.Passing(err):
		return protocol.ServerReport{Err: err}, nil
	default:
		return s, err
	}
	text, err, heard = q.replication.string(failure)
	switch {
	case err == nil:
		s.ReadReplication(text)
	case !heard || protocol.Passing(err):
		return s, err
	}
	val, err, heard := q.id.answer(failure)
	switch {
	case err == nil:
		s.ClientID, _ = val.(int64)
	case !heard:
		return s, err
	case protocol.IsServerError(err): // denied, or unknown to a proxy
		s.IDErr = err
	}
	s.Asked = true
	if q.mark == nil {
		return s, nil
	}
	at, err, heard := q.time.answer(failure)
	if !heard {
		return s, err
	}
	s.Mark, heard = q.remembered(failure, serverTime(at))
	if !heard {
		return s, failure
	}
	return s, nil
}

// remembered reads the memory mark.
func (q *questions) remembered(failure error, now time.Duration) (m protocol.Mark, heard bool) {
	text := q.mark.bulk.Val()
	present, err, heard := q.mark.came(text != unanswered && (text != "" || q.mark.Err() == nil), failure)
	if err != nil {
		return protocol.MarkOfError(err), heard
	}
	return q.look([]byte(text), present).Aged(now), true
}

// look is the mark of which only the key was read.
func (q *questions) look(text []byte, present bool) protocol.Mark {
	if !present || q.known.State != protocol.MarkPresent || string(text) != q.known.Text {
		q.known = protocol.ReadMark(string(text), present, 0)
	}
	return q.known
}

// evictedKeys is how many keys INFO stats says were evicted; -1: it does not tell.
func evictedKeys(stats string) int64 {
	// Read without a map of some sixty fields, since it is asked for each second.
	_, rest, _ := strings.Cut(stats, "evicted_keys:")
	n := 0
	for n < len(rest) && rest[n] >= '0' && rest[n] <= '9' {
		n++
	}
	count, err := strconv.ParseInt(rest[:n], 10, 64)
	if err != nil {
		return -1
	}
	return count
}

// serverTime is an answer to TIME, since 1970; 0 where it is none.
func serverTime(val any) time.Duration {
	parts, _ := val.([]any)
	if len(parts) != 2 {
		return 0
	}
	read := func(v any) time.Duration {
		d, _ := time.ParseDuration(fmt.Sprint(v) + "us")
		return d
	}
	return read(parts[0])*1e6 + read(parts[1])
}

// Killed reads the answer to CLIENT KILL: nil only if it is an integer.
func Killed(val any, err error) error {
	if err != nil {
		return err
	}
	if _, ok := val.(int64); !ok {
		return fmt.Errorf("unexpected reply %.100q to CLIENT KILL", fmt.Sprint(val))
	}
	return nil
}

// serving is an answer to PING that says why the server serves no client now, or us never.
// Not to be allowed to PING is no such reason.
func serving(err error) error {
	if err == nil || !protocol.IsServerError(err) || strings.HasPrefix(err.Error(), "NOPERM") || strings.Contains(err.Error(), "unknown command") {
		return nil
	}
	return err
}
