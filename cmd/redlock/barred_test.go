//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
)

// ageMarks makes these servers ones that have been in use for an hour: nodes that are all new
// have nothing to forget, so none of them is barred.
func (s *site) ageMarks(t *testing.T) {
	t.Helper()
	for _, addr := range s.addrs {
		c := redis.NewClient(&redis.Options{Addr: addr})
		text, err := c.Get(t.Context(), "redlock:memory").Result()
		require.NoError(t, err)
		f := strings.Fields(text)
		at, err := strconv.ParseInt(f[1], 10, 64)
		require.NoError(t, err)
		f[1] = strconv.FormatInt(at-time.Hour.Microseconds(), 10)
		require.NoError(t, c.Set(t.Context(), "redlock:memory", strings.Join(f, " "), 0).Err())
		require.NoError(t, c.Close())
	}
}

func (s *site) flush(t *testing.T, i int) {
	t.Helper()
	c := redis.NewClient(&redis.Options{Addr: s.addrs[i]})
	defer c.Close()
	require.NoError(t, c.FlushAll(t.Context()).Err())
}

// A node that is up and whose grants do not count yet is told of wherever health is told.
func TestNodesThatMayNotVoteYet(t *testing.T) {
	t.Parallel()
	s := newSiteOf(t, 5)
	s.ageMarks(t)
	name := func(i int) string { return s.addrs[i] + "/0" }

	r := s.ran(t, "check")
	require.Equal(t, exitOK, r.code, "%s%s", r.out, r.errOut)
	require.NotContains(t, r.out, "barred")

	s.flush(t, 4)
	r = s.ran(t, "check")
	assert.Equal(t, exitOK, r.code, "four nodes are enough: %s%s", r.out, r.errOut)
	assert.Regexp(t, `warning +barred +`+name(4)+` +had no memory mark: .* for \d+(\.\d)?s more`, r.out)
	assert.Regexp(t, name(4)+` +barred `, r.out)
	r = s.ran(t, "status", "k")
	assert.Equal(t, exitOK, r.code)
	assert.Regexp(t, name(4)+`: may not vote for \d+s yet`, r.out)
	assert.Contains(t, r.out, "1 of 5 nodes may not vote yet; locks work as long as 3 do")

	watch := s.start(t, "watch", "k", "--interval", "50ms")
	assert.Contains(t, watch.line(t), "k is free, 0 waiting; may not vote yet: "+name(4))

	s.servers[1].Kill()
	s.servers[2].Kill()
	down := watch.line(t)
	for !strings.Contains(down, name(1)) || !strings.Contains(down, name(2)) {
		down = watch.line(t)
	}
	assert.Regexp(t, `no lock can be had for \d+s: 2 of 5 nodes may vote, 3 needed; may not vote yet: `+name(4), down)
	require.NoError(t, watch.Process.Signal(syscall.SIGINT))
	assert.Equal(t, exitOK, watch.end(t))

	// The guard's time begins anew, so that it is not over before the rest has been looked at.
	s.flush(t, 4)
	r = s.ran(t, "check")
	assert.Equal(t, exitFailed, r.code)
	assert.Regexp(t, `critical +no-quorum +\(all\) +2 of 5 nodes serve us and may vote, and 3 are needed: no lock can be acquired for \d+(\.\d)?s more`, r.out)
	assert.Contains(t, r.errOut, "critical")
	r = s.ran(t, "status", "k")
	assert.Equal(t, exitOK, r.code, "a majority answered")
	assert.Regexp(t, `No lock can be had for \d+s: 2 of 5 nodes may vote, 3 needed\.`, r.out)
	r = s.ran(t, "status", "k", "--json")
	var st statusJSON
	require.NoError(t, json.Unmarshal([]byte(r.out), &st))
	assert.Equal(t, 3, st.Answers)
	assert.Equal(t, new(2), st.Votes)
	assert.Positive(t, st.Nodes[4].Barred)
	assert.Zero(t, st.Nodes[0].Barred)

	s.flush(t, 4)
	p := s.start(t, "run", "k", "--json", "--ttl", "4s", "--", "true")
	assert.Regexp(t, `^no quorum for \ds, 2 of 5 nodes may vote, 3 needed \(not yet: `+name(4)+`\)$`, p.event(t, "still_waiting").Error)
	p.event(t, "acquired")
	assert.Equal(t, exitOK, p.end(t))
}

// So does the page.
func TestPageTellsOfNodesThatMayNotVoteYet(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ageMarks(t)
	b := newBoard(s.nodes, nil, time.Second)
	look := func() view { return b.look(t.Context()) }
	b.check(t.Context())
	v := look()
	require.Equal(t, good, v.Verdict.Tone)
	s.flush(t, 0)
	s.flush(t, 1)
	marker, err := redlock.Open(t.Context(), s.addrs, nil)
	require.NoError(t, err)
	require.NoError(t, marker.Close()) // with its marks, the nodes are barred until a certain time
	b.check(context.WithoutCancel(t.Context()))
	v = look()
	assert.Equal(t, bad, v.Verdict.Tone)
	assert.Regexp(t, `^No lock can be had yet: 1 of 3 nodes may vote, and 2 are needed`, v.Verdict.Text)
	assert.NotEmpty(t, v.Nodes[0].Barred)
	assert.Empty(t, v.Nodes[2].Barred)
	b.check(t.Context())
	assert.Equal(t, v.Nodes[0].Barred, look().Nodes[0].Barred, "a state changes only when something happens")
}

// A node that answers and has no vote is said to have none wherever health is said, with what it says.
func TestNodesThatHaveNoVote(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ageMarks(t)
	name := s.addrs[2] + "/0"
	admin := redis.NewClient(&redis.Options{Addr: s.addrs[2]})
	defer admin.Close()
	require.NoError(t, admin.Do(t.Context(), "ACL", "SETUSER", "default", "-info").Err())

	r := s.ran(t, "check")
	assert.Equal(t, exitFailed, r.code, "%s%s", r.out, r.errOut)
	assert.Regexp(t, `critical +no-vote +`+name+` +has no vote, so one failure fewer is tolerated: .*INFO server: NOPERM .*the user lacks \+info; see Options.NoRestartGuard`, r.out)
	assert.Regexp(t, name+` +no-vote `, r.out)
	r = s.ran(t, "check", "--json")
	assert.Contains(t, r.out, `"no_vote":"which server it is, and what it remembers, is not known, so its votes do not count: INFO server: NOPERM`)
	r = s.ran(t, "check", "--settle=1s")
	assert.Equal(t, exitFailed, r.code)
	assert.Contains(t, r.errOut, "waiting: "+name+" has no vote: which server it is")

	r = s.ran(t, "status", "k")
	assert.Equal(t, exitOK, r.code)
	assert.Contains(t, strings.Join(strings.Fields(r.out), " "), name+": has no vote: which server it is, and what it remembers, is not known, so its votes do not count: INFO server: NOPERM")
	assert.Contains(t, r.out, "1 of 3 nodes may not vote, and if one more fails no lock can be had")
	r = s.ran(t, "status", "k", "--json")
	var st statusJSON
	require.NoError(t, json.Unmarshal([]byte(r.out), &st))
	assert.Equal(t, 3, st.Answers)
	assert.Equal(t, new(2), st.Votes)
	assert.Contains(t, st.Nodes[2].NoVote, "NOPERM")
	assert.Zero(t, st.Nodes[2].Barred)
	assert.Empty(t, st.Nodes[0].NoVote)

	watch := s.start(t, "watch", "k", "--interval", "50ms")
	assert.Contains(t, watch.line(t), "k is free, 0 waiting; may not vote: "+name)
	require.NoError(t, watch.Process.Signal(syscall.SIGINT))
	assert.Equal(t, exitOK, watch.end(t))
	b := newBoard(s.nodes, nil, time.Second)
	b.check(t.Context())
	v := b.look(t.Context())
	assert.Equal(t, odd, v.Verdict.Tone)
	assert.Contains(t, v.Verdict.Text, "1 of them may not vote")
	assert.True(t, v.Nodes[2].Voteless)
	assert.Contains(t, fmt.Sprint(v.Findings), "has no vote")

	s.servers[0].Kill()
	r = s.ran(t, "status", "k")
	assert.Contains(t, r.out, "No lock can be had: 1 of 3 nodes may vote, 2 needed.")
}
