package main

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// pages may have blocks.
var pages = []string{"README.md", "docs/zh/README.md", "docs/performance.md", "docs/choosing.md"}

var (
	opening = regexp.MustCompile(`(?m)^<!-- figures: ([\w-]+) -->$`)
	closing = regexp.MustCompile(`(?m)^<!-- /figures -->$`)
)

// fill replaces what stands between the marks of each block.
func fill(page string, content func(name string) (string, error)) ([]byte, error) {
	var b strings.Builder
	for {
		at := opening.FindStringSubmatchIndex(page)
		if at == nil {
			break
		}
		name := page[at[2]:at[3]]
		rest := page[at[1]:]
		end := closing.FindStringIndex(rest)
		if end == nil || opening.MatchString(rest[:end[0]]) {
			return nil, fmt.Errorf("block %s has no end", name)
		}
		text, err := content(name)
		if err != nil {
			return nil, err
		}
		b.WriteString(page[:at[1]] + "\n" + text + rest[end[0]:end[1]])
		page = rest[end[1]:]
	}
	if closing.MatchString(page) {
		return nil, errors.New("an end without a block")
	}
	b.WriteString(page)
	return []byte(b.String()), nil
}
