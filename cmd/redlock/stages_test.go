//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// events are the JSON lines so far; the command's own standard error is between them.
func (p *process) events(t *testing.T) (all []runEvent) {
	t.Helper()
	for line := range strings.Lines(p.errs.String()) {
		var e runEvent
		if strings.HasPrefix(line, "{") && strings.HasSuffix(line, "\n") {
			require.NoError(t, json.Unmarshal([]byte(line), &e), "%s", line)
			all = append(all, e)
		}
	}
	return all
}

// event waits for one.
func (p *process) event(t *testing.T, name string) (e runEvent) {
	t.Helper()
	require.Eventually(t, func() bool {
		for _, e = range p.events(t) {
			if e.Event == name {
				return true
			}
		}
		return false
	}, 30*time.Second, time.Millisecond, "no %s in %s", name, lazily(p.errs.String))
	return e
}

func names(all []runEvent) (names []string) {
	for _, e := range all {
		if e.Event != "still_waiting" { // which a busy machine adds
			names = append(names, e.Event)
		}
	}
	return names
}

func (s *site) oneWaits(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool {
		st, err := s.nodes.Inspect(t.Context(), "k")
		return err == nil && len(st.Waiters) == 1
	}, 20*time.Second, 5*time.Millisecond)
}

// endsWithin: what is left of the key ends by itself.
func (s *site) endsWithin(t *testing.T, ttl time.Duration) {
	t.Helper()
	for _, x := range s.servers {
		left, err := x.Client(t).PTTL(t.Context(), "k").Result()
		require.NoError(t, err)
		assert.LessOrEqual(t, left, ttl)
		assert.NotEqual(t, time.Duration(-1), left, "no lease")
	}
	require.Eventually(t, func() bool { return s.free(t) }, ttl+20*time.Second, 5*time.Millisecond)
}

func gone(t *testing.T, group int) {
	t.Helper()
	require.Eventually(t, func() bool { return syscall.Kill(-group, 0) == syscall.ESRCH }, 20*time.Second, 2*time.Millisecond,
		"group %d is alive", group)
}

var deadly = []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL}

// died is the exit status of run after the signal.
func died(sig syscall.Signal) int {
	if sig == syscall.SIGKILL {
		return -1 // as package os has it
	}
	return 128 + int(sig)
}

func TestRunDiesWhileItConnects(t *testing.T) {
	t.Parallel()
	for _, sig := range deadly {
		s := &site{}
		met := make(chan net.Conn, 64)
		for range 3 { // servers that accept and say nothing
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			s.addrs = append(s.addrs, l.Addr().String())
			go func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					met <- c
				}
			}()
		}
		p := s.start(t, "run", "k", "--", "echo", "ran")
		for range 3 {
			c := <-met
			defer c.Close()
		}
		require.NoError(t, p.Process.Signal(sig))
		assert.Empty(t, p.line(t))
		assert.Equal(t, died(sig), p.end(t), p.errs.String())
	}
}

func TestRunDiesWhileItWaits(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, sig := range deadly {
		lock := s.hold(t)
		p := s.start(t, "run", "k", "--json", "--", "echo", "ran")
		p.event(t, "waiting")
		s.oneWaits(t)
		require.NoError(t, p.Process.Signal(sig))
		assert.Empty(t, p.line(t))
		assert.Equal(t, died(sig), p.end(t))
		require.NoError(t, lock.Release(t.Context()))
		// A dead waiter does not keep the next from the lock.
		next := s.start(t, "run", "k", "--", "echo", "ran")
		assert.Equal(t, "ran", next.line(t))
		assert.Equal(t, 0, next.end(t))
	}
}

// At the moment of the grant the command may or may not be started yet.
func TestRunDiesWhileItsCommandStarts(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	const ttl = time.Second
	for _, sig := range deadly {
		for i := range 10 {
			p := s.start(t, "run", "k", "--json", "--ttl", ttl.String(), "--", "sh", "-c", "sleep 60 & exec sleep 60")
			p.event(t, "acquired")
			time.Sleep(time.Duration(i) * 500 * time.Microsecond) // not for something, but to meet another moment
			require.NoError(t, p.Process.Signal(sig))
			assert.Equal(t, died(sig), p.end(t), p.errs.String())
			for _, e := range p.events(t) {
				if e.Event != "started" {
					continue
				}
				if sig == syscall.SIGTERM {
					assert.ErrorIs(t, syscall.Kill(-e.PID, 0), syscall.ESRCH)
				} else {
					gone(t, e.PID)
				}
			}
			if sig == syscall.SIGTERM {
				assert.True(t, s.free(t))
			} else {
				s.endsWithin(t, ttl)
			}
		}
	}
}

func TestRunDiesWhileItHolds(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "--", "sh", "-c", "(sleep 60; true) & sleep 60 & echo $$; wait")
	group, err := strconv.Atoi(p.line(t))
	require.NoError(t, err)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, 143, p.end(t))
	assert.ErrorIs(t, syscall.Kill(-group, 0), syscall.ESRCH, "nobody of the group is left")
	assert.True(t, s.free(t))

	p = s.start(t, "run", "k", "--ttl", "1s", "--", "sh", "-c", "echo $$; exec sleep 60")
	group, err = strconv.Atoi(p.line(t))
	require.NoError(t, err)
	t.Cleanup(func() { _ = syscall.Kill(-group, syscall.SIGKILL) })
	require.NoError(t, p.Process.Kill())
	p.end(t)
	gone(t, group)
	s.endsWithin(t, time.Second)
}

// A command that is stopped still hears that it shall end.
func TestRunEndsAStoppedCommand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "--", "sh", "-c", "echo $$; exec sleep 60")
	group, err := strconv.Atoi(p.line(t))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(-group, syscall.SIGSTOP))
	stateBecomes(t, group, "T")
	assert.False(t, s.free(t))
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	assert.Equal(t, 143, p.end(t))
	assert.True(t, s.free(t))
}

func TestRunDiesWhileItReleases(t *testing.T) {
	t.Parallel()
	for _, sig := range deadly {
		s := newSite(t)
		// Two servers hang, so that the release takes as long as it may.
		in, out, err := os.Pipe()
		require.NoError(t, err)
		p := s.startWith(t, in, "run", "k", "--json", "--ttl", "10s", "--", "sh", "-c", "echo ready; read x")
		require.NoError(t, in.Close())
		require.Equal(t, "ready", p.line(t))
		for _, x := range s.servers[:2] {
			require.NoError(t, x.Pause())
		}
		require.NoError(t, out.Close())
		p.event(t, "exit")
		require.NoError(t, p.Process.Signal(sig))
		code := p.end(t)
		if sig == syscall.SIGTERM {
			assert.Equal(t, 1, code, "the command's, which had ended")
		} else {
			assert.Contains(t, []int{-1, 1}, code, "unless it was quicker")
		}
		for _, x := range s.servers[:2] {
			require.NoError(t, x.Resume())
		}
		s.endsWithin(t, 10*time.Second)
	}
}

func TestRunSaysInJSONWhatHappens(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	before := time.Now()
	p := s.start(t, "run", "k", "--json", "--fencing", "--", "sh", "-c", "trap 'exit 7' TERM; echo $REDLOCK_TOKEN $REDLOCK_FENCE $$; while :; do sleep 0.02; done")
	var token string
	var fence uint64
	var pid int
	_, err := fmt.Sscan(p.line(t), &token, &fence, &pid)
	require.NoError(t, err)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	require.Equal(t, 7, p.end(t))
	all := p.events(t)
	require.Equal(t, []string{"waiting", "acquired", "started", "signal", "exit", "released"}, names(all), p.errs.String())
	last := before
	for _, e := range all {
		assert.Equal(t, "k", e.Key)
		assert.False(t, e.Time.Before(last.Truncate(0)))
		last = e.Time
	}
	assert.Equal(t, token, all[1].Token)
	assert.Equal(t, fence, all[1].Fence)
	assert.WithinDuration(t, before.Add(10*time.Second), *all[1].Until, 10*time.Second)
	assert.GreaterOrEqual(t, *all[1].Waited, 0.0)
	assert.Equal(t, pid, all[2].PID)
	assert.Equal(t, "SIGTERM", all[3].Signal)
	assert.True(t, *all[3].Forwarded)
	assert.Equal(t, 7, *all[4].Status)
	assert.Empty(t, all[5].Error)

	p = s.start(t, "run", "k", "--json", "-n", "--", "sh", "-c", "kill -KILL $$")
	require.Equal(t, 137, p.end(t))
	e := p.event(t, "exit")
	assert.Equal(t, "SIGKILL", e.Signal)
	assert.Equal(t, 137, *e.Status)

	lock := s.hold(t)
	p = s.start(t, "run", "k", "--json", "-n", "--", "true")
	require.Equal(t, exitBusy, p.end(t))
	all = p.events(t)
	require.Equal(t, []string{"error"}, names(all))
	assert.Contains(t, all[0].Error, "held by another")
	assert.Equal(t, exitBusy, *all[0].Status)

	p = s.start(t, "run", "k", "--json", "--", "true")
	s.oneWaits(t)
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	require.Equal(t, 130, p.end(t))
	all = p.events(t)
	require.Equal(t, []string{"waiting", "signal"}, names(all))
	assert.False(t, *all[1].Forwarded)
	require.NoError(t, lock.Release(t.Context()))
}

// An operator takes the lock away: the command is killed as soon as that is known, not when
// the lease would have ended, for another may have the lock.
func TestRunEndsItsCommandWhenTheLockIsTaken(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "--json", "--ttl", "6s", "--", "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.02; done")
	require.Equal(t, "ready", p.line(t))
	until := *p.event(t, "acquired").Until
	s.takeAway(t, "k")
	lock := s.hold(t)
	assert.Equal(t, exitLost, p.end(t))
	e := p.event(t, "lost")
	assert.Contains(t, e.Error, "lost")
	assert.True(t, e.Time.Before(until), "at %v, and the lease was until %v", e.Time, until)
	assert.NoError(t, lock.Release(t.Context()), "another's lock is left alone")
}
