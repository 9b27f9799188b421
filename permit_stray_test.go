package redlock

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/lanetest"
	"github.com/quorumlock/redlock/internal/protocol"
)

// numberingWire gives every permit the same number, and notes whether it was told another.
type numberingWire struct {
	number int64
	takes  time.Duration
	told   atomic.Bool
}

func (w *numberingWire) Exchange(batch []*lane.Call, _, _ time.Duration, left func()) bool {
	left()
	for _, c := range batch {
		c.Answer = lanetest.One
		if c.Req.Op.Sets() {
			time.Sleep(w.takes)
			c.Answer.Val = w.number + 1
		}
	}
	if slices.ContainsFunc(batch, func(c *lane.Call) bool { return c.Req.Op == protocol.OpExtend }) {
		w.told.Store(true)
	}
	return true
}

// A node that gave another number than the quorum is told so whenever it votes: before the acquire
// takes the number, after that, and in between. The last is a matter of nanoseconds, so here only a
// mutant, which sleeps for one microsecond in that moment, has votes come then.
func TestStrayNumberIsMendedWheneverItComes(t *testing.T) {
	for _, late := range []time.Duration{0, 500 * time.Nanosecond, time.Millisecond} {
		t.Run(late.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				last := &numberingWire{number: 2, takes: late}
				rl := overWires(t, &Options{RestartGuard: -1}, &numberingWire{number: 1}, &numberingWire{number: 1}, last)
				permit, err := rl.Semaphore("k", 3).TryAcquire(t.Context())
				require.NoError(t, err)
				require.Zero(t, permit.Permit())
				time.Sleep(time.Second)
				require.True(t, last.told.Load())
				require.NoError(t, permit.Release(t.Context()))
				require.NoError(t, rl.Close())
			})
		})
	}
}
