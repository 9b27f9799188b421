package promises_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/url"
	"os"
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
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
	"github.com/quorumlock/redlock/redlocktest"
)

func TestOptionRules(t *testing.T) {
	cluster := redlocktest.NewCluster(t, 1)
	for _, c := range []struct {
		opts redlock.Options
		says []string // nothing: accepted
	}{
		{redlock.Options{}, nil},
		{redlock.Options{TTL: 10 * time.Millisecond}, nil},
		{redlock.Options{TTL: 24 * time.Hour}, nil},
		{redlock.Options{TTL: 10*time.Millisecond - 1}, []string{"TTL is 9.999999ms", "from 10ms to 24h"}},
		{redlock.Options{TTL: 24*time.Hour + 1}, []string{"TTL is 24h0m0.000000001s"}},
		{redlock.Options{TTL: -1}, []string{"TTL is -1ns"}},
		{redlock.Options{TTL: math.MaxInt64}, []string{"TTL is 2562047h"}},

		{redlock.Options{NodeTimeout: 2500 * time.Millisecond}, nil},
		{redlock.Options{NodeTimeout: 2500*time.Millisecond + 1}, []string{"NodeTimeout is 2.500000001s", "a quarter of TTL, which is 10s"}},
		{redlock.Options{NodeTimeout: time.Millisecond}, nil},
		{redlock.Options{NodeTimeout: time.Millisecond - 1}, []string{"NodeTimeout is 999.999µs", "at least 1ms"}},
		{redlock.Options{NodeTimeout: -time.Second}, []string{"NodeTimeout is -1s"}},
		{redlock.Options{NodeTimeout: math.MaxInt64}, []string{"NodeTimeout is 2562047h"}},

		{redlock.Options{DriftFactor: 0.5}, nil},
		{redlock.Options{DriftFactor: math.SmallestNonzeroFloat64}, nil},
		{redlock.Options{DriftFactor: 1}, []string{"DriftFactor is 1", "below 1"}},
		{redlock.Options{DriftFactor: -0.01}, []string{"DriftFactor is -0.01"}},
		{redlock.Options{DriftFactor: math.NaN()}, []string{"DriftFactor is NaN"}},
		{redlock.Options{DriftFactor: math.Inf(1)}, []string{"DriftFactor is +Inf"}},
		{redlock.Options{DriftFactor: math.Inf(-1)}, []string{"DriftFactor is -Inf"}},
		{redlock.Options{DriftFactor: 0.99}, []string{"TTL is 10s", "drift allowance", "NodeTimeout"}},

		{redlock.Options{RetryMin: 1, RetryMax: 1}, nil},
		{redlock.Options{RetryMin: time.Hour}, nil},
		{redlock.Options{RetryMax: time.Millisecond}, nil},
		{redlock.Options{RetryMin: time.Second}, nil},
		{redlock.Options{RetryMin: time.Hour + 1}, []string{"RetryMin is 1h0m0.000000001s", "up to 1h"}},
		{redlock.Options{RetryMax: time.Hour + 1}, []string{"RetryMax is 1h0m0.000000001s"}},
		{redlock.Options{RetryMin: -1}, []string{"RetryMin is -1ns"}},
		{redlock.Options{RetryMax: -1}, []string{"RetryMax is -1ns"}},
		{redlock.Options{RetryMin: 2 * time.Second, RetryMax: time.Second}, []string{"RetryMin is 2s, above RetryMax, which is 1s"}},

		{redlock.Options{Owner: strings.Repeat("x", 256)}, nil},
		{redlock.Options{Owner: strings.Repeat("x", 257)}, []string{"Owner is 257 bytes long", "at most 256"}},
		{redlock.Options{KeyPrefix: strings.Repeat("p", 8191)}, nil},
		{redlock.Options{KeyPrefix: strings.Repeat("p", 8192)}, []string{"KeyPrefix is 8192 bytes long", "below 8192"}},
		{redlock.Options{NoRestartGuard: true}, nil},
		{redlock.Options{RestartGuard: time.Second}, nil},
		{redlock.Options{RestartGuard: -1}, []string{"RestartGuard is -1ns: must be from 0", "NoRestartGuard turns it off"}},
		{redlock.Options{RestartGuard: time.Second, NoRestartGuard: true}, []string{"RestartGuard is 1s, and NoRestartGuard is set"}},
		{redlock.Options{RestartGuard: 25 * time.Hour}, []string{"RestartGuard is 25h0m0s", "to 24h"}},

		{redlock.Options{TTL: 1, NodeTimeout: -2, DriftFactor: 3, RetryMin: -4, RetryMax: -5, Owner: strings.Repeat("6", 666), RestartGuard: 24*time.Hour + 7},
			[]string{"TTL is 1ns", "NodeTimeout is -2ns", "DriftFactor is 3", "RetryMin is -4ns", "RetryMax is -5ns", "Owner is 666", "RestartGuard is 24h0m0.000000007s"}},
		{redlock.Options{NodeTimeout: 5 * time.Second, DriftFactor: -1}, []string{"NodeTimeout is 5s", "DriftFactor is -1"}},
	} {
		rl, err := redlock.New(cluster.Clients(), &c.opts)
		if c.says == nil {
			if assert.NoError(t, err) {
				assert.NoError(t, rl.Close())
			}
			continue
		}
		assert.ErrorIs(t, err, redlock.ErrInvalid)
		for _, s := range c.says {
			assert.ErrorContains(t, err, s)
		}
		_, oerr := redlock.Open(t.Context(), []string{"127.0.0.1:1"}, &c.opts)
		assert.EqualError(t, oerr, err.Error(), "Open has the same rules, before any I/O")
	}
	assert.Zero(t, cluster.Commands())
}

func TestDefaults(t *testing.T) {
	inBubble(t, 1, nil, func(b *bed) {
		b.lock()
		host, err := os.Hostname()
		require.NoError(b, err)
		assert.Equal(b, ttl, b.cluster.TTLs(key)[0])
		assert.True(b, strings.HasSuffix(b.cluster.Holders(key)[0], fmt.Sprintf("@%s:%d", host, os.Getpid())))
	})
}

// The timeout per node follows the TTL: a fiftieth of it, from 5ms to 200ms and at
// most a quarter.
func TestDefaultNodeTimeout(t *testing.T) {
	for lease, want := range map[time.Duration]time.Duration{
		10 * time.Millisecond:  2500 * time.Microsecond,
		20 * time.Millisecond:  5 * time.Millisecond,
		100 * time.Millisecond: 5 * time.Millisecond,
		time.Second:            20 * time.Millisecond,
		time.Hour:              200 * time.Millisecond,
	} {
		inBubble(t, 1, nil, func(b *bed) {
			b.cycle() // connected
			b.cluster.Node(0).Hang()
			b.takes(want, func() {
				_, err := b.rl.Mutex(key, redlock.WithTTL(lease)).TryAcquire(b.Context())
				assert.ErrorIs(b, err, redlock.ErrNoQuorum)
			})
			b.cluster.Node(0).Resume()
		})
	}
	inBubble(t, 1, &redlock.Options{NodeTimeout: 7 * time.Millisecond}, func(b *bed) {
		b.cluster.Node(0).Hang()
		b.takes(7*time.Millisecond, func() { b.try() })
		b.cluster.Node(0).Resume()
	})
}

// every names all ways to use a Mutex.
var every = map[string]func(*redlock.Mutex, context.Context) error{
	"TryAcquire": func(m *redlock.Mutex, ctx context.Context) error { _, err := m.TryAcquire(ctx); return err },
	"Acquire":    func(m *redlock.Mutex, ctx context.Context) error { _, err := m.Acquire(ctx); return err },
	"Do": func(m *redlock.Mutex, ctx context.Context) error {
		return m.Do(ctx, func(context.Context, *redlock.Lock) error { return errors.New("called") })
	},
}

func TestLockRules(t *testing.T) {
	inBubble(t, 1, &redlock.Options{NodeTimeout: time.Second}, func(b *bed) {
		for name, c := range map[string]struct {
			m    *redlock.Mutex
			says []string
		}{
			"empty key":     {b.rl.Mutex(""), []string{"the key is empty"}},
			"short TTL":     {b.rl.Mutex(key, redlock.WithTTL(time.Millisecond)), []string{"TTL is 1ms", key}},
			"zero TTL":      {b.rl.Mutex(key, redlock.WithTTL(0)), []string{"TTL is 0s"}},
			"long TTL":      {b.rl.Mutex(key, redlock.WithTTL(math.MaxInt64)), []string{"TTL is 2562047h"}},
			"node timeout":  {b.rl.Mutex(key, redlock.WithTTL(3*time.Second)), []string{"NodeTimeout is 1s", "a quarter of TTL, which is 3s"}},
			"max hold":      {b.rl.Mutex(key, redlock.WithMaxHold(0)), []string{"WithMaxHold is 0s: must be positive"}},
			"max wait":      {b.rl.Mutex(key, redlock.WithMaxWait(0)), []string{"WithMaxWait is 0s: must be positive"}},
			"nil option":    {b.rl.Mutex(key, nil), []string{"LockOption is nil"}},
			"all of them":   {b.rl.Mutex("", nil, redlock.WithMaxHold(-1), redlock.WithTTL(1)), []string{"key is empty", "is nil", "-1ns", "TTL is 1ns"}},
			"fixed by last": {b.rl.Mutex(key, redlock.WithTTL(1), redlock.WithTTL(ttl)), nil},
		} {
			for op, call := range every {
				err := call(c.m, canceled())
				if c.says == nil {
					assert.NotErrorIs(b, err, redlock.ErrInvalid)
					continue
				}
				require.ErrorIs(b, err, redlock.ErrInvalid, "%s: %s", name, op)
				for _, s := range c.says {
					assert.ErrorContains(b, err, s, "%s: %s", name, op)
				}
			}
		}
		_, err := b.rl.Semaphore(key, 2, redlock.WithMaxWait(-1)).TryAcquire(canceled())
		assert.ErrorIs(b, err, redlock.ErrInvalid)
		assert.ErrorContains(b, err, "WithMaxWait is -1ns: must be positive")
		assert.ErrorIs(b, b.rl.Mutex(key).Do(b.Context(), nil), redlock.ErrInvalid)
		assert.Zero(b, b.cluster.Commands(), "before any I/O")
	})
}

// A rule that a lock does not break is not in the error.
func TestOnlyBrokenRulesAreTold(t *testing.T) {
	inBubble(t, 1, nil, func(b *bed) {
		for want, m := range map[string]*redlock.Mutex{
			`redlock: invalid lock "k": TTL is -1ns: must be from 10ms to 24h0m0s`:            b.rl.Mutex("k", redlock.WithTTL(-1)),
			`redlock: invalid lock "k": TTL is 1ms: must be from 10ms to 24h0m0s`:             b.rl.Mutex("k", redlock.WithTTL(time.Millisecond), redlock.WithMinHold(time.Second)),
			`redlock: invalid lock "k": WithMinHold is 25h0m0s: must be from 10ms to 24h0m0s`: b.rl.Mutex("k", redlock.WithMinHold(25*time.Hour)),
		} {
			_, err := m.TryAcquire(b.Context())
			assert.EqualError(b, err, want)
		}
		assert.Zero(b, b.cluster.Commands(), "before any I/O")
	})
}

func TestFencePanicsWithoutFencing(t *testing.T) {
	inBubble(t, 1, nil, func(b *bed) {
		lock := b.lock()
		assert.PanicsWithValue(b, "redlock: Fence of a Lock acquired without WithFencing", func() { lock.Fence() })
	})
}

func TestExtendChecksItsTTL(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		b.cluster.ResetCommands()
		for _, d := range []time.Duration{0, -1, time.Millisecond, 24*time.Hour + 1, math.MaxInt64} {
			err := lock.Extend(b.Context(), d)
			require.ErrorIs(b, err, redlock.ErrInvalid)
			assert.ErrorContains(b, err, fmt.Sprintf("ttl is %v", d))
		}
		assert.Zero(b, b.cluster.Commands())
	})
}

// The library's own connections are made as the client would make them, and what belongs to its
// pool does not apply to them.
func TestNewConnectsAsTheClientWould(t *testing.T) {
	inBubble(t, 1, nil, func(b *bed) {
		n := b.cluster.Node(0)
		n.Redis().RequireUserAuth("app", "secret")
		connected := 0
		c := b.cluster.Client(0, func(o *redis.Options) {
			o.CredentialsProvider = func() (string, string) { return "app", "secret" }
			o.Protocol, o.DB, o.ClientName, o.IdentitySuffix = 2, 3, "orders", "suffix"
			o.OnConnect = func(context.Context, *redis.Conn) error { connected++; return nil }
			o.MaxActiveConns, o.PoolSize, o.ReadTimeout, o.MaxRetries = 1, 1, time.Nanosecond, 3
			o.Limiter = closed{}
		})
		seen := make(chan string, 1)
		c.AddHook(commandNames(seen))
		n.ResetCommands()
		rl, err := redlock.New([]redis.UniversalClient{c}, nil)
		require.NoError(b, err)
		defer rl.Close()
		assert.Zero(b, b.cluster.Commands(), "New does no I/O")
		lock, err := rl.Mutex(key).TryAcquire(b.Context())
		require.NoError(b, err)
		assert.True(b, n.Redis().DB(3).Exists(key))
		require.NoError(b, lock.Release(b.Context()))
		synctest.Wait()
		assert.Equal(b, 1, connected)
		log := fmt.Sprint(n.Log())
		for _, sent := range []string{"[AUTH app secret]", "[SELECT 3]", "[CLIENT SETNAME orders]", "LIB-NAME go-redis(suffix,"} {
			assert.Contains(b, log, sent)
		}
		assert.Zero(b, c.PoolStats().TotalConns)
		assert.Empty(b, seen, "no hook sees it")
	})
}

// closed is a limit of a client's that lets nothing through.
type closed struct{}

func (closed) Allow() error       { return errors.New("not allowed") }
func (closed) ReportResult(error) {}

// See also FuzzTally and FuzzValidity.

// FuzzOptions: options are refused with ErrInvalid or make locks that are valid for a
// while, and never longer than their TTL.
func FuzzOptions(f *testing.F) {
	f.Add(int64(0), int64(0), 0.0, int64(0), int64(0), int64(0), "")
	f.Add(int64(10*time.Millisecond), int64(2500*time.Microsecond), 0.5, int64(1), int64(1), int64(-1), "me")
	f.Add(int64(24*time.Hour), int64(6*time.Hour), 0.7, int64(time.Hour), int64(time.Hour), int64(0), "x@y\r\n\x00")
	f.Add(int64(math.MaxInt64), int64(math.MaxInt64), math.Inf(1), int64(math.MinInt64), int64(math.MaxInt64), int64(1), strings.Repeat("x", 300))
	f.Add(int64(-1), int64(-1), math.NaN(), int64(5), int64(3), int64(1), "")
	f.Fuzz(func(t *testing.T, ttl, timeout int64, drift float64, lo, hi, guard int64, owner string) {
		bubble.Run(t, 1, func(t *testing.T, cluster *redlocktest.Cluster) {
			rl, err := redlock.New(cluster.Clients(), &redlock.Options{
				TTL: time.Duration(ttl), NodeTimeout: time.Duration(timeout), DriftFactor: drift,
				RetryMin: time.Duration(lo), RetryMax: time.Duration(hi), RestartGuard: time.Duration(guard), Owner: owner,
			})
			if err != nil {
				require.ErrorIs(t, err, redlock.ErrInvalid)
				require.NotContains(t, err.Error(), "\n")
				require.Zero(t, cluster.Commands())
				return
			}
			defer rl.Close()
			lock, err := rl.Mutex("k").TryAcquire(t.Context())
			require.NoError(t, err)
			require.Positive(t, lock.Validity())
			if ttl != 0 {
				require.Less(t, lock.Validity(), time.Duration(ttl))
				require.GreaterOrEqual(t, cluster.TTLs("k")[0], time.Duration(ttl))
			}
			_, err = rl.Mutex("k").TryAcquire(t.Context())
			require.ErrorIs(t, err, redlock.ErrHeld)
			require.NoError(t, lock.Release(t.Context()))
		})
	})
}

// FuzzKeys: any bytes but none, too many and the names of ours are a key, and pass through
// unchanged. What goes with the key is a name of ours.
func FuzzKeys(f *testing.F) {
	for _, k := range []string{"", "a", "{a}", "a\x00b", "\xff\xfe\xfd", "\r\n", "日本", " ", strings.Repeat("k", 1000), "{a}:line", "{a}:line:", "{{a}:fence", "a}:door:", "redlock:memory"} {
		f.Add(k, "")
		f.Add(k, "prefix:")
	}
	f.Fuzz(func(t *testing.T, k, prefix string) {
		bubble.Run(t, 1, func(t *testing.T, cluster *redlocktest.Cluster) {
			rl, err := redlock.New(cluster.Clients(), &redlock.Options{KeyPrefix: prefix})
			if len(prefix) > 8191 {
				require.ErrorIs(t, err, redlock.ErrInvalid)
				return
			}
			require.NoError(t, err)
			defer rl.Close()
			m := rl.Mutex(k)
			lock, err := m.TryAcquire(t.Context())
			if k == "" || len(prefix+k) > 8192 || isOurs(prefix+k) {
				require.ErrorIs(t, err, redlock.ErrInvalid)
				return
			}
			require.NoError(t, err)
			for _, beside := range namesBeside(prefix + k) {
				if name, ok := strings.CutPrefix(beside, prefix); ok {
					_, err := rl.Mutex(name).TryAcquire(t.Context())
					require.ErrorIs(t, err, redlock.ErrInvalid, beside)
				}
			}
			require.Equal(t, []string{prefix + k}, keysOf(cluster.Node(0)))
			require.Equal(t, k, lock.Key())
			_, err = m.TryAcquire(t.Context())
			require.ErrorIs(t, err, redlock.ErrHeld)
			require.NotContains(t, err.Error(), "\n")
			s, err := looking(t, cluster, &admin.Options{KeyPrefix: prefix}).Inspect(t.Context(), k)
			require.NoError(t, err)
			require.Equal(t, lock.Token(), s.Token)
			require.NoError(t, lock.Extend(t.Context(), ttl))
			require.NoError(t, lock.Release(t.Context()))
			require.Empty(t, keysOf(cluster.Node(0)))
		})
	})
}

// isOurs says by other means than the library whether something of ours has the name: whether
// there is a key that would have it.
func isOurs(name string) bool {
	if strings.HasSuffix(name, memoryMark) {
		return true
	}
	for _, kind := range []string{"line", "shared", "door", "fence"} {
		usual, isUsual := strings.CutSuffix(strings.TrimPrefix(name, "{"), "}:"+kind)
		other, isOther := strings.CutSuffix(name, ":"+kind+":")
		for key, is := range map[string]bool{usual: isUsual, other: isOther} {
			if is && key != "" && slices.Contains(namesBeside(key), name) {
				return true
			}
		}
	}
	return false
}

// FuzzAddresses: an address is refused with ErrInvalid, without its password, or taken.
func FuzzAddresses(f *testing.F) {
	for _, a := range []string{
		"10.0.0.1:6379", "[::1]:6379", "redis://u:PASSWORD@h:1/2", "rediss://:PASSWORD@h", "unix://u:PASSWORD@/tmp/s?db=1",
		"u:PASSWORD@h:1", "redis://u:PASSWORD@h:x", "redis://%zz:PASSWORD@h", "://", "redis://u:PASSWORD@h:1/x?a=PASSWORD",
		"redis://h?max_retries=5&read_timeout=-1&pool_size=3&protocol=9", "",
	} {
		f.Add(a)
	}
	ctx := canceled()
	f.Fuzz(func(t *testing.T, addr string) {
		rl, err := redlock.Open(ctx, []string{addr}, nil)
		switch {
		case rl != nil || err == nil:
			t.Fatal("opened with a context that is over")
		case errors.Is(err, context.Canceled):
			return // well-formed
		}
		require.ErrorIs(t, err, redlock.ErrInvalid)
		if u, uerr := url.Parse(addr); uerr == nil && u.User != nil {
			if pw, _ := u.User.Password(); len(pw) > 7 && !strings.Contains(u.Host+u.Path+u.Scheme, pw) {
				require.NotContains(t, err.Error(), pw)
			}
		}
	})
}

// commandNames is a hook that notes the names of commands.
type commandNames chan string

func (commandNames) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (commandNames) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (seen commandNames) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, c := range cmds {
			seen <- c.Name()
		}
		return next(ctx, cmds)
	}
}

// What a client was given may wait for something that never comes, without a look at its context.
func TestCodeOfTheUserThatNeverReturnsCostsOneTry(t *testing.T) {
	for name, change := range map[string]func(o *redis.Options, first func()){
		"dialer": func(o *redis.Options, first func()) {
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				first()
				return dial(context.WithoutCancel(ctx), network, addr)
			}
		},
		"dialer that fails": func(o *redis.Options, first func()) {
			dial, begun := o.Dialer, atomic.Bool{}
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				fails := begun.CompareAndSwap(false, true)
				if first(); fails {
					return (*tls.Conn)(nil), errors.New("too late") // as crypto/tls has it
				}
				return dial(context.WithoutCancel(ctx), network, addr)
			}
		},
		"credentials": func(o *redis.Options, first func()) {
			o.CredentialsProvider = func() (string, string) { first(); return "", "" }
		},
		"on connect": func(o *redis.Options, first func()) {
			o.OnConnect = func(context.Context, *redis.Conn) error { first(); return nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, nil, func(b *bed) {
				never, calls := make(chan bool), atomic.Int32{}
				end := sync.OnceFunc(func() { close(never) })
				defer end()
				rl, err := redlock.New([]redis.UniversalClient{b.cluster.Client(0, func(o *redis.Options) {
					o.DialTimeout = time.Second
					change(o, func() {
						if calls.Add(1) == 1 {
							<-never
						}
					})
				})}, &redlock.Options{NoRestartGuard: true})
				require.NoError(b, err)
				_, err = rl.Mutex(key).TryAcquire(b.Context())
				require.ErrorIs(b, err, redlock.ErrNoQuorum)
				b.pass(5 * time.Second)
				lock, err := rl.Mutex(key).TryAcquire(b.Context())
				require.NoError(b, err)
				require.NoError(b, lock.Release(b.Context()))
				end()
				require.NoError(b, rl.Close())
				synctest.Wait()
				assert.Zero(b, b.cluster.Node(0).Redis().CurrentConnectionCount())
			})
		})
	}
}

// bursting is a connection that a Dialer of the user's made.
type bursting struct {
	net.Conn
	v any
}

func (c bursting) Read([]byte) (int, error) { panic(c.v) }

// What panics of the code that a client was given costs its node's votes and nothing else: it is the node's error, with
// its value, in each QuorumError and in NodeDown, and the stack is in both. An error that it panics with is its text
// alone, and not taken for one of the server or of the context.
func TestPanicOfAClientsCodeIsItsNodesError(t *testing.T) {
	for way, change := range map[string]func(o *redis.Options, v any){
		"dialer": func(o *redis.Options, v any) {
			o.Dialer = func(context.Context, string, string) (net.Conn, error) { panic(v) }
		},
		"connection": func(o *redis.Options, v any) {
			dial := o.Dialer
			o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := dial(ctx, network, addr)
				return bursting{c, v}, err
			}
		},
		"credentials": func(o *redis.Options, v any) { o.CredentialsProvider = func() (string, string) { panic(v) } },
		"with context": func(o *redis.Options, v any) {
			o.CredentialsProviderContext = func(context.Context) (string, string, error) { panic(v) }
		},
		"on connect": func(o *redis.Options, v any) { o.OnConnect = func(context.Context, *redis.Conn) error { panic(v) } },
	} {
		for says, v := range map[string]any{
			"of the user":               "of the user",
			"client is closed":          redis.ErrClosed,
			"context deadline exceeded": context.DeadlineExceeded,
			"NOAUTH of a Sentinel":      fakenode.Error("NOAUTH of a Sentinel"),
		} {
			t.Run(way+", "+says, func(t *testing.T) {
				inBubble(t, 3, nil, func(b *bed) {
					clients := b.cluster.Clients()
					for i := range 2 {
						clients[i] = b.cluster.Client(i, func(o *redis.Options) { change(o, v) })
					}
					down := make(chan error, 16)
					var log bytes.Buffer
					rl, err := redlock.New(clients, &redlock.Options{Hooks: redlock.JoinHooks(redlock.LogHooks(slog.New(slog.NewTextHandler(&log, nil))), &redlock.Hooks{
						NodeDown: func(i redlock.NodeInfo) { down <- i.Err },
						Degraded: func(i redlock.DegradedInfo) { b.Errorf("degraded: %+v", i) },
					})})
					require.NoError(b, err)
					b.Cleanup(func() { _ = rl.Close() })
					_, err = rl.Mutex(key).TryAcquire(b.Context())
					q := b.quorumError(err)
					require.ErrorIs(b, err, redlock.ErrNoQuorum)
					synctest.Wait()
					assert.Equal(b, 2, strings.Count(log.String(), " stack=\"goroutine "), "%s", &log)
					for _, err := range []error{q.Outcomes[0].Err, q.Outcomes[1].Err, <-down, <-down} {
						require.ErrorContains(b, err, "panic")
						assert.ErrorContains(b, err, says)
						assert.NotContains(b, err.Error(), "\n")
						var p interface{ Stack() []byte }
						require.ErrorAs(b, err, &p)
						assert.Contains(b, string(p.Stack()), "promises_test.")
						var e redis.Error
						assert.False(b, errors.As(err, &e) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, redis.ErrClosed))
					}
				})
			})
		}
	}
}
