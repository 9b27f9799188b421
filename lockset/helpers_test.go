package lockset_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/lockset"
	"github.com/quorumlock/redlock/redlocktest"
)

// What Options say by default.
const (
	ttl         = 10 * time.Second
	nodeTimeout = 200 * time.Millisecond
)

// bed is a Redlock over a cluster of fake nodes in virtual time.
type bed struct {
	*testing.T
	cluster *redlocktest.Cluster
	rl      *redlock.Redlock
}

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

// pass lets virtual time pass, and everything come to rest.
func (b *bed) pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// take acquires a key at once.
func (b *bed) take(rl *redlock.Redlock, key string) *redlock.Lock {
	b.Helper()
	lock, err := rl.Mutex(key, redlock.WithRenewal()).TryAcquire(b.Context())
	require.NoError(b, err)
	synctest.Wait()
	return lock
}

func (b *bed) release(l interface {
	Release(ctx context.Context) error
}) {
	b.Helper()
	require.NoError(b, l.Release(b.Context()))
	synctest.Wait()
}

// delay is the time from a client to each node, and back.
func (b *bed) delay(d time.Duration) {
	for _, n := range b.cluster.Nodes() {
		n.Delay(d)
	}
}

// free asserts that no node has any of the keys, held that some node has each.
func (b *bed) free(keys ...string) { b.Helper(); b.areHeld(false, keys) }
func (b *bed) held(keys ...string) { b.Helper(); b.areHeld(true, keys) }

func (b *bed) areHeld(want bool, keys []string) {
	b.Helper()
	synctest.Wait()
	for _, k := range keys {
		some := slices.ContainsFunc(b.cluster.Holders(k), func(h string) bool { return h != "" })
		assert.Equal(b, want, some, "%s is held", k)
	}
}

// takes asserts how long f takes in virtual time.
func (b *bed) takes(want time.Duration, f func()) {
	b.Helper()
	start := time.Now()
	f()
	assert.Equal(b, want, time.Since(start), "how long it takes")
}

// keyOf is the key that an error names.
func (b *bed) keyOf(err error) string {
	b.Helper()
	var q *redlock.QuorumError
	require.ErrorAs(b, err, &q)
	assert.ErrorContains(b, err, `"`+q.Key+`"`)
	return q.Key
}

// setOf is the set of these exclusive locks.
func setOf(rl *redlock.Redlock, keys ...string) *lockset.Set {
	var ms []lockset.Member
	for _, k := range keys {
		ms = append(ms, rl.Mutex(k))
	}
	return lockset.New(ms...)
}

// result is what an acquire on another goroutine returned.
type result struct {
	locks lockset.Locks
	err   error
}

// later acquires on a goroutine of its own, and lets it come to rest.
func (b *bed) later(f func(ctx context.Context) (lockset.Locks, error)) <-chan result {
	done := make(chan result, 1)
	go func() {
		locks, err := f(b.Context())
		done <- result{locks, err}
	}()
	synctest.Wait()
	return done
}

// pending asserts that there is no result yet.
func (b *bed) pending(done <-chan result) {
	b.Helper()
	select {
	case r := <-done:
		b.Fatalf("returned too early: %v, %v", r.locks, r.err)
	default:
	}
}

// survive calls f as a server calls its handlers, which may panic.
func survive(f func()) (recovered any) {
	done := make(chan any)
	go func() {
		defer func() { done <- recover() }()
		f()
	}()
	return <-done
}
