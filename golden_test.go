package redlock

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

// Golden files are commands and what they print, so that rules can be read without
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
//	go test -run TestGolden .            compares
//	go test -run TestGolden . -rewrite   writes what is printed into the files: read the diff
var rewrite = flag.Bool("rewrite", false, "write what golden tests print into their files")

// goldenCommand is a line of a golden file, as in "saw 0 run=a".
type goldenCommand struct {
	t      *testing.T
	name   string
	args   []string          // without "="
	values map[string]string // the others
}

// golden runs the commands of a file in testdata and compares what they print.
func golden(t *testing.T, file string, run func(c goldenCommand) string) {
	t.Helper()
	path := filepath.Join("testdata", file)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var cases []string
	total := 0
	for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
		commands, want, _ := strings.Cut(block, "\n----")
		got, ran := runGolden(t, commands, run)
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

// runGolden is what the commands of a case print, each on lines of its own.
func runGolden(t *testing.T, commands string, run func(c goldenCommand) string) (printed string, ran bool) {
	for line := range strings.SplitSeq(commands, "\n") {
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		ran = true
		if p := strings.TrimRight(run(parseGolden(t, line)), "\n"); p != "" {
			printed += "\n" + p
		}
	}
	return printed, ran
}

func parseGolden(t *testing.T, line string) goldenCommand {
	words := strings.Fields(line)
	c := goldenCommand{t: t, name: words[0], values: make(map[string]string)}
	for _, w := range words[1:] {
		if name, value, ok := strings.Cut(w, "="); ok {
			c.values[name] = value
		} else {
			c.args = append(c.args, w)
		}
	}
	return c
}

func (c goldenCommand) unknown() string {
	c.t.Fatalf("golden: there is no such command as %q %v", c.name, c.args)
	return ""
}

// number is the value of a name, which must be given.
func (c goldenCommand) number(name string) int {
	n, err := strconv.Atoi(c.values[name])
	require.NoError(c.t, err, "golden: %s of %s", name, c.name)
	return n
}

// duration is the value of a name, or otherwise.
func (c goldenCommand) duration(name string, otherwise time.Duration) time.Duration {
	if c.values[name] == "" {
		return otherwise
	}
	return c.parse(c.values[name])
}

func (c goldenCommand) parse(s string) time.Duration {
	d, err := time.ParseDuration(s)
	require.NoError(c.t, err, "golden: %s", c.name)
	return d
}
