package protocol

import (
	"cmp"
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
// written under another run id or replication id. The rules are in package guard, memory.go.

// MarkKey is the mark's key, behind Options.KeyPrefix and in the same database as the
// locks, so that it is lost and replaced together with them.
const MarkKey = "redlock:memory"

// Mark is what a node's memory mark says.
type Mark struct {
	State MarkState
	// Text is the key's bytes. It is empty for anything but MarkPresent.
	Text string
	// Age is the node's TIME less that of the mark, at the moment it was read. It is
	// negative if the node's clock was set back since. 0 where only the key was read.
	Age time.Duration
	Now time.Duration // the node's TIME at that moment, since 1970; 0 where only the key was read
	Err error         // why it is unread

	// What follows is read from the text; see Read.

	ID            string // random; empty: the text is no mark
	At            int64  // when it was written, in microseconds of the node since 1970
	First         bool   // nothing was there, and its writer had never seen anything there
	RunID, ReplID string // under which it was written
	Start, Puts   int64  // what its writer had been told of them, see ServerReport
	All           int    // on how many nodes, all of the fleet, that was so at one time; 0: not known
}

// MarkState is what a look at a node's mark came to.
type MarkState uint8

const (
	MarkUnread  MarkState = iota // not asked for, or no answer: see Err
	MarkAbsent                   // no mark; to the guard also one that says nothing of this data
	MarkPresent                  // a mark
)

// ReadMark is the mark that an answer to GET shows; now is the node's TIME since 1970, 0
// where it was not asked.
func ReadMark(text string, present bool, now time.Duration) Mark {
	if !present {
		return Mark{State: MarkAbsent}
	}
	m := Mark{State: MarkPresent, Text: text}
	m.Read()
	return m.Aged(now)
}

// Aged is the mark with its age by the node's TIME.
func (m Mark) Aged(now time.Duration) Mark {
	if m.State == MarkPresent && now > 0 {
		m.Now = now
		m.Age = now - time.Duration(m.At)*time.Microsecond
	}
	return m
}

// Read takes the text apart: "<id> <at> <first|later> <run id> <replication id> <start> <puts> [all<nodes>]", of which
// the script knows the first two. A text that is anything else is a mark of no id, which is replaced.
func (m *Mark) Read() {
	f := strings.Fields(m.Text)
	if len(f) < 7 || len(f) > 8 || f[2] != markFirst && f[2] != markLater {
		return
	}
	at, err := strconv.ParseInt(f[1], 10, 64)
	start, serr := strconv.ParseInt(f[5], 10, 64)
	puts, perr := strconv.ParseInt(f[6], 10, 64)
	if errors.Join(err, serr, perr) != nil || at < 0 || at > 1<<53 || puts < 0 {
		return
	}
	all := 0
	if len(f) == 8 {
		n, is := strings.CutPrefix(f[7], markAll)
		if all, err = strconv.Atoi(n); err != nil || !is || all < 1 || f[2] != markFirst {
			return
		}
	}
	m.ID, m.At, m.First, m.RunID, m.ReplID, m.Start, m.Puts, m.All = f[0], at, f[2] == markFirst, f[3], f[4], start, puts, all
}

const (
	markFirst = "first"
	markLater = "later"
	markAll   = "all"
)

// MarkWrite is what is to be written to a node, by compare and set.
type MarkWrite struct {
	Old string // what must be there; empty: no mark
	// ID is that of a new mark, or of the one that is there. A client that knows the id takes the mark
	// for the one it knows and looks at its replication id alone, so what is to bar needs a new id.
	ID            string
	At            int64 // in microseconds of the node since 1970; 0: its TIME
	First         bool
	RunID, ReplID string
	Start, Puts   int64
	All           int
}

// IsRedated reports whether this is the mark that is there, with the present date.
func (w *MarkWrite) IsRedated() bool { return w.ID != "" && w.At == 0 }

// Written is the mark as it is there once it was written, at that time of the node's.
func (w *MarkWrite) Written(now time.Duration) Mark {
	c := *w
	c.ID = cmp.Or(w.ID, "new")
	return ReadMark(c.Text(cmp.Or(w.At, now.Microseconds())), true, now)
}

// Args are the script's, behind its keys.
func (w *MarkWrite) Args() []string {
	at, how, all := "", markLater, ""
	if w.At > 0 {
		at = strconv.FormatInt(w.At, 10)
	}
	if w.First {
		how = markFirst
	}
	if w.All > 0 {
		all = " " + markAll + strconv.Itoa(w.All)
	}
	return []string{w.Old, w.ID, at, fmt.Sprintf("%s %s %s %d %d%s", how, w.RunID, w.ReplID, w.Start, w.Puts, all)}
}

// Text is the mark as it is there once it was written at that time of the node's.
func (w *MarkWrite) Text(at int64) string {
	args := w.Args()
	return args[1] + " " + strconv.FormatInt(at, 10) + " " + args[3]
}

// ReadWritten is what the script's answer says of the mark.
func ReadWritten(val any, err error) Mark {
	if err != nil {
		return MarkOfError(err)
	}
	if v, ok := val.([]any); ok && len(v) == 2 {
		text, isText := v[0].(string)
		if now, isInt := v[1].(int64); isText && isInt {
			return ReadMark(text, true, time.Duration(now)*time.Microsecond)
		}
	}
	return MarkOfError(fmt.Errorf("unexpected reply %.100q", fmt.Sprint(val)))
}

// MarkOfError is a mark that could not be read or written: absent where the error says so, or unread.
func MarkOfError(err error) Mark {
	if errors.Is(err, redis.Nil) {
		return Mark{State: MarkAbsent}
	}
	if OtherType(err) {
		err = fmt.Errorf("%w: %s, behind Options.KeyPrefix, holds what is no memory mark", err, MarkKey)
	}
	return Mark{State: MarkUnread, Err: err}
}

// MarkRequest writes a mark by compare and set, and reads what is there then.
func MarkRequest(key string, w *MarkWrite) *Request {
	return &Request{Op: MarkScript.op, Script: MarkScript, Key: key, more: markArgs(w.Args())}
}

// Passing reports whether asking again may help: there was no answer, or the server says by
// a code of its own, such as BUSY or LOADING, that it cannot answer at present. ERR,
// and what has no code, says that there is no such command, but for errors of a command in a script,
// which before Redis 7 stand inside of a longer text.
func Passing(err error) bool {
	if !IsServerError(err) {
		var n net.Error
		return errors.As(err, &n) || errors.Is(err, ErrTimeout) || errors.Is(err, redis.ErrClosed) ||
			errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
			errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	}
	code, _, _ := strings.Cut(err.Error(), " ")
	return !Permanent(err) && code != "ERR" && code == strings.ToUpper(code) ||
		strings.HasPrefix(err.Error(), "ERR max number of clients") ||
		strings.HasPrefix(err.Error(), "ERR Error running script") && hasAny(err.Error(), "-OOM ", "-MISCONF ", "-NOREPLICAS ", "-READONLY ")
}

// MaxAge keeps sums of times in range; no guard is as long.
const MaxAge = 100 * 365 * 24 * time.Hour
