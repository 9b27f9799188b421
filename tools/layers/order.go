package layers

import (
	"errors"
	"fmt"
	"strings"
)

// Marker is the line of a page after which the list of files begins.
const Marker = "<!-- layers -->"

// Order is a list of files from the top layer to the bottom one.
type Order struct {
	// Files are all files, top first.
	Files []string
	// Clusters are the files in braces, which may use each other in any direction.
	Clusters [][]string

	place map[string]int // by file; the same for all files of a cluster
}

// ParseOrder reads the list from a Markdown page: the first block of code after the line
// Marker, fenced or indented by four spaces.
//
// Each line of the list begins with names of files, from which it goes on with anything
// else, as an explanation. A line that begins with anything else is an explanation, too.
// Files lie above those that follow, in the line and in the lines after it. Braces
// around files make a cluster, on one line or over several:
//
//	api.go  open.go   what users call
//	{ queue.go        who waits
//	  waiter.go }     one that waits
//	clock.go          the time
func ParseOrder(page string) (Order, error) {
	block, err := listOf(page)
	if err != nil {
		return Order{}, err
	}
	r := reader{order: Order{place: make(map[string]int)}}
	for line := range strings.Lines(block) {
		for _, word := range filesOf(line) {
			if err := r.take(word); err != nil {
				return Order{}, err
			}
		}
	}
	switch {
	case r.open:
		return Order{}, errors.New("the list of layers has an open brace")
	case len(r.order.Files) == 0:
		return Order{}, errors.New("the list of layers is empty")
	}
	return r.order, nil
}

// reader builds an order from files and braces.
type reader struct {
	order Order
	open  bool // within braces
	layer int  // the last that was begun
}

func (r *reader) take(word string) error {
	o := &r.order
	switch {
	case word == "{" && r.open:
		return errors.New("the list of layers has braces in braces")
	case word == "{":
		r.open = true
		r.layer++
		o.Clusters = append(o.Clusters, nil)
		return nil
	case word == "}" && !r.open:
		return errors.New("the list of layers has a closing brace too many")
	case word == "}":
		r.open = false
		return nil
	}
	if _, twice := o.place[word]; twice {
		return fmt.Errorf("the list of layers has %s twice", word)
	}
	if r.open {
		last := len(o.Clusters) - 1
		o.Clusters[last] = append(o.Clusters[last], word)
	} else {
		r.layer++
	}
	o.Files, o.place[word] = append(o.Files, word), r.layer
	return nil
}

// listOf is the first block of code after the marker.
func listOf(page string) (string, error) {
	_, rest, ok := strings.Cut(page, "\n"+Marker+"\n")
	if !ok {
		return "", fmt.Errorf("the page has no line %q", Marker)
	}
	rest = strings.TrimLeft(rest, "\n")
	if fenced, ok := strings.CutPrefix(rest, "```"); ok {
		_, fenced, _ = strings.Cut(fenced, "\n")
		block, _, ok := strings.Cut(fenced, "\n```")
		if !ok {
			return "", errors.New("the list of layers has no end")
		}
		return block, nil
	}
	var block strings.Builder
	for line := range strings.Lines(rest) {
		if !strings.HasPrefix(line, "    ") && strings.TrimSpace(line) != "" {
			break
		}
		block.WriteString(line)
	}
	return block.String(), nil
}

// filesOf is the names of files, and the braces, with which a line begins. A brace counts
// behind the last of these names, too, so that it may stand at the end of them.
func filesOf(line string) (words []string) {
	line = strings.NewReplacer("{", " { ", "}", " } ").Replace(line)
	for _, word := range strings.Fields(line) {
		if word != "{" && word != "}" && !strings.HasSuffix(word, ".go") {
			break
		}
		words = append(words, word)
	}
	return words
}
