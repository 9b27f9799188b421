package redlocktest

import (
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// poolSize is larger than any sensible number of concurrent commands to a node,
// see "Fake time" in the package documentation.
const poolSize = 512

// Cluster is a number of independent nodes. All methods may be called at any time
// from any goroutine.
type Cluster struct {
	nodes []*Node

	mu      sync.Mutex
	clients []client
	closed  bool
}

// client is a client that the cluster has to close. It is not embedded: the compiler would wrap each of
// its hundreds of methods.
type client struct {
	redis       *redis.Client
	failedDials *atomic.Int64
}

// probing reports whether go-redis may have begun to probe the node: a pool that
// has seen as many failed dials as it has places starts a goroutine that dials
// once a second, and that Close does not wait for.
func (c client) probing() bool {
	o := c.redis.Options()
	pipelines := o.PipelinePoolSize
	if pipelines == 0 {
		pipelines = redis.DefaultPipelinePoolSize
	}
	places := o.PoolSize
	if pipelines > 0 { // else there is no such pool
		places = min(places, pipelines)
	}
	return c.failedDials.Load() >= int64(places)
}

// probeInterval is how often go-redis does.
const probeInterval = time.Second

// NewCluster starts n nodes, and closes them at the end of the test. They report an
// uptime of an hour, see [Node.SetUptime], and have the memory marks of n nodes that were in use
// for as long. So no restart guard of up to an hour bars them, even if some are down. That goes for
// clients without a KeyPrefix. It ends the test if n is below 1.
func NewCluster(tb testing.TB, n int) *Cluster {
	tb.Helper()
	c, err := Start(n)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(c.Close)
	return c
}

// Start is NewCluster for programs that are not tests. It fails if n is below 1. The
// caller closes the cluster.
func Start(n int) (*Cluster, error) {
	if n < 1 {
		return nil, fmt.Errorf("redlocktest: a cluster needs at least one node, not %d", n)
	}
	c := &Cluster{}
	for i := range n {
		c.nodes = append(c.nodes, newNode(i))
		c.nodes[i].used(n)
	}
	return c, nil
}

// Close closes the clients that the cluster has made, cuts all connections and
// stops the nodes for good. It returns when all goroutines of the cluster have
// ended, those of its clients included. This takes a second if one of them has
// seen so many dials fail that go-redis probes the node in the background. A second
// call does nothing. Of the nodes, only what reads and counts may be used
// afterwards.
func (c *Cluster) Close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	c.closed = true
	for _, cl := range c.clients {
		cl.redis.Close() // an error says that the user has closed it already
	}
	for _, n := range c.nodes {
		n.close()
	}
	if slices.ContainsFunc(c.clients, client.probing) {
		time.Sleep(probeInterval + 10*time.Millisecond)
	}
}

// Len returns the number of nodes.
func (c *Cluster) Len() int { return len(c.nodes) }

// Node returns node i, counted from 0. It panics if there is none.
func (c *Cluster) Node(i int) *Node {
	if i < 0 || i >= len(c.nodes) {
		panic(fmt.Sprintf("redlocktest: node %d of a cluster of %d", i, len(c.nodes)))
	}
	return c.nodes[i]
}

// Nodes returns all nodes in order.
func (c *Cluster) Nodes() []*Node { return slices.Clone(c.nodes) }

// Addrs returns the TCP address of each node, "127.0.0.1:port". The first call
// opens the listeners; the addresses stay the same through all faults.
func (c *Cluster) Addrs() []string {
	return each(c, (*Node).Addr)
}

// Clients returns a new client for each node. They have in-memory connections,
// the name of their node as address, and go-redis' defaults for the rest, but a
// large pool, no maintenance notifications, and one try of each dial and command: a pause
// before the next try would outlive Close. The cluster closes them.
func (c *Cluster) Clients() []redis.UniversalClient {
	return each(c, func(n *Node) redis.UniversalClient { return c.Client(n.index, nil) })
}

// Client returns a new client for node i like those of Clients, whose options
// adapt, if not nil, may change: a password, a small pool, retries. The cluster
// closes it.
func (c *Cluster) Client(i int, adapt func(*redis.Options)) *redis.Client {
	n := c.Node(i)
	var failed atomic.Int64
	o := &redis.Options{
		Addr: n.name,
		Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := n.proxy.DialContext(ctx)
			if err != nil {
				failed.Add(1)
			}
			return conn, err
		},
		PoolSize:                 poolSize,
		PipelinePoolSize:         poolSize,
		MaxRetries:               -1,
		DialerRetries:            1,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if adapt != nil {
		adapt(o)
	}
	made := redis.NewClient(o)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		made.Close()
	}
	c.clients = append(c.clients, client{made, &failed})
	return made
}

// Holders returns what each node's database 0 holds at key: the string, "" where
// there is none, and the type in parentheses, as in "(list)", where it is no
// string. It looks into the nodes' memory, past all network faults; a stopped node
// has none.
func (c *Cluster) Holders(key string) []string {
	return each(c, func(n *Node) string { return n.Get(key) })
}

// TTLs returns how long key will live on each node: 0 where there is none, -1
// where it has no expiry. It looks where Holders looks.
func (c *Cluster) TTLs(key string) []time.Duration {
	return each(c, func(n *Node) time.Duration { return n.TTL(key) })
}

// Commands returns the sum of [Node.Commands] over all nodes.
func (c *Cluster) Commands(names ...string) int {
	sum := 0
	for _, n := range c.nodes {
		sum += n.Commands(names...)
	}
	return sum
}

// ResetCommands calls [Node.ResetCommands] on all nodes.
func (c *Cluster) ResetCommands() {
	for _, n := range c.nodes {
		n.ResetCommands()
	}
}

// Record switches the log of commands on all nodes on, as it is at first, or off.
// The log keeps every command with its arguments until ResetCommands; switch it
// off for long runs under load. While it is off, nothing is counted.
func (c *Cluster) Record(on bool) {
	for _, n := range c.nodes {
		n.proxy.Record(on)
	}
}

// SetUptime calls [Node.SetUptime] on all nodes.
func (c *Cluster) SetUptime(d time.Duration) {
	for _, n := range c.nodes {
		n.SetUptime(d)
	}
}

func each[T any](c *Cluster, f func(*Node) T) []T {
	all := make([]T, len(c.nodes))
	for i, n := range c.nodes {
		all[i] = f(n)
	}
	return all
}
