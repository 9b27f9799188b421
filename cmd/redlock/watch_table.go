package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock/admin"
	"github.com/quorumlock/redlock/cmd/redlock/internal/web"
)

// tableWatch is watch without a key, or with several. It shows what the page shows: on a terminal as a
// table that changes in place, elsewhere as a line for each change, as JSON all of it at each change.
func tableWatch(cmd *cobra.Command, s settings, keys []string, interval time.Duration, asJSON bool) error {
	nodes, err := s.operate(admin.Options{})
	if err != nil {
		return failure(cmd, asJSON, "", err)
	}
	defer nodes.Close()
	for _, key := range keys {
		if status, err := nodes.Inspect(cmd.Context(), key); status.Nodes == nil && cmd.Context().Err() == nil {
			return failure(cmd, asJSON, key, err)
		}
	}
	b := newBoard(nodes, keys, interval)
	out := cmd.OutOrStdout()
	lines := &lockLines{w: out, board: b, paint: paletteFor(out), said: map[string]string{}}
	b.tell = func(n web.News) { lines.news = append(lines.news, n) }
	show := lines.show
	if screen, ok := out.(*os.File); asJSON {
		show = lines.showJSON
	} else if ok && isTerminal(out) && os.Getenv("TERM") != "dumb" {
		b.tell = func(web.News) {} // the table has it
		show = (&lockTable{w: screen, board: b, paint: lines.paint}).show
	}
	var checking sync.WaitGroup
	defer checking.Wait()
	for cmd.Context().Err() == nil {
		b.checkIfDue(cmd.Context(), &checking)
		if v := b.look(cmd.Context()); cmd.Context().Err() == nil {
			show(v)
		}
		sleep(cmd.Context(), interval)
	}
	return nil
}

// lease is how long a lock of the view lasts.
func (b *board) lease(l viewLock) time.Duration {
	if l.Until <= 0 {
		return time.Duration(l.Until)
	}
	return max(time.Duration(l.Until-b.hub.At(time.Now())), 0) * time.Millisecond
}

// tone is the colour of what the pages say.
func (p palette) tone(tone string) func(...any) string {
	switch tone {
	case bad:
		return p.bad
	case odd:
		return p.odd
	default:
		return p.good
	}
}

// lockTable is the view on a terminal.
type lockTable struct {
	w     *os.File
	board *board
	paint palette
	// Of what is shown: the number of its lines, and the width that they were made for.
	lines, width int
}

func (t *lockTable) show(v view) {
	width, height := sizeOf(t.w)
	var b strings.Builder
	switch {
	case t.lines == 0:
	case width != t.width: // lines were broken anew, so it is not known where the table begins
		b.WriteString("\x1b[H\x1b[2J")
	default:
		fmt.Fprintf(&b, "\r\x1b[%dA", t.lines)
	}
	lines := t.text(v, width-1, height) // what fills the last column makes a line more of itself
	for _, line := range lines {
		b.WriteString(line + "\x1b[K\n")
	}
	b.WriteString("\x1b[J")
	t.lines, t.width = len(lines), width
	_, _ = io.WriteString(t.w, b.String())
}

// text is the table with a line of what is best known above it, and below what is wrong with nodes. It
// leaves out locks that are not in doubt or awaited where there are more than lines of the terminal.
func (t *lockTable) text(v view, width, height int) (lines []string) {
	add := func(ink func(...any) string, text string) {
		for line := range strings.Lines(wrapped(printable(text), width)) {
			lines = append(lines, ink(cut(strings.TrimSuffix(line, "\n"), width)))
		}
	}
	add(t.paint.tone(v.Verdict.Tone), v.Verdict.Text)
	above := len(lines)
	for _, n := range v.Nodes {
		if n.Error != "" {
			add(t.paint.bad, n.Name+" does not answer: "+n.Error)
		} else if n.Barred != 0 {
			left := time.Duration(n.Barred-t.board.hub.At(time.Now())) * time.Millisecond
			add(t.paint.odd, fmt.Sprintf("%s may not vote for another %v", n.Name, max(left, 0).Round(time.Second)))
		}
	}
	for _, f := range v.Findings {
		if f.Severity == admin.SeverityCritical.String() && f.Node != "" {
			add(t.paint.bad, fmt.Sprintf("%s: %s; see 'redlock check'", f.Node, f.Message))
		}
	}
	if v.Searching {
		add(t.paint.odd, "The nodes have more keys, which are searched for locks.")
	}
	below := slices.Clone(lines[above:])
	lines = lines[:above]
	shown := v.Locks
	if room := max(height-above-len(below)-3, 1); len(shown) > room { // the heading, a line that counts, the cursor's
		shown = shown[:room]
	}
	if len(shown) > 0 {
		var table strings.Builder
		t.table(v, shown).printFor(&table, t.paint, width)
		lines = append(lines, strings.Split(strings.TrimSuffix(table.String(), "\n"), "\n")...)
	}
	if more := len(v.Locks) - len(shown) + v.More; more > 0 {
		lines = append(lines, cut("and "+plural(more, "more lock"), width))
	}
	lines = append(lines, below...)
	return lines[:min(len(lines), max(height-1, 1))]
}

func (t *lockTable) table(v view, locks []viewLock) *table {
	all := &table{
		heading: []string{"KEY", "HOLDER", "LEASE", "NODES", "FENCE", "WAITING"},
		spare:   []int{4, 3},
		strict:  true,
		bad:     func(i int) bool { return locks[i].State == "in doubt" || locks[i].State == "split" },
	}
	for _, l := range locks {
		fence := "-"
		if l.Fence > 0 {
			fence = strconv.FormatUint(l.Fence, 10)
		}
		waiting := "-"
		if len(l.Waiters) > 0 {
			first := l.Waiters[0]
			waited := time.Duration(t.board.hub.At(time.Now())-first.Since) * time.Millisecond
			waiting = fmt.Sprintf("%d: %s for %v", l.Waiting, cut(first.Owner, 24), max(waited, 0).Round(time.Second))
		}
		lease := t.board.lease(l)
		if lease > 0 {
			lease = max(lease.Round(100*time.Millisecond), time.Millisecond)
		}
		all.rows = append(all.rows, []string{l.Key, l.holder(), leaseOf(lease), fmt.Sprintf("%d/%d", l.Has, len(v.Nodes)), fence, waiting})
	}
	return all
}

// holder is who has a lock, as far as that is known.
func (l viewLock) holder() string {
	owner := cut(l.Owner, 40)
	switch l.State {
	case "held":
		return cmp.Or(owner, "held")
	case "in doubt":
		return strings.TrimSpace("perhaps " + owner)
	default:
		return l.State
	}
}

// lockLines is the view where there is no terminal: what has changed.
type lockLines struct {
	w     io.Writer
	board *board
	paint palette
	news  []web.News
	begun bool
	said  map[string]string // of each lock
	last  string            // of JSON, without times
}

func (t *lockLines) show(v view) {
	at := time.Now().Format(time.TimeOnly)
	say := func(ink func(...any) string, text string) { fmt.Fprintf(t.w, "%s  %s\n", at, ink(printable(text))) }
	if !t.begun {
		t.begun = true
		say(t.paint.tone(v.Verdict.Tone), v.Verdict.Text)
		t.news = slices.DeleteFunc(t.news, func(n web.News) bool { return strings.HasPrefix(n.Text, "No quorum") })
	}
	for _, n := range t.news {
		say(t.paint.tone(n.Tone), n.Text)
	}
	t.news = nil
	locks := map[string]bool{}
	for _, l := range v.Locks {
		locks[l.Key] = true
		ink, text := t.paint.odd, l.Key+" is held by "+l.holder()
		switch {
		case l.State == "held" && l.Owner == "":
			text = l.Key + " is held"
		case l.State == "in doubt":
			ink, text = t.paint.bad, fmt.Sprintf("whether %s is held is not known", l.Key)
			if l.Owner != "" {
				text = fmt.Sprintf("%s may be held by %s", l.Key, l.Owner)
			}
		case l.State == "free":
			ink, text = t.paint.good, l.Key+" is free"
		case l.State == "split":
			ink, text = t.paint.bad, l.Key+" is on some nodes, and held by none"
		}
		if l.Waiting > 0 {
			text += fmt.Sprintf(", %d waiting", l.Waiting)
		}
		if t.said[l.Key] != text {
			t.said[l.Key] = text
			say(ink, text)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(t.said)) {
		if !locks[key] {
			delete(t.said, key)
			if !t.board.knows(key) {
				say(t.paint.good, key+" is free")
			}
		}
	}
}

// locksJSON is a line of --json.
type locksJSON struct {
	Time    time.Time      `json:"time"`
	Quorum  int            `json:"quorum"`
	Answers int            `json:"answers"`
	Barred  int            `json:"barred"` // of those that answer, how many may not vote yet
	Locks   []lockJSON     `json:"locks"`
	More    int            `json:"more,omitempty"` // locks that are not listed
	Nodes   []lockNodeJSON `json:"nodes"`
}

type lockJSON struct {
	Key     string  `json:"key"`
	State   string  `json:"state"` // "held", "free", "in doubt", "split"
	Owner   string  `json:"owner,omitempty"`
	TTL     float64 `json:"ttl_seconds"` // -1: no end
	Nodes   int     `json:"nodes"`       // that have it
	Fence   uint64  `json:"fence,omitempty"`
	Waiting int     `json:"waiting"`
}

type lockNodeJSON struct {
	Node  string `json:"node"`
	Error string `json:"error,omitempty"`
}

func (t *lockLines) showJSON(v view) {
	line := locksJSON{Quorum: v.Quorum, Answers: v.Answers, Barred: v.Barred, More: v.More, Locks: []lockJSON{}}
	for _, l := range v.Locks {
		line.Locks = append(line.Locks, lockJSON{Key: l.Key, State: l.State, Owner: l.Owner, Nodes: l.Has, Fence: l.Fence, Waiting: l.Waiting})
	}
	for _, n := range v.Nodes {
		down := ""
		if n.Error != "" { // what the errors say changes all the time
			down = "down"
		}
		line.Nodes = append(line.Nodes, lockNodeJSON{n.Name, down})
	}
	text, _ := json.Marshal(line)
	if string(text) == t.last {
		return
	}
	t.last = string(text)
	line.Time = time.Now()
	for i, l := range v.Locks {
		line.Locks[i].TTL = inSeconds(t.board.lease(l))
		if l.Until < 0 {
			line.Locks[i].TTL = -1
		}
	}
	for i, n := range v.Nodes {
		line.Nodes[i].Error = n.Error
	}
	_ = json.NewEncoder(t.w).Encode(line)
}
