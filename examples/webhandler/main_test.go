package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/examples/internal/left"
	"github.com/quorumlock/redlock/examples/internal/nodes"
	"github.com/quorumlock/redlock/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestAnswersInTime(t *testing.T) {
	left.RunWithOutage(t, func(ctx context.Context, out io.Writer, n *nodes.Nodes) error { return run(ctx, out, n, "") }, func(t *testing.T, out string) {
		for id, want := range map[string][]string{
			"42": {"200"}, "7": {"409", "200"}, "8": {"503", "200"},
		} {
			var got []string
			for _, m := range regexp.MustCompile(`(?m)^order `+id+`: (\d+)`).FindAllStringSubmatch(out, -1) {
				got = append(got, m[1])
			}
			assert.Equal(t, want, slices.Compact(got), "order %s in %s", id, out)
		}
		assert.Equal(t, 1, strings.Count(out, "order 42: 200")-strings.Count(out, "charged already"))
	})
}

func TestServesUntilInterrupted(t *testing.T) {
	n, err := nodes.Embedded()
	require.NoError(t, err)
	defer n.Close()
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, w, n, "127.0.0.1:0") }()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	url := strings.TrimSpace(strings.TrimPrefix(line, "serving at "))

	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for _, want := range []string{"charged\n", "charged already\n"} {
		resp, err := client.Post(url+"/orders/1/charge", "", nil)
		require.NoError(t, err)
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		require.NoError(t, err)
		assert.Equal(t, want, string(body))
	}
	interrupt()
	assert.NoError(t, <-ended)
}
