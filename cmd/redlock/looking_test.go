//go:build unix

package main

import (
	"os"
	"os/user"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// A mistyped address leads to somebody's servers: commands that look leave nothing there.
func TestCommandsThatLookWriteNothing(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	s := &site{servers: realredis.StartN(t, 3)}
	for _, x := range s.servers {
		s.addrs = append(s.addrs, x.Addr())
	}
	for _, args := range [][]string{{"check"}, {"status", "k"}, {"list"}} {
		require.Equal(t, exitOK, s.ran(t, args...).code, args)
	}
	w := s.start(t, "watch", "k", "--interval", "50ms")
	assert.Contains(t, w.line(t), "k is free")
	require.NoError(t, w.Process.Signal(os.Interrupt))
	require.Equal(t, 0, w.end(t))
	all := s.start(t, "watch", "--interval", "50ms")
	assert.Contains(t, all.line(t), "0 locks held")
	require.NoError(t, all.Process.Signal(os.Interrupt))
	require.Equal(t, 0, all.end(t))
	for _, x := range s.servers {
		assert.Empty(t, x.Client(t).Keys(t.Context(), "*").Val())
	}
}

// At 3 a.m. an owner says who runs what.
func TestRunSaysWhoRunsWhat(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	me, err := user.Current()
	require.NoError(t, err)
	p := s.start(t, "run", "a", "--", "sh", "-c", "echo ready; exec sleep 60", "secret-argument")
	q := s.start(t, "run", "b", "--owner", "nightly report", "--", "sh", "-c", "echo ready; exec sleep 60")
	require.Equal(t, "ready", p.line(t))
	require.Equal(t, "ready", q.line(t))
	out := s.ran(t, "status", "a").out
	assert.Contains(t, out, "held by "+me.Username+"@")
	assert.Contains(t, out, ":"+strconv.Itoa(p.Process.Pid)+" sh, ")
	assert.NotContains(t, out, "secret-argument")
	assert.Contains(t, s.ran(t, "status", "b").out, "held by nightly report ")
	r := s.ran(t, "run", "c", "--owner", strings.Repeat("x", 101))
	assert.Equal(t, exitUsage, r.code)
	assert.Contains(t, r.errOut, "--owner is 101 bytes long: must be at most 100")
}
