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

// outline is what a page and its translation have in common.
type outline struct {
	headings []string // only how deep each is
	code     []string // fenced and indented blocks
	pictures []string
	bullets  int
	rows     int // of tables, but for those of figures, which a command makes anew
}

var picture = regexp.MustCompile(`!\[[^\]]*\]\(([^)]+)\)`)

func outlineOf(t *testing.T, page string) (o outline) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	fenced, indented, made := false, false, false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, " \n")
		fence := strings.HasPrefix(line, "```")
		switch {
		case fence && !fenced:
			fenced = true
			o.code = append(o.code, line+"\n")
		case fenced:
			fenced = !fence
			o.code[len(o.code)-1] += line + "\n"
		case strings.HasPrefix(line, "    "):
			if !indented {
				o.code = append(o.code, "")
			}
			o.code[len(o.code)-1] += line + "\n"
		case strings.HasPrefix(line, "#"):
			o.headings = append(o.headings, line[:strings.IndexByte(line, ' ')])
		case strings.HasPrefix(line, "<!-- figures"), strings.HasPrefix(line, "<!-- /figures"):
			made = !made
		case strings.HasPrefix(line, "- "):
			o.bullets++
		case strings.HasPrefix(line, "|") && !made:
			o.rows++
		}
		indented = strings.HasPrefix(line, "    ") || indented && line == "" // one block goes on behind an empty line
		for _, p := range picture.FindAllStringSubmatch(line, -1) {
			o.pictures = append(o.pictures, p[1])
		}
	}
	return o
}

// A page in Chinese says the same as the English one in its own words. So what cannot be
// compared goes stale unseen, but not the code, and not a section or row that was added.
func TestPagesInChineseHaveWhatTheEnglishOnesHave(t *testing.T) {
	pages, err := filepath.Glob("docs/*.zh-CN.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range append(pages, "README.zh-CN.md") {
		english := strings.Replace(page, ".zh-CN", "", 1)
		want, got := outlineOf(t, english), outlineOf(t, page)
		require.NotEmpty(t, want.code, english)
		assert.Equal(t, want.headings, got.headings, "%s: the headings' levels are not those of %s", page, english)
		assert.Equal(t, want.code, got.code, "%s: the code is not that of %s", page, english)
		assert.Equal(t, want.pictures, got.pictures, "%s: the pictures are not those of %s", page, english)
		assert.Equal(t, want.bullets, got.bullets, "%s: the lists do not have as many items as those of %s", page, english)
		assert.Equal(t, want.rows, got.rows, "%s: the tables do not have as many rows as those of %s", page, english)
		for of, other := range map[string]string{page: english, english: page} {
			text, err := os.ReadFile(of)
			require.NoError(t, err)
			assert.Contains(t, string(text), "]("+filepath.Base(other)+")", "%s has no link to %s", of, other)
		}
	}
}
