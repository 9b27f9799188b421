// Command count prints the size of the library: what a user reads and compiles, what the package
// exports, and what tests it.
//
//	go run -C tools ./count [folder or commit]...
//
// Each argument is a column, so that a change has its figures before and after beside each other.
// Without one it is the folder of the repository.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
)

const module = "github.com/quorumlock/redlock"

var (
	anExcuse = regexp.MustCompile(`(?m)^\tex[A-Z]\w* += "`)
	aMutant  = regexp.MustCompile(`(?m)^\t\tname: `)
)

func main() {
	of := os.Args[1:]
	if len(of) == 0 {
		of = []string{".."}
	}
	if err := run(of); err != nil {
		fmt.Fprintln(os.Stderr, "count:", err)
		os.Exit(1)
	}
}

func run(of []string) error {
	var columns []*count
	for _, o := range of {
		c, err := countOf(o)
		if err != nil {
			return fmt.Errorf("%s: %w", o, err)
		}
		columns = append(columns, c)
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "\t%s\t\n", strings.Join(of, "\t"))
	for i, r := range columns[0].rows() {
		fmt.Fprint(w, r.name, "\t")
		for _, c := range columns {
			fmt.Fprint(w, c.rows()[i].n, "\t")
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// count is of one state of the repository.
type count struct {
	entries, rootFiles, root, compiled, beside, lua   int
	names, fields, options, lockOptions, errors, hook int
	tests, sim, excuses, mutants, other               int
}

type row struct {
	name string
	n    int
}

func (c *count) rows() []row {
	return []row{
		{"entries of the root's listing", c.entries},
		{"files of package redlock", c.rootFiles},
		{"lines of package redlock", c.root},
		{"lines of what it imports", c.compiled},
		{"lines of lockset, admin, redlocktest", c.beside},
		{"lines of Lua", c.lua},
		{"exported names", c.names},
		{"exported fields", c.fields},
		{"fields of Options", c.options},
		{"LockOptions", c.lockOptions},
		{"errors", c.errors},
		{"hooks", c.hook},
		{"lines of tests, without the simulation", c.tests},
		{"lines of the simulation", c.sim},
		{"lines of all other Go", c.other},
		{"excuses of its checker", c.excuses},
		{"mutants", c.mutants},
	}
}

// countOf counts a folder, or a commit of this repository.
func countOf(what string) (*count, error) {
	if info, err := os.Stat(what); err == nil && info.IsDir() {
		return countFolder(what)
	}
	archive, err := exec.Command("git", "-C", "..", "archive", what+"^{tree}").Output()
	if err != nil {
		return nil, fmt.Errorf("no folder, and git archive: %w", err)
	}
	dir, err := os.MkdirTemp("", "count")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	tar := exec.Command("tar", "-x", "-C", dir)
	tar.Stdin = bytes.NewReader(archive)
	if err := tar.Run(); err != nil {
		return nil, err
	}
	return countFolder(dir)
}

func countFolder(dir string) (*count, error) {
	c := new(count)
	listing, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range listing {
		if e.Name() != ".git" {
			c.entries++
		}
	}
	if err := c.exported(dir); err != nil {
		return nil, err
	}
	compiled := make(map[string]bool)
	if err := imported(dir, ".", compiled); err != nil {
		return nil, err
	}
	return c, filepath.WalkDir(dir, func(file string, e fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case e.IsDir() && e.Name() == ".git":
			return fs.SkipDir
		case e.IsDir():
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(dir, file)
		c.file(filepath.ToSlash(name), text, compiled)
		return err
	})
}

// file counts one by its name below the root.
func (c *count) file(name string, text []byte, compiled map[string]bool) {
	lines, folder := bytes.Count(text, []byte("\n")), path.Dir(name)
	switch {
	case path.Ext(name) == ".lua" && compiled[path.Dir(folder)]:
		c.lua += lines
	case path.Ext(name) != ".go":
	case strings.HasPrefix(path.Base(name), "sim_") || strings.HasPrefix(name, "internal/testing/sim/"):
		c.sim += lines
		c.excuses += len(anExcuse.FindAll(text, -1))
	case strings.HasSuffix(name, "_test.go"):
		c.tests += lines
	case folder == ".":
		c.root += lines
		c.rootFiles++
	case compiled[folder]:
		c.compiled += lines
	case slices.Contains([]string{"lockset", "admin", "redlocktest"}, folder):
		c.beside += lines
	default:
		c.other += lines
		if strings.HasSuffix(name, "mutants/list.go") {
			c.mutants = len(aMutant.FindAll(text, -1))
		}
	}
}

// imported adds the folders of this module that a package needs, itself among them.
func imported(dir, folder string, found map[string]bool) error {
	if found[folder] {
		return nil
	}
	found[folder] = true
	p, err := build.Default.ImportDir(filepath.Join(dir, folder), 0)
	if err != nil {
		return err
	}
	for _, i := range p.Imports {
		if below, ours := strings.CutPrefix(i, module+"/"); ours {
			if err := imported(dir, below, found); err != nil {
				return err
			}
		}
	}
	return nil
}

// exported counts what package redlock exports: constants, variables, functions, types, and methods
// and fields of exported types.
func (c *count) exported(dir string) error {
	p, err := build.Default.ImportDir(dir, 0)
	if err != nil {
		return err
	}
	for _, name := range p.GoFiles {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.FileExports(f)
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil && !ast.IsExported(receiver(d.Recv.List[0].Type)) {
					continue
				}
				c.names++
				if d.Type.Results != nil && d.Recv == nil && len(d.Type.Results.List) == 1 && isNamed(d.Type.Results.List[0].Type, "LockOption") {
					c.lockOptions++
				}
			case *ast.GenDecl:
				for _, s := range d.Specs {
					c.spec(s)
				}
			}
		}
	}
	return nil
}

func receiver(e ast.Expr) string {
	if p, ok := e.(*ast.StarExpr); ok {
		e = p.X
	}
	if g, ok := e.(*ast.IndexExpr); ok {
		e = g.X
	}
	return e.(*ast.Ident).Name
}

func isNamed(e ast.Expr, name string) bool {
	i, ok := e.(*ast.Ident)
	return ok && i.Name == name
}

func (c *count) spec(s ast.Spec) {
	switch s := s.(type) {
	case *ast.ValueSpec:
		c.names += len(s.Names)
		for _, n := range s.Names {
			if strings.HasPrefix(n.Name, "Err") {
				c.errors++
			}
		}
	case *ast.TypeSpec:
		c.names++
		t, ok := s.Type.(*ast.StructType)
		if !ok {
			return
		}
		fields := 0
		for _, f := range t.Fields.List {
			fields += max(1, len(f.Names))
		}
		c.fields += fields
		switch s.Name.Name {
		case "Options":
			c.options = fields
		case "Hooks":
			c.hook = fields
		}
	}
}
