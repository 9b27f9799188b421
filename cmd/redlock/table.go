package main

import (
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/term"
	"golang.org/x/text/width"
)

// plainWidth is how wide a line may be where no terminal says how wide it is.
const plainWidth = 80

// sizeOf is that of a terminal, or the usual one where that is not known.
func sizeOf(w io.Writer) (width, height int) {
	if f, ok := w.(*os.File); ok {
		if width, height, err := term.GetSize(int(f.Fd())); err == nil && width > 0 && height > 0 {
			return width, height
		}
	}
	return plainWidth, 24
}

// widthOf is how wide lines of text may be.
func widthOf(w io.Writer) int {
	width, _ := sizeOf(w)
	return max(width, 20)
}

// table is one with a heading. What is too wide for a terminal loses columns that can be spared.
// Then it is cut in the columns of names: first in the second, then in the first, at its left,
// since names of nodes differ at their right.
type table struct {
	heading []string
	rows    [][]string
	bad     func(row int) bool // nil: none
	spare   []int              // columns to leave out on a terminal too narrow for all, in that order
	strict  bool               // lines are cut where all that does not suffice
}

const leastColumn = 8 // that cuts leave

func (t *table) print(w io.Writer, paint palette) {
	width := 0
	if isTerminal(w) {
		width = widthOf(w)
	}
	t.printFor(w, paint, width)
}

// printFor prints for a terminal of that width; 0: for none.
func (t *table) printFor(w io.Writer, paint palette, width int) {
	all := append([][]string{t.heading}, t.rows...)
	for _, row := range all {
		for i := range row {
			row[i] = printable(row[i])
		}
	}
	if width > 0 {
		all = t.narrow(all, width)
		t.fit(all, width)
	}
	most, _ := widths(all, 0)
	for row, cells := range all {
		line := ""
		for i, cell := range cells {
			line += cell + strings.Repeat(" ", most[i]-columns(cell)+2)
		}
		if line = strings.TrimRight(line, " "); t.strict && width > 0 {
			line = cut(line, width)
		}
		// Coloured afterwards, for escapes have no width.
		switch {
		case row == 0:
			line = paint.bold(line)
		case t.bad != nil && t.bad(row-1):
			line = paint.bad(line)
		}
		fmt.Fprintln(w, line)
	}
}

// widths are those of the columns, and how many characters a line has beyond the width.
func widths(all [][]string, width int) (most []int, excess int) {
	most = make([]int, len(all[0]))
	excess = 2*(len(most)-1) - width
	for i := range most {
		for _, row := range all {
			most[i] = max(most[i], columns(row[i]))
		}
		excess += most[i]
	}
	return most, excess
}

// narrow leaves out columns until a line fits, or none can be spared.
func (t *table) narrow(all [][]string, width int) [][]string {
	gone := make(map[int]bool)
	some := all
	for _, column := range t.spare {
		if _, excess := widths(some, width); excess <= 0 {
			break
		}
		gone[column] = true
		some = nil
		for _, row := range all {
			var kept []string
			for i, cell := range row {
				if !gone[i] {
					kept = append(kept, cell)
				}
			}
			some = append(some, kept)
		}
	}
	return some
}

// fit cuts cells until a line has no more than width characters, or nothing is left to cut.
func (t *table) fit(all [][]string, width int) {
	widths, excess := widths(all, width)
	for _, column := range []int{1, 0} {
		if excess <= 0 {
			return
		}
		most := max(leastColumn, widths[column]-excess)
		excess -= widths[column] - most
		for _, row := range all {
			if column == 0 {
				row[0] = cutLeft(row[0], most)
			} else {
				row[column] = cut(row[column], most)
			}
		}
	}
}

// cut leaves no more than this many columns, from the left.
func cut(text string, most int) string {
	if columns(text) <= most {
		return text
	}
	const dots = "..."
	room := most - len(dots)
	for i, r := range text {
		if room -= columnsOf(r); room < 0 {
			return text[:i] + dots[:min(max(most, 0), len(dots))]
		}
	}
	return text
}

// cutLeft leaves no more than this many columns, from the right.
func cutLeft(text string, most int) string {
	if columns(text) <= most {
		return text
	}
	from := len(text)
	for room := most - 3; from > 0; {
		r, size := utf8.DecodeLastRuneInString(text[:from])
		if room -= columnsOf(r); room < 0 {
			break
		}
		from -= size
	}
	return "..." + text[from:]
}

// paragraph breaks text between words so that it fits a terminal, with what follows the
// first line indented.
func paragraph(w io.Writer, text string) string {
	if !isTerminal(w) {
		return text + "\n"
	}
	return wrapped(text, widthOf(w))
}

// wrapped is text with lines of that width, where words are no longer.
func wrapped(text string, width int) string {
	const indent = "  "
	var b strings.Builder
	line := ""
	for i, word := range strings.Split(text, " ") {
		switch {
		case i == 0:
			line = word
		case columns(line)+1+columns(word) > width:
			b.WriteString(line + "\n")
			line = indent + word
		default:
			line += " " + word
		}
	}
	return b.String() + line + "\n"
}

var escape = regexp.MustCompile("\x1b\\[[0-9;]*m")

// columns is how wide text is on a terminal, of which colours take nothing.
func columns(text string) (n int) {
	for _, r := range escape.ReplaceAllString(text, "") {
		n += columnsOf(r)
	}
	return n
}

func columnsOf(r rune) int {
	if unicode.In(r, unicode.Mn, unicode.Me) {
		return 0
	}
	switch width.LookupRune(r).Kind() {
	case width.EastAsianWide, width.EastAsianFullwidth:
		return 2
	default:
		return 1
	}
}

// shortToken is enough of a token to tell it from others.
func shortToken(token string) string { return cut(token, 11) }

// shortHolder is a value with a short token and an owner that leaves room for others.
func shortHolder(value string) string {
	token, owner, _ := strings.Cut(value, "@")
	if owner == "" {
		return cut(token, 26)
	}
	return shortToken(token) + " " + cut(owner, 24)
}
