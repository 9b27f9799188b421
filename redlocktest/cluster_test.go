package redlocktest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/redlocktest"
)

var ctx = context.Background()

const (
	long  = 30 * time.Second
	short = 100 * time.Millisecond
)

// rig is a cluster of one node with the two kinds of clients.
type rig struct {
	*testing.T
	cluster *redlocktest.Cluster
	node    *redlocktest.Node
	dial    func(timeout time.Duration) *redis.Client // a client that tries everything once
}

// bothWays runs a test in memory, in a bubble, and over TCP.
func bothWays(t *testing.T, f func(rig)) {
	t.Run("memory", func(t *testing.T) { inBubble(t, f) })
	t.Run("tcp", func(t *testing.T) {
		cluster := redlocktest.NewCluster(t, 1)
		addr := cluster.Addrs()[0]
		f(rig{t, cluster, cluster.Node(0), func(timeout time.Duration) *redis.Client {
			return cluster.Client(0, func(o *redis.Options) {
				once(timeout)(o)
				o.Addr, o.Dialer = addr, nil
			})
		}})
	})
}

func inBubble(t *testing.T, f func(rig)) {
	synctest.Test(t, func(t *testing.T) {
		cluster := redlocktest.NewCluster(t, 1)
		f(rig{t, cluster, cluster.Node(0), func(timeout time.Duration) *redis.Client {
			return cluster.Client(0, once(timeout))
		}})
	})
}

func once(timeout time.Duration) func(*redis.Options) {
	return func(o *redis.Options) {
		o.DialTimeout, o.ReadTimeout = timeout, timeout
		o.DialerRetries, o.MaxRetries = 1, -1
	}
}

func isTimeout(err error) bool {
	var t net.Error
	return errors.As(err, &t) && t.Timeout()
}

func (r rig) eventually(cond func() bool) {
	r.Helper()
	for deadline := time.Now().Add(long); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatal("not in time")
		}
	}
}

func info(t testing.TB, c *redis.Client) (runID string, uptime int) {
	t.Helper()
	text, err := c.Info(ctx, "server").Result()
	require.NoError(t, err)
	assert.Contains(t, text, "redis_version:7.0.15\r\n")
	for line := range strings.SplitSeq(text, "\r\n") {
		name, value, _ := strings.Cut(line, ":")
		switch name {
		case "run_id":
			runID = value
		case "uptime_in_seconds":
			uptime, err = strconv.Atoi(value)
			require.NoError(t, err)
		}
	}
	return runID, uptime
}

func TestCluster(t *testing.T) {
	cluster, err := redlocktest.Start(3)
	require.NoError(t, err)
	defer cluster.Close()
	assert.Equal(t, 3, cluster.Len())
	assert.Len(t, cluster.Nodes(), 3)

	seen := map[string]bool{}
	for i, c := range cluster.Clients() {
		require.NoError(t, c.Set(ctx, "k", fmt.Sprint("v", i), time.Minute).Err())
		seen[c.(*redis.Client).Options().Addr] = true
		assert.Equal(t, cluster.Node(i).Name(), c.(*redis.Client).Options().Addr)
	}
	for i, addr := range cluster.Addrs() {
		seen[addr] = true
		assert.Equal(t, addr, cluster.Node(i).Addr())
		c := cluster.Client(i, func(o *redis.Options) { o.Addr, o.Dialer = addr, nil })
		assert.Equal(t, fmt.Sprint("v", i), c.Get(ctx, "k").Val())
	}
	assert.Len(t, seen, 6, "names are unique")

	assert.Equal(t, []string{"v0", "v1", "v2"}, cluster.Holders("k"))
	require.NoError(t, cluster.Node(1).Redis().Set("k", "no expiry"))
	cluster.Node(2).Del("k")
	ttls := cluster.TTLs("k")
	assert.InDelta(t, time.Minute, ttls[0], float64(10*time.Second))
	assert.Equal(t, []time.Duration{-1, 0}, ttls[1:])
	cluster.Node(2).Redis().Lpush("k", "x")
	assert.Equal(t, []string{"v0", "no expiry", "(list)"}, cluster.Holders("k"))

	assert.Equal(t, 3, cluster.Commands("SET"))
	assert.Equal(t, 6, cluster.Commands("set", "GET"))
	assert.Equal(t, 1, cluster.Node(2).Commands("get"))
	log := cluster.Node(2).Log()
	assert.Equal(t, []string{"get", "k"}, log[len(log)-1].Args)
	cluster.ResetCommands()
	assert.Zero(t, cluster.Commands())
	cluster.Record(false)
	cluster.Client(0, nil).Ping(ctx)
	assert.Zero(t, cluster.Commands())

	cluster.Close()
	cluster.Close()
	_, err = redlocktest.Start(0)
	assert.ErrorContains(t, err, "redlocktest: ")
}

func TestMisusePanics(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 1)
	for _, f := range []func(){
		func() { cluster.Node(1) },
		func() { cluster.Node(-1) },
		func() { cluster.Client(1, nil) },
		func() { cluster.Node(0).Restart(0) },
		func() { cluster.Node(0).Partition(0) },
		func() { cluster.Node(0).Partition(redlocktest.DropReplies + 1) },
		func() { cluster.Node(0).Delay(-1) },
		func() { cluster.Node(0).DelayCommand("GET", -1, time.Second) },
		func() { cluster.Node(0).DelayCommand("GET", 1, -time.Second) },
		func() { cluster.Node(0).DropReply("GET", -1) },
		func() { cluster.Node(0).SetUptime(-1) },
		func() { cluster.Node(0).Set("k", "v", -1) },
	} {
		func() {
			defer func() { assert.Contains(t, fmt.Sprint(recover()), "redlocktest: ") }()
			f()
		}()
	}
}

func TestKeysExpire(t *testing.T) {
	inBubble(t, func(r rig) {
		c := r.dial(long)
		require.NoError(r, c.Set(ctx, "k", "v", time.Minute).Err())
		time.Sleep(time.Minute - time.Millisecond)
		assert.Equal(r, []time.Duration{time.Millisecond}, r.cluster.TTLs("k"))
		assert.Equal(r, "v", c.Get(ctx, "k").Val())
		time.Sleep(time.Millisecond)
		assert.Equal(r, []string{""}, r.cluster.Holders("k"))
		assert.ErrorIs(r, c.Get(ctx, "k").Err(), redis.Nil)
	})
}

func TestStopAndRestart(t *testing.T) {
	bothWays(t, func(r rig) {
		c := r.dial(long)
		script := redis.NewScript("return 1")
		require.NoError(r, script.Load(ctx, c).Err())
		require.NoError(r, c.Set(ctx, "k", "v", time.Hour).Err())
		require.NoError(r, c.Set(ctx, "brief", "v", short).Err())
		before, uptime := info(r, c)
		assert.Equal(r, r.node.RunID(), before)
		assert.GreaterOrEqual(r, uptime, 3600)

		r.node.Stop()
		assert.ErrorIs(r, c.Ping(ctx).Err(), syscall.ECONNREFUSED)
		assert.Equal(r, []string{""}, r.cluster.Holders("k"))
		r.node.Stop()
		time.Sleep(short)

		r.node.Restart(redlocktest.KeepKeys)
		assert.Equal(r, []string{"v"}, r.cluster.Holders("k"))
		assert.Empty(r, r.node.Get("brief"), "expired while the node was down")
		after, uptime := info(r, c)
		assert.NotEqual(r, before, after)
		assert.Less(r, uptime, 30)
		assert.True(r, redis.HasErrorPrefix(script.EvalSha(ctx, c, nil).Err(), "NOSCRIPT"))

		r.node.Restart(redlocktest.LoseKeys) // while running
		assert.ErrorIs(r, c.Get(ctx, "k").Err(), redis.Nil)
		last, _ := info(r, c)
		assert.NotEqual(r, after, last)
	})
}

// Scripts that run while their node dies must end, or be gone, before Stop returns.
func TestStopUnderLoad(t *testing.T) {
	bothWays(t, func(r rig) {
		var load sync.WaitGroup
		stop := make(chan struct{})
		c := r.dial(long)
		for range 4 {
			load.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						c.Eval(ctx, "for i = 1, 20 do redis.call('SET', KEYS[1], 'x') end", []string{"k"})
						time.Sleep(100 * time.Microsecond) // fake time must go on
					}
				}
			})
		}
		for range 10 {
			time.Sleep(3 * time.Millisecond)
			r.node.Stop()
			r.node.FlushAll()
			time.Sleep(time.Millisecond)
			require.False(r, r.node.Redis().Exists("k"), "a dead node has executed something")
			r.node.Restart(redlocktest.LoseKeys)
		}
		close(stop)
		load.Wait()
		// A pool that has seen many dials fail may refuse for a second more.
		r.eventually(func() bool { return c.Ping(ctx).Err() == nil })
	})
}

func TestStopWaitsForWhatIsExecuting(t *testing.T) {
	bothWays(t, func(r rig) {
		c := r.dial(long)
		for range 5 {
			r.cluster.ResetCommands()
			done := make(chan error)
			go func() {
				_, err := c.Pipelined(ctx, func(pipe redis.Pipeliner) error {
					for range 100 {
						pipe.Eval(ctx, "redis.call('INCR', KEYS[1])", []string{"k"})
					}
					return nil
				})
				done <- err
			}()
			r.eventually(func() bool { return r.node.Commands("EVAL") > 0 })
			r.node.Stop()
			n, _ := r.node.Redis().Get("k")
			<-done
			after, _ := r.node.Redis().Get("k")
			assert.Equal(r, n, after, "a dead node has executed something")
			r.node.Restart(redlocktest.LoseKeys)
		}
	})
}

// The goroutine with which go-redis probes a dead node must not outlive the bubble.
func TestCloseWaitsForProbes(t *testing.T) {
	for _, fault := range []func(*redlocktest.Node){
		(*redlocktest.Node).Stop,
		func(n *redlocktest.Node) { n.Partition(redlocktest.Blackhole) },
	} {
		synctest.Test(t, func(t *testing.T) {
			cluster := redlocktest.NewCluster(t, 1)
			fault(cluster.Node(0))
			c := cluster.Client(0, func(o *redis.Options) {
				once(short)(o)
				o.PoolSize = 1
			})
			assert.Error(t, c.Ping(ctx).Err())
		})
	}
}

func TestStopEndsBlockingCommands(t *testing.T) {
	bothWays(t, func(r rig) {
		c := r.dial(long)
		done := make(chan error)
		go func() { done <- c.BLPop(ctx, 0, "list").Err() }()
		r.eventually(func() bool { return r.node.Commands("BLPOP") == 1 })
		r.node.Restart(redlocktest.KeepKeys)
		assert.Error(r, <-done)
		go func() { done <- c.BLPop(ctx, 0, "list").Err() }()
		r.eventually(func() bool { return r.node.Commands("BLPOP") == 2 })
		require.NoError(r, c.RPush(ctx, "list", "x").Err())
		assert.NoError(r, <-done)
	})
}

func TestHangAndResume(t *testing.T) {
	bothWays(t, func(r rig) {
		c := r.dial(short)
		require.NoError(r, c.Ping(ctx).Err())
		r.node.Hang()
		assert.True(r, isTimeout(c.Set(ctx, "k", "v", 0).Err()))
		assert.True(r, isTimeout(r.dial(short).Ping(ctx).Err()))
		assert.Equal(r, []string{""}, r.cluster.Holders("k"))
		r.node.Resume()
		r.eventually(func() bool { return r.node.Get("k") == "v" })
		assert.NoError(r, r.dial(long).Ping(ctx).Err())

		r.node.Hang()
		assert.True(r, isTimeout(c.Set(ctx, "k", "lost", 0).Err()))
		r.node.Restart(redlocktest.KeepKeys)
		assert.Equal(r, "v", r.dial(long).Get(ctx, "k").Val(), "the killed process had not read it")

		c = r.dial(short)
		require.NoError(r, c.Ping(ctx).Err())
		r.node.Hang()
		assert.True(r, isTimeout(c.Set(ctx, "k", "lost", 0).Err()))
		r.node.Partition(redlocktest.DropReplies)
		r.node.Restart(redlocktest.KeepKeys)
		r.node.Heal()
		assert.Equal(r, "v", r.dial(long).Get(ctx, "k").Val(), "nor this one, which nobody was told to be dead")
	})
}

func TestPartition(t *testing.T) {
	for _, c := range []struct {
		mode    redlocktest.PartitionMode
		fails   func(error) bool
		applied bool
	}{
		{redlocktest.Refuse, func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }, false},
		{redlocktest.Blackhole, isTimeout, false},
		{redlocktest.DropRequests, isTimeout, false},
		{redlocktest.DropReplies, isTimeout, true},
	} {
		bothWays(t, func(r rig) {
			cl := r.dial(short)
			require.NoError(r, cl.Ping(ctx).Err())
			r.node.Partition(c.mode)
			err := cl.Set(ctx, "k", "v", 0).Err()
			assert.True(r, c.fails(err), "mode %d: %v", c.mode, err)
			assert.Equal(r, c.applied, r.node.Get("k") == "v", "mode %d", c.mode)
			r.node.Heal()
			assert.NoError(r, r.dial(long).Ping(ctx).Err(), "mode %d", c.mode)
		})
	}
}

func TestProcessAndNetworkAreIndependent(t *testing.T) {
	bothWays(t, func(r rig) {
		c := r.dial(short)
		require.NoError(r, c.Ping(ctx).Err())
		r.node.Partition(redlocktest.Blackhole)
		r.node.Stop()
		assert.True(r, isTimeout(c.Ping(ctx).Err()), "the end of the process is not seen")
		r.node.Restart(redlocktest.KeepKeys)
		assert.Error(r, r.dial(short).Ping(ctx).Err(), "nor is its return")
		r.node.Stop()
		r.node.Heal()
		assert.ErrorIs(r, r.dial(long).Ping(ctx).Err(), syscall.ECONNREFUSED)
		r.node.Partition(redlocktest.DropReplies)
		assert.True(r, isTimeout(r.dial(short).Ping(ctx).Err()))
		r.node.Partition(redlocktest.Refuse)
		r.node.Restart(redlocktest.KeepKeys)
		assert.ErrorIs(r, r.dial(long).Ping(ctx).Err(), syscall.ECONNREFUSED)
		r.node.Heal()
		assert.NoError(r, r.dial(long).Ping(ctx).Err())
	})
}

func TestDelay(t *testing.T) {
	inBubble(t, func(r rig) {
		c := r.dial(long)
		require.NoError(r, c.Ping(ctx).Err())
		r.node.Delay(100 * time.Millisecond)
		start := time.Now()
		require.NoError(r, c.Ping(ctx).Err())
		assert.Equal(r, 200*time.Millisecond, time.Since(start))
		r.node.Delay(0)

		r.node.DelayCommand("SET", 1, time.Second)
		go c.Set(ctx, "k", "late", 0)
		synctest.Wait()
		require.NoError(r, c.Set(ctx, "k", "early", 0).Err())
		time.Sleep(time.Second)
		synctest.Wait()
		assert.Equal(r, "late", r.node.Get("k"))
	})
}

func TestDropReplyGarbageAndCut(t *testing.T) {
	bothWays(t, func(r rig) {
		c := r.dial(long)
		require.NoError(r, c.Ping(ctx).Err())
		r.node.DropReply("incr", 1)
		assert.ErrorIs(r, c.Incr(ctx, "n").Err(), io.EOF)
		assert.Equal(r, int64(2), c.Incr(ctx, "n").Val())
		r.node.Garbage("rubbish\r\n")
		assert.Error(r, c.Ping(ctx).Err())
		require.NoError(r, c.Ping(ctx).Err())
		r.node.Cut()
		assert.NoError(r, c.Ping(ctx).Err(), "an idle connection costs nothing")
	})
}

func TestFailover(t *testing.T) {
	bothWays(t, func(r rig) {
		c := r.dial(long)
		require.NoError(r, c.Set(ctx, "old", "1", time.Hour).Err())
		require.NoError(r, c.Set(ctx, "changed", "1", 0).Err())
		require.NoError(r, c.RPush(ctx, "list", "a", "b").Err())
		require.NoError(r, c.Do(ctx, "SELECT", 3).Err())
		before, _ := info(r, c)

		r.node.DetachReplica()
		require.NoError(r, c.Set(ctx, "changed", "2", 0).Err())
		require.NoError(r, c.Set(ctx, "new", "1", 0).Err())
		require.NoError(r, c.Del(ctx, "old").Err())
		require.NoError(r, c.FlushAll(ctx).Err(), "does not reach the replica")
		r.node.Failover()

		assert.Equal(r, "1", c.Get(ctx, "old").Val())
		assert.InDelta(r, time.Hour, c.TTL(ctx, "old").Val(), float64(time.Minute))
		assert.Equal(r, "1", c.Get(ctx, "changed").Val())
		assert.Equal(r, []string{"a", "b"}, c.LRange(ctx, "list", 0, -1).Val())
		assert.ErrorIs(r, c.Get(ctx, "new").Err(), redis.Nil)
		after, uptime := info(r, c)
		assert.NotEqual(r, before, after)
		assert.GreaterOrEqual(r, uptime, 3600)

		require.NoError(r, c.Set(ctx, "new", "2", 0).Err())
		r.node.Stop()
		r.node.Failover() // replication did not lag
		assert.Equal(r, "2", c.Get(ctx, "new").Val())
	})
}

func TestReplicaKeysExpire(t *testing.T) {
	inBubble(t, func(r rig) {
		c := r.dial(long)
		require.NoError(r, c.Set(ctx, "a", "1", time.Minute).Err())
		require.NoError(r, c.Set(ctx, "b", "1", time.Hour).Err())
		r.node.DetachReplica()
		time.Sleep(30 * time.Minute)
		r.node.Failover()
		assert.Equal(r, "", r.node.Get("a"))
		assert.Equal(r, 30*time.Minute, r.node.TTL("b"))
		r.node.DetachReplica()
		r.node.FlushAll()
		r.node.Failover()
		assert.Equal(r, 30*time.Minute, r.node.TTL("b"))
	})
}

func TestShiftClock(t *testing.T) {
	inBubble(t, func(r rig) {
		c := r.dial(long)
		nodeTime := func() time.Duration { return time.Until(c.Time(ctx).Val()) }
		set := func() {
			require.NoError(r, c.Set(ctx, "minute", "v", time.Minute).Err())
			require.NoError(r, c.Set(ctx, "hour", "v", time.Hour).Err())
		}
		set()
		_, up := info(r, c)
		r.node.ShiftClock(10 * time.Minute)
		assert.Equal(r, "", r.node.Get("minute"))
		assert.Equal(r, 50*time.Minute, c.PTTL(ctx, "hour").Val())
		assert.Equal(r, 10*time.Minute, nodeTime())
		now, err := c.Eval(ctx, "return redis.call('TIME')[1]", nil).Int64()
		require.NoError(r, err)
		assert.Equal(r, time.Now().Add(10*time.Minute).Unix(), now)
		_, later := info(r, c)
		assert.Equal(r, up+600, later, "Redis computes its uptime from the time of day")

		set()
		time.Sleep(30 * time.Second)
		r.node.ShiftClock(-20 * time.Minute)
		assert.Equal(r, 20*time.Minute+30*time.Second, r.node.TTL("minute"))
		assert.Equal(r, -10*time.Minute, nodeTime())
		time.Sleep(20*time.Minute + 30*time.Second)
		assert.Equal(r, "", r.node.Get("minute"))

		// Absolute expiry means the node's clock.
		at := c.Time(ctx).Val().Add(time.Minute)
		require.NoError(r, c.Do(ctx, "SET", "x", "v", "PXAT", at.UnixMilli()).Err())
		assert.Equal(r, time.Minute, r.node.TTL("x"))
		require.ErrorIs(r, c.Do(ctx, "SET", "x", "v", "NX", "EXAT", at.Unix()).Err(), redis.Nil)
		require.NoError(r, c.PExpireAt(ctx, "x", at.Add(time.Second)).Err())
		assert.Equal(r, 61*time.Second, r.node.TTL("x"))
		require.NoError(r, c.ExpireAt(ctx, "x", at.Add(time.Minute)).Err())
		assert.Equal(r, 2*time.Minute, r.node.TTL("x"))

		// What is over stays over.
		require.NoError(r, c.Set(ctx, "gone", "v", time.Second).Err())
		time.Sleep(2 * time.Second)
		r.node.ShiftClock(-time.Hour)
		assert.Equal(r, "", r.node.Get("gone"))
	})
}

func TestInfo(t *testing.T) {
	inBubble(t, func(r rig) {
		c := r.dial(long)
		id, uptime := info(r, c)
		assert.Regexp(r, "^[0-9a-f]{40}$", id)
		assert.Equal(r, 3600, uptime)
		time.Sleep(90 * time.Second)
		_, uptime = info(r, c)
		assert.Equal(r, 3690, uptime)
		r.cluster.SetUptime(time.Second)
		_, uptime = info(r, c)
		assert.Equal(r, 1, uptime)
		assert.Contains(r, c.Info(ctx).Val(), "run_id:"+id)
		assert.Contains(r, c.Info(ctx, "clients").Val(), "connected_clients:1")
		assert.Empty(r, c.Info(ctx, "persistence").Val())
		r.node.Set("full", "v", 0)
		r.node.Evict("full", "not there")
		assert.Zero(r, c.Exists(ctx, "full").Val())
		assert.Contains(r, c.Info(ctx, "stats").Val(), "evicted_keys:1\r\n")

		r.node.Deny("INFO")
		assert.True(r, redis.HasErrorPrefix(c.Info(ctx, "server").Err(), "NOPERM"))
		r.node.Allow("info")
		require.NoError(r, c.Info(ctx, "server").Err())

		r.node.Set("k", "v", 0)
		r.node.Redis().RequireAuth("secret")
		assert.True(r, redis.HasErrorPrefix(c.Info(ctx, "server").Err(), "NOAUTH"))
		r.node.DetachReplica()
		r.node.Failover()
		authed := r.cluster.Client(0, func(o *redis.Options) { o.Password = "secret" })
		info(r, authed)
		assert.Equal(r, "v", authed.Get(ctx, "k").Val())
	})
}

func TestSetErrorAndDeny(t *testing.T) {
	bothWays(t, func(r rig) {
		r.node.SetError("LOADING Redis is loading the dataset in memory")
		c := r.dial(long)
		assert.True(r, redis.IsLoadingError(c.Set(ctx, "k", "v", 0).Err()))
		assert.NoError(r, c.Do(ctx, "HELLO", 3).Err())
		r.node.SetError("")
		require.NoError(r, c.Set(ctx, "k", "v", 0).Err())

		r.node.Deny("set", "PUBLISH")
		assert.True(r, redis.HasErrorPrefix(c.Set(ctx, "k", "v", 0).Err(), "NOPERM"))
		assert.Equal(r, "NOPERM", c.Eval(ctx, "return string.sub(redis.pcall('PUBLISH', 'c', 'm').err, 1, 6)", nil).Val())
		r.node.Allow("SET", "publish")
		assert.NoError(r, c.Set(ctx, "k", "v", 0).Err())
	})
}

func TestPubSub(t *testing.T) {
	bothWays(t, func(r rig) {
		c := r.dial(long)
		sub := c.Subscribe(ctx, "news")
		defer sub.Close()
		_, err := sub.Receive(ctx)
		require.NoError(r, err)
		require.NoError(r, c.Publish(ctx, "news", "hello").Err())
		msg, err := sub.ReceiveMessage(ctx)
		require.NoError(r, err)
		assert.Equal(r, "hello", msg.Payload)
		r.node.Restart(redlocktest.KeepKeys)
		_, err = sub.ReceiveTimeout(ctx, long)
		assert.Error(r, err)
	})
}

func TestTwoBubbles(t *testing.T) {
	for range 2 {
		synctest.Test(t, func(t *testing.T) {
			cluster := redlocktest.NewCluster(t, 5)
			clients := cluster.Clients()
			var all sync.WaitGroup
			for i := range 200 {
				all.Go(func() { assert.NoError(t, clients[i%5].Incr(ctx, "n").Err()) })
			}
			all.Wait()
			assert.Equal(t, []string{"40", "40", "40", "40", "40"}, cluster.Holders("n"))
		})
	}
}
