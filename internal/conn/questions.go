package conn

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// What a server is asked about itself, and what of that is not to be asked. Some proxies end a connection
// at a command that they do not know, without a word. All questions go in one write, so at which one it
// ended is not known where a proxy drops the answers that it has. The next connection asks one by one. A
// question at which the other side hung up twice in that way, after it had answered others, is left out
// from then on. A server that stops, or a broken link, does not look like that: it would have to end
// twice in a row between the same two questions.

// quirks is what the connections with one node have learned of how it is to be asked.
type quirks struct {
	clock    tick.Clock
	name     string      // what connections are called where the user gave no name; empty: nothing
	noNative atomic.Bool // it does not compare and delete by a command of its own for us
	noDigest atomic.Bool // it does not run scripts by their digests for us
	noName   atomic.Bool // it does not let us name a connection
	scripts  atomic.Bool // it has run one for us
	calls    chan bool   // has one for each call of the user's code

	mu        sync.Mutex // guards what follows
	careful   bool       // the next connection asks one by one
	hangups   map[string]int
	learnedAt int64
}

func newQuirks(c tick.Clock, name string) *quirks {
	return &quirks{clock: c, name: name, calls: make(chan bool, mostCalls), hangups: make(map[string]int)}
}

// mostHangups is after how many a question is not asked any more.
const mostHangups = 2

// needless is what a connection can do without.
var needless = map[string]bool{
	"PING": true, "first PING": true, "CLIENT SETNAME": true, "CLIENT SETINFO LIB-NAME": true, "CLIENT SETINFO LIB-VER": true,
	"INFO server": true, "INFO replication": true, "TIME": true, "PUBLISH": true,
}

// begin reports whether a new connection is to ask one by one. What was learned long ago is asked once
// more: the name may lead elsewhere by now.
func (q *quirks) begin() (careful bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.clock.Now().Mono-q.learnedAt > int64(userConn) {
		for what, n := range q.hangups {
			q.hangups[what] = min(n, mostHangups-1)
		}
	}
	return q.careful
}

func (q *quirks) avoids(what string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.hangups[what] >= mostHangups
}

// answered notes that a question was, on a connection that asks one by one.
func (q *quirks) answered(what string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.hangups, what)
}

// done notes that all questions were answered.
func (q *quirks) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.careful = false
}

// hungUp notes at which question a connection ended, and reports whether the next one asks less, or
// more carefully.
func (q *quirks) hungUp(at string, heard, careful bool) (again bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case !careful:
		again, q.careful = !q.careful, true
	case !heard:
		q.careful = false
	case needless[at]:
		q.hangups[at]++
		q.learnedAt, again = q.clock.Now().Mono, true
	}
	return again
}

// asked is a question whose answer is to be read.
type asked struct {
	what string
	to   *answer
}

// question asks one; hear reads its answer.
func (f *ownFlow) question(to *answer, what string, words ...string) {
	switch {
	case f.in.broken != nil:
		to.err = f.in.broken
		return
	case f.quirks.avoids(what):
		to.err = errors.New(what + " is not asked: the other side ended connections at it")
		return
	}
	f.out.ask(words...)
	f.asked = append(f.asked, asked{what, to})
	if f.careful {
		f.hear()
	}
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
			if f.heard = true; f.careful {
				f.quirks.answered(a.what)
			}
		case f.known || !hangsUp(f.in.broken) || isHangup(f.in.broken):
		case f.refused != nil:
			// It said why: a server that is full or in protected mode answers whatever comes first, and ends the
			// connection. That tells nothing of the question at which it did.
			f.in.broken = f.refused
			a.to.err = f.refused
		default:
			if f.careful && a.to == &f.hello.called {
				f.quirks.hungUp(a.what, f.heard, true) // once is enough: locks do not need it, and each end costs time
			}
			again := f.quirks.hungUp(a.what, f.heard, f.careful)
			f.in.broken = &protocol.Hangup{At: a.what, Heard: f.heard, Again: again, Err: f.in.broken}
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
