package redlock

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/lanetest"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

// overLink is a Redlock whose one node is at the end of a link with a round trip.
func overLink(t *testing.T, roundTrip time.Duration) (*Redlock, *lanetest.ScriptedWire) {
	w := lanetest.NewScriptedWire()
	w.Takes = roundTrip
	return overWires(t, &Options{}, w), w
}

// cycle acquires and releases each key from a goroutine of its own, times over.
func cycle(t *testing.T, rl *Redlock, keys, times int) (longest time.Duration) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for i := range keys {
		wg.Go(func() {
			m := rl.Mutex(fmt.Sprint("key", i))
			for range times {
				start := time.Now()
				l, err := m.TryAcquire(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				took := time.Since(start)
				mu.Lock()
				longest = max(longest, took)
				mu.Unlock()
				if err := l.Release(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return longest
}

func TestOnAShortLinkOneBatchIsOutAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rl, w := overLink(t, 100*time.Microsecond)
		cycle(t, rl, 50, 20)
		require.NoError(t, rl.Close())
		require.Equal(t, 1, w.Most)
	})
}

func TestOnALongLinkBatchesFollowEachOtherButNeverOneKeyTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rl, w := overLink(t, 4*time.Millisecond)
		cycle(t, rl, 1, 3) // learns what link it is
		// Start them all within one round trip, so that they want to leave at
		// different times.
		var wg sync.WaitGroup
		for i := range 40 {
			<-time.After(150 * time.Microsecond)
			wg.Go(func() {
				m := rl.Mutex(fmt.Sprint("key", i%20))
				for range 20 {
					if l, err := m.TryAcquire(t.Context()); err == nil {
						_ = l.Release(t.Context())
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, rl.Close())
		require.Greater(t, w.Most, 1)
		require.LessOrEqual(t, w.Most, lane.MostOut)
		require.Empty(t, w.Twice())
	})
}

func TestOnALongLinkARequestWaitsForAShareOfARoundTripOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rl, w := overLink(t, 4*time.Millisecond)
		cycle(t, rl, 1, 3)
		longest := cycle(t, rl, 64, 50)
		require.NoError(t, rl.Close())
		require.LessOrEqual(t, longest, 2*w.Takes)
	})
}

func TestAReleaseNeverOvertakesItsSetOnALongLink(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rl, w := overLink(t, 4*time.Millisecond)
		cycle(t, rl, 1, 3)
		cycle(t, rl, 30, 10)
		require.NoError(t, rl.Close())
		for key, kinds := range w.Order() {
			for pair := range slices.Chunk(kinds, 2) {
				require.Equal(t, []protocol.Op{protocol.OpAcquire, protocol.OpRelease}, pair, key)
			}
		}
	})
}

func TestTheShortestRoundTripForgetsAfterAWhile(t *testing.T) {
	var s lane.Shortest
	at := int64(1)
	require.Zero(t, s.Get())
	s.Add(5*time.Millisecond, at)
	s.Add(time.Millisecond, at)
	s.Add(3*time.Millisecond, at)
	require.Equal(t, time.Millisecond, s.Get())
	at += lane.ShortestPeriod + 1
	s.Add(2*time.Millisecond, at)
	require.Equal(t, time.Millisecond, s.Get(), "the period before still counts")
	at += lane.ShortestPeriod + 1
	s.Add(4*time.Millisecond, at)
	require.Equal(t, 2*time.Millisecond, s.Get())
}

func TestAHeldKeyHoldsUpNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rl, w := overLink(t, 100*time.Millisecond)
		cycle(t, rl, 1, 3)
		hot, err := rl.Mutex("hot").TryAcquire(t.Context())
		require.NoError(t, err)
		go func() { _ = hot.Release(t.Context()) }()
		synctest.Wait()
		go func() { _, _ = rl.Mutex("hot").TryAcquire(t.Context()) }() // waits, since its key is out
		time.Sleep(30 * time.Millisecond)                              // more than a quarter of a round trip
		synctest.Wait()
		start := time.Now()
		_, err = rl.Mutex("cold").TryAcquire(t.Context())
		require.NoError(t, err)
		require.Equal(t, w.Takes, time.Since(start))
		require.NoError(t, rl.Close())
	})
}

// overWires is a Redlock whose nodes are at the end of these wires.
func overWires(t *testing.T, o *Options, wires ...lane.Wire) *Redlock {
	t.Helper()
	full, broken := o.withDefaults()
	require.NoError(t, broken)
	names := make([]string, len(wires))
	for i := range names {
		names[i] = fmt.Sprint("node ", i)
	}
	return assemble(names, wires, full, tick.NewSystem())
}
