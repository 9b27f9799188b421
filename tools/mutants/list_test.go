package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// The list must not rot: whoever changes a line that is broken here has to say how it is
// broken from now on.
func TestEveryMutantChangesOnePlace(t *testing.T) {
	runs := 0
	seen := make(map[string]bool)
	for _, m := range list {
		if seen[m.name] || m.name == "" || m.why == "" {
			t.Errorf("mutant %q: its name must be its own, and it needs a reason", m.name)
		}
		seen[m.name] = true
		if m.equivalent == "" {
			runs++
		}
		text, err := os.ReadFile(filepath.Join(root, m.file))
		if err != nil {
			t.Errorf("mutant %s: %v", m.name, err)
			continue
		}
		if _, err := m.apply(string(text)); err != nil {
			t.Error(err)
		}
		if script := strings.HasSuffix(m.file, ".lua"); script != (m.twin != (edit{})) {
			t.Errorf("mutant %s: a script has a twin in %s, and nothing else has", m.name, twinFileOf(m.file))
		} else if script {
			twin, err := os.ReadFile(filepath.Join(root, twinFileOf(m.file)))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := (mutant{name: m.name, file: twinFileOf(m.file), old: m.twin.old, new: m.twin.new}).apply(string(twin)); err != nil {
				t.Error(err)
			}
		}
	}
	if runs < 25 {
		t.Errorf("%d mutants are run, want at least 25", runs)
	}
}

func TestTestsThatMutantsNameAreThere(t *testing.T) {
	testsIn := func(folder string) (names []string) {
		paths, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
		if err != nil || len(paths) == 0 {
			t.Fatal("no tests", err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(text, -1) {
				names = append(names, string(m[1]))
			}
		}
		return names
	}
	names := map[string][]string{"": testsIn("internal/testing/sim")} // see .ci/mutants
	for _, m := range list {
		for _, arg := range strings.Fields(m.args) {
			run, ok := strings.CutPrefix(arg, "-test.run=")
			if !ok {
				continue
			}
			// Behind a slash come the names of parts of a test.
			whole, _, _ := strings.Cut(run, "/")
			if names[m.in] == nil {
				names[m.in] = testsIn(m.in)
			}
			if !slices.ContainsFunc(names[m.in], regexp.MustCompile(whole).MatchString) {
				t.Errorf("mutant %s: there is no test %s where it says", m.name, run)
			}
		}
	}
}

// The page on the simulation's rules names mutants that break them, and that no other test is to see.
func TestMutantsThatRulesNameAreThere(t *testing.T) {
	page, err := os.ReadFile(filepath.Join(root, "internal/testing/sim/rules.txt"))
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^    killed (.*)$`).FindAllSubmatch(page, -1)
	if len(lines) < 30 {
		t.Fatalf("%d rules have mutants", len(lines))
	}
	for _, line := range lines {
		for _, name := range strings.Fields(string(line[1])) {
			if name = strings.TrimSuffix(name, ";"); !strings.Contains(name, "-") || strings.HasSuffix(name, ":") {
				continue // by another rule
			}
			if !slices.ContainsFunc(list, func(m mutant) bool { return m.name == name && m.in == "" && m.equivalent == "" }) {
				t.Errorf("there is no mutant %s that the simulation is to see", name)
			}
		}
	}
}
