package realtest_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// child is a process of its own: this test binary, run again.
type child struct {
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	setup childSetup
	stdin *bufio.Reader
}

type childSetup struct {
	Mode  string
	Addrs []string
	Args  json.RawMessage
}

const childEnv = "REDLOCK_LINE_CHILD"

// lineChildren are what a child can be told to do.
var lineChildren = map[string]func(*testing.T, *child){}

// TestLineChild is what a child runs; by itself it does nothing.
func TestLineChild(t *testing.T) {
	setup := os.Getenv(childEnv)
	if setup == "" {
		t.Skip("only as a child of other tests")
	}
	c := &child{stdin: bufio.NewReader(os.Stdin)}
	require.NoError(t, json.Unmarshal([]byte(setup), &c.setup))
	lineChildren[c.setup.Mode](t, c)
}

func (c *child) args(t *testing.T, v any) { require.NoError(t, json.Unmarshal(c.setup.Args, v)) }

func (c *child) open(t *testing.T, o *redlock.Options) *redlock.Redlock {
	rl, err := redlock.Open(t.Context(), c.setup.Addrs, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	return rl
}

// say sends a line to the parent.
func (c *child) say(t *testing.T, v any) {
	b, err := json.Marshal(v)
	require.NoError(t, err)
	fmt.Fprintf(os.Stdout, "%s%s\n", childMark, b)
}

// hear waits for a line of the parent.
func (c *child) hear() string {
	s, _ := c.stdin.ReadString('\n')
	return strings.TrimSpace(s)
}

const childMark = "child: "

// spawn starts a child, which is killed at the end of the test.
func spawn(t *testing.T, mode string, servers []*realredis.Server, args any) *child {
	t.Helper()
	raw, err := json.Marshal(args)
	require.NoError(t, err)
	setup := childSetup{Mode: mode, Args: raw}
	for _, s := range servers {
		setup.Addrs = append(setup.Addrs, s.Addr())
	}
	env, err := json.Marshal(setup)
	require.NoError(t, err)
	c := &child{cmd: exec.Command(os.Args[0], "-test.run=^TestLineChild$", "-test.count=1")}
	c.cmd.Env = append(os.Environ(), childEnv+"="+string(env))
	c.cmd.Stderr = os.Stderr
	c.in, err = c.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := c.cmd.StdoutPipe()
	require.NoError(t, err)
	c.out = bufio.NewReader(out)
	require.NoError(t, c.cmd.Start())
	t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	})
	return c
}

// line is the next thing that the child says.
func (c *child) line(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for {
		s, err := c.out.ReadString('\n')
		if rest, ok := strings.CutPrefix(s, childMark); ok {
			return strings.TrimSpace(rest)
		}
		all.WriteString(s)
		require.NoError(t, err, "the child said: %s", all.String())
	}
}

// tell sends a line to the child.
func (c *child) tell(t *testing.T, s string) {
	_, err := io.WriteString(c.in, s+"\n")
	require.NoError(t, err)
}

// signal sends a signal, and waits until it has been obeyed where that shows.
func (c *child) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	require.NoError(t, c.cmd.Process.Signal(s))
	want := map[syscall.Signal]string{syscall.SIGSTOP: ") T", syscall.SIGKILL: ") Z"}[s]
	soon(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", c.cmd.Process.Pid))
		return err != nil || strings.Contains(string(stat), want)
	})
}

// wait waits for the child's good end.
func (c *child) wait(t *testing.T) {
	t.Helper()
	_ = c.in.Close()
	rest, _ := io.ReadAll(c.out)
	require.NoError(t, c.cmd.Wait(), "%s", rest)
}

// The children below share a counter on a server of its own, which is how they tell in
// which order they were served, and that nobody else is inside.

func init() {
	lineChildren["wait"] = waitChild
	lineChildren["cycle"] = cycleChild
}

// waitChild waits in line from a number of goroutines, one for each line that the parent
// sends; each says at which place it was served, and goes on to release.
func waitChild(t *testing.T, c *child) {
	var a struct {
		Counter string
		Name    string
		TTL     time.Duration
	}
	c.args(t, &a)
	m := c.open(t, &redlock.Options{Owner: a.Name}).Mutex("k", redlock.WithTTL(a.TTL))
	counter := redis.NewClient(&redis.Options{Addr: a.Counter})
	defer counter.Close()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for c.hear() != "" {
		wg.Go(func() {
			l, err := m.Acquire(t.Context())
			if !assert.NoError(t, err) {
				return
			}
			place := counter.Incr(t.Context(), "served").Val()
			mu.Lock()
			c.say(t, place)
			mu.Unlock()
			assert.NoError(t, l.Release(t.Context()))
		})
	}
	wg.Wait()
}

// cycleChild increments a number by reading and writing it, under the lock, until told to stop.
func cycleChild(t *testing.T, c *child) {
	var a struct {
		Counter    string
		Goroutines int
	}
	c.args(t, &a)
	rl := c.open(t, &redlock.Options{TTL: 5 * time.Second})
	counter := redis.NewClient(&redis.Options{Addr: a.Counter})
	defer counter.Close()
	var stop atomic.Bool
	go func() {
		c.hear()
		stop.Store(true)
	}()
	var done atomic.Int64
	var wg sync.WaitGroup
	for range a.Goroutines {
		wg.Go(func() {
			for !stop.Load() {
				l, err := rl.Mutex("k").Acquire(t.Context())
				if !assert.NoError(t, err) {
					return
				}
				n, _ := counter.Get(t.Context(), "number").Int64()
				assert.NoError(t, counter.Set(t.Context(), "number", n+1, 0).Err())
				done.Add(1)
				_ = l.Release(t.Context())
			}
		})
	}
	wg.Wait()
	c.say(t, done.Load())
}

// site is five nodes, a counter, and a Redlock of this process.
type site struct {
	servers []*realredis.Server
	admins  []*redis.Client
	counter *realredis.Server
	rl      *redlock.Redlock
	m       *redlock.Mutex
}

func newSite(t *testing.T, o *redlock.Options, opts ...redlock.LockOption) *site {
	all := realredis.StartN(t, 6)
	s := &site{servers: all[:5], counter: all[5]}
	var addrs []string
	for _, x := range s.servers {
		addrs = append(addrs, x.Addr())
		s.admins = append(s.admins, x.Client(t))
	}
	rl, err := redlock.Open(t.Context(), addrs, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	s.rl, s.m = rl, rl.Mutex("k", opts...)
	return s
}

func (s *site) spawn(t *testing.T, mode string, args map[string]any) *child {
	args["Counter"] = s.counter.Addr()
	return spawn(t, mode, s.servers, args)
}

// waiting waits until so many are in line.
func (s *site) waiting(t *testing.T, n int) {
	t.Helper()
	soon(t, func() bool {
		st, err := s.m.Inspect(t.Context())
		return err == nil && len(st.Waiters) == n
	})
}

// lineOfK is the key under which a node keeps the line of "k".
const lineOfK = "{k}:line"

// arbiter is the node that keeps the line, as soon as somebody waits there.
func (s *site) arbiter(t *testing.T) *realredis.Server {
	t.Helper()
	keeper := -1
	soon(t, func() bool {
		keeper = slices.IndexFunc(s.admins, func(c *redis.Client) bool { return c.Exists(t.Context(), lineOfK).Val() == 1 })
		return keeper >= 0
	})
	return s.servers[keeper]
}

// lines counts the lines that the nodes keep, of all keys.
func (s *site) lines(t *testing.T) (n int) {
	t.Helper()
	for _, c := range s.admins {
		here, err := c.Eval(t.Context(), `return #redis.call("KEYS", "{*}:line")`, nil).Int()
		require.NoError(t, err)
		n += here
	}
	return n
}

func (s *site) acquire(t *testing.T) *redlock.Lock {
	t.Helper()
	l, err := s.m.Acquire(t.Context())
	require.NoError(t, err)
	return l
}

// empty checks that nothing is left on any node.
func (s *site) empty(t *testing.T) {
	t.Helper()
	soon(t, func() bool {
		return !slices.ContainsFunc(s.admins, func(c *redis.Client) bool { return c.DBSize(t.Context()).Val() > 0 })
	})
}

// soon is generous: other tests run on the same cores.
func soon(t *testing.T, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, 30*time.Second, 5*time.Millisecond)
}

func TestLineAcrossProcesses(t *testing.T) {
	s := newSite(t, nil)
	l := s.acquire(t)
	var kids []*child
	for i := range 4 {
		kids = append(kids, s.spawn(t, "wait", map[string]any{"Name": fmt.Sprint(i), "TTL": 10 * time.Second}))
	}
	const n = 20
	for i := range n {
		kids[i%4].tell(t, "wait")
		s.waiting(t, i+1)
	}
	st, err := s.m.Inspect(t.Context())
	require.NoError(t, err)
	for i, w := range st.Waiters {
		assert.Equal(t, fmt.Sprint(i%4), w.Owner)
	}
	require.NoError(t, l.Release(t.Context()))
	for i := range n {
		assert.Equal(t, fmt.Sprint(i+1), kids[i%4].line(t), "in the order of arrival")
	}
	for _, k := range kids {
		k.wait(t)
	}
	s.empty(t)
}

// A dead or paused process costs the others one grace, however many waiters it had.
func TestLineSkipsASilentProcess(t *testing.T) {
	for name, sig := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "paused": syscall.SIGSTOP} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, nil)
			l := s.acquire(t)
			silent := s.spawn(t, "wait", map[string]any{"Name": "silent", "TTL": 10 * time.Second})
			alive := s.spawn(t, "wait", map[string]any{"Name": "alive", "TTL": 10 * time.Second})
			const n = 16
			for i := range n {
				silent.tell(t, "wait")
				s.waiting(t, i+1)
			}
			alive.tell(t, "wait")
			s.waiting(t, n+1)
			silent.signal(t, sig)
			start := time.Now()
			require.NoError(t, l.Release(t.Context()))
			assert.Equal(t, "1", alive.line(t))
			t.Logf("%d silent waiters cost %v", n, time.Since(start))
			assert.Less(t, time.Since(start), 4*time.Second, "sixteen graces would be 8s")
			alive.wait(t)
			if sig == syscall.SIGSTOP {
				silent.signal(t, syscall.SIGCONT)
				for i := range n {
					assert.Equal(t, fmt.Sprint(i+2), silent.line(t), "whoever wakes takes its place again")
				}
				silent.wait(t)
				s.empty(t)
			}
		})
	}
}

func TestLineOfADeadHolder(t *testing.T) {
	s := newSite(t, nil)
	holder := spawn(t, "hold", s.servers, map[string]any{})
	holder.line(t)
	waiter := s.spawn(t, "wait", map[string]any{"Name": "w", "TTL": time.Second})
	waiter.tell(t, "wait")
	s.waiting(t, 1)
	holder.signal(t, syscall.SIGKILL)
	assert.Equal(t, "1", waiter.line(t))
	waiter.wait(t)
	s.empty(t)
}

func init() {
	lineChildren["hold"] = func(t *testing.T, c *child) {
		_, err := c.open(t, &redlock.Options{TTL: time.Second}).Mutex("k", redlock.WithRenewal()).Acquire(t.Context())
		require.NoError(t, err)
		c.say(t, "held")
		c.hear()
	}
}

// The arbiter is killed, paused and restarted empty under eight processes' load; an
// increment that is lost would show two holders.
func TestLineExclusionWhileTheArbiterFails(t *testing.T) {
	s := newSite(t, nil)
	var kids []*child
	for range 4 {
		kids = append(kids, s.spawn(t, "cycle", map[string]any{"Goroutines": 4}))
	}
	counter := s.counter.Client(t)
	goesOn := func(when string) {
		t.Helper()
		before, _ := counter.Get(t.Context(), "number").Int64()
		start := time.Now()
		soon(t, func() bool {
			n, _ := counter.Get(t.Context(), "number").Int64()
			return n >= before+200
		})
		t.Logf("%s: 200 in %v", when, time.Since(start))
	}
	goesOn("before")
	arbiter := s.arbiter(t)
	arbiter.Kill()
	goesOn("killed")
	require.NoError(t, arbiter.Restart())
	goesOn("restarted empty")
	require.NoError(t, arbiter.Pause())
	goesOn("paused")
	require.NoError(t, arbiter.Resume())
	goesOn("resumed")
	done := int64(0)
	for _, k := range kids {
		k.tell(t, "stop")
	}
	for _, k := range kids {
		var n int64
		require.NoError(t, json.Unmarshal([]byte(k.line(t)), &n))
		done += n
		k.wait(t)
	}
	n, err := counter.Get(t.Context(), "number").Int64()
	require.NoError(t, err)
	assert.Equal(t, done, n, "an increment was lost: there were two holders")
	s.empty(t)
}

// users opens a Redlock as a user with the given rights.
func (s *site) as(t *testing.T, rules ...string) (*redlock.Redlock, func() []redlock.DegradedInfo) {
	t.Helper()
	var urls []string
	for _, x := range s.servers {
		require.NoError(t, x.Client(t).Do(t.Context(), append([]any{"ACL", "SETUSER", "clerk", "reset", "on", ">pw"}, anys(rules)...)...).Err())
		urls = append(urls, "redis://clerk:pw@"+x.Addr())
	}
	d := new(degradations)
	rl, err := redlock.Open(t.Context(), urls, &redlock.Options{Hooks: d.hooks()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	return rl, d.all
}

func anys(s []string) (a []any) {
	for _, x := range s {
		a = append(a, x)
	}
	return a
}

// What the README of a locked-down server has to allow, and what happens with less.
func TestLineRights(t *testing.T) {
	const scripts = "+@connection +ping +info +set +get +del +pttl +pexpire +type +evalsha +eval +time"
	const lines = "+zadd +zrem +zscore +zrangebyscore +zrevrange +zcount"
	for _, c := range []struct{ name, rules, lacks string }{
		{"enough", scripts + " " + lines + " +publish +subscribe +unsubscribe &redlock:* ~k ~{k}:line", ""},
		{"no publish", scripts + " " + lines + " +subscribe +unsubscribe &redlock:* ~k ~{k}:line", "PUBLISH"},
		{"no channel", scripts + " " + lines + " +publish +subscribe +unsubscribe resetchannels ~k ~{k}:line", "SUBSCRIBE PUBLISH"},
		{"no line", scripts + " " + lines + " +publish +subscribe +unsubscribe &redlock:* ~k", "line"},
		{"no sorted sets", scripts + " +publish +subscribe +unsubscribe &redlock:* ~k ~{k}:line", "line"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newSite(t, nil)
			rl, said := s.as(t, strings.Fields(c.rules)...)
			m := rl.Mutex("k")
			for range 3 {
				l, err := m.Acquire(t.Context())
				require.NoError(t, err)
				got := make(chan error)
				var next *redlock.Lock
				go func() {
					var err error
					next, err = m.Acquire(t.Context())
					got <- err
				}()
				if c.lacks == "line" {
					soon(t, func() bool { return len(said()) > 0 })
				} else {
					s.waiting(t, 1)
				}
				require.NoError(t, l.Release(t.Context()))
				require.NoError(t, <-got)
				require.NoError(t, next.Release(t.Context()), "a release must not fail for want of a line")
			}
			if c.lacks == "" {
				assert.Empty(t, said())
			} else {
				soon(t, func() bool { return len(said()) > 0 })
				seen := map[string]bool{}
				for _, d := range said() {
					what, _, _ := strings.Cut(d.Lacks, ":")
					assert.Contains(t, c.lacks, strings.Fields(what)[min(1, len(strings.Fields(what))-1)])
					assert.False(t, seen[d.Node+d.Lacks], "said twice")
					seen[d.Node+d.Lacks] = true
				}
			}
			s.empty(t)
		})
	}
}

// crowdOptions does not take a machine that is busy with ten thousand callers for dead.
var crowdOptions = &redlock.Options{TTL: 5 * time.Minute, NodeTimeout: 5 * time.Second}

func TestLineOfTenThousand(t *testing.T) {
	const n = crowd
	t.Run("on one key", func(t *testing.T) {
		s := newSite(t, crowdOptions, redlock.WithTTL(5*time.Minute))
		l := s.acquire(t)
		var mu sync.Mutex
		served := 0
		var wg sync.WaitGroup
		for range n {
			wg.Go(func() {
				l, err := s.m.Acquire(t.Context())
				if !assert.NoError(t, err) {
					return
				}
				mu.Lock()
				served++
				mu.Unlock()
				assert.NoError(t, l.Release(t.Context()))
			})
		}
		arbiter := s.arbiter(t).Client(t)
		soon(t, func() bool { return arbiter.ZCard(t.Context(), lineOfK).Val() >= int64(n) })
		used := arbiter.MemoryUsage(t.Context(), lineOfK).Val()
		t.Logf("%d bytes on the node per waiter", used/int64(n))
		assert.Less(t, used/int64(n), int64(500))
		start := time.Now()
		require.NoError(t, l.Release(t.Context()))
		wg.Wait()
		t.Logf("%.0f handovers/s", float64(n)/time.Since(start).Seconds())
		assert.Equal(t, n, served)
		s.empty(t)
	})
	t.Run("keys", func(t *testing.T) {
		s := newSite(t, crowdOptions)
		other := newSiteClient(t, s)
		var held []*redlock.Lock
		var wg, done sync.WaitGroup
		var mu sync.Mutex
		for i := range n {
			wg.Go(func() {
				l, err := other.Mutex(fmt.Sprint("k", i)).TryAcquire(t.Context())
				if assert.NoError(t, err) {
					mu.Lock()
					held = append(held, l)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		for i := range n {
			done.Go(func() {
				l, err := s.rl.Mutex(fmt.Sprint("k", i)).Acquire(t.Context())
				if assert.NoError(t, err) {
					assert.NoError(t, l.Release(t.Context()))
				}
			})
		}
		soon(t, func() bool { return s.lines(t) == n })
		start := time.Now()
		for _, l := range held {
			wg.Go(func() { assert.NoError(t, l.Release(t.Context())) })
		}
		wg.Wait()
		done.Wait()
		t.Logf("%d handovers in %v", n, time.Since(start))
		s.empty(t)
	})
}

// newSiteClient opens a second Redlock on the nodes.
func newSiteClient(t *testing.T, s *site) *redlock.Redlock {
	var addrs []string
	for _, x := range s.servers {
		addrs = append(addrs, x.Addr())
	}
	rl, err := redlock.Open(t.Context(), addrs, crowdOptions)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	return rl
}
