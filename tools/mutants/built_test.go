package main

import (
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/quorumlock/redlock/internal/testing/gotypes"
)

// A mutant that does not compile is seen by no test. A run of all takes an hour, so it would be
// found out late, by the commit in whose part it is.
func TestEveryMutantCompiles(t *testing.T) {
	fset := token.NewFileSet()
	imports, err := gotypes.Importer(fset, root, "./...")
	if err != nil {
		t.Fatal(err)
	}
	packages := make(map[string]*bodiless)
	check := func(file, text string) error {
		folder := path.Dir(file)
		if packages[folder] == nil {
			packages[folder] = withoutBodies(t, fset, imports, folder)
		}
		return packages[folder].check(path.Base(file), text)
	}
	if err := check("unused.go", "package redlock; func unused() { x := 1 }"); err == nil {
		t.Fatal("what does not compile is not seen")
	}
	for _, m := range list {
		if !strings.HasSuffix(m.file, ".go") {
			m.file, m.old, m.new = twinFileOf(m.file), m.twin.old, m.twin.new // scripts are run by the tests of the contract
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

// bodiless is a package of which the functions have no bodies, or each mutant would cost as much as
// all of it.
type bodiless struct {
	fset    *token.FileSet
	imports types.Importer
	files   map[string]*ast.File
}

func withoutBodies(t *testing.T, fset *token.FileSet, imports types.Importer, folder string) *bodiless {
	b := &bodiless{fset: fset, imports: imports, files: make(map[string]*ast.File)}
	paths, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil || len(paths) == 0 {
		t.Fatal(folder, err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		if here, err := build.Default.MatchFile(filepath.Dir(path), name); err != nil || !here || strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				f.Body = nil
			}
		}
		b.files[name] = file
	}
	return b
}

// check compiles another text of one file, beside what the other files declare.
func (b *bodiless) check(name, text string) (broken error) {
	changed, err := parser.ParseFile(b.fset, name, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	files := []*ast.File{changed}
	for other, file := range b.files {
		if other != name {
			files = append(files, file)
		}
	}
	conf := types.Config{Importer: b.imports, Error: func(err error) {
		// Without their bodies, files import what they do not use.
		if e := err.(types.Error); b.fset.File(e.Pos) == b.fset.File(changed.Pos()) && broken == nil {
			broken = err
		}
	}}
	_, _ = conf.Check("p", b.fset, files, nil)
	return broken
}
