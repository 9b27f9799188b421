package redlock

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// join is a join of a wait queue; ended is the entry that it takes the place of.
func (b *bench) join(name, ended string) *call {
	t := &leaseTerms{ttl: benchTTL, nodeTimeout: benchTimeout}
	c := b.asks(joinRequest(t, "waited for", name, &queueArgs{entry: name, ended: ended}))
	b.lane.enqueue(c, b.now())
	return c
}

// joined answers joins as a node does.
func joined(name string, _ bool) ballot {
	if strings.HasSuffix(name, "join") {
		return ballot{val: []any{}, sent: true}
	}
	return ballot{}
}

// Thousands who join at once take longer than a node may take to answer. That is no sign
// against the node, and what comes behind them does not wait for it.
func TestJoinsMakeNoBatchLonger(t *testing.T) {
	onBench(t, func(b *bench) {
		b.each = 50 * time.Microsecond
		b.answers(joined)
		var joins []*call
		for i := range 2000 {
			joins = append(joins, b.join(fmt.Sprint(i), ""))
		}
		rest(time.Millisecond)
		set := b.send(opAcquire, "set")
		rest(benchTimeout / 2)
		assert.Equal(t, kindGranted, lastTold(set).kind, "a SET behind them is in time")
		rest(time.Second)
		for i, c := range joins {
			assert.Equal(t, kindGranted, lastTold(c).kind, "join %d", i)
		}
		assert.Empty(t, b.downs)
		for _, names := range b.sent() {
			assert.LessOrEqual(t, len(names), fewestJoins+1)
		}
	})
}

// A waiter that joins anew after a failed attempt takes the place of that one, before the
// release of the attempt strikes it out.
func TestJoinInPlaceOfAnEntryKeepsItsOrder(t *testing.T) {
	onBench(t, func(b *bench) {
		set := b.send(opAcquire, "set")
		b.sent()
		b.gate = make(chan struct{})
		b.send(opAcquire, "busy")
		rest(time.Millisecond)
		b.join("newcomer", "")
		b.join("again", "set")
		b.release(set, "set")
		close(b.gate)
		sent := b.sent()
		assert.Equal(t, []string{"againjoin", "setrelease", "newcomerjoin"}, sent[len(sent)-1])
	})
}

// A node that is silent for a moment is asked for no more votes, but keeps its queue.
func TestJoinsWaitForANodeThatIsSilentForAMoment(t *testing.T) {
	onBench(t, func(b *bench) {
		b.gate = make(chan struct{})
		b.send(opAcquire, "set")
		rest(2 * benchTimeout)
		join, late := b.join("join", ""), b.send(opAcquire, "late")
		assert.Zero(t, lastTold(join).kind)
		assert.Equal(t, kindNotSent, lastTold(late).kind)
		assert.True(t, b.lane.reachable(b.now(), join.req.joinPatience()))
		b.answers(joined)
		close(b.gate)
		rest(time.Millisecond)
		assert.Equal(t, kindGranted, lastTold(join).kind)
	})
}

// When it is silent for longer, those who wait to join it are told soon, and go elsewhere.
func TestJoinsDoNotWaitForANodeThatHangs(t *testing.T) {
	onBench(t, func(b *bench) {
		b.gate = make(chan struct{})
		set := b.send(opAcquire, "set")
		rest(time.Millisecond)
		join := b.join("join", "")
		rest(benchTimeout)
		assert.Equal(t, kindUnknown, lastTold(set).kind)
		assert.Zero(t, lastTold(join).kind)
		rest(join.req.joinPatience())
		assert.Equal(t, kindNotSent, lastTold(join).kind)
		assert.False(t, b.lane.reachable(b.now(), join.req.joinPatience()))
		assert.Equal(t, kindNotSent, lastTold(b.join("another", "")).kind)
		b.answers(joined)
		close(b.gate)
	})
}

// A join in a batch does not put off when its node counts as hung.
func TestHungNodeIsNoticedBehindJoins(t *testing.T) {
	onBench(t, func(b *bench) {
		gate := make(chan struct{})
		b.gate = gate
		b.send(opAcquire, "first")
		rest(time.Millisecond)
		b.join("join", "")
		b.send(opAcquire, "second")
		b.mu.Lock()
		b.gate = make(chan struct{})
		b.mu.Unlock()
		close(gate)
		assert.Len(t, b.sent()[1], 2, "together")
		rest(benchTimeout + time.Millisecond)
		assert.Equal(t, []string{"true"}, b.downs)
		b.answers(joined)
		close(b.gate)
	})
}
