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
