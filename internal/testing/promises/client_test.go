package promises_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/redlocktest"
)

func TestLockIsTheKeyOnAllNodesForItsTTL(t *testing.T) {
	inBubble(t, 5, &redlock.Options{Owner: "me"}, func(b *bed) {
		start := time.Now()
		lock := b.lock()
		assert.Equal(b, key, lock.Key())
		assert.Regexp(b, "^[0-9a-f]{32}$", lock.Token())
		assert.Equal(b, start.Add(valid).UnixNano(), lock.Until().UnixNano())
		assert.Equal(b, valid, lock.Validity())
		for i, h := range b.cluster.Holders(key) {
			assert.Equal(b, lock.Token()+"@me", h)
			assert.Equal(b, ttl, b.cluster.TTLs(key)[i])
			assert.Equal(b, redlock.Outcome{Node: b.rl.Nodes()[i], Vote: redlock.VoteGranted}, lock.Outcomes()[i])
		}
		for _, n := range b.cluster.Nodes() {
			for _, c := range n.Log() {
				if c.Args[0] == "SET" || c.Args[0] == "set" {
					assert.Equal(b, []string{c.Args[0], key, lock.Token() + "@me", "NX", "PX", "10000"}, c.Args)
				}
			}
		}

		err := b.try()
		require.ErrorIs(b, err, redlock.ErrHeld)
		assert.Equal(b, "redlock: acquire \"orders:42\": held by another (0 of 5 nodes granted, 3 needed)",
			err.Error()[:strings.Index(err.Error(), ": node0")])

		b.cluster.ResetCommands()
		b.takes(0, func() { require.NoError(b, lock.Release(b.Context())) })
		b.on(0)
		assert.Equal(b, 5, b.cluster.Commands(evalsha), "one release per node")
		assert.LessOrEqual(b, lock.Validity(), time.Duration(0))
		require.NoError(b, b.lock().Release(b.Context()), "free for the next")
	})
}

// Scenarios 18, 19, 21: any minority may be down, hung or slow, and costs nothing.
func TestAnyMinorityMayFail(t *testing.T) {
	for n := 1; n <= 7; n++ {
		inBubble(t, n, nil, func(b *bed) {
			faults := []func(*redlocktest.Node){
				hang, stop,
				func(n *redlocktest.Node) { n.Partition(redlocktest.Blackhole) },
				func(n *redlocktest.Node) { n.Delay(5 * time.Second) },
				answers("LOADING Redis is loading the dataset in memory"),
			}
			for i := range (n - 1) / 2 {
				faults[i](b.cluster.Node(n - 1 - i))
			}
			b.takes(0, func() {
				for range 3 {
					lock := b.lock(redlock.WithTTL(30 * time.Second))
					require.NoError(b, lock.Extend(b.Context(), 20*time.Second))
					require.NoError(b, lock.Release(b.Context()))
				}
			})
		})
	}
}

// Scenario 48: the client's side of it is that a lease without end is not ours.
func TestTTLOfALock(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithTTL(10500 * time.Microsecond))
		assert.Equal(b, 11*time.Millisecond, b.cluster.TTLs(key)[0], "rounded up on the node")
		assert.Equal(b, 10*time.Millisecond-2105*time.Microsecond, lock.Validity(), "and down for the holder")
		b.pass(11 * time.Millisecond)
		b.on(0)
		assert.Less(b, lock.Validity(), time.Duration(0))
	})
}

func TestKeyPrefix(t *testing.T) {
	inBubble(t, 3, &redlock.Options{KeyPrefix: "locks:"}, func(b *bed) {
		lock := b.lock()
		assert.Equal(b, key, lock.Key())
		assert.Equal(b, key, b.rl.Mutex(key).Key())
		assert.Contains(b, b.cluster.Holders("locks:" + key)[0], lock.Token())
		s, err := looking(b, b.cluster, &admin.Options{KeyPrefix: "locks:"}).Inspect(b.Context(), key)
		require.NoError(b, err)
		assert.Equal(b, lock.Token(), s.Token)
		require.NoError(b, lock.Extend(b.Context(), ttl))
		require.NoError(b, lock.Release(b.Context()))
		synctest.Wait()
		assert.Empty(b, b.cluster.Holders("locks:" + key)[0])
	})
}

// Scenario 68.
func TestKeysPassThroughByteForByte(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		for _, k := range []string{" ", "{a}b", "a\x00b", "\xff\xfe", "line\r\nbreak", strings.Repeat("k", 8192), "日本"} {
			lock, err := b.rl.Mutex(k).TryAcquire(b.Context())
			require.NoError(b, err)
			synctest.Wait()
			assert.Contains(b, b.cluster.Holders(k)[0], lock.Token())
			_, err = b.rl.Mutex(k).TryAcquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrHeld)
			assert.NotContains(b, err.Error(), "\n")
			assert.Less(b, len(err.Error()), 2000, "8 KB have no place in a log line")
			require.NoError(b, lock.Extend(b.Context(), ttl))
			require.NoError(b, lock.Release(b.Context()))
		}
	})
}

func TestNodesAreNamed(t *testing.T) {
	client := func(addr string, db int) redis.UniversalClient {
		c := redis.NewClient(&redis.Options{Addr: addr, DB: db})
		t.Cleanup(func() { c.Close() })
		return c
	}
	rl, err := redlock.New([]redis.UniversalClient{client("a:1", 0), client("a:1", 3), client("b:1", 0), client("b:1", 0)}, nil)
	require.NoError(t, err)
	defer rl.Close()
	names := rl.Nodes()
	assert.Equal(t, []string{"a:1/0", "a:1/3", "b:1/0#2", "b:1/0#3"}, names)
	names[0] = "changed"
	assert.Equal(t, "a:1/0", rl.Nodes()[0], "a copy")
}

// The tests of Open use TCP, so time is real; nothing in them waits for its passing.

func TestOpenConnectsToAMajority(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 3)
	addrs := cluster.Addrs()
	addrs[1] = "redis://" + addrs[1] + "/5"
	opts := &redlock.Options{KeyPrefix: "new:"}
	first, err := redlock.Open(t.Context(), addrs, opts) // a new fleet waits for all of its nodes
	require.NoError(t, err)
	require.NoError(t, first.Close())
	addrs = cluster.Addrs()
	cluster.Node(2).Stop()
	rl, err := redlock.Open(t.Context(), []string{addrs[0], "redis://" + addrs[1] + "/5", addrs[2]}, opts)
	require.NoError(t, err)
	defer rl.Close()
	assert.Equal(t, []string{addrs[0] + "/0", addrs[1] + "/5", addrs[2] + "/0"}, rl.Nodes())
	assert.Zero(t, cluster.Commands("SET"), "nothing is locked")
	for _, n := range cluster.Nodes() {
		assert.Empty(t, keysOf(n))
	}

	lock, err := rl.Mutex(key).TryAcquire(t.Context())
	require.NoError(t, err)
	assert.NoError(t, lock.Release(t.Context()))
	require.NoError(t, rl.Close())
	require.NoError(t, rl.Close(), "a second time is the first")
}

func TestOpenFailsWithoutAMajority(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 3)
	addrs := cluster.Addrs()
	open := func() *redlock.QuorumError {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := redlock.Open(ctx, addrs, nil)
		var q *redlock.QuorumError
		require.ErrorAs(t, err, &q)
		require.ErrorIs(t, err, redlock.ErrNoQuorum)
		return q
	}
	cluster.Node(0).Stop()
	cluster.Node(1).SetError("NOAUTH Authentication required.")
	q := open()
	assert.Equal(t, "not sent failed granted", votes(q.Outcomes))
	for _, a := range addrs {
		assert.Contains(t, q.Error(), a)
	}
	assert.Contains(t, q.Error(), "NOAUTH")

	cluster.Node(1).SetError("")
	cluster.Node(1).Redis().RequireAuth("secret")
	q = open()
	assert.Equal(t, "not sent failed granted", votes(q.Outcomes), "a refused greeting")
}

// A wrong password on so many nodes that the others are no majority is no outage to wait out.
func TestOpenGivesUpAtOnceOnWhatWaitingCannotFix(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 3)
	addrs := cluster.Addrs()
	cluster.Node(0).SetError("NOAUTH Authentication required.")
	cluster.Node(1).SetError("NOAUTH Authentication required.")
	_, err := redlock.Open(t.Context(), addrs, nil)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	assert.Equal(t, 1, cluster.Node(0).Commands("PING"), "asked once")
	assert.Equal(t, 1, cluster.Node(2).Commands("PING"), "asked once")
}

func TestOpenWaitsASecondForANodeThatHangs(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a second")
	}
	cluster := redlocktest.NewCluster(t, 3)
	addrs := cluster.Addrs()
	cluster.Node(1).Hang()
	start := time.Now()
	rl, err := redlock.Open(t.Context(), addrs, nil)
	require.NoError(t, err)
	defer rl.Close()
	assert.GreaterOrEqual(t, time.Since(start), 900*time.Millisecond)
	assert.Less(t, time.Since(start), 10*time.Second)
}

func TestOpenLooksAtItsContext(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 1)
	addrs := cluster.Addrs()
	_, err := redlock.Open(canceled(), addrs, nil)
	assert.ErrorIs(t, err, context.Canceled)
	assert.Zero(t, cluster.Commands(), "no I/O")

	cluster.Node(0).Hang()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = redlock.Open(ctx, addrs, nil)
	assert.ErrorIs(t, err, context.DeadlineExceeded)
	assert.ErrorIs(t, err, redlock.ErrNoQuorum)
}

// Scenario 51.
func TestOpenRefusesTheSameServerTwice(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 2)
	addrs := cluster.Addrs()
	_, port, _ := strings.Cut(addrs[0], ":")
	for name, same := range map[string][]string{
		"by address":                {addrs[0], addrs[1], addrs[0]},
		"by address in a URL":       {addrs[0], addrs[1], "redis://" + addrs[0]},
		"by run id":                 {addrs[0], addrs[1], "127.0.0.2:" + port},
		"by run id, other database": {addrs[0], addrs[1], "redis://" + addrs[0] + "/1"},
	} {
		if strings.Contains(name, "127.0.0.2") {
			continue
		}
		if name == "by run id" {
			same[2] = "localhost:" + port
		}
		_, err := redlock.Open(t.Context(), same, nil)
		require.ErrorIs(t, err, redlock.ErrDuplicateNode, name)
	}
	cluster.Node(0).Deny("INFO")
	cluster.Node(1).Deny("INFO")
	_, err := redlock.Open(t.Context(), addrs, nil)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	require.NotErrorIs(t, err, redlock.ErrDuplicateNode, "a node that does not tell is not a duplicate")
	require.ErrorContains(t, err, "NOPERM")
	rl, err := redlock.Open(t.Context(), addrs, &redlock.Options{NoRestartGuard: true})
	require.NoError(t, err)
	assert.NoError(t, rl.Close())
}

func TestOpenReportsAllMalformedAddresses(t *testing.T) {
	_, err := redlock.Open(t.Context(), nil, nil)
	require.ErrorIs(t, err, redlock.ErrInvalid)
	assert.ErrorContains(t, err, "at least one")
	_, err = redlock.Open(t.Context(), make([]string, 1<<15), nil)
	require.ErrorIs(t, err, redlock.ErrInvalid)
	assert.ErrorContains(t, err, "32768 addresses: must be at most 32767")

	bad := []string{"", "host", "host:", ":6379", "host:0", "host:65536", "host:http", "host:-1", "::1:6379",
		"http://host:6379", "redis://host:6379/x", "redis://host:6379?nonsense=1", "redis://host:%zz", "://"}
	_, err = redlock.Open(t.Context(), append(bad, "fine:6379", "FINE:6379"), &redlock.Options{TTL: 1})
	require.ErrorIs(t, err, redlock.ErrInvalid)
	require.ErrorIs(t, err, redlock.ErrDuplicateNode)
	for i := range bad {
		assert.ErrorContains(t, err, fmt.Sprintf("addrs[%d], ", i))
	}
	assert.ErrorContains(t, err, "addrs[14] and addrs[15] are both")
	assert.ErrorContains(t, err, "TTL is 1ns", "options are checked along with them")
}

func TestNoPasswordGetsIntoAnError(t *testing.T) {
	for _, addr := range []string{
		"user:secret@host:6379", ":secret@host:6379", "secret@host:6379", "user:secret@host",
		"redis://user:secret@host:6379/x", "redis://:secret@host:6379/x", "redis://user:secret@ho st:6379",
		"redis://user:secret%zz@host:6379", "redis://user:secret@host:port", "redis://secret@host:6379/x",
		"redis://host:6379/?password=secret", "redsi://user:secret@host:6379",
		"user:secret@redis://host:6379",
	} {
		_, err := redlock.Open(t.Context(), []string{addr}, nil)
		require.ErrorIs(t, err, redlock.ErrInvalid, addr)
		assert.NotContains(t, err.Error(), "secret")
	}
	dup := "redis://user:secret@host:6379/1"
	_, err := redlock.Open(t.Context(), []string{dup, dup}, nil)
	require.ErrorIs(t, err, redlock.ErrDuplicateNode)
	assert.NotContains(t, err.Error(), "secret")
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err = redlock.Open(ctx, []string{"redis://user:secret@127.0.0.1:1/1"}, nil)
	require.ErrorIs(t, err, redlock.ErrNoQuorum)
	assert.NotContains(t, err.Error(), "secret")
}

func TestNewChecksItsClients(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 2)
	c := cluster.Clients()
	for _, clients := range [][]redis.UniversalClient{
		nil,
		{c[0], nil},
		{c[0], (*redis.Client)(nil)},
		{(*redis.ClusterClient)(nil)},
		{new(redis.Client)}, // its options cannot be copied
	} {
		_, err := redlock.New(clients, nil)
		assert.ErrorIs(t, err, redlock.ErrInvalid)
	}
	_, err := redlock.New([]redis.UniversalClient{c[0], c[1], nil, c[0]}, nil)
	assert.ErrorIs(t, err, redlock.ErrDuplicateNode)
	assert.ErrorContains(t, err, "clients[0] and clients[3] are the same")
	assert.ErrorContains(t, err, "clients[2] is nil")
	assert.Zero(t, cluster.Commands(), "New does no I/O")

}

// traced is a client of a type of the user's own, whose commands New could not be certain of.
type traced struct{ redis.UniversalClient }

// A cluster, a ring and what only has a client in it are refused, each by its index and type, before any I/O. A
// failover client leads to one server at a time.
func TestOnlyClientsOfOneServerAreNodes(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 1)
	one := cluster.Client(0, nil)
	silent := func(o *redis.ClusterOptions) *redis.ClusterOptions {
		o.Dialer = func(context.Context, string, string) (net.Conn, error) { panic("dialed") }
		return o
	}
	refused := map[string]redis.UniversalClient{
		"*redis.ClusterClient": redis.NewClusterClient(silent(&redis.ClusterOptions{Addrs: []string{"c:1"}})),
		"*redis.Ring":          redis.NewRing(&redis.RingOptions{HeartbeatFrequency: time.Hour, Addrs: map[string]string{"x": "r:2"}}),
		"promises_test.traced": traced{one},
		"struct { redis.UniversalClient; extra interface {} }": struct {
			redis.UniversalClient
			extra any
		}{one, []int{1}}, // cannot be compared, which shows only when it is tried
		"*struct { *redis.Client }": &struct{ *redis.Client }{one},
	}
	failover := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"s:1"}})
	t.Cleanup(func() {
		for _, c := range refused {
			_ = c.Close()
		}
		_ = failover.Close()
	})
	for way, make := range map[string]func([]redis.UniversalClient) (io.Closer, error){
		"redlock": func(c []redis.UniversalClient) (io.Closer, error) { return redlock.New(c, nil) },
		"admin":   func(c []redis.UniversalClient) (io.Closer, error) { return admin.New(c, nil) },
	} {
		for name, c := range refused {
			_, err := make([]redis.UniversalClient{one, c})
			require.ErrorIs(t, err, redlock.ErrInvalid, "%s, %s", way, name)
			assert.ErrorContains(t, err, "clients[1] is a "+name+": must be a *redis.Client")
			assert.Equal(t, name == "*redis.ClusterClient", strings.Contains(err.Error(), "NewUniversalClient"), err)
		}
		_, err := make([]redis.UniversalClient{traced{one}, nil, traced{one}})
		for _, i := range []string{"clients[0] is a ", "clients[1] is nil", "clients[2] is a "} {
			assert.ErrorContains(t, err, i)
		}
		made, err := make([]redis.UniversalClient{one, failover})
		require.NoError(t, err, way)
		require.NoError(t, made.Close())
	}
	assert.Zero(t, cluster.Commands(), "no I/O")
}

func TestNewKeepsNothingOfTheCallers(t *testing.T) {
	bubble.Run(t, 3, func(t *testing.T, cluster *redlocktest.Cluster) {
		clients := cluster.Clients()
		opts := &redlock.Options{Owner: "first"}
		rl, err := redlock.New(clients, opts)
		require.NoError(t, err)
		assert.Equal(t, redlock.Options{Owner: "first"}, *opts, "not filled in")
		opts.Owner, clients[0] = "second", nil
		_, err = rl.Mutex(key).TryAcquire(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		assert.Contains(t, cluster.Holders(key)[0], "@first")
		require.NoError(t, rl.Close())
		assert.NoError(t, clients[1].Ping(t.Context()).Err(), "the caller's clients stay open")
	})
}

// Scenario 71.
func TestCloseEndsWaiters(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.each([]int{0, 1}, taken)
		var waiting []<-chan result
		for range 5 {
			waiting = append(waiting, later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(b.Context()) }))
		}
		b.pass(time.Second)
		b.takes(0, func() { require.NoError(b, b.rl.Close()) })
		for _, w := range waiting {
			err := (<-w).err
			assert.ErrorIs(b, err, redlock.ErrClosed)
			assert.ErrorIs(b, err, redlock.ErrHeld, "and what the nodes said last")
			b.quorumError(err)
		}
		b.on(2)
	})
}

func TestCloseTakesBackWhatIsUnderWay(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		b.loadScripts()
		for _, n := range b.cluster.Nodes() {
			n.Delay(20 * time.Millisecond)
		}
		under := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).TryAcquire(b.Context()) })
		b.pass(30 * time.Millisecond) // set, and nobody knows
		b.on(3)
		b.takes(50*time.Millisecond, func() { require.NoError(b, b.rl.Close()) })
		require.ErrorIs(b, (<-under).err, redlock.ErrClosed)
		b.on(0)
	})
}

func TestCloseFlushesReleases(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		lock := b.lock()
		b.cluster.Node(0).Delay(50 * time.Millisecond)
		require.NoError(b, lock.Release(b.Context()))
		b.takes(100*time.Millisecond, func() { require.NoError(b, b.rl.Close()) })
		b.on(0)
	})
}

func TestCloseIsBoundedWhenNodesHang(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		extended := b.lockOf("extended")
		b.each([]int{0, 1, 2}, hang)
		released := later(func() (*redlock.Lock, error) { return nil, lock.Release(b.Context()) })
		under := later(func() (*redlock.Lock, error) { return b.rl.Mutex("other").TryAcquire(b.Context()) })
		extending := later(func() (*redlock.Lock, error) { return nil, extended.Extend(b.Context(), ttl) })
		b.takes(nodeTimeout, func() { require.NoError(b, b.rl.Close()) })
		for _, done := range []<-chan result{released, under, extending} {
			require.ErrorIs(b, (<-done).err, redlock.ErrClosed)
		}
		b.pass(40 * time.Second) // the longest that a connection is kept waiting
		buf := make([]byte, 1<<20)
		assert.NotContains(b, string(buf[:runtime.Stack(buf, true)]), "/internal/lane.(", "no goroutine of ours is left")
	})
}

func (b *bed) lockOf(key string) *redlock.Lock {
	b.Helper()
	lock, err := b.rl.Mutex(key).TryAcquire(b.Context())
	require.NoError(b, err)
	return lock
}

// Held locks stay until their TTL, and are not renewed.
func TestCloseLeavesHeldLocksAlone(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithRenewal())
		ctx := lock.Context()
		b.pass(5 * time.Second)
		require.NoError(b, b.rl.Close())
		left := lock.Validity()
		b.on(3)
		assert.Greater(b, left, ttl/2)
		b.takes(left, func() { <-ctx.Done() })
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrExpired)
		b.pass(ttl)
		b.on(0)
	})
}

func TestCallsAfterClose(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		require.NoError(b, b.rl.Close())
		b.cluster.ResetCommands()
		for name, call := range every {
			err := call(b.rl.Mutex(key), b.Context())
			require.ErrorIs(b, err, redlock.ErrClosed, name)
			assert.ErrorContains(b, err, key)
		}
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrClosed)
		assert.Greater(b, lock.Validity(), time.Duration(0), "not lost by that")
		b.takes(0, func() { require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrClosed) })
		require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrClosed)
		assert.ErrorIs(b, context.Cause(lock.Context()), redlock.ErrReleased)
		b.pass(time.Second)
		assert.Zero(b, b.cluster.Commands())
		require.NoError(b, b.rl.Close())
	})
}

// Everything at once, while Close comes in between: an error or a lock, and nothing of
// what was not granted is left.
func TestCloseInTheMiddleOfEverything(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		for i, n := range b.cluster.Nodes() {
			n.Delay(time.Duration(i+1) * time.Millisecond)
		}
		var all sync.WaitGroup
		stop := make(chan struct{})
		for i := range 20 {
			all.Go(func() {
				k := string(rune('a' + i%5))
				for {
					select {
					case <-stop:
						return
					default:
					}
					lock, err := b.rl.Mutex(k, redlock.WithRenewal()).TryAcquire(b.Context())
					if err == nil {
						lock.Context()
						_ = lock.Extend(b.Context(), ttl)
						_ = lock.Release(b.Context())
					}
					time.Sleep(time.Duration(i+1) * 100 * time.Microsecond)
				}
			})
		}
		b.pass(200 * time.Millisecond)
		require.NoError(b, b.rl.Close())
		close(stop)
		all.Wait()
		b.pass(ttl)
		for _, n := range b.cluster.Nodes() {
			assert.Empty(b, keysOf(n))
		}
	})
}

func TestCloseOfAHungClusterThatWakesLater(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		b.each([]int{0, 1, 2}, hang)
		b.try()
		require.NoError(b, b.rl.Close())
		b.each([]int{0, 1, 2}, resume)
		b.pass(ttl + time.Second)
		b.on(0)
		b.each([]int{0}, func(n *redlocktest.Node) { assert.Equal(b, 2, n.Commands("SET")) })
	})
}

// closable is a client that leads nowhere once it was closed, as a failover client does, which asks its Sentinels
// for each connection.
type closable struct {
	client redis.UniversalClient
	mu     sync.Mutex // guards what follows
	conns  []net.Conn
	closed bool
}

// close also ends the connections, so that further ones are needed at once.
func (c *closable) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, conn := range c.conns {
		_ = conn.Close()
	}
}

// closables are clients of all nodes.
func (b *bed) closables() (all []*closable, clients []redis.UniversalClient) {
	for i := range b.cluster.Len() {
		c := new(closable)
		c.client = b.cluster.Client(i, func(o *redis.Options) {
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c.mu.Lock()
				defer c.mu.Unlock()
				if c.closed {
					return nil, redis.ErrClosed
				}
				conn, err := dial(ctx, network, addr)
				if err == nil {
					c.conns = append(c.conns, conn)
				}
				return conn, err
			}
		})
		all, clients = append(all, c), append(clients, c.client)
	}
	return all, clients
}

// Scenario 90: a client is closed for good, so an Acquire that waited for such clients would
// wait for ever.
func TestClosedClientsEndAcquires(t *testing.T) {
	for name, c := range map[string]struct {
		held bool // by another process, so that the Acquire waits in the queue
		late bool // the clients are closed while it waits
	}{
		"before": {}, "before, and held": {held: true}, "while it waits": {held: true, late: true},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				if c.held {
					_, err := b.rl.Mutex(key, redlock.WithRenewal()).TryAcquire(b.Context())
					require.NoError(b, err)
				}
				closables, clients := b.closables()
				rl, err := redlock.New(clients, nil)
				require.NoError(b, err)
				b.Cleanup(func() { _ = rl.Close() })
				closeMost := func() {
					for _, c := range closables[:3] {
						c.close()
					}
				}
				if !c.late {
					closeMost()
				}
				done := later(func() (*redlock.Lock, error) { return rl.Mutex(key).Acquire(b.Context()) })
				if c.late {
					b.pending(done)
					closeMost()
				}
				select {
				case r := <-done:
					q := b.quorumError(r.err)
					assert.ErrorIs(b, q, redlock.ErrNoQuorum)
					assert.NotErrorIs(b, q, redlock.ErrClosed, "the Redlock is not")
					for _, o := range q.Outcomes[:3] {
						assert.Equal(b, redlock.VoteNotSent, o.Vote)
						assert.ErrorIs(b, o.Err, redis.ErrClosed)
						assert.ErrorContains(b, o.Err, "its owner closed it")
					}
				case <-time.After(time.Minute):
					b.Fatal("waits for ever")
				}
			})
		})
	}
}

// crowd is twenty that wait for a lock that is held, in a process with clients of its own.
func (b *bed) crowd() (closables []*closable, rl *redlock.Redlock, waiters []<-chan result) {
	b.Helper()
	_, err := b.rl.Mutex(key, redlock.WithRenewal()).TryAcquire(b.Context())
	require.NoError(b, err)
	closables, clients := b.closables()
	rl, err = redlock.New(clients, nil)
	require.NoError(b, err)
	b.Cleanup(func() { _ = rl.Close() })
	for range 20 {
		waiters = append(waiters, later(func() (*redlock.Lock, error) { return rl.Mutex(key).Acquire(b.Context()) }))
	}
	return closables, rl, waiters
}

// They all end as soon as one of them has found out, also where the node that keeps their
// queue is there.
func TestClosedClientsEndAllWaitersAtOnce(t *testing.T) {
	for _, all := range []bool{true, false} {
		t.Run(fmt.Sprint(all), func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				closables, _, waiters := b.crowd()
				for i, c := range closables {
					if all || !b.cluster.Node(i).Redis().Exists("{"+key+"}:line") {
						c.close()
					}
				}
				var ends []time.Time
				for _, w := range waiters {
					r := <-w
					require.ErrorIs(b, r.err, redlock.ErrNoQuorum)
					ends = append(ends, r.at)
				}
				slices.SortFunc(ends, time.Time.Compare)
				assert.Less(b, ends[len(ends)-1].Sub(ends[0]), 100*time.Millisecond)
			})
		})
	}
}

// Nobody need wait in the queue to find that out: an attempt that fails for it tells all waiters.
func TestClosedClientsEndAllWaitersWithAnAttempt(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		closables, rl, waiters := b.crowd()
		for _, c := range closables {
			c.close()
		}
		_, err := rl.Mutex(key).TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrNoQuorum)
		found := time.Now()
		for _, w := range waiters {
			r := <-w
			require.ErrorIs(b, r.err, redlock.ErrNoQuorum)
			require.Less(b, r.at.Sub(found), time.Millisecond, "the pause of an attempt that waits out a tie is over then")
		}
	})
}

// A minority of them is like nodes that are down.
func TestAMinorityOfClosedClientsChangesNothing(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		closables, clients := b.closables()
		rl, parts, err := assembled(clients, conn.UserHabits, inside.Assembly{})
		require.NoError(b, err)
		b.Cleanup(func() { _ = rl.Close() })
		lock, err := rl.Mutex(key, redlock.WithTTL(time.Hour)).Acquire(b.Context())
		require.NoError(b, err)
		for _, c := range closables[:2] {
			c.close()
		}
		b.takes(0, func() { require.NoError(b, lock.Extend(b.Context(), time.Hour)) })
		b.takes(0, func() { require.NoError(b, lock.Release(b.Context())) })
		lock, err = rl.Mutex(key).Acquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
		time.Sleep(time.Minute) // the lane learns at its next try that the client is closed
		_, kept := parts.Lanes[0].Load()
		assert.Zero(b, kept, "no release waits for a client that is closed for good")
	})
}

// Open speaks TLS with an authority and a certificate of the user's, and says what is wrong
// where one end speaks it and the other does not.
func TestOpenSpeaksTLS(t *testing.T) {
	realredis.Need(t)
	s := realredis.Start(t, realredis.TLS())
	require.NoError(t, s.Client(t).ConfigSet(t.Context(), "tls-auth-clients", "yes").Err())
	plain := realredis.Start(t)
	with := s.TLSConfig()
	for _, addr := range []string{s.Addr(), "rediss://" + s.Addr() + "/0"} {
		rl, err := redlock.Open(t.Context(), []string{addr}, &redlock.Options{TLS: with})
		require.NoError(t, err, addr)
		lock, err := rl.Mutex("k").Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
		require.NoError(t, rl.Close())
	}
	assert.Empty(t, with.ServerName, "it is the user's")
	for name, c := range map[string]struct {
		addr string
		tls  *tls.Config
		says string
	}{
		"unknown authority": {"rediss://" + s.Addr(), nil, `name the authority in Options.TLS or SSL_CERT_FILE`},
		"no certificate of the client": {"rediss://" + s.Addr() + "?skip_verify=true", nil,
			// The server's alert may get lost behind what it has not read yet.
			`certificate required; give it a certificate in Options.TLS|if it wants a certificate of its clients, give it one in Options.TLS`},
		"server without TLS":        {"rediss://" + plain.Addr(), nil, `if it does not speak TLS, the URL begins with redis://`},
		"server with TLS":           {s.Addr(), nil, `if it speaks TLS only, the URL begins with rediss://`},
		"server with TLS, by a URL": {"redis://" + s.Addr(), with, `if it speaks TLS only, the URL begins with rediss://`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var err error
			// A busy machine may not get as far as the error within the second that Open has.
			require.Eventually(t, func() bool {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				_, err = redlock.Open(ctx, []string{c.addr}, &redlock.Options{TLS: c.tls})
				return errors.Is(err, redlock.ErrNoQuorum) && regexp.MustCompile(c.says).MatchString(err.Error())
			}, 30*time.Second, time.Millisecond, "%s: %v", c.addr, &err)
		})
	}
}

// A name may lead to another server while the one before goes on: a Sentinel has promoted a replica. Whichever
// way a client was made, it asks the new one after a minute, or clients would vote on different servers.
func TestNameThatMovesIsFollowed(t *testing.T) {
	for name, habits := range map[string]func(*redis.Options) conn.Habits{"Open": conn.OpenHabits, "New": conn.UserHabits} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, 4, func(t *testing.T, c *redlocktest.Cluster) {
				var leads atomic.Int64 // the third name, to the node of this index
				leads.Store(2)
				clients := c.Clients()[:3]
				to := []*redis.Client{c.Client(2, nil), c.Client(3, nil)}
				clients[2] = c.Client(2, func(o *redis.Options) {
					o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
						return to[leads.Load()-2].Options().Dialer(ctx, network, addr)
					}
				})
				rl, _, err := assembled(clients, habits, inside.Assembly{})
				require.NoError(t, err)
				t.Cleanup(func() { _ = rl.Close() })
				use := func(d time.Duration) {
					for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Second) {
						lock, err := rl.Mutex(key).TryAcquire(t.Context())
						require.NoError(t, err)
						require.NoError(t, lock.Release(t.Context()))
					}
					synctest.Wait()
				}
				use(10 * time.Second)
				leads.Store(3)
				use(time.Minute)
				c.ResetCommands()
				use(10 * time.Second)
				assert.Zero(t, c.Node(2).Commands("SET"), "of the server that is not the node any more")
				assert.NotZero(t, c.Node(3).Commands("SET"))
			})
		})
	}
}
