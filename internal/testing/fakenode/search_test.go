package fakenode_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// search goes through the states that can be reached from one, breadth first, until there have been so many. next tells of
// each state that follows one, and by what step; what is wrong with it ends the search. It returns the
// steps that lead there, and up to which depth all states were seen.
func search[S comparable](from S, most int, next func(s S, then func(step string, s S, wrong string))) (story []string, states, depth int) {
	type parent struct {
		of   int
		step string
	}
	seen := map[S]bool{from: true}
	all, parents := []S{from}, []parent{{-1, ""}}
	last := 0 // of this depth
	for at := 0; at < len(all) && len(all) < most && story == nil; at++ {
		if at > last {
			depth, last = depth+1, len(all)-1
		}
		next(all[at], func(step string, s S, wrong string) {
			if wrong != "" && story == nil {
				story = []string{step + ": " + wrong}
				for i := at; i > 0; i = parents[i].of {
					story = append([]string{parents[i].step}, story...)
				}
			}
			if !seen[s] {
				seen[s] = true
				all, parents = append(all, s), append(parents, parent{at, step})
			}
		})
	}
	return story, len(all), depth
}

// machine is a rule and what becomes of it without one of its clauses.
func machine[S comparable](t *testing.T, most int, clauses []string, begin S, next func(without string) func(s S, then func(step string, s S, wrong string))) {
	t.Helper()
	for _, without := range append([]string{""}, clauses...) {
		t.Run(fmt.Sprintf("without %q", without), func(t *testing.T) {
			story, states, depth := search(begin, most, next(without))
			t.Logf("%d states, all of depth %d\n%s", states, depth, strings.Join(story, "\n"))
			require.Equal(t, without != "", story != nil)
		})
	}
}
