package promises_test

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/inside"
	"github.com/quorumlock/redlock/internal/testing/ticktest"
	"github.com/quorumlock/redlock/redlocktest"
)

// Scenarios 19 and 21, R4: decided at quorum; what the others say comes later.
func TestAcquireIsDecidedWithoutTheSlowest(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		b.cycle() // or it would have to connect first
		b.each([]int{3, 4}, hang)
		var lock *redlock.Lock
		b.takes(0, func() { lock = b.lock() })
		assert.Equal(b, "granted granted granted pending pending", votes(lock.Outcomes()))
		b.pass(nodeTimeout)
		assert.Equal(b, "granted granted granted unknown unknown", votes(lock.Outcomes()))
		b.pass(time.Second)
		b.each([]int{3, 4}, resume)
		synctest.Wait()
		assert.Equal(b, "granted granted granted granted granted", votes(lock.Outcomes()), "late, but there")
		assert.Equal(b, nodeTimeout+time.Second, lock.Outcomes()[4].Elapsed)
		require.NoError(b, lock.Release(b.Context()))
		b.on(0)
	})
}

// Who is told what: held only by refusals that alone rule out a quorum, anything else
// is no quorum; in both cases as soon as that is sure. Node 4 breaks ties, see attempt_test.go.
func TestWhyAnAttemptFailed(t *testing.T) {
	const loading = "LOADING Redis is loading the dataset in memory"
	const late = 10 * time.Millisecond
	takenAndLate := func(n *redlocktest.Node) { taken(n); n.DelayCommand("SET", 1, late) }
	for _, c := range []struct {
		name          string
		faults        map[int]func(*redlocktest.Node)
		is, isNot     error
		votes         string
		takes         time.Duration
		keysMeanwhile int // of others, and none of ours
	}{
		{"two dead and three held", map[int]func(*redlocktest.Node){0: stop, 1: stop, 2: taken, 3: taken, 4: taken},
			redlock.ErrHeld, redlock.ErrNoQuorum, "", 0, 3},
		{"two hung and three held", map[int]func(*redlocktest.Node){0: hang, 1: hang, 2: taken, 3: taken, 4: taken},
			redlock.ErrHeld, redlock.ErrNoQuorum, "", 0, 3},
		{"two held and three in error", map[int]func(*redlocktest.Node){0: taken, 1: taken, 2: answers(loading), 3: answers(loading), 4: answers(loading)},
			redlock.ErrNoQuorum, redlock.ErrHeld, "", 0, 2},
		{"two held, one hung, one in error", map[int]func(*redlocktest.Node){4: takenAndLate, 1: taken, 2: hang, 3: answers(loading)},
			redlock.ErrNoQuorum, redlock.ErrHeld, "granted refused unknown failed refused", nodeTimeout, 2},
		{"two held, one in error, one slow that is held", map[int]func(*redlocktest.Node){4: takenAndLate, 1: taken, 2: answers(loading),
			3: func(n *redlocktest.Node) { taken(n); n.DelayCommand("SET", 1, 150*time.Millisecond) }},
			redlock.ErrHeld, redlock.ErrNoQuorum, "granted refused failed refused refused", 150 * time.Millisecond, 3},
		{"three hung", map[int]func(*redlocktest.Node){0: hang, 1: hang, 2: hang},
			redlock.ErrNoQuorum, redlock.ErrHeld, "unknown unknown unknown granted granted", nodeTimeout, 2}, // there may be hope
		{"all wrong in the same way", map[int]func(*redlocktest.Node){0: answers(loading), 1: answers(loading), 2: answers(loading), 3: answers(loading), 4: answers(loading)},
			redlock.ErrNoQuorum, redlock.ErrHeld, "", 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				b.cycle() // all are connected
				synctest.Wait()
				for i, f := range c.faults {
					f(b.cluster.Node(i))
				}
				start := time.Now()
				done := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).TryAcquire(b.Context()) })
				if c.takes > 0 {
					b.pending(done)
				}
				b.pass(late)
				b.on(c.keysMeanwhile) // hopeless: given back at once, not when it is called by its name
				r := <-done
				if !strings.HasPrefix(c.name, "two dead") && !strings.HasPrefix(c.name, "all") {
					assert.Equal(b, c.takes, r.at.Sub(start))
				}
				q := b.quorumError(r.err)
				require.ErrorIs(b, r.err, c.is)
				require.NotErrorIs(b, r.err, c.isNot)
				if c.votes != "" {
					assert.Equal(b, c.votes, votes(q.Outcomes))
				}
				for _, name := range b.rl.Nodes() {
					assert.ErrorContains(b, r.err, name)
				}
				for _, n := range b.cluster.Nodes() {
					n.Resume()
				}
				synctest.Wait()
				for _, h := range b.cluster.Holders(key) {
					assert.Contains(b, []string{"", "somebody@else"}, h, "nothing of ours is left, nothing of others is gone")
				}
			})
		})
	}
}

// Scenario 54.
func TestAllNodesDown(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.assemble(inside.Assembly{})
		b.each([]int{0, 1, 2}, stop)
		start := time.Now()
		q := b.try()
		assert.ErrorIs(b, q, redlock.ErrNoQuorum)
		assert.LessOrEqual(b, time.Since(start), nodeTimeout)
		assert.Equal(b, 3, len(q.Outcomes))
		ctx, cancel := context.WithTimeout(b.Context(), 3*time.Second)
		defer cancel()
		b.takes(3*time.Second, func() {
			_, err := b.rl.Mutex(key).Acquire(ctx)
			assert.ErrorIs(b, err, context.DeadlineExceeded)
			assert.ErrorIs(b, err, redlock.ErrNoQuorum)
		})
		b.pass(time.Second) // what was being dialled is given up
		for i := range 3 {
			queued, kept := b.lanes[i].Load()
			assert.Zero(b, queued+kept, "nothing was sent, so nothing is to be taken back")
		}
	})
}

// Scenarios 2 and 9, R7: validity counts from before the first request, and is looked
// at after the quorum.
func TestGrantThatComesTooLateIsNone(t *testing.T) {
	for name, pause := range map[string]func(*ticktest.FakeClock){
		"no processor": func(c *ticktest.FakeClock) { c.Stun(valid) },
		"suspended":    func(c *ticktest.FakeClock) { c.Suspend(valid) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				rl, clock := b.withClock()
				b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.DelayCommand("SET", 1, 100*time.Millisecond) })
				done := later(func() (*redlock.Lock, error) { return rl.Mutex(key).TryAcquire(b.Context()) })
				b.pending(done)
				pause(clock)
				r := <-done
				require.Nil(b, r.lock)
				require.ErrorIs(b, r.err, redlock.ErrExpired)
				b.on(0)
			})
			inBubble(t, 3, nil, func(b *bed) {
				rl, clock := b.withClock()
				b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.DelayCommand("SET", 1, 100*time.Millisecond) })
				done := later(func() (*redlock.Lock, error) { return rl.Mutex(key).TryAcquire(b.Context()) })
				clock.Stun(valid - 1)
				r := <-done
				require.NoError(b, r.err, "a nanosecond is left")
				assert.Equal(b, time.Duration(1), r.lock.Validity())
			})
		})
	}
}

// Scenario 55, R3 and R6.
func TestAcquireReturnsWhenItsContextEnds(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		b.each([]int{0, 1, 2}, hang)
		for _, op := range []string{"TryAcquire", "Acquire", "Do"} {
			ctx, cancel := context.WithCancelCause(b.Context())
			done := later(func() (*redlock.Lock, error) { return nil, every[op](b.rl.Mutex(key), ctx) })
			b.pass(5 * time.Millisecond)
			b.pending(done)
			cancel(errGaveUp)
			b.takes(0, func() {
				err := (<-done).err
				assert.ErrorIs(b, err, context.Canceled, op)
				assert.ErrorIs(b, err, errGaveUp, op)
				b.quorumError(err)
			})
			b.on(0)
		}
		b.each([]int{0, 1, 2}, resume)
		b.pass(time.Millisecond)
		b.on(0)
		b.cycle()
	})
}

// Scenario 56.
func TestContextThatIsOverCausesNoIO(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		b.cluster.ResetCommands()
		calls := map[string]func(context.Context) error{
			"Extend": func(ctx context.Context) error { return lock.Extend(ctx, ttl) },
		}
		for name, f := range every {
			calls[name] = func(ctx context.Context) error { return f(b.rl.Mutex(key), ctx) }
		}
		for name, f := range calls {
			err := f(canceled())
			assert.ErrorIs(b, err, context.Canceled, name)
			assert.ErrorIs(b, err, errGaveUp, name)
			assert.ErrorContains(b, err, key, name)
		}
		synctest.Wait()
		assert.Zero(b, b.cluster.Commands())
	})
}

// Scenario 57: a cancellation that races with the grant leaves either a lock or
// nothing, never a lock that nobody has.
func TestCancellationAtTheMomentOfSuccess(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		for _, n := range b.cluster.Nodes() {
			n.Delay(time.Millisecond)
		}
		granted := 0
		for i := range 300 {
			ctx, cancel := context.WithTimeout(b.Context(), 2*time.Millisecond)
			lock, err := b.rl.Mutex(key).TryAcquire(ctx)
			cancel()
			if err == nil {
				granted++
				require.Greater(b, lock.Validity(), time.Duration(0))
				require.NoError(b, lock.Release(ctx))
			} else {
				require.Nil(b, lock, i)
				require.ErrorIs(b, err, context.DeadlineExceeded)
			}
			b.pass(10 * time.Millisecond)
			b.on(0)
		}
		b.Logf("%d of 300 granted", granted)
	})
}

// Scenario 12.
func TestContextDoesNotShortenTheLease(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		ctx, cancel := context.WithTimeout(b.Context(), 50*time.Millisecond)
		defer cancel()
		lock, err := b.rl.Mutex(key).Acquire(ctx)
		require.NoError(b, err)
		assert.Equal(b, valid, lock.Validity())
		b.pass(time.Second)
		assert.Equal(b, valid-time.Second, lock.Validity())
		assert.NoError(b, lock.Context().Err())

		b.cluster.Node(0).Hang()
		b.cluster.Node(1).Hang()
		ctx, cancel = context.WithTimeout(b.Context(), 30*time.Millisecond)
		defer cancel()
		b.takes(30*time.Millisecond, func() {
			_, err = b.rl.Mutex("other").TryAcquire(ctx)
			assert.ErrorIs(b, err, context.DeadlineExceeded)
		})
	})
}

// unlined is a key without a line, for which waiters poll.
const unlined = key + "}"

// R1, scenarios 26 and 31.
func TestEveryAttemptHasATokenOfItsOwn(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.Set(unlined, "another", time.Minute) })
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
		defer cancel()
		_, err := b.rl.Mutex(unlined).Acquire(ctx)
		require.ErrorIs(b, err, redlock.ErrHeld)
		for _, n := range b.cluster.Nodes() {
			vs := values(n)
			assert.Greater(b, len(vs), 10)
			slices.Sort(vs)
			assert.Len(b, slices.Compact(vs), len(values(n)))
		}
	})
}

// Scenario 26: a release that arrives late, on a connection that its sender has given
// up, must not delete what the same process has acquired since.
func TestLateReleaseDoesNotHitTheNextLock(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock(redlock.WithTTL(100 * time.Millisecond))
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.DelayCommand(evalsha, 1, time.Second) })
		require.ErrorIs(b, lock.Release(b.Context()), redlock.ErrNoQuorum)
		b.pass(200 * time.Millisecond) // the connections are given up
		next := b.lock()
		b.pass(2 * time.Second)
		b.on(3)
		require.NoError(b, next.Extend(b.Context(), ttl))
	})
}

// Scenario 31: a network that delivers requests twice does no harm to a lock.
func TestDuplicatesOnTheWire(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		replay := func() {
			for _, n := range b.cluster.Nodes() {
				conn := b.cluster.Client(slices.Index(b.cluster.Nodes(), n), nil)
				for _, c := range n.Log() {
					if name := strings.ToUpper(c.Args[0]); name == "SET" || name == eval || name == evalsha {
						args := make([]any, len(c.Args))
						for i, a := range c.Args {
							args[i] = a
						}
						conn.Do(b.Context(), args...)
					}
				}
			}
		}
		first := b.lock()
		replay()
		require.NoError(b, first.Extend(b.Context(), ttl))
		require.NoError(b, first.Release(b.Context()))
		second := b.lock()
		replay()
		b.on(3)
		require.NoError(b, second.Extend(b.Context(), ttl))
		require.NoError(b, second.Release(b.Context()))
	})
}

// Scenario 22, R5: a reply that was lost is neither a grant nor a refusal.
func TestLostReplyIsUnknown(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		b.cycle()
		b.cluster.ResetCommands()
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.DropReply("SET", 1) })
		q := b.try()
		require.ErrorIs(b, q, redlock.ErrNoQuorum)
		require.NotErrorIs(b, q, redlock.ErrHeld)
		assert.Equal(b, 3, strings.Count(votes(q.Outcomes), "unknown"))
		b.pass(time.Second)
		b.on(0)
		for i, n := range b.cluster.Nodes() {
			if i < 3 {
				assert.Equal(b, 1, n.Commands("SET"), "R2: one SET per attempt")
			}
			// The others may have been spared: three lost replies decide it.
			assert.LessOrEqual(b, n.Commands("SET"), 1)
			assert.Len(b, at(n, time.Time{}, evalsha), n.Commands("SET"), "one release, which found the key")
		}
	})
}

// Scenario 25, and redsync, where a SET that came 900 ms late kept its node for 7.3 s: a SET that was sent and
// given up may land after its release. The second release after a grace catches it.
func TestOrphanThatLandsWithinTheGrace(t *testing.T) {
	const grace = 5 * time.Millisecond // the timeout per node
	inBubble(t, 3, nil, func(b *bed) {
		m := b.rl.Mutex(key, redlock.WithTTL(100*time.Millisecond))
		lock, err := m.TryAcquire(b.Context()) // scripts are known
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
		synctest.Wait()
		late := func(d time.Duration) time.Time {
			b.cluster.ResetCommands()
			b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.DelayCommand("SET", 1, d) })
			start := time.Now()
			_, err = m.TryAcquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrNoQuorum)
			return start
		}
		start := late(400 * time.Millisecond)
		b.pass(time.Second)
		givenUp := at(b.cluster.Node(0), start, evalsha)[0] // after about the TTL, the connection is

		start = late(givenUp + grace/2)
		b.pass(time.Until(start.Add(givenUp + grace/2)))
		b.on(3)
		b.pass(grace)
		b.on(0)
		for _, n := range b.cluster.Nodes() {
			assert.Equal(b, 1, n.Commands("SET"))
			assert.Len(b, at(n, time.Time{}, evalsha), 2, "I9: once, and once more after the grace")
		}
	})
}

// Scenarios 25 and 75: what is on the way outlives the connection, and lands when no release follows any more. It stays
// for its lease.
func TestOrphanThatOutlivesItsConnection(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		m := b.rl.Mutex(key, redlock.WithTTL(100*time.Millisecond))
		lock, err := m.TryAcquire(b.Context()) // scripts are known
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
		synctest.Wait()
		b.cluster.ResetCommands()
		b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.DelayCommand("SET", 1, time.Minute) })
		_, err = m.TryAcquire(b.Context())
		require.ErrorIs(b, err, redlock.ErrNoQuorum)
		b.pass(59 * time.Second)
		b.on(0)
		b.pass(time.Second)
		b.on(3)
		b.pass(100 * time.Millisecond)
		b.on(0)
		for _, n := range b.cluster.Nodes() {
			assert.Equal(b, 1, n.Commands("SET"))
			assert.Len(b, at(n, time.Time{}, evalsha), 2)
		}
	})
}

// Scenario 28: requests arrive, replies do not.
func TestHalfOpenNetwork(t *testing.T) {
	for _, mode := range []redlocktest.PartitionMode{redlocktest.DropReplies, redlocktest.DropRequests} {
		inBubble(t, 5, nil, func(b *bed) {
			b.assemble(inside.Assembly{})
			b.cycle()
			synctest.Wait()
			b.cluster.ResetCommands()
			b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.Partition(mode) })
			b.takes(nodeTimeout, func() { require.ErrorIs(b, b.try(), redlock.ErrNoQuorum) })
			b.pass(2 * time.Minute) // a release whose SET may land is kept for longer than the lease
			b.on(0)
			for _, n := range b.cluster.Nodes() {
				assert.Less(b, len(at(n, time.Time{}, "SET", evalsha, eval)), 10, "no endless trying")
			}
			for i := range 5 {
				queued, kept := b.lanes[i].Load()
				assert.Zero(b, queued+kept)
			}
			b.each([]int{0, 1, 2}, (*redlocktest.Node).Heal)
			b.pass(time.Minute)
			b.cycle()
		})
	}
}

// Scenario 30: only the side with a majority can lock.
func TestPartitionBetweenClients(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		sees := func(nodes ...int) *redlock.Redlock {
			var clients []redis.UniversalClient
			for i := range 5 {
				adapt := cannotReach
				if slices.Contains(nodes, i) {
					adapt = nil
				}
				clients = append(clients, b.cluster.Client(i, adapt))
			}
			rl, err := redlock.New(clients, nil)
			require.NoError(b, err)
			b.Cleanup(func() { _ = rl.Close() })
			return rl
		}
		minority, majority := sees(0, 1), sees(2, 3, 4)
		for range 20 {
			_, err := minority.Mutex(key).TryAcquire(b.Context())
			require.ErrorIs(b, err, redlock.ErrNoQuorum)
			lock, err := majority.Mutex(key).TryAcquire(b.Context())
			require.NoError(b, err)
			require.NoError(b, lock.Release(b.Context()))
			b.pass(time.Millisecond)
		}
		b.on(0)
	})
}

// Acquire waits for holders and through outages alike.
func TestAcquireWaits(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ begin, end func(*redlocktest.Node) }{
		"held":        {taken, func(n *redlocktest.Node) { n.Del(key) }},
		"crashed":     {stop, func(n *redlocktest.Node) { n.Restart(redlocktest.KeepKeys) }},
		"hung":        {hang, resume},
		"cut off":     {func(n *redlocktest.Node) { n.Partition(redlocktest.Blackhole) }, (*redlocktest.Node).Heal},
		"loading":     {answers("LOADING Redis is loading"), answers("")},
		"a replica":   {answers("READONLY You can't write against a read only replica."), answers("")},
		"half-opened": {func(n *redlocktest.Node) { n.Partition(redlocktest.DropReplies) }, (*redlocktest.Node).Heal},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				b.cycle() // or nodes that are first heard of after a minute have to wait for the guard
				b.each([]int{1, 2, 3}, c.begin)
				done := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(b.Context()) })
				b.pass(time.Minute)
				b.pending(done)
				b.each([]int{1, 2, 3}, c.end)
				healed := time.Now()
				r := <-done
				require.NoError(b, r.err)
				// RetryMax, or go-redis' own timeouts of dialing and pooling.
				assert.LessOrEqual(b, r.at.Sub(healed), 30*time.Second)
				if name == "held" {
					assert.LessOrEqual(b, r.at.Sub(healed), 500*time.Millisecond)
				}
				if name == "loading" { // which is asked again once a second
					assert.LessOrEqual(b, r.at.Sub(healed), 1500*time.Millisecond)
				}
				require.NoError(b, r.lock.Release(b.Context()))
				b.pass(30 * time.Second)
				b.on(0)
			})
		})
	}
}

func TestAcquireTellsWhyItWaitedInVain(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		b.each([]int{0, 1, 2, 3}, func(n *redlocktest.Node) { n.Set(key, "tok@owner", time.Minute) })
		ctx, cancel := context.WithTimeoutCause(b.Context(), 3*time.Second, errGaveUp)
		defer cancel()
		b.takes(3*time.Second, func() {
			_, err := b.rl.Mutex(key).Acquire(ctx)
			assert.ErrorIs(b, err, context.DeadlineExceeded)
			assert.ErrorIs(b, err, errGaveUp)
			assert.ErrorIs(b, err, redlock.ErrHeld)
			q := b.quorumError(err)
			assert.Equal(b, "acquire", q.Op)
			assert.Equal(b, key, q.Key)
			assert.Equal(b, 3, q.Need)
			assert.Contains(b, q.Error(), `found "tok@owner"`)
			told := 0 // by as many nodes as were waited for
			for _, o := range q.Outcomes {
				if o.Holder != "" {
					assert.Equal(b, "tok@owner", o.Holder)
					told++
				}
			}
			assert.GreaterOrEqual(b, told, 2)
			assert.InDelta(b, 57*time.Second, q.HolderTTL, float64(600*time.Millisecond))
			assert.Contains(b, q.Error(), "the holder's lease ends in")
		})
	})
}

// Scenarios 45, 46 and 47: what no waiting mends is returned at once, if it alone rules
// out a quorum; otherwise the other nodes decide.
func TestErrorsThatNoWaitingMends(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fault func(*redlocktest.Node)
		says  string
	}{
		"ACL":       {func(n *redlocktest.Node) { n.Deny("SET") }, "NOPERM"},
		"auth":      {func(n *redlocktest.Node) { n.Redis().RequireAuth("secret") }, "NOAUTH"},
		"cluster":   {answers("MOVED 3999 127.0.0.1:6381"), "a node of a Redis Cluster"},
		"denied":    {answers("DENIED Redis is running in protected mode"), "DENIED"},
		"no Redis":  {answers("ERR unknown command 'SET'"), "unknown command"},
		"other key": {list, "the key holds a list, which is no lock"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 5, nil, func(b *bed) {
				b.each([]int{0, 1}, c.fault)
				require.NoError(b, b.lock().Release(b.Context()), "a minority")
				b.cluster.Node(2).Stop()
				ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
				defer cancel()
				_, err := b.rl.Mutex(key).Acquire(ctx)
				require.ErrorIs(b, err, context.DeadlineExceeded, "an outage on top of it may end")

				b.cluster.Node(2).Restart(redlocktest.LoseKeys)
				b.pass(10 * time.Second)
				b.each([]int{2}, c.fault)
				start := time.Now()
				_, err = b.rl.Mutex(key).Acquire(b.Context())
				require.Error(b, err)
				assert.ErrorContains(b, err, c.says)
				q := b.quorumError(err)
				assert.Contains(b, fmt.Sprint(q.Outcomes[0].Err), c.says)
				if name != "other key" { // which takes a look at as many nodes as hold it
					assert.Zero(b, time.Since(start))
				}
				assert.Equal(b, map[bool]string{true: "(list)"}[name == "other key"], b.cluster.Node(0).Get(key), "left alone")
			})
		})
	}
}

// gaps are the pauses between the attempts that a node has seen.
func gaps(n *redlocktest.Node) (ds []time.Duration) {
	var last time.Time
	for _, c := range n.Log() {
		if strings.EqualFold(c.Args[0], "set") {
			if !last.IsZero() {
				ds = append(ds, c.At.Sub(last))
			}
			last = c.At
		}
	}
	return ds
}

// Scenario 48: where the holder's key has no TTL, nobody can know when it ends.
func TestBackoffIsBounded(t *testing.T) {
	const lo, hi = 10 * time.Millisecond, time.Second
	// One node, since others may be spared an attempt that is decided without them.
	inBubble(t, 1, &redlock.Options{RetryMin: lo, RetryMax: hi}, func(b *bed) {
		b.each([]int{0}, func(n *redlocktest.Node) { n.Set(unlined, "for ever", 0) })
		done := later(func() (*redlock.Lock, error) { return b.rl.Mutex(unlined).Acquire(b.Context()) })
		b.pass(time.Minute)
		b.pending(done)
		ds := gaps(b.cluster.Node(0))
		require.Greater(b, len(ds), 50)
		longest := time.Duration(0)
		for i, d := range ds {
			limit := hi
			if i < 6 {
				limit = lo << i
			}
			assert.GreaterOrEqual(b, d, lo, "pause %d", i)
			assert.LessOrEqual(b, d, limit, "pause %d", i)
			longest = max(longest, d)
		}
		assert.Greater(b, longest, hi/2, "and spread")
		b.each([]int{0}, func(n *redlocktest.Node) { n.Del(unlined) })
		require.NoError(b, (<-done).err)
	})
}

// No number of attempts may overflow the doubling.
func TestBackoffOfLongPauses(t *testing.T) {
	for _, o := range []redlock.Options{
		{RetryMin: 20 * time.Second, RetryMax: time.Minute},
		{RetryMin: time.Hour, RetryMax: time.Hour},
		{RetryMin: 1, RetryMax: 1},
		{RetryMin: 1, RetryMax: time.Hour},
	} {
		inBubble(t, 1, &o, func(b *bed) {
			b.each([]int{0}, func(n *redlocktest.Node) { n.Set(unlined, "for ever", 0) })
			ctx, cancel := context.WithTimeout(b.Context(), max(100*o.RetryMin, 500))
			defer cancel()
			_, err := b.rl.Mutex(unlined).Acquire(ctx)
			assert.ErrorIs(b, err, redlock.ErrHeld)
		})
	}
}

// R14: a waiter is there when the holder's lease ends, however long it has waited.
func TestWaiterKnowsWhenTheLeaseEnds(t *testing.T) {
	inBubble(t, 5, &redlock.Options{RetryMax: time.Hour}, func(b *bed) {
		holder := b.another(nil)
		lock, err := holder.Mutex(key, redlock.WithRenewal()).Acquire(b.Context())
		require.NoError(b, err)
		b.on(5) // a node that the waiter gets first has it ask twice a second, and not when the lease ends
		done := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(b.Context()) })
		b.pass(time.Minute)
		b.pending(done)
		require.NoError(b, holder.Close()) // as good as a crash: nobody renews
		ends := time.Now().Add(b.cluster.TTLs(key)[0])
		r := <-done
		require.NoError(b, r.err)
		assert.Less(b, lock.Validity(), time.Duration(0))
		assert.False(b, r.at.Before(ends))
		assert.Less(b, r.at.Sub(ends), 15*time.Millisecond)
	})
}

// Scenario 7: one node whose clock has jumped back holds nobody up.
func TestNodeWhoseClockJumpsBackHoldsNobodyUp(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.lock()
		b.cluster.Node(0).ShiftClock(-time.Hour)
		r := <-later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(b.Context()) })
		require.NoError(b, r.err)
		b.takes(0, func() { require.NoError(b, r.lock.Release(b.Context())) })
	})
}

// Scenario 62: contenders that split the votes give back what they got, and all get
// their turn. Mutual exclusion is watched on the way.
func TestContendersAllGetTheirTurn(t *testing.T) {
	inBubble(t, 5, nil, func(b *bed) {
		var (
			all     sync.WaitGroup
			inside  = make(chan struct{}, 1)
			clients = []*redlock.Redlock{b.rl, b.another(nil), b.another(nil)}
		)
		for i := range 24 {
			all.Go(func() {
				lock, err := clients[i%3].Mutex(key).Acquire(b.Context())
				if !assert.NoError(b, err) {
					return
				}
				select {
				case inside <- struct{}{}:
				default:
					b.Error("two holders at once")
				}
				time.Sleep(10 * time.Millisecond)
				<-inside
				assert.NoError(b, lock.Release(b.Context()))
			})
		}
		start := time.Now()
		all.Wait()
		assert.Less(b, time.Since(start), time.Minute)
		b.on(0)
	})
}

// Scenario 67.
func TestNoRandomnessNoLock(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		for name, r := range map[string]interface{ Read([]byte) (int, error) }{
			"broken": iotest.ErrReader(errGaveUp),
			"short":  bytes.NewReader(make([]byte, 15)),
		} {
			b.assemble(inside.Assembly{Random: r})
			for _, op := range []string{"TryAcquire", "Acquire", "Do"} {
				err := every[op](b.rl.Mutex(key), b.Context())
				require.Error(b, err, name)
				assert.ErrorContains(b, err, "no randomness")
				assert.NotErrorIs(b, err, redlock.ErrNoQuorum)
			}
		}
		assert.Zero(b, b.cluster.Commands())
		b.assemble(inside.Assembly{Random: bytes.NewReader(bytes.Repeat([]byte{0xab}, 16))})
		assert.Equal(b, strings.Repeat("ab", 16), b.lock().Token())
	})
}

// Scenario 49.
func TestGarbageIsNoVote(t *testing.T) {
	for _, rubbish := range []string{"rubbish\r\n", "+QUEUED\r\n", ":1\r\n", "$-1\r\n", "*0\r\n"} {
		inBubble(t, 1, nil, func(b *bed) {
			b.cycle()
			b.cluster.Node(0).Garbage(rubbish)
			lock, err := b.rl.Mutex(key).TryAcquire(b.Context())
			// A null looks like a refusal, but what comes behind it is not the answer to the look.
			require.ErrorIs(b, err, redlock.ErrNoQuorum, "%q", rubbish)
			require.Nil(b, lock)
			b.pass(time.Second)
			b.on(0)
		})
	}
}

const most = 300 * time.Millisecond

// Whatever way there is to wait for a lock, WithMaxWait bounds it, leaves nothing behind, and
// says that another holds it.
func TestMaxWaitBoundsEachWayOfWaiting(t *testing.T) {
	limit := redlock.WithMaxWait(most)
	neverCalled := func(context.Context, *redlock.Lock) error { panic("without a lock") }
	for name, wait := range map[string]func(ctx context.Context, rl *redlock.Redlock) error{
		"Acquire": func(ctx context.Context, rl *redlock.Redlock) error {
			_, err := rl.Mutex(key, limit).Acquire(ctx)
			return err
		},
		"Do": func(ctx context.Context, rl *redlock.Redlock) error { return rl.Mutex(key, limit).Do(ctx, neverCalled) },
		"Lead": func(ctx context.Context, rl *redlock.Redlock) error {
			return rl.Mutex(key, limit).Lead(ctx, neverCalled)
		},
		"Shared": func(ctx context.Context, rl *redlock.Redlock) error {
			return rl.Mutex(key, limit).Shared().Do(ctx, neverCalled)
		},
		"Semaphore": func(ctx context.Context, rl *redlock.Redlock) error {
			return rl.Semaphore(key, 2, limit).Do(ctx, neverCalled)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, nil, func(b *bed) {
				held := b.lock(redlock.WithRenewal())
				waiter := b.another(nil)
				b.takes(most, func() {
					err := wait(b.Context(), waiter)
					assert.ErrorIs(b, err, redlock.ErrHeld)
					assert.ErrorIs(b, err, context.DeadlineExceeded)
					assert.ErrorContains(b, err, ": held by another: gave up after 300ms (WithMaxWait) (")
				})
				assert.NoError(b, b.Context().Err(), "the caller's own context goes on")
				require.NoError(b, held.Release(b.Context()))
				b.pass(time.Second)
				b.on(0)
				for _, n := range b.cluster.Nodes() {
					for _, k := range n.Redis().Keys() {
						assert.Equal(b, "redlock:memory", k, "no queue either")
					}
				}
			})
		})
	}
}

// What is bounded is the wait and not the work, nor the lock.
func TestMaxWaitDoesNotBoundTheWork(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		held := b.lock()
		time.AfterFunc(most/2, func() { _ = held.Release(context.WithoutCancel(b.Context())) })
		m := b.another(nil).Mutex(key, redlock.WithMaxWait(most))
		start := time.Now()
		require.NoError(b, m.Do(b.Context(), func(ctx context.Context, lock *redlock.Lock) error {
			assert.Less(b, time.Since(start), most)
			_, has := ctx.Deadline()
			assert.False(b, has)
			b.pass(time.Minute)
			assert.NoError(b, lock.Context().Err())
			return ctx.Err()
		}))
		b.on(0)
	})
}

// The wait for nodes is bounded as that for a holder is, with another reason.
func TestMaxWaitInAnOutage(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.each([]int{0, 1}, stop)
		b.takes(time.Second, func() {
			_, err := b.rl.Mutex(key, redlock.WithMaxWait(time.Second)).Acquire(b.Context())
			assert.ErrorIs(b, err, redlock.ErrNoQuorum)
			assert.ErrorIs(b, err, context.DeadlineExceeded)
			assert.NotErrorIs(b, err, redlock.ErrHeld)
		})
	})
}

// A leader that lost its term waits no longer for the next one than for the first.
func TestMaxWaitOfLeadIsThatOfEachTerm(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		terms := 0
		err := b.rl.Mutex(key, redlock.WithMaxWait(most)).Lead(b.Context(), func(ctx context.Context, lock *redlock.Lock) error {
			terms++
			b.pass(time.Minute)
			b.each([]int{0, 1, 2}, taken)
			require.ErrorIs(b, lock.Extend(ctx, ttl), redlock.ErrLost)
			return nil
		})
		assert.ErrorIs(b, err, redlock.ErrHeld)
		assert.ErrorIs(b, err, context.DeadlineExceeded)
		assert.Equal(b, 1, terms)
	})
}

// The caller's own deadline may be the earlier one, and is told as what it is.
func TestMaxWaitAndTheCallersDeadline(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.lock(redlock.WithRenewal())
		m := b.another(nil).Mutex(key, redlock.WithMaxWait(time.Hour))
		ctx, cancel := context.WithTimeout(b.Context(), most)
		defer cancel()
		b.takes(most, func() {
			_, err := m.Acquire(ctx)
			assert.ErrorIs(b, err, redlock.ErrHeld)
			assert.ErrorIs(b, err, context.DeadlineExceeded)
			assert.NotContains(b, err.Error(), "WithMaxWait")
		})
		b.takes(0, func() { // it never waits
			_, err := m.TryAcquire(b.Context())
			assert.ErrorIs(b, err, redlock.ErrHeld)
			assert.NotErrorIs(b, err, context.DeadlineExceeded)
		})
	})
}

// Hooks are told the caller's context, which has not ended, and the wait.
func TestHooksOfABoundedWait(t *testing.T) {
	var told []redlock.AcquireInfo
	opts := &redlock.Options{Hooks: &redlock.Hooks{Acquired: func(ctx context.Context, i redlock.AcquireInfo) { told = append(told, i); assert.NoError(t, ctx.Err()) }}}
	inBubble(t, 3, nil, func(b *bed) {
		b.lock(redlock.WithRenewal())
		_, err := b.another(opts).Mutex(key, redlock.WithMaxWait(most)).Acquire(b.Context())
		require.Error(b, err)
		synctest.Wait()
		require.Len(b, told, 1)
		assert.Equal(b, most, told[0].Waited)
	})
}
