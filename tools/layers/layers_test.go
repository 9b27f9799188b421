package layers

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// planted is a package of three files in order: top.go uses middle.go, which uses
// bottom.go. Cases add to these.
var planted = map[string]string{
	"top.go": `package p
		const Limit = 3
		type Top struct { size int; m Middle }
		func (t *Top) Grow() { t.size += Limit; t.m.low.Do() }
		func Start() *Top { return &Top{} }`,
	"middle.go": `package p
		type Middle struct { low Bottom }`,
	"bottom.go": `package p
		type doer interface { Do() }
		type Bottom struct { d doer; any any }
		func (b Bottom) Do() { b.d.Do() }`,
}

const plantedOrder = "# P\n\n" + Marker + "\n    top.go middle.go\n    bottom.go  the rest\n\nMore.\n"

// usesOf type-checks the planted package with further source at the end of its files.
func usesOf(t *testing.T, more map[string]string) (files []string, uses []Use) {
	t.Helper()
	source := maps.Clone(planted)
	for file, text := range more {
		if source[file] == "" {
			source[file] = "package p"
		}
		source[file] += "\n" + text
	}
	fset := token.NewFileSet()
	var parsed []*ast.File
	for _, file := range slices.Sorted(maps.Keys(source)) {
		f, err := parser.ParseFile(fset, "some/folder/"+file, source[file], 0)
		require.NoError(t, err)
		files, parsed = append(files, file), append(parsed, f)
	}
	uses, err := Uses(fset, parsed, importer.Default())
	require.NoError(t, err)
	return files, uses
}

func check(t *testing.T, page string, more map[string]string) []string {
	t.Helper()
	order, err := ParseOrder(page)
	require.NoError(t, err)
	return order.Check(usesOf(t, more))
}

func TestUsesDownwardsPass(t *testing.T) {
	require.Empty(t, check(t, plantedOrder, nil))
}

func TestUpwardUsesFail(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string
		want       []string
	}{
		"a function": {"middle.go", "func _() { Start() }",
			[]string{"middle.go:3: uses Start of top.go, which lies above"}},
		"a constant": {"bottom.go", "const half = Limit / 2",
			[]string{"bottom.go:5: uses Limit of top.go, which lies above"}},
		"a type": {"middle.go", "type up = *Top",
			[]string{"middle.go:3: uses Top of top.go, which lies above"}},
		// No name of top.go but the field's or the method's: the value comes from any.
		"a field": {"bottom.go", "func size(b Middle2) int { return b.t.size }\ntype Middle2 struct { t Top }",
			[]string{"bottom.go:5: uses Top.size of top.go, which lies above", "bottom.go:6: uses Top of top.go, which lies above"}},
		"a method": {"bottom.go", "func grow[T interface{ *Top }](t T) { (*Top)(t).Grow() }",
			[]string{
				"bottom.go:5: uses Top of top.go, which lies above", "bottom.go:5: uses Top.Grow of top.go, which lies above",
			}},
		"a key in a literal": {"middle.go", "var _ = Top{size: 1}",
			[]string{"middle.go:3: uses Top of top.go, which lies above", "middle.go:3: uses Top.size of top.go, which lies above"}},
		"a method through a variable of its own file": {"middle.go", "func (m Middle) grow() { started.Grow() }\nvar started = Start()",
			[]string{"middle.go:3: uses Top.Grow of top.go, which lies above", "middle.go:4: uses Start of top.go, which lies above"}},
		"a method on a type above": {"middle.go", "func (t *Top) More() {}",
			[]string{"middle.go:3: uses Top of top.go, which lies above"}},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, check(t, plantedOrder, map[string]string{c.file: c.text}))
		})
	}
}

// A field that is embedded is used without being named.
func TestUsesOfEmbeddedFields(t *testing.T) {
	_, uses := usesOf(t, map[string]string{
		"middle.go": "type Wide struct { *Bottom }",
		"top.go":    "func _(w Wide) { w.Do(); _ = w.any }",
	})
	for _, want := range []Use{
		{"top.go", 6, "Bottom.Do", "bottom.go"}, {"top.go", 6, "Bottom.any", "bottom.go"}, {"top.go", 6, "Wide.Bottom", "middle.go"},
	} {
		require.Contains(t, uses, want)
	}
}

// A method's call counts where the interface declares it, and its implementation may lie
// anywhere.
func TestCallsThroughInterfacesMayGoUp(t *testing.T) {
	require.Empty(t, check(t, plantedOrder, map[string]string{
		"top.go":    "type run struct{}\nfunc (run) Do() {}\nvar _ = Bottom{d: run{}}",
		"bottom.go": "func _(b Bottom) { b.d.Do() }",
	}))
	require.Equal(t, []string{"bottom.go:5: uses upper of middle.go, which lies above", "bottom.go:5: uses upper.Up of middle.go, which lies above"},
		check(t, plantedOrder, map[string]string{
			"middle.go": "type upper interface { Up() }",
			"bottom.go": "func _(u upper) { u.Up() }",
		}))
}

func TestClustersMayUseEachOther(t *testing.T) {
	more := map[string]string{"bottom.go": "const half = Limit / 2"}
	for _, list := range []string{
		"    {top.go middle.go bottom.go}  all",
		"    { middle.go\n      top.go     the top\n\n    and\n      bottom.go } the rest",
	} {
		require.Empty(t, check(t, "\n"+Marker+"\n"+list+"\n", more), list)
	}
	require.Equal(t, []string{"bottom.go:5: uses Limit of top.go, which lies above", "{top.go middle.go}: is no circle, so these files need no braces"},
		check(t, "\n"+Marker+"\n    {top.go middle.go} bottom.go", more), "braces elsewhere excuse nothing")
	require.Equal(t, []string{"{top.go middle.go}: is no circle, so these files need no braces"},
		check(t, "\n"+Marker+"\n    { top.go middle.go }  one thing?\n    bottom.go", nil))
}

func TestEveryFileHasItsPlace(t *testing.T) {
	require.Equal(t, []string{"other.go: has no place in the list"},
		check(t, plantedOrder, map[string]string{"other.go": "func _() { Start() }"}))
	require.Equal(t, []string{"gone.go: is listed, and there is no such file"},
		check(t, strings.Replace(plantedOrder, "top.go", "gone.go top.go", 1), nil))
}

func TestListsThatAreWrong(t *testing.T) {
	for list, want := range map[string]string{
		"    a.go\n    b.go a.go\n":           "has a.go twice",
		"    {a.go {b.go}}\n":                 "braces in braces",
		"    {a.go\n":                         "an open brace",
		"    this is {\n    a.go\n    b.go }": "a closing brace too many",
		"No list.\n    a.go\n":                "is empty",
		"```text\n a.go\n":                    "has no end",
	} {
		_, err := ParseOrder("\n" + Marker + "\n" + list)
		require.ErrorContains(t, err, want, list)
	}
	_, err := ParseOrder("a page\n\n    a.go\n")
	require.ErrorContains(t, err, "has no line")
}

func TestListsInFences(t *testing.T) {
	o, err := ParseOrder("x\n" + Marker + "\n\n```text\na.go b.go  two\nand more: c.go\n{ d.go }\n```\n    z.go\n")
	require.NoError(t, err)
	require.Equal(t, []string{"a.go", "b.go", "d.go"}, o.Files)
	require.Equal(t, [][]string{{"d.go"}}, o.Clusters)
}

func TestCircles(t *testing.T) {
	arrows := func(list string) (uses []Use) {
		for _, a := range strings.Fields(list) {
			from, to, _ := strings.Cut(a, ">")
			uses = append(uses, Use{File: from, Of: to, Name: "x"})
		}
		return uses
	}
	require.Empty(t, Circles(arrows("a>b b>c a>c")))
	require.Equal(t, [][]string{{"b", "c", "d"}, {"e", "f"}}, Circles(arrows("a>b b>c c>d d>b d>e e>f f>e f>g")))
	require.Equal(t, [][]string{{"a", "b", "c"}}, Circles(arrows("a>b b>a a>c c>a")))
	require.Equal(t, "no circles\n", Describe(arrows("a>b")))
	require.Equal(t, "a circle of 2 files: a b\n  a -> b: x\n  b -> a: x\n", Describe(arrows("a>b b>a b>c a>b")))
}

// The package that this file tests is in order, too.
func TestLoad(t *testing.T) {
	files, uses, err := Load(".")
	require.NoError(t, err)
	require.Equal(t, []string{"circles.go", "layers.go", "order.go", "uses.go"}, files)
	require.Empty(t, Circles(uses))
	require.True(t, slices.ContainsFunc(uses, func(u Use) bool {
		return u.File == "layers.go" && u.Name == "Order.place" && u.Of == "order.go"
	}))
}
