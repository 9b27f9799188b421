package redlock

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
)

// of is a server's time.
func of(micros int64) time.Duration { return time.Duration(micros) * time.Microsecond }

func TestMarkText(t *testing.T) {
	const micros = int64(1_800_000_000_000_000)
	text := fmt.Sprintf("id %d 5000000 first run repl", micros)
	m := readMark(text, true, of(micros+7))
	require.Equal(t, mark{
		state: markPresent, text: text, age: 7 * time.Microsecond,
		id: "id", runID: "run", replID: "repl", at: micros, uptime: 5 * time.Second, first: true,
	}, m)
	require.Zero(t, readMark(text, true, 0).age, "no TIME was asked")
	require.Equal(t, -time.Hour, readMark(text, true, of(micros)-time.Hour).age, "the clock was set back")
	later := readMark("id 1 2 later run - and what a later version appends", true, of(1))
	require.Equal(t, "id", later.id)
	require.Empty(t, later.replID)
	require.False(t, later.first)

	for _, text := range []string{
		"", " ", "x", "id 1 2 first run", "id x 2 first run repl", "id 1 x first run repl", "id 1 2 last run repl",
		"id -1 2 first run repl", "id 1 -2 first run repl", "id 9223372036854775807 2 first run repl",
		"id 1 9223372036854775807 first run repl", "id 9007199254740993 1 first run repl",
	} {
		m := readMark(text, true, of(micros))
		assert.Empty(t, m.id, "%q", text)
		assert.Equal(t, markPresent, m.state, "%q", text)
	}
}

// What is written is read again.
func TestMarkIsReadAsItWasWritten(t *testing.T) {
	s := newMemStore(func() int64 { return simEpoch })
	for _, w := range []markWrite{
		{id: "a", uptime: time.Hour, first: true, runID: "run", replID: "repl"},
		{id: "b", at: 12345, uptime: 1500 * time.Nanosecond, runID: "run"},
		{id: "c", uptime: maxAge, runID: "run", replID: "repl"},
	} {
		w.old, _, _ = s.text(markKey)
		val, err := s.do(markRequest(markKey, &w)) // unknown script
		require.Error(t, err)
		require.Nil(t, val)
		s.scripts[markScript] = true
		m := readWritten(s.do(markRequest(markKey, &w)))
		at := w.at
		if at == 0 {
			at = simEpoch / int64(time.Microsecond)
		}
		require.Equal(t, mark{
			state: markPresent, text: m.text, age: time.Duration(simEpoch/1000-at) * time.Microsecond,
			id: w.id, runID: w.runID, replID: w.replID, at: at, uptime: w.uptime.Truncate(time.Microsecond), first: w.first,
		}, m)
		s.scripts[markScript] = false
	}
}

func FuzzMark(f *testing.F) {
	f.Add("id 1800000000000000 5000000 first run repl", int64(1_800_000_000_000_000))
	f.Add("id 9007199254740992 1 later run -", int64(0))
	f.Fuzz(func(t *testing.T, text string, now int64) {
		m := readMark(text, true, of(now%(1<<53)))
		if m.id == "" {
			return
		}
		c := NewFakeClock()
		g := newGuard([]string{"0"}, 0, false, c, func(degradation) {})
		g.saw(0, sighting{asked: true, runID: m.runID, replID: m.replID, mark: m})
		if left, _ := g.judge(0, s, c.now().mono); left < 0 || left > s {
			t.Fatalf("%q: barred for %v", text, left)
		}
	})
}

func TestWhatTheMarksScriptAnswers(t *testing.T) {
	for name, c := range map[string]struct {
		val  any
		err  error
		want markState
	}{
		"a mark":             {[]any{"id 1 2 first run repl", int64(5)}, nil, markPresent},
		"something else":     {[]any{int64(5)}, nil, markDenied},
		"no list":            {"OK", nil, markDenied},
		"no text":            {[]any{int64(1), int64(5)}, nil, markDenied},
		"nothing":            {nil, nil, markDenied},
		"no permission":      {nil, memError("NOPERM this user has no permissions"), markDenied},
		"no scripts":         {nil, memError("ERR unknown command 'EVALSHA'"), markDenied},
		"no room":            {nil, memError("OOM command not allowed"), markUnread},
		"a replica":          {nil, memError("READONLY You can't write"), markUnread},
		"a connection broke": {nil, io.EOF, markUnread},
		"no key":             {nil, redis.Nil, markAbsent},
	} {
		m := readWritten(c.val, c.err)
		assert.Equal(t, c.want, m.state, name)
		if c.want == markDenied || c.want == markUnread {
			assert.Error(t, m.err, name)
		}
	}
}

func TestPassingErrors(t *testing.T) {
	for _, err := range []error{
		memError("BUSY Redis is busy running a script"), memError("LOADING Redis is loading the dataset in memory"),
		memError("MASTERDOWN Link with MASTER is down"), memError("OOM command not allowed"), memError("READONLY You can't write"),
		memError("TRYAGAIN"), memError("ERR max number of clients reached"), io.EOF, context.DeadlineExceeded, errTimeout,
	} {
		assert.True(t, passing(err), "%v", err)
	}
	for _, err := range []error{
		memError("NOPERM no permission"), memError("ERR unknown command 'INFO'"), memError("ERR section (server) is not supported"),
		errNoSinglePool, errors.New("INFO server tells no run_id"), memError("WRONGTYPE"),
	} {
		assert.False(t, passing(err), "%v", err)
	}
}

// marked is a guard of n nodes that have been up for long, with marks of run "a" and their
// number, and the looks that show them.
func marked(t *testing.T, n int, fixed time.Duration) (*guard, *FakeClock, []sighting) {
	t.Helper()
	g, c := guardOf(n, fixed)
	looks := make([]sighting, n)
	for i := range n {
		full := sighting{asked: true, runID: fmt.Sprint("a", i), replID: "r", formerID: "0", role: "master", uptime: 3600 * s}
		full.mark = readMark(fmt.Sprintf("id%d 1000000 3600000000 first a%d r", i, i), true, of(int64(1000000+3600_000_000)))
		require.Nil(t, g.saw(i, full))
		looks[i] = sighting{runID: full.runID, mark: mark{state: markPresent, text: full.mark.text}}
	}
	return g, c, looks
}

func TestLookThatDiffersBarsItsOwnBatch(t *testing.T) {
	for name, change := range map[string]func(l *sighting){
		"no mark":                func(l *sighting) { l.mark = mark{state: markAbsent} },
		"another mark":           func(l *sighting) { l.mark.text = "new 1 1 later a0 r" },
		"a mark of another data": func(l *sighting) { l.mark.text = "id0 1 1 later a0 other" },
		"no mark at all":         func(l *sighting) { l.mark.text = "garbage" },
		"another process":        func(l *sighting) { l.runID = "b" },
		"a mark that is denied":  func(l *sighting) { l.mark = unreadMark(memError("NOPERM")) },
		"a mark not read":        func(l *sighting) { l.mark = unreadMark(memError("BUSY")) },
		"nobody":                 func(l *sighting) { l.runID = "" },
		"an error":               func(l *sighting) { *l = sighting{err: io.EOF} },
	} {
		g, _, looks := marked(t, 3, 0)
		require.Nil(t, g.saw(0, looks[0]), name)
		require.Zero(t, leftOf(g, 0, 10*s), name)
		change(&looks[0])
		g.saw(0, looks[0])
		require.Equal(t, 10*s, leftOf(g, 0, 10*s), name)
		require.Error(t, g.why(0, s), name)
		require.Zero(t, leftOf(g, 1, 10*s), name)
	}
}

// Looks of several connections arrive in any order.
func TestOlderLookDoesNotUnbar(t *testing.T) {
	g, c, looks := marked(t, 3, 0)
	before, gone, after := looks[0], looks[0], looks[0]
	gone.mark = mark{state: markAbsent}
	after.mark.text = "new 1 1 later a0 r"
	c.Advance(s)
	g.saw(0, after)
	require.Equal(t, 10*s, leftOf(g, 0, 10*s))
	c.Advance(s)
	g.saw(0, before) // sent before the loss, and late
	g.saw(0, after)
	require.Equal(t, 10*s, leftOf(g, 0, 10*s), "the last that differs counts")
	c.Advance(s)
	g.saw(0, after)
	require.Equal(t, 9*s, leftOf(g, 0, 10*s), "and nothing else")
	g.saw(0, gone)
	require.Equal(t, 10*s, leftOf(g, 0, 10*s))
}

// Two connections ask at once who is there. The answer of the first comes after what the
// second has written: that is no loss, and the script shows it.
func TestOlderAnswerToTheFullQuestionIsNoLoss(t *testing.T) {
	g, _ := guardOf(3, 0)
	full := sighting{asked: true, runID: "a", replID: "r", uptime: 3600 * s, mark: mark{state: markAbsent}}
	for i := range 3 {
		full.runID = fmt.Sprint("a", i)
		w := g.saw(i, full)
		require.True(t, w.first)
		written := full
		written.mark = readMark(fmt.Sprintf("%s 5 3600000000 first a%d r", w.id, i), true, of(5))
		require.Nil(t, g.saw(i, written))
		require.NotNil(t, g.saw(i, full), "it is to be written where it is gone")
		require.Nil(t, g.saw(i, written), "and was there")
	}
	require.Zero(t, leftOf(g, 0, 10*s))
	written := full
	written.mark = readMark("other 6 3600000000 later a2 r", true, of(6))
	g.saw(2, full)
	g.saw(2, written)
	require.Equal(t, 10*s, leftOf(g, 2, 10*s), "it was gone")
}

// What counts most often needs no mutex, neither a vote nor a look.
func TestGuardIsQuietWithoutAMutex(t *testing.T) {
	g, c, looks := marked(t, 5, 0)
	g.mu.Lock()
	defer g.mu.Unlock()
	now := c.now().mono
	require.Zero(t, testing.AllocsPerRun(100, func() {
		g.saw(3, looks[3])
		left, open := g.judge(3, 10*s, now)
		if left != 0 || open {
			t.Error("barred")
		}
	}))
}

// Several connections of a node at once, with -race. After the loss nothing counts.
func TestGuardOfManyConnections(t *testing.T) {
	g, c, looks := marked(t, 3, 0)
	lost := looks[0]
	lost.mark = mark{state: markAbsent}
	var group sync.WaitGroup
	begin := make(chan struct{})
	for k := range 8 {
		group.Go(func() {
			<-begin
			for range 500 {
				g.saw(0, looks[0])
				g.judge(0, 10*s, c.now().mono)
				if k == 0 {
					g.saw(0, lost)
				}
				if left, _ := g.judge(0, 10*s, c.now().mono); k == 0 && left == 0 {
					t.Error("a vote counts after the loss")
				}
				g.ready(0)
				g.since(0)
				_ = g.twin(0)
			}
		})
	}
	close(begin)
	group.Wait()
	require.Equal(t, 10*s, leftOf(g, 0, 10*s))
	require.Zero(t, leftOf(g, 1, 10*s))
}

// A mark that may be read and not written is asked for once, not with each batch.
func TestMarkThatMayNotBeWritten(t *testing.T) {
	g, _ := guardOf(3, 0)
	full := sighting{asked: true, runID: "a", replID: "r", uptime: 3600 * s, mark: mark{state: markAbsent}}
	require.NotNil(t, g.saw(0, full))
	require.False(t, g.ready(0))
	refused := full
	refused.mark = readWritten(nil, memError("NOPERM no script"))
	require.Nil(t, g.saw(0, refused))
	require.True(t, g.ready(0))
	require.Nil(t, g.saw(0, full))
	require.Nil(t, g.saw(0, sighting{runID: "a", mark: mark{state: markAbsent}}))
	require.Zero(t, leftOf(g, 0, 10*s), "as without marks")
	full.mark = readMark("id 1 1 later a r", true, of(1))
	g.saw(0, full)
	require.Equal(t, 10*s, leftOf(g, 0, 10*s), "somebody else's is of use")
}

func TestGuardTellsSinceWhenNodesRemember(t *testing.T) {
	g, c, looks := marked(t, 3, 0)
	began := c.now().time
	require.WithinDuration(t, began.Add(-time.Hour), g.since(0), 0, "the mark's date, though the process was an hour old at the fleet's first use")
	c.Advance(time.Minute)
	looks[1].mark = mark{state: markAbsent}
	g.saw(1, looks[1])
	require.Zero(t, g.since(1), "no mark yet")
	written := sighting{asked: true, runID: "a1", replID: "r", mark: readMark("new 5 5 later a1 r", true, of(5))}
	g.saw(1, written)
	require.WithinDuration(t, began.Add(time.Minute), g.since(1), 0)
	g.saw(2, sighting{err: memError("NOPERM")})
	require.Zero(t, g.since(2))
	g.saw(0, sighting{asked: true, runID: "a0", replID: "r", mark: unreadMark(memError("NOPERM no key"))})
	require.Zero(t, g.since(0), "not by the mark any more")
	require.Zero(t, (*guard)(nil).since(0))
}

// Of two names that lead to one server, the one that was seen first has its vote.
func TestTwinOfANodeIsSentNothing(t *testing.T) {
	g, _, _ := marked(t, 3, 0)
	twins := func() (all []int) {
		for i := range 3 {
			if g.twin(i) != nil {
				all = append(all, i)
			}
		}
		return all
	}
	leads := func(node int, to string) {
		g.saw(node, sighting{asked: true, runID: to, replID: "r", uptime: 3600 * s, mark: readMark("id0 1000000 3600000000 first "+to+" r", true, of(9e9))})
	}
	require.Empty(t, twins())
	leads(2, "a0")
	require.Equal(t, []int{2}, twins())
	require.ErrorIs(t, g.twin(2), errDuplicateNode)
	require.ErrorContains(t, g.twin(2), "node0")
	leads(1, "a0")
	require.Equal(t, []int{1, 2}, twins())
	leads(0, "b")
	require.Equal(t, []int{1}, twins(), "the second to come, not the second in the list")
	require.ErrorContains(t, g.twin(1), "node2")
	leads(0, "a0")
	require.Equal(t, []int{0, 1}, twins(), "it comes back as the last one")
	leads(2, "c")
	require.Equal(t, []int{0}, twins())
	leads(1, "d")
	require.Empty(t, twins(), "addresses that moved back")
}
