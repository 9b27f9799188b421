package jepsen

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/testing/clockshim"
	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// node is a real server and each client's way to it.
type node struct {
	index  int
	server *realredis.Server
	keeps  bool // its keys over a kill
	admin  *redis.Client
	ways   []*faultproxy.Proxy // one per client
	closed []atomic.Bool       // which of them lead nowhere
	shift  func(time.Duration) error
}

// startNodes starts n servers, of which the given ones forget their keys when they are killed, and a way for each of the clients to each of them.
func startNodes(ctx context.Context, n, clients int, forgetful map[int]bool, s *clockshim.Shim) (nodes []*node, err error) {
	defer func() {
		if err != nil {
			closeNodes(nodes)
		}
	}()
	for i := range n {
		nd := &node{index: i, keeps: !forgetful[i]}
		var opts []realredis.Option
		if nd.keeps {
			opts = append(opts, realredis.AOF("always"))
		}
		if s != nil {
			clock, err := s.Another(strconv.Itoa(i))
			if err != nil {
				return nodes, err
			}
			opts, nd.shift = append(opts, realredis.Env(clock.Env()...)), clock.Step
		}
		if nd.server, err = realredis.Launch(ctx, opts...); err != nil {
			return nodes, err
		}
		nodes = append(nodes, nd)
		o := nd.server.Options()
		o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
		o.ReadTimeout = 500 * time.Millisecond
		nd.admin = redis.NewClient(o)
		nd.closed = make([]atomic.Bool, clients)
		for c := range clients {
			p := faultproxy.New(func(ctx context.Context) (net.Conn, error) {
				if nd.closed[c].Load() {
					return nil, syscall.ECONNREFUSED
				}
				return new(net.Dialer).DialContext(ctx, "tcp", nd.server.Addr())
			})
			p.Record(false)
			if _, err := p.Listen(); err != nil {
				return nodes, err
			}
			nd.ways = append(nd.ways, p)
		}
	}
	return nodes, nil
}

func closeNodes(nodes []*node) {
	for _, n := range nodes {
		if n.admin != nil {
			_ = n.admin.Close()
		}
		for _, p := range n.ways {
			p.Close()
		}
		_ = n.server.Close()
	}
}

// close closes a client's connections as soon as it opens them. The proxy's own Refuse would give its port away, which in a run of hours somebody
// may take meanwhile.
func (n *node) close(client int) {
	n.closed[client].Store(true)
	n.ways[client].Cut()
}

// mend ends the faults of a client's way.
func (n *node) mend(client int) {
	n.closed[client].Store(false)
	n.ways[client].Clear()
}

func (n *node) mendAll() {
	for c := range n.ways {
		n.mend(c)
	}
}

// uptime is the age that a node says of itself.
func (n *node) uptime(ctx context.Context) time.Duration {
	for line := range strings.Lines(n.admin.Info(ctx, "server").Val()) {
		if v, ok := strings.CutPrefix(line, "uptime_in_seconds:"); ok {
			s, _ := strconv.Atoi(strings.TrimSpace(v))
			return time.Duration(s) * time.Second
		}
	}
	return 0
}

// awaitAge waits until every node is so old that no guard of that length keeps it from voting.
func awaitAge(ctx context.Context, nodes []*node, guard time.Duration) error {
	for _, n := range nodes {
		for n.uptime(ctx) < guard+time.Second {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return nil
}

// isLock tells a lock's key from those that stand beside it.
func isLock(key string) bool { return !strings.HasPrefix(key, "{") }

// stays tells what is to stay: fencing counters, and the memory mark.
func stays(key string) bool {
	return strings.HasSuffix(key, ":fence") || strings.HasSuffix(key, "redlock:memory")
}

// leases reads how long the keys of a node that should end still last. A node that does not answer has none to tell.
func (n *node) leases(ctx context.Context) (map[string]time.Duration, error) {
	keys, err := n.admin.Keys(ctx, "*").Result()
	if err != nil {
		return nil, err
	}
	left := make(map[string]time.Duration)
	pipe := n.admin.Pipeline()
	asked := make(map[string]*redis.DurationCmd)
	for _, k := range keys {
		if !stays(k) {
			asked[k] = pipe.PTTL(ctx, k)
		}
	}
	if len(asked) == 0 {
		return left, nil
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, err
	}
	for k, cmd := range asked {
		switch d := cmd.Val(); d {
		case -2: // gone meanwhile
		default:
			left[k] = d
		}
	}
	return left, nil
}

// overstaying names keys of locks that last for longer than any lease, or for ever.
func overstaying(ctx context.Context, nodes []*node, longest time.Duration) (bad []string) {
	found := make([][]string, len(nodes))
	var asking sync.WaitGroup
	for i, n := range nodes {
		asking.Go(func() {
			left, err := n.leases(ctx)
			if err != nil {
				return // it is stopped or dead, and is asked again soon
			}
			for k, d := range left {
				if d < 0 || isLock(k) && d > longest {
					found[i] = append(found[i], fmt.Sprintf("node %d: key %q lasts for %v", n.index, k, d))
				}
			}
		})
	}
	asking.Wait()
	return slices.Concat(found...)
}

// leftover names the keys of locks that are on a node after every lease is over.
func (n *node) leftover(ctx context.Context) ([]string, error) {
	var left map[string]time.Duration
	err := errors.New("not asked")
	for range 20 {
		if left, err = n.leases(ctx); err == nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if err != nil {
		return nil, fmt.Errorf("node %d: %w", n.index, err)
	}
	var bad []string
	for k, d := range left {
		if isLock(k) {
			bad = append(bad, fmt.Sprintf("node %d: key %q, which lasts for another %v", n.index, k, d))
		}
	}
	return bad, nil
}
