package redlocktest

import (
	"context"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/faultproxy"
)

// Memory says what a node remembers after [Node.Restart].
type Memory uint8

const (
	LoseKeys Memory = iota + 1 // nothing: no persistence, or the last writes were not synced
	KeepKeys                   // all keys, whose expiry went on while the node was down
)

// PartitionMode says what a [Node.Partition] does to connections.
type PartitionMode uint8

const (
	// Refuse closes all connections and refuses new ones, like a firewall that
	// rejects.
	Refuse PartitionMode = iota + 1
	// Blackhole swallows everything in both directions. A new connection by TCP is
	// accepted and never answers; an in-memory client's dial blocks until its
	// DialTimeout.
	Blackhole
	// DropRequests swallows what clients send. Connections are accepted.
	DropRequests
	// DropReplies swallows what the node sends: it executes every command, and
	// no client learns of it. Connections are accepted.
	DropReplies
)

// Command is a request as it arrived at a node.
type Command struct {
	Conn int       // connections of a node are numbered from 1
	Args []string  // the command's name first, as the client wrote it
	At   time.Time // when it arrived at the proxy, before any delay
}

// Node is one Redis master, made by a [Cluster]; methods of the zero value panic. All methods may be
// called at any time from any goroutine.
type Node struct {
	index int
	name  string
	redis *miniredis.Miniredis
	proxy *faultproxy.Proxy
	admin *admin

	// process makes changes of the server process and of the partition follow one
	// another. It is taken before mu and never by the server's own goroutines, for
	// which closing the server waits.
	process   sync.Mutex
	partition PartitionMode // 0: none

	mu       sync.Mutex // never held while miniredis is called
	stopped  bool
	closed   bool
	detached bool // a replica holds a copy of the keys
	runID    string
	evicted  int
	replID   string
	born     time.Time // by the node's own clock
	offset   time.Duration
	failure  string
	denied   map[string]bool
}

func newNode(i int) *Node {
	n := &Node{
		index:  i,
		name:   fmt.Sprintf("node%d:6379", i),
		redis:  miniredis.NewMiniRedis(),
		denied: make(map[string]bool),
	}
	n.redis.ClockTTL(true)
	n.proxy = faultproxy.New(n.dial)
	n.admin = newAdmin()
	n.boot(usualUptime)
	n.admin.login(n.redis)
	return n
}

// used leaves the memory mark that the node would have, had it been in use as one of so many since
// it started.
func (n *Node) used(nodes int) {
	n.mu.Lock()
	w := protocol.MarkWrite{ID: "redlocktest", At: n.born.UnixMicro(), First: true, All: nodes, RunID: n.runID, ReplID: n.replID}
	n.mu.Unlock()
	_ = n.redis.Set(protocol.MarkKey, w.Text(w.At)) // fails on a key of another type
}

func (n *Node) close() {
	n.mu.Lock()
	n.closed = true
	n.mu.Unlock()
	n.proxy.Close() // without process, which a dial that it waits for may want
	n.process.Lock()
	defer n.process.Unlock()
	n.redis.Close()
}

// dial is the proxy's way to the server.
func (n *Node) dial(context.Context) (net.Conn, error) {
	n.process.Lock()
	defer n.process.Unlock()
	if n.down() { // miniredis would start on being dialled
		return nil, syscall.ECONNREFUSED
	}
	return n.redis.Dial()
}

func (n *Node) down() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.stopped || n.closed
}

// Name returns the address that the cluster's in-memory clients show for the node,
// such as "node0:6379". Nothing listens there.
func (n *Node) Name() string { return n.name }

// Addr returns the node's TCP address, "127.0.0.1:port". The first call opens the
// listener; it panics if the machine has no port left.
func (n *Node) Addr() string {
	addr, err := n.proxy.Listen()
	if err != nil {
		panic(fmt.Sprintf("redlocktest: no listener for %s: %v", n.name, err))
	}
	return addr
}

// Redis returns the miniredis behind the node, for what Node has no method for,
// such as RequireAuth. It is the same one for the life of the node. Do not use its
// SetError, SetTime, ClockTTL, Restart and Close, nor its Server's SetPreHook: they
// would disable the node's own ways.
func (n *Node) Redis() *miniredis.Miniredis { return n.redis }

// Stop kills the server process, as kill -9 does. Connections end, new ones are
// refused, requests that had not been executed are lost. Behind a partition that
// swallows replies clients are not told. A stopped node stays as it is.
func (n *Node) Stop() {
	n.process.Lock()
	defer n.process.Unlock()
	n.stop()
}

// stop needs process. When it returns no command of the old process is running.
func (n *Node) stop() {
	n.mu.Lock()
	if n.stopped || n.closed {
		n.mu.Unlock()
		return
	}
	n.stopped = true
	n.mu.Unlock()
	n.proxy.Crash()
	n.relink()
	n.proxy.Resume()
	n.redis.Close() // waits for the commands that it is executing
}

// Restart starts the server process anew, after killing it if it is running: on
// the same address, with a new run id, an uptime of 0 and no cached scripts, and
// with the keys that memory says. It ends Hang, but no partition. It panics for a memory that is none of
// the constants.
func (n *Node) Restart(memory Memory) {
	if memory != KeepKeys && memory != LoseKeys {
		panic(fmt.Sprintf("redlocktest: Restart(%d) is neither KeepKeys nor LoseKeys", memory))
	}
	n.process.Lock()
	defer n.process.Unlock()
	n.stop()
	if memory == LoseKeys {
		n.flush()
	}
	n.boot(0)
}

// DetachReplica breaks the replication link: the replica that Failover promotes
// will have the keys of this moment. Without it, replication never lags. Calling
// it again takes a new copy. While a replica is detached, a client's FLUSHALL
// empties only the database of its connection.
func (n *Node) DetachReplica() {
	n.process.Lock()
	defer n.process.Unlock()
	for i := range databases {
		n.redis.DB(replica(i)).FlushDB()
		n.admin.copyDB(i, replica(i), n.redis.DB(i).Keys())
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.detached = true
}

// Failover replaces the server by its replica on the same address, as Sentinel or
// a managed service does: connections are cut, the keys are those of the last
// DetachReplica (all, if there was none) with their expiry gone on, run id and
// script cache are the replica's own, and its uptime is an hour. The old server is
// gone for good, also if it was stopped or hung. The new one has a new replica,
// which is attached.
func (n *Node) Failover() {
	n.process.Lock()
	defer n.process.Unlock()
	n.stop()
	n.mu.Lock()
	detached := n.detached
	n.detached = false
	n.mu.Unlock()
	if detached {
		for i := range databases {
			n.redis.SwapDB(i, replica(i))
		}
	}
	n.boot(usualUptime)
}

// Hang stops the server process as SIGSTOP does: connections are accepted and
// nothing is answered, but nothing is lost either. It has no effect on a stopped
// node.
func (n *Node) Hang() {
	n.process.Lock()
	defer n.process.Unlock()
	if !n.down() {
		n.proxy.Freeze()
	}
}

// Resume continues a hung server process, as SIGCONT does. Whatever clients have
// sent in the meantime is executed, also of those that have given up and closed
// their connections.
func (n *Node) Resume() {
	n.process.Lock()
	defer n.process.Unlock()
	n.proxy.Resume()
}

// Partition separates all clients from the node, also those connected, until Heal
// or another Partition. It panics for a mode that is none of the constants.
func (n *Node) Partition(mode PartitionMode) {
	if mode < Refuse || mode > DropReplies {
		panic(fmt.Sprintf("redlocktest: Partition(%d) is no mode", mode))
	}
	n.process.Lock()
	defer n.process.Unlock()
	n.partition = mode
	n.relink()
}

// Heal ends Partition. What it swallowed is lost, and connections on which bytes
// are missing are cut; others go on.
func (n *Node) Heal() {
	n.process.Lock()
	defer n.process.Unlock()
	n.partition = 0
	n.relink()
}

// relink tells the proxy what becomes of connections. It needs process.
func (n *Node) relink() {
	mode := n.partition
	if n.down() {
		// A dead process refuses, unless the refusal, or what it answers, is lost.
		if mode == 0 {
			mode = Refuse
		} else if mode != Refuse {
			mode = Blackhole
		}
	}
	switch mode {
	case 0:
		n.proxy.Heal()
	case Refuse:
		n.proxy.Refuse()
	case Blackhole:
		n.proxy.Blackhole()
	case DropRequests:
		n.proxy.DropRequests()
	case DropReplies:
		n.proxy.DropReplies()
	}
}

// notNegative keeps a slip of a test from looking like a node that is as it was.
func notNegative[T int | time.Duration](call string, v T) {
	if v < 0 {
		panic(fmt.Sprintf("redlocktest: %s of %v: must not be negative", call, v))
	}
}

// Delay adds d to the way of each request to the node and to the way of each reply
// back, so a round trip takes 2d longer. Order and throughput stay as they are;
// opening a connection takes no longer, but its handshake does. It applies to what
// is sent from now on; 0 ends it. Delay panics if d is negative.
func (n *Node) Delay(d time.Duration) {
	notNegative("Delay", d)
	n.proxy.Delay(d, d)
}

// DelayCommand delays by d the next count commands of that name (EVALSHA, not the
// script's inner ones), and with each what follows it on its connection. Commands on
// other connections overtake it. DelayCommand panics if count or d is negative.
func (n *Node) DelayCommand(command string, count int, d time.Duration) {
	notNegative("DelayCommand", count)
	notNegative("DelayCommand", d)
	n.proxy.DelayRequest(count, d, faultproxy.Named(command))
}

// DropReply lets the node execute the next count commands of that name, in upper or
// lower case, but cuts the connection in place of the reply. Commands that were sent
// before do not count. DropReply panics if count is negative.
func (n *Node) DropReply(command string, count int) {
	notNegative("DropReply", count)
	n.proxy.DropReply(count, faultproxy.DropCut, faultproxy.Named(command))
}

// Garbage puts s in front of the node's next reply.
func (n *Node) Garbage(s string) { n.proxy.Garbage([]byte(s)) }

// Cut closes all connections to the node. What was under way on them is lost. New
// ones are accepted.
func (n *Node) Cut() { n.proxy.Cut() }

// ShiftClock makes the node's clock jump by d, as an operator or a bad NTP server
// does. Expiry is absolute time to Redis, so all keys live shorter by a jump ahead,
// some ending at once, and longer by a jump back. TIME, the uptime and commands
// with an absolute expiry follow the node's clock. Jumps add up, and last through
// restarts.
func (n *Node) ShiftClock(d time.Duration) {
	n.process.Lock()
	defer n.process.Unlock()
	n.redis.DB(0) // lets what has expired by now be gone, lest a jump back revive it
	n.mu.Lock()
	n.offset += d
	n.mu.Unlock()
	n.redis.FastForward(d)
}

// SetUptime makes the node say that it has been up for d. A node of a new cluster
// has been for an hour. SetUptime panics if d is negative.
func (n *Node) SetUptime(d time.Duration) {
	notNegative("SetUptime", d)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.born = n.clock().Add(-d)
}

// RunID returns the node's run id, 40 hex digits. It changes with Restart and
// Failover.
func (n *Node) RunID() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.runID
}

// SetError makes the node answer every command with the error msg, such as
// "LOADING Redis is loading the dataset in memory", except those with which a
// connection begins: HELLO, AUTH, CLIENT and SELECT. "" ends it, and nothing else
// does.
func (n *Node) SetError(msg string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.failure = msg
}

// Deny makes the node answer the commands, given by name in upper or lower case, with
// a NOPERM error as for a user whom the ACL does not allow them, inside scripts, too.
// After Deny("INFO") the node has no vote. Allow ends it.
func (n *Node) Deny(commands ...string) { n.setDenied(commands, true) }

// Allow ends Deny for the commands.
func (n *Node) Allow(commands ...string) { n.setDenied(commands, false) }

// Get returns what [Cluster.Holders] does, for this node.
func (n *Node) Get(key string) string {
	if n.down() {
		return ""
	}
	db := n.redis.DB(0)
	v, err := db.Get(key)
	if err == miniredis.ErrWrongType {
		if t := db.Type(key); t != "" {
			return "(" + t + ")"
		}
	}
	return v
}

// TTL returns what [Cluster.TTLs] does, for this node.
func (n *Node) TTL(key string) time.Duration {
	if n.down() {
		return 0
	}
	db := n.redis.DB(0)
	ttl := db.TTL(key)
	if ttl == 0 && db.Exists(key) {
		return -1
	}
	return ttl
}

// Set sets a key in the node's memory, past the network and without expiry if ttl
// is 0. Set panics if ttl is negative.
func (n *Node) Set(key, value string, ttl time.Duration) {
	notNegative("Set", ttl)
	n.redis.DB(0).Del(key)
	n.redis.DB(0).Set(key, value) // fails for another type only
	if ttl != 0 {
		n.redis.DB(0).SetTTL(key, ttl)
	}
}

// Del removes a key from the node's memory, past the network, and reports whether
// it was there.
func (n *Node) Del(key string) bool { return n.redis.DB(0).Del(key) }

// Evict removes keys from the node's memory as a server does that is full and whose
// maxmemory-policy is not noeviction: no client is told, and INFO stats counts them. The count
// starts anew with the process.
func (n *Node) Evict(keys ...string) {
	for _, key := range keys {
		if n.Del(key) {
			n.mu.Lock()
			n.evicted++
			n.mu.Unlock()
		}
	}
}

// FlushAll removes all keys from the node's memory, as an operator's FLUSHALL does.
// Neither run id nor uptime tell of it, and a detached replica keeps its keys.
func (n *Node) FlushAll() { n.flush() }

func (n *Node) flush() {
	for i := range databases {
		n.redis.DB(i).FlushDB()
	}
}

// Commands returns how many commands with one of the names, in upper or lower case,
// clients have sent to the node since the start or ResetCommands; without names, how
// many altogether. Counted is what arrives on the wire, so also what a fault swallows
// or still holds, and handshakes; not what scripts call.
func (n *Node) Commands(names ...string) int { return n.proxy.Count(names...) }

// Log returns the commands that Commands counts, in order of arrival.
func (n *Node) Log() []Command {
	var log []Command
	for _, c := range n.proxy.Commands() {
		log = append(log, Command(c))
	}
	return log
}

// ResetCommands empties the node's log of commands.
func (n *Node) ResetCommands() { n.proxy.Reset() }
