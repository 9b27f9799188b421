package admin

import (
	"fmt"
	"math/bits"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/protocol"
)

// The formula says what a search through all majorities does.
func TestMajoritiesThatMayMissEachOther(t *testing.T) {
	const most = 6
	for n := 1; n <= most; n++ {
		for m := 1; m <= most; m++ {
			for common := 0; common <= min(n, m); common++ {
				// The first list are the lowest n bits, the second the m from n-common on.
				first, second := uint(1)<<n-1, (uint(1)<<m-1)<<(n-common)
				found := false
				for a := range first + 1 {
					for b := uint(0); b <= second && !found; b += 1 << (n - common) {
						found = a&b == 0 && 2*bits.OnesCount(a) > n && 2*bits.OnesCount(b) > m
					}
				}
				assert.Equal(t, found, mayMiss(n, m, common), "%d and %d nodes, %d in common", n, m, common)
			}
		}
	}
}

// of is a client, by its name, with a list of so many nodes.
func of(owner string, nodes int, listed, scope string) connection {
	return connection{protocol.ClientName{ID: owner, Nodes: nodes, List: listed, Scope: scope, Owner: owner}, time.Second}
}

func TestJudgeLists(t *testing.T) {
	own := protocol.ClientName{Nodes: 3, List: "own", Scope: "s"}
	for _, c := range []struct {
		name string
		on   map[string][]connection // by node
		but  func(all []facts)
		want []string
		says string
	}{
		{name: "nobody"},
		{name: "this list", on: map[string][]connection{"a": {of("x", 3, "own", "s")}}},
		{name: "this list by other names", on: map[string][]connection{"a": {of("x", 3, "?", "s")}, "b": {of("y", 3, "?", "s")}, "c": {of("x", 3, "?", "s")}}},
		{name: "one node is another", on: map[string][]connection{"a": {of("x", 3, "?", "s")}, "b": {of("x", 3, "?", "s")}},
			want: []string{"critical"}, says: "the list of 1 client (x) has 3 nodes, this one 3, and both have a, b: a majority of one"},
		{name: "another node more", on: map[string][]connection{"a": {of("x", 4, "?", "s")}, "b": {of("x", 4, "?", "s")}, "c": {of("x", 4, "?", "s")}},
			want: []string{"warning"}, says: "has 4 nodes, this one 3, and both have a, b, c: their majorities meet"},
		{name: "two nodes more", on: map[string][]connection{"a": {of("x", 5, "?", "s")}, "b": {of("x", 5, "?", "s")}, "c": {of("x", 5, "?", "s")}}, want: []string{"critical"}},
		{name: "a node less", on: map[string][]connection{"a": {of("x", 2, "?", "s")}, "b": {of("x", 2, "?", "s")}}, want: []string{"warning"}},
		{name: "two lists beside this one", on: map[string][]connection{
			"a": {of("x", 2, "?", "s")}, "b": {of("x", 2, "?", "s"), of("y", 2, "!", "s"), of("z", 2, "!", "s")}, "c": {of("y", 2, "!", "s"), of("z", 2, "!", "s")},
		}, want: []string{"warning", "warning"}, says: "the list of 2 clients (y, z) has 2 nodes"},
		{name: "each with this one, but not with each other", but: func(all []facts) {
			all[0].conns = []connection{of("x", 1, "?", "s")}
			all[1].conns = []connection{of("y", 1, "!", "s")}
		},
			want: []string{"critical", "critical"}, says: "both have b"},
		{name: "locks of other names", on: map[string][]connection{"a": {of("x", 3, "?", "other")}}},
		{name: "others among each other", on: map[string][]connection{"a": {of("x", 1, "?", "other"), of("y", 1, "!", "other")}, "b": {of("y", 1, "!", "other")}},
			want: nil},
		{name: "others that miss each other", on: map[string][]connection{"a": {of("x", 1, "?", "other")}, "b": {of("y", 1, "!", "other")}},
			want: []string{"critical"}, says: "the list of 1 client (y) has 1 node, 1 client (x) 1, and they share none of these nodes"},
		{name: "a node that does not tell", on: map[string][]connection{"a": {of("x", 3, "?", "s")}, "b": {of("x", 3, "?", "s")}}, but: func(all []facts) { all[2].listed = false }},
		{name: "a node that was restarted while nothing was asked", on: map[string][]connection{"a": {of("x", 3, "?", "s")}, "b": {of("x", 3, "?", "s")}},
			but: func(all []facts) {
				all[2].Uptime = time.Minute
				all[0].conns[0].Idle, all[1].conns[0].Idle = time.Hour, 59*time.Second
			}},
		{name: "a node that was restarted before something was", on: map[string][]connection{"a": {of("x", 3, "?", "s")}, "b": {of("x", 3, "?", "s")}},
			but: func(all []facts) {
				all[2].Uptime = time.Minute
				all[0].conns[0].Idle, all[1].conns[0].Idle = time.Hour, 50*time.Second
			}, want: []string{"critical"}},
		{name: "many lists", on: map[string][]connection{"a": {of("1", 1, "1", "s"), of("2", 2, "2", "s"), of("3", 3, "3", "s"), of("4", 4, "4", "s"), of("5", 5, "5", "s"), of("6", 6, "6", "s"), of("7", 7, "7", "s")}},
			want: []string{"critical", "critical", "critical", "critical", "critical", "warning"}, says: "more than 5 lists"},
		{name: "many clients", on: map[string][]connection{"a": {of("x", 3, "?", "s"), of("y", 3, "?", "s"), of("z", 3, "?", "s"), of("q", 3, "?", "s")}},
			want: []string{"critical"}, says: "4 clients (q, x and 2 more)"},
	} {
		t.Run(c.name, func(t *testing.T) {
			all := []facts{sound("a"), sound("b"), sound("c")}
			for i, f := range all {
				all[i].conns, all[i].listed = c.on[f.Node], true
			}
			if c.but != nil {
				c.but(all)
			}
			var got, text []string
			judgeLists(all, own, func(node string, s Severity, code, message, advice string) {
				got, text = append(got, severities[s]), append(text, message)
				assert.Equal(t, "lists-differ", code)
				assert.Empty(t, node)
				assert.NotEmpty(t, advice)
			})
			assert.Equal(t, c.want, got, "%q", text)
			assert.Contains(t, strings.Join(text, "\n"), c.says)
		})
	}
}

func TestReadConnections(t *testing.T) {
	const name = "redlock:0123abcd:3:89abcdef:00000000:web-1:77"
	got, db := readConnection(fmt.Sprintf("id=7 addr=10.0.0.9:1 laddr=10.0.0.1:6379 fd=8 name=%s age=90 idle=12 flags=N db=2 sub=0 cmd=set user=locks lib-name=\n", name))
	require.Equal(t, name, got.ClientName.String())
	assert.Equal(t, 12*time.Second, got.Idle)
	assert.Equal(t, 2, db)
	for _, line := range []string{"", "\n", "id=7 name= age=90", "id=7 name=other age=90", "name=redlock:0123abcd:3", "garbage"} {
		got, _ := readConnection(line)
		assert.Zero(t, got.Nodes, line)
	}
}
