package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// stage is a server with a script, and the dialer of conversations with it. What is said
// here about kills and silence, real servers show in conversation_real_test.go.
type stage struct {
	*testing.T
	cs    *conversations
	start time.Time

	mu       sync.Mutex
	changed  chan struct{} // closed, and replaced, when anything below changes
	runID    string
	replID   string
	hung     bool  // nothing is read
	refuse   error // of dials
	askErr   error // of the server, to the identity
	denies   error // the identity, for good
	noID     bool
	killErr  error
	trip     time.Duration
	lastID   int64
	flows    []*stagedFlow // all that were opened
	open     int
	mostOpen int
	kills    []int64
	executed []string // values

	seen     []string
	lacked   []string
	write    *markWrite
	cutsLook bool // the connection breaks between a batch and the look behind it
	unready  bool // the guard wants the whole question first
	mark     mark
	writes   int
}

// stagedFlow is a connection to a stage.
type stagedFlow struct {
	s      *stage
	id     int64
	runID  string
	muted  bool // what is sent gets lost, and nothing is heard
	cut    bool // the other side has ended it
	late   bool // what is sent waits on the way, until it lands
	killed bool
	count  int64
	drips  bool // it is heard of, without an end
	closed chan struct{}
	once   sync.Once
}

func onStage(t *testing.T, h habits, test func(s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stage{T: t, start: time.Now(), changed: make(chan struct{}), runID: "a", replID: "r", trip: time.Millisecond}
		s.cs = newConversations(newSystemClock(), s, h)
		s.cs.watch(onlooker{twin: func() error { return nil }, evicted: func(string, int64) {}, saw: func(who sighting) *markWrite {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.seen = append(s.seen, fmt.Sprint(who.runID, " ", who.replID, " ", who.role, " ", who.mark.text, " ", who.err))
			w := s.write
			s.write = nil
			return w
		}, ready: func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return !s.unready
		}, lacks: func(lacks string, err error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if text := fmt.Sprint(lacks == noEnd, " ", err); !slices.Contains(s.lacked, text) {
				s.lacked = append(s.lacked, text)
			}
		}})
		test(s)
		s.cs.close()
		rest(time.Second)
		require.Zero(t, s.view().open, "a connection is left open")
	})
}

var (
	stageOwn  = habits{keep: 1, idle: 5 * time.Second}
	stageUser = habits{idle: 5 * time.Second, life: 8 * time.Second}
)

const (
	stagePatience = 100 * time.Millisecond
	stageBound    = 10 * time.Second
)

// now changes the stage.
func (s *stage) now(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *stage) elapsed() time.Duration { return time.Since(s.start) }

func (s *stage) dial(context.Context) (flow, error) {
	time.Sleep(s.trip)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse != nil {
		return nil, s.refuse
	}
	s.lastID++
	f := &stagedFlow{s: s, id: s.lastID, runID: s.runID, closed: make(chan struct{})}
	s.flows = append(s.flows, f)
	s.open++
	s.mostOpen = max(s.mostOpen, s.open)
	return f, nil
}

var errStageClosed, errStageCut = errors.New("use of closed connection"), errors.New("EOF")

// carry has the server run do, unless the connection ends or is muted.
func (f *stagedFlow) carry(do func()) error {
	s := f.s
	time.Sleep(s.trip / 2)
	for done := false; ; {
		s.mu.Lock()
		changed := s.changed
		switch {
		case f.isClosed():
			s.mu.Unlock()
			return errStageClosed
		case f.cut, f.killed, f.runID != s.runID:
			s.mu.Unlock()
			return errStageCut
		case f.muted || s.hung || f.late:
		case !done:
			do()
			done = true
			fallthrough
		default:
			s.mu.Unlock()
			time.Sleep(s.trip / 2)
			return nil
		}
		s.mu.Unlock()
		select {
		case <-changed:
		case <-f.closed:
		}
	}
}

func (f *stagedFlow) isClosed() bool {
	select {
	case <-f.closed:
		return true
	default:
		return false
	}
}

func (f *stagedFlow) exchange(batch []*call, want looks, left func()) (got said) {
	left()
	s := f.s
	err := f.carry(func() {
		for _, c := range batch {
			value := c.req.value
			s.executed = append(s.executed, value)
			c.ballot = ballot{val: "OK", sent: true}
			if strings.Contains(value, "READONLY") {
				c.ballot = ballot{err: serverError(value), sent: true}
			}
		}
		if want&lookMark != 0 {
			got.mark, got.broken = s.mark, s.cutsLook
		}
		if want&lookRole != 0 {
			got.role, got.roleOK = sighting{replID: s.replID, role: "master"}, true
		}
	})
	if err != nil {
		for _, c := range batch {
			c.ballot = ballot{err: err, sent: true}
		}
		return said{broken: true}
	}
	return got
}

// identity is what the server says of itself; the caller holds mu.
func (s *stage) identity(f *stagedFlow) (sighting, error) {
	switch {
	case s.askErr != nil:
		return sighting{}, s.askErr
	case s.denies != nil:
		return sighting{err: s.denies}, nil
	}
	who := sighting{runID: s.runID, replID: s.replID, role: "master", clientID: f.id, mark: s.mark}
	if s.noID {
		who.clientID, who.idErr = 0, serverError("NOPERM no client|id")
	}
	return who, nil
}

func (f *stagedFlow) ask() (who sighting, err error) {
	if broken := f.carry(func() { who, err = f.s.identity(f) }); broken != nil {
		return sighting{}, broken
	}
	return who, err
}

func (f *stagedFlow) write(*markWrite) (m mark, err error) {
	err = f.carry(func() {
		f.s.writes++
		f.s.mark = mark{state: markPresent, text: "written"}
		m = f.s.mark
	})
	return m, err
}

func (f *stagedFlow) kill(id int64) (err error) {
	broken := f.carry(func() {
		f.s.kills = append(f.s.kills, id)
		if err = f.s.killErr; err == nil {
			for _, o := range f.s.flows {
				o.killed = o.killed || o.id == id && o.runID == f.runID
			}
		}
	})
	return errors.Join(broken, err)
}

func (f *stagedFlow) alive() bool {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return !f.cut && !f.isClosed() && f.runID == f.s.runID
}

func (f *stagedFlow) heard() int64 {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if f.drips {
		f.count++
	}
	return f.count
}

func (f *stagedFlow) close() {
	f.once.Do(func() {
		f.s.mu.Lock()
		f.s.open--
		f.s.mu.Unlock()
		close(f.closed)
	})
}

// view is what is to be seen of a stage.
type view struct {
	open, writes           int
	flows                  []*stagedFlow
	kills                  []int64
	executed, seen, lacked []string
}

func (s *stage) view() view {
	s.mu.Lock()
	defer s.mu.Unlock()
	return view{
		s.open, s.writes, slices.Clone(s.flows), slices.Clone(s.kills),
		slices.Clone(s.executed), slices.Clone(s.seen), slices.Clone(s.lacked),
	}
}

// several opens some conversations.
func (s *stage) several() {
	s.now(func() { s.trip = 10 * time.Millisecond })
	var pending []<-chan outcome
	for range 8 {
		pending = append(pending, s.sending("1"))
	}
	for _, p := range pending {
		require.True(s, await1(p).ok())
	}
	rest(time.Second / 10)
	s.now(func() { s.trip = time.Millisecond })
}

// outcome is what came of a batch.
type outcome struct {
	calls   []*call
	settled bool
	at      time.Duration
}

func (o outcome) ok() bool { return o.settled && o.calls[0].err == nil }

func stagedCall(value string) *call {
	return &call{req: &request{op: opExtend, key: "key", value: value}}
}

// send exchanges a batch, and waits.
func (s *stage) send(values ...string) outcome { return await1(s.sending(values...)) }

// await1 waits for a batch, and for all that goes on beside it.
func await1(pending <-chan outcome) outcome {
	o := <-pending
	synctest.Wait()
	return o
}

// sets is send of what may create keys.
func (s *stage) sets(values ...string) outcome { return await1(s.exchanging(opAcquire, values)) }

func (s *stage) sending(values ...string) <-chan outcome { return s.exchanging(opExtend, values) }

func (s *stage) exchanging(o op, values []string) <-chan outcome {
	var calls []*call
	for _, v := range values {
		calls = append(calls, stagedCall(v))
		calls[len(calls)-1].req.op = o
	}
	done := make(chan outcome, 1)
	go func() {
		settled := s.cs.exchange(calls, stagePatience, stageBound, func() {})
		done <- outcome{calls, settled, s.elapsed()}
	}()
	return done
}

func (s *stage) each(f func(*stagedFlow)) func() {
	return func() {
		for _, o := range s.flows {
			f(o)
		}
	}
}

func mute(f *stagedFlow) { f.muted = true }

func TestConversationIsAskedBeforeTheFirstBatch(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		require.True(t, s.send("2").ok())
		require.Len(t, s.view().flows, 1)
		require.Equal(t, []string{"a r master  <nil>"}, s.view().seen)
		require.Equal(t, []string{"1", "2"}, s.view().executed)
	})
}

// S1: a server that is busy for the moment has no identity, and so no vote.
func TestNoIdentityNoVote(t *testing.T) {
	busy := serverError("BUSY Redis is busy running a script.")
	onStage(t, stageOwn, func(s *stage) {
		s.askErr = busy
		got := s.send("1")
		require.Equal(t, ballot{err: busy}, got.calls[0].ballot, "as not sent")
		require.True(t, got.settled)
		require.Empty(t, s.view().executed)
		require.Empty(t, s.view().seen)
		s.now(func() { s.askErr = nil })
		require.True(t, s.send("2").ok())
		require.Len(t, s.view().flows, 1, "the same connection is asked again")
		require.Equal(t, []string{"2"}, s.view().executed)
	})
}

func TestIdentityThatIsDeniedForGood(t *testing.T) {
	for _, h := range []habits{stageOwn, stageUser} {
		onStage(t, h, func(s *stage) {
			s.denies = serverError("NOPERM")
			require.True(t, s.send("1").ok(), "the vote counts")
			require.Equal(t, []string{"    NOPERM"}, s.view().seen)
			// Nobody knows whom to kill.
			s.now(s.each(mute))
			got := s.send("2")
			require.False(t, got.settled)
			require.Empty(t, s.view().kills)
		})
	}
}

func TestOverdueConversationIsReplacedAndKilled(t *testing.T) {
	for _, h := range []habits{stageOwn, stageUser} {
		onStage(t, h, func(s *stage) {
			require.True(t, s.send("1").ok())
			s.now(s.each(mute))
			sent := s.elapsed()
			got := s.send("2")
			require.True(t, got.settled)
			require.True(t, got.calls[0].sent)
			require.Error(t, got.calls[0].err)
			require.Equal(t, []int64{1}, s.view().kills)
			require.True(t, s.flows[0].killed)
			require.Less(t, got.at-sent, stagePatience+leastSilence+10*s.trip)
			require.GreaterOrEqual(t, got.at-sent, stagePatience+leastSilence)
			require.True(t, s.send("3").ok())
			require.Equal(t, []string{"1", "3"}, s.view().executed)
			require.Len(t, s.view().flows, 2, "the fresh one has taken its place")
		})
	}
}

// What is on its way when the kill is answered never lands.
func TestNothingLandsAfterItWasSettled(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.flows[0].late = true })
		require.True(t, s.send("2").settled)
		s.now(func() { s.flows[0].late = false })
		synctest.Wait()
		require.Equal(t, []string{"1"}, s.view().executed)
	})
}

func TestServerThatHangsIsLeftAlone(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.hung = true })
		pending := s.sending("2")
		rest(9 * time.Second)
		require.LessOrEqual(t, s.view().open, 2, "one fresh conversation at a time")
		require.LessOrEqual(t, len(s.view().flows), 8, "and not a new one all the time")
		require.Empty(t, s.view().kills)
		s.now(func() { s.hung = false })
		got := await1(pending)
		require.True(t, got.ok(), "the late answer is read")
		require.Empty(t, s.view().kills)
		require.Equal(t, []string{"1", "2"}, s.view().executed)
	})
}

func TestServerThatHangsForLongerThanItIsWaitedFor(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.hung = true })
		sent := s.elapsed()
		got := s.send("2")
		require.False(t, got.settled)
		require.True(t, got.calls[0].sent)
		require.Equal(t, stageBound+stagePatience, got.at-sent, "and as long for somebody to kill it")
		require.Empty(t, s.view().kills)
	})
}

func TestServerThatHangsFromTheStart(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		s.hung = true
		pending := s.sending("1")
		rest(5 * time.Second)
		require.Equal(t, 1, s.view().open)
		s.now(func() { s.hung = false })
		got := await1(pending)
		require.Equal(t, ballot{err: errTooLate}, got.calls[0].ballot, "nobody waits for it any more")
		require.True(t, got.settled)
		require.Empty(t, s.view().executed)
		require.True(t, s.send("2").ok())
	})
}

// Client ids start again with the process, so the same one may be an innocent's.
func TestOnlyTheSameProcessIsAskedToKill(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(s.each(mute))
		pending := s.sending("2")
		rest(stagePatience / 2)
		s.now(func() {
			s.flows[0].runID = "b" // or it would see its end
			s.runID, s.replID = "b", "q"
		})
		got := await1(pending)
		require.True(t, got.settled, "the process is gone with all that it had not read")
		require.Empty(t, s.view().kills)
		require.Equal(t, "b q master  <nil>", s.view().seen[1])
	})
}

func TestOnlyAnIntegerSettles(t *testing.T) {
	busy := serverError("BUSY Redis is busy running a script.")
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { mute(s.flows[0]); s.killErr = busy })
		pending := s.sending("2")
		rest(stagePatience + 40*time.Millisecond)
		require.Greater(t, len(s.view().kills), 1, "asked again")
		select {
		case <-pending:
			t.Fatal("returned while the old conversation may live")
		default:
		}
		s.now(func() { s.killErr = nil })
		require.True(t, await1(pending).settled)
	})
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { mute(s.flows[0]); s.killErr = busy })
		sent := s.elapsed()
		got := s.send("2")
		require.False(t, got.settled, "nobody waits for ever")
		require.Less(t, got.at-sent, stageBound+3*stagePatience)
		require.Empty(t, s.view().lacked)
		asked := len(s.view().kills)
		rest(time.Minute)
		require.Len(t, s.view().kills, asked, "and nobody asks while nothing goes on")
	})
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.flows[0].late = true; s.killErr = busy })
		require.False(t, s.send("2").settled)
		for range 20 { // it is busy for a second more
			require.True(t, s.send("3").ok(), "the fresh one is of use")
			rest(50 * time.Millisecond)
		}
		s.now(func() { s.killErr = nil })
		rest(maxBackoff)
		asked := len(s.view().kills)
		require.True(t, s.send("4").ok())
		rest(2 * s.trip)
		require.Len(t, s.view().kills, asked+1, "ended with the next that comes free")
		require.True(t, s.view().flows[0].killed)
		s.now(func() { s.flows[0].late = false })
		require.True(t, s.send("5").ok())
		require.NotContains(t, s.view().executed, "2")
		require.Len(t, s.view().kills, asked+1, "and no more")
	})
}

func TestKillThatIsDenied(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		s.killErr = serverError("NOPERM no client|kill")
		for i := range 3 {
			require.True(t, s.send("1").ok())
			s.now(s.each(mute))
			require.False(t, s.send("2").settled, i)
		}
		require.Len(t, s.view().kills, 1)
		require.Equal(t, []string{"true NOPERM no client|kill"}, s.view().lacked)
	})
	onStage(t, stageOwn, func(s *stage) {
		s.noID = true
		require.True(t, s.send("1").ok())
		require.Equal(t, []string{"true NOPERM no client|id"}, s.view().lacked)
		s.now(s.each(mute))
		require.False(t, s.send("2").settled)
		require.Empty(t, s.view().kills)
	})
}

func TestKilledAnswersAreIntegers(t *testing.T) {
	require.NoError(t, killed(int64(0), nil))
	require.NoError(t, killed(int64(1), nil))
	require.Error(t, killed("OK", nil))
	require.Error(t, killed(nil, nil))
	require.Error(t, killed(int64(1), serverError("BUSY")))
}

func TestConversationThatBreaks(t *testing.T) {
	for _, h := range []habits{stageOwn, stageUser} {
		onStage(t, h, func(s *stage) {
			require.True(t, s.send("1").ok())
			s.now(func() { s.hung = true })
			pending := s.sending("2")
			rest(10 * time.Millisecond)
			s.now(func() { s.hung, s.flows[0].cut = false, true })
			got := await1(pending)
			require.Equal(t, []int64{1}, s.view().kills, "before the batch returns")
			require.True(t, got.settled)
			require.ErrorIs(t, got.calls[0].err, errStageCut)
		})
	}
}

func TestConversationThatBreaksAndNobodyIsThere(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.hung = true })
		pending := s.sending("2")
		rest(10 * time.Millisecond)
		at := s.elapsed()
		s.now(func() { s.flows[0].cut, s.refuse = true, errRefused })
		got := await1(pending)
		require.False(t, got.settled)
		require.Equal(t, s.trip, got.at-at, "what is refused is refused")
	})
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.hung = true })
		pending := s.sending("2")
		rest(10 * time.Millisecond)
		at := s.elapsed()
		s.now(func() { s.flows[0].cut = true }) // and the fresh one is not answered
		got := await1(pending)
		require.False(t, got.settled)
		require.Equal(t, stagePatience, got.at-at, "a node timeout, and no longer")
	})
}

// A server that answers, if only by errors that pass, is asked as often as a release is repeated.
func TestServerThatIsBusyForLongIsAskedAgainSoon(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.hung = true })
		pending := s.sending("2")
		rest(10 * time.Millisecond)
		s.now(func() {
			s.hung, s.flows[0].cut, s.askErr = false, true, serverError("LOADING Redis is loading the dataset in memory")
		})
		rest(6 * time.Second)
		require.Empty(t, pending)
		at := s.elapsed()
		s.now(func() { s.askErr = nil })
		got := await1(pending)
		require.True(t, got.settled)
		require.LessOrEqual(t, got.at-at, maxBackoff+4*s.trip)
	})
}

// A large answer over a slow link is no silence.
func TestSlowConversationIsNotSilent(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.flows[0].late, s.flows[0].drips = true, true })
		pending := s.sending("2")
		rest(10 * stagePatience)
		require.Empty(t, s.view().kills)
		s.now(func() { s.flows[0].late = false })
		require.True(t, await1(pending).ok())
	})
}

func TestOneFreshConversationForAllThatAreOverdue(t *testing.T) {
	onStage(t, habits{keep: 4, idle: time.Second}, func(s *stage) {
		s.several()
		n := len(s.view().flows)
		require.Greater(t, n, 2)
		s.now(s.each(mute))
		var pending []<-chan outcome
		for range n {
			pending = append(pending, s.sending("2"))
		}
		for _, p := range pending {
			require.True(t, await1(p).settled)
		}
		require.Len(t, s.view().kills, n)
		require.Len(t, s.view().flows, n+1)
	})
}

func TestConversationThatEndedWhileIdleIsReplacedUnnoticed(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.flows[0].cut = true })
		require.True(t, s.send("2").ok())
		require.Equal(t, []string{"1", "2"}, s.view().executed)
		require.Empty(t, s.view().kills, "nothing was out on it")
	})
}

func TestHowLongConversationsAreKept(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		s.several()
		require.Greater(t, s.view().open, 1)
		rest(stageOwn.idle + time.Second)
		require.Equal(t, 1, s.view().open)
		rest(time.Hour)
		require.Equal(t, 1, s.view().open)
	})
	onStage(t, stageUser, func(s *stage) {
		require.True(t, s.send("1").ok())
		require.Equal(t, 1, s.view().open)
		rest(stageUser.idle + time.Millisecond)
		require.Zero(t, s.view().open)
		for range 20 {
			require.True(t, s.send("1").ok())
			rest(stageUser.life / 8)
		}
		require.Equal(t, 4, len(s.view().flows), "also one that is busy, now and then")
	})
}

// The name leads to another process by now: what the old one says late is no vote.
func TestAnswersOfAServerThatWasReplacedAreNoVotes(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.flows[0].late, s.flows[0].drips = true, true })
		pending := s.sending("2")
		rest(time.Millisecond)
		s.now(func() { s.runID = "b"; s.flows[0].runID = "b" }) // the connection lives on
		require.True(t, s.send("3").ok())
		s.now(func() { s.flows[0].late = false })
		got := await1(pending)
		require.ErrorIs(t, got.calls[0].err, errReplaced)
		require.True(t, got.calls[0].sent)
		require.True(t, got.settled)
		require.True(t, s.flows[0].isClosed())
	})
}

func TestServerThatSaysItIsAReplicaIsAskedAgain(t *testing.T) {
	for _, answer := range []string{
		"READONLY You can't write against a read only replica.",
		"ERR Error running script (call to f_d8f2): @user_script:26: @user_script: 26: -READONLY You can't write against a read only replica.", // before Redis 7
	} {
		onStage(t, stageOwn, func(s *stage) {
			require.True(t, s.send(answer).settled)
			s.now(func() { s.replID = "q" })
			require.True(t, s.send("1").ok())
			require.Len(t, s.view().flows, 2, "the name may lead elsewhere")
			require.Equal(t, []string{"a r master  <nil>", "a q master  <nil>"}, s.view().seen)
		})
	}
}

func TestRoleIsAskedForOnceASecond(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.replID = "q" })
		require.True(t, s.send("1").ok())
		require.Len(t, s.view().seen, 1)
		rest(roleEvery)
		require.True(t, s.send("1").ok())
		require.Equal(t, "a q master  <nil>", s.view().seen[1])
		rest(roleEvery)
		require.True(t, s.send("1").ok())
		require.Len(t, s.view().seen, 2, "nothing new")
	})
}

func TestMarkIsLookedAtBehindBatchesThatSet(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		s.mark = mark{state: markPresent, text: "m"}
		require.True(t, s.send("1").ok())
		require.Equal(t, []string{"a r master m <nil>"}, s.view().seen, "a batch that sets nothing")
		require.True(t, s.sets("2").ok())
		require.Equal(t, "a   m <nil>", s.view().seen[1], "another conversation may know of a newer replication id")
		s.now(func() { s.mark = mark{state: markAbsent} })
		require.True(t, s.sets("3").ok())
		require.Equal(t, "a    <nil>", s.view().seen[2])
		s.now(func() { s.write = &markWrite{} })
		require.True(t, s.sets("4").ok())
		require.Equal(t, 1, s.view().writes)
		require.Equal(t, "a   written <nil>", s.view().seen[4], "what is there then is told too, before the votes")
	})
}

func TestGrantWithoutALookBehindItIsNoVote(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.cutsLook = true })
		got := s.sets("2")
		require.ErrorIs(t, got.calls[0].err, errUnlooked)
		require.True(t, got.calls[0].sent)
		require.True(t, got.settled, "it was answered")
		require.True(t, s.view().flows[0].isClosed())
	})
}

// What the guard wants written must be there before the first SET.
func TestWholeQuestionGoesAheadWhereTheGuardWantsIt(t *testing.T) {
	for _, h := range []habits{stageOwn, stageUser} {
		onStage(t, h, func(s *stage) {
			s.unready = true
			require.True(t, s.send("1").ok())
			before := len(s.view().seen)
			require.True(t, s.sets("2").ok())
			require.Len(t, s.view().seen, before+2, "the question, and the look")
			s.now(func() { s.askErr = serverError("BUSY") })
			got := s.sets("3")
			require.EqualError(t, got.calls[0].err, "BUSY")
			require.False(t, got.calls[0].sent)
			require.NotContains(t, s.view().executed, "3")
		})
	}
}

func TestCloseEndsConversationsAtOnce(t *testing.T) {
	for _, h := range []habits{stageOwn, stageUser} {
		onStage(t, h, func(s *stage) {
			require.True(t, s.send("1").ok())
			s.now(func() { s.hung = true })
			first := s.sending("2")
			time.Sleep(3 * stagePatience) // the fresh one waits as well
			second := s.sending("3")
			rest(s.trip)
			at := s.elapsed()
			s.cs.close()
			require.Equal(t, at, (<-first).at)
			require.Equal(t, at, (<-second).at)
			got := s.send("4")
			require.Equal(t, ballot{err: errClosed}, got.calls[0].ballot)
		})
	}
}

func TestNoTimerIsLeftRunning(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		for range 100 {
			require.True(t, s.send("1").ok())
			rest(10 * time.Millisecond)
		}
		require.Equal(t, 1, slices.Index(s.view().executed, "1")+1)
	})
}
