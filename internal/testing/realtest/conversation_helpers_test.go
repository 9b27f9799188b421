package realtest_test

import (
	"context"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The tests of rows 73 to 93 of the scenarios in docs/safety-tests.md: silent flows, what may
// still land, nodes that forget, bursts and overload. Their helpers begin with conv, for
// the conversation between a client and the server that answers it now.

// longRowsEnv names the environment variable that, set to 1, runs the long form of tests
// that have one.
const longRowsEnv = "REDLOCK_ROWS_LONG"

// convRounds is how many rounds a test makes that counts: few, unless the long form is
// asked for.
func convRounds(few, many int) int {
	if os.Getenv(longRowsEnv) == "1" {
		return many
	}
	return few
}

// convKey is the key that most of these tests lock. Each test has servers of its own.
const convKey = "orders:42"

// convFleet is a number of real servers.
type convFleet struct {
	servers []*realredis.Server
	admins  []*redis.Client // past all proxies
}

func convStart(t *testing.T, n int, opts ...realredis.Option) *convFleet {
	t.Helper()
	f := &convFleet{servers: realredis.StartN(t, n, opts...)}
	for _, s := range f.servers {
		f.admins = append(f.admins, s.Client(t, convAtOnce))
	}
	return f
}

// convAtOnce makes a client say at once what is wrong.
func convAtOnce(o *redis.Options) {
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
}

// convPath is the way from one client to each server, with a proxy on it. Each client has
// a path of its own, so that one can be cut off from a server that others reach.
type convPath struct {
	fleet   *convFleet
	proxies []*faultproxy.Proxy
	addrs   []string // of the proxies, if there are any, or of the servers
}

func (f *convFleet) path(t *testing.T) *convPath {
	t.Helper()
	p := &convPath{fleet: f}
	for _, s := range f.servers {
		proxy := faultproxy.New(convTo(s))
		t.Cleanup(proxy.Close)
		addr, err := proxy.Listen()
		require.NoError(t, err)
		p.proxies, p.addrs = append(p.proxies, proxy), append(p.addrs, addr)
	}
	return p
}

// direct is a path without proxies.
func (f *convFleet) direct() *convPath {
	p := &convPath{fleet: f}
	for _, s := range f.servers {
		p.addrs = append(p.addrs, s.Addr())
	}
	return p
}

// convTo is the way to a server for a proxy.
func convTo(s *realredis.Server) faultproxy.Dialer {
	return func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", s.Addr())
	}
}

// open is a Redlock by Open. It knows the servers by the proxies' addresses.
func (p *convPath) open(t *testing.T, o redlock.Options) *redlock.Redlock {
	t.Helper()
	rl, err := openOn(t.Context(), p.addrs, &o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	return rl
}

// users is a Redlock by New on clients with go-redis' default settings, but for those that
// change. It knows the servers by their own addresses, as all clients by users do.
func (p *convPath) users(t *testing.T, o redlock.Options, change ...func(*redis.Options)) *redlock.Redlock {
	t.Helper()
	rl, err := newOf(p.clients(t, change...), &o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	return rl
}

func (p *convPath) clients(t *testing.T, change ...func(*redis.Options)) (clients []redis.UniversalClient) {
	t.Helper()
	for i, s := range p.fleet.servers {
		o := &redis.Options{Addr: s.Addr(), Dialer: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", p.addrs[i])
		}}
		for _, c := range change {
			c(o)
		}
		c := redis.NewClient(o)
		t.Cleanup(func() { _ = c.Close() })
		clients = append(clients, c)
	}
	return clients
}

// convWay is one of the two ways to make a client.
type convWay struct {
	name string
	make func(p *convPath, t *testing.T, o redlock.Options) *redlock.Redlock
}

// warm is a Redlock on n servers that all grant already.
func (w convWay) warm(t *testing.T, n int, o redlock.Options) (*convFleet, *convPath, *redlock.Redlock) {
	t.Helper()
	f := convStart(t, n)
	p := f.path(t)
	rl := w.make(p, t, o)
	convWarm(t, f, rl)
	return f, p, rl
}

var convWays = []convWay{
	{"Open", (*convPath).open},
	{"New", func(p *convPath, t *testing.T, o redlock.Options) *redlock.Redlock { return p.users(t, o) }},
}

// convEachWay runs the test for both kinds of clients at the same time.
func convEachWay(t *testing.T, test func(t *testing.T, way convWay)) {
	t.Helper()
	convTogether(t, convWays, func(w convWay) string { return w.name }, test)
}

// convTogether runs subtests at the same time, whatever -parallel says: most of these tests
// wait for faults and leases, and for no processor.
func convTogether[C any](t *testing.T, cases []C, name func(C) string, test func(t *testing.T, c C)) {
	t.Helper()
	var all sync.WaitGroup
	defer all.Wait()
	for _, c := range cases {
		all.Go(func() { t.Run(name(c), func(t *testing.T) { test(t, c) }) })
	}
}

// refuse makes the path refuse these servers; heal ends that.
func (p *convPath) refuse(nodes ...int) {
	for _, i := range nodes {
		p.proxies[i].Refuse()
	}
}

func (p *convPath) heal() {
	for _, proxy := range p.proxies {
		proxy.Heal()
	}
}

// held is what each server has under the key, "" for nothing.
func (f *convFleet) held(key string) []string { return holdersOn(f.admins, key) }

// gone reports whether no server has the key.
func (f *convFleet) gone(key string) bool {
	return !slices.ContainsFunc(f.held(key), notEmpty)
}

func (f *convFleet) others(nodes []int) (others []int) {
	for i := range f.servers {
		if !slices.Contains(nodes, i) {
			others = append(others, i)
		}
	}
	return others
}

// convAge waits until servers are old enough for a guard of d.
func convAge(t *testing.T, d time.Duration, admins ...*redis.Client) {
	t.Helper()
	for _, c := range admins {
		convEventually(t, func() bool { return convUptime(c) >= d+2*time.Second }, "a server does not grow older")
	}
}

func convUptime(c *redis.Client) time.Duration {
	n, err := strconv.Atoi(convInfo(c, "server", "uptime_in_seconds"))
	if err != nil {
		return -1
	}
	return time.Duration(n) * time.Second
}

// convInfo is a field of a server's INFO, "" if it does not say.
func convInfo(c *redis.Client, section, field string) string {
	for line := range strings.Lines(c.Info(context.Background(), section).Val()) {
		if v, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// convPatience is how long these tests wait for what must happen, on a busy machine.
const convPatience = 15 * time.Second

// convEventually waits for something that can be observed.
func convEventually(t *testing.T, cond func() bool, msg string) {
	t.Helper()
	poll(t, convPatience, cond, msg)
}

// convEventuallyIn tries something that takes its time, and that a busy machine may spoil.
func convEventuallyIn(t *testing.T, tries int, ok func() bool, msg string) {
	t.Helper()
	for range tries {
		if ok() {
			return
		}
	}
	require.Fail(t, msg, "in each of %d tries", tries)
}

// convPause lets a fault last.
func convPause(d time.Duration) { <-time.After(d) }

// convSettles waits for a period in which less than limit is spent, as measured by spent while it
// runs its argument. The first failures of a fault cost more, and on a busy machine last longer.
func convSettles(t *testing.T, what string, limit uint64, spent func(pause func()) uint64) {
	t.Helper()
	const period = 2 * time.Second
	for deadline := time.Now().Add(convPatience); ; {
		n := spent(func() { convPause(period) })
		t.Logf("%d %s in %v", n, what, period)
		if n < limit {
			return
		}
		require.True(t, time.Now().Before(deadline), "%d %s in %v, never less than %d", n, what, period, limit)
	}
}

// convWarm makes every node known to the client: connected, with its vote, and with
// whatever the client keeps there.
func convWarm(t *testing.T, f *convFleet, rl *redlock.Redlock) {
	t.Helper()
	m := rl.Mutex("warm-up")
	convEventually(t, func() bool {
		lock, err := m.TryAcquire(context.Background())
		if err != nil {
			return false
		}
		votes := convVotes(lock)
		return lock.Release(context.Background()) == nil &&
			!slices.ContainsFunc(votes, func(v redlock.Vote) bool { return v != redlock.VoteGranted })
	}, "not all nodes grant")
	convEventually(t, func() bool { return f.gone("warm-up") }, "the warm-up's releases did not arrive")
}

// convVotes waits for the votes of the slower nodes, a second at most.
func convVotes(lock *redlock.Lock) (votes []redlock.Vote) {
	for deadline := time.Now().Add(time.Second); ; convPause(time.Millisecond) {
		votes = votes[:0]
		for _, o := range lock.Outcomes() {
			votes = append(votes, o.Vote)
		}
		if !slices.Contains(votes, redlock.VotePending) || time.Now().After(deadline) {
			return votes
		}
	}
}

// convTry asks until the lock is granted and returns how long that took.
func convTry(t *testing.T, m *redlock.Mutex) (lock *redlock.Lock, took time.Duration) {
	t.Helper()
	begin := time.Now()
	for {
		var err error
		if lock, err = m.TryAcquire(context.Background()); err == nil {
			return lock, time.Since(begin)
		}
		require.Less(t, time.Since(begin), convPatience, "never granted: %v", err)
		convPause(2 * time.Millisecond)
	}
}

// holdOn has the client hold the key for two minutes on these servers and no others, which
// must be a majority.
func (p *convPath) holdOn(t *testing.T, rl *redlock.Redlock, key string, nodes ...int) *redlock.Lock {
	t.Helper()
	p.refuse(p.fleet.others(nodes)...)
	lock, _ := convTry(t, rl.Mutex(key, redlock.WithTTL(2*time.Minute)))
	convEventually(t, func() bool {
		for _, o := range lock.Outcomes() {
			if o.Vote == redlock.VotePending { // its SET may wait for the path to be healed
				return false
			}
		}
		for i, v := range p.fleet.held(key) {
			if (v != "") != slices.Contains(nodes, i) {
				return false
			}
		}
		return true
	}, "the holder is not on these nodes")
	p.heal()
	return lock
}

// convGuarded options bar nodes that may have forgotten for two seconds: the TTL.
var convGuarded = redlock.Options{TTL: 2 * time.Second, NodeTimeout: 500 * time.Millisecond}

// convBarred asks for a lock that another client holds, and that a node has forgotten
// a moment after since, until it is granted. That may not be before the guard's time is over: there would be
// two holders. Afterwards it must be granted, although the holder's longer lease goes on.
func convBarred(t *testing.T, m *redlock.Mutex, first *redlock.Lock, since time.Time) {
	t.Helper()
	period := convGuarded.TTL
	second, _ := convTry(t, m)
	took := time.Since(since)
	require.GreaterOrEqual(t, took, period, "two holders, with %v and %v left; the votes: %v",
		first.Validity().Round(time.Millisecond), second.Validity().Round(time.Millisecond), second.Outcomes())
	require.Less(t, took, period+5*time.Second, "barred for too long")
}
