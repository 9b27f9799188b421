package redlock

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/fakenode"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/realredis"
)

// askNative is a release by a server's own command.
func askNative(by protocol.NativeDelete, value string) *protocol.Request {
	r := askRelease(value)
	r.Native = by
	return r
}

// nativeServer is a real server that compares and deletes by the command.
func nativeServer(t *testing.T) (*realredis.Server, protocol.NativeDelete) {
	s := realredis.Start(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer client.Close()
	text, err := client.Info(t.Context(), "server").Result()
	require.NoError(t, err)
	by := protocol.ParseInfo(text).CompareAndDelete()
	if by == protocol.NoNative {
		t.Skip("the server has no command for it; " + realredis.BinaryEnv + " may name a Valkey 9 or Redis 8.4")
	}
	return s, by
}

// What DELIFEQ and DELEX answer, in the simulation and on a server that has one of them.
func TestContractNative(t *testing.T) {
	t.Parallel()
	type release string
	cases := map[string][]struct {
		ask  any
		want string
	}{
		"our own":             {{askSet("a"), "OK"}, {release("a"), "1"}, {raw("TYPE", "k"), "none"}},
		"another's":           {{askSet("a"), "OK"}, {release("b"), "0"}, {raw("GET", "k"), "a"}},
		"a longer one":        {{askSet("ab"), "OK"}, {release("a"), "0"}, {raw("GET", "k"), "ab"}},
		"nothing":             {{release("a"), "0"}},
		"twice":               {{askSet("a"), "OK"}, {release("a"), "1"}, {release("a"), "0"}},
		"what is no lock":     {{raw("RPUSH", "k", "x"), ""}, {release("a"), "error"}},
		"and then it is free": {{askSet("a"), "OK"}, {release("a"), "1"}, {askSet("b"), "OK"}, {askRelease("a"), "b"}},
	}
	nodes := map[string]func(*testing.T) (*contractNode, protocol.NativeDelete){
		"in memory, DELIFEQ": func(t *testing.T) (*contractNode, protocol.NativeDelete) { return inMemory(t), protocol.DelIfEq },
		"in memory, DELEX":   func(t *testing.T) (*contractNode, protocol.NativeDelete) { return inMemory(t), protocol.DelEx },
		"server": func(t *testing.T) (*contractNode, protocol.NativeDelete) {
			s, by := nativeServer(t)
			return overClient(t, s.Addr()), by
		},
	}
	for server, start := range nodes {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			n, by := start(t)
			for name, steps := range cases {
				n.raw("DEL", "k")
				for i, s := range steps {
					ask := s.ask
					if value, ok := ask.(release); ok {
						ask = askNative(by, string(value))
					}
					var got any
					if r, ok := ask.(*protocol.Request); !ok {
						got = n.raw(ask.([]any)...)
					} else if a := n.do(r); a.err != nil {
						got = "error"
						assert.True(t, protocol.OtherType(a.err), a.err)
					} else {
						got = a.val
					}
					assert.True(t, s.want == "" || answers(s.want, got), "%s, step %d: got %v, want %s", name, i, got, s.want)
				}
			}
		})
	}
}

func TestWhoComparesAndDeletes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]protocol.NativeDelete{
		"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n": protocol.DelIfEq,
		"redis_version:7.2.4\r\nvalkey_version:10.0.0\r\n":                      protocol.DelIfEq,
		"redis_version:8.4.0\r\nvalkey_version:8.1.1\r\n":                       protocol.NoNative,
		"valkey_version:new\r\n":                                                protocol.NoNative,
		"redis_version:8.4.0\r\n":                                               protocol.DelEx,
		"redis_version:8.10.1\r\n":                                              protocol.DelEx,
		"redis_version:10.0.0\r\n":                                              protocol.DelEx,
		"redis_version:8.3.9\r\n":                                               protocol.NoNative,
		"redis_version:7.0.15\r\n":                                              protocol.NoNative,
		"redis_version:8\r\n":                                                   protocol.NoNative,
		"":                                                                      protocol.NoNative,
	} {
		assert.Equal(t, want, protocol.ParseInfo(text).CompareAndDelete(), text)
	}
}

// counted is how often a server did, or refused to do, such a command, by its own count.
func counted(t *testing.T, c *redis.Client, what string) int64 {
	text, err := c.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	stats := protocol.ParseInfo(text)
	_, rest, _ := strings.Cut(","+stats["cmdstat_delifeq"]+stats["cmdstat_delex"], ","+what+"=")
	n, _, _ := strings.Cut(rest, ",")
	return fakenode.Number(n)
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
				s, by := nativeServer(t)
				c := redis.NewClient(&redis.Options{Addr: s.Addr()})
				t.Cleanup(func() { _ = c.Close() })
				if user == "denied" {
					require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "default", map[protocol.NativeDelete]string{protocol.DelIfEq: "-delifeq", protocol.DelEx: "-delex"}[by]).Err())
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
