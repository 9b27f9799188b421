//go:build unix

package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// A command that ends by the signal that redlock sent it, since the lease was not renewed, did
// not end by itself: the status says that the lock was lost, and the log who sent the signal.
func TestRunSaysThatItEndedTheCommand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "--ttl", "3s", "--", "sh", "-c", "echo ready; exec sleep 600")
	asJSON := s.start(t, "run", "j", "--ttl", "3s", "--json", "--", "sh", "-c", "echo ready; exec sleep 600")
	polite := s.start(t, "run", "p", "--ttl", "3s", "--", "sh", "-c", "trap 'exit 5' TERM; echo ready; while :; do sleep 0.05; done")
	for _, x := range []*process{p, asJSON, polite} {
		require.Equal(t, "ready", x.line(t))
	}
	for _, x := range s.servers[:2] {
		require.NoError(t, x.Pause())
	}
	assert.Equal(t, exitLost, p.end(t))
	assert.Regexp(t, `(?m)^redlock: the lease of k was not renewed, and ends in \S+s: the command gets SIGTERM$`, p.errs.String())
	assert.Regexp(t, `(?m)^redlock: .*lost.*the command ended by SIGTERM`, p.errs.String())
	assert.Equal(t, exitLost, asJSON.end(t))
	assert.Equal(t, "SIGTERM", asJSON.event(t, "exit").Signal)
	assert.Contains(t, asJSON.event(t, "lost").Error, "SIGTERM")
	assert.Equal(t, new(exitLost), asJSON.event(t, "error").Status)
	assert.Equal(t, 5, polite.end(t), "its own status, while the lease lasted")
	assert.Contains(t, polite.errs.String(), "gets SIGTERM")
	for _, x := range s.servers[:2] {
		require.NoError(t, x.Resume())
	}
}

// A lock that was taken by force: it is said what became of the command.
func TestRunSaysThatItKilledTheCommand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "--ttl", "3s", "--", "sh", "-c", "echo ready; exec sleep 600")
	require.Equal(t, "ready", p.line(t))
	s.takeAway(t, "k")
	assert.Equal(t, exitLost, p.end(t))
	assert.Regexp(t, `(?m)^redlock: the command was killed: .*lock lost`, p.errs.String())
}

// What is on the command line wins over the environment: two who type the same must lock on the
// same nodes.
func TestTheCommandLineWinsOverTheEnvironment(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	elsewhere := newSite(t)
	lock := s.hold(t)
	file := filepath.Join(t.TempDir(), "redlock.json")
	text, err := json.Marshal(config{Addrs: s.addrs})
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, text, 0o600))
	status := func(env []string, args ...string) result {
		p := elsewhere.prepare(t, append([]string{"status", "k", "--json"}, args...)...)
		p.Env = append(p.Env, env...)
		var out lockedBuffer
		p.Stdout, p.out = nil, nil
		p.Stdout = &out
		require.NoError(t, p.Start())
		return result{p.end(t), out.String(), p.errs.String()}
	}
	assert.Contains(t, status(nil, "--config", file).out, lock.Token(), "$REDLOCK_ADDRS leads elsewhere")
	assert.NotContains(t, status([]string{configEnv + "=" + file}).out, lock.Token(), "$REDLOCK_ADDRS is more than the file of $REDLOCK_CONFIG")
	assert.Contains(t, status([]string{configEnv + "=/nonexistent"}, "--config", file).out, lock.Token())
	assert.Contains(t, status(nil, "--config", file, "--addrs", s.addrs[0]).out, `"quorum":1`, "--addrs is more than the file")

	// Errors name where the setting is.
	r := status([]string{configEnv + "=/nonexistent"})
	assert.Contains(t, r.errOut, "$REDLOCK_CONFIG: open /nonexistent")
	r = status([]string{"REDLOCK_TLS_CA=/nonexistent"})
	assert.Contains(t, r.errOut, "$REDLOCK_TLS_CA: open /nonexistent")
	assert.Contains(t, status(nil, "--config", "/nonexistent").errOut, "--config: open /nonexistent")
}

// A released lock that nobody gets yet is not called free.
func TestRunSaysHowLongNobodyGetsTheLock(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := s.start(t, "run", "k", "-v", "--min-hold", "60s", "--", "true")
	require.Equal(t, 0, p.end(t), p.errs.String())
	assert.Regexp(t, `redlock: released k; nobody gets it for another (1m0s|\d\d(\.\d)?s)`, p.errs.String())
	p = s.start(t, "run", "j", "--json", "--min-hold", "60s", "--", "true")
	require.Equal(t, 0, p.end(t), p.errs.String())
	e := p.event(t, "released")
	require.NotNil(t, e.Until)
	assert.Greater(t, time.Until(*e.Until), 20*time.Second)
	p = s.start(t, "run", "i", "-v", "--json", "--", "true")
	require.Equal(t, 0, p.end(t), p.errs.String())
	assert.Nil(t, p.event(t, "released").Until)
}

// A name of the library's own is no key for any command, and what it holds stays.
func TestNamesOfOursAreRefusedByEachCommand(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lock, err := s.rl.Mutex("report").Shared().Acquire(t.Context()) // so that there is a list, and a mark
	require.NoError(t, err)
	for _, name := range []string{"{report}:shared", "redlock:memory"} {
		var before any
		require.Eventually(t, func() bool { // the other two may have decided
			before = s.servers[0].Client(t).Do(t.Context(), "DUMP", name).Val()
			return before != nil
		}, 10*time.Second, time.Millisecond, name)
		for _, args := range [][]string{
			{"run", name, "--", "true"}, {"run", "other", name, "--", "true"}, {"status", name}, {"watch", name}, {"release", name, "--force"},
		} {
			r := s.ran(t, args...)
			assert.Equal(t, exitUsage, r.code, "%v: %s%s", args, r.out, r.errOut)
			assert.Contains(t, r.errOut, "is kept on the nodes", "%v", args)
		}
		assert.Equal(t, before, s.servers[0].Client(t).Do(t.Context(), "DUMP", name).Val(), name)
	}
	require.NoError(t, lock.Release(t.Context()))
}

func TestCommandLinesThatMeanSomethingElse(t *testing.T) {
	t.Setenv(addrsEnv, "127.0.0.1:1")
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"help", "frobnicate"}, `there is no command "frobnicate"`},
		{[]string{"help", "dmo"}, "did you mean demo?"},
		{[]string{"completion", "foo"}, `there is no completion for "foo": must be one of bash, fish, powershell, zsh`},
		{[]string{"run", "k", "sh", "-c", "exit 3"}, "what belongs to the command goes behind --: redlock run KEY... -- COMMAND"},
		{[]string{"run", "k", "sleep", "--forever"}, "goes behind --"},
		{[]string{"run", "k1", "true"}, "did you mean: redlock run k1 -- true"},
		{[]string{"run", "k1", "echo", "two words"}, "did you mean: redlock run k1 -- echo 'two words'"},
		{[]string{"watch", "web:1", "--web", "127.0.0.1:18097"}, "--web=127.0.0.1:18097"},
		{[]string{"watch", "--web", "localhost:18097"}, "--web=localhost:18097"},
		{[]string{"demo", "--web", "127.0.0.1:8099"}, "--web=127.0.0.1:8099"},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			r := run(t, t.Context(), c.args...)
			require.Equal(t, exitUsage, r.code, "%s%s", r.out, r.errOut)
			require.Contains(t, r.errOut, c.says)
			require.Empty(t, r.out)
		})
	}
	for _, args := range [][]string{{"help"}, {"help", "run"}, {"help", "completion", "bash"}, {"completion"}, {"completion", "fish"}} {
		r := run(t, t.Context(), args...)
		require.Equal(t, exitOK, r.code, "%v: %s", args, r.errOut)
		require.NotEmpty(t, r.out)
	}
}

// A lock that is held is the commonest failure: one line says by whom, and no token in it is
// whole, since a token is enough to release the lock.
func TestRunSaysByWhomTheLockIsHeld(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	lock := s.hold(t)
	for _, x := range s.servers {
		require.NoError(t, x.Client(t).RPush(t.Context(), "list", "x").Err())
	}
	shared, err := s.rl.Semaphore("p", 1).Acquire(t.Context())
	require.NoError(t, err)
	for _, how := range [][]string{{"-n"}, {"-w", "2s"}} {
		r := s.ran(t, append(append([]string{"run", "k"}, how...), "--", "true")...)
		assert.Equal(t, exitBusy, r.code)
		assert.Regexp(t, `^redlock: k is held by another: the test, lease \S+s\n$`, r.errOut)

		r = s.ran(t, append(append([]string{"run", "a", "k"}, how...), "--", "true")...)
		assert.Regexp(t, `^redlock: k is held by another: the test, lease \S+s\n$`, r.errOut)

		r = s.ran(t, append(append([]string{"run", "k", "--json"}, how...), "--", "true")...)
		assert.Equal(t, exitBusy, r.code)
		assert.Contains(t, r.errOut, `"error":"k is held by another: the test, lease `)
		assert.NotContains(t, strings.Split(r.errOut, `"error"`)[1], lock.Token())

		r = s.ran(t, append(append([]string{"run", "p", "--permits", "1"}, how...), "--", "true")...)
		assert.Equal(t, exitBusy, r.code)
		assert.Regexp(t, `^redlock: all permits of p are held by others: permit 0: the test, lease \S+s\n$`, r.errOut)

		r = s.ran(t, append(append([]string{"run", "list"}, how...), "--", "true")...)
		assert.Equal(t, exitBusy, r.code)
		assert.Equal(t, "redlock: list is held by another: the key holds a list, which is no lock\n", r.errOut)
	}
	require.NoError(t, shared.Release(t.Context()))
	r := s.ran(t, "run", "k", "-w", "2s", "-v", "--", "true")
	assert.Contains(t, r.errOut, lock.Token()[:8]+"...@the test")
	assert.NotContains(t, r.errOut, lock.Token())

	p := s.prepare(t, "run", "k", "--adopt", "--", "true")
	p.Env = append(p.Env, adoptVariable+"=0123456789abcdef0123456789abcdef")
	p.launch(t)
	assert.Equal(t, exitBusy, p.end(t))
	assert.Equal(t, "redlock: not held: nobody has k under the token in $REDLOCK_ADOPT\n", p.errs.String())

	// Without a majority each node is told of, and tokens are short.
	s.servers[0].Kill()
	s.servers[1].Kill()
	for _, args := range [][]string{{"run", "k", "-n", "--", "true"}, {"run", "k", "-n", "--json", "--", "true"}, {"release", "k", "--force", "--token", "x", "--json"}} {
		r = s.ran(t, args...)
		assert.NotContains(t, r.errOut, lock.Token(), "%v", args)
		assert.NotContains(t, strings.Split(r.out+`"error"`, `"error"`)[1], lock.Token(), "%v", args)
	}
}

// A node that answers and refuses our user is not down, and nobody is sent to bring it back.
func TestStatusOfNodesThatRefuseUs(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	server := realredis.Start(t, realredis.Password("right"))
	require.NoError(t, server.Client(t).Do(t.Context(), "ACL", "SETUSER", "poor", "on", ">word", "+ping", "+info").Err())
	for user, code := range map[string]string{":wrong": "WRONGPASS", "poor:word": "NOPERM"} {
		s := &site{addrs: []string{"redis://" + user + "@" + server.Addr()}}
		r := s.ran(t, "status", "k")
		assert.Equal(t, exitFailed, r.code)
		assert.Contains(t, r.out, code)
		assert.Contains(t, r.out, "whether k is held is not known: no quorum, 0 of 1 node serves us, 1 needed")
		assert.Contains(t, r.out, "1 of 1 node answers but does not serve us: fix what it names, usually user, password, certificate or permissions")
		for _, wrong := range []string{"it is this machine", "Bring them back", "not answer"} {
			assert.NotContains(t, r.out, wrong)
		}
		assert.Contains(t, r.errOut, "0 of 1 node serves us")
	}
}

// Certificates that are not trusted are no outage: check names the flag, and not the network.
func TestCheckSaysWhatIsWrongWithCertificates(t *testing.T) {
	t.Parallel()
	s := &site{addrs: []string{"rediss://" + realredis.Start(t, realredis.TLS()).Addr()}}
	for _, args := range [][]string{{"check"}, {"check", "--json"}} {
		r := s.ran(t, args...)
		assert.Contains(t, r.out, "--tls-ca", args)
		assert.NotContains(t, r.out, "Options.TLS", args)
		assert.NotContains(t, r.out, "this machine", args)
		assert.NotContains(t, r.out, "network", args)
	}
}

// Where one end speaks TLS and the other does not, each command says what to try.
func TestHintsAtTLS(t *testing.T) {
	t.Parallel()
	realredis.Need(t)
	for addr, hint := range map[string]string{
		"rediss://" + realredis.Start(t).Addr():                 "redis://, not rediss://",
		"redis://" + realredis.Start(t, realredis.TLS()).Addr(): "rediss://, not redis://",
	} {
		s := &site{addrs: []string{addr}}
		for _, args := range [][]string{{"run", "k", "-n", "--", "true"}, {"check"}, {"check", "--json"}, {"status", "k"}, {"status", "k", "--json"}} {
			r := s.ran(t, args...)
			assert.Contains(t, r.out+r.errOut, hint, "%v %s", args, addr)
		}
	}
}

// Clients that wait for a permit are in the same queue as those of an exclusive lock, and the status
// says so.
func TestStatusHasTheWaitersOfPermits(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	_, err := s.rl.Semaphore("p", 1).Acquire(t.Context())
	require.NoError(t, err)
	assert.Regexp(t, `^p is shared by 1, for \S+; 0 waiting\n`, s.ran(t, "status", "p").out)
	waits, cancel := context.WithCancel(t.Context())
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = s.rl.Semaphore("p", 1, redlock.WithOwner("the next")).Acquire(waits)
	}()
	require.Eventually(t, func() bool { return strings.Contains(s.ran(t, "status", "p").out, "1st in the queue: the next") },
		10*time.Second, 20*time.Millisecond)
	r := s.ran(t, "status", "p")
	assert.Regexp(t, `^p is shared by 1, for \S+; 1 waiting\n`, r.out)
	assert.NotContains(t, r.out, "not known")
	cancel()
	<-over
}

// A semaphore and a shared lock of one key are not kept apart, as the README says: a sharer counts
// as one of the permits, and is let in however many are held.
func TestPermitsAndSharersOfOneKey(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	one, err := s.rl.Semaphore("p", 2).TryAcquire(t.Context())
	require.NoError(t, err)
	_, err = s.rl.Semaphore("p", 2).TryAcquire(t.Context())
	require.NoError(t, err)
	assert.Equal(t, exitBusy, s.ran(t, "run", "p", "--permits", "2", "-n", "--", "true").code)
	assert.Equal(t, 0, s.ran(t, "run", "p", "--shared", "-n", "--", "true").code)
	_, err = s.rl.Mutex("p").Shared().TryAcquire(t.Context())
	require.NoError(t, err)
	require.NoError(t, one.Release(t.Context()))
	assert.Equal(t, exitBusy, s.ran(t, "run", "p", "--permits", "2", "-n", "--", "true").code)
	assert.Equal(t, 0, s.ran(t, "run", "p", "--permits", "3", "-n", "--", "true").code)
}

// On a narrow terminal no line is wider than it, and what tells nodes and keys apart is whole.
func TestTablesOnNarrowTerminals(t *testing.T) {
	t.Parallel()
	s := newSiteOf(t, 5)
	s.ageMarks(t)
	colours := regexp.MustCompile("\x1b\\[[0-9;?]*[A-Za-z]")
	key := "a-key-that-is-rather-long:4711"
	_, err := s.rl.Mutex(key).Acquire(t.Context())
	require.NoError(t, err)
	s.servers[1].Kill()
	s.servers[2].Kill()
	x := s.shell(t)
	for _, width := range []int{80, 60} {
		require.NoError(t, pty.Setsize(x.File, &pty.Winsize{Rows: 24, Cols: uint16(width)}))
		for _, command := range []string{"status " + key, "check", "list", "watch " + key, "run " + key + " -w 1s -v -- true", "demo --duration 2s"} {
			background, out := strings.HasPrefix(command, "watch"), "" // until it is ended
			if background {
				x.typed(t, `"$REDLOCK" `+command+"&\n")
				out = x.expect(t, "refused),") + "refused),"
				x.typed(t, "kill %%; wait; echo 'THE 'END\n")
			} else {
				x.typed(t, `"$REDLOCK" `+command+"; echo 'THE 'END\n")
				x.expect(t, "\n")
			}
			out = colours.ReplaceAllString(out+x.expect(t, "THE END"), "")
			for line := range strings.Lines(out) {
				// The shell may say that it is ready when it has read what was typed.
				line = strings.TrimPrefix(strings.TrimRight(line, "\r\n"), prompt)
				if strings.Contains(line, "$REDLOCK") {
					continue // what was typed, with the prompt or before it
				}
				assert.LessOrEqual(t, len([]rune(line)), width, "%s at %d: %s", command, width, line)
			}
			switch {
			case background, strings.HasPrefix(command, "run"):
				assert.Contains(t, out, s.addrs[2])
				continue
			case strings.HasPrefix(command, "demo"):
				last := map[int]string{80: " RELEASE\r\n", 60: " WAITED\r\n"}[width]
				assert.Contains(t, out, last, "the last columns are left out first")
				continue
			case command == "list":
				assert.Contains(t, out, key)
				assert.Contains(t, out, "the test")
				continue
			}
			for _, addr := range s.addrs {
				assert.Contains(t, out, "\n"+addr+"/0 ", "%s at %d: %s", command, width, out)
			}
			if command == "check" {
				assert.Equal(t, 1, strings.Count(out, "info, persistence: "), "it is told once: %s", out)
			}
		}
	}
}

// Information about several nodes is there once, with their names or how many they are.
func TestFindingsOfSeveralNodesAreThereOnce(t *testing.T) {
	severity := admin.SeverityInfo
	found := func(node, code string) admin.Finding {
		return admin.Finding{Severity: severity, Code: code, Node: node, Message: "message of " + code, Advice: "advice"}
	}
	r := admin.Report{Nodes: []admin.NodeReport{{Node: "a"}, {Node: "b"}, {Node: "c"}},
		Findings: []admin.Finding{found("a", "young"), found("b", "young"), found("c", "young"), found("a", "slow"), found("", "set"), found("c", "slow")}}
	assert.Equal(t, []admin.Finding{found("all 3 nodes", "young"), found("a, c", "slow"), found("", "set")}, together(r).Findings)
	var out strings.Builder
	printReport(&out, r)
	assert.Equal(t, 1, strings.Count(out.String(), "message of slow"))
	assert.Len(t, r.Findings, 6, "--json has them all")
	severity = admin.SeverityWarning
	r.Findings = []admin.Finding{found("a", "down"), found("b", "down")}
	assert.Equal(t, r.Findings, together(r).Findings, "what is worse has a line for each")
}

// A status that a full disk cut off is no success.
func TestAnswersThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skip("/dev/full is of Linux: ", err)
	}
	defer full.Close()
	s := newSite(t)
	for _, args := range [][]string{{"status", "k"}, {"status", "k", "--json"}, {"list"}, {"check", "--json"}, {"watch", "k"}, {"watch", "--json"}} {
		var said strings.Builder
		assert.Equal(t, exitFailed, execute(t.Context(), append(args, "--addrs="+strings.Join(s.addrs, ",")), full, &said), args)
		assert.Contains(t, said.String(), "not all of the output was written: write /dev/full: no space left", args)
	}
}

// Check says what is wrong with what it was given, and goes on.
func TestCheckOfWhatIsNoSetOfNodes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	web := httptest.NewServer(http.NotFoundHandler())
	t.Cleanup(web.Close)
	page := strings.TrimPrefix(web.URL, "http://")
	r := run(t, t.Context(), "check", "--json", "--addrs", strings.Join([]string{s.addrs[0], s.addrs[0], s.addrs[1], page}, ","))
	assert.Equal(t, exitFailed, r.code, r.errOut)
	var out struct {
		Nodes    []struct{ Node, Version string }
		Findings []struct{ Code, Severity, Node string }
	}
	require.NoError(t, json.Unmarshal([]byte(r.out), &out), r.out)
	require.Len(t, out.Nodes, 4)
	assert.NotEmpty(t, out.Nodes[2].Version, "of the others it says what there is")
	found := make(map[string]string)
	for _, f := range out.Findings {
		found[f.Code] = f.Severity + " " + f.Node
	}
	assert.Equal(t, "critical "+s.addrs[0]+"/0#1", found["same-server"], r.out)
	assert.Equal(t, "critical "+page+"/0", found["no-redis"], r.out)

	// The state of a node is the worst that was found of it.
	r = run(t, t.Context(), "check", "--addrs", strings.Join([]string{s.addrs[0], s.addrs[1], page}, ","))
	assert.Regexp(t, `(?m)^`+regexp.QuoteMeta(page)+`/0 +no-redis `, r.out)

	down := "127.0.0.1:1"
	r = run(t, t.Context(), "check", "--addrs", down+","+down)
	assert.Equal(t, exitFailed, r.code)
	assert.Regexp(t, `(?m)^critical +same-server +\(all\) +duplicate node: addrs\[0\] and addrs\[1\] are both `+regexp.QuoteMeta(down), r.out)
}
