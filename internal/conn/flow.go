package conn

import (
	"fmt"
	"strconv"
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
	f.out.ask("PING")
	f.out.ask("INFO", "server")
	f.out.ask("INFO", "replication")
	f.out.ask("CLIENT", "ID")
	if f.markKey != "" {
		f.out.ask("GET", f.markKey)
		f.out.ask("TIME")
	}
	f.flush(greetingRoom)
	refused := f.welcome()
	_, err = f.in.reply()
	if refused == nil {
		refused = serving(err)
	}
	server, replication, id := f.answer(), f.answer(), f.answer()
	var mark protocol.Mark
	if f.markKey != "" {
		mark = f.askedMark()
		if at := f.answer(); mark.State == protocol.MarkPresent {
			mark = mark.Aged(serverTime(at.val))
		}
	}
	switch {
	case refused != nil:
		return s, refused // whatever else it says, or that it hung up then
	case f.in.checkUnasked() != nil:
		return s, f.in.broken
	}
	s, err = identity(server, replication, id)
	if err == nil && s.Err == nil {
		s.Asked, s.Mark = true, mark
	}
	f.native.Has = s.Native
	return s, err
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

// identity reads the answers to the questions for it. Its error is the server's own that time mends.
func identity(server, replication, id answer) (s protocol.ServerReport, err error) {
	text, err := server.text()
	switch {
	case err == nil:
		if err := s.ReadServer(text); err != nil {
			return protocol.ServerReport{Err: err}, nil
		}
	case protocol.Passing(err):
		return s, err
	default:
		return protocol.ServerReport{Err: err}, nil
	}
	switch text, err := replication.text(); {
	case err == nil:
		s.ReadReplication(text)
	case protocol.Passing(err):
		return s, err
	}
	s.ClientID, _ = id.val.(int64)
	s.IDErr = id.err // denied, or unknown to a proxy
	return s, nil
}

// askedMark reads the memory mark.
func (f *ownFlow) askedMark() protocol.Mark {
	text, present, err := f.in.text()
	if err != nil {
		return protocol.MarkOfError(err)
	}
	return f.mark(text, present)
}

// mark is the mark of which only the key was read.
func (f *ownFlow) mark(text []byte, present bool) protocol.Mark {
	if !present || f.known.State != protocol.MarkPresent || string(text) != f.known.Text {
		f.known = protocol.ReadMark(string(text), present, 0)
	}
	return f.known
}

func (f *ownFlow) Kill(id int64) error {
	f.out.ask("CLIENT", "KILL", "ID", strconv.FormatInt(id, 10))
	f.flush(batchRoom)
	a := f.answer()
	if _, ok := a.val.(int64); !ok && a.err == nil {
		return fmt.Errorf("unexpected reply %.100q to CLIENT KILL", fmt.Sprint(a.val))
	}
	return a.err
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
	if b.Native && protocol.Denied(b.Err) {
		n.Denied.Store(true)
	}
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

// serving is an answer to PING that says why the server serves no client now, or us never.
// Not to be allowed to PING is no such reason.
func serving(err error) error {
	if err == nil || !protocol.IsServerError(err) || strings.HasPrefix(err.Error(), "NOPERM") || strings.Contains(err.Error(), "unknown command") {
		return nil
	}
	return err
}
