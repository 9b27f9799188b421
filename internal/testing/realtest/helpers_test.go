package realtest_test

import (
	"bytes"
	"context"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"weak"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/quorumlock/redlock/internal/testing/longtest"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// resource is the key that most tests lock. Each test has nodes of its own.
const resource = "orders:42"

// unlined is a key without a line, for which waiters poll.
const unlined = resource + "}"

// crowd is how many wait at once where many shall.
func crowd() int {
	if longtest.On() {
		return 10_000
	}
	return 1_000
}

// leftKeys are the keys of a server but for the memory mark, which stays.
func leftKeys(c *redis.Client) []string {
	keys, err := c.Keys(context.Background(), "*").Result()
	if err != nil {
		return []string{err.Error()}
	}
	return slices.DeleteFunc(keys, func(k string) bool { return strings.HasSuffix(k, "redlock:memory") })
}

// requireNoGoroutinesLeft waits until the library runs no more goroutines than before, but for
// a few that talk to a node and may come and go. Those of a proxy and of a client's pool do not
// count: there are as many as the pool has connections, which is the pool's affair.
func requireNoGoroutinesLeft(t *testing.T, before int) {
	t.Helper()
	const few = 10
	eventually(t, func() bool { return ownGoroutines() <= before+few }, "goroutines are left")
}

// ownGoroutines counts the goroutines in which the library's code runs.
func ownGoroutines() int {
	stacks := make([]byte, 64<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	n := 0
	for one := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		if bytes.Contains(one, []byte("quorumlock/redlock.(")) {
			n++
		}
	}
	return n
}

// requireLock acquires the resource at the first attempt.
func requireLock(t *testing.T, rl *redlock.Redlock, opts ...redlock.LockOption) *redlock.Lock {
	t.Helper()
	lock, err := rl.Mutex(resource, opts...).TryAcquire(t.Context())
	require.NoError(t, err)
	return lock
}

// requireAcquire waits for the resource, within reason.
func requireAcquire(t *testing.T, rl *redlock.Redlock) *redlock.Lock {
	t.Helper()
	return requireAcquireOf(t, rl, resource)
}

func requireAcquireOf(t *testing.T, rl *redlock.Redlock, key string) *redlock.Lock {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	lock, err := rl.Mutex(key).Acquire(ctx)
	require.NoError(t, err)
	return lock
}

// try is the error of one attempt that must not succeed.
func try(t *testing.T, rl *redlock.Redlock) error {
	t.Helper()
	lock, err := rl.Mutex(resource).TryAcquire(t.Context())
	require.Nil(t, lock)
	require.Error(t, err)
	return err
}

// requireNoQuorum checks for an outage that is not mistaken for a holder.
func requireNoQuorum(t *testing.T, err error) {
	t.Helper()
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NotErrorIs(t, err, redlock.ErrHeld)
	require.NotErrorIs(t, err, redlock.ErrNotHeld)
}

// promptly fails the test if f takes anything like unhurried's NodeTimeout or what
// go-redis would wait by default.
func promptly[T any](t *testing.T, f func() T) T {
	t.Helper()
	return within(t, 4*time.Second, background(f), "the call waits for a node that it should not wait for")
}

// promptLock is requireLock, promptly.
func promptLock(t *testing.T, rl *redlock.Redlock) *redlock.Lock {
	t.Helper()
	type result struct {
		lock *redlock.Lock
		err  error
	}
	r := promptly(t, func() result {
		lock, err := rl.Mutex(resource).TryAcquire(context.Background())
		return result{lock, err}
	})
	require.NoError(t, r.err)
	return r.lock
}

// background runs f and returns where its result will be.
func background[T any](f func() T) <-chan T {
	done := make(chan T, 1)
	go func() { done <- f() }()
	return done
}

// await waits for what background started.
func await[T any](t *testing.T, c <-chan T) T {
	t.Helper()
	return within(t, 30*time.Second, c, "still waiting")
}

func within[T any](t *testing.T, limit time.Duration, c <-chan T, msg string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(limit):
		require.FailNow(t, msg)
		panic("unreachable")
	}
}

func eventually(t *testing.T, cond func() bool, msg string) {
	t.Helper()
	poll(t, 20*time.Second, cond, msg)
}

// poll asks more seldom the longer it has asked: a guard that takes eight seconds is not worth the servers' whole time.
func poll(t *testing.T, patience time.Duration, cond func() bool, msg string) {
	t.Helper()
	for began := time.Now(); !cond(); time.Sleep(2*time.Millisecond + time.Since(began)/100) {
		require.Less(t, time.Since(began), patience, msg)
	}
}

// votesOf are what the nodes said, as in an error or a lock.
func votesOf(outcomes []redlock.Outcome) []redlock.Vote {
	var votes []redlock.Vote
	for _, o := range outcomes {
		votes = append(votes, o.Vote)
	}
	return votes
}

// outcomes are those of a failed operation.
func outcomes(t *testing.T, err error) []redlock.Outcome {
	t.Helper()
	var q *redlock.QuorumError
	require.ErrorAs(t, err, &q)
	return q.Outcomes
}

// pass lets virtual time pass.
func pass(d time.Duration) { <-time.After(d) }

// clientOf is a client of a simulated cluster.
func clientOf(t *testing.T, c *redlocktest.Cluster, o redlock.Options) *redlock.Redlock {
	t.Helper()
	return newOn(t, o, c.Clients()...)
}

// origin is how a client of these tests was made.
type origin struct {
	addrs   []string // by Open
	clients []redis.UniversalClient
	opts    redlock.Options
}

var origins sync.Map // from weak pointers to clients, which one that is not closed must not outlive

// openOn is redlock.Open of a client that operator knows.
func openOn(ctx context.Context, addrs []string, o *redlock.Options) (*redlock.Redlock, error) {
	rl, err := redlock.Open(ctx, addrs, o)
	return made(rl, err, origin{addrs: addrs}, o)
}

// newOf is redlock.New of a client that operator knows.
func newOf(clients []redis.UniversalClient, o *redlock.Options) (*redlock.Redlock, error) {
	rl, err := redlock.New(clients, o)
	return made(rl, err, origin{clients: clients}, o)
}

func made(rl *redlock.Redlock, err error, w origin, o *redlock.Options) (*redlock.Redlock, error) {
	if o != nil {
		w.opts = *o
	}
	if err == nil {
		origins.Store(weak.Make(rl), w)
	}
	return rl, err
}

// operator is an operator's tool on the nodes of a client, with its options.
func operator(t testing.TB, rl *redlock.Redlock) *admin.Nodes {
	t.Helper()
	known, ok := origins.Load(weak.Make(rl))
	require.True(t, ok, "made by openOn or newOf")
	w := known.(origin)
	o := &admin.Options{
		KeyPrefix: w.opts.KeyPrefix, NodeNames: rl.Nodes(), TLS: w.opts.TLS,
		TTL: w.opts.TTL, NodeTimeout: w.opts.NodeTimeout, RestartGuard: w.opts.RestartGuard, NoRestartGuard: w.opts.NoRestartGuard,
	}
	if w.addrs != nil {
		nodes, err := admin.Open(w.addrs, o)
		require.NoError(t, err)
		t.Cleanup(func() { _ = nodes.Close() })
		return nodes
	}
	nodes, err := admin.New(w.clients, o)
	require.NoError(t, err)
	t.Cleanup(func() { _ = nodes.Close() })
	return nodes
}

// takeAway is a forced release of whatever the key holds.
func takeAway(t testing.TB, rl *redlock.Redlock, key string) {
	t.Helper()
	_, err := operator(t, rl).ForceRelease(t.Context(), key, admin.Anything())
	require.NoError(t, err)
}

// separable is a client of a simulated cluster that can be cut off by itself.
func separable(t *testing.T, c *redlocktest.Cluster, o redlock.Options) (*redlock.Redlock, []*faultproxy.Proxy) {
	t.Helper()
	var proxies []*faultproxy.Proxy
	var clients []redis.UniversalClient
	for i := range c.Len() {
		clients = append(clients, c.Client(i, func(o *redis.Options) {
			dial := o.Dialer
			p := faultproxy.New(func(ctx context.Context) (net.Conn, error) { return dial(ctx, "", "") })
			t.Cleanup(p.Close)
			proxies = append(proxies, p)
			o.Dialer = func(ctx context.Context, _, _ string) (net.Conn, error) { return p.DialContext(ctx) }
		}))
	}
	return newOn(t, o, clients...), proxies
}

// waitForVotes returns the votes when none is pending any more.
func waitForVotes(t *testing.T, lock *redlock.Lock) []redlock.Vote {
	t.Helper()
	eventually(t, func() bool { return !slices.Contains(votesOf(lock.Outcomes()), redlock.VotePending) }, "votes are pending")
	return votesOf(lock.Outcomes())
}

// locker is what describes a lock: an exclusive one, a shared one or a semaphore.
type locker interface {
	Key() string
	TryAcquire(ctx context.Context) (*redlock.Lock, error)
	Acquire(ctx context.Context) (*redlock.Lock, error)
	Do(ctx context.Context, fn func(ctx context.Context, lock *redlock.Lock) error) error
}
