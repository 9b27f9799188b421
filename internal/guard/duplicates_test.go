package guard

import (
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDuplicates(t *testing.T) {
	for ids, want := range map[string][]Duplicate{
		"":          nil,
		"a":         nil,
		"a b c":     nil,
		"a b a":     {{0, 2}},
		"a a a":     {{0, 1}, {0, 2}},
		"a b b a":   {{1, 2}, {0, 3}},
		"- - -":     nil,
		"- a - a -": {{1, 3}},
	} {
		split := strings.Fields(ids)
		for i, id := range split {
			split[i] = strings.Trim(id, "-")
		}
		assert.Equal(t, want, Duplicates(split), ids)
	}
}

func TestDuplicatesOfInterfaces(t *testing.T) {
	a, b := strings.NewReader("same"), strings.NewReader("same")
	assert.Equal(t, []Duplicate{{0, 3}}, Duplicates([]io.Reader{a, nil, b, a, nil}), "equal contents are not the same client")
	assert.Panics(t, func() { Duplicates([]any{[]int{1}, []int{1}}) })
}

// The pairs are those that comparing each entry with all others finds.
func TestDuplicatesAgainstAllPairs(t *testing.T) {
	const seed = 1
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 500 {
		ids := make([]int, rng.IntN(9))
		for i := range ids {
			ids[i] = rng.IntN(5)
		}
		var want []Duplicate
		for i, id := range ids {
			if j := slices.Index(ids, id); id != 0 && j < i {
				want = append(want, Duplicate{j, i})
			}
		}
		require.Equal(t, want, Duplicates(ids), fmt.Sprint(ids))
	}
}
