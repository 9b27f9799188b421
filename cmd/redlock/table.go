package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"unicode/utf8"

	"golang.org/x/term"
)

// plainWidth is how wide a line may be where no terminal says how wide it is.
const plainWidth = 80

// widthOf is how wide lines may be.
func widthOf(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if width, _, err := term.GetSize(int(f.Fd())); err == nil && width > 20 {
			return width
		}
	}
	return plainWidth
}

// table is one with a heading. What is too wide for a terminal loses columns that can be spared.
// Then it is cut in the columns of names: first in the second, then in the first, at its left,
// since names of nodes differ at their right.
type table struct {
	heading []string
	rows    [][]string
	bad     func(row int) bool // nil: none
	spare   []int              // columns to leave out on a terminal too narrow for all, in that order
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
	var text bytes.Buffer
	tab := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	for _, row := range all {
		fmt.Fprintln(tab, strings.Join(row, "\t"))
	}
	_ = tab.Flush()
	// Coloured afterwards, for escapes have a width in a table.
	row := -1
	for line := range strings.Lines(text.String()) {
		switch line = strings.TrimRight(line, " \n"); {
		case row < 0:
			line = paint.bold(line)
		case t.bad != nil && t.bad(row):
			line = paint.bad(line)
		}
		fmt.Fprintln(w, line)
		row++
	}
}

// widths are those of the columns, and how many characters a line has beyond the width.
func widths(all [][]string, width int) (columns []int, excess int) {
	columns = make([]int, len(all[0]))
	excess = 2*(len(columns)-1) - width
	for i := range columns {
		for _, row := range all {
			columns[i] = max(columns[i], utf8.RuneCountInString(row[i]))
		}
		excess += columns[i]
	}
	return columns, excess
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

// cut leaves no more than this many characters, from the left.
func cut(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return string(r[:max(most-3, 0)]) + "..."
	}
	return text
}

// cutLeft leaves no more than this many characters, from the right.
func cutLeft(text string, most int) string {
	if r := []rune(text); len(r) > most {
		return "..." + string(r[len(r)-max(most-3, 0):])
	}
	return text
}

// paragraph breaks text between words so that it fits a terminal, with what follows the
// first line indented.
func paragraph(w io.Writer, text string) string {
	if !isTerminal(w) {
		return text + "\n"
	}
	const indent = "  "
	var b strings.Builder
	line := ""
	for i, word := range strings.Split(text, " ") {
		switch {
		case i == 0:
			line = word
		case columns(line)+1+columns(word) > widthOf(w):
			b.WriteString(line + "\n")
			line = indent + word
		default:
			line += " " + word
		}
	}
	return b.String() + line + "\n"
}

// columns is how wide text is on a terminal, of which colours take nothing.
func columns(text string) int { return utf8.RuneCountInString(escape.ReplaceAllString(text, "")) }

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
