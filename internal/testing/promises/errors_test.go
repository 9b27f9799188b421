package promises_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/redlocktest"
)

func TestReasonsAreDistinct(t *testing.T) {
	reasons := []error{
		redlock.ErrHeld, redlock.ErrNoQuorum, redlock.ErrExpired, redlock.ErrNotHeld, redlock.ErrLost,
		redlock.ErrReleased, redlock.ErrClosed, redlock.ErrDuplicateNode, redlock.ErrInvalid,
	}
	for i, a := range reasons {
		for j, b := range reasons {
			assert.Equal(t, i == j, errors.Is(a, b), "%v and %v", a, b)
		}
	}
}

// A cause that somebody else made may have any text.
func TestCauseOfManyLines(t *testing.T) {
	inBubble(t, 1, nil, func(b *bed) {
		ctx, cancel := context.WithCancelCause(b.Context())
		cause := errors.Join(errGaveUp, errors.New("and more"))
		cancel(cause)
		_, err := b.rl.Mutex(key).Acquire(ctx)
		require.ErrorIs(b, err, errGaveUp)
		assert.NotContains(b, err.Error(), "\n")
	})
}

// A context that ends because some lock was lost says nothing of the lock whose operation it ends: the text
// has the cause, and errors.Is finds none of its reasons.
func TestCauseOfALockThatWasLostSaysNothingOfAnother(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		outer, err := b.rl.Mutex("outer").TryAcquire(b.Context())
		require.NoError(b, err)
		within := outer.Context()
		lock := b.lock()
		takeAway(b, b.cluster, "outer")
		require.ErrorIs(b, outer.Extend(b.Context(), ttl), redlock.ErrNotHeld)
		require.ErrorIs(b, context.Cause(within), redlock.ErrNotHeld)
		calls := map[string]func() error{"Extend": func() error { return lock.Extend(within, ttl) }}
		for name, f := range every {
			calls[name] = func() error { return f(b.rl.Mutex("other"), within) }
		}
		for name, f := range calls {
			err := f()
			assert.ErrorIs(b, err, context.Canceled, name)
			assert.ErrorContains(b, err, "lock lost", name)
			for _, reason := range []error{redlock.ErrLost, redlock.ErrNotHeld} {
				assert.NotErrorIs(b, err, reason, name)
			}
		}
		assert.Positive(b, lock.Validity())
		require.NoError(b, lock.Extend(b.Context(), ttl))
	})
}

// An error inside of another one's text does not say once more which package it is from.
func TestErrorsNameThePackageOnce(t *testing.T) {
	inBubble(t, 3, nil, func(b *bed) {
		lock := b.lock()
		require.NoError(b, lock.Release(b.Context()))
		assert.EqualError(b, lock.Extend(b.Context(), ttl), `redlock: extend "orders:42": lock released`)

		lock = b.lock()
		time.Sleep(ttl)
		require.ErrorIs(b, lock.Extend(b.Context(), ttl), redlock.ErrLost)
		err := lock.Extend(b.Context(), ttl)
		require.ErrorIs(b, err, redlock.ErrExpired)
		assert.EqualError(b, err, `redlock: extend "orders:42": lock lost: validity is over: lease of "orders:42" not extended in time`)

		err = b.rl.Mutex(key).Do(b.Context(), func(context.Context, *redlock.Lock) error {
			b.each([]int{0, 1, 2}, func(n *redlocktest.Node) { n.Del(key) })
			return nil
		})
		require.ErrorIs(b, err, redlock.ErrLost)
		var q *redlock.QuorumError
		require.ErrorAs(b, err, &q)
		assert.Equal(b, "redlock: lock lost: "+strings.TrimPrefix(q.Error(), "redlock: "), err.Error())
	})
}

// Scenarios 41 and 46: people who set up nodes wrongly are told what is wrong.
func TestErrorsSayWhatToDo(t *testing.T) {
	for answer, says := range map[string]string{
		"MOVED 1 127.0.0.1:6381":                                "a quorum needs independent masters",
		"CLUSTERDOWN The cluster is down":                       "a node of a Redis Cluster",
		"READONLY You can't write against a read only replica.": "this is a replica",
		// Before Redis 7, in answer to a script.
		"ERR Error running script (call to f_d8f2): @user_script:3: @user_script: 3: -READONLY You can't write against a read only replica.": "this is a replica",
	} {
		inBubble(t, 1, nil, func(b *bed) {
			b.each([]int{0}, answers(answer))
			q := b.try()
			assert.ErrorIs(b, q, redlock.ErrNoQuorum)
			assert.ErrorContains(b, q, says)
			assert.Contains(b, q.Outcomes[0].Err.Error(), answer)
		})
	}
}
