package guard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
	"github.com/quorumlock/redlock/internal/testing/ticktest"
)

// of is a server's time.
func of(micros int64) time.Duration { return time.Duration(micros) * time.Microsecond }

func TestMarkText(t *testing.T) {
	const micros = int64(1_800_000_000_000_000)
	text := fmt.Sprintf("id %d first run repl -5 7", micros)
	m := protocol.ReadMark(text, true, of(micros+7))
	require.Equal(t, protocol.Mark{
		State: protocol.MarkPresent, Text: text, Age: 7 * time.Microsecond, Now: of(micros + 7),
		ID: "id", RunID: "run", ReplID: "repl", At: micros, Start: -5, Puts: 7, First: true,
	}, m)
	require.Zero(t, protocol.ReadMark(text, true, 0).Age, "no TIME was asked")
	require.Equal(t, -time.Hour, protocol.ReadMark(text, true, of(micros)-time.Hour).Age, "the clock was set back")
	require.Equal(t, 3, protocol.ReadMark(text+" all3", true, 0).All)
	later := protocol.ReadMark("id 1 later run repl 0 0", true, of(1))
	require.Equal(t, "id", later.ID)
	require.False(t, later.First)

	for _, text := range []string{
		"", " ", "x", "id 1 first run", "id 1 first run repl", "id 1 first run repl 2", "id x first run repl 2 3", "id 1 last run repl 2 3",
		"id 1 first run repl x 3", "id 1 first run repl 2 x", "id 1 first run repl 2 -3", "id -1 first run repl 2 3", "id 1 2 first run repl 2",
		"id 9223372036854775807 first run repl 2 3", "id 9007199254740993 first run repl 2 3", "id 1 first run repl 9223372036854775808 3",
		"id 1 first run repl 2 3 all", "id 1 first run repl 2 3 all0", "id 1 first run repl 2 3 4", "id 1 later run repl 2 3 all3", "id 1 first run repl 2 3 all3 more",
	} {
		m := protocol.ReadMark(text, true, of(micros))
		assert.Empty(t, m.ID, "%q", text)
		assert.Equal(t, protocol.MarkPresent, m.State, "%q", text)
	}
}

// What is written is read again.
func TestMarkIsReadAsItWasWritten(t *testing.T) {
	s := fakenode.New(func() int64 { return fakenode.Epoch })
	for _, w := range []protocol.MarkWrite{
		{ID: "a", First: true, RunID: "run", ReplID: "repl", Start: 1_800_000_000, Puts: 3},
		{ID: "b", At: 12345, RunID: "run", ReplID: "repl"},
		{ID: "c", First: true, RunID: "run", ReplID: "repl", Start: -1, All: 5},
	} {
		w.Old, _, _ = s.Text(protocol.MarkKey)
		val, err := s.Do(protocol.MarkRequest(protocol.MarkKey, &w)) // unknown script
		require.Error(t, err)
		require.Nil(t, val)
		s.Scripts[protocol.MarkScript] = true
		m := protocol.ReadWritten(s.Do(protocol.MarkRequest(protocol.MarkKey, &w)))
		at := w.At
		if at == 0 {
			at = fakenode.Epoch / int64(time.Microsecond)
		}
		require.Equal(t, protocol.Mark{
			State: protocol.MarkPresent, Text: m.Text, Age: time.Duration(fakenode.Epoch/1000-at) * time.Microsecond, Now: of(fakenode.Epoch / 1000),
			ID: w.ID, RunID: w.RunID, ReplID: w.ReplID, At: at, Start: w.Start, Puts: w.Puts, First: w.First, All: w.All,
		}, m)
		require.Equal(t, m, protocol.ReadMark(w.Text(at), true, m.Now))
		s.Scripts[protocol.MarkScript] = false
	}
}

func FuzzMark(f *testing.F) {
	f.Add("id 1800000000000000 first run repl 1700000000 2 all3", int64(1_800_000_000_000_000))
	f.Add("id 9007199254740992 later run repl 0 0", int64(0))
	f.Fuzz(func(t *testing.T, text string, now int64) {
		m := protocol.ReadMark(text, true, of(now%(1<<53)))
		if m.ID == "" {
			return
		}
		c := ticktest.NewFakeClock()
		g := New([]string{"0"}, 0, c)
		g.Saw(0, protocol.ServerReport{Asked: true, RunID: m.RunID, ReplID: m.ReplID, Start: m.Start, Puts: m.Puts, Mark: m})
		if left := g.Judge(0, s, c.Now().Mono); left < 0 || left > s {
			t.Fatalf("%q: barred for %v", text, left)
		}
	})
}

func TestWhatTheMarksScriptAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		val  any
		err  error
		want protocol.MarkState
	}{
		"a mark":             {[]any{"id 1 first run repl 2 3", int64(5)}, nil, protocol.MarkPresent},
		"something else":     {[]any{int64(5)}, nil, protocol.MarkUnread},
		"no list":            {"OK", nil, protocol.MarkUnread},
		"no text":            {[]any{int64(1), int64(5)}, nil, protocol.MarkUnread},
		"nothing":            {nil, nil, protocol.MarkUnread},
		"no permission":      {nil, fakenode.Error("NOPERM this user has no permissions"), protocol.MarkUnread},
		"no scripts":         {nil, fakenode.Error("ERR unknown command 'EVALSHA'"), protocol.MarkUnread},
		"no room":            {nil, fakenode.Error("OOM command not allowed"), protocol.MarkUnread},
		"a replica":          {nil, fakenode.Error("READONLY You can't write"), protocol.MarkUnread},
		"a connection broke": {nil, io.EOF, protocol.MarkUnread},
		"no key":             {nil, redis.Nil, protocol.MarkAbsent},
	} {
		m := protocol.ReadWritten(c.val, c.err)
		assert.Equal(t, c.want, m.State, name)
		if c.want == protocol.MarkUnread {
			assert.Error(t, m.Err, name)
		}
	}
}

func TestPassingErrors(t *testing.T) {
	for _, err := range []error{
		fakenode.Error("BUSY Redis is busy running a script"), fakenode.Error("LOADING Redis is loading the dataset in memory"),
		fakenode.Error("MASTERDOWN Link with MASTER is down"), fakenode.Error("OOM command not allowed"), fakenode.Error("READONLY You can't write"),
		fakenode.Error("TRYAGAIN"), fakenode.Error("ERR max number of clients reached"),
		fakenode.Error("ERR Error running script (call to f_5f): @user_script:1: @user_script: 1: -OOM command not allowed when used memory > 'maxmemory'."), io.EOF, context.DeadlineExceeded, protocol.ErrTimeout,
	} {
		assert.True(t, protocol.Passing(err), "%v", err)
	}
	for _, err := range []error{
		fakenode.Error("NOPERM no permission"), fakenode.Error("ERR unknown command 'INFO'"), fakenode.Error("ERR section (server) is not supported"),
		fakenode.Error("ERR Error running script (call to f_5f): @user_script:1: @user_script: 1: Wrong number of args"),
		errors.New("INFO server tells no run_id"), fakenode.Error("WRONGTYPE"),
	} {
		assert.False(t, protocol.Passing(err), "%v", err)
	}
}

// marked is a guard of n nodes that have been up for long, with marks of run "a" and their
// number, and the looks that show them.
func marked(t *testing.T, n int, fixed time.Duration) (*Guard, *ticktest.FakeClock, []protocol.ServerReport) {
	t.Helper()
	g, c := guardOf(n, fixed)
	looks := make([]protocol.ServerReport, n)
	for i := range n {
		full := protocol.ServerReport{Asked: true, RunID: fmt.Sprint("a", i), ReplID: "r", FormerID: "0", Role: "master"}
		full.Mark = protocol.ReadMark(fmt.Sprintf("id%d 1000000 first a%d r 0 0", i, i), true, of(int64(1000000+3600_000_000)))
		require.Nil(t, g.Saw(i, full))
		looks[i] = protocol.ServerReport{RunID: full.RunID, Mark: protocol.Mark{State: protocol.MarkPresent, Text: full.Mark.Text}}
	}
	return g, c, looks
}

func TestLookThatDiffersBarsItsOwnBatch(t *testing.T) {
	for name, change := range map[string]func(l *protocol.ServerReport){
		"no mark":                func(l *protocol.ServerReport) { l.Mark = protocol.Mark{State: protocol.MarkAbsent} },
		"another mark":           func(l *protocol.ServerReport) { l.Mark.Text = "new 1 later a0 r 0 0" },
		"a mark of another data": func(l *protocol.ServerReport) { l.Mark.Text = "id0 1 later a0 other 0 0" },
		"no mark at all":         func(l *protocol.ServerReport) { l.Mark.Text = "garbage" },
		"another process":        func(l *protocol.ServerReport) { l.RunID = "b" },
		"a mark that is denied":  func(l *protocol.ServerReport) { l.Mark = protocol.MarkOfError(fakenode.Error("NOPERM")) },
		"a mark not read":        func(l *protocol.ServerReport) { l.Mark = protocol.MarkOfError(fakenode.Error("BUSY")) },
		"nobody":                 func(l *protocol.ServerReport) { l.RunID = "" },
		"an error":               func(l *protocol.ServerReport) { *l = protocol.ServerReport{Err: io.EOF} },
	} {
		g, _, looks := marked(t, 3, 0)
		require.Nil(t, g.Saw(0, looks[0]), name)
		require.Zero(t, leftOf(g, 0, 10*s), name)
		change(&looks[0])
		g.Saw(0, looks[0])
		require.Equal(t, 10*s, leftOf(g, 0, 10*s), name)
		require.Error(t, g.Why(0, s), name)
		require.Zero(t, leftOf(g, 1, 10*s), name)
	}
}

// Looks of several connections arrive in any order.
func TestOlderLookDoesNotUnbar(t *testing.T) {
	g, c, looks := marked(t, 3, 0)
	before, gone, after, asked := looks[0], looks[0], looks[0], looks[0]
	gone.Mark = protocol.Mark{State: protocol.MarkAbsent}
	c.Advance(s)
	at := c.Now().Mono
	after.Mark.Text = "new 3602000000 later a0 r 0 0"
	asked.Asked, asked.ReplID, asked.Mark.Text = true, "r", after.Mark.Text
	ask := func() {
		asked.At, asked.Time = c.Now().Mono, time.Hour+2*s+time.Duration(c.Now().Mono-at)
		g.Saw(0, asked)
	}
	g.Saw(0, after)
	require.Equal(t, 10*s, leftOf(g, 0, 10*s))
	require.ErrorIs(t, g.Why(0, s), errUndated)
	ask()
	require.Equal(t, 10*s, leftOf(g, 0, 10*s), "it was just written")
	c.Advance(s)
	require.Equal(t, 9*s, leftOf(g, 0, 10*s), "its date counts")
	g.Saw(0, before) // sent before the loss, and late
	require.Equal(t, 10*s, leftOf(g, 0, 10*s))
	ask()
	require.Equal(t, 9*s, leftOf(g, 0, 10*s), "asking tells that it is over")
	c.Advance(s)
	g.Saw(0, after)
	require.Equal(t, 8*s, leftOf(g, 0, 10*s), "and nothing else bars")
	g.Saw(0, gone)
	require.Equal(t, 10*s, leftOf(g, 0, 10*s))
}

// Two connections ask at once who is there. The answer of the first comes after what the
// second has written: that is no loss, and the script shows it.
func TestOlderAnswerToTheFullQuestionIsNoLoss(t *testing.T) {
	g, _ := guardOf(3, 0)
	full := protocol.ServerReport{Asked: true, RunID: "a", ReplID: "r", Mark: protocol.Mark{State: protocol.MarkAbsent}}
	for i := range 3 {
		full.RunID = fmt.Sprint("a", i)
		w := g.Saw(i, full)
		require.True(t, w.First)
		written := full
		written.Mark = protocol.ReadMark(fmt.Sprintf("%s 5 first a%d r 0 0", w.ID, i), true, of(3600_000_005))
		require.Nil(t, g.Saw(i, written))
		require.NotNil(t, g.Saw(i, full), "it is to be written where it is gone")
		require.Nil(t, g.Saw(i, written), "and was there")
	}
	require.Zero(t, leftOf(g, 0, 10*s))
	written := full
	written.Mark = protocol.ReadMark("other 6 later a2 r 0 0", true, of(6))
	g.Saw(2, full)
	g.Saw(2, written)
	require.Equal(t, 10*s, leftOf(g, 2, 10*s), "it was gone")
}

// What counts most often needs no mutex, neither a vote nor a look.
func TestGuardIsQuietWithoutAMutex(t *testing.T) {
	g, c, looks := marked(t, 5, 0)
	g.mu.Lock()
	defer g.mu.Unlock()
	now := c.Now().Mono
	require.Zero(t, testing.AllocsPerRun(100, func() {
		g.Saw(3, looks[3])
		if g.Judge(3, 10*s, now) != 0 {
			t.Error("barred")
		}
	}))
}

// Several connections of a node at once, with -race. After the loss nothing counts.
func TestGuardOfManyConnections(t *testing.T) {
	g, c, looks := marked(t, 3, 0)
	lost := looks[0]
	lost.Mark = protocol.Mark{State: protocol.MarkAbsent}
	var group sync.WaitGroup
	begin := make(chan struct{})
	for k := range 8 {
		group.Go(func() {
			<-begin
			for range 500 {
				g.Saw(0, looks[0])
				g.Judge(0, 10*s, c.Now().Mono)
				if k == 0 {
					g.Saw(0, lost)
				}
				if left := g.Judge(0, 10*s, c.Now().Mono); k == 0 && left == 0 {
					t.Error("a vote counts after the loss")
				}
				g.Ready(0)
				_ = g.Duplicate(0)
			}
		})
	}
	close(begin)
	group.Wait()
	require.Equal(t, 10*s, leftOf(g, 0, 10*s))
	require.Zero(t, leftOf(g, 1, 10*s))
}

// Without a mark that may be written there is no vote, until another client has written one.
func TestMarkThatMayNotBeWritten(t *testing.T) {
	g, _ := guardOf(3, 0)
	full := protocol.ServerReport{Asked: true, RunID: "a", ReplID: "r", Mark: protocol.Mark{State: protocol.MarkAbsent}}
	require.NotNil(t, g.Saw(0, full))
	require.False(t, g.Ready(0))
	refused := full
	refused.Mark = protocol.ReadWritten(nil, fakenode.Error("NOPERM no script"))
	require.Nil(t, g.Saw(0, refused))
	require.False(t, g.Ready(0))
	require.Equal(t, 10*s, leftOf(g, 0, 10*s))
	require.ErrorContains(t, g.Why(0, 10*s), "NOPERM no script")
	require.NotNil(t, g.Saw(0, full), "it is tried again")
	full.Mark = protocol.ReadMark("id 1 later a r 0 0", true, of(11_000_001))
	g.Saw(0, full)
	require.Zero(t, leftOf(g, 0, 10*s))
}

func TestGuardTellsSinceWhenNodesRemember(t *testing.T) {
	g, c, looks := marked(t, 3, 0)
	began := c.Now().Time
	since := func(i int) time.Time {
		if at, ok := g.memories.Remembers(i); ok {
			return c.Now().When(at)
		}
		return time.Time{}
	}
	require.WithinDuration(t, began.Add(-time.Hour), since(0), 0, "the mark's date, though the process was an hour old at the fleet's first use")
	c.Advance(time.Minute)
	looks[1].Mark = protocol.Mark{State: protocol.MarkAbsent}
	g.Saw(1, looks[1])
	require.Zero(t, since(1), "no mark yet")
	written := protocol.ServerReport{Asked: true, RunID: "a1", ReplID: "r", Mark: protocol.ReadMark("new 5 later a1 r 0 0", true, of(5))}
	g.Saw(1, written)
	require.WithinDuration(t, began.Add(time.Minute), since(1), 0)
	g.Saw(2, protocol.ServerReport{Err: fakenode.Error("NOPERM")})
	require.Zero(t, since(2))
	g.Saw(0, protocol.ServerReport{Asked: true, RunID: "a0", ReplID: "r", Mark: protocol.MarkOfError(fakenode.Error("NOPERM no key"))})
	require.Zero(t, since(0), "not by the mark any more")
}

// Of two names that lead to one server, the one that was seen first has its vote.
func TestTwinOfANodeIsSentNothing(t *testing.T) {
	g, _, _ := marked(t, 3, 0)
	duplicates := func() (all []int) {
		for i := range 3 {
			if g.Duplicate(i) != nil {
				all = append(all, i)
			}
		}
		return all
	}
	leads := func(node int, to string) {
		g.Saw(node, protocol.ServerReport{Asked: true, RunID: to, ReplID: "r", Mark: protocol.ReadMark("id0 1000000 first "+to+" r 0 0", true, of(9e9))})
	}
	require.Empty(t, duplicates())
	leads(2, "a0")
	require.Equal(t, []int{2}, duplicates())
	require.ErrorIs(t, g.Duplicate(2), ErrDuplicateNode)
	require.ErrorContains(t, g.Duplicate(2), "node0")
	leads(1, "a0")
	require.Equal(t, []int{1, 2}, duplicates())
	leads(0, "b")
	require.Equal(t, []int{1}, duplicates(), "the second to come, not the second in the list")
	require.ErrorContains(t, g.Duplicate(1), "node2")
	leads(0, "a0")
	require.Equal(t, []int{0, 1}, duplicates(), "it comes back as the last one")
	leads(2, "c")
	require.Equal(t, []int{0}, duplicates())
	leads(1, "d")
	require.Empty(t, duplicates(), "addresses that moved back")
}

// What a node tells beside its mark, behind SETs or when it is asked.
func TestWhatIsToldBesidesTheMark(t *testing.T) {
	told := func(l protocol.ServerReport) protocol.ServerReport {
		l.ReplID, l.FormerID, l.Role = "r", "0", "master"
		return l
	}
	for name, c := range map[string]struct {
		change func(l *protocol.ServerReport)
		writes bool
		why    error
	}{
		"the same":                       {func(*protocol.ServerReport) {}, false, nil},
		"no master":                      {func(l *protocol.ServerReport) { l.Role = "slave" }, false, ErrReplica},
		"nor by another name":            {func(l *protocol.ServerReport) { l.Role = "active-replica" }, false, ErrReplica},
		"its start, for the first time":  {func(l *protocol.ServerReport) { l.Start = 5 }, false, nil},
		"data was put in place":          {func(l *protocol.ServerReport) { l.Puts = 1 }, true, errNoMark},
		"that, where no mark was read":   {func(l *protocol.ServerReport) { l.Puts, l.Mark = 1, protocol.Mark{} }, false, ErrUnsure},
		"a mark that knows of a put":     {func(l *protocol.ServerReport) { l.ReplID, l.Mark.Text = "", "id0 1000000 first a0 r 0 1" }, false, ErrUnsure},
		"a mark of another start":        {func(l *protocol.ServerReport) { l.Start, l.Mark.Text = 5, "id0 1000000 first a0 r 6 0" }, true, errNoMark},
		"an unknown process":             {func(l *protocol.ServerReport) { l.RunID, l.ReplID = "b", "" }, false, ErrUnsure},
		"another mark, and not its time": {func(l *protocol.ServerReport) { l.Mark.Text = "id 1000000 later a0 r 0 0" }, false, errUndated},
	} {
		g, _, looks := marked(t, 3, 0)
		l := told(looks[0])
		c.change(&l)
		w := g.Saw(0, l)
		require.Equal(t, c.writes, w != nil, name)
		if c.writes {
			require.False(t, w.First, name)
			require.NotEqual(t, "id0", w.ID, name)
			require.Equal(t, l.Puts, w.Puts, name)
			require.Equal(t, l.Start, w.Start, name)
		}
		if c.why == nil {
			require.Zero(t, leftOf(g, 0, 10*s), name)
			require.True(t, g.Ready(0), name)
			continue
		}
		require.Equal(t, 10*s, leftOf(g, 0, 10*s), name)
		require.ErrorIs(t, g.Why(0, s), c.why, name)
		require.False(t, g.Ready(0), name)
	}
}

// A newcomer knows nothing but what the node tells of itself, and its mark.
func TestNewcomerTakesNoMarkOfOtherData(t *testing.T) {
	for text, fits := range map[string]bool{
		"id 1000000 first run repl 5 2": true,
		"id 1000000 first run repl 0 2": true, // its writer was not told the start
		"id 1000000 first old repl 0 2": false,
		"id 1000000 first run old 5 2":  false,
		"id 1000000 first run repl 4 2": false,
		"id 1000000 first run repl 5 1": false,
		"id 1000000 first run repl 5 3": false,
		"id 1000000 first run repl 5":   false,
	} {
		g, _ := guardOf(3, 0)
		w := g.Saw(0, protocol.ServerReport{
			Asked: true, RunID: "run", ReplID: "repl", Role: "master", Start: 5, Puts: 2, Time: time.Hour, Mark: protocol.ReadMark(text, true, 0),
		})
		require.Equal(t, fits, w == nil, text)
		require.Equal(t, fits, leftOf(g, 0, 10*s) == 0, text)
		if !fits {
			require.Equal(t, protocol.MarkWrite{Old: text, ID: w.ID, RunID: "run", ReplID: "repl", Start: 5, Puts: 2}, *w, text)
		}
	}
}

// The start of a process is compared where both are told.
func TestAnotherStartIsAnotherProcess(t *testing.T) {
	g, c, looks := marked(t, 3, 0)
	l := looks[0]
	l.ReplID, l.FormerID, l.Role = "r", "0", "master"
	for _, start := range []int64{0, 5, 0, 5} {
		c.Advance(s)
		l.Start, l.At, l.Time = start, c.Now().Mono, time.Hour
		require.Nil(t, g.Saw(0, l))
		require.Zero(t, leftOf(g, 0, 10*s))
	}
	c.Advance(s)
	l.Start, l.At = 6, c.Now().Mono
	require.Nil(t, g.Saw(0, l), "the mark tells no start")
	require.Equal(t, 10*s, leftOf(g, 0, 10*s))
}

// Answers overtake each other. A mark is older than what we knew if it was written before the last look at that.
func TestLateAnswerIsNotTheLastLook(t *testing.T) {
	g, c, looks := marked(t, 3, 0)
	l := looks[0]
	l.ReplID, l.FormerID, l.Role, l.Time = "r", "0", "master", time.Hour
	late := l
	late.At = c.Now().Mono
	c.Advance(2 * s)
	l.At, l.Time = c.Now().Mono, time.Hour+2*s
	g.Saw(0, l)
	g.Saw(0, late)
	c.Advance(s)
	l.At, l.Time = c.Now().Mono, time.Hour+3*s
	l.Mark = protocol.ReadMark(fmt.Sprintf("new %d later a0 r 0 0", (time.Hour+s).Microseconds()), true, 0)
	g.Saw(0, l)
	require.Equal(t, 10*s, leftOf(g, 0, 10*s), "it stood beside what we knew")
}
