package apirecord_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/apirecord"

	// What is recorded: a result that the go command remembers is of these very packages.
	_ "github.com/quorumlock/redlock"
	_ "github.com/quorumlock/redlock/admin"
	_ "github.com/quorumlock/redlock/internal/telemetry"
	_ "github.com/quorumlock/redlock/lockset"
	_ "github.com/quorumlock/redlock/redlocktest"
)

var rewrite = flag.Bool("rewrite", false, "add what is not recorded")

// Programs use the first four packages. Modules that have tags of their own use the last one:
// a program may have a version of such a module that is older than that of the library.
func TestAPI(t *testing.T) {
	const module = "github.com/quorumlock/redlock"
	for _, pkg := range []string{module, module + "/admin", module + "/lockset", module + "/redlocktest", module + "/internal/telemetry"} {
		file := filepath.Join("testdata", filepath.Base(pkg)+".txt")
		assert.NoError(t, apirecord.Check("../../..", pkg, file, *rewrite))
	}
}

const planted = `package p

	var ErrHeld error
	const Most, least = 3, 1
	type Vote uint8
	const Granted Vote = 2
	func (v Vote) String() string { return "" }
	type Options struct { TTL int; Name string ` + "`json:\"name\"`" + `; hooks []func() }
	type Lock struct { resource; Key string }
	func (l *Lock) Release(why error) error { return nil }
	func (l *Lock) check() {}
	type resource struct { Until int; owner string }
	func (r resource) Node() string { return "" }
	type Doer interface { Do() }
	type Option func(*terms)
	type terms struct{}
	type Same = Lock
	func All[T any](all ...T) *Lock { return nil }`

func check(t *testing.T, source string) *types.Package {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "p.go", source, 0)
	require.NoError(t, err)
	pkg, err := new(types.Config).Check("example.com/p", fset, []*ast.File{f}, nil)
	require.NoError(t, err)
	return pkg
}

func TestWhatIsExportedIsListed(t *testing.T) {
	require.Equal(t, []string{
		"const Granted Vote = 2",
		"const Most untyped int = 3",
		"func All[T any](all ...T) *Lock",
		"method (*Lock) Release(why error) error",
		"method (Lock) Node() string",
		"method (Vote) String() string",
		"type Doer interface{Do()}",
		"type Lock struct",
		"type Lock struct, Key string",
		"type Lock struct, Until int",
		"type Option func(*terms)",
		"type Options struct",
		"type Options struct, Name string json:\"name\"",
		"type Options struct, TTL int",
		"type Same = Lock",
		"type Vote uint8",
		"var ErrHeld error",
	}, apirecord.Of(check(t, planted)))
}

// Check against a record of this package itself.
func TestRecordsThatDiffer(t *testing.T) {
	const pkg = "github.com/quorumlock/redlock/internal/testing/apirecord"
	file := filepath.Join(t.TempDir(), "record.txt")
	compare := func(add bool) error { return apirecord.Check(".", pkg, file, add) }
	change := func(old, new string) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Contains(t, string(text), old)
		require.NoError(t, os.WriteFile(file, []byte(strings.Replace(string(text), old, new, 1)), 0o600))
	}
	require.ErrorIs(t, compare(false), os.ErrNotExist, "a record that is lost does not pass")
	require.NoError(t, compare(true))
	require.NoError(t, compare(false))

	const of = "func Of(pkg *go/types.Package) []string\n"
	change(of, "")
	require.EqualError(t, compare(false), pkg+": not recorded. Where it is meant to stay, the flag -rewrite adds it to "+file+":\n\t"+strings.TrimSpace(of))
	require.NoError(t, compare(true))
	require.NoError(t, compare(false))

	change(of, "func Of(pkg *go/types.Package) string\n")
	for _, add := range []bool{false, true, true} {
		err := compare(add)
		require.ErrorContains(t, err, "removed or changed")
		require.ErrorContains(t, err, "\n\tfunc Of(pkg *go/types.Package) string")
		require.Equal(t, !add, strings.Contains(err.Error(), "not recorded"), "%v", err)
	}
	change("func Of(pkg *go/types.Package) string\n", "")
	require.NoError(t, compare(false))
}
