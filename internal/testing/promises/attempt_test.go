package promises_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/redlocktest"
)

// ties is a bed and its nodes as a key sees them: the one that breaks ties, and the others.
type ties struct {
	*bed
	arbiter *redlocktest.Node
	others  []*redlocktest.Node
}

// inTies runs a test over five nodes to which all connections are made.
func inTies(t *testing.T, key string, test func(b ties)) {
	t.Helper()
	inBubble(t, 5, nil, func(b *bed) {
		b.cycle()
		order := b.order(b.rl.Mutex(key))
		ts := ties{bed: b, arbiter: b.cluster.Node(order[0])}
		for _, i := range order[1:] {
			ts.others = append(ts.others, b.cluster.Node(i))
		}
		b.cluster.ResetCommands()
		test(ts)
	})
}

// somebodyElse takes the key on nodes.
func somebodyElse(nodes ...*redlocktest.Node) {
	for _, n := range nodes {
		taken(n)
	}
}

// goes gives it back.
func goes(nodes ...*redlocktest.Node) {
	for _, n := range nodes {
		n.Del(key)
	}
}

// asked asserts how often nodes were asked, each time with the same token.
func (b ties) asked(times int, nodes ...*redlocktest.Node) {
	b.Helper()
	synctest.Wait()
	for _, n := range nodes {
		vs := values(n)
		assert.Len(b, vs, times, "how often %s was asked", n.Name())
		assert.LessOrEqual(b, len(slices.Compact(vs)), 1, "tokens at %s", n.Name())
	}
}

func (b ties) tryLater() <-chan result {
	return later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).TryAcquire(b.Context()) })
}

// Two ask at the same moment, and with one of the five nodes away each has two.
func TestOneOfTwoThatSplitTheNodesGetsTheLock(t *testing.T) {
	const late = 1200 * time.Microsecond
	for _, opts := range [][]redlock.LockOption{nil, {redlock.WithFencing()}} {
		inTies(t, key, func(b ties) {
			second := b.another(nil)
			for _, rl := range []*redlock.Redlock{b.rl, second} { // know the scripts
				lock, err := rl.Mutex(key, opts...).TryAcquire(b.Context())
				require.NoError(b, err)
				require.NoError(b, lock.Release(b.Context()))
				synctest.Wait()
			}
			b.others[3].SetError("LOADING Redis is loading the dataset in memory")
			command := "SET"
			if opts != nil {
				command = evalsha
			}
			for _, n := range b.others[:2] {
				n.DelayCommand(command, 1, time.Millisecond) // the first one's
			}
			start := time.Now()
			first := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key, opts...).TryAcquire(b.Context()) })
			b.pending(first)
			b.arbiter.DelayCommand(command, 1, late) // the second one's
			lock, err := second.Mutex(key, opts...).TryAcquire(b.Context())
			require.Nil(b, lock)
			q := b.quorumError(err)
			assert.Equal(b, late, time.Since(start), "who lost the tie gives back at once")
			assert.Equal(b, 2, countVotes(q.Outcomes, redlock.VoteGranted))
			r := <-first
			require.NoError(b, r.err)
			assert.Less(b, r.at.Sub(start), 5*time.Millisecond)
			require.NoError(b, r.lock.Release(b.Context()))
			b.on(0)
		})
	}
}

func countVotes(outcomes []redlock.Outcome, vote redlock.Vote) (n int) {
	for _, o := range outcomes {
		if o.Vote == vote {
			n++
		}
	}
	return n
}

// Whom the tie-breaker grants waits for the others to give back, and asks them again with
// the same token. Nodes that granted are not asked again.
func TestWhoWinsTheTieAsksAgain(t *testing.T) {
	inTies(t, key, func(b ties) {
		somebodyElse(b.others[:3]...)
		done := b.tryLater()
		b.pending(done)
		b.on(5)
		goes(b.others[:3]...)
		b.pass(time.Millisecond)
		r := <-done
		require.NoError(b, r.err)
		b.on(5)
		b.asked(1, b.arbiter, b.others[3])
		b.asked(2, b.others[:3]...)
		assert.Equal(b, valid-time.Millisecond, r.lock.Validity(), "it counts from the first asking")
		require.NoError(b, r.lock.Release(b.Context()))
		b.on(0)
	})
}

// A holder who has all but the tie-breaker is asked twice more, and no longer.
func TestWhoWinsTheTieGivesUpInTheEnd(t *testing.T) {
	inTies(t, key, func(b ties) {
		somebodyElse(b.others...)
		start := time.Now()
		require.ErrorIs(b, b.try(), redlock.ErrHeld)
		assert.LessOrEqual(b, time.Since(start), 2*750*time.Microsecond)
		assert.GreaterOrEqual(b, time.Since(start), 2*250*time.Microsecond)
		b.asked(1, b.arbiter)
		b.on(4)
		thrice := 0
		for _, n := range b.others { // the last may not be asked any more when the others have refused
			vs := values(n)
			assert.Contains(b, []int{2, 3}, len(vs))
			assert.Len(b, slices.Compact(vs), 1)
			thrice += len(vs) - 2
		}
		assert.GreaterOrEqual(b, thrice, 3)
	})
}

func TestWhoLosesTheTieAsksOnce(t *testing.T) {
	inTies(t, key, func(b ties) {
		somebodyElse(b.arbiter, b.others[0], b.others[1])
		b.takes(0, func() { require.ErrorIs(b, b.try(), redlock.ErrHeld) })
		b.asked(1, b.arbiter, b.others[0], b.others[1])
		b.on(3)
	})
}

// An attempt that is refused by all others may be the one that is to go on, which only the
// tie-breaker knows.
func TestTheAnswerOfTheTieBreakerIsWaitedFor(t *testing.T) {
	const late = 10 * time.Millisecond
	inTies(t, key, func(b ties) {
		somebodyElse(b.others...)
		b.arbiter.DelayCommand("SET", 1, late)
		done := b.tryLater()
		b.pass(late / 2)
		b.pending(done)
		b.asked(1, b.others...)
		goes(b.others...)
		b.pass(late/2 + late) // and a pause of about half of it
		r := <-done
		require.NoError(b, r.err)
		b.asked(2, b.others...)
	})
	inTies(t, key, func(b ties) {
		somebodyElse(b.others...)
		somebodyElse(b.arbiter)
		b.arbiter.DelayCommand("SET", 1, late)
		b.takes(late, func() { require.ErrorIs(b, b.try(), redlock.ErrHeld) })
		b.asked(1, b.others...)
	})
}

// A tie-breaker that hangs costs one timeout, once: then the next node in order decides.
func TestTieBreakerThatHangs(t *testing.T) {
	inTies(t, key, func(b ties) {
		b.arbiter.Hang()
		somebodyElse(b.others[1:]...)
		b.takes(nodeTimeout, func() { require.ErrorIs(b, b.try(), redlock.ErrHeld) })
		b.asked(1, b.others...)
		b.on(3)

		b.cluster.ResetCommands()
		done := b.tryLater()
		b.pending(done)
		goes(b.others[1:]...)
		b.pass(time.Millisecond)
		r := <-done
		require.NoError(b, r.err)
		b.asked(1, b.others[0])
		b.asked(2, b.others[1:]...)
	})
}

// A node that is silent for the first time makes all wait for the timeout per node: the
// others may still get its vote. Then they give back, and one goes on.
func TestTieWhileANodeIsSilent(t *testing.T) {
	inTies(t, key, func(b ties) {
		b.others[3].Hang()
		somebodyElse(b.others[:2]...)
		start := time.Now()
		done := b.tryLater()
		b.pass(nodeTimeout - time.Nanosecond)
		b.pending(done)
		b.asked(1, b.others[:2]...)
		goes(b.others[:2]...)
		r := <-done
		require.NoError(b, r.err)
		assert.Less(b, r.at.Sub(start), nodeTimeout+time.Millisecond)
		b.asked(2, b.others[:2]...)
		b.asked(1, b.others[3])
	})
}

// Nodes of which it is not known what they did are not asked again, nor those that failed.
func TestTieAsksNobodyAgainWhoDidNotRefuse(t *testing.T) {
	inTies(t, key, func(b ties) {
		somebodyElse(b.others[:2]...)
		b.others[2].DropReply("SET", 1)
		b.others[3].SetError("LOADING Redis is loading the dataset in memory")
		done := b.tryLater()
		b.pending(done)
		b.others[3].SetError("")
		goes(b.others[:2]...)
		r := <-done
		require.NoError(b, r.err)
		b.pass(time.Second)
		b.asked(2, b.others[:2]...)
		b.asked(1, b.others[2:]...)
		b.asked(1, b.arbiter)
		require.NoError(b, r.lock.Release(b.Context()))
		b.pass(nodeTimeout)
		b.on(0)
	})
}

// A key that can have no queue has a first node in order all the same.
func TestTieOfAKeyWithoutAQueue(t *testing.T) {
	const odd = "a}b"
	require.Empty(t, queueKey(odd))
	inTies(t, odd, func(b ties) {
		for _, n := range b.others[:3] {
			n.Set(odd, "somebody@else", time.Hour)
		}
		done := later(func() (*redlock.Lock, error) { return b.rl.Mutex(odd).TryAcquire(b.Context()) })
		b.pending(done)
		for _, n := range b.others[:3] {
			n.Del(odd)
		}
		b.pass(time.Millisecond)
		r := <-done
		require.NoError(b, r.err)
	})
}

// The grant of a node that may have forgotten others is none.
func TestBarredTieBreakerDecidesNothing(t *testing.T) {
	inTies(t, key, func(b ties) {
		b.arbiter.Restart(redlocktest.LoseKeys)
		b.cycle()
		b.cluster.ResetCommands()
		somebodyElse(b.others[:3]...)
		q := b.try()
		require.ErrorIs(b, q, redlock.ErrHeld)
		assert.Equal(b, 1, countVotes(q.Outcomes, redlock.VoteBarred), votes(q.Outcomes))
		b.asked(1, b.others[:3]...)
	})
}

// Nodes that clients of another list were the first to use vote for clients of a shorter one after the guard's time.
// Errors and the check say whose nodes they are, and not that they lost anything.
func TestNodesThatAnotherListUsedFirst(t *testing.T) {
	inBubble(t, 8, nil, func(b *bed) {
		for i := range 8 {
			b.cluster.Node(i).Restart(redlocktest.LoseKeys)
		}
		lock, err := b.another(nil).Mutex("another").TryAcquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
		b.pass(time.Second)
		four, err := redlock.New(b.cluster.Clients()[:4], nil)
		require.NoError(b, err)
		b.Cleanup(func() { _ = four.Close() })
		const why = "young memory mark, confirmed by clients of 8 nodes: this list has 4"
		_, err = four.Mutex(key).TryAcquire(b.Context())
		q := b.quorumError(err)
		for _, o := range q.Outcomes {
			if o.Vote == redlock.VoteBarred {
				assert.ErrorContains(b, o.Err, why+"; votes count from ")
			}
		}
		require.NotZero(b, countVotes(q.Outcomes, redlock.VoteBarred), votes(q.Outcomes))
		nodes, err := admin.New(b.cluster.Clients()[:4], nil)
		require.NoError(b, err)
		report, err := nodes.Check(b.Context())
		require.NoError(b, err)
		barred := 0
		for _, f := range report.Findings {
			if f.Code == "barred" {
				barred++
				assert.Contains(b, f.Message, why)
			}
		}
		assert.Equal(b, 4, barred)
		b.pass(ttl)
		lock, err = four.Mutex(key).TryAcquire(b.Context())
		require.NoError(b, err)
		require.NoError(b, lock.Release(b.Context()))
	})
}

// The nodes of a new fleet are asked once more, as grants that were barred may count a moment later. A node that may
// have forgotten is none of them: TryAcquire asks once, though its guard ends meanwhile.
func TestNodeWhoseGuardEndsMeanwhileIsNotAskedAgain(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		b.cycle()
		b.cluster.Node(0).Restart(redlocktest.LoseKeys)
		b.cycle()
		b.cluster.ResetCommands()
		taken(b.cluster.Node(2))
		b.pass(ttl - nodeTimeout/2)
		b.cluster.Node(1).Delay(nodeTimeout * 3 / 8)
		b.takes(nodeTimeout*3/4, func() {
			q := b.try()
			require.ErrorIs(b, q, redlock.ErrNoQuorum)
			assert.Equal(b, 1, countVotes(q.Outcomes, redlock.VoteBarred), votes(q.Outcomes))
		})
		b.pass(nodeTimeout)
		assert.Len(b, values(b.cluster.Node(1)), 1, "how often it was asked")
	})
}

// First attempts of Acquire are like TryAcquire, and need no queue then.
func TestTieOfAnAcquire(t *testing.T) {
	inTies(t, key, func(b ties) {
		somebodyElse(b.others[:3]...)
		done := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(b.Context()) })
		b.pending(done)
		goes(b.others[:3]...)
		b.pass(time.Millisecond)
		r := <-done
		require.NoError(b, r.err)
		b.asked(2, b.others[:3]...)
		assert.Zero(b, b.subscriptions())
	})
}

// A waiter whose turn it is asks once with each token: the queue decides who is next.
func TestTurnInTheQueueAsksOnce(t *testing.T) {
	inTies(t, key, func(b ties) {
		somebodyElse(b.arbiter)
		somebodyElse(b.others...)
		ctx, cancel := context.WithTimeout(b.Context(), 5*time.Second)
		defer cancel()
		done := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).Acquire(ctx) })
		b.pass(time.Second)
		b.pending(done)
		b.cluster.ResetCommands()
		goes(b.arbiter)
		require.ErrorIs(b, (<-done).err, redlock.ErrHeld)
		for _, n := range b.others {
			vs := values(n)
			require.NotEmpty(b, vs)
			slices.Sort(vs)
			assert.Len(b, slices.Compact(slices.Clone(vs)), len(vs), "each token once")
		}
	})
}

// The pause before asking again ends with the context, and with the Redlock.
func TestTieThatIsCutShort(t *testing.T) {
	inTies(t, key, func(b ties) {
		somebodyElse(b.others...)
		ctx, cancel := context.WithCancel(b.Context())
		done := later(func() (*redlock.Lock, error) { return b.rl.Mutex(key).TryAcquire(ctx) })
		b.pending(done)
		start := time.Now()
		cancel()
		r := <-done
		require.ErrorIs(b, r.err, context.Canceled)
		assert.Equal(b, start, r.at)
		b.on(4)
	})
	inTies(t, key, func(b ties) {
		somebodyElse(b.others...)
		done := b.tryLater()
		b.pending(done)
		start := time.Now()
		require.NoError(b, b.rl.Close())
		r := <-done
		require.ErrorIs(b, r.err, redlock.ErrClosed)
		assert.Equal(b, start, r.at)
		b.on(4)
		b.asked(1, b.others...)
	})
}
