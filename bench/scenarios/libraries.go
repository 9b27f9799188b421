package scenarios

import (
	"context"
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
	open func(ctx context.Context, addrs []string, t terms) (locker, error)
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
	rl    *redlock.Redlock
	terms terms
}

func openRedlock(ctx context.Context, addrs []string, t terms) (locker, error) {
	urls := make([]string, len(addrs))
	for i, a := range addrs {
		urls[i] = "redis://:" + t.password + "@" + a
	}
	rl, err := redlock.Open(ctx, urls, &redlock.Options{TTL: t.ttl})
	if err != nil {
		return nil, err
	}
	return &redlockClient{rl, t}, nil
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

func (c *redlockClient) close() { _ = c.rl.Close() }

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

func openRedsync(_ context.Context, addrs []string, t terms) (locker, error) {
	c := &redsyncClient{terms: t}
	var pools []rsredis.Pool
	for _, a := range addrs {
		client := redis.NewClient(&redis.Options{Addr: a, Password: t.password, ContextTimeoutEnabled: t.strict})
		c.clients = append(c.clients, client)
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

func (c *redsyncClient) close() {
	for _, client := range c.clients {
		_ = client.Close()
	}
}

type redsyncGrant struct{ m *redsync.Mutex }

func (g redsyncGrant) unlock(ctx context.Context) error {
	ok, err := g.m.UnlockContext(ctx)
	if ok {
		return nil // with the errors of a minority of nodes, if any
	}
	return err
}

func (g redsyncGrant) holds() bool { return time.Now().Before(g.m.Until()) }

// rueidisClient has one deployment, here the first server, whose keys it wants the
// majority of.
type rueidisClient struct{ locker rueidislock.Locker }

func openRueidis(_ context.Context, addrs []string, t terms) (locker, error) {
	l, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption:   rueidis.ClientOption{InitAddress: addrs[:1], Password: t.password},
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
