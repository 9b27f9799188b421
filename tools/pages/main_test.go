// Package pages tests what the repository says of itself: its pages, their examples, links and figures, the
// picture of its architecture, and the files for GitHub and for releases.
package pages_test

import (
	"os"
	"testing"
)

// The tests name each file as a reader of the repository does.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
