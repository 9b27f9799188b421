package conn

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Ask asks the server for its identity, and begins the conversation if that was not done. A server that is
// not ready is asked again over the same connection.
func (f *ownFlow) Ask() (s protocol.ServerReport, err error) {
	if err := f.greet(); err != nil {
		return s, err
	}
	var ping, server, replication, at answer
	mark, scripts := answer{err: errUnread}, answer{}
	f.question(&ping, "PING", "PING")
	f.question(&server, "INFO server", "INFO", "server")
	f.question(&replication, "INFO replication", "INFO", "replication")
	if f.markKey != "" {
		f.question(&mark, "GET", "GET", f.markKey)
		f.question(&at, "TIME", "TIME")
	}
	try := f.holds && !f.quirks.scripts.Load()
	if try {
		f.tryScripts(&scripts)
	}
	f.hear()
	refused := f.welcome()
	if err := serving(ping.err); err != nil && !protocol.IsServerError(refused) {
		refused = err
	}
	switch {
	case protocol.IsServerError(refused):
		return s, refused // whatever else it says, or that it hung up then
	case f.in.checkUnasked() != nil:
		return s, f.in.broken
	}
	if _, err := mark.text(); err != nil && mark.err == nil {
		return s, f.in.noRESP([]byte(err.Error()))
	}
	if try {
		if err := f.scriptsFail(scripts); err != nil {
			return s, err
		}
		f.quirks.scripts.Store(true)
	}
	f.known = true
	if s = identity(server, replication); s.Err == nil {
		s.Asked = true
		if f.markKey != "" {
			s.Mark = f.askedMark(mark, at)
		}
	}
	f.native.Has = s.Native
	return s, nil
}

var errUnread = errors.New("not asked for")

// tryScripts asks for a script. What is granted where none runs can be neither given back nor kept.
func (f *ownFlow) tryScripts(a *answer) {
	words := protocol.TryScript.Words(f.quirks.noDigest.Load())
	f.question(a, words[0], words...)
}

// scriptsFail is why scripts do not run, nil if they do or that is not known.
func (f *ownFlow) scriptsFail(a answer) error {
	if !f.quirks.noDigest.Load() && protocol.WantsSource(a.err) {
		whole := protocol.TryScript.Words(true)
		var b answer
		f.question(&b, whole[0], whole...)
		f.hear()
		if f.in.checkUnasked() != nil {
			return f.in.broken
		}
		if err := protocol.ScriptsFail(b.err); err != nil {
			return err
		}
		if !protocol.UnknownScript(a.err) {
			f.quirks.noDigest.Store(true)
		}
		return nil
	}
	return protocol.ScriptsFail(a.err)
}

// answer is what a server says to one question.
type answer struct {
	val any
	err error
}

func (f *ownFlow) answer() (a answer) {
	a.val, a.err = f.in.reply()
	return a
}

// text is an answer where it is a text.
func (a answer) text() (string, error) {
	text, ok := a.val.(string)
	if !ok && a.err == nil && a.val != nil {
		return "", fmt.Errorf("unexpected reply %.100q", fmt.Sprint(a.val))
	}
	return text, a.err
}

// identity reads the answers to the questions for it. What is not told, for whatever reason, is not known.
func identity(server, replication answer) (s protocol.ServerReport) {
	text, err := server.text()
	if err == nil {
		err = s.ReadServer(text)
	}
	if err == nil {
		text, err = replication.text()
	}
	if err == nil {
		err = s.ReadReplication(text)
	}
	if err != nil {
		return protocol.ServerReport{Err: err}
	}
	return s
}

// askedMark is the memory mark by the answers to GET and TIME.
func (f *ownFlow) askedMark(a, at answer) protocol.Mark {
	now := serverTime(at.val)
	if now == 0 {
		return protocol.MarkOfError(cmp.Or(at.err, errNoTime))
	}
	text, err := a.text()
	if err != nil {
		return protocol.MarkOfError(err)
	}
	return f.mark([]byte(text), a.val != nil).Aged(now)
}

var errNoTime = errors.New("unexpected reply to TIME")

// mark is the mark of which only the key was read.
func (f *ownFlow) mark(text []byte, present bool) protocol.Mark {
	if !present || f.lastMark.State != protocol.MarkPresent || string(text) != f.lastMark.Text {
		f.lastMark = protocol.ReadMark(string(text), present, 0)
	}
	return f.lastMark
}

func (f *ownFlow) Write(w *protocol.MarkWrite) (protocol.Mark, error) {
	r := protocol.MarkRequest(f.markKey, w)
	r.Whole = true
	f.out.request(r, protocol.NoNative)
	f.flush(batchRoom)
	a := f.answer()
	if f.in.broken != nil {
		return protocol.Mark{}, f.in.broken
	}
	return protocol.ReadWritten(a.val, a.err), nil
}

// Native is by what command one connection's server compares and deletes without a script.
type Native struct {
	Has    protocol.NativeDelete // as it said with its identity
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
	if b.Native && protocol.Denied(b.Err()) {
		n.Denied.Store(true)
	}
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

// serving is an answer to PING that says why the server serves no client now, or us never.
// Not to be allowed to PING is no such reason.
func serving(err error) error {
	if err == nil || !protocol.IsServerError(err) || strings.HasPrefix(err.Error(), "NOPERM") || strings.Contains(err.Error(), "unknown command") {
		return nil
	}
	return err
}
