package main

import (
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/admin"
)

func TestPictureOfALock(t *testing.T) {
	node := func(value string) admin.NodeStatus {
		switch value {
		case "-":
			return admin.NodeStatus{}
		case "?":
			return admin.NodeStatus{Err: errors.New("no answer")}
		case "list":
			return admin.NodeStatus{TTL: -1, Err: errors.New("no lock")}
		case sharedMarker:
			return admin.NodeStatus{Value: value, TTL: time.Second}
		default:
			return admin.NodeStatus{Value: value, Token: value, TTL: time.Second}
		}
	}
	for _, c := range []struct {
		nodes []string
		held  *bool
		says  string
	}{
		{[]string{"-", "-", "-", "-", "-"}, new(false), "k is free"},
		{[]string{"-", "-", "-", "?", "?"}, new(false), "k is free"},
		{[]string{"-", "-", "-", "a", "a"}, new(false), "k is free"},
		{[]string{"-", "-", "?", "?", "?"}, nil, "whether k is held is not known: no quorum, 2 of 5 nodes answer, 3 needed"},
		{[]string{"a", "-", "?", "?", "?"}, nil, "k may be held by token a: no quorum, 2 of 5 nodes answer, 3 needed"},
		{[]string{"a", "-", "-", "?", "?"}, nil, "k may be held by token a: 1 of 5 nodes has it, and 2 do not answer"},
		{[]string{"a", "b", "b", "-", "?"}, nil, "k may be held by token b: 2 of 5 nodes have it, and 1 does not answer"},
		{[]string{"a", "b", "-", "-", "?"}, new(false), "k has no holder, and is not free: 2 of 5 nodes have nothing under the key, 3 needed"},
		{[]string{"a", "a", "b", "b", "-"}, new(false), "k has no holder, and is not free: 1 of 5 nodes has nothing under the key, 3 needed"},
		{[]string{"list", "list", "list", "-", "-"}, new(false), "k has no holder, and is not free: 2 of 5 nodes have nothing under the key, 3 needed"},
		{[]string{"redlock:shared", "-", "-", "?", "?"}, nil, "k may be held by several together: 1 of 5 nodes has it, and 2 do not answer"},
		{[]string{"?"}, nil, "whether k is held is not known: no quorum, 0 of 1 node answers, 1 needed"},
	} {
		s := admin.Status{Key: "k"}
		for _, n := range c.nodes {
			s.Nodes = append(s.Nodes, node(n))
		}
		p := pictureOf(s, len(c.nodes)/2+1)
		assert.Equal(t, c.held, p.held(), "%v", c.nodes)
		assert.Equal(t, c.says, newPalette(false).verdict(p), "%v", c.nodes)
	}
}

func TestTimesInJSON(t *testing.T) {
	text, err := json.Marshal(asJSON(pictureOf(admin.Status{Key: "k", TTL: 7887 * time.Millisecond}, 1)))
	require.NoError(t, err)
	assert.Contains(t, string(text), `"ttl_seconds":7.887,`)
	assert.InDelta(t, -1, inSeconds(-1), 0, "no end, as go-redis says it: a nanosecond less than none")
}

// Keys that differ look different, and none steers the terminal.
func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{"a\x01": `a\x01`, "a\x02": `a\x02`, "\x1b[2J": `\x1b[2J`, "\xff\n": `\xff\n`, "Schlüssel 鍵 \"a\\": `Schlüssel 鍵 "a\`, "\ufffd\u202e": "\ufffd" + `\u202e`} {
		assert.Equal(t, want, printable(text))
	}
}
