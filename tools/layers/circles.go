package layers

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Circles returns the sets of files of which each uses each other, directly or by way of
// others: the strongly connected components of more than one file, the largest first.
func Circles(uses []Use) [][]string {
	t := tarjan{next: make(map[string][]string), index: make(map[string]int), low: make(map[string]int), open: make(map[string]bool)}
	for _, u := range uses {
		t.next[u.File] = append(t.next[u.File], u.Of)
	}
	for _, file := range slices.Sorted(maps.Keys(t.next)) {
		if t.index[file] == 0 {
			t.visit(file)
		}
	}
	slices.SortFunc(t.circles, func(a, b []string) int {
		return cmp.Or(len(b)-len(a), strings.Compare(a[0], b[0]))
	})
	return t.circles
}

// tarjan finds strongly connected components in one pass. Files are numbered from 1 as
// they are reached; low is the least number that is reached from a file by way of files
// which are still open.
type tarjan struct {
	next    map[string][]string
	index   map[string]int
	low     map[string]int
	open    map[string]bool
	stack   []string
	circles [][]string
}

func (t *tarjan) visit(file string) {
	n := len(t.index) + 1
	t.index[file], t.low[file], t.open[file] = n, n, true
	t.stack = append(t.stack, file)
	for _, to := range t.next[file] {
		switch {
		case t.index[to] == 0:
			t.visit(to)
			t.low[file] = min(t.low[file], t.low[to])
		case t.open[to]:
			t.low[file] = min(t.low[file], t.index[to])
		}
	}
	if t.low[file] < n {
		return
	}
	from := slices.Index(t.stack, file)
	circle := slices.Clone(t.stack[from:])
	t.stack = t.stack[:from]
	for _, f := range circle {
		t.open[f] = false
	}
	if len(circle) > 1 {
		slices.Sort(circle)
		t.circles = append(t.circles, circle)
	}
}

// Describe prints the circles, and for each what its files use of each other: the arrows
// among which those to cut are.
func Describe(uses []Use) string {
	var b strings.Builder
	circles := Circles(uses)
	if len(circles) == 0 {
		return "no circles\n"
	}
	for _, circle := range circles {
		fmt.Fprintf(&b, "a circle of %d files: %s\n", len(circle), strings.Join(circle, " "))
		arrows := make(map[[2]string][]string)
		for _, u := range uses {
			if slices.Contains(circle, u.File) && slices.Contains(circle, u.Of) {
				arrows[[2]string{u.File, u.Of}] = append(arrows[[2]string{u.File, u.Of}], u.Name)
			}
		}
		ends := slices.SortedFunc(maps.Keys(arrows), func(a, b [2]string) int { return slices.Compare(a[:], b[:]) })
		for _, e := range ends {
			names := arrows[e]
			slices.Sort(names)
			fmt.Fprintf(&b, "  %s -> %s: %s\n", e[0], e[1], strings.Join(slices.Compact(names), ", "))
		}
	}
	return b.String()
}
