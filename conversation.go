package redlock

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"
)

// flow is one connection to one server, used by one goroutine at a time. Only heard and
// close may be called at any time, by anybody.
type flow interface {
	// exchange sends the calls in order, each once and never again, with the looks at
	// their places, and fills in the ballot of each call: val, err and sent. It returns
	// when all answers were read or the connection broke or was closed. left is as for a wire.
	exchange(batch []*call, want looks, left func()) said
	// ask is the whole identity. Its error means that nothing is known: the server, or
	// nobody, answered so. What the server denies for good is in the sighting.
	ask() (sighting, error)
	// write writes the memory mark and tells what is there then.
	write(*markWrite) (mark, error)
	// kill ends another connection to the same server. Nil: the server answered with an
	// integer, so nothing of that connection will be executed any more.
	kill(id int64) error
	// alive is false if the other side has ended the connection, as far as this can be
	// known without asking it.
	alive() bool
	// heard grows with what the other side says, and from call to call while something
	// waits to be read; it stays zero where that is not known. It does not block.
	heard() int64
	// close ends everything under way at once.
	close()
}

// looks are the questions to a server that go along with a batch.
type looks uint8

const (
	lookMark looks = 1 << iota // behind the last call: the memory mark
	lookRole                   // behind the last call: the role and replication id, and how many keys were evicted
)

// said is what a server says of itself beside a batch: the answers to the looks.
type said struct {
	mark   mark     // to lookMark; markUnread with its error where it is denied
	role   sighting // to lookRole: role and replID
	roleOK bool
	// evicted is how many keys the server has evicted since its start, to lookRole; -1: it does
	// not tell.
	evicted int64
	broken  bool // some look has no answer
}

// dialer opens flows to one node.
type dialer interface {
	// dial returns within the dialer's own time limit, or when ctx ends.
	dial(ctx context.Context) (flow, error)
}

// habits are how conversations are kept.
type habits struct {
	keep int           // how many stay open without work, however long
	idle time.Duration // for how long the others do
	life time.Duration // after so long another one takes the place of any; 0: never
}

// conversation is one connection to one server from its first byte to its last: its
// socket, the identity of who answers, and an end that is certain.
type conversation struct {
	flow flow
	who  sighting // as told last, but for the mark

	// conversations.mu guards what follows.
	busy       bool
	over       bool  // closed by check
	agedAt     int64 // when another one is to take its place
	sentAt     int64
	overdueAt  int64 // the longest timeout of its batch is over
	overAt     int64 // it is given up, whatever others say
	suspectAt  int64 // another one was answered, so this one is over if it is silent till then; 0: no
	heardThen  int64 // what it had heard when it became suspect
	answeredAt int64
	watch      alarm

	askedAt   instant // when its batch, or the question who it is, was sent
	rolesTurn bool    // the role is to be asked for along with the batch that it has
}

// taker waits for a conversation.
type taker struct {
	got     chan *conversation // capacity 1; closed without one: see err
	err     error
	settles bool // it needs one to end another by, which goes first
}

// conversations is the wire of a lane: the conversations with one node.
//
// A batch has one of them to itself. When it is not answered in time, one fresh
// conversation is tried. If that is answered and the first one stays silent, the first is
// over. A server that hangs answers on neither, so then nothing is over, and late answers
// are read. Whatever a conversation that is over has sent may still be executed, until
// the fresh one has killed it by its id; only then does its batch return.
type conversations struct {
	clock  clock
	dialer dialer
	habits habits
	onlooker

	ctx    context.Context // ends with close
	cancel context.CancelFunc

	mu        sync.Mutex
	idle      []*conversation // in the order of use
	out       []*conversation
	takers    []*taker
	asked     int64           // so many takers there were
	killing   int             // so many are used to end others, and free soon
	trying    bool            // a fresh conversation is on its way, see fresh
	spare     flow            // one that has not told who it is, to be asked again
	runID     string          // of the process that told last who it is
	patience  time.Duration   // of the last batch
	freshSent int64           // when the last fresh conversation that was answered was asked; 0: never
	roundTrip time.Duration   // of that
	roleAt    instant         // since when the role is as it was told last; what was told was asked for then
	noKill    bool            // it is denied
	busy      bool            // the last fresh conversation was answered by an error that passes
	undead    []*conversation // over, and perhaps not on the server: see linger
	undeadAt  int64           // when to try next to end these
	expiry    alarm
	closed    bool
}

const (
	// roleEvery is how old what is known of a node's role may be.
	roleEvery = time.Second
	// A conversation that is overdue stays silent for at least leastSilence after the
	// fresh one's answer before it is over: its own answer may be on its way, or wait for
	// a processor. See silence.
	leastSilence = 5 * time.Millisecond
	// A fresh conversation that nobody answers is given up after firstRedial, and the
	// next ones after twice as long each, up to lastRedial: a server that hangs must not
	// be left with many.
	firstRedial = 250 * time.Millisecond
	lastRedial  = 4 * time.Second
)

var (
	errReplaced = errors.New("answered by a server that another one has taken the place of")
	errUnlooked = errors.New("answered, but not whether the node still remembers what it grants")
)

const noEnd = "CLIENT ID or CLIENT KILL: what was sent over a connection that is lost may still arrive, and counts as over only after a timeout"

func newConversations(c clock, d dialer, h habits) *conversations {
	cs := &conversations{clock: c, dialer: d, habits: h, onlooker: onlooker{lacks: func(string, error) {}}}
	cs.ctx, cs.cancel = context.WithCancel(context.Background())
	cs.expiry = alarm{clock: c, f: cs.expire}
	return cs
}

// watch implements watcher.
func (cs *conversations) watch(o onlooker) { cs.onlooker = o }

// exchange implements wire. Settled means that nothing of the batch may be executed any
// more: all of it was answered or never sent, or its conversation is surely over.
func (cs *conversations) exchange(batch []*call, patience, bound time.Duration, left func()) (settled bool) {
	cv, err := cs.take(patience, bound, left)
	if err == nil {
		if err = cs.prepare(cv, batch, left); err != nil {
			cs.drop(cv)
		}
	}
	if err != nil {
		for _, c := range batch {
			c.ballot = ballot{err: err}
		}
		return true
	}
	want := cs.wants(cv, batch)
	got := cv.flow.exchange(batch, want, left)
	answered, sent := read(batch)
	switch good := cs.heed(cv, batch, want, &got); {
	case answered && !got.broken && good && !movedOn(batch):
		cs.putBack(cv)
		return true
	case answered || !sent:
		cs.drop(cv)
		return true
	default:
		cs.drop(cv)
		return cs.settle(cv, patience, bound)
	}
}

// prepare asks the whole question before a batch with a SET where the node's memory mark
// is not known, or is yet to be written: as a rule once for each node. What goes ahead in
// the same batch would be too late to write it. Where the server is another node's already, nothing
// is sent to it: it would refuse what that node has set, or say that what that node has deleted was
// not there. The next batch goes over a fresh conversation, which tells whether that is still so.
func (cs *conversations) prepare(cv *conversation, batch []*call, left func()) error {
	if cs.saw == nil {
		return nil
	}
	if setsKeys(batch) && !cs.ready() {
		left()
		s, err := cv.flow.ask()
		if err != nil {
			return err
		}
		cs.learn(cv, s)
	}
	return cs.twin()
}

func setsKeys(batch []*call) bool {
	return slices.ContainsFunc(batch, func(c *call) bool { return c.req.op.sets() })
}

// read reports whether all calls were answered, and whether any of the others was sent.
func read(batch []*call) (answered, sent bool) {
	answered = true
	for _, c := range batch {
		if !c.answered() {
			answered, sent = false, sent || c.sent
		}
	}
	return answered, sent
}

// movedOn reports whether one of the answers ends a conversation, see elsewhere.
func movedOn(batch []*call) bool {
	return slices.ContainsFunc(batch, func(c *call) bool { return elsewhere(c.err) })
}

// elsewhere reports whether an answer says that the node's name may lead elsewhere by now.
// go-redis gives a connection up for some of them, and repeats that answer on it for ever.
func elsewhere(err error) bool {
	return readOnly(err) || err != nil && strings.HasPrefix(err.Error(), "MOVED")
}

// wants is what to ask along with a batch.
func (cs *conversations) wants(cv *conversation, batch []*call) (want looks) {
	if cs.saw == nil {
		return 0
	}
	if setsKeys(batch) {
		want |= lookMark
	}
	if cv.rolesTurn && cv.who.replID != "" {
		want |= lookRole
	}
	return want
}

// heed passes on what a server said of itself beside a batch. Where it is not the node any
// more, its answers are no votes; then it is false.
func (cs *conversations) heed(cv *conversation, batch []*call, want looks, got *said) bool {
	if cs.replaced(cv) {
		void(batch, errReplaced)
		return false
	}
	if want&lookRole != 0 && !got.broken && got.evicted >= 0 && cv.who.runID != "" {
		cs.evicted(cv.who.runID, got.evicted)
	}
	if want&lookMark != 0 && got.broken {
		// A grant says nothing without the look behind it.
		void(slices.DeleteFunc(slices.Clone(batch), func(c *call) bool { return !c.req.op.sets() }), errUnlooked)
	}
	news := want&lookMark != 0 && !got.broken
	if got.roleOK {
		news = news || got.role.replID != cv.who.replID || got.role.role != cv.who.role
		cs.mu.Lock()
		cs.roleIsOf(cv.askedAt)
		cs.mu.Unlock()
		cv.who.replID, cv.who.formerID, cv.who.role = got.role.replID, got.role.formerID, got.role.role
	}
	if news && cs.saw != nil && cv.who.err == nil {
		s := cv.who
		s.mark, s.asked = got.mark, false
		if !got.roleOK {
			// Another conversation may have been told of a new replication id since.
			s.replID, s.formerID, s.role = "", "", ""
		}
		cs.tell(cv, s)
	}
	return true
}

// roleIsOf notes when a role that was told was asked for; the caller holds mu. Answers may
// overtake each other.
func (cs *conversations) roleIsOf(asked instant) {
	if asked.mono >= cs.roleAt.mono {
		cs.roleAt = asked
	}
}

// replaced reports whether another process has answered by the node's name since this one
// did.
func (cs *conversations) replaced(cv *conversation) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.isReplaced(cv)
}

// isReplaced is replaced for who holds mu.
func (cs *conversations) isReplaced(cv *conversation) bool {
	return cs.runID != "" && cv.who.runID != "" && cv.who.runID != cs.runID
}

// void makes answers that are no votes what they are: requests that were sent, and may
// have been carried out by somebody.
func void(batch []*call, why error) {
	for _, c := range batch {
		if c.sent && c.err == nil { // an error is no vote anyway
			c.ballot = ballot{err: why, sent: true}
		}
	}
}

// learn notes who answers over a conversation, and tells so.
func (cs *conversations) learn(cv *conversation, s sighting) {
	cv.who = s
	cv.who.mark = mark{}
	var others []*conversation
	cs.mu.Lock()
	if s.runID != "" {
		cs.runID = s.runID
		cs.roleIsOf(cv.askedAt)
		cs.idle = slices.DeleteFunc(cs.idle, func(o *conversation) bool {
			other := o.who.runID != s.runID
			if other {
				others = append(others, o)
			}
			return other
		})
	}
	cs.mu.Unlock()
	for _, o := range others {
		o.flow.close()
	}
	if s.idErr != nil {
		cs.lacks(noEnd, s.idErr)
	}
	cs.tell(cv, s)
}

// tell passes a sighting on, and writes the mark if that is wanted.
func (cs *conversations) tell(cv *conversation, s sighting) {
	if cs.saw == nil {
		return
	}
	// Others may write at the same time, each time at most once for each of us.
	for range 4 {
		w := cs.saw(s)
		if w == nil {
			return
		}
		m, err := cv.flow.write(w)
		if err != nil {
			return // and the next look says what is there
		}
		s = sighting{runID: cv.who.runID, mark: m, asked: true}
	}
}
