package main

import (
	"os"
	"path/filepath"
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
	}
	if runs < 25 {
		t.Errorf("%d mutants are run, want at least 25", runs)
	}
}
