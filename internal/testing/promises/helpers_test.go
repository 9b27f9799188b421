package promises_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/ticktest"
	"github.com/quorumlock/redlock/redlocktest"
)

// By default a lease lasts 10s, of which 102ms are given up to drift; an operation
// waits 200ms for a node, and a bubble's clock stands still while anything runs.
const (
	ttl         = 10 * time.Second
	valid       = ttl - 102*time.Millisecond
	nodeTimeout = 200 * time.Millisecond
	key         = "orders:42"
)

// bed is a Redlock over a cluster of fake nodes in a synctest bubble.
type bed struct {
	*testing.T
	cluster *redlocktest.Cluster
	rl      *redlock.Redlock
	lanes   []*lane.Lane // of rl, if the test assembled it
}

// inBubble runs a test over n nodes in virtual time.
func inBubble(t *testing.T, n int, opts *redlock.Options, test func(b *bed)) {
	t.Helper()
	bubble.Run(t, n, func(t *testing.T, c *redlocktest.Cluster) {
		b := &bed{T: t, cluster: c}
		b.rl = b.another(opts)
		test(b)
	})
}

// another is another process on the same nodes.
func (b *bed) another(opts *redlock.Options) *redlock.Redlock {
	b.Helper()
	rl, err := redlock.New(b.cluster.Clients(), opts)
	require.NoError(b, err)
	b.Cleanup(func() { _ = rl.Close() })
	return rl
}

// looking is an operator's tool on the nodes.
func looking(t testing.TB, c *redlocktest.Cluster, opts *admin.Options) *admin.Nodes {
	t.Helper()
	nodes, err := admin.New(c.Clients(), opts)
	require.NoError(t, err)
	return nodes
}

// status is what an operator is told of the key.
func (b *bed) status() admin.Status {
	b.Helper()
	s, err := looking(b, b.cluster, nil).Inspect(b.Context(), key)
	require.NoError(b, err)
	return s
}

// takeAway is a forced release of whatever is there.
func takeAway(t testing.TB, c *redlocktest.Cluster, key string) {
	t.Helper()
	_, err := looking(t, c, nil).ForceRelease(t.Context(), key, admin.Anything())
	require.NoError(t, err)
}

// withClock is a process with a clock of its own.
func (b *bed) withClock() (*redlock.Redlock, *ticktest.FakeClock) {
	b.Helper()
	clock := ticktest.NewFakeClock()
	rl, err := newWithClock(b.cluster.Clients(), nil, clock)
	require.NoError(b, err)
	// No timer of a clock that stands still would end the patience of Close; nothing
	// may be left that it waits for.
	b.Cleanup(func() { _ = rl.Close() })
	return rl, clock
}

// pass lets virtual time pass, and everything come to rest.
func (b *bed) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// lock acquires the key at once.
func (b *bed) lock(opts ...redlock.LockOption) *redlock.Lock {
	b.Helper()
	lock, err := b.rl.Mutex(key, opts...).TryAcquire(b.Context())
	require.NoError(b, err)
	synctest.Wait()
	return lock
}

// looksAtRelease is how long a lock is held whose release looks for waiters at all nodes. That of
// one that is held for less is another script, but for every eighth.
const looksAtRelease = 10 * time.Millisecond

// cycle acquires and releases on all nodes, which then are connected and know the
// script: where they do not, a SET may go out along with a release that has to be sent
// again, and be refused.
func (b *bed) cycle() { b.cycleOf(0) }

// cycleOf holds the lock for so long.
func (b *bed) cycleOf(held time.Duration) {
	b.Helper()
	lock := b.lock()
	b.pass(held)
	require.NoError(b, lock.Release(b.Context()))
	synctest.Wait()
}

// try fails to acquire the key.
func (b *bed) try() *redlock.QuorumError {
	b.Helper()
	lock, err := b.rl.Mutex(key).TryAcquire(b.Context())
	require.Nil(b, lock)
	return b.quorumError(err)
}

func (b *bed) quorumError(err error) *redlock.QuorumError {
	b.Helper()
	var q *redlock.QuorumError
	require.ErrorAs(b, err, &q)
	assert.NotContains(b, q.Error(), "\n")
	return q
}

// takes asserts how long f takes in virtual time.
func (b *bed) takes(want time.Duration, f func()) {
	b.Helper()
	start := time.Now()
	f()
	assert.Equal(b, want, time.Since(start), "how long it takes")
}

// on asserts on how many nodes the key is.
func (b *bed) on(want int) {
	b.Helper()
	synctest.Wait()
	n := 0
	for _, h := range b.cluster.Holders(key) {
		if h != "" {
			n++
		}
	}
	assert.Equal(b, want, n, "nodes that have the key")
}

// each does something to the nodes.
func (b *bed) each(nodes []int, f func(*redlocktest.Node)) {
	for _, i := range nodes {
		f(b.cluster.Node(i))
	}
}

func hang(n *redlocktest.Node)   { n.Hang() }
func resume(n *redlocktest.Node) { n.Resume() }
func stop(n *redlocktest.Node)   { n.Stop() }

// taken puts another holder's key on a node.
func taken(n *redlocktest.Node) { n.Set(key, "somebody@else", time.Hour) }

// gone removes the lock's key from a node. Were all keys gone, the node could not vote for
// a while.
func gone(n *redlocktest.Node) { n.Del(key) }

// list makes the key something that is no lock.
func list(n *redlocktest.Node) { _, _ = n.Redis().Lpush(key, "x") }

// answers makes a node answer with an error.
func answers(msg string) func(*redlocktest.Node) {
	return func(n *redlocktest.Node) { n.SetError(msg) }
}

// cannotReach is a client whose way to its node is cut, as seen from one process only.
func cannotReach(o *redis.Options) {
	o.DialerRetries = 1
	o.Dialer = func(context.Context, string, string) (net.Conn, error) {
		return nil, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	}
}

// votes reads like "2 granted, 1 unknown".
func votes(outcomes []redlock.Outcome) string {
	var words []string
	for _, o := range outcomes {
		words = append(words, o.Vote.String())
	}
	return strings.Join(words, " ")
}

// keysOf are a node's keys but for its memory mark, which stays.
func keysOf(n *redlocktest.Node) []string {
	return slices.DeleteFunc(n.Redis().Keys(), func(k string) bool { return strings.HasSuffix(k, memoryMark) })
}

const memoryMark = "redlock:memory"

// How scripts are sent: by digest, or whole.
const (
	evalsha = "EVALSHA"
	eval    = "EVAL"
)

// values returns the values of all SETs that have arrived at a node.
func values(n *redlocktest.Node) (vs []string) {
	for _, c := range n.Log() {
		if strings.EqualFold(c.Args[0], "set") {
			vs = append(vs, c.Args[2])
		}
	}
	return vs
}

// canceled is a context that is over.
func canceled() context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errGaveUp)
	return ctx
}

var errGaveUp = errors.New("gave up")

// result is what an operation on another goroutine returned.
type result struct {
	lock *redlock.Lock
	err  error
	at   time.Time
}

// later calls f on a goroutine of its own, and lets it come to rest.
func later(f func() (*redlock.Lock, error)) <-chan result {
	done := make(chan result, 1)
	go func() {
		lock, err := f()
		done <- result{lock, err, time.Now()}
	}()
	synctest.Wait()
	return done
}

// pending asserts that there is no result yet.
func (b *bed) pending(done <-chan result) {
	b.Helper()
	select {
	case r := <-done:
		b.Fatalf("returned too early: %v, %v", r.lock, r.err)
	default:
	}
}

type ctxKey struct{}

// locker is what describes a lock: an exclusive one, a shared one or a semaphore.
type locker interface {
	Key() string
	TryAcquire(ctx context.Context) (*redlock.Lock, error)
	Acquire(ctx context.Context) (*redlock.Lock, error)
	Do(ctx context.Context, fn func(ctx context.Context, lock *redlock.Lock) error) error
}
