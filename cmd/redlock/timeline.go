package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/fatih/color"
	"golang.org/x/term"

	"github.com/quorumlock/redlock"
)

// look is how the user wants a timeline to look.
type look struct {
	plain   bool // ASCII and no colours
	noColor bool
	json    bool
}

// timeline prints events as they happen, for people or as JSON lines. Its methods may
// be called from any goroutine.
type timeline struct {
	json   bool
	glyphs map[redlock.Vote]string
	paint  palette

	mu    sync.Mutex
	w     io.Writer
	start time.Time
	err   error // the first of writing
}

// event is something to print: as JSON, and as one or more lines.
type event interface {
	kind() string
	text(t *timeline, at string) string
}

type palette struct {
	good, bad, odd, dim, bold func(a ...any) string
}

func newPalette(colours bool) palette {
	ink := func(attrs ...color.Attribute) func(a ...any) string {
		c := color.New(attrs...)
		if colours {
			c.EnableColor()
		} else {
			c.DisableColor()
		}
		return c.SprintFunc()
	}
	return palette{
		good: ink(color.FgGreen), bad: ink(color.FgRed), odd: ink(color.FgMagenta), // yellow on white cannot be read
		dim: ink(color.Faint), bold: ink(color.Bold),
	}
}

// Each glyph is one column wide.
var (
	richGlyphs = map[redlock.Vote]string{
		redlock.VoteGranted: "●", redlock.VoteRefused: "○", redlock.VoteNotSent: "✗", redlock.VoteBarred: "↻",
		redlock.VoteUnknown: "?", redlock.VoteFailed: "!", redlock.VotePending: "·",
	}
	plainGlyphs = map[redlock.Vote]string{
		redlock.VoteGranted: "+", redlock.VoteRefused: "o", redlock.VoteNotSent: "x", redlock.VoteBarred: "~",
		redlock.VoteUnknown: "?", redlock.VoteFailed: "!", redlock.VotePending: ".",
	}
)

func newTimeline(w io.Writer, l look) *timeline {
	terminal := isTerminal(w)
	plain := l.plain || !terminal || !showsUnicode()
	t := &timeline{w: w, json: l.json, glyphs: richGlyphs, start: time.Now()}
	if plain {
		t.glyphs = plainGlyphs
	}
	t.paint = newPalette(!plain && !l.noColor && os.Getenv("NO_COLOR") == "")
	return t
}

// paletteFor has colours if w is a terminal that shows them to somebody who wants them.
func paletteFor(w io.Writer) palette {
	return newPalette(isTerminal(w) && os.Getenv("TERM") != "dumb" && os.Getenv("NO_COLOR") == "")
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// showsUnicode says whether a terminal shows more than ASCII, which it does unless
// the environment denies it.
func showsUnicode() bool {
	if os.Getenv("TERM") == "dumb" {
		return false
	}
	if runtime.GOOS == "windows" {
		return true
	}
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := os.Getenv(name); v != "" {
			v = strings.ToLower(v)
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return true
}

// begin starts the clock and says what will be seen.
func (t *timeline) begin(d *demo) {
	t.mu.Lock()
	t.start = time.Now()
	t.mu.Unlock()
	t.emit(newOpening(d))
}

// emit prints the event with the present time.
func (t *timeline) emit(e event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := time.Since(t.start)
	var err error
	if t.json {
		err = t.writeJSON(at, e)
	} else {
		var fits strings.Builder
		for line := range strings.Lines(e.text(t, fmt.Sprintf("%8.3f", at.Seconds()))) {
			fits.WriteString(paragraph(t.w, strings.TrimSuffix(line, "\n")))
		}
		_, err = io.WriteString(t.w, fits.String())
	}
	if t.err == nil {
		t.err = err
	}
}

// writeJSON puts the time and the kind in front of the event's own fields; the caller
// holds mu.
func (t *timeline) writeJSON(at time.Duration, e event) error {
	head, err := json.Marshal(struct {
		Elapsed ms     `json:"elapsed_ms"`
		Event   string `json:"event"`
	}{ms(at), e.kind()})
	if err != nil {
		return err
	}
	body, err := json.Marshal(e)
	if err != nil {
		return err
	}
	line := string(head[:len(head)-1])
	if fields := body[1:]; len(fields) > 1 {
		line += "," + string(fields)
	} else {
		line += "}"
	}
	_, err = io.WriteString(t.w, line+"\n")
	return err
}

// failure is what went wrong with printing.
func (t *timeline) failure() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err != nil {
		return fmt.Errorf("writing the timeline: %w", t.err)
	}
	return nil
}

// mark is a vote as a coloured glyph.
func (t *timeline) mark(v redlock.Vote) string {
	g := t.glyphs[v]
	switch v {
	case redlock.VoteGranted:
		return t.paint.good(g)
	case redlock.VoteNotSent, redlock.VoteFailed:
		return t.paint.bad(g)
	case redlock.VotePending:
		return t.paint.dim(g)
	default:
		return t.paint.odd(g)
	}
}

func (t *timeline) marks(votes []ballot) string {
	var b strings.Builder
	for _, v := range votes {
		b.WriteString(strings.Repeat(" ", len(v.Node)) + t.mark(v.vote)) // right-aligned below its label
	}
	return b.String()
}

var timeColumns = []struct {
	name  string
	width int
}{{"WAITED", 8}, {"VOTE", 7}, {"HELD", 7}, {"RELEASE", 8}}

// row is a line of a worker. It fits in 80 columns with five nodes, and has fewer times where a
// terminal is narrower.
func (t *timeline) row(at, worker, what string, votes []ballot, times ...ms) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %-9s %-12s%s ", at, worker, what, t.marks(votes))
	for i, d := range times {
		t.addTime(&b, timeColumns[i].width, d.String())
	}
	return b.String() + "\n"
}

// heading is that of the rows.
func (t *timeline) heading(labels []string) string {
	var nodes strings.Builder
	for _, l := range labels {
		nodes.WriteString(" " + l)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%8s  %-9s %-12s%s ", "TIME", "WORKER", "COUNTER", nodes.String())
	for _, c := range timeColumns {
		t.addTime(&b, c.width, c.name)
	}
	return t.paint.bold(b.String()) + "\n"
}

func (t *timeline) addTime(row *strings.Builder, width int, text string) {
	if !isTerminal(t.w) || columns(row.String())+width <= widthOf(t.w) {
		fmt.Fprintf(row, "%*s", width, text)
	}
}

// banner is a line about something that happens to nodes or workers.
func (t *timeline) banner(at string, ink func(...any) string, format string, args ...any) string {
	return at + "  " + ink(">> "+fmt.Sprintf(format, args...)) + "\n"
}

// ms is a duration, in JSON in milliseconds, in text short enough for a column.
type ms time.Duration

// MarshalJSON writes milliseconds with microseconds behind the point.
func (d ms) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "%.3f", float64(d)/float64(time.Millisecond)), nil
}

// String is at most seven columns of ASCII wide below a day.
func (d ms) String() string {
	t := time.Duration(d)
	switch {
	case t < time.Millisecond:
		return fmt.Sprintf("%dus", t.Microseconds())
	case t < 100*time.Millisecond:
		return fmt.Sprintf("%.1fms", t.Seconds()*1000)
	case t < time.Second:
		return fmt.Sprintf("%.0fms", t.Seconds()*1000)
	case t < 100*time.Second:
		return fmt.Sprintf("%.2fs", t.Seconds())
	default:
		return t.Round(time.Second).String()
	}
}

// nodeLabel is short in a column, and shorter where there are many.
func nodeLabel(i, n int) string {
	if n > demoNodes {
		return fmt.Sprintf("%d", i+1)
	}
	return fmt.Sprintf("n%d", i+1)
}
