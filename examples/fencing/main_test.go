package main

import (
	"bytes"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if os.Getenv("FENCING_WORKER") != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

func TestTheStaleWriteIsRefused(t *testing.T) {
	t.Setenv("REDLOCK_ADDRS", "")
	var out bytes.Buffer
	require.NoError(t, show(t.Context(), &out), "%s", &out)
	assert.Contains(t, out.String(), "second has written\n")
	assert.Contains(t, out.String(), "first write refused")
	assert.Contains(t, out.String(), "balance 1, last written by second\n")
}
