package redlock

import (
	"fmt"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
)

// simSent is the SET of a value, as it was sent to one server.
type simSent struct {
	node  int
	value string
}

// simHeard is what its process was told of it.
type simHeard uint8

const (
	heardNothing simHeard = iota // that it is out, or that its answer was lost
	heardRefused
	heardGranted
	heardFailed
	heardNoScript
)

func (h simHeard) String() string {
	return [...]string{"an unknown outcome", "a refusal", "a grant", "an error", "an unknown script"}[h]
}

// sends is I9: the SET of a value goes to a server once, and again only if that refused it
// and was sent no release of the value. A message that the network doubles was sent once.
func (w *simWorld) sends(p *simProcess, node int, batch []*lane.Call) {
	var wrong []string
	w.mu.Lock()
	for _, c := range batch {
		switch c.Req.Op {
		case protocol.OpRelease:
			w.taken[simSent{node, c.Req.Value}] = true
		case protocol.OpAcquire, protocol.OpAcquireFenced, protocol.OpAcquireShared, protocol.OpAdopt:
			set := simSent{node, c.Req.Value}
			w.sentBy[c.Req.Value] = simSender{p, w.t()}
			heard, again := w.sets[set]
			switch {
			case !again, heard == heardNoScript:
			case heard != heardRefused:
				wrong = append(wrong, fmt.Sprintf("the SET of %.6s goes to node %d again after %v", set.value, node, heard))
			case w.taken[set]:
				wrong = append(wrong, fmt.Sprintf("the SET of %.6s goes to node %d again after a release", set.value, node))
			default:
				w.count.Again++
				w.reached("a SET is sent again to a node that refused", true)
			}
			w.sets[set] = heardNothing
		}
	}
	w.mu.Unlock()
	for _, what := range wrong {
		w.violated("I9: %s", what)
	}
}

// hears notes the answers to a batch.
func (w *simWorld) hears(node int, batch []*lane.Call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range batch {
		if !c.Req.Op.Acquires() || !c.Answered() {
			continue
		}
		heard := heardFailed
		switch c.Read(c.Req.Op).Kind {
		case protocol.Refused:
			heard = heardRefused
		case protocol.Granted:
			heard = heardGranted
		}
		if c.UnknownScript() {
			heard = heardNoScript
		}
		w.sets[simSent{node, c.Req.Value}] = heard
	}
}
