//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/child"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// site are servers, and the program to be run against them.
type site struct {
	servers []*realredis.Server
	addrs   []string
	rl      *redlock.Redlock
	nodes   *admin.Nodes
}

func newSite(t *testing.T) *site {
	t.Helper()
	return newSiteOf(t, 3)
}

func newSiteOf(t *testing.T, n int) *site {
	t.Helper()
	realredis.Need(t)
	s := &site{servers: realredis.StartN(t, n)}
	for _, x := range s.servers {
		s.addrs = append(s.addrs, x.Addr())
	}
	var err error
	// What the test asks is for its own knowledge: a busy machine may take its time.
	s.rl, err = redlock.Open(t.Context(), s.addrs, &redlock.Options{TTL: time.Minute, NodeTimeout: 5 * time.Second, Owner: "the test"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.rl.Close() })
	s.nodes, err = admin.Open(s.addrs, &admin.Options{Timeout: 5 * time.Second, TTL: time.Minute})
	require.NoError(t, err)
	t.Cleanup(func() { _ = s.nodes.Close() })
	return s
}

// takeAway is what an operator does to a lock.
func (s *site) takeAway(t *testing.T, key string) {
	t.Helper()
	_, err := s.nodes.ForceRelease(t.Context(), key, admin.Anything())
	require.NoError(t, err)
}

func (s *site) hold(t *testing.T) *redlock.Lock {
	t.Helper()
	lock, err := s.rl.Mutex("k").Acquire(t.Context())
	require.NoError(t, err)
	return lock
}

// process is the program, running.
type process struct {
	*exec.Cmd
	out  *bufio.Reader
	errs lockedBuffer
	via  string // what it was started through, if it is that program's child
}

func (s *site) start(t *testing.T, args ...string) *process {
	t.Helper()
	return s.startWith(t, nil, args...)
}

func (s *site) startWith(t *testing.T, in *os.File, args ...string) *process {
	t.Helper()
	p := s.prepare(t, args...)
	if in != nil {
		p.Stdin = in
	}
	p.launch(t)
	return p
}

// prepare is a program that does not run yet.
func (s *site) prepare(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{Cmd: child.Command(asProgram, args...)}
	p.Env = append(p.Env, addrsEnv+"="+strings.Join(s.addrs, ","))
	p.Stderr = &p.errs
	p.WaitDelay = 500 * time.Millisecond // for what a killed one leaves behind
	out, err := p.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	return p
}

func (p *process) launch(t *testing.T) {
	t.Helper()
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill() })
}

// line is what the command says next.
func (p *process) line(t *testing.T) string {
	t.Helper()
	got := make(chan string, 1)
	go func() { l, _ := p.out.ReadString('\n'); got <- strings.TrimSpace(l) }()
	select {
	case l := <-got:
		return l
	case <-time.After(30 * time.Second):
		require.FailNow(t, "it says nothing", p.errs.String())
		return ""
	}
}

// end is the exit status.
func (p *process) end(t *testing.T) int {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.Wait() }()
	select {
	case <-done:
		return p.ProcessState.ExitCode()
	case <-time.After(60 * time.Second):
		require.FailNow(t, "it does not end")
		return 0
	}
}

func (s *site) free(t *testing.T) bool {
	t.Helper()
	st, err := s.nodes.Inspect(t.Context(), "k")
	require.NoError(t, err)
	return !st.Held()
}

func TestRunExitsAsItsCommand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, c := range []struct {
		want int
		args []string
	}{
		{0, []string{"--", "true"}},
		{7, []string{"--", "sh", "-c", "exit 7"}},
		{143, []string{"--", "sh", "-c", "kill -TERM $$"}},
		{137, []string{"--", "sh", "-c", "kill -KILL $$"}},
		{127, []string{"--", "no-such-command"}},
		{126, []string{"--", "/etc/passwd"}},
		{2, []string{"--"}},
		{2, []string{"true"}},
		{2, []string{"--ttl", "1ms", "--", "true"}},
		{2, []string{"-n", "-w", "1s", "--", "true"}},
		{2, []string{"-w", "-1s", "--", "true"}},
		{2, []string{"-E", "256", "--", "true"}},
		{2, []string{"--keep", "10ms", "--", "true"}},
		{2, []string{"--keep", "1m"}},
		{2, []string{"b"}},
		{2, []string{"b", "--"}},
		{2, []string{"--keep", "1m", "--ttl", "1m", "--", "true"}},
		{2, []string{"--addrs", "redis://me:secret@localhost:1", "--", "true"}},
	} {
		p := s.start(t, append([]string{"run", "k"}, c.args...)...)
		assert.Equal(t, c.want, p.end(t), "%v: %s", c.args, p.errs.String())
		assert.NotContains(t, p.errs.String(), "secret")
		assert.True(t, s.free(t))
	}
}

func TestRunTellsItsCommandOfTheLock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "--fencing", "--", "sh", "-c", "echo $REDLOCK_KEY $REDLOCK_TOKEN $REDLOCK_FENCE; read x")
	p.Stdin = nil
	said := strings.Fields(p.line(t))
	require.Len(t, said, 3)
	assert.Equal(t, "k", said[0])
	assert.Len(t, said[1], 32)
	fence, err := strconv.ParseUint(said[2], 10, 64)
	require.NoError(t, err)
	assert.Positive(t, fence)
	assert.Equal(t, 1, p.end(t), "standard input is empty")
}

func TestRunIsBusy(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lock := s.hold(t)
	for code, args := range map[int][]string{
		exitBusy: {"-n"}, 9: {"-n", "-E", "9"}, 33: {"-w", "200ms", "-E", "33"}, 0: {"-n", "-E", "0"},
	} {
		p := s.start(t, append(append([]string{"run", "k"}, args...), "--", "echo", "ran")...)
		assert.Empty(t, p.line(t))
		assert.Equal(t, code, p.end(t))
		assert.Contains(t, p.errs.String(), "held by another")
	}
	p := s.start(t, "run", "k", "--", "echo", "ran")
	require.Eventually(t, func() bool {
		st, err := s.nodes.Inspect(t.Context(), "k")
		return err == nil && len(st.Waiters) == 1
	}, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, lock.Release(t.Context()))
	assert.Equal(t, "ran", p.line(t))
	assert.Equal(t, 0, p.end(t))
}

func TestRunWithoutAMajority(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.servers[0].Kill()
	s.servers[1].Kill()
	p := s.start(t, "run", "k", "-w", "1s", "--", "echo", "ran")
	assert.Empty(t, p.line(t))
	assert.Equal(t, exitNoQuorum, p.end(t), p.errs.String())
	assert.Contains(t, p.errs.String(), "redlock: open: no quorum within 1s (1 of 3 nodes")
	assert.NotContains(t, p.errs.String(), "context deadline")
}

// A signal while waiting ends the wait, and the command is never started.
func TestRunIsInterruptedWhileItWaits(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lock := s.hold(t)
	for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP} {
		p := s.start(t, "run", "k", "--", "echo", "ran")
		require.Eventually(t, func() bool {
			st, err := s.nodes.Inspect(t.Context(), "k")
			return err == nil && len(st.Waiters) == 1
		}, 20*time.Second, 5*time.Millisecond)
		require.NoError(t, p.Process.Signal(sig))
		assert.Empty(t, p.line(t))
		assert.Equal(t, 128+int(sig), p.end(t))
	}
	require.Eventually(t, func() bool {
		st, err := s.nodes.Inspect(t.Context(), "k")
		return err == nil && len(st.Waiters) == 0
	}, 20*time.Second, 5*time.Millisecond, "they left the line")
	require.NoError(t, lock.Release(t.Context()))
}

func TestRunForwardsSignals(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "--", "sh", "-c",
		"trap 'echo USR1' USR1; trap 'echo INT' INT; trap 'echo TERM; exit 5' TERM; echo ready; while :; do sleep 0.05; done")
	require.Equal(t, "ready", p.line(t))
	for _, sig := range []syscall.Signal{syscall.SIGUSR1, syscall.SIGINT, syscall.SIGTERM} {
		require.NoError(t, p.Process.Signal(sig))
		require.Equal(t, strings.TrimPrefix(strings.ToUpper(map[syscall.Signal]string{
			syscall.SIGUSR1: "usr1", syscall.SIGINT: "int", syscall.SIGTERM: "term",
		}[sig]), "SIG"), p.line(t))
	}
	assert.Equal(t, 5, p.end(t))
	assert.True(t, s.free(t))
}

// The lock is held until all that the command started has ended.
func TestRunWaitsForGrandchildren(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	done := filepath.Join(t.TempDir(), "done")
	p := s.start(t, "run", "k", "--", "sh", "-c", "(while [ ! -e "+done+" ]; do sleep 0.05; done) >/dev/null 2>&1 & echo $$")
	command, err := strconv.Atoi(p.line(t))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return syscall.Kill(command, 0) != nil }, 20*time.Second, time.Millisecond, "the command itself has ended")
	require.Never(t, func() bool { return s.free(t) }, 300*time.Millisecond, 20*time.Millisecond)
	require.NoError(t, os.WriteFile(done, nil, 0o600))
	assert.Equal(t, 0, p.end(t))
	assert.True(t, s.free(t))
}

// When the lease cannot be renewed the command is asked to end, and killed before
// another can have the lock.
func TestRunKillsWhatOutlivesItsLock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "--ttl", "3s", "--", "sh", "-c",
		"trap 'echo TERM' TERM; echo ready; while :; do sleep 0.05; done")
	require.Equal(t, "ready", p.line(t))
	for _, x := range s.servers[:2] {
		require.NoError(t, x.Pause())
	}
	require.Equal(t, "TERM", p.line(t))
	st, err := s.nodes.Inspect(context.Background(), "k")
	_ = err // two nodes are silent
	assert.NotZero(t, st.Nodes[2].TTL, "before the lease is over")
	assert.Equal(t, exitLost, p.end(t))
	assert.Contains(t, p.errs.String(), "lost")
	for _, x := range s.servers[:2] {
		require.NoError(t, x.Resume())
	}
}

func TestStatusAndRelease(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lock := s.hold(t)
	ctx := t.Context()
	addrs := "--addrs=" + strings.Join(s.addrs, ",")

	r := run(t, ctx, "status", "k", addrs)
	assert.Equal(t, 0, r.code, r.errOut)
	assert.Contains(t, r.out, "k is held by the test, token "+shortToken(lock.Token()))
	assert.Equal(t, 3, strings.Count(r.out, shortToken(lock.Token())+" the test"))

	r = run(t, ctx, "status", "k", addrs, "--json")
	var st statusJSON
	require.NoError(t, json.Unmarshal([]byte(r.out), &st))
	assert.Equal(t, new(true), st.Held)
	assert.Equal(t, lock.Token(), st.Token)
	assert.InDelta(t, 60, st.TTL, 20)
	assert.Len(t, st.Nodes, 3)

	assert.Equal(t, exitUsage, run(t, ctx, "release", "k", addrs).code)
	r = run(t, ctx, "release", "k", addrs, "--force", "--token", "")
	assert.Equal(t, exitUsage, r.code)
	assert.Contains(t, r.errOut, "--token is empty")
	assert.Equal(t, 1, run(t, ctx, "release", "k", addrs, "--force", "--token", "another").code)
	r = run(t, ctx, "release", "k", addrs, "--force", "--token", lock.Token())
	assert.Equal(t, 0, r.code, r.errOut)
	assert.Contains(t, run(t, ctx, "status", "k", addrs).out, "k is free")
	assert.Equal(t, exitUsage, run(t, ctx, "status", "k", "--addrs=").code, "no nodes")
	for _, args := range [][]string{{"status", "k"}, {"release", "k", "--force"}, {"check"}, {"bench"}} {
		r = run(t, ctx, append(args, "--json", "--addrs=127.0.0.1:1")...)
		assert.Equal(t, exitFailed, r.code)
		var failed struct{ Error string }
		require.NoError(t, json.Unmarshal([]byte(r.out), &failed), "%v: %s", args, r.out)
		assert.Contains(t, failed.Error, "no quorum", "%v", args)
		assert.NotEmpty(t, r.errOut)
	}
	assert.Equal(t, exitUsage, run(t, ctx, "status", addrs).code, "no key")

	file := filepath.Join(t.TempDir(), "redlock.json")
	text, err := json.Marshal(config{Addrs: s.addrs, KeyPrefix: "p:"})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, text, 0o600))
	require.NoError(t, s.servers[0].Client(t).Set(ctx, "p:k", "x", 0).Err())
	require.NoError(t, s.servers[1].Client(t).Set(ctx, "p:k", "x", 0).Err())
	require.NoError(t, s.servers[0].Client(t).Set(ctx, "p:esc\x1b[2J", "x\x1b[31m@\x1b]0;title\a", 0).Err())
	r = run(t, ctx, "status", "esc\x1b[2J", "--config", file)
	assert.Contains(t, r.out, `esc\x1b[2J is free`)
	assert.NotContains(t, r.out, "\x1b", "nobody's key or token steers the terminal")
	r = run(t, ctx, "status", "k", "--config", file)
	assert.Contains(t, r.out, "k is held, token x, for ever")
	for _, bad := range []string{`{"adrs":[]}`, string(text) + ` , "key_prefix":"q:"}`} {
		require.NoError(t, os.WriteFile(file, []byte(bad), 0o600))
		assert.Equal(t, exitUsage, run(t, ctx, "status", "k", "--config", file).code, bad)
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	addrs := "--addrs=" + strings.Join(s.addrs, ",")
	r := run(t, t.Context(), "check", addrs)
	assert.Equal(t, 0, r.code, "%s%s", r.out, r.errOut)
	assert.Contains(t, r.out, s.addrs[2])

	require.NoError(t, s.servers[2].Client(t).ConfigSet(t.Context(), "maxmemory", "100mb").Err())
	require.NoError(t, s.servers[2].Client(t).ConfigSet(t.Context(), "maxmemory-policy", "allkeys-lru").Err())
	r = run(t, t.Context(), "check", addrs, "--json")
	assert.Equal(t, exitFailed, r.code)
	assert.Contains(t, r.errOut, "critical")
	var report admin.Report
	require.NoError(t, json.Unmarshal([]byte(r.out), &report))
	assert.Equal(t, admin.SeverityCritical, report.Worst())
	assert.Equal(t, exitUsage, run(t, t.Context(), "check", "k", addrs).code)
}

func TestWatch(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "watch", "k", "--interval", "50ms")
	assert.Contains(t, p.line(t), "k is free")
	lock := s.hold(t)
	assert.Contains(t, p.line(t), "k is held by the test")
	require.NoError(t, lock.Release(t.Context()))
	assert.Contains(t, p.line(t), "k is free")
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	assert.Equal(t, 0, p.end(t))
	assert.Equal(t, exitUsage, run(t, t.Context(), "watch", "k", "--interval", "1ms").code)
}
