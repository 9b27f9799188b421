//go:build unix

package main

import (
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// The rolling restart of operations.md, of a fleet that no program uses meanwhile, and a job right
// behind it that waits no longer than its lock takes.
func TestRollingRestartOfAnIdleFleet(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.ageMarks(t)
	for i, x := range s.servers {
		require.NoError(t, x.Restart())
		before := s.ran(t, "check", "--ttl", "3s")
		assert.Regexp(t, s.addrs[i]+`/0 +had no memory mark: .*; started \S+ ago; .* for 3s more; that time begins when a client connects`, before.out, "it leaves no mark")
		r := s.ran(t, "check", "--settle=1m", "--ttl", "3s")
		require.Equal(t, exitOK, r.code, "%s%s", r.out, r.errOut)
		assert.Contains(t, r.errOut, "waiting: "+s.addrs[i]+"/0 may vote in ")
		assert.NotContains(t, r.out, "barred")
	}
	start := time.Now()
	r := s.ran(t, "run", "report", "--ttl", "3s", "--timeout", "5s", "--", "true")
	require.Equal(t, exitOK, r.code, "%v: %s", time.Since(start), r.errOut)
}

func TestSettleEndsWithoutANode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.servers[2].Kill()
	r := s.ran(t, "check", "--settle=2s")
	assert.Equal(t, exitFailed, r.code)
	assert.Contains(t, r.errOut, "not settled within 2s: "+s.addrs[2]+"/0 does not serve us")
	r = s.ran(t, "check", "--settle=-1s")
	assert.Equal(t, exitUsage, r.code)

	// It says what it found when it is interrupted, or is not to wait.
	p := s.start(t, "check", "--settle")
	require.Eventually(t, func() bool { return strings.Contains(p.errs.String(), "waiting: ") }, 20*time.Second, time.Millisecond)
	require.NoError(t, p.Process.Signal(os.Interrupt))
	out, err := io.ReadAll(p.out)
	require.NoError(t, err)
	assert.Equal(t, exitFailed, p.end(t))
	assert.Contains(t, string(out), "unreachable")
	assert.Contains(t, p.errs.String(), "interrupted before all may vote")
	assert.NotContains(t, string(out)+p.errs.String(), "Nothing found")
	_, port, err := net.SplitHostPort(s.addrs[0])
	require.NoError(t, err)
	r = s.ran(t, "check", "--settle", "--addrs", s.addrs[0]+",localhost:"+port+","+s.addrs[1])
	assert.Equal(t, exitFailed, r.code)
	assert.Contains(t, r.out, "same-server")
}

// A new fleet is told of in the guard's words.
func TestCheckOfANewFleetThatIsNotWhole(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	s := &site{servers: realredis.StartN(t, 3)}
	for _, x := range s.servers {
		s.addrs = append(s.addrs, x.Addr())
	}
	s.servers[2].Kill()
	r := s.ran(t, "check")
	assert.Equal(t, exitFailed, r.code)
	assert.Regexp(t, `barred +`+s.addrs[0]+`/0 +new fleet: `+s.addrs[2]+`/0 not seen yet; .* for \S+ more; that time begins when a client connects`, r.out)
}
