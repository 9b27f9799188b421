package realtest_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/faultproxy"
	"github.com/quorumlock/redlock/internal/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// Who answers on a connection, and what may still land of one that is over.

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

// convTorn options keep keys for so long that one that is left behind is seen, and give up
// on a node soon.
var convTorn = redlock.Options{TTL: time.Minute, NodeTimeout: 600 * time.Millisecond, NoRestartGuard: true}

// Row 75: the bytes of a SET are still on their way when its connection ends, and arrive
// long after every release of it. The old connection must have been ended on the server by
// then.
func TestSetOfAConnectionThatIsOverDoesNotLand(t *testing.T) {
	type torn struct {
		name    string
		mayLand bool // before it is taken back
		tear    func(t *testing.T, f *convFleet, p *convPath) (after func())
	}
	hangUp := func(p *convPath) { p.proxies[0].HangUp() }
	cases := []torn{
		{name: "broken", tear: func(_ *testing.T, _ *convFleet, p *convPath) func() {
			hangUp(p)
			return nil
		}},
		{name: "silent", mayLand: true, tear: func(*testing.T, *convFleet, *convPath) func() { return nil }},
		// The request to end the old connection is answered -BUSY, which settles nothing.
		{name: "broken while the server is busy", tear: func(t *testing.T, f *convFleet, p *convPath) func() {
			end := f.slowScript(t, 0)
			hangUp(p)
			return func() {
				convPause(5 * convTorn.NodeTimeout)
				end()
			}
		}},
	}
	t.Parallel()
	convTogether(t, cases, func(c torn) string { return c.name }, func(t *testing.T, c torn) {
		convEachWay(t, func(t *testing.T, way convWay) {
			f := convStart(t, 3, convImpatiently)
			p := f.path(t)
			rl := way.make(p, t, convTorn)
			convWarm(t, f, rl)
			node := p.proxies[0]
			require.NotZero(t, node.Hold())
			lock, err := rl.Mutex(convKey).TryAcquire(t.Context())
			require.NoError(t, err)
			convEventually(t, func() bool { return node.CountFunc(convNames(convKey)) > 0 }, "the SET was not sent")
			after := c.tear(t, f, p)
			require.NoError(t, lock.Release(t.Context()))
			if after != nil {
				after()
			}
			// Whatever is tried to take the SET back is over by then, and the client goes on.
			convPause(10 * convTorn.NodeTimeout)
			t.Logf("%d flows had something left", node.LetGo())
			if !c.mayLand {
				require.Never(t, func() bool { return f.held(convKey)[0] != "" }, 500*time.Millisecond, 2*time.Millisecond, "the SET landed")
			}
			convEventually(t, func() bool { return f.gone(convKey) }, "the key is left on a node")
		})
	})
}

// convNames matches commands with this argument.
func convNames(arg string) func(faultproxy.Command) bool {
	return func(c faultproxy.Command) bool { return slices.Contains(c.Args, arg) }
}

// Row 76: a server counts its clients' ids from the beginning when it is restarted. The id
// of an old connection is somebody else's then, who must not be cut off.
func TestEndOfAnOldConnectionHitsNobodyElse(t *testing.T) {
	type tear struct {
		name string
		tear func(p *faultproxy.Proxy) int
	}
	cases := []tear{
		{"broken", func(p *faultproxy.Proxy) int { return p.HangUp() }},
		{"silent", func(p *faultproxy.Proxy) int { return p.Forget() }},
	}
	t.Parallel()
	convTogether(t, cases, func(c tear) string { return c.name }, func(t *testing.T, c tear) {
		o := convTorn
		o.TTL = 5 * time.Second // for so long at most the silent connection is read
		convEachWay(t, func(t *testing.T, way convWay) {
			f, p, rl := way.warm(t, 3, o)
			ours := f.clientIDs(t, 0)
			require.NotEmpty(t, ours)

			// Nobody reaches the restarted server before the bystanders have come.
			node := p.proxies[0]
			node.SetUpstream(func(context.Context) (net.Conn, error) { return nil, errors.New("not yet") })
			node.Hold()
			held, err := rl.Mutex("held").Acquire(t.Context()) // the others may be late once, on a busy machine
			require.NoError(t, err)
			require.NotZero(t, c.tear(node))
			require.NoError(t, f.servers[0].Restart())
			bystanders := f.bystanders(t, 0, slices.Max(ours)+20)
			covered := 0
			for _, id := range ours {
				if _, ok := bystanders[id]; ok {
					covered++
				}
			}
			require.NotZero(t, covered, "no bystander has one of %v", ours)
			node.SetUpstream(convTo(f.servers[0]))

			convWarm(t, f, rl)
			_ = held.Release(t.Context())
			convPause(5 * convTorn.NodeTimeout)
			for id, c := range bystanders {
				now, err := c.ClientID(t.Context()).Result()
				require.NoError(t, err, "client %d was cut off", id)
				require.Equal(t, id, now)
			}
		})
	})
}

// clientIDs are the ids of a server's clients but for our own.
func (f *convFleet) clientIDs(t *testing.T, node int) (ids []int64) {
	t.Helper()
	me := f.admins[node].ClientID(t.Context()).Val()
	list, err := f.admins[node].ClientList(t.Context()).Result()
	require.NoError(t, err)
	for line := range strings.Lines(list) {
		first, _, _ := strings.Cut(line, " ")
		id, err := strconv.ParseInt(strings.TrimPrefix(first, "id="), 10, 64)
		require.NoError(t, err, line)
		if id != me {
			ids = append(ids, id)
		}
	}
	return ids
}

// bystanders connects clients to a server until one has an id above most.
func (f *convFleet) bystanders(t *testing.T, node int, most int64) map[int64]*redis.Conn {
	t.Helper()
	client := f.servers[node].Client(t, convAtOnce, func(o *redis.Options) { o.PoolSize = 1000 })
	all := make(map[int64]*redis.Conn)
	for {
		c := client.Conn()
		t.Cleanup(func() { _ = c.Close() })
		id, err := c.ClientID(t.Context()).Result()
		require.NoError(t, err)
		if all[id] = c; id > most {
			return all
		}
	}
}
