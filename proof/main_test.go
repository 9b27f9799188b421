package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCheck(t *testing.T) {
	file := func(text string) string {
		name := filepath.Join(t.TempDir(), "history.jsonl")
		require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
		return name
	}
	first := file(`{"client":1,"kind":"acquire","key":"k","token":"a","call":1,"return":2,"outcome":"ok","until":90}` + "\n")
	after := file(`{"client":2,"kind":"acquire","key":"k","token":"b","call":3,"return":91,"outcome":"ok","until":180}` + "\n")
	during := file(`{"client":2,"kind":"acquire","key":"k","token":"b","call":3,"return":89,"outcome":"ok","until":180}` + "\n")

	require.Equal(t, 0, run([]string{"check", first, after}))
	require.Equal(t, 1, run([]string{"check", first, during}), "overlap")
	require.Equal(t, 2, run([]string{"check", file("nonsense\n")}))
	require.Equal(t, 2, run([]string{"check", "not-there"}))
	require.Equal(t, 2, run([]string{"check"}))
	require.Equal(t, 2, run([]string{"jepsen", "-sabotage", "tea", "-out", t.TempDir()}))
	require.Equal(t, 2, run([]string{"fly"}))
	require.Equal(t, 2, run(nil))
}
