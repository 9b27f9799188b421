//go:build invariants || race

package lane

import (
	"github.com/quorumlock/redlock/internal/invariants"
	"github.com/quorumlock/redlock/internal/protocol"
)

// mostReleased bounds how many values are remembered; what is sent again is sent soon.
const mostReleased = 1024

// released has the values whose release was sent last.
type released struct {
	values map[string]bool
	order  []string // the last ones, as a ring
	next   int      // of order, once it is full
}

func (r *released) add(value string) {
	if r.values == nil {
		r.values = make(map[string]bool)
	}
	switch {
	case r.values[value]:
		return
	case len(r.order) < mostReleased:
		r.order = append(r.order, value)
	default:
		delete(r.values, r.order[r.next])
		r.order[r.next] = value
		r.next = (r.next + 1) % mostReleased
	}
	r.values[value] = true
}

// check looks at a batch that is about to go out: none of its keys is in a batch that is out, where one of them may
// overtake the other, and no SET follows the release of its value, which nothing would take back.
func (f *flight) check(b *batch) {
	busy := f.keys()
	for _, c := range b.calls {
		switch op := c.Req.Op; {
		case busy[c.Req.Key]:
			invariants.Broken("%v of %q goes to a node where another request of that key is out", op, c.Req.Key)
		case op == protocol.OpRelease && c.Req.Value != "":
			f.freed.add(c.Req.Value)
		case op.Sets() && f.freed.values[c.Req.Value]:
			invariants.Broken("%v of %q sends %.6s to a node that was sent its release", op, c.Req.Key, c.Req.Value)
		}
	}
}
