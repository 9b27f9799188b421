package realredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	logging.Disable() // or each refused dial of a test becomes a line
	before := runtime.NumGoroutine()
	code := m.Run()
	if code == 0 {
		code = checkLeaks(before)
	}
	os.Exit(code)
}

func checkLeaks(before int) int {
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; {
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<20)
			fmt.Printf("leaked goroutines:\n%s\n", buf[:runtime.Stack(buf, true)])
			return 1
		}
		time.Sleep(time.Millisecond)
	}
	return 0
}

func eventually(t *testing.T, cond func() bool, msg string) {
	t.Helper()
	require.Eventually(t, cond, 20*time.Second, 2*time.Millisecond, msg)
}

// noRetry makes a client report the first error instead of hiding it.
func noRetry(o *redis.Options) { o.MaxRetries, o.DialerRetries = -1, 1 }

func TestStart(t *testing.T) {
	s := Start(t)
	ctx := t.Context()
	require.NoError(t, s.Client(t).Set(ctx, "k", "v", 0).Err())
	assert.True(t, s.Alive())
	assert.Len(t, s.RunID(), 40)
	assert.Positive(t, s.PID())
	assert.Contains(t, s.Log(), "Ready to accept connections")
	assert.Empty(t, s.SocketPath())
	assert.Nil(t, s.TLSConfig())

	o, err := redis.ParseURL(s.URL())
	require.NoError(t, err)
	assert.Equal(t, s.Addr(), o.Addr)
	assert.NotSame(t, s.Options(), s.Options())
}

func TestStartNInParallel(t *testing.T) {
	begin := time.Now()
	servers := StartN(t, 5)
	t.Logf("5 servers in %v", time.Since(begin))
	// Generous: this has to hold on a busy machine under the race detector.
	assert.Less(t, time.Since(begin), 5*time.Second)
	addrs, ids := map[string]bool{}, map[string]bool{}
	for _, s := range servers {
		addrs[s.Addr()], ids[s.RunID()] = true, true
	}
	assert.Len(t, addrs, 5)
	assert.Len(t, ids, 5)
}

func TestPauseAndResume(t *testing.T) {
	s := Start(t)
	c := s.Client(t)
	ctx := t.Context()
	require.NoError(t, c.Set(ctx, "k", "v", 0).Err())
	require.NoError(t, s.Pause())
	assert.True(t, s.Alive())

	done := make(chan error, 1)
	go func() { done <- c.Get(ctx, "k").Err() }()
	select {
	case err := <-done:
		t.Fatalf("a paused server answered: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	require.NoError(t, s.Resume())
	require.NoError(t, <-done)
}

func TestPausedServerCanEnd(t *testing.T) {
	servers := StartN(t, 3)
	for _, s := range servers {
		require.NoError(t, s.Pause())
	}
	servers[0].Kill()
	assert.False(t, servers[0].Alive())
	require.NoError(t, servers[1].Shutdown())
	assert.False(t, servers[1].Alive())
	require.NoError(t, servers[2].Close())
	assert.False(t, servers[2].Alive())
}

func TestRestart(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts []Option
		stop func(*Server)
		keep bool
	}{
		{"kill", nil, (*Server).Kill, false},
		{"shutdown", nil, func(s *Server) { require.NoError(t, s.Shutdown()) }, false},
		{"alive", nil, func(*Server) {}, false},
		{"kill, AOF always", []Option{AOF("always")}, (*Server).Kill, true},
		{"kill, AOF no", []Option{AOF("no")}, (*Server).Kill, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := Start(t, tc.opts...)
			c := s.Client(t)
			ctx := t.Context()
			require.NoError(t, c.Set(ctx, "k", "v", 0).Err())
			addr, id, pid := s.Addr(), s.RunID(), s.PID()

			tc.stop(s)
			require.NoError(t, s.Restart())
			assert.Equal(t, addr, s.Addr())
			assert.NotEqual(t, id, s.RunID())
			assert.NotEqual(t, pid, s.PID())
			err := c.Get(ctx, "k").Err()
			if tc.keep {
				assert.NoError(t, err)
			} else {
				assert.ErrorIs(t, err, redis.Nil)
			}
		})
	}
}

// Connections which the kill leaves behind in all kinds of states must not
// keep the port from the next run.
func TestRestartUnderTraffic(t *testing.T) {
	s := Start(t)
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 8 {
		c := s.Client(t, noRetry)
		wg.Go(func() {
			for ctx.Err() == nil {
				_ = c.Incr(ctx, "n").Err()
			}
		})
	}
	for range 10 {
		s.Kill()
		time.Sleep(5 * time.Millisecond) // let the clients dial a dead port
		if !assert.NoError(t, s.Restart()) {
			break
		}
	}
	cancel()
	wg.Wait()
}

func TestKilledServerKeepsItsPort(t *testing.T) {
	s := Start(t)
	s.Kill()
	_, err := s.Client(t, noRetry).Ping(t.Context()).Result()
	require.ErrorContains(t, err, "refused")
	_, err = net.ListenPacket("udp", s.Addr())
	require.Error(t, err, "another user of the package could take the port")
	assert.Error(t, s.Pause())
	assert.Error(t, s.Resume())
	assert.NoError(t, s.Shutdown())
	s.Kill()
}

func TestCloseRemovesEverything(t *testing.T) {
	Need(t)
	s, err := Launch(t.Context())
	require.NoError(t, err)
	require.DirExists(t, s.dir)
	require.NoError(t, s.Close())
	require.NoError(t, s.Close())
	assert.NoDirExists(t, s.dir)
	assert.False(t, s.Alive())
	assert.ErrorIs(t, s.Restart(), os.ErrClosed)
	l, err := net.Listen("tcp", s.Addr())
	require.NoError(t, err)
	require.NoError(t, l.Close())
}

func TestPortTakenByStranger(t *testing.T) {
	s := Start(t)
	s.Kill()
	l, err := net.Listen("tcp", s.Addr())
	require.NoError(t, err)
	require.ErrorIs(t, s.start(t.Context()), errPortTaken)

	freed := make(chan struct{})
	time.AfterFunc(100*time.Millisecond, func() {
		_ = l.Close()
		close(freed)
	})
	require.NoError(t, s.Restart())
	<-freed
}

func TestLaunchFails(t *testing.T) {
	Need(t)
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	_, err := Launch(t.Context(), Args("no-such-directive", "1"))
	require.ErrorContains(t, err, "no-such-directive", "the message must hold the log")

	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Launch(ctx)
	require.ErrorIs(t, err, context.Canceled)

	_, err = LaunchN(t.Context(), 3, Args("maxmemory", "nonsense"))
	require.Error(t, err)

	left, err := filepath.Glob(filepath.Join(tmp, "*"))
	require.NoError(t, err)
	assert.Empty(t, left)
}

func TestUnixSocket(t *testing.T) {
	s := Start(t, UnixSocket(), Password("p"))
	ctx := t.Context()
	o := s.Options()
	assert.Equal(t, "unix", o.Network)
	assert.Equal(t, s.SocketPath(), o.Addr)
	require.NoError(t, s.Client(t).Set(ctx, "k", "v", 0).Err())

	tcp := s.Client(t, func(o *redis.Options) { o.Network, o.Addr = "tcp", s.Addr() })
	require.NoError(t, tcp.Get(ctx, "k").Err())
	requireURL(t, s)

	s.Kill()
	require.NoError(t, s.Restart(), "the socket file of the killed run is in the way")
	require.NoError(t, s.Client(t).Ping(ctx).Err())
}

func requireURL(t *testing.T, s *Server) {
	t.Helper()
	o, err := redis.ParseURL(s.URL())
	require.NoError(t, err)
	o.MaintNotificationsConfig = s.Options().MaintNotificationsConfig
	if o.TLSConfig != nil {
		o.TLSConfig = s.TLSConfig()
	}
	c := redis.NewClient(o)
	defer c.Close()
	require.NoError(t, c.Ping(t.Context()).Err())
}

func TestTLS(t *testing.T) {
	for _, auth := range []string{"no", "optional", "yes"} {
		t.Run("auth-clients "+auth, func(t *testing.T) {
			s := Start(t, TLS(), Args("tls-auth-clients", auth))
			require.NoError(t, s.Client(t).Set(t.Context(), "k", "v", 0).Err())
			requireURL(t, s)

			stranger := s.Client(t, noRetry, func(o *redis.Options) { o.TLSConfig.RootCAs = nil })
			require.ErrorContains(t, stranger.Ping(t.Context()).Err(), "certificate")
			plain := s.Client(t, noRetry, func(o *redis.Options) { o.TLSConfig = nil })
			require.Error(t, plain.Ping(t.Context()).Err())
		})
	}
}

func TestPassword(t *testing.T) {
	for _, password := range []string{"secret", "sp ace \"quoted\" \\ #/?@:\x01é"} {
		s := Start(t, Password(password))
		require.NoError(t, s.Client(t).Ping(t.Context()).Err())
		requireURL(t, s)
		nobody := s.Client(t, noRetry, func(o *redis.Options) { o.Password = "" })
		require.True(t, redis.IsAuthError(nobody.Ping(t.Context()).Err()))
	}
}

func TestUser(t *testing.T) {
	s := Start(t, User("worker", "a b", "~lock:*", "+set"))
	ctx := t.Context()
	c := s.Client(t, noRetry, func(o *redis.Options) { o.Username, o.Password = "worker", "a b" })
	require.NoError(t, c.Set(ctx, "lock:a", "v", 0).Err())
	require.True(t, redis.IsPermissionError(c.Set(ctx, "other", "v", 0).Err()))
	require.True(t, redis.IsPermissionError(c.Get(ctx, "lock:a").Err()))
}

func TestDefaultUserLockedOut(t *testing.T) {
	for _, rules := range []string{"off", "on nopass -@all", "on nopass -info"} {
		s := Start(t, Args("user", "default "+rules))
		assert.Empty(t, s.RunID())
		assert.NoError(t, s.Restart())
	}
}

func TestDBsAndArgs(t *testing.T) {
	s := Start(t, DBs(20), Args("maxmemory", "3mb", "maxmemory-policy", "allkeys-lru", "save", "3600 1"))
	ctx := t.Context()
	c := s.Client(t, func(o *redis.Options) { o.DB = 19 })
	require.NoError(t, c.Ping(ctx).Err())
	got, err := c.ConfigGet(ctx, "maxmemory-policy").Result()
	require.NoError(t, err)
	assert.Equal(t, "allkeys-lru", got["maxmemory-policy"])
	odd := []string{"maxmemory"}
	assert.Panics(t, func() { Args(odd...) })
}

// The environment of the server itself cannot be looked at, since Redis
// overwrites it with its process title.
func TestEnvAndBinary(t *testing.T) {
	Need(t)
	bin, err := Binary()
	require.NoError(t, err)
	wrapper := filepath.Join(t.TempDir(), "wrapper")
	script := fmt.Sprintf("#!/bin/sh\necho \"wrapped: $REALREDIS_TEST\"\nexec %s \"$@\"\n", bin)
	require.NoError(t, os.WriteFile(wrapper, []byte(script), 0o700))
	t.Setenv(BinaryEnv, wrapper)
	s := Start(t, Env("REALREDIS_TEST=hello"))
	assert.Contains(t, s.Log(), "wrapped: hello")
}

func TestReplica(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts []Option
	}{{"plain", nil}, {"password", []Option{Password("p")}}, {"TLS", []Option{TLS()}}} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := t.Context()
			master := Start(t, tc.opts...)
			replica := Start(t, ReplicaOf(master))
			mc, rc := master.Client(t), replica.Client(t, noRetry)
			require.True(t, redis.IsReadOnlyError(rc.Set(ctx, "k", "v", 0).Err()))
			require.NoError(t, mc.Set(ctx, "k", "v", 0).Err())
			n, err := mc.Wait(ctx, 1, 10*time.Second).Result()
			require.NoError(t, err)
			require.EqualValues(t, 1, n)
			require.NoError(t, rc.Get(ctx, "k").Err())
		})
	}
}

func TestCluster(t *testing.T) {
	ctx := t.Context()
	nodes := StartN(t, 2, Cluster())
	a, b := nodes[0].Client(t, noRetry), nodes[1].Client(t, noRetry)
	require.True(t, redis.IsClusterDownError(a.Set(ctx, "k", "v", 0).Err()))

	require.NoError(t, a.ClusterAddSlotsRange(ctx, 0, 8191).Err())
	require.NoError(t, b.ClusterAddSlotsRange(ctx, 8192, 16383).Err())
	host, port, err := net.SplitHostPort(nodes[1].Addr())
	require.NoError(t, err)
	require.NoError(t, a.ClusterMeet(ctx, host, port).Err())

	// CRC16 puts "b" into slot 3300 and "a" into slot 15495.
	eventually(t, func() bool { return a.Set(ctx, "b", "v", 0).Err() == nil }, "cluster never came up")
	addr, moved := redis.IsMovedError(a.Set(ctx, "a", "v", 0).Err())
	require.True(t, moved)
	require.Equal(t, nodes[1].Addr(), addr)
}

func TestSentinel(t *testing.T) {
	for _, tc := range []struct {
		name string
		opts []Option
	}{{"plain", nil}, {"password", []Option{Password("p q")}}, {"TLS", []Option{TLS()}}} {
		t.Run(tc.name, func(t *testing.T) {
			ctx := t.Context()
			master := Start(t, tc.opts...)
			sentinel := StartSentinel(t, master, "mymaster")
			o := master.Options()
			c := redis.NewFailoverClient(&redis.FailoverOptions{
				MasterName:    "mymaster",
				SentinelAddrs: []string{sentinel.Addr()},
				Password:      o.Password,
				TLSConfig:     o.TLSConfig,
			})
			defer c.Close()
			require.NoError(t, c.Set(ctx, "k", "v", 0).Err())
			v, err := c.Get(ctx, "k").Result()
			require.NoError(t, err)
			require.Equal(t, "v", v)
		})
	}
}

func TestSentinelFailover(t *testing.T) {
	if testing.Short() {
		t.Skip("takes some seconds")
	}
	ctx := t.Context()
	master := Start(t)
	replica := Start(t, ReplicaOf(master))
	sentinel := StartSentinel(t, master, "m", Args("sentinel", "down-after-milliseconds m 200"))
	sc := sentinel.Client(t)

	master.Kill()
	eventually(t, func() bool {
		addr := redis.NewStringSliceCmd(ctx, "sentinel", "get-master-addr-by-name", "m")
		return sc.Process(ctx, addr) == nil && net.JoinHostPort(addr.Val()[0], addr.Val()[1]) == replica.Addr()
	}, "no failover")
	require.NoError(t, replica.Client(t).Set(ctx, "k", "v", 0).Err())
}

func TestCPU(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("not implemented")
	}
	s := Start(t)
	c := s.Client(t)
	before, err := s.CPU()
	require.NoError(t, err)
	require.Positive(t, before)
	require.Less(t, before, time.Minute)
	begin := time.Now()
	require.NoError(t, c.Eval(t.Context(), "for i = 1, 1e6 do local x = i * i end return 1", nil).Err())
	elapsed := time.Since(begin)
	after, err := s.CPU()
	require.NoError(t, err)
	assert.Greater(t, after, before)
	assert.Less(t, after-before, 2*elapsed+20*time.Millisecond)

	s.Kill()
	last, err := s.CPU()
	require.NoError(t, err)
	assert.Positive(t, last)
}

// The kernel kills a child when the thread that created it ends. A server has
// to survive the thread of the caller.
func TestServerSurvivesCallersThread(t *testing.T) {
	Need(t)
	type result struct {
		s   *Server
		err error
	}
	results := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		s, err := Launch(context.Background())
		results <- result{s, err}
	}()
	r := <-results
	require.NoError(t, r.err)
	defer r.s.Close()
	c := r.s.Client(t)
	for range 50 {
		time.Sleep(2 * time.Millisecond)
		require.NoError(t, c.Ping(t.Context()).Err())
	}
	require.True(t, r.s.Alive())
}

func TestConcurrentUse(t *testing.T) {
	s := Start(t)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for range 5 {
				_ = s.Pause()
				_ = s.Resume()
				_, _ = s.PID(), s.RunID()
				_, _ = s.CPU()
				s.Kill()
				_ = s.Restart() // fails if another one kills
			}
		})
	}
	wg.Wait()
	require.NoError(t, s.Restart())
	require.NoError(t, s.Client(t).Ping(t.Context()).Err())
}

// fakeTB records how a helper ends a test.
type fakeTB struct {
	testing.TB
	outcome string
}

func (f *fakeTB) Helper() {}
func (f *fakeTB) Skipf(format string, args ...any) {
	f.outcome = "skip: " + fmt.Sprintf(format, args...)
}
func (f *fakeTB) Fatalf(format string, args ...any) {
	f.outcome = "fatal: " + fmt.Sprintf(format, args...)
}

func TestNeed(t *testing.T) {
	need := func() string {
		f := &fakeTB{TB: t}
		Need(f)
		return f.outcome
	}
	t.Setenv("PATH", t.TempDir())
	t.Setenv(BinaryEnv, "")
	t.Setenv(RequireEnv, "")
	assert.Contains(t, need(), "skip: realredis: exec: \"redis-server\"")
	t.Setenv(RequireEnv, "1")
	assert.Contains(t, need(), "fatal: ")
	t.Setenv(RequireEnv, "")
	t.Setenv(BinaryEnv, "no-such-server")
	assert.Contains(t, need(), "fatal: ", "a binary asked for by name must not be missing silently")

	_, err := Launch(t.Context())
	var missing interface{ Unwrap() error }
	require.True(t, errors.As(err, &missing))
}
