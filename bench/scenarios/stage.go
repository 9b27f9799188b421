package scenarios

import (
	"context"
	"net"
	"os"
	"slices"
	"time"

	"github.com/quorumlock/redlock/internal/testing/clockshim"
	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
)

// stage is a number of servers, and the networks that clients reach them by.
type stage struct {
	servers  []*realredis.Server
	admins   []*redis.Client // past all networks
	net      network         // of the first client
	networks []network
	shim     *clockshim.Shim
	dir      string
}

// network is a way to all servers.
type network []link

// link is the way to one of them.
type link struct {
	*faultproxy.Proxy
	server string // its address past all networks
}

// addr is where the link begins.
func (l link) addr() string {
	a, err := l.Listen() // as it did before
	if err != nil {
		panic(err)
	}
	return a
}

func newStage(ctx context.Context, s Scenario) (st *stage, err error) {
	st = &stage{}
	defer func() {
		if err != nil {
			st.close()
		}
	}()
	opts := s.opts
	if s.shim {
		if st.dir, err = os.MkdirTemp("", "scenarios"); err != nil {
			return nil, err
		}
		if st.shim, err = clockshim.Compile(ctx, st.dir); err != nil {
			return nil, err
		}
		opts = append(slices.Clone(opts), realredis.Env(st.shim.Env()...))
	}
	if st.servers, err = realredis.LaunchN(ctx, s.nodes, opts...); err != nil {
		return nil, err
	}
	for _, s := range st.servers {
		o := s.Options()
		o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
		st.admins = append(st.admins, redis.NewClient(o))
	}
	st.net, err = st.network()
	return st, err
}

// network is another way to all servers, with faults of its own.
func (st *stage) network() (n network, err error) {
	for _, s := range st.servers {
		p := faultproxy.New(func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", s.Addr())
		})
		n = append(n, link{p, s.Addr()})
		if _, err := p.Listen(); err != nil {
			n.close()
			return nil, err
		}
	}
	st.networks = append(st.networks, n)
	return n, nil
}

func (n network) close() {
	for _, l := range n {
		l.Close()
	}
}

// mend ends all faults of servers that are alive and of networks.
func (st *stage) mend() {
	for _, s := range st.servers {
		_ = s.Resume()
	}
	for _, n := range st.networks {
		for _, l := range n {
			l.Clear()
		}
	}
}

func (st *stage) close() {
	for _, a := range st.admins {
		_ = a.Close()
	}
	for _, n := range st.networks {
		n.close()
	}
	for _, s := range st.servers {
		_ = s.Close()
	}
	if st.dir != "" {
		_ = os.RemoveAll(st.dir)
	}
}

// do runs a command on the first so many servers.
func (st *stage) do(ctx context.Context, nodes int, args ...any) error {
	for _, a := range st.admins[:nodes] {
		if err := a.Do(ctx, args...).Err(); err != nil {
			return err
		}
	}
	return nil
}

// values is what the servers hold under these keys, "" for nothing.
func (st *stage) values(ctx context.Context, keys []string) (all []string) {
	for _, a := range st.admins {
		for _, k := range keys {
			v, _ := a.Get(ctx, k).Result()
			all = append(all, v)
		}
	}
	return all
}

// left is how many of these keys the servers have, and for how long at most.
func (st *stage) left(ctx context.Context, keys []string) (n int, longest time.Duration) {
	for _, a := range st.admins {
		for _, k := range keys {
			if d, err := a.PTTL(ctx, k).Result(); err == nil && d > 0 {
				n++
				longest = max(longest, d)
			}
		}
	}
	return n, longest
}
