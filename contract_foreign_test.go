package redlock

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/fakenode"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/realredis"
)

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
		{"downgrade", held, func() *protocol.Request { return askDowngrade("a") }, []string{holdersOfK}, fakenode.Marker},
		{"shared extend", shared, func() *protocol.Request { return askShareExtend("f", 0, contractTTL) }, []string{holdersOfK}, ""},
		{"shared release", shared, func() *protocol.Request { return askShareRelease("f", lineOfK) }, []string{holdersOfK}, ""},
		{"release of a downgrade that has not come", held, func() *protocol.Request { return askShareRelease("a", lineOfK) }, nil, ""},
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
// look at 500 waiters at most.
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
