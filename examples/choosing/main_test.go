package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhatIsLost(t *testing.T) {
	t.Setenv("REDLOCK_ADDRS", "")
	all, err := measure(t.Context())
	require.NoError(t, err)
	require.NoError(t, report(t.Output(), all))
	got := make(map[string]result)
	for _, r := range all {
		got[r.way] = r
	}
	require.Len(t, got, len(ways))

	assert.Positive(t, got["nothing"].healthy.lost)
	assert.Equal(t, salesMeanwhile, got["nothing"].stops.lost, "all that was sold meanwhile is overwritten")

	assert.Zero(t, got["a lock"].healthy.lost)
	assert.Equal(t, salesMeanwhile, got["a lock"].stops.lost, "the lease was over, and nobody asked for it")

	for _, way := range []string{"one statement", "optimistic: a version", "pessimistic: a transaction", "a lock with fencing"} {
		assert.Zero(t, got[way].healthy.lost, way)
		assert.Zero(t, got[way].stops.lost, way)
	}
	// A transaction has no lease: who waits, waits for the end of the stop.
	assert.GreaterOrEqual(t, got["pessimistic: a transaction"].stops.waited, 3*lease-lease/10)
	assert.GreaterOrEqual(t, got["a lock with fencing"].stops.waited, lease/2)
}

func TestTheCountIsRight(t *testing.T) {
	db, err := open(t.TempDir() + "/shop.db")
	require.NoError(t, err)
	defer db.Close()
	s := &shop{db: db}
	require.NoError(t, s.fill(t.Context()))
	_, err = db.Exec(`UPDATE stock SET left = left - 2`)
	require.NoError(t, err)
	o, err := s.count(t.Context(), 3, nil)
	require.NoError(t, err)
	assert.Equal(t, outcome{lost: 1}, o)
}

func TestALossOfASafeWayIsAnError(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, report(&out, []result{{way: "a lock", stops: outcome{lost: 3}}}))
	assert.Contains(t, out.String(), "a lock")
	assert.Error(t, report(&out, []result{{way: "a lock with fencing", stops: outcome{lost: 1}}}))
}
