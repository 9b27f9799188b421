package realtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Names that lead to another node's server from some time on: a DNS record, a service of a
// cluster, an address that was given to another machine. Two names of one server are twins.

// lead makes the name of a node lead to another node's server.
func (p *convPath) lead(name, server int) {
	p.proxies[name].SetUpstream(convTo(p.fleet.servers[server]))
	p.proxies[name].Cut()
}

// convLook has the client meet the servers that its names lead to now.
func convLook(rl *redlock.Redlock) {
	for range 3 {
		if lock, err := rl.Mutex("look").TryAcquire(context.Background()); err == nil {
			_ = lock.Release(context.Background())
		}
		convPause(50 * time.Millisecond)
	}
}

// Row 81, S4: what a server says counts once, by however many names it is asked. The lock
// is on all three servers; then two names lead to the first, and the third is away. The
// other two servers grant the lock to somebody else when the first lease ends, so nothing
// that the first server says may let the first holder believe in more.
func TestExtendCountsATwinOnce(t *testing.T) {
	t.Parallel()
	convEachWay(t, func(t *testing.T, way convWay) {
		f := convStart(t, 3)
		p := f.path(t)
		rl, other := way.make(p, t, convGuarded), f.path(t).open(t, convGuarded)
		convWarm(t, f, rl)
		first, err := rl.Mutex(convKey).TryAcquire(t.Context())
		require.NoError(t, err)
		convVotes(first)
		p.lead(1, 0)
		p.refuse(2)
		convLook(rl)
		convEventually(t, func() bool { return first.Validity() < convGuarded.TTL/2 }, "time stands still")
		err = first.Extend(t.Context(), convGuarded.TTL)
		assert.ErrorIs(t, err, redlock.ErrNoQuorum, "extended by one server of three")

		second, _ := convTry(t, other.Mutex(convKey))
		require.LessOrEqual(t, first.Validity(), time.Duration(0), "two holders; the other one has %v left", second.Validity())
	})
}

// Row 81: the same for a lock that renews itself, and for releases: one server of three is
// no majority that confirms.
func TestRenewalAndReleaseCountATwinOnce(t *testing.T) {
	t.Parallel()
	convEachWay(t, func(t *testing.T, way convWay) {
		_, p, rl := way.warm(t, 3, convGuarded)
		renewed, err := rl.Mutex(convKey, redlock.WithRenewal()).TryAcquire(t.Context())
		require.NoError(t, err)
		released, err := rl.Mutex("released", redlock.WithTTL(time.Minute)).TryAcquire(t.Context())
		require.NoError(t, err)
		convVotes(renewed)
		convVotes(released)
		p.lead(1, 0)
		p.refuse(2)
		until := renewed.Until()
		assert.Error(t, released.Release(t.Context()), "released by one server of three")
		select {
		case <-renewed.Context().Done():
		case <-time.After(3 * convGuarded.TTL):
		}
		assert.ErrorIs(t, context.Cause(renewed.Context()), redlock.ErrLost)
		assert.False(t, renewed.Until().After(until), "renewed by one server of three")
	})
}

// Row 81, L3: a name that leads to another node's server costs one vote, and the other
// servers are a majority, after the guard's time: of young servers it is not known that all
// are, since the one that the name should lead to was not seen.
func TestTwinCostsOneVoteAlone(t *testing.T) {
	t.Parallel()
	o := redlock.Options{TTL: 8 * time.Second, NodeTimeout: 2 * time.Second} // each attempt is to succeed, also on a busy machine
	type twins struct {
		n     int
		leads [][2]int
		away  bool
	}
	var cases []twins
	for _, away := range []bool{false, true} {
		cases = append(cases, twins{3, [][2]int{{2, 0}}, away}, twins{5, [][2]int{{3, 0}, {4, 1}}, away})
	}
	name := func(c twins) string { return fmt.Sprintf("%d of %d, away %v", len(c.leads), c.n, c.away) }
	convTogether(t, cases, name, func(t *testing.T, c twins) {
		convEachWay(t, func(t *testing.T, way convWay) {
			_, p, rl := way.warm(t, c.n, o)
			for _, l := range c.leads {
				p.lead(l[0], l[1])
			}
			convLook(rl)
			if c.away {
				for _, l := range c.leads {
					p.refuse(l[0])
				}
				convLook(rl)
			}
			convPause(o.TTL)
			for i := range 20 {
				lock, err := rl.Mutex(convKey).TryAcquire(t.Context())
				require.NoError(t, err, "attempt %d", i)
				require.NoError(t, lock.Release(t.Context()))
			}
		})
	})
}

// Row 81: where twins leave no quorum, the error says so, and it is over when the names
// lead to different servers again.
func TestTwinsThatLeaveNoQuorum(t *testing.T) {
	t.Parallel()
	convEachWay(t, func(t *testing.T, way convWay) {
		_, p, rl := way.warm(t, 3, convGuarded)
		p.lead(1, 0)
		p.lead(2, 0)
		m := rl.Mutex(convKey)
		convEventually(t, func() bool {
			lock, err := m.TryAcquire(context.Background())
			if err == nil {
				t.Errorf("granted by one server of three: %v", lock.Outcomes())
				return true
			}
			return errors.Is(err, redlock.ErrDuplicateNode)
		}, "nobody says that the nodes are one server")
		p.lead(1, 1)
		p.lead(2, 2)
		_, took := convTry(t, m)
		require.Less(t, took, convGuarded.TTL+5*time.Second)
	})
}
