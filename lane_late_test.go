package redlock

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
)

// A request whose time is over when its turn comes is told so, also where the process had
// no processor for the timer that would have told it before.
func TestRequestWhoseTurnComesTooLateIsToldSo(t *testing.T) {
	onBench(t, func(b *bench) {
		clock := NewFakeClock()
		b.lane.clock, b.lane.alarm.clock = clock, clock
		b.gate = make(chan struct{})
		b.send(opAcquire, "first")
		synctest.Wait()
		second := b.send(opAcquire, "second")
		clock.Stun(2 * benchTimeout)
		close(b.gate)
		synctest.Wait()
		assert.Equal(b, kindNotSent, lastTold(second).kind)
		assert.Equal(b, errTooLate, lastTold(second).err)
		assert.Equal(b, [][]string{{"firstacquire"}}, b.sent())
		b.lane.close(clock.now().mono) // no time passes here that would end its goroutine
	})
}
