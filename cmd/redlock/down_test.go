//go:build unix

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// ran is the program, run as a process of its own to its end.
func (s *site) ran(t *testing.T, args ...string) result {
	t.Helper()
	p := s.start(t, args...)
	out, err := io.ReadAll(p.out)
	require.NoError(t, err)
	return result{p.end(t), string(out), p.errs.String()}
}

// row is the line of a table that is about the server.
func row(out, addr string) string {
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, addr+"/0 ") {
			return line
		}
	}
	return ""
}

// said is what is said of the server below a table.
func said(out, addr string) string {
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, addr+"/0: ") {
			return line
		}
	}
	return ""
}

// What an operator calls when nodes are down says what is known, node by node, however many
// are.
func TestOperatorsCommandsWhileNodesAreDown(t *testing.T) {
	t.Parallel()
	s := newSiteOf(t, 5)
	s.ageMarks(t)
	lock := s.hold(t)
	for _, key := range []string{"text2", "text3", "text5", "json2", "json3", "json5"} {
		_, err := s.rl.Mutex(key).Acquire(t.Context())
		require.NoError(t, err)
	}
	value := lock.Token() + "@the test"
	killed := 0
	for _, down := range []int{2, 3, 5} {
		for ; killed < down; killed++ {
			s.servers[killed].Kill()
		}
		up := 5 - down
		code := exitOK
		if up < 3 {
			code = exitFailed
		}
		each := func(f func(addr string, dead bool)) {
			for i, addr := range s.addrs {
				f(addr, i < down)
			}
		}
		count := fmt.Sprintf("%d of 5 nodes", up)
		tells := func(t *testing.T, r result) {
			t.Helper()
			require.Equal(t, code, r.code, "%s%s", r.out, r.errOut)
			if code == exitOK {
				assert.Empty(t, r.errOut)
				return
			}
			assert.True(t, strings.HasPrefix(r.errOut, "redlock: no quorum: "+count), r.errOut)
			assert.Equal(t, 1, strings.Count(r.errOut, "\n"), "the nodes are listed elsewhere: %s", r.errOut)
		}
		verdict := map[int]string{
			2: "k is held by the test, token " + shortToken(lock.Token()),
			3: "k may be held by the test, token " + shortToken(lock.Token()) + ": no quorum, " + count + " answer, 3 needed",
			5: "whether k is held is not known: no quorum, " + count + " answer, 3 needed",
		}[down]
		// What programs read of a status.
		type status struct {
			Held            *bool
			Answers, Quorum int
			Error           string
			Nodes           []struct {
				Node, Value, Error string
				Answers            bool
				Since              string `json:"remembers_since"`
			}
		}
		judge := func(t *testing.T, line string) {
			t.Helper()
			var st status
			require.NoError(t, json.Unmarshal([]byte(line), &st), "%s", line)
			assert.Equal(t, up, st.Answers)
			assert.Equal(t, 3, st.Quorum)
			require.Len(t, st.Nodes, 5)
			for i, n := range st.Nodes {
				dead := i < down
				assert.Equal(t, s.addrs[i]+"/0", n.Node)
				assert.Equal(t, !dead, n.Answers)
				assert.Equal(t, !dead, n.Value == value)
				assert.Equal(t, dead, strings.Contains(n.Error, "connection refused"), n.Error)
				assert.Equal(t, dead, n.Since == "", "since when it remembers")
			}
			if up >= 3 {
				assert.Equal(t, new(true), st.Held)
				assert.Empty(t, st.Error)
			} else {
				assert.Nil(t, st.Held)
				assert.Contains(t, st.Error, "no quorum")
			}
		}

		t.Run(fmt.Sprintf("status/%d", down), func(t *testing.T) {
			r := s.ran(t, "status", "k")
			tells(t, r)
			assert.True(t, strings.HasPrefix(r.out, verdict), r.out)
			each(func(addr string, dead bool) {
				assert.Equal(t, !dead, strings.Contains(row(r.out, addr), shortHolder(value)), r.out)
				assert.Equal(t, dead, strings.Contains(said(r.out, addr), "connection refused"), r.out)
				assert.Equal(t, dead, strings.Contains(row(r.out, addr), " ? "), "unknown is not free: %s", r.out)
			})
			assert.Contains(t, r.out, "redlock check", "what to do next")

			assert.Contains(t, s.ran(t, "status", "nobody's").out, map[int]string{2: "nobody's is free"}[down])

			r = s.ran(t, "status", "k", "--json")
			tells(t, r)
			judge(t, r.out)
		})
		t.Run(fmt.Sprintf("check/%d", down), func(t *testing.T) {
			r := s.ran(t, "check")
			tells(t, r)
			each(func(addr string, dead bool) {
				assert.Equal(t, dead, strings.Contains(row(r.out, addr), "unreachable"), r.out)
			})
			assert.Equal(t, down, strings.Count(r.out, "connection refused"), r.out)
			assert.Equal(t, down == 5, strings.Contains(r.out, "it is this machine"), r.out)

			r = s.ran(t, "check", "--json")
			tells(t, r)
			var report struct {
				Error string
				Nodes []struct {
					Node      string
					Reachable bool
				}
				Findings []admin.Finding
			}
			require.NoError(t, json.Unmarshal([]byte(r.out), &report), "%s", r.out)
			require.Len(t, report.Nodes, 5)
			for i, n := range report.Nodes {
				assert.Equal(t, i >= down, n.Reachable)
			}
			assert.Equal(t, code == exitFailed, strings.Contains(report.Error, "no quorum"))
			assert.Equal(t, code == exitFailed, report.Findings[0].Severity == admin.SeverityCritical, "%v", report.Findings[0])
		})
		t.Run(fmt.Sprintf("watch/%d", down), func(t *testing.T) {
			for _, form := range []string{"--json=false", "--json"} {
				p := s.start(t, "watch", "k", form, "--interval", "50ms")
				line := p.line(t)
				if form == "--json" {
					judge(t, line)
				} else {
					assert.Contains(t, line, verdict)
					each(func(addr string, dead bool) {
						assert.Equal(t, dead, strings.Contains(line, addr), line)
					})
				}
				// An outage that goes on is told once.
				time.Sleep(500 * time.Millisecond)
				require.NoError(t, p.Process.Signal(syscall.SIGINT))
				more, err := io.ReadAll(p.out)
				require.NoError(t, err)
				assert.Empty(t, string(more))
				assert.Equal(t, 0, p.end(t), p.errs.String())
			}
		})
		t.Run(fmt.Sprintf("release/%d", down), func(t *testing.T) {
			text, object := fmt.Sprint("text", down), fmt.Sprint("json", down)
			r := s.ran(t, "release", text, "--force")
			assert.Equal(t, code, r.code)
			if code == exitOK {
				assert.Equal(t, text+" is released\n", r.out)
			} else {
				assert.Contains(t, r.errOut, fmt.Sprintf("redlock: not released: no quorum, the key is gone from %d of 5 nodes, 3 needed", up))
				each(func(addr string, dead bool) {
					assert.Equal(t, !dead, strings.Contains(row(r.out, addr), "deleted"), r.out)
					assert.Equal(t, dead, strings.Contains(said(r.out, addr), "connection refused"), r.out)
					assert.Equal(t, dead, strings.Contains(row(r.out, addr), "?"), "not known is not none: %s", r.out)
				})
				assert.Contains(t, r.out, "release again", "what to do next")
			}
			r = s.ran(t, "release", object, "--force", "--json")
			assert.Equal(t, code, r.code)
			var taken struct {
				Released bool
				Error    string
				Nodes    []struct{ Node, Key, Error string }
			}
			require.NoError(t, json.Unmarshal([]byte(r.out), &taken), "%s", r.out)
			assert.Equal(t, code == exitOK, taken.Released)
			if code == exitOK {
				return
			}
			assert.Contains(t, taken.Error, "no quorum")
			require.Len(t, taken.Nodes, 5)
			for i, n := range taken.Nodes {
				assert.Equal(t, map[bool]string{true: "unknown", false: "deleted"}[i < down], n.Key)
			}
			for _, x := range s.servers[down:] {
				left, err := x.Client(t).Exists(t.Context(), text, object).Result()
				require.NoError(t, err)
				assert.Zero(t, left)
			}
		})
		t.Run(fmt.Sprintf("run/%d", down), func(t *testing.T) {
			if code == exitOK {
				return // the guard may bar young nodes while others were never seen
			}
			r := s.ran(t, "run", "another", "-n", "--", "echo", "ran")
			assert.Equal(t, exitNoQuorum, r.code)
			assert.Empty(t, r.out)
			assert.Contains(t, r.errOut, "'redlock check'", "what to do next")
		})
	}
}

// A watch that began in an outage sees its end.
func TestWatchOutlastsAnOutage(t *testing.T) {
	t.Parallel()
	s := newSiteOf(t, 5)
	for _, x := range s.servers[:3] {
		x.Kill()
	}
	p := s.start(t, "watch", "k", "--interval", "50ms")
	assert.Contains(t, p.line(t), "no quorum, 2 of 5 nodes answer")
	for _, x := range s.servers[:3] {
		require.NoError(t, x.Restart())
	}
	for line := ""; !strings.Contains(line, "k is free, 0 waiting"); { // one comes back after the other
		line = p.line(t)
		require.NotEmpty(t, line, "it has ended")
	}
	require.NoError(t, p.Process.Signal(syscall.SIGINT))
	assert.Equal(t, 0, p.end(t), p.errs.String())
}

// Nodes that hang are as far away as those that are dead.
func TestStatusWhileNodesHang(t *testing.T) {
	t.Parallel()
	s := newSiteOf(t, 5)
	s.hold(t)
	for _, x := range s.servers[:3] {
		require.NoError(t, x.Pause())
	}
	r := s.ran(t, "status", "k")
	assert.Equal(t, exitFailed, r.code)
	assert.Contains(t, r.out, "k may be held by the test")
	for i, addr := range s.addrs {
		assert.Equal(t, i < 3, strings.Contains(row(r.out, addr), " ? "), r.out)
	}
}

// A forced release that was not possible says why, and not only that it was not.
func TestReleaseOfWhatIsNotHeld(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	r := s.ran(t, "release", "k", "--force")
	assert.Equal(t, exitFailed, r.code)
	assert.Contains(t, r.errOut, "nothing to release")
	lock := s.hold(t)
	r = s.ran(t, "release", "k", "--force", "--token", lock.Token()[:8])
	assert.Equal(t, exitFailed, r.code)
	assert.Contains(t, r.errOut, "another token")
	assert.Equal(t, 3, strings.Count(r.out, shortToken(lock.Token())), "which one")
}

// Nodes that answer and refuse us are no majority either: what they say is the finding.
func TestOperatorsCommandsWhileNodesRefuse(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	s := &site{addrs: []string{"redis://:wrong@" + realredis.Start(t, realredis.Password("right")).Addr()}}
	for _, args := range [][]string{{"status", "k"}, {"status", "k", "--json"}, {"check"}, {"check", "--json"}, {"release", "k", "--force"}} {
		r := s.ran(t, args...)
		assert.Equal(t, exitFailed, r.code, "%v", args)
		assert.Contains(t, r.out, "WRONGPASS", "%v", args)
		assert.Contains(t, r.errOut, "no quorum", "%v", args)
		assert.NotContains(t, r.out+r.errOut, "wrong@", "%v", args)
	}
}
