package redlock

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/lanetest"
	"github.com/quorumlock/redlock/internal/protocol"
)

// leavingWire is a wire that is slow to write, or has to wait before it can.
type leavingWire struct {
	*lanetest.ScriptedWire
	writes time.Duration // how long that takes; the answers take the script's time from then on
	waits  bool          // for a connection, which is made meanwhile
	log    []protocol.Op // what was written
}

func (w *leavingWire) Exchange(batch []*lane.Call, patience, bound time.Duration, left func()) bool {
	w.Mu.Lock()
	writes, waits := w.writes, w.waits
	w.Mu.Unlock()
	if waits {
		left()
	}
	time.Sleep(writes)
	w.Mu.Lock()
	for _, c := range batch {
		w.log = append(w.log, c.Req.Op)
	}
	w.Mu.Unlock()
	left()
	return w.ScriptedWire.Exchange(batch, patience, bound, func() {})
}

// slow sets how long it takes to write from now on, and whether it has to wait before that.
func (w *leavingWire) slow(writes time.Duration, waits bool) {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	w.writes, w.waits = writes, waits
}

func (w *leavingWire) wrote() []protocol.Op {
	w.Mu.Lock()
	defer w.Mu.Unlock()
	return w.log
}

// onLeaving is a lock that is held on three nodes, the last of which answers late, and how long
// its release takes.
func onLeaving(t *testing.T, prepare func(rl *Redlock, last *leavingWire), check func(t *testing.T, took time.Duration, last *leavingWire)) {
	synctest.Test(t, func(t *testing.T) {
		wires := make([]lane.Wire, 3)
		var last *leavingWire
		for i := range wires {
			last = &leavingWire{ScriptedWire: lanetest.NewScriptedWire()}
			wires[i] = last
		}
		rl := overWires(t, &Options{RestartGuard: -1}, wires...)
		lock, err := rl.Mutex("k").TryAcquire(t.Context())
		require.NoError(t, err)
		synctest.Wait()
		last.Mu.Lock()
		last.Takes = 50 * time.Millisecond
		last.Mu.Unlock()
		prepare(rl, last)
		start := time.Now()
		require.NoError(t, lock.Release(t.Context()))
		check(t, time.Since(start), last)
		last.Mu.Lock()
		last.Takes, last.writes = 0, 0
		last.Mu.Unlock()
		time.Sleep(time.Second)
		require.NoError(t, rl.Close())
	})
}

// Row 120: a program may end as soon as Release returns, so the release has left by then for a
// node that is only slow to answer.
func TestReleaseHasLeftForASlowNodeWhenItReturns(t *testing.T) {
	onLeaving(t, func(_ *Redlock, last *leavingWire) { last.slow(10*time.Millisecond, false) },
		func(t *testing.T, took time.Duration, last *leavingWire) {
			assert.Contains(t, last.wrote(), protocol.OpRelease)
			assert.Equal(t, 10*time.Millisecond, took, "and its answer is not waited for")
		})
}

// A node that still has to answer what was sent before is waited for while it is not late. What is
// late is measured by the time that the others need.
func TestReleaseWaitsForANodeThatIsAboutToTakeIt(t *testing.T) {
	const usual = 100 * time.Microsecond
	onLast := func(do func(l *lane.Lane, now int64)) func(*testing.T, *Redlock) {
		return func(_ *testing.T, rl *Redlock) {
			last := rl.lane(2)
			last.Mu.Lock()
			defer last.Mu.Unlock()
			do(last, rl.clock.Now().Mono)
		}
	}
	for _, c := range []struct {
		name    string
		last    time.Duration // what the last node takes
		prepare func(*testing.T, *Redlock)
		took    time.Duration
		left    bool
	}{
		{name: "healthy", last: 350 * time.Microsecond, took: 250 * time.Microsecond, left: true},
		// From its SET on, which is as old as the acquire took.
		{name: "hung", last: time.Second, took: lane.LateAfter*usual - usual},
		{name: "hung, and closed meanwhile", last: time.Second, took: usual * 3 / 2,
			prepare: func(_ *testing.T, rl *Redlock) { time.AfterFunc(usual*5/2, func() { _ = rl.Close() }) }},
		{name: "hung for long", last: time.Second, took: usual, prepare: func(t *testing.T, rl *Redlock) {
			_, err := rl.Mutex("before").TryAcquire(context.Background())
			require.NoError(t, err)
			time.Sleep(lane.LateAfter * usual)
		}},
		{name: "slow", last: 350 * time.Microsecond, took: usual,
			prepare: onLast(func(l *lane.Lane, now int64) { l.Flight.RTT = lane.Shortest{Now: 350 * time.Microsecond, Since: now} })},
		{name: "down", last: 350 * time.Microsecond, took: usual,
			prepare: onLast(func(l *lane.Lane, _ int64) { l.SetDown(true, protocol.ErrTimeout) })},
	} {
		t.Run(c.name, func(t *testing.T) {
			onLeaving(t, func(rl *Redlock, w *leavingWire) {
				for i := range rl.nodes {
					leaving := rl.lane(i).Wire.(*leavingWire)
					leaving.Mu.Lock()
					leaving.Takes = usual
					leaving.Mu.Unlock()
				}
				w.Mu.Lock()
				w.Takes = c.last
				w.Mu.Unlock()
				if c.prepare != nil {
					c.prepare(t, rl)
				}
				_, err := rl.Mutex("other").TryAcquire(context.Background())
				require.NoError(t, err)
				synctest.Wait()
			}, func(t *testing.T, took time.Duration, last *leavingWire) {
				assert.Equal(t, c.took, took)
				assert.Equal(t, c.left, slices.Contains(last.wrote(), protocol.OpRelease))
			})
		})
	}
}

// Nothing is waited for where the node has to be connected to first, or is late already.
func TestReleaseWaitsForNoNodeToTakeIt(t *testing.T) {
	t.Run("not connected", func(t *testing.T) {
		onLeaving(t, func(_ *Redlock, last *leavingWire) { last.slow(10*time.Millisecond, true) },
			func(t *testing.T, took time.Duration, last *leavingWire) {
				assert.Zero(t, took)
				assert.NotContains(t, last.wrote(), protocol.OpRelease)
			})
	})
	t.Run("busy", func(t *testing.T) {
		onLeaving(t, func(rl *Redlock, last *leavingWire) {
			_, err := rl.Mutex("other").TryAcquire(context.Background())
			require.NoError(t, err)
			synctest.Wait() // the last node has been asked, not only the majority that granted
		}, func(t *testing.T, took time.Duration, last *leavingWire) {
			assert.Zero(t, took)
			assert.NotContains(t, last.wrote(), protocol.OpRelease)
		})
	})
}

// A node whose answer to the SET was lost has granted nothing as far as is known: the SET may land
// after the release, which is sent a second time for that. That the others have granted changes
// nothing.
func TestReleaseIsSentAgainWhereTheSetMayLand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := lanetest.NewScriptedWire()
		last.Takes = 50 * time.Millisecond
		last.Reply = func(string, bool) protocol.Answer { return lanetest.Lost }
		rl := overWires(t, &Options{RestartGuard: -1}, lanetest.NewScriptedWire(), lanetest.NewScriptedWire(), last)
		lock, err := rl.Mutex("k").TryAcquire(t.Context())
		require.NoError(t, err)
		time.Sleep(time.Second) // the third node's answer is known to be lost by then
		last.Answers(func(string, bool) protocol.Answer { return lanetest.Zero })
		require.NoError(t, lock.Release(t.Context()))
		time.Sleep(time.Minute)
		assert.Equal(t, []protocol.Op{protocol.OpAcquire, protocol.OpRelease, protocol.OpRelease}, last.Order()["k"])
		require.NoError(t, rl.Close())
	})
}
