package redlock_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

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

// The workflow runs what a contributor runs, and paths in the files for releases exist.
func TestFilesForReleasesNameWhatThereIs(t *testing.T) {
	for file, paths := range map[string][]string{
		".github/workflows/ci.yml":        {".ci/run", "cmd/redlock", "extra/redlockprom", "extra/redlockotel"},
		".goreleaser.yaml":                {"cmd/redlock", "packaging/Dockerfile.goreleaser", "LICENSE", "README.md", "CHANGELOG.md"},
		"packaging/Dockerfile":            {"cmd/redlock", "LICENSE"},
		"packaging/Dockerfile.goreleaser": {"LICENSE"},
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
