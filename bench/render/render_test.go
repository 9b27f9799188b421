package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/quorumlock/redlock/bench/results"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const root = "../.."

func published(t *testing.T) *results.Report {
	t.Helper()
	r, err := results.Read(filepath.Join(root, "docs/figures.json"))
	require.NoError(t, err)
	return r
}

func TestPagesAndPlotsAgreeWithTheResults(t *testing.T) {
	made, err := render(published(t), root)
	require.NoError(t, err)
	for path, want := range made {
		have, err := os.ReadFile(filepath.Join(root, path))
		if assert.NoError(t, err) {
			assert.True(t, bytes.Equal(want, have), "%s is not what docs/figures.json makes of it: go run -C bench ./render", path)
		}
	}
	plots, err := filepath.Glob(filepath.Join(root, "docs/*.svg"))
	require.NoError(t, err)
	for _, path := range plots {
		assert.Contains(t, made, filepath.Join("docs", filepath.Base(path)), "nobody makes this plot")
	}
}

func TestPublishedFiguresAreOfAWholeRun(t *testing.T) {
	r := published(t)
	assert.False(t, r.Meta.Quick, "a smoke run")
	for name, make := range blocks {
		assert.NotEmpty(t, make(r), name)
	}
}

var (
	measured  = regexp.MustCompile(`\d[\d.,]*\s?(?:%|×|x |µs|us\b|ms\b|MB\b|KB\b|cycles|turns|/s\b)`)
	generated = regexp.MustCompile(`(?s)<!-- figures: .*?<!-- /figures -->`)
	code      = regexp.MustCompile("(?m)(?s)^```.*?^```|^    .*?$")
)

// A figure that somebody wrote between the tables would not change with the next run.
func TestProseHasNoFigures(t *testing.T) {
	for _, page := range []string{"docs/performance.md", "docs/choosing.md"} {
		text, err := os.ReadFile(filepath.Join(root, page))
		require.NoError(t, err)
		prose := code.ReplaceAllString(generated.ReplaceAllString(string(text), ""), "")
		assert.Empty(t, measured.FindAllString(prose, -1), page)
	}
	assert.NotEmpty(t, measured.FindAllString("it takes 3.4 µs", -1))
}

// A row that is added to the summary needs Chinese words, too.
func TestSummaryInChineseHasNoEnglish(t *testing.T) {
	text := summaryInChinese(published(t))
	for _, name := range []string{"redlock", "redsync", "rueidislock", "bsm/redislock", "goroutine", "WithFailFast"} {
		text = strings.ReplaceAll(text, name, "")
	}
	assert.NotRegexp(t, `[A-Za-z]{3,}`, text)
}

func TestProblemsOfTheRunAreTold(t *testing.T) {
	r := published(t)
	r.Problems = []string{"somebody failed"}
	assert.Contains(t, runBlock(r), "- somebody failed\n")
}

// A changed figure must reach the page and the plot.
func TestAChangedFigureIsNoticed(t *testing.T) {
	r := published(t)
	before, err := render(r, root)
	require.NoError(t, err)
	free(r, 128, "redlock").PerSecond *= 2
	after, err := render(r, root)
	require.NoError(t, err)
	for _, path := range []string{"docs/performance.md", "README.md", "docs/zh/README.md", "docs/free-keys.svg"} {
		assert.NotEqual(t, string(before[path]), string(after[path]), path)
	}
}

func TestPlotsAreWellFormedAndNothingIsCut(t *testing.T) {
	all := plots(published(t))
	require.NotEmpty(t, all)
	for name, c := range all {
		svg, err := c.svg()
		require.NoError(t, err)
		d := xml.NewDecoder(bytes.NewReader(svg))
		for err == nil {
			_, err = d.Token()
		}
		assert.ErrorIs(t, err, io.EOF, name)
		assert.NotContains(t, string(svg), markEnd, name)
		for _, at := range regexp.MustCompile(`<text [^>]*x="(-?[\d.]+)"`).FindAllSubmatch(svg, -1) {
			assert.NotContains(t, string(at[1]), "-", name)
		}
	}
}

func TestFill(t *testing.T) {
	content := func(name string) (string, error) {
		if name == "none" {
			return "", errors.New("no such block")
		}
		return "\nnew " + name + "\n\n", nil
	}
	page := "a\n<!-- figures: one -->\nold\n<!-- /figures -->\nb\n<!-- figures: two -->\n<!-- /figures -->\nc\n"
	got, err := fill(page, content)
	require.NoError(t, err)
	want := "a\n<!-- figures: one -->\n\nnew one\n\n<!-- /figures -->\nb\n<!-- figures: two -->\n\nnew two\n\n<!-- /figures -->\nc\n"
	assert.Equal(t, want, string(got))
	again, err := fill(want, content)
	require.NoError(t, err)
	assert.Equal(t, want, string(again), "it does not grow")

	for _, wrong := range []string{
		"<!-- figures: one -->\n", "<!-- /figures -->\n", "<!-- figures: none -->\n<!-- /figures -->\n",
		"<!-- figures: one -->\n<!-- figures: two -->\n<!-- /figures -->\n",
	} {
		_, err := fill(wrong, content)
		assert.Error(t, err, wrong)
	}
}

func TestNumbersAsPeopleWriteThem(t *testing.T) {
	assert.Equal(t, []string{"0", "0.04", "0.4", "4", "4.2", "42", "420", "4,200", "1,234,567"},
		[]string{count(0), count(0.04), count(0.4), count(4), count(4.2), count(42), count(420), count(4200), count(1234567)})
	assert.Equal(t, []string{"0", "12", "42,300", "9,010"}, []string{rounded(0), rounded(12.3), rounded(42345), rounded(9012)})
	assert.Equal(t, []string{"0", "8.6 µs", "86 µs", "1.0 ms", "10 ms", "1.5 s"},
		[]string{span(0), span(8600), span(86_000), span(999_999), span(10_200_000), span(1_500_000_000)})
	assert.Equal(t, []float64{1000, 2000, 5000, 10000}, logTicks(900, 11000))
	assert.Equal(t, []float64{0, 20, 40, 60, 80, 100}, linearTicks(99))
}

func TestEveryLibraryHasAColourOfItsOwn(t *testing.T) {
	var seen []string
	for name, l := range looks {
		r, g, b, _ := l.color.RGBA()
		c := strings.Join([]string{string(rune(r)), string(rune(g)), string(rune(b))}, ",")
		assert.False(t, slices.Contains(seen, c), name)
		seen = append(seen, c)
	}
}
