package realtest_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestServersThatAnswerWithAnErrorAreWaitedForAndNamed(t *testing.T) {
	t.Parallel()
	set := func(args ...any) func(*testing.T, *fleet, []int) {
		return func(t *testing.T, f *fleet, nodes []int) { f.do(t, nodes, args...) }
	}
	for name, test := range map[string]struct {
		begin, end func(t *testing.T, f *fleet, nodes []int)
		says       string
	}{
		"out of memory": {set("CONFIG", "SET", "maxmemory", "1"), set("CONFIG", "SET", "maxmemory", "0"), "OOM"}, // 40
		"too few replicas": {
			set("CONFIG", "SET", "min-replicas-to-write", "1"), set("CONFIG", "SET", "min-replicas-to-write", "0"), "NOREPLICAS"},
		"a replica":          {set("REPLICAOF", "127.0.0.1", "1"), set("REPLICAOF", "NO", "ONE"), "replica"},
		"cannot save":        {saveInVain, set("CONFIG", "SET", "stop-writes-on-bgsave-error", "no"), "MISCONF"},
		"busy with a script": {runaway, set("SCRIPT", "KILL"), "BUSY"}, // 43
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			startFleet(t, 3, realredis.Args("lua-time-limit", "5")).eachWay(t, brisk, func(t *testing.T, f *fleet, rl *redlock.Redlock) {
				f.warm(t, rl)
				// The others still make a quorum.
				test.begin(t, f, []int{1})
				lock := requireAcquire(t, rl)
				assert.Equal(t, redlock.VoteFailed, waitForVotes(t, lock)[1])
				assert.ErrorContains(t, lock.Outcomes()[1].Err, test.says)
				require.NoError(t, lock.Release(t.Context()))

				test.begin(t, f, []int{2})
				f.resetLogs()
				err := try(t, rl)
				requireNoQuorum(t, err)
				assert.ErrorContains(t, err, test.says)
				assert.ErrorContains(t, err, rl.Nodes()[2])
				assert.LessOrEqual(t, slices.Max(f.counts("SET")), 1)

				waiter := background(func() error {
					lock, err := rl.Mutex(resource).Acquire(context.Background())
					if err == nil {
						err = lock.Release(context.Background()) // also where its SET comes late
					}
					return err
				})
				test.end(t, f, []int{1, 2})
				require.NoError(t, await(t, waiter))
			})
		})
	}
}

// saveInVain has servers write their data where something else is in the way.
func saveInVain(t *testing.T, f *fleet, nodes []int) {
	f.do(t, nodes, "CONFIG", "SET", "save", "3600 1")
	f.do(t, nodes, "CONFIG", "SET", "stop-writes-on-bgsave-error", "yes")
	for _, i := range nodes {
		dir := f.admins[i].ConfigGet(t.Context(), "dir").Val()["dir"]
		require.NoError(t, os.MkdirAll(filepath.Join(dir, "dump.rdb"), 0o700))
		eventually(t, func() bool {
			_ = f.admins[i].BgSave(context.Background()).Err() // another may be under way
			return strings.Contains(f.admins[i].Info(context.Background(), "persistence").Val(), "rdb_last_bgsave_status:err")
		}, "the data is saved")
	}
}

// runaway keeps servers busy with a script that does not end by itself.
func runaway(t *testing.T, f *fleet, nodes []int) {
	for _, i := range nodes {
		stuck := f.servers[i].Client(t, impatient, func(o *redis.Options) { o.ReadTimeout = time.Minute })
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			stuck.Eval(context.Background(), "while true do end", nil)
		}()
		t.Cleanup(func() { <-ended })
		eventually(t, func() bool {
			err := f.admins[i].Ping(context.Background()).Err()
			return err != nil && strings.HasPrefix(err.Error(), "BUSY")
		}, "the server is not busy")
	}
}

func TestLoadingServersAreWaitedFor(t *testing.T) {
	t.Parallel() // 42
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		rl := clientOf(t, c, redlock.Options{})
		for _, n := range c.Nodes()[:2] {
			n.SetError("LOADING Redis is loading the dataset in memory")
		}
		err := try(t, rl)
		requireNoQuorum(t, err)
		assert.ErrorContains(t, err, "LOADING")
		waiter := background(func() error { _, err := rl.Mutex(resource).Acquire(t.Context()); return err })
		pass(5 * time.Second)
		for _, n := range c.Nodes() {
			n.SetError("")
		}
		assert.NoError(t, <-waiter)
	})
}

func TestClientPauseIsLikeAHungNode(t *testing.T) {
	t.Parallel() // 43
	f, rl := warmFleet(t, 3, brisk)
	f.do(t, []int{0, 1}, "CLIENT", "PAUSE", "60000", "WRITE")
	requireNoQuorum(t, promptly(t, func() error { return try(t, rl) }))
	f.do(t, []int{0, 1}, "CLIENT", "UNPAUSE")
	// A SET that waited there is executed now, unless its connection was given up before.
	require.NoError(t, requireAcquire(t, rl).Release(t.Context()))
	f.requireGone(t, resource)
}

func TestReplicaInTheListIsNamed(t *testing.T) {
	t.Parallel() // 41
	f := startFleet(t, 2)
	replica := proxyFor(t, realredis.Start(t, realredis.ReplicaOf(f.servers[0])))
	second := proxyFor(t, realredis.Start(t, realredis.ReplicaOf(f.servers[1])))
	client := func(p *faultproxy.Proxy) redis.UniversalClient {
		addr, err := p.Listen()
		require.NoError(t, err)
		return defaultClient(t, addr)
	}
	a, b := client(f.proxies[0]), client(f.proxies[1])

	lock := requireLock(t, newOn(t, unhurried, a, b, client(second)))
	assert.Equal(t, redlock.VoteFailed, waitForVotes(t, lock)[2])
	require.NoError(t, lock.Release(t.Context()))

	err := try(t, newOn(t, unhurried, a, client(replica), client(second)))
	requireNoQuorum(t, err)
	assert.ErrorContains(t, err, "this is a replica, and a quorum needs independent masters")
	assert.Equal(t, 1, replica.Count("SET"), "go-redis retries READONLY by default")
	f.requireGone(t, resource)
}

func TestForgottenScriptsAreSentOnce(t *testing.T) {
	t.Parallel() // 44
	f := startFleet(t, 3)
	f.byScripts()
	f.eachWay(t, brisk, func(t *testing.T, f *fleet, rl *redlock.Redlock) {
		f.warm(t, rl)
		lock := requireLock(t, rl)
		waitForVotes(t, lock)
		f.do(t, []int{1}, "SCRIPT", "FLUSH")
		f.resetLogs()
		require.NoError(t, lock.Release(t.Context()))
		f.requireGone(t, resource)
		eventually(t, func() bool { return slices.Equal(f.counts("EVALSHA"), []int{1, 1, 1}) }, "not sent")
		assert.Equal(t, []int{0, 1, 0}, f.counts("EVAL"))

		for range 32 { // a release of a lock that was held briefly is by one of two scripts
			require.NoError(t, requireLock(t, rl).Release(t.Context()))
			f.requireGone(t, resource)
		}
		sent := f.counts("EVAL")
		assert.Zero(t, sent[0]+sent[2])
		assert.LessOrEqual(t, sent[1], 2, "it knows the scripts again")
	})
}

func TestErrorsThatNoWaitingMendsAreReturnedAtOnce(t *testing.T) {
	t.Parallel() // 45, 46, 47
	locked := realredis.Password("secret")
	as := func(user, password string) func(*redis.Options) {
		return func(o *redis.Options) { o.Username, o.Password = user, password }
	}
	for name, test := range map[string]struct {
		server realredis.Option
		client func(*redis.Options)
		plant  []any
		reason error
		says   string
	}{
		"no password":        {locked, as("", ""), nil, redlock.ErrNoQuorum, "NOAUTH"},
		"wrong password":     {locked, as("", "guess"), nil, redlock.ErrNoQuorum, "WRONGPASS"},
		"unknown user":       {locked, as("nobody", "secret"), nil, redlock.ErrNoQuorum, "WRONGPASS"},
		"command not in ACL": {realredis.User("app", "pw", "~*", "+get"), as("app", "pw"), nil, redlock.ErrNoQuorum, "NOPERM"},
		"key not in ACL":     {realredis.User("app", "pw", "~jobs:*", "+@all"), as("app", "pw"), nil, redlock.ErrNoQuorum, "NOPERM"},
		"no such database":   {realredis.DBs(1), func(o *redis.Options) { o.DB = 3 }, nil, redlock.ErrNoQuorum, "DB index is out of range"},
		"node of a cluster":  {realredis.Cluster(), as("", ""), nil, redlock.ErrNoQuorum, "a quorum needs independent masters"},
		"key is a list":      {realredis.DBs(1), as("", ""), []any{"RPUSH", resource, "x"}, redlock.ErrHeld, "the key holds a list, which is no lock"},
		"key is a hash":      {realredis.DBs(1), as("", ""), []any{"HSET", resource, "x", 1}, redlock.ErrHeld, "the key holds a hash, which is no lock"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 3, test.server)
			if test.plant != nil {
				f.do(t, []int{0, 1}, test.plant...)
			}
			rl := f.byDefault(t, brisk, test.client)
			err := promptly(t, func() error { _, err := rl.Mutex(resource).Acquire(context.Background()); return err })
			require.ErrorIs(t, err, test.reason)
			require.ErrorContains(t, err, test.says)
			require.NotContains(t, err.Error(), "secret")
			for _, n := range f.counts("SET") {
				assert.Less(t, n, 10)
			}
		})
	}
}

func TestOpenTellsWhyAMajorityRefusesUs(t *testing.T) {
	t.Parallel() // 45
	f := startFleet(t, 3, realredis.Password("secret"))
	var addrs []string
	for _, addr := range f.addrs() {
		addrs = append(addrs, "redis://:hunter2@"+addr)
	}
	_, err := redlock.Open(t.Context(), addrs, nil)
	requireNoQuorum(t, err)
	assert.ErrorContains(t, err, "WRONGPASS")
	assert.NotContains(t, err.Error(), "hunter2")
	for _, addr := range f.addrs() {
		assert.ErrorContains(t, err, addr)
	}
}

func TestKeyOfAnotherTypeIsNeitherOursNorDeleted(t *testing.T) {
	t.Parallel() // 47
	f := startFleet(t, 3)
	lock := requireLock(t, f.direct(t, brisk))
	waitForVotes(t, lock)
	f.do(t, f.all(), "DEL", resource)
	f.do(t, f.all(), "RPUSH", resource, "x")
	require.ErrorIs(t, lock.Extend(t.Context(), time.Minute), redlock.ErrLost)
	require.ErrorIs(t, lock.Release(t.Context()), redlock.ErrNotHeld)
	for _, c := range f.admins {
		assert.EqualValues(t, 1, c.LLen(t.Context(), resource).Val())
	}
}

func TestKeyWithoutTTL(t *testing.T) {
	t.Parallel() // 48
	f := startFleet(t, 3)
	rl := f.direct(t, brisk)
	t.Run("a waiter polls", func(t *testing.T) {
		f.plant(t, "by an operator", 0, f.all()...)
		ctx, cancel := context.WithTimeout(t.Context(), 2*brisk.NodeTimeout)
		defer cancel()
		_, err := rl.Mutex(resource).Acquire(ctx)
		require.ErrorIs(t, err, redlock.ErrHeld)
		assert.ErrorContains(t, err, "by an operator")
		waiter := background(func() error {
			lock, err := rl.Mutex(resource).Acquire(context.Background())
			if err == nil {
				err = lock.Release(context.Background())
			}
			return err
		})
		f.do(t, f.all(), "DEL", resource)
		require.NoError(t, await(t, waiter))
	})
	t.Run("an extend repairs our own", func(t *testing.T) {
		lock := requireAcquire(t, rl)
		waitForVotes(t, lock)
		f.do(t, f.all(), "PERSIST", resource)
		require.NoError(t, lock.Extend(t.Context(), time.Minute))
		eventually(t, func() bool {
			return !slices.ContainsFunc(f.admins, func(c *redis.Client) bool {
				return c.PTTL(context.Background(), resource).Val() <= 0
			})
		}, "a key has no TTL")
		require.NoError(t, lock.Release(t.Context()))
	})
}

func TestGarbageIsNeverAGrant(t *testing.T) {
	t.Parallel() // 49
	for _, garbage := range []string{
		"!!!\r\n", "\x00\x01\x02\x03", ":1\r\n", "$5\r\nhello\r\n", "$-1\r\n", "*1\r\n:1\r\n", "HTTP/1.1 400 Bad Request\r\n\r\n", "$99999999\r\n", "-ERR nonsense\r\n", "\r\n",
	} {
		t.Run(fmt.Sprintf("%q", garbage), func(t *testing.T) {
			t.Parallel()
			startFleet(t, 1).eachWay(t, redlock.Options{TTL: time.Second, NodeTimeout: 250 * time.Millisecond}, func(t *testing.T, f *fleet, rl *redlock.Redlock) {
				f.warm(t, rl)
				f.plant(t, "x", 0, 0)
				for range 5 {
					f.proxies[0].Garbage([]byte(garbage))
					try(t, rl)
					try(t, rl)
				}
				f.do(t, f.all(), "DEL", resource)
				lock := requireAcquire(t, rl)
				f.proxies[0].Garbage([]byte(garbage))
				_ = lock.Release(t.Context()) // garbage may look like an answer, so whatever
				f.requireGone(t, resource)
			})
		})
	}
}
