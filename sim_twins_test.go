package redlock

import (
	"math/rand/v2"
	"time"
)

// Two names of one server.

// drawTwins has names lead to other nodes' servers for a while. It has randomness of its own, so that
// plans without it are what they were. Without a guard nobody looks at who answers.
func (p *simPlan) drawTwins() {
	r := rand.New(rand.NewPCG(p.Seed, 0x7417))
	nodes := len(p.Nodes)
	if r.IntN(12) > 0 || p.Strict || p.RestartGuard < 0 || nodes < 2 {
		return
	}
	f := simFault{Kind: faultTwin}
	each := r.IntN(2) == 0
	for range 1 + r.IntN(nodes) {
		f.Node = r.IntN(nodes)
		f.To = (f.Node + 1 + r.IntN(nodes-1)) % nodes
		f.At = time.Duration(r.Int64N(int64(p.Until))) * time.Duration(r.IntN(4)) / 3
		f.For = time.Duration(r.Int64N(int64(p.Until)))
		for f.Proc = range p.Processes {
			if each || r.IntN(2) == 0 {
				p.Faults = append(p.Faults, f)
			}
		}
	}
}

// led is the node whose server answers a process by this node's name now.
func (n *simNode) led(p *simProcess) *simNode {
	t := n.w.t()
	for _, f := range n.w.plan.Faults {
		if f.Kind == faultTwin && f.Node == n.i && f.Proc == p.i && t >= int64(f.At) && t < int64(f.At+f.For) {
			return n.w.nodes[f.To]
		}
	}
	return n
}
