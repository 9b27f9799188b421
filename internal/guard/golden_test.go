package guard

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/quorumlock/redlock/internal/protocol"
	"github.com/quorumlock/redlock/internal/testing/fakenode"
)

var rewrite = flag.Bool("rewrite", false, "write what the golden test prints into its file")

const goldenGuard = "testdata/guard.txt"

// The golden file tells stories of nodes and clients, and shows what the guard makes of
// them. It explains its own commands.
func TestGuardGolden(t *testing.T) {
	text, err := os.ReadFile(goldenGuard)
	require.NoError(t, err)
	var out strings.Builder
	story := &guardStory{}
	lines := strings.SplitAfter(string(text), "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		if strings.HasPrefix(line, "  ") || strings.HasPrefix(lines[i], "  ") && line != "" {
			continue // what came out before
		}
		out.WriteString(lines[i])
		if line == "" || line[0] == '#' {
			continue
		}
		for _, told := range story.do(t, strings.Fields(line)) {
			fmt.Fprintf(&out, "    %s\n", told)
		}
	}
	if *rewrite {
		require.NoError(t, os.WriteFile(goldenGuard, []byte(out.String()), 0o644))
		return
	}
	require.Equal(t, string(text), out.String(), "go test -run TestGuardGolden -rewrite shows the difference in git")
}

// Each sentence that says why a vote does not count has a story in which it is said.
func TestEachReasonHasAStory(t *testing.T) {
	text, err := os.ReadFile(goldenGuard)
	require.NoError(t, err)
	file, err := parser.ParseFile(token.NewFileSet(), "why.go", nil, 0)
	require.NoError(t, err)
	found := 0
	ast.Inspect(file, func(n ast.Node) bool {
		c, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(c.Names[0].Name, "why") {
			return true
		}
		found++
		sentence, err := strconv.Unquote(c.Values[0].(*ast.BasicLit).Value)
		require.NoError(t, err)
		said := regexp.MustCompile(`(?m)^    \d+: ` + regexp.MustCompile("%[sd]").ReplaceAllString(regexp.QuoteMeta(sentence), ".+") + "$")
		assert.Regexp(t, said, string(text), c.Names[0].Name)
		return true
	})
	require.NotZero(t, found)
}

// guardStory is one story: a fleet, and clients by name.
type guardStory struct {
	now     int64
	nodes   []*markNode
	snaps   []map[string]*fakenode.Key
	clients map[string]*markClient
	fixed   time.Duration
}

func (st *guardStory) do(t *testing.T, f []string) []string {
	t.Helper()
	switch f[0] {
	case "fleet": // of N nodes, for so long
		*st = guardStory{now: int64(1000 * time.Hour), clients: make(map[string]*markClient)}
		for i := range fakenode.Number(f[1]) {
			st.nodes = append(st.nodes, newMarkNode(int(i), &st.now, span(t, f[3])))
			st.snaps = append(st.snaps, nil)
		}
		if len(f) > 4 {
			st.fixed = span(t, f[5])
		}
		return nil
	case "pass":
		st.now += int64(span(t, f[1]))
		return nil
	}
	if len(f) > 1 {
		if told, ok := st.happens(t, f); ok {
			return told
		}
	}
	if len(f) == 3 && f[1] == "list" {
		st.clients[f[0]] = newMarkClient(st.nodes[:fakenode.Number(f[2])], &st.now, st.fixed, len(st.clients))
		return nil
	}
	return st.client(f[0]).does(t, st, f[1:])
}

// happens is what becomes of a node.
func (st *guardStory) happens(t *testing.T, f []string) (told []string, ok bool) {
	i, err := strconv.Atoi(f[len(f)-1])
	if err != nil || st.clients[f[0]] != nil {
		return nil, false
	}
	n := st.nodes[i]
	switch f[0] {
	case "save":
		st.snaps[i] = n.copied()
	case "restart":
		n.restart(nil)
	case "restore":
		n.restart(st.snaps[i])
	case "promote":
		n.promote(st.snaps[i], 100*time.Hour)
	case "follow":
		n.follow()
	case "lead":
		n.lead(st.snaps[i])
	case "flush":
		n.flush()
	case "again":
		n.again(st.snaps[i])
	case "swap":
		n.swap(st.snaps[i])
	case "redraw":
		n.redraw()
	case "delmark":
		delete(n.store.Keys, protocol.MarkKey)
	case "garbage":
		n.store.Set(protocol.MarkKey, "garbage", 0, &fakenode.Op{})
	case "clock":
		n.skew += int64(span(t, f[1]))
	default:
		return nil, false
	}
	return nil, true
}

func span(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	require.NoError(t, err)
	return d
}

func (st *guardStory) client(name string) *markClient {
	c := st.clients[name]
	if c == nil {
		c = newMarkClient(st.nodes, &st.now, st.fixed, len(st.clients))
		st.clients[name] = c
	}
	return c
}

// does is what a client does. It returns what its guard says.
func (c *markClient) does(t *testing.T, st *guardStory, f []string) (told []string) {
	t.Helper()
	if f[0] == "votes" {
		return []string{c.votes(span(t, f[1]))}
	}
	if f[0] == "says" {
		return c.says(span(t, f[1]))
	}
	if f[0] == "starts" {
		nodes := f[1:]
		if len(nodes) == 0 {
			for i := range c.nodes {
				nodes = append(nodes, strconv.Itoa(i))
			}
		}
		for range FirstLooks {
			told = append(told, c.does(t, st, append([]string{"asks"}, nodes...))...)
			st.now += int64(time.Millisecond)
		}
		return told
	}
	for _, node := range f[1:] {
		i := int(fakenode.Number(node))
		var s protocol.ServerReport
		switch f[0] {
		case "asks":
			s = c.nodes[i].ask()
		case "looks":
			s = c.nodes[i].look()
		case "sees":
			s = c.nodes[i].ask()
			s.Asked = false
		case "noinfo":
			s = protocol.ServerReport{Err: fakenode.Error("NOPERM this user has no permissions to run the 'info' command")}
		case "busy":
			s = protocol.ServerReport{Err: fakenode.Error("BUSY Redis is busy running a script")}
		case "nomark":
			s = c.nodes[i].ask()
			s.Mark = protocol.MarkOfError(fakenode.Error("NOPERM No permissions to access a key"))
		case "oom":
			s = c.nodes[i].ask()
			s.Mark = protocol.MarkOfError(fakenode.Error("OOM command not allowed when used memory > 'maxmemory'."))
		default:
			t.Fatalf("no such command: %q", f)
		}
		for _, w := range c.tell(i, s) {
			told = append(told, fmt.Sprintf("%d: %s", i, describe(w)))
		}
	}
	return told
}

func describe(w *protocol.MarkWrite) string {
	if w.All > 0 && strings.HasPrefix(w.Old, w.ID+" ") && !strings.Contains(w.Old, " all") {
		return fmt.Sprintf("writes into the mark that all nodes are new, of %d", w.All)
	}
	what := "writes a mark"
	if w.First {
		what = "writes a first mark"
	}
	if w.Old == "" {
		return what + " where there is none"
	}
	if strings.HasPrefix(w.Old, w.ID+" ") {
		what = "binds the mark to the new replication id"
		if w.At == 0 {
			what = "gives the mark the present date"
		}
		return what
	}
	return what + " over another"
}

// says is why the nodes that may not vote for a lock with this guard may not.
func (c *markClient) says(period time.Duration) (told []string) {
	for i := range c.nodes {
		if left := c.g.Judge(i, period, *c.clock.now_); left > 0 {
			why, _, _ := strings.Cut(c.g.Why(i, left).Error(), "; votes count from ")
			told = append(told, fmt.Sprintf("%d: %s", i, why))
		}
	}
	return told
}

// votes tells of each node whether it may vote for a lock with this guard.
func (c *markClient) votes(period time.Duration) string {
	words := make([]string, len(c.nodes))
	for i := range words {
		left := c.g.Judge(i, period, *c.clock.now_)
		switch {
		case c.g.memories.Nodes[i].Identity == identityUnheard:
			words[i] = "not seen"
		case left == 0:
			words[i] = "votes"
		default:
			words[i] = fmt.Sprintf("barred for %v", left)
			if _, ok := c.g.Why(i, left).(BarredError); !ok {
				words[i] = "does not tell"
			}
		}
		words[i] = fmt.Sprintf("%d %s", i, words[i])
	}
	return strings.Join(words, "; ")
}
