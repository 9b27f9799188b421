// Package gotypes lets tests type-check source that imports compiled packages.
package gotypes

import (
	"bytes"
	"fmt"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"strings"
)

// Importer returns an importer of the packages that match the patterns, and of all that
// they import. It has the go command compile them in dir; what the build
// cache has is not compiled again. That is many times faster than to type-check the imports from their
// source.
func Importer(fset *token.FileSet, dir string, patterns ...string) (types.Importer, error) {
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, patterns...)...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w\n%s", err, &stderr)
	}
	exports := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		if path, file, ok := strings.Cut(strings.TrimSpace(line), " "); ok {
			exports[path] = file
		}
	}
	return importer.ForCompiler(fset, "gc", func(path string) (io.ReadCloser, error) {
		file := exports[path]
		if file == "" {
			return nil, fmt.Errorf("%s is not among the packages that were asked for", path)
		}
		return os.Open(file)
	}), nil
}
