package pages_test

import (
	"cmp"
	"encoding/xml"
	"errors"
	"fmt"
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"io"
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

	"github.com/quorumlock/redlock/internal/testing/doccheck"
)

func pages(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, all)
	return append(append(all, translations(t)...), "README.md", "examples/README.md", "cmd/redlock/README.md")
}

// Examples that import other libraries ("go peers") are compiled in bench, which has them.
func TestExamplesOfThePagesCompile(t *testing.T) {
	c := doccheck.Compiler{
		Dir: ".",
		Imports: []string{
			"context", "crypto/tls", "database/sql", "errors", "fmt", "log", "log/slog", "net/http", "os", "testing", "testing/synctest", "time",
			"github.com/quorumlock/redlock", "github.com/quorumlock/redlock/lockset", "github.com/quorumlock/redlock/redlocktest", "github.com/redis/go-redis/v9",
		},
		Scope: `
			func buildReport(context.Context, ...any) error { return nil }
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

func TestLinksOfThePagesLeadSomewhere(t *testing.T) {
	for _, page := range everyPage(t) {
		broken, err := doccheck.BrokenLinks(page)
		require.NoError(t, err)
		assert.Empty(t, broken, page)
	}
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

var (
	scenarioRow = regexp.MustCompile(`(?m)^\| (\d[\d, -]*) \|(.*)\|(.*)\|$`)
	namedTest   = regexp.MustCompile("`((?:Test|Fuzz)\\w+)`")
)

// numbersOf reads "18-21, 34".
func numbersOf(t *testing.T, cell string) (all []int) {
	t.Helper()
	for part := range strings.SplitSeq(cell, ", ") {
		first, last, _ := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		require.NoError(t, err, cell)
		to, err := strconv.Atoi(cmp.Or(last, first))
		require.NoError(t, err, cell)
		for n := from; n <= to; n++ {
			all = append(all, n)
		}
	}
	return all
}

// Code and tests name scenarios by their numbers: each is in one row, and none is left out.
func TestEveryScenarioHasItsRow(t *testing.T) {
	page, err := os.ReadFile("docs/safety-tests.md")
	require.NoError(t, err)
	var numbers []int
	for _, row := range scenarioRow.FindAllStringSubmatch(string(page), -1) {
		numbers = append(numbers, numbersOf(t, row[1])...)
		if !namedTest.MatchString(row[3]) {
			assert.Contains(t, row[2], "out of the model", "scenario %s has no test", row[1])
		}
	}
	slices.Sort(numbers)
	require.GreaterOrEqual(t, len(numbers), 123)
	for i, n := range numbers {
		require.Equal(t, i+1, n, "a scenario is missing, or in two rows")
	}
}

func TestTestsThatPagesNameExist(t *testing.T) {
	all := testNames(t)
	named := 0
	for _, page := range everyPage(t) {
		if page == "extra/redsync/README.md" {
			continue // it names tests of redsync
		}
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, name := range namedTest.FindAllStringSubmatch(string(text), -1) {
			named++
			assert.True(t, slices.Contains(all, name[1]), "%s names %s, which does not exist", page, name[1])
		}
	}
	assert.Greater(t, named, 150)
}

// Each rule of safety.md names the code that keeps it.
func TestCodeThatRulesNameExists(t *testing.T) {
	page, err := os.ReadFile("docs/safety.md")
	require.NoError(t, err)
	rows := regexp.MustCompile(`(?m)^\| R\d+ \|.*\|(.*)\|$`).FindAllStringSubmatch(string(page), -1)
	require.Greater(t, len(rows), 15)
	var code strings.Builder
	for _, s := range ofLibrary(t) {
		code.WriteString(s.text)
	}
	for _, row := range rows {
		for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
			if strings.HasSuffix(name[1], ".lua") {
				assert.FileExists(t, "internal/protocol/scripts/"+name[1])
				continue
			}
			typ, method, of := strings.Cut(name[1], ".")
			declared := `(?m)^(?:func|type) ` + typ + `\b`
			if of {
				declared = `(?m)^func \(\w+ \*?` + typ + `(?:\[\w+\])?\) ` + method + `\(`
			}
			assert.True(t, regexp.MustCompile(declared).MatchString(code.String()), "%s names %s", row[0], name[1])
		}
	}
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
			o.pictures = append(o.pictures, filepath.Base(p[1]))
		}
		for _, l := range linkOnIt.FindAllStringSubmatch(line, -1) {
			here().links = append(here().links, inEnglish(t, page, l[1]))
		}
	}
	for i := range o.sections {
		slices.Sort(o.sections[i].links)
	}
	return o
}

// chinese is where the pages in Chinese are, which are called as the English ones are.
const chinese = "docs/zh/"

// englishOf is the page that a page in Chinese is a translation of, and any other page itself.
func englishOf(page string) string {
	name, translated := strings.CutPrefix(page, chinese)
	switch {
	case !translated:
		return page
	case name == "README.md":
		return name
	default:
		return "docs/" + name
	}
}

// inEnglish is where a link of a page leads to in English. A section of a page that has a translation has
// another name in each.
func inEnglish(t *testing.T, page, link string) string {
	if strings.Contains(link, "://") {
		return link
	}
	path, fragment, _ := strings.Cut(link, "#")
	if path == "" {
		return ""
	}
	path = englishOf(filepath.ToSlash(filepath.Join(filepath.Dir(page), path)))
	for _, translation := range translations(t) {
		if englishOf(translation) == path {
			return path
		}
	}
	if fragment == "" {
		return path
	}
	return path + "#" + fragment
}

// translations are the pages in Chinese.
func translations(t *testing.T) []string {
	t.Helper()
	pages, err := filepath.Glob(chinese + "*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	return pages
}

// A page in Chinese says the same as the English one in its own words. So what cannot be
// compared goes stale unseen, but not the code, and not a section, promise or row that one of
// them has alone: items, rows and links are compared section by section.
func TestPagesInChineseHaveWhatTheEnglishOnesHave(t *testing.T) {
	code := 0
	for _, page := range translations(t) {
		english := englishOf(page)
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
			link, err := filepath.Rel(filepath.Dir(of), other)
			require.NoError(t, err)
			assert.Contains(t, string(text), "]("+filepath.ToSlash(link)+")", "%s has no link to %s", of, other)
		}
	}
	assert.NotZero(t, code)
}

// The questions in Chinese are those in English, in their order: each has the anchor of the other.
func TestQuestionsInChineseAreThoseInEnglish(t *testing.T) {
	english, err := os.ReadFile("docs/faq.md")
	require.NoError(t, err)
	chinese, err := os.ReadFile(chinese + "faq.md")
	require.NoError(t, err)
	asked := doccheck.Anchors(string(english))[1:] // behind the title
	require.NotEmpty(t, asked)
	assert.Equal(t, asked, doccheck.Names(string(chinese)))
	for i, name := range doccheck.Names(string(chinese)) {
		assert.Contains(t, string(chinese), `<a id="`+name+"\"></a>\n## ", "question %d has its name elsewhere", i+1)
	}
}

// A statement is a figure of a page: of what, how much, and where.
type statement struct{ of, value, where string }

// contradictions are the things that are stated with different values.
func contradictions(all []statement) (found []string) {
	first := map[string]statement{}
	for _, s := range all {
		was, stated := first[s.of]
		if !stated {
			first[s.of] = s
		} else if was.value != s.value {
			found = append(found, fmt.Sprintf("%s: %s in %s, %s in %s", s.of, was.value, was.where, s.value, s.where))
		}
	}
	return found
}

// facts are figures that people write by hand on more than one page, or that code or a test knows.
// The first group of a pattern is the value; its spaces, commas and hyphens do not count.
var facts = []struct {
	of       string
	is       string // where something besides the pages knows it
	least    int    // places
	patterns []string
}{
	{"default TTL", "10s", 3, []string{`default of (10 s|\d+ ?s) (?:is|suits)`, "`Options.TTL`, `WithTTL` \\((\\d+ ?s)\\)", "\\| `TTL` \\| (\\w+) \\|", `at the default of (\d+ ?s)`}},
	{"share for drift", "0.01", 2, []string{"`Options.DriftFactor` \\(([\\d.]+)\\)", "\\| `DriftFactor` \\| ([\\d.]+) \\|"}},
	{"share for drift in percent", "1%", 3, []string{`gives? up a share of the TTL, (\d+ ?%)`, `让出 TTL 的一部分，默认 (\d+ ?%)`, `within DriftFactor \((\d+ ?%) by default\)`}},
	{"added to drift", "2ms", 4, []string{`clocks drift; (\d+ ?ms) are added`, `another (\d+ ?ms) are subtracted`, `TTL x DriftFactor \+ (\d+ ?ms)`, `1 %，外加 (\d+ ?ms)`, `1 % by default, and (\d+ ?ms)`}},
	{"longest NodeTimeout by default", "200ms", 3, []string{`TTL/50, within \w+ to (\w+)`, `fiftieth of the TTL, at most (\d+ ?ms)`, `fiftieth of the expiry, from \d+ to (\d+ ?ms)`}},
	{"permits at most", "1024", 2, []string{`from 1 to ([\d,]+)`, `N up to ([\d,]+)`}},
	{"bytes of a waiter", "", 2, []string{`about (\d+) bytes per waiter`, `[Aa]bout (\d+) bytes per entry`}},
	{"Go", "1.26", 2, []string{`Go (1\.\d+)`}},
	{"versions of Redis that were run", "", 2, []string{`Redis (6\.2[,、].{6,16}8\.\d)(?:, and| 和) Valkey`}},
	{"versions of Valkey that were run", "", 2, []string{`Valkey (8\.0[,、].{3,10}9\.\d)`}},
}

func TestNoFactIsStatedWithTwoValues(t *testing.T) {
	goMod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	require.Contains(t, string(goMod), "\ngo 1.26", "the list of facts says 1.26")
	spaces := strings.NewReplacer(" ?", `\s?`, " ", `\s+`) // pages break lines anywhere
	plain := strings.NewReplacer(" ", "", ",", "", "、", "", "-", "", "and", "")
	for _, fact := range facts {
		var all []statement
		if fact.is != "" {
			all = append(all, statement{fact.of, fact.is, "the code"})
		}
		stated := 0
		for _, page := range everyPage(t) {
			text, err := os.ReadFile(page)
			require.NoError(t, err)
			for _, pattern := range fact.patterns {
				for _, m := range regexp.MustCompile(spaces.Replace(pattern)).FindAllStringSubmatch(string(text), -1) {
					stated++
					all = append(all, statement{fact.of, plain.Replace(m[1]), page})
				}
			}
		}
		assert.GreaterOrEqual(t, stated, fact.least, "%s: the patterns no longer find what the pages say", fact.of)
		assert.Empty(t, contradictions(all))
	}
}

// otherParts are tables of other parts of a run of the benchmarks. The pace of the machine changed
// meanwhile, so what they say of the same thing differs, and the page has to say why.
var otherParts = []struct{ tables, part, said string }{
	{"elsewhere-", "the part with other places", "at another time of the run"},
}

var (
	figuresOf = regexp.MustCompile(`(?s)<!-- figures: ([\w-]+) -->\n(.*?)<!-- /figures -->`)
	libraries = regexp.MustCompile(`redsync, fail fast|redsync, every 5 ms|rueidislock, 1 key|redlock, fenced|redlock|redsync|rueidislock|bsm|bare lane without go-redis|bare lane`)
	crowd     = regexp.MustCompile(`(\d+ × \d+)|(\d+) (?:goroutines?\b|at once|个同时)`)
	// otherMeasure are rows and columns of something else than the rate of healthy servers.
	otherMeasure = regexp.MustCompile(`hung|卡住|times|share of|CPU|allocations`)
	aloneRate    = regexp.MustCompile(`^\d[\d,]*$`)
)

func unitOf(texts ...string) string {
	for _, text := range texts {
		switch {
		case strings.Contains(text, "turns/s"), strings.Contains(text, "轮/秒"):
			return "turns/s"
		case strings.Contains(text, "cycles/s"), strings.Contains(text, "次/秒"):
			return "cycles/s"
		}
	}
	return ""
}

// rates are the cycles or turns per second that a table states, of each library and crowd.
func rates(page, name, table string) (all []statement) {
	part := ""
	for _, other := range otherParts {
		if strings.HasPrefix(name, other.tables) {
			part = ", " + other.part
		}
	}
	add := func(library, crowd, unit, value string) {
		library = libraries.FindString(library)
		if library != "" && crowd != "" && aloneRate.MatchString(value) {
			all = append(all, statement{fmt.Sprintf("%s of %s with %s%s", unit, library, crowd, part), value, page + ", table " + name})
		}
	}
	var rows [][]string
	for line := range strings.Lines(table) {
		if cells := strings.Split(strings.TrimSpace(line), "|"); len(cells) > 3 && !strings.Contains(line, "---") {
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells[1:len(cells)-1])
		}
	}
	if len(rows) == 0 {
		return nil
	}
	corner, heading := rows[0][0], rows[0]
	for _, row := range rows[1:] {
		for i, cell := range row[1:] {
			in := row[0] + " | " + heading[i+1]
			if otherMeasure.MatchString(in) {
				continue
			}
			many, unit := "", unitOf(in, corner)
			if m := crowd.FindStringSubmatch(in + " | " + corner); m != nil {
				many = cmp.Or(m[1], m[2])
			}
			if corner == "goroutines" {
				many, unit = row[0], "cycles/s"
			}
			if unit == "" {
				continue
			}
			value, _, _ := strings.Cut(cell, " ") // of several in a cell the first
			add(cmp.Or(libraries.FindString(heading[i+1]), row[0]), many, unit, strings.TrimRight(value, ",;"))
		}
	}
	return all
}

// The same thing has one figure, however many tables have it. Tables of another part of a run are
// compared among themselves, where their page says so.
func TestNoRateIsStatedWithTwoValues(t *testing.T) {
	var all []statement
	tables := map[string]bool{}
	for _, page := range everyPage(t) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, at := range figuresOf.FindAllStringSubmatchIndex(string(text), -1) {
			name, table := string(text[at[2]:at[3]]), string(text[at[4]:at[5]])
			stated := rates(page, name, table)
			if len(stated) > 0 {
				tables[name] = true
			}
			all = append(all, stated...)
			for _, other := range otherParts {
				if strings.HasPrefix(name, other.tables) && len(stated) > 0 {
					assert.True(t, strings.Contains(strings.Join(strings.Fields(string(text)), " "), other.said), "%s does not say why the rates of table %s differ from those of others: %q", page, name, other.said)
				}
			}
		}
	}
	assert.Empty(t, contradictions(all))
	for _, name := range []string{"summary", "summary-zh", "free", "hot", "elsewhere-free", "elsewhere-hot"} {
		assert.Contains(t, tables, name, "no rate was found in the table")
	}
	seen, twice := map[string]int{}, 0
	for _, s := range all {
		if seen[s.of]++; seen[s.of] == 2 {
			twice++
		}
	}
	assert.Greater(t, twice, 8, "rates that are stated more than once")
}

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

// Pages and help texts are in idiomatic English, and stay so. Not looked at is the record of versions.
func TestPagesAreWrittenAsGoDocumentationIs(t *testing.T) {
	pages := everyPage(t)
	for _, command := range []string{"bench", "check", "demo", "list", "release", "root", "run", "status", "watch", "watch_web"} {
		pages = append(pages, "cmd/redlock/"+command+".go") // with the texts of --help
	}
	more, err := filepath.Glob("cmd/redlock/internal/web/page/*.html")
	require.NoError(t, err)
	require.NotEmpty(t, more)
	pages = append(pages, more...)
	for _, page := range pages {
		if page == "CHANGELOG.md" || strings.HasPrefix(page, chinese) {
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

// A module that dependabot does not know keeps old versions for ever.
func TestDependabotKnowsEachModule(t *testing.T) {
	text, err := os.ReadFile(".github/dependabot.yml")
	require.NoError(t, err)
	var known, modules []string
	for _, m := range regexp.MustCompile(`(?m)^      - (/\S*)$`).FindAllStringSubmatch(string(text), -1) {
		known = append(known, m[1])
	}
	require.NoError(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata"):
			return fs.SkipDir
		case d.Name() == "go.mod":
			dir := filepath.ToSlash(filepath.Dir(path))
			modules = append(modules, "/"+strings.TrimPrefix(dir, "."))
		}
		return nil
	}))
	assert.ElementsMatch(t, modules, known)
}

// Each step of .ci/deep, and no other, has a job that runs at night.
func TestEachDeepStepRunsAtNight(t *testing.T) {
	out, err := exec.Command(".ci/deep", "list").Output()
	require.NoError(t, err)
	var steps []string
	for line := range strings.Lines(string(out)) {
		name, does, _ := strings.Cut(strings.TrimSpace(line), " ")
		assert.NotEmpty(t, strings.TrimSpace(does), "what %s does", name)
		steps = append(steps, name)
	}
	require.NotEmpty(t, steps)
	text, err := os.ReadFile(".github/workflows/deep.yml")
	require.NoError(t, err)
	var jobs []string
	parts := make(map[string][]string) // by step, where it has several jobs
	for _, m := range regexp.MustCompile(`\{step: (\w+)(?:, part: (\S+))?\}`).FindAllStringSubmatch(string(text), -1) {
		if !slices.Contains(jobs, m[1]) {
			jobs = append(jobs, m[1])
		}
		if m[2] != "" {
			parts[m[1]] = append(parts[m[1]], m[2])
		}
	}
	assert.ElementsMatch(t, steps, jobs)
	for step, have := range parts {
		for i := range have {
			assert.Contains(t, have, fmt.Sprintf("%d/%d", i, len(have)), step)
		}
	}
}

// The workflows run what a contributor runs, and paths in the files for releases and changes exist.
func TestFilesForReleasesNameWhatThereIs(t *testing.T) {
	for file, paths := range map[string][]string{
		".github/workflows/ci.yml":                    {".ci/run", ".ci/deep", "cmd/redlock", "extra/redlockprom", "extra/redlockotel"},
		".github/workflows/deep.yml":                  {".ci/deep"},
		".github/PULL_REQUEST_TEMPLATE.md":            {".ci/run", ".github/CONTRIBUTING.md", "docs/safety.md", "docs/safety-tests.md", "CHANGELOG.md"},
		"cmd/redlock/packaging/goreleaser.yaml":       {"cmd/redlock", "cmd/redlock/packaging/Dockerfile.goreleaser", "LICENSE", "README.md", "CHANGELOG.md"},
		"cmd/redlock/packaging/Dockerfile":            {"cmd/redlock", "LICENSE"},
		"cmd/redlock/packaging/Dockerfile.goreleaser": {"LICENSE"},
	} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, p := range paths {
			assert.Contains(t, string(text), p, file)
			_, err := os.Stat(p)
			assert.NoError(t, err, "%s names %s", file, p)
		}
	}
}

// everyPage is each Markdown file of the repository.
func everyPage(t *testing.T) (all []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(".", func(path string, entry os.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".md" {
			all = append(all, filepath.ToSlash(path))
		}
		if err == nil && entry.Name() == ".git" && entry.IsDir() {
			return filepath.SkipDir
		}
		return err
	}))
	require.NotEmpty(t, all)
	return all
}
