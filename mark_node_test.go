package redlock

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"
)

// markNode is a server as far as the memory mark goes: what it tells, what it keeps, and
// the ways in which it forgets. The golden file and the model of the rules use it.
type markNode struct {
	i       int
	now     *int64 // true time, nanoseconds
	skew    int64  // of its wall clock
	run     int    // process
	repl    int    // replication id
	former  int    // and the one before; 0: none
	copies  int    // ids given to it so far
	bornAt  int64
	replica bool
	store   *memStore
}

func newMarkNode(i int, now *int64, up time.Duration) *markNode {
	n := &markNode{i: i, now: now, run: 1, repl: 1, copies: 1, bornAt: *now - int64(up)}
	n.store = newMemStore(n.wall)
	return n
}

func (n *markNode) wall() int64 { return simEpoch + *n.now + n.skew }

// id names a process or a replication.
func (n *markNode) id(of int, what string) string {
	return what + strconv.Itoa(n.i) + "." + strconv.Itoa(of)
}

// ask is the answer to the full question.
func (n *markNode) ask() sighting {
	s := sighting{
		asked: true, runID: n.id(n.run, "run"), replID: n.id(n.repl, "repl"), formerID: "0000000000", role: "master",
		uptime: time.Duration(*n.now-n.bornAt) / time.Second * time.Second,
		mark:   n.read(time.Duration(n.wall())),
	}
	if n.former > 0 {
		s.formerID = n.id(n.former, "repl")
	}
	if n.replica {
		s.role = "slave"
	}
	return s
}

// look is the answer to a GET of the mark over a connection that is known.
func (n *markNode) look() sighting {
	return sighting{runID: n.id(n.run, "run"), mark: n.read(0)}
}

func (n *markNode) read(now time.Duration) mark {
	text, ok, err := n.store.text(markKey)
	if err != nil {
		return unreadMark(err)
	}
	return readMark(text, ok, now)
}

// write does what the guard wants, and answers with what is there then.
func (n *markNode) write(w *markWrite) sighting {
	s := n.ask()
	if n.replica {
		s.mark = unreadMark(memError("READONLY You can't write against a read only replica."))
		return s
	}
	argv := make([]string, 0, 4)
	for _, a := range w.args() {
		argv = append(argv, argument(a))
	}
	s.mark = readWritten(n.store.mark(markKey, argv, &memOp{}))
	return s
}

// copied is the data as a snapshot has it.
func (n *markNode) copied() map[string]*memKey {
	c := make(map[string]*memKey, len(n.store.keys))
	for k, v := range n.store.keys {
		copied := *v
		c[k] = &copied
	}
	return c
}

// The ways to forget. data is what the node has afterwards, nil for nothing.

func (n *markNode) newID() int { n.copies++; return n.copies }

func (n *markNode) put(data map[string]*memKey) {
	if n.store.keys = data; data == nil {
		n.store.keys = make(map[string]*memKey)
	}
}

// restart has a new process; one that loads a snapshot may keep the replication id.
func (n *markNode) restart(data map[string]*memKey) {
	n.run, n.bornAt, n.replica = n.newID(), *n.now, false
	if n.former = 0; data == nil {
		n.repl = n.newID()
	}
	n.put(data)
}

// promote puts a replica in the node's place: another process, and no young one.
func (n *markNode) promote(data map[string]*memKey, up time.Duration) {
	n.run, n.bornAt, n.replica = n.newID(), *n.now-int64(up), false
	n.former, n.repl = n.repl, n.newID()
	n.put(data)
}

// follow makes it a replica, and lead a master again, with its master's data.
func (n *markNode) follow() { n.replica = true }

func (n *markNode) lead(data map[string]*memKey) {
	n.former, n.repl = n.newID(), n.newID()
	n.replica = false
	n.put(data)
}

func (n *markNode) flush() { n.put(nil) }

// redraw is what its first replica, or the loss of the last, makes of a master.
func (n *markNode) redraw() { n.former, n.repl = 0, n.newID() }

// markClient is a guard with the conversations around it.
type markClient struct {
	g     *guard
	nodes []*markNode
	clock *markClock
}

// markClock shows true time, from another beginning.
type markClock struct {
	clock
	now_ *int64
}

func (c *markClock) now() instant {
	return instant{time: time.Unix(0, simEpoch+*c.now_), mono: *c.now_, wall: simEpoch + *c.now_}
}

func newMarkClient(nodes []*markNode, now *int64, guard time.Duration, seed int) *markClient {
	c := &markClient{nodes: nodes, clock: &markClock{now_: now}}
	names := make([]string, len(nodes))
	for i := range names {
		names[i] = fmt.Sprint("node", i)
	}
	c.g = newGuard(names, guard, false, c.clock, func(degradation) {})
	c.g.random = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	return c
}

// tell hands a sighting of a node to the guard, and what that wants written to the node.
func (c *markClient) tell(i int, s sighting) (writes []*markWrite) {
	for w := c.g.saw(i, s); w != nil; w = c.g.saw(i, s) {
		writes = append(writes, w)
		s = c.nodes[i].write(w)
		if len(writes) > 3 {
			panic("bug: writes without end")
		}
	}
	return writes
}
