package realtest_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/stretchr/testify/require"
)

// A firewall, a NAT gateway or a load balancer forgets open connections without a word.
// New ones work at once, so locks are to be had again soon, and a renewed one is kept.
func TestFlowsThatDieSilently(t *testing.T) {
	t.Parallel()
	o := redlock.Options{NoRestartGuard: true} // default TTL of 10 s, so 200 ms for each node
	for name, open := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startFleet(t, 5)
			rl := open(f, t, o)
			warm(t, rl, time.Minute)
			kept := requireLock(t, rl, redlock.WithRenewal())
			for _, p := range f.proxies {
				p.MuteFlows()
			}
			start := time.Now()
			free := rl.Mutex("another")
			var took time.Duration
			eventually(t, func() bool {
				lock, err := free.TryAcquire(context.Background())
				if err != nil {
					return false
				}
				took = time.Since(start)
				return lock.Release(context.Background()) == nil
			}, "no lock")
			t.Logf("%s: usable after %v", name, took)
			require.Less(t, took, 2*time.Second, "two node timeouts and what a busy machine needs")
			until := kept.Until()
			require.Eventually(t, func() bool { return kept.Until().After(until) }, 10*time.Second, 10*time.Millisecond,
				"the lock is not renewed")
			require.NoError(t, kept.Release(t.Context()))
			f.requireGone(t, resource)
		})
	}
}

// ways are how a Redlock is made.
var ways = map[string]func(*fleet, *testing.T, redlock.Options) *redlock.Redlock{
	"Open": func(f *fleet, t *testing.T, o redlock.Options) *redlock.Redlock { return f.open(t, o) },
	"New":  func(f *fleet, t *testing.T, o redlock.Options) *redlock.Redlock { return f.byDefault(t, o) },
}

// Open dials itself, so it has to know all that go-redis' dialer knows. What a server closes
// while it is idle is seen before anything is sent, on each kind of connection.
func TestOwnConnectionsOfEachKind(t *testing.T) {
	t.Parallel()
	for name, kind := range map[string]struct {
		opts []realredis.Option
		url  func(*realredis.Server) string
	}{
		"TCP":      {nil, func(s *realredis.Server) string { return s.Addr() }},
		"database": {nil, func(s *realredis.Server) string { return "redis://" + s.Addr() + "/7" }},
		"Unix":     {[]realredis.Option{realredis.UnixSocket()}, func(s *realredis.Server) string { return "unix://" + s.SocketPath() }},
		"password": {[]realredis.Option{realredis.Password("secret")}, func(s *realredis.Server) string { return "redis://:secret@" + s.Addr() }},
		"RESP3":    {nil, func(s *realredis.Server) string { return "redis://" + s.Addr() + "?protocol=3" }},
		"TLS": {
			[]realredis.Option{realredis.TLS(), realredis.Args("tls-auth-clients", "no")},
			func(s *realredis.Server) string { return "rediss://" + s.Addr() + "?skip_verify=true" },
		},
		"TLS, RESP3": {
			[]realredis.Option{realredis.TLS(), realredis.Args("tls-auth-clients", "no")},
			func(s *realredis.Server) string { return "rediss://" + s.Addr() + "?skip_verify=true&protocol=3" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := realredis.StartN(t, 3, kind.opts...)
			var urls []string
			for _, s := range servers {
				urls = append(urls, kind.url(s))
			}
			rl := openAt(t, urls, patient)
			warm(t, rl, time.Minute)
			for round := range 5 {
				for _, s := range servers {
					killed, err := s.Client(t).Do(t.Context(), "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes").Int()
					require.NoError(t, err)
					require.Positive(t, killed)
				}
				lock, err := rl.Mutex(resource).TryAcquire(t.Context())
				require.NoError(t, err, "round %d", round)
				waitForVotes(t, lock)
				require.Equal(t, "granted granted granted", fmt.Sprint(lock.Outcomes()[0].Vote, " ", lock.Outcomes()[1].Vote, " ", lock.Outcomes()[2].Vote))
				require.NoError(t, lock.Release(t.Context()))
				// A quorum is enough for Release to return.
				eventually(t, func() bool {
					st, err := operator(t, rl).Inspect(t.Context(), resource)
					return err == nil && !slices.ContainsFunc(st.Nodes, func(n admin.NodeStatus) bool { return n.Token != "" || n.Err != nil })
				}, "the lock is left on a node")
			}
		})
	}
}
