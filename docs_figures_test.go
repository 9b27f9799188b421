package redlock_test

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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
	{"default TTL", "10s", 4, []string{`default of (10 s|\d+ ?s) (?:is|suits)`, "`Options.TTL`, `WithTTL` \\((\\d+ ?s)\\)", "\\| `TTL` \\| (\\w+) \\|", `at the default of (\d+ ?s)`}},
	{"share for drift", "0.01", 2, []string{"`Options.DriftFactor` \\(([\\d.]+)\\)", "\\| `DriftFactor` \\| ([\\d.]+) \\|"}},
	{"share for drift in percent", "1%", 3, []string{`gives? up a share of the TTL, (\d+ ?%)`, `让出 TTL 的一部分，默认 (\d+ ?%)`, `within DriftFactor \((\d+ ?%) by default\)`}},
	{"added to drift", "2ms", 4, []string{`clocks drift; (\d+ ?ms) are added`, `another (\d+ ?ms) are subtracted`, `TTL x DriftFactor \+ (\d+ ?ms)`, `1 %，外加 (\d+ ?ms)`, `1 % by default, and (\d+ ?ms)`}},
	{"longest NodeTimeout by default", "200ms", 3, []string{`TTL/50, within \w+ to (\w+)`, `fiftieth of the TTL, at most (\d+ ?ms)`, `fiftieth of the expiry, from \d+ to (\d+ ?ms)`}},
	{"permits at most", "1024", 2, []string{`from 1 to ([\d,]+)`, `N up to ([\d,]+)`}},
	{"bytes of a waiter", "", 2, []string{`about (\d+) bytes per waiter`, `one waiter takes about (\d+) bytes`}},
	{"memory after ten million cycles", "", 2, []string{`\bten million cycles \| level at ([\d.]+ MB)`, `and ([\d.]+ MB) at the end, with 13 goroutines`}},
	{"scenarios", strconv.Itoa(scenarios), 1, []string{`row for each of the (\d+)`}},
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
	{"nodes", "the part with more and fewer nodes", "from another part of the run"},
	{"elsewhere-", "the part with other places", "at another time of the run"},
	{"answer-", "the part with other places", "at another time of the run"},
}

var (
	figuresOf  = regexp.MustCompile(`(?s)<!-- figures: ([\w-]+) -->\n(.*?)<!-- /figures -->`)
	libraries  = regexp.MustCompile(`redsync, fail fast|redsync, every 5 ms|rueidislock, 1 key|redlock, fenced|redlock|redsync|rueidislock|bsm|bare lane`)
	crowd      = regexp.MustCompile(`(\d+ × \d+)|(\d+) (?:goroutines?\b|at once|个同时)`)
	alwaysWith = regexp.MustCompile(`always with (\d+)\s+goroutines`)
	inAnswer   = regexp.MustCompile(`\*([^*:]+):\* (\S+) cycles/s with one goroutine, (\S+) with (\d+) on free keys\. One key for (\d+ × \d+) goroutines: (\S+) turns/s`)
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
func rates(page, name, table, before string) (all []statement) {
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
	if m := inAnswer.FindStringSubmatch(table); m != nil {
		add(m[1], "1", "cycles/s", m[2])
		add(m[1], m[4], "cycles/s", m[3])
		add(m[1], m[5], "turns/s", m[6])
		return all
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
			switch {
			case corner == "goroutines":
				many, unit = row[0], "cycles/s"
			case corner == "nodes" && row[0] == "5": // five are usual
				said := alwaysWith.FindAllStringSubmatch(before, -1)
				many, unit = said[len(said)-1][1], "cycles/s"
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
			before := string(text[max(0, at[0]-600):at[0]])
			stated := rates(page, name, table, before)
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
	for _, name := range []string{"summary", "summary-zh", "free", "compare-free", "hot", "compare-hot", "nodes", "elsewhere-free", "elsewhere-hot", "answer-bsm", "answer-redlock"} {
		assert.Contains(t, tables, name, "no rate was found in the table")
	}
	seen, twice := map[string]int{}, 0
	for _, s := range all {
		if seen[s.of]++; seen[s.of] == 2 {
			twice++
		}
	}
	assert.Greater(t, twice, 20, "rates that are stated more than once")
}
