//go:build unix

package main

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
)

// The command is over at once, and a machine whose clock is behind does not run it again.
func TestRunWithMinHold(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "--json", "--min-hold", "60s", "--", "sh", "-c", "exit 3")
	require.Equal(t, 3, p.end(t), p.errs.String())
	require.Empty(t, p.event(t, "released").Error)
	assert.False(t, s.free(t))
	assert.Equal(t, exitBusy, s.start(t, "run", "k", "-n", "--min-hold", "60s", "--", "true").end(t))
	s.takeAway(t, "k")

	// The lease is longer than it is to be kept, and that counts.
	require.Equal(t, 0, s.start(t, "run", "k", "--min-hold", "2s", "--ttl", "60s", "--", "true").end(t))
	s.endsWithin(t, 3*time.Second)
}

// A program hands its lock over to a command; and one that was killed is gone on with.
func TestRunAdoptsALock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lock := s.hold(t)
	token := lock.Detach()
	p := s.prepare(t, "run", "k", "--adopt", "--", "sh", "-c", "echo $REDLOCK_TOKEN; echo =$REDLOCK_ADOPT=; exec sleep 600")
	p.Env = append(p.Env, adoptVariable+"="+token)
	p.launch(t)
	next := p.line(t)
	assert.Len(t, next, 32, p.errs.String())
	assert.NotEqual(t, token, next)
	assert.Equal(t, "==", p.line(t), "the token is not the command's business")
	require.NoError(t, p.Process.Signal(syscall.SIGKILL))
	p.end(t)
	st, err := s.nodes.Inspect(t.Context(), "k")
	require.NoError(t, err)
	assert.Equal(t, next, st.Token)

	again := s.prepare(t, "run", "k", "--adopt", "--", "true")
	again.Env = append(again.Env, adoptVariable+"="+next)
	again.launch(t)
	assert.Equal(t, 0, again.end(t), again.errs.String())
	assert.True(t, s.free(t))

	late := s.prepare(t, "run", "k", "--adopt", "--", "echo", "ran")
	late.Env = append(late.Env, adoptVariable+"="+next)
	late.launch(t)
	assert.Empty(t, late.line(t))
	assert.Equal(t, exitBusy, late.end(t))
	assert.Contains(t, late.errs.String(), strings.TrimPrefix(redlock.ErrNotHeld.Error(), "redlock: "))
}

// What breaks a rule is said before any node is asked.
func TestRunRefusesTermsOfAdoptAndMinHold(t *testing.T) {
	nowhere := "--addrs=127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
	for line, says := range map[string]string{
		"a --adopt -- true":                        "--adopt needs a token in $REDLOCK_ADOPT: 32 hexadecimal digits in lower case, and it has 0 bytes",
		"a b --adopt -- true":                      "--adopt takes one key, not 2",
		"a --adopt -n -- true":                     "--adopt waits for nobody",
		"a --adopt -w 1s -- true":                  "--adopt waits for nobody",
		"a --adopt --shared -- true":               "--adopt is for exclusive locks",
		"a --adopt --permits 2 -- true":            "--adopt is for exclusive locks",
		"a --min-hold 10ms -- true":                "--min-hold is 10ms: must be from 1s to 24h",
		"a --min-hold 0s -- true":                  "--min-hold is 0s: must be from 1s to 24h",
		"a --min-hold 25h -- true":                 "--min-hold is 25h0m0s: must be from 1s to 24h",
		"a --min-hold 1m":                          "--min-hold is for what comes after a command",
		"a --min-hold 1m --keep 1m -- true":        "--min-hold and --keep exclude each other",
		"a --min-hold 1m --shared -- true":         "--min-hold is for exclusive locks",
		"a --min-hold 1m --permits 2 -- true":      "--min-hold is for exclusive locks",
		"a b --min-hold 1m --adopt --ttl 1ms -- x": "--ttl is 1ms",
	} {
		r := run(t, t.Context(), append([]string{"run", nowhere}, strings.Fields(line)...)...)
		assert.Equal(t, exitUsage, r.code, line)
		assert.Contains(t, r.errOut, says, line)
	}
}
