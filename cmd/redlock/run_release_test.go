//go:build unix

package main

import (
	"context"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/faultproxy"
)

// behindProxies is the way to the servers that commands take; the test itself has one of its own.
func (s *site) behindProxies(t *testing.T) (proxies []*faultproxy.Proxy) {
	t.Helper()
	for i, server := range s.addrs {
		p := faultproxy.New(func(ctx context.Context) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", server)
		})
		t.Cleanup(p.Close)
		addr, err := p.Listen()
		require.NoError(t, err)
		s.addrs[i] = addr
		proxies = append(proxies, p)
	}
	return proxies
}

// unreleased is a run whose command ends while all nodes refuse connections; it returns when redlock has
// nothing to do but to release.
func (s *site) unreleased(t *testing.T, proxies []*faultproxy.Proxy, args ...string) *process {
	t.Helper()
	in, out, err := os.Pipe()
	require.NoError(t, err)
	p := s.startWith(t, in, append(append([]string{"run", "k", "--ttl", "60s"}, args...), "--", "sh", "-c", "echo ready; read x; exit 3")...)
	require.NoError(t, in.Close())
	require.Equal(t, "ready", p.line(t))
	for _, x := range proxies {
		x.Refuse()
	}
	require.NoError(t, out.Close())
	return p
}

// says waits for what is said on standard error.
func (p *process) says(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(p.errs.String(), text) }, 20*time.Second, 5*time.Millisecond, lazily(p.errs.String))
}

func answerAgain(proxies []*faultproxy.Proxy) {
	for _, x := range proxies {
		x.Heal()
	}
}

// The release is tried again until the nodes answer, and the lock is free then.
func TestRunReleasesWhenNodesAnswerAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	proxies := s.behindProxies(t)
	for _, kind := range [][]string{nil, {"--shared"}, {"--permits", "2"}} {
		p := s.unreleased(t, proxies, kind...)
		p.says(t, "the release is tried again")
		assert.False(t, s.free(t))
		answerAgain(proxies)
		assert.Equal(t, 3, p.end(t), p.errs.String())
		assert.True(t, s.free(t), "%v: %s", kind, p.errs.String())
		assert.Equal(t, 1, strings.Count(p.errs.String(), "\n"), p.errs.String())
	}
}

// With --min-hold the key stays, for that long.
func TestRunReleasesWithMinHoldWhenNodesAnswerAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	proxies := s.behindProxies(t)
	p := s.unreleased(t, proxies, "--min-hold", "20s", "--json")
	again := p.event(t, "releasing")
	assert.NotEmpty(t, again.Error)
	assert.WithinDuration(t, time.Now().Add(time.Minute), *again.Until, 15*time.Second)
	answerAgain(proxies)
	assert.Equal(t, 3, p.end(t), p.errs.String())
	assert.Empty(t, p.event(t, "released").Error)
	st, err := s.nodes.Inspect(t.Context(), "k")
	require.NoError(t, err)
	assert.Positive(t, st.TTL)
	assert.Less(t, st.TTL, 25*time.Second)
}

// A signal, or the end of the time that is given, ends the tries. What the command says of itself counts.
func TestRunGivesUpItsRelease(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	proxies := s.behindProxies(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		p := s.unreleased(t, proxies)
		p.says(t, "the release is tried again")
		require.NoError(t, p.Process.Signal(syscall.SIGWINCH))
		require.NoError(t, p.Process.Signal(sig))
		assert.Equal(t, 3, p.end(t), p.errs.String())
		assert.Contains(t, p.errs.String(), "the lease ends by itself")
		answerAgain(proxies)
		s.takeAway(t, "k")
	}
	p := s.unreleased(t, proxies, "--release-timeout", "1s")
	assert.Equal(t, 3, p.end(t), p.errs.String())
	assert.Contains(t, p.errs.String(), "the release is tried again")
	answerAgain(proxies)
	s.takeAway(t, "k")

	p = s.unreleased(t, proxies, "--release-timeout", "0")
	assert.Equal(t, 3, p.end(t), p.errs.String())
	assert.NotContains(t, p.errs.String(), "again")
	answerAgain(proxies)
	s.takeAway(t, "k")

	// When the lease is over there is nothing to release any more.
	p = s.unreleased(t, proxies, "--ttl", "3s")
	assert.Equal(t, 3, p.end(t), p.errs.String())
	assert.Equal(t, 1, strings.Count(p.errs.String(), "\n"), p.errs.String())
}
