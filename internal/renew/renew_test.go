package renew_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/quorumlock/redlock/internal/renew"
	"github.com/quorumlock/redlock/internal/tick"
)

// looked counts how often it is looked at.
type looked struct {
	renew.Lock
	n atomic.Int32
}

func (l *looked) CheckEnd() error { l.n.Add(1); return nil }

// While the clocks go together, contexts end by their own timers. To look at a hundred thousand
// of them four times a second would take a quarter of a core.
func TestContextsAreLookedAtWhenTheClocksMoveApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := renew.New(tick.NewSystem())
		l := new(looked)
		k.Watch(&renew.Renewal{Lock: l})
		<-time.After(time.Minute)
		assert.LessOrEqual(t, l.n.Load(), int32(1))
		k.Stop()
	})
}

// begun is a lock whose renewals are noted, and do not end by themselves.
type begun struct {
	renew.Lock
	name             string
	ttl, nodeTimeout time.Duration
	order            *[]string
}

func (l *begun) Renew()                     { *l.order = append(*l.order, l.name) }
func (l *begun) NodeTimeout() time.Duration { return l.nodeTimeout }

// schedule has a lock with so much left of its lease renewed in d.
func (l begun) schedule(k *renew.Renewer, c tick.Clock, d, left time.Duration) *renew.Renewal {
	now, r := c.Now(), &renew.Renewal{Lock: &l}
	k.Schedule(r, now, now.Add(left), d, l.ttl)
	return r
}

// Few may be under way beside a renewal with a short timeout, but all that fit when it has ended, also where
// others have been under way all the time.
func TestShortRenewalThatEndedSlowsNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		c := tick.NewSystem()
		k := renew.New(c)
		long := begun{name: "long", ttl: 10 * time.Second, nodeTimeout: 200 * time.Millisecond, order: &order}
		short := begun{name: "short", ttl: 100 * time.Millisecond, nodeTimeout: 2 * time.Millisecond, order: &order}
		pause := func() {
			<-time.After(100 * time.Millisecond)
			synctest.Wait()
		}
		long.schedule(k, c, 0, 5*time.Second)
		pause()
		ended := short.schedule(k, c, 0, 50*time.Millisecond)
		pause()
		assert.Equal(t, []string{"long", "short"}, order)
		k.Fewer(ended, 1, 1)
		for range 100 { // one after the other, as they note themselves without a mutex
			long.schedule(k, c, 0, 5*time.Second)
			pause()
		}
		assert.Len(t, order, 102)
		k.Stop()
	})
}

// A renewal that failed is tried again near the end of its lease, before those that have time.
func TestLeastTimeLeftIsRenewedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		c := tick.NewSystem()
		k := renew.New(c)
		l := begun{name: "first", ttl: 10 * time.Second, nodeTimeout: time.Microsecond, order: &order} // room for one
		r := l.schedule(k, c, 0, 5*time.Second)
		l.name = "much left"
		l.schedule(k, c, time.Second, 7*time.Second)
		l.name = "little left"
		l.schedule(k, c, 2*time.Second, 3*time.Second)
		for range 3 {
			<-time.After(2500 * time.Millisecond)
			synctest.Wait()
			k.Fewer(r, 1, 1)
		}
		synctest.Wait()
		assert.Equal(t, []string{"first", "little left", "much left"}, order)
		k.Stop()
	})
}
