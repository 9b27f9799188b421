package realtest_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The servers are new, and one that is away cannot show that it is, so none of these has
// the restart guard, which has tests of its own.

// unhurried options make it show if a call waits for a node that it should not wait
// for: it would take NodeTimeout, three times what promptly allows.
var unhurried = redlock.Options{TTL: time.Minute, NodeTimeout: 15 * time.Second, NoRestartGuard: true}

// brisk options give up on a node soon, if not so soon that a busy machine is taken for one that hangs, but
// keep keys for so long that one which is
// left behind is seen.
var brisk = redlock.Options{TTL: time.Minute, NodeTimeout: time.Second, NoRestartGuard: true}

// patient options bear a machine that is busy with other things.
var patient = redlock.Options{TTL: time.Minute, NodeTimeout: 5 * time.Second, NoRestartGuard: true}

// fleet is a number of real servers, each behind a proxy.
type fleet struct {
	servers []*realredis.Server
	proxies []*faultproxy.Proxy
	admins  []*redis.Client // past the proxies
}

func startFleet(t *testing.T, n int, opts ...realredis.Option) *fleet {
	t.Helper()
	f := &fleet{servers: realredis.StartN(t, n, opts...)}
	for _, s := range f.servers {
		f.proxies = append(f.proxies, proxyFor(t, s))
		f.admins = append(f.admins, s.Client(t, impatient))
	}
	return f
}

// impatient clients say at once what is wrong.
func impatient(o *redis.Options) {
	o.MaxRetries, o.DialerRetries, o.ContextTimeoutEnabled = -1, 1, true
}

func proxyFor(t *testing.T, s *realredis.Server) *faultproxy.Proxy {
	t.Helper()
	p := faultproxy.New(func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", s.Addr())
	})
	t.Cleanup(p.Close)
	_, err := p.Listen()
	require.NoError(t, err)
	return p
}

// addrs are the proxies' addresses.
func (f *fleet) addrs() []string {
	var addrs []string
	for _, p := range f.proxies {
		addr, err := p.Listen()
		if err != nil {
			panic(err)
		}
		addrs = append(addrs, addr)
	}
	return addrs
}

// open is a Redlock by Open through the proxies.
func (f *fleet) open(t *testing.T, o redlock.Options) *redlock.Redlock {
	t.Helper()
	rl := openAt(t, f.addrs(), o)
	t.Cleanup(f.mend) // before Close, which would wait for nodes that are away
	return rl
}

// mend ends all faults of nodes that are alive.
func (f *fleet) mend() {
	for i, s := range f.servers {
		_ = s.Resume()
		f.proxies[i].Clear()
	}
}

// direct is a Redlock past the proxies, another client to those that go through them.
func (f *fleet) direct(t *testing.T, o redlock.Options) *redlock.Redlock {
	t.Helper()
	return openAt(t, addrsOf(f.servers), o)
}

func addrsOf(servers []*realredis.Server) []string {
	var addrs []string
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// openAt is a Redlock by Open. On a busy machine the nodes, all well, may answer too late.
func openAt(t *testing.T, addrs []string, o redlock.Options) *redlock.Redlock {
	t.Helper()
	rl, err := openOn(t.Context(), addrs, &o)
	for end := time.Now().Add(20 * time.Second); errors.Is(err, redlock.ErrNoQuorum) && time.Now().Before(end); {
		rl, err = openOn(t.Context(), addrs, &o)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	return rl
}

// byDefault is a Redlock by New through the proxies, on clients with go-redis' default
// settings but for those that change.
func (f *fleet) byDefault(t *testing.T, o redlock.Options, change ...func(*redis.Options)) *redlock.Redlock {
	t.Helper()
	var clients []redis.UniversalClient
	for _, addr := range f.addrs() {
		clients = append(clients, defaultClient(t, addr, change...))
	}
	rl := newOn(t, o, clients...)
	t.Cleanup(f.mend)
	return rl
}

func defaultClient(t *testing.T, addr string, change ...func(*redis.Options)) *redis.Client {
	o := &redis.Options{Addr: addr}
	for _, c := range change {
		c(o)
	}
	client := redis.NewClient(o)
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func newOn(t *testing.T, o redlock.Options, clients ...redis.UniversalClient) *redlock.Redlock {
	t.Helper()
	rl, err := newOf(clients, &o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	return rl
}

// warmFleet is a fleet and a Redlock by default clients that knows all of its nodes.
func warmFleet(t *testing.T, n int, o redlock.Options, change ...func(*redis.Options)) (*fleet, *redlock.Redlock) {
	t.Helper()
	f := startFleet(t, n)
	rl := f.byDefault(t, o, change...)
	f.warm(t, rl)
	return f, rl
}

// eachWay runs the test with clients of the library's own and with a user's.
func (f *fleet) eachWay(t *testing.T, o redlock.Options, test func(t *testing.T, f *fleet, rl *redlock.Redlock)) {
	t.Helper()
	t.Run("Open", func(t *testing.T) { test(t, f, f.open(t, o)) })
	t.Run("New", func(t *testing.T) { test(t, f, f.byDefault(t, o)) })
}

// holders is what each server holds under the key: "" for nothing. It may be used in
// eventually.
func (f *fleet) holders(key string) []string { return holdersOn(f.admins, key) }

func holdersOn(admins []*redis.Client, key string) []string {
	held := make([]string, len(admins))
	for i, c := range admins {
		v, err := c.Get(context.Background(), key).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			v = "error: " + err.Error()
		}
		held[i] = v
	}
	return held
}

// requireGone waits until no server holds the key.
func (f *fleet) requireGone(t *testing.T, key string) {
	t.Helper()
	eventually(t, func() bool { return !slices.ContainsFunc(f.holders(key), notEmpty) },
		"the key is still on some servers")
}

func notEmpty(s string) bool { return s != "" }

// requireOn checks that every server holds this lock's value.
func (f *fleet) requireOn(t *testing.T, lock *redlock.Lock) {
	t.Helper()
	eventually(t, func() bool { return !slices.ContainsFunc(f.holders(lock.Key()), not(lock)) },
		"the lock is not on all servers")
}

func not(lock *redlock.Lock) func(string) bool {
	return func(v string) bool { return !strings.HasPrefix(v, lock.Token()+"@") }
}

// plant puts another client's value on servers, past the proxies.
func (f *fleet) plant(t *testing.T, value string, ttl time.Duration, nodes ...int) {
	t.Helper()
	for _, i := range nodes {
		require.NoError(t, f.admins[i].Set(t.Context(), resource, value, ttl).Err())
	}
}

// do runs a command on servers, past the proxies.
func (f *fleet) do(t *testing.T, nodes []int, args ...any) {
	t.Helper()
	for _, i := range nodes {
		require.NoError(t, f.admins[i].Do(t.Context(), args...).Err())
	}
}

// executed is how often a server has executed a command, by its own count.
func (f *fleet) executed(i int, command string) int {
	info := f.admins[i].Info(context.Background(), "commandstats").Val()
	for line := range strings.Lines(info) {
		var calls int
		if rest, ok := strings.CutPrefix(line, "cmdstat_"+command+":calls="); ok {
			if _, err := fmt.Sscanf(rest, "%d", &calls); err == nil {
				return calls
			}
		}
	}
	return 0
}

// resetLogs forgets what went over the wire so far.
func (f *fleet) resetLogs() {
	for _, p := range f.proxies {
		p.Reset()
	}
}

// counts is how many commands of these names each node was sent.
func (f *fleet) counts(names ...string) []int {
	var counts []int
	for _, p := range f.proxies {
		counts = append(counts, p.Count(names...))
	}
	return counts
}

func (f *fleet) all() []int { return upTo(len(f.servers)) }

func upTo(n int) []int {
	nodes := make([]int, n)
	for i := range nodes {
		nodes[i] = i
	}
	return nodes
}

// warm makes every node known to the library, and the library's scripts to every node.
func (f *fleet) warm(t *testing.T, rl *redlock.Redlock) {
	t.Helper()
	f.warmWith(t, rl, time.Minute)
}

// warmWith warms with a TTL.
func (f *fleet) warmWith(t *testing.T, rl *redlock.Redlock, ttl time.Duration) {
	t.Helper()
	warm(t, rl, ttl)
	// A node releases by another script where it keeps the lock's line.
	for _, source := range scripts(t) {
		for _, c := range f.admins {
			eventually(t, func() bool { return c.ScriptLoad(context.Background(), source).Err() == nil }, "the script cannot be loaded")
		}
	}
}

// scripts are the library's, as it sends them.
func scripts(t *testing.T) (sources []string) {
	t.Helper()
	files, err := filepath.Glob("../../protocol/scripts/*.lua")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		sources = append(sources, script(t, file))
	}
	return sources
}

var includes = regexp.MustCompile(`(?m)^-- include (.+)\n`)

func script(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return includes.ReplaceAllStringFunc(string(text), func(line string) string {
		return script(t, filepath.Join(filepath.Dir(file), includes.FindStringSubmatch(line)[1]))
	})
}

// warm lets every node grant a lock once, and waits until nothing of it is left.
func warm(t *testing.T, rl *redlock.Redlock, ttl time.Duration) {
	t.Helper()
	m := rl.Mutex("warm-up", redlock.WithTTL(ttl))
	eventually(t, func() bool {
		lock, err := m.TryAcquire(context.Background())
		if err != nil {
			return false
		}
		all := true
		for deadline := time.Now().Add(time.Second); ; {
			all = !slices.ContainsFunc(lock.Outcomes(), func(o redlock.Outcome) bool { return o.Vote != redlock.VoteGranted })
			if all || time.Now().After(deadline) {
				break
			}
			<-time.After(time.Millisecond)
		}
		extended := lock.Extend(context.Background(), ttl) == nil
		return lock.Release(context.Background()) == nil && extended && all
	}, "not all nodes grant")
	// Releases of the slower nodes may still be on their way.
	nodes := operator(t, rl)
	eventually(t, func() bool {
		s, err := nodes.Inspect(context.Background(), "warm-up")
		return err == nil && !slices.ContainsFunc(s.Nodes, func(n admin.NodeStatus) bool { return n.Err != nil || n.Value != "" })
	}, "the warm-up's releases did not arrive")
}
