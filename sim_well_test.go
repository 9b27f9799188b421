package redlock

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/quorumlock/redlock/internal/guard"
)

// Plans in which everything goes wrong for some seconds and nothing afterwards, while the clients go
// on for half a minute: after the time that recovery may take, all is as if nothing had happened.

const simWell = "well"

const (
	// simWellFor is for how long clients go on after the last fault.
	simWellFor = 30 * time.Second
	// simRecovery is the part of the recovery that no option changes: a connection that was opened
	// to a node that hangs is waited for up to four seconds, and what such a node was sent is sent
	// again after that.
	simRecovery = 5 * time.Second
)

// drawWell has the faults that a node, a process and the way between them recover from.
func (p *simPlan) drawWell(r *rand.Rand) {
	in := func(lo, hi time.Duration) time.Duration { return lo + time.Duration(r.Int64N(int64(hi-lo)+1)) }
	p.Regime, p.Strict, p.RestartGuard = simWell, false, 0
	p.Until = in(time.Second, 4*time.Second)
	p.Fenced = nil
	for range 1 + r.IntN(2) {
		p.Fenced = append(p.Fenced, r.IntN(3) == 0)
		kind := []int{0, 0, manyShare, 1 + r.IntN(3)}[r.IntN(4)]
		if p.Kinds = append(p.Kinds, kind); kind > 0 {
			p.Fenced[len(p.Fenced)-1] = false
		}
	}
	for range 2 + r.IntN(3) {
		proc := simProcessPlan{PPM: r.Int64N(9900) - 4950}
		for range 1 + r.IntN(2) {
			proc.Clients = append(proc.Clients, simClientPlan{Key: r.IntN(len(p.Fenced)), Ops: 1000})
		}
		p.Processes = append(p.Processes, proc)
	}
	p.Users, p.Native = r.IntN(3) == 0, r.IntN(3) == 0
	if r.IntN(2) == 0 {
		p.Torn, p.Reset, p.Slow = r.IntN(300), r.IntN(150), r.IntN(300)
		p.Late, p.Lost, p.Twice, p.Deaf = r.IntN(150), r.IntN(60), r.IntN(150), r.IntN(1000)
	}
	kinds := []string{
		faultCut, faultCut, faultCutOut, faultCutBack, faultCrash, faultCrash, faultErr, faultErr, faultHang, faultHang, faultMute,
		faultForget, faultFlush, faultSwap, faultResync, faultBack, faultPause, faultSuspend, faultWall, faultKill,
	}
	killed := false
	for range 2 + r.IntN(10) {
		f := simFault{Kind: kinds[r.IntN(len(kinds))], Node: r.IntN(len(p.Nodes)), Proc: r.IntN(len(p.Processes)), At: in(0, p.Until)}
		f.For = min(in(0, []time.Duration{p.NodeTimeout, p.TTL, 3 * time.Second}[r.IntN(3)]), p.Until-f.At)
		switch f.Kind {
		case faultBack:
			f.By = -in(0, 3*p.TTL)
		case faultWall:
			f.By = in(0, 3*p.TTL)
		case faultKill:
			if killed {
				continue
			}
			killed = true
		case faultForget, faultFlush, faultSwap, faultResync: // all nodes that are young at once are a fleet that starts
			if f.Node == 0 {
				continue
			}
			f.For = min(f.For, p.TTL)
		}
		if f.For < noticed[f.Kind] {
			continue
		}
		p.Faults = append(p.Faults, f)
	}
	slices.SortFunc(p.Faults, func(a, b simFault) int { return int(a.At - b.At) })
}

// wellFrom is when recovery is over: a node may vote again a TTL after it forgot, and as long after
// that what is left of the last lock that it had no part in is gone; what lands late does so within
// two TTLs, and stays for one.
func (w *simWorld) wellFrom() int64 {
	period := 1.02 * float64(w.plan.TTL)
	if slices.Contains(w.plan.Fenced, true) {
		period = max(period, 1.02*float64(guard.FencedGuard))
	}
	return int64(w.plan.Until) + int64(period) + int64(4*w.plan.TTL+simRecovery)
}

// isWell reports whether a process must be well from t on.
func (w *simWorld) isWell(p *simProcess, t int64) bool {
	return w.plan.Regime == simWell && t >= w.wellFrom() && p.killedAt == never
}

// over reports whether a client of such a plan has done enough.
func (c *simClient) over() bool {
	return c.w.plan.Regime == simWell && c.w.t() > int64(c.w.plan.Until+simWellFor)
}

// checkWell: all that was asked for after the recovery was had, from all nodes, in order and at once.
func (w *simWorld) checkWell(key string, grants []*simGrant) {
	if w.plan.Regime != simWell {
		return
	}
	well := w.wellFrom()
	total, without := make(map[int]int), make(map[[2]int]int) // by process, and node
	for _, g := range grants {
		if g.ret < well || g.proc.killedAt != never {
			continue
		}
		w.count.Well++
		if g.relRet > 0 && g.relErr != nil && g.relErr != errDoTellsNot {
			w.violated("well: the release of %v: %v", g, g.relErr)
		}
		total[g.proc.i]++
		for _, n := range w.nodes {
			if !slices.ContainsFunc(n.holds[key], func(h *simHold) bool { return h.value == g.value && h.from < g.relCalled }) {
				without[[2]int{g.proc.i, n.i}]++
			}
		}
	}
	// A node that still has the last holder's value refuses the next one, which does not need it.
	for at, n := range without {
		if all := total[at[0]]; all >= 8 && n > all/2 {
			w.violated("well: node %d had no part in %d of %d locks of process %d on %s", at[1], n, all, at[0], key)
		}
	}
	clients := 0
	for _, p := range w.plan.Processes {
		clients += len(p.Clients)
	}
	for _, wait := range w.waits[key] {
		if wait.from < well || w.procs[wait.proc].killedAt != never {
			continue
		}
		if n := w.overtaken(wait, grants); n > 2*clients {
			w.violated("well: client %d.%d was overtaken %d times while it waited for %s until %.6f ms", wait.proc, wait.client, n, key, ms(wait.to))
		}
	}
}

// overtaken counts grants during a wait whose clients began to wait after it.
func (w *simWorld) overtaken(wait simWait, grants []*simGrant) (n int) {
	for _, g := range grants {
		if g.call > wait.from && g.ret < wait.to {
			n++
		}
	}
	return n
}

// mustSucceed: an acquire that began after the recovery has the lock.
func (c *simClient) mustSucceed(from int64, err error) {
	if err != nil && c.w.isWell(c.p, from) {
		c.w.violated("well: client %d.%d has no lock: %v", c.p.i, c.i, err)
	}
}
