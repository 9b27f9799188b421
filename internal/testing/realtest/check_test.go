package realtest_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/bubble"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// durable servers have nothing to find but that they were all started lately.
func durable(opts ...realredis.Option) []realredis.Option {
	return append([]realredis.Option{realredis.AOF("always")}, opts...)
}

// withOdd starts two durable servers and an odd one, the first.
func withOdd(t *testing.T, opts ...realredis.Option) []*realredis.Server {
	t.Helper()
	servers := realredis.StartN(t, 2, durable()...)
	return append([]*realredis.Server{realredis.Start(t, opts...)}, servers...)
}

// clientsOf are clients with go-redis' defaults, as a user makes them.
func clientsOf(t *testing.T, addrs ...string) (all []redis.UniversalClient) {
	for _, a := range addrs {
		all = append(all, defaultClient(t, a))
	}
	return all
}

func TestCheckOfSoundNodes(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	servers := realredis.StartN(t, 3, durable()...)
	for name, rl := range map[string]*redlock.Redlock{
		"Open": openAt(t, addrsOf(servers), unhurried),
		"New":  newOn(t, unhurried, clientsOf(t, addrsOf(servers)...)...),
		"RESP3": newOn(t, unhurried, defaultClient(t, servers[0].Addr(), func(o *redis.Options) { o.Protocol = 3 }),
			defaultClient(t, servers[1].Addr()), defaultClient(t, servers[2].Addr())),
	} {
		t.Run(name, func(t *testing.T) {
			r := check(t, rl)
			for i, n := range r.Nodes {
				assert.Empty(t, codes(r, i), "%v", r)
				assert.True(t, n.Reachable)
				assert.NoError(t, n.Err)
				assert.Positive(t, n.Latency)
				assert.Less(t, n.ClockOffset.Abs(), n.ClockMargin+time.Second)
				assert.Equal(t, servers[i].RunID(), n.RunID)
				assert.Contains(t, n.Version, ".")
				assert.Equal(t, []string{"master", "standalone", "yes", "always", "noeviction"},
					[]string{n.Role, n.Mode, n.AppendOnly, n.AppendFsync, n.MaxMemoryPolicy})
				assert.Empty(t, n.Unread)
			}
			assert.Empty(t, codes(r, -1))
			assert.Equal(t, admin.SeverityInfo, r.Worst(), "they were started lately")
		})
	}
	for _, s := range servers {
		c := s.Client(t)
		assert.Empty(t, leftKeys(c), "Check left keys")
		assert.Zero(t, c.PubSubNumPat(t.Context()).Val())
		assert.Contains(t, c.Info(t.Context(), "memory").Val(), "number_of_cached_scripts:0", "Check left a script")
		assert.Contains(t, c.Info(t.Context(), "persistence").Val(), "rdb_changes_since_last_save:0", "Check wrote")
	}
}

func TestCheckOfSettings(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	for name, c := range map[string]struct {
		opts []realredis.Option
		want []string
	}{
		"no persistence":   {nil, []string{"warning persistence"}},
		"everysec":         {[]realredis.Option{realredis.AOF("everysec")}, []string{"warning persistence"}},
		"evicts":           {durable(realredis.Args("maxmemory", "100mb", "maxmemory-policy", "allkeys-lru")), []string{"critical eviction"}},
		"would evict":      {durable(realredis.Args("maxmemory-policy", "allkeys-lru")), []string{"warning eviction"}},
		"node of cluster":  {durable(realredis.Cluster()), []string{"critical cluster-node"}},
		"password missing": {durable(realredis.Password("secret")), []string{"critical refused"}},
		"no EVAL at all":   {durable(realredis.Args("rename-command", `EVAL ""`)), []string{"critical rights"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			servers := withOdd(t, c.opts...)
			r := check(t, newOn(t, unhurried, clientsOf(t, addrsOf(servers)...)...))
			assert.Equal(t, c.want, codes(r, 0), "%v", r)
			assert.Empty(t, codes(r, 1))
		})
	}
}

func TestCheckOfAReplicaAndItsMaster(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	master := realredis.Start(t, durable()...)
	replica := realredis.Start(t, durable(realredis.ReplicaOf(master))...)
	third := realredis.Start(t, durable()...)
	r := check(t, newOn(t, unhurried, clientsOf(t, master.Addr(), replica.Addr(), third.Addr())...))
	assert.Equal(t, []string{"warning replicas"}, codes(r, 0), "%v", r)
	assert.Equal(t, 1, r.Nodes[0].Replicas)
	assert.Equal(t, []string{"critical replica"}, codes(r, 1), "%v", r)
	assert.Equal(t, admin.SeverityCritical, r.Worst())
}

func TestCheckFindsTheSameServerTwice(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	servers := realredis.StartN(t, 2, durable()...)
	clients := append(clientsOf(t, addrsOf(servers)...),
		defaultClient(t, strings.Replace(servers[0].Addr(), "127.0.0.1", "localhost", 1)))
	r := check(t, newOn(t, unhurried, clients...))
	f := finding(t, r, "same-server")
	assert.Equal(t, admin.SeverityCritical, f.Severity)
	assert.Equal(t, r.Nodes[2].Node, f.Node)
	assert.Contains(t, f.Message, r.Nodes[0].Node)
	assert.Contains(t, f.Message, servers[0].RunID())
}

func TestCheckOfRights(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	const share = " +unlink +zcard +zrange +zremrangebyscore"
	const alone = "+ping +set +get +del +pttl +pexpire +type +eval +evalsha +mget +exists +getrange"
	const locks = alone + share
	const lines = "+time +zadd +zrem +zscore +zrangebyscore +zrevrange +zcount"
	const notices = "&redlock:* +publish +subscribe"
	const connections = "+client|setname +client|list"
	const reading = "+info +role +config|get " + connections
	for name, c := range map[string]struct {
		rules   []string
		want    []string
		mention string
	}{
		"all it needs":     {[]string{"~*", locks, lines, notices, reading}, nil, ""},
		"shares no lock":   {[]string{"~*", alone, lines, notices, reading}, []string{"info rights-shared"}, "ZCARD, ZRANGE, UNLINK"},
		"may not read":     {[]string{"~*", locks, lines, notices, connections}, []string{"critical no-vote", "info unread", "info unread", "info unread", "info unread", "info unread", "info unread"}, "NOPERM"},
		"no INFO":          {[]string{"~*", locks, lines, notices, "+role +config|get", connections}, []string{"critical no-vote", "info unread", "info unread", "info unread"}, "INFO server: NOPERM"},
		"no CONFIG":        {[]string{"~*", locks, lines, notices, "+info", connections}, []string{"info unread"}, "CONFIG GET appendfsync"},
		"no SET, no DEL":   {[]string{"~*", locks, "-set -del", lines, notices, reading}, []string{"critical rights", "critical rights-memory"}, "SET, DEL"},
		"no scripts":       {[]string{"~*", locks, "-eval -evalsha", lines, notices, reading}, []string{"critical rights", "info rights-digest"}, "lacks EVAL ("},
		"no digests":       {[]string{"~*", locks, "-evalsha", lines, notices, reading}, []string{"info rights-digest"}, "lacks EVALSHA ("},
		"no lines":         {[]string{"~*", locks, notices, reading, "+time"}, []string{"warning rights-queue"}, "ZADD"},
		"no TIME":          {[]string{"~*", locks, lines, "-time", notices, reading}, []string{"critical rights-memory", "warning rights-queue", "info unread"}, "TIME"},
		"no notices":       {[]string{"~*", locks, lines, "&redlock:*", reading}, []string{"warning rights-notify"}, "PUBLISH, SUBSCRIBE"},
		"no channels":      {[]string{"~*", locks, lines, "resetchannels +publish +subscribe", reading}, []string{"warning rights-notify"}, "PUBLISH, SUBSCRIBE"},
		"keys of its own":  {[]string{"~orders:* ~redlock:memory ~redlock:trial", locks, lines, notices, reading}, []string{"info rights-keys"}, "key patterns"},
		"no trial":         {[]string{"~orders:* ~redlock:memory", locks, lines, notices, reading}, []string{"critical no-vote", "info rights-keys"}, "the user lacks ~redlock:trial"},
		"no mark":          {[]string{"~orders:*", locks, lines, notices, reading}, []string{"critical rights-memory", "info rights-keys"}, "the key redlock:memory"},
		"mark, reading":    {[]string{"~orders:* %R~redlock:memory", locks, lines, notices, reading}, []string{"critical rights-memory", "info rights-keys"}, "the key redlock:memory"},
		"no name":          {[]string{"~*", locks, lines, notices, reading, "-client|setname"}, []string{"info rights-name"}, "lacks CLIENT SETNAME ("},
		"no list":          {[]string{"~*", locks, lines, notices, reading, "-client|list"}, []string{"info unread"}, "CLIENT LIST cannot be read (NOPERM"},
		"prefix":           {[]string{"~app:*", "~{app:*}:line ~{app:*}:shared ~{app:*}:door", locks, lines, notices, reading}, nil, ""},
		"prefix, no lines": {[]string{"~app:*", locks, lines, notices, reading}, []string{"warning rights-queue", "info rights-shared"}, "{...}:line"},
		"no bundles":       {[]string{"~*", locks, "-mget -exists", lines, notices, reading}, []string{"info rights-bundle"}, "MGET, EXISTS"},
		"no GETRANGE":      {[]string{"~*", locks, "-getrange", lines, notices, reading}, []string{"info rights-foreign"}, "GETRANGE"},
		"no PING":          {[]string{"~*", locks, "-ping", lines, notices, reading}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var rules []string
			for _, r := range c.rules {
				rules = append(rules, strings.Fields(r)...)
			}
			sinceSeven := func(r string) bool {
				return strings.HasPrefix(r, "%") || strings.HasPrefix(r, "-") && strings.Contains(r, "|")
			}
			if slices.ContainsFunc(rules, sinceSeven) && realredis.Major(t) < 7 {
				t.Skip("no user can have such rights before Redis 7")
			}
			servers := withOdd(t, durable(realredis.User("app", "pw", rules...))...)
			if name == "no bundles" && deletesItself(t, servers[0].Client(t)) {
				t.Skip("this server has a command for releases, so none are bundled")
			}
			o := unhurried
			o.RestartGuard, o.NoRestartGuard = time.Minute, false // needs the mark
			if strings.HasPrefix(name, "prefix") {
				o.KeyPrefix = "app:"
			}
			clients := clientsOf(t, addrsOf(servers)...)
			clients[0] = defaultClient(t, servers[0].Addr(), func(o *redis.Options) { o.Username, o.Password = "app", "pw" })
			r := check(t, newOn(t, o, clients...))
			found := slices.DeleteFunc(codes(r, 0), func(code string) bool { return code == "warning barred" }) // the servers are new
			assert.Equal(t, c.want, append([]string(nil), found...), "%v", r)
			assert.Contains(t, r.String(), c.mention)
			assert.Empty(t, leftKeys(servers[0].Client(t)), "Check left keys")
		})
	}
}

func TestCheckWithNodesDown(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	servers := realredis.StartN(t, 3, durable()...)
	byOpen, byNew := openAt(t, addrsOf(servers), unhurried), newOn(t, unhurried, clientsOf(t, addrsOf(servers)...)...)
	servers[1].Kill()
	for name, rl := range map[string]*redlock.Redlock{"Open": byOpen, "New": byNew} {
		t.Run(name, func(t *testing.T) {
			r := check(t, rl)
			assert.Equal(t, []string{"warning unreachable"}, codes(r, 1), "%v", r)
			assert.False(t, r.Nodes[1].Reachable)
			assert.Error(t, r.Nodes[1].Err)
			assert.Empty(t, codes(r, 0))
		})
	}
	servers[2].Kill()
	r, err := operator(t, byNew).Check(t.Context())
	requireNoQuorum(t, err)
	require.Contains(t, err.Error(), "redlock: check: no quorum")
	assert.Equal(t, []string{"critical no-quorum"}, codes(r, -1))
	assert.Empty(t, codes(r, 0), "what was learnt is in the report")
	assert.Equal(t, servers[0].RunID(), r.Nodes[0].RunID)
}

func TestCheckDoesNotWaitForAHungNodeForLong(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	servers := realredis.StartN(t, 3, durable()...)
	rl := newOn(t, unhurried, clientsOf(t, addrsOf(servers)...)...)
	check(t, rl)
	require.NoError(t, servers[0].Pause())
	defer func() { require.NoError(t, servers[0].Resume()) }()
	r := await(t, background(func() admin.Report {
		r, err := operator(t, rl).Check(context.Background())
		assert.NoError(t, err)
		return r
	}))
	assert.Contains(t, codes(r, 0), "warning unreachable", "%v", r)
	assert.Empty(t, codes(r, 1))

	t.Run("and for no longer than its context", func(t *testing.T) {
		type answer struct {
			admin.Report
			error
		}
		within := func(limit time.Duration) answer {
			ctx, cancel := context.WithTimeoutCause(context.Background(), limit, errors.New("the operator left"))
			defer cancel()
			return await(t, background(func() answer { r, err := operator(t, rl).Check(ctx); return answer{r, err} }))
		}
		// The others may need longer than the first limits, and the hung node's time is longer than the last.
		var a answer
		for limit := 200 * time.Millisecond; a.Nodes == nil || a.Nodes[1].RunID == ""; limit *= 2 {
			require.Less(t, limit, unhurried.NodeTimeout, "what was learnt is in the report")
			a = within(limit)
			require.ErrorIs(t, a.error, context.DeadlineExceeded)
			require.ErrorContains(t, a.error, "the operator left")
		}
		assert.Equal(t, servers[1].RunID(), a.Nodes[1].RunID)
	})
}

// Nobody waits for the goroutine that asks a hung node, so it must end by itself.
func TestCheckLeavesAHungNodeAlone(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	server := realredis.Start(t)
	client := defaultClient(t, server.Addr(), func(o *redis.Options) { o.ReadTimeout = -1 })
	rl := newOn(t, unhurried, client)
	check(t, rl)
	require.NoError(t, server.Pause())
	defer func() { require.NoError(t, server.Resume()) }()
	_, err := operator(t, rl).Check(t.Context())
	requireNoQuorum(t, err)
	eventually(t, func() bool { s := client.PoolStats(); return s.TotalConns == s.IdleConns }, "a connection still waits for the hung node")
}

// check asks and expects an answer.
func check(t *testing.T, rl *redlock.Redlock) admin.Report {
	t.Helper()
	r, err := operator(t, rl).Check(t.Context())
	require.NoError(t, err)
	require.Len(t, r.Nodes, len(rl.Nodes()))
	return r
}

// codes are "severity code" of the findings about a node, -1 for those about all.
// Their age is left out: these servers are all young.
func codes(r admin.Report, node int) (all []string) {
	name := ""
	if node >= 0 {
		name = r.Nodes[node].Node
	}
	for _, f := range r.Findings {
		if f.Node == name && f.Code != "young" {
			all = append(all, f.Severity.String()+" "+f.Code)
		}
	}
	return all
}

func finding(t *testing.T, r admin.Report, code string) admin.Finding {
	t.Helper()
	i := slices.IndexFunc(r.Findings, func(f admin.Finding) bool { return f.Code == code })
	require.GreaterOrEqual(t, i, 0, "no finding %s:\n%v", code, r)
	return r.Findings[i]
}

func TestCheckKeepsWhatItLearntFromANodeThatStopsAnswering(t *testing.T) {
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		rl := clientOf(t, c, unhurried)
		check(t, rl) // connects
		c.Node(1).DelayCommand("INFO", 1, time.Minute)
		r := check(t, rl)
		n := r.Nodes[1]
		assert.True(t, n.Reachable)
		assert.Positive(t, n.Latency)
		assert.NotContains(t, codes(r, 1), "warning unreachable")
		said := slices.Contains(codes(r, 1), "warning incomplete") || strings.Contains(strings.Join(n.Unread, ""), "INFO server: ")
		assert.True(t, said, "%v", r)
	})
}

func TestCheckAsksNobodyWhenItsContextIsOver(t *testing.T) {
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := operator(t, clientOf(t, c, redlock.Options{})).Check(ctx)
		require.ErrorIs(t, err, context.Canceled)
		assert.Zero(t, c.Commands("PING"))
	})
}

// miniredis stands for services that do not let one look inside.
func TestCheckSaysWhatItCannotRead(t *testing.T) {
	bubble.Run(t, 3, func(t *testing.T, c *redlocktest.Cluster) {
		c.Node(1).Deny("INFO")
		c.Node(2).ShiftClock(-time.Minute)
		r := check(t, clientOf(t, c, unhurried))
		assert.Contains(t, codes(r, 0), "info unread")
		assert.NotEmpty(t, r.Nodes[0].RunID)
		assert.Empty(t, r.Nodes[1].RunID)
		assert.Contains(t, strings.Join(r.Nodes[1].Unread, "\n"), "INFO server: NOPERM")
		assert.Contains(t, r.String(), "whether a restart forgets locks")
		for i := range 3 {
			for _, code := range codes(r, i) {
				assert.True(t, strings.HasPrefix(code, "info "), "%s of %d: %v", code, i, r)
			}
			assert.Subset(t, []string{"redlock:memory"}, c.Node(i).Redis().Keys())
		}
		assert.Equal(t, -time.Minute, r.Nodes[2].ClockOffset.Round(time.Second))
		f := finding(t, r, "clocks-apart")
		assert.Contains(t, f.Message, "that of "+r.Nodes[2].Node)
	})
}

// A node counts as one that may vote only if a client that starts now counts its grants, and what check says of it is
// what that client says.
func TestCheckCountsTheNodesThatVote(t *testing.T) {
	denies := func(command string) func(*redlocktest.Node) {
		return func(n *redlocktest.Node) { n.Deny(command) }
	}
	emptiedAnd := func(command string) func(*redlocktest.Node) {
		return func(n *redlocktest.Node) { n.FlushAll(); n.Deny(command) }
	}
	for name, c := range map[string]struct {
		fault func(*redlocktest.Node)
		code  string
		says  string
	}{
		"nothing":                    {func(*redlocktest.Node) {}, "", ""},
		"emptied":                    {func(n *redlocktest.Node) { n.FlushAll() }, "warning barred", "had no memory mark"},
		"INFO":                       {denies("INFO"), "critical no-vote", "INFO server: NOPERM"},
		"TIME":                       {denies("TIME"), "critical rights-memory", "TIME: NOPERM"},
		"GET":                        {denies("GET"), "critical rights-memory", "GET redlock:memory: NOPERM"},
		"SET":                        {denies("SET"), "critical rights-memory", "SET: NOPERM"},
		"SET, and there is no mark":  {emptiedAnd("SET"), "critical rights-memory", "SET: NOPERM"},
		"EVALSHA":                    {denies("EVALSHA"), "", ""},
		"scripts":                    {func(n *redlocktest.Node) { n.Deny("EVAL", "EVALSHA") }, "critical rights", "EVAL: NOPERM"},
		"PTTL":                       {denies("PTTL"), "critical rights", "PTTL: NOPERM"},
		"DEL":                        {denies("DEL"), "critical rights", "DEL: NOPERM"},
		"loading":                    {func(n *redlocktest.Node) { n.SetError("LOADING Redis is loading the dataset in memory") }, "warning refused", ""},
		"something else as the mark": {func(n *redlocktest.Node) { n.Del("redlock:memory"); _, _ = n.Redis().Lpush("redlock:memory", "x") }, "critical memory-mark", "holds what is no memory mark"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Run(t, 3, func(t *testing.T, cluster *redlocktest.Cluster) {
				time.Sleep(time.Hour)
				c.fault(cluster.Node(1))
				rl := clientOf(t, cluster, redlock.Options{})
				r := check(t, rl)
				n := r.Nodes[1]
				lock, err := rl.Mutex("k").TryAcquire(t.Context())
				require.NoError(t, err)
				synctest.Wait()
				o := lock.Outcomes()[1]
				assert.Equal(t, o.Vote == redlock.VoteGranted, n.NoVote == nil && n.Err == nil, "%v: %v", o.Err, r)
				if c.code != "" {
					assert.Contains(t, codes(r, 1), c.code, "%v", r)
				}
				if n.NoVote != nil {
					said, _, _ := strings.Cut(n.NoVote.Error(), "; votes count from")
					assert.Contains(t, said, c.says)
					assert.ErrorContains(t, o.Err, said)
				}
				if strings.HasSuffix(c.code, "no-vote") {
					assert.Contains(t, finding(t, r, "no-vote").Message, "one failure fewer is tolerated")
					assert.Contains(t, finding(t, r, "no-vote").Advice, "NoRestartGuard")
				}
				if n.NoVote == nil && n.Err == nil {
					return
				}
				// With one more of them no lock can be had.
				c.fault(cluster.Node(2))
				r, _ = operator(t, rl).Check(t.Context())
				assert.Contains(t, finding(t, r, "no-quorum").Message, "1 of 3 nodes ")
			})
		})
	}
}

// How often other data was put into a running process is told, since each time bars it.
func TestCheckTellsHowOftenDataWasPutInPlace(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	servers := realredis.StartN(t, 3, durable()...)
	rl := newOn(t, guarded(0), clientsOf(t, addrsOf(servers)...)...)
	assert.NotContains(t, codes(check(t, rl), 1), "info puts")
	require.NoError(t, servers[1].Client(t).Do(t.Context(), "SWAPDB", 0, 1).Err())
	require.NoError(t, servers[1].Client(t).Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
	r := check(t, rl)
	assert.EqualValues(t, 2, r.Nodes[1].Puts)
	assert.Zero(t, r.Nodes[0].Puts)
	f := finding(t, r, "puts")
	assert.Equal(t, r.Nodes[1].Node, f.Node)
	assert.Contains(t, f.Message, "it was told 2 times to put other data in place")
	assert.Contains(t, f.Advice, "DEBUG SLEEP, a shared server that swaps databases, CONFIG RESETSTAT")
	assert.NotContains(t, codes(check(t, newOn(t, unhurried, clientsOf(t, addrsOf(servers)...)...)), 1), "info puts", "without a guard it bars nothing")
}
