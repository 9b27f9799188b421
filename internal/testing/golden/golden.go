// Package golden compares commands in files with what they print, so that rules can be read without
// reading Go:
//
//	# A comment.
//	verdict n=3 granted granted
//	----
//	granted
//
// A case has one or more commands and ends with an empty line. What another way to
// compute the same does not agree with is printed, too, as MISMATCH: such a line never
// belongs into a file.
//
//	go test -run TestGolden . ./internal/testing/contract            compares
//	go test -run TestGolden . ./internal/testing/contract -rewrite   writes what is printed into the files: read the diff
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write what golden tests print into their files")

// Command is a line of a golden file, as in "saw 0 run=a".
type Command struct {
	T      *testing.T
	Name   string
	Args   []string          // without "="
	Values map[string]string // the others
}

// Run runs the commands of a file in testdata and compares what they print.
func Run(t *testing.T, file string, run func(c Command) string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var cases []string
	total := 0
	for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		commands, want, _ := strings.Cut(block, "\n----")
		got, ran := runCase(t, commands, run)
		if !ran {
			cases = append(cases, block) // a comment
			continue
		}
		total++
		cases = append(cases, commands+"\n----"+got)
		if got != want && !*rewrite || strings.Contains(got, "MISMATCH") {
			t.Errorf("%s:\n%s\n---- want%s\n---- got%s", path, commands, want, got)
		}
	}
	require.NotZero(t, total, "%s has no case", path)
	if *rewrite {
		require.NoError(t, os.WriteFile(path, []byte(strings.Join(cases, "\n\n")+"\n"), 0o644))
	}
}

// runCase is what the commands of a case print, each on lines of its own.
func runCase(t *testing.T, commands string, run func(c Command) string) (printed string, ran bool) {
	for line := range strings.SplitSeq(commands, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		ran = true
		if p := strings.TrimRight(run(parse(t, line)), "\n"); p != "" {
			printed += "\n" + p
		}
	}
	return printed, ran
}

func parse(t *testing.T, line string) Command {
	words := strings.Fields(line)
	c := Command{T: t, Name: words[0], Values: make(map[string]string)}
	for _, w := range words[1:] {
		if name, value, ok := strings.Cut(w, "="); ok {
			c.Values[name] = value
		} else {
			c.Args = append(c.Args, w)
		}
	}
	return c
}

// Unknown fails the test.
func (c Command) Unknown() string {
	c.T.Fatalf("golden: there is no such command as %q %v", c.Name, c.Args)
	return ""
}

// Number is the value of a name, which must be given.
func (c Command) Number(name string) int {
	n, err := strconv.Atoi(c.Values[name])
	require.NoError(c.T, err, "golden: %s of %s", name, c.Name)
	return n
}

// Duration is the value of a name, or otherwise.
func (c Command) Duration(name string, otherwise time.Duration) time.Duration {
	if c.Values[name] == "" {
		return otherwise
	}
	return c.Parse(c.Values[name])
}

// Parse reads a time.
func (c Command) Parse(s string) time.Duration {
	d, err := time.ParseDuration(s)
	require.NoError(c.T, err, "golden: %s", c.Name)
	return d
}
