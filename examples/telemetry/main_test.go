package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestSpansAndMetricsAreExported(t *testing.T) {
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), &out, ""))
	spans, metrics := make(map[string]int), make(map[string]bool)
	for d := json.NewDecoder(&out); ; {
		var item struct {
			Name         string
			ScopeMetrics []struct{ Metrics []struct{ Name string } }
		}
		err := d.Decode(&item)
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		spans[item.Name]++
		for _, s := range item.ScopeMetrics {
			for _, m := range s.Metrics {
				metrics[m.Name] = true
			}
		}
	}
	assert.Equal(t, 2, spans["redlock acquire"], "%v", spans)
	assert.Equal(t, 1, spans["redlock wait"])
	assert.Equal(t, 2, spans["redlock release"])
	assert.Equal(t, 1, spans["charge order 42"])
	assert.True(t, metrics["redlock.acquire.wait.duration"], "%v", metrics)
	assert.True(t, metrics["redlock.node.up"])
}
