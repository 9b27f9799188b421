package redlock

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSimHandReachesWhatItShows(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		h := simHand{base: r.Int64N(1 << 60), ppm: r.Int64N(10000) - 5000}
		for range r.IntN(3) {
			h.steps = append(h.steps, simStep{r.Int64N(1e10), r.Int64N(1e10) - 5e9})
		}
		if r.IntN(2) == 0 {
			h.frozen = []simFault{{At: time.Duration(r.Int64N(1e10)), For: time.Duration(r.Int64N(1e10))}}
		}
		from := r.Int64N(2e10)
		v := h.at(from) + r.Int64N(1e10) - 1e9
		at := h.reach(v, from)
		require.GreaterOrEqual(t, h.at(at), v)
		require.GreaterOrEqual(t, at, from)
		for _, before := range []int64{at - 1, at - 2, at - 1000, from + (at-from)/2, from + (at-from)/3, from} {
			if before >= from && before < at {
				require.Less(t, h.at(before), v, "%+v from %d to %d, before %d", h, from, at, before)
			}
		}
	}
}
