package redlock

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
)

// Queues that began at the same moment: all processes must agree which of them to go to.
func TestOfTwoQueuesOneHasWaitedLonger(t *testing.T) {
	queue := func(waited time.Duration, process string) *inspection {
		return &inspection{waiters: []Waiter{{Waited: waited, process: process}}}
	}
	empty := &inspection{}
	for _, c := range []struct {
		first, second *inspection
	}{
		{queue(2, "b"), queue(1, "a")},
		{queue(1, "a"), queue(1, "b")},
		{queue(1, "a"), empty},
	} {
		assert.True(t, c.first.waitedLonger(c.second))
		assert.False(t, c.second.waitedLonger(c.first))
	}
	assert.False(t, empty.waitedLonger(empty))
}
