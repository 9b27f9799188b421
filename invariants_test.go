//go:build invariants || race

package redlock

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

func TestVotesThatDoNotAddUpPanic(t *testing.T) {
	r := new(round)
	r.init(tick.Instant{}, make([]seat, 3))
	r.record(0, protocol.Answer{Kind: protocol.Refused, Final: true}, 0)
	r.reopen()
	r.tally.change(VotePending, VoteGranted)
	assert.PanicsWithValue(t, "bug: the tally [0 1 1 1 0 0 0 0] is not that of the votes, [0 2 0 1 0 0 0 0]", func() {
		r.record(1, protocol.Answer{Kind: protocol.Refused, Final: true}, 0)
	})
}

func TestUntilThatMovesBackPanics(t *testing.T) {
	now := tick.NewSystem().Now()
	l := &Lock{attempt: &attempt{footprint: footprint{resource: &resource{key: "k"}}}, until: now.Add(time.Second)}
	l.lasts(now.Add(time.Second), now)
	l.lasts(now.Add(2*time.Second), now)
	assert.PanicsWithValue(t, `bug: a lock of "k", over by <nil>, was valid for 2s and shall be for 1s`, func() {
		l.lasts(now.Add(time.Second), now)
	})
	l.over = errors.New("lost")
	assert.PanicsWithValue(t, `bug: a lock of "k", over by lost, was valid for 2s and shall be for 3s`, func() {
		l.lasts(now.Add(3*time.Second), now)
	})
}
