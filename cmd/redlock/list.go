package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock/admin"
)

type listFlags struct {
	prefix  string
	limit   int
	all     bool
	clients bool
	json    bool
}

// listed is a lock, or what is left of one.
type listed struct {
	Key   string  `json:"key"`
	Held  bool    `json:"held"` // by a majority
	Token string  `json:"token"`
	Owner string  `json:"owner"`
	TTL   float64 `json:"ttl_seconds"` // how long a majority lasts, or the longest without one; -1: no end
	Nodes int     `json:"nodes"`       // that have it
	// Shared: several hold it together. Holders are missing if the nodes could not be asked.
	Shared  bool         `json:"shared,omitempty"`
	Holders []holderJSON `json:"holders,omitempty"`
}

// listJSON is what --json prints.
type listJSON struct {
	Locks  []listed   `json:"locks"`
	Nodes  []listNode `json:"nodes"`
	Quorum int        `json:"quorum"`
	More   bool       `json:"more"` // there may be locks that are not listed
	Error  string     `json:"error,omitempty"`
}

type listNode struct {
	Node  string `json:"node"`
	Keys  int    `json:"keys"` // that look like locks
	Whole bool   `json:"whole"`
	// Denied is how many keys the user may not read. There may be locks among them.
	Denied int    `json:"denied,omitempty"`
	Error  string `json:"error,omitempty"`
}

func listCommand() *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the locks that are held, or with --clients the clients of the nodes",
		Long: `List the locks that are held, their holders, the time left, and how many nodes have them.

The nodes do not know which locks there are: each is searched with SCAN, a few hundred
keys at a time, which does not stop it. On a node with millions of other keys that takes
long; after 30 s, --limit locks on a node, or 16 MB of names in all, it shows what it found
and says so. What looks like a lock of this library counts as one: a string that begins with
a token, or the mark of a lock that several hold together.
Nothing is changed. A lock that comes or goes meanwhile may be missing.

With --clients it lists the clients that are connected to the nodes, by the names of their
connections: how many nodes each has, and on which of these it is. LIST is "this" where it
has these nodes; clients with the same other one have the same list. Not seen are clients
that made no use of the nodes for a minute (New), have names of their own, or may not set any.

Exit status: 0 if a majority of nodes was searched, also if the search was cut short; 1 if
not; 2 for a fault in the command line.`,
		Example: "  redlock list\n  redlock list --prefix orders:\n  redlock list --clients\n  redlock list --json | jq -r '.locks[].key'",
		Args:    noArgs, ValidArgsFunction: cobra.NoFileCompletions,
	}
	s := connectFlags(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.prefix, "prefix", "", "only keys that begin so, behind the key_prefix of --config")
	fl.IntVar(&f.limit, "limit", 1000, "search a node until this many locks are found, from 1 to 100000")
	fl.BoolVar(&f.all, "all", false, "also keys that no majority has: of attempts under way, or left behind")
	fl.BoolVar(&f.clients, "clients", false, "the clients instead of locks")
	fl.BoolVar(&f.json, "json", false, "one JSON object")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if f.limit < 1 || f.limit > 100000 {
			return &usageError{fmt.Errorf("--limit is %d: must be from 1 to 100000", f.limit)}
		}
		if f.clients {
			return runClients(cmd, s, f.json)
		}
		return runList(cmd, s, f)
	}
	return cmd
}

func runList(cmd *cobra.Command, s settings, f listFlags) error {
	nodes, err := s.operate(admin.Options{})
	if err != nil {
		return failure(cmd, f.json, "", err)
	}
	defer nodes.Close()
	found, err := nodes.List(cmd.Context(), quoteGlob(f.prefix)+"*", f.limit)
	if found.Nodes == nil {
		return failure(cmd, f.json, "", err)
	}
	out := listOf(found, nodes.Quorum(), f)
	if errors.Is(err, admin.ErrNoQuorum) {
		searched := 0
		for _, n := range out.Nodes {
			if n.Error == "" || n.Keys > 0 {
				searched++
			}
		}
		err = fmt.Errorf("%w: %s, %d needed", admin.ErrNoQuorum, nodesThat(searched, len(out.Nodes), "could be searched", "could be searched"), out.Quorum)
		out.Error = err.Error()
	}
	if f.json {
		_ = json.NewEncoder(cmd.OutOrStdout()).Encode(out)
	} else {
		out.print(cmd.OutOrStdout())
	}
	return err
}

// quoteGlob is a pattern that matches only the text.
func quoteGlob(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(text)
}

// listOf is what was found, as --json prints it.
func listOf(found admin.Listing, quorum int, f listFlags) *listJSON {
	out := &listJSON{Locks: []listed{}, Nodes: []listNode{}, Quorum: quorum, More: found.More}
	for _, n := range found.Nodes {
		node := listNode{Node: n.Node, Keys: n.Keys, Whole: n.Whole, Denied: n.Denied}
		if n.Err != nil {
			node.Error = inPlain(n.Err)
		}
		out.Nodes = append(out.Nodes, node)
	}
	for _, x := range found.Locks {
		if !x.Held && !f.all {
			continue
		}
		l := listed{Key: x.Key, Held: x.Held, Token: x.Token, Owner: x.Owner, TTL: inSeconds(x.TTL), Nodes: x.Nodes, Shared: x.Shared, Holders: holdersJSON(x.Holders)}
		if x.TTL < 0 {
			l.TTL = -1
		}
		out.Locks = append(out.Locks, l)
	}
	return out
}

func (l *listJSON) print(w io.Writer) {
	paint := paletteFor(w)
	t := table{heading: []string{"KEY", "HOLDER", "TOKEN", "LEASE", "NODES"}, spare: []int{2}, bad: func(i int) bool { return !l.Locks[i].Held }}
	for _, x := range l.Locks {
		lease := time.Duration(x.TTL * float64(time.Second)).Round(100 * time.Millisecond)
		holder, token := cut(x.Owner, 24), shortToken(x.Token)
		if x.Shared {
			holder, token = sharers(x.Holders), "-"
		}
		t.rows = append(t.rows, []string{x.Key, holder, token, leaseOf(lease), fmt.Sprintf("%d/%d", x.Nodes, len(l.Nodes))})
	}
	if len(t.rows) > 0 {
		t.print(w, paint)
	}
	switch n := len(t.rows); {
	case n == 0 && l.Error != "": // nobody knows
	case n == 0:
		fmt.Fprintln(w, "no locks")
	case n == 1:
		fmt.Fprintln(w, "1 lock")
	default:
		fmt.Fprintf(w, "%d locks\n", n)
	}
	for _, n := range l.Nodes {
		if n.Error != "" {
			fmt.Fprint(w, paint.bad(paragraph(w, printable(n.Node+": "+n.Error))))
		}
		if n.Denied > 0 {
			fmt.Fprint(w, paint.odd(paragraph(w, fmt.Sprintf("%s: this user may not read %d of the keys; --prefix leaves them out", printable(n.Node), n.Denied))))
		}
	}
	if l.More {
		fmt.Fprint(w, paragraph(w, "There may be more: not every node was searched to the end. --prefix narrows the search, --limit widens it."))
	}
}
