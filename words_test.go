package redlock_test

import (
	"go/ast"
	"go/doc"
	"go/parser"
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

// oddWords are not what the Go documentation would say. What stands behind each is.
var oddWords = func() map[*regexp.Regexp]string {
	compiled := map[*regexp.Regexp]string{}
	for odd, instead := range map[string]string{
		`(?i)\bas ever\b`:                              "as always",
		`(?i)\b(is|are|was|were) told of\b`:            "says so, is reported, is told about",
		`(?i)\bmends?\b|\bmended\b`:                    "fix",
		`(?i)\bfor how long yet\b`:                     "the time left",
		`(?i)\b(are|is) had all or none\b`:             "acquires all or none",
		`(?i)locks? alone\b`:                           "an exclusive lock",
		`(?i)\b(held|hold it|wants? it) alone\b`:       "exclusive",
		`(?i)\bin vain\b`:                              "without success, fails",
		`(?i)\bwhoever\b`:                              "anyone who, the client that",
		`(^|[.;|] |^- |^\* )Who `:                      "a client that, anyone who",
		`(?i)\bthose who\b`:                            "name them: the waiters, clients that",
		`(?i)\bgone by our hand\b|free of the lock by`: "because we removed it",
		`(?i)\bthat is none\b`:                         "malformed, invalid",
		`(?i)\brights([^-,]|$)`:                        "permissions",
		`(?i)\b(stands?|stay|first) in line\b`:         "in the queue",
	} {
		compiled[regexp.MustCompile(odd)] = instead
	}
	return compiled
}()

// noSubject is for pages and the API: a client, waiter, process, node or request does things there.
var noSubject = regexp.MustCompile(`(?i)\b(nobody|somebody)\b`)

// sayOtherwise fails for each odd word in a line.
func sayOtherwise(t *testing.T, where string, n int, line string) {
	t.Helper()
	for odd, instead := range oddWords {
		assert.Empty(t, odd.FindString(line), "%s:%d: say %q: %s", where, n, instead, strings.TrimSpace(line))
	}
	if strings.HasSuffix(where, ".md") || strings.HasPrefix(where, "go doc") {
		assert.Empty(t, noSubject.FindString(line), "%s:%d: name it: %s", where, n, strings.TrimSpace(line))
	}
}

// Pages and help texts are in idiomatic English, and stay so. Not looked at are the pages for
// people who change the library (design.md, the appendix of the track record) and the record of versions.
func TestPagesAreWrittenAsGoDocumentationIs(t *testing.T) {
	pages := everyPage(t)
	for _, command := range []string{"bench", "check", "demo", "list", "release", "root", "run", "status", "watch", "watch_web"} {
		pages = append(pages, "cmd/redlock/"+command+".go") // with the texts of --help
	}
	more, err := filepath.Glob("cmd/redlock/internal/web/page/*.html")
	require.NoError(t, err)
	require.NotEmpty(t, more)
	pages = append(pages, more...)
	notLookedAt := []string{"docs/design.md", "docs/track-record-appendix.md", "CHANGELOG.md"}
	for _, page := range pages {
		if slices.Contains(notLookedAt, page) || strings.HasSuffix(page, ".zh-CN.md") {
			continue
		}
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			if strings.HasSuffix(page, ".go") {
				line, _, _ = strings.Cut(" "+line, "//") // of the command what it says, and not its comments
			}
			sayOtherwise(t, page, n, strings.TrimRight(line, "\n"))
		}
	}
}

// What pkg.go.dev shows is a page, too.
func TestCommentsOfTheAPIAreWrittenAsGoDocumentationIs(t *testing.T) {
	sources, err := filepath.Glob("*.go")
	require.NoError(t, err)
	set := token.NewFileSet()
	var files []*ast.File
	for _, source := range sources {
		if strings.HasSuffix(source, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, source, nil, parser.ParseComments)
		require.NoError(t, err)
		files = append(files, f)
	}
	p, err := doc.NewFromFiles(set, files, "github.com/quorumlock/redlock")
	require.NoError(t, err)
	looked := 0
	look := func(name, text string) {
		looked++
		n := 0
		for line := range strings.Lines(text) {
			n++
			sayOtherwise(t, "go doc "+name, n, strings.TrimRight(line, "\n"))
		}
	}
	values := func(all []*doc.Value) {
		for _, v := range all {
			look(v.Names[0], v.Doc)
			ast.Inspect(v.Decl, func(n ast.Node) bool {
				if s, ok := n.(*ast.ValueSpec); ok {
					look(s.Names[0].Name, s.Doc.Text()+s.Comment.Text())
				}
				return true
			})
		}
	}
	funcs := func(all []*doc.Func) {
		for _, f := range all {
			look(strings.Trim(f.Recv+"."+f.Name, "*."), f.Doc)
		}
	}
	look("redlock", p.Doc)
	values(p.Consts)
	values(p.Vars)
	funcs(p.Funcs)
	for _, typ := range p.Types {
		look(typ.Name, typ.Doc)
		values(typ.Consts)
		values(typ.Vars)
		funcs(typ.Funcs)
		funcs(typ.Methods)
		ast.Inspect(typ.Decl, func(n ast.Node) bool {
			if f, ok := n.(*ast.Field); ok && len(f.Names) > 0 && f.Names[0].IsExported() {
				look(typ.Name+"."+f.Names[0].Name, f.Doc.Text()+f.Comment.Text())
			}
			return true
		})
	}
	assert.Greater(t, looked, 100)
}
