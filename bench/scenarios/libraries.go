package scenarios

import (
	"context"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	rsredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/quorumlock/redlock"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"
)

// library is one that is compared, with its defaults where a scenario does not say
// otherwise.
type library struct {
	name string
	open func(n network, t terms) (locker, error)
	// keys are where it keeps the lock of a key.
	keys func(key string) []string
	// acquires and releases tell its commands on the wire.
	acquires, releases func(args []string) bool
	// renews is whether it renews whatever it is told.
	renews bool
}

// terms are what a scenario wants of a client.
type terms struct {
	ttl      time.Duration
	renew    bool // where the library can by itself
	password string
	// strict sets go-redis' ContextTimeoutEnabled, without which redsync's timeouts do
	// not end a read. Off by default, as with go-redis.
	strict bool
	// byAddress lets redlock connect by itself, so that it knows what it connects to.
	byAddress bool
}

// locker is a client of a library.
type locker interface {
	// lock waits for as long as the library does, or until ctx ends.
	lock(ctx context.Context, key string) (grant, error)
	// try makes one attempt.
	try(ctx context.Context, key string) (grant, error)
	close()
}

// grant is a lock that was acquired.
type grant interface {
	unlock(ctx context.Context) error
	// holds is whether the library says that it is held, without asking the servers.
	holds() bool
}

// extender is a grant that its holder has to renew.
type extender interface {
	extend(ctx context.Context) error
}

var libraries = []library{
	{
		name: "redlock", open: openRedlock, keys: same,
		acquires: named("SET"),
		// Other scripts look at the key, or at its line; those that release name a value.
		releases: func(args []string) bool {
			return len(args) >= 5 && named("EVALSHA", "EVAL")(args) && redlockValue.MatchString(args[4])
		},
	},
	{
		name: "redsync", open: openRedsync, keys: same,
		acquires: named("SET"), releases: named("EVALSHA", "EVAL"),
	},
	{
		name: "rueidislock", open: openRueidis, renews: true,
		keys: func(key string) []string {
			return []string{"rueidislock:0:" + key, "rueidislock:1:" + key, "rueidislock:2:" + key}
		},
		// By script both; acquiring has an expiry after the value.
		acquires: func(args []string) bool { return len(args) == 6 && named("EVALSHA", "EVAL")(args) },
		releases: func(args []string) bool { return len(args) == 5 && named("EVALSHA", "EVAL")(args) },
	},
}

var redlockValue = regexp.MustCompile("^[0-9a-f]{32}@")

func same(key string) []string { return []string{key} }

func named(names ...string) func(args []string) bool {
	return func(args []string) bool {
		for _, n := range names {
			if strings.EqualFold(args[0], n) {
				return true
			}
		}
		return false
	}
}

type redlockClient struct {
	rl      *redlock.Redlock
	clients []*redis.Client
	terms   terms
}

func openRedlock(n network, t terms) (locker, error) {
	if t.byAddress {
		var addrs []string
		for _, l := range n {
			addrs = append(addrs, l.addr())
		}
		rl, err := redlock.Open(context.Background(), addrs, &redlock.Options{TTL: t.ttl})
		if err != nil {
			return nil, err
		}
		return &redlockClient{rl, nil, t}, nil
	}
	var nodes []redis.UniversalClient
	clients := n.goRedis(t)
	for _, c := range clients {
		nodes = append(nodes, c)
	}
	rl, err := redlock.New(nodes, &redlock.Options{TTL: t.ttl})
	if err != nil {
		closeAll(clients)
		return nil, err
	}
	return &redlockClient{rl, clients, t}, nil
}

// goRedis are clients with default settings. They know their servers by the same
// addresses, whichever network they reach them by, as clients of one fleet do.
func (n network) goRedis(t terms) (clients []*redis.Client) {
	for _, l := range n {
		clients = append(clients, redis.NewClient(&redis.Options{
			Addr: l.server, Password: t.password, ContextTimeoutEnabled: t.strict,
			Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, l.addr())
			},
		}))
	}
	return clients
}

func closeAll(clients []*redis.Client) {
	for _, c := range clients {
		_ = c.Close()
	}
}

func (c *redlockClient) mutex(key string) *redlock.Mutex {
	if c.terms.renew {
		return c.rl.Mutex(key, redlock.WithRenewal())
	}
	return c.rl.Mutex(key)
}

func (c *redlockClient) lock(ctx context.Context, key string) (grant, error) {
	return redlockGranted(c.mutex(key).Acquire(ctx))
}

func (c *redlockClient) try(ctx context.Context, key string) (grant, error) {
	return redlockGranted(c.mutex(key).TryAcquire(ctx))
}

func (c *redlockClient) close() {
	_ = c.rl.Close()
	closeAll(c.clients)
}

func redlockGranted(l *redlock.Lock, err error) (grant, error) {
	if err != nil {
		return nil, err
	}
	return redlockGrant{l}, nil
}

type redlockGrant struct{ l *redlock.Lock }

func (g redlockGrant) unlock(ctx context.Context) error { return g.l.Release(ctx) }
func (g redlockGrant) holds() bool                      { return g.l.Validity() > 0 }

type redsyncClient struct {
	clients []*redis.Client
	rs      *redsync.Redsync
	terms   terms
}

func openRedsync(n network, t terms) (locker, error) {
	c := &redsyncClient{clients: n.goRedis(t), terms: t}
	var pools []rsredis.Pool
	for _, client := range c.clients {
		pools = append(pools, goredis.NewPool(client))
	}
	c.rs = redsync.New(pools...)
	return c, nil
}

func (c *redsyncClient) lock(ctx context.Context, key string) (grant, error) {
	m := c.rs.NewMutex(key, redsync.WithExpiry(c.terms.ttl))
	if err := m.LockContext(ctx); err != nil {
		return nil, err
	}
	return redsyncGrant{m}, nil
}

func (c *redsyncClient) try(ctx context.Context, key string) (grant, error) {
	m := c.rs.NewMutex(key, redsync.WithExpiry(c.terms.ttl))
	if err := m.TryLockContext(ctx); err != nil {
		return nil, err
	}
	return redsyncGrant{m}, nil
}

func (c *redsyncClient) close() { closeAll(c.clients) }

type redsyncGrant struct{ m *redsync.Mutex }

func (g redsyncGrant) unlock(ctx context.Context) error {
	ok, err := g.m.UnlockContext(ctx)
	if ok {
		return nil // with the errors of a minority of nodes, if any
	}
	return err
}

func (g redsyncGrant) extend(ctx context.Context) error {
	_, err := g.m.ExtendContext(ctx)
	return err
}

func (g redsyncGrant) holds() bool { return time.Now().Before(g.m.Until()) }

// rueidisClient has one deployment, here the first server, whose keys it wants the
// majority of.
type rueidisClient struct{ locker rueidislock.Locker }

func openRueidis(n network, t terms) (locker, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: []string{n[0].addr()}, Password: t.password},
		KeyValidity:    t.ttl,
		NoLoopTracking: true, // as its documentation advises from Redis 7.0.5 on
	})
	if err != nil {
		return nil, err
	}
	return &rueidisClient{l}, nil
}

func (c *rueidisClient) lock(ctx context.Context, key string) (grant, error) {
	return rueidisGranted(ctx, key, c.locker.WithContext)
}

func (c *rueidisClient) try(ctx context.Context, key string) (grant, error) {
	return rueidisGranted(ctx, key, c.locker.TryWithContext)
}

func (c *rueidisClient) close() { c.locker.Close() }

// The lock ends with the context that it is acquired with, which therefore must outlast
// the caller's.
func rueidisGranted(ctx context.Context, key string, acquire func(context.Context, string) (context.Context, context.CancelFunc, error)) (grant, error) {
	if ctx.Err() != nil {
		_, _, err := acquire(ctx, key)
		return nil, err
	}
	own, end := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, end)
	held, cancel, err := acquire(own, key)
	if stop(); err != nil {
		end()
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return nil, err
	}
	return rueidisGrant{held, func() { cancel(); end() }}, nil
}

type rueidisGrant struct {
	held   context.Context
	cancel func()
}

// unlock has no result: rueidislock does not tell.
func (g rueidisGrant) unlock(context.Context) error {
	g.cancel()
	return nil
}

func (g rueidisGrant) holds() bool { return g.held.Err() == nil }
