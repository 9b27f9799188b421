package guard

import (
	"fmt"
	"hash/maphash"
	"testing"

	"github.com/stretchr/testify/require"
)

// xLooks is how far a newcomer is in its looks at a new fleet.
type xLooks struct {
	round int8
	asked uint8 // the nodes that it asked in this round
}

// All nodes of a new fleet are up. Whatever the order in which one, two or three newcomers ask them, and in
// which what they write arrives, the grants of all nodes count for all of them as soon as each has looked
// often enough for itself, and no time needs to pass.
func TestFirstStartWaitsForNothing(t *testing.T) {
	for newcomers := 1; newcomers <= xClients; newcomers++ {
		t.Run(fmt.Sprint(newcomers), func(t *testing.T) {
			x := newExplorer(&xScope{tick: sec, ttl: 3, clients: newcomers, fresh: true, hold: 1})
			type state struct {
				w    xWorld
				done [xClients]xLooks
			}
			key := func(s *state) uint64 {
				x.encode(&s.w, [xNodes]int{0, 1, 2}, [xClients]int{0, 1, 2})
				for _, d := range s.done {
					x.buf = append(x.buf, byte(d.round), d.asked)
				}
				return maphash.Bytes(x.seed, x.buf)
			}
			var looked [xClients]xLooks
			for c := range newcomers {
				looked[c].round = FirstLooks
			}
			// One that saw that another has begun to tell the nodes waits until it has told all.
			counts := func(w xWorld) {
				for c := range newcomers {
					for i := range xNodes {
						x.ask(&w, c, i, false)
					}
					x.load(&w.c[c])
					for i := range xNodes {
						require.Zero(t, x.g.Judge(i, x.period(), x.clock.mono), "client %d has to wait for node %d", c, i)
					}
				}
			}
			var seen xSet64
			stack := []state{{w: *x.begin()}} // depth first, so that ends are reached soon
			seen.add(key(&stack[0]))
			states, ends, most := 1, 0, exploreMost(70_000)
			for len(stack) > 0 && states < most {
				s := stack[len(stack)-1]
				stack = stack[:len(stack)-1]
				if s.done == looked {
					counts(s.w)
					ends++
				}
				for c := range newcomers {
					if s.done[c].round == FirstLooks {
						continue
					}
					for i := range xNodes {
						n := s
						switch pends := n.w.c[c].m[i].pend[0].kind != 0; {
						case pends:
							x.land(&n.w, c, i, 0)
						case s.done[c].asked>>i&1 == 0:
							x.askHold(&n.w, c, i, false, 2)
							n.done[c].asked |= 1 << i
						default:
							continue
						}
						all := n.done[c].asked == 1<<xNodes-1
						for j := range xNodes {
							all = all && n.w.c[c].m[j].pend[0].kind == 0
						}
						if all {
							n.done[c] = xLooks{round: s.done[c].round + 1}
						}
						if seen.add(key(&n)) {
							stack = append(stack, n)
							states++
						}
					}
				}
			}
			if !raceDetector { // with which three newcomers come to no end in so few states
				require.Positive(t, ends)
			}
			t.Logf("%d states, %d ends, whole %v", states, ends, len(stack) == 0)
		})
	}
}
