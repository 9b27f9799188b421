package layers

import (
	"cmp"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"slices"
	"strings"

	"github.com/quorumlock/redlock/internal/testing/gotypes"
)

// Use is a place in one file that names something another file of the package declares.
type Use struct {
	File string // the file that uses
	Line int
	Name string // what is used; a field or a method as Type.name
	Of   string // the file that declares it
}

// Load type-checks the package in a folder, without its tests, and returns the names of
// its Go files and all uses between them. Files for other systems are named only.
func Load(dir string) (files []string, uses []Use, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, nil, err
	}
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		if here, err := build.Default.MatchFile(dir, filepath.Base(path)); err != nil || !here {
			files = append(files, filepath.Base(path)) // for another system
			continue
		}
		file, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, nil, err
		}
		files, parsed = append(files, filepath.Base(path)), append(parsed, file)
	}
	imports, err := gotypes.Importer(fset, dir, ".")
	if err != nil {
		return nil, nil, err
	}
	uses, err = Uses(fset, parsed, imports)
	return files, uses, err
}

// Uses type-checks the files of one package and returns its uses between files, in the
// order of files and lines.
func Uses(fset *token.FileSet, files []*ast.File, imports types.Importer) ([]Use, error) {
	info := &types.Info{
		Uses:       make(map[*ast.Ident]types.Object),
		Selections: make(map[*ast.SelectorExpr]*types.Selection),
	}
	conf := types.Config{Importer: imports}
	pkg, err := conf.Check("layers", fset, files, info)
	if err != nil {
		return nil, err
	}
	f := finder{fset: fset, pkg: pkg, owners: owners(pkg)}
	for id, obj := range info.Uses {
		f.add(id.Pos(), obj)
	}
	for sel, s := range info.Selections {
		for _, field := range promoters(s) {
			f.add(sel.Sel.Pos(), field)
		}
	}
	slices.SortFunc(f.uses, func(a, b Use) int {
		return cmp.Or(strings.Compare(a.File, b.File), a.Line-b.Line, strings.Compare(a.Name, b.Name))
	})
	return slices.Compact(f.uses), nil
}

// finder collects the uses of a package.
type finder struct {
	fset   *token.FileSet
	pkg    *types.Package
	owners map[*types.Var]string
	uses   []Use
}

// add records that obj is named at pos, unless the same file declares it, or another
// package.
func (f *finder) add(pos token.Pos, obj types.Object) {
	if obj.Pkg() != f.pkg || !obj.Pos().IsValid() {
		return
	}
	from, of := f.fset.Position(pos), f.fset.Position(obj.Pos())
	if from.Filename == of.Filename {
		return
	}
	f.uses = append(f.uses, Use{
		File: filepath.Base(from.Filename), Line: from.Line,
		Name: f.name(obj), Of: filepath.Base(of.Filename),
	})
}

// name is how a person would refer to obj.
func (f *finder) name(obj types.Object) string {
	switch obj := obj.(type) {
	case *types.Func:
		if recv := obj.Signature().Recv(); recv != nil {
			if n := named(recv.Type()); n != nil {
				return n.Obj().Name() + "." + obj.Name()
			}
		}
	case *types.Var:
		if owner := f.owners[obj.Origin()]; owner != "" {
			return owner + "." + obj.Name()
		}
	}
	return obj.Name()
}

// owners says to which named type each field of a package belongs. Fields of types that
// have no name or are declared in functions are missing.
func owners(pkg *types.Package) map[*types.Var]string {
	all := make(map[*types.Var]string)
	for _, name := range pkg.Scope().Names() {
		t, ok := pkg.Scope().Lookup(name).(*types.TypeName)
		if !ok {
			continue
		}
		if s, ok := t.Type().Underlying().(*types.Struct); ok && !t.IsAlias() {
			for field := range s.Fields() {
				all[field] = name
			}
		}
	}
	return all
}

func named(t types.Type) *types.Named {
	if p, ok := t.(*types.Pointer); ok {
		t = p.Elem()
	}
	n, _ := t.(*types.Named)
	return n
}

// promoters are the embedded fields that a selection passes without naming them: in x.f,
// where f is a field of T and x a struct that embeds T, the field T.
func promoters(s *types.Selection) (fields []*types.Var) {
	t := s.Recv()
	for _, i := range s.Index()[:len(s.Index())-1] {
		if p, ok := t.Underlying().(*types.Pointer); ok {
			t = p.Elem()
		}
		st, ok := t.Underlying().(*types.Struct)
		if !ok { // a method of an interface that another one embeds
			break
		}
		fields = append(fields, st.Field(i))
		t = st.Field(i).Type()
	}
	return fields
}
