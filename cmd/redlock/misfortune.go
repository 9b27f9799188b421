package main

import (
	"context"
	"slices"
	"time"

	"github.com/quorumlock/redlock/redlocktest"
)

// deed is what happens to nodes, or to the worker that holds the lock.
type deed string

const (
	kill    deed = "kill"
	restart deed = "restart"
	hang    deed = "hang"
	resume  deed = "resume"
	crashIt deed = "crash"

	// What only viewers of the page do.
	restartEmpty deed = "restart empty"
	isolate      deed = "cut off"
	heal         deed = "heal"
	flush        deed = "flush"
	bringBack    deed = "bring back" // undoes what was done to the node, whatever it is
)

// misfortune is a deed at a time, which is a share of the demo's duration.
type misfortune struct {
	at    float64
	deed  deed
	nodes []int
}

// plan is for five nodes, of which no more than two are ever away or barred: what would take
// more waits, or is left out where leases are long for the duration. Nodes come back
// with their keys, as with appendonly yes: one that forgets its votes would have to
// stay away until the leases that it granted are over.
var plan = []misfortune{
	{at: 0.12, deed: kill, nodes: []int{1}},
	{at: 0.24, deed: hang, nodes: []int{3}},
	{at: 0.38, deed: resume, nodes: []int{3}},
	{at: 0.45, deed: restart, nodes: []int{1}},
	{at: 0.48, deed: crashIt},
	{at: 0.72, deed: kill, nodes: []int{0, 2}},
	{at: 0.90, deed: restart, nodes: []int{0, 2}},
}

// crashMost is when the rest of the plan goes on though the lease of the crashed holder
// is not over yet, as a share of the duration.
const crashMost = 0.80

// misfortunes carries the plan out until ctx ends, and then mends what is broken. On
// servers that are not ours, only what happens to workers happens.
func (d *demo) misfortunes(ctx context.Context) error {
	var hit map[int]deed
	if d.cluster != nil {
		hit = make(map[int]deed)
		defer d.mend(hit)
	}
	begin := time.Now()
	for i, m := range plan {
		if m.deed != crashIt && d.cluster == nil {
			continue
		}
		at := func(share float64) time.Time { return begin.Add(time.Duration(share * float64(d.duration))) }
		if !sleep(ctx, time.Until(at(m.at))) {
			return nil
		}
		if harms := m.deed == kill || m.deed == hang; harms && !d.spares(ctx, hit, len(m.nodes), at(undone(i))) {
			continue // before it could be done without taking a majority away, it would be over
		} else if !harms && m.deed != crashIt && hit[m.nodes[0]] == "" {
			continue
		}
		if m.deed == crashIt {
			d.crash <- struct{}{}
			select { // what comes next shall not disturb it
			case <-d.crashOver:
			case <-time.After(time.Until(at(crashMost))):
			case <-ctx.Done():
			}
			continue
		}
		e := &fault{Fault: m.deed, total: len(d.nodes)}
		for _, n := range m.nodes {
			e.Nodes = append(e.Nodes, d.label(n))
			if m.deed == kill || m.deed == hang {
				hit[n] = m.deed
			} else {
				delete(hit, n)
			}
			if m.deed == restart {
				d.cameBack(n)
			}
		}
		e.Away, e.Barred = len(hit), d.barred(hit)
		d.out.emit(e) // before it shows in anybody's votes
		for _, n := range m.nodes {
			m.deed.do(d.cluster.Node(n))
		}
	}
	return nil
}

// undone is when the plan undoes what it does at this place.
func undone(i int) float64 {
	for _, m := range plan[i+1:] {
		if slices.Contains(m.nodes, plan[i].nodes[0]) {
			return m.at
		}
	}
	return 1
}

// spares waits until so many more nodes can be away and a majority votes yet. It returns false
// when that is too late.
func (d *demo) spares(ctx context.Context, hit map[int]deed, more int, late time.Time) bool {
	for len(hit)+d.waitedFor(hit)+more > len(d.nodes)-d.quorum {
		if !time.Now().Before(late) || !sleep(ctx, 10*time.Millisecond) {
			return false
		}
	}
	return true
}

func (d *demo) mend(hit map[int]deed) {
	for n, was := range hit {
		if was == kill {
			restart.do(d.cluster.Node(n))
		} else {
			resume.do(d.cluster.Node(n))
		}
	}
}

func (what deed) do(n *redlocktest.Node) {
	switch what {
	case kill:
		n.Stop()
	case restart:
		n.Restart(redlocktest.KeepKeys)
	case hang:
		n.Hang()
	case resume:
		n.Resume()
	case restartEmpty:
		n.Restart(redlocktest.LoseKeys)
	case isolate:
		n.Partition(redlocktest.Blackhole)
	case heal:
		n.Heal()
	case flush:
		n.FlushAll()
	}
}
