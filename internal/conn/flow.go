package conn

import (
	"cmp"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
)

// Ask asks the server for all that its votes rest on, and begins the conversation if that was not done. A server that is
// not ready is asked again over the same connection. Without a guard it only asks for a sign of life.
func (f *ownFlow) Ask() (s protocol.ServerReport, err error) {
	if err := f.greet(); err != nil {
		return s, err
	}
	var ping, trial answer
	var of facts
	guarded := f.markKey != ""
	f.question(&ping, "PING", f.stamp.ping()...)
	if guarded {
		f.question(&of.mark, "GET", "GET", f.markKey)
		f.question(&of.time, "TIME", "TIME")
		for i, section := range protocol.Sections {
			f.question(&of.info[i], "INFO "+section, "INFO", section)
		}
		f.tryScripts(&trial)
	}
	f.hear()
	f.learnStamp(ping)
	refused := f.welcome()
	if serving := protocol.Refuses(ping.err); serving != nil && !protocol.IsServerError(refused) {
		refused = serving
	}
	switch {
	case protocol.IsServerError(refused):
		return s, refused // whatever else it says, or that it hung up then
	case f.in.checkUnasked() != nil:
		return s, f.in.broken
	}
	f.known = true
	if !guarded {
		return s, nil
	}
	s = of.report()
	s.Asked = true
	if s.Err == nil && s.Role != "slave" { // which has no vote by that, and runs no trial
		if s.Mark = f.askedMark(&of); s.Mark.State == protocol.MarkUnread {
			s.Err = s.Mark.Err
		} else {
			s.Err = f.trialFails(trial)
		}
		if f.in.broken != nil {
			return protocol.ServerReport{}, f.in.broken
		}
	}
	f.native.Has = s.Native
	return s, nil
}

// facts are the answers to the questions for what a vote rests on.
type facts struct {
	mark, time answer
	info       [len(protocol.Sections)]answer
}

// report is what INFO and TIME tell. What is not told, for whatever reason, is not known.
func (of *facts) report() (s protocol.ServerReport) {
	for i, section := range protocol.Sections {
		text, err := of.info[i].text()
		if err := s.ReadInfo(section, text, err); err != nil {
			return protocol.ServerReport{Err: err}
		}
	}
	if s.Time = serverTime(of.time.val); s.Time == 0 && s.Role != "slave" {
		s.Err = protocol.Unanswered("TIME", cmp.Or(of.time.err, errNoTime))
	}
	return s
}

// tryScripts asks for the trial. What is granted where it fails can be neither given back nor kept.
func (f *ownFlow) tryScripts(a *answer) {
	words := f.trialWords(f.quirks.noDigest.Load())
	f.question(a, words[0], words...)
}

func (f *ownFlow) trialWords(whole bool) []string {
	return protocol.TryScript.Words(f.trialKey(), whole)
}

// trialFails is why the trial failed, nil if it did not.
func (f *ownFlow) trialFails(a answer) error {
	command := "EVALSHA"
	if f.quirks.noDigest.Load() {
		command = "EVAL"
	} else if protocol.WantsSource(a.err) {
		command = "EVAL"
		unknown := protocol.UnknownScript(a.err)
		whole := f.trialWords(true)
		f.question(&a, whole[0], whole...)
		f.hear()
		if f.in.checkUnasked() == nil && a.err == nil && !unknown {
			f.quirks.noDigest.Store(true)
		}
	}
	return protocol.TrialFails(command, f.trialKey(), a.val, a.err)
}

// trialKey is the key of the trial, beside that of the mark.
func (f *ownFlow) trialKey() string { return protocol.TrialKeyOf(f.markKey) }

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

// askedMark is the memory mark by the answers to GET and TIME.
func (f *ownFlow) askedMark(of *facts) protocol.Mark {
	text, err := of.mark.text()
	if err != nil {
		return protocol.MarkOfError(protocol.Unanswered("GET "+f.markKey, err))
	}
	return f.mark([]byte(text), of.mark.val != nil).Aged(serverTime(of.time.val))
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
