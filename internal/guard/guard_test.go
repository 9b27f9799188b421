package guard

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
	"github.com/quorumlock/redlock/internal/testing/ticktest"
)

func TestBar(t *testing.T) {
	const (
		now    = int64(time.Hour)
		second = int64(time.Second)
		period = 10 * time.Second
	)
	marked := func(age, changed int64, all int) Memory {
		return Memory{Identity: identityKnown, runID: "a", changedAt: changed, markedAt: now - age, mark: protocol.Mark{State: protocol.MarkPresent, All: all}}
	}
	for name, c := range map[string]struct {
		m    Memory
		want time.Duration
	}{
		"a mark that was not read":        {Memory{Identity: identityKnown, runID: "a", changedAt: LongAgo}, period},
		"a mark of age":                   {marked(10*second, LongAgo, 0), 0},
		"a mark too young":                {marked(10*second-1, LongAgo, 0), 1},
		"a mark, and changed since":       {marked(100*second, now-4*second, 0), 6 * time.Second},
		"all were new":                    {marked(1, LongAgo, 3), 0},
		"all were new, and changed since": {marked(1, now-second, 3), 9 * time.Second},
		"all of fewer nodes were new":     {marked(second, LongAgo, 1), 9 * time.Second},
		"all of more nodes were new":      {marked(second, LongAgo, 5), 9 * time.Second},
		"uncertain":                       {Memory{Identity: IdentityUncertain, changedAt: LongAgo}, period},
		"no mark yet":                     {Memory{Identity: identityKnown, runID: "a", changedAt: LongAgo, mark: protocol.Mark{State: protocol.MarkAbsent}}, period},
	} {
		ms := NewMemories(3, false)
		ms.Nodes[1] = c.m
		require.Equal(t, c.want, ms.Bar(1, period, now), name)
		if c.m.mark.All == 3 {
			ms.fixed = true
			require.Equal(t, max(c.want, period-1), ms.Bar(1, period, now), "%s: a period that was set asks for more", name)
		}
	}
}

// guardOf is a guard of n nodes and the clock that it goes by.
func guardOf(n int, fixed time.Duration) (*Guard, *ticktest.FakeClock) {
	c := ticktest.NewFakeClock()
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("node", i)
	}
	return New(names, fixed, c), c
}

func leftOf(g *Guard, i int, ttl time.Duration) time.Duration {
	return g.Judge(i, g.Period(ttl, false), g.clock.Now().Mono)
}

const s = time.Second

func TestGuardOfARestartedNode(t *testing.T) {
	f := usedFleet()
	f.run[0], f.marks[0] = "other", ""
	f.ask(0)
	began := time.Duration(f.c.Now().Mono - f.g.quiet[0].Load())
	require.Equal(t, 10*s-began, leftOf(f.g, 0, 10*s))
	require.Equal(t, 24*time.Hour-began, leftOf(f.g, 0, 24*time.Hour), "a longer lock waits longer")
	require.Zero(t, leftOf(f.g, 1, 24*time.Hour), "the others are not concerned")
	f.c.Advance(10*s - began - 1)
	require.Equal(t, time.Duration(1), leftOf(f.g, 0, 10*s))
	f.c.Advance(1)
	require.Zero(t, leftOf(f.g, 0, 10*s))
	require.NotZero(t, leftOf(f.g, 0, 24*time.Hour))
}

func TestGuardGoesByTheMonotonicClock(t *testing.T) {
	f := usedFleet()
	f.run[0], f.marks[0] = "other", ""
	f.ask(0)
	want := leftOf(f.g, 0, 10*s)
	require.Positive(t, want)
	for _, step := range []time.Duration{time.Hour, -9 * time.Hour} {
		f.c.SetWall(step) // also what a suspended machine sees: it may only wait longer
		require.Equal(t, want, leftOf(f.g, 0, 10*s))
	}
}

// usedFleet is three nodes that were new together, an hour ago.
func usedFleet() *fleet {
	f := fleetOf(3, 0)
	for range FirstLooks {
		f.askAll()
	}
	f.c.Advance(time.Hour)
	return f
}

// fleet is nodes that a guard is told of at its clock's time.
type fleet struct {
	g     *Guard
	c     *ticktest.FakeClock
	marks []string // by node; empty: none
	run   []string
	ahead int64 // of the nodes' clocks, microseconds
}

func fleetOf(n int, fixed time.Duration) *fleet {
	f := &fleet{}
	f.g, f.c = guardOf(n, fixed)
	f.marks, f.run = make([]string, n), make([]string, n)
	for i := range n {
		f.run[i] = fmt.Sprint("run", i)
	}
	return f
}

// wall is the nodes' time, in microseconds.
func (f *fleet) wall() int64 { return f.c.Now().Mono/1000 + 1_000_000_000 + f.ahead }

// ask asks a node who it is, which writes what the guard wants.
func (f *fleet) ask(i int) {
	f.c.Advance(time.Millisecond)
	s := protocol.ServerReport{Asked: true, At: f.c.Now().Mono, RunID: f.run[i], ReplID: "r", FormerID: "0", Role: "master"}
	for range 5 {
		s.Mark = protocol.ReadMark(f.marks[i], f.marks[i] != "", of(f.wall()))
		f.c.Advance(time.Millisecond)
		w := f.g.Saw(i, s)
		if w == nil {
			return
		}
		if w.Old == f.marks[i] {
			f.marks[i] = w.Text(cmp.Or(w.At, f.wall()))
		}
	}
}

func (f *fleet) askAll() {
	for i := range f.run {
		f.ask(i)
	}
}

// newcomer is another client of the same nodes.
func (f *fleet) newcomer() *fleet {
	g, _ := guardOf(len(f.run), f.g.fixed)
	g.clock = f.c
	return &fleet{g: g, c: f.c, marks: f.marks, run: f.run}
}

func (f *fleet) votes(ttl time.Duration) (all []bool) {
	for i := range f.run {
		all = append(all, leftOf(f.g, i, ttl) == 0)
	}
	return all
}

func TestFirstUse(t *testing.T) {
	f := fleetOf(3, 0)
	f.askAll()
	require.Equal(t, []bool{false, false, false}, f.votes(10*s), "one look does not tell")
	require.True(t, f.g.Begins())
	f.ask(0)
	f.ask(1)
	require.Equal(t, []bool{false, false, false}, f.votes(10*s))
	f.ask(2)
	require.Equal(t, []bool{false, false, true}, f.votes(10*s), "each counts as soon as it says so itself")
	f.ask(0)
	f.ask(1)
	require.Equal(t, []bool{true, true, true}, f.votes(10*s))
	require.Equal(t, []bool{true, true, true}, f.votes(time.Hour), "for any TTL")
	require.False(t, f.g.Begins())

	late := f.newcomer()
	late.ask(1)
	require.Zero(t, leftOf(late.g, 1, 10*s), "whatever is known of other nodes")
	f.marks[1] = ""
	late.ask(1)
	require.NotZero(t, leftOf(late.g, 1, 10*s))
	next := f.newcomer()
	for range FirstLooks + 1 {
		next.askAll()
	}
	require.Equal(t, []bool{true, false, true}, next.votes(10*s))
}

// A fleet of one needs no second look.
func TestFirstUseOfOneNode(t *testing.T) {
	f := fleetOf(1, 0)
	f.ask(0)
	require.Equal(t, []bool{true}, f.votes(10*s))
	f = fleetOf(1, 20*s)
	f.ask(0)
	f.ask(0)
	require.Equal(t, []bool{false}, f.votes(10*s), "a period that was set asks for more")
}

func TestNoFirstUse(t *testing.T) {
	for name, happens := range map[string]func(f *fleet){
		"a node is away":            func(f *fleet) { f.ask(0); f.ask(1) },
		"it comes too late":         func(f *fleet) { f.ask(0); f.ask(1); f.c.Advance(newFor); f.ask(2) },
		"our machine sleeps":        func(f *fleet) { f.ask(0); f.ask(1); f.c.Suspend(newFor); f.ask(2) },
		"the second look is late":   func(f *fleet) { f.askAll(); f.c.Advance(newFor) },
		"a mark goes between looks": func(f *fleet) { f.askAll(); f.marks[0] = "" },
		"and another client marks the node anew": func(f *fleet) {
			f.askAll()
			f.marks[0] = ""
			f.newcomer().ask(0)
		},
		"a process goes between looks": func(f *fleet) {
			f.askAll()
			f.run[0], f.marks[0] = "other", ""
		},
		// Grants may have counted on marks of which the date tells no age.
		"the nodes' clocks are set back": func(f *fleet) {
			f.ahead = time.Hour.Microseconds()
			f.askAll()
			*f = *f.newcomer()
		},
		"and another client dates the marks anew": func(f *fleet) {
			f.ahead = time.Hour.Microseconds()
			f.askAll()
			f.newcomer().askAll()
			*f = *f.newcomer()
		},
		"two names of one server": func(f *fleet) { f.run[1] = f.run[0]; f.askAll() },
		"one was marked by a client that saw a loss": func(f *fleet) {
			f.askAll()
			f.marks[0] = strings.Replace(f.marks[0], "first", "later", 1)
			*f = *f.newcomer()
			f.askAll()
		},
		"one says already that all were new": func(f *fleet) {
			f.askAll()
			f.marks[0] += " all3"
			*f = *f.newcomer()
			f.askAll()
		},
		"one was new with fewer": func(f *fleet) {
			f.askAll()
			f.marks[0] += " all1"
			*f = *f.newcomer()
			f.askAll()
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := fleetOf(3, 0)
			happens(f)
			for range FirstLooks {
				f.ask(0)
				f.ask(1)
				if f.marks[2] != "" {
					f.ask(2)
				}
			}
			votes := f.votes(10 * s)
			votes[2] = votes[2] && f.marks[2] != "" // of a node that was never heard there is nothing to judge
			if strings.HasSuffix(f.marks[0], "all3") {
				require.True(t, votes[0])
				votes[0] = false
			}
			require.Equal(t, []bool{false, false, false}, votes)
			f.c.Advance(10 * s)
			f.askAll()
			require.Equal(t, []bool{true, true}, f.votes(9 * s)[:2])
		})
	}
}

// A look that was asked for before the last mark was known shows nothing of a moment with all of them.
func TestFirstUseGoesByWhenALookWasAskedFor(t *testing.T) {
	f := fleetOf(3, 0)
	f.ask(0)
	f.ask(1)
	early := make([]protocol.ServerReport, 0, 2)
	for i := range 2 {
		early = append(early, protocol.ServerReport{At: f.c.Now().Mono, RunID: f.run[i], Mark: protocol.ReadMark(f.marks[i], true, 0)})
	}
	f.ask(2)
	f.ask(2)
	for i := range early {
		require.Nil(t, f.g.Saw(i, early[i]))
	}
	require.Equal(t, []bool{false, false, false}, f.votes(10*s))
	f.ask(0)
	f.ask(1)
	require.Equal(t, []bool{false, true, false}, f.votes(10*s))
}

// Several clients at once, each of which finds some of the marks of the others.
func TestFirstUseByManyAtOnce(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		all := []*fleet{fleetOf(3, 0)}
		for range 3 {
			all = append(all, all[0].newcomer())
		}
		for range FirstLooks + 2 {
			var steps []func()
			for _, f := range all {
				for i := range f.run {
					steps = append(steps, func() { f.ask(i) })
				}
			}
			r.Shuffle(len(steps), func(i, j int) { steps[i], steps[j] = steps[j], steps[i] })
			for _, step := range steps {
				step()
			}
		}
		for _, f := range all {
			require.Equal(t, []bool{true, true, true}, f.votes(10*s), "seed %d", seed)
		}
	}
}

// What a barred vote says.
func TestWhyAVoteIsBarred(t *testing.T) {
	f := fleetOf(3, 0)
	why := func(i int) string { return f.g.Why(i, leftOf(f.g, i, 10*s)).Error() }
	from := func() string { return f.c.Now().Time.Add(leftOf(f.g, 0, 10*s) + s - 1).Format("15:04:05") }
	f.ask(0)
	require.Equal(t, "new fleet: node1, node2 not seen yet; votes count from "+from()+" on", why(0))
	f.ask(1)
	require.Equal(t, "new fleet: node2 not seen yet; votes count from "+from()+" on", why(0))
	f.c.Advance(newFor)
	f.ask(2)
	require.Equal(t, whyFirst+"; votes count from "+from()+" on", why(0))
	f.g.Saw(0, protocol.ServerReport{Err: io.EOF})
	require.Equal(t, ErrUnsure.Error()+": EOF", why(0))

	f = fleetOf(3, 0)
	f.askAll()
	f.askAll()
	f.askAll()
	f.marks[0] = ""
	f.ask(0)
	require.Equal(t, whyChanged+"; votes count from "+from()+" on", why(0))
	f.marks[0] = ""
	f.g.Saw(0, protocol.ServerReport{RunID: f.run[0], Mark: protocol.Mark{State: protocol.MarkAbsent}})
	require.Equal(t, errNoMark.Error(), why(0))
}

func TestFixedGuard(t *testing.T) {
	f := fleetOf(3, 5*s)
	f.askAll()
	f.askAll()
	require.Greater(t, leftOf(f.g, 0, s), 4*s, "although all are new")
	require.Greater(t, leftOf(f.g, 2, 10*s), 9*s, "an earlier lease may be as long")
	f.c.Advance(5 * s)
	require.Equal(t, []bool{true, true, true}, f.votes(s))
}

// Whatever a node says in place of what its vote rests on, it has none until it tells that, and then as before.
func TestNodesThatDoNotTellHaveNoVote(t *testing.T) {
	for _, err := range []error{
		fakenode.Error("NOPERM no permission"), fakenode.Error("ERR x"), fakenode.Error("BUSY x"), fakenode.Error("no code"), errors.New("no fields"), io.EOF,
	} {
		for name, f := range map[string]*fleet{"known": usedFleet(), "unknown": usedFleet().newcomer()} {
			for what, report := range map[string]protocol.ServerReport{
				"identity": {Err: err},
				"mark":     {Asked: true, RunID: f.run[0], ReplID: "r", Role: "master", Mark: protocol.MarkOfError(err)},
			} {
				f.g.Saw(0, report)
				require.Equal(t, 10*s, leftOf(f.g, 0, 10*s), "%s %s: %v", name, what, err)
				require.False(t, f.g.Ready(0))
				require.ErrorContains(t, f.g.Why(0, s), err.Error())
				f.ask(0)
				require.Zero(t, leftOf(f.g, 0, 10*s), "%s %s: %v", name, what, err)
				require.True(t, f.g.Ready(0))
			}
		}
	}
}

func TestNoGuard(t *testing.T) {
	g, _ := guardOf(3, -1)
	require.Nil(t, g)
}

func TestGuardOfFencedLocks(t *testing.T) {
	g, _ := guardOf(3, 0)
	require.Equal(t, FirstUse, g.Period(s, false))
	require.Equal(t, 3*s, g.Period(s, true))
	require.Equal(t, 10*s, g.Period(10*s, true))
	g, _ = guardOf(3, 2*s)
	require.Equal(t, 2*s, g.Period(s, false))
	require.Equal(t, 3*s, g.Period(s, true))
	require.Equal(t, 10*s, g.Period(10*s, false), "an earlier grant may last as long")
	require.Equal(t, 10*s, g.Period(10*s, true))
}

// What Judge says without the mutex is what memories say: a guard and memories that are told and asked
// the same at the same times always agree.
func TestJudgeIsWhatMemoriesSay(t *testing.T) {
	periods := []time.Duration{s, 3 * s, 4 * s, 10 * s}
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 1))
		n, fixed := 1+r.IntN(5), r.IntN(4) == 0
		g, c := guardOf(n, 0)
		if fixed {
			g, c = guardOf(n, 5*s)
		}
		ms := NewMemories(n, fixed)
		for range 60 {
			now := c.Now().Mono
			switch i := r.IntN(n); r.IntN(8) {
			case 0:
				c.Advance(time.Duration(r.Int64N(int64(3 * s))))
			case 1, 2:
				report := randomReport(r, i)
				g.Saw(i, report)
				ms.See(i, report, now)
			default:
				p := periods[r.IntN(len(periods))]
				require.Equal(t, ms.Bar(i, p, now), g.Judge(i, p, now), "seed %d", seed)
			}
		}
	}
}

// BenchmarkJudge is a grant.
func BenchmarkJudge(b *testing.B) {
	g, c := guardOf(5, 0)
	now := c.Now().Mono
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if left := g.Judge(2, 10*s, now); left != 0 {
				b.Error("barred")
			}
		}
	})
}

// randomReport is one of a few processes, and of a few marks, so that they come again.
func randomReport(r *rand.Rand, i int) protocol.ServerReport {
	if r.IntN(12) == 0 {
		return protocol.ServerReport{Err: []error{io.EOF, fakenode.Error("NOPERM no"), fakenode.Error("LOADING")}[r.IntN(3)]}
	}
	run := fmt.Sprint("run", i, r.IntN(2))
	report := protocol.ServerReport{RunID: run, ReplID: "repl", Role: "master", Start: int64(r.IntN(3)), Puts: int64(r.IntN(2)), Asked: r.IntN(2) == 0}
	if r.IntN(12) == 0 {
		report.Role = "slave"
	}
	switch r.IntN(6) {
	case 0:
		report.Mark = protocol.Mark{State: protocol.MarkAbsent}
	case 1:
		report.Mark = protocol.MarkOfError(fakenode.Error("NOPERM no"))
	case 2: // not looked at
	default:
		how := []string{"first", "first", "later"}[r.IntN(3)]
		text := fmt.Sprintf("id%d %d %s %s repl %d %d", r.IntN(2), 1_000_000, how, run, r.IntN(3), r.IntN(2))
		report.Mark = protocol.ReadMark(text, true, time.Duration(1+r.IntN(5))*s)
	}
	return report
}
