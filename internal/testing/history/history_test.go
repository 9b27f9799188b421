package history_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/history"
)

func TestWhatIsWrittenIsRead(t *testing.T) {
	var file bytes.Buffer
	w := history.NewWriter(&file)
	ops := []history.Op{
		{Client: 1, Kind: history.Acquire, Key: "k", Token: "a", Call: 1, Return: 5, Outcome: history.OK, Until: 90, Fence: 7},
		{Client: 1, Kind: history.Release, Key: "k", Token: "a", Call: 6, Return: 9, Outcome: history.Unknown, Err: "no quorum"},
	}
	for _, op := range ops {
		require.NoError(t, w.Write(op))
	}
	got, err := history.Read(&file)
	require.NoError(t, err)
	require.Equal(t, ops, got)
}

func TestALineCutShortIsLeftOutAndABrokenOneIsNot(t *testing.T) {
	got, err := history.Read(bytes.NewBufferString("{\"client\":3}\n{\"clie"))
	require.NoError(t, err)
	require.Equal(t, []history.Op{{Client: 3}}, got)

	_, err = history.Read(bytes.NewBufferString("{\"client\":3}\n{\"clie\n"))
	require.ErrorContains(t, err, "line 2")
}
