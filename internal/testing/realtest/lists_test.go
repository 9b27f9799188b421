package realtest_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// called are the names of a server's connections, but for those of the test.
func called(t *testing.T, s *realredis.Server) (names []string) {
	t.Helper()
	for line := range strings.Lines(s.Client(t).ClientList(t.Context()).Val()) {
		for _, word := range strings.Fields(line) {
			if name, ok := strings.CutPrefix(word, "name="); ok && name != "" {
				names = append(names, name)
			}
		}
	}
	return names
}

// A connection says how many nodes its client has, unless the user has given it a name.
func TestConnectionsAreCalledByTheirClient(t *testing.T) {
	t.Parallel()
	servers := realredis.StartN(t, 3)
	named := func(o *redis.Options) { o.ClientName = "mine" }
	for want, made := range map[string]func() *redlock.Redlock{
		`^redlock:[0-9a-f]{8}:3:[0-9a-f]{8}:[0-9a-f]{8}:opened$`: func() *redlock.Redlock {
			return openAt(t, addrsOf(servers), redlock.Options{Owner: "opened"})
		},
		`^redlock:[0-9a-f]{8}:3:[0-9a-f]{8}:[0-9a-f]{8}:made$`: func() *redlock.Redlock {
			return newOn(t, redlock.Options{Owner: "made"}, clientsOf(t, addrsOf(servers)...)...)
		},
		`^mine$`: func() *redlock.Redlock {
			return newOn(t, redlock.Options{}, defaultClient(t, servers[0].Addr(), named), defaultClient(t, servers[1].Addr(), named), defaultClient(t, servers[2].Addr(), named))
		},
	} {
		rl := made()
		requireAcquire(t, rl)
		for _, s := range servers {
			eventually(t, func() bool { return len(called(t, s)) > 0 }, "no connection has a name")
			for _, got := range called(t, s) {
				assert.Regexp(t, want, got)
			}
		}
		assert.NoError(t, rl.Close())
		for _, s := range servers {
			s.Client(t).FlushAll(t.Context())
			eventually(t, func() bool { return len(called(t, s)) == 0 }, "connections are left")
		}
	}
}

// listsDiffer are the findings about lists, without advice.
func listsDiffer(t *testing.T, addrs ...string) (found []string) {
	t.Helper()
	nodes, err := admin.Open(addrs, &admin.Options{NoRestartGuard: true})
	require.NoError(t, err)
	defer nodes.Close()
	report, err := nodes.Check(t.Context())
	require.NoError(t, err)
	for _, f := range report.Findings {
		if f.Code == "lists-differ" {
			found = append(found, f.Severity.String()+": "+f.Message)
		}
		assert.NotContains(t, f.Message, "CLIENT LIST")
	}
	return found
}

// users are a client by Open and one by New, each with a lock that it renews.
type users struct {
	owner string
	addrs []string
	both  []*redlock.Redlock
}

func usersOf(t *testing.T, owner string, addrs ...string) *users {
	t.Helper()
	u := &users{owner: owner, addrs: addrs}
	o := redlock.Options{TTL: time.Second, NodeTimeout: 200 * time.Millisecond}
	for way, made := range map[string]func() (*redlock.Redlock, error){
		"-open": func() (*redlock.Redlock, error) { return openOn(t.Context(), addrs, &o) },
		"-new": func() (*redlock.Redlock, error) {
			var clients []redis.UniversalClient
			for _, a := range addrs {
				at, db, _ := strings.Cut(strings.TrimPrefix(a, "redis://"), "/")
				n, _ := strconv.Atoi(db)
				clients = append(clients, defaultClient(t, at, func(c *redis.Options) { c.DB = n }))
			}
			return newOf(clients, &o)
		},
	} {
		o.Owner = owner + way
		rl, err := made()
		require.NoError(t, err)
		t.Cleanup(func() { _ = rl.Close() })
		_, err = rl.Mutex(o.Owner, redlock.WithRenewal(), redlock.WithMaxWait(20*time.Second)).Acquire(t.Context())
		require.NoError(t, err)
		u.both = append(u.both, rl)
	}
	eventually(t, func() bool { return len(u.seen(t)) == 2*len(addrs) }, "not all connections are seen")
	return u
}

// seen are the nodes to which the users are connected, of each.
func (u *users) seen(t *testing.T) (nodes []string) {
	t.Helper()
	of, err := admin.Open(u.addrs, nil)
	require.NoError(t, err)
	defer of.Close()
	connected, err := of.Clients(t.Context())
	require.NoError(t, err)
	for _, c := range connected.Clients {
		if strings.HasPrefix(c.Owner, u.owner) {
			assert.Equal(t, len(u.addrs), c.Of)
			assert.True(t, c.Same)
			nodes = append(nodes, c.Nodes...)
		}
	}
	return nodes
}

// end closes the clients, and returns when no node has a connection of them.
func (u *users) end(t *testing.T) {
	t.Helper()
	for _, rl := range u.both {
		require.NoError(t, rl.Close())
	}
	eventually(t, func() bool { return u.seen(t) == nil }, "connections are left")
}

// A node that is replaced all at once leaves two majorities that may miss each other; one that is added before
// the old one is removed does not.
func TestCheckSeesListsThatDiffer(t *testing.T) {
	t.Parallel()
	addrs := addrsOf(realredis.StartN(t, 4))
	before, both, after := addrs[:3], addrs, []string{addrs[0], addrs[1], addrs[3]}
	old := usersOf(t, "old", before...)
	assert.Empty(t, listsDiffer(t, before...))

	replaced := usersOf(t, "replaced", after...)
	for _, list := range [][]string{before, after} {
		var found []string
		// What servers do not know says nothing before they are so old that a client would have connected.
		eventually(t, func() bool { found = listsDiffer(t, list...); return len(found) == 1 }, "nothing is found")
		assert.Regexp(t, "^critical: the list of 2 clients .* has 3 nodes, this one 3, and both have "+addrs[0]+"/0, "+addrs[1]+"/0: a majority of one", found[0])
	}
	replaced.end(t)

	added := usersOf(t, "added", both...)
	for _, list := range [][]string{before, both} {
		found := listsDiffer(t, list...)
		require.Len(t, found, 1)
		assert.Regexp(t, "^warning: the list of 2 clients .* their majorities meet", found[0])
	}
	old.end(t)
	assert.Empty(t, listsDiffer(t, both...))
	assert.Regexp(t, "^warning: ", strings.Join(listsDiffer(t, after...), "\n"))
	usersOf(t, "removed", after...)
	added.end(t)
	assert.Empty(t, listsDiffer(t, after...))
}

// Another database of the same server is another node.
func TestCheckSeesListsThatDifferByADatabase(t *testing.T) {
	t.Parallel()
	addrs := addrsOf(realredis.StartN(t, 3))
	usersOf(t, "first", "redis://"+addrs[0], "redis://"+addrs[1], "redis://"+addrs[2]+"/1")
	var found []string
	eventually(t, func() bool { found = listsDiffer(t, addrs...); return len(found) == 1 }, "nothing is found")
	assert.Regexp(t, "^critical: .* both have "+addrs[0]+"/0, "+addrs[1]+"/0: ", found[0])
}

// Where the list of connections is denied nothing is said, and where names are, no client is seen.
func TestClientsThatAreNotSeen(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	if realredis.Major(t) < 7 {
		t.Skip("before Redis 7 there are no rights to subcommands that can be taken away")
	}
	for denied, why := range map[string]string{"-client|list": "NOPERM", "-client|setname": ""} {
		server := realredis.Start(t)
		require.NoError(t, server.Client(t).Do(t.Context(), "ACL", "SETUSER", "app", "reset", "on", ">pw", "~*", "&*", "+@all", denied).Err())
		addr := "redis://app:pw@" + server.Addr()
		requireAcquire(t, openAt(t, []string{addr}, redlock.Options{}))
		nodes, err := admin.Open([]string{addr}, nil)
		require.NoError(t, err)
		connected, err := nodes.Clients(t.Context())
		require.NoError(t, nodes.Close())
		assert.Empty(t, connected.Clients)
		if why == "" {
			assert.NoError(t, err)
			continue
		}
		assert.ErrorIs(t, err, admin.ErrNoQuorum)
		assert.ErrorContains(t, err, why)
	}
}

// A name that is denied is one entry in the server's log, however many connections there are.
func TestNamesThatAreDeniedAreNotAskedForAgain(t *testing.T) {
	t.Parallel()
	if realredis.Major(t) < 7 {
		t.Skip("before Redis 7 the log does not tell subcommands apart")
	}
	server := realredis.Start(t)
	c := server.Client(t)
	require.NoError(t, c.Do(t.Context(), "ACL", "SETUSER", "app", "reset", "on", ">pw", "~*", "&*", "+@all", "-client").Err())
	rl := openAt(t, []string{"redis://app:pw@" + server.Addr()}, redlock.Options{})
	for range 5 {
		lock := requireAcquire(t, rl)
		require.NoError(t, lock.Release(t.Context()))
		require.NoError(t, c.Do(t.Context(), "CLIENT", "KILL", "TYPE", "NORMAL", "SKIPME", "YES").Err())
	}
	log, err := c.ACLLog(t.Context(), 100).Result()
	require.NoError(t, err)
	asked := int64(0)
	for _, e := range log {
		if strings.HasSuffix(e.Object, "setname") {
			asked += e.Count
		}
	}
	assert.EqualValues(t, 1, asked)
}
