package contract_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
	"github.com/quorumlock/redlock/internal/testing/golden"
)

// goldenQueue is a node that keeps a wait queue, twice: the Go twins of the scripts, whose
// answers are printed, and miniredis, which runs the scripts themselves. Both are in
// virtual time and have no other lock than k.
type goldenQueue struct {
	twin, redis *contractNode
	told        int               // notices of the twin that were printed
	entries     map[string]string // by name, as in p/b: value b of a waiter of process p
}

func newGoldenQueue(t *testing.T) *goldenQueue {
	return &goldenQueue{twin: inMemory(t), redis: miniRedis(t), entries: map[string]string{"": ""}}
}

// entry is that of a waiter as the library writes it, with the mode of its first command.
func (q *goldenQueue) entry(name, mode string, grace time.Duration) string {
	if e, ok := q.entries[name]; ok {
		return e
	}
	process, value, _ := strings.Cut(name, "/")
	q.entries[name] = fmt.Sprintf("%s %d%s %s", process, grace.Milliseconds(), mode, value)
	return q.entries[name]
}

// share asks for a place among those who share the lock. mode is as in an entry: s0, or s3 for
// one of three permits; number asks for that permit and no other.
func goldenShare(c golden.Command) *protocol.ShareArgs {
	s := shareOfK
	mode := strings.TrimPrefix(c.Values["mode"], "s")
	if n := c.Values["number"]; n != "" {
		mode = "-" + n
	}
	s.Limit = fakenode.Number(mode)
	return &s
}

// request is what the library would send.
func (q *goldenQueue) request(c golden.Command) *protocol.Request {
	const grace = 2 * time.Second
	who := append(c.Args, "")[0]
	_, value, waited := strings.Cut(who, "/")
	if !waited {
		value, who = who, ""
	}
	terms := contractTerms(c.Duration("ttl", 10*time.Second))
	switch c.Name {
	case "set":
		r := protocol.SetRequest(protocol.OpAcquire, terms, "k", value)
		return &r
	case "join":
		entry := q.entry(who, c.Values["mode"], c.Duration("grace", grace))
		arrival := int64(0)
		if at := c.Values["arrival"]; at != "" {
			arrival = fakenode.Epoch/1000 + c.Parse(at).Microseconds()
		}
		return protocol.JoinRequest(terms, "k", value, &protocol.QueueArgs{
			Key: lineOfK, Entry: entry, Ended: q.entry(c.Values["after"], c.Values["mode"], grace), Arrival: arrival, Waited: c.Duration("waited", 0).Microseconds(),
		})
	case "claim":
		if c.Values["mode"] != "" {
			return protocol.SharedClaimRequest(protocol.OpAcquireShared, terms, "k", value, goldenShare(c), &protocol.QueueArgs{Key: lineOfK, Entry: q.entry(who, "", grace)})
		}
		return protocol.ClaimRequest(terms, "k", value, lineOfK, q.entry(who, "", grace))
	case "share":
		return protocol.SharedClaimRequest(protocol.OpAcquireShared, terms, "k", value, goldenShare(c), nil)
	case "door":
		return protocol.DoorRequest(terms, doorOfK, doorValue(value), grace)
	case "release", "takeback", "pass":
		as := map[string]protocol.Releaser{"release": protocol.AsHolder, "takeback": protocol.AsWaiter, "pass": protocol.AsPasser}[c.Name]
		args := &protocol.QueueArgs{Key: lineOfK, Entry: q.entry(who, c.Values["mode"], grace), As: as}
		r := protocol.QueueReleaseRequest(terms, "k", value, args)
		if c.Values["mode"] != "" {
			r = protocol.SharedReleaseRequest(terms, "k", value, &shareOfK, args)
		}
		return &r
	case "force":
		return protocol.ForceRequest(terms, "k", value, lineOfK, "")
	default:
		c.Unknown()
		return nil
	}
}

func TestGoldenQueue(t *testing.T) {
	var q *goldenQueue
	golden.Run(t, "queue.txt", func(c golden.Command) string {
		switch c.Name {
		case "node": // a new one
			q = newGoldenQueue(t)
			return ""
		case "advance": // time passes
			q.twin.pass(c.Parse(c.Args[0]))
			q.redis.pass(c.Parse(c.Args[0]))
			return ""
		case "look":
			return q.both(func(n *contractNode) string { return goldenLook(n) })
		default:
			r := q.request(c)
			return q.both(func(n *contractNode) string { return goldenAnswer(c.Name, n.do(r)) + goldenLook(n) + q.notices(n) })
		}
	})
}

// both is what the twin prints, and what miniredis does if that is different.
func (q *goldenQueue) both(print func(*contractNode) string) string {
	twin, redis := print(q.twin), print(q.redis)
	if twin != redis {
		return twin + "MISMATCH miniredis:\n" + redis
	}
	return twin
}

// goldenAnswer is an answer in words.
func goldenAnswer(command string, a contractAnswer) string {
	if a.err != nil {
		return fmt.Sprintln("error", a.err)
	}
	switch v := a.val.(type) {
	case nil:
		return "refused\n"
	case int64:
		if command == "share" || command == "claim" {
			return fmt.Sprintf("granted, permit %d\n", v-1)
		}
		return []string{"there was nothing to release\n", "released\n", "released, and the next was not told\n", "released, and somebody waits\n",
			"there was nothing to release: it is reserved for somebody who waits\n"}[v]
	case []any:
		got, ok := readPlace(v)
		if !ok {
			break
		}
		text := fmt.Sprintf("%d ahead, arrived at %v", got.ahead, time.Duration(got.arrival*1000-fakenode.Epoch))
		if !got.wasAbsent {
			text += ", was in the queue"
		}
		switch {
		case got.number > 0:
			text += fmt.Sprintf("; permit %d is reserved for it", got.number)
		case got.ours:
			text += "; the lock is reserved for it"
		}
		if got.given != "" {
			text += "; its process has turns: " + got.given
		}
		return text + "\n"
	case string:
		if v == "OK" {
			return "granted\n"
		}
		return "the lock is " + v + "'s\n"
	}
	return fmt.Sprintf("%q to %s\n", fmt.Sprint(a.val), command)
}

// goldenLook is what a node has under the lock's keys.
func goldenLook(n *contractNode) string {
	lock := "free"
	if v := n.raw("GET", "k"); v != nil {
		lock = fmt.Sprintf("%v for %v", v, time.Duration(n.raw("PTTL", "k").(int64))*time.Millisecond)
	}
	for i, holder := range goldenHolders(n) {
		if lock += ", "; i == 0 {
			lock += "held by "
		}
		lock += holder
	}
	var waiting, silent []string
	woken := make(map[string]bool)
	members, _ := n.raw("ZRANGE", lineOfK, 0, -1).([]any)
	for _, m := range members {
		member := m.(string)
		mark, rest, _ := strings.Cut(member, " ")
		switch mark {
		case "woken":
			woken[rest] = true
		case "silent":
			silent = append(silent, rest)
		case "told": // the cursor: where to look next, and nothing that a waiter relies on
		default:
			process, _, value, limit := fakenode.EntryMode(member)
			name := process + "/" + value
			if limit >= 0 {
				name += fmt.Sprintf(" s%d", limit)
			}
			if woken[member] { // marks come first
				name += " (woken)"
			}
			waiting = append(waiting, name)
		}
	}
	text := fmt.Sprintf("  lock: %s\n  queue: %s\n", lock, strings.Join(waiting, ", "))
	if len(waiting) == 0 {
		text = fmt.Sprintf("  lock: %s\n  queue: empty\n", lock)
	}
	if len(silent) > 0 {
		text += fmt.Sprintf("  silent: %s\n", strings.Join(silent, ", "))
	}
	return text
}

// goldenHolders are those who share the lock, each with its permit.
func goldenHolders(n *contractNode) (all []string) {
	found, _ := protocol.ReadInspection(n.do(protocol.InspectRequest(contractTerms(time.Second), "k", "", "", 1000)).val)
	for _, h := range found.Holders {
		all = append(all, fmt.Sprintf("%s (%d) for %v", h.Value, h.Number, h.TTL))
	}
	slices.Sort(all)
	return all
}

// notices is what was published since the last command.
func (q *goldenQueue) notices(n *contractNode) string {
	told := n.told()
	if n == q.twin { // it tells all there ever were
		told, q.told = told[q.told:], len(told)
	}
	var b strings.Builder
	for _, notice := range told {
		process, value, _ := strings.Cut(strings.TrimPrefix(notice, "redlock:"), " ")
		fmt.Fprintf(&b, "  notice to %s: %s\n", process, value)
	}
	return b.String()
}
