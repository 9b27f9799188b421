package redlock_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
)

func TestQuorumErrorIsOneReadableLine(t *testing.T) {
	e := redlock.NewQuorumError("acquire", "orders:42", 3, 2345678*time.Microsecond, []redlock.Outcome{
		{Node: "a:1/0", Vote: redlock.VoteGranted, Elapsed: 1234567},
		{Node: "b:1/0", Vote: redlock.VoteRefused, Holder: "tok@me", Elapsed: time.Millisecond},
		{Node: "c:1/0", Vote: redlock.VoteUnknown, Elapsed: time.Second, Err: errors.New("line\r\nbreak")},
		{Node: "d:1/0", Vote: redlock.VotePending},
	}, redlock.ErrHeld, context.Canceled)
	assert.Equal(t, `redlock: acquire "orders:42": held by another, context canceled (1 of 4 nodes granted, 3 needed; `+
		`the holder's lease ends in 2.346s): a:1/0 granted after 1.23ms; b:1/0 refused (found "tok@me") after 1ms; `+
		`c:1/0 unknown (line break) after 1s; d:1/0 pending`, e.Error())
	assert.ErrorIs(t, e, redlock.ErrHeld)
	assert.ErrorIs(t, e, context.Canceled)
	assert.NotErrorIs(t, e, redlock.ErrNoQuorum)

	e = redlock.NewQuorumError("open", "", 1, 0, nil, redlock.ErrNoQuorum)
	assert.Equal(t, "redlock: open: no quorum", e.Error())
}

// A node's timeout is not the call's: who tests for one must not be misled.
func TestErrorsOfNodesAreNotThoseOfTheCall(t *testing.T) {
	e := redlock.NewQuorumError("acquire", "k", 1, 0,
		[]redlock.Outcome{{Node: "a", Vote: redlock.VoteUnknown, Err: context.DeadlineExceeded}}, redlock.ErrNoQuorum)
	assert.NotErrorIs(t, e, context.DeadlineExceeded)
	assert.ErrorIs(t, e.Outcomes[0].Err, context.DeadlineExceeded)
}

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

// Scenarios 41 and 46: people who set up nodes wrongly are told what is wrong.
func TestErrorsSayWhatToDo(t *testing.T) {
	for answer, says := range map[string]string{
		"MOVED 1 127.0.0.1:6381":                                "a quorum needs independent masters",
		"CLUSTERDOWN The cluster is down":                       "a node of a Redis Cluster",
		"READONLY You can't write against a read only replica.": "this is a replica",
	} {
		inBubble(t, 1, nil, func(b *bed) {
			b.each([]int{0}, answers(answer))
			q := b.try()
			assert.ErrorIs(b, q, redlock.ErrNoQuorum)
			assert.ErrorContains(b, q, says)
			assert.True(b, strings.HasPrefix(q.Outcomes[0].Err.Error(), answer))
		})
	}
}
