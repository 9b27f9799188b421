package realtest_test

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/child"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// job is what the processes of these tests are told, each of it what it needs.
type job struct {
	Addrs       []string
	Counter     string
	Name        string
	TTL         time.Duration
	NodeTimeout time.Duration // zero: the default
	Goroutines  int
	Start, End  time.Time
}

func (j job) open(t *testing.T, o *redlock.Options) *redlock.Redlock {
	rl, err := openOn(t.Context(), j.Addrs, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	return rl
}

// The next processes are no tests of their own. They share a counter on a server of its
// own, which is how they tell in which order they were served, and that nobody else is
// inside.

// TestWaitingProcess waits in line from a number of goroutines, one for each line that the
// parent sends; each says at which place it was served, and goes on to release.
func TestWaitingProcess(t *testing.T) {
	var j job
	parent := child.Of(t, &j)
	m := j.open(t, &redlock.Options{Owner: j.Name, NodeTimeout: j.NodeTimeout}).Mutex("k", redlock.WithTTL(j.TTL))
	counter := redis.NewClient(&redis.Options{Addr: j.Counter})
	defer counter.Close()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for parent.Hear() != "" {
		wg.Go(func() {
			l, err := m.Acquire(t.Context())
			if !assert.NoError(t, err) {
				return
			}
			place := counter.Incr(t.Context(), "served").Val()
			mu.Lock()
			parent.Say(t, place)
			mu.Unlock()
			assert.NoError(t, l.Release(t.Context()))
		})
	}
	wg.Wait()
}

// TestCyclingProcess increments a number by reading and writing it, under the lock, until
// told to stop.
func TestCyclingProcess(t *testing.T) {
	var j job
	parent := child.Of(t, &j)
	rl := j.open(t, &redlock.Options{TTL: 5 * time.Second})
	counter := redis.NewClient(&redis.Options{Addr: j.Counter})
	defer counter.Close()
	var stop atomic.Bool
	go func() {
		parent.Hear()
		stop.Store(true)
	}()
	var done atomic.Int64
	var wg sync.WaitGroup
	for range j.Goroutines {
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
	parent.Say(t, done.Load())
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
	rl, err := openOn(t.Context(), addrs, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	s.rl, s.m = rl, rl.Mutex("k", opts...)
	return s
}

// start starts a process on these nodes.
func (s *site) start(t *testing.T, test string, j job) *child.Process {
	t.Helper()
	j.Addrs, j.Counter = addrsOf(s.servers), s.counter.Addr()
	return child.Start(t, test, j)
}

// hear is what a process says that counts.
func hear(t *testing.T, p *child.Process) (n int64) {
	t.Helper()
	p.Hear(t, &n)
	return n
}

// waiting waits until so many are in line.
func (s *site) waiting(t *testing.T, n int) {
	t.Helper()
	soon(t, func() bool {
		st, err := operator(t, s.rl).Inspect(t.Context(), s.m.Key())
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
		return !slices.ContainsFunc(s.admins, func(c *redis.Client) bool { return len(leftKeys(c)) > 0 })
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
	var kids []*child.Process
	for i := range 4 {
		kids = append(kids, s.start(t, "TestWaitingProcess", job{Name: fmt.Sprint(i), TTL: 10 * time.Second}))
	}
	const n = 20
	for i := range n {
		kids[i%4].Tell(t, "wait")
		s.waiting(t, i+1)
	}
	st, err := operator(t, s.rl).Inspect(t.Context(), s.m.Key())
	require.NoError(t, err)
	for i, w := range st.Waiters {
		assert.Equal(t, fmt.Sprint(i%4), w.Owner)
	}
	require.NoError(t, l.Release(t.Context()))
	for i := range n {
		assert.EqualValues(t, i+1, hear(t, kids[i%4]), "in the order of arrival")
	}
	for _, k := range kids {
		k.Wait(t)
	}
	s.empty(t)
}

// A dead or paused process costs the others one grace, however many waiters it had.
func TestLineSkipsASilentProcess(t *testing.T) {
	for name, silence := range map[string]func(*child.Process, *testing.T){"killed": (*child.Process).Kill, "paused": (*child.Process).Pause} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, nil)
			l := s.acquire(t)
			silent := s.start(t, "TestWaitingProcess", job{Name: "silent", TTL: 10 * time.Second})
			alive := s.start(t, "TestWaitingProcess", job{Name: "alive", TTL: 10 * time.Second})
			const n = 16
			for i := range n {
				silent.Tell(t, "wait")
				s.waiting(t, i+1)
			}
			alive.Tell(t, "wait")
			s.waiting(t, n+1)
			silence(silent, t)
			start := time.Now()
			require.NoError(t, l.Release(t.Context()))
			assert.EqualValues(t, 1, hear(t, alive))
			t.Logf("%d silent waiters cost %v", n, time.Since(start))
			assert.Less(t, time.Since(start), 4*time.Second, "sixteen graces would be 8s")
			alive.Wait(t)
			if name == "paused" {
				silent.Resume(t)
				for i := range n {
					assert.EqualValues(t, i+2, hear(t, silent), "whoever wakes takes its place again")
				}
				silent.Wait(t)
				s.empty(t)
			}
		})
	}
}

// TestHoldingProcess is no test of its own: it holds the lock until it is killed.
func TestHoldingProcess(t *testing.T) {
	var j job
	parent := child.Of(t, &j)
	_, err := j.open(t, &redlock.Options{TTL: 4 * time.Second, NodeTimeout: time.Second}).Mutex("k", redlock.WithRenewal()).Acquire(t.Context())
	require.NoError(t, err)
	parent.Say(t, "held")
	parent.Hear()
}

func TestLineOfADeadHolder(t *testing.T) {
	s := newSite(t, nil)
	holder := s.start(t, "TestHoldingProcess", job{})
	holder.Hear(t, new(string))
	waiter := s.start(t, "TestWaitingProcess", job{Name: "w", TTL: 4 * time.Second, NodeTimeout: time.Second})
	waiter.Tell(t, "wait")
	s.waiting(t, 1)
	holder.Kill(t)
	assert.EqualValues(t, 1, hear(t, waiter))
	waiter.Wait(t)
	s.empty(t)
}

// The arbiter is killed, paused and restarted empty under eight processes' load; an
// increment that is lost would show two holders.
func TestLineExclusionWhileTheArbiterFails(t *testing.T) {
	s := newSite(t, nil)
	var kids []*child.Process
	for range 4 {
		kids = append(kids, s.start(t, "TestCyclingProcess", job{Goroutines: 4}))
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
		k.Tell(t, "stop")
	}
	for _, k := range kids {
		done += hear(t, k)
		k.Wait(t)
	}
	n, err := counter.Get(t.Context(), "number").Int64()
	require.NoError(t, err)
	assert.Equal(t, done, n, "an increment was lost: there were two holders")
	s.empty(t)
}

// crowdOptions does not take a machine that is busy with ten thousand callers for dead.
var crowdOptions = &redlock.Options{TTL: 5 * time.Minute, NodeTimeout: 5 * time.Second}

func TestLineOfTenThousand(t *testing.T) {
	n := crowd()
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
		const window = 64 // of a process's waiters, so many stand in the queue
		arbiter := s.arbiter(t).Client(t)
		soon(t, func() bool { return arbiter.ZCard(t.Context(), lineOfK).Val() >= window })
		used := arbiter.MemoryUsage(t.Context(), lineOfK).Val()
		t.Logf("%d bytes on the node per waiter of the window", used/window)
		assert.Less(t, used/window, int64(500), "and those outside have none")
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
	rl, err := openOn(t.Context(), addrs, crowdOptions)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, rl.Close()) })
	return rl
}
