package conn

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// Flow is one connection to one server, used by one goroutine at a time. Only Heard, Close and Reset
// may be called at any time, from any goroutine.
type Flow interface {
	// Exchange sends the calls in order, each once and never again, with the looks at
	// their places, and fills in the answer of each call: Said and Sent. It returns
	// when all answers were read or the connection broke or was closed.
	// Ask must have been answered before.
	Exchange(batch []*lane.Call, want Looks) Said
	// Ask is the whole identity. Its error means that nothing is known: the server, or
	// no conversation, answered so. What the server denies for good is in the report.
	Ask() (protocol.ServerReport, error)
	// Write writes the memory mark and tells what is there then.
	Write(*protocol.MarkWrite) (protocol.Mark, error)
	// Alive is false if the other side has ended the connection, as far as this can be
	// known without asking it.
	Alive() bool
	// Heard grows with what the other side says, and from call to call while something
	// waits to be read; it stays zero where that is not known. It does not block.
	Heard() int64
	// Close ends everything under way at once.
	Close()
	// Reset is Close, and over TCP what was not delivered yet is dropped: otherwise the system goes on sending
	// it for minutes, and a SET that nothing waits for any more may land then.
	Reset()
}

// Looks are the questions to a server that go along with a batch.
type Looks uint8

const (
	LookMark   Looks = 1 << iota // behind the last call: the memory mark
	LookServer                   // behind that: what else votes rest on, but for the trial
)

// Said is what a server says of itself beside a batch: the answers to the looks.
type Said struct {
	Mark   protocol.Mark          // to LookMark; MarkUnread with its error where it is denied
	Server *protocol.ServerReport // to LookServer, without the mark; nil: not asked, or no answer
	Broken bool                   // some look has no answer
}

// Dialer opens flows to one node.
type Dialer interface {
	// Dial returns within the dialer's own time limit, or when ctx ends.
	Dial(ctx context.Context) (Flow, error)
}

// Habits are how conversations are kept.
type Habits struct {
	Keep int           // how many stay open without work, however long
	Idle time.Duration // for how long the others do
	Life time.Duration // after so long another one takes the place of any; 0: never
}

// conversation is a flow of which it is known which server process answers: the identity, what is out on
// it, and by when that is overdue.
type conversation struct {
	flow Flow
	who  protocol.ServerReport // as told last, but for the mark

	bundle lane.Bundle // of the batch that it has

	// Conversations.Mu guards what follows.
	busy       bool
	over       bool  // closed by check
	agedAt     int64 // when another one is to take its place
	overdueAt  int64 // the longest timeout of its batch is over
	overAt     int64 // it is given up, whatever others say
	suspectAt  int64 // another one was answered, so this one is over if it is silent till then; 0: no
	heardThen  int64 // what it had heard when it became suspect
	answeredAt int64
	watch      tick.Alarm

	askedAt   tick.Instant // when its batch, or the question for its identity, was sent
	looksTurn bool         // the server is to be looked at along with the batch that it has
}

// taker waits for a conversation.
type taker struct {
	got chan *conversation // capacity 1; closed without one: see err
	err error
}

// Conversations is the wire of a lane: the conversations with one node.
//
// A batch has one of them to itself. When it is not answered in time, one fresh
// conversation is tried. If that is answered and the first one stays silent, the first is
// over, and is reset. A server that hangs answers on neither, so then nothing is over, and late answers
// are read. What a conversation that is over has sent may have been executed, or may still be: its calls
// have no answer.
type Conversations struct {
	clock  tick.Clock
	dialer Dialer
	habits Habits
	lane.Onlooker

	unbundled atomic.Bool // the server does not release several locks in one command for us

	ctx    context.Context // ends with close
	cancel context.CancelFunc

	Mu       sync.Mutex   // guards what follows
	runID    string       // of the process that told its identity last
	lookedAt tick.Instant // when what was told of the server last was asked for
	doubt    pause        // until what its votes rest on is asked for again; none: it is known
	refusal  pause        // until the server is asked again to serve us; none: it does
	pool
	redial
}

// pool is the conversations of one node, and the takers that wait for one.
type pool struct {
	idle   []*conversation // in the order of use
	out    []*conversation
	takers []*taker
	asked  int64 // so many takers there were
	expiry tick.Alarm
	closed bool
}

// redial is what the fresh conversations told by which one that is overdue is judged.
type redial struct {
	trying       bool          // one is on its way, see tryNew
	unidentified Flow          // one that has not told its identity, to be asked again
	patience     time.Duration // of the last batch
	freshSent    int64         // when the last one that was answered was asked; 0: never
	roundTrip    time.Duration // of that
}

const (
	// lookEvery is how old what is known of a server in use may be.
	lookEvery = time.Second
	// A conversation that is overdue stays silent for at least leastSilence after the
	// fresh one's answer before it is over: its own answer may be on its way, or wait for
	// a processor. See silence.
	leastSilence = 5 * time.Millisecond
	// A fresh conversation that is not answered is given up after FirstRedial, and the
	// next ones after twice as long each, up to LastRedial: a server that hangs must not
	// be left with many.
	FirstRedial = 250 * time.Millisecond
	LastRedial  = 4 * time.Second
)

var (
	errSlow     = errors.New("connecting took longer than the time for a node's answer")
	errReplaced = errors.New("answered by a server that another one has taken the place of")
	errUnlooked = errors.New("answered, but not whether the node still remembers what it grants")
	errOther    = errors.New("another process than the one that was asked answers over this connection")
	errNotReady = errors.New("not all that its votes rest on is known")
)

// NewConversations connects to nothing before the first batch.
func NewConversations(c tick.Clock, d Dialer, h Habits) *Conversations {
	cs := &Conversations{clock: c, dialer: d, habits: h}
	cs.ctx, cs.cancel = context.WithCancel(context.Background())
	cs.expiry = tick.Alarm{Clock: c, F: cs.expire}
	return cs
}

// Watch implements lane.Watcher.
func (cs *Conversations) Watch(o lane.Onlooker) { cs.Onlooker = o }

// Exchange implements lane.Wire.
func (cs *Conversations) Exchange(batch []*lane.Call, patience, bound time.Duration) {
	cv, err := cs.take(patience, bound)
	if err == nil {
		if err = cs.prepare(cv, batch); err != nil {
			cs.drop(cv)
		}
	}
	if err != nil {
		for _, c := range batch {
			c.Answer = protocol.Answer{Said: err}
		}
		return
	}
	if protocol.FailedTrial(cv.who.Err) {
		if batch = withoutSets(batch, cv.who.Err); len(batch) == 0 {
			cs.putBack(cv)
			return
		}
	}
	want := cs.wants(cv, batch)
	got := cs.exchange(cv, batch, want)
	answered, sent := Read(batch)
	switch good := cs.heed(cv, batch, want, &got); {
	case answered && !got.Broken && good:
		if err := movedOn(batch); err != nil {
			cs.refuses(err)
			cs.drop(cv)
			return
		}
		cs.putBack(cv)
	case answered || !sent:
		cs.drop(cv)
	default:
		cv.flow.Reset()
		cs.drop(cv)
	}
}

// exchange sends a batch over a conversation, and its releases in one command where the server does
// that, and has no shorter command for each.
func (cs *Conversations) exchange(cv *conversation, batch []*lane.Call, want Looks) Said {
	if cv.who.Native != protocol.NoNative || cs.unbundled.Load() {
		return cv.flow.Exchange(batch, want)
	}
	got := cv.flow.Exchange(cv.bundle.Pack(batch), want)
	if cv.bundle.Unpack() {
		cs.unbundled.Store(true)
	}
	return got
}

// prepare asks the whole question before a batch with a SET where not all that a vote rests on is known, or the
// node's memory mark is yet to be written: as a rule once for each node. What goes ahead in
// the same batch would be too late to write it. A node that does not tell is asked again after a pause; meanwhile
// its grants do not count. Where the server is another node's already, nothing
// is sent to it: it would refuse what that node has set, or say that what that node has deleted was
// not there. The next batch goes over a fresh conversation, which tells whether that is still so.
func (cs *Conversations) prepare(cv *conversation, batch []*lane.Call) error {
	if cs.Saw == nil {
		return nil
	}
	if looks(batch) && (cv.who.Err != nil || !cs.Ready()) && cs.mayAsk() {
		s, err := cv.flow.Ask()
		if err != nil {
			return err
		}
		cs.learn(cv, s)
		cv.looksTurn = cv.looksTurn && s.Err != nil
	}
	return cs.Duplicate()
}

// withoutSets is a batch without what would leave something there that may not be taken back.
func withoutSets(batch []*lane.Call, why error) (others []*lane.Call) {
	for _, c := range batch {
		if c.Req.Op.Sets() {
			c.Answer = protocol.Answer{Said: why}
		} else {
			others = append(others, c)
		}
	}
	return others
}

func looks(batch []*lane.Call) bool {
	return slices.ContainsFunc(batch, func(c *lane.Call) bool { return c.Req.Op.Looks() })
}

// Read reports whether all calls were answered, and whether any of the others was sent.
func Read(batch []*lane.Call) (answered, sent bool) {
	answered = true
	for _, c := range batch {
		if !c.Answered() {
			answered, sent = false, sent || c.Sent
		}
	}
	return answered, sent
}

// movedOn is the first of the answers that ends a conversation, see elsewhere; nil if none does.
func movedOn(batch []*lane.Call) error {
	for _, c := range batch {
		if err := c.Err(); elsewhere(err) {
			return err
		}
	}
	return nil
}

// elsewhere reports whether an answer says that the node's name may lead elsewhere by now.
func elsewhere(err error) bool {
	return protocol.ReadOnly(err) || err != nil && strings.HasPrefix(err.Error(), "MOVED")
}

// wants is what to ask along with a batch.
func (cs *Conversations) wants(cv *conversation, batch []*lane.Call) (want Looks) {
	if cs.Saw == nil {
		return 0
	}
	if looks(batch) {
		want |= LookMark
	}
	if cv.looksTurn && cv.who.Err == nil {
		want |= LookMark | LookServer
	}
	return want
}

// heed passes on what a server said of itself beside a batch. Where it is not the node any
// more, its answers are no votes; then it is false.
func (cs *Conversations) heed(cv *conversation, batch []*lane.Call, want Looks, got *Said) bool {
	if cs.replaced(cv) {
		void(batch, errReplaced)
		return false
	}
	if want&LookMark == 0 {
		return true
	}
	if got.Broken {
		// A grant says nothing without the look behind it.
		void(slices.DeleteFunc(slices.Clone(batch), func(c *lane.Call) bool { return !c.Req.Op.Sets() }), errUnlooked)
	}
	knew := cv.who.Err == nil
	// Another conversation may have been told of a new replication id since this one was.
	s := protocol.ServerReport{RunID: cv.who.RunID}
	if got.Server != nil {
		s = *got.Server
		cs.looked(cv, &s)
	}
	if err := cmp.Or(cv.who.Err, got.Mark.Err); err != nil {
		// Another conversation may be told more before these votes are counted.
		for _, c := range batch {
			c.Answer.Unsure = true
		}
		if knew && !got.Broken && err != errOther {
			cs.doubts(err)
		}
	}
	if knew && !got.Broken {
		s.Mark = got.Mark
		cs.tell(cv, s)
	}
	return true
}

// looked notes what the server was said to be behind a batch. Where that is another one than before, or is not told, the
// conversation asks anew.
func (cs *Conversations) looked(cv *conversation, s *protocol.ServerReport) {
	if s.Err != nil {
		cv.who.Err = s.Err // and the next batch of any conversation looks again
		return
	}
	other := s.RunID != cv.who.RunID
	if cv.who = *s; other {
		cv.who.Err = errOther
	}
	cs.identified(cv)
}

// identified notes which process answers over a conversation. Those with another one end.
func (cs *Conversations) identified(cv *conversation) {
	id := cv.who.RunID
	if id == "" {
		return
	}
	cs.Mu.Lock()
	cs.runID = id
	if cv.askedAt.Mono >= cs.lookedAt.Mono { // answers may overtake each other
		cs.lookedAt = cv.askedAt
	}
	others := cs.weed(func(o *conversation) bool { return o.who.RunID != id })
	cs.Mu.Unlock()
	for _, o := range others {
		o.flow.Close()
	}
}

// replaced reports whether another process has answered by the node's name since this one
// did.
func (cs *Conversations) replaced(cv *conversation) bool {
	cs.Mu.Lock()
	defer cs.Mu.Unlock()
	return cs.isReplaced(cv)
}

// isReplaced is replaced for a caller that holds mu.
func (cs *Conversations) isReplaced(cv *conversation) bool {
	return cs.runID != "" && cv.who.RunID != "" && cv.who.RunID != cs.runID
}

// void makes answers that are no votes what they are: requests that were sent, and may
// have been carried out by some server.
func void(batch []*lane.Call, why error) {
	for _, c := range batch {
		if c.Sent && c.Err() == nil { // an error is no vote anyway
			c.Answer = protocol.Answer{Said: why, Sent: true}
		}
	}
}

// learn notes which server answers over a conversation, and tells so.
func (cs *Conversations) learn(cv *conversation, s protocol.ServerReport) {
	cv.who = s
	cv.who.Mark = protocol.Mark{}
	cs.identified(cv)
	if cs.Saw == nil {
		return
	}
	cs.tell(cv, s)
	err := s.Err
	if err == nil && !cs.Ready() {
		err = errNotReady
	}
	cs.doubts(err)
}

// tell passes a report on, and writes the mark if that is wanted.
func (cs *Conversations) tell(cv *conversation, s protocol.ServerReport) {
	if cs.Saw == nil {
		return
	}
	// Others may write at the same time, each time at most once for each of us.
	for range 4 {
		now := cs.clock.Now()
		s.At = now.Mono + int64(now.Until(cv.askedAt)) // by either clock: one of them stands still while a machine sleeps
		w := cs.Saw(s)
		if w == nil {
			return
		}
		m, err := cv.flow.Write(w)
		if err != nil || cs.replaced(cv) { // of a process that is not the node any more there is no news
			return // and the next look says what is there
		}
		s = protocol.ServerReport{RunID: cv.who.RunID, Mark: m, Asked: true}
	}
}
