package guard

import (
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/fakenode"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/ticktest"
)

func TestBarredFor(t *testing.T) {
	const (
		now    = int64(time.Hour)
		second = int64(time.Second)
		period = 10 * time.Second
	)
	of := func(bornAt, changedAt int64) Memory {
		return Memory{Identity: identityKnown, runID: "a", bornAt: bornAt, changedAt: changedAt}
	}
	young := of(now-4*second, LongAgo)
	promoted := of(now-1000*second, now-3*second)
	restarted := of(now-second, now-second/2)
	for name, c := range map[string]struct {
		m     Memory
		first bool
		want  time.Duration
	}{
		"mute":                           {Memory{Identity: identityWithheld, changedAt: LongAgo}, false, 0},
		"mute where another had spoken":  {Memory{Identity: identityWithheld, changedAt: now - second}, false, 9 * time.Second},
		"of age to the nanosecond":       {of(now-10*second, LongAgo), false, 0},
		"a nanosecond too young":         {of(now-10*second+1, LongAgo), false, 1},
		"young":                          {young, false, 6 * time.Second},
		"young at the first start":       {young, true, 0},
		"promoted, though old":           {promoted, false, 7 * time.Second},
		"promoted, no first start":       {promoted, true, 7 * time.Second},
		"changed longer ago":             {of(now-90*second, now-10*second), false, 0},
		"restarted: the later counts":    {restarted, false, 9500 * time.Millisecond},
		"restarted, all of them at once": {restarted, true, 9500 * time.Millisecond},
	} {
		require.Equal(t, c.want, c.m.barredFor(period, false, c.first, now), name)
	}
}

// guardOf is a guard of n nodes and the clock that it goes by.
func guardOf(n int, fixed time.Duration) (*Guard, *ticktest.FakeClock) {
	c := ticktest.NewFakeClock()
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprint("node", i)
	}
	return New(names, fixed, false, c, func(Degradation) {}), c
}

func seeAll(g *Guard, ids string, uptimes ...time.Duration) {
	for i, u := range uptimes {
		g.Saw(i, protocol.ServerReport{RunID: fmt.Sprint(ids, i), Uptime: u})
	}
}

func leftOf(g *Guard, i int, ttl time.Duration) time.Duration {
	left, _ := g.Judge(i, g.Period(ttl, false), g.clock.Now().Mono)
	return left
}

const s = time.Second

func TestGuardOfNodesThatAreOld(t *testing.T) {
	g, c := guardOf(3, 0)
	seeAll(g, "a", 99*s, 99*s, 99*s)
	require.Zero(t, leftOf(g, 0, 10*s))
	g.Saw(0, protocol.ServerReport{RunID: "b", Uptime: 0})
	require.Equal(t, 10*s, leftOf(g, 0, 10*s))
	require.Equal(t, 24*time.Hour, leftOf(g, 0, 24*time.Hour), "a longer lock waits longer")
	require.Zero(t, leftOf(g, 1, 10*s))
	require.Equal(t, time.Duration(0), leftOf(g, 1, 97*s), "the others are not concerned")
	c.Advance(10*s - 1)
	require.Equal(t, time.Duration(1), leftOf(g, 0, 10*s))
	c.Advance(1)
	require.Zero(t, leftOf(g, 0, 10*s))
	require.NotZero(t, leftOf(g, 0, 24*time.Hour))
}

func TestGuardGoesByTheMonotonicClock(t *testing.T) {
	g, c := guardOf(3, 0)
	seeAll(g, "a", 99*s, 99*s, 99*s)
	g.Saw(0, protocol.ServerReport{RunID: "b", Uptime: 3600 * s})
	for _, step := range []time.Duration{time.Hour, -9 * time.Hour} {
		c.SetWall(step) // also what a suspended machine sees: it may only wait longer
		require.Equal(t, 10*s, leftOf(g, 0, 10*s))
	}
}

// The same process again is no news, whatever a clock that was set makes of its age.
func TestGuardKeepsWhatItSawOfAProcessFirst(t *testing.T) {
	g, c := guardOf(3, 0)
	seeAll(g, "a", 99*s, 99*s, 99*s)
	seeAll(g, "a", 0, 0, 0)
	require.Zero(t, leftOf(g, 0, 10*s))
	g.Saw(1, protocol.ServerReport{RunID: "b", Uptime: 2 * s})
	g.Saw(1, protocol.ServerReport{RunID: "b", Uptime: 7200 * s})
	c.Advance(s)
	require.Equal(t, 9*s, leftOf(g, 1, 10*s))
}

func TestGuardOfTheFirstStart(t *testing.T) {
	g, c := guardOf(3, 0)
	g.Saw(0, protocol.ServerReport{RunID: "a0", Uptime: s})
	left, open := g.Judge(0, 10*s, c.Now().Mono)
	require.NotZero(t, left)
	require.True(t, open, "the others were not seen yet")
	seeAll(g, "a", s, 2*s, s)
	require.Zero(t, leftOf(g, 0, 10*s))
	require.Zero(t, leftOf(g, 1, 20*s), "young for a longer guard too")
	require.NotZero(t, leftOf(g, 0, s), "not for one that the second has outgrown")

	// The first one comes of age before the others: nothing changes for them.
	c.Advance(9 * s)
	require.Zero(t, leftOf(g, 0, 10*s))

	g.Saw(2, protocol.ServerReport{RunID: "b", Uptime: 0})
	require.Equal(t, 10*s, leftOf(g, 2, 10*s), "a restart afterwards is one")
	require.Equal(t, s, leftOf(g, 0, 10*s), "and no first start any more")
}

func TestGuardWithOneOldNodeIsNoFirstStart(t *testing.T) {
	g, _ := guardOf(5, 0)
	seeAll(g, "a", s, s, s, 99*s, 99*s)
	require.Equal(t, []time.Duration{10 * s, 10 * s, 10 * s, 0, 0},
		[]time.Duration{leftOf(g, 0, 10*s), leftOf(g, 1, 10*s), leftOf(g, 2, 10*s), leftOf(g, 3, 10*s), leftOf(g, 4, 10*s)})
}

// The server that a name should lead to may be old, where it leads to another node's.
func TestGuardOfTwoNamesOfOneServer(t *testing.T) {
	g, _ := guardOf(3, 0)
	for i, run := range []string{"a0", "a1", "a1"} {
		g.Saw(i, protocol.ServerReport{RunID: run, Uptime: s})
	}
	require.Positive(t, leftOf(g, 0, 10*s), "no first start of three")

	g, _ = guardOf(5, 0)
	for i, run := range []string{"a0", "a1", "a1"} { // the others cannot be reached
		mark := protocol.ReadMark("id"+run+" 1000000 3600000000 first "+run+" r", true, of(2_000_000))
		g.Saw(i, protocol.ServerReport{Asked: true, RunID: run, ReplID: "r", Uptime: 3600 * s, Mark: mark})
	}
	require.Positive(t, leftOf(g, 0, 10*s), "two of five do not witness a first use")
	mark := protocol.ReadMark("ida2 1000000 3600000000 first a2 r", true, of(2_000_000))
	g.Saw(3, protocol.ServerReport{Asked: true, RunID: "a2", ReplID: "r", Uptime: 3600 * s, Mark: mark})
	require.Zero(t, leftOf(g, 0, 10*s), "three do")
}

func TestFixedGuard(t *testing.T) {
	g, c := guardOf(3, 5*s)
	seeAll(g, "a", s, s, 3*s)
	left, open := g.Judge(0, g.Period(s, false), c.Now().Mono)
	require.Equal(t, 5*s, left, "although all are young")
	require.False(t, open)
	require.Equal(t, 3*s, leftOf(g, 2, s))
	require.Equal(t, 8*s, leftOf(g, 2, 10*s), "an earlier lease may be as long")
	c.Advance(5 * s)
	require.Zero(t, leftOf(g, 0, s))
}

func TestGuardOfNodesThatDoNotTell(t *testing.T) {
	g, c := guardOf(3, 0)
	g.Saw(0, protocol.ServerReport{Err: fakenode.Error("NOPERM no permission")})
	g.Saw(1, protocol.ServerReport{RunID: "a", Uptime: 0})
	require.Zero(t, leftOf(g, 0, 10*s), "it votes")
	left, open := g.Judge(1, 10*s, c.Now().Mono)
	require.Equal(t, 10*s, left, "there is no telling that all are young")
	require.False(t, open)
	g.Saw(1, protocol.ServerReport{Err: fakenode.Error("NOPERM no permission")})
	require.Equal(t, 10*s, leftOf(g, 1, 10*s), "what was seen stays")
}

func TestNoGuard(t *testing.T) {
	g, _ := guardOf(3, -1)
	require.Nil(t, g)
}

func TestGuardOfFencedLocks(t *testing.T) {
	g, _ := guardOf(3, 0)
	require.Equal(t, s, g.Period(s, false))
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
	cleared := 0
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
				left, open := g.Judge(i, p, now)
				quiet := ms.Nodes[i].quiet()
				want, wantOpen := time.Duration(0), false
				if now-quiet < int64(p) { // as before, or what memories have learned differs
					want, wantOpen = ms.Bar(i, p, now)
				}
				require.Equal(t, want, left, "seed %d", seed)
				require.Equal(t, wantOpen, open, "seed %d", seed)
				if want == 0 && now-quiet < int64(p) {
					cleared++
				}
			}
		}
	}
	require.Greater(t, cleared, 300, "young nodes that may vote")
}

// BenchmarkJudge is a grant of a fleet that is used for the first time.
func BenchmarkJudge(b *testing.B) {
	g, c := guardOf(5, 0)
	seeAll(g, "a", s, s, s, s, s)
	now := c.Now().Mono
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if left, _ := g.Judge(2, 10*s, now); left != 0 {
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
	report := protocol.ServerReport{RunID: run, ReplID: "repl", Role: "master", Uptime: time.Duration(r.IntN(6)) * s, Asked: r.IntN(2) == 0}
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
		text := fmt.Sprintf("id%d %d %d %s %s repl", r.IntN(2), 1_000_000, r.IntN(6)*1_000_000, how, run)
		report.Mark = protocol.ReadMark(text, true, time.Duration(1+r.IntN(5))*s)
	}
	return report
}
