package guard

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
)

// A randomized model of nodes that forget and clients that acquire, with the real guard in
// between. It tries to get two holders. At most one node forgets within two TTLs, since the
// promise is about a minority.
//
//	go test -run TestMarkModel -mark.seeds=20000
var markSeeds = flag.Int("mark.seeds", 0, "how many seeds of the memory mark's model to run, per row")

const modelTTL = time.Second

// markRules is what a row of the model is about. The zero value is what the library does.
type markRules struct {
	// What the clients do with their connections.
	lookAhead bool          // the look goes ahead of the SETs, and not behind
	lookLazy  time.Duration // look again only after so long
	noLook    bool          // only new connections are asked
	infoLazy  time.Duration // the replication id is read after so long
	infoIdle  bool          // ... and if the last SET was answered longer ago than a copy takes
	noReplID  bool          // it does not count
	noPuts    bool          // the server counts no commands
	noFormer  bool          // a new one is always taken for one that was drawn anew
	// What is changed in the guard.
	after func(m *Memory)
	fixed time.Duration
	// What happens.
	nodes     []int
	quick     bool // REPLICAOF and back takes no time
	evict     bool // the mark is evicted now and then
	clocks    bool // nodes' clocks are set, forward or back
	legacy    bool // the fleet was in use by clients without marks, and a node has just been restarted
	newcomers bool // nobody stays
	stay      bool // nobody comes
	ahead     bool // the clock of a node that has forgotten is set forward then
}

// markModel is one run.
type markModel struct {
	r         *rand.Rand
	rules     *markRules
	now       int64
	lastFault int64
	nodes     []*markNode
	saved     []map[string]*fakenode.Key
	leadsAt   []int64 // when a replica becomes a master again; 0: it is none
	aheadAt   []int64 // when a node's clock is set forward; 0: it is not
	clients   []*modelClient
	held      []modelHold
	log       []string
	verbose   bool
}

type modelHold struct {
	key   string
	until int64
}

type modelClient struct {
	*markClient
	run    []int   // to which process a connection leads; 0: none
	looked []int64 // when the mark was seen last
	info   []int64 // and the replication id
	setOK  []int64 // when the last SET was answered
	stale  []modelStale
}

// modelStale is an answer that is late.
type modelStale struct {
	node int
	s    protocol.ServerReport
}

var modelKeys = []string{"k1", "k2"}

func newMarkModel(seed uint64, rules *markRules) *markModel {
	r := rand.New(rand.NewPCG(seed, 0x3a7c))
	w := &markModel{r: r, rules: rules, now: int64(1000 * time.Hour), verbose: *markSeeds == 1}
	sizes := rules.nodes
	if sizes == nil {
		sizes = []int{2, 3, 3, 4, 5, 5}
	}
	up := []time.Duration{time.Hour, time.Hour, 100 * time.Millisecond}[r.IntN(3)]
	if rules.legacy {
		up = time.Hour
	}
	n := sizes[r.IntN(len(sizes))]
	for i := range n {
		w.nodes = append(w.nodes, newMarkNode(i, &w.now, up))
	}
	w.saved, w.leadsAt, w.aheadAt = make([]map[string]*fakenode.Key, n), make([]int64, n), make([]int64, n)
	// In the first moments of a fleet's life nothing tells a node that lost all from one that
	// is used for the first time, so nothing is lost then.
	w.lastFault = w.now + int64(FirstUse+500*time.Millisecond) - w.rest()
	if rules.legacy {
		w.holdBefore(r.IntN(n))
	}
	for range 2 {
		w.join()
	}
	return w
}

// holdBefore has somebody hold the lock on a bare majority, of which a node was restarted.
func (w *markModel) holdBefore(node int) {
	n := len(w.nodes)
	for j := range n/2 + 1 {
		if k := (node + j) % n; k != node {
			w.nodes[k].store.Set(modelKeys[0], "before", modelTTL.Milliseconds(), &fakenode.Op{})
		}
	}
	w.nodes[node].restart(nil)
	w.lastFault = w.now
	w.held = append(w.held, modelHold{modelKeys[0], w.now + int64(modelTTL)})
}

func (w *markModel) rest() int64 { return int64(2*modelTTL + 200*time.Millisecond) }

func (w *markModel) join() *modelClient {
	n := len(w.nodes)
	c := &modelClient{
		markClient: newMarkClient(w.nodes, &w.now, w.rules.fixed, len(w.clients)),
		run:        make([]int, n), looked: make([]int64, n), info: make([]int64, n), setOK: make([]int64, n),
	}
	w.clients = append(w.clients, c)
	return c
}

func (w *markModel) say(format string, args ...any) {
	if w.verbose {
		w.log = append(w.log, fmt.Sprintf("%9.3f ", float64(w.now%int64(time.Hour))/1e6)+fmt.Sprintf(format, args...))
	}
}

func (w *markModel) oneIn(n int) bool { return w.r.IntN(n) == 0 }

// pass lets up to d pass.
func (w *markModel) pass(d time.Duration) {
	w.now += w.r.Int64N(int64(d) + 1)
	for i, at := range w.leadsAt {
		if at > 0 && w.now >= at {
			w.leadsAt[i] = 0
			w.nodes[i].lead(w.saved[i])
			w.say("node %d leads again", i)
		}
		if at := w.aheadAt[i]; at > 0 && w.now >= at {
			w.aheadAt[i] = 0
			w.nodes[i].skew += int64(time.Hour)
		}
	}
}

// step reports whether there is no more than one holder.
func (w *markModel) step() bool {
	w.pass(120 * time.Millisecond)
	for i, n := range w.nodes {
		if w.saved[i] == nil || w.leadsAt[i] == 0 && w.oneIn(6) {
			w.saved[i] = n.copied()
		}
	}
	switch x := w.r.IntN(100); {
	case x < 6:
		w.perhaps(1, w.r.IntN(len(w.nodes)))
	case x < 12 && !w.rules.stay, w.rules.newcomers:
		w.acquire(w.join())
	default:
		w.acquire(w.clients[w.r.IntN(len(w.clients))])
	}
	for _, key := range modelKeys {
		holders := 0
		for _, h := range w.held {
			if h.key == key && h.until > w.now {
				holders++
			}
		}
		if holders > 1 {
			return false
		}
	}
	return true
}

// perhaps has a node forget, one time in so many, if no other did lately.
func (w *markModel) perhaps(times, i int) {
	if w.now-w.lastFault <= w.rest() || w.leadsAt[i] > 0 || !w.oneIn(times) {
		return
	}
	n := w.nodes[i]
	w.lastFault = w.now
	switch w.r.IntN(8) {
	case 0:
		w.say("node %d restarts", i)
		n.restart(nil)
	case 1:
		w.say("node %d restarts from a snapshot", i)
		n.restart(w.saved[i])
	case 2:
		w.say("node %d: a replica is promoted", i)
		n.promote(w.saved[i], time.Duration(w.r.IntN(100))*time.Second)
	case 3:
		w.say("node %d follows", i)
		n.follow()
		w.leadsAt[i] = w.now
		if !w.rules.quick {
			w.leadsAt[i] += int64(60+w.r.IntN(200)) * int64(time.Millisecond)
			w.lastFault = w.leadsAt[i]
		}
	case 4:
		w.say("node %d is flushed", i)
		n.flush()
	case 5:
		w.say("node %d draws a new replication id", i)
		n.redraw()
		w.lastFault = 0
	case 6:
		w.misc(i)
	case 7:
		if w.rules.noPuts {
			return
		}
		w.say("node %d has a copy of its data put back", i)
		n.swap(w.saved[i])
	}
	if w.rules.ahead && w.lastFault > 0 {
		w.aheadAt[i] = w.lastFault + w.r.Int64N(int64(modelTTL))
		w.lastFault = w.aheadAt[i]
	}
	w.pass(0)
}

// misc is what may happen besides.
func (w *markModel) misc(i int) {
	n := w.nodes[i]
	switch {
	case w.rules.clocks:
		n.skew -= w.r.Int64N([]int64{int64(2 * modelTTL), int64(time.Hour)}[w.r.IntN(2)])
		w.say("node %d has its clock set back", i)
		w.lastFault = 0
	case w.rules.evict:
		w.say("node %d evicts the mark", i)
		delete(n.store.Keys, protocol.MarkKey)
		fallthrough
	default:
		w.lastFault = 0
	}
}

// tell hands the guard what a row's clients see of it.
func (w *markModel) tell(c *modelClient, i int, s protocol.ServerReport) {
	if w.rules.noReplID {
		if s.ReplID != "" {
			s.ReplID = "any"
		}
		if s.Mark.State == protocol.MarkPresent {
			s.Mark.ReplID = "any"
		}
	}
	if w.rules.noPuts {
		s.Puts, s.Mark.Puts = 0, 0
	}
	if w.rules.noFormer {
		s.FormerID = "0"
	}
	c.markClient.tell(i, s)
	if w.rules.after != nil {
		m := &c.g.memories.Nodes[i]
		w.rules.after(m)
		c.g.quiet[i].Store(m.quiet(c.g.memories.all()))
	}
}

// connect asks who answers, over a new connection. The answer may be late for another one.
func (w *markModel) connect(c *modelClient, i int) {
	n := w.nodes[i]
	s := n.ask()
	if w.oneIn(10) {
		c.stale = append(c.stale, modelStale{i, s})
	}
	w.pass(time.Millisecond)
	w.tell(c, i, s)
	c.run[i], c.looked[i], c.info[i] = n.run, w.now, w.now
}

// look is what is read with a batch.
func (w *markModel) look(c *modelClient, i int) {
	ru := w.rules
	if ru.noLook || ru.lookLazy > 0 && w.now-c.looked[i] < int64(ru.lookLazy) {
		return
	}
	s := w.nodes[i].look()
	lazy := ru.infoLazy > 0 && w.now-c.info[i] < int64(ru.infoLazy)
	if ru.infoIdle && w.now-c.setOK[i] >= int64(50*time.Millisecond) {
		lazy = false
	}
	if !lazy {
		s = w.nodes[i].ask()
		s.Asked = false
		c.info[i] = w.now
	}
	c.looked[i] = w.now
	w.tell(c, i, s)
}

// grant is one node's, as it is judged when it comes.
type modelGrant struct {
	node   int
	counts bool
}

// batch sends a SET to a node. It reports what came of it, and whether the key is ours there.
func (w *markModel) batch(c *modelClient, i int, key, value string) (g modelGrant, landed bool) {
	n := w.nodes[i]
	g.node = i
	if c.run[i] != n.run || !c.g.Ready(i) {
		w.connect(c, i)
	}
	if !c.g.Ready(i) {
		return g, false
	}
	if w.rules.lookAhead {
		w.look(c, i)
	}
	w.perhaps(10, i)
	w.pass(3 * time.Millisecond)
	if c.run[i] != n.run { // the connection broke
		c.run[i] = 0
		return g, false
	}
	if n.replica { // READONLY
		w.connect(c, i)
		return g, false
	}
	if landed = n.store.Get(key) == nil; landed {
		n.store.Set(key, value, modelTTL.Milliseconds(), &fakenode.Op{})
	}
	if !w.rules.lookAhead {
		w.perhaps(10, i)
		if c.run[i] != n.run { // the look has no answer
			c.run[i] = 0
			return g, landed
		}
		w.look(c, i)
	}
	c.setOK[i] = w.now
	if landed {
		g.counts = c.g.Judge(i, c.g.Period(modelTTL, false), w.now) == 0
	}
	return g, landed
}

func (w *markModel) acquire(c *modelClient) {
	key := modelKeys[w.r.IntN(len(modelKeys))]
	value := fmt.Sprint(w.r.Uint64())
	start := w.now
	var grants []modelGrant
	var ours []int
	for _, i := range w.r.Perm(len(w.nodes)) {
		if w.oneIn(12) {
			continue // it is down
		}
		g, landed := w.batch(c, i, key, value)
		if landed {
			ours = append(ours, i)
			grants = append(grants, g)
		}
		w.pass(3 * time.Millisecond)
	}
	if len(c.stale) > 0 && w.oneIn(3) {
		w.tell(c, c.stale[0].node, c.stale[0].s)
		c.stale = c.stale[1:]
	}
	votes := 0
	for _, g := range grants {
		if g.counts {
			votes++
		}
	}
	if votes >= len(w.nodes)/2+1 {
		w.held = append(w.held, modelHold{key, start + int64(modelTTL) - int64(12*time.Millisecond)})
		w.say("%p holds %s by %v", c, key, grants)
		return
	}
	for _, i := range ours {
		if v, _, _ := w.nodes[i].store.Text(key); v == value {
			w.nodes[i].store.Del(key, &fakenode.Op{})
		}
	}
}

// run reports whether there was never more than one holder.
func (w *markModel) run() bool {
	for range 150 {
		if !w.step() {
			w.say("TWO HOLDERS of %d nodes", len(w.nodes))
			return false
		}
		// What is over has no part in anything.
		if len(w.held) > 40 {
			w.held = w.held[20:]
		}
	}
	return true
}

// brokenSeeds is how many of so many seeds end with two holders, which is the first that did,
// and how often a lock was had at all.
func brokenSeeds(t *testing.T, rules markRules, from, seeds int, first bool) (broken, seed, held int64) {
	var next, bad, holds, found atomic.Int64
	next.Store(int64(from) - 1)
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			for !first || bad.Load() == 0 {
				seed := next.Add(1)
				if seed >= int64(from+seeds) {
					return
				}
				w := newMarkModel(uint64(seed), &rules)
				if !w.run() {
					bad.Add(1)
					found.CompareAndSwap(0, seed)
				}
				holds.Add(int64(len(w.held)))
				for _, line := range w.log {
					t.Log(line)
				}
			}
		})
	}
	group.Wait()
	return bad.Load(), found.Load(), holds.Load()
}

// What the library does, under everything that the promise covers.
func TestMarkModelKeepsOneHolder(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		rules markRules
	}{
		{"everything looked at behind the SETs", markRules{}},
		{"the replication id once a second, or after a pause", markRules{infoLazy: time.Second, infoIdle: true}},
		{"servers that count no commands", markRules{noPuts: true}},
		{"even numbers", markRules{nodes: []int{2, 4, 6}}},
		{"the mark is evicted", markRules{evict: true}},
		{"clocks are set back", markRules{clocks: true}},
		{"who saw it is not deceived by the clock of a node that forgot", markRules{stay: true, ahead: true}},
		{"nobody stays", markRules{newcomers: true}},
		{"a fixed guard", markRules{fixed: modelTTL}},
		{"one node with a fixed guard", markRules{nodes: []int{1}, fixed: modelTTL}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			seeds := *markSeeds
			if seeds == 0 {
				seeds = 300
			}
			broken, seed, held := brokenSeeds(t, row.rules, 1, seeds, false)
			t.Logf("%d of %d seeds with two holders, %d times held in the end", broken, seeds, held)
			assert.Zero(t, broken, "for one, seed %d", seed)
			assert.NotZero(t, held)
		})
	}
}

// Each rule has a row in which it is switched off, and then there are two holders: the
// model can see that.
func TestMarkModelNeedsEachRule(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name  string
		rules markRules
		from  int // the seed to begin with: the first that shows it
	}{
		{"the look goes ahead of the SETs", markRules{lookAhead: true}, 1},
		{"the look goes behind them, after 100 ms", markRules{lookLazy: 100 * time.Millisecond}, 1},
		{"no look", markRules{noLook: true}, 1},
		{"not bound to the replication id, and no commands counted", markRules{noReplID: true, noPuts: true}, 1},
		{"every new replication id is taken for one that was drawn anew, and no commands counted", markRules{noFormer: true, noPuts: true}, 1},
		{"the replication id is read once a second", markRules{infoLazy: time.Second, quick: true}, 1},
		{"what we saw change does not count", markRules{stay: true, ahead: true, after: func(m *Memory) { m.changedAt, m.seenAt, m.ahead = LongAgo, LongAgo, noClock }}, 1},
		{"a mark's age does not count", markRules{after: func(m *Memory) { m.markedAt = LongAgo }}, 1},
		{"a first mark counts at once", markRules{newcomers: true, after: func(m *Memory) {
			if m.mark.First {
				m.markedAt = LongAgo
			}
		}}, 1},
		{"in use by clients that write no marks", markRules{legacy: true}, 1},
		{"one node without a fixed guard", markRules{nodes: []int{1}}, 1},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			from, seeds, first := 1, *markSeeds, false
			if seeds == 0 {
				from, seeds, first = max(1, row.from), 40000, true
			}
			broken, seed, _ := brokenSeeds(t, row.rules, from, seeds, first)
			t.Logf("%d of %d seeds with two holders, for one seed %d", broken, seeds, seed)
			assert.NotZero(t, broken)
		})
	}
}
