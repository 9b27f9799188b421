package realredis

import (
	"context"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"testing"

	"github.com/redis/go-redis/v9"
)

// RequireEnv names the environment variable which, set to 1, turns the skip of
// [Need] into a failure, so that a CI run cannot pass by testing nothing.
const RequireEnv = "REDLOCK_REQUIRE_REDIS"

// Need skips the test if there is no redis-server to run.
func Need(tb testing.TB) {
	tb.Helper()
	_, err := Binary()
	switch {
	case err == nil:
	case os.Getenv(BinaryEnv) != "":
		tb.Fatalf("realredis: %s: %v", BinaryEnv, err)
	case os.Getenv(RequireEnv) == "1":
		tb.Fatalf("realredis: %v, and %s=1 forbids to skip. %s", err, RequireEnv, install)
	default:
		tb.Skipf("realredis: %v. %s", err, install)
	}
}

var version = regexp.MustCompile(`\bv=(\d+)\.`)

// Major returns the first number of the version that [Binary] says it has. Valkey goes on counting
// from Redis 7.
func Major(tb testing.TB) int {
	tb.Helper()
	Need(tb)
	bin, err := Binary()
	if err != nil {
		tb.Fatal(err)
	}
	text, err := exec.CommandContext(tb.Context(), bin, "--version").Output()
	if err != nil {
		tb.Fatalf("realredis: %s --version: %v", bin, err)
	}
	m := version.FindSubmatch(text)
	if m == nil {
		tb.Fatalf("realredis: %s --version tells no version: %q", bin, text)
	}
	major, _ := strconv.Atoi(string(m[1])) // digits
	return major
}

const install = "Install it (package redis-server on Debian and Ubuntu, redis elsewhere) " +
	"or name a compatible binary in " + BinaryEnv + "."

// Start runs a server until the end of the test. If the test fails, the end of
// the server's log goes to the log of the test.
func Start(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	Need(tb)
	return manage(tb, func(ctx context.Context) (*Server, error) { return Launch(ctx, opts...) })
}

// StartN is [Start] for n servers, started in parallel.
func StartN(tb testing.TB, n int, opts ...Option) []*Server {
	tb.Helper()
	Need(tb)
	servers, err := LaunchN(tb.Context(), n, opts...)
	if err != nil {
		tb.Fatal(err)
	}
	for _, s := range servers {
		cleanup(tb, s)
	}
	return servers
}

// Client returns a go-redis client with the given changes to the options of
// the server, which is closed at the end of the test.
func (s *Server) Client(tb testing.TB, change ...func(*redis.Options)) *redis.Client {
	tb.Helper()
	o := s.Options()
	for _, f := range change {
		f(o)
	}
	c := redis.NewClient(o)
	tb.Cleanup(func() { _ = c.Close() })
	return c
}

func manage(tb testing.TB, launch func(context.Context) (*Server, error)) *Server {
	tb.Helper()
	s, err := launch(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	cleanup(tb, s)
	return s
}

func cleanup(tb testing.TB, s *Server) {
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("log of %s:\n%s", s.Addr(), s.Log())
		}
		if err := s.Close(); err != nil {
			tb.Error(err)
		}
	})
}
