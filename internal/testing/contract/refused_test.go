package contract_test

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/internal/tick"
)

// mutedNodes are servers on which a user may not PUBLISH.
var mutedNodes = map[string]func(t *testing.T) *contractNode{
	"in memory": func(*testing.T) *contractNode { return newInMemory(true) },
	"miniredis": func(t *testing.T) *contractNode {
		m := miniredis.RunT(t)
		m.Server().SetPreHook(func(c *server.Peer, cmd string, _ ...string) bool {
			if cmd == "PUBLISH" {
				c.WriteError("NOPERM this user has no permissions to run the 'publish' command")
			}
			return cmd == "PUBLISH"
		})
		return overClient(t, m.Addr())
	},
	"redis": func(t *testing.T) *contractNode {
		s := realredis.Start(t)
		require.NoError(t, s.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", "-publish").Err())
		return overClient(t, s.Addr())
	},
}

// Where PUBLISH is denied, whatever lets a waiter in says that nobody was told: the process that
// hears it knows then that it will not be told either.
func TestContractDeniedPublish(t *testing.T) {
	t.Parallel()
	for server, start := range mutedNodes {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			asks := func(want string, req *protocol.Request) {
				t.Helper()
				a := n.do(req)
				require.NoError(t, a.err)
				assert.True(t, answers(want, a.val), "got %v, want %s", a.val, want)
			}
			claim := func(process, value string) *protocol.Request {
				return protocol.SharedClaimRequest(protocol.OpAcquireShared, contractTerms(contractTTL), "k", value, &shareOfK, &protocol.QueueArgs{Key: lineOfK, Entry: process + " 30000s0 " + value})
			}
			join := func(process, value string) *protocol.Request {
				return protocol.JoinRequest(contractTerms(contractTTL), "k", value, &protocol.QueueArgs{Key: lineOfK, Entry: process + " 30000s0 " + value})
			}

			asks("OK", askSet("a"))
			asks("[0 0 ~ ~ 1 0 a]", askJoin("p", "b", "", 0, 0))
			asks("2", askPlainLineRelease("a"))
			asks("OK", askClaim("p", "b"))

			// A crowd of which one release lets in all but one.
			for i := range fakenode.AtOnce + 1 {
				asks(fmt.Sprintf("[0 %d ~ ~ 1 0 b]", i), join("q", fmt.Sprint("r", i)))
			}
			asks("2", askPlainLineRelease("b"))
			asks("2049", claim("q", "r0"))
			for i := range fakenode.AtOnce {
				asks("1", claim("q", fmt.Sprint("r", i+1)))
			}

			asks("[0 0 ~ ~ 1 0 redlock:shared]", askJoin("p", "c", "", 0, 0))
			asks("[0 1 ~ ~ 1 0 redlock:shared]", askJoin("q", "d", "", 0, 0))
			for i := range fakenode.AtOnce {
				asks("3", askShareRelease(fmt.Sprint("r", i), lineOfK))
			}
			asks("2", askShareRelease(fmt.Sprint("r", fakenode.AtOnce), lineOfK))
			n.raw("DEL", "k")
			asks("[0 1 ~ ~ 0 1 c]", askJoin("q", "d", "", 0, 0))
		})
	}
}

// Scenario 91: a user may write the lock, but not its fencing counter. Redis does not roll
// back what a script did before it failed, so the counter comes first.
func TestFencedScriptsFailWhole(t *testing.T) {
	t.Parallel()
	if realredis.Major(t) < 7 {
		t.Skip("no user can have such rights before Redis 7")
	}
	server := realredis.Start(t)
	admin := server.Client(t)
	ctx := context.Background()
	require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", "half", "on", ">pw", "+@all", "-set", "~*", "&*", "(+set ~k)").Err())
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "half", Password: "pw", Protocol: 2, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	require.NoError(t, client.Set(ctx, "k", "x", 0).Err(), "it may set the lock")
	require.NoError(t, admin.Del(ctx, "k").Err())

	w := conn.NewWire(client, conn.OpenHabits, "", "", tick.NewSystem())
	t.Cleanup(w.Close)
	for name, req := range map[string]*protocol.Request{
		"acquire": askFence("a", 1, ""), "claim": askFence("a", 1, entryOf("p", "a")), "repair": askFenceRepair("a", 8),
	} {
		c := &lane.Call{Req: req.WithSource()}
		w.Exchange([]*lane.Call{c}, 10*time.Second, 10*time.Second)
		assert.Equal(t, protocol.Failed, c.Read(req.Op).Kind, name)
		assert.True(t, protocol.Permanent(c.Err()), "%s: %v", name, c.Err)
		assert.True(t, protocol.HalfWay(c.Err()), "%s: %v", name, c.Err)
		assert.Empty(t, admin.Keys(ctx, "*").Val(), name)
	}
}

// askNative is a release by a server's own command.
func askNative(by protocol.NativeDelete, value string) *protocol.Request {
	r := askRelease(value)
	r.Native = by
	return r
}

// ownDelete is the command by which a server compares and deletes.
func ownDelete(c *redis.Client) (protocol.NativeDelete, error) {
	text, err := c.Info(context.Background(), "server").Result()
	return protocol.ParseInfo(text).CompareAndDelete(), err
}

// nativeServer is a real server that compares and deletes by the command.
func nativeServer(t *testing.T) (*realredis.Server, protocol.NativeDelete) {
	s := realredis.Start(t)
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer client.Close()
	by, err := ownDelete(client)
	require.NoError(t, err)
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
func cycles(t *testing.T, rl *redlock.Redlock, n int) {
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
			var rl *redlock.Redlock
			var err error
			if user == "new" {
				rl, err = redlock.New(users, nil)
			} else {
				rl, err = redlock.Open(t.Context(), addrs, nil)
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

// foreignTypes put something of others under a key.
var foreignTypes = map[string]func(n *contractNode, key string){
	"string": func(n *contractNode, key string) { n.raw("SET", key, "theirs") },
	"list":   func(n *contractNode, key string) { n.raw("RPUSH", key, "theirs") },
	"set":    func(n *contractNode, key string) { n.raw("SADD", key, "theirs") },
	"hash":   func(n *contractNode, key string) { n.raw("HSET", key, "theirs", "1") },
	"zset":   func(n *contractNode, key string) { n.raw("ZADD", key, 7, "theirs") },
	"below":  func(n *contractNode, key string) { n.raw("ZADD", key, -7, "theirs") },
	"spaced": func(n *contractNode, key string) { n.raw("ZADD", key, 1_700_000_000_000_000, "theirs and ours") },
}

// lookOf is what can be seen of a key on all servers.
func lookOf(n *contractNode, key string) string {
	look := fmt.Sprint(n.raw("TYPE", key), " ", n.raw("PTTL", key))
	switch n.raw("TYPE", key) {
	case "string":
		look += fmt.Sprint(" ", n.raw("GET", key))
	case "zset":
		look += fmt.Sprint(" ", n.raw("ZRANGE", key, 0, -1))
	}
	return look
}

// What others put under a key of ours stays as it is. A request that needs the key fails with an
// error that names it, and changes nothing; any other does what it always does.
func TestContractForeignKeys(t *testing.T) {
	t.Parallel()
	claim := func(value, line string) *protocol.Request {
		s := shareOfK
		return protocol.SharedClaimRequest(protocol.OpAcquireShared, contractTerms(contractTTL), "k", value, &s, &protocol.QueueArgs{Key: line, Entry: entryOf("p", value)})
	}
	const free, held, shared = "", "a", fakenode.Marker
	cases := []struct {
		name  string
		value string // of the lock before
		ask   func() *protocol.Request
		needs []string
		after string // the lock's value, where the request does what it always does
	}{
		{"set", free, func() *protocol.Request { return askSet("b") }, nil, "b"},
		{"release", held, func() *protocol.Request { return askRelease("a") }, nil, ""},
		{"release beside a line", held, func() *protocol.Request { return askPlainLineRelease("a") }, nil, ""},
		{"release of who waited", held, func() *protocol.Request { return askLineRelease("a", entryOf("p", "a"), protocol.AsHolder) }, nil, ""},
		{"release of a passer", held, func() *protocol.Request { return askLineRelease("a", "", protocol.AsPasser) }, nil, ""},
		{"release where others share", shared, func() *protocol.Request { return askPlainLineRelease("a") }, nil, "?"}, // nobody is listed
		{"leave", free, func() *protocol.Request { return askLineRelease("b", entryOf("p", "b"), protocol.AsWaiter) }, nil, ""},
		{"extend", held, func() *protocol.Request { return askExtend("a", time.Hour) }, nil, "a"},
		{"adopt", held, func() *protocol.Request { return askAdopt("b", "a") }, nil, "b"},
		{"fenced adopt", held, func() *protocol.Request { return askAdoptFenced("b", "a", 1) }, []string{fenceOfK}, "b"},
		{"fence", free, func() *protocol.Request { return askFence("b", 1, "") }, []string{fenceOfK}, "b"},
		{"fence of a waiter", free, func() *protocol.Request { return askFence("b", 1, entryOf("p", "b")) }, []string{fenceOfK, lineOfK}, "b"},
		{"raise", held, func() *protocol.Request { return askRaise("a", 8) }, []string{fenceOfK}, "a"},
		{"fenced repair", free, func() *protocol.Request { return askFenceRepair("b", 8) }, []string{fenceOfK}, "b"},
		{"join", free, func() *protocol.Request { return askJoin("p", "b", "", 0, 0) }, []string{lineOfK}, "b"},
		{"join of a held lock", held, func() *protocol.Request { return askJoin("p", "b", "", 0, 0) }, []string{lineOfK}, "a"},
		{"join of a shared lock", shared, func() *protocol.Request { return askJoin("p", "b", "", 0, 0) }, []string{lineOfK}, "?"},
		{"join after an attempt", held, func() *protocol.Request { return askJoin("p", "b", "a", 0, 0) }, []string{lineOfK}, "b"},
		{"join to share", free, func() *protocol.Request { return askJoin("p", "f", "", 0, 0) }, []string{lineOfK, holdersOfK}, fakenode.Marker},
		{"join to share a shared lock", shared, func() *protocol.Request { return askJoin("p", "f", "f1", 0, 0) }, []string{lineOfK, holdersOfK}, fakenode.Marker},
		{"claim of a waiter", free, func() *protocol.Request { return askClaim("p", "b") }, []string{lineOfK}, "b"},
		{"shared claim", free, func() *protocol.Request { return askShare("f", 0, contractTTL) }, []string{holdersOfK, doorOfK}, fakenode.Marker},
		{"permit", free, func() *protocol.Request { return askShare("0", 3, contractTTL) }, []string{holdersOfK, doorOfK}, fakenode.Marker},
		{"shared claim of a shared lock", shared, func() *protocol.Request { return askShare("f", 0, contractTTL) }, []string{holdersOfK, doorOfK}, fakenode.Marker},
		{"shared claim of a waiter", free, func() *protocol.Request { return claim("f", lineOfK) }, []string{holdersOfK, lineOfK}, fakenode.Marker},
		{"shared claim of a waiter elsewhere", free, func() *protocol.Request { return claim("f", "") }, []string{holdersOfK}, fakenode.Marker},
		{"shared extend", shared, func() *protocol.Request { return askShareExtend("f", 0, contractTTL) }, []string{holdersOfK}, ""},
		{"shared release", shared, func() *protocol.Request { return askShareRelease("f", lineOfK) }, []string{holdersOfK}, ""},
		{"shared release of a lock that is ours alone", held, func() *protocol.Request { return askShareRelease("a", lineOfK) }, nil, ""},
		{"shared release of a passer", held, func() *protocol.Request { return askShareLeave("a", lineOfK, entryOf("p", "a"), protocol.AsPasser) }, nil, ""},
		{"force", held, func() *protocol.Request { return askForce("") }, nil, ""},
		{"force of a shared lock", shared, func() *protocol.Request { return askForce("") }, nil, ""},
		{"force of a token", held, func() *protocol.Request { return askForce("a") }, nil, ""},
		{"force of one who shares", shared, func() *protocol.Request { return askForce("f") }, []string{holdersOfK}, ""},
		{"inspect", held, func() *protocol.Request { return askInspect(3) }, nil, "a"},
		{"inspect of a shared lock", shared, func() *protocol.Request { return askInspect(3) }, nil, fakenode.Marker},
		{"door", free, func() *protocol.Request { return askDoor("b") }, []string{doorOfK}, ""},
	}
	for server, start := range contractNodes {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			keys := []string{lineOfK, holdersOfK, doorOfK, fenceOfK}
			for _, c := range cases {
				for _, key := range keys {
					for kind, put := range foreignTypes {
						isSet := kind == "zset" || kind == "below" || kind == "spaced"
						if c.value == fakenode.Marker && isSet && key == holdersOfK {
							continue // with the marker there, it is the list
						}
						what := fmt.Sprintf("%s, with a %s at %s", c.name, kind, key)
						for _, k := range append(keys, "k") {
							n.raw("DEL", k)
						}
						if c.value != "" {
							n.raw("SET", "k", c.value)
						}
						put(n, key)
						before := lookOf(n, key)
						a := n.do(c.ask())
						require.Equal(t, before, lookOf(n, key), "%s: it changed", what)
						need := false
						for _, k := range c.needs {
							need = need || k == key
						}
						if strings.Contains(c.name, "of a waiter") && isSet && key == lineOfK {
							need = false // who leaves a line that is none changes nothing
						}
						if need {
							require.ErrorContains(t, a.err, key, what)
							after := n.raw("GET", "k")
							if c.value == "" {
								require.Nil(t, after, what)
							} else {
								require.Equal(t, c.value, after, what)
							}
							continue
						}
						require.NoError(t, a.err, what)
						switch after := n.raw("GET", "k"); c.after {
						case "?":
						case "":
							assert.Nil(t, after, what)
						default:
							assert.Equal(t, c.after, after, what)
						}
					}
				}
			}
		})
	}
}

// A list that was left is no other's, and goes.
func TestContractListThatWasLeft(t *testing.T) {
	t.Parallel()
	for server, start := range contractNodes {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			for _, again := range []*protocol.Request{askShare("f1", 0, contractTTL), askJoin("p", "f1", "", 0, 0)} {
				require.Equal(t, int64(1), n.do(askShare("f", 0, contractTTL)).val)
				n.raw("DEL", "k")
				require.NoError(t, n.do(again).err)
				assert.Equal(t, []any{"f1"}, n.raw("ZRANGE", holdersOfK, 0, -1))
				n.raw("DEL", "k")
				n.raw("DEL", lineOfK)
				n.raw("DEL", holdersOfK)
			}
		})
	}
}

// One script must not stop a server, however many wait. What is counted is commands, which each
// look at 1,000 waiters at most.
func TestContractLineOfAHundredThousand(t *testing.T) {
	t.Parallel()
	const many = 100_000
	client := realredis.Start(t).Client(t)
	n := overClient(t, client.Options().Addr)
	commands := func() (calls int) {
		info, err := client.Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`calls=(\d+)`).FindAllStringSubmatch(info, -1) {
			c, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			calls += c
		}
		return calls
	}
	fill := func(process string) {
		pipe := client.Pipeline()
		for i := 0; i < many; i += 1000 {
			var members []redis.Z
			for j := range 1000 {
				members = append(members, redis.Z{Score: float64(1000 + i + j), Member: fmt.Sprintf("%s 50 %d", process, i+j)})
			}
			pipe.ZAdd(t.Context(), lineOfK, members...)
		}
		// The first had its turn long ago, and nothing was heard of its process since.
		pipe.ZAdd(t.Context(), lineOfK, redis.Z{Score: -1000, Member: "woken " + process + " 50 0"}, redis.Z{Score: -1000, Member: "silent " + process})
		pipe.ZAdd(t.Context(), lineOfK, redis.Z{Score: 1e15, Member: entryOf("q", "d")})
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
	}
	for name, ask := range map[string]func() *protocol.Request{
		"join":    func() *protocol.Request { return askJoin("q", "d", "", 0, 0) },
		"release": func() *protocol.Request { return askPlainLineRelease("x") },
		"leave":   func() *protocol.Request { return askShareLeave("x", lineOfK, "", protocol.AsHolder) },
	} {
		fill("p")
		n.do(ask()) // the server knows the script
		scripts := 1
		for ; n.raw("TYPE", "k") == "none" && scripts < 50; scripts++ {
			before := commands()
			a := n.do(ask())
			require.NoError(t, a.err)
			require.Less(t, commands()-before, 60, "%s", name)
		}
		assert.Equal(t, "d", n.raw("GET", "k"), "%s: the one that lives has its turn, and no grace was waited for", name)
		assert.Greater(t, scripts, 10, "%s: it took some scripts", name)
		n.raw("DEL", "k")
		n.raw("DEL", lineOfK)
	}
}
