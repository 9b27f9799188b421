package redlock

import (
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// numberingWire gives every permit the same number, and notes whether it was told another.
type numberingWire struct {
	number int64
	takes  time.Duration
	told   atomic.Bool
}

func (w *numberingWire) exchange(batch []*call, _, _ time.Duration, left func()) bool {
	left()
	for _, c := range batch {
		c.ballot = one
		if c.req.op.sets() {
			time.Sleep(w.takes)
			c.ballot.val = w.number + 1
		}
	}
	if slices.ContainsFunc(batch, func(c *call) bool { return c.req.op == opExtend }) {
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
