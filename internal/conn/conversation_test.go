package conn_test

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

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/guard"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/lanetest"
	"github.com/quorumlock/redlock/internal/tick"
)

// stage is a server with a script, and the dialer of conversations with it. What is said
// here about silence and resets, real servers show in conversation_real_test.go.
type stage struct {
	*testing.T
	cs    *conn.Conversations
	start time.Time
	tick.System

	mu       sync.Mutex
	changed  chan struct{} // closed, and replaced, when anything below changes
	runID    string
	replID   string
	hung     bool  // nothing is read
	refuse   error // of dials
	askErr   error // of the server, to the identity
	denies   error // what its votes rest on
	lookErr  error // that, behind batches
	asked    int
	trip     time.Duration
	lastID   int64
	flows    []*stagedFlow // all that were opened
	open     int
	mostOpen int
	executed []string // values

	seen     []string
	askedAt  []int64       // as told with what was seen
	slept    time.Duration // by our machine
	write    *protocol.MarkWrite
	cutsLook bool // the connection breaks between a batch and the look behind it
	unready  bool // the guard wants the whole question first
	mark     protocol.Mark
	writes   int

	native    protocol.NativeDelete
	releaseAs string // the value of releasing
}

// stagedFlow is a connection to a stage.
type stagedFlow struct {
	s      *stage
	id     int64
	runID  string
	muted  bool // what is sent gets lost, and nothing is heard
	cut    bool // the other side has ended it
	late   bool // what is sent waits on the way, until it lands
	reset  bool
	count  int64
	drips  bool // it is heard of, without an end
	less   bool // what its votes rest on is not told over it
	ran    []string
	closed chan struct{}
	once   sync.Once
}

func onStage(t *testing.T, h conn.Habits, test func(s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stage{T: t, start: time.Now(), System: tick.NewSystem(), changed: make(chan struct{}), runID: "a", replID: "r", trip: time.Millisecond}
		s.cs = conn.NewConversations(s, s, h)
		s.cs.Watch(lane.Onlooker{Duplicate: func() error { return nil }, Saw: func(who protocol.ServerReport) *protocol.MarkWrite {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.seen = append(s.seen, fmt.Sprint(who.RunID, " ", who.ReplID, " ", who.Role, " ", who.Mark.Text, " ", who.Err))
			s.askedAt = append(s.askedAt, who.At)
			w := s.write
			s.write = nil
			return w
		}, Ready: func() bool {
			s.mu.Lock()
			defer s.mu.Unlock()
			return !s.unready
		}})
		test(s)
		s.cs.Close()
		lanetest.Rest(time.Second)
		require.Zero(t, s.view().open, "a connection is left open")
	})
}

var (
	stageOwn  = conn.Habits{Keep: 1, Idle: 5 * time.Second}
	stageUser = conn.Habits{Idle: 5 * time.Second, Life: 8 * time.Second}
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

// Now is that of a machine that may have slept.
func (s *stage) Now() tick.Instant {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := s.System.Now()
	i.Wall += int64(s.slept)
	return i
}

func (s *stage) elapsed() time.Duration { return time.Since(s.start) }

func (s *stage) Dial(context.Context) (conn.Flow, error) {
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
		case f.cut, f.runID != s.runID:
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

func (f *stagedFlow) Exchange(batch []*lane.Call, want conn.Looks) (got conn.Said) {
	s := f.s
	err := f.carry(func() {
		for _, c := range batch {
			value := c.Req.Value
			s.executed = append(s.executed, value)
			f.ran = append(f.ran, value)
			c.Answer = protocol.Answer{Said: "OK", Sent: true}
			if strings.Contains(value, "READONLY") {
				c.Answer = protocol.Answer{Said: lanetest.ServerError(value), Sent: true}
			}
		}
		if want&conn.LookMark != 0 {
			if got.Mark, got.Broken = s.mark, s.cutsLook; f.less {
				got.Mark = protocol.MarkOfError(errLess)
			}
		}
		if want&conn.LookServer != 0 {
			if got.Server = (&protocol.ServerReport{RunID: s.runID, ReplID: s.replID, Role: "master"}); s.lookErr != nil {
				got.Server = &protocol.ServerReport{Err: s.lookErr}
			}
		}
	})
	if err != nil {
		for _, c := range batch {
			c.Answer = protocol.Answer{Said: err, Sent: true}
		}
		return conn.Said{Broken: true}
	}
	return got
}

// identity is what the server says of itself; the caller holds mu.
func (s *stage) identity(f *stagedFlow) (protocol.ServerReport, error) {
	s.asked++
	switch {
	case s.askErr != nil:
		return protocol.ServerReport{}, s.askErr
	case s.denies != nil:
		return protocol.ServerReport{Err: s.denies}, nil
	case f.less:
		return protocol.ServerReport{Err: errLess}, nil
	}
	who := protocol.ServerReport{RunID: s.runID, ReplID: s.replID, Role: "master", Mark: s.mark, Native: s.native}
	return who, nil
}

func (f *stagedFlow) Ask() (who protocol.ServerReport, err error) {
	if broken := f.carry(func() { who, err = f.s.identity(f) }); broken != nil {
		return protocol.ServerReport{}, broken
	}
	return who, err
}

func (f *stagedFlow) Write(*protocol.MarkWrite) (m protocol.Mark, err error) {
	err = f.carry(func() {
		f.s.writes++
		f.s.mark = protocol.Mark{State: protocol.MarkPresent, Text: "written"}
		m = f.s.mark
	})
	return m, err
}

func (f *stagedFlow) Alive() bool {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	return !f.cut && !f.isClosed() && f.runID == f.s.runID
}

func (f *stagedFlow) Heard() int64 {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	if f.drips {
		f.count++
	}
	return f.count
}

func (f *stagedFlow) Reset() {
	f.s.mu.Lock()
	f.reset = f.reset || !f.isClosed() // what is closed can be reset no more
	f.s.mu.Unlock()
	f.Close()
}

func (f *stagedFlow) Close() {
	f.once.Do(func() {
		f.s.mu.Lock()
		f.s.open--
		f.s.mu.Unlock()
		close(f.closed)
	})
}

// view is what is to be seen of a stage.
type view struct {
	open, writes   int
	flows          []*stagedFlow
	executed, seen []string
}

func (s *stage) view() view {
	s.mu.Lock()
	defer s.mu.Unlock()
	return view{
		s.open, s.writes, slices.Clone(s.flows), slices.Clone(s.executed), slices.Clone(s.seen),
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
	lanetest.Rest(time.Second / 10)
	s.now(func() { s.trip = time.Millisecond })
}

// outcome is what came of a batch.
type outcome struct {
	calls []*lane.Call
	at    time.Duration
}

func (o outcome) ok() bool { return o.calls[0].Err() == nil }

// lost reports whether a batch was sent, and has no answer.
func (o outcome) lost() bool { return o.calls[0].Sent && !o.calls[0].Answered() }

func stagedCall(value string) *lane.Call {
	return &lane.Call{Req: &protocol.Request{Op: protocol.OpExtend, Key: "key", Value: value}}
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
func (s *stage) sets(values ...string) outcome {
	return await1(s.exchanging(protocol.OpAcquire, values))
}

func (s *stage) sending(values ...string) <-chan outcome {
	return s.exchanging(protocol.OpExtend, values)
}

func (s *stage) exchanging(o protocol.Op, values []string) <-chan outcome {
	var calls []*lane.Call
	for _, v := range values {
		calls = append(calls, stagedCall(v))
		calls[len(calls)-1].Req.Op = o
	}
	done := make(chan outcome, 1)
	go func() {
		s.cs.Exchange(calls, stagePatience, stageBound)
		done <- outcome{calls, s.elapsed()}
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
	busy := lanetest.ServerError("BUSY Redis is busy running a script.")
	onStage(t, stageOwn, func(s *stage) {
		s.askErr = busy
		got := s.send("1")
		require.Equal(t, protocol.Answer{Said: busy}, got.calls[0].Answer, "as not sent")
		require.Empty(t, s.view().executed)
		require.Empty(t, s.view().seen)
		s.now(func() { s.askErr = nil })
		lanetest.Rest(lane.MinBackoff)
		require.True(t, s.send("2").ok())
		require.Len(t, s.view().flows, 1, "the same connection is asked again")
		require.Equal(t, []string{"2"}, s.view().executed)
	})
}

func TestIdentityThatIsDeniedForGood(t *testing.T) {
	for _, h := range []conn.Habits{stageOwn, stageUser} {
		onStage(t, h, func(s *stage) {
			s.denies = lanetest.ServerError("NOPERM")
			require.True(t, s.send("1").ok(), "the vote counts")
			require.Equal(t, []string{"    NOPERM"}, s.view().seen)
		})
	}
}

func TestOverdueConversationIsReplacedAndReset(t *testing.T) {
	for _, h := range []conn.Habits{stageOwn, stageUser} {
		onStage(t, h, func(s *stage) {
			require.True(t, s.send("1").ok())
			s.now(s.each(mute))
			sent := s.elapsed()
			got := s.send("2")
			require.True(t, got.calls[0].Sent)
			require.Error(t, got.calls[0].Err())
			require.True(t, s.flows[0].reset)
			require.Less(t, got.at-sent, stagePatience+conn.LeastSilence+10*s.trip)
			require.GreaterOrEqual(t, got.at-sent, stagePatience+conn.LeastSilence)
			require.True(t, s.send("3").ok())
			require.Equal(t, []string{"1", "3"}, s.view().executed)
			require.Len(t, s.view().flows, 2, "the fresh one has taken its place")
		})
	}
}

func TestServerThatHangsIsLeftAlone(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.hung = true })
		pending := s.sending("2")
		lanetest.Rest(9 * time.Second)
		require.LessOrEqual(t, s.view().open, 2, "one fresh conversation at a time")
		require.LessOrEqual(t, len(s.view().flows), 8, "and not a new one all the time")
		s.now(func() { s.hung = false })
		got := await1(pending)
		require.True(t, got.ok(), "the late answer is read")
		require.Equal(t, []string{"1", "2"}, s.view().executed)
	})
}

// What was sent to a server that hangs may be lost on the way as well, as in a short cut.
func TestServerThatHangsNeverGetsTheBatch(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.hung = true; mute(s.flows[0]) })
		pending := s.sending("2")
		lanetest.Rest(stageBound / 2)
		woke := s.elapsed()
		s.now(func() { s.hung = false })
		got := await1(pending)
		require.True(t, got.lost())
		require.True(t, s.flows[0].reset)
		require.Less(t, got.at-woke, 2*stagePatience, "however long the server hung")
	})
}

func TestServerThatHangsForLongerThanItIsWaitedFor(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.hung = true })
		sent := s.elapsed()
		got := s.send("2")
		require.True(t, got.lost())
		require.Equal(t, stageBound, got.at-sent)
		require.True(t, s.flows[0].reset)
	})
}

func TestServerThatHangsFromTheStart(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		s.hung = true
		pending := s.sending("1")
		lanetest.Rest(5 * time.Second)
		require.Equal(t, 1, s.view().open)
		s.now(func() { s.hung = false })
		got := await1(pending)
		require.Equal(t, protocol.Answer{Said: conn.ErrSlow}, got.calls[0].Answer, "nobody waits for it any more")
		require.Empty(t, s.view().executed)
		require.True(t, s.send("2").ok())
	})
}

// The node's name leads to another process, and the connection to the one before lives on.
func TestSilenceOfAProcessThatWasReplaced(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(s.each(mute))
		pending := s.sending("2")
		lanetest.Rest(stagePatience / 2)
		s.now(func() {
			s.flows[0].runID = "b" // or it would see its end
			s.runID, s.replID = "b", "q"
		})
		got := await1(pending)
		require.True(t, got.lost())
		require.Equal(t, "b q master  <nil>", s.view().seen[1])
	})
}

func TestConversationThatBreaks(t *testing.T) {
	for _, h := range []conn.Habits{stageOwn, stageUser} {
		onStage(t, h, func(s *stage) {
			require.True(t, s.send("1").ok())
			s.now(func() { s.hung = true })
			pending := s.sending("2")
			lanetest.Rest(10 * time.Millisecond)
			s.now(func() { s.hung, s.flows[0].cut = false, true })
			got := await1(pending)
			require.True(t, s.flows[0].reset)
			require.ErrorIs(t, got.calls[0].Err(), errStageCut)
		})
	}
}

// A server that answers, if only by errors that pass, is asked as often as a release is repeated.
func TestServerThatIsBusyForLongIsAskedAgainSoon(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() {
			s.each(mute)()
			s.askErr = lanetest.ServerError("LOADING Redis is loading the dataset in memory")
		})
		pending := s.sending("2")
		lanetest.Rest(6 * time.Second)
		require.Empty(t, pending)
		at := s.elapsed()
		s.now(func() { s.askErr = nil })
		got := await1(pending)
		require.True(t, got.lost())
		require.LessOrEqual(t, got.at-at, conn.MostPause+conn.LeastSilence+4*s.trip)
	})
}

// A large answer over a slow link is no silence.
func TestSlowConversationIsNotSilent(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.flows[0].late, s.flows[0].drips = true, true })
		pending := s.sending("2")
		lanetest.Rest(10 * stagePatience)
		s.now(func() { s.flows[0].late = false })
		require.True(t, await1(pending).ok())
	})
}

func TestOneFreshConversationForAllThatAreOverdue(t *testing.T) {
	onStage(t, conn.Habits{Keep: 4, Idle: time.Second}, func(s *stage) {
		s.several()
		n := len(s.view().flows)
		require.Greater(t, n, 2)
		s.now(s.each(mute))
		var pending []<-chan outcome
		for range n {
			pending = append(pending, s.sending("2"))
		}
		for _, p := range pending {
			require.True(t, await1(p).lost())
		}
		require.Len(t, s.view().flows, n+1)
	})
}

// What made one silent may have made others so that lay idle meanwhile. Each would cost its batch a timeout.
func TestConversationsThatLayIdleEndWithTheOneThatIsSilent(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		s.several()
		require.Greater(t, s.view().open, 1)
		s.now(s.each(mute))
		require.True(t, s.send("2").lost())
		require.Equal(t, 1, s.view().open, "the fresh one")
		one, another := s.sending("3"), s.sending("3")
		require.True(t, await1(one).ok())
		require.True(t, await1(another).ok())
	})
}

func TestConversationThatEndedWhileIdleIsReplacedUnnoticed(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.flows[0].cut = true })
		require.True(t, s.send("2").ok())
		require.Equal(t, []string{"1", "2"}, s.view().executed)
	})
}

func TestHowLongConversationsAreKept(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		s.several()
		require.Greater(t, s.view().open, 1)
		lanetest.Rest(stageOwn.Idle + time.Second)
		require.Equal(t, 1, s.view().open)
		lanetest.Rest(time.Hour)
		require.Equal(t, 1, s.view().open)
	})
	onStage(t, stageUser, func(s *stage) {
		require.True(t, s.send("1").ok())
		require.Equal(t, 1, s.view().open)
		lanetest.Rest(stageUser.Idle + time.Millisecond)
		require.Zero(t, s.view().open)
		for range 20 {
			require.True(t, s.send("1").ok())
			lanetest.Rest(stageUser.Life / 8)
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
		lanetest.Rest(time.Millisecond)
		s.now(func() { s.runID = "b"; s.flows[0].runID = "b" }) // the connection lives on
		require.True(t, s.send("3").ok())
		s.now(func() { s.flows[0].late = false })
		got := await1(pending)
		require.ErrorIs(t, got.calls[0].Err(), conn.ErrReplaced)
		require.True(t, got.calls[0].Sent)
		require.True(t, s.flows[0].isClosed())
	})
}

func TestServerThatSaysItIsAReplicaIsAskedAgain(t *testing.T) {
	for _, answer := range []string{
		"READONLY You can't write against a read only replica.",
		"ERR Error running script (call to f_d8f2): @user_script:26: @user_script: 26: -READONLY You can't write against a read only replica.", // before Redis 7
	} {
		onStage(t, stageOwn, func(s *stage) {
			require.False(t, s.send(answer).lost())
			s.now(func() { s.replID = "q" })
			got := s.send("0")
			require.Equal(t, protocol.Answer{Said: lanetest.ServerError(answer)}, got.calls[0].Answer, "as not sent")
			require.Len(t, s.view().flows, 1, "not at once")
			lanetest.Rest(lane.MinBackoff)
			require.True(t, s.send("1").ok())
			require.Len(t, s.view().flows, 2, "the name may lead elsewhere")
			require.Equal(t, []string{"a r master  <nil>", "a q master  <nil>"}, s.view().seen)
		})
	}
}

func TestServerIsLookedAtOnceASecond(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.replID = "q" })
		require.True(t, s.send("1").ok())
		require.Len(t, s.view().seen, 1)
		lanetest.Rest(conn.LookEvery)
		require.True(t, s.send("1").ok())
		require.Equal(t, "a q master  <nil>", s.view().seen[1])
		require.True(t, s.send("1").ok())
		require.Len(t, s.view().seen, 2)
	})
}

func TestMarkIsLookedAtBehindBatchesThatSet(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		s.mark = protocol.Mark{State: protocol.MarkPresent, Text: "m"}
		require.True(t, s.send("1").ok())
		require.Equal(t, []string{"a r master m <nil>"}, s.view().seen, "a batch that sets nothing")
		require.True(t, s.sets("2").ok())
		require.Equal(t, "a   m <nil>", s.view().seen[1], "another conversation may know of a newer replication id")
		s.now(func() { s.mark = protocol.Mark{State: protocol.MarkAbsent} })
		require.True(t, s.sets("3").ok())
		require.Equal(t, "a    <nil>", s.view().seen[2])
		s.now(func() { s.write = &protocol.MarkWrite{} })
		require.True(t, s.sets("4").ok())
		require.Equal(t, 1, s.view().writes)
		require.Equal(t, "a   written <nil>", s.view().seen[4], "what is there then is told too, before the votes")
	})
}

// What was told before our machine slept is old when it is read, although the monotonic clock stood still.
func TestAnswerThatWaitedWhileOurMachineSleptIsOld(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		sleeps := func() {
			time.Sleep(s.trip / 2)
			s.now(func() { s.slept += time.Hour })
		}
		pending := s.sending("1")
		time.Sleep(s.trip)
		sleeps()
		require.True(t, await1(pending).ok())
		s.now(func() { s.write = &protocol.MarkWrite{} })
		pending = s.exchanging(protocol.OpAcquire, []string{"2"})
		time.Sleep(s.trip)
		sleeps()
		require.True(t, await1(pending).ok())
		hour := int64(time.Hour)
		require.Equal(t, []int64{int64(s.trip) - hour, int64(2 * s.trip), int64(3 * s.trip), int64(3*s.trip) - hour}, s.askedAt)
	})
}

func TestGrantWithoutALookBehindItIsNoVote(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		s.now(func() { s.cutsLook = true })
		got := s.sets("2")
		require.ErrorIs(t, got.calls[0].Err(), conn.ErrUnlooked)
		require.True(t, got.calls[0].Sent)
		require.True(t, s.view().flows[0].isClosed())
	})
}

// What the guard wants written must be there before the first SET.
func TestWholeQuestionGoesAheadWhereTheGuardWantsIt(t *testing.T) {
	for _, h := range []conn.Habits{stageOwn, stageUser} {
		onStage(t, h, func(s *stage) {
			s.unready = true
			require.True(t, s.send("1").ok())
			lanetest.Rest(lane.MinBackoff)
			before := len(s.view().seen)
			require.True(t, s.sets("2").ok())
			require.Len(t, s.view().seen, before+2, "the question, and the look")
			lanetest.Rest(lane.MinBackoff)
			s.now(func() { s.askErr = lanetest.ServerError("BUSY") })
			got := s.sets("3")
			require.EqualError(t, got.calls[0].Err(), "BUSY")
			require.False(t, got.calls[0].Sent)
			require.NotContains(t, s.view().executed, "3")
		})
	}
}

// asks counts how often a server was asked for all that its votes rest on.
func (s *stage) asks() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked
}

// A node that does not tell what its votes rest on is asked again after pauses that grow with the age of the trouble.
// Its grants do not count meanwhile, and everything else goes on.
func TestNodeThatDoesNotTellIsAskedAgain(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		s.denies = lanetest.ServerError("ERR max requests limit exceeded")
		require.True(t, s.sets("1").calls[0].Unsure)
		require.Equal(t, 1, s.asks())
		require.True(t, s.sets("2").calls[0].Unsure)
		require.Equal(t, 1, s.asks(), "not with each batch")
		require.True(t, s.send("3").ok(), "what sets nothing")
		began := s.elapsed()
		for s.elapsed()-began < 300*time.Millisecond {
			require.True(t, s.sets("4").calls[0].Unsure)
		}
		require.Less(t, s.asks(), 40)
		require.Greater(t, s.asks(), 8)
		s.now(func() { s.denies = nil })
		ended := s.elapsed()
		for s.sets("5").calls[0].Unsure {
			require.Less(t, s.elapsed()-ended, 100*time.Millisecond)
		}
		asks := s.asks()
		require.False(t, s.sets("6").calls[0].Unsure)
		require.Equal(t, asks, s.asks())
		require.Len(t, s.view().flows, 1)
	})
}

// The look of each second asks for all that votes rest on. An error in it is no vote, and has the server asked anew.
func TestLookThatErrs(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.True(t, s.send("1").ok())
		lanetest.Rest(conn.LookEvery)
		s.now(func() { s.lookErr = lanetest.ServerError("ERR x") })
		require.True(t, s.sets("2").calls[0].Unsure)
		seen := s.view().seen
		require.Equal(t, "    ERR x", seen[len(seen)-1])
		require.Equal(t, 1, s.asks())
		require.True(t, s.sets("3").calls[0].Unsure, "in the pause")
		lanetest.Rest(lane.MinBackoff)
		s.now(func() { s.lookErr = nil })
		require.False(t, s.sets("4").calls[0].Unsure)
		require.Equal(t, 2, s.asks())

		lanetest.Rest(time.Minute)
		s.now(func() { s.lookErr = lanetest.ServerError("ERR x") })
		require.True(t, s.sets("5").calls[0].Unsure)
		lanetest.Rest(lane.MinBackoff)
		require.False(t, s.sets("6").calls[0].Unsure, "the next trouble begins anew")
	})
}

// Behind a proxy a conversation may outlive its server.
func TestAnotherServerOverTheSameConversation(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		require.False(t, s.sets("1").calls[0].Unsure)
		s.now(func() { s.runID, s.replID, s.flows[0].runID = "b", "q", "b" })
		require.False(t, s.sets("2").calls[0].Unsure, "not noticed within a second")
		lanetest.Rest(conn.LookEvery)
		require.True(t, s.sets("3").calls[0].Unsure, "which of the two granted it?")
		seen := s.view().seen
		require.Equal(t, "b q master  <nil>", seen[len(seen)-1])
		require.Equal(t, 1, s.asks())
		require.False(t, s.sets("4").calls[0].Unsure)
		require.Equal(t, 2, s.asks(), "what it does for us is tried, too")
		require.Len(t, s.view().flows, 1)
	})
}

const errLess = lanetest.ServerError("ERR upstream failure")

// Of several conversations at a time some are told less than others. What they granted is no vote, whatever the others
// are told before it is counted.
func TestVotesOfConversationsThatWereToldLess(t *testing.T) {
	onStage(t, conn.Habits{Keep: 4, Idle: time.Hour}, func(s *stage) {
		s.mark = protocol.ReadMark("id 1 later a r 0 0", true, time.Hour)
		g := guard.New([]string{"node"}, 0, s)
		s.cs.Watch(lane.Onlooker{
			Duplicate: func() error { return nil }, Ready: func() bool { return g.Ready(0) },
			Saw: func(r protocol.ServerReport) *protocol.MarkWrite { return g.Saw(0, r) },
		})
		s.several()
		flows := s.view().flows
		require.Greater(t, len(flows), 2)
		s.now(func() {
			for i, f := range flows {
				f.less = i%2 == 0
			}
		})
		unsure := make(map[string]bool)
		var mu sync.Mutex
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				for j := range 100 {
					value := fmt.Sprint("v", i, ".", j)
					got := <-s.exchanging(protocol.OpAcquire, []string{value})
					mu.Lock()
					unsure[value] = got.calls[0].Unsure
					mu.Unlock()
				}
			})
		}
		all.Wait()
		count := make(map[bool]int)
		for _, f := range s.view().flows {
			for _, value := range f.ran {
				if was, set := unsure[value]; set {
					require.Equal(t, f.less, was)
					count[was]++
				}
			}
		}
		require.Positive(t, count[true])
		require.Positive(t, count[false])
	})
}

// A server that does not serve us is dialled after pauses that are remembered; meanwhile calls get its words.
func TestServerThatRefusesIsNotDialledByEachBatch(t *testing.T) {
	for _, text := range []string{"WRONGPASS", "ERR max number of clients reached"} {
		onStage(t, stageOwn, func(s *stage) {
			s.askErr = lanetest.ServerError(text)
			refused := func() bool {
				began := s.elapsed()
				got := s.send("1")
				require.LessOrEqual(s, got.at-began, 4*s.trip, "nothing waits for the pause")
				time.Sleep(s.trip)
				return got.calls[0].Said == any(s.askErr)
			}
			for began := s.elapsed(); s.elapsed()-began < 300*time.Millisecond; {
				require.True(t, refused())
			}
			require.Less(t, s.asks(), 40)
			for began := s.elapsed(); s.elapsed()-began < 60*time.Second; time.Sleep(10 * time.Millisecond) {
				require.True(t, refused())
			}
			asks := s.asks()
			for began := s.elapsed(); s.elapsed()-began < 10*time.Second; time.Sleep(10 * time.Millisecond) {
				require.True(t, refused())
			}
			require.Less(t, s.asks()-asks, 21, "in ten seconds")
			s.now(func() { s.askErr = nil })
			lanetest.Rest(conn.MostPause)
			require.True(t, s.send("2").ok())
		})
	}
}

// A replica takes greetings, so only what it does ends its pauses.
func TestReplicaIsNotDialledByEachBatch(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		for began := s.elapsed(); s.elapsed()-began < 300*time.Millisecond; time.Sleep(s.trip) {
			require.True(t, protocol.ReadOnly(s.sets("READONLY You can't write against a read only replica.").calls[0].Err()))
		}
		require.Less(t, len(s.view().flows), 40)
		require.Greater(t, len(s.view().flows), 8)
	})
}

// A trial that fails takes the vote and nothing else, but sends nothing that could not be taken back.
func TestTrialThatFails(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		s.denies = protocol.TrialFails("EVALSHA", "k", nil, lanetest.ServerError("NOPERM this user has no permissions to run the 'evalsha' command"))
		got := s.sets("1")
		require.Equal(t, protocol.Answer{Said: s.denies}, got.calls[0].Answer)
		require.Empty(t, s.view().executed)
		require.True(t, s.send("2").ok())
		require.Equal(t, []string{"2"}, s.view().executed)
		require.Len(t, s.view().flows, 1)
	})
}

// releasing sends releases of two keys in one batch, and tells as what they went.
func (s *stage) releasing() (sent []string) {
	before := len(s.view().executed)
	var batch []*lane.Call
	for _, key := range []string{"a", "b"} {
		r := protocol.ReleaseRequest(&protocol.Terms{TTL: time.Second}, key, s.releaseAs)
		batch = append(batch, &lane.Call{Req: &r})
	}
	s.cs.Exchange(batch, stagePatience, stageBound)
	for _, c := range batch {
		require.NotEqual(s, protocol.Answer{}, c.Answer)
	}
	return s.view().executed[before:]
}

// Releases go in one command, unless the server has a shorter one for each, or has said that it
// does not do that.
func TestReleasesGoTogether(t *testing.T) {
	t.Parallel()
	onStage(t, stageOwn, func(s *stage) {
		s.releaseAs = "mine"
		require.Equal(t, []string{"mine"}, s.releasing())
		s.releaseAs = "READONLY"
		require.Equal(t, []string{"READONLY"}, s.releasing(), "for the time being")
		s.releaseAs = "mine"
		require.Equal(t, []string{"mine"}, s.releasing())
		s.releaseAs = "READONLY: no permissions to run the 'mget' command"
		require.Len(t, s.releasing(), 1)
		s.releaseAs = "mine"
		require.Equal(t, []string{"mine", "mine"}, s.releasing(), "over another conversation, too")
	})
	onStage(t, stageOwn, func(s *stage) {
		s.native, s.releaseAs = protocol.DelEx, "mine"
		require.Equal(t, []string{"mine", "mine"}, s.releasing())
	})
}

func TestCloseEndsConversationsAtOnce(t *testing.T) {
	for _, h := range []conn.Habits{stageOwn, stageUser} {
		onStage(t, h, func(s *stage) {
			require.True(t, s.send("1").ok())
			s.now(func() { s.hung = true })
			first := s.sending("2")
			time.Sleep(3 * stagePatience) // the fresh one waits as well
			second := s.sending("3")
			lanetest.Rest(s.trip)
			at := s.elapsed()
			s.cs.Close()
			require.Equal(t, at, (<-first).at)
			require.Equal(t, at, (<-second).at)
			got := s.send("4")
			require.Equal(t, protocol.Answer{Said: protocol.ErrClosed}, got.calls[0].Answer)
		})
	}
}

func TestNoTimerIsLeftRunning(t *testing.T) {
	onStage(t, stageOwn, func(s *stage) {
		for range 100 {
			require.True(t, s.send("1").ok())
			lanetest.Rest(10 * time.Millisecond)
		}
		require.Equal(t, 1, slices.Index(s.view().executed, "1")+1)
	})
}
