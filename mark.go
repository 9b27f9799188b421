package redlock

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// The memory mark is one key on each node, without expiry. It says since when the node's
// data has been remembering: data that was lost or replaced has no mark, or one that was
// written under another run id or replication id. The rules are in memory.go.

// markKey is the mark's key, behind Options.KeyPrefix and in the same database as the
// locks, so that it is lost and replaced together with them.
const markKey = "redlock:memory"

// mark is what a node's memory mark says.
type mark struct {
	state markState
	// text is the key's bytes. It is empty for anything but markPresent.
	text string
	// age is the node's TIME less that of the mark, at the moment it was read. It is
	// negative if the node's clock was set back since. 0 where only the key was read.
	age time.Duration
	err error // why it is unread or denied

	// What follows is read from the text; see read.

	id            string // random; empty: the text is no mark
	runID, replID string // under which it was written; replID is empty if not known then
	at            int64  // when, in microseconds of the node since 1970
	uptime        time.Duration
	first         bool // nothing was there, and its writer had never seen anything there
}

type markState uint8

const (
	markUnread  markState = iota // not asked for, or no answer: see err
	markAbsent                   // no mark, or one that says nothing of this data
	markPresent                  // a mark
	markDenied                   // it may not be read or not be written
)

// readMark is the mark that an answer to GET shows; now is the node's TIME since 1970, 0
// where it was not asked.
func readMark(text string, present bool, now time.Duration) mark {
	if !present {
		return mark{state: markAbsent}
	}
	m := mark{state: markPresent, text: text}
	m.read()
	return m.aged(now)
}

// aged is the mark with its age by the node's TIME.
func (m mark) aged(now time.Duration) mark {
	if m.state == markPresent && now > 0 {
		m.age = now - time.Duration(m.at)*time.Microsecond
	}
	return m
}

// read takes the text apart. Later versions may append to it. A text that is no mark is
// one of no id, which is replaced.
func (m *mark) read() {
	f := strings.Fields(m.text)
	if len(f) < 6 || f[3] != markFirst && f[3] != markLater {
		return
	}
	at, err := strconv.ParseInt(f[1], 10, 64)
	age, aerr := strconv.ParseInt(f[2], 10, 64)
	if err != nil || aerr != nil || at < 0 || at > 1<<53 || age < 0 || age > int64(maxAge/time.Microsecond) {
		return
	}
	m.id, m.at, m.uptime, m.first = f[0], at, time.Duration(age)*time.Microsecond, f[3] == markFirst
	m.runID, m.replID = f[4], f[5]
	if m.replID == markNoReplID {
		m.replID = ""
	}
}

const (
	markFirst    = "first"
	markLater    = "later"
	markNoReplID = "-"
)

// markWrite is what is to be written to a node, by compare and set.
type markWrite struct {
	old           string // what must be there; empty: no mark
	id            string
	at            int64         // in microseconds of the node since 1970; 0: its TIME
	uptime        time.Duration // of the process, when it is written
	first         bool
	runID, replID string
}

// isRedated reports whether this is the mark that is there, with the present date.
func (w *markWrite) isRedated() bool { return w.id != "" && w.at == 0 }

// written is the mark as it is there once it was written, a moment ago.
func (w *markWrite) written() mark {
	id := w.id
	if id == "" {
		id = "new"
	}
	return mark{state: markPresent, id: id, runID: w.runID, replID: w.replID, uptime: w.uptime, first: w.first}
}

// args are the script's, behind its keys.
func (w *markWrite) args() []any {
	at, how, repl := "", markLater, w.replID
	if w.at > 0 {
		at = strconv.FormatInt(w.at, 10)
	}
	if w.first {
		how = markFirst
	}
	if repl == "" {
		repl = markNoReplID
	}
	return []any{w.old, w.id, at, fmt.Sprintf("%d %s %s %s", w.uptime.Microseconds(), how, w.runID, repl)}
}

// readWritten is what the script's answer says of the mark.
func readWritten(val any, err error) mark {
	if err != nil {
		return unreadMark(err)
	}
	if v, ok := val.([]any); ok && len(v) == 2 {
		text, isText := v[0].(string)
		if now, isInt := v[1].(int64); isText && isInt {
			return readMark(text, true, time.Duration(now)*time.Microsecond)
		}
	}
	return unreadMark(fmt.Errorf("unexpected reply %.100q", fmt.Sprint(val)))
}

// unreadMark is a mark that could not be read or written.
func unreadMark(err error) mark {
	if errors.Is(err, redis.Nil) {
		return mark{state: markAbsent}
	}
	if passing(err) {
		return mark{state: markUnread, err: err}
	}
	if otherType(err) {
		err = fmt.Errorf("%w: %s, behind Options.KeyPrefix, holds what is no memory mark", err, markKey)
	}
	return mark{state: markDenied, err: err}
}

var markScript = mustScript("mark")

func markRequest(key string, w *markWrite) *request {
	return &request{op: opMark, script: markScript, key: key, mark: w.args()}
}

// passing reports whether asking again may help: there was no answer, or the server says by
// a code of its own, such as BUSY or LOADING, that it cannot answer at present. A node has no
// vote until it answers, whereas one that denies the question for good votes unguarded. ERR,
// and what has no code, says that there is no such command.
func passing(err error) bool {
	if !isServerError(err) {
		var n net.Error
		return errors.As(err, &n) || errors.Is(err, errTimeout) || errors.Is(err, redis.ErrClosed) ||
			errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
			errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	}
	code, _, _ := strings.Cut(err.Error(), " ")
	return !permanent(err) && code != "ERR" && code == strings.ToUpper(code) ||
		strings.HasPrefix(err.Error(), "ERR max number of clients")
}

// maxAge keeps sums of times in range; no guard is as long.
const maxAge = 100 * 365 * 24 * time.Hour
