package admin

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/quorumlock/redlock/internal/conn"
	"github.com/quorumlock/redlock/internal/protocol"
)

// Which clients use which list of nodes, by the names of their connections: see [protocol.ClientName].

// connection is one of a client of this library to a node.
type connection struct {
	protocol.ClientName
	Idle time.Duration // since it was last used
}

const (
	// roomForLists is what CLIENT LIST of all nodes may take: 40,000 connections with names of ours.
	roomForLists = 16 << 20
	// perConnection is less than such a connection takes there.
	perConnection = 128
)

// connections asks a node for its connections, but for those that listen, and to other databases.
func (n *Nodes) connections(ctx context.Context, c *redis.Client) (all []connection, err error) {
	room := roomForLists / len(n.clients)
	o := n.bounded(c, func(o *redis.Options) { conn.BoundTo(o, room) })
	asked := redis.NewClient(o)
	defer asked.Close()
	text, err := asked.Do(ctx, "CLIENT", "LIST", "TYPE", "NORMAL").Text()
	for line := range strings.Lines(text) {
		if got, db := readConnection(line); got.Nodes > 0 && db == o.DB {
			all = append(all, got)
		}
		if len(all) > room/perConnection {
			return nil, fmt.Errorf("CLIENT LIST has more than %d connections in %d bytes, which no server says", len(all)-1, len(text))
		}
	}
	return all, err
}

// readConnection reads a line of CLIENT LIST. Names have no spaces.
func readConnection(line string) (got connection, db int) {
	for word := range strings.FieldsSeq(line) {
		switch field, value, _ := strings.Cut(word, "="); field {
		case "name":
			got.ClientName, _ = protocol.ReadClientName(strings.Clone(value)) // the rest of the answer is not kept
		case "idle":
			idle, _ := strconv.ParseInt(value, 10, 32)
			got.Idle = time.Duration(idle) * time.Second
		case "db":
			db, _ = strconv.Atoi(value)
		}
	}
	return got, db
}

// connections is a step of an examiner.
func (e *examiner) connections(ctx context.Context, n *Nodes, c *redis.Client) {
	all, err := n.connections(ctx, c)
	if err != nil {
		e.cannot("CLIENT LIST", "whether all clients have this list of nodes", err)
		return
	}
	e.conns, e.listed = all, true
}

// list is a list of nodes that clients have.
type list struct {
	protocol.ClientName                   // of one of the clients
	this                bool              // it is the one that is checked
	owners              map[string]string // of the clients, by id
	has                 []bool            // each node that is checked
	idle                time.Duration     // since any of the clients asked a node for something
}

const (
	mostLists = 1000 // that are compared
	mostOdd   = 5    // that are told
)

// listsOf puts together what the nodes say. The first is the list that is checked.
func listsOf(all []facts, own protocol.ClientName) (lists []*list) {
	known := make(map[protocol.ClientName]*list)
	of := func(n protocol.ClientName) *list {
		key := protocol.ClientName{Nodes: n.Nodes, List: n.List, Scope: n.Scope}
		if known[key] == nil && len(lists) < mostLists {
			known[key] = &list{ClientName: n, owners: make(map[string]string), has: make([]bool, len(all)), idle: 1 << 62}
			lists = append(lists, known[key])
		}
		return known[key]
	}
	of(own).this = true
	for i, f := range all {
		for _, c := range f.conns {
			if l := of(c.ClientName); l != nil {
				l.owners[c.ID], l.has[i], l.idle = c.Owner, true, min(l.idle, c.Idle)
			}
		}
	}
	for _, l := range lists {
		for i, f := range all {
			// That no client is connected to a node says nothing where the node does not tell, or was
			// started after any of them last asked nodes for something.
			l.has[i] = l.has[i] || l.this || !f.listed || f.aged && f.Uptime-2*time.Second <= l.idle
		}
	}
	return lists
}

// common are the nodes that both lists have, of those that are checked.
func (l *list) common(o *list) (nodes []int) {
	for i := range l.has {
		if l.has[i] && o.has[i] {
			nodes = append(nodes, i)
		}
	}
	return nodes[:min(len(nodes), l.Nodes, o.Nodes)]
}

// mayMiss reports whether there is a majority of n nodes, and one of m, that have no node in common, where
// so many are in both lists.
func mayMiss(n, m, common int) bool { return n/2+1+m/2+1 <= n+m-common }

// judgeLists finds clients that have another list than the one that is checked, or than others.
func judgeLists(all []facts, own protocol.ClientName, add addAbout) {
	lists, told := listsOf(all, own), 0
	for i, l := range lists {
		other, nodes, missed := l.worst(lists[:i])
		if other == nil {
			continue
		}
		if told++; told > mostOdd {
			add("", SeverityWarning, "lists-differ", fmt.Sprintf("there are more than %s beside this one", plural(mostOdd, "list")), "correct those first")
			return
		}
		both := "they share none of these nodes"
		if len(nodes) > 0 {
			names := make([]string, len(nodes))
			for i, n := range nodes {
				names[i] = all[n].Node
			}
			both = "both have " + strings.Join(names, ", ")
		}
		what := fmt.Sprintf("the list of %s has %s, %s %d, and %s", l, plural(l.Nodes, "node"), other, other.Nodes, both)
		if missed {
			add("", SeverityCritical, "lists-differ", what+": a majority of one can do without any node of the other's, so two clients may hold one lock",
				"correct the list that is wrong; to replace a node, add the new one first, and remove the old one once all clients have both; clients that share no lock need a KeyPrefix of their own")
		} else {
			add("", SeverityWarning, "lists-differ", what+": their majorities meet, so locks are safe",
				"change the list again only when no client has the old one ('redlock list --clients'), and the longest TTL after that")
		}
	}
}

// worst is another list that differs: one whose majorities may miss those of this one, if there is any. nodes
// are in both.
func (l *list) worst(others []*list) (other *list, nodes []int, missed bool) {
	for _, o := range others {
		common := o.common(l)
		if o.Scope != l.Scope || len(common) == l.Nodes && len(common) == o.Nodes {
			continue
		}
		if misses := mayMiss(o.Nodes, l.Nodes, len(common)); other == nil || misses && !missed {
			other, nodes, missed = o, common, misses
		}
	}
	return other, nodes, missed
}

// String is whose list it is.
func (l *list) String() string {
	if l.this {
		return "this one"
	}
	owners := slices.Sorted(maps.Values(l.owners))
	who := strings.Join(owners, ", ")
	if n := len(owners); n > 3 {
		who = fmt.Sprintf("%s, %s and %d more", owners[0], owners[1], n-2)
	}
	return fmt.Sprintf("%s (%s)", plural(len(owners), "client"), who)
}
