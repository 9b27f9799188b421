package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock/admin"
)

// statusJSON is a status as --json prints it. Durations are seconds.
type statusJSON struct {
	Key string `json:"key"`
	// Held is null where nodes that do not answer may make the difference.
	Held    *bool        `json:"held"`
	Token   string       `json:"token,omitempty"`
	Owner   string       `json:"owner,omitempty"`
	Shared  bool         `json:"shared,omitempty"`
	Holders []holderJSON `json:"holders,omitempty"` // who share it
	TTL     float64      `json:"ttl_seconds"`
	Waiters []waiterJSON `json:"waiters"`
	Nodes   []nodeJSON   `json:"nodes"`
	Answers int          `json:"answers"`
	Votes   *int         `json:"votes,omitempty"` // nodes that can grant locks; left out if not known
	Quorum  int          `json:"quorum"`
	Error   string       `json:"error,omitempty"`
}

type waiterJSON struct {
	Owner  string  `json:"owner"`
	Waited float64 `json:"waited_seconds"`
}

type nodeJSON struct {
	Node    string  `json:"node"`
	Answers bool    `json:"answers"`
	Value   string  `json:"value,omitempty"`
	TTL     float64 `json:"ttl_seconds"`
	Waiting int     `json:"waiting"`
	Elapsed float64 `json:"elapsed_seconds"`
	Since   string  `json:"remembers_since,omitempty"`
	Barred  float64 `json:"barred_seconds,omitempty"` // until its grants count
	NoVote  string  `json:"no_vote,omitempty"`        // why they do not
	Error   string  `json:"error,omitempty"`
}

// picture is what can be said of a lock while some nodes say nothing.
type picture struct {
	admin.Status
	quorum int
	silent []admin.NodeStatus // do not answer
	free   int                // nodes that have nothing under the key
	// maybe is a node's whose value a majority has if the silent nodes have it, too.
	maybe *admin.NodeStatus
	has   int // how many nodes say that they have it

	health health
}

func pictureOf(s admin.Status, quorum int) picture {
	p := picture{Status: s, quorum: quorum}
	values := make(map[string]int)
	for _, n := range s.Nodes {
		switch {
		case silent(n):
			p.silent = append(p.silent, n)
		case n.Value != "" || n.TTL != 0:
			values[n.Value]++
		default:
			p.free++
		}
	}
	for i, n := range s.Nodes {
		if n.Value != "" && values[n.Value]+len(p.silent) >= quorum && values[n.Value] > p.has {
			p.maybe, p.has = &s.Nodes[i], values[n.Value]
		}
	}
	return p
}

// silent tells nodes that did not answer from those that have something else than a lock.
func silent(n admin.NodeStatus) bool { return n.Err != nil && n.TTL == 0 }

// refuses tells nodes that answer, and do not serve us, from those that do not answer.
func refuses(n admin.NodeStatus) bool {
	answered := (redis.Error)(nil)
	return silent(n) && (errors.As(n.Err, &answered) || noTrust(n.Err))
}

// noTrust reports whether err is of a server that answers, to which TLS leads to no connection.
func noTrust(err error) bool {
	return strings.Contains(err.Error(), "tls: ") || strings.Contains(err.Error(), "x509: ")
}

func (p picture) refusing() (n int) {
	for _, s := range p.silent {
		if refuses(s) {
			n++
		}
	}
	return n
}

func (p picture) answers() int { return len(p.Nodes) - len(p.silent) }

// count says how many answer.
func (p picture) count() string {
	one, many := "answers", "answer"
	if p.refusing() > 0 {
		one, many = "serves us", "serve us"
	}
	return nodesThat(p.answers(), len(p.Nodes), one, many) + fmt.Sprintf(", %d needed", p.quorum)
}

// nodesThat is "n of m nodes" and what they do, for one and for many.
func nodesThat(n, of int, one, many string) string {
	nodes, verb := "nodes", many
	if of == 1 {
		nodes = "node"
	}
	if n == 1 || of == 1 {
		verb = one
	}
	return fmt.Sprintf("%d of %d %s %s", n, of, nodes, verb)
}

// held is nil where nodes that do not answer may make the difference.
func (p picture) held() *bool {
	if !p.Held() && (p.answers() < p.quorum || p.maybe != nil) {
		return nil
	}
	return new(p.Held())
}

// notes say what follows from the nodes that do not answer, and what to do.
func (p picture) notes() []string {
	now := time.Now()
	h := p.health.at(now).of(p.silent)
	spare := p.answers() - len(h.barred) - p.quorum
	switch {
	case len(p.silent) == 0 && len(h.barred) == 0:
		return nil
	case p.answers() >= p.quorum && spare < 0:
		return []string{fmt.Sprintf("No lock can be had%s: %s. Held locks are extended and released. 'redlock check' says more.", h.wait(now), h.count())}
	case spare < 0:
		notes := cutOff(p.answers() + p.refusing())
		if n := p.refusing(); n > 0 {
			return append(notes, nodesThat(n, len(p.Nodes), "answers but does", "answer but do")+" not serve us: fix what "+
				map[bool]string{true: "it names", false: "they name"}[n == 1]+", usually user, password, certificate or permissions. 'redlock check' says what is wrong with each node.")
		}
		return append(notes,
			fmt.Sprintf("No lock can be had, extended or released until %s. A holder keeps its lock until the lease ends.", nodesThat(p.quorum, len(p.Nodes), "answers", "answer")),
			"'redlock check' says what is wrong with each node. Bring them back; do not point clients at other nodes.")
	case spare == 0:
		return []string{p.missing(h) + ", and if one more fails no lock can be had: see 'redlock check'."}
	default:
		return []string{p.missing(h) + fmt.Sprintf("; locks work as long as %d do: see 'redlock check'.", p.quorum)}
	}
}

// missing counts the nodes that do not count.
func (p picture) missing(h health) string {
	n, of := len(p.silent)+len(h.barred), len(p.Nodes)
	switch {
	case len(h.barred) == 0:
		if p.refusing() > 0 {
			return nodesThat(n, of, "does", "do") + " not answer or refuse us"
		}
		return nodesThat(n, of, "does", "do") + " not answer"
	case len(p.silent) == 0:
		return nodesThat(n, of, "may", "may") + " not vote" + h.yet()
	default:
		return nodesThat(n, of, "does", "do") + " not answer or may not vote" + h.yet()
	}
}

// cutOff is what else to think of when no node answers.
func cutOff(answers int) []string {
	if answers > 0 {
		return nil
	}
	return []string{"If programs elsewhere can use their locks, it is this machine that cannot reach the nodes, or the addresses are wrong."}
}

// inSeconds is a time of --json, in whole microseconds: 7.887 and not 7.8870000000000005. What has no end
// is negative, and -1 here.
func inSeconds(d time.Duration) float64 {
	if d < 0 {
		return -1
	}
	return float64(d.Microseconds()) / 1e6
}

func asJSON(p picture) statusJSON {
	j := statusJSON{
		Key: p.Key, Held: p.held(), Token: p.Token, Owner: p.Owner, TTL: inSeconds(p.TTL),
		Shared: p.Shared, Holders: holdersJSON(p.Holders),
		Waiters: []waiterJSON{}, Nodes: []nodeJSON{}, Answers: p.answers(), Quorum: p.quorum,
	}
	now := time.Now()
	h := p.health.at(now)
	if h.quorum > 0 {
		j.Votes = &h.votes
	}
	for _, w := range p.Waiters {
		j.Waiters = append(j.Waiters, waiterJSON{w.Owner, inSeconds(w.Waited)})
	}
	for _, n := range p.Nodes {
		e := ""
		if n.Err != nil {
			e = n.Err.Error()
		}
		node := nodeJSON{n.Node, !silent(n), n.Value, inSeconds(n.TTL), n.Waiting, inSeconds(n.Elapsed), since(h.since[n.Node]), 0, "", e}
		if b := h.isBarred(n.Node); b != nil {
			node.NoVote = oneLine(b.why)
			if !b.until.IsZero() {
				node.Barred = inSeconds(b.until.Sub(now))
			}
		}
		j.Nodes = append(j.Nodes, node)
	}
	return j
}

// since is since when a node remembers, empty if that is not known.
func since(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// leaseOf is how long a lease lasts, in words.
func leaseOf(d time.Duration) string {
	switch {
	case d < 0:
		return "no end"
	case d == 0:
		return "-"
	default:
		return d.Round(time.Millisecond).String()
	}
}

// forTime is leaseOf behind "for".
func forTime(d time.Duration) string {
	if d < 0 {
		return "ever"
	}
	return leaseOf(d)
}

// verdict says who holds the lock in one line.
func (p palette) verdict(s picture) string {
	ink, text := p.judge(s)
	return ink(text)
}

// judge is verdict before it is coloured.
func (p palette) judge(s picture) (ink func(...any) string, text string) {
	whose := func(token, owner string) string {
		if token == "" {
			return "several together" // whose tokens are not under the key
		}
		if owner == "" {
			return "token " + shortToken(token)
		}
		return owner + ", token " + shortToken(token)
	}
	ink = p.odd
	switch {
	case s.Shared:
		text = fmt.Sprintf("%s is %s, for %s", s.Key, sharedBy(len(s.Holders)), forTime(s.TTL))
	case s.Held() && s.Owner == "":
		text = fmt.Sprintf("%s is held, %s, for %s", s.Key, whose(s.Token, ""), forTime(s.TTL))
	case s.Held():
		text = fmt.Sprintf("%s is held by %s, for %s", s.Key, whose(s.Token, s.Owner), forTime(s.TTL))
	case s.free >= s.quorum:
		ink, text = p.good, s.Key+" is free"
	case s.answers() < s.quorum && s.maybe == nil:
		ink, text = p.bad, fmt.Sprintf("whether %s is held is not known: no quorum, %s", s.Key, s.count())
	case s.answers() < s.quorum:
		ink, text = p.bad, fmt.Sprintf("%s may be held by %s: no quorum, %s", s.Key, whose(s.maybe.Token, s.maybe.Owner), s.count())
	case s.maybe != nil:
		text = fmt.Sprintf("%s may be held by %s: %s it, and %d %s not answer", s.Key, whose(s.maybe.Token, s.maybe.Owner),
			nodesThat(s.has, len(s.Nodes), "has", "have"), len(s.silent), map[bool]string{true: "does", false: "do"}[len(s.silent) == 1])
	default:
		ink, text = p.bad, fmt.Sprintf("%s has no holder, and is not free: %s nothing under the key, %d needed", s.Key,
			nodesThat(s.free, len(s.Nodes), "has", "have"), s.quorum)
	}
	return ink, printable(text)
}

// printable keeps keys and what servers say, which may be any bytes, from steering a terminal. What is not printed
// has the form that Go's strings have, so that keys which differ look different.
func printable(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		if size == 1 && r == utf8.RuneError || !unicode.IsPrint(r) {
			quoted := strconv.Quote(s[:size])
			b.WriteString(quoted[1 : len(quoted)-1])
		} else {
			b.WriteRune(r)
		}
		s = s[size:]
	}
	return b.String()
}

func printStatus(w io.Writer, s picture) {
	paint := paletteFor(w)
	ink, text := paint.judge(s)
	if text += s.waits(); isTerminal(w) {
		text = strings.TrimSuffix(paragraph(w, text), "\n")
	}
	fmt.Fprintln(w, ink(text))
	switch {
	case s.Token != "":
		fmt.Fprintln(w, "the whole token:", printable(s.Token))
	case s.maybe != nil && s.maybe.Token != "":
		fmt.Fprintln(w, "the whole token:", printable(s.maybe.Token))
	}
	printHolders(w, paint, s.Holders)
	t := table{
		heading: []string{"NODE", "HOLDER", "LEASE", "WAITING", "ANSWERED IN", "REMEMBERS SINCE"},
		spare:   []int{4, 5},
		bad:     func(i int) bool { return s.Nodes[i].Err != nil },
	}
	for _, n := range s.Nodes {
		row := []string{n.Node, heldText(n), leaseOf(n.TTL), strconv.Itoa(n.Waiting), n.Elapsed.Round(10 * time.Microsecond).String(), cmp.Or(since(s.health.since[n.Node]), "-")}
		if silent(n) {
			row[1], row[2], row[3], row[4] = "?", "?", "?", "-" // which is not the same as none
		}
		t.rows = append(t.rows, row)
	}
	t.print(w, paint)
	for _, n := range s.Nodes {
		if n.Err != nil {
			fmt.Fprint(w, paint.bad(paragraph(w, printable(n.Node+": "+inShell(n.Err.Error())))))
		}
	}
	now := time.Now()
	for _, b := range s.health.at(now).barred {
		fmt.Fprint(w, paint.odd(paragraph(w, printable(b.name+": "+b.says(now)))))
	}
	for i, wt := range s.Waiters {
		fmt.Fprintf(w, "%s in the queue: %s, for %v\n", ordinal(i+1), printable(wt.Owner), wt.Waited.Round(time.Millisecond))
	}
	for _, note := range s.notes() {
		fmt.Fprint(w, paragraph(w, note))
	}
}

// waits is how many wait, behind the verdict.
func (p picture) waits() string {
	if len(p.Waiters) == 0 && !p.Held() {
		return "" // which says enough, or it is not known
	}
	return fmt.Sprintf("; %d waiting", len(p.Waiters))
}

func ordinal(n int) string {
	suffix := "th"
	if n%100 < 11 || n%100 > 13 {
		switch n % 10 {
		case 1:
			suffix = "st"
		case 2:
			suffix = "nd"
		case 3:
			suffix = "rd"
		}
	}
	return fmt.Sprintf("%d%s", n, suffix)
}

func statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status KEY",
		Short: "Show the holder of a lock, the time left, and the waiters",
		Long: `Show the holder of a lock, the time left, and the waiters: what each node says, and
what the majority makes of it. Nothing is changed. A node that does not answer within a
second is listed with the reason, and it is not known what it has. REMEMBERS SINCE is since when
a node has lost no data, by its memory mark.

Exit status: 0 if a majority of nodes answered, whether the lock is held or not; 1 if
not, and then what the others said is shown; 2 for a fault in the command line.

A lock that several hold together (run --shared, run --permits) is shown with each of
them, the number of its permit, and its whole token, for release --force --token.

With --json, held is null if it depends on nodes that do not answer.`,
		Example: "  redlock status orders:42\n  redlock status --json orders:42 | jq .held",
		Args:    oneKey, ValidArgsFunction: cobra.NoFileCompletions,
	}
	s := connectFlags(cmd)
	asked := cmd.Flags().Bool("json", false, "one JSON object")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		nodes, err := s.operate(admin.Options{})
		if err != nil {
			return failure(cmd, *asked, args[0], err)
		}
		defer nodes.Close()
		var h health
		var asking sync.WaitGroup
		asking.Go(func() { h = askHealth(cmd.Context(), nodes) })
		status, err := nodes.Inspect(cmd.Context(), args[0])
		asking.Wait()
		if status.Nodes == nil {
			return failure(cmd, *asked, args[0], err)
		}
		seen := pictureOf(status, nodes.Quorum())
		seen.health = h
		if *asked {
			line := asJSON(seen)
			if err != nil {
				line.Error = err.Error()
			}
			_ = json.NewEncoder(cmd.OutOrStdout()).Encode(line)
		} else {
			printStatus(cmd.OutOrStdout(), seen)
		}
		if errors.Is(err, admin.ErrNoQuorum) {
			return errors.New("no quorum: " + seen.count())
		}
		return err
	}
	return cmd
}
