package redlock

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/tick"
)

func at(mono, wall time.Duration) tick.Instant {
	return tick.Instant{Time: time.Unix(0, int64(wall)), Mono: int64(mono), Wall: int64(wall)}
}

// Scenarios 4 and 5, as arithmetic: a lease ends when either clock says so.
func TestDeadlineIsOverWhenEitherClockSaysSo(t *testing.T) {
	end := at(10*time.Second, 1010*time.Second)
	for _, c := range []struct {
		name string
		now  tick.Instant
		left time.Duration
	}{
		{"both clocks run", at(4*time.Second, 1004*time.Second), 6 * time.Second},
		{"the machine slept", at(4*time.Second, 1012*time.Second), -2 * time.Second},
		{"the wall clock was set ahead", at(time.Second, 5000*time.Second), -3990 * time.Second},
		{"the wall clock was set back", at(9*time.Second, 500*time.Second), time.Second},
		{"the wall clock was set back, and the lease is over", at(11*time.Second, 500*time.Second), -time.Second},
		{"at the very end", at(10*time.Second, 1010*time.Second), 0},
		{"a nanosecond before it", at(10*time.Second-1, 1010*time.Second-1), 1},
	} {
		assert.Equal(t, c.left, c.now.Until(end), c.name)
		assert.Equal(t, c.left <= 0, c.now.Reached(end), c.name)
		assert.Equal(t, c.left > 0, end.After(c.now), c.name)
	}
}

func TestElapsedTimeIsThatOfTheClockNobodyCanSet(t *testing.T) {
	assert.Equal(t, time.Second, at(3*time.Second, 0).Since(at(2*time.Second, time.Hour)))
}

func TestInstantMovesWithAllItsClocks(t *testing.T) {
	i := at(time.Second, 2*time.Second).Add(time.Minute)
	assert.Equal(t, at(61*time.Second, 62*time.Second), i)
	assert.Equal(t, time.Unix(62, 0), i.Time)
}

// An end that no clock can show is the last that it can show, not one in the past.
func TestInstantDoesNotOverflow(t *testing.T) {
	now := tick.NewSystem().Now()
	far := now.Add(math.MaxInt64)
	assert.True(t, far.After(now))
	assert.Greater(t, now.Until(far), 200*365*24*time.Hour)
}

// Scenario 11 and R12.
func TestTTLIsRoundedUpOnNodesAndDownForTheHolder(t *testing.T) {
	for _, c := range []struct {
		ttl   time.Duration
		node  int64
		valid time.Duration // without drift, but with the 2 ms
	}{
		{10 * time.Millisecond, 10, 8 * time.Millisecond},
		{10*time.Millisecond + 1, 11, 8*time.Millisecond - 0},
		{11*time.Millisecond - 1, 11, 8 * time.Millisecond},
		{1500 * time.Microsecond, 2, -time.Millisecond},
		{maxTTL, 86_400_000, maxTTL - 2*time.Millisecond},
	} {
		assert.Equal(t, c.node, protocol.TTLOnNode(c.ttl), "%v", c.ttl)
		assert.Equal(t, int64(c.valid), validUntil(at(0, 0), c.ttl, 0).Mono, "%v", c.ttl)
	}
}

func TestAllowance(t *testing.T) {
	assert.Equal(t, 102*time.Millisecond, tick.Allowance(10*time.Second, 0.01))
	assert.Equal(t, 2*time.Millisecond, tick.Allowance(10*time.Second, 0))
	assert.Equal(t, at(9898*time.Millisecond, 9898*time.Millisecond), validUntil(at(0, 0), 10*time.Second, 0.01))
}

// FuzzValidity: the holder never relies on a lease for longer than its TTL less the
// drift, nor than the node keeps it, for any TTL and factor that options can have.
func FuzzValidity(f *testing.F) {
	f.Add(int64(10*time.Millisecond), 0.01, int64(0), int64(1e18))
	f.Add(int64(maxTTL), 0.999999, int64(math.MaxInt64/4), int64(2e18))
	f.Add(int64(12345678901), math.SmallestNonzeroFloat64, int64(1), int64(-5))
	f.Fuzz(func(t *testing.T, ttlNs int64, factor float64, mono, wall int64) {
		ttl := time.Duration(ttlNs)
		if ttl < minTTL || ttl > maxTTL || !(factor > 0 && factor < 1) {
			return
		}
		// Clocks of this and the next hundred years.
		mono, wall = mono&(1<<61-1), wall&(1<<62-1)
		start := tick.Instant{Mono: mono, Wall: wall}
		until := validUntil(start, ttl, factor)
		lasts := start.Until(until)
		onNode := time.Duration(protocol.TTLOnNode(ttl)) * time.Millisecond
		if lasts > ttl-2*time.Millisecond || lasts > onNode-tick.Allowance(ttl, factor) {
			t.Fatalf("valid for %v of %v", lasts, ttl)
		}
		if onNode < ttl || onNode >= ttl+time.Millisecond {
			t.Fatalf("%v on the node for %v", onNode, ttl)
		}
		if until.Mono-mono != until.Wall-wall {
			t.Fatal("the clocks have parted")
		}
		if drift := float64(ttl) * factor; float64(tick.Allowance(ttl, factor)) < drift {
			t.Fatalf("%v allowed for a drift of %v", tick.Allowance(ttl, factor), drift)
		}
	})
}

func TestSystemClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := tick.NewSystem()
		start := c.Now()
		fired := make(chan tick.Instant, 1)
		c.AfterFunc(time.Minute, func() { fired <- c.Now() })
		stopped := c.AfterFunc(time.Second, func() { t.Error("fired although stopped") })
		assert.True(t, stopped.Stop())
		assert.Equal(t, start.Add(time.Minute), <-fired)
		assert.Zero(t, start.Mono)
		assert.Equal(t, time.Now().UnixNano(), c.Now().Wall)
	})
}
