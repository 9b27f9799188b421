package redlock_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/quorumlock/redlock/internal/doccheck"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func pages(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return append(all, "README.md", "README.zh-CN.md", "examples/README.md", "cmd/redlock/README.md")
}

// Examples that import other libraries ("go peers") are compiled in bench, which has them.
func TestExamplesOfThePagesCompile(t *testing.T) {
	c := doccheck.Compiler{
		Dir: ".",
		Imports: []string{
			"context", "crypto/tls", "database/sql", "errors", "fmt", "log", "log/slog", "net/http", "os", "testing", "testing/synctest", "time",
			"github.com/quorumlock/redlock", "github.com/quorumlock/redlock/redlocktest", "github.com/redis/go-redis/v9",
		},
		Scope: `
			func chargeCard(context.Context, ...any) error { return nil }
			func work(context.Context) error { return nil }
			func nextBatch() bool { return false }
		`,
		Params: "ctx context.Context, t *testing.T, rl *redlock.Redlock, lock *redlock.Lock, db *sql.DB, addrs []string, err error",
	}
	require.NoError(t, c.Load())
	compiled := 0
	for _, page := range pages(t) {
		blocks, err := doccheck.Blocks(page)
		require.NoError(t, err)
		for _, b := range blocks {
			if b.Info == "go" {
				compiled++
				assert.NoError(t, c.Compile(b), "%v", b)
			}
		}
	}
	assert.NotZero(t, compiled)
}

// everyPage is each Markdown file of the repository.
func everyPage(t *testing.T) (all []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			all = append(all, filepath.ToSlash(path))
		}
		if err == nil && entry.Name() == ".git" {
			return filepath.SkipDir
		}
		return err
	}))
	require.NotEmpty(t, all)
	return all
}

func TestLinksOfThePagesLeadSomewhere(t *testing.T) {
	for _, page := range everyPage(t) {
		broken, err := doccheck.BrokenLinks(page)
		require.NoError(t, err)
		assert.Empty(t, broken, page)
	}
}

// The README grew by a page a month. What it promises can be read without the page of decisions.
func TestTheREADMEStaysShort(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	assert.LessOrEqual(t, len(strings.Fields(string(text))), 1650, "words: move what not every reader needs to a page below docs")
	assert.NotContains(t, string(text), "design.md", "a promise is explained in the FAQ or safety.md")
}

var (
	linkOfOurs  = regexp.MustCompile(`https://github\.com/quorumlock/redlock/blob/main/([\w./-]+)(?:#([\w-]+))?`)
	pageInWords = regexp.MustCompile(`\b((?:docs|bench|proof|examples)/[\w./-]*\w\.md)\b`)
	partInWords = regexp.MustCompile(`(?s)"([A-Z][^"\n]*)"(?: in|,)?\s+(?://\s+|#\s+)?(docs/[\w.-]+\.md)`)
)

// Alerts, templates and comments name pages, too, and parts of them. A page that is split or
// renamed takes them along.
func TestPagesThatAreNamedElsewhereExist(t *testing.T) {
	named := 0
	require.NoError(t, filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			if entry != nil && entry.Name() == ".git" {
				return filepath.SkipDir
			}
			return err
		}
		if !slices.Contains([]string{".go", ".yml", ".yaml", ".sh", ".html"}, filepath.Ext(path)) {
			return nil
		}
		text, err := os.ReadFile(path)
		for _, link := range linkOfOurs.FindAllStringSubmatch(string(text), -1) {
			named++
			assert.FileExists(t, link[1], "linked in %s", path)
			if link[2] != "" {
				assert.True(t, doccheck.HasAnchor(link[1], link[2]), "%s links to %s, which has no #%s", path, link[1], link[2])
			}
		}
		for _, page := range pageInWords.FindAllStringSubmatch(string(text), -1) {
			named++
			assert.FileExists(t, page[1], "named in %s", path)
		}
		for _, part := range partInWords.FindAllStringSubmatch(string(text), -1) {
			page, err := os.ReadFile(part[2])
			if assert.NoError(t, err, path) {
				assert.Contains(t, string(page), "# "+part[1]+"\n", "%s names this part of %s", path, part[2])
			}
		}
		return err
	}))
	assert.NotZero(t, named)
}

func TestPicturesAreWellFormed(t *testing.T) {
	pictures, err := filepath.Glob("docs/img/*.svg")
	require.NoError(t, err)
	require.NotEmpty(t, pictures)
	for _, p := range pictures {
		f, err := os.Open(p)
		require.NoError(t, err)
		d := xml.NewDecoder(f)
		for err == nil {
			_, err = d.Token()
		}
		assert.True(t, errors.Is(err, io.EOF), "%s: %v", p, err)
		require.NoError(t, f.Close())
	}
}

// scenarios is how many failures docs/safety-tests.md goes through.
const scenarios = 121

var (
	scenarioRow = regexp.MustCompile(`(?m)^\| (\d+) \|.*\|$`)
	linkedTest  = regexp.MustCompile("\\[`((?:Test|Fuzz)\\w+)`\\]\\(\\.\\./([^)]+)\\)")
	namedTest   = regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
)

func TestEveryScenarioIsInTheTableAndItsTestsExist(t *testing.T) {
	page, err := os.ReadFile("docs/safety-tests.md")
	require.NoError(t, err)
	rows := scenarioRow.FindAllStringSubmatch(string(page), -1)
	require.Len(t, rows, scenarios)
	last := 0
	for _, row := range rows {
		// Up to 94 there are all of them; those of what came later have gaps.
		n, err := strconv.Atoi(row[1])
		require.NoError(t, err)
		assert.True(t, n == last+1 || n > max(last, 94), "%d comes after %d", n, last)
		last = n
		cells := strings.Split(row[0], "|")
		require.Len(t, cells, 6, row[0])
		promise, tests := cells[3], cells[4]
		for _, link := range linkedTest.FindAllStringSubmatch(tests, -1) {
			source, err := os.ReadFile(link[2])
			if assert.NoError(t, err, "scenario %s", row[1]) {
				assert.True(t, strings.Contains(string(source), "\nfunc "+link[1]+"("), "scenario %s: %s is not in %s", row[1], link[1], link[2])
			}
		}
		if !namedTest.MatchString(tests) {
			assert.Regexp(t, "out of the model|not built", promise, "scenario %s has no test", row[1])
		}
	}
	// And what any page names without a link, such as in the text below the table.
	simulated, err := filepath.Glob("sim_*_test.go")
	require.NoError(t, err)
	all := testNames(t)
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, name := range namedTest.FindAllStringSubmatch(string(text), -1) {
			if strings.HasPrefix(name[1], "TestSim") && len(simulated) == 0 {
				continue
			}
			assert.True(t, slices.Contains(all, name[1]), "%s names %s, which does not exist", page, name[1])
		}
	}
}

// The track record has each fault of its appendix in one row.
func TestEveryFaultOfTheAppendixIsInTheTrackRecord(t *testing.T) {
	appendix, err := os.ReadFile("docs/track-record-appendix.md")
	require.NoError(t, err)
	_, list, found := strings.Cut(string(appendix), "\n## What was found\n")
	require.True(t, found)
	list, _, found = strings.Cut(list, "\n## ")
	require.True(t, found)
	var faults, named []string
	for _, row := range scenarioRow.FindAllStringSubmatch(list, -1) {
		if strings.Count(row[0], " | ") > 2 { // another table has groups of them
			faults = append(faults, row[1])
		}
	}
	require.NotEmpty(t, faults)
	results, err := os.ReadFile("docs/track-record.md")
	require.NoError(t, err)
	for _, row := range regexp.MustCompile(`(?m)\| ((?:\d+, )*\d+) \|$`).FindAllStringSubmatch(string(results), -1) {
		named = append(named, strings.Split(row[1], ", ")...)
	}
	assert.ElementsMatch(t, faults, named)
	assert.Contains(t, string(results), strconv.Itoa(len(faults))+" faults of the library")
}

// testNames are the tests of all modules.
func testNames(t *testing.T) (names []string) {
	t.Helper()
	declared := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	require.NoError(t, filepath.WalkDir(".", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		for _, name := range declared.FindAllStringSubmatch(string(source), -1) {
			names = append(names, name[1])
		}
		return err
	}))
	return names
}
