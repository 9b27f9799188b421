package lane_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/lanetest"
)

// join is a join of a wait queue; ended is the entry that it takes the place of.
func (b *bench) join(name, ended string) *lane.Call {
	t := &protocol.Terms{TTL: benchTTL, NodeTimeout: benchTimeout}
	c := b.asks(protocol.JoinRequest(t, "waited for", name, &protocol.QueueArgs{Entry: name, Ended: ended}))
	b.lane.Enqueue(c, b.now())
	return c
}

// joined answers joins as a node does.
func joined(name string, _ bool) protocol.Answer {
	if strings.HasSuffix(name, "join") {
		return protocol.Answer{Said: []any{}, Sent: true}
	}
	return protocol.Answer{}
}

// Thousands who join at once take longer than a node may take to answer. That is no sign
// against the node, and what comes behind them does not wait for it.
func TestJoinsMakeNoBatchLonger(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Each = 50 * time.Microsecond
		b.Answers(joined)
		var joins []*lane.Call
		for i := range 2000 {
			joins = append(joins, b.join(fmt.Sprint(i), ""))
		}
		lanetest.Rest(time.Millisecond)
		set := b.send(protocol.OpAcquire, "set")
		lanetest.Rest(benchTimeout / 2)
		assert.Equal(t, protocol.Granted, lastTold(set).Kind, "a SET behind them is in time")
		lanetest.Rest(time.Second)
		for i, c := range joins {
			assert.Equal(t, protocol.Granted, lastTold(c).Kind, "join %d", i)
		}
		assert.Empty(t, b.downs)
		for _, names := range b.Sent() {
			assert.LessOrEqual(t, len(names), lane.FewestJoins+1)
		}
	})
}

// A waiter that joins anew after a failed attempt takes the place of that one, before the
// release of the attempt strikes it out.
func TestJoinInPlaceOfAnEntryKeepsItsOrder(t *testing.T) {
	onBench(t, func(b *bench) {
		set := b.send(protocol.OpAcquire, "set")
		b.Sent()
		b.Gate = make(chan struct{})
		b.send(protocol.OpAcquire, "busy")
		lanetest.Rest(time.Millisecond)
		b.join("newcomer", "")
		b.join("again", "set")
		b.release(set, "set")
		close(b.Gate)
		sent := b.Sent()
		assert.Equal(t, []string{"againjoin", "setrelease", "newcomerjoin"}, sent[len(sent)-1])
	})
}

// A node that is silent for a moment is asked for no more votes, but keeps its queue.
func TestJoinsWaitForANodeThatIsSilentForAMoment(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Gate = make(chan struct{})
		b.send(protocol.OpAcquire, "set")
		lanetest.Rest(2 * benchTimeout)
		join, late := b.join("join", ""), b.send(protocol.OpAcquire, "late")
		assert.Zero(t, lastTold(join).Kind)
		assert.Equal(t, protocol.NotSent, lastTold(late).Kind)
		assert.True(t, b.lane.Reachable(b.now(), join.Req.JoinPatience()))
		b.Answers(joined)
		close(b.Gate)
		lanetest.Rest(time.Millisecond)
		assert.Equal(t, protocol.Granted, lastTold(join).Kind)
	})
}

// When it is silent for longer, those who wait to join it are told soon, and go elsewhere.
func TestJoinsDoNotWaitForANodeThatHangs(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Gate = make(chan struct{})
		set := b.send(protocol.OpAcquire, "set")
		lanetest.Rest(time.Millisecond)
		join := b.join("join", "")
		lanetest.Rest(benchTimeout)
		assert.Equal(t, protocol.Unknown, lastTold(set).Kind)
		assert.Zero(t, lastTold(join).Kind)
		lanetest.Rest(join.Req.JoinPatience())
		assert.Equal(t, protocol.NotSent, lastTold(join).Kind)
		assert.False(t, b.lane.Reachable(b.now(), join.Req.JoinPatience()))
		assert.Equal(t, protocol.NotSent, lastTold(b.join("another", "")).Kind)
		b.Answers(joined)
		close(b.Gate)
	})
}

// A join in a batch does not put off when its node counts as hung.
func TestHungNodeIsNoticedBehindJoins(t *testing.T) {
	onBench(t, func(b *bench) {
		gate := make(chan struct{})
		b.Gate = gate
		b.send(protocol.OpAcquire, "first")
		lanetest.Rest(time.Millisecond)
		b.join("join", "")
		b.send(protocol.OpAcquire, "second")
		b.Mu.Lock()
		b.Gate = make(chan struct{})
		b.Mu.Unlock()
		close(gate)
		assert.Len(t, b.Sent()[1], 2, "together")
		lanetest.Rest(benchTimeout + time.Millisecond)
		assert.Equal(t, []string{"true"}, b.downs)
		b.Answers(joined)
		close(b.Gate)
	})
}
