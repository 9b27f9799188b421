package guard

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/internal/tick"
)

// The rules of memory.go rest on what Redis does with its ids and its data. Here real
// servers lose theirs in each of the ways, and the guard is told what they say. Locks have
// no part in it.

// realMarks are three servers and the clients that look at them.
type realMarks struct {
	t       *testing.T
	servers []*realredis.Server
	clients []*redis.Client // by node; a promotion puts another one there
	clock   tick.Clock
}

func startMarks(t *testing.T, opts ...realredis.Option) *realMarks {
	if realredis.Major(t) >= 7 {
		opts = append(opts, realredis.Args("enable-debug-command", "local"))
	}
	f := &realMarks{t: t, clock: tick.NewSystem(), servers: realredis.StartN(t, 3, opts...)}
	for _, s := range f.servers {
		f.clients = append(f.clients, s.Client(t))
	}
	return f
}

func (f *realMarks) do(c *redis.Client, args ...any) any {
	f.t.Helper()
	val, err := c.Do(context.Background(), args...).Result()
	if !errors.Is(err, redis.Nil) {
		require.NoError(f.t, err, "%v", args)
	}
	return val
}

// ask is the full question, look the mark alone.
func (f *realMarks) ask(i int) protocol.ServerReport {
	c, at := f.clients[i], f.clock.Now().Mono
	text, present := f.do(c, "GET", protocol.MarkKey).(string)
	now, err := c.Time(context.Background()).Result()
	require.NoError(f.t, err)
	s := protocol.ServerReport{Asked: true, At: at, Time: time.Duration(now.UnixNano()), Mark: protocol.ReadMark(text, present, 0)}
	require.NoError(f.t, s.ReadServer(f.do(c, "INFO", "server").(string)))
	require.NoError(f.t, s.ReadReplication(f.do(c, "INFO", "replication").(string)))
	require.NoError(f.t, s.ReadCommands(f.do(c, "INFO", "commandstats").(string)))
	return s
}

func (f *realMarks) look(i int) protocol.ServerReport {
	at := f.clock.Now().Mono
	text, present := f.do(f.clients[i], "GET", protocol.MarkKey).(string)
	return protocol.ServerReport{At: at, RunID: protocol.ParseInfo(f.do(f.clients[i], "INFO", "server").(string)).RunID(), Mark: protocol.ReadMark(text, present, 0)}
}

// tell hands the guard a report and does what it wants. It reports whether something was
// written.
func (f *realMarks) tell(g *Guard, i int, s protocol.ServerReport) (wrote bool) {
	for w := g.Saw(i, s); w != nil; w = g.Saw(i, s) {
		wrote = true
		s = protocol.ServerReport{Asked: true, At: f.clock.Now().Mono, RunID: s.RunID}
		s.Mark = protocol.ReadWritten(f.clients[i].Eval(context.Background(), protocol.MarkScript.Source, []string{protocol.MarkKey}, w.Args()).Result())
	}
	return wrote
}

// newcomer is a guard that has asked all nodes, as often as a new fleet takes.
func (f *realMarks) newcomer() *Guard {
	names := []string{"a", "b", "c"}
	g := New(names, 0, f.clock)
	for range FirstLooks {
		for i := range names {
			f.tell(g, i, f.ask(i))
		}
	}
	return g
}

// age makes a node's mark older than it is.
func (f *realMarks) age(i int, d time.Duration) {
	c := f.clients[i]
	fields := strings.Fields(f.do(c, "GET", protocol.MarkKey).(string))
	at := fakenode.Number(fields[1]) - d.Microseconds()
	fields[1] = fakenode.Argument(at)
	f.do(c, "SET", protocol.MarkKey, strings.Join(fields, " "))
}

// used is what a client knows of a fleet that has been in use for a month.
func (f *realMarks) used() *Guard {
	first := f.newcomer()
	f.requireVotes(first, "a fleet's first use", true, true, true)
	for i := range f.clients {
		f.age(i, 30*24*time.Hour)
	}
	g := f.newcomer()
	f.requireVotes(g, "a month later", true, true, true)
	return g
}

const realMarksG = time.Hour // nothing comes of age within a test

func (f *realMarks) requireVotes(g *Guard, when string, want ...bool) {
	f.t.Helper()
	for i := range want {
		left := g.Judge(i, realMarksG, g.clock.Now().Mono)
		require.Equal(f.t, want[i], left == 0, "%s: node %d, %v left", when, i, left)
		if !want[i] {
			require.Greater(f.t, left, realMarksG-time.Minute, "%s: node %d", when, i)
		}
	}
}

// follows waits until a server is a replica with its master's data.
func (f *realMarks) follows(c *redis.Client, key string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		info := protocol.ParseInfo(c.Info(context.Background(), "replication").Val())
		return info["master_link_status"] == "up" && c.Exists(context.Background(), key).Val() == 1
	}, 20*time.Second, 5*time.Millisecond)
}

// The ways in which the second node loses its data. Each tells whether a look behind the
// SETs shows it; the full question shows them all.
var realLosses = map[string]func(f *realMarks) (looks bool){
	"FLUSHALL": func(f *realMarks) bool {
		f.do(f.clients[1], "FLUSHALL")
		return true
	},
	"DEL of all that is there": func(f *realMarks) bool {
		for _, key := range f.do(f.clients[1], "KEYS", "*").([]any) {
			f.do(f.clients[1], "DEL", key)
		}
		return true
	},
	"a restart without its keys": func(f *realMarks) bool {
		require.NoError(f.t, f.servers[1].Restart())
		return true
	},
	"a restart from a snapshot": func(f *realMarks) bool {
		f.do(f.clients[1], "SAVE")
		require.NoError(f.t, f.servers[1].Restart())
		require.NotNil(f.t, f.do(f.clients[1], "GET", protocol.MarkKey), "the mark came with the snapshot")
		return true
	},
	"a replica in its place": func(f *realMarks) bool {
		f.promote(1)
		return true
	},
	"REPLICAOF and back": func(f *realMarks) bool {
		own := f.clients[1]
		other := f.promote(1)
		f.do(other, "SET", "other", 1)
		f.clients[1] = own
		host, port, _ := strings.Cut(other.Options().Addr, ":")
		f.do(own, "REPLICAOF", host, port)
		f.follows(own, "other")
		f.do(own, "REPLICAOF", "NO", "ONE")
		return false // the copy has the same mark
	},
	"DEBUG RELOAD": func(f *realMarks) bool {
		f.do(f.clients[1], "SAVE")
		f.do(f.clients[1], "DEBUG", "RELOAD", "NOSAVE")
		return false
	},
	"SWAPDB": func(f *realMarks) bool {
		other := f.servers[1].Client(f.t, func(o *redis.Options) { o.DB = 1 })
		f.do(other, "SET", protocol.MarkKey, f.do(f.clients[1], "GET", protocol.MarkKey))
		f.do(f.clients[1], "SWAPDB", 0, 1)
		return false
	},
}

// promote puts a replica with all of its data in a node's place.
func (f *realMarks) promote(i int) *redis.Client {
	replica := realredis.Start(f.t, realredis.ReplicaOf(f.servers[i])).Client(f.t)
	f.follows(replica, protocol.MarkKey)
	f.do(replica, "REPLICAOF", "NO", "ONE")
	f.clients[i] = replica
	return replica
}

func TestMarksOfServersThatForget(t *testing.T) {
	t.Parallel()
	for name, lose := range realLosses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startMarks(t)
			old := f.used()
			looks := lose(f)
			if f.tell(old, 1, f.look(1)); looks {
				f.requireVotes(old, "who looks", true, false, true)
			}
			f.tell(old, 1, f.ask(1))
			f.requireVotes(old, "who was there", true, false, true)
			f.requireVotes(f.newcomer(), "a newcomer", true, false, true)
			require.False(t, f.tell(old, 1, f.ask(1)), "all is said")

			f.age(1, 24*time.Hour)
			f.requireVotes(f.newcomer(), "a day later", true, true, true)
		})
	}
}

// A newcomer is the first to come after the loss.
func TestMarksThatANewcomerFindsGone(t *testing.T) {
	t.Parallel()
	for name, lose := range realLosses {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := startMarks(t)
			old := f.used()
			lose(f)
			f.requireVotes(f.newcomer(), "a newcomer", true, false, true)
			f.requireVotes(f.newcomer(), "another", true, false, true)
			f.tell(old, 1, f.ask(1))
			f.requireVotes(old, "who was there", true, false, true)
		})
	}
}

// A master draws a new replication id when its first replica comes, and loses nothing.
func TestMarksOfNodesThatGetReplicas(t *testing.T) {
	t.Parallel()
	f := startMarks(t)
	old, other := f.used(), f.newcomer()
	for i := range f.servers {
		before := f.ask(i)
		f.follows(realredis.Start(t, realredis.ReplicaOf(f.servers[i])).Client(t), protocol.MarkKey)
		after := f.ask(i)
		require.NotEqual(t, before.ReplID, after.ReplID)
		require.True(t, noFormer(after.FormerID), after.FormerID)
		require.True(t, f.tell(old, i, after), "the mark is bound to the new id")
		f.tell(other, i, f.look(i))
		f.tell(other, i, f.ask(i))
	}
	f.requireVotes(old, "who was there", true, true, true)
	f.requireVotes(other, "another who was there", true, true, true)
	f.requireVotes(f.newcomer(), "a newcomer", true, true, true)
}
