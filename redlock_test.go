package redlock_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/bubble"
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
			for i := range n - b.rl.Quorum() {
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
		assert.Contains(b, b.cluster.Holders("locks:" + key)[0], lock.Token())
		s, err := b.rl.Mutex(key).Inspect(b.Context())
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
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"c:1", "c:2"}})
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"x": "r:2", "y": "r:1"}})
	defer cluster.Close()
	defer ring.Close()
	rl, err := redlock.New([]redis.UniversalClient{
		client("a:1", 0), client("a:1", 3), client("b:1", 0), client("b:1", 0), cluster, ring,
		struct{ redis.UniversalClient }{client("z:1", 0)},
	}, nil)
	require.NoError(t, err)
	defer rl.Close()
	names := rl.Nodes()
	assert.Equal(t, []string{
		"a:1/0", "a:1/3", "b:1/0#2", "b:1/0#3", "cluster(c:1,c:2)", "ring(r:1,r:2)",
		"struct { redis.UniversalClient }",
	}, names)
	assert.Equal(t, 4, rl.Quorum())
	names[0] = "changed"
	assert.Equal(t, "a:1/0", rl.Nodes()[0], "a copy")
}

// The tests of Open use TCP, so time is real; nothing in them waits for its passing.

func TestOpenConnectsToAMajority(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 3)
	addrs := cluster.Addrs()
	cluster.Node(2).Stop()
	rl, err := redlock.Open(t.Context(), []string{addrs[0], "redis://" + addrs[1] + "/5", addrs[2]}, nil)
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
	rl, err := redlock.Open(t.Context(), addrs, nil)
	require.NoError(t, err, "who does not tell is not a duplicate")
	assert.NoError(t, rl.Close())
}

func TestOpenReportsAllMalformedAddresses(t *testing.T) {
	_, err := redlock.Open(t.Context(), nil, nil)
	require.ErrorIs(t, err, redlock.ErrInvalid)
	assert.ErrorContains(t, err, "at least one")

	bad := []string{"", "host", "host:", ":6379", "host:0", "host:65536", "host:http", "host:-1", "::1:6379",
		"http://host:6379", "redis://host:6379/x", "redis://host:6379?nonsense=1", "redis://host:%zz", "://"}
	_, err = redlock.Open(t.Context(), append(bad, "fine:6379", "FINE:6379"), &redlock.Options{TTL: 1})
	require.ErrorIs(t, err, redlock.ErrInvalid)
	require.ErrorIs(t, err, redlock.ErrDuplicateNode)
	for i := range bad {
		assert.ErrorContains(t, err, fmt.Sprintf("address %d, ", i+1))
	}
	assert.ErrorContains(t, err, "addresses 15 and 16 are both")
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
	assert.ErrorContains(t, err, "clients 0 and 3 are the same")
	assert.ErrorContains(t, err, "client 2 is nil")
	assert.Zero(t, cluster.Commands(), "New does no I/O")

	odd := struct {
		redis.UniversalClient
		extra any
	}{c[0], []int{1}} // cannot be compared, which shows only when it is tried
	rl, err := redlock.New([]redis.UniversalClient{odd, odd}, nil)
	require.NoError(t, err)
	assert.NoError(t, rl.Close())
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

func TestZeroRedlockMakesMutexesThatRefuse(t *testing.T) {
	for _, rl := range []*redlock.Redlock{nil, {}} {
		_, err := rl.Mutex(key).Acquire(t.Context())
		assert.ErrorIs(t, err, redlock.ErrInvalid)
	}
}

// A Redlock that Open failed to make is nil, and one in a struct that nobody filled is zero.
// Neither must panic.
func TestARedlockThatNobodyMade(t *testing.T) {
	for name, rl := range map[string]*redlock.Redlock{"nil": nil, "zero": new(redlock.Redlock)} {
		t.Run(name, func(t *testing.T) {
			r, err := rl.Check(t.Context())
			require.ErrorIs(t, err, redlock.ErrInvalid)
			require.EqualError(t, err, "redlock: check: invalid Redlock: it was not made by Open or New")
			assert.Empty(t, r)

			assert.Empty(t, rl.Nodes())
			assert.Zero(t, rl.Quorum())
			_, err = rl.Mutex(key).TryAcquire(t.Context())
			require.ErrorIs(t, err, redlock.ErrInvalid)
			require.NoError(t, rl.Close())
		})
	}
}
