package pages_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/tools/layers"
)

// source is a parsed file.
type source struct {
	path    string
	file    *ast.File
	set     *token.FileSet
	imports []string
	text    string
}

// sources parses all Go files of this module below a folder, without nested modules.
func sources(t *testing.T, root string) (all []source) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil && path != "." || d.Name() == ".git" || d.Name() == "testdata" {
				return fs.SkipDir
			}
			return nil
		}
		if strings.HasSuffix(path, ".go") {
			all = append(all, parse(t, path))
		}
		return nil
	})
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return all
}

func parse(t *testing.T, path string) source {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	s := source{path: path, set: token.NewFileSet(), text: string(text)}
	s.file, err = parser.ParseFile(s.set, path, text, parser.ParseComments)
	require.NoError(t, err)
	for _, i := range s.file.Imports {
		name, err := strconv.Unquote(i.Path.Value)
		require.NoError(t, err)
		s.imports = append(s.imports, name)
	}
	return s
}

func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// ofPackage are the files of the root package that are no tests.
func ofPackage(t *testing.T) []source { return ofFolder(t, ".") }

// ofFolder are the files of the package in a folder that are no tests.
func ofFolder(t *testing.T, folder string) (all []source) {
	for _, s := range sources(t, folder) {
		if filepath.Dir(s.path) == folder && !s.isTest() {
			all = append(all, s)
		}
	}
	require.NotEmpty(t, all, folder)
	return all
}

// wall is what each package on the way to a node may import of this module, and whether it may
// know go-redis. The packages above may import those below; none imports the root, which the
// compiler sees to.
var wall = map[string]struct {
	below   []string
	goRedis bool
}{
	"invariants":       {nil, false},
	"tick":             {nil, false},
	"protocol":         {[]string{"tick"}, true},
	"lane":             {[]string{"invariants", "protocol", "tick"}, false},
	"conn":             {[]string{"lane", "protocol", "tick"}, true},
	"guard":            {[]string{"protocol", "tick"}, false},
	"renew":            {[]string{"lane", "tick"}, false},
	"nodes":            {[]string{"guard", "protocol"}, true},
	"testing/fakenode": {[]string{"protocol"}, false},
}

const internalPath = "github.com/quorumlock/redlock/internal/"

// ofLibrary are the files that users compile, tests aside.
func ofLibrary(t *testing.T) []source {
	all := append(ofPackage(t), ofFolder(t, "admin")...)
	for name := range wall {
		if name != "testing/fakenode" {
			all = append(all, ofFolder(t, filepath.Join("internal", name))...)
		}
	}
	return all
}

// What leads to a node is behind a wall: these packages import each other downwards only, and know
// neither votes nor options nor hooks, all of which are the root's.
func TestWall(t *testing.T) {
	for name, may := range wall {
		for _, s := range ofFolder(t, filepath.Join("internal", name)) {
			for _, i := range s.imports {
				if below, ok := strings.CutPrefix(i, internalPath); ok {
					assert.Contains(t, may.below, below, s.path)
				}
				assert.False(t, !may.goRedis && strings.HasPrefix(i, "github.com/redis/go-redis"), "%s imports go-redis", s.path)
			}
		}
	}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{.ImportPath}}", "./internal/lane").Output()
	require.NoError(t, err)
	for dep := range strings.Lines(string(out)) {
		assert.NotContains(t, []string{"github.com/quorumlock/redlock", internalPath + "conn"}, strings.TrimSpace(dep))
	}
}

// uses calls f with every qualified name, such as time.Now, in a file.
func (s source) uses(pkg string, f func(name string, line int)) {
	ast.Inspect(s.file, func(n ast.Node) bool {
		if sel, ok := n.(*ast.SelectorExpr); ok {
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == pkg {
				f(sel.Sel.Name, s.set.Position(sel.Pos()).Line)
			}
		}
		return true
	})
}

func TestQuorumIsPure(t *testing.T) {
	allowed := []string{"errors", "fmt", "slices", "strings", "time"}
	for _, i := range parse(t, "quorum.go").imports {
		assert.Contains(t, allowed, i)
	}
	parse(t, "quorum.go").uses("time", func(name string, line int) {
		assert.Contains(t, []string{"Duration"}, name, "quorum.go:%d", line)
	})
}

// The rules of the guard are a reader's to check: no I/O, no clock, no goroutines.
func TestMemoryIsPure(t *testing.T) {
	path := filepath.Join("internal", "guard", "memory.go")
	for _, i := range parse(t, path).imports {
		assert.Contains(t, []string{"math", "slices", "strings", "time", internalPath + "protocol"}, i)
	}
	parse(t, path).uses("time", func(name string, line int) {
		assert.Contains(t, []string{"Duration", "Second", "Hour"}, name, "memory.go:%d", line)
	})
}

// Only the package tick asks for the present time; everything else is handed it.
func TestOnlyTheClockTellsTheTime(t *testing.T) {
	present := []string{"Now", "Since", "Until", "After", "NewTimer", "AfterFunc", "Tick", "NewTicker", "Sleep"}
	for _, s := range ofLibrary(t) {
		if filepath.Base(filepath.Dir(s.path)) != "tick" {
			s.uses("time", func(name string, line int) {
				assert.NotContains(t, present, name, "%s:%d", s.path, line)
			})
		}
	}
}

var layerCircles = flag.Bool("layers.circles", false, "print the files that use each other in circles, and what they use, with -v")

// A file uses what it declares itself and what files below it declare. The order is the
// list in docs/design.md; fields and methods count, too. Two clusters may use each other
// in any direction, because each is one thing in several files.
//
//	go test -run TestLayers -v -layers.circles .
func TestLayers(t *testing.T) {
	files, uses, err := layers.Load(".")
	require.NoError(t, err)
	if *layerCircles {
		t.Log("\n" + layers.Describe(uses))
	}
	page, err := os.ReadFile("docs/design.md")
	require.NoError(t, err)
	order, err := layers.ParseOrder(string(page))
	require.NoError(t, err)
	for _, problem := range order.Check(files, uses) {
		t.Error(problem)
	}
	assert.LessOrEqual(t, len(order.Clusters), 2, "no further exceptions")
}

func TestOnlyTheEdgeKnowsGoRedis(t *testing.T) {
	edge := []string{"redlock.go", "open.go"}
	for _, s := range ofPackage(t) {
		for _, i := range s.imports {
			if strings.HasPrefix(i, "github.com/redis/go-redis") {
				assert.Contains(t, edge, s.path)
			}
			if below, ok := strings.CutPrefix(i, internalPath); ok {
				assert.Contains(t, []string{"tick", "protocol", "nodes", "lane", "conn", "guard", "renew", "inside", "invariants"}, below, "%s: what users compile has no test code in it", s.path)
			}
			assert.NotContains(t, i, "redlocktest", "%s", s.path)
		}
	}
}

// Users get these dependencies and no other; rivals and telemetry live in modules of
// their own.
func TestRequirements(t *testing.T) {
	allowed := []string{
		"github.com/redis/go-redis/v9", "golang.org/x/sync",
		"github.com/stretchr/testify", "github.com/alicebob/miniredis/v2", // tests and redlocktest
	}
	mod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	for line := range strings.Lines(string(mod)) {
		m := regexp.MustCompile(`^\s*(?:require )?([\w./-]+\.[\w./-]+) v\S+\s*(//.*)?$`).FindStringSubmatch(line)
		if m != nil && !strings.Contains(m[2], "indirect") {
			assert.Contains(t, allowed, m[1])
		}
	}
	assert.NotContains(t, string(mod), "replace")
	for _, s := range sources(t, ".") {
		for _, i := range s.imports {
			if first, _, _ := strings.Cut(i, "/"); !strings.Contains(first, ".") || strings.HasPrefix(i, "github.com/quorumlock/redlock") {
				continue
			}
			known := slices.ContainsFunc(allowed, func(a string) bool { return i == a || strings.HasPrefix(i, a+"/") })
			assert.True(t, known, "%s imports %s", s.path, i)
		}
	}
}

// A test that sleeps in real time is slow on good days and flaky on bad ones. A sleep
// is allowed in files that use synctest, where it costs nothing, and where its line
// says "// real time: " and why.
func TestNoTestSleeps(t *testing.T) {
	for _, s := range sources(t, ".") {
		bubbles := slices.Contains(s.imports, "testing/synctest") || strings.Contains(s.text, "inBubble(") || strings.Contains(s.text, "inHall(") || strings.Contains(s.text, "inHallOf(")
		if !s.isTest() || !slices.Contains([]string{".", "internal/testing/promises"}, filepath.Dir(s.path)) || bubbles {
			continue
		}
		lines := strings.Split(s.text, "\n")
		s.uses("time", func(name string, line int) {
			if name == "Sleep" {
				assert.Contains(t, lines[line-1], "// real time: ", "%s:%d", s.path, line)
			}
		})
	}
}

// Code must not tell where it was written.
func TestNoPathsOfThisMachine(t *testing.T) {
	for _, s := range sources(t, ".") {
		assert.NotRegexp(t, `"/(work|home|root|Users)/`, s.text, s.path)
	}
}

func TestEverythingExportedIsExplained(t *testing.T) {
	for _, s := range ofLibrary(t) {
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Name.IsExported() && !onUnexported(d) {
					assert.NotNil(t, d.Doc, "%s: %s", s.path, d.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok && ts.Name.IsExported() {
						assert.True(t, d.Doc != nil || ts.Doc != nil, "%s: %s", s.path, ts.Name)
					}
				}
			}
		}
	}
}

// onUnexported reports whether a method belongs to an unexported type.
func onUnexported(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return false
	}
	t := d.Recv.List[0].Type
	if star, ok := t.(*ast.StarExpr); ok {
		t = star.X
	}
	id, ok := t.(*ast.Ident)
	return ok && !id.IsExported()
}

// Scenario 10, R10: expiry is always relative. An absolute one would let a client's clock
// decide when a node's key ends.
func TestNothingExpiresAtAnAbsoluteTime(t *testing.T) {
	for _, pattern := range []string{"*.go", "internal/tick/*.go", "internal/protocol/*.go", "internal/lane/*.go", "internal/conn/*.go", "internal/guard/*.go", "internal/protocol/scripts/*.lua"} {
		files, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, f := range files {
			if strings.HasSuffix(f, "_test.go") {
				continue
			}
			text, err := os.ReadFile(f)
			require.NoError(t, err)
			for line := range strings.Lines(string(text)) {
				if comment := strings.TrimSpace(line); strings.HasPrefix(comment, "//") || strings.HasPrefix(comment, "--") {
					continue
				}
				for _, word := range []string{"PXAT", "EXAT", "EXPIREAT"} {
					require.NotContains(t, strings.ToUpper(line), word, f)
				}
			}
		}
	}
}

// What the library requires has one version in the whole tree, or a scanner that looks at the
// modules finds two. promtool is built by itself, with the versions that it was released with: it
// does not build with others.
func TestModulesRequireTheSameVersions(t *testing.T) {
	requirement := regexp.MustCompile(`(?m)^(?:require)?\s+(\S+\.\S+/\S+) (v\S+)`)
	versions := func(path string) map[string]string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		all := make(map[string]string)
		for _, m := range requirement.FindAllStringSubmatch(string(text), -1) {
			all[m[1]] = m[2]
		}
		return all
	}
	root := versions("go.mod")
	require.NotEmpty(t, root["golang.org/x/sys"])
	modules := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "go.mod" || path == filepath.Join("tools", "promtool", "go.mod") {
			return err
		}
		modules++
		for module, version := range versions(path) {
			if want := root[module]; want != "" {
				assert.Equal(t, want, version, "%s in %s", module, path)
			}
		}
		return nil
	}))
	assert.Greater(t, modules, 5)
}

// A program that uses the library gets no code that is for tests.
func TestLibraryNeedsLittle(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{.Path}}{{end}}", ".").Output()
	require.NoError(t, err)
	modules := slices.Compact(slices.Sorted(slices.Values(strings.Fields(string(out)))))
	assert.Subset(t, []string{
		"github.com/cespare/xxhash/v2", "github.com/quorumlock/redlock", "github.com/redis/go-redis/v9", "go.uber.org/atomic", "golang.org/x/sync", "golang.org/x/sys",
	}, modules)
}
