package realtest_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/stretchr/testify/require"
)

// Which server answers on a connection.

// convImpatiently makes a server answer -BUSY once a script has run for 10 ms.
var convImpatiently = realredis.Args("lua-time-limit", "10")

// slowScript keeps a server busy with a script until the function that it returns is
// called: but for a few, commands are answered -BUSY.
func (f *convFleet) slowScript(t *testing.T, node int) (end func()) {
	t.Helper()
	runner := f.servers[node].Client(t, func(o *redis.Options) { o.MaxRetries, o.ReadTimeout = -1, -1 })
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = runner.Eval(context.Background(), "while true do end", nil).Err()
	}()
	busy := func() bool {
		err := f.admins[node].Ping(context.Background()).Err()
		return err != nil && strings.HasPrefix(err.Error(), "BUSY")
	}
	convEventually(t, busy, "the server does not get busy")
	return func() {
		_ = f.admins[node].ScriptKill(context.Background()).Err()
		<-over
		convEventually(t, func() bool { return !busy() }, "the server stays busy")
	}
}

// Row 77, S1: a node that restarted empty answers -BUSY when a new connection asks who it
// is. That is no lasting denial: when the script is over the node has an identity again,
// and it is another one.
func TestBusyServerIsAskedAgainWhoItIs(t *testing.T) {
	t.Parallel()
	convEachWay(t, func(t *testing.T, way convWay) {
		f := convStart(t, 3, convImpatiently)
		holders, p := f.path(t), f.path(t)
		rl, holder := way.make(p, t, convGuarded), holders.open(t, convGuarded)
		convWarm(t, f, rl)
		m := rl.Mutex(convKey)
		first := holders.holdOn(t, holder, convKey, 1, 2)

		p.refuse(2)
		since := time.Now()
		require.NoError(t, f.servers[2].Restart())
		end := f.slowScript(t, 2)
		p.heal()
		p.proxies[2].Reset()
		convEventually(t, func() bool {
			_, err := m.TryAcquire(context.Background())
			var q *redlock.QuorumError
			return errors.As(err, &q) && p.proxies[2].Count() > 0 && q.Outcomes[2].Err != nil &&
				strings.Contains(q.Outcomes[2].Err.Error(), "BUSY")
		}, "the client does not talk to the busy server")
		end()
		convBarred(t, m, first, since)
	})
}
