//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/doccheck"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// list finds the locks that a majority has among all other keys.
func TestList(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx := t.Context()
	var tokens []string
	for i := range 1200 { // more than a batch
		lock, err := s.rl.Mutex(fmt.Sprintf("many:%d", i)).Acquire(ctx)
		require.NoError(t, err)
		tokens = append(tokens, lock.Token())
	}
	_, err := s.rl.Mutex("orders:[4*2]", redlock.WithFencing()).Acquire(ctx)
	require.NoError(t, err)
	c := s.servers[0].Client(t)
	require.NoError(t, c.Set(ctx, "orders:text", "no lock", 0).Err())
	require.NoError(t, c.LPush(ctx, "orders:list", "x").Err())
	for _, x := range s.servers { // a waiter keeps newcomers from sharing
		for _, door := range []string{"{orders:1}:door", "orders:{1}:door:"} {
			require.NoError(t, x.Client(t).Set(ctx, door, strings.Repeat("cd", 16)+"@waiter", time.Minute).Err())
		}
	}
	require.NoError(t, c.Set(ctx, "orders:half", strings.Repeat("ab", 16)+"@half", time.Minute).Err())

	r := s.ran(t, "list", "--prefix", "orders:")
	assert.Equal(t, 0, r.code, r.errOut)
	assert.Regexp(t, `(?m)^orders:\[4\*2\]  the test  [0-9a-f]{8}\.\.\.  [0-9.ms]+ +3/3$`, r.out)
	assert.Contains(t, r.out, "\n1 lock\n")
	assert.NotContains(t, r.out, "half")
	assert.Contains(t, s.ran(t, "list", "--prefix", "orders:", "--all").out, "1/3")
	assert.Equal(t, "no locks\n", s.ran(t, "list", "--prefix", "orders:?").out, "it is no pattern")

	var all listJSON
	r = s.ran(t, "list", "--json", "--limit", "100000")
	require.NoError(t, json.Unmarshal([]byte(r.out), &all), r.out)
	assert.Len(t, all.Locks, 1201)
	assert.False(t, all.More)
	found := make(map[string]listed)
	for _, l := range all.Locks {
		found[l.Key] = l
	}
	assert.Equal(t, tokens[77], found["many:77"].Token)
	assert.Equal(t, "the test", found["many:77"].Owner)
	assert.InDelta(t, 30, found["many:77"].TTL, 31)
	assert.Contains(t, s.ran(t, "list", "--limit", "1").out, "There may be more")

	s.servers[0].Kill()
	r = s.ran(t, "list", "--prefix", "orders:")
	assert.Equal(t, 0, r.code)
	assert.Contains(t, r.out, "2/3")
	assert.Contains(t, r.out, "connection refused")
	s.servers[1].Kill()
	r = s.ran(t, "list")
	assert.Equal(t, 1, r.code)
	assert.NotContains(t, r.out, "no locks", "nobody knows")
	assert.Contains(t, r.errOut, "1 of 3 nodes could be searched, 2 needed")
	assert.Equal(t, 2, s.ran(t, "list", "--limit", "0").code)
	assert.Equal(t, 2, s.ran(t, "list", "k").code)
}

// listRights are the rules that docs/operations.md gives to a user who lists locks.
func listRights(t *testing.T) (rules []any) {
	t.Helper()
	blocks, err := doccheck.Blocks("../../docs/operations.md")
	require.NoError(t, err)
	for _, b := range blocks {
		if b.Info == "acl list" {
			for _, w := range strings.Fields(b.Code)[3:] {
				rules = append(rules, w)
			}
		}
	}
	require.NotEmpty(t, rules)
	return rules
}

// The rights on the page are enough, and each is needed, or the list says so.
func TestListWithFewRights(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ctx := t.Context()
	_, err := s.rl.Mutex("orders:1").Acquire(ctx)
	require.NoError(t, err)
	as := func(user string, rules []any, args ...string) result {
		var addrs []string
		for _, x := range s.servers {
			require.NoError(t, x.Client(t).Do(ctx, append([]any{"ACL", "SETUSER", user}, rules...)...).Err())
			addrs = append(addrs, "redis://"+user+":a-long-password@"+x.Addr())
		}
		theirs := site{servers: s.servers, addrs: addrs}
		return theirs.ran(t, append([]string{"list"}, args...)...)
	}
	all := listRights(t)
	r := as("all", all)
	assert.Equal(t, 0, r.code, r.errOut)
	assert.Contains(t, r.out, "orders:1")
	assert.Contains(t, r.out, "\n1 lock\n")
	assert.Contains(t, r.out, "this user may not read 1 of the keys", "the memory mark")
	assert.NotContains(t, as("all", all, "--prefix", "orders:").out, "may not read")
	for _, rule := range all {
		if word := rule.(string); strings.ContainsAny(word[:1], "+") {
			less := slices.DeleteFunc(slices.Clone(all), func(r any) bool { return r == rule })
			r := as("less"+word[1:], less)
			assert.NotEqual(t, 0, r.code, "without %s: %s", rule, r.out)
			assert.NotContains(t, r.out, "no locks")
			assert.Contains(t, r.out, "NOPERM")
		}
	}
}

// Certificates are named by flags, the environment or the config file.
func TestTLSFiles(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	server := realredis.Start(t, realredis.TLS())
	c := server.Client(t)
	require.NoError(t, c.ConfigSet(t.Context(), "tls-auth-clients", "yes").Err())
	file := func(directive string) string {
		v, err := c.ConfigGet(t.Context(), directive).Result()
		require.NoError(t, err)
		return v[directive]
	}
	files := tlsFiles{CA: file("tls-ca-cert-file"), Cert: file("tls-cert-file"), Key: file("tls-key-file")}
	s := &site{addrs: []string{server.Addr()}}
	flags := []string{"--tls-ca", files.CA, "--tls-cert", files.Cert, "--tls-key", files.Key}
	for _, args := range [][]string{{"status", "k"}, {"list"}, {"check"}, {"bench", "--duration", "200ms", "--goroutines", "1"}, {"run", "k"}} {
		args = append(args, flags...)
		if args[0] == "run" {
			args = append(args, "--", "true")
		}
		r := s.ran(t, args...)
		assert.Zero(t, r.code, "%v: %s%s", args, r.out, r.errOut)
	}

	// What the server says of a missing certificate may be lost: the hint is not.
	for range 5 {
		for _, args := range [][]string{{"status", "k"}, {"list"}, {"check"}} {
			r := s.ran(t, append(args, "--tls-ca", files.CA)...)
			assert.Equal(t, 1, r.code, "%v", args)
			assert.Contains(t, r.out+r.errOut, "give it one with --tls-cert and --tls-key", "%v", args)
		}
	}

	p := s.prepare(t, "status", "k")
	p.Env = append(p.Env, "REDLOCK_TLS_CA="+files.CA, "REDLOCK_TLS_CERT="+files.Cert, "REDLOCK_TLS_KEY="+files.Key)
	p.launch(t)
	assert.Contains(t, p.line(t), "k is free", lazily(p.errs.String))

	path := filepath.Join(t.TempDir(), "redlock.json")
	beside := files // what the file names is relative to it
	var err error
	for _, f := range []*string{&beside.CA, &beside.Cert, &beside.Key} {
		*f, err = filepath.Rel(filepath.Dir(path), *f)
		require.NoError(t, err)
	}
	text, err := json.Marshal(config{Addrs: []string{"rediss://" + server.Addr()}, TLS: beside})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o600))
	r := (&site{}).ran(t, "status", "k", "--config", path)
	assert.Zero(t, r.code, r.errOut)

	for _, bad := range [][]string{{"--tls-ca", "/no/such"}, {"--tls-ca", path}, {"--tls-cert", files.Cert}, {"--tls-key", files.Key}} {
		r := s.ran(t, append([]string{"status", "k"}, bad...)...)
		assert.Equal(t, exitUsage, r.code, "%v", bad)
		assert.Contains(t, r.errOut, "--tls-")
	}
}
