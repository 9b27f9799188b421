package admin

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/protocol"
)

// sound are the facts of a node in which there is nothing to find.
func sound(name string) facts {
	return facts{NodeReport: NodeReport{
		Node: name, Reachable: true, Latency: time.Millisecond, ClockMargin: time.Millisecond, timed: true,
		Version: "redis 7.2.4", RunID: "id of " + name, Uptime: 24 * time.Hour, aged: true, Role: "master", Mode: "standalone",
		MaxMemoryPolicy: "noeviction", AppendOnly: "yes", AppendFsync: "always",
	}}
}

// serverSays is an answer of a server.
type serverSays string

func (e serverSays) Error() string { return string(e) }
func (serverSays) RedisError()     {}

func TestJudge(t *testing.T) {
	down := func(f *facts) { f.NodeReport = NodeReport{Node: f.Node, Err: errors.New("connection refused")} }
	young := func(f *facts) { f.Uptime = 3 * time.Second }
	barred := func(f *facts) { f.BarredFor = 57800 * time.Millisecond }
	behind := func(d time.Duration) func(*facts) { return func(f *facts) { f.ClockOffset = -d } }
	for _, c := range []struct {
		name    string
		change  map[int]func(*facts) // of three nodes a, b, c
		guard   time.Duration
		want    []string // "severity code node"
		mention []string
	}{
		{name: "nothing"},
		{name: "down", change: map[int]func(*facts){1: down}, want: []string{"warning unreachable b"}, mention: []string{"connection refused"}},
		{name: "no trust", change: map[int]func(*facts){1: func(f *facts) {
			f.NodeReport = NodeReport{Node: "b", Err: errors.New("x509: certificate signed by unknown authority")}
		}}, want: []string{"critical refused b"}, mention: []string{"no trust", "its authority"}},
		{name: "no Redis", change: map[int]func(*facts){1: func(f *facts) {
			f.NodeReport = NodeReport{Node: "b", Err: errors.New(`redis: can't parse map reply: "HTTP/1.1 400 Bad Request"`)}
		}}, want: []string{"critical no-redis b"}, mention: []string{"HTTP/1.1 400", "check the host and the port"}},
		{name: "majority down", change: map[int]func(*facts){1: down, 2: down},
			want: []string{"critical no-quorum ", "warning unreachable b", "warning unreachable c"}, mention: []string{"1 of 3 nodes serve us, and 2 are needed"}},
		{name: "no password", change: map[int]func(*facts){0: func(f *facts) { f.Err = serverSays("NOAUTH Authentication required.") }},
			want: []string{"critical refused a"}, mention: []string{"NOAUTH"}},
		{name: "loading", change: map[int]func(*facts){0: func(f *facts) { f.Err = serverSays("LOADING Redis is loading the dataset in memory") }},
			want: []string{"warning refused a"}},
		{name: "replica", change: map[int]func(*facts){2: func(f *facts) { f.Role = "slave" }}, want: []string{"critical replica c"}},
		{name: "a replica's own replicas", change: map[int]func(*facts){2: func(f *facts) { f.Role, f.Replicas = "slave", 2 }}, want: []string{"critical replica c"}},
		{name: "sentinel", change: map[int]func(*facts){2: func(f *facts) { f.Role, f.Mode = "sentinel", "sentinel" }}, want: []string{"critical sentinel c"}},
		{name: "node of a cluster", change: map[int]func(*facts){2: func(f *facts) { f.Mode = "cluster" }}, want: []string{"critical cluster-node c"}},
		{name: "replicas", change: map[int]func(*facts){0: func(f *facts) { f.Replicas = 1 }, 1: func(f *facts) { f.Replicas = 2 }},
			want: []string{"warning replicas a", "warning replicas b"}, mention: []string{"1 replica attached", "2 replicas attached"}},
		{name: "duplicates", change: map[int]func(*facts){2: func(f *facts) { f.RunID = "id of a" }}, want: []string{"critical same-server c"}, mention: []string{"same server as a (run id id of a)"}},
		{name: "unknown run ids are no duplicates", change: map[int]func(*facts){1: func(f *facts) { f.RunID = "" }, 2: func(f *facts) { f.RunID = "" }}},
		{name: "eviction", change: map[int]func(*facts){0: func(f *facts) { f.MaxMemoryPolicy, f.MaxMemory = "allkeys-lru", 1<<20 }},
			want: []string{"critical eviction a"}, mention: []string{"allkeys-lru", "1048576"}},
		{name: "eviction without a limit", change: map[int]func(*facts){0: func(f *facts) { f.MaxMemoryPolicy = "volatile-ttl" }}, want: []string{"warning eviction a"}},
		{name: "eviction that went on", change: map[int]func(*facts){0: func(f *facts) { f.MaxMemoryPolicy, f.MaxMemory, f.EvictedKeys = "allkeys-lru", 1<<20, 12 }},
			want: []string{"critical eviction a"}, mention: []string{"has evicted 12 keys since its start"}},
		{name: "eviction under a policy that is not known", change: map[int]func(*facts){0: func(f *facts) { f.MaxMemoryPolicy, f.EvictedKeys = "", 1 }},
			want: []string{"critical eviction a"}, mention: []string{"has evicted 1 key since its start"}},
		{name: "eviction under the policy before", change: map[int]func(*facts){0: func(f *facts) { f.EvictedKeys = 12 }}, want: []string{"info eviction a"}},
		{name: "a limit without eviction", change: map[int]func(*facts){0: func(f *facts) { f.MaxMemory = 1 << 20 }}},
		{name: "policy unknown", change: map[int]func(*facts){0: func(f *facts) { f.MaxMemoryPolicy = "" }}},
		{name: "no persistence", change: map[int]func(*facts){0: func(f *facts) { f.AppendOnly = "no" }}, want: []string{"warning persistence a"}, mention: []string{"appendonly no"}},
		{name: "everysec", change: map[int]func(*facts){0: func(f *facts) { f.AppendFsync = "everysec" }}, want: []string{"warning persistence a"}, mention: []string{"last second"}},
		{name: "fsync no", change: map[int]func(*facts){0: func(f *facts) { f.AppendFsync = "no" }}, want: []string{"warning persistence a"}, mention: []string{"30s"}},
		{name: "no persistence under the guard", guard: time.Minute, change: map[int]func(*facts){0: func(f *facts) { f.AppendOnly = "no" }},
			want: []string{"info persistence a"}, mention: []string{"restart guard of 1m0s"}},
		{name: "young with AOF always", change: map[int]func(*facts){0: young}},
		{name: "young without AOF", change: map[int]func(*facts){0: func(f *facts) { young(f); f.AppendOnly = "no" }},
			want: []string{"warning persistence a", "warning young a"}},
		{name: "young, and nobody knows what it kept", change: map[int]func(*facts){0: func(f *facts) { young(f); f.AppendOnly, f.AppendFsync = "", "" }},
			want: []string{"warning young a"}},
		{name: "a second more than the TTL is not enough", change: map[int]func(*facts){0: func(f *facts) { f.Uptime, f.AppendOnly = 10*time.Second, "" }}, want: []string{"warning young a"}},
		{name: "old enough", change: map[int]func(*facts){0: func(f *facts) { f.Uptime, f.AppendOnly = 11*time.Second, "" }}},
		{name: "young, and the guard has nothing against it", guard: time.Minute, change: map[int]func(*facts){0: young}},
		{name: "barred after a start", guard: time.Minute, change: map[int]func(*facts){0: func(f *facts) { young(f); barred(f) }},
			want: []string{"warning barred a"}, mention: []string{"started 3s ago", "for 57.8s more"}},
		{name: "barred after FLUSHALL", guard: time.Minute, change: map[int]func(*facts){0: func(f *facts) { barred(f); f.barred = "why" }}, want: []string{"warning barred a"}, mention: []string{"why; the restart guard does not count its grants for 57.8s more"}},
		{name: "too many barred", guard: time.Minute, change: map[int]func(*facts){0: barred, 1: func(f *facts) { f.BarredFor = 1 }},
			want: []string{"critical no-quorum ", "warning barred a", "warning barred b"}, mention: []string{"1 of 3 nodes serve us and may vote, and 2 are needed: no lock can be acquired for 100ms more"}},
		{name: "one barred and one down", guard: time.Minute, change: map[int]func(*facts){0: barred, 1: down},
			want: []string{"critical no-quorum ", "warning barred a", "warning unreachable b"}, mention: []string{"no lock can be acquired for 57.8s more"}},
		{name: "one barred and one replica", guard: time.Minute, change: map[int]func(*facts){0: barred, 1: func(f *facts) { f.Role = "slave" }, 2: down},
			want: []string{"critical replica b", "critical no-quorum ", "warning barred a", "warning unreachable c"}, mention: []string{"no lock can be acquired; held"}},
		{name: "all young", change: map[int]func(*facts){0: young, 1: young, 2: young}, want: []string{"info young a", "info young b", "info young c"}, mention: []string{"first start"}},
		{name: "age unknown", change: map[int]func(*facts){0: func(f *facts) { f.Uptime, f.aged, f.AppendOnly = 0, false, "" }}},
		{name: "never in time", change: map[int]func(*facts){0: func(f *facts) { f.Latency = 200 * time.Millisecond }}, want: []string{"critical slow a"}},
		{name: "late", change: map[int]func(*facts){0: func(f *facts) { f.Latency = 100 * time.Millisecond }}, want: []string{"warning slow a"}},
		{name: "in time", change: map[int]func(*facts){0: func(f *facts) { f.Latency = 99 * time.Millisecond }}},
		{name: "clock", change: map[int]func(*facts){1: behind(3 * time.Second)}, want: []string{"warning clocks-apart ", "info clock-local b"}, mention: []string{"clock of a is 3s ahead of that of b"}},
		{name: "our own clock", change: map[int]func(*facts){0: behind(time.Hour), 1: behind(time.Hour), 2: behind(time.Hour)},
			want: []string{"info clock-local a", "info clock-local b", "info clock-local c"}, mention: []string{"1h0m0s"}},
		{name: "clocks within what was measured", change: map[int]func(*facts){1: behind(time.Second + 2*time.Millisecond), 2: func(f *facts) { f.ClockMargin = 3 * time.Millisecond }},
			want: []string{"info clock-local b"}},
		{name: "slow answers leave doubt", change: map[int]func(*facts){1: func(f *facts) { f.ClockOffset, f.ClockMargin = 2*time.Second, time.Second }}},
		{name: "clock unknown", change: map[int]func(*facts){1: func(f *facts) { f.timed, f.ClockOffset = false, time.Hour }}},
		{name: "rights for locks", change: map[int]func(*facts){0: func(f *facts) { f.lacks = []denial{{forLocks, "SET", "NOPERM so"}, {forLocks, "DEL", "NOPERM so"}} }},
			want: []string{"critical rights a"}, mention: []string{"lacks SET, DEL (NOPERM so)"}},
		{name: "other rights", change: map[int]func(*facts){0: func(f *facts) { f.lacks = []denial{{forNotices, "PUBLISH", "NOPERM"}, {forLines, "ZADD", "NOPERM"}} }},
			want: []string{"warning rights-queue a", "warning rights-notify a"}},
		{name: "rights for the guard", change: map[int]func(*facts){0: func(f *facts) {
			f.lacks = []denial{{forMemory, "the key redlock:memory", "NOPERM"}}
		}}, want: []string{"critical rights-memory a"}, mention: []string{"redlock:memory"}},
		{name: "rights for bundles", change: map[int]func(*facts){
			0: func(f *facts) { f.lacks = []denial{{forBundles, "MGET", "NOPERM"}} },
			1: func(f *facts) { f.lacks, f.seen.Native = []denial{{forBundles, "MGET", "NOPERM"}}, protocol.DelEx },
		}, want: []string{"info rights-bundle a"}, mention: []string{"lacks MGET (NOPERM): releases of several locks at once cost this node more"}},
		{name: "rights for large values", change: map[int]func(*facts){
			0: func(f *facts) { f.lacks = []denial{{forForeign, "GETRANGE", "NOPERM"}} },
		}, want: []string{"info rights-foreign a"}, mention: []string{"lacks GETRANGE (NOPERM): a large value that others put"}},
		{name: "keys of others", change: map[int]func(*facts){0: func(f *facts) { f.masked = true }}, want: []string{"info rights-keys a"}},
		{name: "unread", change: map[int]func(*facts){0: func(f *facts) { f.unread = []unread{{"INFO memory", "whether it may evict locks", "NOPERM"}} }},
			want: []string{"info unread a"}, mention: []string{"INFO memory cannot be read (NOPERM), so it is not known whether it may evict locks"}},
		{name: "out of time", change: map[int]func(*facts){0: func(f *facts) { f.cut = true }}, want: []string{"warning incomplete a"}},
		{name: "old version", change: map[int]func(*facts){0: func(f *facts) { f.Version = "redis 6.0.16" }}, want: []string{"warning version a"}},
		{name: "the worst first", change: map[int]func(*facts){0: func(f *facts) { f.masked = true }, 1: func(f *facts) { f.Replicas = 1 }, 2: func(f *facts) { f.Role = "slave" }},
			want: []string{"critical replica c", "warning replicas b", "info rights-keys a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := []facts{sound("a"), sound("b"), sound("c")}
			for i, f := range c.change {
				f(&all[i])
			}
			found := judge(all, setup{TTL: 10 * time.Second, NodeTimeout: 200 * time.Millisecond, Quorum: 2, Guard: c.guard})
			require.NotNil(t, found, "JSON would have null")
			var got, text []string
			for _, f := range found {
				got = append(got, severities[f.Severity]+" "+f.Code+" "+f.Node)
				text = append(text, f.Message, f.Advice)
				assert.NotEmpty(t, f.Message)
				assert.NotEmpty(t, f.Advice)
			}
			assert.Equal(t, c.want, got)
			for _, m := range c.mention {
				assert.Contains(t, strings.Join(text, "\n"), m)
			}
		})
	}
}

func TestJudgeNumberOfNodes(t *testing.T) {
	for n, want := range map[int][]string{1: {"single-node"}, 2: {"even-number"}, 3: nil, 4: {"even-number"}, 5: nil} {
		var all []facts
		for i := range n {
			all = append(all, sound(string(rune('a'+i))))
		}
		var got []string
		for _, f := range judge(all, setup{TTL: time.Second, NodeTimeout: time.Second, Quorum: n/2 + 1}) {
			got = append(got, f.Code)
		}
		assert.Equal(t, want, got, "%d nodes", n)
	}
	two := judge([]facts{sound("a"), sound("b")}, setup{TTL: time.Second, NodeTimeout: time.Second, Quorum: 2})
	assert.Equal(t, "2 nodes tolerate 0 failures, no more than 1 node does", two[0].Message)
}

func TestOutdated(t *testing.T) {
	for version, want := range map[string]bool{
		"redis 6.0.16": true, "redis 5.0.7": true, "redis 6.2.0": false, "redis 7.0.15": false, "redis 10.0.0": false,
		"valkey 1.0.0": false, "": false, "redis": false, "redis x.y": false, "redis 6": false, "redis 6.x": false,
	} {
		assert.Equal(t, want, outdated(version), version)
	}
}

// Every command that a script runs has its probe, so that a new one is not forgotten.
func TestEveryCommandHasAProbe(t *testing.T) {
	var probed []string
	for _, p := range probesFor(questions{Key: "k", Line: "{k}:line", Holders: "{k}:shared", Door: "{k}:door", Channel: "c", Mark: "m"}) {
		probed = append(probed, p.args[0].(string))
	}
	files, err := protocol.ScriptFiles.ReadDir("scripts")
	require.NoError(t, err)
	for _, f := range files {
		for _, call := range strings.Split(protocol.MustRead(strings.TrimSuffix(f.Name(), ".lua")), "call('")[1:] {
			command, _, _ := strings.Cut(call, "'")
			assert.True(t, slices.Contains(probed, command), "%s runs %s", f.Name(), command)
		}
	}
}

func TestReadInfo(t *testing.T) {
	for _, c := range []struct {
		name     string
		sections []string
		want     NodeReport
	}{
		{name: "nothing"},
		{name: "all sections", sections: []string{
			"# Server\r\nredis_version:7.2.4\r\nredis_mode:standalone\r\nrun_id:0f3a\r\nuptime_in_seconds:90\r\n",
			"role:master\r\nconnected_slaves:2\r\n",
			"maxmemory:1048576\r\nmaxmemory_policy:noeviction\r\n",
			"evicted_keys:12\r\n",
			"aof_enabled:1\r\n",
			"cluster_enabled:0\r\n",
		}, want: NodeReport{
			Version: "redis 7.2.4", Mode: "standalone", RunID: "0f3a", Uptime: 90 * time.Second, aged: true, Role: "master", Replicas: 2,
			MaxMemory: 1 << 20, MaxMemoryPolicy: "noeviction", EvictedKeys: 12, counted: true, AppendOnly: "yes",
		}},
		{name: "Valkey gives a Redis version, too", sections: []string{"redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\nserver_mode:standalone\r\nredis_mode:standalone\r\n"},
			want: NodeReport{Version: "valkey 8.0.1", Mode: "standalone"}},
		{name: "no persistence", sections: []string{"aof_enabled:0\r\n"}, want: NodeReport{AppendOnly: "no"}},
		{name: "sentinel", sections: []string{"redis_mode:sentinel\r\n", "cluster_enabled:0"}, want: NodeReport{Mode: "sentinel"}},
		{name: "cluster by its own section only", sections: []string{"cluster_enabled:1\r\n"}, want: NodeReport{Mode: "cluster"}},
		{name: "the section about clusters knows best", sections: []string{"redis_mode:standalone\r\n", "cluster_enabled:1\r\n"}, want: NodeReport{Mode: "cluster"}},
		{name: "no cluster", sections: []string{"cluster_enabled:0\r\n"}, want: NodeReport{Mode: "standalone"}},
		{name: "a clock that was set back", sections: []string{"uptime_in_seconds:-5\r\n"}, want: NodeReport{aged: true}},
		{name: "a later section that lacks a field", sections: []string{"run_id:0f3a\r\nrole:slave\r\n", "run_id:\r\nused_memory:1\r\n"},
			want: NodeReport{RunID: "0f3a", Role: "slave"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var n NodeReport
			for _, s := range c.sections {
				n.readInfo(s)
			}
			assert.Equal(t, c.want, n)
		})
	}
}
