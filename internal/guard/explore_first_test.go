package guard

import (
	"fmt"
	"hash/maphash"
	"testing"

	"github.com/stretchr/testify/require"
)

// All nodes of a new fleet are up. Each of one, two or three newcomers makes one attempt, and looks again when its guard
// wants to. Whatever the order in which they ask, and in which what they write arrives, the grants of all nodes then
// count for all of them, and no time needs to pass.
func TestFirstStartWaitsForNothing(t *testing.T) {
	for newcomers := 1; newcomers <= xClients; newcomers++ {
		t.Run(fmt.Sprint(newcomers), func(t *testing.T) {
			x := newExplorer(&xScope{tick: sec, ttl: 3, clients: newcomers, fresh: true, hold: 1})
			wanted := false
			x.g.Look = func() { wanted = true }
			type state struct {
				w    xWorld
				owed [xClients][xNodes]int8 // so many looks
			}
			key := func(s *state) uint64 {
				x.encode(&s.w, [xNodes]int{0, 1, 2}, [xClients]int{0, 1, 2})
				for _, c := range s.owed {
					for _, n := range c {
						x.buf = append(x.buf, byte(n))
					}
				}
				return maphash.Bytes(x.seed, x.buf)
			}
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
			first := state{w: *x.begin()}
			for c := range newcomers {
				first.owed[c] = [xNodes]int8{1, 1, 1}
			}
			var seen xSet64
			stack := []state{first} // depth first, so that ends are reached soon
			seen.add(key(&first))
			states, ends, most := 1, 0, exploreMost(70_000)
			for len(stack) > 0 && states < most {
				s := stack[len(stack)-1]
				stack = stack[:len(stack)-1]
				over := true
				for c := range newcomers {
					for i := range xNodes {
						n := s
						wanted = false
						switch pends := n.w.c[c].m[i].pend[0].kind != 0; {
						case pends:
							x.land(&n.w, c, i, 0)
						case s.owed[c][i] > 0:
							n.owed[c][i]--
							x.askHold(&n.w, c, i, false, 2)
						default:
							continue
						}
						over = false
						for j := range xNodes {
							if wanted {
								n.owed[c][j]++
							}
						}
						if seen.add(key(&n)) {
							stack = append(stack, n)
							states++
						}
					}
				}
				if over {
					counts(s.w)
					ends++
				}
			}
			if !raceDetector { // with which three newcomers come to no end in so few states
				require.Positive(t, ends)
			}
			t.Logf("%d states, %d ends, whole %v", states, ends, len(stack) == 0)
		})
	}
}
