package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"
)

// A recording is a picture of a terminal that plays by itself, wherever a picture is shown:
// an SVG of all lines, which a CSS animation moves up at the times at which they were written.
// What does not play animations shows the end.
type recording struct {
	start time.Time
	lines []string
	steps []recorded
}

// recorded is how many lines there were at a time.
type recorded struct {
	at    time.Duration
	lines int
}

const (
	recordRows    = 24
	recordColumns = 80
	recordLine    = 17 // pixels
	recordColumn  = 7.9
	recordMargin  = 12
	recordHold    = 5 * time.Second // at the end
)

func (r *recording) Write(p []byte) (int, error) {
	if r.start.IsZero() {
		r.start = time.Now()
	}
	text := strings.TrimSuffix(string(p), "\n")
	r.lines = append(r.lines, strings.Split(text, "\n")...)
	r.steps = append(r.steps, recorded{time.Since(r.start), len(r.lines)})
	return len(p), nil
}

// recorder is a timeline that writes into r.
func recorder(r *recording) *timeline {
	return &timeline{w: r, glyphs: richGlyphs, paint: newPalette(true), start: time.Now()}
}

func (r *recording) save(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(r.svg(f), f.Close())
}

func (r *recording) svg(w io.Writer) error {
	var b bytes.Buffer
	total := recordHold
	if n := len(r.steps); n > 0 {
		total += r.steps[n-1].at
	}
	shift := func(lines int) int { return (recordRows - lines) * recordLine }
	width, height := int(recordColumns*recordColumn)+2*recordMargin, recordRows*recordLine+2*recordMargin
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="A recording of redlock demo">`+"\n", width, height, width, height)
	b.WriteString("<style>\n" +
		"text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;fill:#d8dee9;white-space:pre}\n" +
		".g{fill:#8fce6b}.r{fill:#ff7b72}.y{fill:#e8c15a}.d{fill:#7d8796}.b{font-weight:bold}\n")
	fmt.Fprintf(&b, "#all{transform:translateY(%dpx);animation:play %.2fs step-end infinite}\n@keyframes play{\n", shift(len(r.lines)), total.Seconds())
	for _, s := range r.steps {
		fmt.Fprintf(&b, "%.3f%%{transform:translateY(%dpx)}\n", 100*s.at.Seconds()/total.Seconds(), shift(s.lines))
	}
	b.WriteString("}\n@media(prefers-reduced-motion:reduce){#all{animation:none}}\n</style>\n")
	fmt.Fprintf(&b, `<rect width="%d" height="%d" rx="8" fill="#1b1f27"/>`+"\n", width, height)
	fmt.Fprintf(&b, `<clipPath id="screen"><rect y="%d" width="%d" height="%d"/></clipPath>`+"\n", recordMargin, width, recordRows*recordLine)
	b.WriteString(`<g clip-path="url(#screen)"><g id="all">` + "\n")
	for i, line := range r.lines {
		if line != "" {
			fmt.Fprintf(&b, `<text x="%d" y="%d" xml:space="preserve">%s</text>`+"\n", recordMargin, recordMargin+(i+1)*recordLine-4, spans(line))
		}
	}
	b.WriteString("</g></g>\n</svg>\n")
	_, err := b.WriteTo(w)
	return err
}

var escape = regexp.MustCompile("\x1b\\[([0-9;]*)m")

// spans is a line with its colours.
func spans(line string) string {
	class := map[string]string{"32": "g", "31": "r", "33": "y", "2": "d", "1": "b"}
	var b strings.Builder
	put := func(text, class string) {
		var quoted bytes.Buffer
		_ = xml.EscapeText(&quoted, []byte(text)) // a Buffer does not fail
		switch {
		case text == "":
		case class == "":
			b.Write(quoted.Bytes())
		default:
			fmt.Fprintf(&b, `<tspan class="%s">%s</tspan>`, class, quoted.Bytes())
		}
	}
	now, from := "", 0
	for _, m := range escape.FindAllStringSubmatchIndex(line, -1) {
		put(line[from:m[0]], now)
		now, from = class[line[m[2]:m[3]]], m[1]
	}
	put(line[from:], now)
	return b.String()
}
