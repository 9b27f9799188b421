package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/quorumlock/redlock/admin"
)

// clientsJSON is what --clients --json prints.
type clientsJSON struct {
	Clients []clientJSON `json:"clients"`
	Nodes   []clientNode `json:"nodes"`
	Error   string       `json:"error,omitempty"`
}

type clientJSON struct {
	ID    string   `json:"id"`
	Owner string   `json:"owner"`
	Nodes []string `json:"nodes"` // those of these
	Of    int      `json:"of"`    // how many nodes it has
	List  string   `json:"list"`  // the same for the same addresses
	Same  bool     `json:"same"`  // as the list that was given
	// OtherPrefix: its key_prefix is another, so it shares no lock.
	OtherPrefix bool `json:"other_prefix,omitempty"`
}

type clientNode struct {
	Node  string `json:"node"`
	Error string `json:"error,omitempty"`
}

// runClients is list with --clients.
func runClients(cmd *cobra.Command, s settings, asJSON bool) error {
	nodes, err := s.operate(admin.Options{})
	if err != nil {
		return failure(cmd, asJSON, "", err)
	}
	defer nodes.Close()
	found, err := nodes.Clients(cmd.Context())
	w := cmd.OutOrStdout()
	paint := paletteFor(w)
	out := clientsJSON{Clients: []clientJSON{}}
	t := table{heading: []string{"OWNER", "NODES", "LIST", "ON"}, bad: func(i int) bool { return !found.Clients[i].Same && !found.Clients[i].OtherPrefix }}
	for _, c := range found.Clients {
		out.Clients = append(out.Clients, clientJSON(c))
		list, on := c.List, strings.Join(c.Nodes, ", ")
		if c.Same {
			list = "this"
		}
		if c.OtherPrefix {
			list += ", other prefix"
		}
		if len(c.Nodes) == len(nodes.Names()) {
			on = "all"
		}
		t.rows = append(t.rows, []string{c.Owner, fmt.Sprint(c.Of), list, on})
	}
	told := 0
	for _, n := range found.Nodes {
		node := clientNode{Node: n.Node}
		if n.Err != nil {
			node.Error = inPlain(n.Err)
		} else {
			told++
		}
		out.Nodes = append(out.Nodes, node)
	}
	if errors.Is(err, admin.ErrNoQuorum) {
		err = fmt.Errorf("%w: %s, %d needed", admin.ErrNoQuorum, nodesThat(told, len(out.Nodes), "tells its clients", "tell their clients"), nodes.Quorum())
		out.Error = err.Error()
	}
	if asJSON {
		_ = json.NewEncoder(w).Encode(out)
		return err
	}
	if len(t.rows) > 0 {
		t.print(w, paint)
	}
	if len(t.rows) > 0 || out.Error == "" { // else it is not known
		fmt.Fprintln(w, plural(len(t.rows), "client"))
	}
	for _, n := range out.Nodes {
		if n.Error != "" {
			fmt.Fprint(w, paint.bad(paragraph(w, printable(n.Node+": "+n.Error))))
		}
	}
	return err
}
