// Package apirecord compares what a package exports with a recorded list, one line for each
// declaration, field and method. A line that is gone breaks programs that use it, and one that
// is new is a promise. So both are for a person to decide, who sees them in the diff of a file.
package apirecord

import (
	"errors"
	"fmt"
	"go/token"
	"go/types"
	"os"
	"slices"
	"strings"

	"github.com/quorumlock/redlock/internal/testing/gotypes"
)

// Check compares the package with the record in a file, whose lines are sorted. The go command
// finds the package from dir. add: what is not recorded is
// added to the file. Nothing takes a line away but an editor.
func Check(dir, pkg, file string, add bool) error {
	recorded, err := read(file)
	if err != nil && !(add && errors.Is(err, os.ErrNotExist)) {
		return err
	}
	imports, err := gotypes.Importer(token.NewFileSet(), dir, pkg)
	if err != nil {
		return err
	}
	p, err := imports.Import(pkg)
	if err != nil {
		return err
	}
	exported := Of(p)
	gone, fresh := without(recorded, exported), without(exported, recorded)
	if add && len(fresh) > 0 {
		all := slices.Sorted(slices.Values(append(recorded, fresh...)))
		if err := os.WriteFile(file, []byte(strings.Join(all, "\n")+"\n"), 0o644); err != nil {
			return err
		}
		fresh = nil
	}
	return errors.Join(
		complaint(gone, "%s: removed or changed, which breaks programs that use it. Where that is meant, delete these lines from %s:", pkg, file),
		complaint(fresh, "%s: not recorded. Where it is meant to stay, the flag -rewrite adds it to %s:", pkg, file),
	)
}

func read(file string) ([]string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return strings.FieldsFunc(string(text), func(r rune) bool { return r == '\n' }), nil
}

// without is a without the lines of b.
func without(a, b []string) []string {
	return slices.DeleteFunc(slices.Clone(a), func(line string) bool { return slices.Contains(b, line) })
}

func complaint(lines []string, format string, args ...any) error {
	if len(lines) == 0 {
		return nil
	}
	return fmt.Errorf(format+"\n\t%s", append(args, strings.Join(lines, "\n\t"))...)
}

// Of lists what a package exports, sorted. A constant has its value, and a field its tag, since
// programs may depend on them. That a struct is comparable is not listed: most are for more
// fields to come, of any type.
func Of(pkg *types.Package) []string {
	l := lister{pkg: pkg}
	for _, name := range pkg.Scope().Names() {
		if obj := pkg.Scope().Lookup(name); obj.Exported() {
			l.object(obj)
		}
	}
	slices.Sort(l.lines)
	return slices.Compact(l.lines)
}

type lister struct {
	pkg   *types.Package
	lines []string
}

func (l *lister) add(format string, args ...any) {
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

func (l *lister) object(obj types.Object) {
	switch obj := obj.(type) {
	case *types.Const:
		l.add("const %s %s = %s", obj.Name(), l.of(obj.Type()), obj.Val().ExactString())
	case *types.TypeName:
		if obj.IsAlias() {
			l.add("type %s = %s", obj.Name(), l.of(types.Unalias(obj.Type())))
			return
		}
		l.named(obj)
	default:
		l.add("%s", types.ObjectString(obj, types.RelativeTo(l.pkg)))
	}
}

// of is a type as the package itself would write it.
func (l *lister) of(t types.Type) string { return types.TypeString(t, types.RelativeTo(l.pkg)) }

func (l *lister) named(obj *types.TypeName) {
	t := obj.Type().(*types.Named)
	name := obj.Name() + strings.TrimPrefix(l.of(t), obj.Name()) // with its type parameters
	if s, ok := t.Underlying().(*types.Struct); ok {
		l.add("type %s struct", name)
		l.fields("type "+name+" struct, ", s)
	} else {
		l.add("type %s %s", name, l.of(t.Underlying()))
	}
	byValue := types.NewMethodSet(t)
	for m := range types.NewMethodSet(types.NewPointer(t)).Methods() {
		if !m.Obj().Exported() || types.IsInterface(t) {
			continue
		}
		recv := name
		if byValue.Lookup(l.pkg, m.Obj().Name()) == nil {
			recv = "*" + name
		}
		l.add("method (%s) %s%s", recv, m.Obj().Name(), strings.TrimPrefix(l.of(m.Obj().(*types.Func).Signature()), "func"))
	}
}

// fields adds the exported fields of a struct, and those that it has by way of embedded ones
// that are not exported.
func (l *lister) fields(prefix string, s *types.Struct) {
	for i := range s.NumFields() {
		f := s.Field(i)
		if f.Exported() {
			l.add("%s", strings.TrimSpace(fmt.Sprintf("%s%s %s %s", prefix, f.Name(), l.of(f.Type()), s.Tag(i))))
			continue
		}
		t := f.Type()
		if p, ok := t.Underlying().(*types.Pointer); ok {
			t = p.Elem()
		}
		if inner, ok := t.Underlying().(*types.Struct); ok && f.Embedded() {
			l.fields(prefix, inner)
		}
	}
}
