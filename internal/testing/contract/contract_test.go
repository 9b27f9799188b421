package contract_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/lane"
	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
	"github.com/quorumlock/redlock/internal/testing/longtest"
	"github.com/quorumlock/redlock/internal/testing/realredis"
	"github.com/quorumlock/redlock/internal/tick"
)

// What the library expects of a node, shown on the servers of the simulation, of the other
// tests, and on a real one. If the first were different, the simulation would prove
// something about another world.

// contractAnswer is what a server says to one request.
type contractAnswer struct {
	val any
	err error
}

// contractNode is a server that is asked what the library asks, and looked into.
type contractNode struct {
	do   func(req *protocol.Request) contractAnswer
	raw  func(args ...any) any    // a plain command, to prepare or to look
	all  func(batch []*lane.Call) // exchanges a batch as a lane does, until each call has its answer
	pass func(d time.Duration)    // lets time pass; nil: it passes by itself
	told func() []string          // what was published to the processes p, q and p., in order
	// deletesItself: the server has a command that compares and deletes, and bundles are not sent.
	deletesItself bool
}

var contractNodes = map[string]func(t *testing.T) *contractNode{
	"in memory": inMemory,
	"miniredis": miniRedis,
	"redis":     realRedis,
}

func inMemory(*testing.T) *contractNode { return newInMemory(false) }

func newInMemory(mute bool) *contractNode {
	now := fakenode.Epoch
	s := fakenode.New(func() int64 { return now })
	s.Mute = mute
	var told []string
	s.Publish = func(channel, message string) { told = append(told, channel+" "+message) }
	n := &contractNode{
		do: func(req *protocol.Request) contractAnswer {
			if req.Script != nil {
				s.Scripts[req.Script] = true
			}
			val, err := s.Do(req)
			return contractAnswer{val, err}
		},
		all: exchangesAll(func(batch []*lane.Call) {
			var b lane.Bundle
			for _, c := range b.Pack(batch) {
				val, err := s.Do(c.Req)
				c.Answer = protocol.Answer{Said: protocol.Said(val, err), Sent: true}
			}
			b.Unpack()
		}),
		pass: func(d time.Duration) { now += int64(d) },
		told: func() []string { return told },
	}
	n.raw = func(args ...any) any {
		key := args[1].(string)
		switch args[0] {
		case "SET":
			s.Set(key, args[2].(string), 0, &fakenode.Op{})
		case "PEXPIRE":
			s.ExpireIn(key, int64(args[2].(int)), &fakenode.Op{})
		case "RPUSH":
			s.Keys[key] = &fakenode.Key{Other: "list"}
		case "SADD":
			s.Keys[key] = &fakenode.Key{Other: "set"}
		case "HSET":
			s.Keys[key] = &fakenode.Key{Other: "hash"}
		case "ZADD":
			s.Zadd(key, float64(args[2].(int)), args[3].(string))
		case "DEL":
			s.Del(key, &fakenode.Op{})
		case "TYPE":
			return s.Typ(key)
		case "GET":
			v, ok, _ := s.Text(key)
			if !ok {
				return nil
			}
			return v
		case "PTTL":
			return s.Pttl(key)
		case "ZRANGE":
			var all []any
			if k := s.Get(key); k != nil {
				var members []string
				for m := range k.Zset {
					members = append(members, m)
				}
				slices.SortFunc(members, func(a, b string) int {
					if d := k.Zset[a] - k.Zset[b]; d != 0 {
						return int(math.Copysign(1, d))
					}
					return strings.Compare(a, b)
				})
				for _, m := range members {
					all = append(all, m)
				}
			}
			return all
		default:
			panic(args[0])
		}
		return nil
	}
	return n
}

func miniRedis(t *testing.T) *contractNode {
	m := miniredis.RunT(t)
	now := time.Unix(0, fakenode.Epoch)
	m.SetTime(now)
	n := overClient(t, m.Addr())
	n.pass = func(d time.Duration) {
		now = now.Add(d)
		m.SetTime(now)
		m.FastForward(d)
	}
	return n
}

func realRedis(t *testing.T) *contractNode {
	return overClient(t, realredis.Start(t).Addr())
}

// overClient asks through the wire that production uses.
func overClient(t *testing.T, addr string) *contractNode {
	client := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2, MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	ctx := context.Background()
	listener := client.Subscribe(ctx, "redlock:p", "redlock:q", "redlock:p.", "end")
	t.Cleanup(func() { _ = listener.Close() })
	for range 4 {
		_, err := listener.Receive(ctx)
		require.NoError(t, err)
	}
	w := conn.NewWire(client, conn.OpenHabits, "", "", tick.NewSystem())
	t.Cleanup(w.Close)
	own, _ := ownDelete(client) // miniredis knows no such section
	return &contractNode{
		deletesItself: own != protocol.NoNative,
		all:           exchangesAll(func(batch []*lane.Call) { w.Exchange(batch, 10*time.Second, 10*time.Second) }),
		do: func(req *protocol.Request) contractAnswer {
			c := &lane.Call{Req: req}
			w.Exchange([]*lane.Call{c}, 10*time.Second, 10*time.Second)
			for req := c.Instead(); req != nil && c.Req.Native == protocol.NoNative; req = c.Instead() {
				c.Req = req
				w.Exchange([]*lane.Call{c}, 10*time.Second, 10*time.Second)
			}
			if err := c.Err(); err != nil {
				return contractAnswer{nil, err}
			}
			return contractAnswer{c.Said, nil}
		},
		raw: func(args ...any) any {
			v, err := client.Do(ctx, args...).Result()
			if err != redis.Nil {
				require.NoError(t, err, "%v", args)
			}
			return v
		},
		told: func() (told []string) {
			require.NoError(t, client.Publish(ctx, "end", "").Err())
			for {
				m, err := listener.ReceiveMessage(ctx)
				require.NoError(t, err)
				if m.Channel == "end" {
					return told
				}
				told = append(told, m.Channel+" "+m.Payload)
			}
		},
	}
}

// exchangesAll exchanges a batch, and again those calls that are put in other words.
func exchangesAll(exchange func(batch []*lane.Call)) func(batch []*lane.Call) {
	return func(batch []*lane.Call) {
		for len(batch) > 0 {
			exchange(batch)
			var again []*lane.Call
			for _, c := range batch {
				if req := c.Instead(); req != nil {
					c.Req = req
					again = append(again, c)
				}
			}
			batch = again
		}
	}
}

// place is what a node says to one that joins its queue.
type place struct {
	ours           bool  // the lock is reserved for it
	number         int64 // of its permit then; 0: none
	ahead, arrival int64
	wasAbsent      bool
	given          string // of its process with others
}

func readPlace(val any) (p place, ok bool) {
	f, _ := val.([]any)
	if len(f) < 7 {
		return p, false
	}
	n := func(i int) int64 { return f[i].(int64) }
	p = place{ours: n(0) > 0, number: max(n(0)-1, 0), ahead: n(1), arrival: n(3), wasAbsent: n(4) == 1}
	if len(f) > 7 {
		p.given = f[7].(string)
	}
	return p, true
}

// contractTerms describes a lock as the library does. Times are long where the server's
// own clock is not in our hands.
func contractTerms(ttl time.Duration) *protocol.Terms {
	return &protocol.Terms{TTL: ttl, NodeTimeout: time.Second}
}

const (
	contractTTL = time.Minute
	lineOfK     = "{k}:line"
	fenceOfK    = "{k}:fence"
	holdersOfK  = "{k}:shared"
	doorOfK     = "{k}:door"
)

// The requests of the library.

func askSet(value string) *protocol.Request {
	r := protocol.SetRequest(protocol.OpAcquire, contractTerms(contractTTL), "k", value)
	return &r
}

func askRelease(value string) *protocol.Request {
	r := protocol.ReleaseRequest(contractTerms(contractTTL), "k", value)
	return &r
}

func askShorten(value string, ttl time.Duration) *protocol.Request {
	r := protocol.ShortenRequest(contractTerms(contractTTL), "k", value, int64(ttl))
	return r.AsOf(0)
}

func askExtend(value string, ttl time.Duration) *protocol.Request {
	return protocol.ExtendRequest(contractTerms(ttl), "k", value)
}

// modesOf are those of values whose waiters want to share the lock.
var modesOf = map[string]string{"f": "s0", "f1": "s0", "f2": "s0", "9": "s2", "91": "s2", "8": "s3"}

func entryOf(process, value string) string { return process + " 30000" + modesOf[value] + " " + value }

func askJoin(process, value, ended string, arrival int64, waited time.Duration) *protocol.Request {
	if ended != "" {
		ended = entryOf(process, ended)
	}
	return protocol.JoinRequest(contractTerms(contractTTL), "k", value, &protocol.QueueArgs{
		Key: lineOfK, Entry: entryOf(process, value), Ended: ended, Arrival: arrival, Waited: waited.Microseconds(),
	})
}

func askClaim(process, value string) *protocol.Request {
	return protocol.ClaimRequest(contractTerms(contractTTL), "k", value, lineOfK, entryOf(process, value))
}

func askLineRelease(value, entry string, as protocol.Releaser) *protocol.Request {
	r := protocol.QueueReleaseRequest(contractTerms(contractTTL), "k", value, &protocol.QueueArgs{Key: lineOfK, Entry: entry, As: as})
	return &r
}

func askPlainLineRelease(value string) *protocol.Request {
	r := protocol.QueueReleaseRequest(contractTerms(contractTTL), "k", value, nil)
	return &r
}

func fenceOfKey(token uint64) *protocol.FenceArgs {
	return &protocol.FenceArgs{Key: fenceOfK, Token: token}
}

func askFence(value string, proposal uint64, entry string) *protocol.Request {
	var q *protocol.QueueArgs
	if entry != "" {
		q = &protocol.QueueArgs{Key: lineOfK, Entry: entry}
	}
	return protocol.FenceRequest(contractTerms(contractTTL), "k", value, fenceOfKey(proposal), q)
}

// tokenA is the token of the value that contract cases of adopt begin with.
const tokenA = "a0"

// whole is the value of a process with an owner.
const whole = "0123456789abcdef0123456789abcdee@owner"

func askAdopt(value, token string) *protocol.Request {
	r := protocol.AdoptRequest(contractTerms(contractTTL), "k", value, token, nil)
	return &r
}

func askAdoptFenced(value, token string, proposal uint64) *protocol.Request {
	r := protocol.AdoptRequest(contractTerms(contractTTL), "k", value, token, fenceOfKey(proposal))
	return &r
}

func askRaise(value string, fence uint64) *protocol.Request {
	return protocol.RaiseRequest(contractTerms(contractTTL), "k", value, fenceOfKey(fence))
}

func askFenceRepair(value string, fence uint64) *protocol.Request {
	r := protocol.FenceRepairRequest(contractTerms(contractTTL), "k", value, fenceOfKey(fence))
	return &r
}

func askInspect(most int) *protocol.Request {
	return protocol.InspectRequest(contractTerms(contractTTL), "k", lineOfK, "", most)
}

func askForce(token string) *protocol.Request {
	return protocol.ForceRequest(contractTerms(contractTTL), "k", token, lineOfK, "")
}

var shareOfK = protocol.ShareArgs{Holders: holdersOfK, Door: doorOfK}

// askShare is a claim: limit is how many may hold the lock, 0 for any number, or below 0 a
// number that is wanted.
func askShare(value string, limit int64, ttl time.Duration) *protocol.Request {
	s := shareOfK
	s.Limit = limit
	return protocol.SharedClaimRequest(protocol.OpAcquireShared, contractTerms(ttl), "k", value, &s, nil)
}

func askShareExtend(value string, number int64, ttl time.Duration) *protocol.Request {
	s := shareOfK
	s.Number = number
	return protocol.SharedExtendRequest(contractTerms(ttl), "k", value, &s)
}

func askShareLeave(value, line, entry string, as protocol.Releaser) *protocol.Request {
	r := protocol.SharedReleaseRequest(contractTerms(contractTTL), "k", value, &shareOfK, &protocol.QueueArgs{Key: line, Entry: entry, As: as})
	return &r
}

func askShareRelease(value, line string) *protocol.Request {
	return askShareLeave(value, line, "", protocol.AsHolder)
}

// doorValue is one that a waiter would have.
func doorValue(value string) string { return "0d@" + value }

func askDoor(value string) *protocol.Request {
	return protocol.DoorRequest(contractTerms(contractTTL), doorOfK, doorValue(value), contractTTL)
}

func askOpenDoor(value string) *protocol.Request {
	return protocol.OpenDoorRequest(contractTerms(contractTTL), doorOfK, doorValue(value))
}

// askMark is the writing of a mark over another; at is in microseconds, 0 for now.
func askMark(old, id string, at int64, first bool) *protocol.Request {
	w := protocol.MarkWrite{Old: old, ID: id, At: at, First: first, RunID: "run", ReplID: "repl"}
	return protocol.MarkRequest(protocol.MarkKey, &w)
}

const farAhead = uint64(1) << 51 // a proposal that every server cuts down

// long is a text of others, and cut what scripts take of it.
var (
	long = strings.Repeat("x", 5000)
	cut  = long[:protocol.LongestValue+1]
)

// contractCases: what is asked, one after the other, and answered. "error X" is an answer
// that is an error with X in it, "~" any number. A time passes.
var contractCases = map[string][]struct {
	ask  any // a request, or a raw command
	want string
}{
	"a free key is granted, a taken one refused": {
		{askSet("a"), "OK"}, {askSet("b"), "<nil>"}, {raw("GET", "k"), "a"},
	},
	"a SET that comes twice is refused the second time": {{askSet("a"), "OK"}, {askSet("a"), "<nil>"}},
	"a key that holds something else refuses a SET":     {{raw("RPUSH", "k", "x"), ""}, {askSet("a"), "<nil>"}},
	"release of our own":                                {{askSet("a"), "OK"}, {askRelease("a"), "1"}, {raw("TYPE", "k"), "none"}},
	"release of another's leaves it and tells it":       {{askSet("a"), "OK"}, {askRelease("b"), "a"}, {raw("GET", "k"), "a"}},
	"release of nothing":                                {{askRelease("a"), "0"}},
	"release twice":                                     {{askSet("a"), "OK"}, {askRelease("a"), "1"}, {askRelease("a"), "0"}},
	"release of what is no lock":                        {{raw("RPUSH", "k", "x"), ""}, {askRelease("a"), "error WRONGTYPE"}},
	"several of our own at once": {
		{askSet("a"), "OK"}, {raw("SET", "k2", "b"), ""}, {askMany(askRelease("a"), beside("k2", askRelease("b"))), "[]"}, {raw("TYPE", "k"), "none"}, {raw("TYPE", "k2"), "none"},
		{askMany(askRelease("a"), beside("k2", askRelease("b"))), "[1 2]"},
	},
	"of several only our own": {
		{askSet("b"), "OK"}, {raw("RPUSH", "k2", "x"), ""}, {raw("SET", "k4", "d"), ""}, {raw("SET", "k5", ""), ""},
		{askMany(askRelease("a"), beside("k2", askRelease("x")), beside("k3", askRelease("c")), beside("k4", askRelease("d")), beside("k5", askRelease("e"))), "[1 2 3 5]"},
		{raw("GET", "k"), "b"}, {raw("TYPE", "k2"), "list"}, {raw("TYPE", "k3"), "none"}, {raw("TYPE", "k4"), "none"}, {raw("TYPE", "k5"), "string"},
	},
	"of several not what somebody waits for": {
		{askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {raw("SET", "k2", "b"), ""}, {raw("SET", "k3", "c"), ""},
		{askMany(askPlainLineRelease("a"), beside("k2", askPlainLineRelease("b")), beside("k3", askRelease("c"))), "[1]"},
		{raw("GET", "k"), "a"}, {raw("TYPE", "k2"), "none"}, {raw("TYPE", "k3"), "none"}, {told(), "[]"}, {raw("ZRANGE", lineOfK, 0, -1), "[silent p p 30000 b]"},
		{askPlainLineRelease("a"), "3"}, {raw("GET", "k"), "b"}, {told(), "[redlock:p b]"},
	},
	"of several not those whose line has another name": {
		{askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {raw("SET", "k2", "b"), ""},
		{askMany(beside("k2", askLineRelease("b", "", protocol.AsPasser)), askRelease("a")), "[1]"}, {raw("GET", "k2"), "b"}, {raw("TYPE", "k"), "none"},
	},
	"who does not look for waiters is not asked to wait for them": {
		{askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {raw("SET", "k2", "b"), ""},
		{askMany(beside("k2", askPlainLineRelease("b")), askRelease("a")), "[]"}, {raw("TYPE", "k"), "none"}, {raw("TYPE", "k2"), "none"},
	},
	"what is no line keeps no lock of several": {
		{askSet("a"), "OK"}, {raw("RPUSH", lineOfK, "x"), ""}, {raw("SET", "k2", "b"), ""},
		{askMany(askPlainLineRelease("a"), beside("k2", askRelease("b"))), "[]"}, {raw("TYPE", "k"), "none"}, {raw("TYPE", lineOfK), "list"},
	},
	"a release may shorten the lease": {
		{askSet("a"), "OK"}, {askShorten("a", time.Second), "1"}, {raw("GET", "k"), "a"}, {raw("PTTL", "k"), "less than 1100"},
	},
	"or make it longer": {
		{askSet("a"), "OK"}, {askShorten("a", time.Hour), "1"}, {raw("PTTL", "k"), "more than 3000000"},
	},
	"of our own only, and creates nothing": {
		{askShorten("a", time.Minute), "0"}, {raw("TYPE", "k"), "none"},
		{askSet("b"), "OK"}, {askShorten("a", time.Second), "b"}, {raw("PTTL", "k"), "more than 30000"},
	},
	"and nothing that is no lock": {
		{raw("RPUSH", "k", "x"), ""}, {askShorten("a", time.Minute), "error WRONGTYPE"}, {raw("PTTL", "k"), "-1"},
	},
	"extend of our own makes it longer": {
		{askSet("a"), "OK"}, {askExtend("a", time.Hour), "1"}, {raw("PTTL", "k"), "more than 3000000"},
	},
	"extend never makes it shorter": {
		{askSet("a"), "OK"}, {askExtend("a", time.Second), "1"}, {raw("PTTL", "k"), "more than 30000"},
	},
	"extend of another's leaves it": {
		{askSet("a"), "OK"}, {askExtend("b", time.Hour), "a"}, {raw("PTTL", "k"), "less than 61000"},
	},
	"extend of nothing creates nothing": {{askExtend("a", time.Hour), "0"}, {raw("TYPE", "k"), "none"}},
	"extend gives a key without TTL one": {
		{raw("SET", "k", "a"), ""}, {askExtend("a", time.Hour), "1"}, {raw("PTTL", "k"), "more than 3000000"},
	},
	"a text that is longer than any of ours is read no further": {
		{raw("SET", "k", long), ""}, {askRelease("a"), cut}, {askExtend("a", time.Hour), cut}, {askShorten("a", time.Second), cut},
		{askInspect(3), "[string " + cut + " -1 0 []]"}, {askForce(tokenA), cut}, {askAdopt("b", tokenA), cut}, {askRaise("a", 1), cut},
		{askPlainLineRelease("a"), cut}, {askLineRelease("a", "", protocol.AsWaiter), cut}, {askJoin("p", "b", "", 0, 0), "[0 0 -1 ~ 1 0 " + cut + "]"}, {askPlainLineRelease("a"), cut},
		{askShare("a1", 0, contractTTL), "<nil>"}, {askShareExtend("a1", 0, contractTTL), cut}, {askShareRelease("a1", lineOfK), cut}, {askClaim("p", "b"), "<nil>"},
		{askSet("a"), "<nil>"}, {askFence("a", 1, ""), "<nil>"},
	},
	"a text as long as the longest of ours is one": {
		{raw("SET", "k", long[:protocol.LongestValue]), ""}, {askRelease("a"), long[:protocol.LongestValue]}, {askRelease(long[:protocol.LongestValue]), "1"}, {raw("TYPE", "k"), "none"},
	},
	"an empty text is a value":  {{raw("SET", "k", ""), ""}, {askRelease("a"), ""}, {askExtend("a", time.Hour), ""}, {raw("TYPE", "k"), "string"}},
	"extend of what is no lock": {{raw("RPUSH", "k", "x"), ""}, {askExtend("a", time.Hour), "error WRONGTYPE"}},
	"inspect of nothing":        {{askInspect(3), "[none  -2 0 []]"}},
	"inspect of a lock":         {{askSet("a"), "OK"}, {askInspect(3), "[string a ~ 0 []]"}},
	"inspect of a key without TTL": {
		{raw("SET", "k", "a"), ""}, {askInspect(3), "[string a -1 0 []]"},
	},
	"inspect of what is no lock": {{raw("RPUSH", "k", "x"), ""}, {askInspect(3), "[list  -1 0 []]"}},
	"inspect with a line": {
		{askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {askJoin("q", "c", "", 0, 0), "[0 1 ~ ~ 1 0 a]"},
		{askInspect(1), "[string a ~ 2 [p 30000 b ~]]"},
	},
	"joining a free lock reserves it for oneself, and needs no notice": {
		{askJoin("p", "b", "", 0, 0), "[1 0 ~ ~ 1 0 b]"}, {raw("GET", "k"), "b"}, {askSet("c"), "<nil>"}, {told(), "[]"},
	},
	"joining twice is joining once": {
		{askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 0 0 a]"},
		{raw("ZRANGE", lineOfK, 0, -1), "[silent p p 30000 b]"},
	},
	"who comes back with an arrival has the old place": {
		{askSet("a"), "OK"}, {askJoin("p", "b", "", 5000, 0), "[0 0 ~ 5000 1 0 a]"}, {askJoin("q", "c", "", 4000, 0), "[0 0 ~ 4000 1 0 a]"},
		{askJoin("p", "b", "", 5000, 0), "[0 1 ~ 5000 0 0 a]"},
	},
	"who waited elsewhere comes before": {
		{askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {askJoin("q", "c", "", 0, time.Hour), "[0 0 ~ ~ 1 0 a]"},
	},
	"a new entry takes the place of the ended one, and takes back what that left": {
		{askJoin("p", "b", "", 0, 0), "[1 0 ~ ~ 1 0 b]"}, {askJoin("p", "c", "b", 0, 0), "[1 0 ~ ~ 1 0 c]"},
		{raw("GET", "k"), "c"}, {raw("ZRANGE", lineOfK, 0, -1), "[woken p 30000 c silent p p 30000 c]"},
	},
	"a line under a key that holds something else": {
		{raw("RPUSH", lineOfK, "x"), ""}, {askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "error WRONGTYPE"}, {askPlainLineRelease("a"), "1"},
	},
	"claim of what is reserved": {
		{askJoin("p", "b", "", 0, 0), "[1 0 ~ ~ 1 0 b]"}, {raw("PTTL", "k"), "less than 31000"}, {askClaim("p", "b"), "OK"},
		{raw("PTTL", "k"), "more than 50000"}, {raw("TYPE", lineOfK), "none"},
	},
	"a claim behind an extend shortens nothing": {
		{askJoin("p", "b", "", 0, 0), "[1 0 ~ ~ 1 0 b]"}, {askExtend("b", time.Hour), "1"}, {askClaim("p", "b"), "OK"}, {raw("PTTL", "k"), "more than 3000000"},
		{askFence("b", 1, entryOf("p", "b")), "~"}, {raw("PTTL", "k"), "more than 3000000"},
	},
	"claim of what is free, and of what is another's": {
		{askClaim("p", "b"), "OK"}, {askClaim("q", "c"), "<nil>"}, {raw("GET", "k"), "b"},
	},
	"release with a line hands over and tells": {
		{askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {askJoin("q", "c", "", 0, 0), "[0 1 ~ ~ 1 0 a]"},
		{askPlainLineRelease("a"), "3"}, {raw("GET", "k"), "b"}, {raw("PTTL", "k"), "less than 31000"}, {askClaim("p", "b"), "OK"},
		{askLineRelease("b", entryOf("p", "b"), protocol.AsHolder), "3"}, {raw("GET", "k"), "c"}, {told(), "[redlock:p b redlock:q c]"},
	},
	"a notice has half of the token": {
		{askSet("a"), "OK"}, {askJoin("p.", whole, "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {askPlainLineRelease("a"), "3"}, {raw("GET", "k"), whole},
		{askPlainLineRelease("a"), "4"}, {told(), "[redlock:p. 0123456789abcdef redlock:p. 0123456789abcdef]"},
	},
	"a process of before is told all of it": {
		{askSet("a"), "OK"}, {askJoin("p", whole, "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {askPlainLineRelease("a"), "3"}, {told(), "[redlock:p 0123456789abcdef0123456789abcdee]"},
	},
	"release without a line":            {{askSet("a"), "OK"}, {askPlainLineRelease("a"), "1"}, {askPlainLineRelease("a"), "0"}, {raw("TYPE", "k"), "none"}},
	"release of another's with no line": {{askSet("a"), "OK"}, {askPlainLineRelease("b"), "a"}},
	"release of nothing serves the line": {
		{askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {raw("DEL", "k"), ""}, {askPlainLineRelease("a"), "4"},
		{raw("GET", "k"), "b"}, {told(), "[redlock:p b]"},
	},
	"taking back where the key is gone serves the line": {
		{askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {raw("DEL", "k"), ""}, {askLineRelease("a", "", protocol.AsWaiter), "4"},
		{raw("GET", "k"), "b"}, {told(), "[redlock:p b]"},
	},
	"release of a holder without this node wakes whom it is reserved for": {
		{askJoin("p", "b", "", 0, 0), "[1 0 ~ ~ 1 0 b]"}, {askPlainLineRelease("a"), "4"}, {told(), "[redlock:p b]"},
	},
	"release of a holder without this node that another has": {
		{askSet("c"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 c]"}, {askPlainLineRelease("a"), "c"}, {told(), "[]"},
	},
	"release on a node whose line is not served tells both": {
		{askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {askLineRelease("a", "", protocol.AsPasser), "3"},
		{raw("TYPE", "k"), "none"}, {askSet("c"), "OK"}, {askLineRelease("a", "", protocol.AsPasser), "c"}, {told(), "[redlock:p b]"},
	},
	"release on a node whose line is not served, and where the lock is gone": {
		{askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {raw("DEL", "k"), ""}, {askLineRelease("a", "", protocol.AsPasser), "0"},
		{raw("TYPE", "k"), "none"}, {told(), "[redlock:p b]"},
	},
	"release on a node whose line is not served, and that has reserved the lock": {
		{askJoin("p", "b", "", 0, 0), "[1 0 ~ ~ 1 0 b]"}, {askLineRelease("a", "", protocol.AsPasser), "4"}, {told(), "[redlock:p b]"},
	},
	"release where nobody waits": {{askSet("a"), "OK"}, {askLineRelease("a", "", protocol.AsPasser), "1"}, {raw("TYPE", "k"), "none"}},
	"taking back a failed attempt does not": {
		{askJoin("p", "b", "", 0, 0), "[1 0 ~ ~ 1 0 b]"}, {askLineRelease("a", "", protocol.AsWaiter), "b"}, {told(), "[]"},
	},
	"who leaves passes the turn on": {
		{askJoin("p", "b", "", 0, 0), "[1 0 ~ ~ 1 0 b]"}, {askJoin("q", "c", "", 0, 0), "[0 1 ~ ~ 1 0 b]"},
		{askLineRelease("b", entryOf("p", "b"), protocol.AsWaiter), "3"}, {raw("GET", "k"), "c"}, {raw("ZRANGE", lineOfK, 0, -1), "[woken q 30000 c silent q q 30000 c]"},
	},
	"fencing tokens grow": {
		{askFence("a", farAhead, ""), "~"}, {askFence("b", 1, ""), "<nil>"}, {raw("TYPE", fenceOfK), "string"},
	},
	"a counter above the clock goes up by one": {
		{raw("SET", fenceOfK, "4000000000000000"), ""}, {askFence("a", 1, ""), "4000000000000001"}, {raw("GET", fenceOfK), "4000000000000001"},
	},
	"a refused SET leaves the counter":      {{askSet("a"), "OK"}, {raw("SET", fenceOfK, "7"), ""}, {askFence("b", farAhead, ""), "<nil>"}, {raw("GET", fenceOfK), "7"}},
	"a counter that is none":                {{raw("SET", fenceOfK, "x"), ""}, {askFence("a", 1, ""), "error BADFENCE"}, {raw("TYPE", "k"), "none"}},
	"a counter that is negative":            {{raw("SET", fenceOfK, "-1"), ""}, {askFence("a", 1, ""), "error BADFENCE"}},
	"a counter with a sign":                 {{raw("SET", fenceOfK, "+1"), ""}, {askFence("a", 1, ""), "error BADFENCE"}},
	"a counter that is empty":               {{raw("SET", fenceOfK, ""), ""}, {askFence("a", 1, ""), "error BADFENCE"}},
	"a counter at its end":                  {{raw("SET", fenceOfK, "4503599627370496"), ""}, {askFence("a", 1, ""), "error BADFENCE"}, {raw("TYPE", "k"), "none"}},
	"a counter past its end":                {{raw("SET", fenceOfK, "4503599627370497"), ""}, {askFence("a", 1, ""), "error BADFENCE"}},
	"a counter that is a list":              {{raw("RPUSH", fenceOfK, "1"), ""}, {askFence("a", 1, ""), "error WRONGTYPE"}, {raw("TYPE", "k"), "none"}},
	"a fenced claim of what is reserved":    {{askJoin("p", "b", "", 0, 0), "[1 0 ~ ~ 1 0 b]"}, {askFence("b", 1, entryOf("p", "b")), "~"}, {raw("PTTL", "k"), "more than 50000"}, {raw("TYPE", lineOfK), "none"}},
	"a fenced claim of what is another's":   {{askSet("a"), "OK"}, {askFence("b", 1, entryOf("p", "b")), "<nil>"}},
	"adopt of a token alone":                {{askSet(tokenA), "OK"}, {askAdopt("b", tokenA), "1"}, {raw("GET", "k"), "b"}},
	"adopt of a token with its owner":       {{askSet(tokenA + "@x"), "OK"}, {askAdopt("b", tokenA), "1"}, {raw("GET", "k"), "b"}},
	"adopt of what only begins like it":     {{askSet(tokenA + "1@x"), "OK"}, {askAdopt("b", tokenA), "a01@x"}, {raw("GET", "k"), "a01@x"}},
	"adopt takes no pattern for a token":    {{askSet("a0"), "OK"}, {askAdopt("b", ".."), "a0"}},
	"adopt of what is free creates nothing": {{askAdopt("b", tokenA), "0"}, {raw("TYPE", "k"), "none"}},
	"adopt of another's leaves it":          {{askSet("c@x"), "OK"}, {askAdopt("b", tokenA), "c@x"}, {raw("GET", "k"), "c@x"}},
	"adopt of what is no lock":              {{raw("RPUSH", "k", "x"), ""}, {askAdopt("b", tokenA), "error WRONGTYPE"}},
	"adopt begins a lease of its own": {
		{raw("SET", "k", tokenA), ""}, {raw("PEXPIRE", "k", 3000), ""}, {askAdopt("b", tokenA), "1"}, {raw("PTTL", "k"), "more than 50000"},
	},
	"adopt gives a key without TTL one": {
		{raw("SET", "k", tokenA), ""}, {askAdopt("b", tokenA), "1"}, {raw("PTTL", "k"), "less than 61000"}, {raw("PTTL", "k"), "more than 50000"},
	},
	"adopt that comes twice does not shorten the lease": {
		{askSet(tokenA), "OK"}, {askAdopt("b", tokenA), "1"}, {askExtend("b", time.Hour), "1"}, {askAdopt("b", tokenA), "b"}, {raw("PTTL", "k"), "more than 3000000"},
	},
	"the former holder's requests do nothing after adopt": {
		{askSet(tokenA), "OK"}, {askAdopt("b", tokenA), "1"}, {askRelease(tokenA), "b"}, {askExtend(tokenA, time.Hour), "b"},
		{askPlainLineRelease(tokenA), "b"}, {askSet(tokenA), "<nil>"}, {raw("GET", "k"), "b"}, {raw("PTTL", "k"), "less than 61000"},
	},
	"fenced adopt is above the counter": {
		{raw("SET", fenceOfK, "4000000000000000"), ""}, {askSet(tokenA), "OK"}, {askAdoptFenced("b", tokenA, 1), "4000000000000001"},
		{raw("GET", fenceOfK), "4000000000000001"}, {raw("GET", "k"), "b"},
	},
	"fenced adopt cuts the proposal down":    {{askSet(tokenA), "OK"}, {askAdoptFenced("b", tokenA, farAhead), "~"}, {askFence("c", 1, ""), "<nil>"}, {askAdopt("c", "b"), "1"}},
	"fenced adopt of what is free":           {{askAdoptFenced("b", tokenA, 1), "0"}, {raw("TYPE", fenceOfK), "none"}},
	"fenced adopt with a broken counter":     {{raw("SET", fenceOfK, "x"), ""}, {askSet(tokenA), "OK"}, {askAdoptFenced("b", tokenA, 1), "error BADFENCE"}, {raw("GET", "k"), "a0"}},
	"fenced adopt with a counter at its end": {{raw("SET", fenceOfK, "4503599627370496"), ""}, {askSet(tokenA), "OK"}, {askAdoptFenced("b", tokenA, 1), "error BADFENCE"}, {raw("GET", "k"), "a0"}},
	"raise while we hold the lock":           {{askFence("a", 1, ""), "~"}, {askRaise("a", 4000000000000000), "1"}, {raw("GET", fenceOfK), "4000000000000000"}},
	"raise never lowers":                     {{askSet("a"), "OK"}, {raw("SET", fenceOfK, "9"), ""}, {askRaise("a", 8), "1"}, {raw("GET", fenceOfK), "9"}},
	"raise when the lock is gone":            {{askRaise("a", 8), "0"}, {raw("TYPE", fenceOfK), "none"}},
	"raise when the lock is another's":       {{askSet("b"), "OK"}, {askRaise("a", 8), "b"}, {raw("TYPE", fenceOfK), "none"}},
	"a fenced repair brings its counter":     {{askFenceRepair("a", 8), "OK"}, {raw("GET", fenceOfK), "8"}, {raw("GET", "k"), "a"}},
	"a fenced repair lowers no counter":      {{raw("SET", fenceOfK, "9"), ""}, {askFenceRepair("a", 8), "OK"}, {raw("GET", fenceOfK), "9"}},
	"a fenced repair of what is another's":   {{askSet("b"), "OK"}, {askFenceRepair("a", 8), "<nil>"}, {raw("TYPE", fenceOfK), "none"}},
	"force whoever holds":                    {{askSet("a"), "OK"}, {askForce(""), "1"}, {raw("TYPE", "k"), "none"}, {askForce(""), "0"}},
	"force one holder":                       {{askSet("a@me"), "OK"}, {askForce("b"), "a@me"}, {askForce("a"), "1"}},
	"force what is no lock":                  {{raw("RPUSH", "k", "x"), ""}, {askForce(""), "1"}, {raw("TYPE", "k"), "none"}},
	"a mark where there is none": {
		{askMark("", "m", 0, true), "[m ~ first run repl 0 0 ~]"}, {raw("GET", protocol.MarkKey), "m ~ first run repl 0 0"}, {raw("PTTL", protocol.MarkKey), "-1"},
	},
	"a mark where there is another": {
		{askMark("", "m", 5, true), "[m 5 first run repl 0 0 ~]"}, {askMark("", "n", 0, true), "[m 5 first run repl 0 0 ~]"},
		{askMark("m 4 first run repl 0 0", "n", 0, false), "[m 5 first run repl 0 0 ~]"}, {raw("GET", protocol.MarkKey), "m 5 first run repl 0 0"},
	},
	"a mark over the one that was read": {
		{askMark("", "m", 5, true), "[m 5 first run repl 0 0 ~]"}, {askMark("m 5 first run repl 0 0", "n", 0, false), "[n ~ later run repl 0 0 ~]"},
		{raw("GET", protocol.MarkKey), "n ~ later run repl 0 0"},
	},
	"a mark that is given another date": {
		{askMark("", "m", 5, true), "[m 5 first run repl 0 0 ~]"}, {askMark("m 5 first run repl 0 0", "m", 7, true), "[m 7 first run repl 0 0 ~]"},
	},
	"a mark over another that is gone": {{askMark("m 5 first run repl 0 0", "n", 0, false), "[ ~]"}, {raw("TYPE", protocol.MarkKey), "none"}},
	"a mark under a key that holds something else": {
		{raw("RPUSH", protocol.MarkKey, "x"), ""}, {askMark("", "m", 0, true), "error WRONGTYPE"}, {raw("TYPE", protocol.MarkKey), "list"},
	},
	"several share a lock, and the last one frees it": {
		{askShare("a1", 0, contractTTL), "1"}, {askShare("a2", 0, contractTTL), "1"}, {raw("GET", "k"), fakenode.Marker}, {raw("ZRANGE", holdersOfK, 0, -1), "[a1 a2]"},
		{askShareRelease("a1", lineOfK), "1"}, {raw("GET", "k"), fakenode.Marker}, {askShareRelease("a2", lineOfK), "1"}, {raw("TYPE", "k"), "none"}, {raw("TYPE", holdersOfK), "none"},
	},
	"who wants it alone is refused while others share it, and the other way round": {
		{askShare("a1", 0, contractTTL), "1"}, {askSet("b"), "<nil>"}, {askClaim("p", "c"), "<nil>"}, {askFence("c", 1, ""), "<nil>"}, {askShareRelease("a1", ""), "1"},
		{askSet("b"), "OK"}, {askShare("a1", 0, contractTTL), "<nil>"}, {raw("TYPE", holdersOfK), "none"},
	},
	"a claim that comes twice is one holder, and keeps its number": {
		{askShare("0", 3, contractTTL), "2"}, {askShare("0", 3, contractTTL), "2"}, {askShare("0", 0, contractTTL), "2"}, {raw("ZRANGE", holdersOfK, 0, -1), "[0]"},
	},
	"a claim is no extend that shortens": {
		{askShare("0", 0, time.Hour), "1"}, {askShare("0", 0, time.Minute), "1"}, {raw("PTTL", "k"), "more than 3000000"},
	},
	"permits have numbers, from the one on that the token names": {
		{askShare("00000001", 3, contractTTL), "3"}, {askShare("00000001x", 3, contractTTL), "4"}, {askShare("1", 3, contractTTL), "2"}, {askShare("4", 3, contractTTL), "<nil>"},
		{askShare("4", 4, contractTTL), "5"}, {askShareRelease("00000001x", ""), "1"}, {askShare("5", 4, contractTTL), "4"}, {askShare("6", 2, contractTTL), "<nil>"},
	},
	"those who share without a limit take room, and no number": {
		{askShare("a", 0, contractTTL), "1"}, {askShare("0", 2, contractTTL), "2"}, {askShare("1", 2, contractTTL), "<nil>"}, {askShare("b", 0, contractTTL), "1"},
	},
	"the number that is wanted, and no other": {
		{askShare("0", -3, contractTTL), "4"}, {askShare("1", -3, contractTTL), "<nil>"}, {askShare("1", -2, contractTTL), "3"}, {askShare("1", -1, contractTTL), "3"},
	},
	"the marker lasts as long as the longest lease": {
		{askShare("a1", 0, time.Hour), "1"}, {askShare("a2", 0, contractTTL), "1"}, {raw("PTTL", "k"), "more than 3000000"}, {raw("PTTL", holdersOfK), "more than 3000000"},
		{askShareRelease("a1", ""), "1"}, {raw("PTTL", "k"), "less than 61000"}, {raw("PTTL", holdersOfK), "less than 61000"}, {raw("PTTL", "k"), "more than 30000"},
	},
	"who shares extends": {
		{askShare("a1", 0, contractTTL), "1"}, {askShareExtend("a1", 0, time.Hour), "1"}, {raw("PTTL", "k"), "more than 3000000"},
		{askShareExtend("a1", 0, time.Minute), "1"}, {raw("PTTL", "k"), "more than 3000000"}, {raw("PTTL", holdersOfK), "more than 3000000"},
	},
	"who is not listed extends nothing": {
		{askShareExtend("a1", 0, time.Hour), "0"}, {raw("TYPE", "k"), "none"}, {askShare("a2", 0, contractTTL), "1"}, {askShareExtend("a1", 0, time.Hour), "0"},
		{raw("PTTL", "k"), "less than 61000"}, {raw("ZRANGE", holdersOfK, 0, -1), "[a2]"},
	},
	"who shares nothing extends no lock that is held alone": {{askSet("b"), "OK"}, {askShareExtend("a1", 0, time.Hour), "b"}, {raw("PTTL", "k"), "less than 61000"}},
	"a permit is given its number, and that is no vote": {
		{askShare("0", 3, contractTTL), "2"}, {askShareExtend("0", 3, time.Hour), "0"}, {askInspect(9), "[string redlock:shared ~ 0 [] [0 ~ 3]]"}, {raw("PTTL", "k"), "more than 3000000"},
		{askShareExtend("0", 3, time.Hour), "1"},
	},
	"a permit whose number another has is struck": {
		{askShare("0", 3, contractTTL), "2"}, {askShare("1", 3, contractTTL), "3"}, {askShareExtend("0", 2, time.Hour), "0"}, {raw("ZRANGE", holdersOfK, 0, -1), "[1]"},
		{raw("PTTL", "k"), "less than 61000"}, {askShareExtend("0", 2, time.Hour), "0"}, {raw("ZRANGE", holdersOfK, 0, -1), "[1]"},
	},
	"what others have under the list's name stops a queue whose first shares": {
		{askSet("a"), "OK"}, {askJoin("p", "f", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {raw("RPUSH", holdersOfK, "x"), ""}, {askPlainLineRelease("a"), "3"}, {raw("TYPE", "k"), "none"},
		{askJoin("q", "b", "", 0, 0), "error WRONGTYPE"}, {askJoin("q", "b", "", 0, 0), "error WRONGTYPE"}, {raw("TYPE", "k"), "none"}, {told(), "[]"},
	},
	"a release beside a sorted set of others tells of no waiter": {
		{raw("ZADD", lineOfK, 7, "theirs"), ""}, {askSet("a"), "OK"}, {askPlainLineRelease("a"), "1"}, {raw("TYPE", "k"), "none"}, {told(), "[]"},
	},
	"release of a share that is reserved for it alone":    {{askSet("a1"), "OK"}, {askShareRelease("a1", ""), "1"}, {raw("TYPE", "k"), "none"}},
	"release of a share that is not there":                {{askShareRelease("a1", ""), "0"}, {askShare("a2", 0, contractTTL), "1"}, {askShareRelease("a1", ""), fakenode.Marker}, {askShareRelease("a2", ""), "1"}, {askSet("b"), "OK"}, {askShareRelease("a1", ""), "b"}},
	"release of a share twice":                            {{askShare("a1", 0, contractTTL), "1"}, {askShare("a2", 0, contractTTL), "1"}, {askShareRelease("a1", ""), "1"}, {askShareRelease("a1", ""), fakenode.Marker}, {raw("ZRANGE", holdersOfK, 0, -1), "[a2]"}},
	"sharing a key that holds something else":             {{raw("RPUSH", "k", "x"), ""}, {askShare("a1", 0, contractTTL), "error WRONGTYPE"}, {askShareExtend("a1", 0, contractTTL), "error WRONGTYPE"}, {askShareRelease("a1", ""), "error WRONGTYPE"}},
	"a marker without a list: whoever comes is the first": {{raw("SET", "k", fakenode.Marker), ""}, {askSet("b"), "<nil>"}, {askShare("a1", 0, contractTTL), "1"}, {raw("PTTL", "k"), "less than 61000"}, {askShareRelease("a1", ""), "1"}, {raw("TYPE", "k"), "none"}},
	"a marker without a list: nobody extends or releases": {{raw("SET", "k", fakenode.Marker), ""}, {askShareExtend("a1", 0, contractTTL), "0"}, {raw("TYPE", "k"), "none"}, {raw("SET", "k", fakenode.Marker), ""}, {askShareRelease("a1", ""), "0"}, {raw("TYPE", "k"), "none"}},
	"a list without the marker means nothing": {
		{askShare("a1", 0, contractTTL), "1"}, {raw("DEL", "k"), ""}, {askShareExtend("a1", 0, contractTTL), "0"}, {askShareRelease("a1", ""), "0"}, {askShare("a2", 0, contractTTL), "1"},
		{raw("ZRANGE", holdersOfK, 0, -1), "[a2]"}, {raw("DEL", "k"), ""}, {askSet("b"), "OK"}, {askShareExtend("a2", 0, contractTTL), "b"}, {askRelease("b"), "1"},
		{askShare("a3", 1, contractTTL), "~"}, {raw("ZRANGE", holdersOfK, 0, -1), "[a3]"},
	},
	"the door keeps newcomers out, and nobody who is listed": {
		{askShare("a1", 0, contractTTL), "1"}, {askDoor("w"), "OK"}, {askDoor("w"), "OK"}, {raw("PTTL", doorOfK), "more than 30000"}, {askShare("a2", 0, contractTTL), "<nil>"},
		{askShare("a1", 0, contractTTL), "1"}, {askShareExtend("a1", 0, contractTTL), "1"}, {askOpenDoor("v"), "0d@w"}, {askShare("a2", 0, contractTTL), "<nil>"},
		{askOpenDoor("w"), "1"}, {askOpenDoor("w"), "0"}, {askShare("a2", 0, contractTTL), "1"},
	},
	"the last who shares reserves the lock for the first in line": {
		{askShare("a1", 0, contractTTL), "1"}, {askShare("a2", 0, contractTTL), "1"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 redlock:shared]"},
		{askShareRelease("a1", lineOfK), "3"}, {raw("GET", "k"), fakenode.Marker}, {askShareRelease("a1", lineOfK), fakenode.Marker}, {askShareRelease("a2", lineOfK), "3"}, {raw("GET", "k"), "b"},
		{askShareRelease("a2", lineOfK), "4"}, {askShareLeave("a2", lineOfK, "", protocol.AsWaiter), "b"}, {told(), "[redlock:p b redlock:p b]"},
	},
	"the last who shares, on a node whose line is not served": {
		{askShare("a1", 0, contractTTL), "1"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 redlock:shared]"}, {askShareLeave("a1", lineOfK, "", protocol.AsPasser), "3"}, {raw("TYPE", "k"), "none"},
		{told(), "[redlock:p b]"},
	},
	"one who wants it alone hears of those of its process who have it reserved with others": {
		{askSet("a"), "OK"}, {askJoin("q", "f1", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {askJoin("p", "b", "", 0, 0), "[0 1 ~ ~ 1 0 a]"}, {askJoin("p", "f", "", 0, 0), "[0 2 ~ ~ 1 0 a]"},
		{askPlainLineRelease("a"), "3"}, {askJoin("p", "b", "", 0, 0), "[0 1 ~ ~ 0 0 redlock:shared 0 f]"}, {askJoin("q", "d", "", 0, 0), "[0 3 ~ ~ 1 0 redlock:shared]"},
	},
	"who wants to share comes in past one who wants it alone when the lock was free, and not later": {
		{askSet("a"), "OK"}, {askJoin("p", "f", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {time.Millisecond, ""}, {askJoin("q", "c", "", 0, 0), "[0 1 ~ ~ 1 0 a]"}, {time.Millisecond, ""},
		{askJoin("p", "f1", "", 0, 0), "[0 2 ~ ~ 1 0 a]"}, {askPlainLineRelease("a"), "3"}, {raw("ZRANGE", holdersOfK, 0, -1), "[f f1]"},
		{time.Millisecond, ""}, {askJoin("p", "f2", "", 0, 0), "[0 3 ~ ~ 1 0 redlock:shared]"},
		{askShareLeave("f", lineOfK, entryOf("p", "f"), protocol.AsHolder), "3"}, {raw("ZRANGE", holdersOfK, 0, -1), "[f1]"},
	},
	"a process is silent from the first of its waiters on that had its turn": {
		{askShare("0", 2, contractTTL), "2"}, {askShare("1", 2, contractTTL), "3"}, {askJoin("p", "9", "", 0, 0), "[0 0 ~ ~ 1 0 redlock:shared]"}, {time.Millisecond, ""},
		{askJoin("p", "91", "", 0, 0), "[0 1 ~ ~ 1 0 redlock:shared]"}, {askShareRelease("0", lineOfK), "3"}, {time.Millisecond, ""}, {askShareRelease("1", lineOfK), "3"},
		{raw("ZRANGE", lineOfK, 0, -1), "[woken p 30000s2 91 woken p 30000s2 9 silent p told p 30000s2 9 p 30000s2 91]"},
	},
	"inspect of a lock that several share": {
		{askShare("a1", 0, contractTTL), "1"}, {askShare("1", 4, contractTTL), "3"}, {askInspect(9), "[string redlock:shared ~ 0 [] [a1 ~ 0 1 ~ 2]]"}, {askInspect(1), "[string redlock:shared ~ 0 [] [a1 ~ 0]]"},
		{raw("DEL", holdersOfK), ""}, {askInspect(9), "[string redlock:shared ~ 0 [] []]"},
	},
	"force one of those who share": {
		{askShare("a1@me", 0, contractTTL), "1"}, {askShare("a2@me", 0, time.Hour), "1"}, {askForce("b"), fakenode.Marker}, {askForce("a2"), "1"}, {raw("PTTL", "k"), "less than 61000"},
		{raw("ZRANGE", holdersOfK, 0, -1), "[a1@me]"}, {askForce("a1"), "1"}, {raw("TYPE", "k"), "none"}, {raw("TYPE", holdersOfK), "none"},
	},
	"force all who share": {
		{askShare("a1", 0, contractTTL), "1"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 redlock:shared]"}, {askForce(""), "1"}, {raw("GET", "k"), "b"}, {askShareExtend("a1", 0, contractTTL), "b"},
	},
	"force the last of those who share serves the line": {
		{askShare("a1", 0, contractTTL), "1"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 redlock:shared]"}, {askForce("a1"), "1"}, {raw("GET", "k"), "b"}, {told(), "[redlock:p b]"},
	},
	"force of one who is not there, when a lease is over": {
		{askShare("a1", 0, contractTTL), "1"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 redlock:shared]"}, {raw("ZADD", holdersOfK, 1, "a1"), ""},
		{askForce("c"), "0"}, {raw("GET", "k"), "b"}, {told(), "[redlock:p b]"},
	},
	"force one who has a reservation": {
		{askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {askJoin("q", "c", "", 0, 0), "[0 1 ~ ~ 1 0 a]"}, {askForce("a"), "1"}, {raw("GET", "k"), "b"},
		{askForce("b"), "1"}, {raw("GET", "k"), "c"}, {askForce(""), "1"}, {raw("TYPE", "k"), "none"}, {raw("TYPE", lineOfK), "none"},
	},
	"force serves the line": {{askSet("a"), "OK"}, {askJoin("p", "b", "", 0, 0), "[0 0 ~ ~ 1 0 a]"}, {askForce("a"), "1"}, {raw("GET", "k"), "b"}, {told(), "[redlock:p b]"}},
}

func raw(args ...any) []any { return args }

type toldQuestion struct{}

func told() any { return toldQuestion{} }

func TestContract(t *testing.T) {
	t.Parallel()
	for server, start := range contractNodes {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			for name, steps := range contractCases {
				for _, key := range []string{"k", lineOfK, fenceOfK, protocol.MarkKey, holdersOfK, doorOfK, "k2", "k3", "k4", "k5"} {
					n.raw("DEL", key)
				}
				before := len(n.told())
				for i, s := range steps {
					var got any
					switch ask := s.ask.(type) {
					case *protocol.Request:
						a := n.do(ask)
						if got = a.val; a.err != nil {
							got = "error " + a.err.Error()
						}
					case []any:
						if got = n.raw(ask...); s.want == "" {
							continue
						}
					case time.Duration:
						if n.pass != nil { // where time does not pass by itself
							n.pass(ask)
						}
						continue
					case toldQuestion:
						all := n.told()
						if server == "in memory" {
							all = all[before:]
						}
						got = all
					}
					assert.True(t, answers(s.want, got), "%s, step %d: got %v, want %s", name, i, got, s.want)
				}
			}
		})
	}
}

// answers compares an answer with what is wanted, word by word.
func answers(want string, got any) bool {
	var n int64
	if _, err := fmt.Sscanf(want, "more than %d", &n); err == nil {
		v, ok := got.(int64)
		return ok && v > n
	}
	if _, err := fmt.Sscanf(want, "less than %d", &n); err == nil {
		v, ok := got.(int64)
		return ok && v < n
	}
	text := fmt.Sprint(got)
	if e, ok := strings.CutPrefix(want, "error "); ok {
		return strings.HasPrefix(text, "error ") && strings.Contains(text, e)
	}
	words, wanted := strings.Split(text, " "), strings.Split(want, " ")
	return slices.EqualFunc(words, wanted, func(w, want string) bool {
		word := strings.TrimRight(w, "]")
		return w == want || strings.TrimRight(want, "]") == "~" && strings.Trim(word, "0123456789") == "" && word != ""
	})
}

func TestContractExpiry(t *testing.T) {
	t.Parallel()
	for server, start := range contractNodes {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			short := contractTerms(50 * time.Millisecond)
			set := protocol.SetRequest(protocol.OpAcquire, short, "k", "a")
			began := time.Now()
			require.Equal(t, "OK", n.do(&set).val)
			gone := func() bool { return n.raw("TYPE", "k") == "none" }
			if n.pass == nil {
				require.Eventually(t, gone, 10*time.Second, time.Millisecond)
				require.GreaterOrEqual(t, time.Since(began), 50*time.Millisecond, "gone before its time")
			} else {
				n.pass(49 * time.Millisecond)
				require.False(t, gone())
				n.pass(2 * time.Millisecond)
				require.True(t, gone())
			}
			assert.Equal(t, int64(0), n.do(askRelease("a")).val)
			assert.Equal(t, int64(0), n.do(askExtend("a", time.Minute)).val)
			assert.Equal(t, "OK", n.do(askSet("b")).val)
		})
	}
}

// When the turn of a waiter passes, and nothing was heard since of its process, all waiters of that process go, and
// those of all others that died with it.
func TestContractDeadProcess(t *testing.T) {
	t.Parallel()
	for server, start := range contractNodes {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			terms := contractTerms(contractTTL)
			join := func(process, value string) any {
				entry := fmt.Sprint(process, " ", terms.Reservation().Milliseconds(), " ", value)
				val, _ := n.do(protocol.JoinRequest(terms, "k", value, &protocol.QueueArgs{Key: lineOfK, Entry: entry})).val.([]any)
				require.Len(t, val, 7)
				return val[0]
			}
			require.Equal(t, "OK", n.do(askSet("a")).val)
			require.Equal(t, int64(0), join("p", "b"))
			require.Equal(t, int64(0), join("p", "c"))
			for i := range 200 {
				require.Equal(t, int64(0), join(fmt.Sprint("p", i), fmt.Sprint("b", i)))
			}
			require.Equal(t, int64(0), join("q", "d"))
			n.do(askLineRelease("a", "", protocol.AsHolder))
			require.Equal(t, "b", n.raw("GET", "k"))
			if n.pass == nil {
				require.Eventually(t, func() bool { return n.raw("TYPE", "k") == "none" }, 10*time.Second, time.Millisecond)
			} else {
				n.pass(terms.Reservation() + time.Millisecond)
			}
			assert.Equal(t, int64(1), join("q", "d"), "it is the turn of the one that lives")
			assert.Equal(t, "d", n.raw("GET", "k"))
		})
	}
}

// TestContractAgrees asks the servers the same at random, line included, and wants the same
// answers. Time passes by hand, so a real server is not among them.
func TestContractAgrees(t *testing.T) {
	t.Parallel()
	seeds := uint64(40)
	if longtest.On() {
		seeds = 200
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 11))
		nodes := []*contractNode{inMemory(t), miniRedis(t)}
		values := []string{"a", "b", "c", "d", "e"}
		process := map[string]string{"a": "p", "b": "p", "c": "q", "d": "q", "e": "p", "f": "p", "f1": "q", "9": "p", "91": "q", "8": "q"}
		if seed%4 != 0 {
			values = append(values, "f", "f1", "9", "91", "8")
		}
		arrivals := make(map[string]int64)
		for step := range 200 {
			v := values[r.IntN(len(values))]
			other := values[r.IntN(len(values))]
			p := process[v]
			entry := entryOf(p, v)
			var req *protocol.Request
			what := r.IntN(25)
			sharedTTL := time.Duration(1+r.IntN(100)) * time.Second
			limit := []int64{0, 0, 2, 3, -1, -2}[r.IntN(6)]
			switch what {
			case 0:
				req = askSet(v)
			case 1:
				req = askRelease(v)
			case 2:
				req = askExtend(v, time.Duration(1+r.IntN(100))*time.Second)
			case 3, 4, 5:
				ended := ""
				if r.IntN(3) == 0 && process[other] == p && other != v {
					ended = other
				}
				req = askJoin(p, v, ended, arrivals[v]*r.Int64N(2), time.Duration(r.IntN(2)*r.IntN(1000))*time.Millisecond)
			case 6, 7:
				if req = askClaim(p, v); modesOf[v] != "" {
					s := shareOfK
					s.Limit = limit
					req = protocol.SharedClaimRequest(protocol.OpAcquireShared, contractTerms(sharedTTL), "k", v, &s, &protocol.QueueArgs{Key: []string{"", lineOfK}[r.IntN(2)], Entry: entry})
				}
			case 8, 9:
				req = askPlainLineRelease(v)
			case 10:
				req = askLineRelease(v, entry, protocol.Releaser(r.IntN(3)))
			case 11:
				req = askFence(v, uint64(fakenode.Epoch/1000)+uint64(r.IntN(1e7)), []string{"", entry}[r.IntN(2)])
			case 12:
				req = askRaise(v, uint64(fakenode.Epoch/1000)+uint64(r.IntN(1e7)))
			case 13:
				req = askFenceRepair(v, uint64(fakenode.Epoch/1000))
			case 14:
				req = askInspect(2)
				if r.IntN(10) == 0 {
					req = askForce("")
				}
			case 24:
				req = askAdopt(v, other)
				if r.IntN(2) == 0 {
					req = askAdoptFenced(v, other, uint64(fakenode.Epoch/1000)+uint64(r.IntN(1e7)))
				}
			case 15:
				d := time.Duration(r.IntN([]int{10, 2000, 70_000}[r.IntN(3)])) * time.Millisecond
				for _, n := range nodes {
					n.pass(d)
				}
				continue
			case 16, 17, 18, 19:
				req = askShare(v, limit, sharedTTL)
			case 20:
				req = askShareExtend(v, max(0, -limit), sharedTTL)
			case 21, 22:
				req = askShareLeave(v, []string{"", lineOfK}[r.IntN(2)], []string{"", entry}[r.IntN(2)], protocol.Releaser(r.IntN(3)))
			case 23:
				req = []*protocol.Request{askDoor(v), askOpenDoor(v), askOpenDoor(v), askForce(v)}[r.IntN(4)]
			}
			want, got := nodes[1].do(req), nodes[0].do(req)
			if (want.err != nil) != (got.err != nil) || fmt.Sprint(want.val) != fmt.Sprint(got.val) {
				t.Fatalf("seed %d, step %d: %v: in memory %v %v, miniredis %v %v", seed, step, req.Values(), got.val, got.err, want.val, want.err)
			}
			if a, ok := readPlace(got.val); ok && req.Op == protocol.OpJoin {
				arrivals[v] = a.arrival
			}
			for _, look := range [][]any{{"TYPE", "k"}, {"PTTL", "k"}, {"TYPE", lineOfK}, {"PTTL", lineOfK}, {"PTTL", fenceOfK}, {"PTTL", holdersOfK}} {
				require.Equal(t, nodes[1].raw(look...), nodes[0].raw(look...), "seed %d, step %d: %v after %v", seed, step, look, req.Values())
			}
			for _, set := range []string{lineOfK, holdersOfK} {
				if nodes[1].raw("TYPE", set) == "zset" {
					look := raw("ZRANGE", set, 0, -1)
					require.Equal(t, nodes[1].raw(look...), nodes[0].raw(look...), "seed %d, step %d: %v after %v", seed, step, look, req.Values())
				}
			}
		}
		require.Equal(t, nodes[1].told(), nodes[0].told(), "seed %d: what was published", seed)
	}
}
