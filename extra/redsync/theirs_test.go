package redsync_test

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/longtest"
	"github.com/quorumlock/redlock/internal/testing/realredis"
)

// README.md has how many of redsync's own tests pass, and each that does not by its name.
func TestOwnTestsOfRedsync(t *testing.T) {
	if !longtest.On() {
		t.Skip("it fetches redsync, and takes minutes: set REDLOCK_LONG_TESTS=1")
	}
	realredis.Need(t)
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	numbers := regexp.MustCompile(`Of (\d+) tests with go-redis v9, five of them\sof errors alone, (\d+) pass in one run\.`).FindStringSubmatch(string(page))
	require.NotNil(t, numbers, "README.md does not say how many pass")
	said := make(map[string]string) // what tests that fail come to by themselves
	for _, row := range regexp.MustCompile("(?m)^\\| `(Test\\w+)` \\| (passes|fails) \\| (.+) \\|$").FindAllStringSubmatch(string(page), -1) {
		said[row[1]] = row[2]
	}

	out, err := exec.Command("./theirs").CombinedOutput()
	var failed *exec.ExitError
	if err != nil {
		require.ErrorAs(t, err, &failed)
	}
	together, alone, _ := strings.Cut(string(out), "by itself, on servers of its own\n")
	passed := 0
	for _, r := range results(together) {
		if r[1] == "PASS" {
			passed++
		}
	}
	found := make(map[string]string)
	for _, r := range results(together) {
		if r[1] == "FAIL" {
			found[r[2]] = "fails"
		}
	}
	for _, r := range results(alone) {
		if r[1] == "PASS" {
			found[r[2]] = "passes"
		}
	}
	assert.Equal(t, said, found, "README.md, and what is found")
	assert.Equal(t, numbers[2], strconv.Itoa(passed), "how many pass")
	assert.Equal(t, numbers[1], strconv.Itoa(passed+len(found)), "how many there are")
	if t.Failed() {
		t.Logf("theirs: %v\n%s", err, out)
	}
}

// results are those of the cases with go-redis v9, and of the tests that have others.
func results(out string) [][]string {
	return regexp.MustCompile(`(?m)^    --- (PASS|FAIL): (Test\w+)/(?:goredis_v9|[a-z]+_error) `).FindAllStringSubmatch(out, -1)
}
