package contract_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/internal/tick"
)

// Releases of several locks in one command. What the script answers is in contractCases.

// askMany is a release of several; those that look for waiters come first.
func askMany(of ...*protocol.Request) *protocol.Request { return (&protocol.Bundle{Of: of}).Request() }

// beside is a request on another key.
func beside(key string, r *protocol.Request) *protocol.Request {
	c := *r
	c.Key = key
	return &c
}

// A batch is answered as if each of it were alone, whatever lies on the server, and leaves the same.
func TestContractReleasesInABatch(t *testing.T) {
	t.Parallel()
	for server, start := range contractNodes {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(30) {
				r := rand.New(rand.NewPCG(seed, 0xb0))
				batched, single := start(t), inMemory(t)
				keys := []string{"k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"}
				lay := func(args ...any) { batched.raw(args...); single.raw(args...) }
				for _, k := range keys {
					switch r.IntN(6) {
					case 0, 1, 2:
						lay("SET", k, "a")
					case 3:
						lay("SET", k, "b")
					case 4:
						lay("RPUSH", k, "x")
					}
					switch r.IntN(6) {
					case 0:
						lay("ZADD", "{"+k+"}:line", 7, entryOf("p", "c"))
					case 1:
						lay("RPUSH", "{"+k+"}:line", "x")
					}
				}
				var reqs []*protocol.Request
				for range 2 + r.IntN(12) {
					value := []string{"a", "a", "b"}[r.IntN(3)]
					req := []*protocol.Request{askRelease(value), askRelease(value), askPlainLineRelease(value), askSet(value), askExtend(value, time.Hour)}[r.IntN(5)]
					reqs = append(reqs, beside(keys[r.IntN(len(keys))], req))
				}
				for _, req := range []*protocol.Request{askRelease("no"), askPlainLineRelease("no"), askExtend("no", time.Hour)} {
					single.do(req) // what a server does not know is asked again, behind the others
					batched.do(req)
				}
				if seed%2 == 0 {
					batched.do(askMany(askRelease("no"), beside("k9", askRelease("no"))))
				}
				var batch []*lane.Call
				for _, req := range reqs {
					batch = append(batch, &lane.Call{Req: req})
				}
				batched.all(batch)
				for i, c := range batch {
					want := single.do(reqs[i])
					b := c.Read(reqs[i].Op)
					wanted := protocol.Answer{Said: protocol.Said(want.val, want.err), Sent: true}.Read(reqs[i].Op)
					require.Equal(t, wanted.Kind, b.Kind, "seed %d, call %d of %v: %v", seed, i, texts(reqs), c.Answer)
					// A server's own command does not say what it found; a script does, but later, behind
					// what else is in the batch.
					if !batched.deletesItself && wanted.Err() == nil {
						require.Equal(t, fmt.Sprint(wanted.Said), fmt.Sprint(b.Said), "seed %d, call %d of %v", seed, i, texts(reqs))
					}
				}
				for _, k := range keys {
					for _, look := range [][]any{{"TYPE", k}, {"TYPE", "{" + k + "}:line"}, {"ZRANGE", "{" + k + "}:line", 0, -1}} {
						if look[0] == "ZRANGE" && single.raw("TYPE", look[1]) != "zset" {
							continue
						}
						got, want := batched.raw(look...), single.raw(look...)
						if look[0] == "ZRANGE" {
							require.Len(t, got, len(want.([]any)), "seed %d: %v after %v", seed, look, texts(reqs))
						} else {
							require.Equal(t, want, got, "seed %d: %v after %v", seed, look, texts(reqs))
						}
					}
				}
				for _, k := range keys {
					for _, left := range []string{k, "{" + k + "}:line"} {
						batched.raw("DEL", left)
					}
				}
			}
		})
	}
}

func texts(reqs []*protocol.Request) (all []string) {
	for _, r := range reqs {
		all = append(all, fmt.Sprint(r.Op, r.Values()[:4]))
	}
	return all
}

// bundleServer is a real server, and a user of it with fewer permissions than all.
type bundleServer struct {
	*testing.T
	admin *redis.Client
	node  *contractNode
}

func newBundleServer(t *testing.T, rules ...string) *bundleServer {
	t.Helper()
	s := realredis.Start(t)
	admin := s.Client(t)
	args := []any{"ACL", "SETUSER", "clerk", "reset", "on", ">pw", "+@all", "~*", "&*"}
	for _, r := range rules {
		args = append(args, r)
	}
	require.NoError(t, admin.Do(t.Context(), args...).Err())
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), Username: "clerk", Password: "pw", Protocol: 2, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	w := conn.NewWire(client, conn.OpenHabits, "", "", tick.NewSystem())
	t.Cleanup(w.Close)
	return &bundleServer{t, admin, &contractNode{
		all: exchangesAll(func(batch []*lane.Call) { w.Exchange(batch, 10*time.Second, 10*time.Second) }),
	}}
}

// byScript ends the test where the server has a shorter command.
func (s *bundleServer) byScript() {
	by, err := ownDelete(s.admin)
	require.NoError(s, err)
	if by != protocol.NoNative {
		s.Skip("the server compares and deletes by a command of its own")
	}
}

// calls is how often the server carried out a command.
func (s *bundleServer) calls(command string) int64 {
	text, err := s.admin.Info(s.Context(), "commandstats").Result()
	require.NoError(s, err)
	_, rest, _ := strings.Cut(protocol.ParseInfo(text)["cmdstat_"+command], "calls=")
	n, _, _ := strings.Cut(rest, ",")
	return fakenode.Number(n)
}

// denied is how often the server refused it, by its log.
func (s *bundleServer) denied(command string) (n int64) {
	log, err := s.admin.ACLLog(s.Context(), 128).Result()
	require.NoError(s, err)
	for _, e := range log {
		if e.Object == command {
			n += e.Count
		}
	}
	return n
}

// releases sets locks, releases them in one batch, and returns what came of it.
func (s *bundleServer) releases(line bool, keys ...string) (kinds []protocol.Kind) {
	var batch []*lane.Call
	for _, k := range keys {
		require.NoError(s, s.admin.Set(s.Context(), k, "a", 0).Err())
		r := askRelease("a")
		if line {
			r = askPlainLineRelease("a")
		}
		batch = append(batch, &lane.Call{Req: beside(k, r)})
	}
	s.node.all(batch)
	for _, c := range batch {
		kinds = append(kinds, c.Read(protocol.OpRelease).Kind)
	}
	return kinds
}

var grantedThrice = []protocol.Kind{protocol.Granted, protocol.Granted, protocol.Granted}

// A server that was never told the script, or has forgotten it, does the releases one by one, and the
// next ones in one command.
func TestContractBundleUnknownScript(t *testing.T) {
	t.Parallel()
	s := newBundleServer(t)
	s.byScript()
	for range 3 {
		before := s.calls("mget")
		require.Equal(t, grantedThrice, s.releases(false, "k1", "k2", "k3"))
		require.Equal(t, before, s.calls("mget"), "the script is known already")
		require.Equal(t, grantedThrice, s.releases(true, "k1", "k2", "k3"))
		require.Equal(t, before+1, s.calls("mget"))
		require.Equal(t, grantedThrice, s.releases(false, "k1", "k2", "k3"))
		require.Equal(t, before+2, s.calls("mget"))
		require.NoError(t, s.admin.ScriptFlush(t.Context()).Err())
	}
}

// A user who may not MGET has its locks released one by one, and the server's log tells of one try.
func TestContractBundleWithoutMGet(t *testing.T) {
	t.Parallel()
	s := newBundleServer(t, "-mget")
	s.byScript()
	for range 6 {
		require.Equal(t, grantedThrice, s.releases(true, "k1", "k2", "k3"))
	}
	assert.Equal(t, int64(1), s.denied("mget"), "it is tried again")
	assert.Zero(t, s.calls("mget"))
	assert.Zero(t, s.admin.Exists(t.Context(), "k1", "k2", "k3").Val())
}

// A user who may run no script is told so by each release, as without bundles.
func TestContractBundleWithoutScripts(t *testing.T) {
	t.Parallel()
	s := newBundleServer(t, "-evalsha", "-eval")
	s.byScript()
	for range 3 {
		require.Equal(t, []protocol.Kind{protocol.Failed, protocol.Failed}, s.releases(false, "k1", "k2"))
	}
	assert.Equal(t, int64(5), s.denied("evalsha"), "once for both, and then for each")
	assert.Equal(t, int64(2), s.admin.Exists(t.Context(), "k1", "k2").Val())
}

// A user who may not ask whether there are queues has the types of each looked at.
func TestContractBundleWithoutExists(t *testing.T) {
	t.Parallel()
	s := newBundleServer(t, "-exists")
	s.byScript()
	require.NoError(t, s.admin.ZAdd(t.Context(), "{k2}:line", redis.Z{Score: 7, Member: entryOf("p", "b")}).Err())
	s.releases(true, "k1", "k2", "k3")
	require.NoError(t, s.admin.Del(t.Context(), "k2").Err())
	require.Equal(t, grantedThrice, s.releases(true, "k1", "k2", "k3"))
	assert.Equal(t, int64(1), s.calls("mget"))
	assert.Equal(t, "b", s.admin.Get(t.Context(), "k2").Val(), "it is reserved for the one who waits")
	assert.Equal(t, int64(1), s.admin.Exists(t.Context(), "k1", "k2", "k3").Val())
}

// That one key is not this user's concerns no other release, and no other batch. A queue may be
// nobody's business either.
func TestContractBundleWithAForeignKey(t *testing.T) {
	t.Parallel()
	s := newBundleServer(t, "resetkeys", "~k*")
	s.byScript()
	require.Equal(t, grantedThrice, s.releases(true, "k1", "k2", "k3")) // tells the server the script
	require.Equal(t, []protocol.Kind{protocol.Granted, protocol.Failed, protocol.Granted}, s.releases(false, "k1", "x", "k3"))
	before := s.calls("mget")
	require.Equal(t, grantedThrice, s.releases(true, "k1", "k2", "k3"))
	assert.Equal(t, before+1, s.calls("mget"))
	assert.Equal(t, int64(1), s.admin.Exists(t.Context(), "k1", "k2", "k3", "x").Val())
}

// A server of a cluster does not take keys of several slots together.
func TestContractBundleOnAClusterNode(t *testing.T) {
	t.Parallel()
	server := realredis.Start(t, realredis.Cluster())
	n := overClient(t, server.Addr())
	client := server.Client(t)
	slots := []any{"CLUSTER", "ADDSLOTS"}
	for i := range 16384 {
		slots = append(slots, i)
	}
	require.NoError(t, client.Do(t.Context(), slots...).Err())
	require.Eventually(t, func() bool { return client.Set(t.Context(), "k1", "a", 0).Err() == nil }, 10*time.Second, 10*time.Millisecond)
	for i := range 2 {
		for _, k := range []string{"k1", "k2", "k3"} {
			require.NoError(t, client.Set(t.Context(), k, "a", 0).Err())
		}
		var batch []*lane.Call
		for _, k := range []string{"k1", "k2", "k3"} {
			batch = append(batch, &lane.Call{Req: beside(k, askRelease("a"))})
		}
		n.all(batch)
		for _, c := range batch {
			assert.Equal(t, protocol.Granted, c.Read(protocol.OpRelease).Kind, "batch %d: %v", i, c.Err)
		}
	}
}

// What servers of all versions say of commands and keys that a user may not use.
func TestWhoNeverReleasesSeveral(t *testing.T) {
	t.Parallel()
	never := []string{
		"NOPERM this user has no permissions to run the 'mget' command",
		"NOPERM User clerk has no permissions to run the 'evalsha' command",
		"ERR The user executing the script can't run this command or subcommand script: 8f5e, on @user_script:1.",
		"ERR ACL failure in script: User clerk has no permissions to run the 'mget' command script: 8f5e, on @user_script:1.",
		"ERR unknown command 'EVALSHA', with args beginning with: ",
		"ERR Unknown Redis command called from script script: c9c9, on @user_script:1.",
		"CROSSSLOT Keys in request don't hash to the same slot",
	}
	notNow := []string{
		"NOPERM this user has no permissions to access one of the keys used as arguments",
		"NOPERM No permissions to access a key",
		"NOSCRIPT No matching script. Please use EVAL.",
		"LOADING Redis is loading the dataset in memory",
		"READONLY You can't write against a read only replica.",
		"OOM command not allowed when used memory > 'maxmemory'.",
	}
	for _, text := range slices.Concat(never, notNow) {
		err := fakenode.Error(text)
		assert.Equal(t, slices.Contains(never, text), protocol.NeverBundled(err), text)
		each, others := protocol.Answer{Said: err, Sent: true}.EachOf(2)
		assert.Empty(t, others)
		assert.Equal(t, text, each.Err().Error())
		mends := strings.HasPrefix(text, "LOADING") || strings.HasPrefix(text, "READONLY") || strings.HasPrefix(text, "OOM") || strings.HasPrefix(text, "NOSCRIPT")
		assert.Equal(t, !mends, each.Alone, text)
	}
	assert.False(t, protocol.NeverBundled(nil))
	assert.False(t, protocol.NeverBundled(protocol.ErrTimeout))
}
