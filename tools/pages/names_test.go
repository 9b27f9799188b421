package pages_test

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// exported are the names of the root package that a user looks for on a page: fields of Options, options of
// a lock, errors, and what one calls.
func exported(t *testing.T) (fields, locks, errs, calls []string) {
	t.Helper()
	for _, s := range ofPackage(t) {
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				switch {
				case !d.Name.IsExported():
				case d.Recv == nil && strings.HasPrefix(d.Name.Name, "With"):
					locks = append(locks, d.Name.Name)
				case d.Recv == nil || isOf(d.Recv, "Redlock", "Mutex", "Lock"):
					calls = append(calls, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch spec := spec.(type) {
					case *ast.ValueSpec:
						if d.Tok == token.VAR && strings.HasPrefix(spec.Names[0].Name, "Err") {
							errs = append(errs, spec.Names[0].Name)
						}
					case *ast.TypeSpec:
						if o, ok := spec.Type.(*ast.StructType); ok && spec.Name.Name == "Options" {
							for _, f := range o.Fields.List {
								for _, name := range f.Names {
									fields = append(fields, name.Name)
								}
							}
						}
					}
				}
			}
		}
	}
	return fields, locks, errs, calls
}

// isOf reports whether a method's receiver is one of these types.
func isOf(recv *ast.FieldList, types ...string) bool {
	typ := recv.List[0].Type
	if star, ok := typ.(*ast.StarExpr); ok {
		typ = star.X
	}
	name, ok := typ.(*ast.Ident)
	for _, of := range types {
		if ok && name.Name == of {
			return true
		}
	}
	return false
}

func read(t *testing.T, paths ...string) (all string) {
	t.Helper()
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		all += string(text)
	}
	return all
}

// onlyInGoDoc are what few programs call, and what explains itself there.
var onlyInGoDoc = []string{"String", "Nodes", "Outcomes"}

// An option, an error and a call stands where a user looks for it.
func TestNamesOfTheAPIAreOnTheirPages(t *testing.T) {
	fields, locks, errs, calls := exported(t)
	operations := read(t, "docs/operations.md")
	for _, name := range append(fields, append(locks, errs...)...) {
		assert.Contains(t, operations, "`"+name+"`", "docs/operations.md has no %s", name)
	}
	pages := read(t, "README.md", "docs/faq.md", "docs/recipes.md", "docs/operations.md", "docs/migrating.md", "docs/how-it-works.md")
	for _, name := range calls {
		if slices.Contains(onlyInGoDoc, name) {
			continue
		}
		assert.True(t, regexp.MustCompile(`\b`+name+`\b`).MatchString(pages), "no page for users has %s", name)
	}
	assert.Greater(t, len(fields)*len(locks)*len(errs), 500)
	assert.Greater(t, len(calls), 20)
}

var (
	commandName = regexp.MustCompile(`Use:\s+"(\w+)`)
	flagOfRun   = regexp.MustCompile(`\bfl\.\w+\(&[\w.]+, "([\w-]+)"`)
)

// Each command, and each flag of run, is on the command's page.
func TestCommandsAndFlagsAreOnTheirPage(t *testing.T) {
	page := read(t, "cmd/redlock/README.md")
	sources, err := filepath.Glob("cmd/redlock/*.go")
	require.NoError(t, err)
	commands := 0
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		for _, m := range commandName.FindAllStringSubmatch(read(t, source), -1) {
			commands++
			assert.True(t, m[1] == "redlock" || strings.Contains(strings.Join(strings.Fields(page), " "), "redlock "+m[1]), "the page has no %s", m[1])
		}
	}
	assert.Greater(t, commands, 8)
	flags := flagOfRun.FindAllStringSubmatch(read(t, "cmd/redlock/run.go"), -1)
	assert.Greater(t, len(flags), 8)
	for _, m := range flags {
		assert.Contains(t, page, "--"+m[1], "a flag of run")
	}
}
