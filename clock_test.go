package redlock

import (
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func at(mono, wall time.Duration) instant {
	return instant{time: time.Unix(0, int64(wall)), mono: int64(mono), wall: int64(wall)}
}

// Scenarios 4 and 5, as arithmetic: a lease ends when either clock says so.
func TestDeadlineIsOverWhenEitherClockSaysSo(t *testing.T) {
	end := at(10*time.Second, 1010*time.Second)
	for _, c := range []struct {
		name string
		now  instant
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
		assert.Equal(t, c.left, c.now.until(end), c.name)
		assert.Equal(t, c.left <= 0, c.now.reached(end), c.name)
		assert.Equal(t, c.left > 0, end.after(c.now), c.name)
	}
}

func TestElapsedTimeIsThatOfTheClockNobodyCanSet(t *testing.T) {
	assert.Equal(t, time.Second, at(3*time.Second, 0).since(at(2*time.Second, time.Hour)))
}

func TestInstantMovesWithAllItsClocks(t *testing.T) {
	i := at(time.Second, 2*time.Second).add(time.Minute)
	assert.Equal(t, at(61*time.Second, 62*time.Second), i)
	assert.Equal(t, time.Unix(62, 0), i.time)
}

// An end that no clock can show is the last that it can show, not one in the past.
func TestInstantDoesNotOverflow(t *testing.T) {
	now := newSystemClock().now()
	far := now.add(math.MaxInt64)
	assert.True(t, far.after(now))
	assert.Greater(t, now.until(far), 200*365*24*time.Hour)
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
		assert.Equal(t, c.node, ttlOnNode(c.ttl), "%v", c.ttl)
		assert.Equal(t, int64(c.valid), validUntil(at(0, 0), c.ttl, 0).mono, "%v", c.ttl)
	}
}

func TestAllowance(t *testing.T) {
	assert.Equal(t, 102*time.Millisecond, allowance(10*time.Second, 0.01))
	assert.Equal(t, 2*time.Millisecond, allowance(10*time.Second, 0))
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
		start := instant{mono: mono, wall: wall}
		until := validUntil(start, ttl, factor)
		lasts := start.until(until)
		onNode := time.Duration(ttlOnNode(ttl)) * time.Millisecond
		if lasts > ttl-2*time.Millisecond || lasts > onNode-allowance(ttl, factor) {
			t.Fatalf("valid for %v of %v", lasts, ttl)
		}
		if onNode < ttl || onNode >= ttl+time.Millisecond {
			t.Fatalf("%v on the node for %v", onNode, ttl)
		}
		if until.mono-mono != until.wall-wall {
			t.Fatal("the clocks have parted")
		}
		if drift := float64(ttl) * factor; float64(allowance(ttl, factor)) < drift {
			t.Fatalf("%v allowed for a drift of %v", allowance(ttl, factor), drift)
		}
	})
}

func TestSystemClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSystemClock()
		start := c.now()
		fired := make(chan instant, 1)
		c.afterFunc(time.Minute, func() { fired <- c.now() })
		stopped := c.afterFunc(time.Second, func() { t.Error("fired although stopped") })
		assert.True(t, stopped.Stop())
		assert.Equal(t, start.add(time.Minute), <-fired)
		assert.Zero(t, start.mono)
		assert.Equal(t, time.Now().UnixNano(), c.now().wall)
	})
}
