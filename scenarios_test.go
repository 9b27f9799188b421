package redlock_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/realredis"
	"github.com/quorumlock/redlock/redlocktest"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Scenarios of docs/safety.md that no file of another subject shows. The page says which
// test shows which.

// Scenario 6, and why it is an assumption: where a majority of clocks jumps at once, keys
// are gone before their time, nobody can see it, and there are two holders until the
// first one asks.
func TestMajorityOfClocksThatJumpsEndsLeasesEarly(t *testing.T) {
	t.Parallel()
	env, step := shim(t)
	f := startFleet(t, 3, env)
	first := requireLock(t, f.direct(t, patient))
	waitForVotes(t, first)
	rl := f.direct(t, patient)
	require.ErrorIs(t, try(t, rl), redlock.ErrHeld)
	step(time.Hour)
	for _, admin := range f.admins {
		stepped(t, admin, time.Hour)
	}
	second := requireAcquire(t, rl)
	require.Positive(t, first.Validity(), "it cannot know")
	require.ErrorIs(t, first.Extend(t.Context(), time.Minute), redlock.ErrLost)
	require.ErrorIs(t, first.Release(t.Context()), redlock.ErrNotHeld)
	f.requireOn(t, second)
	require.NoError(t, second.Release(t.Context()))
}

// Scenario 7: keys of clocks that were set back seem to last for another hour; a waiter
// does not sleep for that long, and is there when the clocks are right again.
func TestWaiterDoesNotSleepForAsLongAsAWrongClockSays(t *testing.T) {
	for name, k := range map[string]string{"in line": key, "polling": unlined} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				holder := b.another(nil)
				_, err := holder.Mutex(k).TryAcquire(b.Context())
				require.NoError(b, err)
				b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.ShiftClock(-time.Hour) })
				done := later(func() (*redlock.Lock, error) { return b.rl.Mutex(k).Acquire(b.Context()) })
				b.pass(time.Minute)
				b.pending(done)
				b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.ShiftClock(time.Hour) })
				right := time.Now()
				r := <-done
				require.NoError(b, r.err)
				assert.LessOrEqual(b, r.at.Sub(right), 2*time.Second)
			})
		})
	}
}

// Scenario 8: nodes whose clocks run faster than the holder's by all that DriftFactor
// allows still have the key when the holder's time is over. Without the allowance they
// would not.
func TestNodesThatRunFastKeepTheKeyForAsLongAsItIsHeld(t *testing.T) {
	for _, c := range []struct {
		allowed  float64
		excludes bool
	}{{0.01, true}, {0.0001, false}} {
		t.Run(fmt.Sprint(c.allowed), func(t *testing.T) {
			inBubble(t, 5, &redlock.Options{DriftFactor: c.allowed}, func(b *bed) {
				other := b.another(nil)
				lock := b.lock()
				const step = 10 * time.Millisecond
				for lock.Validity() > step {
					b.pass(step)
					for _, n := range b.cluster.Nodes() {
						n.ShiftClock(step / 100)
					}
				}
				_, err := other.Mutex(key).TryAcquire(b.Context())
				require.Positive(b, lock.Validity())
				if c.excludes {
					require.ErrorIs(b, err, redlock.ErrHeld)
				} else {
					require.NoError(b, err, "two holders")
				}
			})
		})
	}
}

// Scenario 9: what the nodes take to answer is not the holder's to use.
func TestSlowNodesCostValidity(t *testing.T) {
	const slow = 400 * time.Millisecond
	inBubble(t, 3, &redlock.Options{NodeTimeout: ttl / 4}, func(b *bed) {
		known := b.lock() // and with it the scripts
		require.NoError(b, known.Extend(b.Context(), ttl))
		require.NoError(b, known.Release(b.Context()))
		synctest.Wait()
		for _, n := range b.cluster.Nodes() {
			n.Delay(slow)
		}
		var lock *redlock.Lock
		b.takes(2*slow, func() {
			var err error
			lock, err = b.rl.Mutex(key).TryAcquire(b.Context())
			require.NoError(b, err)
		})
		assert.Equal(b, valid-2*slow, lock.Validity())
		asked := time.Now()
		require.NoError(b, lock.Extend(b.Context(), 2*ttl))
		assert.Equal(b, 2*ttl-202*time.Millisecond, lock.Until().Sub(asked), "the same for extends")
	})
}

// Scenario 10, on real servers: clocks that are six seconds off change nothing of a
// lease of five.
func TestServersWhoseClocksAreOffKeepTheLease(t *testing.T) {
	t.Parallel()
	env, step := shim(t)
	f := startFleet(t, 3, env)
	o := redlock.Options{TTL: 5 * time.Second, NodeTimeout: time.Second, RestartGuard: -1}
	a, b := f.direct(t, o), f.direct(t, o)
	for _, off := range []time.Duration{6 * time.Second, -6 * time.Second} {
		step(off)
		for _, admin := range f.admins {
			eventually(t, func() bool {
				now, err := admin.Time(context.Background()).Result()
				return err == nil && (time.Until(now)-off).Abs() < time.Second
			}, "the shim does not step the clock")
		}
		lock := requireAcquire(t, a)
		waitForVotes(t, lock)
		for _, admin := range f.admins {
			left := admin.PTTL(t.Context(), resource).Val()
			require.LessOrEqual(t, left, o.TTL)
			require.GreaterOrEqual(t, left, lock.Validity())
		}
		require.ErrorIs(t, try(t, b), redlock.ErrHeld)
		require.NoError(t, lock.Extend(t.Context(), o.TTL))
		require.ErrorIs(t, try(t, b), redlock.ErrHeld)
		require.NoError(t, lock.Release(t.Context()))
		f.requireGone(t, resource)
	}
}

// Scenario 15: a lock that nobody came round to renew, or to declare lost, does not claim
// to be held.
func TestValidityNeedsNoGoroutine(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		rl, clock := b.withClock()
		lock, err := rl.Mutex(key, redlock.WithRenewal()).TryAcquire(b.Context())
		require.NoError(b, err)
		ctx := lock.Context()
		synctest.Wait()
		b.cluster.ResetCommands()
		clock.Stun(valid)
		assert.LessOrEqual(b, lock.Validity(), time.Duration(0))
		assert.NoError(b, ctx.Err(), "its timer had no processor yet")
		err = lock.Extend(b.Context(), ttl)
		require.ErrorIs(b, err, redlock.ErrLost)
		require.ErrorIs(b, err, redlock.ErrExpired)
		synctest.Wait()
		assert.Zero(b, b.cluster.Commands())
		clock.Advance(0)
		synctest.Wait()
		assert.ErrorIs(b, context.Cause(ctx), redlock.ErrLost)
	})
}

const busyAddrs = "REDLOCK_TEST_BUSY_ADDRS"

// TestBusyProcess is no test of its own: it is the process of the next one. It computes
// for longer than its lease lasts, without a point at which the scheduler could run
// anything else.
func TestBusyProcess(t *testing.T) {
	addrs := os.Getenv(busyAddrs)
	if addrs == "" {
		return
	}
	rl := openAt(t, strings.Split(addrs, ","), redlock.Options{TTL: childTTL, NodeTimeout: childTTL / 4, RestartGuard: -1})
	const sample = 1 << 26
	began := time.Now()
	compute(sample)
	rounds := int(2 * childTTL * sample / max(time.Since(began), time.Microsecond))

	lock, err := rl.Mutex(resource, redlock.WithRenewal()).Acquire(t.Context())
	require.NoError(t, err)
	ctx := lock.Context()
	fmt.Println("held", lock.Token())
	for range 2 {
		compute(rounds)
	}
	over := lock.Validity() <= 0
	<-ctx.Done()
	fmt.Println("done",
		over,
		errors.Is(context.Cause(ctx), redlock.ErrLost),
		errors.Is(lock.Extend(t.Context(), childTTL), redlock.ErrLost),
		errors.Is(lock.Release(t.Context()), redlock.ErrNotHeld))
}

// computed keeps the work from being optimised away.
var computed int

func compute(rounds int) {
	x := 1
	for i := range rounds {
		x = x*31 + i
	}
	computed = x
}

// Scenario 15 in a real process with one processor.
func TestBusyHolderKnowsThatItsLockIsOver(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3)
	child := exec.Command(os.Args[0], "-test.run=^TestBusyProcess$", "-test.timeout=60s")
	child.Env = append(os.Environ(), busyAddrs+"="+strings.Join(addrsOf(f.servers), ","), "GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1")
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	t.Cleanup(func() { _ = child.Process.Kill(); _ = child.Wait() })
	lines := bufio.NewScanner(out)
	says := func(prefix string) string {
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), prefix) {
				return lines.Text()
			}
		}
		t.Fatalf("the child ended without saying %q", prefix)
		return ""
	}
	says("held ")
	ours := requireAcquire(t, f.direct(t, patient))
	require.Equal(t, "done true true true true", says("done "), "validity over, context, extend, release")
	f.requireOn(t, ours)
	require.NoError(t, ours.Release(t.Context()))
}

// Scenario 34: a TLS handshake that nobody answers is a node that is down, no more.
func TestStalledTLSHandshakeIsLikeAHungNode(t *testing.T) {
	t.Parallel()
	hung := hangingListener(t)
	servers := realredis.StartN(t, 2)
	addrs := append(addrsOf(servers), "rediss://"+hung.Addr().String()+"?skip_verify=true")
	rl, err := redlock.Open(t.Context(), addrs, &unhurried)
	require.NoError(t, err)
	t.Cleanup(func() {
		hung.end()
		require.NoError(t, rl.Close())
	})
	for range 10 {
		lock := promptLock(t, rl)
		require.NoError(t, promptly(t, func() error { return lock.Release(t.Context()) }))
	}
}

// Scenario 36: two of the three nodes that a lock rests on lose it. The guard keeps them
// from voting until it is over.
func TestTwoOfThreeHoldingNodesRestart(t *testing.T) {
	t.Parallel()
	o := redlock.Options{TTL: 4 * time.Second, NodeTimeout: time.Second}
	f := startFleet(t, 5)
	f.aged(t, o.TTL)
	rl := f.direct(t, o)
	warm(t, rl)
	holder := f.open(t, o)
	warm(t, holder)
	f.proxies[3].Refuse()
	f.proxies[4].Refuse()
	lock := requireLock(t, holder)
	waitForVotes(t, lock)
	f.restart(t, 1, 2)
	_, refused := granted(t, rl.Mutex(resource))
	require.LessOrEqual(t, lock.Validity(), time.Duration(0), "never two at a time")
	require.NotEmpty(t, refused)
}

// Scenario 39: servers that evict keys take locks away. Check says so beforehand, and the
// holder learns of it when it extends.
func TestEvictedLockIsLearntAtTheNextExtend(t *testing.T) {
	t.Parallel()
	f := startFleet(t, 3, realredis.Args("maxmemory", "3mb", "maxmemory-policy", "allkeys-random"))
	rl := f.direct(t, patient)
	report := check(t, rl)
	for i := range f.servers {
		require.Contains(t, codes(report, i), "critical eviction")
	}
	lock := requireLock(t, rl)
	waitForVotes(t, lock)
	filler := strings.Repeat("x", 1024)
	for _, admin := range f.admins[:2] {
		for i := 0; admin.Exists(t.Context(), resource).Val() > 0; i++ {
			require.Less(t, i, 1000, "the key outlives a million others")
			p := admin.Pipeline()
			for j := range 1000 {
				p.Set(t.Context(), fmt.Sprint("filler-", i, "-", j), filler, 0)
			}
			_, err := p.Exec(t.Context())
			require.NoError(t, err)
		}
	}
	require.Positive(t, lock.Validity(), "nothing has told it")
	err := lock.Extend(t.Context(), time.Minute)
	require.ErrorIs(t, err, redlock.ErrLost)
	require.ErrorIs(t, err, redlock.ErrNotHeld)
}

// Scenario 62, without a line that would put them in order: contenders that ask different
// nodes first split the votes, give back what they have, and come again at different
// times. All are served, after a bounded number of attempts.
func TestSplitVotesAreSettled(t *testing.T) {
	for _, contenders := range []int{5, 20, 50} {
		t.Run(fmt.Sprint(contenders), func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				t := b.T
				var clients []*redlock.Redlock
				for i := range contenders {
					rl, network := separable(t, b.cluster, redlock.Options{})
					warm(t, rl)
					for j, p := range network {
						p.Delay(time.Duration((i+j)%5)*time.Millisecond, 0)
					}
					clients = append(clients, rl)
				}
				synctest.Wait()
				b.cluster.ResetCommands()
				const hold = 10 * time.Millisecond
				var all sync.WaitGroup
				inside := make(chan struct{}, 1)
				start := time.Now()
				for _, rl := range clients {
					all.Go(func() {
						lock, err := rl.Mutex(unlined).Acquire(b.Context())
						if !assert.NoError(b, err) {
							return
						}
						select {
						case inside <- struct{}{}:
						default:
							b.Error("two holders at once")
						}
						time.Sleep(hold)
						<-inside
						assert.NoError(b, lock.Release(b.Context()))
					})
				}
				all.Wait()
				attempts := float64(b.cluster.Commands("SET")) / 5 / float64(contenders)
				b.Logf("%v, %.1f attempts for each grant", time.Since(start), attempts)
				assert.Less(b, time.Since(start), time.Duration(contenders)*10*hold+10*time.Second)
				assert.Less(b, attempts, 30.)
			})
		})
	}
}

// Scenarios 7 and 48: a key that outlives its lease on one node holds nobody up, be it the
// node that keeps the line.
func TestKeyThatStaysOnAnyNodeHoldsNobodyUp(t *testing.T) {
	for name, stay := range map[string]func(*redlocktest.Node){
		"clock set back":   func(n *redlocktest.Node) { n.ShiftClock(-time.Hour) },
		"another for ever": func(n *redlocktest.Node) { n.Set(key, "stuck", 0) },
	} {
		for odd := range 3 {
			t.Run(fmt.Sprint(name, odd), func(t *testing.T) {
				inBubble(t, 3, nil, func(b *bed) {
					b.lock()
					ends := time.Now().Add(ttl)
					stay(b.cluster.Node(odd))
					var waiting []<-chan result
					for range 3 {
						waiting = append(waiting, later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(b.Context()) }))
					}
					for _, w := range waiting {
						r := <-w
						require.NoError(b, r.err)
						assert.Less(b, r.at.Sub(ends), 2*time.Second)
						ends = time.Now()
						require.NoError(b, r.lock.Release(b.Context()))
					}
				})
			})
		}
	}
}
