package redlock_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// oddWords are not what the Go documentation would say. What stands behind each is.
var oddWords = map[string]string{
	`(?i)\bas ever\b`:              "as always",
	`(?i)\bis told of\b`:           "says so, is reported",
	`(?i)\bmends?\b|\bmended\b`:    "fix",
	`(?i)\bfor how long yet\b`:     "the time left",
	`(?i)\bare had all or none\b`:  "acquires all or none",
	`(?i)lock[s]? alone\b`:         "an exclusive lock",
	`(?i)\b(held|hold it) alone\b`: "exclusive",
}

// The pages that a user reads first are in idiomatic English, and stay so.
func TestFirstPagesAreWrittenAsGoDocumentationIs(t *testing.T) {
	pages := []string{"README.md", "SECURITY.md", "docs/faq.md", "docs/how-it-works.md", "docs/recipes.md", "errors.go", "loghooks.go", "open.go", "cmd/redlock/list.go", "cmd/redlock/status.go"}
	more, err := filepath.Glob("examples/kubernetes/*.md")
	require.NoError(t, err)
	for _, page := range append(pages, more...) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		n := 0
		for line := range strings.Lines(string(text)) {
			n++
			if strings.HasSuffix(page, ".go") && !strings.HasPrefix(page, "cmd/") && !strings.HasPrefix(strings.TrimSpace(line), "//") {
				continue
			}
			for odd, instead := range oddWords {
				found := regexp.MustCompile(odd).FindString(line)
				assert.Empty(t, found, "%s:%d: say %q: %s", page, n, instead, strings.TrimSpace(line))
			}
		}
	}
}
