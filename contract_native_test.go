package redlock

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/realredis"
)

// askNative is a release by the server's own command.
func askNative(value string) *request {
	r := askRelease(value)
	r.native = true
	return r
}

// nativeServer is a real server that has DELIFEQ.
func nativeServer(t *testing.T) *realredis.Server {
	s := realredis.Start(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer client.Close()
	text, err := client.Info(t.Context(), "server").Result()
	require.NoError(t, err)
	if !parseInfo(text).comparesAndDeletes() {
		t.Skip("the server has no DELIFEQ; " + realredis.BinaryEnv + " may name a Valkey 9")
	}
	return s
}

// What DELIFEQ answers, in the simulation and on a server that has it.
func TestContractNative(t *testing.T) {
	t.Parallel()
	cases := map[string][]struct {
		ask  any
		want string
	}{
		"our own":             {{askSet("a"), "OK"}, {askNative("a"), "1"}, {raw("TYPE", "k"), "none"}},
		"another's":           {{askSet("a"), "OK"}, {askNative("b"), "0"}, {raw("GET", "k"), "a"}},
		"a longer one":        {{askSet("ab"), "OK"}, {askNative("a"), "0"}, {raw("GET", "k"), "ab"}},
		"nothing":             {{askNative("a"), "0"}},
		"twice":               {{askSet("a"), "OK"}, {askNative("a"), "1"}, {askNative("a"), "0"}},
		"what is no lock":     {{raw("RPUSH", "k", "x"), ""}, {askNative("a"), "error WRONGTYPE"}},
		"and then it is free": {{askSet("a"), "OK"}, {askNative("a"), "1"}, {askSet("b"), "OK"}, {askRelease("a"), "b"}},
	}
	nodes := map[string]func(*testing.T) *contractNode{
		"in memory": inMemory,
		"server":    func(t *testing.T) *contractNode { return overClient(t, nativeServer(t).Addr()) },
	}
	for server, start := range nodes {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			for name, steps := range cases {
				n.raw("DEL", "k")
				for i, s := range steps {
					var got any
					if ask, ok := s.ask.(*request); !ok {
						got = n.raw(s.ask.([]any)...)
					} else if a := n.do(ask); a.err != nil {
						got = "error " + a.err.Error()
					} else {
						got = a.val
					}
					assert.True(t, s.want == "" || answers(s.want, got), "%s, step %d: got %v, want %s", name, i, got, s.want)
				}
			}
		})
	}
}

// Only what names itself Valkey and is at least version 9 has DELIFEQ.
func TestWhoHasDELIFEQ(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{
		"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n": true,
		"redis_version:7.2.4\r\nvalkey_version:10.0.0\r\n":                      true,
		"redis_version:7.2.4\r\nvalkey_version:8.1.1\r\n":                       false,
		"redis_version:9.0.0\r\n":                                               false,
		"valkey_version:new\r\n":                                                false,
		"":                                                                      false,
	} {
		assert.Equal(t, want, parseInfo(text).comparesAndDeletes(), text)
	}
}

// counted is how often a server did, or refused to do, DELIFEQ, by its own count.
func counted(t *testing.T, c *redis.Client, what string) int64 {
	text, err := c.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	_, rest, _ := strings.Cut(","+parseInfo(text)["cmdstat_delifeq"], ","+what+"=")
	n, _, _ := strings.Cut(rest, ",")
	return number(n)
}

// cycles acquires and releases a lock n times.
func cycles(t *testing.T, rl *Redlock, n int) {
	for range n {
		lock, err := rl.Mutex("k").Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, lock.Release(t.Context()))
	}
}

// One node of three keeps the wait queue. The other two delete by their own command, if they
// have it and we may use it.
func TestReleaseByTheServersOwnCommand(t *testing.T) {
	t.Parallel()
	for _, user := range []string{"open", "new", "denied"} {
		t.Run(user, func(t *testing.T) {
			t.Parallel()
			var addrs []string
			var clients []*redis.Client
			var users []redis.UniversalClient
			for range 3 {
				s := nativeServer(t)
				c := redis.NewClient(&redis.Options{Addr: s.Addr()})
				t.Cleanup(func() { _ = c.Close() })
				if user == "denied" {
					require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", "-delifeq").Err())
				}
				addrs, clients, users = append(addrs, s.Addr()), append(clients, c), append(users, redis.NewClient(&redis.Options{Addr: s.Addr()}))
			}
			var rl *Redlock
			var err error
			if user == "new" {
				rl, err = New(users, nil)
			} else {
				rl, err = Open(t.Context(), addrs, nil)
			}
			require.NoError(t, err)
			t.Cleanup(func() {
				_ = rl.Close()
				for _, u := range users {
					_ = u.Close()
				}
			})
			cycles(t, rl, 64)
			var native int64
			for _, c := range clients {
				native += counted(t, c, "calls")
				assert.LessOrEqual(t, counted(t, c, "rejected_calls"), int64(1), "who is denied it asks no second time")
				left, err := c.Exists(t.Context(), "k").Result()
				require.NoError(t, err)
				assert.Zero(t, left)
			}
			if user == "denied" {
				assert.Zero(t, native)
			} else {
				assert.Positive(t, native)
			}
		})
	}
}
