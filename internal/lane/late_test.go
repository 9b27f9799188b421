package lane_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/ticktest"
)

// A request whose time is over when its turn comes is told so, also where the process had
// no processor for the timer that would have told it before.
func TestRequestWhoseTurnComesTooLateIsToldSo(t *testing.T) {
	onBench(t, func(b *bench) {
		clock := ticktest.NewFakeClock()
		b.lane.Clock, b.lane.Alarm.Clock = clock, clock
		b.Gate = make(chan struct{})
		b.send(protocol.OpAcquire, "first")
		synctest.Wait()
		second := b.send(protocol.OpAcquire, "second")
		clock.Stun(2 * benchTimeout)
		close(b.Gate)
		synctest.Wait()
		assert.Equal(b, protocol.NotSent, lastTold(second).Kind)
		assert.Equal(b, lane.ErrTooLate, lastTold(second).Err())
		assert.Equal(b, [][]string{{"firstacquire"}}, b.Sent())
		b.lane.Close(clock.Now().Mono) // no time passes here that would end its goroutine
	})
}
