// Command render makes the tables of the pages and all plots from the file that a run of
// the bench has written:
//
//	go run -C bench . --json ../docs/figures.json
//	go run -C bench ./render
//
// A table stands on its page between two comments:
//
//	<!-- figures: NAME -->
//	<!-- /figures -->
//
// What is between them is replaced; blocks.go has the names. A test fails if a page or a
// plot is not what the file makes of it.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/quorumlock/redlock/bench/results"
)

func main() {
	file := flag.String("from", "../docs/figures.json", "results of a run of the bench")
	root := flag.String("root", "..", "folder of the library, in which pages and plots are written")
	flag.Parse()
	if err := write(*file, *root); err != nil {
		fmt.Fprintln(os.Stderr, "render:", err)
		os.Exit(1)
	}
}

func write(file, root string) error {
	r, err := results.Read(file)
	if err != nil {
		return err
	}
	made, err := render(r, root)
	if err != nil {
		return err
	}
	for path, content := range made {
		if err := os.WriteFile(filepath.Join(root, path), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// render returns the files of pages and plots, by their paths below root.
func render(r *results.Report, root string) (map[string][]byte, error) {
	made := make(map[string][]byte)
	for _, page := range pages {
		old, err := os.ReadFile(filepath.Join(root, page))
		if err != nil {
			return nil, err
		}
		if made[page], err = fill(string(old), func(name string) (string, error) { return block(r, name) }); err != nil {
			return nil, fmt.Errorf("%s: %w", page, err)
		}
	}
	for name, c := range plots(r) {
		svg, err := c.svg()
		if err != nil {
			return nil, err
		}
		made[filepath.Join("docs", name)] = svg
	}
	return made, nil
}
