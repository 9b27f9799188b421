package realtest_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Nodes that forget what they granted: by a restart, a failover, a dataset that is
// replaced, or by hand. Two of three servers hold the lock, one of them forgets it, and
// nobody else may get it from that one and the third as long as the restart guard bars.

// convLoss is a way for node 2 of three to forget. A client that was there before knows the
// node, a newcomer comes afterwards.
type convLoss struct {
	name    string
	replica bool                               // node 2 has one, which lacks what is locked
	contact bool                               // clients go on talking to the node while it forgets
	copies  func(t *testing.T, l *convLossRun) // takes a copy of what is there before the lock is; nil: none
	lose    func(t *testing.T, l *convLossRun)
}

type convLossRun struct {
	fleet *convFleet
	ways  []*convPath       // of the clients that were there
	spare *realredis.Server // node 2's replica, if it has one
	admin *redis.Client     // of the replica
	moved bool              // the replica is behind the node's address
}

var convLosses = []convLoss{
	{name: "restarted empty", lose: func(t *testing.T, l *convLossRun) {
		require.NoError(t, l.fleet.servers[2].Restart())
	}},
	{name: "FLUSHALL", contact: true, lose: func(t *testing.T, l *convLossRun) {
		require.NoError(t, l.fleet.admins[2].FlushAll(t.Context()).Err())
	}},
	{name: "DEL of everything", lose: func(t *testing.T, l *convLossRun) {
		keys, err := l.fleet.admins[2].Keys(t.Context(), "*").Result()
		require.NoError(t, err)
		require.NoError(t, l.fleet.admins[2].Del(t.Context(), keys...).Err())
	}},
	{
		name: "replica promoted", replica: true,
		lose: func(t *testing.T, l *convLossRun) {
			l.fleet.servers[2].Kill()
			require.NoError(t, l.admin.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
			l.moved = true
			for _, p := range l.ways {
				l.move(p)
				p.proxies[2].Cut()
			}
		},
	},
	{
		// The dataset is replaced by an empty one, and no client has looked meanwhile.
		name: "REPLICAOF and back",
		lose: func(t *testing.T, l *convLossRun) { l.resync(t, realredis.Start(t), 0) },
	},
	{
		// Here it is one in which the clients find all that they left, but for the lock. It
		// takes longer than a second, and they see that the node is a replica.
		name: "failover and failback", replica: true, contact: true,
		lose: func(t *testing.T, l *convLossRun) {
			require.NoError(t, l.admin.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
			l.resync(t, l.spare, 1200*time.Millisecond)
		},
	},
	// In what follows the process stays, and its data comes back with the mark that clients know, and without the
	// lock. A connection in use asks once a second whether that may be.
	{
		name: "REPLICAOF and back with its own data", replica: true,
		lose: func(t *testing.T, l *convLossRun) {
			require.NoError(t, l.admin.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
			l.resync(t, l.spare, 0)
			convPause(1200 * time.Millisecond)
		},
	},
	{
		name: "SWAPDB", contact: true,
		copies: func(t *testing.T, l *convLossRun) {
			mark, err := l.fleet.admins[2].Get(t.Context(), "redlock:memory").Result()
			require.NoError(t, err)
			other := l.fleet.servers[2].Client(t, func(o *redis.Options) { o.DB = 1 })
			require.NoError(t, other.Set(t.Context(), "redlock:memory", mark, 0).Err())
		},
		lose: func(t *testing.T, l *convLossRun) {
			require.NoError(t, l.fleet.admins[2].Do(t.Context(), "SWAPDB", 0, 1).Err())
			convPause(1200 * time.Millisecond)
		},
	},
	{
		name: "DEBUG RELOAD",
		copies: func(t *testing.T, l *convLossRun) {
			require.NoError(t, l.fleet.admins[2].Save(t.Context()).Err())
		},
		lose: func(t *testing.T, l *convLossRun) {
			require.NoError(t, l.fleet.admins[2].Do(t.Context(), "DEBUG", "RELOAD", "NOSAVE").Err())
			convPause(1200 * time.Millisecond)
		},
	},
}

// sever waits until the replica has all that is there now, and keeps it from what comes
// after that.
func (l *convLossRun) sever(t *testing.T) {
	node := l.fleet.admins[2]
	convEventually(t, func() bool {
		offset := convInfo(node, "replication", "master_repl_offset")
		return offset != "" && offset == convInfo(l.admin, "replication", "slave_repl_offset")
	}, "the replica does not follow")
	// The link breaks: nobody listens on port 1.
	require.NoError(t, l.admin.Do(t.Context(), "REPLICAOF", "127.0.0.1", "1").Err())
}

// resync makes node 2 a replica of another server for some time, and a master again.
func (l *convLossRun) resync(t *testing.T, master *realredis.Server, dwell time.Duration) {
	host, port, _ := strings.Cut(master.Addr(), ":")
	node := l.fleet.admins[2]
	require.NoError(t, node.Do(t.Context(), "REPLICAOF", host, port).Err())
	convEventually(t, func() bool { return convInfo(node, "replication", "master_link_status") == "up" }, "no resynchronization")
	convPause(dwell)
	require.NoError(t, node.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err())
}

func (l *convLossRun) move(p *convPath) {
	if l.moved {
		p.proxies[2].SetUpstream(convTo(l.spare))
	}
}

// convAsker is a client that asks for a key that another one holds.
type convAsker struct {
	way      convWay
	newcomer bool
	rl       *redlock.Redlock
	key      string
	held     *redlock.Lock
}

func (a convAsker) String() string {
	if a.newcomer {
		return a.way.name + ", newcomer"
	}
	return a.way.name + ", was there"
}

// Rows 35, 78, 79, 80: S2, S3, FLUSHALL and DEL. Afterwards the node is like any other: a
// loss of long ago bars nobody.
func TestNodeThatForgotIsBarred(t *testing.T) {
	t.Parallel()
	convTogether(t, convLosses, func(l convLoss) string { return l.name }, testLoss)
}

func testLoss(t *testing.T, loss convLoss) {
	var opts []realredis.Option
	if realredis.Major(t) >= 7 {
		opts = append(opts, realredis.Args("enable-debug-command", "local"))
	}
	f := convStart(t, 3, opts...)
	run := &convLossRun{fleet: f}
	aged := append([]*redis.Client(nil), f.admins...)
	if loss.replica {
		run.spare = realredis.Start(t, realredis.ReplicaOf(f.servers[2]))
		run.admin = run.spare.Client(t, convAtOnce)
		aged = append(aged, run.admin)
	}
	holders := f.path(t)
	holder := holders.open(t, convGuarded)
	askers := []*convAsker{{way: convWays[0]}, {way: convWays[1]}, {way: convWays[0], newcomer: true}, {way: convWays[1], newcomer: true}}
	convWarm(t, f, holder)
	convAge(t, convGuarded.TTL, aged...) // or they would be taken to start for the first time
	for _, a := range askers {
		a.key = "orders:" + a.String()
		if !a.newcomer {
			p := f.path(t)
			run.ways = append(run.ways, p)
			a.rl = a.way.make(p, t, convGuarded)
			convWarm(t, f, a.rl)
		}
	}
	if loss.replica {
		run.sever(t)
	}
	if loss.copies != nil {
		loss.copies(t, run)
	}
	for _, a := range askers {
		a.held = holders.holdOn(t, holder, a.key, 1, 2)
	}
	stop := func() {}
	if loss.contact {
		stop = run.contact(askers)
	}
	since := time.Now()
	loss.lose(t, run)
	stop()
	for _, a := range askers {
		if a.newcomer {
			p := f.path(t)
			run.move(p)
			a.rl = a.way.make(p, t, convGuarded)
		}
	}
	convTogether(t, askers, func(a *convAsker) string { return a.String() }, func(t *testing.T, a *convAsker) {
		convBarred(t, a.rl.Mutex(a.key), a.held, since)
	})
	for _, way := range convWays {
		p := f.path(t)
		run.move(p)
		requireVotesSoon(t, way.make(p, t, convGuarded))
	}
}

// contact has the clients that were there talk to the nodes until it is stopped.
func (l *convLossRun) contact(askers []*convAsker) (stop func()) {
	var all sync.WaitGroup
	over := make(chan struct{})
	for _, a := range askers {
		if a.newcomer {
			continue
		}
		all.Go(func() {
			for {
				select {
				case <-over:
					return
				case <-time.After(20 * time.Millisecond):
				}
				if lock, err := a.rl.Mutex("contact " + a.String()).TryAcquire(context.Background()); err == nil {
					_ = lock.Release(context.Background())
				}
			}
		})
	}
	return func() {
		close(over)
		all.Wait()
	}
}

// requireVotesSoon checks that a client that has just come counts the vote of node 2.
func requireVotesSoon(t *testing.T, rl *redlock.Redlock) {
	t.Helper()
	m := rl.Mutex("later")
	convEventually(t, func() bool {
		lock, err := m.TryAcquire(context.Background())
		if err != nil {
			return false
		}
		vote := convVotes(lock)[2]
		_ = lock.Release(context.Background())
		return vote == redlock.VoteGranted
	}, "a newcomer bars the node for what happened long ago")
}

// Rows 35 and 80: nodes that have started lately are exempt when all of them start for the
// first time, and not when one of them forgot what it had granted since then.
func TestNodeThatForgotInAYoungFleetIsBarredForNewcomers(t *testing.T) {
	t.Parallel()
	convTogether(t, convLosses[:3], func(l convLoss) string { return l.name }, func(t *testing.T, loss convLoss) {
		f := convStart(t, 3)
		o := convGuarded
		o.TTL = time.Minute
		holders := f.path(t)
		holder := holders.open(t, o)
		convWarm(t, f, holder)
		// Marks that are written within two seconds are taken for those of several clients that
		// use the fleet for the first time together.
		time.Sleep(2500 * time.Millisecond) // real time: the nodes' clocks decide
		first := holders.holdOn(t, holder, convKey, 1, 2)
		loss.lose(t, &convLossRun{fleet: f})
		m := f.path(t).open(t, o).Mutex(convKey)
		for end := time.Now().Add(time.Second); time.Now().Before(end); {
			second, err := m.TryAcquire(t.Context())
			if err == nil {
				require.Fail(t, "two holders", "with %v and %v left", first.Validity(), second.Validity())
			}
		}
	})
}

// Row 80, one node alone: a client that knew the node notices that it forgot. One that
// comes later cannot know.
func TestSingleNodeThatForgotIsBarredForThoseWhoKnewIt(t *testing.T) {
	t.Parallel()
	convEachWay(t, func(t *testing.T, way convWay) {
		f := convStart(t, 1)
		rl, holder := way.make(f.path(t), t, convGuarded), f.path(t).open(t, convGuarded)
		convWarm(t, f, rl)
		first, err := holder.Mutex(convKey, redlock.WithTTL(time.Minute)).TryAcquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, f.admins[0].FlushAll(t.Context()).Err())
		convBarred(t, rl.Mutex(convKey), first, time.Now())
	})
}

// Rows 78 and 80: a set of nodes that nobody used before serves at once, however many
// clients come at the same time; so does one that clients without a guard have used for
// longer than the guard's time.
func TestFleetThatIsNewToUsServesAtOnce(t *testing.T) {
	t.Parallel()
	type fleetCase struct {
		name string
		n    int
		used bool
	}
	cases := []fleetCase{{"one", 1, false}, {"two", 2, false}, {"three", 3, false}, {"five", 5, false}, {"used by others", 3, true}}
	convTogether(t, cases, func(c fleetCase) string { return c.name }, func(t *testing.T, c fleetCase) {
		f := convStart(t, c.n)
		o := redlock.Options{TTL: time.Minute, NodeTimeout: 10 * time.Second}
		if c.used {
			o = convGuarded
			theirs := convGuarded
			theirs.NoRestartGuard = true
			_, err := f.path(t).open(t, theirs).Mutex("theirs", redlock.WithTTL(time.Minute)).TryAcquire(t.Context())
			require.NoError(t, err)
			convAge(t, convGuarded.TTL, f.admins...)
		}
		var all sync.WaitGroup
		begin := make(chan struct{})
		for i := range 8 {
			rl := convWays[i%2].make(f.path(t), t, o)
			all.Go(func() {
				<-begin
				lock, err := rl.Mutex(strings.Repeat("k", i+1)).TryAcquire(context.Background())
				if assert.NoError(t, err) {
					assert.NotContains(t, convVotes(lock), redlock.VoteBarred, lock.Outcomes())
				}
			})
		}
		close(begin)
		all.Wait()
	})
}
