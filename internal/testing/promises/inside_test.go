package promises_test

import (
	"cmp"
	"errors"
	"hash/fnv"
	"slices"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/nodes"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// assembled is redlock.New of clients, with these habits of connections, and what else a says.
func assembled(clients []redis.UniversalClient, habits func(*redis.Options) conn.Habits, a inside.Assembly) (*redlock.Redlock, inside.Parts, error) {
	o, _ := a.Options.(*redlock.Options)
	if o == nil {
		o = new(redlock.Options)
	}
	mark := o.KeyPrefix + protocol.MarkKey
	if o.NoRestartGuard {
		mark = ""
	}
	if a.Clock == nil {
		a.Clock = tick.NewSystem()
	}
	singles, err := nodes.Clients(clients)
	if err != nil {
		return nil, inside.Parts{}, err
	}
	a.Names, a.Wires = nodes.Names(singles, o.NodeNames), make([]lane.Wire, len(singles))
	for i, c := range singles {
		a.Wires[i] = conn.NewWire(c, habits, mark, protocol.NewClientName(singles, o.KeyPrefix, o.Owner).String(), a.Clock)
	}
	client, parts, err := inside.Assemble(a)
	if err != nil {
		return nil, parts, err
	}
	return client.(*redlock.Redlock), parts, nil
}

// assemble makes the bed's Redlock anew, so that the test sees its lanes.
func (b *bed) assemble(a inside.Assembly) {
	b.Helper()
	rl, parts, err := assembled(b.cluster.Clients(), conn.UserHabits, a)
	require.NoError(b, err)
	b.Cleanup(func() { _ = rl.Close() })
	b.rl, b.lanes = rl, parts.Lanes
}

// newWithClock is redlock.New with another clock.
func newWithClock(clients []redis.UniversalClient, opts *redlock.Options, c tick.Clock) (*redlock.Redlock, error) {
	rl, _, err := assembled(clients, conn.UserHabits, inside.Assembly{Options: opts, Clock: c})
	return rl, err
}

// newSkewed is redlock.New on a machine whose wall clock is wrong.
func newSkewed(clients []redis.UniversalClient, opts *redlock.Options, wrong *atomic.Int64) (*redlock.Redlock, error) {
	return newWithClock(clients, opts, skewedClock{tick.NewSystem(), wrong})
}

type skewedClock struct {
	tick.Clock
	wrong *atomic.Int64 // nanoseconds
}

func (c skewedClock) Now() tick.Instant {
	i := c.Clock.Now()
	d := time.Duration(c.wrong.Load())
	i.Time, i.Wall = i.Time.Add(d), tick.Plus(i.Wall, d)
	return i
}

// nodeOrder is that in which the nodes with these names are asked to keep the queue of a key. All clients must agree
// on it, so it is computed here by other means than the library's.
func nodeOrder(key string, names []string) []int {
	hash := func(s string) uint64 {
		h := fnv.New64a()
		_, _ = h.Write([]byte(s))
		return h.Sum64()
	}
	order, weights := make([]int, len(names)), make([]uint64, len(names))
	for i, name := range names {
		x := hash(key) + hash(name) // then the last steps of splitmix64
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		order[i], weights[i] = i, x^x>>31
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(weights[b], weights[a]) })
	return order
}

// order is nodeOrder of a lock's key on the bed's nodes.
func (b *bed) order(m interface{ Key() string }) []int { return nodeOrder(m.Key(), b.rl.Nodes()) }

// queueKey is the key of the queue of a Redis key; empty: it cannot have one.
func queueKey(key string) string { return protocol.NamingOf(key).QueueKey(key) }

// namesBeside are all keys that go with a Redis key.
func namesBeside(key string) []string {
	n := protocol.NamingOf(key)
	all := []string{n.QueueKey(key), n.HoldersKey(key), n.DoorKey(key), n.FenceKey(key)}
	return slices.DeleteFunc(all, func(name string) bool { return name == "" })
}

// loadScripts lets all nodes know all scripts.
func (b *bed) loadScripts() {
	b.Helper()
	var errs []error
	for _, c := range b.cluster.Clients() {
		for _, s := range []*protocol.Script{protocol.ReleaseScript, protocol.QueueReleaseScript, protocol.JoinScript, protocol.ClaimScript} {
			errs = append(errs, c.ScriptLoad(b.Context(), s.Source).Err())
		}
	}
	require.NoError(b, errors.Join(errs...))
}

// subscriptions counts those of all clients to queues, on all nodes.
func (b *bed) subscriptions() (n int) {
	for _, node := range b.cluster.Nodes() {
		for _, of := range node.Redis().PubSubNumSub(node.Redis().PubSubChannels("")...) {
			n += of
		}
	}
	return n
}
