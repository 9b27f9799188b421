//go:build unix

package main

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What breaks a rule is said before any node is asked: there is none at these addresses.
func TestRunRefusesWhatDoesNotGoTogether(t *testing.T) {
	nowhere := "--addrs=127.0.0.1:1,127.0.0.1:2,127.0.0.1:3"
	for line, says := range map[string]string{
		"a b a -- true":                   `the key "a" is there twice`,
		"a b":                             "run takes one key, and with a command any number",
		"-- true":                         "run takes one key, and with a command any number",
		"a --shared --fencing -- true":    "--shared and --fencing exclude each other",
		"a --permits 2 --fencing -- true": "--permits and --fencing exclude each other",
		"a --permits 2 --shared -- true":  "--shared and --permits exclude each other",
		"a --permits 0 -- true":           "--permits is 0: must be from 1 to 1024",
		"a --permits 1025 -- true":        "--permits is 1025: must be from 1 to 1024",
		"a b --permits 2 -- true":         "--permits takes one key, not 2",
		"a b --shared -- true":            "--shared takes one key, not 2",
	} {
		r := run(t, t.Context(), append([]string{"run", nowhere}, strings.Fields(line)...)...)
		assert.Equal(t, exitUsage, r.code, line)
		assert.Contains(t, r.errOut, says, line)
	}
	r := run(t, t.Context(), "run", nowhere, "a\nb", "--", "true")
	assert.Equal(t, exitUsage, r.code)
	assert.Contains(t, r.errOut, `the key "a\nb" has a line break`, "$REDLOCK_KEY would have two lines")
}

// Several locks are held while the command runs, and released; if one is busy none is kept.
func TestRunHoldsSeveralLocks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "b", "a", "--json", "--fencing", "--", "sh", "-c",
		`echo $REDLOCK_KEY / $REDLOCK_TOKEN / $REDLOCK_FENCE; trap "exit 3" USR1; while :; do sleep 0.05; done`)
	said := strings.Split(p.line(t), " / ")
	require.Len(t, said, 3)
	assert.Equal(t, "k b a", said[0])
	tokens := strings.Fields(said[1])
	assert.Len(t, strings.Fields(said[2]), 3)
	got := p.event(t, "acquired")
	assert.Equal(t, []string{"k", "b", "a"}, got.Keys)
	assert.Equal(t, tokens, got.Tokens)
	assert.Empty(t, got.Token+got.Key)
	for i, key := range got.Keys {
		st, err := s.nodes.Inspect(t.Context(), key)
		require.NoError(t, err)
		assert.Equal(t, tokens[i], st.Token, key)
	}

	r := s.ran(t, "run", "z", "b", "-n", "--", "true")
	assert.Equal(t, exitBusy, r.code, r.errOut)
	waits := s.start(t, "run", "a", "z", "--json", "--", "echo", "ran")
	e := waits.event(t, "still_waiting")
	assert.Equal(t, "a", e.Key, "the one it waits for")
	assert.Equal(t, tokens[2][:8], e.HolderToken)

	require.NoError(t, p.Process.Signal(syscall.SIGUSR1))
	assert.Equal(t, 3, p.end(t))
	assert.Equal(t, "ran", waits.line(t))
	assert.Equal(t, 0, waits.end(t))
	for _, key := range []string{"k", "b", "a", "z"} {
		held, err := s.rl.Mutex(key).Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, held.Release(t.Context()))
	}
}

// The loss of one of several locks ends the command.
func TestRunLosesOneOfSeveralLocks(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "b", "--ttl", "3s", "--", "sh", "-c", "echo ready; while :; do sleep 0.05; done")
	require.Equal(t, "ready", p.line(t))
	s.takeAway(t, "b")
	assert.Equal(t, exitLost, p.end(t), p.errs.String())
	assert.True(t, s.free(t))
}

const untilSignal = `echo ready $REDLOCK_PERMIT; trap "exit 0" USR1; while :; do sleep 0.05; done`

func TestRunSharesALock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var readers []*process
	for range 2 {
		p := s.start(t, "run", "k", "--shared", "--", "sh", "-c", untilSignal)
		require.Equal(t, "ready", p.line(t))
		readers = append(readers, p)
	}
	r := s.ran(t, "run", "k", "-n", "--", "true")
	assert.Equal(t, exitBusy, r.code, r.errOut)

	r = s.ran(t, "status", "k")
	assert.Equal(t, 0, r.code, r.errOut)
	assert.Contains(t, r.out, "k is shared by 2, for ")
	assert.Regexp(t, `(?m)^- +\S+:\d+ sh +[0-9.]+m?s +[0-9a-f]{32}$`, r.out)
	assert.Equal(t, 4, strings.Count(r.out, "shared by 2"), "the verdict and each node:\n%s", r.out)
	var st statusJSON
	require.NoError(t, json.Unmarshal([]byte(s.ran(t, "status", "k", "--json").out), &st))
	assert.True(t, st.Shared && *st.Held)
	require.Len(t, st.Holders, 2)
	assert.Nil(t, st.Holders[0].Permit)
	assert.Positive(t, st.Holders[0].TTL)
	assert.Regexp(t, `(?m)^k +shared: \S+ sh \+1 +- +[0-9.]+m?s +3/3$`, s.ran(t, "list").out)
	var all listJSON
	require.NoError(t, json.Unmarshal([]byte(s.ran(t, "list", "--json").out), &all))
	require.Len(t, all.Locks, 1)
	assert.True(t, all.Locks[0].Shared)
	assert.Len(t, all.Locks[0].Holders, 2)

	waits := s.start(t, "run", "k", "--json", "--", "echo", "ran")
	assert.Equal(t, 2, waits.event(t, "still_waiting").SharedBy)
	for _, p := range readers {
		require.NoError(t, p.Process.Signal(syscall.SIGUSR1))
		assert.Equal(t, 0, p.end(t), p.errs.String())
	}
	assert.Equal(t, "ran", waits.line(t))
	assert.Equal(t, 0, waits.end(t))
}

func TestRunHoldsAPermit(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	permits := make(map[string]*process)
	for range 2 {
		p := s.start(t, "run", "k", "--permits", "2", "--json", "--", "sh", "-c", untilSignal)
		permits[p.line(t)] = p
		assert.Contains(t, []int{0, 1}, *p.event(t, "acquired").Permit)
	}
	require.ElementsMatch(t, []string{"ready 0", "ready 1"}, slices.Collect(maps.Keys(permits)))
	r := s.ran(t, "run", "k", "--permits", "2", "-n", "--", "true")
	assert.Equal(t, exitBusy, r.code, r.errOut)
	r = s.ran(t, "run", "k", "--permits", "2", "-w", "300ms", "-E", "9", "--", "true")
	assert.Equal(t, 9, r.code, r.errOut)
	var st statusJSON
	require.NoError(t, json.Unmarshal([]byte(s.ran(t, "status", "k", "--json").out), &st))
	require.Len(t, st.Holders, 2)
	assert.Equal(t, 1, *st.Holders[1].Permit)

	require.NoError(t, permits["ready 0"].Process.Signal(syscall.SIGUSR1))
	assert.Equal(t, 0, permits["ready 0"].end(t))
	r = s.ran(t, "run", "k", "--permits", "2", "--", "sh", "-c", "echo $REDLOCK_PERMIT")
	assert.Equal(t, "0\n", r.out, "the one that was given up; %s", r.errOut)
	require.NoError(t, permits["ready 1"].Process.Signal(syscall.SIGUSR1))
	assert.Equal(t, 0, permits["ready 1"].end(t))
	assert.True(t, s.free(t))
}

// Who shares is news for watch, though the key's value stays the same.
func TestWatchTellsWhoShares(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "watch", "k", "--interval", "50ms")
	assert.Contains(t, p.line(t), "k is free")
	for _, says := range []string{"k is shared by 1", "k is shared by 2"} {
		_, err := s.rl.Mutex("k").Shared().TryAcquire(t.Context())
		require.NoError(t, err)
		assert.Contains(t, p.line(t), says)
	}
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	assert.Equal(t, 0, p.end(t))
}
