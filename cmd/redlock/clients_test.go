package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock"
)

func TestListOfClients(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	other, err := redlock.Open(t.Context(), []string{s.servers[0].Addr(), s.servers[1].Addr()}, &redlock.Options{Owner: "other"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = other.Close() })

	r := s.ran(t, "list", "--clients")
	assert.Equal(t, 0, r.code, r.errOut)
	assert.Regexp(t, `(?m)^OWNER +NODES  LIST +ON$`, r.out)
	assert.Regexp(t, `(?m)^other +2 +[0-9a-f]{8}  `+s.servers[0].Addr()+`/0, `+s.servers[1].Addr()+`/0$`, r.out)
	assert.Regexp(t, `(?m)^the_test +3 +this +all$`, r.out)
	assert.Contains(t, r.out, "2 clients\n")

	var all clientsJSON
	require.NoError(t, json.Unmarshal([]byte(s.ran(t, "list", "--clients", "--json").out), &all))
	require.Len(t, all.Clients, 2)
	assert.False(t, all.Clients[0].Same)
	assert.True(t, all.Clients[1].Same)

	r = s.ran(t, "check")
	assert.Contains(t, strings.Join(strings.Fields(r.out), " "), "warning lists-differ (all) the list of 1 client (other) has 2 nodes, this one 3, and both have")

	for _, x := range s.servers {
		require.NoError(t, x.Client(t).Do(t.Context(), "ACL", "SETUSER", "default", "-client|list").Err())
	}
	r = s.ran(t, "list", "--clients")
	assert.Equal(t, 1, r.code)
	assert.Contains(t, r.errOut, "0 of 3 nodes tell their clients, 2 needed")
	assert.Contains(t, r.out, "NOPERM")
	assert.NotContains(t, r.out, "0 clients")
}
