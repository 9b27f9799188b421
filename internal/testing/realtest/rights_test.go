package realtest_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/doccheck"
	"github.com/quorumlock/redlock/internal/testing/faultproxy"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/lockset"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// documentedRights are the rules that docs/operations.md gives to a user.
func documentedRights(t *testing.T) (rules []string) {
	t.Helper()
	blocks, err := doccheck.Blocks("../../../docs/operations.md")
	require.NoError(t, err)
	for _, b := range blocks {
		if b.Info != "acl" {
			continue
		}
		for line := range strings.Lines(b.Code) {
			words := strings.Fields(line)
			require.Equal(t, []string{"ACL", "SETUSER", "locks"}, words[:3], "%v", b)
			for _, w := range words[3:] {
				if strings.ContainsAny(w[:1], "+~&") {
					rules = append(rules, w)
				}
			}
		}
	}
	require.NotEmpty(t, rules)
	return rules
}

// What is asked for when a connection begins, and does not matter.
var courtesies = []string{"client", "client|setinfo", "client|maint_notifications", "select", "hello"}

// The servers' own log tells what a user was denied.
func TestDocumentedRightsAreEnoughAndNoneIsInVain(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	all := documentedRights(t)
	client := realredis.Start(t).Client(t)
	for _, own := range []string{"+delifeq", "+delex"} {
		if client.Do(t.Context(), "ACL", "SETUSER", "of-new-servers", own).Err() == nil {
			all = slices.DeleteFunc(all, func(r string) bool { return r == "+mget" || r == "+exists" }) // in vain there
			all = append(all, own)
		}
	}
	assert.Empty(t, denied(t, all))
	for _, rule := range all {
		t.Run("without "+rule, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(rule, "|") && realredis.Major(t) < 7 {
				t.Skip("before Redis 7 the server's log does not tell which subcommand was denied")
			}
			rest := slices.DeleteFunc(slices.Clone(all), func(r string) bool { return r == rule })
			assert.NotEmpty(t, denied(t, rest), "%s is not needed", rule)
		})
	}
}

// denied is what a server refuses to a user with these rights.
func denied(t *testing.T, rules []string) (objects []string) {
	t.Helper()
	const user = "app"
	server := realredis.Start(t)
	client := server.Client(t)
	args := append([]any{"ACL", "SETUSER", user, "reset", "resetchannels", "on", ">pw"}, anys(rules)...)
	require.NoError(t, client.Do(t.Context(), args...).Err())
	useAsTwoProcesses(t, server, user, "orders:42")
	log, err := client.ACLLog(t.Context(), 128).Result()
	require.NoError(t, err)
	for _, e := range log {
		if e.Username == user && !slices.Contains(courtesies, e.Object) {
			objects = append(objects, e.Object)
		}
	}
	return objects
}

// useAsTwoProcesses uses all that a lock has, as far as the rights allow.
func useAsTwoProcesses(t *testing.T, server *realredis.Server, user, key string) {
	t.Helper()
	proxy := faultproxy.New(convTo(server))
	defer proxy.Close()
	addr, err := proxy.Listen()
	require.NoError(t, err)
	url := "redis://" + user + ":pw@" + addr
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	var both []*redlock.Redlock
	for range 2 {
		rl, err := openOn(ctx, []string{url}, &redlock.Options{TTL: 2 * time.Second, NodeTimeout: 500 * time.Millisecond})
		if err != nil {
			return
		}
		defer rl.Close()
		both = append(both, rl)
	}
	first, second := both[0].Mutex(key), both[1].Mutex(key, redlock.WithFencing())

	nodes := operator(t, both[0])
	useTogether(ctx, both, nodes, key)
	useManyKeys(ctx, both[0], key)
	lock, err := first.Acquire(ctx)
	if err != nil {
		return
	}
	got := make(chan *redlock.Lock, 1)
	go func() {
		next, _ := second.Acquire(ctx)
		got <- next
	}()
	_ = lock.Extend(ctx, 2*time.Second)
	for try := time.NewTicker(5 * time.Millisecond); ; <-try.C {
		// One that may not join a line has failed, and is never seen in one.
		if s, err := nodes.Inspect(ctx, key); err != nil || s.Nodes[0].Waiting > 0 || lock.Validity() < 1500*time.Millisecond {
			break
		}
	}
	if adopted, err := first.Adopt(ctx, lock.Detach()); err == nil {
		lock = adopted
	}
	_ = lock.Release(ctx)
	proxy.Forget() // what is sent next has its connection ended on the server
	_, _ = first.TryAcquire(ctx)
	if next := <-got; next != nil {
		_, _ = nodes.ForceRelease(ctx, key, admin.HeldBy(next.Token()))
	}
}

// useTogether uses what locks have that several hold.
func useTogether(ctx context.Context, both []*redlock.Redlock, nodes *admin.Nodes, key string) {
	if _, err := both[0].Semaphore(key, 2).TryAcquire(ctx); err == nil {
		_, _ = nodes.ForceRelease(ctx, key, admin.Anything()) // leaves the list to whoever comes next
	}
	for _, rl := range both {
		permit, err := rl.Semaphore(key, 2).TryAcquire(ctx)
		if err != nil {
			return
		}
		defer func() { _ = permit.Release(ctx) }()
	}
}

// useManyKeys releases locks at the same time, again and again, since it is a matter of chance which
// releases a node is sent together.
func useManyKeys(ctx context.Context, rl *redlock.Redlock, key string) {
	var all []lockset.Member
	for i := range 8 {
		all = append(all, rl.Mutex(fmt.Sprint(key, i)))
	}
	for range 20 {
		locks, err := lockset.New(all...).TryAcquire(ctx)
		if err != nil {
			return
		}
		_ = locks.Release(ctx)
	}
}

// users opens a Redlock as a user with the given rights.
func (s *site) as(t *testing.T, rules ...string) (*redlock.Redlock, func() []redlock.DegradedInfo) {
	t.Helper()
	var urls []string
	for _, x := range s.servers {
		require.NoError(t, x.Client(t).Do(t.Context(), append([]any{"ACL", "SETUSER", "clerk", "reset", "resetchannels", "on", ">pw"}, anys(rules)...)...).Err())
		urls = append(urls, "redis://clerk:pw@"+x.Addr())
	}
	d := new(degradations)
	rl, err := openOn(t.Context(), urls, &redlock.Options{Hooks: d.hooks()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	return rl, d.all
}

func anys(s []string) (a []any) {
	for _, x := range s {
		a = append(a, x)
	}
	return a
}

// What the README of a locked-down server has to allow, and what happens with less.
func TestLineRights(t *testing.T) {
	const scripts = "+@connection ~redlock:memory ~redlock:trial +ping +info +set +get +del +pttl +pexpire +type +evalsha +eval +time"
	const lines = "+zadd +zrem +zscore +zrangebyscore +zrevrange +zcount"
	for _, c := range []struct{ name, rules, lacks string }{
		{"enough", scripts + " " + lines + " +publish +subscribe +unsubscribe &redlock:* ~k ~{k}:line", ""},
		{"no publish", scripts + " " + lines + " +subscribe +unsubscribe &redlock:* ~k ~{k}:line", "PUBLISH"},
		{"no channel", scripts + " " + lines + " +publish +subscribe +unsubscribe resetchannels ~k ~{k}:line", "SUBSCRIBE PUBLISH"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, nil)
			rl, said := s.as(t, strings.Fields(c.rules)...)
			m := rl.Mutex("k")
			for range 3 {
				l, err := m.Acquire(t.Context())
				require.NoError(t, err)
				got := make(chan error)
				var next *redlock.Lock
				go func() {
					var err error
					next, err = m.Acquire(t.Context())
					got <- err
				}()
				s.waiting(t, 1)
				require.NoError(t, l.Release(t.Context()))
				require.NoError(t, <-got)
				require.NoError(t, next.Release(t.Context()), "a release must not fail for want of a line")
			}
			if c.lacks == "" {
				assert.Empty(t, said())
			} else {
				soon(t, func() bool { return len(said()) > 0 })
				seen := map[string]bool{}
				for _, d := range said() {
					what, _, _ := strings.Cut(d.Lacks, ":")
					assert.Contains(t, c.lacks, strings.Fields(what)[min(1, len(strings.Fields(what))-1)])
					assert.False(t, seen[d.Node+d.Lacks], "said twice")
					seen[d.Node+d.Lacks] = true
				}
			}
			s.empty(t)
		})
	}
}
