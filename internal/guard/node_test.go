package guard

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
	"github.com/quorumlock/redlock/internal/tick"
)

// markNode is a server as far as the memory mark goes: what it tells, what it keeps, and
// the ways in which it forgets. The golden file and the model of the rules use it.
type markNode struct {
	i       int
	now     *int64 // true time, nanoseconds
	skew    int64  // of its wall clock
	run     int    // process
	puts    int64  // how often it was told to put other data in place
	repl    int    // replication id
	former  int    // and the one before; 0: none
	copies  int    // ids given to it so far
	bornAt  int64
	replica bool
	store   *fakenode.Store
}

func newMarkNode(i int, now *int64, up time.Duration) *markNode {
	n := &markNode{i: i, now: now, run: 1, repl: 1, copies: 1, bornAt: *now - int64(up)}
	n.store = fakenode.New(n.wall)
	return n
}

func (n *markNode) wall() int64 { return fakenode.Epoch + *n.now + n.skew }

// id names a process or a replication.
func (n *markNode) id(of int, what string) string {
	return what + strconv.Itoa(n.i) + "." + strconv.Itoa(of)
}

// ask is the answer to the full question.
func (n *markNode) ask() protocol.ServerReport {
	s := protocol.ServerReport{
		Asked: true, At: *n.now, RunID: n.id(n.run, "run"), ReplID: n.id(n.repl, "repl"), FormerID: "0000000000", Role: "master",
		Start: n.bornAt / int64(time.Second), Puts: n.puts, Time: time.Duration(n.wall()), Mark: n.read(time.Duration(n.wall())),
	}
	if n.former > 0 {
		s.FormerID = n.id(n.former, "repl")
	}
	if n.replica {
		s.Role = "slave"
	}
	return s
}

// look is the answer to a GET of the mark over a connection that is known.
func (n *markNode) look() protocol.ServerReport {
	return protocol.ServerReport{At: *n.now, RunID: n.id(n.run, "run"), Mark: n.read(0)}
}

func (n *markNode) read(now time.Duration) protocol.Mark {
	text, ok, err := n.store.Text(protocol.MarkKey)
	if err != nil {
		return protocol.MarkOfError(err)
	}
	return protocol.ReadMark(text, ok, now)
}

// write does what the guard wants, and answers with what is there then.
func (n *markNode) write(w *protocol.MarkWrite) protocol.ServerReport {
	s := protocol.ServerReport{Asked: true, At: *n.now, RunID: n.id(n.run, "run")}
	if n.replica {
		s.Mark = protocol.MarkOfError(fakenode.Error("READONLY You can't write against a read only replica."))
		return s
	}
	argv := make([]string, 0, 4)
	for _, a := range w.Args() {
		argv = append(argv, fakenode.Argument(a))
	}
	s.Mark = protocol.ReadWritten(n.store.Mark(protocol.MarkKey, argv, &fakenode.Op{}))
	return s
}

// copied is the data as a snapshot has it.
func (n *markNode) copied() map[string]*fakenode.Key {
	c := make(map[string]*fakenode.Key, len(n.store.Keys))
	for k, v := range n.store.Keys {
		copied := *v
		c[k] = &copied
	}
	return c
}

// The ways to forget. data is what the node has afterwards, nil for nothing.

func (n *markNode) newID() int { n.copies++; return n.copies }

func (n *markNode) put(data map[string]*fakenode.Key) {
	if n.store.Keys = data; data == nil {
		n.store.Keys = make(map[string]*fakenode.Key)
	}
}

// restart has a new process; one that loads a snapshot may keep the replication id.
func (n *markNode) restart(data map[string]*fakenode.Key) {
	n.run, n.puts, n.bornAt, n.replica = n.newID(), 0, *n.now, false
	if n.former = 0; data == nil {
		n.repl = n.newID()
	}
	n.put(data)
}

// promote puts a replica in the node's place: another process, and no young one.
func (n *markNode) promote(data map[string]*fakenode.Key, up time.Duration) {
	n.run, n.puts, n.bornAt, n.replica = n.newID(), 0, *n.now-int64(up), false
	n.former, n.repl = n.repl, n.newID()
	n.put(data)
}

// follow makes it a replica, and lead a master again, with its master's data.
func (n *markNode) follow() {
	n.replica = true
	n.puts++
}

func (n *markNode) lead(data map[string]*fakenode.Key) {
	n.former, n.repl = n.newID(), n.newID()
	n.replica = false
	n.puts++
	n.put(data)
}

// again has a process that starts with the run id of the one before, and this data.
func (n *markNode) again(data map[string]*fakenode.Key) {
	n.puts, n.bornAt, n.replica, n.former = 0, *n.now, false, 0
	n.put(data)
}

// swap is SWAPDB, or DEBUG RELOAD: other data is in place, of the same process.
func (n *markNode) swap(data map[string]*fakenode.Key) {
	n.puts++
	n.put(data)
}

func (n *markNode) flush() { n.put(nil) }

// redraw is what its first replica, or the loss of the last, makes of a master.
func (n *markNode) redraw() { n.former, n.repl = 0, n.newID() }

// markClient is a guard with the conversations around it.
type markClient struct {
	g     *Guard
	nodes []*markNode
	clock *markClock
}

// markClock shows true time, from another beginning.
type markClock struct {
	tick.Clock
	now_ *int64
}

func (c *markClock) Now() tick.Instant {
	return tick.Instant{Time: time.Unix(0, fakenode.Epoch+*c.now_), Mono: *c.now_, Wall: fakenode.Epoch + *c.now_}
}

func newMarkClient(nodes []*markNode, now *int64, g time.Duration, seed int) *markClient {
	c := &markClient{nodes: nodes, clock: &markClock{now_: now}}
	names := make([]string, len(nodes))
	for i := range names {
		names[i] = fmt.Sprint("node", i)
	}
	c.g = New(names, g, c.clock)
	c.g.Random = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	return c
}

// tell hands a report of a node to the guard, and what that wants written to the node.
func (c *markClient) tell(i int, s protocol.ServerReport) (writes []*protocol.MarkWrite) {
	for w := c.g.Saw(i, s); w != nil; w = c.g.Saw(i, s) {
		writes = append(writes, w)
		s = c.nodes[i].write(w)
		if len(writes) > 3 {
			panic("bug: writes without end")
		}
	}
	return writes
}
