package realtest_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/quorumlock/redlock"
	"github.com/stretchr/testify/assert"
)

// The same for readers beside a writer, and for permits: four in each process.
func TestProcessCutOffFromTheArbiterGetsItsShareInAllModes(t *testing.T) {
	t.Parallel()
	kinds := map[string]func(rl *redlock.Redlock, i int) locker{
		"three permits": func(rl *redlock.Redlock, _ int) locker { return rl.Semaphore(convKey, 3) },
		"one of four writes": func(rl *redlock.Redlock, i int) locker {
			if i == 0 {
				return rl.Mutex(convKey)
			}
			return rl.Mutex(convKey).Shared()
		},
	}
	var names []string
	for name := range kinds {
		names = append(names, name)
	}
	convTogether(t, names, func(name string) string { return name }, func(t *testing.T, name string) {
		f := convStart(t, 3)
		// Four of each process, of which the first four are cut off.
		var each []locker
		for process := range 4 {
			p := f.path(t)
			rl := p.users(t, redlock.Options{NoRestartGuard: true})
			convWarm(t, f, rl)
			if process == 0 {
				p.refuse(convArbiter(convKey, rl.Nodes()))
			}
			for i := range 4 {
				each = append(each, kinds[name](rl, i))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
		defer cancel()
		byOne, longest := convTakeTurnsOf(ctx, each, 50*time.Millisecond)
		turns, sum := make([]int, 4), 0
		for i, n := range byOne {
			turns[i/4] += n
			sum += n
		}
		t.Logf("turns %v, the first is cut off; of each %v; the longest waits %v", turns, byOne, longest)
		for i, n := range turns {
			assert.GreaterOrEqual(t, n, max(1, sum/8), fmt.Sprintf("turns of process %d of %v", i, turns))
		}
	})
}
