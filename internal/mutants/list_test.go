package main

import (
	"os"
	"path/filepath"
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
