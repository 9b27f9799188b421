package redlock_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quorumlock/redlock/internal/doccheck"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// outline is what a page and its translation have in common.
type outline struct {
	sections []section
	code     []string // fenced and indented blocks
	pictures []string
}

// section is what stands below one heading.
type section struct {
	depth   string // of the heading: "", "#", "##"
	bullets int
	rows    int      // of tables, but for those of figures, which a command makes anew
	links   []string // without the anchors of pages that have a translation, whose headings differ
}

var (
	picture  = regexp.MustCompile(`!\[[^\]]*\]\(([^)]+)\)`)
	linkOnIt = regexp.MustCompile(`\]\(([^)\s]+)\)`)
)

func outlineOf(t *testing.T, page string) (o outline) {
	t.Helper()
	text, err := os.ReadFile(page)
	require.NoError(t, err)
	o.sections = []section{{}}
	here := func() *section { return &o.sections[len(o.sections)-1] }
	fenced, indented, made, only := false, false, false, false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, " \n")
		fence := strings.HasPrefix(line, "```")
		switch {
		case line == "<!-- only in Chinese -->", line == "<!-- /only in Chinese -->":
			only = !only
		case only:
			continue // what readers of Chinese tutorials look for by its Chinese name
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
			o.sections = append(o.sections, section{depth: line[:strings.IndexByte(line, ' ')]})
		case strings.HasPrefix(line, "<!-- figures"), strings.HasPrefix(line, "<!-- /figures"):
			made = !made
		case strings.HasPrefix(line, "- "):
			here().bullets++
		case strings.HasPrefix(line, "|") && !made:
			here().rows++
		}
		indented = strings.HasPrefix(line, "    ") || indented && line == "" // one block goes on behind an empty line
		for _, p := range picture.FindAllStringSubmatch(line, -1) {
			o.pictures = append(o.pictures, p[1])
		}
		for _, l := range linkOnIt.FindAllStringSubmatch(line, -1) {
			here().links = append(here().links, inEnglish(page, l[1]))
		}
	}
	for i := range o.sections {
		slices.Sort(o.sections[i].links)
	}
	return o
}

// inEnglish is where a link of a page leads to in English.
func inEnglish(page, link string) string {
	if strings.Contains(link, "://") {
		return link
	}
	path, fragment, _ := strings.Cut(link, "#")
	path = strings.Replace(path, ".zh-CN", "", 1)
	translation := strings.TrimSuffix(filepath.Join(filepath.Dir(page), path), ".md") + ".zh-CN.md"
	if _, err := os.Stat(translation); path == "" || err == nil || fragment == "" {
		return path
	}
	return path + "#" + fragment
}

// translations are the pages in Chinese.
func translations(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob("docs/*.zh-CN.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	return append(pages, "README.zh-CN.md")
}

// A page in Chinese says the same as the English one in its own words. So what cannot be
// compared goes stale unseen, but not the code, and not a section, promise or row that one of
// them has alone: items, rows and links are compared section by section.
func TestPagesInChineseHaveWhatTheEnglishOnesHave(t *testing.T) {
	code := 0
	for _, page := range translations(t) {
		english := strings.Replace(page, ".zh-CN", "", 1)
		want, got := outlineOf(t, english), outlineOf(t, page)
		code += len(want.code)
		assert.Equal(t, want.code, got.code, "%s: the code is not that of %s", page, english)
		assert.Equal(t, want.pictures, got.pictures, "%s: the pictures are not those of %s", page, english)
		if assert.Len(t, got.sections, len(want.sections), "%s has not as many sections as %s", page, english) {
			for i := range want.sections {
				assert.Equal(t, want.sections[i], got.sections[i], "%s: the section %d does not have what that of %s has", page, i, english)
			}
		}
		for of, other := range map[string]string{page: english, english: page} {
			text, err := os.ReadFile(of)
			require.NoError(t, err)
			assert.Contains(t, string(text), "]("+filepath.Base(other)+")", "%s has no link to %s", of, other)
		}
	}
	assert.NotZero(t, code)
}

// The questions in Chinese are those in English, in their order: each has the anchor of the other.
func TestQuestionsInChineseAreThoseInEnglish(t *testing.T) {
	english, err := os.ReadFile("docs/faq.md")
	require.NoError(t, err)
	chinese, err := os.ReadFile("docs/faq.zh-CN.md")
	require.NoError(t, err)
	asked := doccheck.Anchors(string(english))[1:] // behind the title
	require.NotEmpty(t, asked)
	assert.Equal(t, asked, doccheck.Names(string(chinese)))
	for i, name := range doccheck.Names(string(chinese)) {
		assert.Contains(t, string(chinese), `<a id="`+name+"\"></a>\n## ", "question %d has its name elsewhere", i+1)
	}
}
