//go:build linux

package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A process whose first thread has ended, and which goes on.
func init() {
	if os.Getenv("REDLOCK_TEST_LEADERLESS") == "" {
		return
	}
	runtime.LockOSThread() // the first thread, which is this goroutine's
	started := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		close(started)
		time.Sleep(time.Minute)
		os.Exit(0)
	}()
	<-started
	_, _, _ = unix.RawSyscall(unix.SYS_EXIT, 0, 0, 0)
}

// wayOut is how a program may get out of sight of what started it. What runs in the end has TOKEN in its
// arguments; the script itself is in a file, and goes on beside what it started.
type wayOut struct {
	script string
	needs  []string // programs
	root   bool
	// leaf is how the arguments begin of what runs in the end, and alive how many of those there are at least; without
	// them one, of nap.
	leaf  string
	alive int
	// through is how redlock itself is started.
	through []string
	// held: nothing executes a copy of sleep while it is, see HELD
	held bool
	// limit is how many processes and threads its user may have, a user of its own.
	limit int
}

const (
	nap = `sleep 300.TOKEN`
	// daemonize is daemon(3), in perl.
	daemonize = `perl -MPOSIX -e 'fork and exit; setsid; fork and exit; chdir "/"; open STDIN, "</dev/null"; open STDOUT, ">/dev/null"; open STDERR, ">/dev/null"; exec @ARGV' `
	goesOn    = `; exec sleep 300`
)

var escapes = map[string]wayOut{
	"the group":                    {script: nap + ` & ` + nap, alive: 2},
	"su":                           {script: `su nobody -s /bin/sh -c "exec ` + nap + `"`, needs: []string{"su"}, root: true},
	"sudo":                         {script: `sudo -n -u nobody ` + nap, needs: []string{"sudo"}, root: true},
	"setsid":                       {script: `setsid ` + nap + ` &` + goesOnBehind, needs: []string{"setsid"}},
	"daemonize":                    {script: daemonize + nap + goesOn, needs: []string{"perl"}},
	"daemonize, as another user":   {script: `setpriv --reuid 65534 --clear-groups ` + daemonize + nap + goesOn, needs: []string{"perl", "setpriv"}, root: true},
	"double fork":                  {script: `(env -i ` + nap + ` &)` + goesOn},
	"env -i":                       {script: `env -i ` + nap},
	"timeout":                      {script: `timeout 300 ` + nap, needs: []string{"timeout"}},
	"timeout, env -i":              {script: `timeout 300 env -i ` + nap, needs: []string{"timeout"}},
	"timeout, setproctitle":        {leaf: "TOKEN", script: `timeout 300 perl -e '$0 = "TOKEN" . " " x 9000; sleep 300'`, needs: []string{"perl", "timeout"}},
	"set -m":                       {script: `exec bash -c 'set -m; env -i ` + nap + ` &` + goesOnBehind + `'`, needs: []string{"bash"}},
	"set -m, setproctitle":         {leaf: "TOKEN", script: `exec bash -c 'set -m; perl -e "\$0 = qq(TOKEN) . qq( ) x 9000; sleep 300" &` + goesOnBehind + `'`, needs: []string{"bash", "perl"}},
	"another user":                 {script: `setpriv --reuid 65534 --clear-groups setsid ` + nap + ` &` + goesOnBehind, needs: []string{"setpriv", "setsid"}, root: true},
	"stopped":                      {leaf: "TOKEN", script: `setsid perl -e '$0 = "TOKEN"; kill STOP => $$; sleep 300' &` + goesOnBehind, needs: []string{"perl", "setsid"}},
	"in uninterruptible sleep":     {leaf: "sh -c", script: `setsid sh -c 'HELD 300; true' TOKEN &` + goesOnBehind, needs: []string{"setsid"}, held: true},
	"without its first thread":     {leaf: "SELF", script: `setsid env REDLOCK_TEST_LEADERLESS=1 SELF TOKEN &` + goesOnBehind, needs: []string{"setsid"}},
	"a nested run":                 {script: `"SELF" run KEY-inner -- sh -c '` + nap + ` & setsid ` + nap + ` & ` + nap + `'`, needs: []string{"setsid"}, alive: 3},
	"a container":                  {script: `unshare --pid --fork --mount-proc sh -c 'setsid ` + nap + ` & ` + nap + `'`, needs: []string{"unshare", "setsid"}, root: true, alive: 2},
	"the first process, a daemon":  {script: daemonize + nap + goesOn, needs: []string{"perl", "unshare"}, root: true, through: []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}},
	"children without end":         {leaf: "TOKEN", script: `setsid perl -e '$0 = "TOKEN"; for (1..300) { fork or do { sleep 300; exit }; select(undef, undef, undef, 0.005) } sleep 300' &` + goesOnBehind, needs: []string{"perl", "setsid"}, alive: 20},
	"a fork loop":                  {leaf: "TOKEN", script: `perl -MPOSIX -e '$0 = "TOKEN"; fork and exit; setsid; for (1..3000) { fork and _exit(0); select(undef, undef, undef, 0.003) } sleep 300'` + goesOn, needs: []string{"perl"}},
	"as many as may be":            {leaf: "TOKEN", script: `exec perl -e '$0 = "TOKEN"; for ($end = time + 60; time < $end; select(undef, undef, undef, 0.002)) { if (defined($child = fork) && !$child) { sleep 60; exit } }'`, needs: []string{"perl", "setpriv", "prlimit"}, root: true, alive: 60, limit: 200},
	"two fork loops without pause": {leaf: "TOKEN", script: `perl -MPOSIX -e '$0 = "TOKEN"; fork; fork and exit; setsid; for (1..5000) { fork and _exit(0) } sleep 300'` + goesOn, needs: []string{"perl"}},
}

// goesOnBehind is for what runs in the background.
const goesOnBehind = ` exec sleep 300`

// losses are how redlock comes to end a command, and may another client have the lock.
var losses = map[string]func(t *testing.T, s *site, key string, p *process){
	"the lock is lost": func(t *testing.T, s *site, key string, p *process) {
		s.takeAway(t, key)
		assert.Equal(t, exitLost, p.end(t), p.errs.String())
	},
	"redlock is stopped": func(t *testing.T, s *site, key string, p *process) {
		stopProcess(t, p.pid(t))
		s.another(t, key)
	},
	"redlock is killed": func(t *testing.T, s *site, key string, p *process) {
		require.NoError(t, syscall.Kill(p.pid(t), syscall.SIGKILL))
		s.another(t, key)
	},
	"the watchdog is killed, and the lock is lost": func(t *testing.T, s *site, key string, p *process) {
		require.NoError(t, syscall.Kill(watchdogOf(t, p.pid(t)), syscall.SIGKILL))
		s.takeAway(t, key)
		assert.Equal(t, exitLost, p.end(t), p.errs.String())
	},
}

// another returns when a client has the lock.
func (s *site) another(t *testing.T, key string) {
	t.Helper()
	p := s.start(t, "run", key, "--", "echo", "got")
	require.Equal(t, "got", p.line(t), p.errs.String())
}

// pid is that of redlock, which may be a child of what was started.
func (p *process) pid(t *testing.T) (pid int) {
	t.Helper()
	if p.via == "" {
		return p.Process.Pid
	}
	require.Eventually(t, func() bool {
		for _, c := range all() {
			if c.parent == p.Process.Pid {
				pid = c.pid
			}
		}
		return pid != 0
	}, 20*time.Second, time.Millisecond)
	return pid
}

// seen is a process as /proc has it.
type seen struct {
	pid, parent int
	args        string
}

// all are the processes that live, whatever /proc calls their first thread.
func all() (found []seen) {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			continue
		}
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if (f[0] == "Z" || f[0] == "X") && f[17] == "1" {
			continue
		}
		args, _ := os.ReadFile(dir + "/cmdline")
		if len(args) == 0 && f[0] == "Z" { // its memory is not the first thread's any more
			threads, _ := filepath.Glob(dir + "/task/*/cmdline")
			for _, file := range threads {
				if text, _ := os.ReadFile(file); len(text) > 0 {
					args = text
				}
			}
		}
		parent, _ := strconv.Atoi(f[1])
		found = append(found, seen{pid, parent, strings.ReplaceAll(string(args), "\x00", " ")})
	}
	return found
}

// with are those that have the token in their arguments.
func with(token string) (found []seen) {
	for _, p := range all() {
		if strings.Contains(p.args, token) {
			found = append(found, p)
		}
	}
	return found
}

// However a program gets out of sight: when another client may have the lock nothing is left of it.
func TestNothingOfACommandEscapes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	number := 0
	for how, e := range escapes {
		for why, lose := range losses {
			if why == "redlock is stopped" && len(e.through) > 0 {
				continue // a first process cannot be stopped from within, and is no other case from without
			}
			number++
			token, key := fmt.Sprintf("4711%d%03d", os.Getpid(), number), fmt.Sprintf("escape%d", number)
			t.Run(how+"/"+why, func(t *testing.T) {
				t.Parallel()
				ttl := "3s"
				if why == "redlock is stopped" {
					ttl = "8s" // a busy machine needs more than a tenth of a second for what must be done before its end
				}
				p := s.escaping(t, e, key, ttl, token)
				t.Cleanup(func() {
					for range 200 {
						left := with(token)
						if len(left) == 0 {
							break
						}
						for _, l := range left {
							_ = syscall.Kill(l.pid, syscall.SIGKILL)
						}
					}
				})
				lose(t, s, key, p)
				if left := with(token); len(left) > 0 {
					assert.Fail(t, "it goes on beside another holder", "%d processes: %v\n%s", len(left), left[0], p.errs.String())
				}
			})
		}
	}
}

// escaping returns when the command is where its way leads.
func (s *site) escaping(t *testing.T, e wayOut, key, ttl, token string) (p *process) {
	t.Helper()
	if e.root && os.Getuid() != 0 {
		t.Skip("only for root")
	}
	for _, program := range e.needs {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is not installed", program)
		}
	}
	dir := t.TempDir()
	self, err := os.Executable()
	require.NoError(t, err)
	held := filepath.Join(dir, "held")
	words := strings.NewReplacer("TOKEN", token, "KEY", key, "SELF", self, "HELD", held)
	file := filepath.Join(dir, "script")
	require.NoError(t, os.WriteFile(file, []byte(words.Replace(e.script)+"\n"), 0o600))
	leaf := words.Replace(cmp.Or(e.leaf, nap))
	leaves := func() (found []seen) {
		for _, p := range with(token) {
			if strings.HasPrefix(p.args, leaf) {
				found = append(found, p)
			}
		}
		return found
	}
	if e.held {
		holdProgram(t, held)
	}
	args := []string{"run", key, "--json", "--ttl", ttl, "--", "sh", file}
	if e.limit > 0 {
		p = s.startThrough(t, append(asAnotherUser(), "prlimit", fmt.Sprintf("--nproc=%d", e.limit)), args...)
	} else if len(e.through) > 0 {
		p = s.startThrough(t, e.through, args...)
		p.via = e.through[0]
	} else {
		p = s.start(t, args...)
	}
	require.Eventually(t, func() bool { return len(leaves()) >= max(e.alive, 1) }, 20*time.Second, 5*time.Millisecond,
		"it does not start: %s", lazily(p.errs.String))
	if e.held {
		stateBecomes(t, leaves()[0].pid, "D")
	}
	return p
}

var users atomic.Int32

// asAnotherUser starts a program as a user that has no other processes, and that may search our folders.
func asAnotherUser() []string {
	id := strconv.Itoa(1_000_000 + os.Getpid()%30_000*100 + int(users.Add(1)))
	const may = "+dac_read_search"
	return []string{"setpriv", "--reuid", id, "--regid", id, "--clear-groups", "--inh-caps", may, "--ambient-caps", may}
}

// holdProgram makes a program that cannot be executed as long as it is held: who tries to waits, and a shell that started
// it with vfork(2) with it, uninterruptibly.
func holdProgram(t *testing.T, path string) {
	t.Helper()
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	text, err := os.ReadFile(sleep)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, text, 0o700))
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK); err != nil {
		t.Skipf("no leases of files here: %v", err)
	}
}
