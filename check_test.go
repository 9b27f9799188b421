package redlock_test

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/realredis"
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

// check asks and expects an answer.
func check(t *testing.T, rl *redlock.Redlock) redlock.Report {
	t.Helper()
	r, err := rl.Check(t.Context())
	require.NoError(t, err)
	require.Len(t, r.Nodes, len(rl.Nodes()))
	return r
}

// codes are "severity code" of the findings about a node, -1 for those about all.
// Their age is left out: these servers are all young.
func codes(r redlock.Report, node int) (all []string) {
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

func finding(t *testing.T, r redlock.Report, code string) redlock.Finding {
	t.Helper()
	i := slices.IndexFunc(r.Findings, func(f redlock.Finding) bool { return f.Code == code })
	require.GreaterOrEqual(t, i, 0, "no finding %s:\n%v", code, r)
	return r.Findings[i]
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
			assert.Equal(t, redlock.SeverityInfo, r.Worst(), "they were started lately")
		})
	}
	for _, s := range servers {
		c := s.Client(t)
		assert.Zero(t, c.DBSize(t.Context()).Val(), "Check left keys")
		assert.Zero(t, c.PubSubNumPat(t.Context()).Val())
		assert.Contains(t, c.Info(t.Context(), "memory").Val(), "number_of_cached_scripts:0", "Check left scripts")
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
	assert.Equal(t, redlock.SeverityCritical, r.Worst())
}

func TestCheckFindsTheSameServerTwice(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	servers := realredis.StartN(t, 2, durable()...)
	clients := append(clientsOf(t, addrsOf(servers)...),
		defaultClient(t, strings.Replace(servers[0].Addr(), "127.0.0.1", "localhost", 1)))
	r := check(t, newOn(t, unhurried, clients...))
	f := finding(t, r, "same-server")
	assert.Equal(t, redlock.SeverityCritical, f.Severity)
	assert.Equal(t, r.Nodes[2].Node, f.Node)
	assert.Contains(t, f.Message, r.Nodes[0].Node)
	assert.Contains(t, f.Message, servers[0].RunID())
}

func TestCheckOfRights(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	const locks = "+ping +set +get +del +pttl +pexpire +type +eval +evalsha"
	const lines = "+time +zadd +zrem +zscore +zrangebyscore +zrevrange +zcount"
	const notices = "&redlock:* +publish +subscribe"
	const reading = "+info +role +config|get"
	for name, c := range map[string]struct {
		rules   []string
		want    []string
		mention string
	}{
		"all it needs":     {[]string{"~*", locks, lines, notices, reading}, nil, ""},
		"may not read":     {[]string{"~*", locks, lines, notices}, []string{"info unread", "info unread", "info unread", "info unread", "info unread"}, "NOPERM"},
		"no INFO":          {[]string{"~*", locks, lines, notices, "+role +config|get"}, []string{"info unread", "info unread"}, "whether it belongs to a cluster"},
		"no CONFIG":        {[]string{"~*", locks, lines, notices, "+info"}, []string{"info unread"}, "CONFIG GET appendfsync"},
		"no SET, no DEL":   {[]string{"~*", locks, "-set -del", lines, notices, reading}, []string{"critical rights"}, "SET, DEL"},
		"no scripts":       {[]string{"~*", locks, "-eval -evalsha", lines, notices, reading}, []string{"critical rights"}, "EVAL, EVALSHA"},
		"no lines":         {[]string{"~*", locks, notices, reading, "+time"}, []string{"warning rights-line"}, "ZADD"},
		"no TIME":          {[]string{"~*", locks, lines, "-time", notices, reading}, []string{"warning rights-line", "info unread"}, "TIME"},
		"no notices":       {[]string{"~*", locks, lines, "&redlock:*", reading}, []string{"warning rights-notify"}, "PUBLISH, SUBSCRIBE"},
		"no channels":      {[]string{"~*", locks, lines, "resetchannels +publish +subscribe", reading}, []string{"warning rights-notify"}, "PUBLISH, SUBSCRIBE"},
		"keys of its own":  {[]string{"~orders:*", locks, lines, notices, reading}, []string{"info rights-keys"}, "key patterns"},
		"prefix":           {[]string{"~app:*", "~{app:*}:line", locks, lines, notices, reading}, nil, ""},
		"prefix, no lines": {[]string{"~app:*", locks, lines, notices, reading}, []string{"warning rights-line"}, "{...}:line"},
		"no PING":          {[]string{"~*", locks, "-ping", lines, notices, reading}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var rules []string
			for _, r := range c.rules {
				rules = append(rules, strings.Fields(r)...)
			}
			servers := withOdd(t, durable(realredis.User("app", "pw", rules...))...)
			o := unhurried
			if strings.HasPrefix(name, "prefix") {
				o.KeyPrefix = "app:"
			}
			clients := clientsOf(t, addrsOf(servers)...)
			clients[0] = defaultClient(t, servers[0].Addr(), func(o *redis.Options) { o.Username, o.Password = "app", "pw" })
			r := check(t, newOn(t, o, clients...))
			assert.Equal(t, c.want, codes(r, 0), "%v", r)
			assert.Contains(t, r.String(), c.mention)
			assert.Zero(t, servers[0].Client(t).DBSize(t.Context()).Val(), "Check left keys")
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
	r, err := byNew.Check(t.Context())
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
	r := await(t, background(func() redlock.Report {
		r, err := rl.Check(context.Background())
		assert.NoError(t, err)
		return r
	}))
	assert.Contains(t, codes(r, 0), "warning unreachable", "%v", r)
	assert.Empty(t, codes(r, 1))

	t.Run("and for no longer than its context", func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(context.Background(), 200*time.Millisecond, errors.New("the operator left"))
		defer cancel()
		type answer struct {
			redlock.Report
			error
		}
		a := await(t, background(func() answer { r, err := rl.Check(ctx); return answer{r, err} }))
		require.ErrorIs(t, a.error, context.DeadlineExceeded)
		require.ErrorContains(t, a.error, "the operator left")
		assert.Equal(t, servers[1].RunID(), a.Nodes[1].RunID, "what was learnt is in the report")
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
	_, err := rl.Check(t.Context())
	requireNoQuorum(t, err)
	eventually(t, func() bool { s := client.PoolStats(); return s.TotalConns == s.IdleConns }, "a connection still waits for the hung node")
}

func TestCheckEndsWithClose(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.each(upTo(3), hang)
		started := background(func() error { _, err := b.rl.Check(context.Background()); return err })
		synctest.Wait()
		b.takes(0, func() {
			require.NoError(b, b.rl.Close())
			require.ErrorIs(b, <-started, redlock.ErrClosed)
		})
		b.each(upTo(3), resume)
		b.pass(time.Minute)
		before := b.cluster.Node(0).Commands("PING")
		_, err := b.rl.Check(context.Background())
		require.ErrorIs(b, err, redlock.ErrClosed)
		assert.Equal(b, before, b.cluster.Node(0).Commands("PING"))
	})
}

func TestCheckKeepsWhatItLearntFromANodeThatStopsAnswering(t *testing.T) {
	inBubble(t, 3, &unhurried, func(b *bed) {
		check(b.T, b.rl) // connects
		b.cluster.Node(1).DelayCommand("INFO", 1, time.Minute)
		r := check(b.T, b.rl)
		n := r.Nodes[1]
		assert.True(b, n.Reachable)
		assert.Positive(b, n.Latency)
		assert.NotContains(b, codes(r, 1), "warning unreachable")
		said := slices.Contains(codes(r, 1), "warning incomplete") || strings.Contains(strings.Join(n.Unread, ""), "INFO server: ")
		assert.True(b, said, "%v", r)
	})
}

func TestCheckOfARedlockThatNobodyMade(t *testing.T) {
	var none *redlock.Redlock
	for name, rl := range map[string]*redlock.Redlock{"nil": none, "zero": new(redlock.Redlock)} {
		r, err := rl.Check(t.Context())
		require.ErrorIs(t, err, redlock.ErrInvalid, name)
		require.EqualError(t, err, "redlock: check: invalid Redlock: it was not made by Open or New", name)
		assert.Empty(t, r, name)
	}
}

func TestCheckAsksNobodyWhenItsContextIsOver(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		ctx, cancel := context.WithCancel(b.Context())
		cancel()
		_, err := b.rl.Check(ctx)
		require.ErrorIs(b, err, context.Canceled)
		for i := range 3 {
			assert.Zero(b, b.cluster.Node(i).Commands("PING"))
		}
	})
}

// miniredis stands for services that do not let one look inside.
func TestCheckSaysWhatItCannotRead(t *testing.T) {
	inBubble(t, 3, &unhurried, func(b *bed) {
		b.cluster.Node(1).DenyInfo()
		b.cluster.Node(2).ShiftClock(-time.Minute)
		r := check(b.T, b.rl)
		assert.Contains(b, codes(r, 0), "info unread")
		assert.NotEmpty(b, r.Nodes[0].RunID)
		assert.Empty(b, r.Nodes[1].RunID)
		assert.Contains(b, strings.Join(r.Nodes[1].Unread, "\n"), "INFO server: NOPERM")
		assert.Contains(b, r.String(), "whether a restart forgets locks")
		for i := range 3 {
			for _, c := range codes(r, i) {
				assert.True(b, strings.HasPrefix(c, "info "), "%s of %d: %v", c, i, r)
			}
			assert.Empty(b, b.cluster.Node(i).Redis().Keys())
		}
		assert.Equal(b, -time.Minute, r.Nodes[2].ClockOffset.Round(time.Second))
		f := finding(b.T, r, "clocks-apart")
		assert.Contains(b, f.Message, "that of "+r.Nodes[2].Node)
	})
}

func TestCheckOfAClusterClient(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	servers := realredis.StartN(t, 2, durable()...)
	shards := realredis.StartN(t, 2, durable()...)
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": shards[0].Addr(), "b": shards[1].Addr()}})
	t.Cleanup(func() { _ = ring.Close() })
	node := realredis.Start(t, realredis.Cluster())
	require.NoError(t, node.Client(t).ClusterAddSlotsRange(t.Context(), 0, 16383).Err())
	cluster := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{node.Addr()}})
	t.Cleanup(func() { _ = cluster.Close() })
	eventually(t, func() bool { return cluster.Set(context.Background(), "k", "", 0).Err() == nil }, "the cluster is not up")

	clients := append(clientsOf(t, addrsOf(servers)...), ring, cluster, defaultClient(t, realredis.Start(t, durable()...).Addr()))
	r := check(t, newOn(t, unhurried, clients...))
	for i := 2; i <= 3; i++ {
		assert.Equal(t, []string{"warning many-servers"}, codes(r, i), "%v", r)
		assert.True(t, r.Nodes[i].Reachable)
		assert.Empty(t, r.Nodes[i].Role)
		assert.Contains(t, r.Nodes[i].Unread, "all but PING: there are several servers behind this client")
	}
}

func TestReportPrintsAndMarshals(t *testing.T) {
	r := redlock.Report{
		Quorum: 2,
		Nodes: []redlock.NodeReport{
			{Node: "10.0.0.1:6379/0", Reachable: true, Latency: 420 * time.Microsecond, Role: "master", Version: "redis 7.2.4\x1b[31m\n", AppendOnly: "yes", AppendFsync: "always", MaxMemoryPolicy: "noeviction"},
			{Node: "10.0.0.20:6379/0", Err: errors.New("no answer")},
		},
		Findings: []redlock.Finding{{Node: "10.0.0.20:6379/0", Severity: redlock.SeverityWarning, Code: "unreachable", Message: "no answer", Advice: "bring it back"},
			{Severity: redlock.SeverityInfo, Code: "even-number", Message: "two", Advice: "use three"}},
	}
	assert.Equal(t, `NODE              STATE        LATENCY  CLOCK  ROLE    REPLICAS  VERSION           UPTIME  PERSISTENCE  EVICTION
10.0.0.1:6379/0   ok           420µs    -      master  0         redis 7.2.4?[31m  -       aof always   noeviction
10.0.0.20:6379/0  unreachable  -        -      -       -         -                 -       -            -

SEVERITY  CODE         NODE              FINDING
warning   unreachable  10.0.0.20:6379/0  no answer
                                         -> bring it back
info      even-number  (all)             two
                                         -> use three
`, r.String())
	assert.Contains(t, redlock.Report{}.String(), "Nothing found.")

	text, err := json.Marshal(r)
	require.NoError(t, err)
	assert.JSONEq(t, `{"quorum": 2, "nodes": [
		{"node": "10.0.0.1:6379/0", "reachable": true, "latency_ms": 0.42, "version": "redis 7.2.4\u001b[31m\n", "role": "master", "replicas": 0,
		 "appendonly": "yes", "appendfsync": "always", "maxmemory_bytes": 0, "maxmemory_policy": "noeviction"},
		{"node": "10.0.0.20:6379/0", "reachable": false, "error": "no answer"}],
		"findings": [{"node": "10.0.0.20:6379/0", "severity": "warning", "code": "unreachable", "message": "no answer", "advice": "bring it back"},
		{"severity": "info", "code": "even-number", "message": "two", "advice": "use three"}]}`, string(text))

	for _, s := range []redlock.Severity{redlock.SeverityInfo, redlock.SeverityWarning, redlock.SeverityCritical} {
		var back redlock.Severity
		require.NoError(t, back.UnmarshalText([]byte(s.String())))
		assert.Equal(t, s, back)
	}
	var s redlock.Severity
	require.ErrorIs(t, s.UnmarshalText([]byte("grave")), redlock.ErrInvalid)
	assert.Equal(t, "severity 9", redlock.Severity(9).String())
}
