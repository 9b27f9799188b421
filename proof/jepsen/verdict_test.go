package jepsen

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// A report about one plain counter, whose file holds what was written with the last token.
func about(last string, ups ...update) *Report {
	for i := range ups {
		ups[i].Key = "plain-0-0"
	}
	r := &Report{
		Config: Config{Plain: true}, Plain: new(Counts), Length: 1000, updates: ups,
		final: map[string]record{"plain-0-0": {Token: last}},
	}
	r.findLost()
	return r
}

func TestUpdatesThatFollowOneAnotherAreNotLost(t *testing.T) {
	r := about("b",
		update{Client: 1, Token: "a", Until: 100, Checked: 8}, // it says that it writes, and then that it has
		update{Client: 1, Token: "a", Until: 100, Checked: 8, Return: 9, Result: written},
		update{Client: 2, Token: "b", Parent: "a", Until: 100, Checked: 18, Return: 19, Result: written},
		update{Client: 3, Token: "c", Parent: "b", Until: 100, Checked: 18, Result: withheld},
	)
	require.Empty(t, r.Lost)
	require.Empty(t, r.Trouble)
	require.Equal(t, &Counts{Written: 2, Withheld: 1, Counters: 1}, r.Plain)
}

func TestLostUpdatesAreFoundAndExplained(t *testing.T) {
	const us = 1000
	late := update{Client: 1, Token: "a", Until: 100 * us, Checked: 90 * us, Return: 300 * us, Result: written}
	b := update{Client: 2, Token: "b", Until: 250 * us, Checked: 160 * us, Return: 161 * us, Result: written}
	c := update{Client: 3, Token: "c", Parent: "b", Until: 290 * us, Checked: 170 * us, Return: 171 * us, Result: written}

	r := about("a", late, b, c)
	require.Len(t, r.Lost, 1)
	require.Equal(t, 2, r.Lost[0].Lost, "b, and c which was built upon it")
	require.True(t, r.Lost[0].Explained)
	require.Contains(t, r.Lost[0].Cause, "client 1 wrote 200µs after the end of its lease")
	require.Contains(t, r.Lost[0].Cause, "the machine did")
	require.Equal(t, 1, r.Plain.LateWrite)

	r = &Report{
		Plain: new(Counts), updates: r.updates, final: r.final, Length: 1000 * us,
		Events: []Event{{Kind: "pause", Client: 1, Node: -1, From: 95 * us, To: 299 * us, Text: "stopped"}},
	}
	r.findLost()
	require.Contains(t, r.Lost[0].Cause, "stopped from 0.000s to 0.000s")
}

func TestLostUpdatesWithoutALateWriterAreNotExplained(t *testing.T) {
	r := about("b",
		update{Client: 1, Token: "a", Until: 100, Checked: 8, Return: 9, Result: written},
		update{Client: 2, Token: "b", Until: 100, Checked: 18, Return: 19, Result: written},
	)
	require.Len(t, r.Lost, 1)
	require.False(t, r.Lost[0].Explained)
	require.Equal(t, 1, r.Plain.Unexplain)
}

func TestAKilledWriterMayHaveWrittenUntilItWasKilled(t *testing.T) {
	ups := []update{
		{Client: 1, Token: "a", Until: 100, Checked: 8},
		{Client: 2, Token: "b", Until: 100, Checked: 18, Return: 19, Result: written},
	}
	r := about("a", ups...)
	require.True(t, r.Lost[0].Explained, "nobody knows that it was killed in time")

	r = &Report{Plain: new(Counts), updates: ups, final: r.final, Length: 1000, Events: []Event{{Kind: "kill", Client: 1, Node: -1, From: 20, To: 30}}}
	r.findLost()
	require.False(t, r.Lost[0].Explained, "it was killed when it still had the lock")
}

func TestWhatNobodyHasWrittenIsTrouble(t *testing.T) {
	require.NotEmpty(t, about("x", update{Client: 1, Token: "a", Until: 100, Checked: 8, Return: 9, Result: written}).Trouble)
}

func TestStoreRefusesStaleHolders(t *testing.T) {
	s := store{dir: t.TempDir()}
	_, stale, err := s.readFenced("k", 5)
	require.NoError(t, err)
	require.False(t, stale)

	// The next holder has read when the first one writes, late.
	_, stale, err = s.readFenced("k", 6)
	require.NoError(t, err)
	require.False(t, stale)
	stale, err = s.writeFenced("k", record{Value: 1, Token: "a"}, 5)
	require.NoError(t, err)
	require.True(t, stale, "it would be lost")

	stale, err = s.writeFenced("k", record{Value: 1, Token: "b"}, 6)
	require.NoError(t, err)
	require.False(t, stale)
	r, stale, err := s.readFenced("k", 5)
	require.NoError(t, err)
	require.True(t, stale)
	require.Equal(t, record{Value: 1, Token: "b", Seen: 6}, r)
}
