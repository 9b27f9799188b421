package guard

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/internal/tick"
)

// A search proves nothing about another world. Here random walks of the explorer are made a second time, on real
// servers, with the connections that the library uses, and after each step what each client knows of each
// node, which nodes vote, and what is on the servers must be the same. A walk ends before a mark that was new in
// its beginning is none any more, and before a connection asks for more than the mark behind SETs.

const (
	xrKey = "lock"
	xrTTL = time.Hour
)

type xrClient struct {
	g     *Guard
	wires [xNodes]*conn.Wire
	value string
	holds bool
}

type xrWorld struct {
	t       *testing.T
	servers []*realredis.Server
	admins  [xNodes]*redis.Client
	others  [xNodes]*redis.Client // of the database that takes the place of the locks' one, and back
	clients [2]*xrClient
	clock   tick.Clock
	ids     int
}

// newcomer takes a client's place.
func (w *xrWorld) newcomer(c int) {
	if old := w.clients[c]; old != nil {
		for i := range old.wires {
			old.wires[i].Close()
		}
	}
	w.ids++
	n := &xrClient{g: New([]string{"0", "1", "2"}, 0, w.clock), value: fmt.Sprintf("%032d", w.ids)}
	for i, s := range w.servers {
		n.wires[i] = conn.NewWire(redis.NewClient(s.Options()), conn.OpenHabits, protocol.MarkKey, "", w.clock)
		n.wires[i].Watch(lane.Onlooker{
			Saw:       func(r protocol.ServerReport) *protocol.MarkWrite { return n.g.Saw(i, r) },
			Ready:     func() bool { return n.g.Ready(i) },
			Duplicate: func() error { return n.g.Duplicate(i) },
		})
	}
	w.clients[c] = n
}

func (w *xrWorld) do(i int, args ...any) {
	w.t.Helper()
	require.NoError(w.t, w.admins[i].Do(context.Background(), args...).Err(), "%v", args)
}

// acquire is one attempt, which asks the nodes one after the other.
func (w *xrWorld) acquire(c *xrClient, mask int) {
	votes := 0
	for i := 0; i < xNodes && votes < 2; i++ {
		if mask>>i&1 == 0 {
			continue
		}
		req := protocol.SetRequest(protocol.OpAcquire, &protocol.Terms{TTL: xrTTL, NodeTimeout: 10 * time.Second}, xrKey, c.value)
		call := &lane.Call{Req: &req}
		c.wires[i].Exchange([]*lane.Call{call}, 10*time.Second, 10*time.Second)
		if call.Answer.Read(req.Op).Kind == protocol.Granted && c.g.Judge(i, xrTTL, w.clock.Now().Mono) == 0 {
			votes++
		}
	}
	if c.holds = votes == 2; !c.holds {
		w.release(c)
	}
}

func (w *xrWorld) release(c *xrClient) {
	c.holds = false
	for i := range xNodes {
		for _, db := range []*redis.Client{w.admins[i], w.others[i]} {
			if db.Get(context.Background(), xrKey).Val() == c.value {
				require.NoError(w.t, db.Del(context.Background(), xrKey).Err())
			}
		}
	}
}

// cut breaks the connections of all clients to a node.
func (w *xrWorld) cut(i int) { w.do(i, "CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes") }

// apply makes a step of the explorer on the servers.
func (w *xrWorld) apply(e xEvent) {
	a, b := int(e.a), int(e.b)
	switch e.kind {
	case xAcquire:
		w.acquire(w.clients[a], b)
	case xRelease:
		w.release(w.clients[a])
	case xReplace:
		w.release(w.clients[a])
		w.newcomer(a)
	case xGenesis:
		for range 3 {
			for i := range xNodes {
				greet := w.clients[a].wires[i].Greet
				if _, err := greet(context.Background(), 10*time.Second); err != nil { // its connection was cut
					_, err = greet(context.Background(), 10*time.Second)
					require.NoError(w.t, err)
				}
			}
		}
	case xFlush:
		w.do(a, "FLUSHDB")
	case xPutBack:
		w.do(a, "SWAPDB", "0", "1")
	case xEvictMark:
		w.do(a, "DEL", protocol.MarkKey)
	case xRestartEmpty:
		w.do(a, "FLUSHDB")
		w.do(a, "SAVE")
		require.NoError(w.t, w.servers[a].Restart())
	case xRestartKept:
		w.do(a, "SAVE")
		require.NoError(w.t, w.servers[a].Restart())
	case xRestartOld:
		w.do(a, "DEL", xrKey)
		w.do(a, "SAVE")
		require.NoError(w.t, w.servers[a].Restart())
	case xRedraw:
		w.do(a, "DEBUG", "CHANGE-REPL-ID")
		w.cut(a)
	default:
		require.Fail(w.t, "no such step", "%v", e)
	}
}

// inOrder numbers things in the order in which they are met.
func inOrder[T comparable]() func(T) int {
	numbers := make(map[T]int)
	return func(v T) int {
		if _, met := numbers[v]; !met {
			numbers[v] = len(numbers) + 1
		}
		return numbers[v]
	}
}

// view is what is to be the same, with numbers for the ids of marks.
func (x *explorer) view(w *xWorld) (all []string) {
	name := inOrder[any]()
	for i := range xNodes {
		if m := w.s[i].mark; m.state == protocol.MarkPresent {
			all = append(all, fmt.Sprintf("server %d: mark %d first %v all %v, locked %v", i, name(m.id), m.first, m.all, w.s[i].owner >= 0))
		} else {
			all = append(all, fmt.Sprintf("server %d: no mark, locked %v", i, w.s[i].owner >= 0))
		}
	}
	for c := range x.sc.clients {
		x.load(&w.c[c])
		all = append(all, viewOf(c, x.g, x.period(), x.clock.mono, w.c[c].until > 0, func(id string) int { return name(xNumber(id, 2)) })...)
	}
	return all
}

func (w *xrWorld) view() (all []string) {
	name := inOrder[string]()
	for i := range xNodes {
		text, err := w.admins[i].Get(context.Background(), protocol.MarkKey).Result()
		locked := w.admins[i].Exists(context.Background(), xrKey).Val() > 0
		if m := protocol.ReadMark(text, err == nil, 0); m.State == protocol.MarkPresent {
			all = append(all, fmt.Sprintf("server %d: mark %d first %v all %v, locked %v", i, name(m.ID), m.First, m.All > 0, locked))
		} else {
			all = append(all, fmt.Sprintf("server %d: no mark, locked %v", i, locked))
		}
	}
	for c, cl := range w.clients {
		all = append(all, viewOf(c, cl.g, xrTTL, w.clock.Now().Mono, cl.holds, name)...)
	}
	return all
}

// viewOf is what a client knows.
func viewOf(c int, g *Guard, period time.Duration, now int64, holds bool, name func(string) int) (all []string) {
	for i := range xNodes {
		m := &g.memories.Nodes[i]
		s := fmt.Sprintf("client %d of node %d: %v, changed %v, votes %v", c, i, m.Identity, m.changedAt != LongAgo, g.Judge(i, period, now) == 0)
		if m.mark.State == protocol.MarkPresent {
			s += fmt.Sprintf(", mark %d first %v all %v begins %v", name(m.mark.ID), m.mark.First, m.mark.All > 0, m.begins && m.isNew())
		}
		all = append(all, s)
	}
	return append(all, fmt.Sprintf("client %d holds %v", c, holds))
}

func TestExplorerAgreesWithServers(t *testing.T) {
	t.Parallel()
	walks, least := 4, 20
	if raceDetector {
		walks, least = 3, 3
	}
	steps := 0
	for n := range walks {
		t.Run(fmt.Sprint(n), func(t *testing.T) { steps += walkOnServers(t, uint64(n)) })
	}
	t.Logf("%d steps", steps)
	assert.GreaterOrEqual(t, steps, least)
}

// walkOnServers makes one walk, and says how many of its steps were compared.
func walkOnServers(t *testing.T, seed uint64) (steps int) {
	r := rand.New(rand.NewPCG(seed, 42))
	var opts []realredis.Option
	if realredis.Major(t) >= 7 {
		opts = append(opts, realredis.Args("enable-debug-command", "local"))
	}
	w := &xrWorld{t: t, clock: tick.NewSystem(), servers: realredis.StartN(t, xNodes, opts...)}
	x := newExplorer(&xScope{
		tick: sec, ttl: 2, clients: 2, faults: 100, fresh: seed%2 == 0, bare: true, coarse: true, genesis: true, newcomers: true,
		copies: true, copied: true, swap: true, restartEmpty: true, restartKept: true, restartOld: true, flush: true, evictMark: true, redraw: true,
	})
	model := x.begin()
	for i, s := range w.servers {
		w.admins[i] = s.Client(t)
		o := s.Options()
		o.DB = 1
		w.others[i] = redis.NewClient(o)
		t.Cleanup(func() { _ = w.others[i].Close() })
		if m := model.s[i].mark; m.state == protocol.MarkPresent {
			info := protocol.ParseInfo(w.admins[i].Info(context.Background(), "replication").Val())
			text := fmt.Sprintf("%024d 1000000000000000 first %s %s 0 0 all3", i+1, s.RunID(), info["master_replid"])
			w.do(i, "SET", protocol.MarkKey, text)
		}
	}
	for c := range w.clients {
		w.newcomer(c)
	}
	defer func() {
		for c := range w.clients {
			w.newcomer(c)
			for i := range xNodes {
				w.clients[c].wires[i].Close()
			}
		}
	}()
	var told []string
	for begin := time.Now(); ; steps++ {
		evs := x.events(model, nil)
		e := evs[1+r.IntN(len(evs)-1)] // no time passes
		if e.kind == xReplace {
			x.giveUp(model, int(e.a))
		}
		x.apply(model, e)
		model.last = xNever // here each node may forget at any time
		if e.kind == xRedraw {
			model.s[e.a].puts++ // which is how often DEBUG was told
			for c := range model.c {
				model.c[c].m[e.a].srv = -1
			}
		}
		w.apply(e)
		told = append(told, e.String())
		got := w.view()
		if time.Since(begin) > time.Second {
			return steps
		}
		require.Equal(t, strings.Join(x.view(model), "\n"), strings.Join(got, "\n"), "after\n%s", strings.Join(told, "\n"))
	}
}
