package redlock

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// goldenGuard is a guard and another one, whose nodes are the same in reverse order.
type goldenGuard struct {
	guards [2]*guard
	clocks [2]*FakeClock
}

func (g *goldenGuard) saw(i int, s sighting) {
	g.guards[0].saw(i, s)
	g.guards[1].saw(len(g.guards[1].names)-1-i, s)
}

// judge says when a node may vote on locks of these terms.
func (g *goldenGuard) judge(i int, t *terms) string {
	var said [2]string
	for which, guard := range g.guards {
		node := i
		if which == 1 {
			node = len(guard.names) - 1 - i
		}
		left, open := guard.judge(node, guard.period(t), g.clocks[which].now().mono)
		switch {
		case open:
			said[which] = fmt.Sprintf("not for %v, unless nodes that were not seen yet are as young", left)
		case left > 0:
			said[which] = fmt.Sprintf("not for %v", left)
		default:
			said[which] = "votes"
		}
	}
	if said[0] != said[1] {
		return said[0] + " MISMATCH in reverse order: " + said[1]
	}
	return said[0]
}

func TestGoldenGuard(t *testing.T) {
	var g goldenGuard
	golden(t, "guard.txt", func(c goldenCommand) string {
		switch c.name {
		case "guard": // n, fixed: a new guard of n nodes
			for i := range g.guards {
				g.guards[i], g.clocks[i] = guardOf(c.number("n"), c.duration("fixed", 0))
			}
		case "saw": // node or all; run, age, or mute: what new connections tell
			g.sawAs(c)
		case "advance": // time passes
			g.eachClock(func(clock *FakeClock) { clock.Advance(c.parse(c.args[0])) })
		case "wall": // the wall clock of this machine is set
			g.eachClock(func(clock *FakeClock) { clock.SetWall(c.parse(c.args[0])) })
		case "judge": // ttl, fenced: may the nodes vote on such locks?
			return g.judgeAll(&terms{ttl: c.duration("ttl", 0), fencing: slices.Contains(c.args, "fenced")})
		case "duplicate":
			if err := g.guards[0].duplicate(); err != nil {
				return err.Error()
			}
			return "none"
		default:
			return c.unknown()
		}
		return ""
	})
}

func (g *goldenGuard) sawAs(c goldenCommand) {
	for i, name := range g.guards[0].names {
		s := sighting{runID: c.values["run"], uptime: c.duration("age", 0)}
		switch c.args[0] {
		case "all": // each is a process of its own
			s.runID += strconv.Itoa(i)
		case name:
		default:
			continue
		}
		if slices.Contains(c.args, "mute") {
			s = sighting{err: errors.New("NOPERM")}
		}
		g.saw(i, s)
	}
}

func (g *goldenGuard) eachClock(f func(*FakeClock)) {
	for _, clock := range g.clocks {
		f(clock)
	}
}

func (g *goldenGuard) judgeAll(t *terms) string {
	var b strings.Builder
	for i, name := range g.guards[0].names {
		fmt.Fprintf(&b, "%s: %s\n", name, g.judge(i, t))
	}
	return b.String()
}
