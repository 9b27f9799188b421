package redlock

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"
)

// probe is a command that tests a right and has no effect: a server checks the number of
// arguments, then the rights to the command and its keys, and only then the arguments.
type probe struct {
	need need
	args []any
}

// probesFor returns probes for all that a user must be allowed. Neither key exists.
func probesFor(key, line, channel string) []probe {
	return []probe{
		{forLocks, []any{"SET", key, "", "NOTHING"}}, // no such option
		{forLocks, []any{"GET", key}},
		{forLocks, []any{"DEL", key}},
		{forLocks, []any{"PTTL", key}},
		{forLocks, []any{"PEXPIRE", key, 1}},
		{forLocks, []any{"TYPE", key}},
		{forLocks, []any{"EVAL", "no script", 0}}, // does not compile, so it is not kept either
		{forLocks, []any{"EVALSHA", strings.Repeat("0", 40), 0}},
		{forLines, []any{"TIME"}},
		{forLines, []any{"TYPE", line}},
		{forLines, []any{"ZADD", line, "nan?", ""}}, // no number
		{forLines, []any{"ZREM", line, ""}},
		{forLines, []any{"ZSCORE", line, ""}},
		{forLines, []any{"ZRANGEBYSCORE", line, 0, 0}},
		{forLines, []any{"ZREVRANGE", line, 0, 0}},
		{forLines, []any{"ZCOUNT", line, 0, 0}},
		{forNotices, []any{"PUBLISH", channel, ""}},
	}
}

// rights sends the probes.
func (e *examiner) rights(ctx context.Context, c redis.UniversalClient) {
	key := e.prefix + "redlock-check-" + e.probe
	line := namingOf(key).queueKey(key)
	if line == "" {
		line = key // with such a prefix no lock has a line
	}
	q := questions{pipe: c.Pipeline()}
	probes := probesFor(key, line, "redlock:"+e.probe)
	cmds := make([]*redis.Cmd, len(probes))
	for i, p := range probes {
		cmds[i] = redis.NewCmd(ctx, p.args...)
		q.add(ctx, cmds[i])
	}
	q.send(ctx)
	if q.failure != nil {
		e.cannot("rights", "whether this user may do all that locks need", q.failure)
		return
	}
	for i, p := range probes {
		e.refused(p.need, fmt.Sprint(p.args[0]), cmds[i].Err())
	}
}

// refused notes a right that is missing, if the error says so.
func (e *examiner) refused(n need, what string, err error) {
	if err == nil || !isServerError(err) {
		return
	}
	switch text := err.Error(); {
	case strings.HasPrefix(text, "NOPERM") && !strings.Contains(text, "to run the") && strings.Contains(text, "key"):
		// Rights to commands are checked before those to keys, so the command is allowed.
		e.masked = e.masked || n == forLocks
		if n == forLines && !e.masked && !e.lineMasked {
			e.lineMasked = true
			e.lacks = append(e.lacks, denial{n, "the keys {...}:line", oneLine(text)})
		}
	case strings.HasPrefix(text, "NOPERM"), strings.Contains(text, "unknown command"):
		e.lacks = append(e.lacks, denial{n, what, oneLine(text)})
	}
}

// subscribe tests the right to listen for releases, on a connection of its own.
func (e *examiner) subscribe(ctx context.Context, c redis.UniversalClient) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	confirmed := false
	err := newRedisWire(c, false).listen(ctx, "redlock:"+e.probe, func() { confirmed = true; done() }, func(string) {})
	switch {
	case confirmed:
	case isServerError(err):
		e.refused(forNotices, "SUBSCRIBE", err)
	default:
		e.cannot("SUBSCRIBE", "whether waiters can be told of a release", err)
	}
}
