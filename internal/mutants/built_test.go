package main

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorumlock/redlock/internal/gotypes"
)

// A mutant that does not compile is seen by no test. A run of all takes an hour, so it would be
// found out late, by the commit in whose part it is.
func TestEveryMutantCompiles(t *testing.T) {
	fset := token.NewFileSet()
	imports, err := gotypes.Importer(fset, root, nil, ".")
	if err != nil {
		t.Fatal(err)
	}
	paths, err := filepath.Glob(filepath.Join(root, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	bodiless := make(map[string]*ast.File)
	for _, path := range paths {
		name := filepath.Base(path)
		if here, err := build.Default.MatchFile(root, name); err != nil || !here || strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				f.Body = nil // or each mutant would cost as much as the whole package
			}
		}
		bodiless[name] = file
	}
	// check compiles another text of one file, beside what the other files declare.
	check := func(name, text string) (broken error) {
		changed, err := parser.ParseFile(fset, name, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files := []*ast.File{changed}
		for other, file := range bodiless {
			if other != name {
				files = append(files, file)
			}
		}
		conf := types.Config{Importer: imports, Error: func(err error) {
			// Without their bodies, files import what they do not use.
			if e := err.(types.Error); fset.File(e.Pos) == fset.File(changed.Pos()) && broken == nil {
				broken = err
			}
		}}
		_, _ = conf.Check("redlock", fset, files, nil)
		return broken
	}
	if err := check("unused.go", "package redlock; func unused() { x := 1 }"); err == nil {
		t.Fatal("what does not compile is not seen")
	}
	for _, m := range list {
		if bodiless[m.file] == nil {
			continue // a script, which the tests of the contract run
		}
		text, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Fatal(err)
		}
		mutated, err := m.apply(string(text))
		if err != nil {
			continue // see TestEveryMutantChangesOnePlace
		}
		if err := check(m.file, mutated); err != nil {
			t.Errorf("mutant %s: %v", m.name, err)
		}
	}
}
