package realtest_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSameServerTwiceIsRefused(t *testing.T) {
	t.Parallel() // 51
	f := startFleet(t, 3, realredis.UnixSocket())
	a, b, c := f.servers[0].Addr(), f.servers[1].Addr(), f.servers[2].Addr()
	_, port, err := net.SplitHostPort(a)
	require.NoError(t, err)
	for name, addrs := range map[string][]string{
		"same address":        {a, a, b},
		"not next to another": {a, b, a},
		"another database":    {a, b, "redis://" + a + "/1"},
		"another name":        {a, b, "localhost:" + port},
		"through a proxy":     {a, b, f.addrs()[0]},
		"unix socket":         {a, b, "unix://" + f.servers[0].SocketPath()},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := redlock.Open(t.Context(), addrs, nil)
			require.ErrorIs(t, err, redlock.ErrDuplicateNode)
			require.NotErrorIs(t, err, redlock.ErrNoQuorum)
		})
	}
	t.Run("different ones are not", func(t *testing.T) {
		openAt(t, []string{a, b, c}, brisk)
	})
	t.Run("same client", func(t *testing.T) {
		x, y := defaultClient(t, a), defaultClient(t, b)
		_, err := redlock.New([]redis.UniversalClient{x, y, x}, nil)
		require.ErrorIs(t, err, redlock.ErrDuplicateNode)
	})
}

func TestNumbersOfNodes(t *testing.T) {
	t.Parallel() // 53
	for _, test := range []struct{ nodes, tolerates int }{
		{1, 0}, {2, 0}, {3, 1}, {4, 1}, {7, 3},
	} {
		t.Run(fmt.Sprint(test.nodes), func(t *testing.T) {
			f := startFleet(t, test.nodes)
			rl := f.direct(t, brisk)
			for i := range test.nodes {
				if i == test.tolerates {
					lock := requireAcquire(t, rl)
					require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
					require.NoError(t, lock.Release(t.Context()))
				}
				f.servers[i].Kill()
				if i >= test.tolerates {
					requireNoQuorum(t, try(t, rl))
				}
			}
		})
	}
}

func TestCancellingAnAcquireReturnsAtOnceAndLeavesNothing(t *testing.T) {
	t.Parallel() // 55
	f, rl := warmFleet(t, 5, unhurried)
	for _, s := range f.servers[:3] {
		require.NoError(t, s.Pause())
	}
	ctx, cancel := context.WithCancel(t.Context())
	acquiring := background(func() error { _, err := rl.Mutex(resource).Acquire(ctx); return err })
	eventually(t, func() bool { return slices.Equal(f.counts("SET"), []int{2, 2, 2, 2, 2}) }, "not asked")
	cancel()
	err := promptly(t, func() error { return <-acquiring })
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, redlock.ErrHeld)
	f.mend()
	eventually(t, func() bool { return f.executed(0, "set") == 2 }, "the SET did not arrive")
	f.requireGone(t, resource)
	require.NoError(t, requireAcquire(t, rl).Release(t.Context()))
}

func TestDeadContextSendsNothing(t *testing.T) {
	t.Parallel() // 56
	f := startFleet(t, 3)
	rl := f.open(t, brisk)
	lock := requireLock(t, rl)
	waitForVotes(t, lock)
	f.resetLogs()
	dead, cancel := context.WithCancel(t.Context())
	cancel()
	m, nodes := rl.Mutex("another"), operator(t, rl)
	for name, call := range map[string]func() error{
		"TryAcquire":   func() error { _, err := m.TryAcquire(dead); return err },
		"Acquire":      func() error { _, err := m.Acquire(dead); return err },
		"Do":           func() error { return m.Do(dead, func(context.Context, *redlock.Lock) error { panic("called") }) },
		"Inspect":      func() error { _, err := nodes.Inspect(dead, "another"); return err },
		"ForceRelease": func() error { _, err := nodes.ForceRelease(dead, "another", admin.Anything()); return err },
		"Extend":       func() error { return lock.Extend(dead, time.Minute) },
	} {
		require.ErrorIs(t, call(), context.Canceled, name)
	}
	assert.Equal(t, []int{0, 0, 0}, f.counts())
	require.NoError(t, lock.Release(dead), "this one is sent all the same") // 60
	f.requireGone(t, resource)
}

func TestReleaseAfterTheEndLeavesTheNextHolderAlone(t *testing.T) {
	t.Parallel() // 58
	f := startFleet(t, 3)
	rl := f.direct(t, redlock.Options{TTL: time.Second, NodeTimeout: 250 * time.Millisecond})
	late := requireAcquire(t, rl)
	f.requireGone(t, resource) // on all servers, or the next holder would do with those where it is gone
	next := requireAcquire(t, f.direct(t, brisk))
	err := late.Release(t.Context())
	require.ErrorIs(t, err, redlock.ErrNotHeld)
	require.NotContains(t, err.Error(), "held by another")
	f.requireOn(t, next)
	require.NoError(t, next.Release(t.Context()))
}

func TestKeysOfAnyBytesPassUnchanged(t *testing.T) {
	t.Parallel() // 68
	f := startFleet(t, 3)
	long := strings.Repeat("0123456789abcdef", 511) // with the prefix below the limit of 8,192 bytes
	for name, key := range map[string]string{
		"NUL": "a\x00b\x00", "braces": "{a}{b}}", "spaces": " a  b ", "line ends": "a\r\nb\n", "not UTF-8": "\xff\xfe\x80",
		"quotes": `"'\`, "percent": "%s%d%!", "8 KB": long, "unicode": "Schloß\u2028🔒", "like a command": "*1\r\n$4\r\nPING\r\n",
	} {
		for _, prefix := range []string{"", "p:\x00{"} {
			t.Run(name+prefix, func(t *testing.T) {
				o := brisk
				o.KeyPrefix, o.NodeTimeout = prefix, 5*time.Second
				rl := f.direct(t, o)
				lock, err := rl.Mutex(key).TryAcquire(t.Context())
				require.NoError(t, err)
				waitForVotes(t, lock)
				require.Equal(t, key, lock.Key())
				require.False(t, slices.ContainsFunc(f.holders(prefix+key), not(lock)))
				_, err = rl.Mutex(key).TryAcquire(t.Context())
				require.ErrorIs(t, err, redlock.ErrHeld)
				require.Less(t, len(err.Error()), 2000)
				require.NotContains(t, err.Error(), "\n")
				require.NoError(t, lock.Extend(t.Context(), time.Minute))
				s, err := operator(t, rl).Inspect(t.Context(), key)
				require.NoError(t, err)
				require.Equal(t, lock.Token(), s.Token)
				require.NoError(t, lock.Release(t.Context()))
				f.requireGone(t, prefix+key)
			})
		}
	}
}

func TestOtherRedlockClientsAndWeExcludeEachOther(t *testing.T) {
	t.Parallel() // 69
	f := startFleet(t, 5)
	rl := f.direct(t, brisk)

	lock := requireLock(t, rl)
	waitForVotes(t, lock)
	for _, c := range f.admins {
		require.False(t, c.SetNX(t.Context(), resource, "theirs", time.Minute).Val())
	}
	require.NoError(t, lock.Release(t.Context()))
	f.requireGone(t, resource)

	for _, nodes := range [][]int{{0, 1, 2}, {1, 3, 4}, f.all()} {
		f.plant(t, "theirs", time.Minute, nodes...)
		require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
		s, err := operator(t, rl).Inspect(t.Context(), resource)
		require.NoError(t, err)
		assert.True(t, s.Held())
		for i, v := range f.holders(resource) {
			if slices.Contains(nodes, i) {
				assert.Equal(t, "theirs", v)
			}
		}
		f.requireOnly(t, "theirs")
		f.do(t, f.all(), "DEL", resource)
	}
	f.plant(t, "theirs", time.Minute, 0, 4)
	lock = requireLock(t, rl) // a minority is not a lock, theirs neither
	require.NoError(t, lock.Release(t.Context()))
	f.requireOnly(t, "theirs")
}

// requireOnly waits until the servers hold nothing else under the resource.
func (f *fleet) requireOnly(t *testing.T, value string) {
	t.Helper()
	eventually(t, func() bool {
		return !slices.ContainsFunc(f.holders(resource), func(v string) bool { return v != "" && v != value })
	}, "something of ours is left")
}

// leastRights are the ACL rules that exclusive locks need without a guard and without a queue. AUTH needs no right;
// SELECT goes out for a database other than 0, CLIENT SETNAME for a name.
var leastRights = []string{"~orders:*", "+set", "+evalsha", "+eval", "+get", "+del", "+pttl", "+pexpire", "+type", "+ping"}

func TestEveryKindOfConnection(t *testing.T) {
	t.Parallel()
	unqueued := brisk
	unqueued.NoQueue = true
	urls := func(servers []*realredis.Server, format string) (urls []string) {
		for _, s := range servers {
			urls = append(urls, fmt.Sprintf(format, s.Addr()))
		}
		return urls
	}
	clients := func(t *testing.T, servers []*realredis.Server, change func(*redis.Options)) (all []redis.UniversalClient) {
		for _, s := range servers {
			all = append(all, s.Client(t, change))
		}
		return all
	}
	for name, connect := range map[string]func(t *testing.T) *redlock.Redlock{
		"go-redis defaults": func(t *testing.T) *redlock.Redlock {
			return startFleet(t, 3).byDefault(t, brisk)
		},
		"pool of one": func(t *testing.T) *redlock.Redlock {
			return startFleet(t, 3).byDefault(t, brisk, func(o *redis.Options) { o.PoolSize, o.PipelinePoolSize = 1, -1 })
		},
		"no limits of time by URL": func(t *testing.T) *redlock.Redlock {
			return openAt(t, urls(realredis.StartN(t, 3), "redis://%s?dial_timeout=0&read_timeout=0&write_timeout=0"), brisk)
		},
		"no limits of time by client": func(t *testing.T) *redlock.Redlock {
			return startFleet(t, 3).byDefault(t, brisk, func(o *redis.Options) {
				o.DialTimeout, o.ReadTimeout, o.Dialer = -1, -1, new(net.Dialer).DialContext
			})
		},
		"many retries": func(t *testing.T) *redlock.Redlock {
			return startFleet(t, 3).byDefault(t, brisk, func(o *redis.Options) { o.MaxRetries, o.ContextTimeoutEnabled = 10, true })
		},
		"RESP2": func(t *testing.T) *redlock.Redlock {
			return startFleet(t, 3).byDefault(t, brisk, func(o *redis.Options) { o.Protocol = 2 })
		},
		"RESP3 by URL": func(t *testing.T) *redlock.Redlock {
			return openAt(t, urls(realredis.StartN(t, 3), "redis://%s?protocol=3"), brisk)
		},
		"addresses": func(t *testing.T) *redlock.Redlock {
			return openAt(t, addrsOf(realredis.StartN(t, 3)), brisk)
		},
		"password by URL": func(t *testing.T) *redlock.Redlock {
			return openAt(t, urls(realredis.StartN(t, 3, realredis.Password("s e/cret")), "redis://:s%%20e%%2Fcret@%s"), brisk)
		},
		"ACL user with least rights by URL": func(t *testing.T) *redlock.Redlock {
			return openAt(t, urls(realredis.StartN(t, 3, realredis.User("app", "pw", leastRights...)), "redis://app:pw@%s"), unqueued)
		},
		"ACL user with least rights by client": func(t *testing.T) *redlock.Redlock {
			servers := realredis.StartN(t, 3, realredis.User("app", "pw", leastRights...))
			var all []redis.UniversalClient
			for _, s := range servers {
				all = append(all, defaultClient(t, s.Addr(), func(o *redis.Options) { o.Username, o.Password = "app", "pw" }))
			}
			return newOn(t, unqueued, all...)
		},
		"database by URL": func(t *testing.T) *redlock.Redlock {
			return openAt(t, urls(realredis.StartN(t, 3), "redis://%s/9"), brisk)
		},
		"database by client": func(t *testing.T) *redlock.Redlock {
			return newOn(t, brisk, clients(t, realredis.StartN(t, 3), func(o *redis.Options) { o.DB = 9 })...)
		},
		"TLS by URL": func(t *testing.T) *redlock.Redlock {
			servers := realredis.StartN(t, 3, realredis.TLS(), realredis.Args("tls-auth-clients", "no"))
			return openAt(t, urls(servers, "rediss://%s?skip_verify=true"), brisk)
		},
		"TLS with client certificates": func(t *testing.T) *redlock.Redlock {
			servers := realredis.StartN(t, 3, realredis.TLS())
			return newOn(t, brisk, clients(t, servers, func(o *redis.Options) { o.TLSConfig.MinVersion = tls.VersionTLS12 })...)
		},
		"unix sockets by URL": func(t *testing.T) *redlock.Redlock {
			var all []string
			for _, s := range realredis.StartN(t, 3, realredis.UnixSocket()) {
				all = append(all, "unix://"+s.SocketPath()+"?db=2")
			}
			return openAt(t, all, brisk)
		},
		"unix sockets by client": func(t *testing.T) *redlock.Redlock {
			return newOn(t, brisk, clients(t, realredis.StartN(t, 3, realredis.UnixSocket()), func(*redis.Options) {})...)
		},
		"all kinds together": func(t *testing.T) *redlock.Redlock {
			plain, secret := realredis.StartN(t, 2, realredis.UnixSocket()), realredis.Start(t, realredis.Password("pw"))
			return openAt(t, []string{plain[0].Addr(), "unix://" + plain[1].SocketPath(), "redis://:pw@" + secret.Addr() + "/1"}, brisk)
		},
		"Sentinel": func(t *testing.T) *redlock.Redlock {
			var all []redis.UniversalClient
			for _, master := range realredis.StartN(t, 3) {
				sentinel := realredis.StartSentinel(t, master, "m")
				c := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{sentinel.Addr()}})
				t.Cleanup(func() { _ = c.Close() })
				all = append(all, c)
			}
			rl := newOn(t, brisk, all...)
			names := rl.Nodes()
			slices.Sort(names)
			require.Len(t, slices.Compact(names), 3, "they all report one address")
			return rl
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			realredis.Need(t)
			useFully(t, connect(t))
		})
	}
}

// Servers that listen on IPv6 are called as they are dialed, in brackets.
func TestNodesOnIPv6(t *testing.T) {
	t.Parallel()
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skip("no IPv6 on this machine: ", err)
	} else {
		require.NoError(t, l.Close())
	}
	realredis.Need(t)
	for name, connect := range map[string]func(t *testing.T, addrs []string) *redlock.Redlock{
		"addresses": func(t *testing.T, addrs []string) *redlock.Redlock { return openAt(t, addrs, brisk) },
		"URLs": func(t *testing.T, addrs []string) *redlock.Redlock {
			var urls []string
			for _, a := range addrs {
				urls = append(urls, "redis://"+a+"/1")
			}
			return openAt(t, urls, brisk)
		},
		"clients": func(t *testing.T, addrs []string) *redlock.Redlock {
			var all []redis.UniversalClient
			for _, a := range addrs {
				all = append(all, defaultClient(t, a))
			}
			return newOn(t, brisk, all...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := realredis.StartN(t, 3, realredis.Args("bind", "127.0.0.1 ::1")) // helpers ask the former
			var addrs []string
			for _, s := range servers {
				_, port, err := net.SplitHostPort(s.Addr())
				require.NoError(t, err)
				addrs = append(addrs, net.JoinHostPort("::1", port))
			}
			rl := connect(t, addrs)
			useFully(t, rl)
			servers[0].Kill()
			servers[2].Kill()
			err := try(t, rl)
			requireNoQuorum(t, err)
			for i, addr := range addrs {
				assert.Contains(t, rl.Nodes()[i], addr)
				assert.ErrorContains(t, err, " "+rl.Nodes()[i]+" ")
			}
		})
	}
}

// useFully does everything that a lock can do.
func useFully(t *testing.T, rl *redlock.Redlock) {
	t.Helper()
	ctx := t.Context()
	m, nodes := rl.Mutex(resource, redlock.WithTTL(2*time.Minute)), operator(t, rl)
	for range 2 { // the second time with the scripts known
		lock, err := m.TryAcquire(ctx)
		require.NoError(t, err)
		for _, v := range waitForVotes(t, lock) {
			require.Equal(t, redlock.VoteGranted, v, "%v", lock.Outcomes())
		}
		require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
		require.NoError(t, lock.Extend(ctx, 2*time.Minute))
		s, err := nodes.Inspect(ctx, resource)
		require.NoError(t, err)
		require.Equal(t, lock.Token(), s.Token)
		require.Greater(t, s.TTL, time.Minute)

		waiting := background(func() error { return m.Do(ctx, func(context.Context, *redlock.Lock) error { return nil }) })
		require.NoError(t, lock.Release(ctx))
		require.NoError(t, await(t, waiting))
		untilFree(t, nodes) // or a release that is sent again, with its script, comes after the next SET
	}
	lock := requireAcquire(t, rl)
	_, err := nodes.ForceRelease(ctx, resource, admin.HeldBy(lock.Token()))
	require.NoError(t, err)
	require.ErrorIs(t, lock.Release(ctx), redlock.ErrNotHeld)
	untilFree(t, nodes)
}

// untilFree waits until no node has the key.
func untilFree(t *testing.T, nodes *admin.Nodes) {
	t.Helper()
	eventually(t, func() bool {
		s, err := nodes.Inspect(context.Background(), resource)
		return err == nil && !slices.ContainsFunc(s.Nodes, func(n admin.NodeStatus) bool { return n.Value != "" })
	}, "keys are left")
}
