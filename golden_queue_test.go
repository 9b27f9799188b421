package redlock

import (
	"fmt"
	"strings"
	"testing"
	"time"
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

// entry is that of a waiter as the library writes it.
func (q *goldenQueue) entry(name string, grace time.Duration) string {
	if e, ok := q.entries[name]; ok {
		return e
	}
	process, value, _ := strings.Cut(name, "/")
	q.entries[name] = fmt.Sprintf("%s %d %s", process, grace.Milliseconds(), value)
	return q.entries[name]
}

// request is what the library would send.
func (q *goldenQueue) request(c goldenCommand) *request {
	const grace = 2 * time.Second
	who := append(c.args, "")[0]
	_, value, waited := strings.Cut(who, "/")
	if !waited {
		value, who = who, ""
	}
	terms := contractTerms(c.duration("ttl", 10*time.Second))
	switch c.name {
	case "set":
		r := setRequest(opAcquire, terms, "k", value)
		return &r
	case "join":
		entry := q.entry(who, c.duration("grace", grace))
		arrival := int64(0)
		if at := c.values["arrival"]; at != "" {
			arrival = simEpoch/1000 + c.parse(at).Microseconds()
		}
		return joinRequest(terms, "k", value, &queueArgs{
			key: lineOfK, entry: entry, ended: q.entry(c.values["after"], grace), arrival: arrival, waited: c.duration("waited", 0).Microseconds(),
		})
	case "claim":
		return claimRequest(terms, "k", value, lineOfK, q.entry(who, grace))
	case "release", "takeback", "pass":
		as := map[string]releaser{"release": asHolder, "takeback": asWaiter, "pass": asPasser}[c.name]
		r := queueReleaseRequest(terms, "k", value, &queueArgs{key: lineOfK, entry: q.entry(who, grace), as: as})
		return &r
	case "force":
		return forceRequest(terms, "k", value, lineOfK, "")
	default:
		c.unknown()
		return nil
	}
}

func TestGoldenQueue(t *testing.T) {
	var q *goldenQueue
	golden(t, "queue.txt", func(c goldenCommand) string {
		switch c.name {
		case "node": // a new one
			q = newGoldenQueue(t)
			return ""
		case "advance": // time passes
			q.twin.pass(c.parse(c.args[0]))
			q.redis.pass(c.parse(c.args[0]))
			return ""
		case "look":
			return q.both(func(n *contractNode) string { return goldenLook(n) })
		default:
			r := q.request(c)
			return q.both(func(n *contractNode) string { return goldenAnswer(c.name, n.do(r)) + goldenLook(n) + q.notices(n) })
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
func goldenAnswer(command string, a simAnswer) string {
	if a.err != nil {
		return fmt.Sprintln("error", a.err)
	}
	switch v := a.val.(type) {
	case nil:
		return "refused\n"
	case int64:
		return []string{"there was nothing to release\n", "released\n", "released, and the next was not told\n", "released, and somebody waits\n",
			"there was nothing to release: it is reserved for somebody who waits\n"}[v]
	case []any:
		got, ok := readAnswer(v)
		if !ok {
			break
		}
		text := fmt.Sprintf("%d ahead, arrived at %v", got.ahead, time.Duration(got.arrival*1000-simEpoch))
		if !got.fresh {
			text += ", was in the queue"
		}
		if got.ours {
			text += "; the lock is reserved for it"
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
		default:
			process, _, value := entryParts(member)
			name := process + "/" + value
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
