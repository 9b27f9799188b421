// Package layers checks that the files of one Go package form layers: a file uses what it
// declares itself and what files below it declare, and nothing of files above it.
//
// Go has this rule for packages, where imports may not form a circle, and not for the
// files of one package. The order of the files is written down as a list (see ParseOrder),
// so that a reader and the check read the same one. Uses are taken from the type checker,
// so fields and methods count as functions, types, constants and variables do. A call
// of an interface's method counts as a use of the file that declares the interface: a file
// can therefore call upwards through an interface that lies at its side or below.
package layers

import (
	"fmt"
	"slices"
	"strings"
)

// Check reports each way in which the files of a package differ from the order: files that
// are missing on one side, uses of files above outside clusters, and clusters that are no
// circle, of which the braces can go.
func (o Order) Check(files []string, uses []Use) (problems []string) {
	for _, f := range files {
		if _, ok := o.place[f]; !ok {
			problems = append(problems, f+": has no place in the list")
		}
	}
	for _, f := range o.Files {
		if !slices.Contains(files, f) {
			problems = append(problems, f+": is listed, and there is no such file")
		}
	}
	for _, u := range uses {
		from, ok := o.place[u.File]
		of, known := o.place[u.Of]
		if ok && known && of < from {
			problems = append(problems, fmt.Sprintf("%s:%d: uses %s of %s, which lies above", u.File, u.Line, u.Name, u.Of))
		}
	}
	for _, c := range o.Clusters {
		if !isCircle(c, uses) {
			problems = append(problems, fmt.Sprintf("{%s}: is no circle, so these files need no braces", strings.Join(c, " ")))
		}
	}
	return problems
}

// isCircle reports whether each of the files reaches each other by uses among them.
func isCircle(files []string, uses []Use) bool {
	var among []Use
	for _, u := range uses {
		if slices.Contains(files, u.File) && slices.Contains(files, u.Of) {
			among = append(among, u)
		}
	}
	circles := Circles(among)
	return len(circles) == 1 && len(circles[0]) == len(files)
}
