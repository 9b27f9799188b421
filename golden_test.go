package redlock

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/fakenode"
	"github.com/quorumlock/redlock/internal/protocol"
)

// Golden files are commands and what they print, so that rules can be read without
// reading Go:
//
//	# A comment.
//	verdict n=3 granted granted
//	----
//	granted
//
// A case has one or more commands and ends with an empty line. What another way to
// compute the same does not agree with is printed, too, as MISMATCH: such a line never
// belongs into a file.
//
//	go test -run TestGolden .            compares
//	go test -run TestGolden . -rewrite   writes what is printed into the files: read the diff
var rewrite = flag.Bool("rewrite", false, "write what golden tests print into their files")

// goldenCommand is a line of a golden file, as in "saw 0 run=a".
type goldenCommand struct {
	t      *testing.T
	name   string
	args   []string          // without "="
	values map[string]string // the others
}

// golden runs the commands of a file in testdata and compares what they print.
func golden(t *testing.T, file string, run func(c goldenCommand) string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var cases []string
	total := 0
	for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		commands, want, _ := strings.Cut(block, "\n----")
		got, ran := runGolden(t, commands, run)
		if !ran {
			cases = append(cases, block) // a comment
			continue
		}
		total++
		cases = append(cases, commands+"\n----"+got)
		if got != want && !*rewrite || strings.Contains(got, "MISMATCH") {
			t.Errorf("%s:\n%s\n---- want%s\n---- got%s", path, commands, want, got)
		}
	}
	require.NotZero(t, total, "%s has no case", path)
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(strings.Join(cases, "\n\n")+"\n"), 0o644))
	}
}

// runGolden is what the commands of a case print, each on lines of its own.
func runGolden(t *testing.T, commands string, run func(c goldenCommand) string) (printed string, ran bool) {
	for line := range strings.SplitSeq(commands, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		ran = true
		if p := strings.TrimRight(run(parseGolden(t, line)), "\n"); p != "" {
			printed += "\n" + p
		}
	}
	return printed, ran
}

func parseGolden(t *testing.T, line string) goldenCommand {
	words := strings.Fields(line)
	c := goldenCommand{t: t, name: words[0], values: make(map[string]string)}
	for _, w := range words[1:] {
		if name, value, ok := strings.Cut(w, "="); ok {
			c.values[name] = value
		} else {
			c.args = append(c.args, w)
		}
	}
	return c
}

func (c goldenCommand) unknown() string {
	c.t.Fatalf("golden: there is no such command as %q %v", c.name, c.args)
	return ""
}

// number is the value of a name, which must be given.
func (c goldenCommand) number(name string) int {
	n, err := strconv.Atoi(c.values[name])
	require.NoError(c.t, err, "golden: %s of %s", name, c.name)
	return n
}

// duration is the value of a name, or otherwise.
func (c goldenCommand) duration(name string, otherwise time.Duration) time.Duration {
	if c.values[name] == "" {
		return otherwise
	}
	return c.parse(c.values[name])
}

func (c goldenCommand) parse(s string) time.Duration {
	d, err := time.ParseDuration(s)
	require.NoError(c.t, err, "golden: %s", c.name)
	return d
}

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
func (c goldenCommand) share() *protocol.ShareArgs {
	s := shareOfK
	mode := strings.TrimPrefix(c.values["mode"], "s")
	if n := c.values["number"]; n != "" {
		mode = "-" + n
	}
	s.Limit = fakenode.Number(mode)
	return &s
}

// request is what the library would send.
func (q *goldenQueue) request(c goldenCommand) *protocol.Request {
	const grace = 2 * time.Second
	who := append(c.args, "")[0]
	_, value, waited := strings.Cut(who, "/")
	if !waited {
		value, who = who, ""
	}
	terms := contractTerms(c.duration("ttl", 10*time.Second))
	switch c.name {
	case "set":
		r := protocol.SetRequest(protocol.OpAcquire, terms, "k", value)
		return &r
	case "join":
		entry := q.entry(who, c.values["mode"], c.duration("grace", grace))
		arrival := int64(0)
		if at := c.values["arrival"]; at != "" {
			arrival = fakenode.Epoch/1000 + c.parse(at).Microseconds()
		}
		return protocol.JoinRequest(terms, "k", value, &protocol.QueueArgs{
			Key: lineOfK, Entry: entry, Ended: q.entry(c.values["after"], c.values["mode"], grace), Arrival: arrival, Waited: c.duration("waited", 0).Microseconds(),
		})
	case "claim":
		if c.values["mode"] != "" {
			return protocol.SharedClaimRequest(protocol.OpAcquireShared, terms, "k", value, c.share(), &protocol.QueueArgs{Key: lineOfK, Entry: q.entry(who, "", grace)})
		}
		return protocol.ClaimRequest(terms, "k", value, lineOfK, q.entry(who, "", grace))
	case "share":
		return protocol.SharedClaimRequest(protocol.OpAcquireShared, terms, "k", value, c.share(), nil)
	case "door":
		return protocol.DoorRequest(terms, doorOfK, doorValue(value), grace)
	case "release", "takeback", "pass":
		as := map[string]protocol.Releaser{"release": protocol.AsHolder, "takeback": protocol.AsWaiter, "pass": protocol.AsPasser}[c.name]
		args := &protocol.QueueArgs{Key: lineOfK, Entry: q.entry(who, c.values["mode"], grace), As: as}
		r := protocol.QueueReleaseRequest(terms, "k", value, args)
		if c.values["mode"] != "" {
			r = protocol.SharedReleaseRequest(terms, "k", value, &shareOfK, args)
		}
		return &r
	case "force":
		return protocol.ForceRequest(terms, "k", value, lineOfK, "")
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
		if command == "share" || command == "claim" {
			return fmt.Sprintf("granted, permit %d\n", v-1)
		}
		return []string{"there was nothing to release\n", "released\n", "released, and the next was not told\n", "released, and somebody waits\n",
			"there was nothing to release: it is reserved for somebody who waits\n"}[v]
	case []any:
		got, ok := readAnswer(v)
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
	found, _ := protocol.ReadInspection(n.do(protocol.InspectRequest(contractTerms(time.Second), "k", "", "", mostWaiters)).val)
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

func TestGoldenQuorum(t *testing.T) {
	golden(t, "quorum.txt", func(c goldenCommand) string {
		switch c.name {
		case "majority": // n
			tally := newTally(c.number("n"))
			return fmt.Sprintf("n=%d: quorum %d, ruled out by %d refusals", tally.n, tally.need, blocking(int(tally.n)))
		case "verdict": // n, votes in the order of nodes; the rest is pending
			return goldenVerdict(c.votes())
		case "votes": // the same, and the verdict after each vote
			var b strings.Builder
			votes := c.votes()
			for i := range c.args {
				soFar := append([]Vote(nil), votes...)
				for j := i + 1; j < len(votes); j++ {
					soFar[j] = VotePending
				}
				fmt.Fprintf(&b, "%-8v %s\n", votes[i], goldenVerdict(soFar))
			}
			return b.String()
		case "table": // n, rest: the verdict for each number of grants and refusals
			return c.table(c.number("n"), c.vote(c.values["rest"]))
		default:
			return c.unknown()
		}
	})
}

func (c goldenCommand) vote(name string) Vote {
	for v := VotePending; v < voteEnd; v++ {
		if v.String() == name {
			return v
		}
	}
	c.t.Fatalf("golden: there is no such vote as %q", name)
	return 0
}

func (c goldenCommand) votes() []Vote {
	votes := make([]Vote, c.number("n"))
	for i := range votes {
		if votes[i] = VotePending; i < len(c.args) {
			votes[i] = c.vote(c.args[i])
		}
	}
	return votes
}

func (c goldenCommand) table(n int, rest Vote) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	for refused := range n + 1 {
		fmt.Fprintf(w, "\t%d refused", refused)
	}
	for grants := range n + 1 {
		fmt.Fprintf(w, "\n%d granted", grants)
		for refused := range n + 1 - grants {
			votes := make([]Vote, n)
			for i := range votes {
				switch {
				case i < grants:
					votes[i] = VoteGranted
				case i < grants+refused:
					votes[i] = VoteRefused
				default:
					votes[i] = rest
				}
			}
			fmt.Fprint(w, "\t", goldenVerdict(votes))
		}
	}
	_ = w.Flush()
	return b.String()
}

// goldenVerdict is the verdict on votes, computed by a naive twin, too, and for nodes in
// other orders.
func goldenVerdict(votes []Vote) string {
	order := make([]int, len(votes))
	for i := range order {
		order[i] = i
	}
	t := count(votes, order)
	text := t.verdict().String()
	if twin := naive(append([]Vote(nil), votes...)); twin != t.verdict() {
		text += fmt.Sprint(" MISMATCH twin: ", twin)
	}
	for range votes {
		order = append(order[1:], order[0])
		if turned := count(votes, order); turned.verdict() != t.verdict() {
			text += fmt.Sprint(" MISMATCH nodes in order ", order, ": ", turned.verdict())
		}
	}
	return text
}

// Queues that began at the same moment: all processes must agree which of them to go to.
func TestOfTwoQueuesOneHasWaitedLonger(t *testing.T) {
	queue := func(waited time.Duration, process string) *inspection {
		return &inspection{waiters: []Waiter{{Waited: waited, process: process}}}
	}
	empty := &inspection{}
	for _, c := range []struct {
		first, second *inspection
	}{
		{queue(2, "b"), queue(1, "a")},
		{queue(1, "a"), queue(1, "b")},
		{queue(1, "a"), empty},
	} {
		assert.True(t, c.first.waitedLonger(c.second))
		assert.False(t, c.second.waitedLonger(c.first))
	}
	assert.False(t, empty.waitedLonger(empty))
}
