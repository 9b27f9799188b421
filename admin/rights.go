package admin

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
)

// probe is a command that tests a right and has no effect: a server checks the number of
// arguments, then the rights to the command and its keys, and only then the arguments.
type probe struct {
	need need
	args []any
}

// probesFor returns probes for all that a user must be allowed.
func probesFor(ask questions) []probe {
	key, line, holders, mark := ask.Key, ask.Line, ask.Holders, ask.Mark
	probes := []probe{
		{forLocks, []any{"SET", key, "", "NOTHING"}}, // no such option
		{forLocks, []any{"GET", key}},
		{forLocks, []any{"DEL", key}},
		{forLocks, []any{"PTTL", key}},
		{forLocks, []any{"PEXPIRE", key, 1}},
		{forLocks, []any{"TYPE", key}},
		{forLocks, []any{"EVAL", "no script", 0}}, // does not compile, so it is not kept either
		{forDigests, []any{"EVALSHA", strings.Repeat("0", 40), 0}},
		{forBundles, []any{"MGET", key}},
		{forBundles, []any{"EXISTS", line}},
		{forForeign, []any{"GETRANGE", key, 0, 0}},
		{forLines, []any{"TIME"}},
		{forLines, []any{"TYPE", line}},
		{forLines, []any{"ZADD", line, "nan?", ""}}, // no number
		{forLines, []any{"ZREM", line, ""}},
		{forLines, []any{"ZSCORE", line, ""}},
		{forLines, []any{"ZRANGEBYSCORE", line, 0, 0}},
		{forLines, []any{"ZREVRANGE", line, 0, 0}},
		{forLines, []any{"ZCOUNT", line, 0, 0}},
		{forNotices, []any{"PUBLISH", ask.Channel, ""}},
		{forNames, []any{"CLIENT", "SETNAME", "a space is refused"}},
	}
	probes = append(probes, probe{forSharing, []any{"GET", ask.Door}}, probe{forSharing, []any{"ZCARD", holders}},
		probe{forSharing, []any{"ZRANGE", holders, 0, 0}}, probe{forSharing, []any{"UNLINK", holders}}, probe{forSharing, []any{"ZREMRANGEBYSCORE", holders, 0, 0}})
	if mark != "" {
		probes = append(probes, probe{forMemory, []any{"TIME"}},
			probe{forMemory, []any{"GET", mark}}, probe{forMemory, []any{"SET", mark, "", "NOTHING"}})
	}
	return probes
}

// name is the command, with its subcommand.
func (p probe) name() string {
	if p.args[0] == "CLIENT" {
		return fmt.Sprint("CLIENT ", p.args[1])
	}
	return fmt.Sprint(p.args[0])
}

// rights sends the probes.
func (e *examiner) rights(ctx context.Context, c *redis.Client) {
	q := enquiry{pipe: c.Pipeline()}
	probes := probesFor(e.ask)
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
		e.refused(p.need, p.name(), cmds[i].Err())
	}
}

// refused notes a right that is missing, if the error says so.
func (e *examiner) refused(n need, what string, err error) {
	if err == nil || !protocol.IsServerError(err) {
		return
	}
	switch text := err.Error(); {
	case strings.HasPrefix(text, "NOPERM") && !strings.Contains(text, "to run the") && strings.Contains(text, "key"):
		// Rights to commands are checked before those to keys, so the command is allowed.
		e.masked = e.masked || n == forLocks
		if n == forLines && !e.masked && !e.lineMasked {
			e.lineMasked = true
			e.lacks = append(e.lacks, denial{n, "the keys {...}:line", protocol.ServerText(protocol.OneLine(text))})
		}
		if n == forSharing && !e.masked && !e.sharedMasked {
			e.sharedMasked = true
			e.lacks = append(e.lacks, denial{n, "the keys {...}:shared and {...}:door", protocol.ServerText(protocol.OneLine(text))})
		}
		if n == forMemory {
			e.lacks = append(e.lacks, denial{n, "the key " + e.ask.Mark, protocol.ServerText(protocol.OneLine(text))})
		}
	case strings.HasPrefix(text, "NOPERM"), strings.Contains(text, "unknown command"), strings.Contains(strings.ToLower(text), "unknown subcommand"):
		e.lacks = append(e.lacks, denial{n, what, protocol.ServerText(protocol.OneLine(text))})
	}
}

// subscribe tests the right to listen for releases, on a connection of its own.
func (e *examiner) subscribe(ctx context.Context, c *redis.Client) {
	ctx, done := context.WithCancel(ctx)
	defer done()
	confirmed := false
	err := conn.Listen(ctx, e.clock, c, e.ask.Channel, lane.Subscriber{
		Confirmed: func() { confirmed = true; done() }, Denied: func(error) {}, Heard: func(string) {},
	})
	switch {
	case confirmed:
	case protocol.IsServerError(err):
		e.refused(forNotices, "SUBSCRIBE", err)
	default:
		e.cannot("SUBSCRIBE", "whether waiters can be told of a release", err)
	}
}
