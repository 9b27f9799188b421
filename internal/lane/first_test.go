package lane_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/lanetest"
)

// What keeps a lock, or frees one, does not wait behind those who want one, however many there are.
func TestRenewalsGoBeforeAttempts(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Each = 10 * time.Microsecond
		b.Answers(joined)
		for i := range 5000 {
			b.send(protocol.OpAcquire, fmt.Sprint(i))
			b.join(fmt.Sprint("j", i), "")
		}
		lanetest.Rest(time.Millisecond)
		extend, release := b.send(protocol.OpExtend, "mine"), b.send(protocol.OpRelease, "yours")
		lanetest.Rest(time.Minute)
		assert.Equal(t, protocol.Granted, lastTold(extend).Kind)
		assert.Equal(t, protocol.Granted, lastTold(release).Kind)
		for _, names := range b.Sent()[3:] {
			assert.NotContains(t, strings.Join(names, " "), "mine", "it is in one of the first batches")
		}
		b.empty()
	})
}

// A join that waits behind others of its own process says nothing of the node, however long that takes.
func TestJoinIsNotLateInItsOwnLane(t *testing.T) {
	onBench(t, func(b *bench) {
		b.Each = 200 * time.Microsecond
		b.Answers(joined)
		last := b.join("first", "")
		for i := range 20000 {
			last = b.join(fmt.Sprint(i), "")
		}
		lanetest.Rest(time.Minute)
		assert.Equal(t, protocol.Granted, lastTold(last).Kind)
		assert.Empty(t, b.downs)
		b.empty()
	})
}
