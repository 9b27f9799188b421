package pages_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// budgets are how many words a page may have, as wc counts them. A page grows by a sentence at a time,
// each for a good reason, until it is not read: what is to come in has to push something out.
var budgets = map[string]int{
	"README.md":               1000,
	".github/CONTRIBUTING.md": 1800,
	"docs/choosing.md":        2400,
	"docs/design.md":          6000,
	"docs/faq.md":             1750,
	"docs/how-it-works.md":    2500,
	"docs/migrating.md":       1350,
	"docs/performance.md":     1450,
	"docs/recipes.md":         1000,
	"docs/safety.md":          3500,
	"docs/safety-tests.md":    2500,
	"docs/services.md":        650,
	"docs/track-record.md":    1200,
}

const (
	allWords      = 40_000 // of all pages but CHANGELOG.md
	allOperations = 4700   // of operations and sizing
	wordsOfOthers = 2500   // of a page that is not named above
)

func TestPagesKeepTheirBudgets(t *testing.T) {
	all, operations := 0, 0
	for _, page := range everyPage(t) {
		if page == "CHANGELOG.md" {
			continue
		}
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		words := len(strings.Fields(string(text)))
		most, named := budgets[page]
		switch page {
		case "docs/operations.md", "docs/sizing.md":
			operations += words
			most, named = allOperations, true
		}
		if !named {
			most = wordsOfOthers
		}
		assert.LessOrEqual(t, words, most, "words of %s", page)
		all += words
	}
	assert.LessOrEqual(t, operations, allOperations, "words of operations and sizing")
	assert.LessOrEqual(t, all, allWords, "words of all pages")
	for page := range budgets {
		assert.FileExists(t, page)
	}
}

const wordsOfDoc = 120 // of the doc comment of one exported name

// What is longer is not read, and belongs on a page.
func TestDocCommentsKeepTheirBudget(t *testing.T) {
	seen := 0
	for _, dir := range []string{".", "admin", "lockset", "redlocktest"} {
		files, err := filepath.Glob(filepath.Join(dir, "*.go"))
		require.NoError(t, err)
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
			require.NoError(t, err)
			ast.Inspect(f, func(n ast.Node) bool {
				name, doc := documented(n)
				if ast.IsExported(name) && doc != nil {
					assert.LessOrEqual(t, len(strings.Fields(doc.Text())), wordsOfDoc, "words of the doc comment of %s in %s", name, path)
					seen++
				}
				return true
			})
		}
	}
	assert.Greater(t, seen, 100)
}

// documented is the first name that n declares, and its doc comment.
func documented(n ast.Node) (name string, doc *ast.CommentGroup) {
	switch n := n.(type) {
	case *ast.FuncDecl:
		return n.Name.Name, n.Doc
	case *ast.Field:
		if len(n.Names) > 0 {
			return n.Names[0].Name, n.Doc
		}
	case *ast.GenDecl:
		switch spec := n.Specs[0].(type) {
		case *ast.TypeSpec:
			return spec.Name.Name, n.Doc
		case *ast.ValueSpec:
			return spec.Names[0].Name, n.Doc
		}
	}
	return "", nil
}
