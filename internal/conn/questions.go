package conn

import (
	"errors"
	"io"
	"sync/atomic"
	"syscall"

	"github.com/quorumlock/redlock/internal/protocol"
)

// What a server is asked about itself, in one write.

// quirks is what the connections with one node have learned of what it does for us.
type quirks struct {
	name     string      // what connections are called where the user gave no name; empty: nothing
	shy      bool        // it is told nothing of us, not even what library this is
	noNative atomic.Bool // it does not compare and delete by a command of its own
	noDigest atomic.Bool // it does not run scripts by their digests
	noName   atomic.Bool // it does not let us name a connection
	calls    chan bool   // has one for each call of the user's code
}

func newQuirks(name string) *quirks { return &quirks{name: name, calls: make(chan bool, mostCalls)} }

// asked is a question whose answer is to be read.
type asked struct {
	what string
	to   *answer
}

// question asks one; hear reads its answer.
func (f *ownFlow) question(to *answer, what string, words ...string) {
	if f.in.broken != nil {
		to.err = f.in.broken
		return
	}
	f.out.ask(words...)
	f.asked = append(f.asked, asked{what, to})
}

// hear sends the questions and reads the answers to them.
func (f *ownFlow) hear() {
	if len(f.out.bytes) > 0 {
		f.flush(greetingRoom)
	}
	for _, a := range f.asked {
		a.to.val, a.to.err = f.in.reply()
		switch {
		case f.in.broken == nil:
			if !f.heard && protocol.IsServerError(a.to.err) && !protocol.Denied(a.to.err) {
				f.refused = a.to.err
			}
			f.heard = true
		case f.known || !hangsUp(f.in.broken) || isHangup(f.in.broken):
		case f.refused != nil:
			// It said why: a server that is full or in protected mode answers whatever comes first, and ends the
			// connection.
			f.in.broken = f.refused
			a.to.err = f.refused
		default:
			f.in.broken = &protocol.Hangup{At: a.what, Heard: f.heard, Err: f.in.broken}
			a.to.err = f.in.broken
		}
	}
	f.asked = f.asked[:0]
}

// hangsUp reports whether the other side has ended a connection.
func hangsUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

func isHangup(err error) bool { return errors.As(err, new(*protocol.Hangup)) }
